/* adapter_config.json. A key that stands nowhere here changes nothing where it has its default. */
#include <math.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/adapter/adapter.h"

#define MAX_FILE_BYTES ((gsize)16 << 20)
#define MOST_NAMES 100000

static gboolean
fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_ADAPTER_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* Reads a key that must have its default: null, false, 0, "none", or something empty. */
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

/* Adapters that begin in one of these change the base, too (peft, LoraConfig.init_lora_weights): beside
 * the base as it is they are another model. Others are null, booleans, "gaussian", "eva", ... */
static gboolean
read_init(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
#define CONVERTED                                                                                  \
    "adapters of the base as it is, which peft makes of these by save_pretrained(DIR, "            \
    "path_initial_model_for_weight_conversion=...)"
    static const char *const changing[][2] = {
        {"pissa", CONVERTED},
        {"olora", CONVERTED},
        {"corda", CONVERTED},
        {"lora_ga", CONVERTED},
        {"loftq", "adapters of the base as it is; save the base that loftq made beside these, and "
                  "set this to true"},
    };
#undef CONVERTED
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_read_ignored(pull, field, value);
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(changing); i++)
        if (g_str_has_prefix(text->str, changing[i][0]))
            return fail_unsupported(pull, changing[i][1]);
    return TRUE;
}

/* The file's fields, before layers_to_transform and target_parameters are merged into the
 * targets. */
typedef struct {
    RpLora lora;
    char **parameters; /* target_parameters */
    char **layers;     /* layers_to_transform, in digits */
    char **layer_names;
} Read;

static void
read_clear(Read *read)
{
    rp_lora_clear(&read->lora);
    g_strfreev(read->parameters);
    g_strfreev(read->layers);
    g_strfreev(read->layer_names);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Read, read_clear)

/* A name or a number, as text. */
static gboolean
read_word(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);
    GPtrArray *words = value;
    double number = 0;

    if (words->len == MOST_NAMES)
        return rp_json_pull_fail(pull, "at most " G_STRINGIFY(MOST_NAMES) " names");
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER) {
        if (!rp_json_pull_string(pull, text))
            return FALSE;
    } else if (!rp_json_pull_number(pull, &number) || number < 0 || number > MOST_NAMES) {
        return !pull->failed && rp_json_pull_fail_value(pull, "a layer's number");
    } else {
        g_string_printf(text, "%.0f", number);
    }
    g_ptr_array_add(words, g_strdup(text->str));
    return TRUE;
}

/* A list of words, or one; null: as if it were not there. */
static gboolean
read_words(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);

    if (rp_json_pull_peek(pull) == RP_JSON_NULL)
        return rp_json_pull_null(pull);
    if (!(rp_json_pull_peek(pull) == RP_JSON_ARRAY
              ? rp_json_read_each(pull, field, read_word, words)
              : read_word(pull, field, words)))
        return FALSE;
    g_ptr_array_add(words, NULL);
    g_strfreev(*(char ***)value);
    *(char ***)value = (char **)g_ptr_array_free(g_steal_pointer(&words), FALSE);
    return TRUE;
}

/* The same of target_modules: one text is "all-linear", or a regular expression. */
static gboolean
read_targets(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const gboolean one = rp_json_pull_peek(pull) == RP_JSON_STRING;
    const gboolean none = rp_json_pull_peek(pull) == RP_JSON_NULL;
    char ***targets = value;

    if (!read_words(pull, field, value))
        return FALSE;
    if (none)
        *targets = g_new0(char *, 1);
    if (!one)
        return TRUE;
    if (g_ascii_strcasecmp(**targets, RP_LORA_ALL_LINEAR) == 0) {
        g_clear_pointer(targets, g_strfreev);
    } else {
        char *regex = g_strconcat(RP_LORA_REGEX, **targets, NULL);

        g_free(**targets);
        **targets = regex;
    }
    return TRUE;
}

/* Before "0.18.0" stacks of experts' adapters were written in the other orientation. */
static gboolean
read_version(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_read_ignored(pull, field, value);
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    g_auto(GStrv) numbers = g_strsplit(text->str, ".", 3);
    *(gboolean *)value = g_strv_length(numbers) > 1 && strcmp(numbers[0], "0") == 0 &&
                         g_ascii_strtoull(numbers[1], NULL, 10) < 19;
    return TRUE;
}

