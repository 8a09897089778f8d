#include "core/base/quote.h"
#include "text/template/render.h"

#include <string.h>

static gboolean
fail(RpRender *render, RpTemplateError code, const char *message)
{
    if (!render->failed)
        g_set_error(render->error, RP_TEMPLATE_ERROR, (int)code, "%s: line %u, column %u: %s",
                    render->name, render->at->line, render->at->column, message);
    render->failed = TRUE;
    return FALSE;
}

gboolean
rp_render_fail(RpRender *render, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return fail(render, RP_TEMPLATE_ERROR_RENDER, message);
}

gboolean
rp_render_fail_bound(RpRender *render, const char *wrong)
{
    if (wrong != NULL)
        return rp_render_fail(render, "expected a value that can be written, found %s", wrong);
    g_autofree char *bound = rp_arena_bound(render->arena);
    g_autofree char *message = g_strdup_printf("the template takes more than %s", bound);
    return fail(render, RP_TEMPLATE_ERROR_BOUND, message);
}

gboolean
rp_render_fail_type(RpRender *render, const char *expected, RpValue found)
{
    if (found.type != RP_VALUE_UNDEFINED)
        return rp_render_fail(render, "expected %s, found %s", expected, rp_value_type_name(found));
    g_autofree char *name = g_strndup(found.text != NULL ? found.text : "", found.length);
    g_autofree char *quoted = rp_quote(name);
    return rp_render_fail(render, "expected %s, found %s, which is undefined", expected, quoted);
}

gboolean
rp_render_charge(RpRender *render, guint64 steps)
{
    return rp_arena_charge(render->arena, steps) || rp_render_fail_bound(render, NULL);
}

gboolean
rp_charge_key(RpRender *render, RpValue key)
{
    return rp_render_charge(render, key.type == RP_VALUE_STRING ? key.length / RP_SCANNED : 0);
}

gboolean
rp_strip(RpRender *render, RpValue text, const RpValue *chars, gboolean left, gboolean right,
         RpValue *result)
{
    /* each character is looked for among all that go */
    const guint64 looks = chars != NULL ? chars->length / RP_DECODED : 0;

    if (!rp_render_charge(render, text.length / RP_SCANNED * looks))
        return FALSE;
    *result = rp_string_strip(text, chars, left, right);
    return TRUE;
}

gboolean
rp_append(RpRender *render, GString *text, RpValue part)
{
    g_string_append_len(text, part.text, part.length);
    return rp_arena_has_space(render->arena, text->len) || rp_render_fail_bound(render, NULL);
}

gboolean
rp_keep_text(RpRender *render, const GString *text, RpValue *value)
{
    if (!rp_arena_has_space(render->arena, text->len) || text->len > G_MAXUINT)
        return rp_render_fail_bound(render, NULL);
    *value = rp_value_copy(render->arena, text->str, text->len);
    return TRUE;
}

gboolean
rp_to_text(RpRender *render, RpValue value, RpValue *text)
{
    const char *wrong = NULL;

    if (value.type == RP_VALUE_STRING) {
        *text = value;
        return TRUE;
    }
    g_autoptr(GString) shown = g_string_new(NULL);
    if (!rp_value_show(render->arena, value, shown, &wrong))
        return rp_render_fail_bound(render, wrong);
    return rp_keep_text(render, shown, text);
}

static gboolean
evaluate_name(RpRender *render, const RpSyntax *node, RpValue *value)
{
    for (const RpScope *scope = render->scope; scope != NULL; scope = scope->outer)
        for (guint i = 0; i < scope->n; i++)
            if (scope->variables[i].symbol == node->symbol) {
                *value = scope->variables[i].value;
                return TRUE;
            }
    *value = rp_value_undefined(node->text, strlen(node->text));
    return TRUE;
}

static gboolean
evaluate_list(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpList *list = rp_list_new(render->arena, node->n_items);

    for (guint i = 0; i < node->n_items; i++) {
        RpValue item;
        if (!rp_evaluate(render, node->items[i], &item))
            return FALSE;
        rp_list_append(render->arena, list, item);
    }
    *value = node->type == RP_NODE_TUPLE ? rp_value_tuple(list) : rp_value_list(list);
    return TRUE;
}

static gboolean
evaluate_dict(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpDict *dict = rp_dict_new(render->arena);

    for (guint i = 0; i < node->n_items; i += 2) {
        RpValue key, member;
        if (!rp_evaluate(render, node->items[i], &key) ||
            !rp_evaluate(render, node->items[i + 1], &member))
            return FALSE;
        render->at = node->items[i];
        if (!rp_value_is_key(key))
            return rp_render_fail_type(render, "a key (none, a boolean, number or string)", key);
        rp_dict_set(render->arena, dict, key, member);
    }
    *value = rp_value_dict(dict);
    return TRUE;
}

static gboolean
evaluate_slice(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpValue of, parts[3] = {rp_none, rp_none, rp_none};

    if (!rp_evaluate(render, node->a, &of))
        return FALSE;
    for (guint i = 0; i < 3; i++)
        if (node->items[i] != NULL && !rp_evaluate(render, node->items[i], &parts[i]))
            return FALSE;
    render->at = node;
    return rp_slice(render, of, parts, value);
}

static gboolean
evaluate_if_else(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpValue condition;

    if (!rp_evaluate(render, node->b, &condition))
        return FALSE;
    if (rp_value_is_true(condition))
        return rp_evaluate(render, node->a, value);
    if (node->c != NULL)
        return rp_evaluate(render, node->c, value);
    *value = rp_value_undefined("if without else", 15);
    return TRUE;
}

