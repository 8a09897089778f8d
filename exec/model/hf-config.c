/**
 * Reads config.json: one pass over the text, each known key by a table.
 */
#include "exec/model/hf-config.h"

#include <math.h>
#include <string.h>

#include "core/suggest.h"
#include "exec/model/file.h"
#include "exec/model/json-pull.h"
#include "core/quote.h"

#define MAX_FILE_BYTES ((gsize)16 << 20)
#define MAX_SIZE (1u << 24)      /* of any dimension */
#define MAX_POSITIONS (1u << 30) /* tokens */
#define MAX_BLOCKS 65536

/* What transformers takes where a key is absent. */
#define QWEN3_HEAD_DIM 128
#define QWEN3_MAX_POSITIONS 32768
#define LLAMA_MAX_POSITIONS 2048
#define DEFAULT_EPS 1e-6
#define DEFAULT_THETA 10000.0
#define DEFAULT_RANGE 0.02

G_DEFINE_QUARK(rp - hf - config - error - quark, rp_hf_config_error)

static const char *const architectures[] = {"Qwen3ForCausalLM", "LlamaForCausalLM", NULL};
static const char *const model_types[] = {"qwen3", "llama", NULL};

/* Values as they stand in the file. */
typedef struct {
    RpModelConfig config;
    int architecture; /* -1 = not given */
    int model_type;   /* -1 */
    gboolean has_head_dim;
    gboolean has_kv_heads;
    guint n_layer_types;
    double rope_theta; /* 0 = not given; so the next two */
    double nested_theta;
    double attention_dropout;
    double partial_rotary;
    gboolean use_sliding_window;
    const char *rope_key; /* "rope_scaling" or "rope_parameters", where one is not null */
} Raw;

typedef struct {
    RpJsonPull pull;
    GString *text;
    Raw raw;
} Reader;

typedef gboolean (*ReadField)(Reader *reader, const char *key);

typedef enum { FIELD_COUNT, FIELD_POSITIVE, FIELD_FACTOR, FIELD_BOOLEAN, FIELD_OTHER } FieldType;

typedef struct {
    const char *key;
    FieldType type;
    gsize offset; /* in Raw */
    guint max;    /* of a count */
    ReadField read;
} Field;

#define AT(member) G_STRUCT_OFFSET(Raw, member)

static gboolean
fail_unsupported(Reader *reader, const char *expected)
{
    reader->pull.code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(&reader->pull, expected);
}

/* The index in @names of the string that stands next. */
static gboolean
read_choice(Reader *reader, const char *const *names, int *choice)
{
    if (!rp_json_pull_string(&reader->pull, reader->text))
        return FALSE;
    for (*choice = 0; names[*choice]; (*choice)++)
        if (strcmp(names[*choice], reader->text->str) == 0)
            return TRUE;
    const char *near = rp_nearest_name(reader->text->str, names);
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected =
        near ? g_strdup_printf("one of \"%s\" (did you mean \"%s\"?)", joined, near)
             : g_strdup_printf("one of \"%s\"", joined);
    return fail_unsupported(reader, expected);
}

