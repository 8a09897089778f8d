/* roundpipe train: what is known before the first step. */
#include "cli/train/train.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/devices.h"
#include "cli/reports/result.h"
#include "core/plan/least-memory.h"
#include "core/trace/report.h"
#include "exec/measure/profile.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

#define PROGRESS_INTERVAL_US (G_USEC_PER_SEC / 10)
/* Of runs whose profile.json does not say: that was the default. */
#define EARLIER_HEAD_CHUNK 1024

void
rp_train_job_clear(RpTrainJob *job)
{
    g_clear_pointer(&job->device_processors, g_free);
    g_clear_pointer(&job->trace, rp_trace_free);
    g_clear_pointer(&job->plan, rp_plan_free);
    rp_request_clear(&job->request);
    g_clear_pointer(&job->profile, rp_profile_free);
    g_clear_pointer(&job->profile_json, g_free);
    g_clear_pointer(&job->dataset, rp_dataset_free);
    g_clear_pointer(&job->weights, rp_weights_free);
    g_clear_pointer(&job->checkpoint, rp_safetensors_free);
    *job = (RpTrainJob){0};
}

guint64
rp_train_job_step_tokens(const RpTrainJob *job)
{
    const RpRunFile *run = job->run;

    return (guint64)run->sequence_length * (guint64)run->micro_batch_size *
           (guint64)run->micro_batches * (guint64)run->gradient_accumulation_steps;
}

/* ---- progress ---- */

typedef struct {
    const char *what; /* "reading d.jsonl: %s of %s samples" */
    gint64 begin_us;
    gint64 shown_us;
} Progress;

static gboolean
show(Progress *progress, guint64 done, guint64 total)
{
    gint64 now_us = g_get_monotonic_time();
    double seconds = (double)(now_us - progress->begin_us) / G_USEC_PER_SEC;

    if (now_us - progress->shown_us < PROGRESS_INTERVAL_US || done == 0 || total == 0)
        return TRUE;
    progress->shown_us = now_us;
    fprintf(stderr,
            "\r\033[K%s: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT ", %.0f/s, %.0f s left",
            progress->what, done, total, (double)done / seconds,
            seconds * (double)(total - done) / (double)done);
    fflush(stderr);
    return TRUE;
}

static gboolean
show_samples(guint64 done, guint64 total, gpointer user_data)
{
    return show(user_data, done, total);
}

static gboolean
show_measurements(guint done, guint total, gpointer user_data)
{
    return show(user_data, done, total);
}

/* ---- model and data ---- */

static gboolean
open_model(RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;

    if (!rp_hf_config_load(run->model, &job->config, error)) {
        g_prefix_error(error, "model: ");
        return FALSE;
    }
    job->checkpoint = rp_safetensors_open(run->model, error);
    if (job->checkpoint == NULL) {
        g_prefix_error(error, "model: ");
        return FALSE;
    }
    job->weights = rp_weights_new(&job->config);
    if (!rp_weights_bind(job->weights, job->checkpoint, error))
        return FALSE;
    job->network = (RpNetworkOptions){
        .dtype = run->dtype_choice > 0 ? (RpDtype)(run->dtype_choice - 1)
                                       : rp_weights_dtype(job->weights),
        .sequences = (guint)run->micro_batch_size,
        .tokens = (guint)run->sequence_length,
        .head_chunk = (guint)run->head_chunk,
        .attention = run->attention_choice > 0 ? (RpAttentionChoice)(run->attention_choice - 1)
                                               : RP_ATTENTION_BUILTIN,
        .half_sums = run->half_sums != 0,
    };
    if (!rp_weights_check_finite(job->weights, job->network.dtype, error)) {
        g_prefix_error(error, "model: ");
        return FALSE;
    }
    if (!run->device_ops->kernels()->has_attention(job->network.attention)) {
        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_VALUE,
                    "attention: expected builtin or auto, found %s, which %s devices do not have",
                    rp_attention_name(job->network.attention), run->device_ops->name);
        return FALSE;
    }
    if (job->network.half_sums && job->network.dtype != RP_DTYPE_FP16) {
        g_set_error(error, RP_RUN_FILE_ERROR, RP_RUN_FILE_ERROR_VALUE,
                    "accumulate: expected fp32 with dtype %s, found fp16",
                    rp_dtype_name(job->network.dtype));
        return FALSE;
    }
    if ((guint64)run->sequence_length > job->config.max_positions)
        fprintf(stderr,
                "roundpipe train: note: sequence_length %" G_GINT64_FORMAT
                " is beyond the model's max_position_embeddings, %u\n",
                run->sequence_length, job->config.max_positions);
    return TRUE;
}

