/**
 * Values of templates, as Python has them: the parts of a chat, and the results of expressions.
 *
 * Lists and dicts never change once they are built; namespaces do. All of a rendering's values stand
 * in one arena and end with it, so that no value has an owner. Strings are UTF-8 without a NUL
 * behind them; a part of a string shares its bytes.
 */
#pragma once

#include <glib.h>

#include "core/json/json-pull.h"

/*
 * The errors of templates: `NAME: line L, column C: MESSAGE`, lines and columns from 1, in bytes.
 */

#define RP_TEMPLATE_ERROR (rp_template_error_quark())
GQuark rp_template_error_quark(void);

typedef enum {
    RP_TEMPLATE_ERROR_SYNTAX,
    RP_TEMPLATE_ERROR_RENDER,
    RP_TEMPLATE_ERROR_RAISED, /* by the template: raise_exception() */
    RP_TEMPLATE_ERROR_BOUND   /* too many steps, too much memory, depth or output */
} RpTemplateError;

/* Memory, work and depth of a rendering, all bounded. */
typedef struct _RpArena RpArena;

#define RP_ARENA_MAX_LEVELS 1000 /* calls, and values within values */

RpArena *rp_arena_new(gsize max_bytes, guint64 max_steps);
void rp_arena_free(RpArena *arena);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpArena, rp_arena_free)
/* Zeros, aligned to 16 bytes. Never fails; check sizes that a template chooses first. */
gpointer rp_arena_alloc(RpArena *arena, gsize bytes);
/* Whether @bytes more are within bounds. */
gboolean rp_arena_has_space(const RpArena *arena, gsize bytes);
/* Counts work. Returns: FALSE if there was too much, or too much memory taken */
gboolean rp_arena_charge(RpArena *arena, guint64 steps);
/* One level deeper, and one step. Returns: FALSE if that was too much; leave all the same */
gboolean rp_arena_enter(RpArena *arena);
void rp_arena_leave(RpArena *arena);
/* "10000000 steps", "512 MiB of memory" or "1000 levels": the bound that was met. (transfer full) */
char *rp_arena_bound(const RpArena *arena);

typedef enum {
    RP_VALUE_UNDEFINED, /* text: the name that there is not */
    RP_VALUE_NONE,
    RP_VALUE_BOOLEAN,
    RP_VALUE_INTEGER,
    RP_VALUE_FLOAT,
    RP_VALUE_STRING,
    RP_VALUE_LIST,
    RP_VALUE_TUPLE,
    RP_VALUE_GENERATOR, /* list, of which each item is given once: made by filters such as map */
    RP_VALUE_DICT,
    RP_VALUE_NAMESPACE, /* dict */
    RP_VALUE_FUNCTION,  /* macros, globals, methods */
    RP_VALUE_LOOP       /* the variable `loop` */
} RpValueType;

typedef struct _RpList RpList;
typedef struct _RpDict RpDict;

typedef struct {
    RpValueType type;
    guint length; /* bytes of a text */
    union {
        gboolean boolean;
        gint64 integer;
        double number;
        const char *text;
        RpList *list;
        RpDict *dict;
        gpointer other; /* the evaluator knows its type */
    };
} RpValue;

struct _RpList {
    RpValue *items;
    guint length;
    guint capacity;
    guint given; /* items that a generator has given */
};

typedef struct {
    RpValue key;
    RpValue value;
} RpPair;

/* In the order in which keys came first. */
struct _RpDict {
    RpPair *pairs;
    guint length;
    guint capacity;
    guint *slots; /* larger dicts: a hash table of indices + 1 */
    guint n_slots;
    guint tag; /* 0 or the caller's: loops over tagged dicts are traced */
};

extern const RpValue rp_none, rp_true, rp_false;

static inline RpValue
rp_value_bool(gboolean truth)
{
    return truth ? rp_true : rp_false;
}

static inline RpValue
rp_value_int(gint64 integer)
{
    return (RpValue){RP_VALUE_INTEGER, 0, {.integer = integer}};
}

static inline RpValue
rp_value_float(double number)
{
    return (RpValue){RP_VALUE_FLOAT, 0, {.number = number}};
}

/* @text: must outlive the value */
static inline RpValue
rp_value_text(const char *text, gsize length)
{
    return (RpValue){RP_VALUE_STRING, (guint)length, {.text = text}};
}

RpValue rp_value_static(const char *text);
/* @text is copied. */
RpValue rp_value_copy(RpArena *arena, const char *text, gsize length);
RpValue rp_value_undefined(const char *name, gsize length);
RpValue rp_value_list(RpList *list);
RpValue rp_value_tuple(RpList *list);
RpValue rp_value_dict(RpDict *dict);

