#include "run/model.h"

#include <string.h>

#include "exec/model/hf-config.h"
#include "run/run-file.h"

#define RANDOM "random:"
#define MAX_NAME 128 /* of a model, bytes */

static gboolean
is_file(const char *word)
{
    g_autofree char *path = rp_model_path(word);

    return g_path_is_absolute(word) || *word == '.' || g_str_has_suffix(word, ".json") ||
           (rp_model_find(word, NULL) == NULL && g_file_test(path, G_FILE_TEST_EXISTS));
}

gboolean
rp_run_find_model(const char *word, RpModel *model, GError **error)
{
    g_autofree char *path = rp_model_path(word);

    if (is_file(word))
        return rp_hf_config_load(path, model, error);
    const RpModel *found = rp_model_find(word, error);

    if (found != NULL)
        *model = *found;
    return found != NULL;
}

char *
rp_run_find_directory(const char *word)
{
    g_autofree char *path = rp_model_path(word);
    g_autofree char *full = g_canonicalize_filename(path, NULL);

    if (!is_file(word))
        return NULL;
    return g_file_test(full, G_FILE_TEST_IS_DIR) ? g_steal_pointer(&full)
                                                 : g_path_get_dirname(full);
}

gboolean
rp_run_model_is_random(const char *model)
{
    return g_str_has_prefix(model, RANDOM);
}

char *
rp_run_model_directory(const char *model)
{
    return rp_run_model_is_random(model) ? rp_run_find_directory(model + strlen(RANDOM))
                                         : rp_model_path(model);
}

const RpModel *
rp_run_model_named(const char *model)
{
    g_autofree char *path = rp_model_path(model);

    return is_file(model) || g_file_test(path, G_FILE_TEST_EXISTS) ? NULL
                                                                   : rp_model_find(model, NULL);
}

gboolean
rp_run_model_load(const char *model, RpModel *config, GError **error)
{
    g_autofree char *path = rp_model_path(model);

    if (!rp_run_model_is_random(model))
        return rp_hf_config_load(path, config, error);
    if (model[strlen(RANDOM)] != '\0')
        return rp_run_find_model(model + strlen(RANDOM), config, error) &&
               rp_hf_config_check_runs(config, error);
    return rp_fail(
        error, RP_CATALOGUE_ERROR, RP_CATALOGUE_ERROR_MODEL,
        "expected a model of the catalogue (`roundpipe models`), or a config.json or its "
        "directory, behind " RANDOM ", found nothing");
}

gboolean
rp_run_has_weights(const char *directory)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    gboolean found = FALSE;

    for (guint i = 0; i < G_N_ELEMENTS(names) && !found; i++) {
        g_autofree char *path = g_build_filename(directory, names[i], NULL);

        found = g_file_test(path, G_FILE_TEST_EXISTS);
    }
    return found;
}

const char *
rp_run_base_format(const RpWeights *weights)
{
    for (guint i = 0; i < rp_weights_count(weights); i++)
        if (rp_weights_nth(weights, i)->is_packed)
            return rp_lowbit_name(rp_weights_nth(weights, i)->format);
    return NULL;
}

/* ---- in profiles ---- */

char *
rp_profile_text(const char *text, gsize most)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);
    char *end = valid;

    for (char *p = valid; *p != '\0' && (gsize)(g_utf8_next_char(p) - valid) <= most;
         p = g_utf8_next_char(p)) {
        if ((guchar)*p < 0x20 || *p == 0x7f)
            *p = ' ';
        end = g_utf8_next_char(p);
    }
    return g_strndup(valid, (gsize)(end - valid));
}

void
rp_profile_name_model(RpProfile *profile, const char *word)
{
    g_autofree char *path = g_canonicalize_filename(word, NULL);
    g_autofree char *base = g_path_get_basename(path);

    if (strcmp(base, G_DIR_SEPARATOR_S) == 0)
        return;
    rp_profile_take(&profile->model, rp_profile_text(base, MAX_NAME));
}

#define LEAST_HEAD_TOKENS 256

