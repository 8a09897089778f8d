/**
 * Templates as tokens: data between tags, and the words of tags.
 *
 * As Jinja reads them with trim_blocks and lstrip_blocks, which transformers sets: a block tag takes
 * the newline behind it and the space before it on its line; `-` takes all space on its side, `+`
 * leaves it; `raw` is data; comments are nothing.
 */
#pragma once

#include "text/template/values/value.h"

/* Errors are those of value.h. */
typedef enum {
    RP_TOKEN_DATA,
    RP_TOKEN_BLOCK_BEGIN,
    RP_TOKEN_BLOCK_END,
    RP_TOKEN_VARIABLE_BEGIN,
    RP_TOKEN_VARIABLE_END,
    RP_TOKEN_NAME,
    RP_TOKEN_STRING,
    RP_TOKEN_INTEGER,
    RP_TOKEN_FLOAT,
    RP_TOKEN_OPERATOR,
    RP_TOKEN_END
} RpTokenType;

typedef struct {
    RpTokenType type;
    const char *text; /* in the source; a string's is that of its value */
    guint length;
    guint line;    /* from 1 */
    guint column;  /* from 1, in bytes */
    RpValue value; /* a string's or number's */
} RpToken;

/**
 * rp_template_tokens:
 * @arena: holds the texts
 * @name: for messages
 * @source: UTF-8
 *
 * Returns: (transfer full) (element-type RpToken): the last is RP_TOKEN_END
 * Errors: RP_TEMPLATE_ERROR_SYNTAX with line and column
 */
GArray *rp_template_tokens(RpArena *arena, const char *name, const char *source, gsize length,
                           GError **error);
/* Sets @error to `NAME: line L, column C: expected EXPECTED, found FOUND`. */
void rp_template_refuse(GError **error, const char *name, const RpToken *at, const char *expected,
                        const char *found);
/* @token for messages. (transfer full) */
char *rp_token_describe(const RpToken *token);

/*
 * The tree of a template, and the parser that makes it: the grammar of Jinja 3.1.
 *
 * One kind of node for all: comments beside the types name its parts. Nodes stand in the arena of
 * their template. Names are numbers, so that scopes compare no strings.
 */

typedef enum {
    /* expressions */
    RP_NODE_CONSTANT,  /* value */
    RP_NODE_NAME,      /* symbol, text */
    RP_NODE_LIST,      /* items */
    RP_NODE_TUPLE,     /* items */
    RP_NODE_DICT,      /* items: key, value, key, ... */
    RP_NODE_ATTRIBUTE, /* a.text */
    RP_NODE_ITEM,      /* a[b] */
    RP_NODE_SLICE,     /* a[items 0 : 1 : 2], each nullable */
    RP_NODE_CALL,      /* a(items), b as in FILTER */
    RP_NODE_FILTER,    /* a | text(items); the last n_named are named by names */
    RP_NODE_TEST,      /* a is text(items), the same */
    RP_NODE_IF_ELSE,   /* a if b else c (nullable) */
    RP_NODE_AND,       /* a and b */
    RP_NODE_OR,
    RP_NODE_NOT,     /* not a */
    RP_NODE_COMPARE, /* a, then items, each a RP_NODE_OPERAND */
    RP_NODE_OPERAND, /* operation, a */
    RP_NODE_BINARY,  /* a operation b */
    RP_NODE_NEGATE,  /* -a */
    RP_NODE_PLUS,    /* +a */
    RP_NODE_CONCAT,  /* items */
    /* statements */
    RP_NODE_BODY,         /* items */
    RP_NODE_DATA,         /* value */
    RP_NODE_OUTPUT,       /* a */
    RP_NODE_FOR,          /* for a in b if c (nullable): items 0, else items 1 (nullable) */
    RP_NODE_IF,           /* items: condition, body, ...; c: else (nullable) */
    RP_NODE_SET,          /* a = b */
    RP_NODE_SET_BLOCK,    /* a = b (nullable: filters of RP_NODE_CAPTURED) of c */
    RP_NODE_CAPTURED,     /* the text of the block that a filter is over */
    RP_NODE_NAMESPACE,    /* as target: symbol, text; a: CONSTANT of the attribute */
    RP_NODE_MACRO,        /* symbol, text; items: names, then defaults of the last n_named; c */
    RP_NODE_WITH,         /* items: target, value, ...; c */
    RP_NODE_FILTER_BLOCK, /* b of c */
    RP_NODE_GENERATION,   /* c */
    RP_NODE_BREAK,
    RP_NODE_CONTINUE
} RpNodeType;

typedef enum {
    RP_OP_ADD,
    RP_OP_SUBTRACT,
    RP_OP_MULTIPLY,
    RP_OP_DIVIDE,
    RP_OP_FLOOR_DIVIDE,
    RP_OP_MODULO,
    RP_OP_POWER,
    RP_OP_EQUAL,
    RP_OP_UNEQUAL,
    RP_OP_LESS,
    RP_OP_LESS_EQUAL,
    RP_OP_GREATER,
    RP_OP_GREATER_EQUAL,
    RP_OP_IN,
    RP_OP_NOT_IN
} RpOperation;

typedef struct _RpSyntax RpSyntax;

struct _RpSyntax {
    RpNodeType type;
    RpOperation operation;
    guint line;
    guint column;
    guint symbol;
    guint n_items;
    guint n_named;
    RpSyntax *a;
    RpSyntax *b;
    RpSyntax *c;
    RpSyntax **items;
    RpValue *names;        /* names of named arguments */
    const char *text;      /* with a NUL */
    gconstpointer binding; /* a filter's or test's row in their table; NULL: unknown */
    RpValue value;
};

/* How the parser finds filters and tests: their rows, or NULL. */
typedef struct {
    gconstpointer (*filter)(const char *name);
    gconstpointer (*test)(const char *name);
} RpNames;

typedef struct {
    RpSyntax *body;
    GPtrArray *symbols; /* (element-type utf8): names by number */
    gboolean marks_generation;
} RpParsed;

/**
 * rp_template_parse:
 * @arena: holds the nodes
 * @name: for messages
 * @parsed: (out): symbols are to be freed
 *
 * Errors: RP_TEMPLATE_ERROR_SYNTAX, also for features that only Jinja has: by name
 */
gboolean rp_template_parse(RpArena *arena, const char *name, const char *source, gsize length,
                           const RpNames *names, RpParsed *parsed, GError **error);

/*
 * Shared by statements and expressions: the tokens, and making nodes. Within this folder.
 */

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

/* Whether the operator, or the name if it begins with a letter, stands next. */
gboolean rp_parser_is(const RpParser *parser, const char *text);
/* Takes it if it is there. */
gboolean rp_parser_skip(RpParser *parser, const char *text);
/* Returns: FALSE, with the error set, if it is not there */
gboolean rp_parser_expect_word(RpParser *parser, const char *text);
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
