#include "cli/cli.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/catalogue/catalogue.h"
#include "exec/model/init.h"

/* As transformers divides checkpoints. */
#define DEFAULT_SHARD_BYTES G_GUINT64_CONSTANT(5000000000)

#define PROGRESS_INTERVAL_US (G_USEC_PER_SEC / 10)

typedef struct {
    char *output;
    char *from_model;
    char *dtype;
    char *shard_size;
    gint64 seed;
    gboolean force;
    gboolean json;
} InitArgs;

typedef struct {
    gint64 begin_us;
    gint64 shown_us;
} Progress;

static void
show_progress(guint64 done, guint64 total, gpointer user_data)
{
    Progress *progress = user_data;
    gint64 now_us = g_get_monotonic_time();
    double seconds = (double)(now_us - progress->begin_us) / G_USEC_PER_SEC;

    if (now_us - progress->shown_us < PROGRESS_INTERVAL_US || done == 0)
        return;
    progress->shown_us = now_us;
    fprintf(stderr,
            "\r\033[Kinitialising: %.1f %% of %.2f x 10^9 parameters, %.0f x 10^6/s, %.0f s left",
            100.0 * (double)done / (double)total, (double)total / 1e9, (double)done / seconds / 1e6,
            seconds * (double)(total - done) / (double)done);
    fflush(stderr);
}

/* What would be loaded from the directory, or be mixed with what is written into it. */
static gboolean
check_directory(const InitArgs *args, GError **error)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};

    if (g_mkdir_with_parents(args->output, 0777) != 0) {
        g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                    "cannot make \"%s\": %s", args->output, g_strerror(errno));
        return FALSE;
    }
    for (guint i = 0; i < G_N_ELEMENTS(names) && !args->force; i++) {
        g_autofree char *path = g_build_filename(args->output, names[i], NULL);
        if (!g_file_test(path, G_FILE_TEST_EXISTS))
            continue;
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
                    "%s: expected no model there, found %s; --force replaces it", args->output,
                    names[i]);
        return FALSE;
    }
    return TRUE;
}

/* --force replaces a model, but not the description that it is made from. */
static gboolean
check_config(const InitArgs *args, const char *path, GError **error)
{
    g_autofree char *written = g_build_filename(args->output, "config.json", NULL);
    g_autofree char *inner = path != NULL && g_file_test(path, G_FILE_TEST_IS_DIR)
                                 ? g_build_filename(path, "config.json", NULL)
                                 : g_strdup(path);
    const RpCliFile files[] = {
        {"CONFIG.json", inner, FALSE},
        {"--output", written, TRUE},
    };

    return rp_cli_check_files(files, G_N_ELEMENTS(files), error);
}

static gboolean
read_config(const InitArgs *args, const char *path, RpModel *config, GError **error)
{
    if ((path != NULL) == (args->from_model != NULL)) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "expected either CONFIG.json or --from-model; see --help");
        return FALSE;
    }
    if (path != NULL)
        return rp_hf_config_load(path, config, error);
    const RpModel *model = rp_model_find(args->from_model, error);
    if (model == NULL)
        return FALSE;
    g_autoptr(GError) local = NULL;
    *config = *model;
    if (rp_hf_config_check_runs(model, &local))
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--from-model: %s", local->message);
    return FALSE;
}

static gboolean
read_words(const InitArgs *args, RpModel *config, RpInitOptions *options, GError **error)
{
    const char *names[RP_N_DTYPES + 1] = {NULL};

    if (args->output == NULL) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--output: expected a directory, found nothing");
        return FALSE;
    }
    if (args->seed < 0) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--seed: expected a number of 0 or more, found %" G_GINT64_FORMAT, args->seed);
        return FALSE;
    }
    options->seed = (guint64)args->seed;
    options->max_shard_bytes = DEFAULT_SHARD_BYTES;
    if (args->shard_size != NULL &&
        !rp_cli_parse_bytes("shard-size", args->shard_size, &options->max_shard_bytes, error))
        return FALSE;
    if (args->dtype == NULL) {
        config->dtype = config->has_dtype ? config->dtype : RP_DTYPE_BF16;
        return TRUE;
    }
    for (guint i = 0; i < RP_N_DTYPES; i++)
        names[i] = rp_dtype_name((RpDtype)i);
    int choice = rp_cli_choice("dtype", args->dtype, names, error);
    if (choice >= 0)
        config->dtype = (RpDtype)choice;
    return choice >= 0;
}

