#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/reports/result.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"
#include "core/formats/export.h"
#include "core/formats/schedule-file.h"

typedef struct {
    RpScheduleArgs request;
    /* a profile from the catalogue */
    char *model;
    int sequences;
    int tokens;
    int lora_rank;
    char *lora_targets;
    char *base;
    char *dtype;
    char *accumulate;
    char *matmul;
    char *devices;
    char *output;
    /* a simulated schedule */
    char *chrome;
    char *csv;
    char *pytorch_csv;
    char *order;
    gboolean timed;
} ExportArgs;

typedef struct {
    const RpPlan *plan;
    const RpTrace *trace;
    const RpOrders *orders; /* %NULL: timed */
    char *note;
} Source;

typedef struct {
    const RpScheduleOps *schedule;
    RpShape shape;
    const char *comment;
} Order;

/* ---- a profile ---- */

/* The cost model would refuse them, too, but it knows no option. */
static gboolean
check_words(const ExportArgs *more, GError **error)
{
    static const char *const dtypes[] = {"bf16", "fp16", NULL};
    int half_sums, matmul;

    return (more->dtype == NULL || rp_cli_choice("dtype", more->dtype, dtypes, error) >= 0) &&
           rp_cli_choose("accumulate", "accumulate", more->accumulate, &half_sums, error) &&
           rp_cli_choose("matmul", "matmul", more->matmul, &matmul, error);
}

static gboolean
export_profile(const RpScheduleArgs *args, const ExportArgs *more, GError **error)
{
    RpWorkload workload = {
        .sequences = (guint)(args->box.micro_batch > 0 ? args->box.micro_batch : more->sequences),
        .tokens_per_sequence = (guint)(args->box.sequence > 0 ? args->box.sequence : more->tokens),
        .dtype = more->dtype,
        .accumulate = more->accumulate,
        .fp8 = g_strcmp0(more->matmul, "fp8") == 0 || g_strcmp0(more->matmul, "fp8-head") == 0,
        .fp8_head = g_strcmp0(more->matmul, "fp8-head") == 0,
        .lora_rank = (guint)more->lora_rank,
        .base = more->base,
        .gpus = args->ask.options.gpus > 0 ? args->ask.options.gpus : RP_CLI_GPUS,
    };
    g_auto(GStrv) targets = rp_lora_read_targets(more->lora_targets);
    g_autofree char *name = NULL;
    RpModel model;

    workload.lora_targets = targets;
    if (!rp_cli_open_model(more->model, &model, &name, error)) {
        g_prefix_error(error, "--profile: ");
        return FALSE;
    }
    model.name = model.hf_name = name;
    g_autoptr(RpGpu) gpu = rp_box_open(&args->box, NULL, error);

    if (gpu == NULL || !check_words(more, error) ||
        !rp_cli_check_lora(&model, workload.lora_rank, targets, error) ||
        !rp_cli_check_writable(more->output, error))
        return FALSE;
    g_autoptr(RpProfile) profile =
        rp_cli_predict_profile(&model, gpu, &workload, more->devices, error);

    if (profile == NULL)
        return FALSE;
    g_autofree char *text = rp_profile_to_json(profile);

    return rp_cli_write_text(more->output, text, error);
}

/* ---- a schedule ---- */

static gboolean
write_chrome(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Source *source = user_data;

    return rp_export_chrome(source->trace, source->plan, RP_CHROME_MEMORY | RP_CHROME_FLOWS, stream,
                            error);
}

static gboolean
write_csv(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Source *source = user_data;

    return rp_export_csv(source->trace, stream, error);
}

static gboolean
write_pytorch(GOutputStream *stream, gpointer user_data, GError **error)
{
    Source *source = user_data;

    if (source->orders == NULL)
        return rp_export_pytorch_timed(source->trace, 0, stream, &source->note, error);
    return rp_export_pytorch(source->orders, stream, &source->note, error);
}

static gboolean
export_pytorch(const ExportArgs *more, Source *source, GError **error)
{
    g_autoptr(RpOrders) orders = more->timed ? NULL : rp_orders_from_plan(source->plan, 0);
    gboolean written;

    source->orders = orders;
    written = rp_cli_write_file(more->pytorch_csv, write_pytorch, source, error);
    if (written && source->note != NULL)
        fprintf(stderr, "roundpipe export: note: %s: %s\n", more->pytorch_csv, source->note);
    g_free(source->note);
    return written;
}

