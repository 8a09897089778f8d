#include "cli/network.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"
#include "core/formats/export.h"
#include "core/formats/schedule-file.h"
#include "exec/gguf/gguf.h"
#include "run/trained.h"
#include "text/chat/chat.h"

typedef struct {
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

static gboolean
export_profile(const RpArgs *args, GError **error)
{
    static const char *const dtypes[] = {"bf16", "fp16", NULL};
    RpRunSpec run = args->run;
    g_auto(GStrv) targets = rp_lora_read_targets(run.lora.targets);
    const RpWorkload workload = rp_cli_workload(&run, targets);
    g_autofree char *name = NULL;
    RpModel model;

    run.micro_batch_size = args->box.micro_batch > 0 ? args->box.micro_batch : args->sequences;
    run.sequence_length = args->box.sequence > 0 ? args->box.sequence : args->tokens_per_sequence;
    run.plan.gpus = run.plan.gpus > 0 ? run.plan.gpus : RP_CLI_GPUS;
    if (!rp_cli_open_model(args->model, &model, &name, error))
        return rp_prefix_error(error, "--profile: ");
    g_autoptr(RpGpu) gpu = rp_box_open(&args->box, NULL, error);

    if (gpu == NULL ||
        (workload.dtype != NULL && rp_cli_choice("dtype", workload.dtype, dtypes, error) < 0) ||
        !rp_cli_check_lora(&model, workload.lora_rank, targets, error) ||
        !rp_cli_check_writable(args->output, error))
        return FALSE;
    g_autoptr(RpProfile) profile = rp_cli_predict_profile(&model, gpu, &run, error);

    if (profile == NULL)
        return FALSE;
    g_autofree char *text = rp_profile_to_json(profile);

    return rp_cli_write_text(args->output, text, error);
}

/* ---- a schedule ---- */

static gboolean
write_pytorch(GOutputStream *stream, gpointer user_data, GError **error)
{
    Source *source = user_data;

    if (source->orders == NULL)
        return rp_export_pytorch_timed(source->trace, 0, stream, &source->note, error);
    return rp_export_pytorch(source->orders, stream, &source->note, error);
}

static gboolean
export_pytorch(const RpArgs *args, const RpPlan *plan, const RpTrace *trace, GError **error)
{
    g_autoptr(RpOrders) orders = args->timed ? NULL : rp_orders_from_plan(plan, 0);
    Source source = {.trace = trace, .orders = orders};
    const gboolean written = rp_cli_write_file(args->pytorch_csv, write_pytorch, &source, error);

    if (written && source.note != NULL)
        rp_cli_note("note", "%s: %s", args->pytorch_csv, source.note);
    g_free(source.note);
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
export_order(const RpArgs *args, const char *path, const RpRequest *request,
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
    return rp_cli_write_file(args->order, write_order, &order, error);
}

static gboolean
check_paths(const RpArgs *args, const char *path, GError **error)
{
    const RpCliFile files[] = {
        {"--chrome", args->chrome, RP_CLI_PRINTED},
        {"--csv", args->csv, RP_CLI_PRINTED},
        {"--pytorch-csv", args->pytorch_csv, RP_CLI_PRINTED},
        {"--write-schedule", args->order, RP_CLI_PRINTED},
    };

    return rp_cli_check_outputs(path, args, files, G_N_ELEMENTS(files), error);
}

static gboolean
export_schedule(const RpArgs *args, const char *path, GError **error)
{
    g_auto(RpRequest) request = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    if (!check_paths(args, path, error) || !rp_request_load(args, path, &profile, &request, error))
        return FALSE;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);

    return trace != NULL && rp_cli_write_trace(args->chrome, trace, plan, error) &&
           rp_cli_write_tasks(args->csv, trace, error) &&
           (args->pytorch_csv == NULL || export_pytorch(args, plan, trace, error)) &&
           (args->order == NULL || export_order(args, path, &request, profile, error));
}

/* ---- a model for llama.cpp ---- */

/* A model's file has these beside the weights. */
typedef struct {
    RpTokenizer *tokenizer;
    RpChat *chat;
    RpGeneratorOptions answers; /* of tokens that end them */
} Words;

static void
words_clear(Words *words)
{
    g_clear_pointer(&words->chat, rp_chat_free);
    g_clear_pointer(&words->tokenizer, rp_tokenizer_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Words, words_clear)

static gboolean
open_words(const RpTrained *model, Words *words, GError **error)
{
    const RpChatOptions none = {0};
    const char *directory = rp_trained_directory(model, "tokenizer.json");

    words->tokenizer = rp_tokenizer_open(directory, error);
    if (words->tokenizer == NULL || !rp_trained_ends(model, &words->answers, error))
        return FALSE;
    words->chat = rp_chat_open(directory, words->tokenizer, &none, error);
    return words->chat != NULL;
}

/* Before the weights are read. */
static gboolean
check_gguf(const RpArgs *args, const char *word, GError **error)
{
    g_autofree char *model = rp_model_path(word);
    g_autofree char *weights = g_build_filename(model, "model.safetensors", NULL);
    const RpCliFile files[] = {{"MODEL", word, RP_CLI_READ},
                               {"MODEL", weights, RP_CLI_READ},
                               {"--gguf", args->gguf, RP_CLI_WRITTEN}};

    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    if (args->force || !g_file_test(args->gguf, G_FILE_TEST_EXISTS))
        return TRUE;
    return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
                   "%s: expected no file there, found one; --force replaces it", args->gguf);
}

static gboolean
choose_type(const RpArgs *args, const RpTrained *model, RpGgufType *type, GError **error)
{
    const gboolean is_adapter = model->adapter != NULL;
    const int choice = args->quantize != NULL
                           ? rp_cli_choice("quantize", args->quantize, rp_gguf_type_names, error)
                           : (int)(is_adapter ? RP_GGUF_F32 : rp_gguf_type_of(model->weights));

    if (choice < 0)
        return FALSE;
    *type = (RpGgufType)choice;
    if (*type == RP_GGUF_MXFP4 && !is_adapter && model->config.experts <= 1)
        return rp_cli_refuse(error, "--quantize: expected a mixture of experts for mxfp4, whose "
                                    "matrices it packs alone; q4_0 has 4 bits, too");
    return !is_adapter || *type < RP_GGUF_Q8_0 ||
           rp_cli_refuse(error, "--quantize: expected f32, f16 or bf16 of adapters, found %s",
                         args->quantize);
}

static gboolean
export_gguf(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    RpProgress progress = {0};
    RpGgufOptions options = {.progress = rp_progress_counted, .user_data = &progress};
    g_auto(RpTrained) model = {.any_base = args->run.lora.any_base};
    g_auto(Words) words = {0};

    if (!check_gguf(args, word, error) ||
        !rp_trained_open_weights(&model, word, args->adapter, error) ||
        !rp_gguf_check_model(&model.config, error) ||
        !choose_type(args, &model, &options.type, error) ||
        (model.adapter == NULL && !open_words(&model, &words, error)))
        return FALSE;
    g_autofree char *whole = g_canonicalize_filename(word, NULL);
    g_autofree char *name = g_path_get_basename(whole);
    g_autofree char *difference = rp_gguf_difference(&model.config);

    options.name = name;
    options.tokenizer = words.tokenizer;
    options.chat_template = words.chat != NULL ? rp_chat_template_source(words.chat) : NULL;
    options.ends = words.answers.ends;
    options.n_ends = words.answers.n_ends;
    progress = rp_progress_begin("writing parameters", 0);
    const gboolean written = rp_gguf_write(model.weights, args->gguf, &options, error);

    rp_progress_clear();
    if (!written)
        return FALSE;
    if (difference != NULL)
        rp_cli_note("note", "%s", difference);
    rp_report_text(report, "gguf", args->gguf, NULL);
    rp_report_text(report, "type", rp_gguf_type_names[options.type], NULL);
    rp_report_say(report, "%s: %s in %s", args->gguf,
                  model.adapter != NULL ? "adapters" : "a model", rp_gguf_type_names[options.type]);
    return TRUE;
}

/* ---- command ---- */

/* --gguf stands alone, and some options go with it only. */
static const char *
find_gguf_problem(const RpArgs *args, const char *word)
{
    static const char *const own[] = {"quantize", "force", "adapter", "any-base"};
    static const char *const others[] = {"profile:model", "output",      "chrome",
                                         "csv",           "pytorch-csv", "write-schedule"};

    for (gsize i = 0; args->gguf == NULL && i < G_N_ELEMENTS(own); i++)
        if (rp_args_has(args, own[i]))
            return "--quantize, --force, --adapter and --any-base go with --gguf FILE";
    if (args->gguf != NULL && word == NULL)
        return "--gguf: expected RUN or MODEL, found nothing";
    for (gsize i = 0; args->gguf != NULL && i < G_N_ELEMENTS(others); i++)
        if (rp_args_has(args, others[i]))
            return "--gguf: expected nothing else to write beside it";
    return NULL;
}

static const char *
find_problem(const RpArgs *args, const char *path)
{
    static const char *const of_models[] = {"output",    "dtype",        "accumulate", "matmul",
                                            "lora-rank", "lora-targets", "base",       "devices"};
    gboolean schedule = args->chrome != NULL || args->csv != NULL || args->pytorch_csv != NULL ||
                        args->order != NULL || args->timed;

    if (args->gguf != NULL || find_gguf_problem(args, path) != NULL)
        return find_gguf_problem(args, path);
    if (args->model != NULL && (path != NULL || schedule))
        return "--profile: expected neither PROFILE.json nor --chrome, --csv or --pytorch-csv "
               "beside it";
    if (args->model != NULL && args->box.gpu == NULL)
        return "--gpu: expected the name of a GPU, found nothing; `roundpipe gpus` lists them";
    if (args->model != NULL && args->output == NULL)
        return "--output: expected a file to write (- = standard output), found nothing";
    if (args->run.lora.targets != NULL && args->run.lora.rank == 0)
        return "--lora-targets: expected --lora-rank beside it";
    if (args->model != NULL)
        return NULL;
    for (gsize i = 0; i < G_N_ELEMENTS(of_models); i++)
        if (rp_args_has(args, of_models[i]))
            return "--output, --dtype, --accumulate, --matmul, --lora-rank, --lora-targets, --base "
                   "and --devices go with --profile MODEL";
    if (path == NULL)
        return "something is missing: expected PROFILE.json, --profile MODEL or --gguf FILE; see "
               "--help";
    if (args->chrome == NULL && args->csv == NULL && args->pytorch_csv == NULL &&
        args->order == NULL)
        return "nothing to write: expected --chrome, --csv, --pytorch-csv or --write-schedule";
    if (args->timed && args->pytorch_csv == NULL)
        return "--timed: expected --pytorch-csv beside it";
    return NULL;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *problem = find_problem(args, words[0]);

    if (problem != NULL)
        return rp_cli_refuse(error, "%s", problem);
    if (args->gguf != NULL)
        return export_gguf(args, words[0], report, error);
    return args->model != NULL ? export_profile(args, error)
                               : export_schedule(args, words[0], error);
}

static const RpUse uses[] = {
    {"gguf quantize"},
    {"force", "with --gguf: replace a file that is there"},
    {"adapter", "with --gguf: adapters of MODEL, which are written alone"},
    {"any-base", "with --gguf: "},
    {"profile:model sequences tokens:sequence lora-rank lora-targets base"},
    {"dtype", "with --profile: bf16 (default) or fp16", "NAME"},
    {"matmul"},
    {"devices",
     "with --profile: whose kernels the sizes are of, host or cuda (default: cuda where it is "
     "built in)",
     "NAME"},
    {"accumulate"},
    {"output", "with --profile: where to write it; - = standard output", "FILE.json"},
    {"chrome csv pytorch-csv write-schedule timed"},
    {0},
};

static const RpArgs defaults = {.sequences = RP_CLI_SEQUENCES,
                                .tokens_per_sequence = RP_CLI_TOKENS};

const RpCommand rp_command_export = {
    .name = "export",
    .summary = "write a model for llama.cpp, or a profile, a trace or a schedule for other tools",
    .words = "[RUN|MODEL|PROFILE.json]",
    .help =
        "Writes a model for llama.cpp, a profile from the catalogue, or a simulated schedule for\n"
        "other tools.\n\n"
        "Examples:\n"
        "  roundpipe export run --gguf model.gguf --quantize q8_0\n"
        "  roundpipe export --profile qwen3-8b --gpu rtx4090 -o qwen3-8b.json\n"
        "  roundpipe export profiles/rtx4090/qwen3-1.7b.json --schedule 1f1b \\\n"
        "    --gpus 8 --micro-batches 16 --chrome trace.json --pytorch-csv -",
    .requests = RP_REQUEST,
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
