/* roundpipe train: the plan before the first step, and what it was worth after the last. */
#include "cli/train/train.h"

#include <math.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/file.h"
#include "core/base/new-file.h"
#include "core/base/units.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/cuda/runtime/device.h"

/* Actions on threads that waited longer for a processor, as a share of their time, are not compared
 * with the prediction: other programs, or more devices than processors, made them what they are. */
#define MAX_WAITED 0.05

#define LABEL_WIDTH 16

static double
tokens_per_s(double tokens, double step_ns)
{
    return step_ns > 0 ? tokens * (double)RP_NS_PER_S / step_ns : 0;
}

static guint64
opened_bytes(const RpTrainOutcome *outcome, guint arena)
{
    return outcome->arena_bytes != NULL && arena < outcome->arena_bytes->len
               ? g_array_index(outcome->arena_bytes, guint64, arena)
               : 0;
}

/* ---- evaluations and checkpoints ---- */

static void
report_validation(RpReport *report, const RpTrainJob *job)
{
    const RpTrainValidation *evaluation = &job->evaluation;
    const gint64 every = rp_train_evaluation_every(job->run);

    if (evaluation->dataset == NULL)
        return;
    rp_report_object(report, "validation", NULL);
    rp_report_text(report, "data", job->run->eval.data, "validation");
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " samples, %" G_GUINT64_FORMAT
                   " tokens, every %" G_GINT64_FORMAT
                   " steps: %.1f ms each predicted, bubble ratio "
                   "%.2f %%",
                   evaluation->summary.n_samples, evaluation->summary.n_tokens, every,
                   (double)evaluation->ns / 1e6, 100 * evaluation->bubble_ratio);
    rp_report_count(report, "samples", (gint64)evaluation->summary.n_samples, NULL);
    rp_report_count(report, "tokens", (gint64)evaluation->summary.n_tokens, NULL);
    rp_report_count(report, "every", every, NULL);
    rp_report_count(report, "calls", (gint64)evaluation->calls, NULL);
    rp_report_real(report, "predicted_ms", (double)evaluation->ns / 1e6, 6, NULL);
    rp_report_ratio(report, "predicted_bubble_ratio", evaluation->bubble_ratio, NULL);
    rp_report_end(report);
}

/* Metrics of a preference, as far as there are some, by TRL's names. */
static void
report_preference(RpReport *report, const double *metrics)
{
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++)
        if (isfinite(metrics[i]))
            rp_report_real(report, rp_preference_metric_name(i), metrics[i], 9, NULL);
}

/* (transfer full) */
static char *
beside_loss(const RpEvaluation *evaluation)
{
    const double accuracy = evaluation->metrics[RP_PREFERENCE_REWARDS_ACCURACIES];

    if (isfinite(accuracy))
        return g_strdup_printf(", accuracy %.2f %%", 100 * accuracy);
    return evaluation->n_pairs > 0 ? g_strdup("")
                                   : g_strdup_printf(", perplexity %.5g", exp(evaluation->loss));
}

static void
report_evaluations(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const RpEvaluation *last = &outcome->evaluation;

    if (job->evaluation.dataset == NULL)
        return;
    rp_report_object(report, "evaluations", NULL);
    rp_report_count(report, "count", outcome->n_evaluations, NULL);
    if (outcome->n_evaluations > 0) {
        rp_report_real(report, "loss", last->loss, 9, NULL);
        if (last->n_pairs == 0)
            rp_report_real(report, "perplexity", exp(last->loss), 9, NULL);
        report_preference(report, last->metrics);
        rp_report_real(report, "ms", (double)last->ns / 1e6, 6, NULL);
        rp_report_ratio(report, "bubble_ratio", last->bubble_ratio, NULL);
        g_autofree char *beside = beside_loss(last);

        rp_report_say(report,
                      "validation loss %.6f%s; measured %.1f ms, bubble ratio %.2f "
                      "%% (predicted %.1f ms, %.2f %%)",
                      last->loss, beside, (double)last->ns / 1e6, 100 * last->bubble_ratio,
                      (double)job->evaluation.ns / 1e6, 100 * job->evaluation.bubble_ratio);
    }
    if (outcome->best.step > 0) {
        g_autofree char *right =
            outcome->best.accuracy > 0
                ? g_strdup_printf(", accuracy %.2f %%", 100 * outcome->best.accuracy)
                : g_strdup("");

        rp_report_count(report, "best_step", (gint64)outcome->best.step, NULL);
        rp_report_real(report, "best_loss", outcome->best.loss, 9, NULL);
        if (outcome->best.accuracy > 0)
            rp_report_ratio(report, "best_accuracy", outcome->best.accuracy, NULL);
        rp_report_say(report, "%s validation loss: %.6f%s, of step %" G_GUINT64_FORMAT "%s%s%s",
                      outcome->best.accuracy > 0 ? "best" : "lowest", outcome->best.loss, right,
                      outcome->best.step, outcome->best.kept ? ": " : "",
                      outcome->best.kept ? job->run->output : "",
                      outcome->best.kept ? "/best" : "");
    }
    rp_report_bool(report, "stopped_early", outcome->stopped_early, NULL);
    rp_report_end(report);
}

