#include "run/trained.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "exec/adapter/adapter.h"
#include "exec/checkpoint/checkpoint.h"
#include "run/devices.h"

#define MAX_CONFIG_BYTES (1 << 20)
#define GENERATION_CONFIG "generation_config.json"

void
rp_trained_clear(RpTrained *model)
{
    g_clear_pointer(&model->probe, rp_probe_free);
    g_clear_pointer(&model->weights, rp_weights_free);
    g_clear_pointer(&model->adapters, rp_safetensors_free);
    g_clear_pointer(&model->checkpoint, rp_safetensors_free);
    g_clear_pointer(&model->path, g_free);
    g_clear_pointer(&model->adapter, g_free);
}

static gboolean
has_file(const char *directory, const char *name)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    return g_file_test(path, G_FILE_TEST_EXISTS);
}

/* ---- what a word stands for ---- */

static gboolean
read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    g_free(*(char **)value);
    *(char **)value = g_strdup(text->str);
    return TRUE;
}

/* @base as it is; else from a folder above the adapters on, as where a run was begun; or there by its last
 * part, as where model and run were moved together. (transfer full) */
static char *
find_base(const char *base, const char *adapter)
{
    g_autofree char *name = g_path_get_basename(base);
    g_autofree char *at = g_canonicalize_filename(adapter, NULL);

    if (has_file(base, "config.json"))
        return g_strdup(base);
    while (strcmp(at, "/") != 0) {
        char *above = g_path_get_dirname(at);
        g_autofree char *path =
            g_build_filename(above, g_path_is_absolute(base) ? name : base, NULL);

        g_free(at);
        at = above;
        if (has_file(path, "config.json"))
            return g_steal_pointer(&path);
    }
    return NULL;
}

/* The base that adapter_config.json names. (transfer full) */
static char *
read_base(const char *adapter, GError **error)
{
    static const RpJsonField rows[] = {
        {"base_model_name_or_path", read_text, .null_is_absent = TRUE},
        {NULL, rp_json_read_ignored},
    };
    g_autofree char *path = g_build_filename(adapter, RP_ADAPTER_CONFIG, NULL);
    g_autofree char *shown = rp_display_name(path);
    g_autofree char *base = NULL;
    gsize length = 0;
    g_autofree char *text = rp_file_read(path, MAX_CONFIG_BYTES, &length, error);
    RpJsonPull pull;

    if (text == NULL ||
        !rp_json_pull_init(&pull, shown, text, length, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_SYNTAX,
                           error) ||
        !rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), &base, NULL))
        return NULL;
    char *path_of_base = base != NULL && *base != '\0' ? find_base(base, adapter) : NULL;
    if (path_of_base != NULL)
        return path_of_base;
    g_autofree char *found = base != NULL ? rp_quote(base) : g_strdup("none");

    g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                "%s: base_model_name_or_path: expected the directory of a model, found %s: name "
                "it instead, with --adapter %s",
                shown, found, adapter);
    return NULL;
}

/* A run's best checkpoint, or its last; of a checkpoint itself. (transfer full) */
static char *
find_checkpoint(const char *word, GError **error)
{
    g_autofree char *best = g_build_filename(word, "best", NULL);

    if (has_file(word, "config.json") || has_file(word, RP_ADAPTER_CONFIG) ||
        !g_file_test(word, G_FILE_TEST_IS_DIR))
        return g_strdup(word);
    if (g_file_test(best, G_FILE_TEST_IS_DIR))
        return g_steal_pointer(&best);
    g_autoptr(GError) local = NULL;
    g_autofree char *last = rp_checkpoint_find_last(word, NULL, &local);

    return last != NULL ? g_steal_pointer(&last) : g_strdup(word); /* has no config.json, then */
}

/* Sets the paths of model and adapters. */
static gboolean
resolve(RpTrained *model, const char *word, const char *adapter, GError **error)
{
    g_autofree char *path = find_checkpoint(word, error);

    if (path == NULL)
        return FALSE;
    model->adapter = adapter != NULL ? find_checkpoint(adapter, error) : NULL;
    if (adapter != NULL && model->adapter == NULL)
        return FALSE;
    if (adapter != NULL || !has_file(path, RP_ADAPTER_CONFIG)) {
        model->path = g_steal_pointer(&path);
        return TRUE;
    }
    model->adapter = g_steal_pointer(&path);
    model->path = read_base(model->adapter, error);
    return model->path != NULL;
}

/* ---- weights and device ---- */

