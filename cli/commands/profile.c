/* roundpipe profile: what is measured, and how. */
#include <string.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "cli/train/train.h"
#include "core/base/units.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/lora.h"
#include "exec/data/dataset.h"
#include "exec/measure/profile.h"
#include "exec/safetensors/safetensors.h"
#include "run/devices.h"
#include "run/model.h"
#include "run/spec.h"

#define MAX_SECONDS 3600
#define MAX_ORIGIN 4096     /* bytes */
#define DEFAULT_TOKENS 2048 /* or as many as the model has positions for */

/* The model and device to measure. */
typedef struct {
    const char *word; /* as given */
    const RpDeviceOps *ops;
    guint devices;
    guint optimizer_threads;
    RpModel config;
    RpSafetensors *checkpoint; /* NULL: random weights */
    RpDtype stored;            /* of the checkpoint, or the config's */
    RpWeights *weights;
    RpNetworkOptions network;
    gboolean attention_auto; /* the faster one */
    double routing;          /* RpMeasureOptions.routing */
    gint32 *tokens;          /* RpMeasureOptions.tokens */
} Subject;

static void
subject_clear(Subject *subject)
{
    rp_weights_free(subject->weights);
    rp_safetensors_free(subject->checkpoint);
    g_free(subject->tokens);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Subject, subject_clear)

/* A directory, a config.json or a name of the catalogue. */
static gboolean
read_config(const char *word, RpModel *config, GError **error)
{
    g_autoptr(GError) local = NULL;

    g_autofree char *path = rp_model_path(word);

    if (g_file_test(path, G_FILE_TEST_EXISTS) || strchr(word, G_DIR_SEPARATOR) != NULL)
        return rp_hf_config_load(path, config, error);
    const RpModel *model = rp_model_find(word, error);

    if (model == NULL)
        return rp_prefix_error(error, "%s: no such file or directory, and ", word);
    *config = *model;
    if (rp_hf_config_check_runs(model, &local))
        return TRUE;
    return rp_cli_refuse(error, "%s: %s", word, local->message);
}

/* A directory may hold the shapes alone. */
static gboolean
bind_weights(const RpArgs *args, Subject *subject, GError **error)
{
    const guint lora_rank = (guint)args->run.lora.rank;
    g_auto(GStrv) targets = rp_lora_read_targets(args->run.lora.targets);
    const RpLora lora = {.rank = lora_rank, .alpha = RP_LORA_ALPHA, .targets = targets};

    if (lora_rank == 0 && args->run.lora.targets != NULL)
        return rp_cli_refuse(error, "--lora-targets: expected --lora-rank beside it");
    if (!rp_cli_check_lora(&subject->config, lora_rank, targets, error))
        return FALSE;
    subject->weights = rp_weights_new_adapted(&subject->config, &lora);
    subject->stored = subject->config.has_dtype ? subject->config.dtype : RP_DTYPE_BF16;
    g_autofree char *path = rp_model_path(subject->word);

    if (!rp_run_has_weights(path))
        return TRUE;
    subject->checkpoint = rp_safetensors_open(path, error);
    if (subject->checkpoint == NULL ||
        (lora_rank > 0 && !rp_weights_adopt(subject->weights, subject->checkpoint, error)) ||
        !rp_weights_bind(subject->weights, subject->checkpoint, error))
        return FALSE;
    subject->stored = rp_weights_dtype(subject->weights);
    return TRUE;
}

/* A base that is yet to be packed has random weights: times do not depend on them. */
static gboolean
open_weights(const RpArgs *args, Subject *subject, GError **error)
{
    const int base = args->run.base_choice;

    if (base >= RP_RUN_BASE_PACKED && args->run.lora.rank == 0)
        return rp_cli_refuse(error, "--base: expected --lora-rank beside it: a packed base is "
                                    "frozen");
    if (!bind_weights(args, subject, error))
        return FALSE;
    if (base < RP_RUN_BASE_PACKED || rp_weights_is_packed(subject->weights))
        return TRUE;
    RpWeights *packed = rp_weights_copy(subject->weights);

    rp_weights_pack_base(packed, (RpLowbit)(base - RP_RUN_BASE_PACKED));
    rp_weights_free(subject->weights);
    subject->weights = packed;
    g_clear_pointer(&subject->checkpoint, rp_safetensors_free);
    return TRUE;
}

static void
read_dtype(const RpArgs *args, Subject *subject)
{
    const RpDtype stored = subject->stored;

    /* nobody trains in fp32 on a GPU unless they say so */
    subject->network.dtype = args->run.dtype_choice > 0 ? (RpDtype)(args->run.dtype_choice - 1)
                             : stored == RP_DTYPE_FP32 && !subject->ops->host_memory ? RP_DTYPE_BF16
                                                                                     : stored;
}