static gboolean
read_architectures(Reader *reader, const char *key)
{
    guint n = 0;

    if (!rp_json_pull_enter_array(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_element(&reader->pull)) {
        if (n++ > 0)
            return rp_json_pull_fail(&reader->pull, "one architecture");
        if (!read_choice(reader, architectures, &reader->raw.architecture))
            return FALSE;
    }
    return !reader->pull.failed;
}

static gboolean
read_model_type(Reader *reader, const char *key)
{
    return read_choice(reader, model_types, &reader->raw.model_type);
}

static gboolean
read_activation(Reader *reader, const char *key)
{
    static const char *const names[] = {"silu", NULL};
    int choice;

    return read_choice(reader, names, &choice);
}

static gboolean
read_dtype(Reader *reader, const char *key)
{
    RpModelConfig *config = &reader->raw.config;
    RpDtype dtype;

    if (!rp_json_pull_string(&reader->pull, reader->text))
        return FALSE;
    const char *name = reader->text->str;
    if (g_str_has_prefix(name, "torch."))
        name += strlen("torch.");
    if (!rp_dtype_parse(name, rp_dtype_torch_name, &dtype))
        return fail_unsupported(reader, "one of \"bfloat16\", \"float16\", \"float32\"");
    if (config->has_dtype && config->dtype != dtype)
        return rp_json_pull_fail_value(&reader->pull, "the same for torch_dtype and dtype");
    config->has_dtype = TRUE;
    config->dtype = dtype;
    return TRUE;
}

/* A token's number, or -1, which older files have for none. */
static gboolean
read_token(Reader *reader, gint64 *id)
{
    double value;

    if (!rp_json_pull_number(&reader->pull, &value))
        return FALSE;
    if (value != floor(value) || value < RP_MODEL_NO_TOKEN || value > MAX_SIZE)
        return rp_json_pull_fail_value(&reader->pull, "a token's number");
    *id = (gint64)value;
    return TRUE;
}

static gboolean
read_bos(Reader *reader, const char *key)
{
    return read_token(reader, &reader->raw.config.bos_id);
}

static gboolean
read_pad(Reader *reader, const char *key)
{
    return read_token(reader, &reader->raw.config.pad_id);
}

static gboolean
read_eos(Reader *reader, const char *key)
{
    RpModelConfig *config = &reader->raw.config;

    config->n_eos = 0;
    if (rp_json_pull_peek(&reader->pull) != RP_JSON_ARRAY) {
        config->n_eos = 1;
        return read_token(reader, &config->eos_ids[0]);
    }
    if (!rp_json_pull_enter_array(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_element(&reader->pull)) {
        if (config->n_eos == RP_MODEL_MAX_EOS)
            return rp_json_pull_fail(&reader->pull,
                                     "at most " G_STRINGIFY(RP_MODEL_MAX_EOS) " tokens");
        if (!read_token(reader, &config->eos_ids[config->n_eos++]))
            return FALSE;
    }
    return !reader->pull.failed;
}

static gboolean
read_layer_types(Reader *reader, const char *key)
{
    if (!rp_json_pull_enter_array(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_element(&reader->pull)) {
        if (!rp_json_pull_string(&reader->pull, reader->text))
            return FALSE;
        if (strcmp(reader->text->str, "full_attention") != 0)
            return fail_unsupported(reader, "\"full_attention\" for every block");
        reader->raw.n_layer_types++;
    }
    return !reader->pull.failed;
}

static gboolean
read_quantization(Reader *reader, const char *key)
{
    return rp_json_pull_skip(&reader->pull) &&
           fail_unsupported(reader, "weights that are not quantized");
}

static gboolean
read_rope_type(Reader *reader, const char *key)
{
    static const char *const names[] = {"default", "llama3", NULL};
    int choice;

    if (!read_choice(reader, names, &choice))
        return FALSE;
    reader->raw.config.rope.type = choice == 1 ? RP_ROPE_LLAMA3 : RP_ROPE_DEFAULT;
    return TRUE;
}

static gboolean read_rope(Reader *reader, const char *key);

static const Field fields[] = {
    {"architectures", FIELD_OTHER, 0, 0, read_architectures},
    {"model_type", FIELD_OTHER, 0, 0, read_model_type},
    {"hidden_size", FIELD_COUNT, AT(config.hidden), MAX_SIZE, NULL},
    {"num_hidden_layers", FIELD_COUNT, AT(config.blocks), MAX_BLOCKS, NULL},
    {"num_attention_heads", FIELD_COUNT, AT(config.heads), MAX_SIZE, NULL},
    {"num_key_value_heads", FIELD_COUNT, AT(config.kv_heads), MAX_SIZE, NULL},
    {"head_dim", FIELD_COUNT, AT(config.head_dim), MAX_SIZE, NULL},
    {"intermediate_size", FIELD_COUNT, AT(config.intermediate), MAX_SIZE, NULL},
    {"vocab_size", FIELD_COUNT, AT(config.vocab), MAX_SIZE, NULL},
    {"max_position_embeddings", FIELD_COUNT, AT(config.max_positions), MAX_POSITIONS, NULL},
    {"rms_norm_eps", FIELD_POSITIVE, AT(config.rms_norm_eps), 0, NULL},
    {"initializer_range", FIELD_POSITIVE, AT(config.initializer_range), 0, NULL},
    {"rope_theta", FIELD_POSITIVE, AT(rope_theta), 0, NULL},
    {"rope_scaling", FIELD_OTHER, 0, 0, read_rope},
    {"rope_parameters", FIELD_OTHER, 0, 0, read_rope},
    {"partial_rotary_factor", FIELD_FACTOR, AT(partial_rotary), 0, NULL},
    {"tie_word_embeddings", FIELD_BOOLEAN, AT(config.tied), 0, NULL},
    {"attention_bias", FIELD_BOOLEAN, AT(config.attention_bias), 0, NULL},
    {"mlp_bias", FIELD_BOOLEAN, AT(config.mlp_bias), 0, NULL},
    {"attention_dropout", FIELD_FACTOR, AT(attention_dropout), 0, NULL},
    {"use_sliding_window", FIELD_BOOLEAN, AT(use_sliding_window), 0, NULL},
    {"layer_types", FIELD_OTHER, 0, 0, read_layer_types},
    {"hidden_act", FIELD_OTHER, 0, 0, read_activation},
    {"torch_dtype", FIELD_OTHER, 0, 0, read_dtype},
    {"dtype", FIELD_OTHER, 0, 0, read_dtype},
    {"bos_token_id", FIELD_OTHER, 0, 0, read_bos},
    {"eos_token_id", FIELD_OTHER, 0, 0, read_eos},
    {"pad_token_id", FIELD_OTHER, 0, 0, read_pad},
    {"quantization_config", FIELD_OTHER, 0, 0, read_quantization},
};

static const Field rope_fields[] = {
    {"rope_type", FIELD_OTHER, 0, 0, read_rope_type},
    {"type", FIELD_OTHER, 0, 0, read_rope_type}, /* the spelling of before 2024 */
    {"rope_theta", FIELD_POSITIVE, AT(nested_theta), 0, NULL},
    {"partial_rotary_factor", FIELD_FACTOR, AT(partial_rotary), 0, NULL},
    {"factor", FIELD_POSITIVE, AT(config.rope.factor), 0, NULL},
    {"low_freq_factor", FIELD_POSITIVE, AT(config.rope.low_freq_factor), 0, NULL},
    {"high_freq_factor", FIELD_POSITIVE, AT(config.rope.high_freq_factor), 0, NULL},
    {"original_max_position_embeddings", FIELD_COUNT, AT(config.rope.original_max_positions),
     MAX_POSITIONS, NULL},
};

static gboolean
read_count(Reader *reader, guint max, guint *count)
{
    guint64 value;

    if (!rp_json_pull_whole(&reader->pull, &value))
        return FALSE;
    if (value < 1 || value > max) {
        g_autofree char *expected = g_strdup_printf("a whole number from 1 to %u", max);
        return rp_json_pull_fail_value(&reader->pull, expected);
    }
    *count = (guint)value;
    return TRUE;
}

static gboolean
read_field(Reader *reader, const Field *field)
{
    gpointer member = G_STRUCT_MEMBER_P(&reader->raw, field->offset);
    double number;

    reader->pull.place = field->key;
    if (rp_json_pull_peek(&reader->pull) == RP_JSON_NULL) /* as if it were not there */
        return rp_json_pull_null(&reader->pull);
    switch (field->type) {
    case FIELD_COUNT:
        return read_count(reader, field->max, member);
    case FIELD_BOOLEAN:
        return rp_json_pull_boolean(&reader->pull, member);
    case FIELD_POSITIVE:
    case FIELD_FACTOR:
        if (!rp_json_pull_number(&reader->pull, &number))
            return FALSE;
        if (number < 0 || (field->type == FIELD_POSITIVE && number == 0) || number > 1e15)
            return rp_json_pull_fail_value(&reader->pull, field->type == FIELD_POSITIVE
                                                              ? "a positive number of at most 1e15"
                                                              : "a number from 0 to 1e15");
        *(double *)member = number;
        return TRUE;
    case FIELD_OTHER:
        break;
    }
    return field->read(reader, field->key);
}

/* One object, with the keys of @known. */
static gboolean
read_object(Reader *reader, const Field *known, gsize n_known)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    g_autoptr(GString) key = g_string_new(NULL);
    const char *place = reader->pull.place;

    if (!rp_json_pull_enter_object(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_key(&reader->pull, key)) {
        const Field *field = NULL;
        for (gsize i = 0; i < n_known && !field; i++)
            if (strcmp(known[i].key, key->str) == 0)
                field = &known[i];
        if (field && !g_hash_table_add(seen, (gpointer)field->key))
            return rp_json_pull_fail_value(&reader->pull, "each key once");
        if (!(field ? read_field(reader, field) : rp_json_pull_skip(&reader->pull)))
            return FALSE;
        reader->pull.place = place;
    }
    return !reader->pull.failed;
}

static gboolean
read_rope(Reader *reader, const char *key)
{
    if (reader->raw.rope_key)
        return rp_json_pull_fail(&reader->pull, "either rope_scaling or rope_parameters");
    reader->raw.rope_key = key;
    return read_object(reader, rope_fields, G_N_ELEMENTS(rope_fields));
}

static gboolean G_GNUC_PRINTF(4, 5)
    fail(const Reader *reader, RpHfConfigError code, const char *key, const char *format, ...)
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
settle_architecture(Reader *reader)
{
    Raw *raw = &reader->raw;

    if (raw->architecture < 0 && raw->model_type < 0)
        return fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "architectures",
                    "expected [\"%s\"] or [\"%s\"], found nothing", architectures[0],
                    architectures[1]);
    if (raw->architecture >= 0 && raw->model_type >= 0 && raw->architecture != raw->model_type)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "model_type",
                    "expected \"%s\", that of %s, found \"%s\"", model_types[raw->architecture],
                    architectures[raw->architecture], model_types[raw->model_type]);
    raw->config.architecture =
        (RpArchitecture)(raw->architecture >= 0 ? raw->architecture : raw->model_type);
    raw->config.qk_norm = raw->config.architecture == RP_ARCHITECTURE_QWEN3;
    return TRUE;
}

static gboolean
settle_sizes(Reader *reader)
{
    RpModelConfig *c = &reader->raw.config;
    gboolean qwen3 = c->architecture == RP_ARCHITECTURE_QWEN3;
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
        {"num_key_value_heads", qwen3 ? c->kv_heads : 1},
    };

    for (guint i = 0; i < G_N_ELEMENTS(required); i++)
        if (required[i].value == 0)
            return fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, required[i].key,
                        "expected a whole number from 1 up, found nothing");
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->max_positions == 0)
        c->max_positions = qwen3 ? QWEN3_MAX_POSITIONS : LLAMA_MAX_POSITIONS;
    if (c->head_dim == 0 && !qwen3 && c->hidden % c->heads != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "hidden_size",
                    "expected a multiple of num_attention_heads, %u, found %u", c->heads,
                    c->hidden);
    if (c->head_dim == 0)
        c->head_dim = qwen3 ? QWEN3_HEAD_DIM : c->hidden / c->heads;
    if (c->head_dim % 2 != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                    "expected an even number, found %u", c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_VALUE, "num_key_value_heads",
                    "expected a divisor of num_attention_heads, %u, found %u", c->heads,
                    c->kv_heads);
    if ((guint64)c->heads * c->head_dim > MAX_SIZE)
        return fail(
            reader, RP_HF_CONFIG_ERROR_VALUE, "num_attention_heads",
            "expected at most %u for num_attention_heads x head_dim, found %" G_GUINT64_FORMAT,
            MAX_SIZE, (guint64)c->heads * c->head_dim);
    return TRUE;
}

