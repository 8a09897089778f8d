/* Ids to text: the tokens, run through the file's decoders. */
#include "text/tokenizer/private.h"

#include <string.h>

#include "core/base/quote.h"

/* Bytes that a decoder may make of a token. */
#define MOST_OF_TOKEN 65536
/* U+FFFD */
#define REPLACEMENT "\xef\xbf\xbd"

/* How many bytes from @bytes on belong to one character that is not UTF-8: at least one, and as many
 * as begin a character (Unicode 3.9, the table of maximal subparts). */
static gsize
broken_length(const guint8 *bytes, gsize n)
{
    const guint8 lead = bytes[0];
    const gsize most = lead >= 0xf0 && lead <= 0xf4 ? 4 : lead >= 0xe0 ? 3 : 2;
    guint8 low = 0x80, high = 0xbf;
    gsize length = 1;

    if (lead < 0xc2 || lead > 0xf4)
        return 1;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    while (length < MIN(n, most) && bytes[length] >= low && bytes[length] <= high) {
        length++;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

gsize
rp_utf8_length(const char *text, gsize length)
{
    const char *bad = text;

    /* GLib takes NUL for the end */
    while (!g_utf8_validate_len(bad, length - (gsize)(bad - text), &bad) && *bad == '\0')
        bad++;
    return (gsize)(bad - text);
}

static void
append_lossy(GString *text, const char *bytes, gsize n)
{
    while (n > 0) {
        const gsize length = rp_utf8_length(bytes, n);

        g_string_append_len(text, bytes, (gssize)length);
        bytes += length;
        n -= length;
        if (n == 0)
            return;
        const gsize broken = broken_length((const guint8 *)bytes, n);

        g_string_append(text, REPLACEMENT);
        bytes += broken;
        n -= broken;
    }
}

/* ---- steps; each makes a list of texts from a list of texts ---- */

static void
byte_level(const RpTokenizer *tokenizer, GPtrArray *texts)
{
    g_autoptr(GString) bytes = g_string_new(NULL);
    GString *all = g_string_new(NULL);

    for (guint i = 0; i < texts->len; i++) {
        const GString *text = g_ptr_array_index(texts, i);
        const guint32 id = rp_vocabulary_find(&tokenizer->vocabulary, text->str, text->len);
        gsize n = text->len;
        const char *part =
            id != RP_TOKEN_NONE ? rp_vocabulary_bytes(&tokenizer->vocabulary, id, &n) : text->str;

        g_string_append_len(bytes, part, (gssize)n);
    }
    append_lossy(all, bytes->str, bytes->len);
    g_ptr_array_set_size(texts, 0);
    g_ptr_array_add(texts, all);
}

/* A text that would grow without end stays as it is. */
static void
replace(const RpStep *step, RpMatch *match, GPtrArray *texts)
{
    g_autoptr(GString) out = g_string_new(NULL);

    for (guint i = 0; i < texts->len; i++) {
        GString *text = g_ptr_array_index(texts, i);

        if (rp_normalize(step, match, text->str, text->len, MOST_OF_TOKEN, out, NULL) > 0) {
            g_string_truncate(text, 0);
            g_string_append_len(text, out->str, (gssize)out->len);
        }
    }
}

/* The byte that "<0x0A>" stands for; -1: it is something else. */
static int
fallback_byte(const GString *text)
{
    if (text->len != 6 || !g_str_has_prefix(text->str, "<0x") || text->str[5] != '>' ||
        !g_ascii_isxdigit(text->str[3]) || !g_ascii_isxdigit(text->str[4]))
        return -1;
    return g_ascii_xdigit_value(text->str[3]) * 16 + g_ascii_xdigit_value(text->str[4]);
}

/* Bytes in a row are a text if they are UTF-8, else as many U+FFFD. */
static void
append_bytes(GPtrArray *texts, GString *bytes)
{
    if (bytes->len == 0)
        return;
    const gboolean good = rp_utf8_length(bytes->str, bytes->len) == bytes->len;

    if (good)
        g_ptr_array_add(texts, g_string_new_len(bytes->str, (gssize)bytes->len));
    for (gsize i = 0; i < bytes->len && !good; i++)
        g_ptr_array_add(texts, g_string_new(REPLACEMENT));
    g_string_truncate(bytes, 0);
}

static void
byte_fallback(GPtrArray *texts)
{
    g_autoptr(GPtrArray) old = g_ptr_array_new();
    g_autoptr(GString) bytes = g_string_new(NULL);
    const guint n = texts->len;

    for (guint i = 0; i < n; i++)
        g_ptr_array_add(old, g_ptr_array_index(texts, i));
    g_ptr_array_set_free_func(texts, NULL);
    g_ptr_array_set_size(texts, 0);
    for (guint i = 0; i < n; i++) {
        GString *text = g_ptr_array_index(old, i);
        const int byte = fallback_byte(text);

        if (byte >= 0) {
            g_string_append_c(bytes, (char)byte);
            g_string_free(text, TRUE);
        } else {
            append_bytes(texts, bytes);
            g_ptr_array_add(texts, text);
        }
    }
    append_bytes(texts, bytes);
}

static void
fuse(GPtrArray *texts)
{
    GString *all = g_string_new(NULL);

    for (guint i = 0; i < texts->len; i++) {
        const GString *text = g_ptr_array_index(texts, i);

        g_string_append_len(all, text->str, (gssize)text->len);
    }
    g_ptr_array_set_size(texts, 0);
    g_ptr_array_add(texts, all);
}

static void
strip(const RpStep *step, GPtrArray *texts)
{
    const gsize n = strlen(step->content);

    for (guint i = 0; i < texts->len; i++) {
        GString *text = g_ptr_array_index(texts, i);

        for (guint k = 0; k < step->start && g_str_has_prefix(text->str, step->content); k++)
            g_string_erase(text, 0, (gssize)n);
        for (guint k = 0; k < step->stop && g_str_has_suffix(text->str, step->content); k++)
            g_string_truncate(text, text->len - n);
    }
}

/* The marks of the first text go where one was put in front; others are spaces. */
static void
metaspace(const RpStep *step, GPtrArray *texts)
{
    for (guint i = 0; i < texts->len; i++) {
        GString *text = g_ptr_array_index(texts, i);

        g_string_replace(text, step->content, i == 0 && step->drop_first ? "" : " ", 0);
    }
}

static void
run(const RpTokenizer *tokenizer, const RpStep *step, RpMatch *match, GPtrArray *texts)
{
    switch (step->kind) {
    case RP_STEP_BYTE_LEVEL:
        byte_level(tokenizer, texts);
        break;
    case RP_STEP_REPLACE:
        replace(step, match, texts);
        break;
    case RP_STEP_BYTE_FALLBACK:
        byte_fallback(texts);
        break;
    case RP_STEP_FUSE:
        fuse(texts);
        break;
    case RP_STEP_STRIP:
        strip(step, texts);
        break;
    case RP_STEP_METASPACE:
        metaspace(step, texts);
        break;
    default:
        g_assert_not_reached();
    }
}

static void
string_free(gpointer data)
{
    g_string_free(data, TRUE);
}

static gboolean
is_left_out(const RpTokenizer *tokenizer, guint32 id, RpDecodeFlags flags)
{
    return (flags & RP_DECODE_SKIP_SPECIAL) != 0 && rp_tokenizer_is_special(tokenizer, id);
}

/* Byte-level decoders alone need no list. */
static void
decode_bytes(const RpTokenizer *tokenizer, const guint32 *ids, gsize n_ids, RpDecodeFlags flags,
             GString *text)
{
    g_autoptr(GString) bytes = g_string_new(NULL);

    for (gsize i = 0; i < n_ids; i++) {
        gsize n;
        const char *part = rp_vocabulary_bytes(&tokenizer->vocabulary, ids[i], &n);

        if (!is_left_out(tokenizer, ids[i], flags))
            g_string_append_len(bytes, part, (gssize)n);
    }
    append_lossy(text, bytes->str, bytes->len);
}

static void
decode_steps(const RpTokenizer *tokenizer, const guint32 *ids, gsize n_ids, RpDecodeFlags flags,
             GString *text)
{
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(string_free);
    const GArray *steps = tokenizer->decoders;
    RpMatch *match = rp_match_new();

    for (gsize i = 0; i < n_ids; i++)
        if (!is_left_out(tokenizer, ids[i], flags))
            g_ptr_array_add(texts, g_string_new(rp_tokenizer_token(tokenizer, ids[i])));
    for (guint i = 0; i < steps->len; i++) {
        run(tokenizer, &g_array_index(steps, RpStep, i), match, texts);
        g_ptr_array_set_free_func(texts, string_free);
    }
    rp_match_free(match);
    for (guint i = 0; i < texts->len; i++) {
        const GString *part = g_ptr_array_index(texts, i);

        if (i > 0 && steps->len == 0)
            g_string_append_c(text, ' ');
        g_string_append_len(text, part->str, (gssize)part->len);
    }
}

gboolean
rp_tokenizer_decode(const RpTokenizer *tokenizer, const guint32 *ids, gsize n_ids,
                    RpDecodeFlags flags, GString *text, GError **error)
{
    const GArray *steps = tokenizer->decoders;

    for (gsize i = 0; i < n_ids; i++)
        if (rp_tokenizer_token(tokenizer, ids[i]) == NULL)
            return rp_fail(error, RP_TOKENIZER_ERROR, RP_TOKENIZER_ERROR_ID,
                           "id %" G_GSIZE_FORMAT ": expected that of a token, at most %u, found %u",
                           i + 1, rp_tokenizer_size(tokenizer) - 1, ids[i]);
    if (steps->len == 1 && g_array_index(steps, RpStep, 0).kind == RP_STEP_BYTE_LEVEL)
        decode_bytes(tokenizer, ids, n_ids, flags, text);
    else
        decode_steps(tokenizer, ids, n_ids, flags, text);
    return TRUE;
}
