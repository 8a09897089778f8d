/* roundpipe train: the plan before the first step, and what it was worth after the last. */
#include "cli/train/train.h"

#include <stdio.h>

#include "cli/reports/result.h"
#include "core/base/units.h"
#include "exec/cuda/toolkit/toolkit.h"

/* Actions on threads that waited longer for a processor, as a share of their time, are not compared
 * with the prediction: other programs, or more devices than processors, made them what they are. */
#define MAX_WAITED 0.05

/* ---- what both outputs say ---- */

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

static char *
arena_name(const RpTrainJob *job, guint arena)
{
    return arena < job->run->n_devices ? g_strdup_printf("device %u", arena) : g_strdup("host");
}

/* ---- text ---- */

static void
print_stages(const char *label, const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_autofree char *list = rp_cli_stage_list(profile, stages, n);

    printf("  %-16s %s\n", label, n > 0 ? list : "none: the fused stage runs forward and backward");
}

static void
print_heading(const RpTrainJob *job)
{
    const RpRunFile *run = job->run;
    const RpPlanOptions *options = &job->request.options;
    const RpDatasetSummary *data = &job->summary;
    guint rounds = options->micro_batches / options->round;

    printf("%s%s, %s on %s\n", options->schedule->title, options->async ? " (asynchronous)" : "",
           run->model, run->devices);
    printf("  %-16s %s, %u blocks, %" G_GUINT64_FORMAT " parameters in %s\n", "model",
           rp_architectures[job->config.architecture].hf_name, job->config.blocks,
           rp_weights_elements(job->weights), rp_dtype_name(job->network.dtype));
    printf("  %-16s %" G_GUINT64_FORMAT " samples, %" G_GUINT64_FORMAT " tokens", "data",
           data->n_samples, data->n_tokens);
    if (data->n_truncated_samples > 0)
        printf("; %" G_GUINT64_FORMAT " samples are cut, %" G_GUINT64_FORMAT " tokens of them",
               data->n_truncated_samples, data->n_truncated_tokens);
    printf("\n  %-16s %" G_GINT64_FORMAT " x %u micro-batches of %" G_GINT64_FORMAT
           " x %" G_GINT64_FORMAT " tokens, %u round%s of %u\n",
           "step", run->gradient_accumulation_steps, options->micro_batches, run->micro_batch_size,
           run->sequence_length, rounds, rounds == 1 ? "" : "s", options->round);
    printf("  %-16s %s\n", "GPU code", rp_cuda_built_text());
}

/* How often the data are seen, and how long that takes. */
static void
print_length(const RpTrainJob *job)
{
    const RpRunFile *run = job->run;
    const RpBatcherOptions *batcher = &job->batcher;
    double samples = (double)run->steps * (double)run->gradient_accumulation_steps *
                     batcher->micro_batches * batcher->sequences;
    g_autofree char *time =
        rp_train_format_time((double)run->steps * (double)job->steady.iteration_ns / 1e9);

    double epochs = samples / (double)MAX(1, job->summary.n_samples);

    printf(epochs < 100 ? "  %-16s %" G_GINT64_FORMAT ": %.3g epochs, about %s predicted\n"
                        : "  %-16s %" G_GINT64_FORMAT ": %.0f epochs, about %s predicted\n",
           "steps", run->steps, epochs, time);
}

static void
print_partition(const RpTrainJob *job)
{
    const RpPartition *partition = job->request.partition;

    if (partition->dispatched) {
        print_stages("forward stages", job->profile, partition->forward, partition->n_forward);
        print_stages("backward stages", job->profile, partition->backward, partition->n_backward);
    } else {
        print_stages("stages", job->profile, partition->forward, partition->n_forward);
    }
    printf("  %-16s %s\n", "partition", job->request.partition_source);
}

static void
add_bytes(RpCliTable *table, guint64 bytes)
{
    g_autofree char *text = rp_cli_format_bytes(bytes);

    rp_cli_table_add(table, "%s", bytes > 0 ? text : "-");
}

