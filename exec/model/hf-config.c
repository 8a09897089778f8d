/**
 * Derives the model from the values of config.json together. The text is read by the table in
 * hf-config-keys.c.
 */
#include "exec/model/hf-config.h"

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/custom.h"
#include "exec/model/hf-config-private.h"

#define MAX_FILE_BYTES ((gsize)16 << 20)

/* Defaults of transformers where a key is absent. */
#define LLAMA_MAX_RANGE 1.0
#define DEFAULT_EPS 1e-6
#define DEFAULT_RANGE 0.02
#define DEFAULT_MAX_WINDOW_LAYERS 28

/* Names of an architecture, or of the larger model that has it. */
static const char *
class_name(int architecture, gboolean outer)
{
    const RpArchitectureRow *row = &rp_architectures[architecture];

    return outer ? row->outer_name : row->hf_name;
}

static const char *
type_name(int architecture, gboolean outer)
{
    const RpArchitectureRow *row = &rp_architectures[architecture];

    return outer ? row->outer_type : row->model_type;
}

/* An architecture of the caller's program (core/catalogue/custom.h): the names of these stand behind those of the
 * table. */
static gboolean
settle_custom(RpConfigReader *reader)
{
    const RpConfigRaw *raw = &reader->raw;
    RpModel *c = &reader->raw.config;
    const struct {
        const char *key;
        guint value;
    } required[] = {
        {"hidden_size", c->hidden},
        {"num_hidden_layers", c->blocks},
        {"vocab_size", c->vocab},
        {"max_position_embeddings", c->max_positions},
    };

    c->architecture = RP_ARCHITECTURE_CUSTOM;
    c->custom = rp_architecture_nth((guint)raw->architecture - RP_N_ARCHITECTURES);
    if (raw->architecture < RP_N_ARCHITECTURES ||
        (raw->model_type >= 0 && raw->model_type != raw->architecture))
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "architectures",
                              "expected the same architecture of a program as model_type");
    for (guint i = 0; i < G_N_ELEMENTS(required); i++)
        if (required[i].value == 0)
            return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, required[i].key,
                                  "expected a whole number from 1 up, found nothing");
    if (c->custom->labels >= c->max_positions)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "max_position_embeddings",
                              "expected more words than the %u labels at the end, found %u",
                              c->custom->labels, c->max_positions);
    c->heads = c->kv_heads = 1; /* of ropes, which no layer reads */
    c->head_dim = 2;
    c->rope.theta = 1e4;
    c->rms_norm_eps = DEFAULT_EPS;
    c->pad_id = RP_MODEL_NO_TOKEN;
    return TRUE;
}

/* A larger model may have one text part or another: "text_config" says which. */
static void
settle_text_part(RpConfigRaw *raw)
{
    const RpArchitectureRow *rows = rp_architectures;

    if (!raw->outer_type || raw->text_type < 0 ||
        g_strcmp0(rows[raw->text_type].outer_type, rows[raw->model_type].outer_type) != 0)
        return;
    if (raw->architecture == raw->model_type)
        raw->architecture = raw->text_type;
    raw->model_type = raw->text_type;
}

