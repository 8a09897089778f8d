/*
 * roundpipe bench-card: one file of what cards do, for people who have none of the kind.
 *
 *   links | matmuls | model: layers, prediction, steps | model ... | model ...
 *
 * The file is written anew between parts, so that a run that breaks off leaves what was measured. It
 * names no host, user, path or address.
 */
#include <string.h>
#include <unistd.h>

#include "cli/config.h"
#include "cli/reports/reports.h"
#include "cli/train/train.h"
#include "exec/cuda/runtime/device.h"
#include "exec/measure/profile.h"
#include "exec/system/memory-limit.h"

#define FORMAT "roundpipe-card/1"

#define SECONDS 600.0
#define MOST_SECONDS 86400.0

/* RpMeasureOptions.seconds: as usual, which GPUs always take, to reach the clock that their power allows: with 0.2 an
 * H200's steps were predicted 2 to 5 % too fast. Processors take less where less than SECONDS is given. */
#define MEASURED_SECONDS 0.5
#define LEAST_MEASURED_SECONDS 0.01

#define LEAST_STEPS 4 /* the first two do not count */
#define MOST_STEPS 20
#define LEAST_MICRO_BATCHES 8

/* Host memory of a run, docs/gpu.md: weights, gradients and AdamW's state; frozen weights. */
#define PARAMETER_BYTES 18
#define FROZEN_PARAMETER_BYTES 2

typedef struct {
    const char *name;
    guint hidden; /* of a Llama that CONFIG describes; 0: the catalogue has the model */
    guint sequence_length, micro_batch_size;
    const char *lora; /* of the run file; %NULL: all parameters are trained */
} Model;

/* Processor threads take the first three. GPUs take the last three for which the host has memory: as
 * `roundpipe plan` says, all fit cards of 24 GB, and a step takes one to five seconds on an RTX 4090. */
static const Model models[] = {
    {"tiny-1m", 64, 128, 1, NULL},    {"tiny-3m", 128, 128, 1, NULL},
    {"tiny-9m", 256, 128, 1, NULL},   {"qwen3-0.6b", 0, 2048, 2, NULL},
    {"qwen3-1.7b", 0, 2048, 2, NULL}, {"qwen3-4b", 0, 2048, 2, "lora: {rank: 16}\n"},
};

#define N_RUNS 3
#define OWN_KEYS "^(model|data|output|devices|steps|epochs|trace|profile)="
#define VOCABULARY 4096 /* no model has fewer */
#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%u,"       \
    "\"intermediate_size\":%u,\"num_hidden_layers\":8,\"num_attention_heads\":4,"                  \
    "\"vocab_size\":" G_STRINGIFY(VOCABULARY) ",\"max_position_embeddings\":2048}"

static const struct {
    RpDtype operands, result;
    gboolean half_sums;
} products[] = {
    {RP_DTYPE_FP32, RP_DTYPE_FP32, FALSE}, /* of processors; GPUs do the others */
    {RP_DTYPE_BF16, RP_DTYPE_BF16, FALSE}, {RP_DTYPE_FP16, RP_DTYPE_FP16, FALSE},
    {RP_DTYPE_FP16, RP_DTYPE_FP16, TRUE},  {RP_DTYPE_E4M3, RP_DTYPE_BF16, FALSE},
    {RP_DTYPE_E4M3, RP_DTYPE_BF16, TRUE},
};

typedef struct {
    RpTrainWords words; /* of the run under way; first, for its events have it */
    const RpArgs *args;
    char **sets; /* of each run: its devices, and --set */
    RpReport *report;
    const RpDeviceOps *ops;
    guint n_devices;
    double measured_seconds;
    char *directory; /* of data and outputs, removed in the end */
    const Model *chosen[N_RUNS];
    GPtrArray *runs; /* RpRunSpec of each */
    RpRunSpec *run;  /* under way */
    gint64 run_end_us, end_us;
    void (*show_step)(gpointer user_data, const RpStepReport *report, double step_ns);
    gboolean told; /* the problem of the run under way */
    gboolean complete;
} Bench;

static void
bench_clear(Bench *bench)
{
    if (bench->directory != NULL)
        (void)rp_checkpoint_remove_tree(bench->directory);
    g_free(bench->directory);
    g_strfreev(bench->sets);
    g_ptr_array_unref(bench->runs);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Bench, bench_clear)

