/**
 * How long a run is before its iterations repeat.
 */
#pragma once

#include <glib.h>

/* The iterations that a run must have for its steady state to be seen, and the window. */
typedef struct {
    guint iterations;
    guint first; /* of the window */
    guint end;
} RpSteadyWindow;

/**
 * rp_steady_window:
 * @slots: slots of an iteration (all rounds); bound schedules: any multiple of @gpus
 *
 * The rotation of devices repeats after gpus / gcd(slots, gpus) iterations, and what the optimizer
 * delays after two, since an iteration waits for the update of the one before the last: the window
 * is a whole number of both, after as many iterations of warm-up as it takes to settle.
 */
RpSteadyWindow rp_steady_window(guint gpus, guint slots);

/* The same where slots go to the device that is free first: they need not repeat, and the window is as
 * long as the warm-up. */
RpSteadyWindow rp_steady_window_free(guint gpus, guint slots);

/* The window of a run with flushes: every iteration is like the second. */
RpSteadyWindow rp_steady_window_synchronous(void);

/* Iterations until each device has run @turns slots; never fewer than four, and an even number.
 * @slots: as above */
guint rp_settling_iterations(guint turns, guint gpus, guint slots);
