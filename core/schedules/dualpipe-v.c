/*
 * N = 2, M = 4, F = I = W = 1, F&B = 3; the second picture follows the first: T = 26
 *
 *   gpu 0  |0F0|0F1|0F2|3F0|3I0|3W0|3F1|0F3+3B1    |   |3F2+0B0    |
 *   gpu 1      |1F0|2F0|1F1|2F1|1F2|2B0    |2F2+1B0    |1F3+2B1    |
 *
 *   gpu 0  |3B2    |   |3F3+0B1    |3B3    |0I2|0W2|0I3|0W3|
 *   gpu 1  |2F3+1B1    |2B2    |1B2    |   |2I3|1I3|2W3|1W3|
 *
 * Stages in a V as in ZB-V. `0F3+3B1` is one action: the forward of one micro-batch overlapped with
 * the backward of another, so that the communication of each hides behind the other. M >= 2N.
 * T - min busy = (N - 1)(F&B + B - 3W) when F = I = W and F&B <= F + B.
 *
 * Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (DualPipe), cut in half as DualPipeV
 * (github.com/deepseek-ai/DualPipe); torch.distributed.pipelining ScheduleDualPipeV.
 */
#include "core/schedules/schedules.h"

#define F RP_ACTION_FORWARD
#define B RP_ACTION_BACKWARD
#define I RP_ACTION_INPUT_GRADIENT

static gboolean
check_dualpipe_v(const RpShape *shape, GError **error)
{
    if (shape->micro_batches < 2 * shape->gpus)
        return rp_schedule_fail(
            error, RP_SHAPE_USE(MICRO_BATCHES, OR_MORE, 2 * shape->gpus), RP_SHAPE_NONE,
            "%u GPUs need at least 2N = %u micro-batches, found %u (zb-v takes fewer)", shape->gpus,
            2 * shape->gpus, shape->micro_batches);
    return TRUE;
}

/* F of @forward_half and B of the other half as one action. */
static void
push_overlap(RpFold *fold, guint forward_half)
{
    const guint backward_half = 1 - forward_half;
    RpAction action = {
        .stage = fold->stage[forward_half],
        .micro_batch = fold->first[forward_half] + fold->forwards[forward_half]++,
        .backward_stage = fold->stage[backward_half],
        .backward_micro_batch = fold->first[backward_half] + fold->backwards[backward_half]++,
        .kind = RP_ACTION_OVERLAP,
    };

    g_array_append_val(fold->order, action);
}

/* W of the oldest I that still lacks it; @oldest is where to look from. */
static void
push_oldest_weight(RpFold *fold, guint *oldest)
{
    while (g_array_index(fold->order, RpAction, *oldest).kind != I)
        (*oldest)++;

    const RpAction *gradient = &g_array_index(fold->order, RpAction, (*oldest)++);
    rp_order_push(fold->order, RP_ACTION_WEIGHT_GRADIENT, gradient->stage, gradient->micro_batch);
}

void
rp_order_dualpipe(RpFold *fold, guint gpus, guint r)
{
    const guint N = gpus, M = fold->micro_batches;
    guint oldest = fold->order->len;

    for (guint i = 0; i < 2 * (N - 1 - r); i++)
        rp_fold_push(fold, F, 0);
    for (guint i = 0; i <= r; i++) {
        rp_fold_push(fold, F, 0);
        rp_fold_push(fold, F, 1);
    }
    for (guint i = 0; i < N - 1 - r; i++) {
        rp_fold_push(fold, I, 1);
        push_oldest_weight(fold, &oldest);
        rp_fold_push(fold, F, 1);
    }
    for (guint i = 0; i < M - 2 * N + r + 1; i++) {
        if (i == 0 && r == N - 1) {
            /* the forward that this backward needs has only just ended: nothing to overlap */
            rp_fold_push(fold, F, 0);
            rp_fold_push(fold, B, 1);
        } else {
            push_overlap(fold, 0);
        }
        push_overlap(fold, 1);
    }
    for (guint i = 0; i < N - 1 - r; i++) {
        rp_fold_push(fold, B, 1);
        push_overlap(fold, 1);
    }
    /* half-way through, B is replaced by I: from here on W fills the gaps of the cool-down */
    for (guint i = 0; i <= r; i++) {
        const guint turn = (r + 1) / 2;
        const gboolean split_up = i > turn || (i == turn && r % 2 == 1);

        rp_fold_push(fold, split_up ? I : B, 1);
        rp_fold_push(fold, i >= turn ? I : B, 0);
    }
    for (guint i = 0; i < N - 1 - r; i++) {
        push_oldest_weight(fold, &oldest);
        rp_fold_push(fold, I, 0);
    }
    for (guint i = 0; i <= r; i++)
        push_oldest_weight(fold, &oldest);
}

static void
order_dualpipe_v(const RpShape *shape, guint gpu, GArray *order)
{
    RpFold fold = rp_fold(shape, gpu, order);

    rp_order_dualpipe(&fold, shape->gpus, gpu);
}

const RpScheduleOps rp_schedule_dualpipe_v = {
    .name = "dualpipe-v",
    .title = "DualPipeV",
    .summary = "two stages per GPU in a V, forwards overlapped with backwards",
    .folded = TRUE,
    .split_backward = TRUE,
    .stages_per_gpu = 2,
    .check = check_dualpipe_v,
    .order = order_dualpipe_v,
};