/* Sequences and tokens are known. */
static gboolean
read_matmul(const RpArgs *args, Subject *subject, GError **error)
{
    g_autoptr(GError) problem = NULL;

    return rp_run_take_matmul(&args->run, subject->weights, subject->ops->kernels(),
                              subject->devices, &subject->network, &problem) ||
           rp_cli_refuse(error, "%s", problem->message);
}

/* The attention's kernels. "auto" is measured later. */
static gboolean
read_attention(const RpArgs *args, Subject *subject, GError **error)
{
    RpNetworkOptions *network = &subject->network;
    const int attention = args->run.attention_choice;

    subject->attention_auto = attention == 0;
    if (subject->attention_auto)
        return TRUE;
    network->attention = (RpAttentionChoice)(attention - 1);
    if (subject->ops->kernels()->has_attention(network->attention))
        return TRUE;
    return rp_cli_refuse(
        error, "--attention: expected builtin or auto, found %s, which %s devices do not have",
        rp_attention_name(network->attention), subject->ops->name);
}

/* Tokens of a micro-batch from the first samples of a file; short ones are said again. */
static gboolean
read_tokens(const char *path, Subject *subject, GError **error)
{
    const RpNetworkOptions *network = &subject->network;

    if (subject->checkpoint == NULL)
        return rp_cli_refuse(error,
                             "--routing: expected weights in %s, whose router tokens go through",
                             subject->word);
    g_autoptr(RpDataset) data =
        rp_dataset_open(path, subject->config.vocab, network->tokens, error);

    if (data == NULL)
        return FALSE;
    subject->tokens = g_new(gint32, (gsize)network->sequences * network->tokens);
    g_autofree gint32 *labels = g_new(gint32, network->tokens);
    for (guint b = 0; b < network->sequences; b++) {
        gint32 *ids = subject->tokens + (gsize)b * network->tokens;
        RpSample sample = {.input_ids = ids, .labels = labels, .capacity = network->tokens};

        if (!rp_dataset_read(data, b % rp_dataset_n_samples(data), &sample, error))
            return FALSE;
        for (guint64 t = sample.n_tokens; t < network->tokens; t++)
            ids[t] = ids[t - sample.n_tokens];
    }
    return TRUE;
}

/* "balanced", or how many times the mean the fullest expert gets. */
static gboolean
read_routing(const char *word, Subject *subject, GError **error)
{
    const RpModel *model = &subject->config;
    char *end = NULL;

    if (word == NULL)
        return TRUE;
    if (model->experts <= 1)
        return rp_cli_refuse(error, "--routing: %s has no experts", subject->word);
    if (g_str_has_suffix(word, ".jsonl") || g_str_has_suffix(word, ".bin"))
        return read_tokens(word, subject, error);
    subject->routing = strcmp(word, "balanced") == 0 ? 1 : g_ascii_strtod(word, &end);
    if ((end == NULL || *end == '\0') && rp_measure_can_route(model, subject->routing))
        return TRUE;
    return rp_cli_refuse(error,
                         "--routing: expected balanced, a file of tokens (.jsonl, .bin), or 1 to "
                         "%g times the mean for the fullest of %u experts, found \"%s\"",
                         (double)model->experts / model->active_experts, model->experts, word);
}

static gboolean
read_args(const RpArgs *args, GError **error)
{
    if (args->run.devices == NULL || args->output == NULL)
        return rp_cli_refuse(error, "%s: expected %s, found nothing",
                             args->run.devices == NULL ? "--devices" : "--output",
                             args->run.devices == NULL ? "host:N or cuda:N" : "a file");
    if (!(args->seconds > 0 && args->seconds <= MAX_SECONDS))
        return rp_cli_refuse(error, "--seconds: expected more than 0 and at most %d, found %g",
                             MAX_SECONDS, args->seconds);
    return TRUE;
}

/* The timing file is none of the files that the model is read from. */
static gboolean
check_output(const RpArgs *args, const char *word, GError **error)
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
            {"MODEL_DIR", path, RP_CLI_READ},
            {"--output", args->output, RP_CLI_WRITTEN},
        };

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
    } while (name != NULL);
    return TRUE;
}

