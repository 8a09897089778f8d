/* Forwards alone: the loss of data that is not learned, and log-probabilities of preferences by the reference.
 *
 *   training     |step 4|--flush--|                     |step 5|
 *   evaluation                    |F of batch 0|F of 1|
 *
 * Devices, arenas, the host's state and the engine are those of training, whose plan has stopped. The
 * plan of evaluations has the same stages and the same places in arenas
 * (RpPlanOptions.forward_only), grows from one evaluation to the next, and writes no
 * weight. */
#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "core/base/quote.h"

#include "exec/train/trainer-private.h"

/* Batches under way. */
#define BATCHES_AHEAD 2

gboolean
rp_trainer_make_evaluator(RpTrainer *trainer, const RpPlanOptions *training, gboolean keep_trace,
                          GError **error)
{
    const RpNetworkOptions *shape = rp_network_options(trainer->network);
    RpPlanOptions options = *training;
    const guint rank = trainer->joined != NULL ? rp_servers_rank(trainer->joined) : 0;
    RpEvaluator *evaluator = trainer->evaluator = g_new0(RpEvaluator, 1);

    options.forward_only = TRUE;
    options.first_iteration = 0;
    /* each sample once, in the order of the file */
    evaluator->batches =
        (RpBatcherOptions){.micro_batches = training->micro_batches * trainer->servers,
                           .sequences = shape->sequences,
                           .tokens = shape->tokens,
                           .labels = rp_model_labels(rp_network_model(trainer->network)),
                           .packing = shape->packed_tokens > 0,
                           .preference = rp_trainer_preference(trainer) != NULL,
                           .epochs = 1,
                           .parts = trainer->servers,
                           .part = rank};
    evaluator->losses = g_array_new(FALSE, FALSE, sizeof(double));
    evaluator->batch = rp_token_batch_new(&evaluator->batches);
    g_autoptr(RpPlan) sized =
        rp_plan_make(trainer->profile, trainer->partition, &options, BATCHES_AHEAD + 1, error);
    if (sized == NULL)
        return FALSE;
    evaluator->planner = rp_planner_new(trainer->profile, trainer->partition, &options, error);
    if (evaluator->planner == NULL)
        return FALSE;
    const RpPlan *plan = rp_planner_plan(evaluator->planner);
    evaluator->verifier = rp_verifier_new(plan);
    if (keep_trace)
        evaluator->trace = rp_trace_new(plan, RP_TRACE_MEASURED);
    for (guint32 a = 0; a <= trainer->gpus; a++)
        trainer->arena_bytes[a] = MAX(trainer->arena_bytes[a], rp_plan_arena_bytes(sized, a));
    return TRUE;
}

void
rp_trainer_free_evaluator(RpTrainer *trainer)
{
    RpEvaluator *evaluator = trainer->evaluator;

    if (evaluator == NULL)
        return;
    g_clear_pointer(&evaluator->losses, g_array_unref);
    rp_trace_free(evaluator->trace);
    rp_token_batch_free(evaluator->batch);
    rp_verifier_free(evaluator->verifier);
    rp_planner_free(evaluator->planner);
    g_free(evaluator);
}

RpTrace *
rp_trainer_steal_evaluation_trace(RpTrainer *trainer)
{
    return trainer->evaluator != NULL ? g_steal_pointer(&trainer->evaluator->trace) : NULL;
}

static void
note_batch(gpointer user_data, guint64 batch, const RpTraceRecord *records, gsize n)
{
    RpEvaluator *evaluator = user_data;

    for (gsize i = 0; i < n; i++) {
        if (records[i].kind != RP_TASK_FORWARD)
            continue;
        evaluator->start_ns = MIN(evaluator->start_ns, records[i].start_ns);
        evaluator->end_ns = MAX(evaluator->end_ns, records[i].end_ns);
        evaluator->busy_ns += records[i].end_ns - records[i].start_ns;
    }
}

/* @scores: of its documents, which take the place of references in @call's copy of the batch; then @by_reference */
static gboolean
run_batch(RpTrainer *trainer, const RpTokenBatch *batch, gboolean scores, gboolean by_reference,
          const RpBatchFeedCall **call, GError **error)
{
    RpEvaluator *evaluator = trainer->evaluator;
    RpBatchFeedCall *pushed = rp_batch_feed_push(trainer->feed, evaluator->iteration, 0, batch);
    RpViolation violation;

    pushed->scores = scores;
    pushed->by_reference = by_reference;
    *call = pushed;
    if (!rp_planner_append_iteration(evaluator->planner, error))
        return FALSE;
    if (!rp_verifier_extend(evaluator->verifier, RP_GROWN_STEP, &violation))
        return rp_trainer_fail_proof(&violation, error);
    evaluator->iteration++;
    return rp_engine_append(trainer->engine, error);
}