/* a < b < c: each with the one before, up to the first that does not hold. */
static gboolean
evaluate_compare(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpValue left, right;
    gboolean truth = TRUE;

    if (!rp_evaluate(render, node->a, &left))
        return FALSE;
    for (guint i = 0; truth && i < node->n_items; i++) {
        if (!rp_evaluate(render, node->items[i]->a, &right))
            return FALSE;
        render->at = node->items[i];
        if (!rp_compare(render, node->items[i]->operation, left, right, &truth))
            return FALSE;
        left = right;
    }
    *value = rp_value_bool(truth);
    return TRUE;
}

static gboolean
evaluate_concat(RpRender *render, const RpSyntax *node, RpValue *value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < node->n_items; i++) {
        RpValue item, part;
        if (!rp_evaluate(render, node->items[i], &item))
            return FALSE;
        render->at = node->items[i];
        if (!rp_to_text(render, item, &part) || !rp_append(render, text, part))
            return FALSE;
    }
    return rp_keep_text(render, text, value);
}

/* Whether @node gives a value that Jinja calls safe: the filter, or a sum with it. */
static gboolean
is_safe(const RpSyntax *node)
{
    if (node->type == RP_NODE_FILTER)
        return strcmp(node->text, "safe") == 0;
    return node->type == RP_NODE_BINARY && node->operation == RP_OP_ADD &&
           (is_safe(node->a) || is_safe(node->b));
}

/* A string as HTML: Jinja escapes the one that is added to a safe one. */
static gboolean
escape(RpRender *render, RpValue *value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (value->type != RP_VALUE_STRING)
        return TRUE;
    for (guint i = 0; i < value->length; i++) {
        static const char characters[] = "&<>'\"";
        static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
        const char *at = strchr(characters, value->text[i]);
        if (at != NULL && *at != '\0')
            g_string_append(text, names[at - characters]);
        else
            g_string_append_c(text, value->text[i]);
    }
    return rp_keep_text(render, text, value);
}

static gboolean
evaluate_sum(RpRender *render, const RpSyntax *node, RpValue a, RpValue b, RpValue *value)
{
    const gboolean safe_a = is_safe(node->a), safe_b = is_safe(node->b);

    if (safe_a != safe_b && !escape(render, safe_a ? &b : &a))
        return FALSE;
    return rp_operate(render, RP_OP_ADD, a, b, value);
}

/* The nodes whose parts are @node->a and @node->b, both evaluated first. */
static gboolean
evaluate_parts(RpRender *render, const RpSyntax *node, RpValue *value)
{
    RpValue a = rp_none, b = rp_none;

    if (!rp_evaluate(render, node->a, &a) || (node->b != NULL && !rp_evaluate(render, node->b, &b)))
        return FALSE;
    render->at = node;
    switch (node->type) {
    case RP_NODE_ATTRIBUTE:
        return rp_get_attribute(render, a, node->text, value);
    case RP_NODE_ITEM:
        return rp_get_item(render, a, b, value);
    case RP_NODE_BINARY:
        if (node->operation == RP_OP_ADD)
            return evaluate_sum(render, node, a, b, value);
        return rp_operate(render, node->operation, a, b, value);
    case RP_NODE_NOT:
        *value = rp_value_bool(!rp_value_is_true(a));
        return TRUE;
    case RP_NODE_PLUS:
        return rp_operate(render, RP_OP_ADD, rp_value_int(0), a, value);
    default:
        return a.type == RP_VALUE_FLOAT
                   ? rp_operate(render, RP_OP_MULTIPLY, a, rp_value_float(-1.0), value)
                   : rp_operate(render, RP_OP_SUBTRACT, rp_value_int(0), a, value);
    }
}

static gboolean
evaluate_one(RpRender *render, const RpSyntax *node, RpValue *value)
{
    switch (node->type) {
    case RP_NODE_CONSTANT:
        *value = node->value;
        return TRUE;
    case RP_NODE_CAPTURED:
        *value = *render->capture;
        return TRUE;
    case RP_NODE_NAME:
        return evaluate_name(render, node, value);
    case RP_NODE_LIST:
    case RP_NODE_TUPLE:
        return evaluate_list(render, node, value);
    case RP_NODE_DICT:
        return evaluate_dict(render, node, value);
    case RP_NODE_SLICE:
        return evaluate_slice(render, node, value);
    case RP_NODE_CALL:
    case RP_NODE_FILTER:
    case RP_NODE_TEST:
        return rp_call_node(render, node, value);
    case RP_NODE_IF_ELSE:
        return evaluate_if_else(render, node, value);
    case RP_NODE_AND:
    case RP_NODE_OR:
        if (!rp_evaluate(render, node->a, value))
            return FALSE;
        return rp_value_is_true(*value) == (node->type == RP_NODE_OR) ||
               rp_evaluate(render, node->b, value);
    case RP_NODE_COMPARE:
        return evaluate_compare(render, node, value);
    case RP_NODE_CONCAT:
        return evaluate_concat(render, node, value);
    default:
        return evaluate_parts(render, node, value);
    }
}

gboolean
rp_evaluate(RpRender *render, const RpSyntax *node, RpValue *value)
{
    render->at = node;
    const gboolean done = rp_arena_enter(render->arena) ? evaluate_one(render, node, value)
                                                        : rp_render_fail_bound(render, NULL);
    rp_arena_leave(render->arena);
    return done;
}
