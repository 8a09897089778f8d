/* One pass over the text of a config.json, each key by its row in the table. */
#include "exec/model/hf-config-private.h"

#include <math.h>
#include <string.h>

static gboolean read_object(RpConfigReader *reader, gboolean in_rope);

static gboolean
fail_unsupported(RpConfigReader *reader, const char *expected)
{
    reader->pull.code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(&reader->pull, expected);
}

/* The index in @names of the string that stands next. */
static gboolean
read_choice(RpConfigReader *reader, const char *const *names, int *choice)
{
    if (!rp_json_pull_string(&reader->pull, reader->text))
        return FALSE;
    for (*choice = 0; names[*choice]; (*choice)++)
        if (strcmp(names[*choice], reader->text->str) == 0)
            return TRUE;
    /* no "did you mean": another name computes something else */
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected = g_strdup_printf("%s\"%s\"", names[1] ? "one of " : "", joined);
    return fail_unsupported(reader, expected);
}

gboolean
rp_config_read_architectures(RpConfigReader *reader, const RpConfigField *field)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, hf_name));
    guint n = 0;

    if (!rp_json_pull_enter_array(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_element(&reader->pull)) {
        if (n++ > 0)
            return rp_json_pull_fail(&reader->pull, "one architecture");
        if (!read_choice(reader, names, &reader->raw.architecture))
            return FALSE;
    }
    return !reader->pull.failed;
}

gboolean
rp_config_read_model_type(RpConfigReader *reader, const RpConfigField *field)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, model_type));

    return read_choice(reader, names, &reader->raw.model_type);
}

gboolean
rp_config_read_activation(RpConfigReader *reader, const RpConfigField *field)
{
    static const char *const names[] = {"silu", NULL};
    int choice;

    return read_choice(reader, names, &choice);
}

gboolean
rp_config_read_dtype(RpConfigReader *reader, const RpConfigField *field)
{
    RpModel *config = &reader->raw.config;
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

/* A token's number, or where @none also -1, which older files have for none. */
static gboolean
read_token(RpConfigReader *reader, gboolean none, gint64 *id)
{
    double value;

    if (!rp_json_pull_number(&reader->pull, &value))
        return FALSE;
    if (value == RP_MODEL_NO_TOKEN && !none)
        return rp_json_pull_fail_value(
            &reader->pull,
            "a token's number, or null for none (torch takes -1 for the last token)");
    if (value != floor(value) || value < RP_MODEL_NO_TOKEN || value > RP_CONFIG_MAX_SIZE)
        return rp_json_pull_fail_value(&reader->pull, "a token's number");
    *id = (gint64)value;
    return TRUE;
}

gboolean
rp_config_read_bos(RpConfigReader *reader, const RpConfigField *field)
{
    return read_token(reader, TRUE, &reader->raw.config.bos_id);
}

gboolean
rp_config_read_pad(RpConfigReader *reader, const RpConfigField *field)
{
    return read_token(reader, FALSE, &reader->raw.config.pad_id);
}

gboolean
rp_config_read_eos(RpConfigReader *reader, const RpConfigField *field)
{
    RpModel *config = &reader->raw.config;

    config->n_eos = 0;
    if (rp_json_pull_peek(&reader->pull) != RP_JSON_ARRAY) {
        config->n_eos = 1;
        return read_token(reader, TRUE, &config->eos_ids[0]);
    }
    if (!rp_json_pull_enter_array(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_element(&reader->pull)) {
        if (config->n_eos == RP_MODEL_MAX_EOS)
            return rp_json_pull_fail(&reader->pull,
                                     "at most " G_STRINGIFY(RP_MODEL_MAX_EOS) " tokens");
        if (!read_token(reader, TRUE, &config->eos_ids[config->n_eos++]))
            return FALSE;
    }
    return !reader->pull.failed;
}

gboolean
rp_config_read_layer_types(RpConfigReader *reader, const RpConfigField *field)
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

gboolean
rp_config_read_rope_type(RpConfigReader *reader, const RpConfigField *field)
{
    static const char *const names[] = {"default", "llama3", NULL};
    gboolean old = strcmp(field->key.name, "type") == 0;
    int *own = old ? &reader->raw.old_rope_type : &reader->raw.rope_type;
    int other = old ? reader->raw.rope_type : reader->raw.old_rope_type;

    if (!read_choice(reader, names, own))
        return FALSE;
    if (other >= 0 && other != *own)
        return rp_json_pull_fail_value(&reader->pull, "the same for rope_type and type");
    reader->raw.config.rope.type = *own == 1 ? RP_ROPE_LLAMA3 : RP_ROPE_DEFAULT;
    return TRUE;
}

static gboolean
read_count(RpConfigReader *reader, guint max, guint *count)
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

gboolean
rp_config_read_rope(RpConfigReader *reader, const RpConfigField *field)
{
    if (reader->raw.rope_key)
        return rp_json_pull_fail(&reader->pull, "either rope_scaling or rope_parameters");
    reader->raw.rope_key = field->key.name;
    return read_object(reader, TRUE);
}

gboolean
rp_config_read_head_dim(RpConfigReader *reader, const RpConfigField *field)
{
    reader->raw.null_head_dim = rp_json_pull_peek(&reader->pull) == RP_JSON_NULL;
    return reader->raw.null_head_dim
               ? rp_json_pull_null(&reader->pull)
               : read_count(reader, RP_CONFIG_MAX_SIZE, &reader->raw.config.head_dim);
}

/* ---- the table's rows ---- */

/* One of the values that the row names: "A" or "A or B". */
static gboolean
read_fixed(RpConfigReader *reader, const RpConfigField *field)
{
    g_auto(GStrv) taken = g_strsplit(field->key.taken, " or ", -1);

    (void)rp_json_pull_peek(&reader->pull); /* space */
    const char *start = reader->pull.at;
    if (!rp_json_pull_skip(&reader->pull))
        return FALSE;
    g_autofree char *value = g_strndup(start, (gsize)(reader->pull.at - start));
    if (g_strv_contains((const char *const *)taken, value))
        return TRUE;
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->key.taken, field->key.why);
    reader->pull.value = start;
    return fail_unsupported(reader, expected);
}

static gboolean
read_exactly(RpConfigReader *reader, const RpConfigField *field)
{
    double number;

    if (!rp_json_pull_number(&reader->pull, &number))
        return FALSE;
    if (number == g_ascii_strtod(field->key.taken, NULL))
        return TRUE;
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->key.taken, field->key.why);
    return fail_unsupported(reader, expected);
}

