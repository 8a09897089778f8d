/*
 * N = 2, M = 4, F = I = W = 1, F&B = 3; micro-batches 0 and 1 go down, 2 and 3 up: T = 12
 *
 *   gpu 0  |0F0|1F2|0F1|1B2    |1F3+0B0    |1B3    |0I1|0W1|
 *   gpu 1  |0F2|1F0|0F3|1B0    |1F1+0B2    |1B1    |0I3|0W3|
 *
 * The orders of DualPipeV on half the devices, mirrored on the others, over two copies of the
 * weights: device r < N/2 has stage r for the first half of the micro-batches and N-1-r for the
 * other half, and runs as DualPipeV's device r would with those as its two stages; device N-1-r
 * does the same with the halves changed.
 * T - min busy = (N/2 - 1)(F&B + B - 3W) when F = I = W and F&B <= F + B.
 *
 * Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (github.com/deepseek-ai/DualPipe).
 */
#include "core/schedules/schedules.h"

static gboolean
check(const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, M = shape->micro_batches;

    if (!rp_order_check_mirrored(shape, error))
        return FALSE;
    if (M < 2 * N)
        return rp_schedule_fail(error, RP_SHAPE_USE(MICRO_BATCHES, OR_MORE, 2 * N), RP_SHAPE_NONE,
                                "%u GPUs need at least 2N = %u micro-batches, found %u (chimera "
                                "takes fewer)",
                                N, 2 * N, M);
    return TRUE;
}

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint N = shape->gpus, half = shape->micro_batches / 2;
    const guint near = MIN(gpu, N - 1 - gpu);
    const gboolean up = gpu >= N / 2; /* its first stage is of the second copy */
    RpFold fold = {
        .order = actions,
        .stage = {near, N - 1 - near},
        .first = {up ? half : 0, up ? 0 : half},
        .micro_batches = half,
    };

    rp_order_dualpipe(&fold, N / 2, near);
}

const RpScheduleOps rp_schedule_dualpipe = {
    .name = "dualpipe",
    .title = "DualPipe",
    .summary = "DualPipeV in two directions over two copies of the weights",
    .mirrored = TRUE,
    .split_backward = TRUE,
    .stages_per_gpu = 1,
    .check = check,
    .order = order,
};
