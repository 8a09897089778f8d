/**
 * Values that tasks of a trace make and need. A trace names no dependencies, but they follow from
 * the kinds:
 *
 *   F(s, m)  needs F(s-1, m), the upload of its input, its stage's parameters
 *   B(s, m)  needs B of the next stage to run backward, its uploads and parameters
 *   W(s, m)  needs I(s, m);  a download the action, an upload the download of the same boundary
 */
#pragma once

#include "core/trace/trace.h"

typedef enum {
    RP_VALUE_FORWARD, /* place = stage */
    RP_VALUE_BACKWARD,
    RP_VALUE_FORWARD_INPUT,  /* uploaded */
    RP_VALUE_BACKWARD_INPUT, /* uploaded: stash, gradient or saved tensors */
    RP_VALUE_ACTIVATION,     /* place = boundary */
    RP_VALUE_GRADIENT,
    RP_VALUE_SAVED,      /* place = layer */
    RP_VALUE_PARAMETERS, /* number = round */
    RP_VALUE_STAGE_GRADIENTS
} RpValueKind;

typedef struct {
    guint32 kind; /* RpValueKind */
    guint32 iteration;
    guint32 number; /* micro-batch, or round */
    guint32 place;  /* stage, or boundary */
    guint maker;    /* index of the task that makes it */
} RpTaskValue;

typedef struct _RpTraceNeeds RpTraceNeeds;

/* @maker: a task before the one whose needs are visited */
typedef void (*RpTraceNeed)(guint maker, gpointer user_data);

/**
 * rp_trace_needs_new:
 * @trace: its devices and kind of stages count
 * @records: (array length=n): tasks in the order of their ids; borrowed, as is @trace
 */
RpTraceNeeds *rp_trace_needs_new(const RpTrace *trace, const RpTraceRecord *const *records,
                                 guint n);
void rp_trace_needs_free(RpTraceNeeds *needs);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTraceNeeds, rp_trace_needs_free)

/* Calls for each task that makes a value that task @i needs. */
void rp_trace_needs_visit(const RpTraceNeeds *needs, guint i, RpTraceNeed visit,
                          gpointer user_data);
/* All that are of @wanted's kind, iteration, number and place, by maker. @n: (out) */
const RpTaskValue *rp_trace_needs_find(const RpTraceNeeds *needs, const RpTaskValue *wanted,
                                       guint *n);

/* The hop between devices of `compute` fidelity; where transfers are tasks, it is none. */
gint64 rp_trace_hop_ns(const RpTrace *trace);
/* The hop between two actions. One that the trace shows to be too long is none. */
gint64 rp_trace_lag_ns(gint64 hop_ns, const RpTraceRecord *before, const RpTraceRecord *task);

/* If more tasks than this end at the same instant, they are no evidence of who waited for whom. */
#define RP_TRACE_MOST_AT_ONCE 64

/* When a task ends. */
typedef struct {
    gint64 end_ns;
    guint task; /* index */
} RpTraceEnd;

/* The ends of @records, sorted. (transfer full) (element-type RpTraceEnd) */
GArray *rp_trace_ends_new(const RpTraceRecord *const *records, guint n);
/* The first that is not before @time_ns. */
guint rp_trace_ends_from(const GArray *ends, gint64 time_ns);

/*
 * Gates: which task each task of a trace waited for, the last of its predecessors to end.
 *
 *   gpu 0 |F0|F1|
 *   gpu 1    |F0|   |B0|        B0's gate is F0 of the next stage, on another device
 */

/**
 * rp_trace_gates:
 * @plan: (nullable): the trace's: its dependencies count; without it the ones that needs.h knows
 *
 * By index of a task the index of its gate, a predecessor on its lane or elsewhere; RP_NONE: none is
 * known. Where a predicted task starts later than these explain, its gate is a task that ended at that
 * very moment (a buffer, a copy engine, an update).
 * Returns: (array) (transfer full)
 */
guint32 *rp_trace_gates(const RpTrace *trace, const RpPlan *plan);
