/*
 * The loop.
 *
 *   batch -> forward_backward -> ... -> step -> [evaluation] -> [checkpoint] -> batch -> ...
 *                                          |                          \-> beside training: copy -> files
 *                                          \-> reports, as steps get over -> metrics
 */
#include "run/train/private.h"

#include <math.h>

#include "core/base/units.h"
#include "exec/adapter/adapter.h"
#include "run/train/job.h"

void
rp_train_outcome_clear(RpTrainOutcome *outcome)
{
    g_clear_pointer(&outcome->arena_bytes, g_array_unref);
    g_clear_pointer(&outcome->trace, rp_trace_free);
    g_clear_pointer(&outcome->evaluation_trace, rp_trace_free);
    g_clear_pointer(&outcome->checkpoint, g_free);
    g_clear_pointer(&outcome->loss_picture, g_free);
}

/* As transformers has it: a share of the steps is rounded up. */
static guint64
warmup_steps(const RpRunSpec *run)
{
    return run->optimizer.warmup_ratio > 0
               ? (guint64)ceil(run->optimizer.warmup_ratio * (double)run->steps)
               : (guint64)run->optimizer.warmup_steps;
}

static RpUpdateOptions
update_options(const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const RpRunOptimizer *optimizer = &run->optimizer;
    RpUpdateOptions update = {
        .adamw = {.beta1 = optimizer->beta1,
                  .beta2 = optimizer->beta2,
                  .epsilon = optimizer->epsilon,
                  .weight_decay = optimizer->weight_decay,
                  .form = rp_run_optimizer_form(optimizer),
                  .seed = (guint64)run->seed},
        .learning_rate = {.kind = (RpLearningRateKind)(optimizer->schedule % 16),
                          .peak = optimizer->learning_rate,
                          .warmup_steps = warmup_steps(run),
                          .total_steps = (guint64)run->steps,
                          .min_ratio = optimizer->min_lr_ratio,
                          .decay_steps =
                              (guint64)(optimizer->decay_steps > 0 ? optimizer->decay_steps
                                                                   : MAX(1, run->steps / 10)),
                          .decay = optimizer->schedule >= 16
                                       ? (RpLearningRateKind)(optimizer->schedule / 16)
                                       : RP_LEARNING_RATE_COSINE},
        .max_grad_norm = optimizer->max_grad_norm,
        .scale_loss = job->network.dtype == RP_DTYPE_FP16,
        .loss_scale = RP_LOSS_SCALE_OPTIONS_INIT,
        .threads = job->optimizer_threads,
        .avoid_cpus = job->device_processors,
        .nodes = job->nodes,
        .servers = job->servers,
    };

    update.loss_scale.max_skipped = (guint)run->loss_scale.max_skipped;
    return update;
}

/* Where dynamic loss scaling begins; a checkpoint has its own place. */
static void
set_loss_scale(RpTrainer *trainer, const RpRunSpec *run)
{
    RpUpdateState state = rp_host_state_updates(rp_trainer_host_state(trainer));

    state.loss_scale.scale = (float)run->loss_scale.initial;
    state.next_scale = state.loss_scale.scale;
    rp_host_state_restore(rp_trainer_host_state(trainer), &state, 0);
}

RpTrainer *
rp_train_make_trainer(const RpTrainJob *job, gboolean keep_trace, RpTrainMetrics *metrics,
                      GError **error)
{
    const RpRunSpec *run = job->run;
    const RpTrainerOptions options = {
        .devices = run->device_ops,
        .weights = job->weights,
        .profile = job->profile,
        .slow = job->run->slow,
        .partition = job->request.partition,
        .plan = job->request.options,
        .checked = job->plan,
        .network = job->network,
        .update = update_options(job),
        .device_memory_bytes = job->device_memory_bytes,
        .evaluates = job->evaluation.dataset != NULL,
        .keep_trace = keep_trace,
        .done = metrics != NULL ? rp_train_metrics_add : NULL,
        .user_data = metrics,
    };

    return rp_trainer_new(&options, error);
}

/* ---- the loop ---- */