/* Waits for scores, and sets references of @batch. */
static gboolean
take_scores(RpTrainer *trainer, const RpBatchFeedCall *call, RpTokenBatch *batch, GError **error)
{
    double loss;

    if (!rp_trainer_wait_for_loss(trainer, call, &loss, error))
        return FALSE;
    for (guint m = 0; m < batch->micro_batches; m++)
        memcpy(rp_token_batch_references(batch, m), rp_token_batch_references(call->batch, m),
               batch->n_starts[m] * sizeof *batch->references);
    rp_batch_feed_let_go(trainer->feed, call->iteration); /* heads come last */
    return TRUE;
}

/* References of the batch read last, unless its dataset brings them. */
static gboolean
find_references(RpTrainer *trainer, GError **error)
{
    const RpPreference *preference = rp_trainer_preference(trainer);
    RpEvaluator *evaluator = trainer->evaluator;
    const RpBatchFeedCall *call;

    if (preference == NULL || preference->reference == RP_REFERENCE_NONE ||
        preference->reference == RP_REFERENCE_PRECOMPUTED)
        return TRUE;
    return run_batch(trainer, evaluator->batch, TRUE, TRUE, &call, error) &&
           take_scores(trainer, call, evaluator->batch, error);
}

/* The losses of the oldest batch under way, in the order of batches. */
static gboolean
take_loss(RpTrainer *trainer, const RpBatchFeedCall *call, GError **error)
{
    double loss;

    if (!rp_trainer_wait_for_loss(trainer, call, &loss, error))
        return FALSE;
    if (rp_trainer_preference(trainer) != NULL)
        g_array_append_vals(trainer->evaluator->losses, call->sums,
                            RP_N_PREFERENCE_SUMS * trainer->evaluator->batch->micro_batches);
    else
        g_array_append_vals(trainer->evaluator->losses, call->losses,
                            trainer->evaluator->batch->micro_batches);
    rp_batch_feed_let_go(trainer->feed, call->iteration); /* heads come last */
    return TRUE;
}

/* Receiver of the evaluation's progress. */
typedef struct {
    RpEvaluationProgress progress; /* or %NULL */
    gpointer user_data;
} Listener;

/* Samples whose losses are there. */
static gboolean
tell(const Listener *listener, guint64 n_samples, GError **error)
{
    if (listener->progress == NULL || listener->progress(listener->user_data, n_samples))
        return TRUE;
    return rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED,
                   "evaluation stopped after %" G_GUINT64_FORMAT " samples", n_samples);
}

/* @broken: (out): it is neither the data that failed, nor @listener that wants no more */
static gboolean
run_batches(RpTrainer *trainer, RpBatcher *batcher, const Listener *listener,
            RpEvaluation *evaluation, gboolean *broken, GError **error)
{
    RpEvaluator *evaluator = trainer->evaluator;
    const RpBatchFeedCall *calls[BATCHES_AHEAD];
    gsize n_samples[BATCHES_AHEAD];
    guint64 n_done = 0;
    guint n_taken = 0;

    *broken = FALSE;
    for (;;) {
        const guint place = evaluation->calls % BATCHES_AHEAD;

        if (!tell(listener, n_done, error) || !rp_batcher_next(batcher, evaluator->batch, error))
            return FALSE;
        if (evaluator->batch->n_placed == 0)
            break;
        *broken = TRUE;
        if (evaluation->calls >= BATCHES_AHEAD) {
            if (!take_loss(trainer, calls[place], error))
                return FALSE;
            n_taken++;
            n_done += n_samples[place];
        }
        if (!find_references(trainer, error) ||
            !run_batch(trainer, evaluator->batch, FALSE, FALSE, &calls[place], error))
            return FALSE;
        *broken = FALSE;
        n_samples[place] = evaluator->batch->n_placed;
        evaluation->calls++;
        evaluation->n_samples += evaluator->batch->n_placed;
        evaluation->n_tokens += evaluator->batch->n_tokens;
        evaluation->n_targets += evaluator->batch->n_targets;
        evaluation->n_pairs += evaluator->batch->n_pairs;
    }
    *broken = TRUE;
    for (; n_taken < evaluation->calls; n_taken++)
        if (!take_loss(trainer, calls[n_taken % BATCHES_AHEAD], error))
            return FALSE;
    return TRUE;
}

