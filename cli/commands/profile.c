/* roundpipe profile: what is measured, and how. */
#include "cli/cli.h"
#include "run/devices.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/reports/profile.h"
#include "core/catalogue/catalogue.h"
#include "exec/measure/profile.h"
#include "exec/safetensors/safetensors.h"
#include "run/profile-name.h"

#define PROGRESS_INTERVAL_US (G_USEC_PER_SEC / 10)
#define MAX_SECONDS 3600
#define MAX_ORIGIN 4096     /* bytes */
#define DEFAULT_TOKENS 2048 /* or as many as the model has positions for */

typedef struct {
    char *devices;
    char *output;
    char *dtype;
    char *accumulate;
    char *attention;
    int sequence_length;
    int micro_batch_size;
    int head_chunk;
    int optimizer_threads;
    double seconds;
    gboolean json;
} ProfileArgs;

/* What is measured. */
typedef struct {
    const char *word; /* as given */
    const RpDeviceOps *ops;
    guint devices;
    guint optimizer_threads;
    RpModel config;
    RpSafetensors *checkpoint; /* NULL: random weights */
    RpWeights *weights;
    RpNetworkOptions network;
    gboolean attention_auto; /* the faster one */
} Subject;

static void
subject_clear(Subject *subject)
{
    rp_weights_free(subject->weights);
    rp_safetensors_free(subject->checkpoint);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Subject, subject_clear)

typedef struct {
    gint64 begin_us;
    gint64 shown_us;
} Progress;

static gboolean
show_progress(guint done, guint total, gpointer user_data)
{
    Progress *progress = user_data;
    const gint64 now_us = g_get_monotonic_time();
    const double seconds = (double)(now_us - progress->begin_us) / G_USEC_PER_SEC;

    if (now_us - progress->shown_us < PROGRESS_INTERVAL_US || done == 0)
        return TRUE;
    progress->shown_us = now_us;
    fprintf(stderr, "\r\033[Kmeasuring layers, copies, optimizer: %.0f %%, at most %.0f s left",
            100.0 * done / total, seconds * (total - done) / done);
    fflush(stderr);
    return TRUE;
}

/* A directory, a config.json or a name of the catalogue. */
static gboolean
read_config(const char *word, RpModel *config, GError **error)
{
    g_autoptr(GError) local = NULL;

    if (g_file_test(word, G_FILE_TEST_EXISTS) || strchr(word, G_DIR_SEPARATOR) != NULL)
        return rp_hf_config_load(word, config, error);
    const RpModel *model = rp_model_find(word, error);

    if (model == NULL) {
        g_prefix_error(error, "%s: no such file or directory, and ", word);
        return FALSE;
    }
    *config = *model;
    if (rp_hf_config_check_runs(model, &local))
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "%s: %s", word, local->message);
    return FALSE;
}

/* A directory may hold the shapes alone. */
static gboolean
open_weights(Subject *subject, GError **error)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};

    subject->weights = rp_weights_new(&subject->config);
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(subject->word, names[i], NULL);

        if (!g_file_test(path, G_FILE_TEST_EXISTS))
            continue;
        subject->checkpoint = rp_safetensors_open(subject->word, error);
        return subject->checkpoint != NULL &&
               rp_weights_bind(subject->weights, subject->checkpoint, error);
    }
    return TRUE;
}

static gboolean
read_dtype(const ProfileArgs *args, Subject *subject, GError **error)
{
    int choice = RP_DTYPE_BF16 + 1;

    if (args->dtype == NULL) {
        RpDtype dtype = subject->checkpoint         ? rp_weights_dtype(subject->weights)
                        : subject->config.has_dtype ? subject->config.dtype
                                                    : RP_DTYPE_BF16;

        /* nobody trains in fp32 on a GPU unless they say so */
        if (dtype == RP_DTYPE_FP32 && !subject->ops->host_memory)
            dtype = RP_DTYPE_BF16;
        subject->network.dtype = dtype;
        return TRUE;
    }
    if (!rp_cli_choose("dtype", "dtype", args->dtype, &choice, error))
        return FALSE;
    subject->network.dtype = (RpDtype)(choice - 1);
    return TRUE;
}