static gboolean
open_subject(const RpArgs *args, Subject *subject, GError **error)
{
    RpNetworkOptions *network = &subject->network;

    if (!read_args(args, error) || !check_output(args, subject->word, error))
        return FALSE;
    if (!rp_run_parse_devices(args->run.devices, args->run.device_split, &subject->ops,
                              &subject->devices, error))
        return rp_prefix_error(error, "--devices: ");
    subject->optimizer_threads = args->run.optimizer.threads > 0
                                     ? (guint)args->run.optimizer.threads
                                     : rp_run_optimizer_threads(subject->ops, subject->devices);
    if (!read_config(subject->word, &subject->config, error) ||
        !open_weights(args, subject, error) || !read_attention(args, subject, error))
        return FALSE;
    read_dtype(args, subject);
    rp_weights_store_base(subject->weights, network->dtype);
    network->sequences = (guint)args->run.micro_batch_size;
    network->tokens = args->run.sequence_length > 0
                          ? (guint)args->run.sequence_length
                          : MIN(DEFAULT_TOKENS, subject->config.max_positions);
    network->head_chunk = (guint)args->run.head_chunk;
    if ((guint64)network->sequences * network->tokens > G_MAXINT32)
        return rp_cli_refuse(
            error,
            "--micro-batch-size x --sequence-length: expected at most %d tokens, found "
            "%" G_GUINT64_FORMAT,
            G_MAXINT32, (guint64)network->sequences * network->tokens);
    return read_matmul(args, subject, error) && read_routing(args->routing, subject, error);
}

/* Names the model, and the command that makes the file again. */
static void
describe(const RpArgs *args, const Subject *subject, RpProfile *profile)
{
    const RpNetworkOptions *network = &subject->network;
    g_autoptr(GString) more = g_string_new(NULL);

    static const char *const others[] = {"device_split", "lora.rank", "lora.targets", "base",
                                         "matmul"};

    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        const char *given = rp_run_spec_given(&args->run, others[i]);

        if (given != NULL)
            g_string_append_printf(more, " %s %s", rp_setting_option(rp_setting_find(others[i])),
                                   given);
    }
    if (args->routing != NULL)
        g_string_append_printf(more, " --routing %s", args->routing);
    g_autofree char *command = g_strdup_printf(
        "roundpipe profile --devices %s:%u %s --sequence-length %u --micro-batch-size %u "
        "--dtype %s --accumulate %s --attention %s --head-chunk %u --optimizer-threads %u "
        "--seconds %g%s",
        subject->ops->name, subject->devices, subject->word, network->tokens, network->sequences,
        rp_dtype_name(network->dtype), network->half_sums ? "fp16" : "fp32",
        rp_attention_name(network->attention), network->head_chunk, subject->optimizer_threads,
        args->seconds, more->str);

    rp_profile_name_model(profile, subject->word);
    rp_profile_take(&profile->origin, rp_profile_text(command, MAX_ORIGIN));
}

static RpNetwork *
make_network(Subject *subject, RpProbe *probe, GError **error)
{
    const RpKernels *kernels = subject->ops->kernels();
    RpNetworkOptions *options = &subject->network;

    options->head_memory = rp_measure_head_memory(probe, 0);
    options->aux_loss = rp_weights_model(subject->weights)->router_aux_loss;
    if (subject->attention_auto) {
        g_autoptr(RpNetwork) any = rp_network_new(subject->weights, kernels, options);

        if (!rp_measure_attention(probe, any, subject->checkpoint != NULL ? subject->weights : NULL,
                                  &options->attention, error))
            return NULL;
    }
    RpProgress progress = rp_progress_begin("choosing matmuls", 0);
    RpNetwork *network = rp_measure_matmul_variants(
        probe, rp_network_new(subject->weights, kernels, options),
        &(RpMeasureOptions){.progress = rp_progress_counted_on, .user_data = &progress}, error);

    rp_progress_clear();
    return network;
}

/* ---- the report ---- */

static void
report_profile(RpReport *report, const RpArgs *args, const Subject *subject,
               const RpProfile *profile)
{
    const char *weights = subject->checkpoint != NULL ? "given" : "random";

    rp_report_say(report,
                  "%s, %s, sums in %s, %s attention, %u x %u tokens, %s weights: measured on one "
                  "%s, %s",
                  profile->model, profile->dtype, profile->accumulate, profile->attention,
                  profile->sequences, profile->tokens_per_sequence, weights,
                  subject->ops->host_memory ? "thread" : profile->device,
                  profile->alone_speed > 0 ? "with all parts at work" : "alone");
    rp_report_profile_subject(report, profile, args->output, weights);
    rp_report_profile_layers(report, profile);
    rp_report_profile_links(report, &profile->links);
    rp_report_profile_optimizer(report, profile, subject->optimizer_threads);
    rp_report_say(report, "written to %s", args->output);
}