/* What stands behind the end of a short sample. Nothing is learned there. */
static gint32
pad_id(const RpModelConfig *config)
{
    gint64 id = config->pad_id;

    if (id == RP_MODEL_NO_TOKEN && config->n_eos > 0)
        id = config->eos_ids[0];
    return id >= 0 && id < (gint64)config->vocab ? (gint32)id : 0;
}

static gboolean
open_data(RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;
    gboolean terminal = isatty(STDERR_FILENO) == 1;
    Progress progress = {.what = "reading data", .begin_us = g_get_monotonic_time()};
    gboolean read;

    job->dataset =
        rp_dataset_open(run->data, job->config.vocab, (guint)run->sequence_length, error);
    if (job->dataset == NULL) {
        g_prefix_error(error, "data: ");
        return FALSE;
    }
    read = rp_dataset_check(job->dataset, (guint)run->sequence_length,
                            terminal ? show_samples : NULL, &progress, &job->summary, error);
    if (terminal)
        fputs("\r\033[K", stderr);
    job->batcher = (RpBatcherOptions){
        .micro_batches = (guint)run->micro_batches,
        .sequences = (guint)run->micro_batch_size,
        .tokens = (guint)run->sequence_length,
        .pad_id = pad_id(&job->config),
        .shuffle = run->shuffle != 0,
        .seed = (guint64)run->seed,
        .epoch_end = RP_EPOCH_END_CONTINUE,
    };
    return read;
}

/* ---- layer times ---- */

static void
take_string(char **to, const char *from)
{
    g_free(*to);
    *to = g_strdup(from);
}

/* Times of a file for the sizes that the network has. */
static gboolean
take_times(RpProfile *profile, const RpProfile *file, const char *path, GError **error)
{
    if (file->n_layers != profile->n_layers) {
        g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_VALUE,
                    "%s: expected times of the model's %u layers, found %u", path,
                    profile->n_layers, file->n_layers);
        return FALSE;
    }
    for (guint l = 0; l < file->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];
        const RpLayer *times = &file->layers[l];

        if (layer->kind != times->kind) {
            g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_VALUE,
                        "%s: layers[%u]: expected %s, found %s", path, l,
                        rp_layer_kind_name(layer->kind), rp_layer_kind_name(times->kind));
            return FALSE;
        }
        layer->forward_ns = times->forward_ns;
        layer->backward_ns = times->backward_ns;
        layer->recompute_ns = times->recompute_ns;
        layer->recompute_last_ns = times->recompute_last_ns;
        layer->weight_gradient_ns = times->weight_gradient_ns;
        layer->forward_spread_ns = times->forward_spread_ns;
        layer->recompute_spread_ns = times->recompute_spread_ns;
        layer->backward_spread_ns = times->backward_spread_ns;
    }
    take_string(&profile->model, file->model);
    take_string(&profile->device, file->device);
    take_string(&profile->source, file->source);
    take_string(&profile->origin, file->origin);
    take_string(&profile->date, file->date);
    profile->gpus = file->gpus;
    profile->processors = file->processors;
    profile->gpu_memory_bytes = file->gpu_memory_bytes;
    profile->links = file->links;
    profile->optimizer_parameters_per_s = file->optimizer_parameters_per_s;
    profile->norm_parameters_per_s = file->norm_parameters_per_s;
    profile->sum_parameters_per_s = file->sum_parameters_per_s;
    profile->gradient_copy_parameters_per_s = file->gradient_copy_parameters_per_s;
    profile->parameter_copy_parameters_per_s = file->parameter_copy_parameters_per_s;
    return TRUE;
}

/* The choice of a timing file, if this build has it; else it stays as it is. */
static void
take_attention(RpTrainJob *job, const RpProfile *file, const char *path)
{
    RpAttentionChoice choice;

    if (job->run->attention_choice != 0 || !rp_attention_from_name(file->attention, &choice))
        return;
    if (job->run->device_ops->kernels()->has_attention(choice))
        job->network.attention = choice;
    else
        fprintf(stderr,
                "roundpipe train: note: %s has times of %s attention, which %s devices do not "
                "have here\n",
                path, file->attention, job->run->device_ops->name);
}

/* The head's chunk of a timing file, where the run's own is to be chosen: times are with it, and a
 * run that goes on keeps its bits. @unknown: of a file that does not say */
