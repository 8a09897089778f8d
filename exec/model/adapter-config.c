/* adapter_config.json. A key that stands nowhere here changes nothing where it has its default. */
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/model/adapter.h"

#define MAX_FILE_BYTES ((gsize)16 << 20)
#define MOST_NAMES 100000

static gboolean
fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_ADAPTER_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* Of a key that must have its default: null, false, 0, "none", or nothing in it. */
static gboolean
read_off(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);
    gboolean set = FALSE;
    double number = 0;

    switch (rp_json_pull_peek(pull)) {
    case RP_JSON_NULL:
        return rp_json_pull_null(pull);
    case RP_JSON_BOOLEAN:
        return rp_json_pull_boolean(pull, &set) && (!set || fail_unsupported(pull, "false"));
    case RP_JSON_NUMBER:
        return rp_json_pull_number(pull, &number) && (number == 0 || fail_unsupported(pull, "0"));
    case RP_JSON_STRING:
        return rp_json_pull_string(pull, text) &&
               (strcmp(text->str, "none") == 0 || fail_unsupported(pull, "\"none\""));
    case RP_JSON_ARRAY:
        if (!rp_json_pull_enter_array(pull))
            return FALSE;
        return rp_json_pull_next_element(pull) ? fail_unsupported(pull, "nothing in it")
                                               : !pull->failed;
    default:
        if (!rp_json_pull_enter_object(pull))
            return FALSE;
        return rp_json_pull_next_key(pull, text) ? fail_unsupported(pull, "nothing in it")
                                                 : !pull->failed;
    }
}

/* A list of names, or "all-linear"; null: none. */
static gboolean
read_names(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) == RP_JSON_NULL)
        return rp_json_pull_null(pull);
    if (rp_json_pull_peek(pull) == RP_JSON_STRING)
        return rp_json_pull_string(pull, text) &&
               (strcmp(text->str, RP_LORA_ALL_LINEAR) == 0 ||
                fail_unsupported(pull, "a list of names or \"" RP_LORA_ALL_LINEAR "\""));
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (names->len == MOST_NAMES)
            return rp_json_pull_fail(pull, "at most " G_STRINGIFY(MOST_NAMES) " names");
        if (!rp_json_pull_string(pull, text))
            return FALSE;
        g_ptr_array_add(names, g_strdup(text->str));
    }
    if (pull->failed)
        return FALSE;
    g_ptr_array_add(names, NULL);
    g_strfreev(*(char ***)value);
    *(char ***)value = (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
    return TRUE;
}

gboolean
rp_adapter_config_parse(const char *name, const char *text, gsize length, RpLora *lora,
                        GError **error)
{
    static const char *const types[] = {"LORA", NULL};
#define FIELD(key, read, member, ...)                                                              \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RpLora, member), __VA_ARGS__                                    \
    }
#define OFF(key)                                                                                   \
    {                                                                                              \
        key, read_off                                                                              \
    }
    static const RpJsonField fields[] = {
        {"peft_type", rp_json_read_constant, .required = TRUE, .choices = types},
        FIELD("r", rp_json_read_count, rank, .required = TRUE, .min = 1, .max = RP_LORA_MOST_RANK),
        FIELD("lora_alpha", rp_json_read_number, alpha, .required = TRUE, .min = 1e-6, .max = 1e9),
        FIELD("use_rslora", rp_json_read_boolean, rslora, .null_is_absent = TRUE),
        FIELD("target_modules", read_names, targets, .required = TRUE),
        FIELD("modules_to_save", read_names, saved, .required = FALSE),
        OFF("bias"),
        OFF("use_dora"),
        OFF("use_qalora"),
        OFF("use_bdlora"),
        OFF("lora_bias"),
        OFF("fan_in_fan_out"),
        OFF("rank_pattern"),
        OFF("alpha_pattern"),
        OFF("target_parameters"),
        OFF("exclude_modules"),
        OFF("layers_to_transform"),
        OFF("layer_replication"),
        OFF("trainable_token_indices"),
        OFF("alora_invocation_tokens"),
        OFF("arrow_config"),
        OFF("kasa_config"),
        OFF("velora_config"),
        OFF("monteclora_config"),
        {NULL, rp_json_read_ignored},
    };
