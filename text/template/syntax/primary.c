#include "text/template/syntax/syntax.h"

#include <string.h>

static RpSyntax *
parse_name(RpParser *parser, gboolean with_namespace)
{
    static const struct {
        const char *word;
        const RpValue *value;
    } constants[] = {{"true", &rp_true},   {"True", &rp_true}, {"false", &rp_false},
                     {"False", &rp_false}, {"none", &rp_none}, {"None", &rp_none}};
    RpSyntax *node = rp_parser_node(parser, RP_NODE_NAME, parser->at);

    for (guint i = 0; i < G_N_ELEMENTS(constants); i++)
        if (rp_parser_skip(parser, constants[i].word)) {
            node->type = RP_NODE_CONSTANT;
            node->value = *constants[i].value;
            return node;
        }
    node->text = rp_parser_text(parser, parser->at++);
    node->symbol = rp_parser_symbol(parser, node->text);
    if (!with_namespace || !rp_parser_skip(parser, "."))
        return node;
    node->type = RP_NODE_NAMESPACE;
    if (!rp_parser_expect(parser, RP_TOKEN_NAME, "an attribute's name"))
        return NULL;
    node->value = rp_value_text(parser->at[-1].text, parser->at[-1].length);
    return node;
}

/* Strings beside each other are one. */
static RpSyntax *
parse_string(RpParser *parser)
{
    RpSyntax *node = rp_parser_node(parser, RP_NODE_CONSTANT, parser->at);
    g_autoptr(GString) text = g_string_new(NULL);

    for (; parser->at->type == RP_TOKEN_STRING; parser->at++)
        g_string_append_len(text, parser->at->value.text, parser->at->value.length);
    node->value = rp_value_copy(parser->arena, text->str, text->len);
    return node;
}

/* Behind `[` or `{`. */
static RpSyntax *
parse_bracketed(RpParser *parser, RpNodeType type, const char *close)
{
    RpSyntax *node = rp_parser_node(parser, type, parser->at - 1);
    g_autoptr(GPtrArray) items = g_ptr_array_new();

    while (!rp_parser_is(parser, close)) {
        if (items->len > 0 && !rp_parser_expect_word(parser, ","))
            return NULL;
        if (rp_parser_is(parser, close))
            break;
        for (guint part = 0; part < (type == RP_NODE_DICT ? 2 : 1); part++) {
            if (part == 1 && !rp_parser_expect_word(parser, ":"))
                return NULL;
            RpSyntax *item = rp_parse_expression(parser, TRUE);
            if (item == NULL)
                return NULL;
            g_ptr_array_add(items, item);
        }
    }
    parser->at++;
    rp_parser_set_items(parser, node, items);
    return node;
}

RpSyntax *
rp_parse_primary(RpParser *parser, gboolean with_namespace)
{
    RpSyntax *node = NULL;

    switch (parser->at->type) {
    case RP_TOKEN_NAME:
        return parse_name(parser, with_namespace);
    case RP_TOKEN_STRING:
        return parse_string(parser);
    case RP_TOKEN_INTEGER:
    case RP_TOKEN_FLOAT:
        node = rp_parser_node(parser, RP_NODE_CONSTANT, parser->at);
        node->value = parser->at++->value;
        return node;
    default:
        break;
    }
    if (rp_parser_skip(parser, "(")) {
        if (rp_parser_enter(parser))
            node = rp_parse_values(parser, FALSE, TRUE, FALSE, NULL, TRUE);
        rp_parser_leave(parser);
        return node != NULL && rp_parser_expect_word(parser, ")") ? node : NULL;
    }
    if (rp_parser_skip(parser, "["))
        return parse_bracketed(parser, RP_NODE_LIST, "]");
    if (rp_parser_skip(parser, "{"))
        return parse_bracketed(parser, RP_NODE_DICT, "}");
    return rp_parser_fail(parser, "an expression");
}

/* `(...)`: arguments of @node, the named ones last. */
static RpSyntax *
parse_arguments(RpParser *parser, RpSyntax *node)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    g_autoptr(GArray) names = g_array_new(FALSE, FALSE, sizeof(RpValue));

    if (!rp_parser_expect_word(parser, "("))
        return NULL;
    while (!rp_parser_is(parser, ")")) {
        if (items->len > 0 && !rp_parser_expect_word(parser, ","))
            return NULL;
        if (rp_parser_is(parser, ")"))
            break;
        if (rp_parser_is(parser, "*") || rp_parser_is(parser, "**"))
            return rp_parser_fail(parser, "an argument (`*` and `**` are not supported)");
        const gboolean named = parser->at->type == RP_TOKEN_NAME &&
                               parser->at[1].type == RP_TOKEN_OPERATOR &&
                               parser->at[1].length == 1 && parser->at[1].text[0] == '=';
        if (named) {
            RpValue name = rp_value_text(parser->at->text, parser->at->length);
            g_array_append_val(names, name);
            parser->at += 2;
        } else if (names->len > 0) {
            return rp_parser_fail(parser, "a named argument, for the one before is one");
        }
        RpSyntax *item = rp_parse_expression(parser, TRUE);
        if (item == NULL)
            return NULL;
        g_ptr_array_add(items, item);
    }
    parser->at++;
    rp_parser_set_items(parser, node, items);
    node->n_named = names->len;
    node->names = rp_arena_alloc(parser->arena, names->len * sizeof(RpValue));
    if (names->len > 0)
        memcpy(node->names, names->data, names->len * sizeof(RpValue));
    return node;
}