static gboolean
write_order(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Order *order = user_data;

    return rp_schedule_file_write(order->schedule, &order->shape, order->comment, stream, error);
}

/* With what simulates it again in a comment. */
static gboolean
export_order(const ExportArgs *more, const char *path, const RpRequest *request,
             const RpProfile *profile, GError **error)
{
    const RpPartition *partition = request->partition;
    g_autofree char *forward = rp_cli_stage_list(profile, partition->forward, partition->n_forward);
    g_autofree char *backward =
        rp_cli_stage_list(profile, partition->backward, partition->n_backward);
    g_autofree char *lists =
        partition->dispatched
            ? g_strdup_printf("--forward-stages %s --backward-stages %s", forward, backward)
            : g_strdup_printf("--stages %s", forward);
    g_autofree char *words = g_strdup_printf("%s: roundpipe simulate %s --schedule-file FILE %s",
                                             request->options.schedule->name, path, lists);
    g_autofree char *comment = g_utf8_make_valid(words, -1);
    Order order = {request->options.schedule, rp_request_shape(request),
                   g_strdelimit(comment, "\r\n", ' ')};

    order.shape.gpus_per_root = profile->links.gpus_per_root;
    if (request->options.async && request->options.schedule->unflushed)
        return rp_cli_refuse(error,
                             "--write-schedule: %s has no flush between iterations, and a file has "
                             "one iteration: expected no --async beside it",
                             request->options.schedule->name);
    if (order.shape.slices > 1)
        return rp_cli_refuse(error,
                             "--write-schedule: a file has whole sequences: expected 1 slice of "
                             "each, found %u",
                             order.shape.slices);
    return rp_cli_write_file(more->order, write_order, &order, error);
}

static gboolean
check_paths(const ExportArgs *more, const char *path, GError **error)
{
    g_autofree char *read = rp_cli_profile_path(path);
    const RpCliFile files[] = {
        {"PROFILE.json", read, RP_CLI_READ},
        {"--schedule-file", more->request.schedule_file, RP_CLI_READ},
        {"--chrome", more->chrome, RP_CLI_PRINTED},
        {"--csv", more->csv, RP_CLI_PRINTED},
        {"--pytorch-csv", more->pytorch_csv, RP_CLI_PRINTED},
        {"--write-schedule", more->order, RP_CLI_PRINTED},
    };

    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
export_schedule(const RpScheduleArgs *args, const ExportArgs *more, const char *path,
                GError **error)
{
    g_auto(RpRequest) request = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    if (!check_paths(more, path, error) || !rp_request_load(args, path, &profile, &request, error))
        return FALSE;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);
    Source source = {.plan = plan, .trace = trace};

    return trace != NULL &&
           (more->chrome == NULL ||
            rp_cli_write_file(more->chrome, write_chrome, &source, error)) &&
           (more->csv == NULL || rp_cli_write_file(more->csv, write_csv, &source, error)) &&
           (more->pytorch_csv == NULL || export_pytorch(more, &source, error)) &&
           (more->order == NULL || export_order(more, path, &request, profile, error));
}

/* ---- command ---- */

static const char *
find_problem(const ExportArgs *more, const char *path)
{
    gboolean schedule = more->chrome != NULL || more->csv != NULL || more->pytorch_csv != NULL ||
                        more->order != NULL || more->timed;

    if (more->model != NULL && (path != NULL || schedule))
        return "--profile: expected neither PROFILE.json nor --chrome, --csv or --pytorch-csv "
               "beside it";
    if (more->model != NULL && more->request.box.gpu == NULL)
        return "--gpu: expected the name of a GPU, found nothing; `roundpipe gpus` lists them";
    if (more->model != NULL && more->output == NULL)
        return "--output: expected a file to write (- = standard output), found nothing";
    if (more->lora_targets != NULL && more->lora_rank == 0)
        return "--lora-targets: expected --lora-rank beside it";
    if (more->model != NULL)
        return NULL;
    if (more->output != NULL || more->dtype != NULL || more->accumulate != NULL ||
        more->matmul != NULL || more->lora_rank > 0 || more->lora_targets != NULL ||
        more->base != NULL || more->devices != NULL)
        return "--output, --dtype, --accumulate, --matmul, --lora-rank, --lora-targets, --base "
               "and --devices go with --profile MODEL";
    if (path == NULL)
        return "something is missing: expected PROFILE.json or --profile MODEL; see --help";
    if (more->chrome == NULL && more->csv == NULL && more->pytorch_csv == NULL &&
        more->order == NULL)
        return "nothing to write: expected --chrome, --csv, --pytorch-csv or --write-schedule";
    if (more->timed && more->pytorch_csv == NULL)
        return "--timed: expected --pytorch-csv beside it";
    return NULL;
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const ExportArgs *args = user_args;
    const char *problem = find_problem(args, words[0]);

    if (problem != NULL)
        return rp_cli_refuse(error, "%s", problem);
    return args->model != NULL ? export_profile(&args->request, args, error)
                               : export_schedule(&args->request, args, words[0], error);
}