static void
loop_clear(RpTrainLoop *loop)
{
    g_clear_pointer(&loop->beside, rp_checkpoint_beside_free); /* reads of the trainer's network */
    loop->outcome->left = !rp_trainer_free(g_steal_pointer(&loop->trainer));
    for (guint i = 0; loop->batches != NULL && loop->batches[i] != NULL; i++)
        rp_token_batch_free(loop->batches[i]);
    g_clear_pointer(&loop->batches, g_free);
    g_clear_pointer(&loop->after, g_free);
    g_clear_pointer(&loop->batcher, rp_batcher_free);
    g_clear_pointer(&loop->metrics, rp_train_metrics_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainLoop, loop_clear)

/* The batches of all calls of a step, of which one may have no targets; on error the batcher stays before the first. */
static gboolean
read_step(RpTrainLoop *loop, RpTokenBatch **batches, guint calls, GError **error)
{
    const RpDataState before = rp_batcher_state(loop->batcher);
    gboolean good = TRUE;

    for (guint c = 0; c < calls && good; c++)
        good = rp_train_next_batch(loop->job->servers, loop->batcher, batches[c], error);
    if (good && rp_batcher_check_targets(loop->batcher, batches, calls, error))
        return TRUE;
    const gboolean back = rp_batcher_restore(loop->batcher, &before, NULL);

    g_assert(back); /* it was there */
    return FALSE;
}

/* The batches of the next step. What is wrong with data that were read ahead is told when their step comes. */
static gboolean
next_batches(RpTrainLoop *loop, guint64 steps_left, RpTokenBatch ***batches, GError **error)
{
    const guint calls = (guint)loop->job->run->gradient_accumulation_steps;
    const guint most = (guint)MIN(loop->most_read, steps_left);

    if (loop->next == loop->n_read) {
        loop->scored = FALSE;
        loop->next = loop->n_read = 0;
        while (loop->n_read < most && read_step(loop, loop->batches + loop->n_read * calls, calls,
                                                loop->n_read == 0 ? error : NULL))
            loop->after[loop->n_read++] = rp_batcher_state(loop->batcher);
        if (loop->n_read == 0)
            return FALSE;
    }
    *batches = loop->batches + loop->next * calls;
    loop->data = loop->after[loop->next++];
    return TRUE;
}

/* One iteration's calls and its step. */
static gboolean
run_step(RpTrainLoop *loop, RpTokenBatch **batches, GError **error)
{
    const guint calls = (guint)loop->job->run->gradient_accumulation_steps;

    if (!rp_train_loop_score(loop, error))
        return FALSE;
    for (guint c = 0; c < calls; c++)
        if (!rp_trainer_forward_backward(loop->trainer, batches[c], NULL, error))
            return FALSE;
    return rp_trainer_step(loop->trainer, error);
}

/* The signal after which no step follows; 0: none */
static int
stop_signal(const RpTrainLoop *loop)
{
    return loop->job->servers != NULL ? loop->wish.signal : rp_run_stop(loop->job->events);
}

/* Whether a checkpoint is due and whether a step follows, as all servers see it: decided when that step
 * could begin, so that a signal has none begin after it. */
static gboolean
agree(RpTrainLoop *loop, guint64 step, gboolean *due, GError **error)
{
    if (!rp_trainer_wait_to_begin(loop->trainer, error))
        return FALSE;
    loop->wish = (RpTrainWish){rp_run_stop(loop->job->events), rp_train_loop_is_due(loop, step)};
    if (loop->job->servers != NULL && !rp_train_agree_step(loop->job, &loop->wish, error))
        return FALSE;
    *due = loop->wish.save || rp_train_loop_is_best(loop, step);
    return TRUE;
}

/* Whether @step is run; servers have agreed on it. */
static gboolean
begin(const RpTrainLoop *loop, guint64 step)
{
    const RpRunEvents *events = loop->job->events;
    const guint64 saved = loop->saved_step != G_MAXUINT64 ? loop->saved_step : 0;

    return events->begin == NULL || events->begin(events->user_data, step, saved) ||
           loop->job->servers != NULL;
}

static gboolean
run_steps(RpTrainLoop *loop, GError **error)
{
    const RpRunSpec *run = loop->job->run;
    RpTrainOutcome *outcome = loop->outcome;
    guint64 step = outcome->first_step;

    loop->saved_us = loop->seen_us = g_get_monotonic_time();
    if (!rp_train_loop_evaluate_first(loop, error))
        return FALSE;
    while (step < (guint64)run->steps && stop_signal(loop) == 0 &&
           !rp_train_loop_is_useless(loop)) {
        RpTokenBatch **batches = NULL;
        gboolean due;
        GError *problem = NULL;

        if (!begin(loop, step + 1))
            break;
        if (!next_batches(loop, (guint64)run->steps - step, &batches, &problem))
            return rp_train_loop_save_before(loop, problem, error);
        if (!run_step(loop, batches, error))
            return FALSE;
        outcome->last_step = ++step;

        rp_train_loop_settle(loop, FALSE);
        rp_train_loop_watch_output(loop, step);
        if (!rp_train_loop_evaluate(loop, step, error))
            return FALSE;
        if (!agree(loop, step, &due, error))
            return FALSE;
        if (due && step < (guint64)run->steps && stop_signal(loop) == 0 &&
            !rp_train_loop_is_useless(loop) && !rp_train_loop_save(loop, step, error))
            return FALSE;
    }
    outcome->signal = stop_signal(loop);
    loop->ending = TRUE;
    if (!rp_trainer_flush(loop->trainer, error))
        return FALSE;
    if (run->checkpoint.final != 0 || outcome->signal != 0 || rp_train_loop_is_best(loop, step))
        return rp_train_loop_save(loop, step, error);
    rp_train_loop_wait(loop);
    return TRUE;
}

/* Restores what a checkpoint keeps; its step is where training goes on. */
static gboolean
restore(RpTrainLoop *loop, const char *path, GError **error)
{
    const RpRunEvents *events = loop->job->events;
    const gint64 steps = loop->job->run->steps;
    g_autofree char *note = NULL;
    RpDataState state;

    if (!rp_checkpoint_restore(path, loop->trainer, loop->job->servers, &state, &note, error) ||
        !rp_train_loop_check_reference(loop, path, error) ||
        !rp_batcher_restore(loop->batcher, &state, error))
        return FALSE;
    if (note != NULL)
        RP_RUN_TELL(events, resumed, note);
    if (state.sampled)
        RP_RUN_TELL(events, resumed,
                    "the checkpoint knows 256 places of the data; "
                    "they are as they were, the rest cannot be compared");
    loop->outcome->first_step = loop->outcome->last_step = rp_trainer_n_steps(loop->trainer);
    if (loop->outcome->first_step > (guint64)steps)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "%s is of step %" G_GUINT64_FORMAT
                       ": expected steps to be as many at least, found %" G_GINT64_FORMAT,
                       path, loop->outcome->first_step, steps);
    loop->outcome->checkpoint = g_strdup(path);
    loop->saved_step = loop->evaluated_step = loop->outcome->first_step;
    return rp_checkpoint_read_best(path, &loop->best, error);
}

