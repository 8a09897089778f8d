/* Validation: the loss of other data every so many steps, which of them was lowest, and when it is no
 * use to go on.
 *
 *   step        10    20    30    40    50    60
 *   eval_loss  2.9   2.4   2.2   2.3   2.2   2.4      patience 3: none was lower than that of step
 *                           ^best                     30 in three evaluations: the run ends
 */
#include "run/train/private.h"

#include <gio/gio.h>
#include <math.h>

#include "exec/device/batch-feed.h"
#include "sim/scored.h"
#include "sim/simulate.h"

/* Evaluations that are simulated; more of them take as long each as the last ones do. */
#define SIMULATED_CALLS 8

/* ---- before the first step ---- */

/* Micro-batches of an evaluation: as many as all samples fill. */
static gboolean
count_calls(const RpTrainJob *job, guint64 *calls, GError **error)
{
    RpBatcherOptions once = job->batcher;
    const RpDataState start = {.n_samples = job->evaluation.summary.n_samples};
    RpPackingSurvey survey;

    once.epochs = 1;
    once.shuffle = once.drop_long = FALSE;
    g_autoptr(RpPacker) packer = rp_packer_new(job->evaluation.dataset, &once);
    if (!rp_packer_survey(packer, &start, G_MAXUINT64, &survey, error))
        return FALSE;
    *calls = survey.iterations;
    return TRUE;
}

/* Where bound schedules' heads are not put elsewhere, and heads compute the share of rows that have targets in
 * training. (transfer full) */
static RpProfile *
forward_profile(const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    RpProfile *profile = run->slow != NULL
                             ? rp_profile_slowed(job->measured, run->slow, run->n_devices)
                             : rp_profile_copy(job->measured);

    rp_place_head(profile, TRUE, rp_targets_share(job->targets), 0);
    return profile;
}

/* Forwards alone of @calls batches, proved. (transfer full): traces end before their plan, @plan */
static RpTrace *
simulate_forwards(const RpTrainJob *job, guint calls, RpPlan **plan, GError **error)
{
    g_autoptr(RpProfile) profile = forward_profile(job);
    const RpMachine machine = rp_machine_from_profile(profile);
    RpPlanOptions options = job->request.options;

    options.forward_only = TRUE;
    *plan = rp_plan_make(profile, job->request.partition, &options, calls, error);
    return *plan != NULL && rp_trainer_prove(*plan, error) ? rp_simulate(*plan, &machine, error)
                                                           : NULL;
}

gboolean
rp_train_predict_scoring(RpTrainJob *job, GError **error)
{
    g_autoptr(RpPlan) forwards_plan = NULL;
    RpSteady scored;

    if (!rp_train_scores(job))
        return TRUE;
    g_autoptr(RpProfile) forwards = forward_profile(job);

    if (!rp_simulate_scored(job->profile, forwards, job->request.partition, &job->request.options,
                            &forwards_plan, &scored, error) ||
        !rp_trainer_prove(forwards_plan, error))
        return FALSE;
    const gint64 more_ns = scored.iteration_ns - job->steady.iteration_ns;

    job->steady.ratio = scored.ratio;
    job->steady.iteration_ns += more_ns;
    job->clipped.iteration_ns += job->clipped.iteration_ns > 0 ? more_ns : 0;
    job->least_ns += job->least_ns > 0 ? more_ns : 0;
    job->most_ns += job->most_ns > 0 ? more_ns : 0;
    return TRUE;
}

gboolean
rp_train_predict_evaluation(RpTrainJob *job, GError **error)
{
    g_autoptr(RpPlan) plan = NULL;
    guint64 calls;

    if (!count_calls(job, &calls, error))
        return FALSE;
    calls *= rp_train_scores(job) ? 2 : 1;
    const guint simulated = (guint)MIN(calls, SIMULATED_CALLS);
    g_autoptr(RpTrace) trace = simulate_forwards(job, simulated, &plan, error);
    if (trace == NULL)
        return FALSE;
    const gint64 end_ns = rp_trace_end_ns(trace);
    gint64 from_ns = 0, first_ns = end_ns;

    (void)rp_report_iteration_span(trace, 0, &from_ns, &first_ns);
    job->evaluation.calls = calls;
    job->evaluation.bubble_ratio = rp_report_bubble(trace).ratio;
    job->evaluation.ns = end_ns + (gint64)((double)(calls - simulated) *
                                           (double)(end_ns - first_ns) / MAX(1, simulated - 1));
    return TRUE;
}

