#include "text/template/template.h"
#include "core/base/quote.h"
#include "text/template/render.h"

#include <string.h>

#define MAX_SOURCE ((gsize)1 << 20)

struct _RpTemplate {
    char *name;
    char *source;
    RpArena *arena;
    RpParsed parsed;
};

static gconstpointer
filter_of(const char *name)
{
    return rp_find_filter(name);
}

static gconstpointer
test_of(const char *name)
{
    return rp_find_test(name);
}

RpTemplate *
rp_template_new(const char *name, const char *source, gsize length, GError **error)
{
    static const RpNames names = {filter_of, test_of};
    g_autoptr(RpTemplate) template = g_new0(RpTemplate, 1);

    if (length > MAX_SOURCE)
        return rp_null(rp_fail(error, RP_TEMPLATE_ERROR, RP_TEMPLATE_ERROR_SYNTAX,
                               "%s: expected a template of at most 1 MiB, found %" G_GSIZE_FORMAT
                               " bytes",
                               name, length));
    template->name = g_strdup(name);
    template->source = g_strndup(source, length);
    template->arena = rp_arena_new(G_MAXSIZE, G_MAXUINT64);
    if (!rp_template_parse(template->arena, template->name, source, length, &names,
                           &template->parsed, error))
        return NULL;
    return g_steal_pointer(&template);
}

void
rp_template_free(RpTemplate *template)
{
    if (template == NULL)
        return;
    if (template->parsed.symbols != NULL)
        g_ptr_array_free(template->parsed.symbols, TRUE);
    rp_arena_free(template->arena);
    g_free(template->source);
    g_free(template->name);
    g_free(template);
}

const char *
rp_template_source(const RpTemplate *template)
{
    return template->source;
}

gboolean
rp_template_marks_generation(const RpTemplate *template)
{
    return template->parsed.marks_generation;
}

gboolean
rp_template_uses(const RpTemplate *template, const char *name)
{
    return g_ptr_array_find_with_equal_func(template->parsed.symbols, name, g_str_equal, NULL);
}

void
rp_rendered_clear(RpRendered *rendered)
{
    if (rendered->text != NULL)
        g_string_free(rendered->text, TRUE);
    if (rendered->generations != NULL)
        g_array_free(rendered->generations, TRUE);
    if (rendered->traces != NULL)
        g_array_free(rendered->traces, TRUE);
    *rendered = (RpRendered){0};
}

/* Variables over functions, of those that the template names. */
static void
fill_scope(RpRender *render, const RpDict *variables)
{
    const GPtrArray *symbols = render->parsed->symbols;

    for (guint i = 0; i < symbols->len; i++) {
        const char *name = symbols->pdata[i];
        const RpValue *value = rp_dict_get(variables, name);
        const RpRow *global = rp_find_global(name);
        if (strcmp(name, "loop") == 0)
            render->loop_symbol = i;
        if (value != NULL)
            rp_scope_set(render, i, *value);
        else if (global != NULL)
            rp_scope_set(render, i, rp_function_value(render, global, rp_none));
    }
}

gboolean
rp_template_render(const RpTemplate *template, const RpDict *variables,
                   const RpTemplateOptions *options, RpRendered *rendered, GError **error)
{
    const gsize max_bytes = options->max_bytes > 0 ? options->max_bytes : RP_TEMPLATE_MAX_BYTES;
    g_autoptr(RpArena) arena = rp_arena_new(
        max_bytes, options->max_steps > 0 ? options->max_steps : RP_TEMPLATE_MAX_STEPS);
    g_autoptr(GDateTime) now =
        options->now != NULL ? g_date_time_ref(options->now) : g_date_time_new_now_local();
    g_auto(RpRendered) made = {.text = g_string_new(NULL),
                               .generations = g_array_new(FALSE, FALSE, sizeof(RpTextSpan)),
                               .traces = g_array_new(FALSE, FALSE, sizeof(RpTextTrace))};
    RpRender render = {.parsed = &template->parsed,
                       .name = template->name,
                       .arena = arena,
                       .out = made.text,
                       .rendered = &made,
                       .now = now,
                       .max_bytes = max_bytes,
                       .loop_symbol = G_MAXUINT,
                       .error = error};

    rp_scope_enter(&render);
    fill_scope(&render, variables);
    rp_scope_enter(&render);
    if (!rp_execute(&render, template->parsed.body))
        return FALSE;
    *rendered = made;
    made = (RpRendered){0};
    return TRUE;
}
