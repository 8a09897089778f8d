/**
 * A template neither crashes nor leaks, whatever the bytes, and ends; a refusal is one line that
 * names it and a place. The variables stand behind the first NUL; the rendered text is UTF-8 and is
 * the same again; spans lie in it, in order.
 */
#include "fuzz/harness.h"

#include "text/template/template.h"

#define MAX_STEPS 20000
#define MAX_BYTES ((gsize)16 << 20)

static void
check_spans(const RpRendered *rendered)
{
    for (guint i = 0; i < rendered->generations->len; i++) {
        const RpTextSpan *span = &g_array_index(rendered->generations, RpTextSpan, i);
        g_assert(span->start < span->end && span->end <= rendered->text->len);
    }
    for (guint i = 0; i < rendered->traces->len; i++) {
        const RpTextTrace *trace = &g_array_index(rendered->traces, RpTextTrace, i);
        g_assert(trace->tag > 0 && trace->span.start < trace->span.end);
        g_assert(trace->span.end <= rendered->text->len);
    }
}

/* The variables: an object, of which every dict in `messages` has a tag; or none. */
static RpDict *
read_variables(RpArena *arena, const char *json, gsize length)
{
    RpJsonPull pull;
    RpValue value;

    if (!rp_json_pull_init(&pull, "fuzz", json, length, RP_TEMPLATE_ERROR, 0, NULL) ||
        !rp_value_read_json(arena, &pull, &value) || value.type != RP_VALUE_DICT)
        return rp_dict_new(arena);
    const RpValue *messages = rp_dict_get(value.dict, "messages");
    if (messages != NULL && messages->type == RP_VALUE_LIST)
        for (guint i = 0; i < messages->list->length; i++)
            if (messages->list->items[i].type == RP_VALUE_DICT)
                messages->list->items[i].dict->tag = i + 1;
    return value.dict;
}

static void
check_render(const RpTemplate *template, const RpDict *variables)
{
    g_autoptr(GTimeZone) zone = g_time_zone_new_utc();
    g_autoptr(GDateTime) now = g_date_time_new(zone, 2024, 7, 4, 15, 5, 9);
    const RpTemplateOptions options = {now, MAX_STEPS, MAX_BYTES};
    g_auto(RpRendered) rendered = {0}, again = {0};
    g_autoptr(GError) error = NULL;

    const gboolean done = rp_template_render(template, variables, &options, &rendered, &error);

    if (!was_taken(done, error)) {
        g_assert(error->domain == RP_TEMPLATE_ERROR);
        g_assert(g_str_has_prefix(error->message, "fuzz: line "));
        return;
    }
    for (const char *p = rendered.text->str; p < rendered.text->str + rendered.text->len;
         p += strlen(p) + 1) /* a template may hold NUL */
        g_assert(g_utf8_validate(p, -1, NULL));
    check_spans(&rendered);
    g_assert(rp_template_render(template, variables, &options, &again, &error));
    g_assert(g_string_equal(rendered.text, again.text));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    const uint8_t *nul = size > 0 ? memchr(data, '\0', size) : NULL;
    const gsize length = nul != NULL ? (gsize)(nul - data) : size;
    g_autofree char *source = g_strndup((const char *)data, length);
    g_autoptr(RpArena) arena = rp_arena_new(MAX_BYTES, G_MAXUINT64);
    g_autoptr(RpTemplate) template = rp_template_new("fuzz", source, length, &error);

    if (!was_taken(template != NULL, error)) {
        g_assert(error->domain == RP_TEMPLATE_ERROR);
        g_assert(g_str_has_prefix(error->message, "fuzz: "));
        return 0;
    }
    check_render(template, nul == NULL
                               ? rp_dict_new(arena)
                               : read_variables(arena, (const char *)nul + 1, size - length - 1));
    return 0;
}
