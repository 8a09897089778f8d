#include <string.h>

#include "text/template/syntax/syntax.h"

static RpSyntax *parse_body(RpParser *parser, const char *const *until);

RpSyntax *
rp_parser_node(RpParser *parser, RpNodeType type, const RpToken *at)
{
    RpSyntax *node = rp_arena_alloc(parser->arena, sizeof *node);

    node->type = type;
    node->line = at->line;
    node->column = at->column;
    return node;
}

void
rp_parser_set_items(RpParser *parser, RpSyntax *node, GPtrArray *items)
{
    node->n_items = items->len;
    if (items->len == 0)
        return;
    node->items = rp_arena_alloc(parser->arena, items->len * sizeof *node->items);
    memcpy(node->items, items->pdata, items->len * sizeof *node->items);
}

const char *
rp_parser_text(RpParser *parser, const RpToken *token)
{
    char *text = rp_arena_alloc(parser->arena, token->length + 1);

    memcpy(text, token->text, token->length);
    return text;
}

guint
rp_parser_symbol(RpParser *parser, const char *name)
{
    gpointer number = g_hash_table_lookup(parser->symbols, name);

    if (number == NULL) {
        char *copy = g_strdup(name);
        g_ptr_array_add(parser->parsed->symbols, copy);
        number = GUINT_TO_POINTER(parser->parsed->symbols->len);
        g_hash_table_insert(parser->symbols, copy, number);
    }
    return GPOINTER_TO_UINT(number) - 1;
}

gboolean
rp_parser_is(const RpParser *parser, const char *text)
{
    const RpToken *token = parser->at;

    return token->type == (g_ascii_isalpha(text[0]) ? RP_TOKEN_NAME : RP_TOKEN_OPERATOR) &&
           token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

gboolean
rp_parser_skip(RpParser *parser, const char *text)
{
    const gboolean is = rp_parser_is(parser, text);

    parser->at += is;
    return is;
}

gpointer
rp_parser_fail_at(RpParser *parser, const RpToken *at, const char *expected)
{
    g_autofree char *found = rp_token_describe(at);

    if (*parser->error == NULL)
        rp_template_refuse(parser->error, parser->name, at, expected, found);
    return NULL;
}

gpointer
rp_parser_fail(RpParser *parser, const char *expected)
{
    return rp_parser_fail_at(parser, parser->at, expected);
}

gboolean
rp_parser_expect(RpParser *parser, RpTokenType type, const char *expected)
{
    if (parser->at->type != type)
        return rp_parser_fail(parser, expected) != NULL;
    parser->at++;
    return TRUE;
}

gboolean
rp_parser_expect_word(RpParser *parser, const char *text)
{
    g_autofree char *expected = g_strdup_printf("`%s`", text);

    return rp_parser_skip(parser, text) || rp_parser_fail(parser, expected) != NULL;
}

gboolean
rp_parser_enter(RpParser *parser)
{
    if (++parser->nested <= RP_MAX_NESTED)
        return TRUE;
    return rp_parser_fail(parser, "at most " G_STRINGIFY(RP_MAX_NESTED) " levels") != NULL;
}

void
rp_parser_leave(RpParser *parser)
{
    parser->nested--;
}

/* `%}`, then the statements of a block up to one of the tags @until, which is not taken. */
static RpSyntax *
parse_block(RpParser *parser, const char *block, const char *const *until)
{
    const char *outer = parser->unclosed;
    RpSyntax *body = NULL;

    parser->unclosed = block;
    rp_parser_skip(parser, ":");
    if (rp_parser_expect(parser, RP_TOKEN_BLOCK_END, "`%}`") && rp_parser_enter(parser))
        body = parse_body(parser, until);
    rp_parser_leave(parser);
    parser->unclosed = outer;
    return body;
}

/* The same up to the one tag @end, which is taken. */
static RpSyntax *
parse_whole_block(RpParser *parser, const char *block, const char *end)
{
    const char *const until[] = {end, NULL};
    RpSyntax *body = parse_block(parser, block, until);

    return body != NULL && rp_parser_expect_word(parser, end) ? body : NULL;
}

static RpSyntax *
parse_for(RpParser *parser, RpSyntax *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};

    node->a = rp_parse_target(parser, FALSE, "in");
    if (node->a == NULL || !rp_parser_expect_word(parser, "in"))
        return NULL;
    node->b = rp_parse_tuple(parser, FALSE, "recursive");
    if (node->b == NULL)
        return NULL;
    if (rp_parser_skip(parser, "if")) {
        node->c = rp_parse_expression(parser, TRUE);
        if (node->c == NULL)
            return NULL;
    }
    if (rp_parser_is(parser, "recursive"))
        return rp_parser_fail(parser, "a loop that is not recursive (not supported)");
    node->items = rp_arena_alloc(parser->arena, 2 * sizeof *node->items);
    parser->loops++;
    node->items[0] = parse_block(parser, "for", ends);
    parser->loops--;
    node->n_items = 1;
    if (node->items[0] == NULL)
        return NULL;
    if (!rp_parser_skip(parser, "else"))
        return rp_parser_expect_word(parser, "endfor") ? node : NULL;
    node->items[1] = parse_whole_block(parser, "for", "endfor");
    node->n_items = 2;
    return node->items[1] != NULL ? node : NULL;
}