/* Checkpoints that may be on the disk at once: those that are kept, the best, and the one being
 * written, or fewer if fewer are saved; G_MAXUINT64: nobody knows how many all are. */
static guint64
most_at_once(const RpRunSpec *run)
{
    const RpRunCheckpoint *checkpoint = &run->checkpoint;
    const guint64 steps = (guint64)run->steps;
    const guint64 best = run->eval.keep_best != 0;
    const guint64 bests = best ? (guint64)rp_train_n_evaluations(run) : 0;
    const guint64 planned = (checkpoint->every > 0 ? steps / (guint64)checkpoint->every : 0) +
                            (checkpoint->final != 0) + bests;
    const guint64 saved = checkpoint->minutes > 0 ? G_MAXUINT64 : MIN(planned, steps);

    return checkpoint->keep > 0 ? MIN(saved, (guint64)checkpoint->keep + 1 + best) : saved;
}

static void
report_disk(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const guint64 bytes =
        rp_checkpoint_bytes(job->weights, job->network.dtype, job->request.options.form,
                            job->request.options.async, FALSE, job->model_dir);
    const guint64 most = most_at_once(run);
    const gboolean counted = most < G_MAXUINT64;
    const guint64 most_bytes = counted ? most * bytes : 0;
    guint64 left = 0, copy_bytes;
    const gboolean beside = rp_train_saves_beside(job, &copy_bytes);
    g_autofree char *disk = rp_file_existing_directory(run->output);
    const gboolean known = rp_new_file_free_bytes(disk, &left);
    g_autofree char *each = rp_cli_format_bytes(bytes);
    g_autofree char *all = rp_cli_format_bytes(most_bytes);
    g_autofree char *there = rp_cli_format_bytes(left);
    g_autofree char *copy = rp_cli_format_bytes(copy_bytes);
    g_autofree char *needed =
        counted
            ? g_strdup_printf(", %" G_GUINT64_FORMAT " at once at most: %s of the disk", most, all)
            : g_strdup(", all are kept");

    rp_report_object(report, "checkpoint_disk", NULL);
    rp_report_bytes(report, "checkpoint_bytes", bytes, NULL);
    rp_report_bytes(report, "needed_bytes", most_bytes, NULL);
    rp_report_bytes(report, "free_bytes", left, NULL);
    rp_report_bool(report, "beside", beside, NULL);
    rp_report_bytes(report, "copy_bytes", copy_bytes, NULL);
    rp_report_end(report);
    if (most == 0) {
        rp_report_line(report, "checkpoints", "none is planned; %s each", each);
        return;
    }
    rp_report_line(report, "checkpoints", "%s each%s%s%s%s", each, needed,
                   known ? ", which has " : "", known ? there : "", known ? " free" : "");
    rp_report_line(report, "saving",
                   beside
                       ? "while training goes on, from a copy of %s of host memory"
                       : "nothing is trained meanwhile: there is no copy of %s (checkpoint.beside)",
                   copy);
    if (known && most_bytes > left)
        rp_report_line(report, "note",
                       "the disk has less: fewer checkpoints will stay (checkpoint.keep)");
}