/* Bytes by category, of the fullest device and of the host. */
static void
print_memory(const RpTrainJob *job)
{
    static const char *const columns[] = {"<  memory, predicted", "fullest device", "host", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    guint host = rp_plan_gpus(job->plan), fullest = 0;

    for (guint g = 1; g < host; g++)
        if (rp_plan_arena_bytes(job->plan, g) > rp_plan_arena_bytes(job->plan, fullest))
            fullest = g;
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++) {
        guint64 device = rp_plan_category_bytes(job->plan, fullest, (RpBufferCategory)c);
        guint64 home = rp_plan_category_bytes(job->plan, host, (RpBufferCategory)c);

        if (device + home == 0)
            continue;
        rp_cli_table_add(table, "  %s", rp_buffer_category_name((RpBufferCategory)c));
        add_bytes(table, device);
        add_bytes(table, home);
    }
    rp_cli_table_add(table, "  total");
    add_bytes(table, rp_plan_arena_bytes(job->plan, fullest));
    add_bytes(table, rp_plan_arena_bytes(job->plan, host));
    rp_cli_table_print(table);
}

void
rp_train_print_plan(const RpTrainJob *job)
{
    print_heading(job);
    print_length(job);
    print_partition(job);
    print_memory(job);
    printf("  %-16s %.3f ms a step, bubble ratio %.2f %%, %.0f tokens/s (steady, %s layer times)\n",
           "predicted", rp_ms_from_ns(job->steady.iteration_ns), 100 * job->steady.ratio,
           tokens_per_s((double)rp_train_job_step_tokens(job), (double)job->steady.iteration_ns),
           job->profile->source);
    if (job->most_ns > 0)
        printf("  %-16s %.3f to %.3f ms with every layer at the 10th or the 90th percentile of its "
               "times\n",
               "range", rp_ms_from_ns(job->least_ns), rp_ms_from_ns(job->most_ns));
    if (job->other_round > 0 && job->other_gain > 0.01)
        printf("  %-16s round: %u is predicted to be %.0f %% faster (other last bits, "
               "docs/train.md)\n",
               "note", job->other_round, 100 * job->other_gain);
    (void)fflush(stdout);
}

static double
seconds_per_100_gib(const RpPinnedMemory *pinned)
{
    return pinned->seconds * 100 * (double)RP_GIB / (double)pinned->pinned_bytes;
}

void
rp_train_print_pinned(const RpPinnedMemory *pinned)
{
    g_autofree char *bytes = rp_cli_format_bytes(pinned->pinned_bytes);

    if (pinned->pinned_bytes == 0)
        return;
    printf("  %-16s %s in %.1f s, ", "pinned memory", bytes, pinned->seconds);
    if (pinned->pinned_bytes >= RP_GIB) /* of less it says nothing */
        printf("%.1f s per 100 GiB, ", seconds_per_100_gib(pinned));
    printf("%u thread%s\n", pinned->threads, pinned->threads == 1 ? "" : "s");
    (void)fflush(stdout);
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

/* Of a time with the predicted one. (transfer full) */
static char *
difference(const RpTrainOutcome *outcome, int digits, double value, const char *unit)
{
    return is_comparable(outcome) ? g_strdup_printf("%+.*f %s", digits, value, unit)
                                  : g_strdup("not compared");
}

static void
print_waited(const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const gboolean many = job->run->n_devices > 1;

    if (outcome->action_time.elapsed_ns == 0)
        return;
    printf("actions waited %.1f %% of their time for a processor that other programs%s had",
           100 * waited(outcome), many ? " or devices" : "");
    if (outcome->means.steps > 0 && !is_comparable(outcome))
        printf(": times are compared up to %.0f %%", 100 * MAX_WAITED);
    printf("\n");
}

static void
add_row(RpCliTable *table, const char *label, int digits, double predicted, double measured,
        const char *difference)
{
    rp_cli_table_add(table, "%s", label);
    rp_cli_table_add(table, "%.*f", digits, predicted);
    rp_cli_table_add(table, "%.*f", digits, measured);
    rp_cli_table_add(table, "%s", difference);
}

/* What proving the plan takes of a step, where steps were measured. */
static void
print_proof(const RpTrainOutcome *outcome)
{
    const RpProofCost *proof = &outcome->proof;
    const guint64 steps = outcome->last_step - outcome->first_step;

    if (proof->tasks == 0 || outcome->means.steps == 0)
        return;
    printf("plan proved before it ran: %" G_GUINT64_FORMAT " tasks, %.2f us each, %.2f %% of a "
           "step\n",
           proof->tasks, (double)proof->ns / 1e3 / (double)proof->tasks,
           100 * (double)proof->ns / (double)steps / outcome->means.step_ns);
}

static void
print_comparison(const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    static const char *const columns[] = {"<", "predicted", "measured", "difference", NULL};
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);
    const RpTrainMeans *means = &outcome->means;

    if (means->steps > 0) {
        double predicted_ns = (double)job->steady.iteration_ns;
        double predicted_tokens = tokens_per_s(means->tokens, predicted_ns);
        double tokens = tokens_per_s(means->tokens, means->step_ns);
        g_autofree char *time =
            difference(outcome, 1, 100 * (means->step_ns / predicted_ns - 1), "%");
        g_autofree char *bubble =
            difference(outcome, 2, 100 * (means->bubble_ratio - job->steady.ratio), "points");
        g_autofree char *rate = difference(outcome, 1, 100 * (tokens / predicted_tokens - 1), "%");

        add_row(table, "step, ms", 3, predicted_ns / 1e6, means->step_ns / 1e6, time);
        add_row(table, "bubble ratio, %", 2, 100 * job->steady.ratio, 100 * means->bubble_ratio,
                bubble);
        add_row(table, "tokens/s", 0, predicted_tokens, tokens, rate);
    }
    for (guint a = 0; a <= job->run->n_devices; a++) {
        g_autofree char *name = arena_name(job, a);
        guint64 predicted = rp_plan_arena_bytes(job->plan, a);
        guint64 opened = opened_bytes(outcome, a);

        rp_cli_table_add(table, "memory of %s", name);
        add_bytes(table, predicted);
        add_bytes(table, opened);
        rp_cli_table_add(table, "%+" G_GINT64_FORMAT " bytes", (gint64)opened - (gint64)predicted);
    }
    rp_cli_table_print(table);
    if (means->steps > 0)
        printf("measured over %" G_GUINT64_FORMAT
               " steady steps: not the first two, nor the two after a checkpoint\n",
               means->steps);
    else
        printf("no steady step to measure: the first two do not count\n");
    print_waited(job, outcome);
}