static void
make_batches(RpTrainLoop *loop)
{
    const guint calls = (guint)loop->job->run->gradient_accumulation_steps;

    loop->most_read = rp_train_steps_together(loop->job);
    loop->after = g_new0(RpDataState, loop->most_read);
    loop->batches = g_new0(RpTokenBatch *, loop->most_read * calls + 1);
    for (guint i = 0; i < loop->most_read * calls; i++)
        loop->batches[i] = rp_token_batch_new(&loop->job->batcher);
}

/* Data, batches, trainer and output: all that is ready before the first step. */
static gboolean
start(RpTrainLoop *loop, GError **error)
{
    const RpRunSpec *run = loop->job->run;
    g_autofree char *metrics = g_build_filename(run->output, "metrics.jsonl", NULL);
    const char *path = loop->how->checkpoint;
    const gboolean several = loop->job->servers != NULL;

    loop->batcher = rp_batcher_new(loop->job->dataset, &loop->job->batcher, error);
    if (loop->batcher == NULL)
        return FALSE;
    make_batches(loop);
    loop->metrics = rp_train_metrics_new(loop->job->network.dtype == RP_DTYPE_FP16,
                                         loop->job->network.aux_loss > 0, run->tensorboard != 0,
                                         loop->most_read, loop->job->events);
    if ((loop->files || several) && !rp_train_loop_check_beside(loop, error))
        return FALSE;
    loop->trainer = rp_train_make_trainer(loop->job, loop->how->keep_trace, loop->metrics, error);
    if (loop->trainer == NULL)
        return FALSE;
    if (path == NULL && loop->job->network.dtype == RP_DTYPE_FP16)
        set_loss_scale(loop->trainer, run);
    if (!rp_train_loop_find_references(loop, error))
        return FALSE;
    loop->outcome->resuming = path != NULL;
    if (path != NULL && !restore(loop, path, error))
        return FALSE;
    loop->outcome->resuming = FALSE;
    loop->data = rp_batcher_state(loop->batcher);
    if ((loop->files || several) && !rp_train_loop_take_beside(loop, error))
        return FALSE;
    return !loop->files ||
           (rp_train_begin_output(loop->job, loop->how, loop->outcome->first_step, error) &&
            (path == NULL || rp_checkpoint_link_best(run->output, loop->best.step, error)) &&
            rp_train_metrics_open(loop->metrics, metrics, loop->outcome->first_step, error));
}

