#include <string.h>

#include "text/template/syntax/syntax.h"

static RpSyntax *parse_unary(RpParser *parser, gboolean with_filters);

/* Levels of operators between two operands, from the loosest. */
typedef enum { LEVEL_OR, LEVEL_AND, LEVEL_SUM, LEVEL_PRODUCT, LEVEL_POWER } Level;

static RpSyntax *parse_level(RpParser *parser, Level level);

static const struct {
    const char *text;
    Level level;
    RpNodeType type;
    RpOperation operation;
} operators[] = {
    {"or", LEVEL_OR, RP_NODE_OR, 0},
    {"and", LEVEL_AND, RP_NODE_AND, 0},
    {"+", LEVEL_SUM, RP_NODE_BINARY, RP_OP_ADD},
    {"-", LEVEL_SUM, RP_NODE_BINARY, RP_OP_SUBTRACT},
    {"*", LEVEL_PRODUCT, RP_NODE_BINARY, RP_OP_MULTIPLY},
    {"/", LEVEL_PRODUCT, RP_NODE_BINARY, RP_OP_DIVIDE},
    {"//", LEVEL_PRODUCT, RP_NODE_BINARY, RP_OP_FLOOR_DIVIDE},
    {"%", LEVEL_PRODUCT, RP_NODE_BINARY, RP_OP_MODULO},
    {"**", LEVEL_POWER, RP_NODE_BINARY, RP_OP_POWER},
};

static RpSyntax *
parse_concat(RpParser *parser)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *start = parser->at;

    do {
        RpSyntax *item = parse_level(parser, LEVEL_PRODUCT);
        if (item == NULL)
            return NULL;
        g_ptr_array_add(items, item);
    } while (rp_parser_skip(parser, "~"));
    if (items->len == 1)
        return items->pdata[0];
    RpSyntax *node = rp_parser_node(parser, RP_NODE_CONCAT, start);
    rp_parser_set_items(parser, node, items);
    return node;
}

/* Takes a comparing operator. */
static gboolean
take_comparison(RpParser *parser, RpOperation *operation)
{
    static const char *const words[] = {
        [RP_OP_EQUAL] = "==",      [RP_OP_UNEQUAL] = "!=", [RP_OP_LESS] = "<",
        [RP_OP_LESS_EQUAL] = "<=", [RP_OP_GREATER] = ">",  [RP_OP_GREATER_EQUAL] = ">=",
        [RP_OP_IN] = "in"};

    for (*operation = RP_OP_EQUAL; *operation <= RP_OP_IN; ++*operation)
        if (rp_parser_skip(parser, words[*operation]))
            return TRUE;
    if (!rp_parser_skip(parser, "not"))
        return FALSE;
    if (rp_parser_skip(parser, "in")) /* @operation is behind RP_OP_IN */
        return TRUE;
    parser->at--;
    return FALSE;
}

static RpSyntax *
parse_compare(RpParser *parser)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *start = parser->at;
    RpSyntax *first = parse_level(parser, LEVEL_SUM);
    RpOperation operation;

    if (first == NULL)
        return NULL;
    while (take_comparison(parser, &operation)) {
        RpSyntax *operand = rp_parser_node(parser, RP_NODE_OPERAND, parser->at - 1);
        operand->operation = operation;
        operand->a = parse_level(parser, LEVEL_SUM);
        if (operand->a == NULL)
            return NULL;
        g_ptr_array_add(items, operand);
    }
    if (items->len == 0)
        return first;
    RpSyntax *node = rp_parser_node(parser, RP_NODE_COMPARE, start);
    node->a = first;
    rp_parser_set_items(parser, node, items);
    return node;
}

static RpSyntax *
parse_not(RpParser *parser)
{
    const RpToken *start = parser->at;

    if (!rp_parser_skip(parser, "not"))
        return parse_compare(parser);
    RpSyntax *node = rp_parser_node(parser, RP_NODE_NOT, start);
    node->a = rp_parser_enter(parser) ? parse_not(parser) : NULL;
    rp_parser_leave(parser);
    return node->a != NULL ? node : NULL;
}

static RpSyntax *
parse_operand(RpParser *parser, Level level)
{
    switch (level) {
    case LEVEL_OR:
        return parse_level(parser, LEVEL_AND);
    case LEVEL_AND:
        return parse_not(parser);
    case LEVEL_SUM:
        return parse_concat(parser);
    case LEVEL_PRODUCT:
        return parse_level(parser, LEVEL_POWER);
    default:
        return parse_unary(parser, TRUE);
    }
}

