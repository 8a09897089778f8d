/**
 * A schedule of orders that are given, as those of a file (core/formats/schedule-file.h): one more row,
 * made at run time. Everything that takes a row of the table takes it.
 */
#pragma once

#include "core/schedules/schedule.h"

struct _RpGivenOrders {
    guint gpus;
    guint micro_batches;
    guint stages;
    guint round;           /* dispatched: M_R; 0: bound */
    guint forward_slots;   /* dispatched: slots before the fused one */
    gboolean in_turns;     /* dispatched: slot after slot on the next GPU */
    GArray *const *orders; /* [gpu] (element-type RpAction), of one iteration */
    const guint *gpu_of;   /* bound: [stage]; dispatched: [round x stages + slot] */
};

/**
 * rp_schedule_new_given:
 * @name: the file's, for people
 * @orders: copied; they can run: bound ones without deadlock, dispatched ones slot after slot
 * @offloads_weights: bound: each stage's weights are uploaded before each visit of it
 *
 * Returns: (transfer full)
 */
RpScheduleOps *rp_schedule_new_given(const char *name, const RpGivenOrders *orders,
                                     gboolean offloads_weights);
void rp_schedule_free_given(RpScheduleOps *schedule);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpScheduleOps, rp_schedule_free_given)
