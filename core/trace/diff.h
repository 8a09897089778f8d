/**
 * Two traces of one plan beside each other (`roundpipe report --late`): matching tasks, and their
 * differences. Mostly a predicted and a measured one, but two of one origin do as well.
 *
 *   first    gpu 0 |F0|F1|     |B0 |          F1 took longer: a duration
 *   second   gpu 0 |F0| F1  |     |B0 |       B0 started later than F1's end explains: a slip
 *
 * Tasks are matched by kind, iteration, stage, micro-batch, round, layer and chunk, repeated ones
 * in the order of their ids. Both are looked at in the same iterations, times counted from the
 * start of the first compute action among them.
 */
#pragma once

#include <glib.h>

#include "core/trace/trace.h"

#define RP_TRACE_DIFF_ERROR (rp_trace_diff_error_quark())
GQuark rp_trace_diff_error_quark(void);

typedef enum {
    RP_TRACE_DIFF_ERROR_ITERATIONS, /* no iteration in common, or the wanted ones are not there */
    RP_TRACE_DIFF_ERROR_MISMATCH,   /* other devices, stages or actions */
    RP_TRACE_DIFF_ERROR_ORIGIN      /* the first is measured, the second predicted */
} RpTraceDiffError;

typedef enum { RP_TRACE_FIRST, RP_TRACE_SECOND, RP_N_TRACE_SIDES } RpTraceSide;

typedef struct {
    guint32 first_iteration;
    guint32 end_iteration; /* excluded; 0 = the common iterations */
    double scale;          /* times of the second are divided by it; 0 = by busy compute of the
                              second / of the first */
} RpTraceDiffOptions;

/* One task in both. */
typedef struct {
    const RpTraceRecord *record[RP_N_TRACE_SIDES]; /* in rp_trace_diff_trace() */
    gint64 slip_ns;
} RpTaskPair;

/* All matched tasks of one kind and stage. */
typedef struct {
    RpTaskKind kind;
    guint32 stage; /* RP_NONE: not of one */
    guint64 count;
    gint64 total_ns[RP_N_TRACE_SIDES]; /* durations */
} RpTaskGroup;

typedef enum { RP_RANK_DURATION, RP_RANK_SLIP } RpTaskRank;

typedef struct _RpTraceDiff RpTraceDiff;

/**
 * rp_trace_diff_new:
 * @names: the two traces' names in messages
 *
 * Every compute action of the iterations must be in both, on the same device; other tasks may be
 * missing on either side (fidelities may differ).
 *
 * Errors: RP_TRACE_DIFF_ERROR_*, naming the first difference
 */
RpTraceDiff *rp_trace_diff_new(const RpTrace *const traces[RP_N_TRACE_SIDES],
                               const char *const names[RP_N_TRACE_SIDES],
                               const RpTraceDiffOptions *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_trace_diff_free(RpTraceDiff *diff);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTraceDiff, rp_trace_diff_free)

/* The compared part of a trace: its iterations, from the first action on, scaled. Tasks that run
 * before that action (uploads) have negative times. */
const RpTrace *rp_trace_diff_trace(const RpTraceDiff *diff, RpTraceSide side);
guint32 rp_trace_diff_first_iteration(const RpTraceDiff *diff);
guint32 rp_trace_diff_end_iteration(const RpTraceDiff *diff);
/* The factor that the times of the second trace were divided by. */
double rp_trace_diff_scale(const RpTraceDiff *diff);
/* Tasks of @kind that only @side has. */
guint64 rp_trace_diff_only(const RpTraceDiff *diff, RpTraceSide side, RpTaskKind kind);
/* The first action, in the order of the first trace, that its device runs in another order in the
 * second; %NULL if there is none. */
const RpTaskPair *rp_trace_diff_reordered(const RpTraceDiff *diff);

/**
 * rp_trace_diff_pairs:
 * @n: (out): how many
 *
 * The tasks that both have, in the order of the first trace. A pair's slip is how much later the
 * task starts in the second than in the first, each counted from the moment when its predecessors
 * were done:
 *
 *   slip = (start - due) of the second - (start - due) of the first
 *   due  = max over predecessors p of end(p) + lag(p)
 *
 * so a task that is late only because its predecessors were has none. Predecessors are the task
 * before it on its lane (each trace's own) and the makers of its inputs, as far as a trace names
 * them: actions of neighbouring stages, its transfers, its stage's parameters. Where these do not
 * explain its start in a predicted first trace, also the tasks that ended at that very moment,
 * for which it then waited (a buffer, a copy engine, the weights). lag is the hop between
 * devices in `compute` fidelity, else 0; less where the first trace starts sooner (recompute).
 */
const RpTaskPair *rp_trace_diff_pairs(const RpTraceDiff *diff, gsize *n);

/* The @top pairs with the largest difference of durations (longer or shorter), or with the largest
 * slips (later only). Pairs that do not differ are left out.
 * Returns: (element-type RpTaskPair) (transfer full): the largest first */
GArray *rp_trace_diff_rank(const RpTraceDiff *diff, RpTaskRank rank, guint top);

/* Returns: (element-type RpTaskGroup) (transfer full): the largest difference of the totals first
 */
GArray *rp_trace_diff_groups(const RpTraceDiff *diff);

/* Duration in the second minus that in the first. */
gint64 rp_task_pair_longer_ns(const RpTaskPair *pair);

/* "forward of stage 3, micro-batch 5, iteration 0 on gpu 2". (transfer full) */
char *rp_trace_describe(const RpTrace *trace, const RpTraceRecord *record);
