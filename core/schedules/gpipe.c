/*
 * N = 2, M = 3, F = 1, B = 2: T = 12
 *
 *   gpu 0  |F0 |F1 |F2 |           |B0     |B1     |B2     |
 *   gpu 1      |F0 |F1 |F2 |B0     |B1     |B2     |
 *
 * Every forward, then every backward, both in micro-batch order. T = (M + S - 1)(F + B); M
 * activations live on every device.
 *
 * Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
 * Parallelism", NeurIPS 2019.
 */
#include "core/schedules/schedules.h"

const RpScheduleOps rp_schedule_gpipe = {
    .name = "gpipe",
    .title = "GPipe",
    .summary = "all forwards, then all backwards",
    .stages_per_gpu = 1,
    .reversible = TRUE,
    .order = rp_order_looped,
};