/* Outcome of a server's part. */
typedef enum {
    ENDED_DONE,
    ENDED_CANCELLED,
    ENDED_FAILED,
} Ended;

typedef struct {
    guint64 ended; /* Ended */
    guint64 n_tokens;
    guint64 n_targets;
    guint64 n_pairs;
} Part;

static Ended
ended_how(const GError *problem)
{
    return problem == NULL                                              ? ENDED_DONE
           : g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CANCELLED) ? ENDED_CANCELLED
                                                                        : ENDED_FAILED;
}

/* With several servers, adds up the numbers of all parts. @problem: (transfer full) (nullable) */
static gboolean
join_parts(RpTrainer *trainer, RpEvaluation *evaluation, GError *problem, GError **error)
{
    const guint n = trainer->servers;
    g_autoptr(GError) own = problem;
    g_autofree Part *all = g_new0(Part, n);
    Part sum = {0};

    all[rp_servers_rank(trainer->joined)] =
        (Part){ended_how(own), evaluation->n_tokens, evaluation->n_targets, evaluation->n_pairs};
    if (!rp_servers_gather_each(trainer->joined, RP_SERVERS_CONTROL, all, sizeof *all, error))
        return FALSE;
    for (guint r = 0; r < n; r++) {
        sum.ended = MAX(sum.ended, all[r].ended);
        sum.n_tokens += all[r].n_tokens;
        sum.n_targets += all[r].n_targets;
        sum.n_pairs += all[r].n_pairs;
    }
    if (sum.ended == ENDED_FAILED && ended_how(own) == ENDED_CANCELLED)
        g_clear_error(&own);
    if (sum.ended == ENDED_FAILED)
        return rp_servers_tell_problem(trainer->joined, RP_SERVERS_CONTROL, g_steal_pointer(&own),
                                       RP_DATASET_ERROR, RP_DATASET_ERROR_FILE, error);
    if (sum.ended == ENDED_CANCELLED)
        return rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "evaluation stopped");
    evaluation->n_tokens = sum.n_tokens;
    evaluation->n_targets = sum.n_targets;
    evaluation->n_pairs = sum.n_pairs;
    return TRUE;
}

/* Adds the losses of all servers batch by batch, and those of each server in the order of micro-batches, as one server
 * adds them up. @width: numbers of a micro-batch; @sums: (out) (array length=width) */
static gboolean
add_losses(RpTrainer *trainer, guint calls, gsize width, double *sums, GError **error)
{
    const RpEvaluator *evaluator = trainer->evaluator;
    const gsize each = evaluator->batch->micro_batches * width, n = trainer->servers;
    const gsize own = calls * each;
    g_autofree double *all = g_new(double, MAX(1, own * n));
    const guint rank = trainer->joined != NULL ? rp_servers_rank(trainer->joined) : 0;

    if (own > 0)
        memcpy(all + rank * own, evaluator->losses->data, own * sizeof *all);
    if (n > 1 &&
        !rp_servers_gather_each(trainer->joined, RP_SERVERS_CONTROL, all, own * sizeof *all, error))
        return FALSE;
    for (gsize w = 0; w < width; w++)
        sums[w] = 0;
    for (gsize at = 0; at < width * calls; at++) {
        const gsize c = at / width, w = at % width;
        double of_batch = 0;

        for (gsize r = 0; r < n; r++)
            for (gsize m = w; m < each; m += width)
                of_batch += all[r * own + c * each + m];
        sums[w] += of_batch;
    }
    return TRUE;
}

/* The loss and the metrics of what has run. */
static gboolean
measure(RpTrainer *trainer, RpEvaluation *evaluation, GError **error)
{
    const RpPreference *preference = rp_trainer_preference(trainer);
    RpPreferenceSums sums;
    double loss;

    if (preference != NULL) {
        if (!add_losses(trainer, evaluation->calls, RP_N_PREFERENCE_SUMS, (double *)&sums, error))
            return FALSE;
        evaluation->loss = rp_preference_measure(preference, &sums, evaluation->metrics);
        return TRUE;
    }
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++)
        evaluation->metrics[i] = NAN;
    if (!add_losses(trainer, evaluation->calls, 1, &loss, error))
        return FALSE;
    evaluation->loss = evaluation->n_targets > 0 ? loss / (double)evaluation->n_targets : NAN;
    return TRUE;
}

