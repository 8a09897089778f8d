#include "sim/steady-window.h"
#include "core/base/units.h"

#define SETTLING_TURNS 64 /* slots that each device runs before the rhythm is steady */

/* Iterations until each device has run @turns slots; never fewer than four, and an even number. */
guint
rp_settling_iterations(guint turns, guint gpus, guint slots)
{
    return CLAMP(turns / MAX(1, slots / gpus), 4, turns) / 2 * 2;
}

RpSteadyWindow
rp_steady_window(guint gpus, guint slots)
{
    guint warm_up = rp_settling_iterations(SETTLING_TURNS, gpus, slots);
    guint turn = gpus / (guint)rp_greatest_common_divisor(slots, gpus);
    guint period = turn % 2 == 0 ? turn : 2 * turn; /* the update of T is for T + 2 */
    RpSteadyWindow window = {
        .first = warm_up,
        .end = warm_up + period,
        .iterations = warm_up + period + 1,
    };

    return window;
}

RpSteadyWindow
rp_steady_window_synchronous(void)
{
    return (RpSteadyWindow){.iterations = 3, .first = 1, .end = 2};
}

RpSteadyWindow
rp_steady_window_free(guint gpus, guint slots)
{
    RpSteadyWindow window = rp_steady_window(gpus, slots);

    window.end = window.first + MAX(window.first, window.end - window.first);
    window.iterations = window.end + 1;
    return window;
}