RpList *rp_list_new(RpArena *arena, guint capacity);
void rp_list_append(RpArena *arena, RpList *list, RpValue item);

RpDict *rp_dict_new(RpArena *arena);
/* %NULL if it is not there. A key is none, a boolean, a number or a string; 1, 1.0 and true are one. */
RpValue *rp_dict_find(const RpDict *dict, RpValue key);
RpValue *rp_dict_get(const RpDict *dict, const char *key);
void rp_dict_set(RpArena *arena, RpDict *dict, RpValue key, RpValue value);
/* @key: static */
void rp_dict_put(RpArena *arena, RpDict *dict, const char *key, RpValue value);
/* The same pairs, without the tag. */
RpDict *rp_dict_copy(RpArena *arena, const RpDict *dict);
/* Tuples of key and value. */
RpList *rp_dict_pairs(RpArena *arena, const RpDict *dict);
gboolean rp_value_is_key(RpValue value);

/* Whether @value is this string. */
gboolean rp_value_is_text(RpValue value, const char *text);
/* As Python takes it in a condition. */
gboolean rp_value_is_true(RpValue value);
/* A boolean or a number. @number: (out) */
gboolean rp_value_to_number(RpValue value, double *number);
/* "a string", "none", ...: for messages. */
const char *rp_value_type_name(RpValue value);

/* Whether both are equal, as Python has it. @arena is charged; too much is not equal. */
gboolean rp_value_equal(RpArena *arena, RpValue a, RpValue b);

/**
 * rp_value_read_json:
 * @arena: holds the value and its strings
 * @value: (out)
 *
 * The value that stands next. Whole numbers are integers of 64 bits; a key that comes twice has its
 * last value, as Python reads it.
 *
 * Errors: those of @pull; more memory than @arena has
 */
gboolean rp_value_read_json(RpArena *arena, RpJsonPull *pull, RpValue *value);

/* The text of a value; all fail, FALSE, if it does not fit in @arena or, naming @wrong (static), if
 * a value has no such text. */
/* As Python's str(). */
gboolean rp_value_show(RpArena *arena, RpValue value, GString *text, const char **wrong);
/* As Python's repr(). */
gboolean rp_value_repr(RpArena *arena, RpValue value, GString *text, const char **wrong);
/* The shortest digits that read back the same, as Python writes them. */
void rp_value_show_float(double number, GString *text);

typedef struct {
    gboolean ensure_ascii;
    gboolean sort_keys;
    RpValue indent;         /* none, a number of spaces, or a string */
    RpValue item_separator; /* undefined: ", ", or "," before a line's end */
    RpValue key_separator;
} RpJsonStyle;
/* As Python's json.dumps(). */
gboolean rp_value_to_json(RpArena *arena, RpValue value, const RpJsonStyle *style, GString *text,
                          const char **wrong);

/*
 * Strings as Python has them: places are characters, and space is as in str.isspace().
 *
 * Case is mapped character by character, whatever the locale: the capital of "ß" stays "ß".
 */

gboolean rp_is_space(gunichar c);
/* The character at @text and its bytes. */
static inline gunichar
rp_char_at(const char *text, guint *bytes)
{
    *bytes = g_utf8_skip[(guchar)*text];
    return g_utf8_get_char(text);
}

/* In characters. */
guint rp_string_length(RpValue string);
/* The characters, a string each. */
RpList *rp_string_characters(RpArena *arena, RpValue string);
/* @chars: (nullable): a string of those to strip; NULL: space. */
RpValue rp_string_strip(RpValue string, const RpValue *chars, gboolean left, gboolean right);

typedef enum {
    RP_CASE_UPPER,
    RP_CASE_LOWER,
    RP_CASE_CAPITALIZE,
    RP_CASE_TITLE,       /* as str.title(): every run of letters */
    RP_CASE_FILTER_TITLE /* as the filter title: every word between space, brackets and hyphens */
} RpCase;
RpValue rp_string_case(RpArena *arena, RpValue string, RpCase kind);

/* Bytes from the start of @string to the first or the last @part; -1 if there is none. */
gssize rp_string_find(RpValue string, RpValue part, gboolean last);
gboolean rp_string_starts(RpValue string, RpValue part);
gboolean rp_string_ends(RpValue string, RpValue part);
/* @separator: none: space. @most: most splits; negative: all. @right: from the end */
RpList *rp_string_split(RpArena *arena, RpValue string, RpValue separator, gint64 most,
                        gboolean right);
RpList *rp_string_lines(RpArena *arena, RpValue string);
/* @most: negative: all. Returns: FALSE if it were too long for @arena */
gboolean rp_string_replace(RpArena *arena, RpValue string, RpValue old, RpValue with, gint64 most,
                           RpValue *replaced);
