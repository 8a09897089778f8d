/* Values that a run file and the command line set: texts and their places. */
#include "run/values.h"

#include <string.h>
#include <yaml.h>

#include "core/base/quote.h"

/* Whether YAML takes @text, not quoted, for nothing. */
static gboolean
means_null(const char *text)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};

    return g_strv_contains(nulls, text);
}

static void
value_clear(gpointer data)
{
    RpRunValue *value = data;

    g_free(value->text);
    g_free(value->place);
}

RpRunValues *
rp_run_values_new(void)
{
    RpRunValues *values = g_array_new(FALSE, FALSE, sizeof(RpRunValue));

    g_array_set_clear_func(values, value_clear);
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const RpRunValue value = {setting, g_strdup(setting->initial)};

        g_array_append_val(values, value);
    }
    return values;
}

RpRunValue *
rp_run_values_find(const RpRunValues *values, const char *key)
{
    const RpSetting *setting = rp_setting_find(key);

    return setting == NULL ? NULL : &g_array_index(values, RpRunValue, setting - rp_settings());
}

void
rp_run_value_set(RpRunValue *value, const char *text, const char *place, gboolean from_set)
{
    char *new_text = g_strdup(text); /* both may be the value's own */
    char *new_place = g_strdup(place);

    value_clear(value);
    value->text = new_text;
    value->place = new_place;
    value->from_set = from_set;
}

gboolean
rp_run_value_fail(const RpRunValue *value, GError **error, RpRunError code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(error, RP_RUN_ERROR, value->from_set ? RP_RUN_ERROR_USAGE : code, "%s%s: %s",
                   value->place, value->setting->key, message);
}

/* Keys of other trainers that nothing here stands for. */
static const char *
explain_foreign(const char *key)
{
    static const struct {
        const char *keys; /* with spaces around each */
        const char *text;
    } rows[] = {
        {" reward_model reward_funcs num_generations vllm_mode ",
         "models learn from data alone; learning from rewards (PPO, GRPO) is not here"},
        {" deepspeed fsdp fsdp_config ddp_timeout ddp_find_unused_parameters ",
         "leave it out: the plan divides the model over the GPUs that devices names"},
        {" trust_remote_code model_type tokenizer_type tokenizer special_tokens "
         "use_fast_tokenizer ",
         "leave it out: config.json and tokenizer.json of the model say it"},
        {" dataloader_num_workers preprocessing_num_workers dataset_num_proc overwrite_cache "
         "group_by_length ",
         "leave it out: data are read once, and packed samples need no sorting"},
        {" liger_kernel use_liger_kernel unsloth use_unsloth tf32 torch_compile strict ",
         "leave it out: kernels are this program's own"},
        {" do_train do_eval save_only_model per_device_eval_batch_size ",
         "leave it out: a run does what its other keys say"},
        {" push_to_hub hub_model_id hub_strategy hub_token ",
         "leave it out: nothing is uploaded; `hf upload` does that"},
        {" revision_of_model model_revision revision ",
         "write it behind the model's name: model: ORG/NAME@REVISION"},
        {" dataset_text_field max_samples ",
         "leave it out: records are read as docs/data.md says, all of them"},
    };
    g_autofree char *word = g_strdup_printf(" %s ", key);

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        if (strstr(rows[i].keys, word) != NULL)
            return rows[i].text;
    return NULL;
}

/* Keys of earlier versions. */
static const struct {
    const char *key;
    const char *initial; /* which their runs wrote into run.yaml; %NULL: nothing */
    const char *instead;
} retired[] = {
    {"optimizer.decay_type", "cosine",
     "write optimizer.schedule: wsd-linear or wsd-1-sqrt; wsd is a cosine"},
    {"loss_scale.growth_interval", "2000", "leave it out: the scale doubles after 2000 good steps"},
    {"fp8.plain_first_blocks", NULL, "write fp8.plain_blocks: [FIRST, LAST]"},
    {"fp8.plain_last_blocks", NULL, "write fp8.plain_blocks: [FIRST, LAST]"},
};