static void
print_result(const InitArgs *args, const RpModel *config, double seconds)
{
    g_autoptr(RpWeights) weights = rp_weights_new(config);
    guint64 parameters = rp_weights_elements(weights);
    guint64 bytes = parameters * rp_dtype_size(config->dtype);

    if (!args->json) {
        g_autofree char *size = rp_cli_format_bytes(bytes);
        printf("%s: %s, %u blocks, %" G_GUINT64_FORMAT
               " parameters in %s, %s, seed %" G_GINT64_FORMAT ", written in %.1f s\n",
               args->output, rp_architectures[config->architecture].hf_name, config->blocks,
               parameters, rp_dtype_name(config->dtype), size, args->seed, seconds);
        return;
    }
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
    rp_json_object(json, NULL);
    rp_json_string(json, "output", args->output);
    rp_json_string(json, "architecture", rp_architectures[config->architecture].hf_name);
    rp_json_int(json, "blocks", config->blocks);
    rp_json_int(json, "parameters", (gint64)parameters);
    rp_json_int(json, "bytes", (gint64)bytes);
    rp_json_string(json, "dtype", rp_dtype_name(config->dtype));
    rp_json_int(json, "seed", args->seed);
    rp_json_end(json);
    rp_cli_print_json(json);
}

static gboolean
run(const InitArgs *args, const char *path, GError **error)
{
    gboolean terminal = isatty(STDERR_FILENO) == 1;
    gint64 begin_us = g_get_monotonic_time();
    Progress progress = {.begin_us = begin_us};
    RpInitOptions options = {.progress = terminal ? show_progress : NULL, .user_data = &progress};
    RpModel config;

    if (!read_config(args, path, &config, error) || !read_words(args, &config, &options, error) ||
        !check_directory(args, error) || !check_config(args, path, error))
        return FALSE;
    gboolean written = rp_init_write(&config, args->output, &options, error);
    if (terminal)
        fputs("\r\033[K", stderr);
    if (written)
        print_result(args, &config, (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC);
    return written;
}

int
rp_cmd_init(int argc, char **argv)
{
    InitArgs args = {0};
    const GOptionEntry entries[] = {
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &args.output,
         "where to put the model; made if it is missing", "DIR"},
        {"from-model", 0, 0, G_OPTION_ARG_STRING, &args.from_model,
         "take the shapes of a model of the catalogue", "MODEL"},
        {"seed", 0, 0, G_OPTION_ARG_INT64, &args.seed, "of the random numbers (default: 0)", "N"},
        {"dtype", 0, 0, G_OPTION_ARG_STRING, &args.dtype,
         "bf16, fp16 or fp32 (default: the config's, else bf16)", "TYPE"},
        {"shard-size", 0, 0, G_OPTION_ARG_STRING, &args.shard_size,
         "largest file, as 5GB (the default); 0 = one file", "SIZE"},
        {"force", 0, 0, G_OPTION_ARG_NONE, &args.force, "replace a model that is there", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        {0},
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("[CONFIG.json]",
                      "Makes a model with random weights: config.json and model.safetensors, as "
                      "Hugging Face\ntransformers loads them.\n\n"
                      "Example:\n  roundpipe init config.json -o model --seed 1 --dtype bf16\n"
                      "  roundpipe init --from-model qwen3-0.6b -o model",
                      entries, NULL, 0, 1, &argc, &argv, &error) ||
        !run(&args, argc > 1 ? argv[1] : NULL, &error))
        code = rp_cli_fail("init", error);
    g_free(args.output);
    g_free(args.from_model);
    g_free(args.dtype);
    g_free(args.shard_size);
    return code;
}
