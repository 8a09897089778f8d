/*
 * Patterns of tokenizer.json. They are written for Oniguruma, which reads some things otherwise than
 * PCRE2; a pattern with one of these is refused.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MAX_PATTERN_BYTES 65536

struct _RpPattern {
    pcre2_code *code; /* %NULL: a literal */
    gboolean jit;
    char *literal;
    gsize literal_length;
    char *regex; /* as it was given; %NULL: a literal */
};

struct _RpMatch {
    pcre2_match_data *data;
};

/* Letters behind a backslash that both read alike. */
static const char alike[] = "pPdDrntfxAzZ";
/* Unicode's white space, within a class; PCRE2's \s has U+180E too. */
#define SPACES "\\t-\\r\\x{85}\\p{Z}"

/* Writes a backslash and @letter as PCRE2 does. Returns: FALSE if PCRE2 has no such escape */
static gboolean
translate_escape(char letter, gboolean in_class, GString *out)
{
    if (letter == 's')
        g_string_append(out, in_class ? SPACES : "[" SPACES "]");
    else if (letter == 'S' && !in_class)
        g_string_append(out, "[^" SPACES "]");
    else if (letter == '\0' || (g_ascii_isalnum(letter) && strchr(alike, letter) == NULL))
        return FALSE;
    else
        g_string_append_printf(out, "\\%c", letter);
    return TRUE;
}

/* The same for PCRE2. Returns: %NULL with the missing feature (transfer full) */
static GString *
translate(const char *regex, char **fault)
{
    GString *out = g_string_new(NULL);
    gboolean in_class = FALSE;

    for (const char *p = regex; *p != '\0'; p++) {
        if (*p == '\\') {
            p++;
            if (translate_escape(*p, in_class, out))
                continue;
            *fault = *p == '\0' ? g_strdup("a backslash at its end") : g_strdup_printf("\\%c", *p);
        } else if (in_class && (p[0] == '[' || (p[0] == '&' && p[1] == '&'))) {
            *fault = g_strdup(*p == '[' ? "a class within a class" : "&&");
        }
        if (*fault != NULL) {
            g_string_free(out, TRUE);
            return NULL;
        }
        g_string_append_c(out, *p);
        if (!in_class && *p == '[') {
            in_class = TRUE;
            if (p[1] == '^')
                g_string_append_c(out, *++p);
        } else if (*p == ']') {
            in_class = FALSE;
        }
    }
    return out;
}

RpPattern *
rp_pattern_new_regex(const char *regex, char **fault)
{
    int number = 0;
    PCRE2_SIZE at = 0;
    guchar message[128] = "";

    *fault = strlen(regex) > MAX_PATTERN_BYTES ? g_strdup("a longer one") : NULL;
    if (*fault != NULL)
        return NULL;
    GString *translated = translate(regex, fault);

    if (translated == NULL)
        return NULL;
    /* ^ and $ are of lines for Oniguruma */
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)translated->str, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE |
                                         PCRE2_NEVER_BACKSLASH_C,
                                     &number, &at, NULL);
    g_string_free(translated, TRUE);
    if (code == NULL) {
        pcre2_get_error_message(number, message, sizeof message);
        *fault = g_strdup_printf("%s at byte %" G_GSIZE_FORMAT " of it", (char *)message, at);
        return NULL;
    }
    RpPattern *pattern = g_new0(RpPattern, 1);

    pattern->code = code;
    pattern->regex = g_strdup(regex);
    pattern->jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    return pattern;
}

RpPattern *
rp_pattern_new_literal(const char *text)
{
    RpPattern *pattern = g_new0(RpPattern, 1);

    pattern->literal = g_strdup(text);
    pattern->literal_length = strlen(text);
    return pattern;
}

void
rp_pattern_free(RpPattern *pattern)
{
    if (pattern == NULL)
        return;
    g_clear_pointer(&pattern->code, pcre2_code_free);
    g_free(pattern->literal);
    g_free(pattern->regex);
    g_free(pattern);
}

const char *
rp_pattern_text(const RpPattern *pattern)
{
    return pattern->regex != NULL ? pattern->regex : pattern->literal;
}

RpMatch *
rp_match_new(void)
{
    RpMatch *match = g_new0(RpMatch, 1);

    match->data = pcre2_match_data_create(1, NULL);
    g_assert(match->data != NULL);
    return match;
}

void
rp_match_free(RpMatch *match)
{
    pcre2_match_data_free(match->data);
    g_free(match);
}

static int
next_literal(const RpPattern *pattern, const char *text, gsize length, gsize from, gsize *start,
             gsize *end)
{
    const char *found =
        memmem(text + from, length - from, pattern->literal, pattern->literal_length);

    if (found == NULL || pattern->literal_length == 0)
        return 0;
    *start = (gsize)(found - text);
    *end = *start + pattern->literal_length;
    return 1;
}

int
rp_pattern_next(const RpPattern *pattern, RpMatch *match, const char *text, gsize length,
                gsize from, gsize *start, gsize *end)
{
    if (pattern->code == NULL)
        return next_literal(pattern, text, length, from, start, end);
    int n = pattern->jit ? pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, length, from, 0,
                                           match->data, NULL)
                         : PCRE2_ERROR_JIT_STACKLIMIT;
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* its stack is small; the slow path has the heap */
        n = pcre2_match(pattern->code, (PCRE2_SPTR)text, length, from,
                        PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match->data, NULL);
    if (n < 0)
        return n == PCRE2_ERROR_NOMATCH ? 0 : -1;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match->data);

    *start = ends[0];
    *end = ends[1];
    return *start <= *end ? 1 : -1; /* \K in a lookahead would reverse them */
}