static void
tell_outcome(RpTrainLoop *loop)
{
    RpTrainOutcome *outcome = loop->outcome;
    const RpStepReport *last = rp_train_metrics_last(loop->metrics);

    if (last != NULL)
        outcome->last = *last;
    outcome->means = rp_train_metrics_means(loop->metrics);
    outcome->best = loop->best;
    outcome->action_time = rp_trainer_action_time(loop->trainer);
    outcome->arena_bytes = g_array_new(FALSE, FALSE, sizeof(guint64));
    for (guint a = 0; a <= loop->job->run->n_devices; a++) {
        guint64 bytes = rp_trainer_arena_bytes(loop->trainer, a);

        g_array_append_val(outcome->arena_bytes, bytes);
    }
}

/* Adds to the error of a run that broke off where it can go on. */
static void
add_checkpoint(GError **error, const char *checkpoint, gboolean writing)
{
    const char *more = writing ? "; a newer one is still being written" : "";
    char *message;

    if (error == NULL || *error == NULL)
        return;
    message = checkpoint != NULL ? g_strdup_printf("%s; the last good checkpoint is %s%s",
                                                   (*error)->message, checkpoint, more)
                                 : g_strdup_printf("%s; no checkpoint was saved before%s",
                                                   (*error)->message, more);
    g_free((*error)->message);
    (*error)->message = message;
}

/* Said before the trainer is freed, which takes its time where a GPU has failed; there it is said
 * at once, else when the checkpoint under way is written, so that it is named. */
static void
tell_failure(RpTrainLoop *loop, GError **error)
{
    g_autoptr(GError) problem = g_error_copy(*error);

    rp_train_loop_settle(loop, loop->job->run->device_ops->host_memory);
    gboolean writing = loop->beside != NULL && rp_checkpoint_beside_is_writing(loop->beside);
    if (loop->files)
        add_checkpoint(error, loop->outcome->checkpoint, writing);
    RP_RUN_TELL(loop->job->events, failed, error);
    if (loop->job->servers != NULL)
        (void)rp_train_fail_servers(loop->job->servers, problem);
    if (writing) { /* it is good, and reads nothing that has failed */
        const guint n_saved = loop->outcome->n_saved;

        rp_train_loop_settle(loop, TRUE);
        if (loop->outcome->n_saved > n_saved)
            rp_run_say(loop->job->events, "note", "saved: %s", loop->outcome->checkpoint);
    }
}

/* Where the machine has several memory nodes. */
static void
tell_nodes(const RpTrainJob *job, const RpHostStateNuma *near)
{
    if (near->problem != NULL)
        rp_run_say(job->events, "warning",
                   "weights and optimizer state may lie far from the threads that step them: of "
                   "%u memory nodes none can be chosen: %s (a container needs --cap-add SYS_NICE)",
                   near->nodes, near->problem);
    else if (near->nodes > 1)
        rp_run_say(job->events, "note",
                   "%.1f GiB of weights, gradients and optimizer state lie on %u memory nodes, "
                   "near the threads that step them",
                   (double)near->bytes / (double)RP_GIB, near->nodes);
}