/* What the kernels are to be. "auto" attention is measured later. */
static gboolean
read_kernels(const ProfileArgs *args, Subject *subject, GError **error)
{
    RpNetworkOptions *network = &subject->network;
    int half_sums = 0, attention = 0;

    if (!rp_cli_choose("accumulate", "accumulate", args->accumulate, &half_sums, error))
        return FALSE;
    network->half_sums = half_sums;
    if (network->half_sums && network->dtype != RP_DTYPE_FP16) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--accumulate: expected fp32 with dtype %s, found fp16",
                    rp_dtype_name(network->dtype));
        return FALSE;
    }
    if (!rp_cli_choose("attention", "attention", args->attention, &attention, error))
        return FALSE;
    subject->attention_auto = attention == 0;
    if (subject->attention_auto)
        return TRUE;
    network->attention = (RpAttentionChoice)(attention - 1);
    if (subject->ops->kernels()->has_attention(network->attention))
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--attention: expected builtin or auto, found %s, which %s devices do not have",
                args->attention, subject->ops->name);
    return FALSE;
}

static gboolean
read_args(const ProfileArgs *args, GError **error)
{
    if (args->devices == NULL || args->output == NULL) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "%s: expected %s, found nothing",
                    args->devices == NULL ? "--devices" : "--output",
                    args->devices == NULL ? "host:N or cuda:N" : "a file");
        return FALSE;
    }
    if (strcmp(args->output, "-") == 0) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--output: expected a file; standard output has the table");
        return FALSE;
    }
    if (!(args->seconds > 0 && args->seconds <= MAX_SECONDS)) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--seconds: expected more than 0 and at most %d, found %g", MAX_SECONDS,
                    args->seconds);
        return FALSE;
    }
    return TRUE;
}

/* The timing file is none of the files that the model is read from. */
static gboolean
check_output(const ProfileArgs *args, const char *word, GError **error)
{
    g_autoptr(GDir) directory = g_dir_open(word, 0, NULL);
    const char *name;

    do {
        name = directory != NULL ? g_dir_read_name(directory) : NULL;
        if (name != NULL && strcmp(name, "config.json") != 0 &&
            !g_str_has_suffix(name, ".safetensors") &&
            !g_str_has_suffix(name, ".safetensors.index.json"))
            continue;
        g_autofree char *path = g_build_filename(word, name, NULL);
        const RpCliFile files[] = {
            {"MODEL_DIR", path, FALSE},
            {"--output", args->output, TRUE},
        };

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    } while (name != NULL);
    return rp_cli_check_writable(args->output, error);
}

static gboolean
open_subject(const ProfileArgs *args, Subject *subject, GError **error)
{
    RpNetworkOptions *network = &subject->network;

    if (!read_args(args, error) || !check_output(args, subject->word, error))
        return FALSE;
    if (!rp_run_parse_devices(args->devices, &subject->ops, &subject->devices, error)) {
        g_prefix_error(error, "--devices: ");
        return FALSE;
    }
    subject->optimizer_threads = args->optimizer_threads > 0
                                     ? (guint)args->optimizer_threads
                                     : rp_run_optimizer_threads(subject->ops, subject->devices);
    if (!read_config(subject->word, &subject->config, error) || !open_weights(subject, error) ||
        !read_dtype(args, subject, error) || !read_kernels(args, subject, error))
        return FALSE;
    network->sequences = (guint)args->micro_batch_size;
    network->tokens = args->sequence_length > 0
                          ? (guint)args->sequence_length
                          : MIN(DEFAULT_TOKENS, subject->config.max_positions);
    network->head_chunk = (guint)args->head_chunk;
    if ((guint64)network->sequences * network->tokens > G_MAXINT32) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--micro-batch-size x --sequence-length: expected at most %d tokens, found "
                    "%" G_GUINT64_FORMAT,
                    G_MAXINT32, (guint64)network->sequences * network->tokens);
        return FALSE;
    }
    return TRUE;
}

/* Which model, and the command that makes the file again. */
static void
describe(const ProfileArgs *args, const Subject *subject, RpProfile *profile)
{
    const RpNetworkOptions *network = &subject->network;
    g_autofree char *command = g_strdup_printf(
        "roundpipe profile --devices %s:%u %s --sequence-length %u --micro-batch-size %u "
        "--dtype %s --accumulate %s --attention %s --head-chunk %u --optimizer-threads %u "
        "--seconds %g",
        subject->ops->name, subject->devices, subject->word, network->tokens, network->sequences,
        rp_dtype_name(network->dtype), network->half_sums ? "fp16" : "fp32",
        rp_attention_name(network->attention), network->head_chunk, subject->optimizer_threads,
        args->seconds);

    rp_profile_name_model(profile, subject->word);
    g_free(profile->origin);
    profile->origin = rp_profile_text(command, MAX_ORIGIN);
}

static RpNetwork *
make_network(Subject *subject, RpProbe *probe, GError **error)
{
    const RpKernels *kernels = subject->ops->kernels();
    RpNetworkOptions *options = &subject->network;

    if (subject->attention_auto) {
        g_autoptr(RpNetwork) any =
            rp_network_new(&subject->config, subject->weights, kernels, options);

        if (!rp_measure_attention(probe, any, subject->checkpoint ? subject->weights : NULL,
                                  &options->attention, error))
            return NULL;
    }
    return rp_network_new(&subject->config, subject->weights, kernels, options);
}

