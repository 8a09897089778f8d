/**
 * Shared by the files of the advisor: queries made definite (query.c), runs (run.c),
 * plans that fit (fit.c, bound.c), their times (compute.c, simulate.c, range.c),
 * and the parts of an advice (choose.c, schedules.c, longest.c,
 * remedies.c).
 */
#pragma once

#include "sim/advise/advise.h"
#include "sim/search/partition-cost.h"
#include "sim/steady-window.h"

/* More GPUs in a machine are a mistake. */
#define RP_ADVISE_MAX_GPUS 256
/* Warm-up of a simulation, iterations: rp_steady_window()'s. */
#define RP_ADVISE_WARM_UP 4
/* Partitions tried for one micro-batch. */
#define RP_ADVISE_CANDIDATES 32

/* A plan is as fast as the fastest if it has this part of its tokens/s, and its host memory is as little as the least
 * if that is this part of it (rp_advise_best()). */
#define RP_ADVISE_AS_FAST 0.99
#define RP_ADVISE_AS_FEW 0.95

/* The share of a slowdown that some plans had which others are expected to have. */
#define RP_ADVISE_SURE (2.0 / 3)

/* If the user gave no host limit, a plan may use this many times the least memory to be faster. */
#define RP_ADVISE_HOST_GROWTH 1.25

/* ---- queries ---- */

/* Sets RP_ADVISE_ERROR_QUERY. Returns: %FALSE */
gboolean rp_advise_refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Checks @query's numbers and fills in those that follow from others.
 * Errors: RP_ADVISE_ERROR_QUERY, RP_PROFILE_ERROR_FIDELITY */
