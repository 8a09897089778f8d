/* roundpipe plan: what will happen if I train MODEL on N x GPU. */
#include "cli/cmd-plan.h"

#include <string.h>

#include "core/cost-model.h"
#include "exec/model/hf-config.h"

/* The words as written. */
typedef struct {
    const char *directory; /* the one that is no option; or %NULL */
    char *model;
    char *gpu;
    char *profile;
    int gpus;
    char *gpu_memory;
    char *host_memory;
    int sequence;
    int batch;
    int lora_rank;
    int micro_batch;
    int micro_batches;
    int round;
    gboolean sync;
    char *dtype;
    char *accumulate;
    char *optimizer;
    char *schedules;
    char *devices;
    char *attention;
    gboolean max_sequence;
    gboolean json;
} Args;

/* What they mean. */
typedef struct {
    RpAdviseQuery query;
    RpProfile *profile;
    RpPlanNetwork *network; /* what `train` would run; %NULL: it does not have that */
    char *name;             /* of the model */
    GPtrArray *schedules;   /* (element-type RpScheduleOps), %NULL-terminated */
} Question;

static const char *const dtype_names[] = {"bf16", "fp16", NULL};
static const char *const accumulate_names[] = {"fp32", "fp16", NULL};
const char *const rp_cmd_plan_optimizers[] = {"fused", "lean", NULL};

static void
clear_args(Args *args)
{
    g_free(args->model);
    g_free(args->gpu);
    g_free(args->profile);
    g_free(args->gpu_memory);
    g_free(args->host_memory);
    g_free(args->dtype);
    g_free(args->accumulate);
    g_free(args->optimizer);
    g_free(args->schedules);
    g_free(args->devices);
    g_free(args->attention);
}

static void
clear_question(Question *question)
{
    rp_profile_free(question->profile);
    rp_plan_network_free(question->network);
    g_free(question->name);
    g_clear_pointer(&question->schedules, g_ptr_array_unref);
}

/* ---- reading ---- */

static gboolean
refuse(const char *option, const char *message, GError **error)
{
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "%s: %s", option, message);
    return FALSE;
}

/* What the library refuses because of the words is wrong usage. */
static void
blame_usage(GError **error)
{
    if (*error == NULL || (*error)->domain != RP_ADVISE_ERROR)
        return;
    (*error)->domain = RP_CLI_ERROR;
    (*error)->code = RP_CLI_ERROR_USAGE;
}

/* Counts that cannot be left out. */
static gboolean
check_counts(const Args *args, GError **error)
{
    const struct {
        const char *option;
        gboolean missing;
    } counts[] = {
        {"--gpus", args->gpus == 0 && !args->max_sequence},
        {"--sequence", args->sequence == 0 && args->profile == NULL && !args->max_sequence},
        {"--batch", args->batch == 0 && !args->max_sequence &&
                        (args->micro_batch == 0 || args->micro_batches == 0)},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(counts); i++)
        if (counts[i].missing)
            return refuse(counts[i].option, "expected a number of 1 or more, found nothing", error);
    return TRUE;
}

static gboolean
read_schedules(const char *list, Question *question, GError **error)
{
    question->schedules = g_ptr_array_new();
    if (list == NULL) {
        for (const RpScheduleOps *const *at = rp_schedules(); *at != NULL; at++)
            g_ptr_array_add(question->schedules, (gpointer)*at);
    } else {
        g_auto(GStrv) names = g_strsplit(list, ",", -1);

        for (guint i = 0; names[i] != NULL; i++) {
            const RpScheduleOps *schedule = rp_schedule_find(g_strstrip(names[i]), error);

            if (schedule == NULL) {
                g_prefix_error(error, "--schedules: ");
                return FALSE;
            }
            g_ptr_array_add(question->schedules, (gpointer)schedule);
        }
    }
    g_ptr_array_add(question->schedules, NULL);
    return TRUE;
}

