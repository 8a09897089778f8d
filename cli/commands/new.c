/* roundpipe new: a run file for a model, data and this machine. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plan/plan.h"
#include "core/base/units.h"
#include "exec/cuda/runtime/device.h"
#include "exec/system/memory-limit.h"
#include "run/model.h"
#include "run/train/train.h"

#define LORA_RANK 16
#define LEAST_SEQUENCE 256
#define SEQUENCE_STEP 64   /* sequences are multiples of it */
#define WHOLE_SAMPLES 0.95 /* that a sequence has room for */
#define WANTED_STEPS 100   /* fewer teach little: batches become smaller */
#define ANY_GPU "rtx4090"  /* whose times are taken where the catalogue has not the card */
#define HOST_SHARE 0.9     /* of the available memory: something is left to others */

/* Devices of this machine, in words of `roundpipe plan`. */
typedef struct {
    guint gpus; /* 0: processor threads */
    const char *gpu;
    gboolean known; /* the catalogue has the card */
    char *name;
    char *gpu_memory; /* or %NULL */
    char *host_memory;
    char *devices; /* of the run file */
} Machine;

static void
machine_clear(Machine *machine)
{
    g_free(machine->name);
    g_free(machine->gpu_memory);
    g_free(machine->host_memory);
    g_free(machine->devices);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Machine, machine_clear)

/* Whether @title stands in @name, no letter or digit behind it: "L4" is not in "L40S". */
static gboolean
is_in(const char *title, const char *name)
{
    const char *at = strstr(name, title);

    return at != NULL && !g_ascii_isalnum(at[strlen(title)]);
}

/* "NVIDIA GeForce RTX 4090": the one with the longest title in that. */
static const char *
find_gpu(const char *name)
{
    gsize longest = 0;
    const char *found = NULL;
    guint n;
    const RpGpu *gpus = rp_gpu_list(&n);

    for (guint i = 0; i < n; i++)
        if (is_in(gpus[i].title, name) && strlen(gpus[i].title) > longest) {
            found = gpus[i].name;
            longest = strlen(gpus[i].title);
        }
    return found;
}

/* @gpus: that are asked for; 0: all */
static gboolean
look_at_gpus(guint gpus, Machine *machine, GError **error)
{
    guint64 least = G_MAXUINT64;

    machine->gpus = gpus > 0 ? gpus : rp_cuda_device_count();
    for (guint g = 0; g < machine->gpus; g++) {
        RpCudaDeviceInfo info;

        if (!rp_cuda_device_info(g, &info, error))
            return FALSE;
        least = MIN(least, info.free_bytes);
        if (g == 0)
            machine->name = g_strdup(info.name);
    }
    const char *gpu = find_gpu(machine->name);

    machine->known = gpu != NULL;
    machine->gpu = gpu != NULL ? gpu : ANY_GPU;
    least = rp_gpu_plan_bytes(least);
    machine->gpu_memory = g_strdup_printf("%" G_GUINT64_FORMAT "B", least);
    machine->devices = g_strdup_printf("cuda:%u", machine->gpus);
    return TRUE;
}

static gboolean
look(const RpArgs *args, Machine *machine, GError **error)
{
    const guint gpus = rp_cuda_device_count();
    const guint64 memory = rp_available_memory();

    if (memory > 0)
        machine->host_memory =
            g_strdup_printf("%" G_GUINT64_FORMAT "B", (guint64)(HOST_SHARE * (double)memory));
    if (args->run.plan.gpus > gpus)
        return rp_cli_refuse(error, "--gpus: expected at most %u, as this machine has, found %u",
                             gpus, args->run.plan.gpus);
    if (gpus > 0)
        return look_at_gpus(args->run.plan.gpus, machine, error);
    machine->name = g_strdup("processor threads");
    machine->gpu = ANY_GPU;
    machine->gpu_memory = g_strdup("1TiB"); /* threads' memory is the host's */
    machine->devices = g_strdup("host:1");
    return TRUE;
}

/* ---- the data ---- */

/* Lengths of its samples. */
typedef struct {
    GArray *lengths; /* guint64, ascending; %NULL: not known */
    guint64 n_tokens;
    int sequence;  /* that most of them fit in */
    char *problem; /* why they are not known */
} Data;

static void
data_clear(Data *data)
{
    g_clear_pointer(&data->lengths, g_array_unref);
    g_free(data->problem);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Data, data_clear)

