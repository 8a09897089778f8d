/* Objects by tables, and the values that most rows have; see json-record.h. */
#include "core/json/json-record.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"

static guint
find_field(const RpJsonField *fields, guint n_fields, const char *key)
{
    guint i = 0;

    while (i < n_fields && fields[i].key != NULL && strcmp(fields[i].key, key) != 0)
        i++;
    return i;
}

/* For messages: "one of …", or the row's bounds. (transfer full) */
static char *
describe_expected(const RpJsonField *field)
{
    if (field->expected != NULL)
        return g_strdup(field->expected);
    if (field->choices == NULL && field->max == 0)
        return g_strdup("a value");
    if (field->choices == NULL)
        return g_strdup_printf("a whole number from %.0f to %.0f", field->min, field->max);
    g_autofree char *joined = g_strjoinv("\", \"", (char **)field->choices);
    return g_strdup_printf("%s\"%s\"", field->choices[1] != NULL ? "one of " : "", joined);
}

/* Refuses the value read last. */
static gboolean
fail_field(RpJsonPull *pull, const RpJsonField *field)
{
    g_autofree char *expected = describe_expected(field);

    return rp_json_pull_fail_value(pull, expected);
}

static gboolean
fail_unknown(RpJsonPull *pull, const RpJsonField *fields, guint n_fields, const char *key)
{
    const char *known[RP_JSON_MAX_FIELDS + 1] = {NULL};

    for (guint i = 0; i < n_fields; i++)
        known[i] = fields[i].key;
    const char *nearest = rp_nearest_name(key, known);
    g_autofree char *expected = nearest != NULL
                                    ? g_strdup_printf("a known key such as \"%s\"", nearest)
                                    : g_strdup("a known key");
    pull->levels[pull->depth - 1].key = NULL; /* the place is the object */
    return rp_json_pull_fail_value(pull, expected);
}

static gboolean
fail_again(RpJsonPull *pull, const char *key)
{
    g_autofree char *found = g_strdup_printf("\"%s\" a second time", key);

    pull->levels[pull->depth - 1].key = NULL;
    return rp_json_pull_refuse(pull, pull->value, NULL, "each key once", found);
}

gboolean
rp_json_read_record(RpJsonPull *pull, const RpJsonField *fields, guint n_fields, gpointer data,
                    RpJsonRecord *record)
{
    RpJsonRecord read = {.fields = fields, .n_fields = n_fields};
    g_autoptr(GString) key = g_string_new(NULL);
    const char *outer = pull->key;

    g_return_val_if_fail(n_fields <= RP_JSON_MAX_FIELDS, FALSE);
    if (!rp_json_pull_enter_object(pull))
        return FALSE;
    read.start = pull->value;
    while (rp_json_pull_next_key(pull, key)) {
        guint i = find_field(fields, n_fields, key->str);
        if (i == n_fields)
            return fail_unknown(pull, fields, n_fields, key->str);
        if (read.at[i] != NULL && fields[i].key != NULL)
            return fail_again(pull, key->str);
        RpJsonType type = rp_json_pull_peek(pull);
        if (type == RP_JSON_NULL && fields[i].null_is_absent) {
            (void)rp_json_pull_null(pull);
            continue;
        }
        read.at[i] = pull->at;
        pull->key = key->str;
        void *member = data != NULL ? G_STRUCT_MEMBER_P(data, fields[i].offset) : NULL;
        if (!fields[i].read(pull, &fields[i], member))
            return FALSE;
    }
    pull->key = outer;
    for (guint i = 0; i < n_fields && !pull->failed; i++) {
        if (fields[i].required && read.at[i] == NULL) {
            g_autofree char *expected = describe_expected(&fields[i]);
            return rp_json_record_fail(&read, pull, fields[i].key, expected);
        }
    }
    if (record != NULL)
        *record = read;
    return !pull->failed;
}

const char *
rp_json_record_at(const RpJsonRecord *record, const char *key)
{
    guint i = find_field(record->fields, record->n_fields, key);

    g_assert(i < record->n_fields);
    return record->at[i];
}

