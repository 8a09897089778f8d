/*
 * N = 2, M = 4, F = I = W = 1: T = 13
 *
 *   gpu 0  |F0 |F1 |F2 |I0 |W0 |F3 |I1 |W1 |I2 |W2 |I3 |W3 |
 *   gpu 1      |F0 |I0 |F1 |I1 |F2 |I2 |W0 |F3 |I3 |W1 |W2 |W3 |
 *
 * ZB-H1 with up to twice the activations: w = min(2(N-r)-1, L-r) forwards before the first I, and W
 * lags behind I by L-w, so that L activations live on every device. L = 2N-1, or less if that is the
 * limit; with L = N it is ZB-H1. With 2N-1 the first I comes without a wait; the paper writes that
 * order by hand (ZB-H2), and searches for others within 2N (ZB-2p).
 * T = M(F + B) + (N - 1) max(F, I - F, F + I - 2W) when L = 2N-1 <= M.
 *
 * Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H2, ZB-2p).
 */
#include "core/schedules/schedules.h"

static gboolean
check(const RpShape *shape, GError **error)
{
    if (shape->live == 0 || shape->live >= shape->gpus)
        return TRUE;
    return rp_schedule_fail(error, RP_SHAPE_USE(LIVE, OR_MORE, shape->gpus), RP_SHAPE_NONE,
                            "%u GPUs need the activations of at least %u micro-batches each, as "
                            "zb-h1 has, found a limit of %u (v-half and v-min take fewer)",
                            shape->gpus, shape->gpus, shape->live);
}

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint N = shape->gpus, M = shape->micro_batches, r = gpu;
    const guint live = shape->live != 0 ? MIN(shape->live, 2 * N - 1) : 2 * N - 1;
    const guint ahead = MIN(2 * (N - r) - 1, live - r), lag = live - ahead;
    guint forwards = 0, weights = 0;

    while (forwards < MIN(ahead, M))
        rp_order_push(actions, RP_ACTION_FORWARD, r, forwards++);
    for (guint k = 0; k < M; k++) {
        rp_order_push(actions, RP_ACTION_INPUT_GRADIENT, r, k);
        if (k >= lag)
            rp_order_push(actions, RP_ACTION_WEIGHT_GRADIENT, r, weights++);
        if (forwards < M)
            rp_order_push(actions, RP_ACTION_FORWARD, r, forwards++);
    }
    while (weights < M)
        rp_order_push(actions, RP_ACTION_WEIGHT_GRADIENT, r, weights++);
}

const RpScheduleOps rp_schedule_zb_2p = {
    .name = "zb-2p",
    .title = "ZB-2P",
    .summary = "ZB-H1 with twice the activations and the least bubble",
    .split_backward = TRUE,
    .limited = TRUE,
    .stages_per_gpu = 1,
    .check = check,
    .order = order,
};
