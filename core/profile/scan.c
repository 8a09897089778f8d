/**
 * A strict pass over the text of a profile before json-glib sees it; see private.h.
 *
 * One loop over the values with an explicit stack of open objects and arrays: no recursion, no
 * allocation.
 */
#include "core/base/quote.h"
#include "core/profile/private.h"

#include <string.h>

typedef struct {
    const char *start;
    gsize length;
} Key;

/* One open object or array. */
typedef struct {
    gboolean is_object;
    guint n_members;
    Key keys[RP_PROFILE_MAX_KEYS];
} Level;

typedef struct {
    const char *name;
    const char *text;
    const char *end;
    const char *at;
    guint depth;
    guint n_values;
    Level levels[RP_PROFILE_MAX_DEPTH];
    GError **error;
} Scan;

/* Sets the error for what stands at @at; returns FALSE for the caller to pass on. */
static gboolean
fail_at(const Scan *scan, const char *at, const char *expected, const char *found)
{
    guint line = 1;
    const char *line_start = scan->text;
    g_autofree char *name = rp_display_name(scan->name);

    for (const char *p = scan->text; p < at; p++) {
        if (*p == '\n') {
            line++;
            line_start = p + 1;
        }
    }
    g_set_error(scan->error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX,
                "%s: line %u, column %" G_GSIZE_FORMAT ": expected %s, found %s", name, line,
                (gsize)(at - line_start) + 1, expected, found);
    return FALSE;
}

static gboolean
fail(const Scan *scan, const char *expected)
{
    if (scan->at == scan->end)
        return fail_at(scan, scan->at, expected, "the end of the file");

    char word[25];
    gsize n = MIN((gsize)(scan->end - scan->at), sizeof word - 1);
    gsize used = 0;
    while (used < n && (g_ascii_isalnum(scan->at[used]) || strchr("+-._", scan->at[used])))
        used++;
    used = MAX(used, 1);
    /* one whole character, even if it takes several bytes */
    while (used < n && (scan->at[used] & 0xc0) == 0x80)
        used++;
    memcpy(word, scan->at, used);
    word[used] = '\0';
    g_autofree char *found = rp_quote(word);
    return fail_at(scan, scan->at, expected, found);
}

