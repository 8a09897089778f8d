/**
 * What the files of the advisor share: queries made definite (query.c), runs (run.c),
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

/* Predictions are good for three percent: what is that close to the fastest is as fast. */
#define RP_ADVISE_AS_FAST 0.97

/* Of host memory that nobody has told of, so much more than needed may be taken for speed. */
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

/* rp_advise_fit(), rp_advise_fit_least() */
typedef gboolean (*RpAdviseFit)(const RpAdviseQuery *query, const RpProfile *profile,
                                RpAdviseRun *run);
/* @run, which @fit has been given, if it fits or its round was asked for; else in one round if that
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

/* The recommendation for @query, of which nothing is chosen but what it asks for. */
gboolean rp_advise_choose_plain(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same, but of few micro-batches and partitions, in rounds as long as they must be: to compare. */
gboolean rp_advise_choose_roughly(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Takes the recommendation of @from, and leaves it without. */
void rp_advice_take(RpAdvice *advice, RpAdvice *from);

/* ---- memory ---- */

/* rp_advise_measure() with totals only, and a preliminary message. */
gboolean rp_advise_fits(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run);

/* Gives @run the paper's partition under the largest limit per stage that fits as a whole. */
gboolean rp_advise_fit_limit(const RpAdviseQuery *query, const RpProfile *profile,
                             RpAdviseRun *run);

/* ---- time ---- */

/* What partitions are compared for. */
typedef struct {
    const RpAdviseQuery *query;
    const RpProfile *profile;
    const RpPlanOptions *options;
} RpAdviseJudge;

guint rp_advise_count_stages(const RpPartition *partition);

/* What is cut by: micro-batches of a round of each group, or N of a bound schedule. */
guint rp_advise_unit(const RpPlanOptions *options);

/* Micro-batches in whole units; at least two of them. */
guint rp_advise_cut(const RpPartition *partition, const RpPlanOptions *options);

/* The iterations to simulate, and those to look at. */
RpSteadyWindow rp_advise_window(const RpPartition *partition, const RpPlanOptions *options,
                                guint warm_up);

/* Of one of the groups that rounds are shared out to: without transfers all of them run alike. */
RpPlanOptions rp_advise_one_group(const RpPlanOptions *options);

/* Time of an iteration in `compute` fidelity; G_MAXINT64 if it has no plan. */
gint64 rp_advise_compute_ns(const RpAdviseJudge *judge, const RpPartition *partition);

/* The same as a cost of rp_partition_search_*(). */
gint64 rp_advise_judge_time(const RpPartition *candidate, guint round, gpointer user_data);

/* Of iterations that take @ns; 0 if the profile gives no tokens. */
double rp_advise_tokens_per_s(const RpProfile *profile, const RpAdviseRun *run, gint64 ns);

/* ---- rounds (rounds.c) ---- */

/**
 * rp_advise_try_rounds:
 * @run: simulated
 * @variants: (element-type RpAdviseRun): gets @run, and while it has bubbles the same in longer
 *   rounds
 * @fastest: (inout): tokens/s
 */
gboolean rp_advise_try_rounds(const RpAdviseQuery *query, const RpProfile *profile,
                              const RpAdviseRun *run, GPtrArray *variants, double *fastest,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Adds to @variants the fewest rounds of @run's micro-batch that are as fast as @fastest. */
gboolean rp_advise_try_fewer(const RpAdviseQuery *query, const RpProfile *profile,
                             const RpAdviseRun *run, GPtrArray *variants, double fastest,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Of those that are as fast as the fastest, the one with the fewest rounds, then the least host
 * memory. @sequences: of one micro-batch; 0 = of all. Returns: (nullable) */
const RpAdviseRun *rp_advise_most_frugal(const GPtrArray *variants, guint sequences);

/* Puts the recommendation in several groups of GPUs in its place, where these are faster. */
gboolean rp_advise_weigh_replicas(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- parts of an advice ---- */

/* Fills in candidates, and best or nearest, with its profile. */
gboolean rp_advise_choose(RpAdvice *advice, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Fills in @advice's schedules. */
gboolean rp_advise_compare(RpAdvice *advice, const RpScheduleOps *const *schedules,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @query: as asked, not resolved. Returns: (transfer full) (element-type RpAdviseRemedy) */
GPtrArray *rp_advise_find_remedies(const RpAdviseQuery *query);