/* If times are added to a file, reads those that it has, which must be of the same layers.
 * @all: (out) (transfer full) (nullable) */
static gboolean
open_file(const RpArgs *args, const RpNetwork *network, RpProfile **all, GError **error)
{
    const RpNetworkOptions *options = rp_network_options(network);
    const char *dtype = rp_dtype_name(options->dtype);

    *all = NULL;
    if (!args->append || !g_file_test(args->output, G_FILE_TEST_EXISTS))
        return TRUE;
    *all = rp_profile_load(args->output, error);
    if (*all == NULL)
        return FALSE;
    return ((*all)->tokens_per_sequence == options->tokens && strcmp((*all)->dtype, dtype) == 0 &&
            (*all)->n_layers == rp_network_n_layers(network)) ||
           rp_cli_refuse(
               error,
               "--append: %s has %u layers in %s, %u tokens a sequence: expected %u, %s and %u",
               args->output, (*all)->n_layers, (*all)->dtype, (*all)->tokens_per_sequence,
               rp_network_n_layers(network), dtype, options->tokens);
}

static gboolean
profile_model(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    g_auto(Subject) subject = {.word = word};
    RpProgress progress;

    if (!open_subject(args, &subject, error))
        return FALSE;
    g_autoptr(RpProbe) probe = subject.ops->probe_new(0, error);
    g_autoptr(RpNetwork) network = probe != NULL ? make_network(&subject, probe, error) : NULL;
    if (network == NULL)
        return FALSE;
    const RpMeasureOptions options = {
        .devices = subject.devices,
        .seconds = args->seconds,
        .optimizer_threads = subject.optimizer_threads,
        .routing = subject.routing,
        .tokens = subject.tokens,
        .progress = rp_progress_counted_on,
        .user_data = &progress,
    };

    g_autoptr(RpProfile) all = NULL;

    subject.network = *rp_network_options(network);
    if (!open_file(args, network, &all, error))
        return FALSE;
    progress = rp_progress_begin("measuring layers, copies, optimizer", 0);
    g_autoptr(RpProfile) profile = rp_measure_profile(
        probe, network, subject.checkpoint != NULL ? subject.weights : NULL, &options, error);
    rp_progress_clear();
    if (profile == NULL)
        return FALSE;
    describe(args, &subject, profile);
    all = rp_profile_insert(g_steal_pointer(&all), rp_profile_copy(profile));
    if (!rp_profile_save(all, args->output, error))
        return FALSE;
    report_profile(report, args, &subject, profile);
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    if (args->measure_servers)
        return rp_train_profile_servers(words[0], args->run.devices, args->output, report, error);
    return words[0] != NULL
               ? profile_model(args, words[0], report, error)
               : rp_cli_refuse(error, "something is missing: expected MODEL_DIR; see --help");
}

static const RpUse uses[] = {
    {"devices",
     "whose times to measure: host:N, N devices on processor threads; cuda:N, N GPUs; cuda, all",
     "WHERE:N"},
    {"device-split"},
    {"output", "timing file to write", "FILE.json"},
    {"servers:measure"},
    {"sequence-length",
     "tokens of a sequence (default: 2048, or as many as the model has positions)", "N"},
    {"micro-batch-size", "sequences of a micro-batch (default: 1)", "N"},
    {"dtype",
     "bf16, fp16 or fp32 (default: the weights', the config's, else bf16; on GPUs never fp32)",
     "TYPE"},
    {"accumulate matmul attention head-chunk lora-rank lora-targets base"},
    {"optimizer-threads", "threads of the optimizer (default: 1; with GPUs as many as processors)",
     "N"},
    {"append routing"},
    {"seconds", "spend S seconds on each kind of layer and direction (default: 0.5)"},
    {0},
};

static const RpArgs defaults = {.run.micro_batch_size = 1, .seconds = 0.5};

const RpCommand rp_command_profile = {
    .name = "profile",
    .summary = "measure a model's layers on this machine",
    .words = "[MODEL_DIR]",
    .help = "Measures a model's layers on this machine, for simulate, plan and train.\n"
            "MODEL_DIR has a config.json, and weights or none; or a name of the catalogue.\n\n"
            "Example:\n"
            "  roundpipe profile --devices host:2 qwen3-0.6b --sequence-length 128 \\\n"
            "    -o qwen3-0.6b.json\n"
            "  mpirun -n 4 --hostfile hosts roundpipe profile --servers -o network.json",
    .uses = uses,
    .defaults = &defaults,
    .run = run,
};