static void
report_saved(RpReport *report, const RpTrainOutcome *outcome)
{
    g_autofree char *beside =
        outcome->n_beside > 0 ? g_strdup_printf("; writing %u of them beside training took %.1f s",
                                                outcome->n_beside, outcome->beside_seconds)
                              : g_strdup("");

    rp_report_object(report, "checkpoints", NULL);
    rp_report_count(report, "saved", outcome->n_saved, NULL);
    rp_report_real(report, "seconds", outcome->saving_seconds, 6, NULL);
    rp_report_count(report, "beside", outcome->n_beside, NULL);
    rp_report_real(report, "beside_seconds", outcome->beside_seconds, 6, NULL);
    rp_report_end(report);
    if (outcome->saving_seconds >= 1 || outcome->beside_seconds >= 1)
        rp_report_say(report, "%u checkpoint%s: nothing was trained for %.1f s%s", outcome->n_saved,
                      outcome->n_saved == 1 ? "" : "s", outcome->saving_seconds, beside);
    rp_report_text(report, "checkpoint", outcome->checkpoint, NULL);
    rp_report_text(report, "loss_picture", outcome->loss_picture, NULL);
    rp_report_bool(report, "saved", !outcome->unsaved, NULL);
    rp_report_count(report, "signal", outcome->signal, NULL);
    if (outcome->loss_picture != NULL)
        rp_report_say(report, "loss curve: %s", outcome->loss_picture);
    if (outcome->checkpoint != NULL)
        rp_report_say(report, "saved: %s", outcome->checkpoint);
}

/* ---- the plan ---- */

static guint64
count_trained(const RpWeights *weights)
{
    guint64 sum = 0;

    for (guint i = 0; i < rp_weights_count(weights); i++)
        if (rp_weight_has_state(rp_weights_nth(weights, i)))
            sum += rp_weights_nth(weights, i)->elements;
    return sum;
}

/* How samples fill them. */
static void
report_sequences(RpReport *report, const RpTrainJob *job)
{
    const double useful = 100 * job->useful, unpacked = 100 * job->useful_unpacked;
    const gboolean packed = job->batcher.packing;

    rp_report_bool(report, "packing", packed, NULL);
    rp_report_real(report, "useful_ratio", job->useful, 6, NULL);
    rp_report_real(report, "useful_ratio_unpacked", job->useful_unpacked, 6, NULL);
    if (packed)
        rp_report_line(report, "sequences",
                       "packed: %.1f %% of their tokens are useful, %.1f %% without packing",
                       useful, unpacked);
    else if (job->useful < 0.9995)
        rp_report_line(report, "sequences", "%.1f %% of their tokens are useful, the rest pads",
                       useful);
}

static void
report_objective(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const RpPreference *preference = &run->preference;
    const RpObjectiveInfo *info = rp_objective_info((RpObjective)run->objective);
    const char *reference = rp_reference_name(preference->reference);

    if (run->objective == RP_OBJECTIVE_SFT)
        return;
    rp_report_text(report, "objective", info->name, "objective");
    if (info->has_reference)
        rp_report_show(report, "%s, beta %g, reference: %s (%s)", info->name, preference->beta,
                       reference, job->reference_why);
    else
        rp_report_show(report, "%s, beta %g", info->name, preference->beta);
    rp_report_real(report, "beta", preference->beta, 9, NULL);
    rp_report_text(report, "reference", reference, NULL);
}

