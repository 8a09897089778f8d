/**
 * What a simulated request comes to: the figures that `simulate`, `compare` and `partition` print.
 */
#pragma once

#include "cli/cli.h"
#include "core/trace/report.h"

typedef struct {
    gint64 makespan_ns; /* of the whole run: 0 to the end of its last action */
    gint64
        bound_ns; /* no partition's iteration is shorter (sim/search/partition-cost.h); 0 = unknown:
                            full     fidelity */
    gint64 iteration_ns; /* steady: mean period; else the run, with its last task, divided */
    gboolean steady;     /* `bubble` is of the window [first, end), not of the whole run */
    guint first_iteration;
    guint end_iteration;
    gint64 least_ns;   /* iteration_ns if every layer took its 10th percentile, */
    gint64 most_ns;    /* or its 90th; both 0: the profile has no spreads */
    RpBubble bubble;   /* ratio = fill + switch + drain + intra; steady: fill = drain = 0 */
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
 * `compute` fidelity; a profile without sizes has none. */
void rp_result_plan_memory(const RpRequest *request, const RpProfile *profile, RpResult *result);

/* By how much the iteration is longer than the bound, %; 0 if that is not known. */
double rp_result_above_bound(const RpResult *result);

/* Members of an open object: bubble_ratio, bubble {fill, ...}, comm_exposed_ratio. */
void rp_json_bubble(RpJsonWriter *json, const RpBubble *bubble);

/* Members of an open object: forward_stages and backward_stages (bound: the same list in
 * the opposite order). */
void rp_json_partition(RpJsonWriter *json, const RpProfile *profile, const RpPartition *partition);

/* "7*4" of stages. (transfer full) */
char *rp_cli_stage_list(const RpProfile *profile, const RpInterval *stages, guint n);
