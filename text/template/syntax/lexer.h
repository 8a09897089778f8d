/**
 * Templates as tokens: data between tags, and the words of tags.
 *
 * As Jinja reads them with trim_blocks and lstrip_blocks, which transformers sets: a block tag takes
 * the newline behind it and the space before it on its line; `-` takes all space on its side, `+`
 * leaves it; `raw` is data; comments are nothing.
 */
#pragma once

#include "text/template/values/value.h"

/* Errors are those of error.h. */
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
