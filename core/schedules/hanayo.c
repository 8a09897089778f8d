/*
 * N = 2, v = 2 (one wave), M = 2, F = 1, B = 2; device 0 holds stages 0 and 3, 1 holds 1 and 2: T = 16
 *
 *   gpu 0  |0F0|0F1|   |3F0|3B0    |3F1|3B1    |   |0B0    |       |0B1    |
 *   gpu 1      |1F0|2F0|1F1|2F1|   |2B0    |1B0    |2B1    |1B1    |
 *
 * A micro-batch runs down and up over the devices in waves: stages 0 to N-1 are on devices 0 to N-1,
 * N to 2N-1 on N-1 to 0, and so on; v = 2 stages a device are one wave. It is Chimera with both of
 * its directions folded into one, so that nothing is held twice. Groups of N micro-batches follow
 * each other, the next one's forwards in the gaps of this one's backwards.
 * T = vM(F + B) + 2(N - 1)(max(F, B) + (M/N - 1)|B - F|) when N divides M and v > 1; as 1F1B if v = 1.
 *
 * Source: Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
 * Training Efficiency", SC 2023.
 */
#include "core/schedules/schedules.h"

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint N = shape->gpus;
    GArray *wave = rp_wave_new();

    for (guint s = 0; s < shape->stages; s += 2 * N) {
        rp_wave_add(wave, s + gpu, shape->stages, N, 0, shape->micro_batches);
        if (s + N < shape->stages)
            rp_wave_add(wave, s + 2 * N - 1 - gpu, shape->stages, N, 0, shape->micro_batches);
    }
    rp_wave_push(wave, actions);
}

const RpScheduleOps rp_schedule_hanayo = {
    .name = "hanayo",
    .title = "Hanayo",
    .summary = "waves that run down and up over the GPUs, two stages per GPU a wave",
    .looped = TRUE,
    .folded = TRUE,
    .order = order,
};