/* Options that say what the catalogue's cost model is asked; a timing file has the answers. */
static gboolean
read_profile(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    if (args->gpu != NULL)
        return refuse("--profile", "the file names its GPU; leave --gpu out", error);
    if (args->dtype != NULL || args->accumulate != NULL || args->lora_rank != 0)
        return refuse(
            "--profile",
            "the file's times have their own --dtype, --accumulate and --lora-rank; leave "
            "them out",
            error);
    if (args->max_sequence)
        return refuse("--max-sequence",
                      "a timing file has sizes for one length only; use --model and --gpu", error);
    question->profile = rp_profile_load(args->profile, error);
    if (question->profile == NULL)
        return FALSE;
    if (!rp_profile_check_full(question->profile, error)) {
        g_prefix_error(error, "%s: ", args->profile);
        return FALSE;
    }
    const RpProfile *profile = question->profile;

    if (args->model != NULL && g_ascii_strcasecmp(args->model, profile->model) != 0) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--model: expected \"%s\" as in %s, or nothing, found \"%s\"", profile->model,
                    args->profile, args->model);
        return FALSE;
    }
    if (args->sequence != 0 && (guint)args->sequence != profile->tokens_per_sequence) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--sequence: expected %u as in %s, or nothing, found %d",
                    profile->tokens_per_sequence, args->profile, args->sequence);
        return FALSE;
    }
    query->profile = profile;
    query->tokens_per_sequence = profile->tokens_per_sequence;
    query->dtype = profile->dtype;
    query->accumulate = profile->accumulate;
    if (profile->gpu_memory_bytes > RP_ADVISE_GPU_RESERVE_BYTES)
        query->gpu_bytes = profile->gpu_memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    return TRUE;
}

/* A directory has sizes, but no times and no adapters. */
static gboolean
check_directory(const Args *args, GError **error)
{
    if (args->directory == NULL)
        return TRUE;
    if (!args->max_sequence)
        return refuse(args->directory, "a directory is for --max-sequence; expected --model NAME",
                      error);
    if (args->model != NULL || args->profile != NULL || args->lora_rank != 0 ||
        args->accumulate != NULL)
        return refuse(
            args->directory,
            "leave --model, --profile, --lora-rank and --accumulate out, or the directory", error);
    return TRUE;
}

static gboolean
read_directory(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;

    const RpPlanNetworkWords words = {
        .devices = args->devices, .dtype = args->dtype, .attention = args->attention};

    question->network = rp_plan_network_open(args->directory, &words, error);
    if (question->network == NULL)
        return FALSE;
    question->name = g_path_get_basename(args->directory);
    query->dtype = rp_plan_network_dtype(question->network);
    return TRUE;
}

/* What `train` has is asked there, anything else of the cost model. */
static gboolean
read_network(const Args *args, Question *question, GError **error)
{
    const RpModel *model = question->query.model;
    const RpPlanNetworkWords words = {
        .devices = args->devices,
        .dtype = question->query.dtype,
        .attention = args->attention,
        .half_sums = strcmp(question->query.accumulate, "fp16") == 0,
    };
    g_autoptr(GError) problem = NULL;

    if (args->lora_rank == 0)
        question->network = rp_plan_network_of(model, &words, &problem);
    if (question->network != NULL || problem == NULL ||
        g_error_matches(problem, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_UNSUPPORTED))
        return TRUE;
    g_propagate_error(error, g_steal_pointer(&problem));
    return FALSE;
}

static gboolean
find_gpu(const Args *args, RpAdviseQuery *query, GError **error)
{
    if (args->gpu == NULL)
        return TRUE;
    query->gpu = rp_gpu_find(args->gpu, error);
    if (query->gpu == NULL) {
        g_prefix_error(error, "--gpu: ");
        return FALSE;
    }
    query->gpu_bytes = query->gpu->memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    return TRUE;
}

static gboolean
read_catalogue(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    int index;

    if (args->model == NULL)
        return refuse("--model", "expected a name, found nothing; or give --profile", error);
    query->model = rp_model_find(args->model, error);
    if (query->model == NULL) {
        g_prefix_error(error, "--model: ");
        return FALSE;
    }
    index = args->dtype != NULL ? rp_cli_choice("dtype", args->dtype, dtype_names, error) : 0;
    if (index < 0)
        return FALSE;
    query->dtype = dtype_names[index];
    index = args->accumulate != NULL
                ? rp_cli_choice("accumulate", args->accumulate, accumulate_names, error)
                : 0;
    if (index < 0)
        return FALSE;
    query->accumulate = accumulate_names[index];
    query->tokens_per_sequence = (guint)args->sequence;
    query->lora_rank = (guint)args->lora_rank;
    question->name = g_strdup(query->model->name);
    return read_network(args, question, error);
}

