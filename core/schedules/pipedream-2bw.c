/*
 * N = 2, M = 2, F = 1, B = 2; two iterations, the second with a dash: T = 15
 *
 *   gpu 0  |F0 |F1 |       |B0     |F0'|B1     |F1'|B0'    |   |B1'    |
 *   gpu 1      |F0 |B0     |F1 |B1     |F0'|B0'    |F1'|B1'    |
 *
 * 1F1B that continues from iteration to iteration (asynchronous): the first N-1-r forwards of the
 * next one run between the last backwards of this one, so nothing is filled or drained but at the
 * ends of the run. An iteration of M >= N micro-batches reads the weights of the last but one; a
 * device holds two versions while both are in flight. K iterations take (KM + N - 1)(F + B). One
 * alone is 1F1B.
 *
 * Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021
 * (PipeDream-2BW).
 */
#include "core/schedules/schedules.h"

static gboolean
check(const RpShape *shape, GError **error)
{
    const guint N = shape->gpus, M = shape->micro_batches;

    if (M < N)
        return rp_schedule_fail(error, RP_SHAPE_USE(MICRO_BATCHES, OR_MORE, N),
                                RP_SHAPE_USE(GPUS, OR_LESS, M),
                                "two versions of the weights need at least as many micro-batches "
                                "as GPUs, %u, found %u (1f1b takes fewer)",
                                N, M);
    return TRUE;
}

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    const guint M = shape->micro_batches, ahead = shape->gpus - 1 - gpu;
    const gboolean follows = shape->flow == RP_FLOW_ON || shape->flow == RP_FLOW_REST;

    for (guint k = 0; k < M; k++) {
        if (shape->flow != RP_FLOW_REST)
            rp_order_push(actions, RP_ACTION_FORWARD, gpu, k);
        if (k >= ahead && shape->flow != RP_FLOW_REST)
            rp_order_push(actions, RP_ACTION_BACKWARD, gpu, k - ahead);
        if (k < ahead && follows) {
            rp_order_push(actions, RP_ACTION_BACKWARD, gpu, M - ahead + k);
            g_array_index(actions, RpAction, actions->len - 1).late = 1;
        }
    }
    for (guint m = M - ahead; m < M && shape->flow == RP_FLOW_ALONE; m++)
        rp_order_push(actions, RP_ACTION_BACKWARD, gpu, m);
}

const RpScheduleOps rp_schedule_pipedream_2bw = {
    .name = "pipedream-2bw",
    .title = "PipeDream-2BW",
    .summary = "1F1B without a flush between iterations, two versions of the weights",
    .unflushed = TRUE,
    .stages_per_gpu = 1,
    .check = check,
    .order = order,
};
