/**
 * Reading a tokenizer neither crashes nor leaks, whatever the bytes; a refusal is one line that
 * names the file. An accepted tokenizer makes of a text, which stands behind the first NUL, ids
 * that tokens have, each from bytes of the text, in order; the same ids again, from its cache; and of
 * these it makes UTF-8.
 */
#include "fuzz/harness.h"

#include "text/tokenizer/tokenizer.h"

/* The rest is cut off: patterns without end take their time. */
#define MAX_TEXT 512

static void
check_spans(const RpTokenizer *tokenizer, const GArray *ids, const GArray *spans, gsize length)
{
    guint32 last = 0;

    g_assert(ids->len == spans->len);
    for (guint i = 0; i < ids->len; i++) {
        const RpTokenSpan *span = &g_array_index(spans, RpTokenSpan, i);

        g_assert(rp_tokenizer_token(tokenizer, g_array_index(ids, guint32, i)) != NULL);
        g_assert(span->start >= last && span->start <= span->end && span->end <= length);
        last = span->start;
    }
}

static void
check_text(const RpTokenizer *tokenizer, const char *text, gsize length, RpEncodeFlags flags)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GArray) again = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));
    g_autoptr(GString) back = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    const gboolean good = rp_tokenizer_encode(tokenizer, text, length, flags, ids, spans, &error);

    if (!was_taken(good, error)) {
        g_assert(error->domain == RP_TOKENIZER_ERROR && ids->len == 0 && spans->len == 0);
        return;
    }
    check_spans(tokenizer, ids, spans, length);
    g_assert(rp_tokenizer_encode(tokenizer, text, length, flags, again, NULL, &error));
    g_assert_cmpmem(ids->data, ids->len * sizeof(guint32), again->data,
                    again->len * sizeof(guint32));
    g_assert(rp_tokenizer_decode(tokenizer, (const guint32 *)(const void *)ids->data, ids->len,
                                 RP_DECODE_ALL, back, &error));
    for (const char *p = back->str; p < back->str + back->len; p += strlen(p) + 1)
        g_assert(g_utf8_validate(p, -1, NULL));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    const uint8_t *nul = size > 0 ? memchr(data, '\0', size) : NULL;
    const gsize n_json = nul != NULL ? (gsize)(nul - data) : size;
    const gsize length = nul != NULL ? MIN(size - n_json - 1, MAX_TEXT) : 0;
    g_autofree char *text = length > 0 ? g_memdup2(nul + 1, length) : g_strdup("");
    g_autoptr(RpTokenizer) tokenizer =
        rp_tokenizer_parse("fuzz", (const char *)data, n_json, &error);

    if (!was_taken(tokenizer != NULL, error)) {
        g_assert(error->domain == RP_TOKENIZER_ERROR);
        g_assert(g_str_has_prefix(error->message, "fuzz: "));
        return 0;
    }
    check_text(tokenizer, text, length, RP_ENCODE_TEXT);
    check_text(tokenizer, text, length, RP_ENCODE_TEMPLATE | RP_ENCODE_PLAIN);
    return 0;
}
