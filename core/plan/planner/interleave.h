/**
 * Merges the devices' orders of actions into one stream that can run from first to last, and knows
 * the tasks of the actions that are in it.
 */
#pragma once

#include "core/plan/job/job.h"

typedef struct _RpInterleave RpInterleave;

typedef struct {
    RpTaskId forward;  /* F or FB */
    RpTaskId backward; /* B, FB or I */
    RpTaskId weights;  /* B, FB or W */
} RpActionTasks;

/* How actions become tasks: a fidelity. @self is its own state. */
typedef struct {
    gpointer (*create)(const RpPlanJob *job, const RpInterleave *interleave);
    void (*begin_call)(gpointer self);
    /* Returns: the task of the action */
    RpTaskId (*append)(gpointer self, guint device, const RpAction *action);
    void (*end_iteration)(gpointer self);
    void (*flush)(gpointer self);  /* rp_planner_flush(); may be %NULL */
    void (*finish)(gpointer self); /* rp_planner_finish(); may be %NULL */
} RpFidelityOps;
extern const RpFidelityOps rp_fidelity_compute;
extern const RpFidelityOps rp_fidelity_full;

RpInterleave *rp_interleave_new(const RpPlanJob *job);

/* Appends all actions of the call. Errors: RP_SCHEDULE_ERROR_DEADLOCK */
gboolean rp_interleave_append(RpInterleave *interleave, const RpFidelityOps *fidelity,
                              gpointer self, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Tasks appended behind actions count, too (rp_pace_catch_up()). */
void rp_interleave_catch_up(RpInterleave *interleave);
/* When devices are free, ns (rp_pace_time_ns()); free dispatch. */
double rp_interleave_time_ns(const RpInterleave *interleave);

/* The tasks of @stage and @micro_batch of the call; RP_TASK_NONE: not in it, or not yet. */
RpActionTasks rp_interleave_tasks(const RpInterleave *interleave, guint32 stage,
                                  guint32 micro_batch);