/* Whether a block that is not to stay plain has codes. */
static gboolean
some_block_has_fp8(const RpRunSpec *run, const RpWeights *weights, RpDtype dtype)
{
    const guint blocks = rp_weights_model(weights)->blocks;

    for (guint b = run->fp8.plain_first; b + run->fp8.plain_last < blocks; b++)
        if (rp_layer_layout_of_fp8(weights, b + 1, dtype, NULL).has_fp8)
            return TRUE;
    return FALSE;
}

/* A head in fp8 needs more than blocks do: rows of targets come in multiples of a sixteenth of the
 * tokens (exec/device/batch-feed.h). A plan has not chosen any yet. */
static gboolean
check_head(const RpWeights *weights, const RpNetworkOptions *options, GError **error)
{
    const RpModel *model = rp_weights_model(weights);
    const guint head = rp_weights_n_layers(weights) - 1;

    if (!rp_layer_layout_of_fp8(weights, head, options->dtype, NULL).has_fp8)
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "matmul: fp8-head takes a head whose rows and columns are multiples of 16, found "
            "%u x %u: take fp8",
            (guint)model->vocab, (guint)model->hidden);
    if (options->tokens > 0 && (guint64)options->sequences * options->tokens < LEAST_HEAD_TOKENS)
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "matmul: fp8-head takes micro-batches of %u tokens or more, found %u sequences of "
            "%u: take fp8",
            LEAST_HEAD_TOKENS, options->sequences, options->tokens);
    if (options->head_chunk % 16 != 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "head_chunk: expected a multiple of 16 with matmul: fp8-head, found %u",
                       options->head_chunk);
    return TRUE;
}

static gboolean
check_fp8(const RpRunSpec *run, const RpWeights *weights, const RpKernels *kernels, guint devices,
          const RpNetworkOptions *options, GError **error)
{
    g_autoptr(GError) problem = NULL;

    if ((guint64)options->sequences * options->tokens % 16 != 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "matmul: fp8 takes micro-batches of a multiple of 16 tokens, found %u "
                       "sequences of %u: change the length of a sequence",
                       options->sequences, options->tokens);
    if (!some_block_has_fp8(run, weights, options->dtype))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "matmul: fp8 finds no block to multiply: all stay plain, or have matrices "
                       "whose rows or columns are no multiple of 16");
    if (kernels != NULL && !kernels->check_fp8(devices, &problem))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "matmul: fp8: %s: leave it out",
                       problem->message);
    return run->matmul_choice != RP_RUN_MATMUL_FP8_HEAD || check_head(weights, options, error);
}

gboolean
rp_run_take_matmul(const RpRunSpec *run, const RpWeights *weights, const RpKernels *kernels,
                   guint devices, RpNetworkOptions *options, GError **error)
{
    const gboolean head = run->matmul_choice == RP_RUN_MATMUL_FP8_HEAD;
    const gboolean quantized = head || run->matmul_choice == RP_RUN_MATMUL_FP8;
    const char *dtype = rp_dtype_name(options->dtype);

    g_return_val_if_fail(weights && options, FALSE);
    if (!quantized && run->matmul_choice != 0 && run->matmul_choice != (int)options->dtype + 1)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "matmul: expected %s, as dtype, fp8 or fp8-head, found %s", dtype,
                       rp_dtype_name((RpDtype)(run->matmul_choice - 1)));
    if (run->half_sums && options->dtype != RP_DTYPE_FP16 && !quantized)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "accumulate: expected fp32 with dtype %s, found fp16", dtype);
    options->half_sums = run->half_sums;
    if (!quantized)
        return TRUE;
    if (!check_fp8(run, weights, kernels, devices, options, error))
        return FALSE;
    options->fp8 = (RpNetworkFp8){.used = TRUE,
                                  .gradients = run->fp8.gradients != 0 ? (RpDtype)run->fp8.gradients
                                                                       : RP_DTYPE_E5M2,
                                  .plain_first = run->fp8.plain_first,
                                  .plain_last = run->fp8.plain_last,
                                  .head = head};
    return TRUE;
}