static void
report_heading(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const RpPlanOptions *options = &job->request.options;
    const RpDatasetSummary *data = &job->summary;
    const guint rounds = options->micro_batches / options->round;
    const char *dtype = rp_dtype_name(job->network.dtype);
    const guint64 parameters = rp_weights_elements(job->weights);
    const guint64 trained = count_trained(job->weights);
    const RpLora *lora = rp_weights_lora(job->weights);
    g_autofree char *cut =
        data->n_truncated_samples == 0 ? g_strdup("")
        : job->batcher.drop_long
            ? g_strdup_printf("; %" G_GUINT64_FORMAT " samples are longer than a sequence and "
                              "left out",
                              data->n_truncated_samples)
            : g_strdup_printf("; %" G_GUINT64_FORMAT " samples are cut, %" G_GUINT64_FORMAT
                              " tokens of them",
                              data->n_truncated_samples, data->n_truncated_tokens);

    rp_report_say(report, "%s%s, %s on %s", options->schedule->title,
                  options->async ? " (asynchronous)" : "", run->model, run->devices);
    rp_report_text(report, "model", run->model, "model");
    rp_report_show(report, "%s, %u blocks, %" G_GUINT64_FORMAT " parameters in %s",
                   rp_architectures[job->config.architecture].hf_name, job->config.blocks,
                   parameters, dtype);
    rp_report_text(report, "data", run->data, "data");
    if (job->dataset == NULL)
        rp_report_show(report, "%s: no such file yet", run->data);
    else
        rp_report_show(report, "%" G_GUINT64_FORMAT " samples, %" G_GUINT64_FORMAT " tokens%s",
                       data->n_samples, data->n_tokens, cut);
    if (job->dataset != NULL)
        report_sequences(report, job);
    rp_report_count(report, "parameters", (gint64)parameters, NULL);
    if (lora != NULL) {
        rp_report_line(report, "adapters",
                       "rank %u, alpha %g: %" G_GUINT64_FORMAT " parameters are trained",
                       lora->rank, lora->alpha, trained);
        rp_report_count(report, "lora_rank", lora->rank, NULL);
        rp_report_count(report, "trained_parameters", (gint64)trained, NULL);
    }
    report_objective(report, job);
    rp_report_text(report, "dtype", dtype, NULL);
    rp_report_count(report, "samples", (gint64)data->n_samples, NULL);
    rp_report_count(report, "truncated_samples", (gint64)data->n_truncated_samples, NULL);
    rp_report_text(report, "schedule", options->schedule->name, NULL);
    rp_report_bool(report, "async", options->async, NULL);
    rp_report_count(report, "devices", options->gpus, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, "step");
    rp_report_show(report,
                   "%" G_GINT64_FORMAT " x %u micro-batches of %" G_GINT64_FORMAT
                   " x %" G_GINT64_FORMAT " tokens, %u round%s of %u",
                   run->gradient_accumulation_steps, options->micro_batches, run->micro_batch_size,
                   run->sequence_length, rounds, rounds == 1 ? "" : "s", options->round);
    if (job->servers != NULL) {
        rp_report_line(report, "servers", "%u: these micro-batches are of each",
                       rp_train_n_servers(job));
        rp_report_count(report, "servers", rp_train_n_servers(job), NULL);
    }
    rp_report_count(report, "gradient_accumulation_steps", run->gradient_accumulation_steps, NULL);
    rp_report_count(report, "round", options->round, NULL);
    rp_report_count(report, "head_chunk", job->profile->head_chunk, NULL);
    rp_report_line(report, "GPU code", "%s", rp_cuda_built_text());
}

/* How often the data are seen, and how long that takes. */
static void
say_length(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const double epochs = rp_train_job_epochs(job);
    g_autofree char *times = g_strdup_printf(epochs < 100 ? "%.3g" : "%.0f", epochs);
    const double training_ns = (double)run->steps * (double)job->steady.iteration_ns;
    const double evaluating_ns = (double)rp_train_n_evaluations(run) * (double)job->evaluation.ns;
    g_autofree char *time = rp_progress_format_time((training_ns + evaluating_ns) / 1e9);

    if (job->dataset == NULL && run->epochs > 0)
        rp_report_line(report, "steps", "those of %" G_GINT64_FORMAT " epochs", run->epochs);
    else if (job->dataset == NULL)
        rp_report_line(report, "steps", "%" G_GINT64_FORMAT ", about %s predicted", run->steps,
                       time);
    else
        rp_report_line(report, "steps", "%" G_GINT64_FORMAT ": %s epochs, about %s predicted",
                       run->steps, times, time);
}

/* Bytes by category. @key: %NULL: of @arena for people, where @other has some too */
static void
report_categories(RpReport *report, const char *key, const char *label, const RpPlan *plan,
                  guint arena, guint other)
{
    rp_report_object(report, key, label);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++) {
        const RpBufferCategory category = (RpBufferCategory)c;
        const guint64 bytes = rp_plan_category_bytes(plan, arena, category);
        const char *name = rp_buffer_category_name(category);
        const gboolean shown =
            label != NULL && bytes + rp_plan_category_bytes(plan, other, category) > 0;
        g_autofree char *row = shown ? g_strconcat("  ", name, NULL) : NULL;

        rp_report_bytes(report, key != NULL ? name : NULL, bytes, row);
    }
    if (label != NULL)
        rp_report_bytes(report, NULL, rp_plan_arena_bytes(plan, arena), "  total");
    rp_report_end(report);
}

