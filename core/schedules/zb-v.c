/*
 * N = 2, M = 3, F = I = W = 1; device 0 holds stages 0 and 3, device 1 holds 1 and 2: T = 19
 *
 *   gpu 0  |0F0|0F1|0F2|3F0|3I0|3W0|3F1|3I1|3W1|0I0|0W0|3F2|3I2|3W2|0I1|0W1|0I2|0W2|
 *   gpu 1      |1F0|2F0|1F1|2F1|2I0|2W0|1F2|1I0|1W0|2F2|2I1|2W1|1I1|2I2|1I2|1W1|2W2|1W2|
 *
 * Two stages per device in a V: r on the first leg, 2N-1-r on the second, so that the first device
 * also computes the loss. Built for n = max(2N-1, M) micro-batches; actions of micro-batches from M
 * on are left out. T = 2M(F + B) + (N - 1)F when F = I = W and M >= 2N-1.
 *
 * Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, §6 (ZB-V);
 * torch.distributed.pipelining ScheduleZBVZeroBubble.
 */
#include "core/schedules/schedules.h"

#define F RP_ACTION_FORWARD
#define I RP_ACTION_INPUT_GRADIENT
#define W RP_ACTION_WEIGHT_GRADIENT

static void
push_up_and_back(RpFold *fold)
{
    rp_fold_push(fold, F, 1);
    rp_fold_push(fold, I, 1);
    rp_fold_push(fold, W, 1);
}

static void
push_input_and_weight(RpFold *fold)
{
    rp_fold_push(fold, I, 0);
    rp_fold_push(fold, W, 0);
}

static void
order_zb_v(const RpShape *shape, guint gpu, GArray *order)
{
    const guint N = shape->gpus, r = gpu;
    const guint n = MAX(2 * N - 1, shape->micro_batches);
    RpFold fold = rp_fold(shape, gpu, order);

    /* warm-up: fill the V, then return along it */
    for (guint i = 0; i < 2 * (N - r) - 1; i++)
        rp_fold_push(&fold, F, 0);
    for (guint i = 0; i < r; i++) {
        rp_fold_push(&fold, F, 1);
        rp_fold_push(&fold, F, 0);
    }
    for (guint i = 0; i < N - r; i++)
        push_up_and_back(&fold);

    while (fold.forwards[1] < fold.forwards[0] || fold.forwards[0] < n) {
        if (fold.forwards[0] < n)
            rp_fold_push(&fold, F, 0);
        push_input_and_weight(&fold);
        push_up_and_back(&fold);
    }

    /* cool-down: the input gradients leave first, the weight gradients fill in */
    for (guint i = 0; i < r; i++) {
        rp_fold_push(&fold, I, 0);
        rp_fold_push(&fold, I, 1);
    }
    for (guint i = 0; i < N - r; i++)
        push_input_and_weight(&fold);
    while (fold.weights[1] < fold.backwards[1])
        rp_fold_push(&fold, W, 1);
    while (fold.weights[0] < fold.backwards[0])
        rp_fold_push(&fold, W, 0);
}

const RpScheduleOps rp_schedule_zb_v = {
    .name = "zb-v",
    .title = "ZB-V",
    .summary = "two stages per GPU in a V, weight gradients fill the gaps",
    .folded = TRUE,
    .split_backward = TRUE,
    .stages_per_gpu = 2,
    .order = order_zb_v,
};
