#include "tests/text-template/template-case.h"
#include "text/template/template.h"

#include <string.h>

#define NAME "case"

static char *
compare_spans(const RpRendered *rendered, const RpValue *expected)
{
    if (rendered->generations->len != expected->list->length)
        return g_strdup_printf("expected %u generations, found %u", expected->list->length,
                               rendered->generations->len);
    for (guint i = 0; i < rendered->generations->len; i++) {
        const RpTextSpan span = g_array_index(rendered->generations, RpTextSpan, i);
        const RpList *pair = expected->list->items[i].list;
        if ((gint64)span.start != pair->items[0].integer ||
            (gint64)span.end != pair->items[1].integer)
            return g_strdup_printf("expected generation %u from %d to %d, found %d to %d", i,
                                   (int)pair->items[0].integer, (int)pair->items[1].integer,
                                   (int)span.start, (int)span.end);
    }
    return NULL;
}

static char *
check(const RpDict *record)
{
    const RpValue *source = rp_dict_get(record, "template"), *text = rp_dict_get(record, "text");
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    const RpTemplateOptions options = {.now = now};
    g_autoptr(GError) error = NULL;
    g_auto(RpRendered) rendered = {0};
    g_autoptr(RpTemplate) template = rp_template_new(NAME, source->text, source->length, &error);

    const gboolean done =
        template != NULL && rp_template_render(template, rp_dict_get(record, "variables")->dict,
                                               &options, &rendered, &error);
    if (!done && text == NULL)
        return g_str_has_prefix(error->message, NAME ": line ") ? NULL : g_strdup(error->message);
    if (!done)
        return g_strdup_printf("expected \"%.*s\", found %s", (int)text->length, text->text,
                               error->message);
    if (text == NULL)
        return g_strdup_printf("expected an error, found \"%s\"", rendered.text->str);
    if (text->length != rendered.text->len ||
        memcmp(text->text, rendered.text->str, text->length) != 0)
        return g_strdup_printf("expected \"%.*s\"\nfound    \"%s\"", (int)text->length, text->text,
                               rendered.text->str);
    return compare_spans(&rendered, rp_dict_get(record, "generations"));
}

char *
rp_template_case_check(const char *line, gsize length)
{
    g_autoptr(RpArena) arena = rp_arena_new((gsize)1 << 30, G_MAXUINT64);
    g_autoptr(GError) error = NULL;
    RpJsonPull pull;
    RpValue record;

    if (!rp_json_pull_init(&pull, "fixture", line, length, G_FILE_ERROR, 0, &error) ||
        !rp_value_read_json(arena, &pull, &record))
        return g_strdup(error->message);
    char *difference = check(record.dict);
    if (difference == NULL)
        return NULL;
    const RpValue *name = rp_dict_get(record.dict, "name");
    const RpValue *shown = name != NULL ? name : rp_dict_get(record.dict, "template");
    char *message = g_strdup_printf("%.*s\n%s", (int)shown->length, shown->text, difference);
    g_free(difference);
    return message;
}
