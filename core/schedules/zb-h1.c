/*
 * N = 2, M = 3, F = I = W = 1: T = 10
 *
 *   gpu 0  |F0 |F1 |   |I0 |W0 |F2 |I1 |W1 |I2 |W2 |
 *   gpu 1      |F0 |I0 |F1 |I1 |W0 |F2 |I2 |W1 |W2 |
 *
 * 1F1B with the backward split: the previous device waits for I, the input gradient, and
 * W, the weight gradient, fills gaps. The oldest pending W runs after the k-th I for k >= r. It is
 * interleaved zero-bubble with one stage per device.
 * T = M(F + B) + (N - 1)(max(F, W) + I - W) when I >= W and M >= N.
 *
 * Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H1).
 */
#include "core/schedules/schedules.h"

static void
order_zb_h1(const RpShape *shape, guint gpu, GArray *order)
{
    rp_order_interleaved(shape, gpu, TRUE, order);
}

const RpScheduleOps rp_schedule_zb_h1 = {
    .name = "zb-h1",
    .title = "ZB-H1",
    .summary = "1F1B whose weight gradients fill the gaps",
    .split_backward = TRUE,
    .stages_per_gpu = 1,
    .order = order_zb_h1,
};
