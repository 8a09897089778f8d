#include "core/json/json-pull.h"
#include "core/base/quote.h"

#include <math.h>
#include <string.h>

#define MAX_QUOTED 100
#define MAX_PATH 16 /* levels: nobody reads a longer one */

/* Numbers longer than this are nobody's: a double needs 24 characters. */
#define MAX_NUMBER 64

/* "layers[2].forward_ms: ", or nothing for the outermost value. (transfer full) */
static char *
place_prefix(const RpJsonPull *pull, const char *key)
{
    GString *place = g_string_new(NULL);

    guint n_shown = pull->depth > MAX_PATH ? 0 : pull->depth;
    for (guint d = 0; d < n_shown; d++) {
        const RpJsonLevel *level = &pull->levels[d];
        if (level->key != NULL) {
            g_autofree char *name = g_strndup(level->key, level->key_length);
            g_autofree char *shown =
                level->key_length > MAX_QUOTED ? rp_quote(name) : rp_display_name(name);
            g_string_append_printf(place, "%s%s", place->len > 0 ? "." : "", shown);
        } else if (level->n_elements > 0) {
            g_string_append_printf(place, "[%" G_GSIZE_FORMAT "]", level->n_elements - 1);
        }
    }
    if (key != NULL)
        g_string_append_printf(place, "%s%s", place->len > 0 ? "." : "", key);
    if (place->len > 0)
        g_string_append(place, ": ");
    return g_string_free(place, FALSE);
}