/* Reports the memory of the fullest device and of the host. */
static void
say_memory(RpReport *report, const RpPlan *plan)
{
    const guint host = rp_plan_gpus(plan);
    const guint fullest = rp_plan_fullest_gpu(plan);

    rp_report_columns(report, NULL, "  memory, predicted");
    report_categories(report, NULL, "fullest device", plan, fullest, host);
    report_categories(report, NULL, "host", plan, host, fullest);
    rp_report_end(report);
}

void
rp_train_report_figures(RpReport *report, double step_ns, double bubble_ratio, double tokens)
{
    rp_report_real(report, "step_ms", step_ns / 1e6, 6, NULL);
    rp_report_ratio(report, "bubble_ratio", bubble_ratio, NULL);
    rp_report_rate(report, "tokens_per_s", tokens_per_s(tokens, step_ns), NULL);
}

void
rp_train_report_arenas(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const guint host = job->run->n_devices;

    rp_report_list(report, "device_bytes");
    for (guint a = 0; a <= host; a++) {
        if (a == host)
            rp_report_end(report);
        rp_report_count(report, a == host ? "host_bytes" : NULL,
                        (gint64)(outcome != NULL ? opened_bytes(outcome, a)
                                                 : rp_plan_arena_bytes(job->plan, a)),
                        NULL);
    }
}

/* Reports the network of several servers, as measured at the start. */
static void
report_network(RpReport *report, const RpTrainJob *job)
{
    const RpLinks *links = &job->profile->links;
    const double gb_per_s = links->network_bytes_per_s / 1e9;
    const double latency_us = (double)links->network_latency_ns / 1e3;

    rp_report_real(report, "network_gb_per_s", gb_per_s, 6, "network");
    rp_report_show(
        report,
        "%.3g GB/s each way and %.1f us a message, as measured; %.3f ms a step if it took "
        "no time",
        gb_per_s, latency_us, rp_ms_from_ns(job->alone_ns));
    rp_report_real(report, "network_latency_us", latency_us, 3, NULL);
    rp_report_ms(report, "alone_ms", job->alone_ns, NULL);
}

/* From here on a run is worth a warning: lost tokens, lost samples, and too few steps to learn in. */
#define CUT_TOKENS 0.02
#define DROPPED_SAMPLES 0.05
#define FEW_STEPS 20

/* Steps that the run file gives are what somebody wanted; those that follow from epochs may not be. */
static void
report_warnings(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const RpDatasetSummary *data = &job->summary;
    const double cut = (double)data->n_truncated_tokens / (double)MAX(1, data->n_tokens);
    const double longer = (double)data->n_truncated_samples / (double)MAX(1, data->n_samples);

    if (job->dataset == NULL)
        return;
    if (!job->batcher.drop_long && cut > CUT_TOKENS)
        rp_report_line(report, "warning",
                       "%.1f %% of the tokens are cut: raise sequence_length, the longest sample "
                       "has %" G_GUINT64_FORMAT,
                       100 * cut, data->longest_tokens);
    if (job->batcher.drop_long && longer > DROPPED_SAMPLES)
        rp_report_line(report, "warning",
                       "%.1f %% of the samples are left out: raise sequence_length, the longest "
                       "has %" G_GUINT64_FORMAT " tokens",
                       100 * longer, data->longest_tokens);
    if (run->epochs > 0 && run->steps < FEW_STEPS)
        rp_report_line(report, "warning",
                       "%" G_GINT64_FORMAT " step%s: fewer micro_batches give more, or more epochs",
                       run->steps, run->steps == 1 ? "" : "s");
}

/* The step that a checkpoint's name has; of another name there is its path. */
static void
report_resumed(RpReport *report, const char *checkpoint)
{
    g_autofree char *name = checkpoint != NULL ? g_path_get_basename(checkpoint) : NULL;

    if (name != NULL && g_str_has_prefix(name, "checkpoint-"))
        rp_report_line(report, "continues", "from step %s, %s", name + strlen("checkpoint-"),
                       checkpoint);
    else if (name != NULL)
        rp_report_line(report, "continues", "from %s", checkpoint);
}