#undef OFF
#undef FIELD
    g_auto(RpLora) read = {.alpha = RP_LORA_ALPHA};
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, name, text, length, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_SYNTAX,
                           error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), &read, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    *lora = read;
    read.targets = read.saved = NULL;
    return TRUE;
}

gboolean
rp_adapter_config_load(const char *directory, RpLora *lora, GError **error)
{
    g_autofree char *path = g_build_filename(directory, RP_ADAPTER_CONFIG, NULL);
    g_autofree char *shown = rp_display_name(path);
    gsize length = 0;
    g_autofree char *text = rp_file_read(path, MAX_FILE_BYTES, &length, error);

    return text != NULL && rp_adapter_config_parse(shown, text, length, lora, error);
}

/* ---- writing ---- */

static gboolean
is_pattern(const char *name)
{
    return strpbrk(name, "*?") != NULL;
}

/* Names as they were given, but patterns, which peft does not know, as the modules that they are
 * of. */
static void
add_names(RpJsonWriter *json, const char *key, char *const *names, GPtrArray *modules)
{
    gboolean whole = names == NULL;

    for (guint i = 0; !whole && names[i] != NULL; i++)
        whole = is_pattern(names[i]);
    rp_json_array(json, key);
    for (guint i = 0; whole ? i < modules->len : names[i] != NULL; i++)
        rp_json_string(json, NULL, whole ? g_ptr_array_index(modules, i) : names[i]);
    rp_json_end(json);
}

/* Modules with adapters, or those that are trained whole. */
static GPtrArray *
modules_of(const RpWeights *weights, gboolean adapted)
{
    const char *const suffix = adapted ? ".lora_A.weight" : ".weight";
    GPtrArray *modules = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (rp_weight_has_state(weight) && rp_weight_is_adapter(weight->kind) == adapted &&
            g_str_has_suffix(weight->name, suffix))
            g_ptr_array_add(modules,
                            g_strndup(weight->name, strlen(weight->name) - strlen(suffix)));
    }
    return modules;
}

char *
rp_adapter_config_text(const RpWeights *weights, const char *base)
{
    const RpLora *lora = rp_weights_lora(weights);
    g_autoptr(GPtrArray) adapted = modules_of(weights, TRUE);
    g_autoptr(GPtrArray) saved = modules_of(weights, FALSE);
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "base_model_name_or_path", base);
    rp_json_string(json, "bias", "none");
    rp_json_bool(json, "fan_in_fan_out", FALSE);
    rp_json_bool(json, "inference_mode", TRUE);
    rp_json_number(json, "lora_alpha", lora->alpha);
    rp_json_int(json, "lora_dropout", 0);
    if (lora->saved != NULL)
        add_names(json, "modules_to_save", lora->saved, saved);
    else
        rp_json_null(json, "modules_to_save");
    rp_json_string(json, "peft_type", "LORA");
    rp_json_uint(json, "r", lora->rank);
    add_names(json, "target_modules", lora->targets, adapted);
    rp_json_string(json, "task_type", "CAUSAL_LM");
    rp_json_bool(json, "use_dora", FALSE);
    rp_json_bool(json, "use_rslora", lora->rslora);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

gboolean
rp_adapter_config_save(const RpWeights *weights, const char *base, const char *directory,
                       GError **error)
{
    g_autofree char *path = g_build_filename(directory, RP_ADAPTER_CONFIG, NULL);
    g_autofree char *text = rp_adapter_config_text(weights, base != NULL ? base : "");

    return g_file_set_contents_full(
        path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666, error);
}
