#include "text/chat/private.h"

#include <string.h>

static void
add_span(GArray *spans, gsize start, gsize end)
{
    const RpChatSpan span = {start, end, 1.0};

    if (end > start)
        g_array_append_val(spans, span);
}

/* The text of a record that is no chat; all of it is learned, or the part behind the prompt. */
static void
plain_text(const RpChat *chat, const RpRecord *record, RpChatText *text)
{
    *text = (RpChatText){g_string_new(NULL), g_array_new(FALSE, FALSE, sizeof(RpChatSpan))};
    if (record->kind == RP_RECORD_COMPLETION)
        g_string_append_len(text->text, record->prompt.text, record->prompt.length);
    const gsize prompt = text->text->len;
    g_string_append_len(text->text, record->text.text, record->text.length);
    add_span(text->spans, chat->options.train_on == RP_TRAIN_ON_ALL ? 0 : prompt, text->text->len);
}

static gboolean
render_record(const RpChat *chat, const RpRecord *record, RpChatText *text, GError **error)
{
    if (record->kind == RP_RECORD_CHAT)
        return rp_chat_find_turns(chat, record, text, error);
    plain_text(chat, record, text);
    return TRUE;
}

gboolean
rp_chat_render(const RpChat *chat, const char *file, guint64 line, const char *json, gsize length,
               RpChatText *text, GError **error)
{
    g_auto(RpRecord) record = {0};

    return rp_record_read(file, line, json, length, &record, error) &&
           render_record(chat, &record, text, error);
}

void
rp_chat_sample_clear(RpChatSample *sample)
{
    if (sample->ids != NULL)
        g_array_free(sample->ids, TRUE);
    if (sample->labels != NULL)
        g_array_free(sample->labels, TRUE);
    if (sample->weights != NULL)
        g_array_free(sample->weights, TRUE);
    *sample = (RpChatSample){0};
}

/* Weights of @n labels; none where all are 1. */
static void
keep_weights(RpChatSample *sample, const float *weights, gsize n)
{
    gboolean ones = TRUE;

    for (gsize i = 0; ones && i < n; i++)
        ones = weights[i] == 1.0f;
    if (!ones)
        g_array_append_vals(sample->weights, weights, (guint)n);
}

/* Labels by where tokens stand: a token is learned if a byte of it is in a span. */
static void
label(RpChatSample *sample, const GArray *tokens, const GArray *spans)
{
    g_autofree float *weights = g_new(float, tokens->len + 1);
    guint k = 0;

    for (guint i = 0; i < tokens->len; i++) {
        const RpTokenSpan token = g_array_index(tokens, RpTokenSpan, i);
        gint32 id = RP_CHAT_MASKED;
        weights[i] = 1.0f;
        while (k < spans->len && g_array_index(spans, RpChatSpan, k).end <= token.start)
            k++;
        const RpChatSpan *span = k < spans->len ? &g_array_index(spans, RpChatSpan, k) : NULL;
        if (span != NULL && token.end > token.start && token.end > span->start) {
            id = g_array_index(sample->ids, gint32, i);
            weights[i] = (float)span->weight;
            sample->n_learned++;
        }
        g_array_append_val(sample->labels, id);
    }
    keep_weights(sample, weights, tokens->len);
}

/* The end that the tokenizer names, where the text has none: learned as the text before it. */
static void
add_end(const RpChat *chat, RpChatSample *sample)
{
    const gint64 eos = rp_tokenizer_role(chat->tokenizer, RP_TOKEN_EOS);
    const gint32 id = (gint32)eos;
    const guint n = sample->ids->len;

    if (eos < 0)
        return;
    if (n == 0 || g_array_index(sample->ids, gint32, n - 1) != id) {
        g_array_append_val(sample->ids, id);
        g_array_append_val(sample->labels, id);
    } else if (g_array_index(sample->labels, gint32, n - 1) == RP_CHAT_MASKED) {
        g_array_index(sample->labels, gint32, n - 1) = id; /* the tokenizer's template added it */
    } else {
        return;
    }
    sample->n_learned++;
}

static gboolean
tokenize(const RpChat *chat, const RpRecord *record, const RpChatText *text, RpChatSample *sample,
         GError **error)
{
    const gboolean plain = record->kind != RP_RECORD_CHAT;
    g_autoptr(GArray) tokens = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));

    if (!rp_tokenizer_encode(chat->tokenizer, text->text->str, text->text->len,
                             plain ? RP_ENCODE_TEMPLATE : RP_ENCODE_TEXT, sample->ids, tokens,
                             error)) {
        g_prefix_error(error, "%s: line %" G_GUINT64_FORMAT ": ", record->file, record->line);
        return FALSE;
    }
    label(sample, tokens, text->spans);
    if (plain)
        add_end(chat, sample);
    return TRUE;
}

gboolean
rp_chat_sample(const RpChat *chat, const char *file, guint64 line, const char *json, gsize length,
               RpChatSample *sample, GError **error)
{
    g_auto(RpRecord) record = {0};
    g_auto(RpChatText) text = {0};
    g_auto(RpChatSample) made = {.ids = g_array_new(FALSE, FALSE, sizeof(gint32)),
                                 .labels = g_array_new(FALSE, FALSE, sizeof(gint32)),
                                 .weights = g_array_new(FALSE, FALSE, sizeof(float))};

    if (!rp_record_read(file, line, json, length, &record, error) ||
        !render_record(chat, &record, &text, error) ||
        !tokenize(chat, &record, &text, &made, error))
        return FALSE;
    *sample = made;
    made = (RpChatSample){0};
    return TRUE;
}
