/**
 * Shared by statements and expressions: the tokens, and making nodes. Within this folder.
 */
#pragma once

#include "text/template/syntax/node.h"

#define RP_MAX_NESTED 100 /* brackets and blocks within each other */

typedef struct {
    RpArena *arena;
    const char *name;
    const RpToken *at;
    const RpNames *names;
    RpParsed *parsed;
    GHashTable *symbols;
    guint nested;
    guint loops; /* that are open, for break and continue */
    /* The first unknown filter or test outside of conditions: unknown ones within are refused when
     * they are reached, as in Jinja. */
    const RpToken *unknown;
    gboolean unknown_filter;
    const char *unclosed; /* the block that is open */
    GError **error;
} RpParser;

RpSyntax *rp_parser_node(RpParser *parser, RpNodeType type, const RpToken *at);
void rp_parser_set_items(RpParser *parser, RpSyntax *node, GPtrArray *items);
guint rp_parser_symbol(RpParser *parser, const char *name);
/* (transfer none): with a NUL */
const char *rp_parser_text(RpParser *parser, const RpToken *token);

gboolean rp_parser_is_operator(const RpParser *parser, const char *text);
gboolean rp_parser_is_name(const RpParser *parser, const char *text);
/* Takes it if it is there. */
gboolean rp_parser_skip_operator(RpParser *parser, const char *text);
gboolean rp_parser_skip_name(RpParser *parser, const char *text);
/* Returns: FALSE, with the error set, if it is not there */
gboolean rp_parser_expect_operator(RpParser *parser, const char *text);
gboolean rp_parser_expect_name(RpParser *parser, const char *text);
gboolean rp_parser_expect(RpParser *parser, RpTokenType type, const char *expected);
/* Refuses the token that stands next. Returns: NULL */
gpointer rp_parser_fail(RpParser *parser, const char *expected);
gpointer rp_parser_fail_at(RpParser *parser, const RpToken *at, const char *expected);
/* One level deeper; FALSE with the error set if that is too deep. */
gboolean rp_parser_enter(RpParser *parser);
void rp_parser_leave(RpParser *parser);

/* All return NULL with the error set. */
RpSyntax *rp_parse_expression(RpParser *parser, gboolean with_if);
/* Perhaps several, with commas. @until: (nullable): the name behind them */
RpSyntax *rp_parse_tuple(RpParser *parser, gboolean with_if, const char *until);
/* The target of an assignment. @until: (nullable): the name behind it */
RpSyntax *rp_parse_target(RpParser *parser, gboolean with_namespace, const char *until);
/* @first: TRUE: no `|` stands before the first */
RpSyntax *rp_parse_filters(RpParser *parser, RpSyntax *node, gboolean first);
/* As rp_parse_tuple(); @simple: names and constants only. @bracketed: may be empty */
RpSyntax *rp_parse_values(RpParser *parser, gboolean simple, gboolean with_if,
                          gboolean with_namespace, const char *until, gboolean bracketed);
/* A name, a constant, or a bracket. */
RpSyntax *rp_parse_primary(RpParser *parser, gboolean with_namespace);
/* Attributes, indices and calls behind @node (nullable). */
RpSyntax *rp_parse_postfix(RpParser *parser, RpSyntax *node);
/* Behind `is`. */
RpSyntax *rp_parse_test(RpParser *parser, RpSyntax *value);