/* @problem: (transfer full) (nullable): of this server's part */
static gboolean
conclude(RpTrainer *trainer, RpEvaluation *evaluation, GError *problem, GError **error)
{
    const RpEvaluator *evaluator = trainer->evaluator;

    if (trainer->servers > 1) {
        if (!join_parts(trainer, evaluation, problem, error))
            return FALSE;
    } else if (problem != NULL) {
        return rp_propagate_error(error, problem);
    }
    if (!measure(trainer, evaluation, error))
        return FALSE;
    evaluation->ns = MAX(0, evaluator->end_ns - evaluator->start_ns);
    if (evaluation->ns > 0)
        evaluation->bubble_ratio =
            1 - (double)evaluator->busy_ns / ((double)evaluation->ns * trainer->gpus);
    return TRUE;
}

/* Turns devices to forwards alone, once all steps are over. */
static void
begin_forwards(RpTrainer *trainer)
{
    RpEvaluator *evaluator = trainer->evaluator;

    evaluator->busy_ns = evaluator->end_ns = 0;
    evaluator->start_ns = G_MAXINT64;
    g_array_set_size(evaluator->losses, 0);
    rp_host_state_begin_evaluation(trainer->host_state);
    rp_engine_turn_to(trainer->engine, rp_planner_plan(evaluator->planner), evaluator->trace,
                      note_batch, evaluator);
}

/* And back to training, once they are over. */
static void
end_forwards(RpTrainer *trainer)
{
    rp_engine_turn_to(trainer->engine, rp_planner_plan(trainer->planner), NULL,
                      rp_trainer_note_batch, trainer);
    rp_host_state_end_evaluation(trainer->host_state);
    for (guint64 i = 0; i < RP_BATCH_FEED_RING; i++)
        rp_batch_feed_let_go(trainer->feed, i);
}

gboolean
rp_trainer_score(RpTrainer *trainer, RpTokenBatch *const *batches, guint n, gboolean by_reference,
                 GError **error)
{
    const RpBatchFeedCall *calls[BATCHES_AHEAD];

    g_return_val_if_fail(trainer->evaluator != NULL && rp_trainer_preference(trainer) != NULL,
                         FALSE);
    if (!rp_trainer_settle(trainer, error))
        return FALSE;
    begin_forwards(trainer);
    for (guint i = 0; i < n + BATCHES_AHEAD; i++) {
        const RpBatchFeedCall **call = &calls[i % BATCHES_AHEAD];

        if (i >= BATCHES_AHEAD && i - BATCHES_AHEAD < n &&
            !take_scores(trainer, *call, batches[i - BATCHES_AHEAD], error))
            return FALSE;
        if (i < n && !run_batch(trainer, batches[i], TRUE, by_reference, call, error))
            return FALSE;
    }
    if (!rp_engine_finish(trainer->engine, error))
        return FALSE;
    end_forwards(trainer);
    trainer->scored_ns += trainer->evaluator->busy_ns;
    return TRUE;
}

gboolean
rp_trainer_evaluate(RpTrainer *trainer, const RpDataset *dataset, gint32 pad_id,
                    RpEvaluationProgress progress, gpointer user_data, RpEvaluation *evaluation,
                    GError **error)
{
    const Listener listener = {progress, user_data};
    RpEvaluator *evaluator = trainer->evaluator;
    RpBatcherOptions batches;
    GError *problem = NULL;
    gboolean done, broken;

    g_return_val_if_fail(evaluator != NULL, FALSE);
    batches = evaluator->batches;
    batches.pad_id = pad_id;
    g_autoptr(RpBatcher) batcher = rp_batcher_new(dataset, &batches, error);
    if (batcher == NULL)
        return FALSE;
    if (!rp_trainer_flush(trainer, error))
        return FALSE;
    begin_forwards(trainer);
    *evaluation = (RpEvaluation){0};
    done = run_batches(trainer, batcher, &listener, evaluation, &broken, &problem);
    if ((!done && broken) || !rp_engine_finish(trainer->engine, problem == NULL ? &problem : NULL))
        return rp_propagate_error(error, problem);
    end_forwards(trainer);
    return conclude(trainer, evaluation, problem, error);
}