void
rp_train_report_plan(RpReport *report, const RpTrainJob *job, const char *checkpoint)
{
    const double tokens = (double)rp_train_job_step_tokens(job) * job->useful;
    const double step_ns = (double)job->steady.iteration_ns;

    report->label_width = LABEL_WIDTH;
    report_heading(report, job);
    say_length(report, job);
    report_resumed(report, checkpoint);
    report_warnings(report, job);
    report_validation(report, job);
    report_disk(report, job);
    rp_report_add_partition(report, job->profile, job->request.partition,
                            job->request.partition_source);
    say_memory(report, job->plan);
    rp_report_text(report, "times", job->profile->source, "predicted");
    rp_report_show(report,
                   "%.3f ms a step, bubble ratio %.2f %%, %.0f tokens/s (steady, %s layer times)",
                   step_ns / 1e6, 100 * job->steady.ratio, tokens_per_s(tokens, step_ns),
                   job->profile->source);
    rp_report_object(report, "predicted", NULL);
    rp_train_report_figures(report, step_ns, job->steady.ratio, tokens);
    if (job->most_ns > 0) {
        rp_report_object(report, "step_ms_range", NULL);
        rp_report_ms(report, "least", job->least_ns, "range");
        rp_report_show(report,
                       "%.3f to %.3f ms with every layer at the 10th or the 90th percentile of its "
                       "times",
                       rp_ms_from_ns(job->least_ns), rp_ms_from_ns(job->most_ns));
        rp_report_ms(report, "most", job->most_ns, NULL);
        rp_report_end(report);
    }
    if (job->clipped.iteration_ns > 0) {
        rp_report_object(report, "clipped", NULL);
        rp_report_show(report, "%.3f ms, bubble ratio %.2f %%, where gradients are clipped",
                       rp_ms_from_ns(job->clipped.iteration_ns), 100 * job->clipped.ratio);
        rp_train_report_figures(report, (double)job->clipped.iteration_ns, job->clipped.ratio,
                                tokens);
        rp_report_end(report);
    }
    if (job->servers != NULL)
        report_network(report, job);
    rp_report_add_saved(report, &job->request);
    rp_report_add_resident(report, &job->request);
    rp_train_report_arenas(report, job, NULL);
    report_categories(report, "device_0_categories", NULL, job->plan, 0, 0);
    report_categories(report, "host_categories", NULL, job->plan, job->run->n_devices, 0);
    rp_report_end(report);
    if (job->other_round > 0 && job->other_gain > 0.01)
        rp_report_line(report, "note",
                       "round: %u is predicted to be %.0f %% faster (other last bits, "
                       "docs/train.md)",
                       job->other_round, 100 * job->other_gain);
    rp_report_flush(report);
}

/* ---- how it went ---- */

static double
seconds_per_100_gib(const RpPinnedMemory *pinned)
{
    return pinned->seconds * 100 * (double)RP_GIB / (double)pinned->pinned_bytes;
}

void
rp_train_report_pinned(RpReport *report, const RpPinnedMemory *pinned)
{
    g_autofree char *bytes = rp_cli_format_bytes(pinned->pinned_bytes);
    g_autofree char *rate =
        pinned->pinned_bytes >= RP_GIB /* of less it says nothing */
            ? g_strdup_printf("%.1f s per 100 GiB, ", seconds_per_100_gib(pinned))
            : g_strdup("");

    if (pinned->pinned_bytes > 0)
        rp_report_line(report, "pinned memory", "%s in %.1f s, %s%u thread%s", bytes,
                       pinned->seconds, rate, pinned->threads, pinned->threads == 1 ? "" : "s");
    if (pinned->load_seconds > 0)
        rp_report_line(report, "kernels", "loaded in %.1f s", pinned->load_seconds);
    rp_report_flush(report);
}

/* Share of their time that actions on threads waited for a processor; 0: they are not on any. */
static double
waited(const RpTrainOutcome *outcome)
{
    const RpActionTime *time = &outcome->action_time;

    return time->elapsed_ns > 0 ? MAX(0, 1 - (double)time->processor_ns / (double)time->elapsed_ns)
                                : 0;
}