static gboolean
settle_architecture(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    const RpArchitectureRow *rows = rp_architectures;
    RpModel *c = &raw->config;

    if (raw->architecture < 0 && raw->model_type < 0) {
        g_autofree const char **names =
            rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, hf_name));
        g_autofree char *joined = g_strjoinv("\"] or [\"", (char **)names);
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "architectures",
                              "expected [\"%s\"], found nothing", joined);
    }
    if (MAX(raw->architecture, raw->model_type) >= RP_N_ARCHITECTURES)
        return settle_custom(reader);
    settle_text_part(raw);
    if (raw->model_type < 0) /* AutoModelForCausalLM refuses it, too */
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "model_type",
                              "expected \"%s\", that of %s, found nothing",
                              type_name(raw->architecture, raw->outer_class),
                              class_name(raw->architecture, raw->outer_class));
    if (raw->architecture >= 0 &&
        (raw->architecture != raw->model_type || raw->outer_class != raw->outer_type))
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "model_type",
                              "expected \"%s\", that of %s, found \"%s\"",
                              type_name(raw->architecture, raw->outer_class),
                              class_name(raw->architecture, raw->outer_class),
                              type_name(raw->model_type, raw->outer_type));
    c->architecture = (RpArchitecture)raw->model_type;
    c->outer = raw->outer_type;
    if (c->outer && !raw->has_text)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "text_config",
                              "expected the sizes of %s, found nothing",
                              rows[c->architecture].hf_name);
    if (!c->outer && raw->has_text)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "text_config",
                              "expected null (transformers reads its sizes from there), found an "
                              "object");
    return raw->text_type < 0 || raw->text_type == raw->model_type ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "text_config.model_type",
                          "expected \"%s\", that of %s, found \"%s\"",
                          rows[c->architecture].model_type, rows[c->architecture].outer_name,
                          rows[raw->text_type].model_type);
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
        {"intermediate_size", row->shared_expert ? 1 : c->intermediate},
        {"vocab_size", c->vocab},
        /* transformers would take 32, whatever the heads */
        {"num_key_value_heads", row->needs_kv_heads ? c->kv_heads : 1},
    };

    for (guint i = 0; i < G_N_ELEMENTS(required); i++)
        if (required[i].value == 0)
            return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, required[i].key,
                                  "expected a whole number from 1 up, found nothing");
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->max_positions == 0)
        c->max_positions = row->max_positions;
    if (reader->raw.null_head_dim && row->head_dim > 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                              "expected a whole number from 1 up, found null");
    /* for Llama, transformers asks for it even with head_dim */
    if ((c->architecture == RP_ARCHITECTURE_LLAMA || (row->head_dim == 0 && c->head_dim == 0)) &&
        c->hidden % c->heads != 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "hidden_size",
                              "expected a multiple of num_attention_heads, %u, found %u", c->heads,
                              c->hidden);
    if (c->head_dim == 0)
        c->head_dim = row->head_dim > 0 ? row->head_dim : c->hidden / c->heads;
    if (c->head_dim % 2 != 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                              "expected an even number, found %u", c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "num_key_value_heads",
                              "expected a divisor of num_attention_heads, %u, found %u", c->heads,
                              c->kv_heads);
    if ((guint64)c->heads * c->head_dim > RP_CONFIG_MAX_SIZE)
        return rp_config_fail(
            reader, RP_HF_CONFIG_ERROR_VALUE, "num_attention_heads",
            "expected at most %u for num_attention_heads x head_dim, found %" G_GUINT64_FORMAT,
            RP_CONFIG_MAX_SIZE, (guint64)c->heads * c->head_dim);
    return TRUE;
}

static gboolean
settle_rest(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    const RpArchitectureRow *row = &rp_architectures[c->architecture];

    if (c->initializer_range > LLAMA_MAX_RANGE && c->architecture == RP_ARCHITECTURE_LLAMA)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "initializer_range",
                              "expected at most 1, found %g", c->initializer_range);
    if (raw->attention_bias > 0 && !row->has_attention_bias)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "attention_bias",
                              "expected false, since %s does not read it, found true",
                              row->hf_name);
    if (c->mlp_bias && !row->has_mlp_bias)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "mlp_bias",
                              "expected false, since %s has none, found true", row->hf_name);
    c->attention_bias = raw->attention_bias >= 0 ? raw->attention_bias : row->attention_bias;
    c->mlp_bias = c->mlp_bias || row->fused_experts;
    c->tied = raw->tied >= 0 ? raw->tied : row->tied;
    c->rms_norm_eps = raw->rms_norm_eps > 0   ? raw->rms_norm_eps
                      : row->rms_norm_eps > 0 ? row->rms_norm_eps
                                              : DEFAULT_EPS;
    if (c->pad_id == RP_CONFIG_PAD_ABSENT)
        c->pad_id = row->pad_id > 0 ? (gint64)row->pad_id : RP_MODEL_NO_TOKEN;
    if (c->pad_id >= (gint64)c->vocab)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "pad_token_id",
                              "expected one of the %u tokens, found %" G_GINT64_FORMAT, c->vocab,
                              c->pad_id);
    return TRUE;
}

