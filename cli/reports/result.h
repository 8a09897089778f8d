/**
 * The result of a simulated request: the figures that `simulate`, `compare` and `partition` print.
 */
#pragma once

#include "cli/cli.h"
#include "core/trace/report.h"
#include "sim/draws.h"
#include "sim/plan-bound.h"

#define RP_CLI_MOST_DRAWS 100000

typedef struct {
    gint64 makespan_ns; /* of the whole run: 0 to the end of its last action */
    gint64
        bound_ns; /* no partition's iteration is shorter (sim/search/partition-cost.h); 0 = unknown:
                            full     fidelity */
    RpPlanBound plan_bound; /* no order of the plan's tasks is faster; of an iteration */
    gint64 iteration_ns;    /* steady: mean period; else the run, with its last task, divided */
    gboolean steady;        /* `bubble` is of the window [first, end), not of the whole run */
    guint first_iteration;
    guint end_iteration;
    gint64 least_ns;   /* iteration_ns if every layer took its 10th percentile, */
    gint64 most_ns;    /* or its 90th; both 0: the profile has no spreads */
    RpBubble bubble;   /* ratio = fill + switch + drain + intra; asynchronous: fill = drain = 0 */
    RpBubble isolated; /* asynchronous: the first iteration alone */
    double tokens_per_s;
    guint64 actions; /* compute tasks */
    guint64 tasks;
    guint peak_live;         /* stage inputs on the fullest GPU (rp_schedule_peak_live()) */
    guint64 gpu_peak_bytes;  /* full fidelity, or rp_result_plan_memory(); 0 = not known */
    guint64 host_peak_bytes; /* the same */
    char *memory_problem;    /* why it does not fit the profile's GPU, or %NULL */
} RpResult;

void rp_result_clear(RpResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpResult, rp_result_clear)

/* Zero-initialise @result. */
void rp_result_measure(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
                       const RpTrace *trace, RpResult *result);

/* The memory that the request's partition takes with every buffer, also where it was simulated in
 * `compute` fidelity; a profile without sizes has none, and where its plan would take too much
 * memory it is not known. */
void rp_result_plan_memory(const RpRequest *request, const RpProfile *profile, RpResult *result);

/* By how much the iteration is longer than the bound, %; 0 if that is not known. */
double rp_result_above_bound(const RpResult *result);

/* lower_bound {ms, of, busy_ms, path_ms, above_order_ratio, above_busy_ratio}: how much a better
 * order could gain, and a pipeline without bubbles (busy / N). @label:
 * (nullable): for a table's column, in percent; @words: else, in words */
void rp_report_add_plan_bound(RpReport *report, const RpResult *result, const char *label,
                              gboolean words);

/* bubble_ratio, bubble {fill, switch, drain, intra}, comm_exposed_ratio, and where
 * weights are packed expand_ratio. @labels: (nullable): of
 * the six; %NULL: for machines */
void rp_report_add_bubble(RpReport *report, const RpBubble *bubble, const char *const *labels);

/* Reports which tensors forwards save instead of recomputing them, and how much faster that is. */
void rp_report_add_saved(RpReport *report, const RpRequest *request);
/* Frozen weights that stay on devices, if any do, and what they bring. */
void rp_report_add_resident(RpReport *report, const RpRequest *request);

/* Reports a figure over draws (sim/draws.h). @ms: nanoseconds, printed in milliseconds; else a ratio,
 * for people in percent */
void rp_report_add_drawn(RpReport *report, const char *key, const RpDrawn *drawn, gboolean ms,
                         const char *label);

/* Block counts of stages: a list of numbers, "7*4" for people. */
void rp_report_add_stages(RpReport *report, const char *key, const RpProfile *profile,
                          const RpInterval *stages, guint n, const char *label);

/* forward_stages and backward_stages (bound: the same list in the opposite order). @source:
 * (nullable): how it came about: for people, too */
void rp_report_add_partition(RpReport *report, const RpProfile *profile,
                             const RpPartition *partition, const char *source);

/* "7*4" of stages. (transfer full) */
char *rp_cli_stage_list(const RpProfile *profile, const RpInterval *stages, guint n);