static RpSyntax *
parse_level(RpParser *parser, Level level)
{
    RpSyntax *left = parse_operand(parser, level);
    guint i = 0;

    while (left != NULL && i < G_N_ELEMENTS(operators)) {
        if (operators[i].level != level || !rp_parser_is(parser, operators[i].text)) {
            i++;
            continue;
        }
        RpSyntax *node = rp_parser_node(parser, operators[i].type, parser->at++);
        node->operation = operators[i].operation;
        node->a = left;
        node->b = parse_operand(parser, level);
        left = node->b != NULL ? node : NULL;
        i = 0;
    }
    return left;
}

RpSyntax *
rp_parse_expression(RpParser *parser, gboolean with_if)
{
    const RpToken *unknown = parser->unknown;
    RpSyntax *value = rp_parser_enter(parser) ? parse_level(parser, LEVEL_OR) : NULL;

    while (with_if && value != NULL && rp_parser_is(parser, "if")) {
        RpSyntax *node = rp_parser_node(parser, RP_NODE_IF_ELSE, parser->at++);
        node->a = value;
        node->b = parse_level(parser, LEVEL_OR);
        value = node->b != NULL ? node : NULL;
        if (value != NULL && rp_parser_skip(parser, "else")) {
            node->c = rp_parse_expression(parser, TRUE);
            value = node->c != NULL ? node : NULL;
        }
        parser->unknown = unknown;
    }
    rp_parser_leave(parser);
    return value;
}

RpSyntax *
rp_parse_values(RpParser *parser, gboolean simple, gboolean with_if, gboolean with_namespace,
                const char *until, gboolean bracketed)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *start = parser->at;
    gboolean is_tuple = FALSE;

    for (;;) {
        if (items->len > 0 && !rp_parser_expect_word(parser, ","))
            return NULL;
        if (parser->at->type == RP_TOKEN_VARIABLE_END || parser->at->type == RP_TOKEN_BLOCK_END ||
            rp_parser_is(parser, ")") || (until != NULL && rp_parser_is(parser, until)))
            break;
        RpSyntax *item = simple ? rp_parse_primary(parser, with_namespace)
                                : rp_parse_expression(parser, with_if);
        if (item == NULL)
            return NULL;
        g_ptr_array_add(items, item);
        if (!rp_parser_is(parser, ","))
            break;
        is_tuple = TRUE;
    }
    if (!is_tuple && items->len > 0)
        return items->pdata[0];
    if (!is_tuple && !bracketed)
        return rp_parser_fail(parser, "an expression");
    RpSyntax *node = rp_parser_node(parser, RP_NODE_TUPLE, start);
    rp_parser_set_items(parser, node, items);
    return node;
}

RpSyntax *
rp_parse_tuple(RpParser *parser, gboolean with_if, const char *until)
{
    return rp_parse_values(parser, FALSE, with_if, FALSE, until, FALSE);
}

static gboolean
is_target(const RpSyntax *node)
{
    if (node->type == RP_NODE_TUPLE || node->type == RP_NODE_LIST) {
        for (guint i = 0; i < node->n_items; i++)
            if (!is_target(node->items[i]))
                return FALSE;
        return TRUE;
    }
    return node->type == RP_NODE_NAME || node->type == RP_NODE_NAMESPACE;
}

RpSyntax *
rp_parse_target(RpParser *parser, gboolean with_namespace, const char *until)
{
    const RpToken *start = parser->at;
    RpSyntax *target = rp_parse_values(parser, TRUE, FALSE, with_namespace, until, FALSE);

    if (target == NULL || is_target(target))
        return target;
    return rp_parser_fail_at(parser, start, "a name to assign to");
}

static RpSyntax *
parse_unary(RpParser *parser, gboolean with_filters)
{
    const RpToken *start = parser->at;
    const gboolean minus = rp_parser_skip(parser, "-");
    RpSyntax *node = NULL;

    if (minus || rp_parser_skip(parser, "+")) {
        node = rp_parser_node(parser, minus ? RP_NODE_NEGATE : RP_NODE_PLUS, start);
        node->a = rp_parser_enter(parser) ? parse_unary(parser, FALSE) : NULL;
        rp_parser_leave(parser);
        if (node->a == NULL)
            return NULL;
    } else {
        node = rp_parse_primary(parser, FALSE);
    }
    node = rp_parse_postfix(parser, node);
    while (with_filters && node != NULL)
        if (rp_parser_is(parser, "|"))
            node = rp_parse_filters(parser, node, FALSE);
        else if (rp_parser_skip(parser, "is"))
            node = rp_parse_test(parser, node);
        else if (rp_parser_is(parser, "("))
            node = rp_parse_postfix(parser, node);
        else
            break;
    return node;
}