/* Behind `[` of @value: an index, or a slice. */
static RpSyntax *
parse_subscript(RpParser *parser, RpSyntax *value)
{
    RpSyntax *node = rp_parser_node(parser, RP_NODE_ITEM, parser->at - 1);
    RpSyntax *parts[3] = {NULL, NULL, NULL};
    guint n = 0;

    node->a = value;
    while (n < 3 && !rp_parser_is(parser, "]")) {
        if (!rp_parser_is(parser, ":")) {
            parts[n] = rp_parse_expression(parser, TRUE);
            if (parts[n] == NULL)
                return NULL;
        }
        if (n == 2 || !rp_parser_skip(parser, ":"))
            break;
        node->type = RP_NODE_SLICE;
        n++;
    }
    if (!rp_parser_expect_word(parser, "]"))
        return NULL;
    if (node->type == RP_NODE_ITEM) {
        node->b = parts[0];
        return node->b != NULL ? node : rp_parser_fail_at(parser, parser->at - 1, "an index");
    }
    node->n_items = 3;
    node->items = rp_arena_alloc(parser->arena, sizeof parts);
    memcpy(node->items, parts, sizeof parts);
    return node;
}

RpSyntax *
rp_parse_postfix(RpParser *parser, RpSyntax *node)
{
    while (node != NULL) {
        const RpToken *start = parser->at;
        if (rp_parser_skip(parser, ".")) {
            RpSyntax *of = node;
            const RpToken *name = parser->at;
            node = rp_parser_node(parser, RP_NODE_ATTRIBUTE, start);
            node->a = of;
            if (name->type == RP_TOKEN_INTEGER) {
                node->type = RP_NODE_ITEM;
                node->b = rp_parser_node(parser, RP_NODE_CONSTANT, name);
                node->b->value = name->value;
            } else if (name->type == RP_TOKEN_NAME) {
                node->text = rp_parser_text(parser, name);
                node->value = rp_value_static(node->text);
            } else {
                return rp_parser_fail(parser, "an attribute's name");
            }
            parser->at++;
        } else if (rp_parser_skip(parser, "[")) {
            node = parse_subscript(parser, node);
        } else if (rp_parser_is(parser, "(")) {
            RpSyntax *call = rp_parser_node(parser, RP_NODE_CALL, start);
            call->a = node;
            node = parse_arguments(parser, call);
        } else {
            break;
        }
    }
    return node;
}

/* A filter's or a test's name, with dots. */
static RpSyntax *
parse_binding(RpParser *parser, RpNodeType type, const char *expected)
{
    RpSyntax *node = rp_parser_node(parser, type, parser->at);

    if (!rp_parser_expect(parser, RP_TOKEN_NAME, expected))
        return NULL;
    node->text = rp_parser_text(parser, parser->at - 1);
    node->binding = type == RP_NODE_FILTER ? parser->names->filter(node->text)
                                           : parser->names->test(node->text);
    if (node->binding == NULL && parser->unknown == NULL) {
        parser->unknown = parser->at - 1;
        parser->unknown_filter = type == RP_NODE_FILTER;
    }
    return node;
}

RpSyntax *
rp_parse_filters(RpParser *parser, RpSyntax *node, gboolean first)
{
    while (node != NULL && (first || rp_parser_skip(parser, "|"))) {
        RpSyntax *filter = parse_binding(parser, RP_NODE_FILTER, "a filter's name");
        if (filter == NULL)
            return NULL;
        filter->a = node;
        node = rp_parser_is(parser, "(") ? parse_arguments(parser, filter) : filter;
        first = FALSE;
    }
    return node;
}

/* Behind `is`. */
RpSyntax *
rp_parse_test(RpParser *parser, RpSyntax *value)
{
    const RpToken *start = parser->at - 1;
    const gboolean negated = rp_parser_skip(parser, "not");
    RpSyntax *node = parse_binding(parser, RP_NODE_TEST, "a test's name");

    if (node == NULL)
        return NULL;
    node->a = value;
    const RpTokenType next = parser->at->type;
    if (rp_parser_is(parser, "(")) {
        node = parse_arguments(parser, node);
    } else if (rp_parser_is(parser, "is")) {
        return rp_parser_fail(parser, "one test (tests do not follow each other)");
    } else if ((next == RP_TOKEN_NAME && !rp_parser_is(parser, "else") &&
                !rp_parser_is(parser, "or") && !rp_parser_is(parser, "and")) ||
               next == RP_TOKEN_STRING || next == RP_TOKEN_INTEGER || next == RP_TOKEN_FLOAT ||
               rp_parser_is(parser, "[") || rp_parser_is(parser, "{")) {
        RpSyntax *argument = rp_parse_postfix(parser, rp_parse_primary(parser, FALSE));
        if (argument == NULL)
            return NULL;
        node->n_items = 1;
        node->items = rp_arena_alloc(parser->arena, sizeof *node->items);
        node->items[0] = argument;
    }
    if (node == NULL || !negated)
        return node;
    RpSyntax *not = rp_parser_node(parser, RP_NODE_NOT, start);
    not ->a = node;
    return not ;
}