gboolean rp_advise_resolve(RpAdviseQuery *query, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The smallest M_R that suits @micro_batches and is at least @least; 0 if there is none. */
guint rp_advise_next_round(const RpAdviseQuery *query, guint micro_batches, guint least);

/* ---- runs ---- */

const RpScheduleOps *rp_advise_roundpipe(void);

RpAdviseRun *rp_advise_run_copy(const RpAdviseRun *run);
void rp_advise_run_set(RpAdviseRun *run, const RpAdviseRun *other);

/* rp_advise_fit(), rp_advise_fit_least() */
typedef gboolean (*RpAdviseFit)(const RpAdviseQuery *query, const RpProfile *profile,
                                RpAdviseRun *run);
/* @run, fitted, if it fits or its round was asked for; else in one round if that
 * fits, or comes nearer: there are no fp32 sums of rounds, but longer stashes. Takes @run. */
RpAdviseRun *rp_advise_in_one_round(const RpAdviseQuery *query, const RpProfile *profile,
                                    RpAdviseRun *run, RpAdviseFit fit);

/* Takes @problem, or @error's message. */
void rp_advise_set_problem(RpAdviseRun *run, char *problem);
void rp_advise_take_error(RpAdviseRun *run, GError *error);
/* Takes @partition. */
void rp_advise_set_partition(RpAdviseRun *run, RpPartition *partition);

/* The plan of @query that needs least; with @profile_out by category. Returns: %NULL if the cost
 * model refuses the workload. */
RpAdviseRun *rp_advise_least(const RpAdviseQuery *query, RpProfile **profile_out, GError **error);

/* Takes the recommendation of @from, and leaves it without. */
void rp_advice_take(RpAdvice *advice, RpAdvice *from);

/**
 * rp_advise_best:
 * @runs: (element-type RpAdviseRun): with a step's time, of one batch
 * @sequences: of a micro-batch; 0 = of all
 * @host_bytes: that they may take; 0 = any
 *
 * The only comparison of plans: of those that are as fast as the fastest (RP_ADVISE_AS_FAST) those that need
 * little host memory (RP_ADVISE_AS_FEW), of these the fastest, with the least device memory.
 *
 * Returns: (nullable)
 */
const RpAdviseRun *rp_advise_best(const GPtrArray *runs, guint sequences, guint64 host_bytes);

/* Whether @run may be faster than all of @finalists, if its bound is too fast by the factor @gap. */
gboolean rp_advise_may_be_faster(const RpAdviseRun *run, double gap, const GPtrArray *finalists);

/* Whether micro-batches, rounds and groups are as large, and the same is saved. */
gboolean rp_advise_is_same_choice(const RpAdviseRun *a, const RpAdviseRun *b);

/* The one with the shortest step; %NULL of none. */
const RpAdviseRun *rp_advise_fastest(const GPtrArray *runs);

/* ---- memory ---- */

/* rp_advise_measure() with totals only, and a preliminary message. */
gboolean rp_advise_fits(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run);

/* Gives @run the paper's partition under the largest limit per stage that fits as a whole. */
gboolean rp_advise_fit_limit(const RpAdviseQuery *query, const RpProfile *profile,
                             RpAdviseRun *run);

/* ---- time ---- */

/* The objective of a comparison of partitions. */
typedef struct {
    const RpAdviseQuery *query;
    const RpProfile *profile;
    const RpPlanOptions *options;
} RpAdviseJudge;

guint rp_advise_count_stages(const RpPartition *partition);

/* The shape that layers are cut for: micro-batches of a round of each group, or N of a bound schedule. */
guint rp_advise_unit(const RpPlanOptions *options);

/* Micro-batches in whole units; at least two of them. */
guint rp_advise_cut(const RpPartition *partition, const RpPlanOptions *options);

/* The iterations to simulate, and those to look at. */
RpSteadyWindow rp_advise_window(const RpPartition *partition, const RpPlanOptions *options,
                                guint warm_up);

/* Devices of one of the groups that share rounds: without transfers all of them run alike. */
RpPlanOptions rp_advise_one_group(const RpPlanOptions *options);

/* Time of an iteration in `compute` fidelity, with scoring by a reference; G_MAXINT64 if it has no plan. */
gint64 rp_advise_compute_ns(const RpAdviseJudge *judge, const RpPartition *partition);

/* Partitions that are found from @run's, which fits, with their times in `compute` fidelity as steps'.
 * Returns: (transfer full) (element-type RpAdviseRun) */
GPtrArray *rp_advise_partitions(const RpAdviseQuery *query, const RpProfile *profile,
                                const RpAdviseRun *run, guint max_candidates);

/* Time that a group of GPUs scores the batches of a step at least; 0: there is no such reference. */
gint64 rp_advise_scoring_ns(const RpAdviseQuery *query, const RpProfile *profile,
                            const RpPlanOptions *options);

/* A step that no partition of @run is shorter than, in @query's rounds or of any length, if only computing and copies
 * of what is saved take time; 0: unknown. */
gint64 rp_advise_bound_ns(const RpAdviseQuery *query, const RpProfile *profile,
                          const RpAdviseRun *run);

/* rp_advise_simulate() with fewer iterations before those that count, where this is enough: pipelines are full at once,
 * and no lane lags behind, or the step is longer than @enough_ns (0: never). */
gboolean rp_advise_simulate_shortly(const RpProfile *profile, RpAdviseRun *run, gint64 enough_ns,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A step that @run is not shorter than, as the busiest resource has so much to do, in whichever order; 0: unknown. */
gint64 rp_advise_floor_ns(const RpProfile *profile, const RpAdviseRun *run);

/* The part of it that follows from the partition without a plan: weights and saved tensors go up, these and gradients
 * down, over links that nothing else uses. */
gint64 rp_advise_transfers_ns(const RpProfile *profile, const RpAdviseRun *run);

/* Tokens/s of iterations that take @ns; 0 if the profile gives no tokens. */
double rp_advise_tokens_per_s(const RpProfile *profile, const RpAdviseRun *run, gint64 ns);

/* ---- rounds (rounds.c) ---- */

/* Adds the best and the fastest partitions of @run, in rounds of several lengths, simulated, to @finalists:
 * unless they cannot be as fast as these. If @run is not simulated, its step is that of the fastest, without
 * transfers. */
gboolean rp_advise_explore(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                           guint max_candidates, GPtrArray *finalists,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Simulates @run, whose step is that without transfers, and adds it to @finalists, unless it cannot win there. Takes
 * @run. */
gboolean rp_advise_try(const RpProfile *profile, RpAdviseRun *run, GPtrArray *finalists,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adds plans whose forwards save something (saved.c) to @tried. @query: with its limits */
gboolean rp_advise_add_savings(const RpAdvice *advice, const RpAdviseQuery *query, GPtrArray *tried,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adds @one, simulated, in several groups of GPUs to @finalists, in the shortest and the longest rounds. */
gboolean rp_advise_try_replicas(const RpAdviseQuery *query, const RpProfile *profile,
                                const RpAdviseRun *one, GPtrArray *finalists,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- parts of an advice ---- */

/* Fills in candidates, and best or nearest, with its profile. */
gboolean rp_advise_choose(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Fills in @advice's schedules. */
gboolean rp_advise_compare(RpAdvice *advice, const RpScheduleOps *const *schedules,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @query: as asked, not resolved. Returns: (transfer full) (element-type RpAdviseRemedy) */
GPtrArray *rp_advise_find_remedies(const RpAdviseQuery *query);