gint64
rp_train_evaluation_every(const RpRunSpec *run)
{
    return run->eval.every > 0 ? run->eval.every : MAX(1, run->steps / RP_TRAIN_EVALUATIONS);
}

gint64
rp_train_n_evaluations(const RpRunSpec *run)
{
    const gint64 every = rp_train_evaluation_every(run);

    return 1 + (run->steps + every - 1) / every;
}

/* ---- between steps ---- */

/* Whether steps are over that are to be evaluated, or all are. */
static gboolean
is_due(const RpTrainLoop *loop, guint64 step)
{
    const RpRunSpec *run = loop->job->run;

    return loop->job->evaluation.dataset != NULL && step > 0 && step != loop->evaluated_step &&
           (step % (guint64)rp_train_evaluation_every(run) == 0 || step == (guint64)run->steps);
}

static void
tell(const RpTrainLoop *loop, guint64 step, const RpEvaluation *evaluation)
{
    const RpCheckpointBest *best = &loop->best;
    const double accuracy = evaluation->metrics[RP_PREFERENCE_REWARDS_ACCURACIES];
    const gboolean paired = isfinite(accuracy);
    g_autofree char *was = paired ? g_strdup_printf("%.2f %%", 100 * best->accuracy)
                                  : g_strdup_printf("%.4f", best->loss);
    g_autofree char *than =
        step == 0            ? g_strdup("")
        : best->step == step ? g_strdup_printf("; the %s so far", paired ? "best" : "lowest")
        : best->step > 0     ? g_strdup_printf("; the %s was %s, of step %" G_GUINT64_FORMAT,
                                           paired ? "best" : "lowest", was, best->step)
                             : g_strdup("");
    g_autofree char *beside = paired ? g_strdup_printf(", accuracy %.2f %%", 100 * accuracy)
                              : evaluation->n_pairs > 0
                                  ? g_strdup("")
                                  : g_strdup_printf(", perplexity %.5g", exp(evaluation->loss));

    rp_run_say(loop->job->events, "note",
               "step %" G_GUINT64_FORMAT ": validation loss %.4f%s (%.1f s)%s", step,
               evaluation->loss, beside, (double)evaluation->ns / 1e9, than);
}

/* Progress is not lost with data that cannot be read; after other errors nothing can be saved.
 * (transfer full): @problem */
static gboolean
fail(RpTrainLoop *loop, GError *problem, GError **error)
{
    g_prefix_error(&problem, "eval.data: ");
    if (problem->domain == RP_DATASET_ERROR || problem->domain == G_FILE_ERROR)
        return rp_train_loop_save_before(loop, problem, error);
    return rp_propagate_error(error, problem);
}

gboolean
rp_train_evaluation_progress(gpointer job, guint64 n_samples)
{
    const RpTrainJob *evaluated = job;
    const RpRunEvents *events = evaluated->events;

    RP_RUN_TELL(events, progress, "evaluating", n_samples, evaluated->evaluation.summary.n_samples);
    return rp_run_stop(events) == 0;
}

/* Runs it. @done: (out): %FALSE: nobody wants it any more, the run ends */
static gboolean
run_evaluation(RpTrainLoop *loop, RpEvaluation *evaluation, gboolean *done, GError **error)
{
    const RpTrainJob *job = loop->job;
    const RpRunEvents *events = job->events;
    GError *problem = NULL;

    *done = rp_trainer_evaluate(loop->trainer, job->evaluation.dataset, job->batcher.pad_id,
                                rp_train_evaluation_progress, (gpointer)job, evaluation, &problem);
    RP_RUN_TELL(events, progress, "evaluating", 0, 0);
    if (*done)
        return TRUE;
    if (!g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CANCELLED))
        return fail(loop, problem, error);
    g_error_free(problem);
    return TRUE;
}

