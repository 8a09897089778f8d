#include "run/model-text.h"

#include "core/base/quote.h"
#include "run/settings.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void
rp_model_text_clear(RpModelText *text)
{
    g_clear_pointer(&text->chat, rp_chat_free);
    g_clear_pointer(&text->tokenizer, rp_tokenizer_free);
}

gboolean
rp_model_text_encode(const RpModelText *text, const char *name, const char *prompt, gsize length,
                     RpEncodeFlags flags, GArray *ids, GError **error)
{
    g_array_set_size(ids, 0);
    if (!rp_tokenizer_encode(text->tokenizer, prompt, length, flags, ids, NULL, error))
        return rp_prefix_error(error, "%s: ", name);
    return ids->len > 0 || rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                                   "%s: expected a text, found none", name);
}

gboolean
rp_model_text_chat(const RpModelText *text, const char *name, const char *json, gsize length,
                   GArray *ids, GError **error)
{
    GString *prompt = rp_chat_prompt(text->chat, name, 1, json, length, error);

    if (prompt == NULL)
        return FALSE;
    const gboolean good =
        rp_model_text_encode(text, name, prompt->str, prompt->len, RP_ENCODE_TEXT, ids, error);

    g_string_free(prompt, TRUE);
    return good;
}

gboolean
rp_answer_length(const char *key, guint positions, guint n_prompt, guint asked, guint *most_tokens,
                 GError **error)
{
    const guint space = positions - MIN(positions, n_prompt);
    const guint most = asked > 0 ? asked : MIN(RP_ANSWER_TOKENS, MAX(space, 1));

    if (most > space)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "%s: expected at most %u, which %u positions leave after a prompt of %u "
                       "tokens, found %u",
                       key, space, positions, n_prompt, most);
    *most_tokens = most;
    return TRUE;
}

/* ---- answers ---- */

void
rp_answer_text_init(RpAnswerText *answer, const RpTokenizer *tokenizer)
{
    *answer = (RpAnswerText){.tokenizer = tokenizer,
                             .known = g_array_new(FALSE, FALSE, sizeof(guint32)),
                             .text = g_string_new(NULL)};
}

void
rp_answer_text_clear(RpAnswerText *answer)
{
    g_clear_pointer(&answer->known, g_array_unref);
    if (answer->text != NULL)
        g_string_free(g_steal_pointer(&answer->text), TRUE);
}

void
rp_answer_text_restart(RpAnswerText *answer)
{
    g_array_set_size(answer->known, 0);
    g_string_truncate(answer->text, 0);
    answer->whole = 0;
}

void
rp_answer_text_add(RpAnswerText *answer, const gint32 *ids, guint n)
{
    for (guint i = 0; i < n; i++) {
        const guint32 id = (guint32)ids[i];

        /* a model may have more ids than its tokenizer has tokens */
        if (rp_tokenizer_token(answer->tokenizer, id) != NULL)
            g_array_append_val(answer->known, id);
    }
    g_string_truncate(answer->text, 0);
    const gboolean good =
        rp_tokenizer_decode(answer->tokenizer, (const guint32 *)(const void *)answer->known->data,
                            answer->known->len, RP_DECODE_SKIP_SPECIAL, answer->text, NULL);

    g_assert(good);
    if (!g_str_has_suffix(answer->text->str, REPLACEMENT))
        answer->whole = MAX(answer->whole, answer->text->len);
}