static void
skip_space(Scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

static gboolean
take(Scan *scan, char c)
{
    if (scan->at == scan->end || *scan->at != c)
        return FALSE;
    scan->at++;
    return TRUE;
}

/* Four hexadecimal digits; -1 if they are not there. */
static int
take_hex4(Scan *scan)
{
    int value = 0;

    if (scan->end - scan->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = g_ascii_xdigit_value(scan->at[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    scan->at += 4;
    return value;
}

/* The part of a \u escape after the u: a character other than NUL, or a surrogate pair. */
static gboolean
take_unicode_escape(Scan *scan)
{
    int high = take_hex4(scan);

    if (high <= 0 || (high >= 0xdc00 && high <= 0xdfff))
        return FALSE;
    if (high < 0xd800 || high > 0xdbff)
        return TRUE;
    if (!take(scan, '\\') || !take(scan, 'u'))
        return FALSE;
    int low = take_hex4(scan);
    return low >= 0xdc00 && low <= 0xdfff;
}

/* @scan stands behind the opening quote. */
static gboolean
scan_string(Scan *scan, gboolean *escapes)
{
    const char *start = scan->at - 1;

    *escapes = FALSE;
    while (scan->at < scan->end) {
        guchar c = (guchar)*scan->at;
        if (c < 0x20)
            return fail(scan, "a string without control characters");
        scan->at++;
        if (c == '"')
            return TRUE;
        if (c != '\\')
            continue;
        *escapes = TRUE;
        if (take(scan, 'u')) {
            if (!take_unicode_escape(scan))
                return fail(scan, "a character after \\u");
        } else if (scan->at < scan->end && *scan->at && strchr("\"\\/bfnrt", *scan->at)) {
            scan->at++;
        } else {
            return fail(scan, "an escape that JSON knows");
        }
    }
    return fail_at(scan, start, "a closed string", "the end of the file");
}

static guint
take_digits(Scan *scan)
{
    guint n = 0;

    while (scan->at < scan->end && g_ascii_isdigit(*scan->at)) {
        scan->at++;
        n++;
    }
    return n;
}

static gboolean
scan_number(Scan *scan)
{
    const char *start = scan->at;
    gboolean whole = TRUE;

    take(scan, '-');
    gboolean leading_zero = scan->at < scan->end && *scan->at == '0';
    guint digits = take_digits(scan);
    if (digits == 0) {
        scan->at = start;
        return fail(scan, "a value");
    }
    gboolean good = !(leading_zero && digits > 1);
    if (good && take(scan, '.')) {
        whole = FALSE;
        good = take_digits(scan) > 0;
    }
    if (good && (take(scan, 'e') || take(scan, 'E'))) {
        whole = FALSE;
        if (!take(scan, '+'))
            take(scan, '-');
        good = take_digits(scan) > 0;
    }
    /* json-glib would wrap it; nothing in a profile is near that large */
    if (!good || (whole && digits > 18)) {
        scan->at = start;
        return fail(scan, good ? "a number of at most 18 digits" : "a number");
    }
    return TRUE;
}

static gboolean
scan_word(Scan *scan, const char *word)
{
    gsize length = strlen(word);

    if ((gsize)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0)
        return fail(scan, "a value");
    scan->at += length;
    return TRUE;
}

static gboolean
open_level(Scan *scan, gboolean is_object)
{
    if (scan->depth == RP_PROFILE_MAX_DEPTH)
        return fail_at(scan, scan->at, "at most " G_STRINGIFY(RP_PROFILE_MAX_DEPTH) " levels",
                       "one more");
    scan->at++;
    scan->levels[scan->depth].is_object = is_object;
    scan->levels[scan->depth].n_members = 0;
    scan->depth++;
    return TRUE;
}

/* `"key" :` of the innermost object. */
static gboolean
scan_key(Scan *scan)
{
    Level *level = &scan->levels[scan->depth - 1];
    const char *start = scan->at;
    gboolean escapes;

    if (!take(scan, '"'))
        return fail(scan, "a key");
    if (!scan_string(scan, &escapes))
        return FALSE;
    /* no key of the format needs one, and without them equal keys are equal bytes */
    if (escapes)
        return fail_at(scan, start, "a key without escapes", "one with a backslash");
    Key key = {start + 1, (gsize)(scan->at - start) - 2};
    for (guint i = 0; i < level->n_members; i++) {
        if (level->keys[i].length == key.length &&
            memcmp(level->keys[i].start, key.start, key.length) == 0) {
            g_autofree char *text = g_strndup(key.start, key.length);
            g_autofree char *quoted = rp_quote(text);
            g_autofree char *found = g_strdup_printf("%s a second time", quoted);
            return fail_at(scan, start, "each key once", found);
        }
    }
    if (level->n_members == RP_PROFILE_MAX_KEYS)
        return fail_at(scan, start,
                       "at most " G_STRINGIFY(RP_PROFILE_MAX_KEYS) " keys in an object",
                       "one more");
    level->keys[level->n_members++] = key;
    skip_space(scan);
    if (!take(scan, ':'))
        return fail(scan, "`:`");
    skip_space(scan);
    return TRUE;
}

/* One scalar, or the opening of an object or array. */
static gboolean
scan_value(Scan *scan)
{
    gboolean escapes;

    if (scan->n_values++ == RP_PROFILE_MAX_VALUES)
        return fail_at(scan, scan->at, "at most " G_STRINGIFY(RP_PROFILE_MAX_VALUES) " values",
                       "one more");
    if (scan->at == scan->end)
        return fail(scan, "a value");
    switch (*scan->at) {
    case '{':
        return open_level(scan, TRUE);
    case '[':
        return open_level(scan, FALSE);
    case '"':
        scan->at++;
        return scan_string(scan, &escapes);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    default:
        return scan_number(scan);
    }
}

/* From just behind a value to the next value, closing what closes. Sets @done at the end. */
static gboolean
scan_between(Scan *scan, gboolean opened, gboolean *done)
{
    for (;; opened = FALSE) {
        skip_space(scan);
        if (scan->depth == 0) {
            *done = TRUE;
            return scan->at == scan->end || fail(scan, "the end of the file");
        }
        Level *level = &scan->levels[scan->depth - 1];
        if (take(scan, level->is_object ? '}' : ']')) {
            scan->depth--;
            continue;
        }
        if (!opened && !take(scan, ','))
            return fail(scan, level->is_object ? "`,` or `}`" : "`,` or `]`");
        skip_space(scan);
        return !level->is_object || scan_key(scan);
    }
}

gboolean
rp_profile_scan(const char *name, const char *text, gsize length, GError **error)
{
    Scan scan = {.name = name, .text = text, .end = text + length, .at = text, .error = error};
    const char *bad = NULL;
    gboolean done = FALSE;

    if (length > RP_PROFILE_MAX_FILE_BYTES) {
        g_autofree char *shown = rp_display_name(name);
        g_set_error(error, RP_PROFILE_ERROR, RP_PROFILE_ERROR_SYNTAX,
                    "%s: expected at most %" G_GSIZE_FORMAT " bytes, found more", shown,
                    RP_PROFILE_MAX_FILE_BYTES);
        return FALSE;
    }
    if (!g_utf8_validate_len(text, length, &bad)) {
        g_autofree char *found = g_strdup_printf("byte 0x%02x", (guchar)*bad);
        return fail_at(&scan, bad, "UTF-8 text", found);
    }
    skip_space(&scan);
    while (!done) {
        guint depth = scan.depth;
        if (!scan_value(&scan) || !scan_between(&scan, scan.depth > depth, &done))
            return FALSE;
    }
    return TRUE;
}
