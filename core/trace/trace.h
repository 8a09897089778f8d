/**
 * A trace: start and end of every task, predicted (simulator) or measured (executor). Everything
 * that reports reads a trace; it stands alone, without the plan it came from.
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"

typedef enum { RP_TRACE_PREDICTED, RP_TRACE_MEASURED } RpTraceOrigin;

/* One task that ran. */
typedef struct {
    gint64 start_ns; /* from the trace's origin */
    gint64 end_ns;
    gint64 transfer_ns; /* the transfer (hop) that gated the start: its length if the task started
                           the moment it was over (recompute: the moment it allowed), else 0 */
    guint64 bytes;
    RpTaskId task;
    guint32 lane; /* as in the plan */
    guint32 iteration;
    guint32 micro_batch;
    guint32 stage;
    guint32 layer; /* or backward_stage of RP_TASK_OVERLAP */
    guint32 chunk; /* or backward_micro_batch */
    guint16 round;
    guint8 kind; /* RpTaskKind */
    guint8 reserved[5];
} RpTraceRecord;

typedef struct _RpTrace RpTrace;

/* @plan: gives devices, lanes, stages and buffers; copied as far as needed */
RpTrace *rp_trace_new(const RpPlan *plan, RpTraceOrigin origin);
/* Without a plan (a trace read from a file): lanes as rp_plan_lane(). */
RpTrace *rp_trace_new_empty(guint gpus, RpTraceOrigin origin);
void rp_trace_free(RpTrace *trace);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTrace, rp_trace_free)

guint rp_trace_gpus(const RpTrace *trace);
/* Device of a lane; RP_NONE for a host lane or a lane that the trace does not have. */
guint32 rp_trace_lane_device(const RpTrace *trace, guint32 lane);
/* As rp_plan_lane_kind(). */
guint rp_trace_lane_kind(const RpTrace *trace, guint32 lane);
RpTraceOrigin rp_trace_origin(const RpTrace *trace);

/* Memory for @n records at once, uninitialised, at the end; for engines that fill them in place. */
RpTraceRecord *rp_trace_extend(RpTrace *trace, gsize n);
void rp_trace_append(RpTrace *trace, const RpTraceRecord *record);
/* Copies everything of @task but the times. */
void rp_trace_record_init(RpTraceRecord *record, RpTaskId id, const RpTask *task);

/* How many records there are. */
gsize rp_trace_n_records(const RpTrace *trace);
/* Records in task order (ids ascending); within a lane this is also the order of time. */
const RpTraceRecord *rp_trace_records(const RpTrace *trace);

/* Whether stage indices mean dispatched slots; used by reports to pick the switch definition. */
gboolean rp_trace_dispatched(const RpTrace *trace);
void rp_trace_set_dispatched(RpTrace *trace, gboolean dispatched);

/* End of the last task. */
gint64 rp_trace_end_ns(const RpTrace *trace);
/* End of the last compute action. */
gint64 rp_trace_makespan_ns(const RpTrace *trace);
