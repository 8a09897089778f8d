#include "text/template/render.h"

#include <string.h>

void
rp_scope_enter(RpRender *render)
{
    RpScope *scope = rp_arena_alloc(render->arena, sizeof *scope);

    scope->outer = render->scope;
    render->scope = scope;
}

void
rp_scope_leave(RpRender *render)
{
    render->scope = render->scope->outer;
}

void
rp_scope_set(RpRender *render, guint symbol, RpValue value)
{
    RpScope *scope = render->scope;

    for (guint i = 0; i < scope->n; i++)
        if (scope->variables[i].symbol == symbol) {
            scope->variables[i].value = value;
            return;
        }
    if (scope->n == scope->capacity) {
        const guint capacity = MAX(4, scope->capacity * 2);
        RpVariable *wider = rp_arena_alloc(render->arena, capacity * sizeof *wider);
        if (scope->n > 0)
            memcpy(wider, scope->variables, scope->n * sizeof *wider);
        scope->variables = wider;
        scope->capacity = capacity;
    }
    scope->variables[scope->n++] = (RpVariable){symbol, value};
}

/* `NAMESPACE.attribute = value`. */
static gboolean
assign_attribute(RpRender *render, const RpSyntax *target, RpValue value)
{
    const RpSyntax name = {.type = RP_NODE_NAME,
                           .symbol = target->symbol,
                           .text = target->text,
                           .line = target->line,
                           .column = target->column};
    RpValue space;

    if (!rp_evaluate(render, &name, &space))
        return FALSE;
    render->at = target;
    if (space.type != RP_VALUE_NAMESPACE)
        return rp_render_fail_type(render, "a namespace", space);
    rp_dict_set(render->arena, space.dict, target->value, value);
    return TRUE;
}

gboolean
rp_assign(RpRender *render, const RpSyntax *target, RpValue value)
{
    RpList *items;

    if (target->type == RP_NODE_NAME) {
        rp_scope_set(render, target->symbol, value);
        return TRUE;
    }
    if (target->type == RP_NODE_NAMESPACE)
        return assign_attribute(render, target, value);
    render->at = target;
    if (!rp_to_items(render, value, &items))
        return FALSE;
    if (items->length != target->n_items)
        return rp_render_fail(render, "expected %u values to assign, found %u", target->n_items,
                              items->length);
    for (guint i = 0; i < items->length; i++)
        if (!rp_assign(render, target->items[i], items->items[i]))
            return FALSE;
    return TRUE;
}

gboolean
rp_execute_aside(RpRender *render, const RpSyntax *node, RpValue *text)
{
    g_autoptr(GString) aside = g_string_new(NULL);
    GString *out = render->out;

    render->out = aside;
    render->captured++;
    const gboolean done = rp_execute(render, node);
    render->captured--;
    render->out = out;
    return done && rp_keep_text(render, aside, text);
}

static gboolean
output(RpRender *render, const char *text, gsize length)
{
    if (length > render->max_bytes - MIN(render->max_bytes, render->out->len))
        return rp_render_fail(render, "the text is longer than %" G_GSIZE_FORMAT " MiB",
                              render->max_bytes >> 20);
    g_string_append_len(render->out, text, (gssize)length);
    return TRUE;
}

static gboolean
execute_output(RpRender *render, const RpSyntax *node)
{
    RpValue value, text;

    if (!rp_evaluate(render, node->a, &value))
        return FALSE;
    render->at = node;
    return rp_to_text(render, value, &text) && output(render, text.text, text.length);
}

static gboolean
execute_if(RpRender *render, const RpSyntax *node)
{
    for (guint i = 0; i < node->n_items; i += 2) {
        RpValue condition;
        if (!rp_evaluate(render, node->items[i], &condition))
            return FALSE;
        if (rp_value_is_true(condition))
            return rp_execute(render, node->items[i + 1]);
    }
    return node->c == NULL || rp_execute(render, node->c);
}

static gboolean
execute_set(RpRender *render, const RpSyntax *node)
{
    RpValue value;

    return rp_evaluate(render, node->b, &value) && rp_assign(render, node->a, value);
}

