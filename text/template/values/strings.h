/**
 * Strings as Python has them: places are characters, and space is as in str.isspace().
 *
 * Case is mapped character by character, whatever the locale: the capital of "ß" stays "ß".
 */
#pragma once

#include "text/template/values/value.h"

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