static gboolean
count(const RpDataset *dataset, Data *data, GError **error)
{
    g_autoptr(GArray) lengths = g_array_new(FALSE, FALSE, sizeof(guint64));

    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++) {
        guint64 length;

        if (!rp_dataset_length(dataset, i, &length, error))
            return FALSE;
        g_array_append_val(lengths, length);
        data->n_tokens += length;
    }
    g_array_sort(lengths, rp_compare_uint64);
    data->lengths = g_steal_pointer(&lengths);
    return TRUE;
}

static gboolean
open_data(const RpArgs *args, Data *data, GError **error)
{
    g_autofree char *directory = rp_run_model_directory(args->model);
    RpProgress progress = {0};
    const RpRunEvents events = {.progress = rp_progress_event, .user_data = &progress};
    g_auto(RpRunSamples) samples = {0};
    RpRunSpec run = args->run;
    RpModel config;

    if (!rp_run_model_load(args->model, &config, error))
        return FALSE;
    const RpSamplesSource source = {&run, "--data", directory, &config};

    run.sequence_length = config.max_positions;
    run.router_aux_loss = -1;
    const gboolean read =
        rp_run_samples_open(&source, &events, &samples, error) && count(samples.train, data, error);

    rp_progress_clear();
    if (!read || data->lengths->len == 0)
        return read;
    const guint n = data->lengths->len;
    const guint64 most =
        g_array_index(data->lengths, guint64, MIN(n - 1, (guint)(WHOLE_SAMPLES * n)));
    const guint64 whole = (most + SEQUENCE_STEP - 1) / SEQUENCE_STEP * SEQUENCE_STEP;

    data->sequence = (int)MIN(MAX(whole, LEAST_SEQUENCE), config.max_positions);
    return TRUE;
}

/* Data that cannot be read is train's to refuse: the run file is written without its lengths. Ids
 * without borders have none. */
static void
read_data(const RpArgs *args, Data *data)
{
    g_autoptr(GError) problem = NULL;

    if (g_str_has_suffix(args->run.data, ".bin") || open_data(args, data, &problem))
        return;
    data->problem = g_strdup(problem->message);
}

static guint64
kept_tokens(const Data *data, guint sequence)
{
    guint64 sum = 0;

    for (guint i = 0; i < data->lengths->len; i++)
        sum += MIN(g_array_index(data->lengths, guint64, i), sequence);
    return sum;
}

/* Sequences of all epochs, of samples that share them. */
static double
all_sequences(const Data *data, guint sequence)
{
    return RP_PLAN_EPOCHS * (1 - RP_PLAN_VALIDATED) * (double)kept_tokens(data, sequence) /
           (double)sequence;
}

/* Returns: the largest batch that leaves as many steps as are wanted; 0: any does. */
static int
most_batch(const Data *data, int sequence, guint gpus)
{
    if (data->lengths == NULL || sequence == 0)
        return 0;
    const double batch = all_sequences(data, (guint)sequence) / WANTED_STEPS;
    const guint devices = MAX(1, gpus);

    /* as many as plan takes without data, at most */
    return batch >= (double)RP_PLAN_BATCH_PER_GPU * devices
               ? 0
               : (int)MAX(1, (guint)batch / devices) * (int)devices;
}

/* ---- what fits ---- */

/* The question of a try and its answer. */
typedef struct {
    RpArgs words;
    const char *model;
    RpPlanQuestion question;
    RpAdvice *advice;
} Try;

static void
try_clear(Try *tried)
{
    g_clear_pointer(&tried->advice, rp_advice_free);
    rp_plan_question_clear(&tried->question);
    tried->question = (RpPlanQuestion){0};
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Try, try_clear)

static gboolean
ask(Try *tried, const char *base, const char *optimizer, int sequence, GError **error)
{
    try_clear(tried);
    rp_args_set(&tried->words, "base", base);
    rp_args_set(&tried->words, "optimizer", optimizer);
    tried->words.box.sequence = sequence;
    if (!rp_plan_question_read(&tried->words, tried->model, &tried->question, error))
        return FALSE;
    tried->advice =
        rp_advise(&tried->question.query,
                  (const RpScheduleOps *const *)(void *)tried->question.schedules->pdata, error);
    return tried->advice != NULL;
}