/* Writes all figures that are known so far. Errors: G_IO_ERROR */
static gboolean
save(const Bench *bench, const char *unfinished, GError **error)
{
    g_autofree char *json = rp_report_to_json(bench->report, unfinished);

    return rp_cli_write_text(bench->args->output, json, error);
}

/* Adds a problem to the part under way, without paths and PCI addresses, which a message may name. */
static void
tell_problem(Bench *bench, const char *message)
{
    g_autoptr(GRegex) names = g_regex_new(
        "(?<![\\w/])/[^\\s:;,\"')]+|\\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-9]\\b", 0, 0,
        NULL);
    g_autofree char *text =
        g_regex_replace_literal(names, message, -1, 0, "(name left out)", 0, NULL);

    rp_report_text(bench->report, "problem", text, NULL);
    rp_report_say(bench->report, "! %s", text);
    bench->complete = FALSE;
}

/* ---- the machine ---- */

static void
report_machine(const Bench *bench)
{
    RpReport *report = bench->report;
    const guint64 memory = (guint64)sysconf(_SC_PHYS_PAGES) * (guint64)sysconf(_SC_PAGESIZE);
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();
    g_autofree char *date = g_date_time_format(now, "%Y-%m-%d");

    rp_report_text(report, "format", FORMAT, NULL);
    rp_report_text(report, "date", date, NULL);
    rp_report_text(report, "roundpipe", RP_VERSION, "roundpipe");
    rp_report_built(report, bench->ops->host_memory ? NULL : bench->ops);
    rp_report_text(report, "kind", bench->ops->name, "devices");
    rp_report_show(report, "%s:%u", bench->ops->name, bench->n_devices);
    rp_report_count(report, "devices", bench->n_devices, NULL);
    rp_report_real(report, "seconds", bench->args->seconds, 1, NULL);
    rp_report_list(report, "settings");
    for (char **set = bench->args->sets; set != NULL && *set != NULL; set++)
        rp_report_text(report, NULL, *set, NULL);
    rp_report_end(report);
    rp_report_count(report, "processors", rp_usable_processors(), "processors");
    rp_report_bytes(report, "memory_bytes", memory, "memory");
}

/* A row of @products. */
static void
measure_product(Bench *bench, RpProbe *probe, guint i)
{
    RpReport *report = bench->report;
    const RpDtype operands = products[i].operands;
    const guint size = bench->ops->host_memory ? 512 : 8192; /* some milliseconds */
    const RpMatmulArgs shape = {.m = size,
                                .n = size,
                                .k = size,
                                .a_dtype = operands,
                                .b_dtype = operands,
                                .c_dtype = products[i].result,
                                .half_sums = products[i].half_sums};
    g_autoptr(GError) error = NULL;
    double flops_per_s = 0;

    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "matmul", rp_dtype_name(operands), "<matmul of");
    rp_report_text(report, "accumulate", products[i].half_sums ? "fp16" : "fp32", "<sums");
    rp_report_count(report, "size", size, "size");
    if (!rp_measure_matmul(probe, bench->ops->kernels(), &shape, bench->measured_seconds,
                           &flops_per_s, &error))
        tell_problem(bench, error->message);
    rp_report_real(report, "tflops", flops_per_s / 1e12, 6, "TFLOP/s");
    rp_report_show(report, "%.4g", flops_per_s / 1e12);
    rp_report_end(report);
}

static void
measure_devices(Bench *bench, RpProbe *probe)
{
    RpReport *report = bench->report;
    const gboolean host = bench->ops->host_memory;
    const gboolean fp8 = bench->ops->kernels()->check_fp8(bench->n_devices, NULL);
    g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    const RpMeasureOptions options = {.devices = bench->n_devices};
    g_autoptr(RpProfile) box = rp_measure_box(probe, &options, &error);

    rp_report_gpus(report, host ? 0 : MIN(bench->n_devices, rp_cuda_device_count()), problems);
    if (problems->len > 0)
        tell_problem(bench, g_ptr_array_index(problems, 0));
    rp_report_object(report, "links", NULL);
    if (box != NULL)
        rp_report_profile_links(report, &box->links);
    else
        tell_problem(bench, error->message);
    rp_report_end(report);
    rp_report_table(report, "matmuls", NULL, 0);
    for (guint i = 0; i < G_N_ELEMENTS(products); i++)
        if ((products[i].operands == RP_DTYPE_FP32) == host &&
            (products[i].operands < RP_N_DTYPES || fp8))
            measure_product(bench, probe, i);
    rp_report_end(report);
}

