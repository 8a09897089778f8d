/**
 * The planner: profile + partition + schedule -> plan, one iteration at a time.
 */
#pragma once

#include <glib.h>

#include "core/partition.h"
#include "core/plan.h"
#include "core/profile.h"
#include "core/schedule.h"

#define RP_PLANNER_ERROR (rp_planner_error_quark())
GQuark rp_planner_error_quark(void);

typedef enum {
    RP_PLANNER_ERROR_PARTITION, /* the partition's kind does not suit the schedule */
    RP_PLANNER_ERROR_MEMORY     /* does not fit: names the category, the bytes and the remedy */
} RpPlannerError;

typedef enum { RP_RECOMPUTE_DEFAULT, RP_RECOMPUTE_GATED, RP_RECOMPUTE_EARLY } RpRecompute;
typedef enum { RP_TRANSFERS_WINDOWS, RP_TRANSFERS_NAIVE } RpTransfers;
typedef enum { RP_CONSISTENCY_EVENTS, RP_CONSISTENCY_BLOCKING } RpConsistency;
/* One pass with two weight buffers (18 bytes/parameter), or a separate parameter copy (16). */
typedef enum { RP_OPTIMIZER_FUSED, RP_OPTIMIZER_LEAN } RpOptimizerMode;
/* Whether the fused stage's forward waits for its input (it must, in reality) or is treated like a
 * recompute, as the published results do. Default: published in `compute`, physical in `full`. */
typedef enum { RP_FUSED_DEFAULT, RP_FUSED_PUBLISHED, RP_FUSED_PHYSICAL } RpFusedForward;

typedef struct {
    const RpScheduleOps *schedule;
    guint gpus;
    guint micro_batches;
    guint round;               /* 0 = micro_batches */
    guint group;               /* interleaved: 0 = gpus */
    gboolean reverse_backward; /* gpipe, looped-bfs, mobius: B from the last micro-batch on */
    gboolean async;
    RpFidelity fidelity;
    RpRecompute recompute; /* default: early for dispatched schedules, gated for bound ones */
    RpFusedForward fused_forward;
    RpTransfers transfers;
    RpConsistency consistency;
    RpOptimizerMode optimizer;
} RpPlanOptions;

typedef struct _RpPlanner RpPlanner;

/**
 * rp_planner_new:
 * @profile: borrowed; must outlive the planner
 * @partition: copied
 * @options: copied
 *
 * Checks that everything suits and lays out the arenas.
 *
 * Errors: RP_SCHEDULE_ERROR_SHAPE, RP_PLANNER_ERROR_PARTITION, RP_PROFILE_ERROR_FIDELITY
 */
RpPlanner *rp_planner_new(const RpProfile *profile, const RpPartition *partition,
                          const RpPlanOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_planner_free(RpPlanner *planner);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpPlanner, rp_planner_free)

/* Errors: RP_SCHEDULE_ERROR_DEADLOCK */
gboolean rp_planner_append_iteration(RpPlanner *planner, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Appends what still hangs: the last gradients, optimizer steps and weight copies. */
void rp_planner_finish(RpPlanner *planner);

/* Owned by the planner. */
RpPlan *rp_planner_plan(RpPlanner *planner);
/* Gives the plan away; the planner can only be freed afterwards. */
RpPlan *rp_planner_steal_plan(RpPlanner *planner);

/* All of the above at once: @iterations iterations, finished. */
RpPlan *rp_plan_make(const RpProfile *profile, const RpPartition *partition,
                     const RpPlanOptions *options, guint iterations,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Arena size of every device of a dispatched plan in `full` fidelity, without making the plan. */
guint64 rp_plan_dispatched_gpu_bytes(const RpProfile *profile, const RpPartition *partition);

/**
 * rp_plan_check_memory:
 * @gpu_bytes: of each device; 0 = not checked
 * @host_bytes: 0 = not checked
 *
 * Errors: RP_PLANNER_ERROR_MEMORY: where, which category is largest, by how many bytes it is too
 *   much, and what would make it fit
 */
gboolean rp_plan_check_memory(const RpPlan *plan, guint64 gpu_bytes, guint64 host_bytes,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