/* The advice in place of a key of earlier versions. @initial: (out) (nullable): its default, which may still
 * stand in a run file. Returns: (nullable): %NULL: there was no such key */
static const char *
find_retired(const char *key, const char **initial)
{
    for (gsize i = 0; i < G_N_ELEMENTS(retired); i++)
        if (strcmp(retired[i].key, key) == 0) {
            *initial = retired[i].initial;
            return retired[i].instead;
        }
    return NULL;
}

/* "PLACEno key KEY; did you mean ...?" */
static gboolean
fail_unknown(const char *place, const char *key, RpRunError code, GError **error)
{
    g_autofree char *near = rp_setting_nearest(key);
    g_autofree char *meant = g_strdup_printf("did you mean \"%s\"?", near != NULL ? near : "");
    g_autofree char *shown = rp_quote(key);
    const char *initial, *gone = find_retired(key, &initial);
    const char *foreign = gone != NULL ? gone : explain_foreign(key);

    return rp_fail(error, RP_RUN_ERROR, code, "%sno key %s; %s", place, shown,
                   foreign != NULL ? foreign
                   : near != NULL  ? meant
                                   : "roundpipe train --keys lists them");
}

/* ---- the command line ---- */

gboolean
rp_run_values_set(RpRunValues *values, const char *word, GError **error)
{
    const char *equals = strchr(word, '=');

    if (equals == NULL || equals == word) {
        g_autofree char *shown = rp_quote(word);

        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "--set: expected KEY=VALUE, found %s", shown);
    }
    g_autofree char *key = g_strndup(word, (gsize)(equals - word));
    RpRunValue *value = rp_run_values_find(values, key);

    if (value == NULL && rp_setting_is_group(key))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "--set: \"%s\" has keys of its own; expected one of them, as --set "
                       "%s.KEY=VALUE",
                       key, key);
    if (value == NULL)
        return fail_unknown("--set: ", key, RP_RUN_ERROR_USAGE, error);
    for (const char *p = equals + 1; *p != '\0'; p++) {
        if (!g_ascii_iscntrl(*p))
            continue;
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "--set %s: expected one line of text, found control characters", key);
    }
    rp_run_value_set(value, equals + 1, "--set ", TRUE);
    return TRUE;
}

/* ---- writing ---- */

/* Plain where YAML cannot take it for anything else, else in single quotes. */
static void
append_scalar(GString *yaml, const char *text)
{
    gboolean plain = (g_ascii_isalnum(*text) || *text == '/' || *text == '.') && !means_null(text);

    for (const char *p = text; plain && *p != '\0'; p++)
        plain = g_ascii_isalnum(*p) || strchr("_./+,*-", *p) != NULL ||
                (*p == ':' && g_ascii_isalnum(p[1]));
    g_auto(GStrv) parts = g_strsplit(text, "'", -1);
    g_autofree char *doubled = g_strjoinv("''", parts);

    g_string_append_printf(yaml, plain ? "%s" : "'%s'", plain ? text : doubled);
}

char *
rp_run_values_to_yaml(const RpRunValues *values)
{
    GString *yaml = g_string_new(NULL);
    g_autofree char *group = g_strdup("");

    for (guint i = 0; i < values->len; i++) {
        const RpRunValue *value = &g_array_index(values, RpRunValue, i);
        const char *key = value->setting->key;
        const char *dot = strrchr(key, '.');
        g_autofree char *own = dot != NULL ? g_strndup(key, (gsize)(dot - key)) : NULL;

        if (value->text == NULL)
            continue;
        if (own != NULL && strcmp(own, group) != 0) {
            g_string_append_printf(yaml, "%s:\n", own);
            g_free(group);
            group = g_strdup(own);
        }
        g_string_append_printf(yaml, "%s%s: ", dot != NULL ? "  " : "",
                               dot != NULL ? dot + 1 : key);
        append_scalar(yaml, value->text);
        g_string_append_c(yaml, '\n');
    }
    return g_string_free(yaml, FALSE);
}

/* Run files: what a text sets, event by event, with the line and column of everything. */