static gboolean
read_positive(RpConfigReader *reader, double *number)
{
    double value;

    if (!rp_json_pull_number(&reader->pull, &value))
        return FALSE;
    if (value <= 0 || value > 1e15)
        return rp_json_pull_fail_value(&reader->pull, "a positive number of at most 1e15");
    *number = value;
    return TRUE;
}

static gboolean
read_field(RpConfigReader *reader, const RpConfigField *field)
{
    gpointer member = G_STRUCT_MEMBER_P(&reader->raw, field->offset);

    reader->pull.place = field->key.name;
    if (field->null_is_absent && rp_json_pull_peek(&reader->pull) == RP_JSON_NULL)
        return rp_json_pull_null(&reader->pull);
    switch (field->type) {
    case RP_CONFIG_SKIP:
        return rp_json_pull_skip(&reader->pull);
    case RP_CONFIG_FIXED:
        return read_fixed(reader, field);
    case RP_CONFIG_EXACTLY:
        return read_exactly(reader, field);
    case RP_CONFIG_COUNT:
        return read_count(reader, field->max, member);
    case RP_CONFIG_BOOLEAN:
        return rp_json_pull_boolean(&reader->pull, member);
    case RP_CONFIG_POSITIVE:
        return read_positive(reader, member);
    case RP_CONFIG_OTHER:
        break;
    }
    return field->read(reader, field);
}

/* A key without a row. In the rope's object it may be a layer type with a rope of its own. */
static gboolean
read_unknown(RpConfigReader *reader, const char *key, gboolean in_rope)
{
    if (!in_rope)
        return rp_json_pull_skip(&reader->pull);
    reader->pull.code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(&reader->pull, "a key of one rope for all layers");
}

/* One object: the file's, or the rope's in it. */
static gboolean
read_object(RpConfigReader *reader, gboolean in_rope)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_direct_hash, g_direct_equal);
    g_autoptr(GString) key = g_string_new(NULL);
    const char *place = reader->pull.place;

    if (!rp_json_pull_enter_object(&reader->pull))
        return FALSE;
    while (rp_json_pull_next_key(&reader->pull, key)) {
        const RpConfigField *field = rp_config_field(key->str, in_rope);
        if (field && !g_hash_table_add(seen, (gpointer)field))
            return rp_json_pull_fail_value(&reader->pull, "each key once");
        if (!(field ? read_field(reader, field) : read_unknown(reader, key->str, in_rope)))
            return FALSE;
        reader->pull.place = place;
    }
    return !reader->pull.failed;
}

gboolean
rp_config_read(RpConfigReader *reader)
{
    return read_object(reader, FALSE) && rp_json_pull_end(&reader->pull);
}