static gboolean
settle_rope(Reader *reader)
{
    Raw *raw = &reader->raw;
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
    return TRUE;
}

static gboolean
settle_rest(Reader *reader)
{
    Raw *raw = &reader->raw;
    RpModelConfig *c = &raw->config;

    if (raw->partial_rotary != 1)
        return fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "partial_rotary_factor",
                    "expected 1, found %g", raw->partial_rotary);
    if (raw->attention_dropout != 0)
        return fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "attention_dropout",
                    "expected 0, found %g", raw->attention_dropout);
    if (raw->use_sliding_window)
        return fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "use_sliding_window",
                    "expected false, found true");
    if (c->mlp_bias && c->architecture == RP_ARCHITECTURE_QWEN3)
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
rp_hf_config_parse(const char *name, const char *text, gsize length, RpModelConfig *config,
                   GError **error)
{
    g_autoptr(GString) scratch = g_string_new(NULL);
    g_autofree char *shown = NULL;
    Reader reader = {.text = scratch};

    g_return_val_if_fail(name && (text || length == 0) && config, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    shown = rp_display_name(name);
    reader.raw = (Raw){.architecture = -1, .model_type = -1, .partial_rotary = 1};
    reader.raw.config = (RpModelConfig){.rms_norm_eps = DEFAULT_EPS,
                                        .initializer_range = DEFAULT_RANGE,
                                        .bos_id = RP_MODEL_NO_TOKEN,
                                        .pad_id = RP_MODEL_NO_TOKEN};
    if (!rp_json_pull_init(&reader.pull, shown, text, length, RP_HF_CONFIG_ERROR,
                           RP_HF_CONFIG_ERROR_SYNTAX, error) ||
        !read_object(&reader, fields, G_N_ELEMENTS(fields)) || !rp_json_pull_end(&reader.pull))
        return FALSE;
    if (!settle_architecture(&reader) || !settle_sizes(&reader) || !settle_rope(&reader) ||
        !settle_rest(&reader))
        return FALSE;
    *config = reader.raw.config;
    return TRUE;
}

gboolean
rp_hf_config_load(const char *path, RpModelConfig *config, GError **error)
{
    g_autoptr(GMappedFile) map = NULL;
    g_autofree char *inside = NULL;

    g_return_val_if_fail(path && config, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    if (g_file_test(path, G_FILE_TEST_IS_DIR))
        path = inside = g_build_filename(path, "config.json", NULL);
    map = rp_file_map(path, error);
    if (!map)
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
    return rp_hf_config_parse(path, text ? text : "", length, config, error);
}

const char *
rp_architecture_name(RpArchitecture architecture)
{
    g_return_val_if_fail((guint)architecture < G_N_ELEMENTS(architectures) - 1, NULL);
    return architectures[architecture];
}
