#include "cli/cli.h"

#include "core/catalogue/catalogue.h"
#include "exec/quantise/quantise.h"
#include "run/spec.h"

/* --force replaces a model, but not the description that it is made from. */
static gboolean
check_config(const RpArgs *args, const char *path, GError **error)
{
    g_autofree char *written = g_build_filename(args->output, "config.json", NULL);
    g_autofree char *inner = path != NULL && g_file_test(path, G_FILE_TEST_IS_DIR)
                                 ? g_build_filename(path, "config.json", NULL)
                                 : g_strdup(path);
    const RpCliFile files[] = {
        {"CONFIG.json", inner, RP_CLI_READ},
        {"--output", written, RP_CLI_FILLED},
    };

    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
read_config(const RpArgs *args, const char *path, RpModel *config, GError **error)
{
    if ((path != NULL) == (args->model != NULL))
        return rp_cli_refuse(error, "expected either CONFIG.json or --from-model; see --help");
    if (path != NULL)
        return rp_hf_config_load(path, config, error);
    const RpModel *model = rp_model_find(args->model, error);
    if (model == NULL)
        return FALSE;
    g_autoptr(GError) local = NULL;
    *config = *model;
    if (rp_hf_config_check_runs(model, &local))
        return TRUE;
    return rp_cli_refuse(error, "--from-model: %s", local->message);
}

static gboolean
read_words(const RpArgs *args, RpModel *config, RpInitOptions *options, GError **error)
{
    if (args->output == NULL)
        return rp_cli_refuse(error, "--output: expected a directory, found nothing");
    if (args->seed < 0)
        return rp_cli_refuse(
            error, "--seed: expected a number of 0 or more, found %" G_GINT64_FORMAT, args->seed);
    options->seed = (guint64)args->seed;
    options->max_shard_bytes = RP_CLI_SHARD_BYTES;
    if (args->shard_size != NULL &&
        !rp_cli_parse_bytes("shard-size", args->shard_size, &options->max_shard_bytes, error))
        return FALSE;
    if (args->run.dtype_choice > 0)
        config->dtype = (RpDtype)(args->run.dtype_choice - 1);
    else if (!config->has_dtype)
        config->dtype = RP_DTYPE_BF16;
    return TRUE;
}

/* Bytes of all weights; those that @format (nullable) packs count as packed. */
static guint64
count_bytes(const RpWeights *weights, const RpLowbit *format)
{
    const RpModel *config = rp_weights_model(weights);
    guint64 bytes = 0;

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->tied)
            continue;
        if (format == NULL || !rp_weight_packs(config, weight, *format))
            bytes += weight->elements * rp_dtype_size(config->dtype);
        else if (weight->offset == 0)
            bytes += rp_lowbit_layout(*format, rp_weight_lowbit_shape(weight)).total;
    }
    return bytes;
}

static void
report_model(RpReport *report, const RpArgs *args, const RpModel *config, const RpLowbit *format,
             double seconds)
{
    g_autoptr(RpWeights) weights = rp_weights_new(config);
    const guint64 parameters = rp_weights_elements(weights);
    const guint64 bytes = count_bytes(weights, format);
    const char *architecture = rp_architectures[config->architecture].hf_name;
    const char *dtype = rp_dtype_name(config->dtype);
    g_autofree char *size = rp_cli_format_bytes(bytes);

    rp_report_say(report,
                  "%s: %s, %u blocks, %" G_GUINT64_FORMAT
                  " parameters in %s%s%s, %s, seed %" G_GINT64_FORMAT ", written in %.1f s",
                  args->output, architecture, config->blocks, parameters, dtype,
                  format != NULL ? " and " : "", format != NULL ? rp_lowbit_name(*format) : "",
                  size, args->seed, seconds);
    rp_report_text(report, "output", args->output, NULL);
    rp_report_text(report, "architecture", architecture, NULL);
    rp_report_count(report, "blocks", config->blocks, NULL);
    rp_report_count(report, "parameters", (gint64)parameters, NULL);
    rp_report_bytes(report, "bytes", bytes, NULL);
    rp_report_text(report, "dtype", dtype, NULL);
    if (format != NULL)
        rp_report_text(report, "base", rp_lowbit_name(*format), NULL);
    rp_report_count(report, "seed", args->seed, NULL);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    RpProgress progress = rp_progress_begin("initialising parameters", 0);
    RpInitOptions options = {.progress = rp_progress_counted, .user_data = &progress};
    RpModel config;
    const gboolean packed = args->run.base_choice >= RP_RUN_BASE_PACKED;
    const RpLowbit format = packed ? (RpLowbit)(args->run.base_choice - RP_RUN_BASE_PACKED) : 0;

    if (!read_config(args, words[0], &config, error) ||
        !read_words(args, &config, &options, error) ||
        !rp_cli_make_model_directory(args->output, args->force, error) ||
        !check_config(args, words[0], error))
        return FALSE;
    const gboolean written =
        packed ? rp_quantise_random(&config, format, args->output, &options, error)
               : rp_init_write(&config, args->output, &options, error);

    rp_progress_clear();
    if (written)
        report_model(report, args, &config, packed ? &format : NULL,
                     (double)(g_get_monotonic_time() - progress.begin_us) / G_USEC_PER_SEC);
    return written;
}

static const RpUse uses[] = {
    {"output from-model"},
    {"seed", "of the random numbers (default: 0)", "N"},
    {"dtype", "bf16, fp16 or fp32 (default: the config's, else bf16)", "TYPE"},
    {"base",
     "linear layers of blocks in few bits, for LoRA: nf4, nf4-single, mxfp4 or fp8 (default: bf16)",
     "FORMAT"},
    {"shard-size force"},
    {0},
};

const RpCommand rp_command_init = {
    .name = "init",
    .summary = "make a model with random weights",
    .words = "[CONFIG.json]",
    .help = "Makes a model with random weights: config.json and model.safetensors, as Hugging "
            "Face\ntransformers loads them.\n\n"
            "Example:\n  roundpipe init config.json -o model --seed 1 --dtype bf16\n"
            "  roundpipe init --from-model qwen3-0.6b -o model",
    .uses = uses,
    .run = run,
};
