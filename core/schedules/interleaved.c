/*
 * N = 2, v = 2, M = 2, F = 1, B = 2; `2F0` is stage 2, F, micro-batch 0: T = 15
 *
 *   gpu 0  |0F0|0F1|2F0|2F1|       |2B0    |   |2B1    |0B0    |0B1    |
 *   gpu 1      |1F0|1F1|3F0|3B0    |3F1|3B1    |1B0    |1B1    |
 *
 * As 1F1B, but device r holds v stages, r, N+r, ..., and changes between them every G
 * micro-batches. The k-th forward is of chunk (k/G) mod v, the k-th backward of chunk
 * v-1-((k/G) mod v); the warm-up has min((v-1)G + 2(N-1-r), vM) forwards.
 * T = (vM + N - 1)(F + B) when G = N.
 *
 * G = N is Megatron's; PyTorch's is M / max(1, M/N) in integer division. G must divide M.
 *
 * Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
 * Megatron-LM", SC 2021; torch.distributed.pipelining ScheduleInterleaved1F1B.
 */
#include "core/schedules/schedules.h"

static void
push_kth(const RpShape *shape, guint gpu, RpActionKind kind, guint k, GArray *order)
{
    const guint v = rp_order_chunks(shape);
    const guint G = shape->group != 0 ? shape->group : shape->gpus;
    /* with one chunk the groups follow each other, whole or not */
    guint chunk = k / G % v;
    guint micro_batch = k / G / v * G + k % G;

    if (kind != RP_ACTION_FORWARD)
        chunk = v - 1 - chunk;
    rp_order_push(order, kind, chunk * shape->gpus + gpu, micro_batch);
}

void
rp_order_interleaved(const RpShape *shape, guint gpu, gboolean split, GArray *order)
{
    const guint N = shape->gpus;
    const guint v = rp_order_chunks(shape);
    const guint G = shape->group != 0 ? shape->group : N;
    const guint total = v * shape->micro_batches;
    const guint warm_up = MIN((v - 1) * G + (split ? 1 : 2) * (N - 1 - gpu), total);
    const RpActionKind backward = split ? RP_ACTION_INPUT_GRADIENT : RP_ACTION_BACKWARD;
    guint weights = 0;

    for (guint k = 0; k < warm_up; k++)
        push_kth(shape, gpu, RP_ACTION_FORWARD, k, order);
    for (guint k = 0; k < total; k++) {
        if (warm_up + k < total)
            push_kth(shape, gpu, RP_ACTION_FORWARD, warm_up + k, order);
        push_kth(shape, gpu, backward, k, order);
        /* W may lag behind I by r: then vN activations live on every device, as 1F1B has on the
         * first */
        if (split && k >= gpu)
            push_kth(shape, gpu, RP_ACTION_WEIGHT_GRADIENT, weights++, order);
    }
    while (split && weights < total)
        push_kth(shape, gpu, RP_ACTION_WEIGHT_GRADIENT, weights++, order);
}

gboolean
rp_order_check_groups(const RpShape *shape, GError **error)
{
    const guint M = shape->micro_batches;
    const guint G = shape->group != 0 ? shape->group : shape->gpus;

    if (rp_order_chunks(shape) == 1)
        return TRUE;
    if (M % G != 0)
        return rp_schedule_fail(
            error, RP_SHAPE_USE(MICRO_BATCHES, EXACTLY, MAX(1, M / G) * G),
            M > G ? RP_SHAPE_USE(MICRO_BATCHES, EXACTLY, (M / G + 1) * G)
                  : RP_SHAPE_USE(GROUP, EXACTLY, M),
            "several stages per GPU need whole groups of %u micro-batches, found %u micro-batches",
            G, M);
    if (G < MIN(shape->gpus, M))
        return rp_schedule_fail(
            error, RP_SHAPE_USE(GROUP, EXACTLY, M % shape->gpus == 0 ? shape->gpus : M),
            RP_SHAPE_NONE,
            "several stages per GPU need groups of at least min(N, M) = %u micro-batches, found "
            "groups of %u, which deadlock",
            MIN(shape->gpus, M), G);
    return TRUE;
}

static void
order_interleaved_1f1b(const RpShape *shape, guint gpu, GArray *order)
{
    rp_order_interleaved(shape, gpu, FALSE, order);
}

const RpScheduleOps rp_schedule_interleaved_1f1b = {
    .name = "interleaved-1f1b",
    .title = "Interleaved 1F1B",
    .summary = "1F1B over several stages per GPU, which change every N micro-batches",
    .looped = TRUE,
    .check = rp_order_check_groups,
    .grouped = TRUE,
    .order = order_interleaved_1f1b,
};
