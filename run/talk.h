/**
 * Answers in text: to a prompt, which is continued, or to questions, as a chat has them.
 */
#pragma once

#include "exec/generate/generator.h"
#include "run/trained.h"

/* Tokens of an answer if none are given, and those of a conversation at most. */
#define RP_TALK_TOKENS 256
#define RP_TALK_CONVERSATION 4096

typedef struct _RpTalk RpTalk;

typedef struct {
    const char
        *model; /* a directory with a model; with adapters, whose base their config names; or the
                          output of a run: its best checkpoint, else its last */
    const char *adapter; /* (nullable): a directory of adapters for it */
    gboolean any_base;   /* adapters of another base are taken */
    const char *device;  /* (nullable): "host", "cuda" or "cuda:1"; %NULL: the host */
    gboolean chat;       /* prompts are questions, which the model's template writes */
    const char *system;  /* (nullable): of a chat, before the first question */
    gboolean converses;  /* more questions follow: positions are kept for them */
} RpTalkOptions;

/* A piece of an answer as it comes, whole characters. Returns: whether it may continue */
typedef gboolean (*RpTalkText)(gpointer user_data, const char *text, gsize length);

/**
 * rp_talk_new:
 * @options: copied; its texts are needed in this call alone
 *
 * Opens the model, its tokenizer and the template.
 *
 * Errors: RP_RUN_ERROR_USAGE: a device that is none, or adapters without a base; those of the files
 */
RpTalk *rp_talk_new(const RpTalkOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_talk_free(RpTalk *talk);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTalk, rp_talk_free)

/**
 * rp_talk_answer:
 * @prompt: UTF-8
 * @most_tokens: of the answer; 0: RP_TALK_TOKENS, or as many as the model's positions leave
 * @sampling: how tokens are chosen; its temperature is 0, or its top_p above 0
 * @text: (nullable): gets the answer as it comes
 *
 * In a chat, earlier questions and answers stand before the prompt.
 *
 * Returns: the answer; the talk's, until the next one
 * Errors: RP_RUN_ERROR_USAGE: no text, or more tokens than positions; RP_GENERATE_ERROR_MEMORY
 */
const char *rp_talk_answer(RpTalk *talk, const char *prompt, guint most_tokens,
                           const RpSampling *sampling, RpTalkText text, gpointer user_data,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ids of the last prompt and answer. (element-type gint32) */
const GArray *rp_talk_prompt_ids(const RpTalk *talk);
const GArray *rp_talk_answer_ids(const RpTalk *talk);
/* Whether a token ended the answer, not its length. */
gboolean rp_talk_ended(const RpTalk *talk);
/* Time of the answer, without that of loading the model. */
double rp_talk_seconds(const RpTalk *talk);
