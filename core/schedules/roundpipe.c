/*
 * N = 2, M = 4 in two rounds of M_R = 2, S = 3 slots of equal time (S_f = 1), g0 = 0: T = 7 t
 *
 *   gpu 0  |0F0|0F1|2B0|2B1|1X2|1X3|
 *   gpu 1      |1X0|1X1|0F2|0F3|2B2|2B3|
 *
 * Stages are bound to no device. A round of M_R micro-batches runs through S slots: S_f forward
 * stages, the fused stage (X: forward and backward of the last layers), the backward stages. Slot i
 * runs on device (g0 + i) mod N, its micro-batches in order; then g0 <- (g0 + S) mod N, so the next
 * round continues where this one ends, and so does the next iteration.
 * T = (MS + N(N-1)) t / N for slots of equal time t that are one indivisible action each, S >= N,
 * and N divides RS or M_R = N.
 *
 * Source: paper §3.2, §4.4.
 *
 * Split: I, the input gradient, is sent on before W, the weight gradient, is computed. N = 3, M = 3,
 * S = 3, S_f = 0, F = I = W = 1:
 *
 *   gpu 0  |0X0     |0X1     |0X2     |
 *   gpu 1           |1I0|1W0|  |1I1|1W1|  |1I2|1W2|
 *   gpu 2               |2I0|2W0|  |2I1|2W1|  |2I2|2W2|
 *
 * Slices: a micro-batch's K slices run from the first on in a forward slot, from the last on in a
 * backward slot, so that the next slot starts a slice later, not a micro-batch later. The fused slot
 * needs all of them before it can go back. N = 2, M = 1, K = 2, S = 3, S_f = 1, t = 4 of a micro-batch,
 * half of it forward in the fused slot, T = 10:
 *
 *   gpu 0  |0F0    |0F1    |       |2B1    |2B0    |
 *   gpu 1          |1F0|   |1X1    |1B0|
 */
#include "core/schedules/schedules.h"

static gboolean
check_roundpipe(const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, M = shape->micro_batches, n = rp_shape_group_gpus(shape);

    const guint K = MAX(1, shape->slices);
    const char *what = K > 1 ? "slices" : "micro-batches";

    if (M < N)
        return rp_schedule_fail(error, RP_SHAPE_USE(MICRO_BATCHES, OR_MORE, (N + K - 1) / K),
                                K > 1
                                    ? RP_SHAPE_USE(SLICES, OR_MORE, (N + M / K - 1) / MAX(1, M / K))
                                    : RP_SHAPE_USE(GPUS, OR_LESS, M),
                                "%u GPUs need at least %u %s, found %u", N, N, what, M);
    if (shape->round % K != 0)
        return rp_schedule_fail(error, RP_SHAPE_NONE, RP_SHAPE_NONE,
                                "rounds have whole micro-batches of %u slices, found %u slices", K,
                                shape->round);
    if (shape->round < n) {
        guint round = (n + K - 1) / K * K;

        while (M % round != 0)
            round += K;
        return rp_schedule_fail(error, RP_SHAPE_USE(ROUND, EXACTLY, round / K), RP_SHAPE_NONE,
                                "%u GPUs need rounds of at least %u %s, found rounds of %u", n, n,
                                what, shape->round);
    }
    if (shape->forward_slots >= shape->stages)
        return rp_schedule_fail(error, RP_SHAPE_NONE, RP_SHAPE_NONE,
                                "the fused stage must follow the forward stages, found %u forward "
                                "slots of %u",
                                shape->forward_slots, shape->stages);
    if (shape->first_gpu >= n)
        return rp_schedule_fail(error, RP_SHAPE_NONE, RP_SHAPE_NONE,
                                "the first GPU must be one of 0 to %u, found %u", n - 1,
                                shape->first_gpu);
    return TRUE;
}

static void
order_slots(const RpShape *shape, guint gpu, gboolean split, GArray *order)
{
    const guint replicas = MAX(1, shape->replicas), n = rp_shape_group_gpus(shape);
    const guint rounds = shape->micro_batches / shape->round;
    guint first_gpu = shape->first_gpu; /* g0 of the round */

    for (guint round = gpu / n; round < rounds; round += replicas) {
        for (guint slot = (gpu % n + n - first_gpu) % n; slot < shape->stages; slot += n)
            rp_schedule_append_slot(shape, slot, round, split, order);
        first_gpu = (guint)(((guint64)first_gpu + shape->stages) % n);
    }
}

static void
order_roundpipe(const RpShape *shape, guint gpu, GArray *order)
{
    order_slots(shape, gpu, FALSE, order);
}

static void
order_roundpipe_split(const RpShape *shape, guint gpu, GArray *order)
{
    order_slots(shape, gpu, TRUE, order);
}

const RpScheduleOps rp_schedule_roundpipe = {
    .name = "roundpipe",
    .title = "RoundPipe",
    .summary = "stages dispatched to the GPUs in turn, round after round",
    .dispatched = TRUE,
    .sliced = TRUE,
    .slices = 1,
    .offloads_weights = TRUE,
    .check = check_roundpipe,
    .order = order_roundpipe,
};

const RpScheduleOps rp_schedule_roundpipe_split = {
    .name = "roundpipe-split",
    .title = "RoundPipe, split backward",
    .summary = "RoundPipe that sends input gradients before it computes weight gradients",
    .dispatched = TRUE,
    .sliced = TRUE,
    .slices = 1,
    .split_backward = TRUE,
    .offloads_weights = TRUE,
    .check = check_roundpipe,
    .order = order_roundpipe_split,
};