/* An object of regular expressions and numbers. */
static gboolean
read_pattern(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    GArray *patterns = value;
    const RpLoraPattern pattern = {.pattern = g_strdup(pull->key)};
    g_autoptr(GRegex) regex = g_regex_new(pattern.pattern, 0, 0, NULL);

    g_array_append_val(patterns, pattern);
    if (regex == NULL)
        return fail_unsupported(pull, "a key that is a regular expression");
    return rp_json_read_number(pull, field,
                               &g_array_index(patterns, RpLoraPattern, patterns->len - 1).value);
}

static gboolean
read_patterns(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const RpJsonField any[] = {{NULL, read_pattern, .min = field->min, .max = field->max}};
    GArray *patterns = g_array_new(TRUE, TRUE, sizeof(RpLoraPattern));
    const gboolean null = rp_json_pull_peek(pull) == RP_JSON_NULL;
    const gboolean good =
        null ? rp_json_pull_null(pull) : rp_json_read_record(pull, any, 1, patterns, NULL);
    RpLoraPattern *list = (RpLoraPattern *)(void *)g_array_free(patterns, FALSE);

    rp_lora_patterns_free(*(RpLoraPattern **)value);
    *(RpLoraPattern **)value = NULL;
    if (good && list->pattern != NULL)
        *(RpLoraPattern **)value = g_steal_pointer(&list);
    rp_lora_patterns_free(list);
    return good;
}

/* layers_to_transform: targets become regular expressions of the same modules in these layers, as
 * peft looks for them: the last number between dots, behind a word or a word of layers_pattern. */
static void
keep_layers(Read *read)
{
    RpLora *lora = &read->lora;
    g_autofree char *numbers = g_strjoinv("|", read->layers);
    g_autofree char *words = read->layer_names != NULL && *read->layer_names != NULL
                                 ? g_strjoinv("|", read->layer_names)
                                 : g_strdup("[^.]*");
    g_autoptr(GStrvBuilder) targets = g_strv_builder_new();
    char *all[] = {NULL, NULL};

    for (char **target = lora->targets != NULL ? lora->targets : all;
         *target != NULL || target == all; target++) {
        g_autofree char *name = *target == NULL ? g_strdup(".*")
                                : g_str_has_prefix(*target, RP_LORA_REGEX)
                                    ? g_strdup(*target + strlen(RP_LORA_REGEX))
                                    : g_regex_escape_string(*target, -1);
        g_autofree char *regex = g_strdup_printf(
            RP_LORA_REGEX "(?=.*\\.(?:%s)\\.(?:%s)\\.)(?:.*\\.)?(?:%s)", words, numbers, name);

        g_strv_builder_add(targets, regex);
    }
    g_strfreev(lora->targets);
    lora->targets = g_strv_builder_end(targets);
}

/* target_parameters are names as target_modules are; of a matrix with ".weight". */
static void
join_parameters(Read *read)
{
    g_autoptr(GStrvBuilder) targets = g_strv_builder_new();

    if (read->lora.targets == NULL)
        return; /* all of them */
    g_strv_builder_addv(targets, (const char **)read->lora.targets);
    for (char **name = read->parameters; *name != NULL; name++) {
        g_autofree char *module = g_str_has_suffix(*name, ".weight")
                                      ? g_strndup(*name, strlen(*name) - strlen(".weight"))
                                      : g_strdup(*name);

        g_strv_builder_add(targets, module);
    }
    g_strfreev(read->lora.targets);
    read->lora.targets = g_strv_builder_end(targets);
}

gboolean
rp_adapter_config_parse(const char *name, const char *text, gsize length, RpLora *lora,
                        GError **error)
{
    static const char *const types[] = {"LORA", NULL};
#define FIELD(key, read, member, ...)                                                              \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(Read, member), __VA_ARGS__                                      \
    }