/* Times are those of a GPU; sizes need none. */
static gboolean
check_gpu(const Args *args, const Question *question, GError **error)
{
    const gboolean sizes_only = args->max_sequence && question->network != NULL;

    if (question->network == NULL && (args->devices != NULL || args->attention != NULL))
        return refuse(args->devices != NULL ? "--devices" : "--attention",
                      "sizes are those of the cost model or the file: `train` has no such run; "
                      "leave it out",
                      error);
    if (args->gpu == NULL && args->profile == NULL && !sizes_only)
        return refuse("--gpu", "expected a name, found nothing; or give --profile", error);
    if (sizes_only && args->gpu == NULL && args->gpu_memory == NULL)
        return refuse("--gpu-memory", "expected a size, found nothing; or give --gpu", error);
    return TRUE;
}

static gboolean
read_memory(const char *option, const char *text, guint64 *bytes, GError **error)
{
    if (text == NULL)
        return TRUE;
    if (!rp_cli_parse_bytes(option, text, bytes, error))
        return FALSE;
    if (*bytes > 0)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--%s: expected more than 0, found \"%s\"",
                option, text);
    return FALSE;
}

static gboolean
read_question(const Args *args, Question *question, GError **error)
{
    RpAdviseQuery *query = &question->query;
    int optimizer = 0;

    query->gpus = args->gpus == 0 ? 1 : (guint)args->gpus;
    query->batch = (guint)args->batch;
    query->micro_batch = (guint)args->micro_batch;
    query->micro_batches = (guint)args->micro_batches;
    query->round = (guint)args->round;
    query->sync = args->sync;
    query->accumulate = accumulate_names[0];
    if (args->optimizer != NULL)
        optimizer = rp_cli_choice("optimizer", args->optimizer, rp_cmd_plan_optimizers, error);
    if (optimizer < 0)
        return FALSE;
    query->optimizer = (RpOptimizerMode)optimizer;
    if (!check_directory(args, error) || !check_counts(args, error) ||
        !read_schedules(args->schedules, question, error) || !find_gpu(args, query, error))
        return FALSE;
    if (!(args->profile != NULL     ? read_profile(args, question, error)
          : args->directory != NULL ? read_directory(args, question, error)
                                    : read_catalogue(args, question, error)) ||
        !check_gpu(args, question, error))
        return FALSE;
    if (question->network != NULL)
        query->sizes = rp_plan_network_sizes(question->network);
    return read_memory("gpu-memory", args->gpu_memory, &query->gpu_bytes, error) &&
           read_memory("host-memory", args->host_memory, &query->host_bytes, error);
}

/* ---- the command ---- */

static gboolean
run_longest(const Question *question, gboolean as_json, int *code, GError **error)
{
    const RpAdviseQuery *query = &question->query;
    g_auto(RpAdviseLongest) longest = {0};

    if (!rp_advise_longest(query, &longest, error))
        return FALSE;
    *code = longest.tokens > 0 ? RP_EXIT_OK : RP_EXIT_FAILED;
    rp_cmd_plan_print_longest(question->name, query, &longest, question->network, as_json);
    return TRUE;
}

static gboolean
run(const Args *args, int *code, GError **error)
{
    Question question = {0};
    g_autoptr(RpAdvice) advice = NULL;
    gboolean done = read_question(args, &question, error);

    if (done && args->max_sequence) {
        done = run_longest(&question, args->json, code, error);
    } else if (done) {
        advice = rp_advise(&question.query,
                           (const RpScheduleOps *const *)(void *)question.schedules->pdata, error);
        done = advice != NULL;
    }
    if (advice != NULL) {
        *code = advice->best != NULL ? RP_EXIT_OK : RP_EXIT_FAILED;
        rp_cmd_plan_print(advice, question.network, args->json);
    }
    clear_question(&question);
    blame_usage(error);
    return done;
}