/* ---- a run ---- */

/* No signal ends a run that takes longer than predicted, for that would save a checkpoint. */
static int
never_stop(void)
{
    return 0;
}

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    Bench *bench = user_data;

    if (rp_train_stop_signal() != 0 ||
        (report->step >= LEAST_STEPS && g_get_monotonic_time() > bench->run_end_us))
        bench->run->steps = MIN(bench->run->steps, (gint64)report->step + 1);
    bench->show_step(user_data, report, step_ns);
}

/* Said and saved now: if a GPU has failed, its driver may end the process. */
static void
failed(gpointer user_data, GError **error)
{
    Bench *bench = user_data;

    tell_problem(bench, (*error)->message);
    bench->told = TRUE;
    (void)save(bench, "complete", NULL);
}

static void
report_prediction(RpReport *report, const RpTrainJob *job)
{
    rp_report_text(report, "device", job->measured->device, NULL);
    rp_report_text(report, "dtype", job->measured->dtype, NULL);
    rp_report_text(report, "matmul", job->measured->matmul, NULL);
    rp_report_text(report, "accumulate", job->measured->accumulate, NULL);
    rp_report_text(report, "attention", job->measured->attention, NULL);
    rp_report_count(report, "round", job->request.options.round, NULL);
    rp_report_bool(report, "async", job->run->async, NULL);
    rp_report_profile_layers(report, job->measured);
    rp_report_profile_optimizer(report, job->measured, job->optimizer_threads);
    rp_report_object(report, "predicted", NULL);
    rp_train_report_figures(report, (double)job->steady.iteration_ns, job->steady.ratio,
                            (double)rp_train_job_step_tokens(job) * job->useful);
    rp_train_report_arenas(report, job, NULL);
    rp_report_end(report);
    rp_report_flush(report);
}

static gboolean
train(Bench *bench, RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome, GError **error)
{
    if (bench->run != bench->runs->pdata[0] && g_get_monotonic_time() > bench->end_us)
        return rp_cli_refuse(error, "no time was left: use more --seconds");
    job->measured_seconds = bench->measured_seconds;
    if (!rp_train_find_checkpoint(bench->run, how, error) ||
        !rp_train_job_prepare(job, bench->run, NULL, FALSE, how->events, error)) {
        if (job->measured != NULL)
            rp_report_profile_layers(bench->report, job->measured);
        return FALSE;
    }
    report_prediction(bench->report, job);
    if (!save(bench, "complete", error))
        return FALSE;
    const double left_ns = 1e3 * (double)(bench->run_end_us - g_get_monotonic_time());

    bench->run->steps = (gint64)CLAMP(left_ns / (double)MAX(job->steady.iteration_ns, 1),
                                      (double)LEAST_STEPS, (double)MOST_STEPS);
    return rp_train_run(job, how, outcome, error);
}

static void
run_model(Bench *bench)
{
    g_auto(RpTrainJob) job = {0};
    g_auto(RpTrainOutcome) outcome = {0};
    g_autoptr(GError) error = NULL;
    RpRunEvents events = rp_train_events(&bench->words);
    RpTrainHow how = {.events = &events, .lock = -1};

    bench->show_step = events.stepped;
    events.stepped = stepped;
    events.failed = failed;
    events.stop = never_stop;
    bench->words = (RpTrainWords){.report = bench->report, .job = &job, .outcome = &outcome};
    bench->told = FALSE;
    if (train(bench, &job, &how, &outcome, &error))
        rp_train_report_measured(bench->report, &job, &outcome);
    rp_cli_leave_within(0);
    if (outcome.left)
        rp_cli_leave();
    if (how.lock >= 0)
        close(how.lock);
    if (error != NULL && !bench->told) {
        rp_cli_add_remedy(error, job.remedy);
        g_autofree char *message = rp_cli_message(error, TRUE);

        tell_problem(bench, message);
    }
}