/* The first that fits: less memory for the base, then for the optimizer, then shorter sequences. */
static gboolean
find_fitting(const RpArgs *args, const Data *data, Try *tried, GError **error)
{
    const char *base = rp_run_spec_given(&args->run, "base");
    const struct {
        const char *base, *optimizer;
    } variants[] = {{base, NULL}, {"fp8", NULL}, {"nf4", NULL}, {base, "lean"}};
    const gboolean adapts = tried->words.run.lora.rank > 0;
    const int given = args->box.sequence;
    int sequence = given != 0 ? given : data->sequence;

    for (;; sequence /= 2) {
        tried->words.batch = most_batch(data, sequence, tried->words.run.plan.gpus);
        for (guint i = 0; i < G_N_ELEMENTS(variants); i++) {
            const gboolean packs = i == 1 || i == 2;

            if (packs ? !adapts || base != NULL : i == 3 && adapts)
                continue;
            if (!ask(tried, variants[i].base, variants[i].optimizer, sequence, error))
                return FALSE;
            if (tried->advice->best != NULL)
                return TRUE;
            if (packs && rp_run_base_format(tried->question.network->weights) == NULL)
                break;
        }
        if (given == 0 && sequence == 0)
            sequence = (int)tried->question.query.tokens_per_sequence;
        if (given != 0 || sequence / 2 < LEAST_SEQUENCE)
            break;
    }
    return rp_cli_refuse(error,
                         "nothing fits this machine: expected room for %s%s; see `roundpipe "
                         "plan --model %s --gpu %s`",
                         tried->question.name, adapts ? "" : " (--lora needs less)", args->model,
                         tried->words.box.gpu);
}

/* ---- together ---- */

static gboolean
check(const RpArgs *args, const char *path, GError **error)
{
    const RpCliFile files[] = {
        {"--data", args->run.data, RP_CLI_READ},
        {"RUN.yaml", path, RP_CLI_WRITTEN},
    };

    if (args->model == NULL || args->run.data == NULL)
        return rp_cli_refuse(error, "%s: expected a %s, found nothing; see --help",
                             args->model == NULL ? "--model" : "--data",
                             args->model == NULL ? "directory" : "file");
    if ((rp_args_has(args, "base") || args->run.lora.rank != 0) && !args->lora)
        return rp_cli_refuse(error, "%s: expected --lora beside it",
                             rp_args_has(args, "base") ? "--base" : "--lora-rank");
    if (!args->force && g_file_test(path, G_FILE_TEST_EXISTS))
        return rp_cli_refuse(error, "%s: expected no such file, found one; --force replaces it",
                             path);
    if (!g_file_test(args->run.data, G_FILE_TEST_EXISTS))
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, "--data: %s: no such file",
                       args->run.data);
    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

/* Reports lengths, steps and lost tokens of the data in this run. */
static void
report_data(RpReport *report, const Data *data, const Try *tried)
{
    const RpAdviseRun *run = tried->advice->best;
    const guint sequence = tried->advice->query.tokens_per_sequence;

    if (data->problem != NULL)
        rp_report_say(report, "the lengths of the samples are not known: %s", data->problem);
    if (data->lengths == NULL)
        return;
    const double cut = 1 - (double)kept_tokens(data, sequence) / (double)MAX(1, data->n_tokens);
    const double batch = (double)run->sequences * run->options.micro_batches;
    const double steps = ceil(all_sequences(data, sequence) / batch);

    rp_report_count(report, "samples", data->lengths->len, NULL);
    rp_report_ratio(report, "cut_ratio", cut, NULL);
    rp_report_count(report, "steps", (gint64)steps, NULL);
    rp_report_say(report, "%u samples, %.1f %% of their tokens cut; about %.0f steps in %d epochs",
                  data->lengths->len, 100 * cut, steps, RP_PLAN_EPOCHS);
}