static RpSyntax *
parse_if(RpParser *parser, RpSyntax *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    const RpToken *unknown = parser->unknown;

    do {
        RpSyntax *condition = rp_parse_tuple(parser, FALSE, NULL);
        RpSyntax *body = condition != NULL ? parse_block(parser, "if", ends) : NULL;
        if (body == NULL)
            return NULL;
        g_ptr_array_add(items, condition);
        g_ptr_array_add(items, body);
    } while (rp_parser_skip(parser, "elif"));
    rp_parser_set_items(parser, node, items);
    gboolean ended = FALSE;
    if (rp_parser_skip(parser, "else")) {
        node->c = parse_whole_block(parser, "if", "endif");
        ended = node->c != NULL;
    } else {
        ended = rp_parser_expect_word(parser, "endif");
    }
    parser->unknown = unknown;
    return ended ? node : NULL;
}

static RpSyntax *
parse_set(RpParser *parser, RpSyntax *node)
{
    node->a = rp_parse_target(parser, TRUE, NULL);
    if (node->a == NULL)
        return NULL;
    if (rp_parser_skip(parser, "=")) {
        node->b = rp_parse_tuple(parser, TRUE, NULL);
        return node->b != NULL ? node : NULL;
    }
    node->type = RP_NODE_SET_BLOCK;
    if (rp_parser_is(parser, "|")) {
        node->b =
            rp_parse_filters(parser, rp_parser_node(parser, RP_NODE_CAPTURED, parser->at), FALSE);
        if (node->b == NULL)
            return NULL;
    }
    node->c = parse_whole_block(parser, "set", "endset");
    return node->c != NULL ? node : NULL;
}

static RpSyntax *
parse_macro(RpParser *parser, RpSyntax *node)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    g_autoptr(GPtrArray) defaults = g_ptr_array_new();
    const guint loops = parser->loops;

    if (!rp_parser_expect(parser, RP_TOKEN_NAME, "the macro's name"))
        return NULL;
    node->text = rp_parser_text(parser, parser->at - 1);
    node->symbol = rp_parser_symbol(parser, node->text);
    if (!rp_parser_expect_word(parser, "("))
        return NULL;
    while (!rp_parser_is(parser, ")")) {
        if (items->len > 0 && !rp_parser_expect_word(parser, ","))
            return NULL;
        if (!rp_parser_expect(parser, RP_TOKEN_NAME, "a parameter's name"))
            return NULL;
        RpSyntax *parameter = rp_parser_node(parser, RP_NODE_NAME, parser->at - 1);
        parameter->text = rp_parser_text(parser, parser->at - 1);
        parameter->symbol = rp_parser_symbol(parser, parameter->text);
        g_ptr_array_add(items, parameter);
        if (rp_parser_skip(parser, "=")) {
            RpSyntax *value = rp_parse_expression(parser, TRUE);
            if (value == NULL)
                return NULL;
            g_ptr_array_add(defaults, value);
        } else if (defaults->len > 0) {
            return rp_parser_fail(parser, "a default, for the one before has one");
        }
    }
    parser->at++;
    node->n_named = defaults->len;
    g_ptr_array_extend(items, defaults, NULL, NULL);
    rp_parser_set_items(parser, node, items);
    parser->loops = 0;
    node->c = parse_whole_block(parser, "macro", "endmacro");
    parser->loops = loops;
    return node->c != NULL ? node : NULL;
}

static RpSyntax *
parse_with(RpParser *parser, RpSyntax *node)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();

    while (parser->at->type != RP_TOKEN_BLOCK_END) {
        if (items->len > 0 && !rp_parser_expect_word(parser, ","))
            return NULL;
        RpSyntax *target = rp_parse_target(parser, FALSE, NULL);
        if (target == NULL || !rp_parser_expect_word(parser, "="))
            return NULL;
        RpSyntax *value = rp_parse_expression(parser, TRUE);
        if (value == NULL)
            return NULL;
        g_ptr_array_add(items, target);
        g_ptr_array_add(items, value);
    }
    rp_parser_set_items(parser, node, items);
    node->c = parse_whole_block(parser, "with", "endwith");
    return node->c != NULL ? node : NULL;
}

static RpSyntax *
parse_filter_block(RpParser *parser, RpSyntax *node)
{
    node->b = rp_parse_filters(parser, rp_parser_node(parser, RP_NODE_CAPTURED, parser->at), TRUE);
    node->c = node->b != NULL ? parse_whole_block(parser, "filter", "endfilter") : NULL;
    return node->c != NULL ? node : NULL;
}

