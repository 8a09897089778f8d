#include <string.h>

#include "core/base/quote.h"
#include "text/template/syntax/syntax.h"

static RpSyntax *parse_unary(RpParser *parser, gboolean with_filters);

/* @left OPERATION right, repeated, where rows of @texts say so. */
typedef struct {
    const char *text;
    RpOperation operation;
} Operator;

static RpSyntax *
parse_binary(RpParser *parser, const Operator *operators, guint n, RpSyntax *(*operand)(RpParser *))
{
    RpSyntax *left = operand(parser);

    while (left != NULL) {
        guint i = 0;
        while (i < n && !rp_parser_is_operator(parser, operators[i].text))
            i++;
        if (i == n)
            break;
        RpSyntax *node = rp_parser_node(parser, RP_NODE_BINARY, parser->at++);
        node->operation = operators[i].operation;
        node->a = left;
        node->b = operand(parser);
        left = node->b != NULL ? node : NULL;
    }
    return left;
}

static RpSyntax *
parse_operand(RpParser *parser)
{
    return parse_unary(parser, TRUE);
}

static RpSyntax *
parse_power(RpParser *parser)
{
    static const Operator operators[] = {{"**", RP_OP_POWER}};

    return parse_binary(parser, operators, G_N_ELEMENTS(operators), parse_operand);
}

static RpSyntax *
parse_product(RpParser *parser)
{
    static const Operator operators[] = {{"*", RP_OP_MULTIPLY},
                                         {"/", RP_OP_DIVIDE},
                                         {"//", RP_OP_FLOOR_DIVIDE},
                                         {"%", RP_OP_MODULO}};

    return parse_binary(parser, operators, G_N_ELEMENTS(operators), parse_power);
}

static RpSyntax *
parse_concat(RpParser *parser)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *start = parser->at;

    do {
        RpSyntax *item = parse_product(parser);
        if (item == NULL)
            return NULL;
        g_ptr_array_add(items, item);
    } while (rp_parser_skip_operator(parser, "~"));
    if (items->len == 1)
        return items->pdata[0];
    RpSyntax *node = rp_parser_node(parser, RP_NODE_CONCAT, start);
    rp_parser_set_items(parser, node, items);
    return node;
}

static RpSyntax *
parse_sum(RpParser *parser)
{
    static const Operator operators[] = {{"+", RP_OP_ADD}, {"-", RP_OP_SUBTRACT}};

    return parse_binary(parser, operators, G_N_ELEMENTS(operators), parse_concat);
}

/* Takes a comparing operator. */
static gboolean
take_comparison(RpParser *parser, RpOperation *operation)
{
    static const Operator operators[] = {{"==", RP_OP_EQUAL},  {"!=", RP_OP_UNEQUAL},
                                         {"<", RP_OP_LESS},    {"<=", RP_OP_LESS_EQUAL},
                                         {">", RP_OP_GREATER}, {">=", RP_OP_GREATER_EQUAL}};

    for (guint i = 0; i < G_N_ELEMENTS(operators); i++)
        if (rp_parser_skip_operator(parser, operators[i].text)) {
            *operation = operators[i].operation;
            return TRUE;
        }
    if (rp_parser_skip_name(parser, "in")) {
        *operation = RP_OP_IN;
        return TRUE;
    }
    if (!rp_parser_is_name(parser, "not"))
        return FALSE;
    parser->at++;
    if (rp_parser_skip_name(parser, "in")) {
        *operation = RP_OP_NOT_IN;
        return TRUE;
    }
    parser->at--;
    return FALSE;
}

static RpSyntax *
parse_compare(RpParser *parser)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *start = parser->at;
    RpSyntax *first = parse_sum(parser);
    RpOperation operation;

    if (first == NULL)
        return NULL;
    while (take_comparison(parser, &operation)) {
        RpSyntax *operand = rp_parser_node(parser, RP_NODE_OPERAND, parser->at - 1);
        operand->operation = operation;
        operand->a = parse_sum(parser);
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

    if (!rp_parser_skip_name(parser, "not"))
        return parse_compare(parser);
    RpSyntax *node = rp_parser_node(parser, RP_NODE_NOT, start);
    node->a = rp_parser_enter(parser) ? parse_not(parser) : NULL;
    rp_parser_leave(parser);
    return node->a != NULL ? node : NULL;
}

static RpSyntax *
parse_and_or(RpParser *parser, const char *word, RpNodeType type, RpSyntax *(*operand)(RpParser *))
{
    RpSyntax *left = operand(parser);

    while (left != NULL && rp_parser_is_name(parser, word)) {
        RpSyntax *node = rp_parser_node(parser, type, parser->at++);
        node->a = left;
        node->b = operand(parser);
        left = node->b != NULL ? node : NULL;
    }
    return left;
}

static RpSyntax *
parse_and(RpParser *parser)
{
    return parse_and_or(parser, "and", RP_NODE_AND, parse_not);
}

static RpSyntax *
parse_or(RpParser *parser)
{
    return parse_and_or(parser, "or", RP_NODE_OR, parse_and);
}

RpSyntax *
rp_parse_expression(RpParser *parser, gboolean with_if)
{
    const RpToken *unknown = parser->unknown;
    RpSyntax *value = rp_parser_enter(parser) ? parse_or(parser) : NULL;

    while (with_if && value != NULL && rp_parser_is_name(parser, "if")) {
        RpSyntax *node = rp_parser_node(parser, RP_NODE_IF_ELSE, parser->at++);
        node->a = value;
        node->b = parse_or(parser);
        value = node->b != NULL ? node : NULL;
        if (value != NULL && rp_parser_skip_name(parser, "else")) {
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
        if (items->len > 0 && !rp_parser_expect_operator(parser, ","))
            return NULL;
        if (parser->at->type == RP_TOKEN_VARIABLE_END || parser->at->type == RP_TOKEN_BLOCK_END ||
            rp_parser_is_operator(parser, ")") ||
            (until != NULL && rp_parser_is_name(parser, until)))
            break;
        RpSyntax *item = simple ? rp_parse_primary(parser, with_namespace)
                                : rp_parse_expression(parser, with_if);
        if (item == NULL)
            return NULL;
        g_ptr_array_add(items, item);
        if (!rp_parser_is_operator(parser, ","))
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
    const gboolean minus = rp_parser_skip_operator(parser, "-");
    RpSyntax *node = NULL;

    if (minus || rp_parser_skip_operator(parser, "+")) {
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
        if (rp_parser_is_operator(parser, "|"))
            node = rp_parse_filters(parser, node, FALSE);
        else if (rp_parser_skip_name(parser, "is"))
            node = rp_parse_test(parser, node);
        else if (rp_parser_is_operator(parser, "("))
            node = rp_parse_postfix(parser, node);
        else
            break;
    return node;
}