typedef struct {
    RpRunValues *values;
    const char *name; /* for messages */
    const char *text;
    gsize length;
    yaml_parser_t parser;
    yaml_event_t event; /* the one at hand */
    GHashTable *seen;   /* keys of this text -> line + 1 */
} Reader;

static gboolean
fail_syntax(const Reader *reader, GError **error)
{
    const yaml_parser_t *parser = &reader->parser;
    const yaml_mark_t *mark = &parser->problem_mark;
    const char *problem = parser->problem != NULL ? parser->problem : "cannot be read";
    const gboolean tab =
        reader->text != NULL && mark->index < reader->length && reader->text[mark->index] == '\t';

    if (parser->error == YAML_READER_ERROR)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_SYNTAX,
                       "%s: byte %zu: expected YAML, found: %s", reader->name,
                       parser->problem_offset, problem);
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_SYNTAX, "%s: line %zu, column %zu: %s%s",
                   reader->name, mark->line + 1, mark->column + 1,
                   tab ? "expected spaces before a key, found a tab" : "expected YAML, found: ",
                   tab ? "" : problem);
}

static gboolean
next(Reader *reader, GError **error)
{
    yaml_event_delete(&reader->event);
    return yaml_parser_parse(&reader->parser, &reader->event) || fail_syntax(reader, error);
}

/* The place of the current event. */
static char *
place(const Reader *reader)
{
    return g_strdup_printf("%s: line %zu, column %zu: ", reader->name,
                           reader->event.start_mark.line + 1, reader->event.start_mark.column + 1);
}

static gboolean
fail(const Reader *reader, const char *key, RpRunError code, GError **error, const char *message)
{
    g_autofree char *where = place(reader);

    return rp_fail(error, RP_RUN_ERROR, code, "%s%s%s%s", where, key, *key != '\0' ? ": " : "",
                   message);
}

static gboolean
is_null(const yaml_event_t *event)
{
    return event->type == YAML_SCALAR_EVENT &&
           event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           means_null((const char *)event->data.scalar.value);
}

/* The text of a scalar; %NULL if it is none, or cannot stand on one line. */
static const char *
scalar_text(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;

    if (event->type != YAML_SCALAR_EVENT || strlen(text) != event->data.scalar.length ||
        !g_utf8_validate(text, -1, NULL))
        return NULL;
    for (const char *p = text; *p != '\0'; p = g_utf8_next_char(p))
        if (g_unichar_iscntrl(g_utf8_get_char(p)))
            return NULL;
    return text;
}

/* [3, 3, 2] where 3,3,2 is expected. */
static gboolean
read_list(Reader *reader, RpRunValue *value, GError **error)
{
    g_autofree char *where = place(reader);
    g_autoptr(GString) text = g_string_new(NULL);

    while (next(reader, error)) {
        const char *part = scalar_text(&reader->event);

        if (reader->event.type == YAML_SEQUENCE_END_EVENT) {
            rp_run_value_set(value, text->str, where, FALSE);
            return TRUE;
        }
        if (part == NULL)
            return fail(reader, value->setting->key, RP_RUN_ERROR_VALUE, error,
                        "expected a list of values, found something else");
        g_string_append_printf(text, "%s%s", text->len > 0 ? "," : "", part);
    }
    return FALSE;
}

static gboolean
read_value(Reader *reader, RpRunValue *value, GError **error)
{
    const yaml_event_type_t type = reader->event.type;
    const char *text = scalar_text(&reader->event);
    g_autofree char *where = place(reader);

    if (is_null(&reader->event))
        return TRUE;
    if (type == YAML_SEQUENCE_START_EVENT &&
        (value->setting->type == RP_SETTING_STAGES || value->setting->parts != NULL))
        return read_list(reader, value, error);
    if (text == NULL)
        return fail(reader, value->setting->key, RP_RUN_ERROR_VALUE, error,
                    type == YAML_SCALAR_EVENT
                        ? "expected one line of text, found control characters"
                    : type == YAML_MAPPING_START_EVENT ? "expected a value, found keys"
                    : type == YAML_ALIAS_EVENT         ? "expected a value, found an alias"
                                                       : "expected a value, found a list");
    rp_run_value_set(value, text, where, FALSE);
    return TRUE;
}