static gboolean
open_weights(RpTrained *model, GError **error)
{
    const char *adapter = model->adapter;
    g_autofree char *tensors =
        adapter != NULL ? g_build_filename(adapter, RP_ADAPTER_TENSORS, NULL) : NULL;
    g_auto(RpLora) lora = {0};

    model->checkpoint = rp_safetensors_open(model->path, error);
    if (model->checkpoint == NULL)
        return FALSE;
    if (adapter != NULL && !rp_adapter_config_load(adapter, &lora, error))
        return FALSE;
    if (adapter != NULL && (!rp_lora_check(&lora, &model->config, error) ||
                            (model->adapters = rp_safetensors_open(tensors, error)) == NULL))
        return FALSE;
    lora.dropout = 0; /* of training alone */
    model->weights = rp_weights_new_adapted(&model->config, &lora);
    for (guint i = 0; i < rp_weights_count(model->weights) && adapter == NULL; i++)
        rp_weights_freeze(model->weights, i, RP_DTYPE_FP32); /* may be packed, then */
    if (!rp_weights_adopt(model->weights, model->checkpoint, error) ||
        !rp_weights_bind(model->weights, model->checkpoint, error))
        return FALSE;
    return adapter == NULL ||
           ((model->any_base || rp_checkpoint_check_base(adapter, model->weights, error)) &&
            rp_adapter_bind(model->weights, model->adapters, error));
}

static gboolean
open_device(RpTrained *model, const char *device, GError **error)
{
    const RpDeviceOps *devices;
    guint n;

    if (!rp_run_parse_devices(device != NULL ? device : "host", NULL, &devices, &n, error)) {
        g_prefix_error(error, "devices: ");
        return FALSE;
    }
    if (n != 1 && (device == NULL || strcmp(device, "cuda") != 0))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "devices: expected one device, found %u", n);
    model->kernels = devices->kernels();
    model->probe = devices->probe_new(0, error);
    return model->probe != NULL;
}

gboolean
rp_trained_find(RpTrained *model, const char *word, const char *adapter, GError **error)
{
    return resolve(model, word, adapter, error) && rp_checkpoint_verify_model(model->path, error) &&
           (model->adapter == NULL || rp_checkpoint_verify_model(model->adapter, error)) &&
           rp_hf_config_load(model->path, &model->config, error);
}

gboolean
rp_trained_open(RpTrained *model, const char *word, const char *adapter, const char *device,
                GError **error)
{
    return rp_trained_find(model, word, adapter, error) && open_weights(model, error) &&
           open_device(model, device, error);
}

/* ---- files beside ---- */

const char *
rp_trained_directory(const RpTrained *model, const char *name)
{
    return model->adapter != NULL && has_file(model->adapter, name) ? model->adapter : model->path;
}

RpTokenizer *
rp_trained_tokenizer(const RpTrained *model, GError **error)
{
    RpTokenizer *tokenizer =
        rp_tokenizer_open(rp_trained_directory(model, "tokenizer.json"), error);

    if (tokenizer == NULL || rp_tokenizer_size(tokenizer) <= model->config.vocab)
        return tokenizer;
    g_set_error(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_FILE,
                "%s: tokenizer.json: expected ids below the model's vocabulary of %u, found %u",
                model->path, model->config.vocab, rp_tokenizer_size(tokenizer) - 1);
    rp_tokenizer_free(tokenizer);
    return NULL;
}

/* An id, or an array of them. */
static gboolean
read_ends(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpGeneratorOptions *options = value;
    const gboolean is_array = rp_json_pull_peek(pull) == RP_JSON_ARRAY;
    guint64 id;

    options->n_ends = 0;
    if (is_array && !rp_json_pull_enter_array(pull))
        return FALSE;
    while (is_array ? rp_json_pull_next_element(pull) : options->n_ends == 0) {
        if (!rp_json_pull_whole(pull, &id))
            return FALSE;
        if (id > G_MAXINT32 || options->n_ends == RP_GENERATOR_MAX_ENDS)
            return rp_json_pull_fail_value(pull, "at most 64 ids of tokens");
        options->ends[options->n_ends++] = (gint32)id;
    }
    return !pull->failed;
}

gboolean
rp_trained_ends(const RpTrained *model, RpGeneratorOptions *options, GError **error)
{
    static const RpJsonField rows[] = {
        {"eos_token_id", read_ends, .null_is_absent = TRUE},
        {NULL, rp_json_read_ignored},
    };
    g_autofree char *path =
        g_build_filename(rp_trained_directory(model, GENERATION_CONFIG), GENERATION_CONFIG, NULL);
    g_autofree char *shown = rp_display_name(path);
    gsize length = 0;
    RpJsonPull pull;

    options->n_ends = model->config.n_eos;
    for (guint i = 0; i < model->config.n_eos; i++)
        options->ends[i] = model->config.eos_ids[i];
    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return TRUE;
    g_autofree char *text = rp_file_read(path, MAX_CONFIG_BYTES, &length, error);

    return text != NULL &&
           rp_json_pull_init(&pull, shown, text, length, RP_HF_CONFIG_ERROR,
                             RP_HF_CONFIG_ERROR_SYNTAX, error) &&
           rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows), options, NULL) &&
           rp_json_pull_end(&pull);
}
