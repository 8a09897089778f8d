/* Readers of the rows of hf-config-keys.c. */
#include "exec/model/hf-config-private.h"

#include <math.h>
#include <string.h>

static gboolean
fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* The index in @names of the string that stands next. No "did you mean": another name computes
 * something else. */
static gboolean
read_choice(RpJsonPull *pull, const char *const *names, int *choice)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (*choice = 0; names[*choice]; (*choice)++)
        if (strcmp(names[*choice], text->str) == 0)
            return TRUE;
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected = g_strdup_printf("%s\"%s\"", names[1] ? "one of " : "", joined);
    return fail_unsupported(pull, expected);
}

gboolean
rp_config_read_architectures(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, hf_name));
    RpConfigRaw *raw = value;
    guint n = 0;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (n++ > 0)
            return rp_json_pull_fail(pull, "one architecture");
        if (!read_choice(pull, names, &raw->architecture))
            return FALSE;
    }
    return !pull->failed;
}

gboolean
rp_config_read_model_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, model_type));

    return read_choice(pull, names, &((RpConfigRaw *)value)->model_type);
}

gboolean
rp_config_read_activation(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"silu", NULL};
    int choice;

    return read_choice(pull, names, &choice);
}

gboolean
rp_config_read_dtype(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);
    RpModel *config = &((RpConfigRaw *)value)->config;
    RpDtype dtype;

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    const char *name = text->str;
    if (g_str_has_prefix(name, "torch."))
        name += strlen("torch.");
    if (!rp_dtype_parse(name, rp_dtype_torch_name, &dtype))
        return fail_unsupported(pull, "one of \"bfloat16\", \"float16\", \"float32\"");
    if (config->has_dtype && config->dtype != dtype)
        return rp_json_pull_fail_value(pull, "the same for torch_dtype and dtype");
    config->has_dtype = TRUE;
    config->dtype = dtype;
    return TRUE;
}

/* Or -1, which older files have for none. */
gboolean
rp_config_read_token(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double id;

    if (!rp_json_pull_number(pull, &id))
        return FALSE;
    if (id != floor(id) || id < RP_MODEL_NO_TOKEN || id > RP_CONFIG_MAX_SIZE)
        return rp_json_pull_fail_value(pull, "a token's number");
    *(gint64 *)value = (gint64)id;
    return TRUE;
}

gboolean
rp_config_read_pad(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_config_read_token(pull, field, value) &&
           (*(gint64 *)value != RP_MODEL_NO_TOKEN ||
            rp_json_pull_fail_value(
                pull, "a token's number, or null for none (torch takes -1 for the last token)"));
}

gboolean
rp_config_read_eos(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpModel *config = &((RpConfigRaw *)value)->config;

    config->n_eos = 0;
    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY) {
        config->n_eos = 1;
        return rp_config_read_token(pull, field, &config->eos_ids[0]);
    }
    (void)rp_json_pull_enter_array(pull);
    while (rp_json_pull_next_element(pull)) {
        if (config->n_eos == RP_MODEL_MAX_EOS)
            return rp_json_pull_fail(pull, "at most " G_STRINGIFY(RP_MODEL_MAX_EOS) " tokens");
        if (!rp_config_read_token(pull, field, &config->eos_ids[config->n_eos++]))
            return FALSE;
    }
    return !pull->failed;
}

gboolean
rp_config_read_layer_types(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (!rp_json_pull_string(pull, text))
            return FALSE;
        if (strcmp(text->str, "full_attention") != 0)
            return fail_unsupported(pull, "\"full_attention\" for every block");
        ((RpConfigRaw *)value)->n_layer_types++;
    }
    return !pull->failed;
}

gboolean
rp_config_read_head_dim(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;

    raw->null_head_dim = rp_json_pull_peek(pull) == RP_JSON_NULL;
    return raw->null_head_dim ? rp_json_pull_null(pull)
                              : rp_json_read_uint(pull, field, &raw->config.head_dim);
}

gboolean
rp_config_read_rope(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;

    if (raw->rope_key)
        return rp_json_pull_fail(pull, "either rope_scaling or rope_parameters");
    raw->rope_key = field->key;
    return rp_json_read_record(pull, rp_config_rope_fields, rp_config_n_rope_fields, raw, NULL);
}

gboolean
rp_config_read_rope_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"default", "llama3", NULL};
    RpConfigRaw *raw = value;
    gboolean old = strcmp(field->key, "type") == 0;
    int *own = old ? &raw->old_rope_type : &raw->rope_type;
    int other = old ? raw->rope_type : raw->old_rope_type;

    if (!read_choice(pull, names, own))
        return FALSE;
    if (other >= 0 && other != *own)
        return rp_json_pull_fail_value(pull, "the same for rope_type and type");
    raw->config.rope.type = *own == 1 ? RP_ROPE_LLAMA3 : RP_ROPE_DEFAULT;
    return TRUE;
}

/* Refuses what stands from @start on. */
static gboolean
fail_refused(RpJsonPull *pull, const RpJsonField *field, const char *start)
{
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->expected, field->note);

    pull->value = start;
    return fail_unsupported(pull, expected);
}

gboolean
rp_config_read_fixed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_auto(GStrv) taken = g_strsplit(field->expected, " or ", -1);
    const char *start = pull->at;

    if (!rp_json_pull_skip(pull))
        return FALSE;
    g_autofree char *found = g_strndup(start, (gsize)(pull->at - start));
    return g_strv_contains((const char *const *)taken, found) || fail_refused(pull, field, start);
}

gboolean
rp_config_read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    return rp_json_pull_number(pull, &number) && (number == g_ascii_strtod(field->expected, NULL) ||
                                                  fail_refused(pull, field, pull->value));
}

/* It may be a layer type with a rope of its own. */
gboolean
rp_config_read_unknown(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return fail_unsupported(pull, "a key of one rope for all layers");
}