/* @key at the event at hand: one that there is, for the first time. @value: (out): its value;
 * %NULL: that of a group */
static gboolean
check_key(const Reader *reader, const char *key, RpRunValue **value, GError **error)
{
    const guint before = GPOINTER_TO_UINT(g_hash_table_lookup(reader->seen, key));

    *value = rp_run_values_find(reader->values, key);
    if (*value == NULL && !rp_setting_is_group(key)) {
        g_autofree char *where = place(reader);

        return fail_unknown(where, key, RP_RUN_ERROR_KEY, error);
    }
    if (before > 0) {
        g_autofree char *message =
            g_strdup_printf("expected once, found again (first on line %u)", before);

        return fail(reader, key, RP_RUN_ERROR_KEY, error, message);
    }
    g_hash_table_insert(reader->seen, g_strdup(key),
                        GUINT_TO_POINTER((guint)reader->event.start_mark.line + 1));
    return TRUE;
}

/* A key of an earlier version, at the event at hand: its default says nothing. */
static gboolean
skip_retired(Reader *reader, const char *key, const char *initial, GError **error)
{
    g_autofree char *where = place(reader);

    if (!next(reader, error))
        return FALSE;
    return is_null(&reader->event) || g_strcmp0(scalar_text(&reader->event), initial) == 0 ||
           fail_unknown(where, key, RP_RUN_ERROR_KEY, error);
}

/* Keys and values up to the mapping's end. */
static gboolean
read_mapping(Reader *reader, const char *prefix, GError **error)
{
    while (next(reader, error)) {
        const char *initial;
        RpRunValue *value;

        if (reader->event.type == YAML_MAPPING_END_EVENT)
            return TRUE;
        if (scalar_text(&reader->event) == NULL)
            return fail(reader, "", RP_RUN_ERROR_SYNTAX, error,
                        "expected the name of a key, found something else");
        g_autofree char *key = g_strconcat(prefix, scalar_text(&reader->event), NULL);
        g_autofree char *inner = g_strconcat(key, ".", NULL);

        if (find_retired(key, &initial)) {
            if (!skip_retired(reader, key, initial, error))
                return FALSE;
            continue;
        }
        if (!check_key(reader, key, &value, error) || !next(reader, error))
            return FALSE;
        gboolean read = is_null(&reader->event);

        if (value != NULL)
            read = read_value(reader, value, error);
        else if (reader->event.type == YAML_MAPPING_START_EVENT)
            read = read_mapping(reader, inner, error);
        else if (!read)
            (void)fail(reader, key, RP_RUN_ERROR_VALUE, error,
                       "expected keys of its own, found a value");
        if (!read)
            return FALSE;
    }
    return FALSE;
}

/* One document: keys with values. */
static gboolean
read_stream(Reader *reader, GError **error)
{
    for (guint i = 0; i < 3; i++) { /* begin of the stream, of the document, of the mapping */
        if (!next(reader, error))
            return FALSE;
        if (reader->event.type == YAML_STREAM_END_EVENT || is_null(&reader->event))
            return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_SYNTAX,
                           "%s: expected keys such as \"model: DIRECTORY\", found nothing",
                           reader->name);
    }
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return fail(reader, "", RP_RUN_ERROR_SYNTAX, error,
                    "expected keys such as \"model: DIRECTORY\", found something else");
    if (!read_mapping(reader, "", error) || !next(reader, error) || !next(reader, error))
        return FALSE;
    return reader->event.type == YAML_STREAM_END_EVENT ||
           fail(reader, "", RP_RUN_ERROR_SYNTAX, error, "expected one document, found a second");
}

gboolean
rp_run_values_read(RpRunValues *values, const char *name, const char *text, gsize length,
                   GError **error)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autofree char *shown = rp_display_name(name);
    Reader reader = {.values = values, .name = shown, .text = text, .length = length, .seen = seen};

    if (!yaml_parser_initialize(&reader.parser))
        g_error("out of memory");
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    gboolean good = read_stream(&reader, error);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    return good;
}