static gboolean
run_models(Bench *bench, GError **error)
{
    RpReport *report = bench->report;

    rp_report_list(report, "models");
    for (guint i = 0; i < bench->runs->len && !rp_cli_leaves() && rp_train_stop_signal() == 0;
         i++) {
        const gint64 now_us = g_get_monotonic_time();

        bench->run = g_ptr_array_index(bench->runs, i);
        bench->run_end_us = now_us + (bench->end_us - now_us) / (gint64)(bench->runs->len - i);
        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "model", bench->chosen[i]->name, NULL);
        rp_report_head(report, "%s", bench->chosen[i]->name);
        rp_report_count(report, "lora_rank", bench->run->lora.rank, NULL);
        rp_report_count(report, "sequence_length", bench->run->sequence_length, NULL);
        rp_report_count(report, "micro_batch_size", bench->run->micro_batch_size, NULL);
        rp_report_count(report, "micro_batches", bench->run->micro_batches, NULL);
        if (!save(bench, "complete", error))
            return FALSE;
        run_model(bench);
        rp_report_end(report);
        rp_report_flush(report);
    }
    rp_report_end(report);
    bench->complete = bench->complete && rp_train_stop_signal() == 0;
    return TRUE;
}

/* ---- before it ---- */

/* The run of @model, as `roundpipe train` would read it, and files that it reads. */
static RpRunSpec *
read_run(const Bench *bench, const Model *model, GError **error)
{
    const guint micro_batches = MAX(LEAST_MICRO_BATCHES, 2 * bench->n_devices);
    const gsize n = (gsize)model->sequence_length * model->micro_batch_size * micro_batches;
    g_autofree char *config = g_strdup_printf(CONFIG, model->hidden, 3 * model->hidden);
    g_autofree char *path = g_strdup_printf("%s/%s", bench->directory, model->name);
    g_autofree char *shapes = g_strconcat(path, ".json", NULL);
    g_autofree char *data = g_strconcat(path, ".bin", NULL);
    g_autofree guint32 *ids = g_new(guint32, n);
    g_autoptr(GRand) random = g_rand_new_with_seed(1);
    g_autofree char *text = g_strdup_printf(
        "model: 'random:%s'\ndata: '%s'\noutput: '%s'\ndtype: %s\n"
        "sequence_length: %u\nmicro_batch_size: %u\nmicro_batches: %u\nround: auto\nsteps: %u\n"
        "plot_loss: false\nprofile: measure\ncheckpoint: {final: false, minutes: 0}\n%s",
        model->hidden > 0 ? shapes : model->name, data, path,
        bench->ops != NULL && bench->ops->host_memory ? "fp32" : "bf16", model->sequence_length,
        model->micro_batch_size, micro_batches, MOST_STEPS, model->lora != NULL ? model->lora : "");

    for (gsize i = 0; i < n; i++)
        ids[i] = GUINT32_TO_LE((guint32)g_rand_int_range(random, 0, VOCABULARY));
    if (!g_file_set_contents(shapes, config, -1, error) ||
        !g_file_set_contents(data, (const char *)ids, (gssize)(n * sizeof *ids), error))
        return NULL;
    return rp_run_file_parse("bench-card", text, strlen(text), (const char *const *)bench->sets,
                             error);
}

/* Whether the host's memory is enough, as far as is known. */
static gboolean
fits(const Bench *bench, const Model *model)
{
    const RpModel *known = model->hidden == 0 ? rp_model_find(model->name, NULL) : NULL;
    const guint bytes = model->lora != NULL ? FROZEN_PARAMETER_BYTES : PARAMETER_BYTES;
    const guint64 memory = rp_available_memory(); /* 0: unknown */

    return known == NULL || (!bench->ops->host_memory &&
                             (memory == 0 || rp_model_parameters(known) * bytes <= memory));
}