/* The word, the string or the one character at @at. (transfer full) */
static char *
word_at(const RpJsonPull *pull, const char *at)
{
    gsize left = (gsize)(pull->end - at);
    gsize n = 0;

    if (left == 0)
        return g_strdup("the end of the text");
    if (left >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
        return g_strdup("a byte order mark");
    if (*at == '{' || *at == '[')
        return g_strdup(*at == '{' ? "an object" : "an array");
    if (*at == '"') {
        for (n = 1; n < left && n < MAX_QUOTED && at[n] != '"' && at[n] != '\n'; n++)
            ;
        g_autofree char *text = g_strndup(at + 1, n - 1);
        return rp_quote(text);
    }
    while (n < MIN(left, MAX_NUMBER) && (g_ascii_isalnum(at[n]) || strchr("+-._", at[n])) && at[n])
        n++;
    if (n == 0) /* one whole character, even if it takes several bytes */
        do
            n++;
        while (n < left && ((guchar)at[n] & 0xc0) == 0x80);
    g_autofree char *text = g_strndup(at, n);
    gboolean plain = g_ascii_isalnum(*at) || *at == '-';
    return plain ? g_steal_pointer(&text) : rp_quote(text);
}

gboolean
rp_json_pull_refuse(RpJsonPull *pull, const char *at, const char *key, const char *expected,
                    const char *found)
{
    guint64 line = pull->lines_before + 1;
    const char *line_start = pull->text;

    if (pull->failed)
        return FALSE;
    for (const char *p = pull->text; p < at; p++) {
        if (*p == '\n') {
            line++;
            line_start = p + 1;
        }
    }
    pull->failed = TRUE;
    g_autofree char *place = place_prefix(pull, key);
    g_autofree char *word = found != NULL ? NULL : word_at(pull, at);
    return rp_fail(pull->error, pull->domain, pull->code,
                   "%s: line %" G_GUINT64_FORMAT ", column %" G_GSIZE_FORMAT
                   ": %sexpected %s, found %s",
                   pull->file, line, (gsize)(at - line_start) + 1, place, expected,
                   found != NULL ? found : word);
}

static void
skip_space(RpJsonPull *pull)
{
    while (pull->at < pull->end &&
           (*pull->at == ' ' || *pull->at == '\t' || *pull->at == '\n' || *pull->at == '\r'))
        pull->at++;
}

static gboolean
take(RpJsonPull *pull, char c)
{
    if (pull->at == pull->end || *pull->at != c)
        return FALSE;
    pull->at++;
    return TRUE;
}

gboolean
rp_json_pull_init(RpJsonPull *pull, const char *file, const char *text, gsize length, GQuark domain,
                  int code, GError **error)
{
    return rp_json_pull_init_line(pull, file, 0, text, length, domain, code, error);
}

gboolean
rp_json_pull_init_line(RpJsonPull *pull, const char *file, guint64 lines_before, const char *text,
                       gsize length, GQuark domain, int code, GError **error)
{
    const char *bad = NULL;

    *pull = (RpJsonPull){.file = file,
                         .text = text,
                         .lines_before = lines_before,
                         .end = text + length,
                         .at = text,
                         .value = text,
                         .domain = domain,
                         .code = code,
                         .error = error};
    if (g_utf8_validate_len(text, length, &bad))
        return TRUE;
    g_autofree char *found = g_strdup_printf("byte 0x%02x", (guchar)*bad);
    return rp_json_pull_refuse(pull, bad, NULL, "UTF-8 text", found);
}

gboolean
rp_json_pull_fail(RpJsonPull *pull, const char *expected)
{
    skip_space(pull);
    return rp_json_pull_refuse(pull, pull->at, NULL, expected, NULL);
}

gboolean
rp_json_pull_fail_value(RpJsonPull *pull, const char *expected)
{
    return rp_json_pull_refuse(pull, pull->value, NULL, expected, NULL);
}

static gboolean
starts_with(const RpJsonPull *pull, const char *word)
{
    gsize length = strlen(word);

    return (gsize)(pull->end - pull->at) >= length && memcmp(pull->at, word, length) == 0;
}

RpJsonType
rp_json_pull_peek(RpJsonPull *pull)
{
    skip_space(pull);
    if (pull->failed || pull->at == pull->end)
        return RP_JSON_NOTHING;
    switch (*pull->at) {
    case '{':
        return RP_JSON_OBJECT;
    case '[':
        return RP_JSON_ARRAY;
    case '"':
        return RP_JSON_STRING;
    case 't':
        return starts_with(pull, "true") ? RP_JSON_BOOLEAN : RP_JSON_NOTHING;
    case 'f':
        return starts_with(pull, "false") ? RP_JSON_BOOLEAN : RP_JSON_NOTHING;
    case 'n':
        return starts_with(pull, "null") ? RP_JSON_NULL : RP_JSON_NOTHING;
    default:
        return *pull->at == '-' || g_ascii_isdigit(*pull->at) ? RP_JSON_NUMBER : RP_JSON_NOTHING;
    }
}

static gboolean
enter(RpJsonPull *pull, gboolean is_object)
{
    guint64 bit = G_GUINT64_CONSTANT(1) << (pull->depth % RP_JSON_PULL_MAX_DEPTH);

    if (rp_json_pull_peek(pull) != (is_object ? RP_JSON_OBJECT : RP_JSON_ARRAY))
        return rp_json_pull_fail(pull, is_object ? "an object" : "an array");
    if (pull->depth == RP_JSON_PULL_MAX_DEPTH)
        return rp_json_pull_refuse(pull, pull->at, NULL,
                                   "at most " G_STRINGIFY(RP_JSON_PULL_MAX_DEPTH) " levels",
                                   "one more");
    pull->value = pull->at++;
    pull->objects = is_object ? pull->objects | bit : pull->objects & ~bit;
    pull->levels[pull->depth++] = (RpJsonLevel){0};
    pull->opened = TRUE;
    return TRUE;
}

gboolean
rp_json_pull_enter_object(RpJsonPull *pull)
{
    return enter(pull, TRUE);
}

gboolean
rp_json_pull_enter_array(RpJsonPull *pull)
{
    return enter(pull, FALSE);
}

/* To the next member of the innermost level; FALSE at its end or on error. */
static gboolean
next_member(RpJsonPull *pull, gboolean is_object)
{
    gboolean opened = pull->opened;

    if (pull->failed)
        return FALSE;
    g_assert(pull->depth > 0 && ((pull->objects >> (pull->depth - 1)) & 1) == (guint64)is_object);
    RpJsonLevel *level = &pull->levels[pull->depth - 1];
    level->key = NULL;
    pull->opened = FALSE;
    skip_space(pull);
    if (take(pull, is_object ? '}' : ']')) {
        pull->depth--;
        return FALSE;
    }
    if (!opened && !take(pull, ','))
        return rp_json_pull_fail(pull, is_object ? "`,` or `}`" : "`,` or `]`");
    skip_space(pull);
    level->n_elements += !is_object;
    return TRUE;
}

gboolean
rp_json_pull_next_element(RpJsonPull *pull)
{
    return next_member(pull, FALSE);
}

gboolean
rp_json_pull_next_key(RpJsonPull *pull, GString *key)
{
    if (!next_member(pull, TRUE))
        return FALSE;
    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a key");
    if (!rp_json_pull_string(pull, key))
        return FALSE;
    pull->levels[pull->depth - 1].key = pull->value + 1;
    pull->levels[pull->depth - 1].key_length = (gsize)(pull->at - pull->value) - 2;
    skip_space(pull);
    return take(pull, ':') || rp_json_pull_fail(pull, "`:`");
}

/* Four hexadecimal digits; -1 if they are not there. */
static int
take_hex4(RpJsonPull *pull)
{
    int value = 0;

    if (pull->end - pull->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = g_ascii_xdigit_value(pull->at[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    pull->at += 4;
    return value;
}

/* The part of a \u escape behind the u: a character other than NUL, or a surrogate pair. */
static gboolean
take_unicode_escape(RpJsonPull *pull, GString *text)
{
    int high = take_hex4(pull);

    if (high <= 0 || (high >= 0xdc00 && high <= 0xdfff))
        return FALSE;
    if (high < 0xd800 || high > 0xdbff) {
        g_string_append_unichar(text, (gunichar)high);
        return TRUE;
    }
    if (!take(pull, '\\') || !take(pull, 'u'))
        return FALSE;
    int low = take_hex4(pull);
    if (low < 0xdc00 || low > 0xdfff)
        return FALSE;
    g_string_append_unichar(text, 0x10000 + (gunichar)((high - 0xd800) << 10 | (low - 0xdc00)));
    return TRUE;
}

static gboolean
take_escape(RpJsonPull *pull, GString *text)
{
    static const char letters[] = "\"\\/bfnrt";
    static const char characters[] = "\"\\/\b\f\n\r\t";
    const char *start = pull->at - 1;

    if (take(pull, 'u'))
        return take_unicode_escape(pull, text) ||
               rp_json_pull_refuse(pull, start, NULL, "a character after \\u", "none");
    const char *letter = pull->at < pull->end && *pull->at ? strchr(letters, *pull->at) : NULL;
    if (letter == NULL)
        return rp_json_pull_refuse(pull, start, NULL, "an escape that JSON knows", "another");
    pull->at++;
    g_string_append_c(text, characters[letter - letters]);
    return TRUE;
}

gboolean
rp_json_pull_string(RpJsonPull *pull, GString *text)
{
    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a string");
    pull->value = pull->at++;
    g_string_truncate(text, 0);
    for (;;) {
        const char *run = pull->at;
        while (pull->at < pull->end && (guchar)*pull->at >= 0x20 && *pull->at != '"' &&
               *pull->at != '\\')
            pull->at++;
        g_string_append_len(text, run, pull->at - run);
        if (take(pull, '"'))
            return TRUE;
        if (pull->at == pull->end)
            return rp_json_pull_refuse(pull, pull->value, NULL, "a closed string",
                                       "the end of the text");
        if (!take(pull, '\\'))
            return rp_json_pull_refuse(pull, pull->at, NULL, "a string without control characters",
                                       "one");
        if (!take_escape(pull, text))
            return FALSE;
    }
}

gboolean
rp_json_pull_boolean(RpJsonPull *pull, gboolean *value)
{
    if (rp_json_pull_peek(pull) != RP_JSON_BOOLEAN)
        return rp_json_pull_fail(pull, "true or false");
    pull->value = pull->at;
    *value = *pull->at == 't';
    pull->at += strlen(*value ? "true" : "false");
    return TRUE;
}

gboolean
rp_json_pull_null(RpJsonPull *pull)
{
    if (rp_json_pull_peek(pull) != RP_JSON_NULL)
        return rp_json_pull_fail(pull, "null");
    pull->value = pull->at;
    pull->at += strlen("null");
    return TRUE;
}

static guint
take_digits(RpJsonPull *pull)
{
    const char *start = pull->at;

    while (pull->at < pull->end && g_ascii_isdigit(*pull->at))
        pull->at++;
    return (guint)(pull->at - start);
}

/* Sets pull->value; @whole: digits only. */
static gboolean
take_number(RpJsonPull *pull, gboolean *whole)
{
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER)
        return rp_json_pull_fail(pull, "a number");
    pull->value = pull->at;
    *whole = !take(pull, '-');
    gboolean leading_zero = pull->at < pull->end && *pull->at == '0';
    guint digits = take_digits(pull);
    gboolean good = digits == 1 || (digits > 1 && !leading_zero);
    if (good && take(pull, '.')) {
        *whole = FALSE;
        good = take_digits(pull) > 0;
    }
    if (good && (take(pull, 'e') || take(pull, 'E'))) {
        *whole = FALSE;
        if (!take(pull, '+'))
            take(pull, '-');
        good = take_digits(pull) > 0;
    }
    return (good && pull->at - pull->value <= MAX_NUMBER) ||
           rp_json_pull_fail_value(pull, "a number");
}

gboolean
rp_json_pull_number(RpJsonPull *pull, double *value)
{
    char digits[MAX_NUMBER + 1];
    gboolean whole;

    if (!take_number(pull, &whole))
        return FALSE;
    memcpy(digits, pull->value, (gsize)(pull->at - pull->value));
    digits[pull->at - pull->value] = '\0';
    double number = g_ascii_strtod(digits, NULL);
    if (!isfinite(number))
        return rp_json_pull_fail_value(pull, "a finite number");
    *value = number;
    return TRUE;
}

gboolean
rp_json_pull_whole(RpJsonPull *pull, guint64 *value)
{
    guint64 sum = 0;
    gboolean whole;

    if (!take_number(pull, &whole))
        return FALSE;
    for (const char *p = pull->value; whole && p < pull->at; p++)
        whole = g_uint64_checked_mul(&sum, sum, 10) &&
                g_uint64_checked_add(&sum, sum, (guint64)(*p - '0'));
    if (!whole)
        return rp_json_pull_fail_value(pull, "a whole number from 0 to 2^64 - 1");
    *value = sum;
    return TRUE;
}

/* One scalar, or the opening of an object or array. */
static gboolean
skip_scalar(RpJsonPull *pull, GString *scratch)
{
    gboolean ignored;

    switch (rp_json_pull_peek(pull)) {
    case RP_JSON_OBJECT:
        return rp_json_pull_enter_object(pull);
    case RP_JSON_ARRAY:
        return rp_json_pull_enter_array(pull);
    case RP_JSON_STRING:
        return rp_json_pull_string(pull, scratch);
    case RP_JSON_NUMBER:
        return take_number(pull, &ignored);
    case RP_JSON_BOOLEAN:
        return rp_json_pull_boolean(pull, &ignored);
    case RP_JSON_NULL:
        return rp_json_pull_null(pull);
    default:
        return rp_json_pull_fail(pull, "a value");
    }
}

gboolean
rp_json_pull_skip(RpJsonPull *pull)
{
    g_autoptr(GString) scratch = g_string_new(NULL);
    guint outside = pull->depth;

    if (!skip_scalar(pull, scratch))
        return FALSE;
    while (pull->depth > outside && !pull->failed) {
        gboolean is_object = (pull->objects >> (pull->depth - 1)) & 1;
        if (is_object ? rp_json_pull_next_key(pull, scratch) : rp_json_pull_next_element(pull))
            (void)skip_scalar(pull, scratch); /* pull->failed has the error */
    }
    return !pull->failed;
}

gboolean
rp_json_pull_end(RpJsonPull *pull)
{
    skip_space(pull);
    return (!pull->failed && pull->at == pull->end) ||
           rp_json_pull_fail(pull, "the end of the text");
}