static RpSyntax *
parse_generation(RpParser *parser, RpSyntax *node)
{
    const guint loops = parser->loops;

    parser->parsed->marks_generation = TRUE;
    parser->loops = 0;
    node->c = parse_whole_block(parser, "generation", "endgeneration");
    parser->loops = loops;
    return node->c != NULL ? node : NULL;
}

static RpSyntax *
parse_jump(RpParser *parser, RpSyntax *node)
{
    return parser->loops > 0 ? node : rp_parser_fail_at(parser, parser->at - 1, "a loop around it");
}

static RpSyntax *
parse_statement(RpParser *parser)
{
    static const struct {
        const char *tag;
        RpNodeType type;
        RpSyntax *(*parse)(RpParser *, RpSyntax *);
    } statements[] = {
        {"for", RP_NODE_FOR, parse_for},
        {"if", RP_NODE_IF, parse_if},
        {"set", RP_NODE_SET, parse_set},
        {"macro", RP_NODE_MACRO, parse_macro},
        {"generation", RP_NODE_GENERATION, parse_generation},
        {"break", RP_NODE_BREAK, parse_jump},
        {"continue", RP_NODE_CONTINUE, parse_jump},
        {"with", RP_NODE_WITH, parse_with},
        {"filter", RP_NODE_FILTER_BLOCK, parse_filter_block},
    };

    for (guint i = 0; i < G_N_ELEMENTS(statements); i++)
        if (rp_parser_skip(parser, statements[i].tag)) {
            RpSyntax *node = rp_parser_node(parser, statements[i].type, parser->at - 1);
            return statements[i].parse(parser, node);
        }
    if (parser->unclosed != NULL) {
        g_autofree char *expected =
            g_strdup_printf("a tag that is known, or the end of `%s`", parser->unclosed);
        return rp_parser_fail(parser, expected);
    }
    return rp_parser_fail(parser, "one of the tags for, if, set, macro, generation, break, "
                                  "continue, with, filter, raw");
}

static gboolean
ends_here(const RpParser *parser, const char *const *until)
{
    for (guint i = 0; until != NULL && until[i] != NULL; i++)
        if (rp_parser_is(parser, until[i]))
            return TRUE;
    return FALSE;
}

/* Up to the name of a tag of @until, or the end of the template without. */
static RpSyntax *
parse_body(RpParser *parser, const char *const *until)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    RpSyntax *body = rp_parser_node(parser, RP_NODE_BODY, parser->at);
    RpSyntax *node = NULL;

    for (;;) {
        const RpToken *token = parser->at;
        if (token->type == RP_TOKEN_END && until == NULL)
            break;
        if (token->type == RP_TOKEN_DATA) {
            node = rp_parser_node(parser, RP_NODE_DATA, token);
            node->value = rp_value_text(token->text, token->length);
            parser->at++;
        } else if (token->type == RP_TOKEN_VARIABLE_BEGIN) {
            node = rp_parser_node(parser, RP_NODE_OUTPUT, token);
            parser->at++;
            node->a = rp_parse_tuple(parser, TRUE, NULL);
            if (node->a == NULL || !rp_parser_expect(parser, RP_TOKEN_VARIABLE_END, "`}}`"))
                return NULL;
        } else if (token->type == RP_TOKEN_BLOCK_BEGIN) {
            parser->at++;
            if (ends_here(parser, until))
                break;
            node = parse_statement(parser);
            if (node == NULL || !rp_parser_expect(parser, RP_TOKEN_BLOCK_END, "`%}`"))
                return NULL;
        } else {
            g_autofree char *expected = g_strdup_printf("the end of `%s`", parser->unclosed);
            return rp_parser_fail(parser, expected);
        }
        g_ptr_array_add(items, node);
    }
    rp_parser_set_items(parser, body, items);
    return body;
}

gboolean
rp_template_parse(RpArena *arena, const char *name, const char *source, gsize length,
                  const RpNames *names, RpParsed *parsed, GError **error)
{
    g_autoptr(GError) failed = NULL;
    g_autoptr(GArray) tokens = rp_template_tokens(arena, name, source, length, error);
    g_autoptr(GHashTable) symbols = g_hash_table_new(g_str_hash, g_str_equal);
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);

    if (tokens == NULL)
        return FALSE;
    *parsed = (RpParsed){.symbols = texts};
    RpParser parser = {.arena = arena,
                       .name = name,
                       .at = (const RpToken *)tokens->data,
                       .names = names,
                       .parsed = parsed,
                       .symbols = symbols,
                       .error = &failed};
    parsed->body = parse_body(&parser, NULL);
    if (parsed->body != NULL && parser.unknown != NULL)
        parsed->body = rp_parser_fail_at(&parser, parser.unknown,
                                         parser.unknown_filter ? "a filter that is known"
                                                               : "a test that is known");
    if (parsed->body == NULL) {
        parsed->symbols = NULL;
        g_propagate_error(error, g_steal_pointer(&failed));
        return FALSE;
    }
    g_steal_pointer(&texts);
    return TRUE;
}
