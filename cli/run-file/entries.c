/* Run files: which key stands where, before its value has a type. */
#include "cli/run-file/private.h"

#include <string.h>

#include "cli/cli.h"
#include "cli/run-file/run-file.h"
#include "core/base/quote.h"
#include "core/base/suggest.h"

gboolean
rp_run_text_is_null(const char *text)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};

    return g_strv_contains(nulls, text);
}

static void
entry_free(gpointer data)
{
    RpRunEntry *entry = data;

    g_free(entry->key);
    g_free(entry->text);
    g_free(entry->place);
    g_free(entry);
}

static void
add_fields(GPtrArray *entries, const cyaml_schema_field_t *fields, const char *prefix, gsize offset)
{
    for (const cyaml_schema_field_t *field = fields; field->key != NULL; field++) {
        g_autofree char *key = g_strconcat(prefix, field->key, NULL);

        if (field->value.type == CYAML_MAPPING) {
            g_autofree char *inner = g_strconcat(key, ".", NULL);

            add_fields(entries, field->value.mapping.fields, inner, offset + field->data_offset);
            continue;
        }
        RpRunEntry *entry = g_new0(RpRunEntry, 1);

        entry->key = g_steal_pointer(&key);
        entry->field = field;
        entry->offset = offset + field->data_offset;
        g_ptr_array_add(entries, entry);
    }
}

RpRunEntries *
rp_run_entries_new(const cyaml_schema_field_t *fields)
{
    RpRunEntries *entries = g_new0(RpRunEntries, 1);

    entries->entries = g_ptr_array_new_with_free_func(entry_free);
    add_fields(entries->entries, fields, "", 0);
    return entries;
}

void
rp_run_entries_free(RpRunEntries *entries)
{
    if (entries == NULL)
        return;
    g_ptr_array_unref(entries->entries);
    g_free(entries);
}

RpRunEntry *
rp_run_entries_find(const RpRunEntries *entries, const char *key)
{
    for (guint i = 0; i < entries->entries->len; i++) {
        RpRunEntry *entry = g_ptr_array_index(entries->entries, i);

        if (strcmp(entry->key, key) == 0)
            return entry;
    }
    return NULL;
}

void
rp_run_entry_set(RpRunEntry *entry, const char *text, const char *place, gboolean from_set)
{
    char *new_text = g_strdup(text); /* both may be the entry's own */
    char *new_place = g_strdup(place);

    g_free(entry->text);
    g_free(entry->place);
    entry->text = new_text;
    entry->place = new_place;
    entry->from_set = from_set;
}

void
rp_run_entry_fail(const RpRunEntry *entry, GError **error, int code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_set_error(error, entry->from_set ? RP_CLI_ERROR : RP_RUN_FILE_ERROR,
                entry->from_set ? RP_CLI_ERROR_USAGE : code, "%s%s%s: %s",
                entry->place != NULL ? entry->place : "",
                entry->place == NULL ? ""
                : entry->from_set    ? " "
                                     : ": ",
                entry->key, message);
}

/* ---- unknown keys ---- */

gboolean
rp_run_entries_is_group(const RpRunEntries *entries, const char *key)
{
    g_autofree char *prefix = g_strconcat(key, ".", NULL);

    for (guint i = 0; i < entries->entries->len; i++) {
        const RpRunEntry *entry = g_ptr_array_index(entries->entries, i);

        if (g_str_has_prefix(entry->key, prefix))
            return TRUE;
    }
    return FALSE;
}