/* The last that fit. They are read before anything is measured, for a word of --set may be wrong. */
static gboolean
choose_models(Bench *bench, GError **error)
{
    guint n = N_RUNS;

    for (guint i = G_N_ELEMENTS(models); n > 0; i--) /* the first three fit any machine */
        if (fits(bench, &models[i - 1]))
            bench->chosen[--n] = &models[i - 1];
    for (; n < N_RUNS; n++) {
        RpRunSpec *run = read_run(bench, bench->chosen[n], error);

        if (run == NULL)
            return FALSE;
        g_ptr_array_add(bench->runs, run);
    }
    return TRUE;
}

static gboolean
check_args(const RpArgs *args, GError **error)
{
    const RpCliFile files[] = {{"--output", args->output, RP_CLI_WRITTEN}};

    if (args->output == NULL)
        return rp_cli_refuse(error, "--output: expected a file, found nothing");
    if (!(args->seconds > 0 && args->seconds <= MOST_SECONDS)) /* also refuses NaN */
        return rp_cli_refuse(error, "--seconds: expected more than 0 and at most %g, found %g",
                             MOST_SECONDS, args->seconds);
    for (char **set = args->sets; set != NULL && *set != NULL; set++)
        if (g_regex_match_simple(OWN_KEYS "|" G_DIR_SEPARATOR_S, *set, 0, 0))
            return rp_cli_refuse(error,
                                 "--set: expected no file, which results would name, nor a key "
                                 "that bench-card sets itself, found \"%s\"",
                                 *set);
    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_autoptr(GPtrArray) sets = g_ptr_array_new();
    g_auto(Bench) bench = {
        .args = args,
        .report = report,
        .runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_run_spec_free),
        .end_us = g_get_monotonic_time() + (gint64)(args->seconds * G_USEC_PER_SEC),
        .complete = TRUE,
    };

    if (!check_args(args, error))
        return FALSE;
    g_ptr_array_add(sets, g_strdup_printf("devices=%s",
                                          args->run.devices != NULL ? args->run.devices : "cuda"));
    for (char **set = args->sets; set != NULL && *set != NULL; set++)
        g_ptr_array_add(sets, g_strdup(*set));
    g_ptr_array_add(sets, NULL);
    bench.sets = (char **)g_ptr_array_steal(sets, NULL);
    bench.directory = g_dir_make_tmp("roundpipe-card-XXXXXX", error);
    if (bench.directory == NULL)
        return FALSE;
    g_autoptr(RpRunSpec) any = read_run(&bench, &models[0], error); /* which devices there are */
    if (any == NULL)
        return FALSE;
    bench.ops = any->device_ops;
    bench.n_devices = any->n_devices;
    bench.measured_seconds = bench.ops->host_memory
                                 ? CLAMP(args->seconds / SECONDS * MEASURED_SECONDS,
                                         LEAST_MEASURED_SECONDS, MEASURED_SECONDS)
                                 : MEASURED_SECONDS;
    if (!choose_models(&bench, error))
        return FALSE;
    g_autoptr(RpProbe) probe = bench.ops->probe_new(0, error);
    if (probe == NULL)
        return FALSE;
    report_machine(&bench);
    measure_devices(&bench, probe);
    g_clear_pointer(&probe, rp_probe_free);
    rp_report_flush(report);
    if (!run_models(&bench, error))
        return FALSE;
    rp_report_bool(report, "complete", bench.complete, NULL);
    report->exit = bench.complete ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_report_say(report, "%s %s",
                  bench.complete ? "written to" : "not all was measured; the rest:", args->output);
    return save(&bench, NULL, error);
}

static const RpUse uses[] = {
    {"devices", "cuda: all GPUs; cuda:N: the first N; host:N: processor threads (default: cuda)",
     "WHERE:N"},
    {"output", "file of the results", "FILE.json"},
    {"seconds"},
    {"set", "set a key of the three runs, as device_memory=24GiB; any number of times"},
    {0},
};

static const RpArgs defaults = {.seconds = SECONDS};

const RpCommand rp_command_bench_card = {
    .name = "bench-card",
    .summary = "measure this machine's cards for people who have none of the kind",
    .help = "Measures links, matmuls and three models within ten minutes: times of their layers, "
            "and\nsteps of training beside their prediction, with random weights and data. The "
            "file names\ncards and processor, but no host, user, path or address.\n\n"
            "Example:\n  roundpipe bench-card -o card.json\n"
            "  roundpipe bench-card --devices cuda:4 --set device_memory=24GiB -o four.json",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
