/* roundpipe new: a run file for a model, data and this machine. */
#include <string.h>

#include "cli/plan/plan.h"
#include "core/base/units.h"
#include "exec/cuda/runtime/device.h"
#include "exec/system/available-memory.h"

#define LORA_RANK 16
#define LEAST_SEQUENCE 256
#define ANY_GPU "rtx4090" /* whose times are taken where the catalogue has not the card */
#define HOST_SHARE 0.9    /* of the available memory: something is left to others */

typedef struct {
    char *model;
    char *data;
    char *output;
    gboolean lora;
    gboolean force;
    int sequence;
    int gpus;
    int lora_rank;
    char *base;
    char *box;
} NewArgs;

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
    least -= MIN(least / 2, RP_ADVISE_GPU_RESERVE_BYTES);
    machine->gpu_memory = g_strdup_printf("%" G_GUINT64_FORMAT "B", least);
    machine->devices = g_strdup_printf("cuda:%u", machine->gpus);
    return TRUE;
}

static gboolean
look(const NewArgs *args, Machine *machine, GError **error)
{
    const guint gpus = rp_cuda_device_count();
    const guint64 memory = rp_available_memory();

    if (memory > 0)
        machine->host_memory =
            g_strdup_printf("%" G_GUINT64_FORMAT "B", (guint64)(HOST_SHARE * (double)memory));
    if ((guint)args->gpus > gpus)
        return rp_cli_refuse(error, "--gpus: expected at most %u, as this machine has, found %d",
                             gpus, args->gpus);
    if (gpus > 0)
        return look_at_gpus((guint)args->gpus, machine, error);
    machine->name = g_strdup("processor threads");
    machine->gpu = ANY_GPU;
    machine->gpu_memory = g_strdup("1TiB"); /* threads' memory is the host's */
    machine->devices = g_strdup("host:1");
    return TRUE;
}

/* ---- what fits ---- */

/* The question of a try and its answer. */
typedef struct {
    RpPlanArgs words;
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
    tried->words.base = (char *)base;
    tried->words.optimizer = (char *)optimizer;
    tried->words.sequence = sequence;
    if (!rp_plan_question_read(&tried->words, &tried->question, error))
        return FALSE;
    tried->advice =
        rp_advise(&tried->question.query,
                  (const RpScheduleOps *const *)(void *)tried->question.schedules->pdata, error);
    return tried->advice != NULL;
}

/* The first that fits: less memory for the base, then for the optimizer, then shorter sequences. */
static gboolean
find_fitting(const NewArgs *args, Try *tried, GError **error)
{
    const struct {
        const char *base, *optimizer;
    } ways[] = {{args->base, NULL}, {"fp8", NULL}, {"nf4", NULL}, {args->base, "lean"}};
    const gboolean adapts = tried->words.lora_rank > 0;
    int sequence = args->sequence;

    for (;; sequence /= 2) {
        for (guint i = 0; i < G_N_ELEMENTS(ways); i++) {
            const gboolean packs = i == 1 || i == 2;

            if (packs ? !adapts || args->base != NULL : i == 3 && adapts)
                continue;
            if (!ask(tried, ways[i].base, ways[i].optimizer, sequence, error))
                return FALSE;
            if (tried->advice->best != NULL)
                return TRUE;
            if (packs && rp_plan_network_base(tried->question.network) == NULL)
                break;
        }
        if (args->sequence == 0 && sequence == 0)
            sequence = (int)tried->question.query.tokens_per_sequence;
        if (args->sequence != 0 || sequence / 2 < LEAST_SEQUENCE)
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
check(const NewArgs *args, const char *path, GError **error)
{
    const RpCliFile files[] = {
        {"--data", args->data, RP_CLI_READ},
        {"RUN.yaml", path, RP_CLI_WRITTEN},
    };

    if (args->model == NULL || args->data == NULL)
        return rp_cli_refuse(error, "%s: expected a %s, found nothing; see --help",
                             args->model == NULL ? "--model" : "--data",
                             args->model == NULL ? "directory" : "file");
    if ((args->base != NULL || args->lora_rank != 0) && !args->lora)
        return rp_cli_refuse(error, "%s: expected --lora beside it",
                             args->base != NULL ? "--base" : "--lora-rank");
    if (!args->force && g_file_test(path, G_FILE_TEST_EXISTS))
        return rp_cli_refuse(error, "%s: expected no such file, found one; --force replaces it",
                             path);
    if (!g_file_test(args->data, G_FILE_TEST_EXISTS)) {
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, "--data: %s: no such file",
                    args->data);
        return FALSE;
    }
    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
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
    rp_report_say(report, "next: roundpipe train %s --dry-run", path);
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    NewArgs *args = user_args;
    const char *path = words[0];
    g_auto(Machine) machine = {0};
    g_auto(Try) tried = {0};
    g_autofree char *output = NULL;

    if (!check(args, path, error) || !look(args, &machine, error))
        return FALSE;
    tried.words = (RpPlanArgs){
        .path = args->model,
        .box.gpu = (char *)machine.gpu,
        .box.file = args->box,
        .gpus = (int)machine.gpus,
        .gpu_memory = machine.gpu_memory,
        .host_memory = machine.host_memory,
        .schedules = (char *)"roundpipe",
        .devices = (char *)(machine.gpus > 0 ? "cuda" : "host"),
        .lora_rank = args->lora ? (args->lora_rank > 0 ? args->lora_rank : LORA_RANK) : 0,
    };
    if (!find_fitting(args, &tried, error))
        return FALSE;
    const gsize stem = strlen(path) - (g_str_has_suffix(path, ".yaml") ? strlen(".yaml") : 0);
    output = g_strdup_printf("%.*s-output", (int)stem, path);
    const RpPlanRunWords run_words = {.model = args->model,
                                      .data = args->data,
                                      .output = args->output != NULL ? args->output : output,
                                      .devices = machine.devices};

    if (!rp_plan_write_run(path, &tried.question, tried.advice, &run_words, error))
        return FALSE;
    report_run(report, path, &machine, &tried);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"model", 0, RP_FILE(NewArgs, model), "directory of the model: its config.json will do", "DIR"},
    {"data", 0, RP_FILE(NewArgs, data), "samples", "FILE"},
    {"lora", 0, RP_FLAG(NewArgs, lora), "train adapters beside the frozen model", NULL},
    {"output", 'o', RP_FILE(NewArgs, output),
     "directory of the run's results (default: RUN-output)", "DIR"},
    {"sequence", 0, RP_COUNT(NewArgs, sequence),
     "tokens of a sequence (default: 2048, or as many as fit)", "TOKENS"},
    {"gpus", 'n', RP_COUNT(NewArgs, gpus), "number of GPUs (default: all)", "N"},
    {"force", 0, RP_FLAG(NewArgs, force), "replace a run file that is there", NULL},
    RP_FOR_EXPERTS,
    {"lora-rank", 0, RP_COUNT(NewArgs, lora_rank), "with --lora: rank of adapters (default: 16)",
     "R"},
    {"base", 0, RP_WORD(NewArgs, base),
     "with --lora: frozen weights in bf16, fp8, nf4 or mxfp4 (default: the first that fits)",
     "FORMAT"},
    {"box", 0, RP_FILE(NewArgs, box),
     "links, host memory and optimizer of this machine, as `roundpipe doctor --box FILE` measured "
     "them",
     "FILE.json"},
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
    .options = options,
    .args_size = sizeof(NewArgs),
    .run = run,
};