/* Whether step times say something about the prediction, and not about other programs. */
static gboolean
is_comparable(const RpTrainOutcome *outcome)
{
    return outcome->means.steps > 0 && waited(outcome) <= MAX_WAITED;
}

/* Formats a time and its difference to the predicted one. (transfer full) */
static char *
difference(const RpTrainOutcome *outcome, int digits, double value, const char *unit)
{
    return is_comparable(outcome) ? g_strdup_printf("%+.*f %s", digits, value, unit)
                                  : g_strdup("not compared");
}

static void
report_waited(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const gboolean many = job->run->n_devices > 1;
    const gboolean beyond = outcome->means.steps > 0 && !is_comparable(outcome);
    g_autofree char *most =
        beyond ? g_strdup_printf(": times are compared up to %.0f %%", 100 * MAX_WAITED)
               : g_strdup("");

    if (outcome->action_time.elapsed_ns == 0)
        return;
    rp_report_real(report, "processor_wait_ratio", waited(outcome), 6, NULL);
    rp_report_say(report,
                  "actions waited %.1f %% of their time for a processor that other programs%s "
                  "had%s",
                  100 * waited(outcome), many ? " or devices" : "", most);
}

static void
say_row(RpReport *report, const char *label, int digits, double predicted, double measured,
        const char *difference)
{
    rp_report_object(report, NULL, NULL);
    rp_report_line(report, "<", "%s", label);
    rp_report_line(report, "predicted", "%.*f", digits, predicted);
    rp_report_line(report, "measured", "%.*f", digits, measured);
    rp_report_line(report, "difference", "%s", difference);
    rp_report_end(report);
}

static void
say_times(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const RpTrainMeans *means = &outcome->means;
    const RpSteady expected = rp_train_expected(job, means);
    const double predicted_ns = (double)expected.iteration_ns;
    const double predicted_tokens = tokens_per_s(means->tokens, predicted_ns);
    const double tokens = tokens_per_s(means->tokens, means->step_ns);
    g_autofree char *time = difference(outcome, 1, 100 * (means->step_ns / predicted_ns - 1), "%");
    g_autofree char *bubble =
        difference(outcome, 2, 100 * (means->bubble_ratio - expected.ratio), "points");
    g_autofree char *rate = difference(outcome, 1, 100 * (tokens / predicted_tokens - 1), "%");

    say_row(report, "step, ms", 3, predicted_ns / 1e6, means->step_ns / 1e6, time);
    say_row(report, "bubble ratio, %", 2, 100 * expected.ratio, 100 * means->bubble_ratio, bubble);
    say_row(report, "tokens/s", 0, predicted_tokens, tokens, rate);
}

static void
say_comparison(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const guint host = job->run->n_devices;

    rp_report_table(report, NULL, NULL, 0);
    if (outcome->means.steps > 0)
        say_times(report, job, outcome);
    for (guint a = 0; a <= host; a++) {
        const guint64 predicted = rp_plan_arena_bytes(job->plan, a);
        const guint64 opened = opened_bytes(outcome, a);

        rp_report_object(report, NULL, NULL);
        if (a < host)
            rp_report_line(report, "<", "memory of device %u", a);
        else
            rp_report_line(report, "<", "memory of host");
        rp_report_bytes(report, NULL, predicted, "predicted");
        rp_report_bytes(report, NULL, opened, "measured");
        rp_report_line(report, "difference", "%+" G_GINT64_FORMAT " bytes",
                       (gint64)opened - (gint64)predicted);
        rp_report_end(report);
    }
    rp_report_end(report);
    if (outcome->means.steps > 0)
        rp_report_say(report,
                      "measured over %" G_GUINT64_FORMAT
                      " steady steps: not the first two, nor the two after a checkpoint or "
                      "an evaluation",
                      outcome->means.steps);
    else
        rp_report_say(report, "no steady step to measure: the first two do not count");
    if (job->clipped.iteration_ns > 0 && outcome->means.clipped_steps > 0)
        rp_report_say(report, "gradients were clipped before %" G_GUINT64_FORMAT " of them",
                      outcome->means.clipped_steps);
}

