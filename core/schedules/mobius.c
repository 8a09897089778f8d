/*
 * N = 2, v = 2, M = 2, F = 1, B = 2, one upload = 1: T = 16
 *
 *   gpu 0 upload   |U0 |U2 |   |U2 |   |U0 |
 *   gpu 0 compute      |0F0|0F1|2F0|2F1|           |2B0    |2B1    |0B0    |0B1    |
 *   gpu 1 upload   |U1 |U3 |       |U3 |   |U1 |
 *   gpu 1 compute          |1F0|1F1|3F0|3F1|3B0    |3B1    |1B0    |1B1    |
 *
 * The order of Looped BFS with the stages' parameters in host memory: U<stage> uploads a stage to
 * its device before each use, one stage ahead. Neighbouring stages stand under different root
 * complexes, so that their uploads do not share one:
 *
 *   N = 8, four devices a root complex: ranks 0 1 2 3 4 5 6 7 on devices 0 4 1 5 2 6 3 7
 *
 * An approximation of Mobius: its stages come from a mixed-integer programme, ours from the exact
 * min-max partition.
 *
 * Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers",
 * ASPLOS 2023.
 */
#include "core/schedules/schedules.h"

/* Deals the ranks out to the root complexes in turn. */
static guint
gpu_of_rank(const RpShape *shape, guint rank)
{
    guint per_root = shape->gpus_per_root;
    guint left = rank;

    if (per_root == 0 || per_root >= shape->gpus)
        return rank;
    for (guint column = 0; column < per_root; column++) {
        for (guint gpu = column; gpu < shape->gpus; gpu += per_root)
            if (left-- == 0)
                return gpu;
    }
    g_return_val_if_reached(rank);
}

static void
order(const RpShape *shape, guint gpu, GArray *actions)
{
    guint rank = 0;

    while (gpu_of_rank(shape, rank) != gpu)
        rank++;
    rp_order_looped(shape, rank, actions);
}

const RpScheduleOps rp_schedule_mobius = {
    .name = "mobius",
    .title = "Mobius",
    .summary =
        "Looped BFS with weights uploaded from host memory before each stage (approximation)",
    .looped = TRUE,
    .offloads_weights = TRUE,
    .gpu_of_rank = gpu_of_rank,
    .reversible = TRUE,
    .order = order,
};