#define OFF(key)                                                                                   \
    {                                                                                              \
        key, read_off                                                                              \
    }
    static const RpJsonField fields[] = {
        {"peft_type", rp_json_read_constant, .required = TRUE, .choices = types},
        FIELD("r", rp_json_read_count, lora.rank, .required = TRUE, .min = 1,
              .max = RP_LORA_MOST_RANK),
        FIELD("lora_alpha", rp_json_read_number, lora.alpha, .required = TRUE, .min = 1e-6,
              .max = 1e9),
        FIELD("lora_dropout", rp_json_read_number, lora.dropout, .max = RP_LORA_MOST_DROPOUT),
        FIELD("use_rslora", rp_json_read_boolean, lora.rslora, .null_is_absent = TRUE),
        FIELD("peft_version", read_version, lora.swapped_experts, .required = FALSE),
        FIELD("target_modules", read_targets, lora.targets, .required = TRUE),
        FIELD("target_parameters", read_words, parameters, .required = FALSE),
        FIELD("modules_to_save", read_words, lora.saved, .required = FALSE),
        FIELD("layers_to_transform", read_words, layers, .required = FALSE),
        FIELD("layers_pattern", read_words, layer_names, .required = FALSE),
        FIELD("rank_pattern", read_patterns, lora.ranks, .min = 1, .max = RP_LORA_MOST_RANK),
        FIELD("alpha_pattern", read_patterns, lora.alphas, .min = 1e-6, .max = 1e9),
        {"init_lora_weights", read_init},
        OFF("bias"),
        OFF("use_dora"),
        OFF("use_qalora"),
        OFF("use_bdlora"),
        OFF("lora_bias"),
        OFF("fan_in_fan_out"),
        OFF("exclude_modules"),
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
    g_auto(Read) read = {.lora = {.alpha = RP_LORA_ALPHA}};
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, name, text, length, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_SYNTAX,
                           error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), &read, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    if (read.layers != NULL && *read.layers != NULL)
        keep_layers(&read);
    if (read.parameters != NULL)
        join_parameters(&read);
    *lora = read.lora;
    read.lora = (RpLora){0};
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
    return strpbrk(name, "*?") != NULL || g_str_has_prefix(name, RP_LORA_REGEX);
}

/* Names as they were given, but patterns, which peft does not know, as the modules that they are
 * of; and none that are of none of @modules. */
static void
add_names(RpJsonWriter *json, const char *key, char *const *names, GPtrArray *modules)
{
    gboolean whole = names == NULL;

    for (guint i = 0; !whole && names[i] != NULL; i++)
        whole = is_pattern(names[i]);
    rp_json_array(json, key);
    for (guint i = 0; whole && i < modules->len; i++)
        rp_json_string(json, NULL, g_ptr_array_index(modules, i));
    for (; !whole && *names != NULL; names++) {
        char *name[] = {*names, NULL};
        gboolean found = FALSE;

        for (guint i = 0; i < modules->len && !found; i++)
            found = rp_lora_names_module(name, g_ptr_array_index(modules, i));
        if (found)
            rp_json_string(json, NULL, *names);
    }
    rp_json_end(json);
}

/* Parameters that are no module's only matrix, by name: stacks of experts, and routers, which are no
 * linear layers in transformers 5. */
static gboolean
is_parameter(const RpWeight *weight)
{
    return weight->rank == RP_WEIGHT_MAX_RANK ||
           weight->kind == rp_weight_adapter(RP_WEIGHT_ROUTER, RP_ADAPTER_A);
}

typedef enum { MODULES, PARAMETERS, SAVED } Which;

/* Modules with adapters, parameters with adapters, or modules that are trained whole. */
static GPtrArray *
modules_of(const RpWeights *weights, Which which)
{
    const char *const suffix = which == SAVED ? ".weight" : RP_LORA_A;
    GPtrArray *modules = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!rp_weight_has_state(weight) ||
            rp_weight_is_adapter(weight->kind) != (which != SAVED) ||
            !g_str_has_suffix(weight->name, suffix) ||
            (which != SAVED && is_parameter(weight) != (which == PARAMETERS)))
            continue;
        g_ptr_array_add(modules,
                        g_strdup_printf("%.*s%s", (int)(strlen(weight->name) - strlen(suffix)),
                                        weight->name,
                                        which == PARAMETERS && weight->rank == 2 ? ".weight" : ""));
    }
    return modules;
}

/* Whether all blocks have a module with this name behind "model.layers.N.". */
static gboolean
is_of_all_blocks(const RpWeights *weights, const GPtrArray *modules, const char *name)
{
    guint n = 0;

    for (guint i = 0; i < modules->len; i++)
        n += g_str_has_suffix(g_ptr_array_index(modules, i), name);
    return n == rp_weights_model(weights)->blocks;
}

