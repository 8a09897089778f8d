/**
 * Text around a trained model: prompts become ids, and the ids of an answer become text, whole characters at a time.
 *
 *   text, or a chat's messages -> template -> tokenizer -> ids -> generator -> ids -> text
 */
#pragma once

#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

/* Tokens of an answer if none are given. */
#define RP_ANSWER_TOKENS 256

/* rp_trained_text() opens it. May be used by several threads at once. */
typedef struct {
    RpTokenizer *tokenizer;
    RpChat *chat; /* or %NULL */
} RpModelText;

void rp_model_text_clear(RpModelText *text);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpModelText, rp_model_text_clear)

/**
 * rp_model_text_encode:
 * @name: for messages
 * @prompt: @length bytes
 * @flags: of a text that is continued RP_ENCODE_TEMPLATE; a template has written those itself
 * @ids: (element-type guint32): replaced
 *
 * Errors: RP_TOKENIZER_ERROR_TEXT; RP_RUN_ERROR_USAGE: there is no token
 */
gboolean rp_model_text_encode(const RpModelText *text, const char *name, const char *prompt,
                              gsize length, RpEncodeFlags flags, GArray *ids,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ids of a chat up to the answer. @name: of the record @json, for messages. Errors: also those of rp_chat_prompt() */
gboolean rp_model_text_chat(const RpModelText *text, const char *name, const char *json,
                            gsize length, GArray *ids, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_answer_length:
 * @key: for messages: what @asked is called
 * @positions: tokens of a prompt and its answer at most
 * @asked: 0: RP_ANSWER_TOKENS, or as many as are left
 *
 * Errors: RP_RUN_ERROR_USAGE with the number
 */
gboolean rp_answer_length(const char *key, guint positions, guint n_prompt, guint asked,
                          guint *most_tokens, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- answers ---- */

typedef struct {
    const RpTokenizer *tokenizer;
    GArray *known; /* (element-type guint32): the answer's ids that are tokens */
    GString *text;
    gsize whole; /* bytes of it that later tokens leave as they are */
} RpAnswerText;

void rp_answer_text_init(RpAnswerText *answer, const RpTokenizer *tokenizer);
void rp_answer_text_clear(RpAnswerText *answer);
/* Adds tokens; half a character waits for its other half. */
void rp_answer_text_add(RpAnswerText *answer, const gint32 *ids, guint n);
/* The next answer begins. */
void rp_answer_text_restart(RpAnswerText *answer);