static void
print_saving(const RpTrainOutcome *outcome)
{
    if (outcome->saving_seconds < 1 && outcome->beside_seconds < 1)
        return;
    printf("%u checkpoint%s: nothing was trained for %.1f s", outcome->n_saved,
           outcome->n_saved == 1 ? "" : "s", outcome->saving_seconds);
    if (outcome->n_beside > 0)
        printf("; writing %u of them beside training took %.1f s", outcome->n_beside,
               outcome->beside_seconds);
    printf("\n");
}

void
rp_train_print_outcome(const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    printf("\n");
    if (outcome->last_step > outcome->first_step) {
        printf("step %" G_GUINT64_FORMAT " of %" G_GINT64_FORMAT ", loss %.6f\n",
               outcome->last_step, job->run->steps, outcome->last.loss);
        print_comparison(job, outcome);
        print_proof(outcome);
    } else {
        printf("nothing to do: step %" G_GUINT64_FORMAT " of %" G_GINT64_FORMAT " is done\n",
               outcome->last_step, job->run->steps);
    }
    if (outcome->loss_picture != NULL)
        printf("loss curve: %s\n", outcome->loss_picture);
    print_saving(outcome);
    if (outcome->checkpoint != NULL)
        printf("saved: %s\n", outcome->checkpoint);
}

/* ---- JSON ---- */

static void
json_figures(RpJsonWriter *json, double step_ns, double bubble_ratio, double tokens)
{
    rp_json_double(json, "step_ms", step_ns / 1e6, 6);
    rp_json_double(json, "bubble_ratio", bubble_ratio, 9);
    rp_json_double(json, "tokens_per_s", tokens_per_s(tokens, step_ns), 3);
}

/* Member step_ms_range, if the layer times have spreads. */
static void
json_range(RpJsonWriter *json, const RpTrainJob *job)
{
    if (job->most_ns == 0)
        return;
    rp_json_object(json, "step_ms_range");
    rp_json_double(json, "least", rp_ms_from_ns(job->least_ns), 6);
    rp_json_double(json, "most", rp_ms_from_ns(job->most_ns), 6);
    rp_json_end(json);
}

/* Members device_bytes and host_bytes: planned, or (@outcome) opened. */
static void
json_memory(RpJsonWriter *json, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    guint host = job->run->n_devices;

    rp_json_array(json, "device_bytes");
    for (guint a = 0; a < host; a++)
        rp_json_int(json, NULL,
                    (gint64)(outcome != NULL ? opened_bytes(outcome, a)
                                             : rp_plan_arena_bytes(job->plan, a)));
    rp_json_end(json);
    rp_json_int(json, "host_bytes",
                (gint64)(outcome != NULL ? opened_bytes(outcome, host)
                                         : rp_plan_arena_bytes(job->plan, host)));
}