gboolean
rp_train_run(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome, GError **error)
{
    g_auto(RpTrainLoop) loop = {
        .job = job, .how = how, .outcome = outcome, .files = rp_train_is_first(job->servers)};
    const RpRunEvents *events = job->events;

    if (!start(&loop, error))
        return FALSE;
    if (!rp_train_tell_servers(job, error))
        return FALSE;
    outcome->pinned = rp_trainer_pinned(loop.trainer);
    RP_RUN_TELL(events, started, &outcome->pinned);
    tell_nodes(job, rp_host_state_numa(rp_trainer_host_state(loop.trainer)));
    gboolean trained = run_steps(&loop, error);
    if (events->stopped != NULL)
        events->stopped(events->user_data);
    if (!trained)
        tell_failure(&loop, error);
    outcome->proof = rp_trainer_proof_cost(loop.trainer);
    const GError *unwritten = rp_train_metrics_error(loop.metrics);
    if (unwritten != NULL)
        rp_run_say(events, "warning", "%s", unwritten->message);
    if (how->keep_trace)
        outcome->trace = rp_trainer_steal_trace(loop.trainer);
    if (how->keep_trace)
        outcome->evaluation_trace = rp_trainer_steal_evaluation_trace(loop.trainer);
    if (trained)
        tell_outcome(&loop);
    RP_RUN_TELL(events, ended, !trained && !job->run->device_ops->host_memory);
    return trained;
}

/* ---- one step that changes nothing, for its gradients ---- */

#define PIECE                                                                                      \
    4096 /* values that stand in another order than in memory are put in a file by so many */

/* In the order of a checkpoint's tensor. */
static gboolean
write_tensor(RpSafetensorsWriter *writer, guint number, const RpWeight *weight, const float *values,
             GError **error)
{
    float buffer[PIECE];

    for (guint64 at = 0; at < weight->elements; at += PIECE) {
        const gsize n = (gsize)MIN(PIECE, weight->elements - at);

        if (!rp_safetensors_writer_write(
                writer, number, rp_adapter_to_file(weight, RP_DTYPE_FP32, values, at, n, buffer),
                n * sizeof *values, error))
            return FALSE;
    }
    return TRUE;
}

/* Into @writer's tensors, whose numbers are those of @numbers. Of several servers all call it, and one has a
 * @writer. */
static gboolean
write_tensors(const RpTrainer *trainer, const RpWeights *weights, RpSafetensorsWriter *writer,
              const GArray *numbers, guint64 most, GError **error)
{
    g_autofree float *values = g_new(float, most);

    for (guint i = 0; i < numbers->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!rp_weight_has_state(weight))
            continue;
        if (!rp_trainer_gradient(trainer, i, values, error) ||
            (writer != NULL &&
             !write_tensor(writer, g_array_index(numbers, guint, i), weight, values, error)))
            return FALSE;
    }
    return TRUE;
}

/* Names and shapes are those of a checkpoint. */
static gboolean
write_gradients(const RpTrainJob *job, const RpTrainer *trainer, const char *path, GError **error)
{
    const RpWeights *weights = job->weights;
    const gboolean adapters = rp_weights_lora(weights) != NULL;
    g_autoptr(RpSafetensorsWriter) writer =
        rp_train_is_first(job->servers) ? rp_safetensors_writer_new(path, 0) : NULL;
    g_autoptr(GArray) numbers = g_array_new(FALSE, TRUE, sizeof(guint));
    guint64 most = 0;

    g_array_set_size(numbers, rp_weights_count(weights));
    for (guint i = 0; i < numbers->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        guint64 shape[RP_WEIGHT_MAX_RANK];

        if (!rp_weight_has_state(weight))
            continue;
        g_autofree char *name =
            adapters ? rp_adapter_tensor_name(weights, i) : g_strdup(weight->name);
        const guint rank = rp_adapter_tensor_shape(weight, shape);

        most = MAX(most, weight->elements);
        if (writer != NULL)
            g_array_index(numbers, guint, i) =
                rp_safetensors_writer_add(writer, name, RP_DTYPE_FP32, shape, rank);
    }
    return (writer == NULL || rp_safetensors_writer_begin(writer, error)) &&
           write_tensors(trainer, weights, writer, numbers, most, error) &&
           (writer == NULL || rp_safetensors_writer_finish(writer, error));
}