static void
take_head_chunk(RpTrainJob *job, const RpProfile *file, guint unknown)
{
    if (job->run->head_chunk == 0)
        job->network.head_chunk = file->head_chunk > 0 ? file->head_chunk : unknown;
}

/* Of a file that the run names; an earlier run's is not used then. */
static void
note_other_chunk(const RpTrainJob *job, const RpProfile *file, const char *path)
{
    if (job->run->head_chunk > 0 && file->head_chunk > 0 &&
        file->head_chunk != job->network.head_chunk)
        fprintf(stderr,
                "roundpipe train: note: %s has times of a head in chunks of %u tokens, the run's "
                "are of %u\n",
                path, file->head_chunk, job->network.head_chunk);
}

static RpNetwork *
make_network(const RpTrainJob *job)
{
    return rp_network_new(&job->config, job->weights, job->run->device_ops->kernels(),
                          &job->network);
}

static RpProfile *
read_profile(RpTrainJob *job, const char *path, GError **error)
{
    g_autoptr(RpProfile) file = rp_profile_load(path, error);
    guint64 tokens = (guint64)job->network.sequences * job->network.tokens;

    if (file == NULL)
        return NULL;
    take_attention(job, file, path);
    take_head_chunk(job, file, 0);
    note_other_chunk(job, file, path);
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    if (!take_times(profile, file, path, error))
        return NULL;
    if (!rp_profile_check_full(profile, error)) {
        g_prefix_error(error, "%s: ", path);
        return NULL;
    }
    if (rp_profile_micro_batch_tokens(file) != 0 && rp_profile_micro_batch_tokens(file) != tokens)
        fprintf(stderr,
                "roundpipe train: note: %s has times of micro-batches of %" G_GUINT64_FORMAT
                " tokens, the run's have %" G_GUINT64_FORMAT "\n",
                path, rp_profile_micro_batch_tokens(file), tokens);
    return g_steal_pointer(&profile);
}

/* Whether @file was measured on what @now describes, for micro-batches of this run. */
static gboolean
is_of_these_devices(const RpTrainJob *job, const RpProfile *file, const RpProfile *now)
{
    return strcmp(file->source, "measured") == 0 && strcmp(file->device, now->device) == 0 &&
           file->processors == now->processors && file->gpus == job->run->n_devices &&
           file->n_layers == now->n_layers && file->sequences == job->network.sequences &&
           file->tokens_per_sequence == job->network.tokens &&
           strcmp(file->dtype, now->dtype) == 0 && strcmp(file->accumulate, now->accumulate) == 0 &&
           (file->head_chunk == 0 || file->head_chunk == now->head_chunk) &&
           rp_profile_check_full(file, NULL);
}

/* A run that goes on takes the times that it began with, if its devices are still the same: they
 * decide about the plan, and about whose attention it is. %NULL: there are none. */
static RpProfile *
earlier_profile(RpTrainJob *job, RpProbe *probe, const char *directory)
{
    g_autofree char *path = g_build_filename(directory, RP_TRAIN_PROFILE, NULL);
    g_autoptr(RpProfile) file = rp_profile_load(path, NULL);

    if (file == NULL)
        return NULL;
    take_attention(job, file, path);
    take_head_chunk(job, file, EARLIER_HEAD_CHUNK);
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProfile) now = rp_network_profile(network);

    now->gpus = job->run->n_devices;
    probe->ops->describe(probe, now);
    if (!is_of_these_devices(job, file, now) ||
        (job->run->attention_choice != 0 && strcmp(file->attention, now->attention) != 0) ||
        !take_times(now, file, path, NULL))
        return NULL;
    return g_steal_pointer(&now);
}

/* Whether the partition that needs least fits: cuDNN plans more workspace than the built-in one. */
static gboolean
may_fit(const RpTrainJob *job, RpProbe *probe, const RpNetwork *network)
{
    g_autoptr(RpProfile) sizes = rp_network_profile(network);

    probe->ops->describe(probe, sizes);
    const guint64 limit =
        job->run->device_memory_bytes > 0 ? job->run->device_memory_bytes : sizes->gpu_memory_bytes;
    /* a plan with all its buffers has links; how fast they are changes no size */
    sizes->links.h2d_bytes_per_s = 1;
    sizes->links.d2h_bytes_per_s = 1;
    g_autoptr(RpPartition) least = rp_partition_least(sizes);

    return limit == 0 ||
           rp_plan_dispatched_gpu_bytes(sizes, least) + rp_network_constant_bytes(network) <= limit;
}

