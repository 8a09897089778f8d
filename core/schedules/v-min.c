/*
 * N = 2, M = 2, F = I = W = 1; device 0 holds stages 0 and 3, device 1 holds 1 and 2: T = 15
 *
 *   gpu 0  |0F0|       |3F0|3I0|3W0|0F1|0I0|0W0|3F1|3I1|3W1|   |0I1|0W1|
 *   gpu 1      |1F0|2F0|       |2I0|1I0|1F1|2F1|2W0|1W0|2I1|1I1|2W1|1W1|
 *
 * A V schedule that repeats the building block of least memory: every offset is 1, so that a
 * micro-batch is in the pipeline for no longer than it must. 2 floor((N + 4)/3) stages' activations
 * live on the fullest device, a third of 1F1B's.
 * T = 2M(F + B) + (4N - 5) F when F = I = W and M, N > 1, and 2F more where 3 divides N: there a
 * micro-batch waits at the middle turn, so that no two passes fall on one unit of time.
 *
 * Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (V-Min).
 */
#include "core/schedules/schedules.h"

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    static const RpVBlock plain = {{1, 1, 1, 1}, {1, 1, 1}}, third = {{1, 1, 1, 1}, {1, 3, 1}};

    rp_order_v_block(shape, gpu, shape->gpus % 3 == 0 ? &third : &plain, actions);
}

const RpScheduleOps rp_schedule_v_min = {
    .name = "v-min",
    .title = "V-Min",
    .summary = "two stages per GPU in a V, with a third of the activations of ZB-V",
    .folded = TRUE,
    .split_backward = TRUE,
    .stages_per_gpu = 2,
    .order = order,
};
