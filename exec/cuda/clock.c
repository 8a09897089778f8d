#include "exec/cuda/clock.h"

#include <math.h>

#define LONG_NS 16e9     /* 2^-24 of it is a microsecond */
#define STEADY_NS 2e9    /* anchors this far apart give the rate */
#define RATE_RANGE 1e-3  /* no clock is worse */
#define JUMP_NS 1000000. /* too much to take up in a period */

static const RpCudaAnchor *
nth(const RpCudaClock *clock, guint64 number)
{
    return &clock->anchors[number % RP_CUDA_CLOCK_RING];
}

static double
shown_at(const RpCudaAnchor *anchor, double device_ns)
{
    const double since = device_ns - anchor->device_ns;
    const double share = CLAMP(since / RP_CUDA_CLOCK_PERIOD_NS, 0, 1);

    return anchor->shown_ns + since * anchor->rate + share * anchor->pending_ns;
}

void
rp_cuda_clock_add(RpCudaClock *clock, double elapsed_ns, gint64 host_ns, gint64 error_ns)
{
    RpCudaAnchor *next = &clock->anchors[clock->n % RP_CUDA_CLOCK_RING];
    RpCudaAnchor anchor = {.rate = 1};

    clock->worst_error_ns = MAX(clock->worst_error_ns, error_ns);
    if (clock->n == 0) {
        clock->first_ns = host_ns;
    } else {
        const RpCudaAnchor *last = nth(clock, clock->n - 1);
        const double host = (double)(host_ns - clock->first_ns);
        const double passed = (double)(host_ns - clock->last_ns);

        anchor.device_ns = last->device_ns + (passed < LONG_NS ? elapsed_ns : passed / last->rate);
        anchor.shown_ns = shown_at(last, anchor.device_ns);
        if (anchor.device_ns > STEADY_NS)
            anchor.rate = CLAMP(host / anchor.device_ns, 1 - RATE_RANGE, 1 + RATE_RANGE);
        anchor.pending_ns = host - anchor.shown_ns;
        if (fabs(anchor.pending_ns) > JUMP_NS) {
            anchor.shown_ns = host;
            anchor.pending_ns = 0;
        }
    }
    *next = anchor;
    clock->last_ns = host_ns;
    clock->n++;
}

guint64
rp_cuda_clock_oldest(const RpCudaClock *clock)
{
    return clock->n < RP_CUDA_CLOCK_RING ? 0 : clock->n - (RP_CUDA_CLOCK_RING - 1);
}

gint64
rp_cuda_clock_host_ns(const RpCudaClock *clock, guint64 anchor, double elapsed_ns)
{
    g_assert(anchor >= rp_cuda_clock_oldest(clock) && anchor < clock->n);
    const double device_ns = nth(clock, anchor)->device_ns + elapsed_ns;

    /* the anchor that it comes after */
    while (anchor + 1 < clock->n && nth(clock, anchor + 1)->device_ns <= device_ns)
        anchor++;
    return clock->first_ns + (gint64)llround(shown_at(nth(clock, anchor), device_ns));
}
