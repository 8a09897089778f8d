/*
 * N = 2, M = 3, F = I = W = 1; device 0 holds stages 0 and 3, device 1 holds 1 and 2: T = 21
 *
 *   gpu 0  |0F0|0F1|   |3F0|3I0|3W0|0F2|   |3F1|3I1|3W1|0I0|0W0|3F2|3I2|3W2|0I1|0W1|   |0I2|0W2|
 *   gpu 1      |1F0|2F0|1F1|   |2I0|2W0|2F1|1F2|1I0|2I1|2W1|2F2|1W0|1I1|2I2|2W2|1W1|1I2|1W2|
 *
 * A V schedule that repeats a building block with offsets 2 1 2 1: the stages of a device live for
 * six units of time a device, half as long as in ZB-V. So 2 floor((N + 2)/2) stages' activations
 * live on a device, half of 1F1B's, in about half its bubble:
 * T = 2M(F + B) + floor((7N - 8)/2) F when F = I = W, M > N > 1. A pass of an even N waits longer at
 * the turns, so that no two fall on one unit.
 *
 * Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (V-Half).
 */
#include "core/schedules/schedules.h"

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    static const RpVBlock even = {{2, 1, 2, 1}, {4, 1, 5}}, odd = {{2, 1, 2, 1}, {2, 1, 1}};

    rp_order_v_block(shape, gpu, shape->gpus % 2 == 0 ? &even : &odd, actions);
}

const RpScheduleOps rp_schedule_v_half = {
    .name = "v-half",
    .title = "V-Half",
    .summary = "two stages per GPU in a V, with half the activations of ZB-V",
    .folded = TRUE,
    .split_backward = TRUE,
    .stages_per_gpu = 2,
    .order = order,
};