static const GOptionEntry options[] = {
    {"profile", 'p', RP_WORD(ExportArgs, model),
     "write the profile of a model: its name, config.json or directory", "MODEL"},
    {"sequences", 0, RP_COUNT(ExportArgs, sequences),
     "with --profile: sequences of a micro-batch (default: 4)", "B"},
    {"tokens", 0, RP_COUNT(ExportArgs, tokens),
     "with --profile: tokens of a sequence (default: 2048)", "T"},
    {"lora-rank", 0, RP_COUNT(ExportArgs, lora_rank),
     "with --profile: train adapters only (default: every weight)", "R"},
    {"lora-targets", 0, RP_WORD(ExportArgs, lora_targets),
     "with --lora-rank: adapters of these modules alone, as q_proj,v_proj", "LIST"},
    {"base", 0, RP_WORD(ExportArgs, base),
     "with --lora-rank: frozen weights in bf16 (default), fp8, nf4 or mxfp4", "FORMAT"},
    {"dtype", 0, RP_WORD(ExportArgs, dtype), "with --profile: bf16 (default) or fp16", "NAME"},
    {"matmul", 0, RP_WORD(ExportArgs, matmul),
     "with --profile: fp8, fp8-head, or numbers of dtype (default)", "TYPE"},
    {"devices", 0, RP_WORD(ExportArgs, devices),
     "with --profile: whose kernels the sizes are of, host or cuda (default: cuda where it is "
     "built in)",
     "NAME"},
    {"accumulate", 0, RP_WORD(ExportArgs, accumulate),
     "with --profile: fp32 (default), or fp16 with dtype fp16 or fp8", "NAME"},
    {"output", 'o', RP_FILE(ExportArgs, output),
     "with --profile: where to write it; - = standard output", "FILE.json"},
    {"chrome", 0, RP_FILE(ExportArgs, chrome),
     "write the trace for ui.perfetto.dev or chrome://tracing", "FILE.json"},
    {"csv", 0, RP_FILE(ExportArgs, csv), "write a line for each task", "FILE.csv"},
    {"pytorch-csv", 0, RP_FILE(ExportArgs, pytorch_csv),
     "write the order of actions as a PyTorch pipeline CSV", "FILE.csv"},
    {"write-schedule", 0, RP_FILE(ExportArgs, order),
     "write the order of actions as --schedule-file reads it", "FILE"},
    {"timed", 0, RP_FLAG(ExportArgs, timed),
     "PyTorch CSV with a column a step of time and idle cells", NULL},
    {0},
};

static const ExportArgs defaults = {.sequences = RP_CLI_SEQUENCES, .tokens = RP_CLI_TOKENS};

const RpCommand rp_command_export = {
    .name = "export",
    .summary = "write a profile, a trace or a schedule for other tools",
    .expert = TRUE,
    .words = "[PROFILE.json]",
    .help = "Writes a profile from the catalogue, or a simulated schedule for other tools.\n\n"
            "Examples:\n"
            "  roundpipe export --profile qwen3-8b --gpu rtx4090 -o qwen3-8b.json\n"
            "  roundpipe export profiles/rtx4090/qwen3-1.7b.json --schedule 1f1b \\\n"
            "    --gpus 8 --micro-batches 16 --chrome trace.json --pytorch-csv -",
    .requests = RP_REQUEST,
    .options = options,
    .args_size = sizeof(ExportArgs),
    .defaults = &defaults,
    .run = run,
};
