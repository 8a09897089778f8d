#include "tests/text/expected.h"

#include <string.h>

#include "core/json/json-record.h"

static gboolean
read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    *(char **)value = g_strdup(text->str);
    return TRUE;
}

static gboolean
read_numbers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    GArray **numbers = value;
    guint64 number;

    *numbers = g_array_new(FALSE, FALSE, sizeof(guint32));
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (!rp_json_pull_whole(pull, &number))
            return FALSE;
        const guint32 narrow = (guint32)number;

        g_array_append_val(*numbers, narrow);
    }
    return !pull->failed;
}

static void
clear(gpointer data)
{
    RpExpected *expected = data;

    g_free(expected->text);
    g_free(expected->decoded);
    g_free(expected->skipped);
    g_clear_pointer(&expected->ids, g_array_unref);
    g_clear_pointer(&expected->spans, g_array_unref);
    g_clear_pointer(&expected->with_template, g_array_unref);
    g_clear_pointer(&expected->plain, g_array_unref);
}

GArray *
rp_expected_load(const char *texts, const char *expected)
{
#define ROW(key, read, member)                                                                     \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RpExpected, member)                                             \
    }
    static const RpJsonField rows[] = {
        ROW("text", read_text, text),       ROW("ids", read_numbers, ids),
        ROW("spans", read_numbers, spans),  ROW("template", read_numbers, with_template),
        ROW("plain", read_numbers, plain),  ROW("decoded", read_text, decoded),
        ROW("skipped", read_text, skipped),
    };
#undef ROW
    const char *files[] = {texts, expected};
    GArray *all = g_array_new(FALSE, TRUE, sizeof(RpExpected));

    g_array_set_clear_func(all, clear);
    for (guint f = 0; f < 2; f++) {
        g_autofree char *content = NULL;

        if (!g_file_get_contents(files[f], &content, NULL, NULL))
            g_error("%s: cannot be read", files[f]);
        g_auto(GStrv) lines = g_strsplit(content, "\n", -1);

        for (guint i = 0; lines[i] != NULL && *lines[i] != '\0'; i++) {
            g_autoptr(GError) error = NULL;
            RpJsonPull pull;

            if (i >= all->len)
                g_array_set_size(all, i + 1);
            if (!rp_json_pull_init_line(&pull, files[f], i, lines[i], strlen(lines[i]),
                                        g_quark_from_static_string("test"), 0, &error) ||
                !rp_json_read_record(&pull, rows, G_N_ELEMENTS(rows),
                                     &g_array_index(all, RpExpected, i), NULL))
                g_error("%s", error->message);
        }
    }
    return all;
}

static char *
describe(const char *what, const RpExpected *expected, const GArray *want, const GArray *got)
{
    GString *text = g_string_new(NULL);
    const GArray *both[] = {want, got};

    g_string_append_printf(text, "%s of \"%.200s\"", what, expected->text);
    for (guint b = 0; b < 2; b++) {
        g_string_append(text, b == 0 ? "\n  expected" : "\n  found   ");
        for (guint i = 0; i < MIN(both[b]->len, 60); i++)
            g_string_append_printf(text, " %u", g_array_index(both[b], guint32, i));
    }
    return g_string_free(text, FALSE);
}

static gboolean
is_same(const GArray *a, const GArray *b)
{
    return a->len == b->len &&
           (a->len == 0 || memcmp(a->data, b->data, a->len * sizeof(guint32)) == 0);
}

static char *
compare_ids(const RpTokenizer *tokenizer, const RpExpected *expected, RpEncodeFlags flags,
            const char *what, const GArray *want)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GError) error = NULL;

    if (!rp_tokenizer_encode(tokenizer, expected->text, strlen(expected->text), flags, ids, NULL,
                             &error))
        return g_strdup(error->message);
    return is_same(ids, want) ? NULL : describe(what, expected, want, ids);
}

/* Our spans are bytes, theirs whole characters; where the text was changed ours have all of it,
 * theirs its characters one by one: one lies within the other, and ours ascend. */
static char *
compare_spans(const RpTokenizer *tokenizer, const RpExpected *expected)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));
    guint32 last = 0;

    if (!rp_tokenizer_encode(tokenizer, expected->text, strlen(expected->text), RP_ENCODE_TEXT, ids,
                             spans, NULL) ||
        !is_same(ids, expected->ids) || spans->len != ids->len)
        return g_strdup("other ids with spans");
    for (guint i = 0; i < spans->len; i++) {
        const RpTokenSpan *span = &g_array_index(spans, RpTokenSpan, i);
        const guint32 start = g_array_index(expected->spans, guint32, 2 * i);
        const guint32 end = g_array_index(expected->spans, guint32, 2 * i + 1);

        const gboolean inside = span->start >= start && span->end <= end;
        const gboolean around = span->start <= start && span->end >= end;

        if ((!inside && !around) || span->start > span->end || span->start < last)
            return g_strdup_printf("token %u of \"%.200s\": expected from %u to %u, found %u to %u",
                                   i, expected->text, start, end, span->start, span->end);
        last = span->start;
    }
    return NULL;
}

static char *
compare_text(const RpTokenizer *tokenizer, const RpExpected *expected, RpDecodeFlags flags,
             const char *want)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(GError) error = NULL;

    if (!rp_tokenizer_decode(tokenizer, (const guint32 *)(const void *)expected->ids->data,
                             expected->ids->len, flags, text, &error))
        return g_strdup(error->message);
    if (want == NULL)
        want = expected->text;
    return strcmp(text->str, want) == 0
               ? NULL
               : g_strdup_printf("decoded: expected \"%s\", found \"%s\"", want, text->str);
}

char *
rp_expected_compare(const RpTokenizer *tokenizer, const RpExpected *expected)
{
    const GArray *ids = expected->ids;
    char *fault = compare_ids(tokenizer, expected, RP_ENCODE_TEXT, "ids", ids);

    if (fault == NULL)
        fault = compare_ids(tokenizer, expected, RP_ENCODE_TEMPLATE, "ids with template",
                            expected->with_template != NULL ? expected->with_template : ids);
    if (fault == NULL)
        fault = compare_ids(tokenizer, expected, RP_ENCODE_PLAIN, "plain ids",
                            expected->plain != NULL ? expected->plain : ids);
    if (fault == NULL)
        fault = compare_spans(tokenizer, expected);
    if (fault == NULL)
        fault = compare_text(tokenizer, expected, RP_DECODE_ALL, expected->decoded);
    if (fault == NULL)
        fault = compare_text(tokenizer, expected, RP_DECODE_SKIP_SPECIAL, expected->skipped);
    return fault;
}