static void
add_parameters(RpJsonWriter *json, const RpWeights *weights)
{
    g_autoptr(GPtrArray) modules = modules_of(weights, PARAMETERS);
    g_autoptr(GHashTable) told = g_hash_table_new(g_str_hash, g_str_equal);

    if (modules->len == 0) {
        rp_json_null(json, "target_parameters");
        return;
    }
    rp_json_array(json, "target_parameters");
    for (guint i = 0; i < modules->len; i++) {
        const char *name = g_ptr_array_index(modules, i), *tail = strstr(name, ".mlp.");

        if (tail != NULL && is_of_all_blocks(weights, modules, tail))
            name = tail + 1;
        if (g_hash_table_add(told, (gpointer)name))
            rp_json_string(json, NULL, name);
    }
    rp_json_end(json);
}

/* peft wants ranks without a fraction of zeros. */
static void
add_value(RpJsonWriter *json, const char *key, double value, gboolean whole)
{
    if (whole)
        rp_json_uint(json, key, (guint64)value);
    else
        rp_json_number(json, key, value);
}

/* Writes the config's own patterns, and an entry for each stack that differs from them, as a
 * stack's rank counts several matrices. */
static void
add_all_patterns(RpJsonWriter *json, const char *key, const RpWeights *weights, gboolean ranks)
{
    const RpLora *lora = rp_weights_lora(weights);
    const RpLoraPattern *patterns = ranks ? lora->ranks : lora->alphas;
    const gboolean alike = lora->ranks == NULL && lora->alphas == NULL; /* in all blocks */
    g_autoptr(GHashTable) told = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    rp_json_object(json, key);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!g_str_has_suffix(weight->name, RP_LORA_A) || weight->rank < RP_WEIGHT_MAX_RANK)
            continue;
        const double rank = (double)weight->shape[1];
        g_autofree char *module = g_strndup(weight->name, strlen(weight->name) - strlen(RP_LORA_A));
        const char *tail = alike ? strstr(module, "mlp.") : module;

        if (rank != rp_lora_rank(lora, module) && g_hash_table_add(told, g_strdup(tail)))
            add_value(json, tail, ranks ? rank : weight->scale * (lora->rslora ? sqrt(rank) : rank),
                      ranks);
    }
    for (; patterns != NULL && patterns->pattern != NULL; patterns++)
        add_value(json, patterns->pattern, patterns->value, ranks);
    rp_json_end(json);
}

char *
rp_adapter_config_text(const RpWeights *weights, const char *base)
{
    const RpLora *lora = rp_weights_lora(weights);
    g_autoptr(GPtrArray) adapted = modules_of(weights, MODULES);
    g_autoptr(GPtrArray) saved = modules_of(weights, SAVED);
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);
    g_autofree char *revision = NULL;
    g_autofree char *hub = rp_model_hub_name(base, &revision);

    rp_json_object(json, NULL);
    add_all_patterns(json, "alpha_pattern", weights, FALSE);
    rp_json_string(json, "base_model_name_or_path", hub != NULL ? hub : base);
    rp_json_string(json, "bias", "none");
    rp_json_bool(json, "fan_in_fan_out", FALSE);
    rp_json_bool(json, "inference_mode", TRUE);
    rp_json_number(json, "lora_alpha", lora->alpha);
    rp_json_number(json, "lora_dropout", lora->dropout);
    if (lora->saved != NULL)
        add_names(json, "modules_to_save", lora->saved, saved);
    else
        rp_json_null(json, "modules_to_save");
    rp_json_string(json, "peft_type", "LORA");
    rp_json_uint(json, "r", lora->rank);
    add_all_patterns(json, "rank_pattern", weights, TRUE);
    if (revision != NULL)
        rp_json_string(json, "revision", revision);
    add_names(json, "target_modules", rp_lora_targets(lora, rp_weights_model(weights)), adapted);
    add_parameters(json, weights);
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
    const gboolean hub = base != NULL && rp_model_is_hub_name(base);
    g_autofree char *absolute =
        base != NULL && !hub ? g_canonicalize_filename(base, NULL) : g_strdup(hub ? base : "");
    g_autofree char *text = rp_adapter_config_text(weights, absolute);

    return g_file_set_contents_full(
        path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666, error);
}
