/*
 * N = 2, M = 4, F = I = W = 1: T = 13
 *
 *   gpu 0  |F0 |F1 |F2 |I0 |W0 |F3 |I1 |W1 |I2 |W2 |I3 |W3 |
 *   gpu 1      |F0 |I0 |F1 |I1 |F2 |I2 |W0 |F3 |I3 |W1 |W2 |W3 |
 *
 * ZB-H1 with nearly twice the activations: min(2(N-r)-1, M) forwards before the first I, which so
 * comes without a wait, and W lags behind I by 2r, so that 2N-1 activations live on every device.
 * The order by hand (ZB-H2) of what an automatic search finds within 2N (ZB-2P).
 * T = M(F + B) + (N - 1) max(F, I - F, F + I - 2W) when M >= 2N-1.
 *
 * Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H2, ZB-2p).
 */
#include "core/schedules/order.h"
#include "core/schedules/schedules.h"

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint N = shape->gpus, M = shape->micro_batches, r = gpu;
    const guint lag = 2 * r;
    guint forwards = 0, weights = 0;

    while (forwards < MIN(2 * (N - r) - 1, M))
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
    .stages_per_gpu = 1,
    .order = order,
};
