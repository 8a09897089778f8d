/*
 * N = 2, v = 2, M = 2, F = I = W = 1; `2F0` is stage 2, F, micro-batch 0: T = 13
 *
 *   gpu 0  |0F0|0F1|2F0|2F1|   |2I0|2W0|2I1|2W1|0I0|0W0|0I1|0W1|
 *   gpu 1      |1F0|1F1|3F0|3I0|3F1|3I1|3W0|1I0|3W1|1I1|1W0|1W1|
 *
 * Interleaved 1F1B with the backward split into I and W, and a shorter warm-up of
 * min((v-1)G + (N-1-r), vM) forwards. The oldest pending W runs after the k-th I for k >= r.
 * T = vM(F + B) + (N - 1)(max(F, W) + I - W) when I >= W and N divides M.
 *
 * Source: torch.distributed.pipelining ScheduleInterleavedZeroBubble, after Qi et al., "Zero Bubble
 * Pipeline Parallelism", ICLR 2024.
 */
#include "core/schedules/schedules.h"

static void
order_interleaved_zb(const RpShape *shape, guint gpu, GArray *order)
{
    rp_order_interleaved(shape, gpu, TRUE, order);
}

const RpScheduleOps rp_schedule_interleaved_zb = {
    .name = "interleaved-zb",
    .title = "Interleaved zero-bubble",
    .summary = "interleaved 1F1B whose weight gradients fill the gaps",
    .looped = TRUE,
    .split_backward = TRUE,
    .check = rp_order_check_groups,
    .grouped = TRUE,
    .order = order_interleaved_zb,
};
