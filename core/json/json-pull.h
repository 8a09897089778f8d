/**
 * Reads JSON text value by value, as it stands, without building a tree. Every file is read by it.
 *
 * It takes RFC 8259 and no more: no comments, no comma behind the last, no NaN; UTF-8 without a
 * byte order mark or NUL; at most 64 levels; finite numbers of at most 64 characters; and only
 * space behind the value. A record (json-record.h) takes each key once and, unless it says so, no
 * key that it does not know; keys within a value that is skipped are not compared.
 *
 * There is no library underneath. A refused value is named by line, column and keys, and most are
 * refused for their bounds, not their syntax: libraries in C report where the syntax breaks and
 * keep no places for the rest. And they make trees: a safetensors header may have 100 MB. Nothing
 * here recurses; memory is that of the caller's strings; a tokenizer of 15 MB with 150,000 merges
 * takes 0.15 s.
 *
 *   rp_json_pull_enter_object(pull)
 *   while (rp_json_pull_next_key(pull, key))
 *       one rp_json_pull_<value>() or rp_json_pull_skip()
 *   !pull->failed
 *
 * After the first error every function returns FALSE. Messages are
 * `FILE: line 3, column 14: PLACE: expected WHAT, found WHAT`; the place is the path of keys, such
 * as `layers[2].forward_ms`.
 */
#pragma once

#include <glib.h>

#define RP_JSON_PULL_MAX_DEPTH 64

typedef enum {
    RP_JSON_OBJECT,
    RP_JSON_ARRAY,
    RP_JSON_STRING,
    RP_JSON_NUMBER,
    RP_JSON_BOOLEAN,
    RP_JSON_NULL,
    RP_JSON_NOTHING /* none of these stands here */
} RpJsonType;

/* Where the reader stands in one open object or array. */
typedef struct {
    const char *key; /* an object's, in the text; NULL: before its next key */
    gsize key_length;
    gsize n_elements; /* an array's, begun so far */
} RpJsonLevel;

/* On the stack of the caller; a copy reads on from where it was taken. Fields other than @key
 * and @failed belong to the functions. */
typedef struct {
    const char *file; /* display name */
    const char *key;  /* the key of the value being read, where a record reads it */
    gboolean failed;
    const char *text;
    guint64 lines_before; /* the file's lines before @text, if that is a part; for messages */
    const char *end;
    const char *at;
    const char *value; /* start of the value read last */
    guint depth;
    guint64 objects; /* bit d: level d is an object */
    gboolean opened; /* nothing yet read of the innermost level */
    RpJsonLevel levels[RP_JSON_PULL_MAX_DEPTH];
    GQuark domain;
    int code;
    GError **error;
} RpJsonPull;

/**
 * rp_json_pull_init:
 * @file: name for messages; must outlive @pull
 * @text: @length bytes; must outlive @pull
 * @domain: the errors' domain, with @code
 *
 * Returns: FALSE, with the error set, if the text is not UTF-8
 */
gboolean rp_json_pull_init(RpJsonPull *pull, const char *file, const char *text, gsize length,
                           GQuark domain, int code, GError **error);
/* The same for a part of a file, @lines_before behind its start. */
gboolean rp_json_pull_init_line(RpJsonPull *pull, const char *file, guint64 lines_before,
                                const char *text, gsize length, GQuark domain, int code,
                                GError **error);

/* The type of the next value. */
RpJsonType rp_json_pull_peek(RpJsonPull *pull);

gboolean rp_json_pull_enter_object(RpJsonPull *pull);
/* The next key of the innermost object; FALSE behind its last, which leaves the object. */
gboolean rp_json_pull_next_key(RpJsonPull *pull, GString *key);

gboolean rp_json_pull_enter_array(RpJsonPull *pull);
/* Whether the innermost array has one more element; FALSE leaves the array. */
gboolean rp_json_pull_next_element(RpJsonPull *pull);

/* Replaces @text. */
gboolean rp_json_pull_string(RpJsonPull *pull, GString *text);
gboolean rp_json_pull_boolean(RpJsonPull *pull, gboolean *value);
gboolean rp_json_pull_null(RpJsonPull *pull);
gboolean rp_json_pull_number(RpJsonPull *pull, double *value);
/* Digits only, at most G_MAXUINT64. */
gboolean rp_json_pull_whole(RpJsonPull *pull, guint64 *value);
/* Any value, with all that is in it. */
gboolean rp_json_pull_skip(RpJsonPull *pull);
/* Nothing follows but space. */
gboolean rp_json_pull_end(RpJsonPull *pull);

/* Refuses the next value, or the value read last. Return FALSE. */
gboolean rp_json_pull_fail(RpJsonPull *pull, const char *expected);
gboolean rp_json_pull_fail_value(RpJsonPull *pull, const char *expected);

/**
 * rp_json_pull_refuse:
 * @at: in the text: where the fault is
 * @key: (nullable): the last part of the place, where the reader has left its object
 * @found: (nullable): NULL names the text at @at
 *
 * Returns: FALSE
 */
gboolean rp_json_pull_refuse(RpJsonPull *pull, const char *at, const char *key,
                             const char *expected, const char *found);