/* Reports the share of a step that proving the plan takes, if steps were measured. */
static void
report_proof(RpReport *report, const RpTrainOutcome *outcome)
{
    const RpProofCost *proof = &outcome->proof;
    const guint64 steps = outcome->last_step - outcome->first_step;

    rp_report_object(report, "proof", NULL);
    rp_report_count(report, "tasks", (gint64)proof->tasks, NULL);
    rp_report_real(report, "us", (double)proof->ns / 1e3, 3, NULL);
    rp_report_end(report);
    if (steps > 0 && proof->tasks > 0 && outcome->means.steps > 0)
        rp_report_say(report,
                      "plan proved before it ran: %" G_GUINT64_FORMAT
                      " tasks, %.2f us each, %.2f %% of a step",
                      proof->tasks, (double)proof->ns / 1e3 / (double)proof->tasks,
                      100 * (double)proof->ns / (double)steps / outcome->means.step_ns);
}

void
rp_train_report_measured(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const RpTrainMeans *means = &outcome->means;
    const RpPinnedMemory *pinned = &outcome->pinned;

    rp_report_object(report, "measured", NULL);
    rp_report_count(report, "steady_steps", (gint64)means->steps, NULL);
    if (job->clipped.iteration_ns > 0)
        rp_report_count(report, "clipped_steps", (gint64)means->clipped_steps, NULL);
    if (means->steps > 0) {
        rp_train_report_figures(report, means->step_ns, means->bubble_ratio, means->tokens);
        rp_report_real(report, "tokens_per_step", means->tokens, 3, NULL);
        rp_report_bool(report, "times_comparable", is_comparable(outcome), NULL);
    }
    if (outcome->last_step > outcome->first_step)
        say_comparison(report, job, outcome);
    report_waited(report, job, outcome);
    rp_train_report_arenas(report, job, outcome);
    if (pinned->pinned_bytes > 0) {
        rp_report_object(report, "pinned", NULL);
        rp_report_bytes(report, "bytes", pinned->pinned_bytes, NULL);
        rp_report_real(report, "seconds", pinned->seconds, 6, NULL);
        rp_report_real(report, "seconds_per_100_gib", seconds_per_100_gib(pinned), 3, NULL);
        rp_report_count(report, "threads", pinned->threads, NULL);
        rp_report_end(report);
    }
    if (pinned->load_seconds > 0)
        rp_report_real(report, "load_seconds", pinned->load_seconds, 6, NULL);
    report_proof(report, outcome);
    rp_report_end(report);
}

void
rp_train_report_outcome(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    rp_report_count(report, "first_step", (gint64)outcome->first_step + 1, NULL);
    rp_report_count(report, "last_step", (gint64)outcome->last_step, NULL);
    if (outcome->last_step > outcome->first_step) {
        rp_report_real(report, "loss", outcome->last.loss, 9, NULL);
        report_preference(report, outcome->last.metrics);
        rp_report_head(report, "step %" G_GUINT64_FORMAT " of %" G_GINT64_FORMAT ", loss %.6f",
                       outcome->last_step, job->run->steps, outcome->last.loss);
    } else {
        rp_report_head(report,
                       "nothing to do: step %" G_GUINT64_FORMAT " of %" G_GINT64_FORMAT " is done",
                       outcome->last_step, job->run->steps);
    }
    rp_train_report_measured(report, job, outcome);
    report_evaluations(report, job, outcome);
    report_saved(report, outcome);
}

/* As a shell reads it; only where it must be in quotes is it. (transfer full) */
static char *
shell_word(const char *word)
{
    return g_regex_match_simple("^[A-Za-z0-9_./=:,@%+-]+$", word, 0, 0) ? g_strdup(word)
                                                                        : g_shell_quote(word);
}

void
rp_train_report_interrupted(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome,
                            const RpTrainHow *how, char *const *sets)
{
    g_autofree char *file = shell_word(how->run_file);
    g_autoptr(GString) options = g_string_new(NULL);

    if (outcome->signal == 0 || outcome->checkpoint == NULL ||
        outcome->last_step >= (guint64)job->run->steps)
        return;
    for (; sets != NULL && *sets != NULL; sets++) {
        g_autofree char *set = shell_word(*sets);

        g_string_append_printf(options, " --set %s", set);
    }
    rp_report_say(report,
                  "interrupted at step %" G_GUINT64_FORMAT
                  "; continue with: roundpipe train %s%s --resume",
                  outcome->last_step, file, options->str);
}
