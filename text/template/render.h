/**
 * A rendering in progress, shared by statements, expressions and functions. Within this folder.
 *
 * A function that fails sets the error once and returns FALSE; values are written on success only.
 */
#pragma once

#include "text/template/syntax/syntax.h"
#include "text/template/template.h"
#include "text/template/values/value.h"

typedef struct _RpScope RpScope;

typedef struct {
    guint symbol;
    RpValue value;
} RpVariable;

struct _RpScope {
    RpScope *outer;
    RpVariable *variables;
    guint n;
    guint capacity;
    gboolean kept; /* a macro refers to it */
};

typedef enum { RP_JUMP_NONE, RP_JUMP_BREAK, RP_JUMP_CONTINUE } RpJump;

typedef struct {
    const RpParsed *parsed;
    const char *name;
    RpArena *arena;
    RpScope *scope;
    GString *out;
    guint captured;         /* outputs that are put aside: macros, set and filter blocks */
    const RpSyntax *at;     /* for messages */
    const RpValue *capture; /* for RP_NODE_CAPTURED */
    RpJump jump;
    RpRendered *rendered;
    GDateTime *now;
    gsize max_bytes;
    guint loop_symbol; /* symbol of `loop`; G_MAXUINT: it is not used */
    gboolean failed;
    GError **error;
} RpRender;

/* Most parameters of a call. */
#define RP_MAX_PARAMETERS 5
typedef struct {
    guint kind;                       /* the row's */
    RpValue self;                     /* filters, tests and methods: their object */
    RpList *items;                    /* of rows that loop over it */
    RpValue bound[RP_MAX_PARAMETERS]; /* by the row's parameters; rp_given() says whether it is
                                         there */
    const RpValue *given;             /* all as they stand, the named ones last */
    guint n_given;
    const RpValue *names;
    guint n_named;
} RpArguments;

typedef gboolean (*RpCall)(RpRender *render, const RpArguments *arguments, RpValue *result);

/* A filter, test, method or global function. */
typedef struct {
    const char *name;
    RpCall call;
    const char *parameters[RP_MAX_PARAMETERS]; /* NULL behind the last */
    guint required;
    gboolean any;   /* takes arguments as they come */
    guint types;    /* a method's: bits of the RpValueType that have it */
    guint bytes;    /* text bytes that take a step, since it reads all of them; 0: it does not */
    guint kind;     /* which of several that @call does */
    gboolean shown; /* its object is taken as str() gives it */
    gboolean loops; /* its object is taken as its items */
} RpRow;

/* Characters that are decoded one by one, and bytes that are scanned, in the time of a step. */
#define RP_DECODED 8
#define RP_SCANNED 64

/* The function behind `other` of a value of type RP_VALUE_FUNCTION. */
typedef struct {
    const RpRow *row; /* NULL: a macro */
    RpValue self;     /* a method's */
    const RpSyntax *macro;
    RpScope *scope;
} RpFunction;

static inline gboolean
rp_given(RpValue argument)
{
    return argument.type != RP_VALUE_UNDEFINED || argument.text != NULL;
}

/* `NAME: line L, column C: MESSAGE` at render->at. Returns: FALSE */
gboolean rp_render_fail(RpRender *render, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* The bound of the arena that was met, or a value that @wrong (nullable) says has no text. */
gboolean rp_render_fail_bound(RpRender *render, const char *wrong);
/* "expected WHAT, found TYPE" */
gboolean rp_render_fail_type(RpRender *render, const char *expected, RpValue found);
/* Work beyond the step that every node counts. */
gboolean rp_render_charge(RpRender *render, guint64 steps);
/* That of looking @key up. */
gboolean rp_charge_key(RpRender *render, RpValue key);
/* rp_string_strip(), counted. */
gboolean rp_strip(RpRender *render, RpValue text, const RpValue *chars, gboolean left,
                  gboolean right, RpValue *result);

gboolean rp_evaluate(RpRender *render, const RpSyntax *node, RpValue *value);
gboolean rp_execute(RpRender *render, const RpSyntax *node);
/* The text that @node makes, put aside. */
gboolean rp_execute_aside(RpRender *render, const RpSyntax *node, RpValue *text);
/* A scope within the present one; leave restores. */
void rp_scope_enter(RpRender *render);
void rp_scope_leave(RpRender *render);
void rp_scope_set(RpRender *render, guint symbol, RpValue value);
gboolean rp_assign(RpRender *render, const RpSyntax *target, RpValue value);

/* Loops (loops.c). */
gboolean rp_execute_for(RpRender *render, const RpSyntax *node);
gboolean rp_loop_attribute(RpRender *render, RpValue loop, const char *name, RpValue *value);

/* Operators (operators.c). */
gboolean rp_operate(RpRender *render, RpOperation operation, RpValue a, RpValue b, RpValue *value);
gboolean rp_compare(RpRender *render, RpOperation operation, RpValue a, RpValue b, gboolean *truth);
/* Sets @order to less than, equal to or more than 0. */
gboolean rp_order(RpRender *render, RpValue a, RpValue b, int *order);
gboolean rp_slice(RpRender *render, RpValue value, const RpValue parts[3], RpValue *result);
/* As value[key] and value.key find it; undefined if it is not there. */
gboolean rp_get_item(RpRender *render, RpValue value, RpValue key, RpValue *result);
gboolean rp_get_attribute(RpRender *render, RpValue value, const char *name, RpValue *result);
/* `format % values`. */
gboolean rp_format(RpRender *render, RpValue format, RpValue values, RpValue *result);

/* Calls (calls.c). */
gboolean rp_call_node(RpRender *render, const RpSyntax *node, RpValue *value);
/* @row with @arguments, of which given, names and self are set. */
gboolean rp_call_row(RpRender *render, const RpRow *row, RpArguments *arguments, RpValue *value);
const RpRow *rp_row_find(const RpRow *rows, guint n, const char *name);
RpValue rp_function_value(RpRender *render, const RpRow *row, RpValue self);

/* Tables; NULL if there is none of that name. */
const RpRow *rp_find_filter(const char *name);
const RpRow *rp_find_list_filter(const char *name); /* of those */
const RpRow *rp_find_text_filter(const char *name);
const RpRow *rp_find_test(const char *name);
const RpRow *rp_find_method(const char *name, RpValueType type);
const RpRow *rp_find_global(const char *name);

/* For functions: conversions that fail with a message. */
/* The items of an iterable value; a generator's are gone then. */
gboolean rp_to_items(RpRender *render, RpValue value, RpList **list);
/* As str() gives it; strings share. */
gboolean rp_to_text(RpRender *render, RpValue value, RpValue *text);
gboolean rp_to_integer(RpRender *render, RpValue value, gint64 *integer);
gboolean rp_to_text_argument(RpRender *render, RpValue value, RpValue *text);
/* Appends @part to a @text that must fit in the arena. */
gboolean rp_append(RpRender *render, GString *text, RpValue part);
/* @text in the arena, if it fits. */
gboolean rp_keep_text(RpRender *render, const GString *text, RpValue *value);
/* @item.a.b, as attributes of filters are written. */
gboolean rp_get_path(RpRender *render, RpValue item, RpValue path, RpValue *value);
