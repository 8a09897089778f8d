/**
 * config.json: what the values mean together. The text is read by the table in hf-config-keys.c.
 */
#include "exec/model/hf-config.h"

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/model/hf-config-private.h"

#define MAX_FILE_BYTES ((gsize)16 << 20)

/* What transformers takes where a key is absent. */
#define LLAMA_MAX_RANGE 1.0
#define DEFAULT_EPS 1e-6
#define DEFAULT_THETA 10000.0
#define DEFAULT_RANGE 0.02

G_DEFINE_QUARK(rp_hf_config_error, rp_hf_config_error)

static gboolean G_GNUC_PRINTF(4, 5) fail(const RpConfigReader *reader, RpHfConfigError code,
                                         const char *key, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(reader->pull.error, RP_HF_CONFIG_ERROR, code, "%s: %s: %s", reader->pull.file, key,
                text);
    return FALSE;
}

static gboolean
settle_architecture(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    const RpArchitectureRow *rows = rp_architectures;

    if (raw->architecture < 0 && raw->model_type < 0) {
        g_autofree const char **names =
            rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, hf_name));
        g_autofree char *joined = g_strjoinv("\"] or [\"", (char **)names);
        return fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "architectures",
                    "expected [\"%s\"], found nothing", joined);
    }
    if (raw->model_type < 0) /* AutoModelForCausalLM refuses it, too */
        return fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "model_type",
                    "expected \"%s\", that of %s, found nothing",
                    rows[raw->architecture].model_type, rows[raw->architecture].hf_name);
    if (raw->architecture >= 0 && raw->architecture != raw->model_type)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "model_type",
                    "expected \"%s\", that of %s, found \"%s\"", rows[raw->architecture].model_type,
                    rows[raw->architecture].hf_name, rows[raw->model_type].model_type);
    raw->config.architecture = (RpArchitecture)raw->model_type;
    return TRUE;
}

static gboolean
settle_sizes(RpConfigReader *reader)
{
    RpModel *c = &reader->raw.config;
    const RpArchitectureRow *row = &rp_architectures[c->architecture];
    const struct {
        const char *key;
        guint value;
    } required[] = {
        {"hidden_size", c->hidden},
        {"num_hidden_layers", c->blocks},
        {"num_attention_heads", c->heads},
        {"intermediate_size", c->intermediate},
        {"vocab_size", c->vocab},
        /* transformers would take 32, whatever the heads */
        {"num_key_value_heads", row->needs_kv_heads ? c->kv_heads : 1},
    };

    for (guint i = 0; i < G_N_ELEMENTS(required); i++)
        if (required[i].value == 0)
            return fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, required[i].key,
                        "expected a whole number from 1 up, found nothing");
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->max_positions == 0)
        c->max_positions = row->max_positions;
    if (reader->raw.null_head_dim && row->head_dim > 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                    "expected a whole number from 1 up, found null");
    if (row->head_dim == 0 &&
        c->hidden % c->heads != 0) /* transformers asks for it even with head_dim */
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "hidden_size",
                    "expected a multiple of num_attention_heads, %u, found %u", c->heads,
                    c->hidden);
    if (c->head_dim == 0)
        c->head_dim = row->head_dim > 0 ? row->head_dim : c->hidden / c->heads;
    if (c->head_dim % 2 != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                    "expected an even number, found %u", c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "num_key_value_heads",
                    "expected a divisor of num_attention_heads, %u, found %u", c->heads,
                    c->kv_heads);
    if ((guint64)c->heads * c->head_dim > RP_CONFIG_MAX_SIZE)
        return fail(
            reader, RP_HF_CONFIG_ERROR_VALUE, "num_attention_heads",
            "expected at most %u for num_attention_heads x head_dim, found %" G_GUINT64_FORMAT,
            RP_CONFIG_MAX_SIZE, (guint64)c->heads * c->head_dim);
    return TRUE;
}

