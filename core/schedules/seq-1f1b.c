/*
 * N = 2, M = 2 in K = 2 slices, F = 1 and B = 2 of a slice; `F1` is slice 1 of micro-batch 0: T = 15
 *
 *   gpu 0  |F0 |F1 |F2 |   |B1     |F3 |B0     |B3     |B2     |
 *   gpu 1      |F0 |F1 |B1     |F2 |B0     |F3 |B3     |B2     |
 *
 * 1F1B over slices of sequences. A slice attends to those before it: forwards run from the first on,
 * backwards from the last on, as later slices add to the gradients of the keys and values of earlier
 * ones. A device warms up with K - 1 forwards more than 1F1B, of a K-th each.
 * T = (MK + N - 1)(F + B) of equal slices. min(MK, N - r + K - 1) of them live on device r.
 *
 * Source: Sun et al., "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language Model
 * Training", NAACL 2025.
 */
#include "core/schedules/schedules.h"

static void
order_seq_1f1b(const RpShape *shape, guint gpu, GArray *order)
{
    const guint n = shape->micro_batches, slices = MAX(1, shape->slices);
    const guint warm_up = MIN(n, shape->gpus - 1 - gpu + slices - 1);

    for (guint i = 0; i < warm_up; i++)
        rp_order_push(order, RP_ACTION_FORWARD, gpu, i);
    for (guint i = 0; i < n; i++) {
        const guint first = i - i % slices; /* its micro-batch's first slice */

        if (warm_up + i < n)
            rp_order_push(order, RP_ACTION_FORWARD, gpu, warm_up + i);
        rp_order_push(order, RP_ACTION_BACKWARD, gpu, first + slices - 1 - i % slices);
    }
}

const RpScheduleOps rp_schedule_seq_1f1b = {
    .name = "seq-1f1b",
    .title = "Seq1F1B",
    .summary = "1F1B over slices of sequences",
    .stages_per_gpu = 1,
    .sliced = TRUE,
    .slices = 4,
    .order = order_seq_1f1b,
};