int
rp_cmd_plan(int argc, char **argv)
{
    Args args = {0};
    const GOptionEntry entries[] = {
        {"model", 0, 0, G_OPTION_ARG_STRING, &args.model, "model, see `roundpipe models`", "NAME"},
        {"gpu", 0, 0, G_OPTION_ARG_STRING, &args.gpu, "GPU, see `roundpipe gpus`", "NAME"},
        {"profile", 0, 0, G_OPTION_ARG_FILENAME, &args.profile,
         "timing file instead of --gpu and --model; fixes the micro-batch", "PROFILE.json"},
        {"gpus", 'n', 0, G_OPTION_ARG_INT, &args.gpus, "number of GPUs", "N"},
        {"gpu-memory", 0, 0, G_OPTION_ARG_STRING, &args.gpu_memory,
         "for a plan on each GPU (default: the card's, less 0.6 GiB for the CUDA context)", "SIZE"},
        {"host-memory", 0, 0, G_OPTION_ARG_STRING, &args.host_memory,
         "for a plan on the host (default: not checked)", "SIZE"},
        {"sequence", 0, 0, G_OPTION_ARG_INT, &args.sequence, "tokens of a sequence", "TOKENS"},
        {"batch", 0, 0, G_OPTION_ARG_INT, &args.batch, "sequences of a step, all GPUs together",
         "SEQUENCES"},
        {"lora-rank", 0, 0, G_OPTION_ARG_INT, &args.lora_rank,
         "train rank-R adapters (default: all parameters)", "R"},
        {"micro-batch", 0, 0, G_OPTION_ARG_INT, &args.micro_batch,
         "sequences of a micro-batch (default: chosen)", "B"},
        {"micro-batches", 'm', 0, G_OPTION_ARG_INT, &args.micro_batches,
         "micro-batches of a step (default: chosen)", "M"},
        {"round", 0, 0, G_OPTION_ARG_INT, &args.round, "micro-batches of a round (default: chosen)",
         "M_R"},
        {"sync", 0, 0, G_OPTION_ARG_NONE, &args.sync, "synchronous optimizer step", NULL},
        {"dtype", 0, 0, G_OPTION_ARG_STRING, &args.dtype,
         "bf16 (default) or fp16; of a MODEL_DIR: default its own", "NAME"},
        {"accumulate", 0, 0, G_OPTION_ARG_STRING, &args.accumulate,
         "of matmuls: fp32 (default) or fp16", "NAME"},
        {"optimizer", 0, 0, G_OPTION_ARG_STRING, &args.optimizer,
         "fused (default, 18 bytes a parameter) or lean (16)", "NAME"},
        {"schedules", 0, 0, G_OPTION_ARG_STRING, &args.schedules,
         "schedules to compare (default: all)", "LIST"},
        {"max-sequence", 0, 0, G_OPTION_ARG_NONE, &args.max_sequence,
         "tell the longest sequence that `train` takes at micro-batch 1, nothing else", NULL},
        {"devices", 0, 0, G_OPTION_ARG_STRING, &args.devices,
         "of the longest sequence: room of whose kernels, cuda (default, where it is built in) or "
         "host",
         "NAME"},
        {"attention", 0, 0, G_OPTION_ARG_STRING, &args.attention,
         "of the longest sequence: the run's, builtin (default) or cudnn", "NAME"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        G_OPTION_ENTRY_NULL,
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("[MODEL_DIR]",
                      "Tells what will happen if a model is trained on these GPUs.\n\n"
                      "Examples:\n"
                      "  roundpipe plan --model qwen3-32b --gpu rtx4090 --gpus 8 \\\n"
                      "    --host-memory 800GiB --sequence 2048 --batch 128\n"
                      "  roundpipe plan MODEL_DIR --max-sequence --gpu-memory 24GiB\n\n"
                      "Exit codes: 0 it fits, 1 it does not, 2 wrong usage.",
                      entries, NULL, 0, 1, &argc, &argv, &error)) {
        code = rp_cli_fail("plan", error);
    } else {
        args.directory = argc > 1 ? argv[1] : NULL;
        if (!run(&args, &code, &error))
            code = rp_cli_fail("plan", error);
    }
    clear_args(&args);
    return code;
}