gboolean
rp_json_record_fail(const RpJsonRecord *record, RpJsonPull *pull, const char *key,
                    const char *expected)
{
    const char *at = rp_json_record_at(record, key);

    return rp_json_pull_refuse(pull, at != NULL ? at : record->start, key, expected,
                               at != NULL ? NULL : "nothing");
}

/* ---- values ---- */

static gboolean
read_bounded(RpJsonPull *pull, const RpJsonField *field, gboolean whole, double *number)
{
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER) {
        pull->value = pull->at;
        return fail_field(pull, field);
    }
    if (!rp_json_pull_number(pull, number))
        return FALSE;
    if (*number < field->min || *number > field->max || (whole && *number != floor(*number)))
        return fail_field(pull, field);
    *number += 0.0; /* -0 becomes 0 */
    return TRUE;
}

gboolean
rp_json_read_number(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return read_bounded(pull, field, FALSE, value);
}

gboolean
rp_json_read_size(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    if (!read_bounded(pull, field, TRUE, &number))
        return FALSE;
    *(guint64 *)value = (guint64)number;
    return TRUE;
}

gboolean
rp_json_read_count(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    if (!read_bounded(pull, field, TRUE, &number))
        return FALSE;
    *(guint *)value = (guint)number;
    return TRUE;
}

static gboolean
read_digits(RpJsonPull *pull, const RpJsonField *field, guint64 most, guint64 *number)
{
    if (!rp_json_pull_whole(pull, number))
        return FALSE;
    if (*number > most)
        return rp_json_pull_fail_value(pull, "a whole number below 2^32");
    return field->max == 0 || ((double)*number >= field->min && (double)*number <= field->max) ||
           fail_field(pull, field);
}

gboolean
rp_json_read_uint(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint64 number;

    if (!read_digits(pull, field, G_MAXUINT, &number))
        return FALSE;
    *(guint *)value = (guint)number;
    return TRUE;
}

gboolean
rp_json_read_uint64(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return read_digits(pull, field, G_MAXUINT64, value);
}

gboolean
rp_json_read_boolean(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_pull_boolean(pull, value);
}

static gboolean
is_one_line(const char *text)
{
    for (const char *p = text; *p; p = g_utf8_next_char(p)) {
        gunichar c = g_utf8_get_char(p);
        if (g_unichar_iscntrl(c) || c == 0x2028 || c == 0x2029)
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_json_read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "text on one line");
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    if (!is_one_line(text->str))
        return rp_json_pull_fail_value(pull, "text on one line");
    if (text->len < (gsize)field->min)
        return rp_json_pull_fail(pull, field->expected);
    if ((double)text->len > field->max) {
        g_autofree char *expected = g_strdup_printf("at most %.0f bytes", field->max);
        return rp_json_pull_fail_value(pull, expected);
    }
    g_free(*(char **)value);
    *(char **)value = g_strdup(text->str);
    return TRUE;
}

gboolean
rp_json_read_string(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    g_free(*(char **)value);
    *(char **)value = g_strdup(text->str);
    return TRUE;
}

gboolean
rp_json_read_each(RpJsonPull *pull, const RpJsonField *field, RpJsonRead read, gpointer value)
{
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);)
        if (!read(pull, field, value))
            return FALSE;
    return !pull->failed;
}

gboolean
rp_json_read_choice_index(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (rp_json_pull_peek(pull) != RP_JSON_STRING) {
        pull->value = pull->at;
        return fail_field(pull, field);
    }
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (guint i = 0; field->choices[i] != NULL; i++) {
        if (strcmp(field->choices[i], text->str) == 0) {
            *(guint *)value = i;
            return TRUE;
        }
    }
    return fail_field(pull, field);
}

gboolean
rp_json_read_choice(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint i;

    if (!rp_json_read_choice_index(pull, field, &i))
        return FALSE;
    g_free(*(char **)value);
    *(char **)value = g_strdup(field->choices[i]);
    return TRUE;
}

gboolean
rp_json_read_constant(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint i;

    return rp_json_read_choice_index(pull, field, &i);
}

gboolean
rp_json_read_nested(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_read_record(pull, field->fields, field->n_fields, value, NULL);
}

gboolean
rp_json_read_ignored(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_pull_skip(pull);
}