static gboolean
run(const ProfileArgs *args, const char *word, GError **error)
{
    const gboolean terminal = isatty(STDERR_FILENO) == 1;
    g_auto(Subject) subject = {.word = word};
    Progress progress = {.begin_us = g_get_monotonic_time()};

    if (!open_subject(args, &subject, error))
        return FALSE;
    g_autoptr(RpProbe) probe = subject.ops->probe_new(0, error);
    if (probe == NULL)
        return FALSE;
    g_autoptr(RpNetwork) network = make_network(&subject, probe, error);
    if (network == NULL)
        return FALSE;
    const RpMeasureOptions options = {
        .devices = subject.devices,
        .seconds = args->seconds,
        .optimizer_threads = subject.optimizer_threads,
        .progress = terminal ? show_progress : NULL,
        .user_data = &progress,
    };

    subject.network = *rp_network_options(network);
    g_autoptr(RpProfile) profile = rp_measure_profile(
        probe, network, subject.checkpoint ? subject.weights : NULL, &options, error);
    if (terminal)
        fputs("\r\033[K", stderr);
    if (profile == NULL)
        return FALSE;
    describe(args, &subject, profile);
    if (!rp_profile_save(profile, args->output, error))
        return FALSE;
    const RpProfileReport report = {
        .profile = profile,
        .output = args->output,
        .optimizer_threads = subject.optimizer_threads,
        .given_weights = subject.checkpoint != NULL,
        .host_memory = subject.ops->host_memory,
    };

    if (args->json)
        rp_profile_print_json(&report);
    else
        rp_profile_print(&report);
    return TRUE;
}

int
rp_cmd_profile(int argc, char **argv)
{
    ProfileArgs args = {.accumulate = g_strdup("fp32"),
                        .attention = g_strdup("auto"),
                        .micro_batch_size = 1,
                        .seconds = 0.5};
    const GOptionEntry entries[] = {
        {"devices", 0, 0, G_OPTION_ARG_STRING, &args.devices,
         "whose times to measure: host:N, N devices on processor threads; cuda:N, N GPUs; cuda, "
         "all",
         "WHERE:N"},
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &args.output, "timing file to write",
         "FILE.json"},
        {"sequence-length", 0, 0, G_OPTION_ARG_INT, &args.sequence_length,
         "tokens of a sequence (default: 2048, or as many as the model has positions)", "N"},
        {"micro-batch-size", 0, 0, G_OPTION_ARG_INT, &args.micro_batch_size,
         "sequences of a micro-batch (default: 1)", "N"},
        {"dtype", 0, 0, G_OPTION_ARG_STRING, &args.dtype,
         "bf16, fp16 or fp32 (default: the weights', the config's, else bf16; on GPUs never fp32)",
         "TYPE"},
        {"accumulate", 0, 0, G_OPTION_ARG_STRING, &args.accumulate,
         "what matmuls add up in: fp32, or fp16 with fp16 (default: fp32)", "TYPE"},
        {"attention", 0, 0, G_OPTION_ARG_STRING, &args.attention,
         "whose: builtin, cudnn, or auto, the faster one (default: auto)", "NAME"},
        {"head-chunk", 0, 0, G_OPTION_ARG_INT, &args.head_chunk,
         "tokens whose logits exist at once (default: 1024 to 4096, as fit where blocks do)", "N"},
        {"optimizer-threads", 0, 0, G_OPTION_ARG_INT, &args.optimizer_threads,
         "threads of the optimizer (default: 1; with GPUs as many as processors)", "N"},
        {"seconds", 0, 0, G_OPTION_ARG_DOUBLE, &args.seconds,
         "spend S seconds on each kind of layer and direction (default: 0.5)", "S"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print the table as JSON", NULL},
        {0},
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("MODEL_DIR",
                      "Measures a model's layers on this machine, for simulate, plan and train.\n"
                      "MODEL_DIR has a config.json, and weights or none; or a name of the "
                      "catalogue.\n\n"
                      "Example:\n"
                      "  roundpipe profile --devices host:2 qwen3-0.6b --sequence-length 128 \\\n"
                      "    -o qwen3-0.6b.json",
                      entries, NULL, 1, 1, &argc, &argv, &error) ||
        !run(&args, argv[1], &error))
        code = rp_cli_fail("profile", error);
    g_free(args.devices);
    g_free(args.output);
    g_free(args.dtype);
    g_free(args.accumulate);
    g_free(args.attention);
    return code;
}