gboolean
rp_hf_config_parse(const char *name, const char *text, gsize length, RpModel *config,
                   GError **error)
{
    RpConfigReader reader;

    g_return_val_if_fail(name && (text || length == 0) && config, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autofree char *shown = rp_display_name(name);
    reader.raw = (RpConfigRaw){.architecture = -1,
                               .model_type = -1,
                               .text_type = -1,
                               .tied = -1,
                               .attention_bias = -1,
                               .router_aux_loss = -1,
                               .norm_topk = -1,
                               .rope_type = -1,
                               .old_rope_type = -1,
                               .max_window_layers = DEFAULT_MAX_WINDOW_LAYERS};
    reader.raw.config = (RpModel){.experts = 1,
                                  .active_experts = 1,
                                  .initializer_range = DEFAULT_RANGE,
                                  .rope.truncate = TRUE,
                                  .bos_id = RP_MODEL_NO_TOKEN,
                                  .pad_id = RP_CONFIG_PAD_ABSENT};
    if (!rp_json_pull_init(&reader.pull, shown, text, length, RP_HF_CONFIG_ERROR,
                           RP_HF_CONFIG_ERROR_SYNTAX, error) ||
        !rp_config_read(&reader) || !rp_json_pull_end(&reader.pull))
        return FALSE;
    if (!settle_architecture(&reader) ||
        (reader.raw.config.custom == NULL &&
         (!settle_sizes(&reader) || !rp_config_settle_experts(&reader) ||
          !rp_config_settle_rope(&reader) || !rp_config_settle_blocks(&reader) ||
          !settle_rest(&reader))))
        return FALSE;
    *config = reader.raw.config;
    return TRUE;
}

gboolean
rp_hf_config_load(const char *path, RpModel *config, GError **error)
{
    g_autofree char *inside = NULL;

    g_return_val_if_fail(path && config, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autofree char *hint = NULL;

    if (g_file_test(path, G_FILE_TEST_IS_DIR))
        inside = g_build_filename(path, "config.json", NULL);
    if (!g_file_test(inside != NULL ? inside : path, G_FILE_TEST_EXISTS) ||
        g_str_has_suffix(path, ".gguf"))
        hint = rp_model_hint(path);
    if (hint != NULL)
        return rp_fail_in(error, path, G_FILE_ERROR, G_FILE_ERROR_NOENT, "%s", hint);
    path = inside != NULL ? inside : path;
    g_autoptr(GMappedFile) map = rp_file_map(path, error);
    if (map == NULL)
        return FALSE;
    gsize length = g_mapped_file_get_length(map);
    if (length > MAX_FILE_BYTES)
        return rp_fail_in(error, path, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_SYNTAX,
                          "expected at most %" G_GSIZE_FORMAT " bytes, found %" G_GSIZE_FORMAT,
                          MAX_FILE_BYTES, length);
    const char *text = g_mapped_file_get_contents(map);
    if (!rp_hf_config_parse(path, text != NULL ? text : "", length, config, error))
        return FALSE;
    if (rp_hf_config_check_runs(config, error))
        return TRUE;
    g_autofree char *shown = rp_display_name(path);
    return rp_prefix_error(error, "%s: ", shown);
}

gboolean
rp_hf_config_check_runs(const RpModel *model, GError **error)
{
    g_return_val_if_fail(model != NULL, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    if (rp_architectures[model->architecture].runs)
        return TRUE;
    g_autoptr(GString) names = g_string_new(NULL);
    for (guint i = 0; i < RP_N_ARCHITECTURES; i++)
        if (rp_architectures[i].runs)
            g_string_append_printf(names, "%s%s", names->len > 0 ? ", " : "",
                                   rp_architectures[i].hf_name);
    return rp_fail(error, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_UNSUPPORTED,
                   "%s%sexpected one of %s, found %s", model->name != NULL ? model->name : "",
                   model->name != NULL ? ": " : "", names->str,
                   rp_architectures[model->architecture].hf_name);
}
