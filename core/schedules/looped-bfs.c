/*
 * N = 2, v = 2, M = 2, F = 1, B = 2; `2F0` is stage 2, F, micro-batch 0: T = 15
 *
 *   gpu 0  |0F0|0F1|2F0|2F1|           |2B0    |2B1    |0B0    |0B1    |
 *   gpu 1      |1F0|1F1|3F0|3F1|3B0    |3B1    |1B0    |1B1    |
 *
 * Breadth first: for each chunk upwards F of all micro-batches, then for each chunk downwards B of
 * all micro-batches, in the same order of micro-batches (with reverse_backward the last one first,
 * as PyTorch does; the makespan is the same in every uniform case tried). vM activations live.
 * T = (vM + N - 1)(F + B) when M >= N or v = 1.
 *
 * Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023.
 */
#include "core/schedules/schedules.h"

void
rp_order_looped(const RpShape *shape, guint gpu, GArray *order)
{
    const guint v = rp_order_chunks(shape);

    for (guint chunk = 0; chunk < v; chunk++)
        for (guint m = 0; m < shape->micro_batches; m++)
            rp_order_push(order, RP_ACTION_FORWARD, chunk * shape->gpus + gpu, m);
    for (guint chunk = v; chunk-- > 0;)
        for (guint i = 0; i < shape->micro_batches; i++) {
            guint m = shape->reverse_backward ? shape->micro_batches - 1 - i : i;

            rp_order_push(order, RP_ACTION_BACKWARD, chunk * shape->gpus + gpu, m);
        }
}

const RpScheduleOps rp_schedule_looped_bfs = {
    .name = "looped-bfs",
    .title = "Looped BFS",
    .summary = "all micro-batches through one stage after the other, several stages per GPU",
    .looped = TRUE,
    .reversible = TRUE,
    .order = rp_order_looped,
};