static RpProfile *
measure_with(RpTrainJob *job, RpProbe *probe, const char *earlier_run,
             const RpMeasureOptions *options, GError **error)
{
    RpProfile *earlier = earlier_run != NULL ? earlier_profile(job, probe, earlier_run) : NULL;

    if (earlier != NULL)
        return earlier;
    g_autoptr(RpNetwork) network = make_network(job);
    RpAttentionChoice fastest;

    if (job->run->attention_choice == 0 && job->network.attention == RP_ATTENTION_BUILTIN &&
        earlier_run == NULL) {
        if (!rp_measure_attention(probe, network, job->weights, &fastest, error))
            return NULL;
        job->network.attention = fastest;
        rp_network_free(network);
        network = make_network(job);
        if (fastest != RP_ATTENTION_BUILTIN && !may_fit(job, probe, network)) {
            job->network.attention = RP_ATTENTION_BUILTIN;
            rp_network_free(network);
            network = make_network(job);
        }
    }
    return rp_measure_profile(probe, network, job->weights, options, error);
}

static RpProfile *
measure_profile(RpTrainJob *job, const char *earlier_run, GError **error)
{
    gboolean terminal = isatty(STDERR_FILENO) == 1;
    Progress progress = {.what = "measuring layers", .begin_us = g_get_monotonic_time()};
    const RpMeasureOptions options = {
        .devices = job->run->n_devices,
        .optimizer_threads = job->optimizer_threads,
        .progress = terminal ? show_measurements : NULL,
        .user_data = &progress,
    };
    RpProbe *probe = job->run->device_ops->probe_new(0, error);
    RpProfile *profile = NULL;

    if (probe != NULL)
        profile = measure_with(job, probe, earlier_run, &options, error);
    rp_probe_free(probe);
    if (terminal)
        fputs("\r\033[K", stderr);
    return profile;
}

/* A file says how much memory there was when it was made. What there is now, a plan may have. */
static gboolean
take_memory(RpTrainJob *job, GError **error)
{
    const RpDeviceOps *devices = job->run->device_ops;

    if (devices->host_memory || job->run->device_memory_bytes > 0)
        return TRUE;
    g_autoptr(RpNetwork) network = make_network(job);
    g_autoptr(RpProbe) probe = devices->probe_new(0, error);

    return probe != NULL && rp_measure_memory(probe, network, job->run->n_devices,
                                              &job->profile->gpu_memory_bytes, error);
}

/* ---- the plan ---- */

static RpScheduleArgs
schedule_args(const RpTrainJob *job, gint64 round)
{
    const RpRunFile *run = job->run;

    return (RpScheduleArgs){
        .schedule = g_strdup(run->schedule),
        .gpus = (int)run->n_devices,
        .micro_batches = (int)run->micro_batches,
        .round = (int)round,
        .stages = g_strdup(run->stages),
        .forward_stages = g_strdup(run->forward_stages),
        .backward_stages = g_strdup(run->backward_stages),
        .partition = run->given_stages            ? NULL
                     : run->partition_choice == 1 ? g_strdup("paper")
                                                  : g_strdup("simulated"),
        .fidelity = g_strdup("full"),
        .recompute = run->recompute_choice == RP_RECOMPUTE_EARLY   ? g_strdup("early")
                     : run->recompute_choice == RP_RECOMPUTE_GATED ? g_strdup("gated")
                                                                   : NULL,
        .transfers = g_strdup(run->transfers == RP_TRANSFERS_NAIVE ? "naive" : "windows"),
        .consistency =
            g_strdup(run->consistency == RP_CONSISTENCY_BLOCKING ? "blocking" : "events"),
        .optimizer = g_strdup(run->optimizer.mode == RP_OPTIMIZER_LEAN ? "lean" : "fused"),
        .async = run->async,
        .no_clip = run->optimizer.max_grad_norm <= 0 && job->network.dtype != RP_DTYPE_FP16 &&
                   run->consistency != RP_CONSISTENCY_BLOCKING,
    };
}

/* A prediction that would not fit in memory is refused before anything long is done.
 * @stages: of all passes; no partition has fewer
 *
 * actions = stages x micro-batches x calls x iterations, times two if stages go forward and
 * backward. Iterations are fewer where they are longer: with the fewest stages, in the most rounds,
 * there are the fewest actions.
 */
