/*
 * N = 2, v = 2, M = 1 in K = 2 slices, F = 1 and B = 2 of a slice; `2F1` is stage 2, F, slice 1: T = 15
 *
 *   gpu 0  |0F0|0F1|2F0|2F1|           |2B1    |2B0    |0B1    |0B0    |
 *   gpu 1      |1F0|1F1|3F0|3F1|3B1    |3B0    |1B1    |1B0    |
 *
 * Interleaved 1F1B over slices of sequences: device r holds v stages and changes between them every
 * N slices. As in seq-1f1b forwards run from a micro-batch's first slice on, backwards from its last
 * on, so that a device begins to go back when it has all slices of one micro-batch. The k-th forward
 * is of chunk (k/N) mod v, the k-th backward of chunk v-1-((k/N) mod v); the warm-up has
 * vK - 1 + 2(N-1-r) forwards.
 * T = (vMK + N - 1)(F + B) of equal slices. min(vMK, vK + 2(N-1-r)) of them live on device r: little
 * more than one micro-batch of the whole model over N, however many there are.
 *
 * Source: Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context LLM
 * Training", 2025 (arXiv 2504.14519), without its exchange of attention (docs/schedules.md).
 */
#include "core/schedules/schedules.h"

static gboolean
check_slimpipe(const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, K = MAX(1, shape->slices);

    if (rp_order_chunks(shape) == 1 || K % N == 0)
        return TRUE;
    return rp_schedule_fail(error, RP_SHAPE_USE(SLICES, EXACTLY, (K / N + 1) * N),
                            RP_SHAPE_USE(STAGES, EXACTLY, N),
                            "several stages per GPU need whole groups of %u slices, found %u "
                            "slices of a micro-batch",
                            N, K);
}

static void
push_kth(const RpShape *shape, guint gpu, RpActionKind kind, guint k, GArray *order)
{
    const guint v = rp_order_chunks(shape), K = MAX(1, shape->slices);
    const guint group = v > 1 ? shape->gpus : K;
    const guint at = k % (v * K); /* within its micro-batch */
    guint chunk = at / group % v, slice = at / group / v * group + at % group;

    if (kind != RP_ACTION_FORWARD) {
        chunk = v - 1 - chunk;
        slice = K - 1 - slice;
    }
    rp_order_push(order, kind, chunk * shape->gpus + gpu, k / (v * K) * K + slice);
}

static void
order_slimpipe(const RpShape *shape, guint gpu, GArray *order)
{
    const guint v = rp_order_chunks(shape), total = v * shape->micro_batches;
    const guint warm_up = MIN(total, v * MAX(1, shape->slices) - 1 + 2 * (shape->gpus - 1 - gpu));

    for (guint k = 0; k < warm_up; k++)
        push_kth(shape, gpu, RP_ACTION_FORWARD, k, order);
    for (guint k = 0; k < total; k++) {
        if (warm_up + k < total)
            push_kth(shape, gpu, RP_ACTION_FORWARD, warm_up + k, order);
        push_kth(shape, gpu, RP_ACTION_BACKWARD, k, order);
    }
}

const RpScheduleOps rp_schedule_slimpipe = {
    .name = "slimpipe",
    .title = "SlimPipe",
    .summary = "interleaved 1F1B over slices of sequences",
    .looped = TRUE,
    .sliced = TRUE,
    .slices = RP_SLICES_AS_GPUS,
    .check = check_slimpipe,
    .order = order_slimpipe,
};