/* 0 where there are no pairs. */
static double
accuracy_of(const RpEvaluation *evaluation)
{
    const double accuracy = evaluation->metrics[RP_PREFERENCE_REWARDS_ACCURACIES];

    return isfinite(accuracy) ? accuracy : 0;
}

/* By the accuracy of pairs; where it is the same, or there is none, by the loss. */
static gboolean
is_better(const RpEvaluation *evaluation, const RpCheckpointBest *best)
{
    const double accuracy = accuracy_of(evaluation);

    return accuracy > best->accuracy ||
           (accuracy == best->accuracy && evaluation->loss < best->loss);
}

static gboolean
evaluate(RpTrainLoop *loop, guint64 step, GError **error)
{
    const RpRunSpec *run = loop->job->run;
    RpCheckpointBest *best = &loop->best;
    RpEvaluation evaluation;
    gboolean done;

    if (!run_evaluation(loop, &evaluation, &done, error))
        return FALSE;
    if (!done)
        return TRUE;
    loop->evaluated_step = step;
    if (step > 0 && isfinite(evaluation.loss) && (best->step == 0 || is_better(&evaluation, best)))
        *best = (RpCheckpointBest){
            .step = step, .loss = evaluation.loss, .accuracy = accuracy_of(&evaluation)};
    else
        best->n_worse += step > 0; /* nothing is learned at step 0, and no checkpoint has it */
    best->kept = run->eval.keep_best != 0;
    rp_train_metrics_add_evaluation(loop->metrics, step, &evaluation);
    loop->outcome->n_evaluations++;
    loop->outcome->evaluation = evaluation;
    tell(loop, step, &evaluation);
    return TRUE;
}

gboolean
rp_train_loop_evaluate(RpTrainLoop *loop, guint64 step, GError **error)
{
    return !is_due(loop, step) || evaluate(loop, step, error);
}

/* Whether the run that goes on was stopped when it was to evaluate its last step: metrics have the step,
 * and not its evaluation. */
static gboolean
has_missed(const RpTrainLoop *loop, guint64 step)
{
    const RpRunSpec *run = loop->job->run;
    g_autofree char *path = g_build_filename(run->output, "metrics.jsonl", NULL);
    g_autoptr(GArray) lines = loop->files ? rp_train_metrics_read(path, NULL) : NULL;
    gboolean trained = FALSE, evaluated = FALSE;

    for (guint i = 0; lines != NULL && i < lines->len; i++) {
        const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);

        if (line->step != (double)step)
            continue;
        evaluated = evaluated || !isnan(line->eval_runtime);
        trained = trained || isnan(line->eval_runtime);
    }
    return trained && !evaluated;
}

gboolean
rp_train_loop_evaluate_first(RpTrainLoop *loop, GError **error)
{
    const RpTrainJob *job = loop->job;
    const guint64 step = loop->outcome->first_step;
    const gint64 every = rp_train_evaluation_every(job->run);
    const gboolean due = step % (guint64)every == 0 || step == (guint64)job->run->steps;
    RpTrainWish wish = {.save = step == 0 || (due && has_missed(loop, step))};

    if (job->evaluation.dataset == NULL || !due)
        return TRUE;
    if (job->servers != NULL && !rp_train_agree_step(job, &wish, error))
        return FALSE;
    if (!wish.save)
        return TRUE;
    return evaluate(loop, step, error) && (!loop->files || !rp_train_loop_is_best(loop, step) ||
                                           rp_checkpoint_link_best(job->run->output, step, error));
}

gboolean
rp_train_loop_is_best(const RpTrainLoop *loop, guint64 step)
{
    return loop->best.kept && loop->best.step == step;
}

gboolean
rp_train_loop_is_useless(RpTrainLoop *loop)
{
    const gint64 patience = loop->job->run->eval.patience;

    if (loop->job->evaluation.dataset == NULL || patience == 0 ||
        loop->best.n_worse < (guint64)patience)
        return FALSE;
    if (!loop->outcome->stopped_early)
        rp_run_say(loop->job->events, "note",
                   "no validation was better than that of step %" G_GUINT64_FORMAT
                   " in %" G_GINT64_FORMAT " evaluation%s (eval.patience): the run ends",
                   loop->best.step, patience, patience == 1 ? "" : "s");
    loop->outcome->stopped_early = TRUE;
    return TRUE;
}