static void
json_categories(RpJsonWriter *json, const char *key, const RpTrainJob *job, guint arena)
{
    rp_json_object(json, key);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        rp_json_int(json, rp_buffer_category_name((RpBufferCategory)c),
                    (gint64)rp_plan_category_bytes(job->plan, arena, (RpBufferCategory)c));
    rp_json_end(json);
}

static void
json_plan(RpJsonWriter *json, const RpTrainJob *job)
{
    const RpRunFile *run = job->run;
    const RpPlanOptions *options = &job->request.options;

    rp_json_string(json, "model", run->model);
    rp_json_string(json, "data", run->data);
    rp_json_int(json, "parameters", (gint64)rp_weights_elements(job->weights));
    rp_json_string(json, "dtype", rp_dtype_name(job->network.dtype));
    rp_json_int(json, "samples", (gint64)job->summary.n_samples);
    rp_json_int(json, "truncated_samples", (gint64)job->summary.n_truncated_samples);
    rp_json_string(json, "schedule", options->schedule->name);
    rp_json_bool(json, "async", options->async);
    rp_json_int(json, "devices", options->gpus);
    rp_json_int(json, "micro_batches", options->micro_batches);
    rp_json_int(json, "gradient_accumulation_steps", run->gradient_accumulation_steps);
    rp_json_int(json, "round", options->round);
    rp_json_int(json, "head_chunk", job->profile->head_chunk);
    rp_json_string(json, "partition", job->request.partition_source);
    rp_json_partition(json, job->profile, job->request.partition);
    rp_json_string(json, "times", job->profile->source);
    rp_json_object(json, "predicted");
    json_figures(json, (double)job->steady.iteration_ns, job->steady.ratio,
                 (double)rp_train_job_step_tokens(job));
    json_range(json, job);
    json_memory(json, job, NULL);
    json_categories(json, "device_0_categories", job, 0);
    json_categories(json, "host_categories", job, run->n_devices);
    rp_json_end(json);
}

static void
json_pinned(RpJsonWriter *json, const RpPinnedMemory *pinned)
{
    if (pinned->pinned_bytes == 0)
        return;
    rp_json_object(json, "pinned");
    rp_json_int(json, "bytes", (gint64)pinned->pinned_bytes);
    rp_json_double(json, "seconds", pinned->seconds, 6);
    rp_json_double(json, "seconds_per_100_gib", seconds_per_100_gib(pinned), 3);
    rp_json_int(json, "threads", pinned->threads);
    rp_json_end(json);
}

static void
json_outcome(RpJsonWriter *json, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const RpTrainMeans *means = &outcome->means;

    rp_json_int(json, "first_step", (gint64)outcome->first_step + 1);
    rp_json_int(json, "last_step", (gint64)outcome->last_step);
    if (outcome->last_step > outcome->first_step)
        rp_json_double(json, "loss", outcome->last.loss, 9);
    rp_json_object(json, "measured");
    rp_json_int(json, "steady_steps", (gint64)means->steps);
    if (means->steps > 0) {
        json_figures(json, means->step_ns, means->bubble_ratio, means->tokens);
        rp_json_double(json, "tokens_per_step", means->tokens, 3);
        rp_json_bool(json, "times_comparable", is_comparable(outcome));
    }
    if (outcome->action_time.elapsed_ns > 0)
        rp_json_double(json, "processor_wait_ratio", waited(outcome), 6);
    json_memory(json, job, outcome);
    json_pinned(json, &outcome->pinned);
    rp_json_object(json, "proof");
    rp_json_int(json, "tasks", (gint64)outcome->proof.tasks);
    rp_json_double(json, "us", (double)outcome->proof.ns / 1e3, 3);
    rp_json_end(json);
    rp_json_end(json);
    rp_json_object(json, "checkpoints");
    rp_json_int(json, "saved", outcome->n_saved);
    rp_json_double(json, "seconds", outcome->saving_seconds, 6);
    rp_json_int(json, "beside", outcome->n_beside);
    rp_json_double(json, "beside_seconds", outcome->beside_seconds, 6);
    rp_json_end(json);
    rp_json_string(json, "checkpoint", outcome->checkpoint);
    rp_json_string(json, "loss_picture", outcome->loss_picture);
    rp_json_bool(json, "saved", !outcome->unsaved);
    rp_json_int(json, "signal", outcome->signal);
}

void
rp_train_print_json(const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    json_plan(json, job);
    if (outcome != NULL)
        json_outcome(json, job, outcome);
    rp_json_end(json);
    rp_cli_print_json(json);
}
