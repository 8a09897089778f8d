#include "text/template/render.h"

#include <string.h>

typedef struct {
    RpRender *render;
    const RpSyntax *node;
    RpList *source;
    guint n_taken;    /* taken from the source */
    RpList *accepted; /* items that the loop's condition has accepted so far */
    guint index;
    RpScope *outside;
    const RpList *changed; /* last arguments of changed(); NULL: never called */
} Loop;

/* Takes from the source until @n are accepted or none is left. A condition is asked as late as in
 * Jinja: it may depend on earlier effects of the loop. */
static gboolean
accept(Loop *loop, guint n)
{
    RpRender *render = loop->render;
    RpScope *inside = render->scope;
    gboolean done = TRUE;

    if (loop->node->c == NULL)
        return TRUE;
    render->scope = loop->outside;
    while (done && loop->accepted->length < n && loop->n_taken < loop->source->length) {
        const RpValue item = loop->source->items[loop->n_taken++];
        RpValue condition;
        rp_scope_enter(render);
        done = rp_assign(render, loop->node->a, item) &&
               rp_evaluate(render, loop->node->c, &condition);
        rp_scope_leave(render);
        if (done && rp_value_is_true(condition))
            rp_list_append(render->arena, loop->accepted, item);
    }
    render->scope = inside;
    return done;
}

static gboolean
call_cycle(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    const Loop *loop = arguments->self.other;

    if (arguments->n_given == 0)
        return rp_render_fail(render, "expected values to cycle through, found none");
    *result = arguments->given[loop->index % arguments->n_given];
    return TRUE;
}

static gboolean
call_changed(RpRender *render, const RpArguments *arguments, RpValue *result)
{
    Loop *loop = arguments->self.other;
    RpList *now = rp_list_new(render->arena, arguments->n_given);

    for (guint i = 0; i < arguments->n_given; i++)
        rp_list_append(render->arena, now, arguments->given[i]);
    *result = rp_value_bool(
        loop->changed == NULL ||
        !rp_value_equal(render->arena, rp_value_list(now), rp_value_list((RpList *)loop->changed)));
    loop->changed = now;
    return TRUE;
}

gboolean
rp_loop_attribute(RpRender *render, RpValue value, const char *name, RpValue *result)
{
    static const struct {
        const char *name;
        guint ahead; /* items that must be known, from the present one; G_MAXUINT: all */
    } attributes[] = {{"index", 0},
                      {"index0", 0},
                      {"first", 0},
                      {"previtem", 0},
                      {"depth", 0},
                      {"depth0", 0},
                      {"last", 2},
                      {"nextitem", 2},
                      {"length", G_MAXUINT},
                      {"revindex", G_MAXUINT},
                      {"revindex0", G_MAXUINT}};
    Loop *loop = value.other;
    const guint n = G_N_ELEMENTS(attributes);
    guint i = 0;

    while (i < n && strcmp(attributes[i].name, name) != 0)
        i++;
    if (i == n) {
        static const RpRow methods[] = {{.name = "cycle", .call = call_cycle, .any = TRUE},
                                        {.name = "changed", .call = call_changed, .any = TRUE}};
        const RpRow *row = rp_row_find(methods, G_N_ELEMENTS(methods), name);
        *result = row != NULL ? rp_function_value(render, row, value)
                              : rp_value_undefined(name, strlen(name));
        return TRUE;
    }
    if (attributes[i].ahead > 0 &&
        !accept(loop, attributes[i].ahead == G_MAXUINT ? G_MAXUINT : loop->index + 2))
        return FALSE;
    const guint length = loop->accepted->length, index = loop->index;
    switch (i) {
    case 0:
    case 1:
        *result = rp_value_int(index + (i == 0));
        return TRUE;
    case 2:
        *result = rp_value_bool(index == 0);
        return TRUE;
    case 3:
        *result = index > 0 ? loop->accepted->items[index - 1] : rp_value_undefined(name, 8);
        return TRUE;
    case 4:
    case 5:
        *result = rp_value_int(i == 4);
        return TRUE;
    case 6:
        *result = rp_value_bool(index + 1 >= length);
        return TRUE;
    case 7:
        *result =
            index + 1 < length ? loop->accepted->items[index + 1] : rp_value_undefined(name, 8);
        return TRUE;
    case 8:
        *result = rp_value_int(length);
        return TRUE;
    default:
        *result = rp_value_int((gint64)length - index - (i == 10));
        return TRUE;
    }
}

/* One round, with the scope entered. */
static gboolean
run_round(RpRender *render, Loop *loop)
{
    const RpValue item = loop->accepted->items[loop->index];
    const gsize start = render->out->len;

    if (!rp_assign(render, loop->node->a, item))
        return FALSE;
    if (render->loop_symbol != G_MAXUINT)
        rp_scope_set(render, render->loop_symbol, (RpValue){RP_VALUE_LOOP, 0, {.other = loop}});
    if (!rp_execute(render, loop->node->items[0]))
        return FALSE;
    if (item.type == RP_VALUE_DICT && item.dict->tag != 0 && render->captured == 0 &&
        render->out->len > start) {
        const RpTextTrace trace = {item.dict->tag, {start, render->out->len}};
        g_array_append_val(render->rendered->traces, trace);
    }
    return TRUE;
}

gboolean
rp_execute_for(RpRender *render, const RpSyntax *node)
{
    RpValue value;
    Loop *loop = rp_arena_alloc(render->arena, sizeof *loop);
    gboolean done = TRUE;

    *loop = (Loop){.render = render, .node = node};
    if (!rp_evaluate(render, node->b, &value))
        return FALSE;
    render->at = node;
    if (!rp_to_items(render, value, &loop->source))
        return FALSE;
    loop->accepted = node->c == NULL ? loop->source : rp_list_new(render->arena, 0);
    loop->outside = render->scope;
    rp_scope_enter(render);
    RpScope *scope = render->scope;
    for (;;) {
        done = accept(loop, loop->index + 1);
        if (!done || loop->index >= loop->accepted->length)
            break;
        done = run_round(render, loop);
        const gboolean broken = render->jump == RP_JUMP_BREAK;
        render->jump = RP_JUMP_NONE;
        if (!done || broken)
            break;
        loop->index++;
        if (scope->kept) { /* a macro refers to it: the next round has its own */
            render->scope = loop->outside;
            rp_scope_enter(render);
            scope = render->scope;
        }
        scope->n = 0;
    }
    if (done && loop->accepted->length == 0 && node->n_items > 1) {
        scope->n = 0;
        done = rp_execute(render, node->items[1]);
    }
    render->scope = loop->outside;
    return done;
}