static gboolean
settle_rope(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpRope *rope = &raw->config.rope;

    if (raw->rope_theta > 0 && raw->nested_theta > 0 && raw->rope_theta != raw->nested_theta)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "rope_theta",
                    "expected %g, that of %s, found %g", raw->nested_theta, raw->rope_key,
                    raw->rope_theta);
    rope->theta = raw->nested_theta > 0 ? raw->nested_theta
                  : raw->rope_theta > 0 ? raw->rope_theta
                                        : DEFAULT_THETA;
    if (rope->type == RP_ROPE_DEFAULT) {
        *rope = (RpRope){.theta = rope->theta};
        return TRUE;
    }
    if (rope->factor < 1)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                    "expected a factor of 1 or more for llama3, found %g", rope->factor);
    if (rope->low_freq_factor <= 0 || rope->high_freq_factor <= rope->low_freq_factor)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                    "expected 0 < low_freq_factor < high_freq_factor for llama3, found %g and %g",
                    rope->low_freq_factor, rope->high_freq_factor);
    if (rope->original_max_positions == 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                    "expected original_max_position_embeddings for llama3, found nothing");
    if (raw->outer_original_max_positions > 0 &&
        raw->outer_original_max_positions != rope->original_max_positions)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "original_max_position_embeddings",
                    "expected %u, that of %s (transformers 5 takes this one instead), found %u",
                    rope->original_max_positions, raw->rope_key, raw->outer_original_max_positions);
    return TRUE;
}

static gboolean
settle_rest(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;

    if (c->initializer_range > LLAMA_MAX_RANGE && c->architecture == RP_ARCHITECTURE_LLAMA)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "initializer_range",
                    "expected at most 1, found %g", c->initializer_range);
    if (c->mlp_bias && !rp_architectures[c->architecture].has_mlp_bias)
        return fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "mlp_bias",
                    "expected false, since Qwen3 has none, found true");
    if (raw->n_layer_types != 0 && raw->n_layer_types != c->blocks)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "layer_types",
                    "expected one for each of %u blocks, found %u", c->blocks, raw->n_layer_types);
    if (c->pad_id >= (gint64)c->vocab)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "pad_token_id",
                    "expected one of the %u tokens, found %" G_GINT64_FORMAT, c->vocab, c->pad_id);
    return TRUE;
}

gboolean
rp_hf_config_parse(const char *name, const char *text, gsize length, RpModel *config,
                   GError **error)
{
    g_autofree char *shown = NULL;
    RpConfigReader reader;

    g_return_val_if_fail(name && (text || length == 0) && config, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    shown = rp_display_name(name);
    reader.raw =
        (RpConfigRaw){.architecture = -1, .model_type = -1, .rope_type = -1, .old_rope_type = -1};
    reader.raw.config = (RpModel){.experts = 1,
                                  .active_experts = 1,
                                  .rms_norm_eps = DEFAULT_EPS,
                                  .initializer_range = DEFAULT_RANGE,
                                  .bos_id = RP_MODEL_NO_TOKEN,
                                  .pad_id = RP_MODEL_NO_TOKEN};
    if (!rp_json_pull_init(&reader.pull, shown, text, length, RP_HF_CONFIG_ERROR,
                           RP_HF_CONFIG_ERROR_SYNTAX, error) ||
        !rp_config_read(&reader) || !rp_json_pull_end(&reader.pull))
        return FALSE;
    if (!settle_architecture(&reader) || !settle_sizes(&reader) || !settle_rope(&reader) ||
        !settle_rest(&reader))
        return FALSE;
    *config = reader.raw.config;
    return TRUE;
}

gboolean
rp_hf_config_load(const char *path, RpModel *config, GError **error)
{
    g_autoptr(GMappedFile) map = NULL;
    g_autofree char *inside = NULL;

    g_return_val_if_fail(path && config, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    if (g_file_test(path, G_FILE_TEST_IS_DIR))
        path = inside = g_build_filename(path, "config.json", NULL);
    map = rp_file_map(path, error);
    if (map == NULL)
        return FALSE;
    gsize length = g_mapped_file_get_length(map);
    if (length > MAX_FILE_BYTES) {
        g_autofree char *shown = rp_display_name(path);
        g_set_error(error, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_SYNTAX,
                    "%s: expected at most %" G_GSIZE_FORMAT " bytes, found %" G_GSIZE_FORMAT, shown,
                    MAX_FILE_BYTES, length);
        return FALSE;
    }
    const char *text = g_mapped_file_get_contents(map);
    return rp_hf_config_parse(path, text != NULL ? text : "", length, config, error);
}

gboolean
rp_hf_config_check_runs(const RpModel *model, GError **error)
{
    g_return_val_if_fail(model, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    if (rp_architectures[model->architecture].runs)
        return TRUE;
    g_set_error(error, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_UNSUPPORTED,
                "%s: expected a dense Qwen3 or Llama model, found another", model->name);
    return FALSE;
}
