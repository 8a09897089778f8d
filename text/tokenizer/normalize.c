/*
 * Text before it is cut into pieces. Unicode's forms are made piece by piece: a character, and
 * those that may join it: marks, and the letters of Hangul and Katakana. All else in a text stays
 * where it is, without a look at it where no byte is beyond U+02FF.
 */
#include "text/tokenizer/private.h"

#include <string.h>

/* Code points that one code point decomposes into at most, as GLib says. */
#define MOST_DECOMPOSED G_UNICHAR_MAX_DECOMPOSITION_LENGTH
/* The first byte of U+0300, the first character that changes or is joined in NFC. */
#define FIRST_NFC 0xcc
/* Ideographs, which never compose: a short cut. */
#define IS_IDEOGRAPH(c) ((c) >= 0x4e00 && (c) <= 0x9fff)

static void
append_edit(GArray *edits, const GString *out, gsize new_start, gsize old_start, gsize old_end)
{
    const RpEdit edit = {(guint32)new_start, (guint32)out->len, (guint32)old_start,
                         (guint32)old_end};

    if (edits != NULL)
        g_array_append_val(edits, edit);
}

/* ---- Unicode's forms ---- */

static gboolean
joins(gunichar c)
{
    return g_unichar_ismark(c) || (c >= 0x1160 && c <= 0x11ff) || (c >= 0xd7b0 && c <= 0xd7ff) ||
           (c >= 0x314f && c <= 0x318e) || (c >= 0xff9e && c <= 0xffdc);
}

/* Whether a character that stands alone is its own form. */
static gboolean
is_itself(RpStepKind kind, gunichar c)
{
    gunichar a, b, joined;

    if (IS_IDEOGRAPH(c))
        return TRUE;
    if (kind == RP_STEP_NFC)
        return !g_unichar_decompose(c, &a, &b) ||
               (b != 0 && g_unichar_compose(a, b, &joined) && joined == c);
    return FALSE;
}

static gint
compare_classes(gconstpointer a, gconstpointer b, gpointer user_data)
{
    return g_unichar_combining_class(*(const gunichar *)a) -
           g_unichar_combining_class(*(const gunichar *)b);
}

/* Orders the marks behind a character by their classes; marks of one class keep their order. */
static void
order_marks(gunichar *characters, guint n)
{
    for (guint i = 0, end; i < n; i = end) {
        gboolean sorted = TRUE;

        end = i + 1;
        if (g_unichar_combining_class(characters[i]) == 0)
            continue;
        for (; end < n && g_unichar_combining_class(characters[end]) != 0; end++)
            sorted = sorted && g_unichar_combining_class(characters[end - 1]) <=
                                   g_unichar_combining_class(characters[end]);
        if (!sorted)
            g_qsort_with_data(characters + i, (gint)(end - i), sizeof *characters, compare_classes,
                              NULL);
    }
}

/* Composes characters. Returns: the number left */
static guint
compose(gunichar *characters, guint n)
{
    guint kept = 0, starter = G_MAXUINT;
    int last_class = -1;

    for (guint i = 0; i < n; i++) {
        const int class = g_unichar_combining_class(characters[i]);
        gunichar joined;

        if (starter != G_MAXUINT && last_class < class &&
            g_unichar_compose(characters[starter], characters[i], &joined)) {
            characters[starter] = joined;
            continue;
        }
        if (class == 0) {
            starter = kept;
            last_class = -1;
        } else {
            last_class = class;
        }
        characters[kept++] = characters[i];
    }
    return kept;
}

/* The form of one piece of @text, appended. */
static void
append_form(RpStepKind kind, const char *text, gsize length, GArray *characters, GString *out)
{
    const gboolean compatible = kind == RP_STEP_NFKC || kind == RP_STEP_NFKD;

    g_array_set_size(characters, 0);
    for (const char *p = text; p < text + length; p = g_utf8_next_char(p)) {
        gunichar parts[MOST_DECOMPOSED];
        const gsize n =
            g_unichar_fully_decompose(g_utf8_get_char(p), compatible, parts, MOST_DECOMPOSED);

        g_array_append_vals(characters, parts, (guint)n);
    }
    gunichar *all = (gunichar *)(void *)characters->data;
    guint n = characters->len;

    order_marks(all, n);
    if (kind == RP_STEP_NFC || kind == RP_STEP_NFKC)
        n = compose(all, n);
    for (guint i = 0; i < n; i++)
        g_string_append_unichar(out, all[i]);
}

static gboolean
normalize_form(RpStepKind kind, const char *text, gsize length, GString *out, GArray *edits)
{
    const guint8 first = kind == RP_STEP_NFC ? FIRST_NFC : 0x80;
    g_autoptr(GArray) characters = g_array_new(FALSE, FALSE, sizeof(gunichar));
    gsize at = 0, copied = 0;

    while (at < length) {
        if ((guint8)text[at] < first) {
            at++;
            continue;
        }
        /* a mark joins the character before it, though that be ASCII */
        gsize start = at, end = (gsize)(g_utf8_next_char(text + at) - text);
        const gunichar c = g_utf8_get_char(text + at);
        gboolean alone = TRUE;

        if (!IS_IDEOGRAPH(c) && joins(c) && at > copied) {
            start = (gsize)(g_utf8_prev_char(text + at) - text);
            alone = FALSE;
        }
        while (end < length && (guint8)text[end] >= first && joins(g_utf8_get_char(text + end))) {
            end = (gsize)(g_utf8_next_char(text + end) - text);
            alone = FALSE;
        }
        at = end;
        if (alone && is_itself(kind, c))
            continue;
        g_string_append_len(out, text + copied, (gssize)(start - copied));
        const gsize new_start = out->len;

        append_form(kind, text + start, end - start, characters, out);
        copied = end;
        if (out->len - new_start != end - start ||
            memcmp(out->str + new_start, text + start, end - start) != 0)
            append_edit(edits, out, new_start, start, end);
    }
    g_string_append_len(out, text + copied, (gssize)(length - copied));
    return copied > 0;
}

/* ---- words ---- */

static int
replace(const RpStep *step, RpMatch *match, const char *text, gsize length, gsize most,
        GString *out, GArray *edits)
{
    gsize copied = 0, from = 0, start, end;
    int found;

    while (from <= length &&
           (found = rp_pattern_next(step->pattern, match, text, length, from, &start, &end)) != 0) {
        if (found < 0 || out->len > most)
            return -1;
        g_string_append_len(out, text + copied, (gssize)(start - copied));
        const gsize new_start = out->len;

        g_string_append(out, step->content);
        append_edit(edits, out, new_start, start, end);
        copied = end;
        from = end > start    ? end
               : end < length ? (gsize)(g_utf8_next_char(text + end) - text)
                              : length + 1;
    }
    if (copied == 0 && out->len == 0)
        return 0;
    g_string_append_len(out, text + copied, (gssize)(length - copied));
    return 1;
}

int
rp_normalize(const RpStep *step, RpMatch *match, const char *text, gsize length, gsize most,
             GString *out, GArray *edits)
{
    g_string_truncate(out, 0);
    if (step->kind == RP_STEP_REPLACE)
        return replace(step, match, text, length, most, out, edits);
    if (step->kind != RP_STEP_PREPEND)
        return normalize_form(step->kind, text, length, out, edits);
    if (length == 0)
        return 0;
    g_string_append(out, step->content);
    append_edit(edits, out, 0, 0, 0);
    g_string_append_len(out, text, (gssize)length);
    return 1;
}