/* What other tools call a key. */
static const char *
other_name(const char *word)
{
    static const char *const names[][2] = {
        {"base_model", "model"},
        {"batch", "micro_batch_size"},
        {"batch_size", "micro_batch_size"},
        {"cutoff_len", "sequence_length"},
        {"dataset", "data"},
        {"datasets", "data"},
        {"gradient_accumulation", "gradient_accumulation_steps"},
        {"lr", "optimizer.learning_rate"},
        {"lr_scheduler", "optimizer.schedule"},
        {"lr_scheduler_type", "optimizer.schedule"},
        {"max_seq_length", "sequence_length"},
        {"max_steps", "steps"},
        {"model_name_or_path", "model"},
        {"num_steps", "steps"},
        {"output_dir", "output"},
        {"per_device_train_batch_size", "micro_batch_size"},
        {"save_steps", "checkpoint.every"},
        {"save_total_limit", "checkpoint.keep"},
        {"seq_len", "sequence_length"},
        {"sequence_len", "sequence_length"},
        {"train_file", "data"},
        {"warmup", "optimizer.warmup_steps"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        if (strcmp(names[i][0], word) == 0)
            return names[i][1];
    return NULL;
}

/* The known key that @key was meant to be: what other tools call it, one of the same group, the
 * same word of another group, or a near one of any. Returns: (transfer full) (nullable) */
static char *
nearest_key(const RpRunEntries *entries, const char *key)
{
    g_autoptr(GPtrArray) siblings = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    const char *dot = strrchr(key, '.');
    const char *word = dot != NULL ? dot + 1 : key;
    gsize group = dot != NULL ? (gsize)(dot - key) : 0;
    const char *same = NULL, *near = other_name(word);

    if (near != NULL)
        return g_strdup(near);
    for (guint i = 0; i < entries->entries->len; i++) {
        const RpRunEntry *entry = g_ptr_array_index(entries->entries, i);
        const char *own_dot = strrchr(entry->key, '.');
        const char *own = own_dot != NULL ? own_dot + 1 : entry->key;
        gsize own_group = own_dot != NULL ? (gsize)(own_dot - entry->key) : 0;

        g_ptr_array_add(all, entry->key);
        if (own_group == group && strncmp(entry->key, key, group) == 0)
            g_ptr_array_add(siblings, g_strdup(own));
        else if (group == 0 && own_group > 0)
            g_ptr_array_add(siblings, g_strndup(entry->key, own_group));
        if (same == NULL && strcmp(own, word) == 0)
            same = entry->key;
    }
    g_ptr_array_add(siblings, NULL);
    g_ptr_array_add(all, NULL);
    near = rp_nearest_name(word, (const char *const *)siblings->pdata);
    if (near != NULL)
        return g_strdup_printf("%.*s%s%s", (int)group, key, group > 0 ? "." : "", near);
    if (same != NULL)
        return g_strdup(same);
    return g_strdup(rp_nearest_name(key, (const char *const *)all->pdata));
}

void
rp_run_entries_fail_unknown(const RpRunEntries *entries, const char *place, const char *key,
                            GQuark domain, int code, GError **error)
{
    g_autofree char *near = nearest_key(entries, key);
    g_autofree char *shown = rp_quote(key);

    if (near != NULL)
        g_set_error(error, domain, code, "%s: no key %s; did you mean \"%s\"?", place, shown, near);
    else
        g_set_error(error, domain, code, "%s: no key %s; docs/train.md lists them", place, shown);
}

/* ---- the command line ---- */

gboolean
rp_run_entries_set(RpRunEntries *entries, const char *word, GError **error)
{
    const char *equals = strchr(word, '=');

    if (equals == NULL || equals == word) {
        g_autofree char *shown = rp_quote(word);

        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--set: expected KEY=VALUE, found %s",
                    shown);
        return FALSE;
    }
    g_autofree char *key = g_strndup(word, (gsize)(equals - word));
    RpRunEntry *entry = rp_run_entries_find(entries, key);

    if (entry == NULL && rp_run_entries_is_group(entries, key)) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--set: \"%s\" has keys of its own; expected one of them, as --set "
                    "%s.KEY=VALUE",
                    key, key);
        return FALSE;
    }
    if (entry == NULL) {
        rp_run_entries_fail_unknown(entries, "--set", key, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, error);
        return FALSE;
    }
    for (const char *p = equals + 1; *p != '\0'; p++) {
        if (!g_ascii_iscntrl(*p))
            continue;
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--set %s: expected one line of text, found control characters", key);
        return FALSE;
    }
    rp_run_entry_set(entry, equals + 1, "--set", TRUE);
    return TRUE;
}

/* ---- writing ---- */

/* Plain where YAML cannot take it for anything else, else in single quotes. */
static void
append_scalar(GString *yaml, const char *text)
{
    gboolean plain =
        (g_ascii_isalnum(*text) || *text == '/' || *text == '.') && !rp_run_text_is_null(text);

    for (const char *p = text; plain && *p != '\0'; p++)
        plain = g_ascii_isalnum(*p) || strchr("_./+,*-", *p) != NULL ||
                (*p == ':' && g_ascii_isalnum(p[1]));
    if (plain) {
        g_string_append(yaml, text);
        return;
    }
    g_string_append_c(yaml, '\'');
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\'')
            g_string_append_c(yaml, '\'');
        g_string_append_c(yaml, *p);
    }
    g_string_append_c(yaml, '\'');
}

char *
rp_run_entries_to_yaml(const RpRunEntries *entries, GPtrArray **lines)
{
    GString *yaml = g_string_new(NULL);
    GPtrArray *of_line = g_ptr_array_new();
    g_autofree char *group = g_strdup("");

    for (guint i = 0; i < entries->entries->len; i++) {
        RpRunEntry *entry = g_ptr_array_index(entries->entries, i);
        const char *dot = strrchr(entry->key, '.');
        g_autofree char *own =
            dot != NULL ? g_strndup(entry->key, (gsize)(dot - entry->key)) : NULL;

        if (entry->text == NULL)
            continue;
        if (own != NULL && strcmp(own, group) != 0) {
            g_string_append_printf(yaml, "%s:\n", own);
            g_ptr_array_add(of_line, NULL);
            g_free(group);
            group = g_strdup(own);
        }
        g_string_append_printf(yaml, "%s%s: ", dot != NULL ? "  " : "",
                               dot != NULL ? dot + 1 : entry->key);
        append_scalar(yaml, entry->text);
        g_string_append_c(yaml, '\n');
        g_ptr_array_add(of_line, entry);
    }
    if (lines != NULL)
        *lines = of_line;
    else
        g_ptr_array_unref(of_line);
    return g_string_free(yaml, FALSE);
}
