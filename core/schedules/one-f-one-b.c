/*
 * N = 2, M = 3, F = 1, B = 2: T = 12
 *
 *   gpu 0  |F0 |F1 |       |B0     |F2 |B1     |   |B2     |
 *   gpu 1      |F0 |B0     |F1 |B1     |F2 |B2     |
 *
 * min(M, N-1-r) warm-up forwards, then one forward and one backward in turn, then the remaining
 * backwards. T = (M + S - 1)(F + B), as GPipe, but only min(M, N-r) activations live on device r.
 *
 * Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021
 * (PipeDream-Flush).
 */
#include "core/schedules/schedules.h"

static void
order_1f1b(const RpShape *shape, guint gpu, GArray *order)
{
    const guint M = shape->micro_batches;
    const guint warm_up = MIN(M, shape->gpus - 1 - gpu);

    for (guint m = 0; m < warm_up; m++)
        rp_order_push(order, RP_ACTION_FORWARD, gpu, m);
    for (guint m = 0; m < M; m++) {
        if (warm_up + m < M)
            rp_order_push(order, RP_ACTION_FORWARD, gpu, warm_up + m);
        rp_order_push(order, RP_ACTION_BACKWARD, gpu, m);
    }
}

const RpScheduleOps rp_schedule_1f1b = {
    .name = "1f1b",
    .title = "1F1B",
    .summary = "one forward, one backward: GPipe's time with fewer live activations",
    .stages_per_gpu = 1,
    .order = order_1f1b,
};