static void
report_run(RpReport *report, const char *path, const Machine *machine, const Try *tried)
{
    const RpAdviseRun *run = tried->advice->best;

    rp_report_text(report, "written", path, NULL);
    rp_report_text(report, "devices", machine->devices, NULL);
    rp_report_text(report, "device", machine->name, NULL);
    rp_report_count(report, "sequence_length", tried->advice->query.tokens_per_sequence, NULL);
    rp_report_count(report, "micro_batch_size", run->sequences, NULL);
    rp_report_count(report, "micro_batches", run->options.micro_batches, NULL);
    rp_report_text(report, "base", tried->advice->query.base, NULL);
    rp_report_bytes(report, "device_bytes", run->gpu.total, NULL);
    rp_report_bytes(report, "host_bytes", run->host.total, NULL);
    g_autofree char *gpu = rp_cli_format_bytes(run->gpu.total);
    g_autofree char *host = rp_cli_format_bytes(run->host.total);

    rp_report_say(report,
                  "%s: %s (%s), %u micro-batch%s of %u x %u tokens, %s a device, %s of host "
                  "memory (predicted)",
                  path, machine->devices, machine->name, run->options.micro_batches,
                  run->options.micro_batches == 1 ? "" : "es", run->sequences,
                  tried->advice->query.tokens_per_sequence, gpu, host);
    if (machine->gpus == 0)
        rp_report_say(report, "no GPU is there: %s", rp_cuda_no_device_text());
    else if (!machine->known)
        rp_report_say(report, "`roundpipe gpus` has no such card: sizes are right, the choice of "
                              "micro-batches is that of an " ANY_GPU);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *path = words[0];
    g_auto(Machine) machine = {0};
    g_auto(Try) tried = {0};
    g_auto(Data) data = {0};

    if (!check(args, path, error) || !look(args, &machine, error))
        return FALSE;
    tried.model = args->model;
    tried.words = (RpArgs){
        .box.gpu = (char *)machine.gpu,
        .box.file = args->box.file,
        .gpu_memory = machine.gpu_memory,
        .host_memory = machine.host_memory,
        .schedules = (char *)"roundpipe",
    };
    rp_run_spec_init(&tried.words.run);
    rp_args_set(&tried.words, "devices", machine.gpus > 0 ? "cuda" : "host");
    tried.words.run.plan.gpus = machine.gpus;
    tried.words.run.objective = args->run.objective;
    if (args->lora)
        tried.words.run.lora.rank = args->run.lora.rank > 0 ? args->run.lora.rank : LORA_RANK;
    read_data(args, &data);
    if (!find_fitting(args, &data, &tried, error))
        return FALSE;
    const gsize stem = strlen(path) - (g_str_has_suffix(path, ".yaml") ? strlen(".yaml") : 0);
    g_autofree char *output = g_strdup_printf("%.*s-output", (int)stem, path);
    const RpRunSpec run_words = {.model = (char *)args->model,
                                 .data = args->run.data,
                                 .output = args->output != NULL ? args->output : output,
                                 .devices = machine.devices};

    if (!rp_plan_write_run(path, &tried.question, tried.advice, &run_words, error))
        return FALSE;
    report_run(report, path, &machine, &tried);
    report_data(report, &data, &tried);
    rp_report_say(report, "next: roundpipe train %s --dry-run", path);
    return TRUE;
}

static const RpUse uses[] = {
    {"model", "directory of the model: its config.json will do", "DIR"},
    {"data", "samples", "FILE"},
    {"lora"},
    {"objective",
     "what is learned: sft, or a preference: dpo, ipo, orpo, simpo, kto (default: sft)"},
    {"output", "directory of the run's results (default: RUN-output)"},
    {"sequence", "tokens of a sequence (default: 95 % of the samples fit, if the memory does)",
     "TOKENS"},
    {"gpus", "number of GPUs (default: all)"},
    {"force", "replace a run file that is there"},
    RP_FOR_EXPERTS,
    {"lora-rank", "with --lora: rank of adapters (default: 16)", "R"},
    {"base",
     "with --lora: frozen weights in bf16, fp8, nf4 or mxfp4 (default: the first that fits)",
     "FORMAT"},
    {"box",
     "links, host memory and optimizer of this machine, as `roundpipe doctor --box FILE` measured "
     "them"},
    {0},
};

const RpCommand rp_command_new = {
    .name = "new",
    .summary = "write a run file for a model, data and this machine",
    .words = "RUN.yaml",
    .help = "Writes a run file with sizes that fit this machine: devices, base, sequence length "
            "and\nmicro-batches, as `roundpipe plan` recommends them, each with a comment.\n\n"
            "Example:\n  roundpipe new run.yaml --model Qwen3-8B --data chats.jsonl --lora\n"
            "  roundpipe train run.yaml",
    .uses = uses,
    .run = run,
};