static gboolean
check_size(const RpTrainJob *job, gboolean dispatched, guint stages, guint rounds, GError **error)
{
    const RpRunFile *run = job->run;
    guint64 slots = (guint64)stages * rounds * (guint64)run->gradient_accumulation_steps;
    RpSteadyWindow window =
        rp_steady_window(run->n_devices, (guint)MIN(slots, (guint64)G_MAXUINT32));
    double actions = (double)stages * (double)run->micro_batches *
                     (double)run->gradient_accumulation_steps * window.iterations *
                     (dispatched ? 1 : 2);

    if (actions <= RP_CLI_MAX_FULL_ACTIONS)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "micro_batches, gradient_accumulation_steps: expected at most %d compute actions "
                "in a prediction, found %.0f or more (%u stages x %" G_GINT64_FORMAT
                " micro-batches x %" G_GINT64_FORMAT " calls x %u iterations%s)",
                RP_CLI_MAX_FULL_ACTIONS, actions, stages, run->micro_batches,
                run->gradient_accumulation_steps, window.iterations,
                dispatched ? "" : ", forward and backward");
    return FALSE;
}

/* Before there is a partition: RoundPipe may come down to its fused stage. */
static gboolean
check_least_size(const RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;
    const RpScheduleOps *schedule = rp_schedule_find(run->schedule, error);
    gint64 rounds = run->round > 0 ? MAX(1, run->micro_batches / run->round) : run->micro_batches;

    if (schedule == NULL)
        return FALSE;
    return schedule->dispatched ? check_size(job, TRUE, 1, (guint)rounds, error)
                                : check_size(job, FALSE, run->n_devices, 1, error);
}

/* Messages of schedules and partitions speak of options; a run file has keys. */
static void
name_keys(GError *error)
{
    static const char *const names[][2] = {
        {"--micro-batches, --iterations", "micro_batches"},
        {"--forward-stages", "forward_stages"},
        {"--backward-stages", "backward_stages"},
        {"--micro-batches", "micro_batches"},
        {"--partition", "partition"},
        {"--schedule", "schedule"},
        {"--stages", "stages"},
        {"--round", "round"},
        {"--gpus", "devices"},
    };
    g_autoptr(GString) message = g_string_new(error->message);

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        g_string_replace(message, names[i][0], names[i][1], 0);
    g_free(error->message);
    error->message = g_string_free(g_steal_pointer(&message), FALSE);
}

static gboolean
resolve(const RpTrainJob *job, const RpNetwork *network, gint64 round, RpRequest *request,
        GError **error)
{
    RpScheduleArgs args = schedule_args(job, round);
    GError *problem = NULL;

    args.constant_bytes = rp_network_constant_bytes(network);
    gboolean resolved = rp_request_resolve(&args, job->profile, request, &problem);

    rp_schedule_args_clear(&args);
    if (resolved)
        return TRUE;
    name_keys(problem);
    g_propagate_error(error, problem);
    return FALSE;
}

/* Limits that the run file sets; what the machine has is the trainer's to check. Arenas of devices
 * that are threads come out of host memory. */
static gboolean
check_memory(const RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;
    guint64 devices = 0;

    for (guint g = 0; run->device_ops->host_memory && g < run->n_devices; g++)
        devices += rp_plan_arena_bytes(job->plan, g);
    if (run->host_memory_bytes > 0 && run->host_memory_bytes <= devices) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_MEMORY,
                    "host memory: the arenas of %u devices alone need %" G_GUINT64_FORMAT
                    " bytes, host_memory is %" G_GUINT64_FORMAT
                    ": use fewer devices, a smaller micro-batch or a shorter sequence",
                    run->n_devices, devices, run->host_memory_bytes);
        return FALSE;
    }
    return rp_plan_check_memory(job->plan, job->device_memory_bytes,
                                run->host_memory_bytes > 0 ? run->host_memory_bytes - devices : 0,
                                error);
}

/*
 * In bound schedules the head does not run when its stage goes forward: the loss and its gradient
 * are computed at once, at the beginning of the backward action.
 *
 *   planned   [ F: blocks, head ]  ...  [ B: recompute, head, blocks ]
 *   run       [ F: blocks ]        ...  [ B: recompute, head forward and back, blocks ]
 *
 * So all of the head's time is planned there. RoundPipe runs it in the fused stage, where both
 * stand together anyway.
 */