/* The first step; in fp16 again, with the lower scale that follows, until its gradients are finite.
 * A skipped step changes no weight. Too low a scale is an error of the step: it ends. */
static gboolean
run_first(RpTrainLoop *loop, GError **error)
{
    const RpRunEvents *events = loop->job->events;
    const RpStepReport *last = NULL;
    RpTokenBatch **batches = NULL;
    float first = 0;

    if (!next_batches(loop, 1, &batches, error))
        return FALSE;
    do {
        if (!run_step(loop, batches, error) || !rp_trainer_flush(loop->trainer, error))
            return FALSE;
        last = rp_train_metrics_last(loop->metrics);
        if (first == 0)
            first = last->loss_scale;
    } while (last->skipped);
    if (last->loss_scale != first)
        RP_RUN_TELL(events, rescaled, (double)first, (double)last->loss_scale);
    return TRUE;
}

gboolean
rp_train_save_gradients(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome,
                        GError **error)
{
    g_auto(RpTrainLoop) loop = {.job = job, .how = how, .outcome = outcome};

    return start(&loop, error) && run_first(&loop, error) &&
           write_gradients(job, loop.trainer, how->save_gradients, error);
}

/* One evaluation of one file: a run that never trains.
 *
 * It would train the least that is possible: the adapters that are given, or one of rank 1 that adds
 * zeros. So a model has no gradients and no optimizer state, and stands as it stands in its file.
 */

/* Every architecture has it. */
#define SMALL_TARGET "model.layers.0.self_attn.q_proj"

void
rp_train_evaluated_clear(RpTrainEvaluated *evaluated)
{
    rp_train_job_clear(&evaluated->job);
    g_clear_pointer(&evaluated->run, rp_run_spec_free);
}

static void
add(GPtrArray *sets, const char *key, const char *value)
{
    g_ptr_array_add(sets, g_strdup_printf("%s=%s", key, value));
}

static RpRunSpec *
make_run(const char *model, const char *adapter, const RpRunSpec *options, GError **error)
{
    static const char text[] = "steps: 1\nasync: false\noutput: .\n";
    g_autoptr(GPtrArray) sets = g_ptr_array_new_with_free_func(g_free);

    add(sets, "model", model);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const char *given = rp_run_spec_given(options, setting->key);

        if (given != NULL)
            add(sets, setting->key, given);
        if (given != NULL && strcmp(setting->key, "data") == 0)
            add(sets, "eval.data", given);
    }
    add(sets, adapter != NULL ? "lora.start" : "lora.rank", adapter != NULL ? adapter : "1");
    if (adapter == NULL)
        add(sets, "lora.targets", SMALL_TARGET);
    else if (rp_objective_info((RpObjective)options->objective)->has_reference)
        add(sets, "reference", rp_reference_name(RP_REFERENCE_ADAPTERS));
    g_ptr_array_add(sets, NULL);
    return rp_run_file_parse("evaluation", text, sizeof text - 1,
                             (const char *const *)(void *)sets->pdata, error);
}

gboolean
rp_train_evaluate_file(const char *model, const char *adapter, const RpRunSpec *options,
                       const RpRunEvents *events, RpTrainEvaluated *evaluated, GError **error)
{
    RpTrainJob *job = &evaluated->job;

    *evaluated = (RpTrainEvaluated){.run = make_run(model, adapter, options, error)};
    if (evaluated->run == NULL ||
        !rp_train_job_prepare(job, evaluated->run, NULL, FALSE, events, error))
        return FALSE;
    RpTrainer *trainer = rp_train_make_trainer(job, FALSE, NULL, error);
    if (trainer == NULL)
        return FALSE;
    gboolean done =
        rp_trainer_evaluate(trainer, job->evaluation.dataset, job->batcher.pad_id,
                            rp_train_evaluation_progress, job, &evaluated->result, error);
    evaluated->left = !rp_trainer_free(trainer);
    return done;
}