/* The text of the block @node->c, through the filters @node->b. */
static gboolean
filtered_block(RpRender *render, const RpSyntax *node, RpValue *value)
{
    const RpValue *outer = render->capture;
    RpValue text;

    rp_scope_enter(render);
    gboolean done = rp_execute_aside(render, node->c, &text);
    rp_scope_leave(render);
    if (!done || node->b == NULL) {
        *value = done ? text : rp_none;
        return done;
    }
    render->capture = &text;
    done = rp_evaluate(render, node->b, value);
    render->capture = outer;
    return done;
}

static gboolean
execute_filter_block(RpRender *render, const RpSyntax *node)
{
    RpValue value, text;

    return filtered_block(render, node, &value) && rp_to_text(render, value, &text) &&
           output(render, text.text, text.length);
}

static gboolean
execute_set_block(RpRender *render, const RpSyntax *node)
{
    RpValue value;

    return filtered_block(render, node, &value) && rp_assign(render, node->a, value);
}

static gboolean
execute_macro(RpRender *render, const RpSyntax *node)
{
    RpFunction *function = rp_arena_alloc(render->arena, sizeof *function);

    function->macro = node;
    function->scope = render->scope;
    for (RpScope *scope = render->scope; scope != NULL; scope = scope->outer)
        scope->kept = TRUE;
    rp_scope_set(render, node->symbol, (RpValue){RP_VALUE_FUNCTION, 0, {.other = function}});
    return TRUE;
}

static gboolean
execute_with(RpRender *render, const RpSyntax *node)
{
    g_autofree RpValue *values = g_new(RpValue, node->n_items / 2 + 1);

    for (guint i = 0; i < node->n_items; i += 2)
        if (!rp_evaluate(render, node->items[i + 1], &values[i / 2]))
            return FALSE;
    rp_scope_enter(render);
    gboolean done = TRUE;
    for (guint i = 0; done && i < node->n_items; i += 2)
        done = rp_assign(render, node->items[i], values[i / 2]);
    done = done && rp_execute(render, node->c);
    rp_scope_leave(render);
    return done;
}

static gboolean
execute_generation(RpRender *render, const RpSyntax *node)
{
    RpTextSpan span = {.start = render->out->len};

    rp_scope_enter(render);
    const gboolean done = rp_execute(render, node->c);
    rp_scope_leave(render);
    span.end = render->out->len;
    render->rendered->hidden |= render->captured > 0;
    if (done && render->captured == 0 && span.end > span.start)
        g_array_append_val(render->rendered->generations, span);
    return done;
}

static gboolean
execute_body(RpRender *render, const RpSyntax *node)
{
    gboolean done = TRUE;

    for (guint i = 0; done && i < node->n_items && render->jump == RP_JUMP_NONE; i++)
        done = rp_execute(render, node->items[i]);
    return done;
}

static gboolean
execute_one(RpRender *render, const RpSyntax *node)
{
    switch (node->type) {
    case RP_NODE_BODY:
        return execute_body(render, node);
    case RP_NODE_DATA:
        return output(render, node->value.text, node->value.length);
    case RP_NODE_OUTPUT:
        return execute_output(render, node);
    case RP_NODE_FOR:
        return rp_execute_for(render, node);
    case RP_NODE_IF:
        return execute_if(render, node);
    case RP_NODE_SET:
        return execute_set(render, node);
    case RP_NODE_SET_BLOCK:
        return execute_set_block(render, node);
    case RP_NODE_MACRO:
        return execute_macro(render, node);
    case RP_NODE_WITH:
        return execute_with(render, node);
    case RP_NODE_FILTER_BLOCK:
        return execute_filter_block(render, node);
    case RP_NODE_GENERATION:
        return execute_generation(render, node);
    case RP_NODE_BREAK:
    case RP_NODE_CONTINUE:
        render->jump = node->type == RP_NODE_BREAK ? RP_JUMP_BREAK : RP_JUMP_CONTINUE;
        return TRUE;
    default:
        g_assert_not_reached();
    }
}

gboolean
rp_execute(RpRender *render, const RpSyntax *node)
{
    render->at = node;
    const gboolean done = rp_arena_enter(render->arena) ? execute_one(render, node)
                                                        : rp_render_fail_bound(render, NULL);
    rp_arena_leave(render->arena);
    return done;
}