static gboolean
place_head(RpTrainJob *job, GError **error)
{
    const RpScheduleOps *schedule = rp_schedule_find(job->run->schedule, error);
    RpLayer *head = &job->profile->layers[job->profile->n_layers - 1];

    if (schedule == NULL)
        return FALSE;
    if (!schedule->dispatched && head->kind == RP_LAYER_HEAD) {
        head->backward_ns += head->forward_ns;
        head->backward_spread_ns += head->forward_spread_ns;
        head->forward_ns = 0;
        head->forward_spread_ns = 0;
    }
    return TRUE;
}

/* A few iterations of a request. */
static RpTrace *
simulate(const RpTrainJob *job, const RpNetwork *network, RpRequest *request, RpPlan **plan,
         GError **error)
{
    const RpPartition *partition = request->partition;
    const guint rounds = request->options.micro_batches / request->options.round;
    const guint calls = (guint)job->run->gradient_accumulation_steps;

    request->options.calls = calls;
    request->window = rp_steady_window(
        job->run->n_devices, (partition->n_forward + partition->n_backward) * rounds * calls);
    request->iterations = request->window.iterations;
    return rp_request_simulate(request, job->profile, plan, error);
}

/* All micro-batches in one round is the default, because its bits do not depend on devices or on
 * what was measured; where other rounds are faster, say so. */
static void
consider_rounds(RpTrainJob *job, const RpNetwork *network)
{
    g_auto(RpRequest) other = {0};
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = NULL;

    if (strcmp(job->run->round_text, "all") != 0 || job->run->n_devices == 1 ||
        !job->request.options.schedule->dispatched || !resolve(job, network, 0, &other, NULL) ||
        other.options.round == job->request.options.round)
        return;
    trace = simulate(job, network, &other, &plan, NULL);
    if (trace == NULL || !rp_plan_check_memory(plan, job->device_memory_bytes, 0, NULL))
        return;
    const RpSteady steady = rp_report_steady(trace, other.window.first, other.window.end);

    job->other_round = other.options.round;
    job->other_gain = (double)job->steady.iteration_ns / (double)steady.iteration_ns - 1;
}

/* Of the step time, as far as the layers' measurements go. Synchronous steps count from steady
 * ones, too. */
static gboolean
predict_range(RpTrainJob *job, GError **error)
{
    RpRequest steady = job->request; /* borrowed */
    g_auto(RpResult) result = {0};

    steady.steady = TRUE;
    if (!rp_result_spread(&steady, job->profile, &result, error))
        return FALSE;
    job->least_ns = result.least_ns;
    job->most_ns = result.most_ns;
    return TRUE;
}

static gboolean
predict(RpTrainJob *job, const RpNetwork *network, GError **error)
{
    const RpRunFile *run = job->run;

    if (!place_head(job, error) || !resolve(job, network, run->round, &job->request, error))
        return FALSE;
    if (!check_size(job, job->request.options.schedule->dispatched,
                    job->request.partition->n_forward + job->request.partition->n_backward,
                    job->request.options.micro_batches / job->request.options.round, error))
        return FALSE;
    job->trace = simulate(job, network, &job->request, &job->plan, error);
    if (job->trace == NULL)
        return FALSE;
    job->steady = rp_report_steady(job->trace, job->request.window.first, job->request.window.end);
    if (!check_memory(job, error))
        return FALSE;
    consider_rounds(job, network);
    return predict_range(job, error);
}

gboolean
rp_train_job_prepare(RpTrainJob *job, const RpRunFile *run, const char *earlier_run, GError **error)
{
    job->run = run;
    job->device_processors = rp_cli_device_processors(run->n_devices);
    job->optimizer_threads = run->optimizer.threads > 0
                                 ? (guint)run->optimizer.threads
                                 : rp_cli_optimizer_threads(run->device_ops, run->n_devices);
    if (!check_least_size(job, error) || !open_model(job, error) || !open_data(job, error))
        return FALSE;

    job->profile = strcmp(run->profile, "auto") == 0 ? measure_profile(job, earlier_run, error)
                                                     : read_profile(job, run->profile, error);
    if (job->profile == NULL || !take_memory(job, error))
        return FALSE;
    g_autoptr(RpNetwork) network = make_network(job);

    if (strcmp(run->profile, "auto") == 0)
        rp_cli_name_model(job->profile, run->model);
    job->profile_json = rp_profile_to_json(job->profile);
    /* threads have what the machine has, GPUs what was found free */
    if (run->device_memory_bytes > 0 || run->device_ops->host_memory)
        job->profile->gpu_memory_bytes = run->device_memory_bytes;
    job->device_memory_bytes = job->profile->gpu_memory_bytes;
    return predict(job, network, error);
}
