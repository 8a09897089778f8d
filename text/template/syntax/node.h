/**
 * The tree of a template, and the parser that makes it: the grammar of Jinja 3.1.
 *
 * One kind of node for all: comments beside the types name its parts. Nodes stand in the arena of
 * their template. Names are numbers, so that scopes compare no strings.
 */
#pragma once

#include "text/template/syntax/lexer.h"

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
