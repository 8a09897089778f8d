/*
 * N = 4, M = 4, F = 1, B = 2; micro-batches 0 and 1 go down, 2 and 3 up: T = 16
 *
 *   gpu 0  |0F0|0F1|   |3F2|3B2    |3F3|3B3    |   |0B0    |       |0B1    |
 *   gpu 1      |1F0|2F2|1F1|2F3|   |2B2    |1B0    |2B3    |1B1    |
 *   gpu 2      |1F2|2F0|1F3|2F1|   |2B0    |1B2    |2B1    |1B3    |
 *   gpu 3  |0F2|0F3|   |3F0|3B0    |3F1|3B1    |   |0B2    |       |0B3    |
 *
 * Two pipelines in opposite directions over two copies of the weights: device r holds stage r for the
 * first half of the micro-batches, which go down, and stage N-1-r for the other half, which go up.
 * Groups of N follow each other ("direct concatenation"), the next one's forwards in the gaps of
 * this one's backwards.
 * T = M(F + B) + (N - 2)(max(F, B) + (M/N - 1)|B - F|) when N divides M.
 *
 * Source: Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
 * Bidirectional Pipelines", SC 2021.
 */
#include "core/schedules/schedules.h"

gboolean
rp_order_check_mirrored(const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, M = shape->micro_batches;

    if (N % 2 != 0)
        return rp_schedule_fail(error, RP_SHAPE_USE(GPUS, EXACTLY, N + 1),
                                N > 1 ? RP_SHAPE_USE(GPUS, EXACTLY, N - 1) : RP_SHAPE_NONE,
                                "two directions need an even number of GPUs, found %u", N);
    if (M % 2 != 0)
        return rp_schedule_fail(error, RP_SHAPE_USE(MICRO_BATCHES, EXACTLY, M + 1),
                                M > 1 ? RP_SHAPE_USE(MICRO_BATCHES, EXACTLY, M - 1) : RP_SHAPE_NONE,
                                "two directions need an even number of micro-batches, found %u", M);
    return TRUE;
}

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint N = shape->gpus, half = shape->micro_batches / 2;
    GArray *wave = rp_wave_new();

    rp_wave_add(wave, gpu, N, N / 2, 0, half);
    rp_wave_add(wave, N - 1 - gpu, N, N / 2, half, half);
    rp_wave_push(wave, actions);
}

const RpScheduleOps rp_schedule_chimera = {
    .name = "chimera",
    .title = "Chimera",
    .summary = "two pipelines in opposite directions over two copies of the weights",
    .mirrored = TRUE,
    .stages_per_gpu = 1,
    .check = rp_order_check_mirrored,
    .order = order,
};
