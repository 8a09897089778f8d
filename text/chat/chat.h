/**
 * Records of text to samples: a line of JSON, rendered by a checkpoint's template, as ids and labels.
 *
 *   {"messages": [...]} -> template -> text and the spans to learn -> tokenizer -> ids, labels
 *
 * Records are chats (`messages`; `conversations`, as ShareGPT writes them; `instruction`, as Alpaca),
 * `prompt` and `completion`, or `text`; those of `input_ids` are text/samples'. docs/data.md has their
 * keys, and the rule by which the text to learn is found: in the text as it is rendered, never by
 * searching ids.
 *
 * An RpChat may be used by several threads at once.
 */
#pragma once

#include "core/catalogue/preference.h"
#include "text/tokenizer/tokenizer.h"

#define RP_CHAT_ERROR (rp_chat_error_quark())
GQuark rp_chat_error_quark(void);
typedef enum {
    RP_CHAT_ERROR_FILE,   /* the checkpoint has no template, or a broken one */
    RP_CHAT_ERROR_RECORD, /* not JSON, or not a record that is known */
    RP_CHAT_ERROR_RENDER  /* the template refuses the chat, or its turns cannot be distinguished */
} RpChatError;

/* The label of a token that is not learned. */
#define RP_CHAT_MASKED (-100)

/* The part of a chat that is learned: assistants' turns, the last of them, or all text. */
typedef enum { RP_TRAIN_ON_ASSISTANT, RP_TRAIN_ON_LAST, RP_TRAIN_ON_ALL } RpTrainOn;
/* "assistant", "last", "all"; NULL behind the last */
extern const char *const rp_train_on_names[];

typedef struct {
    RpTrainOn train_on;
    const char *template_file; /* (nullable): file of `chat_template`, not the checkpoint's */
    GDateTime *now; /* (nullable): the date that templates see; NULL: when it is opened */
} RpChatOptions;

typedef struct _RpChat RpChat;

/**
 * rp_chat_open:
 * @checkpoint: directory with tokenizer_config.json and perhaps chat_template.jinja
 * @tokenizer: must outlive the chat
 *
 * A checkpoint without a template is none the worse until a chat is read.
 *
 * Returns: (transfer full)
 * Errors: G_FILE_ERROR, RP_CHAT_ERROR_FILE with line and column, RP_TEMPLATE_ERROR
 */
RpChat *rp_chat_open(const char *checkpoint, const RpTokenizer *tokenizer,
                     const RpChatOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_chat_free(RpChat *chat);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpChat, rp_chat_free)

/* Hash of everything that the samples depend on beside the record and the tokenizer: template,
 * special tokens, the learned part, and the date if the template asks for it. */
guint64 rp_chat_fingerprint(const RpChat *chat);

/* The source of its template, of chats without tools; %NULL: there is none. */
const char *rp_chat_template_source(const RpChat *chat);

/* A part of a text to learn. */
typedef struct {
    gsize start; /* bytes */
    gsize end;
    double weight;
} RpChatSpan;

typedef struct {
    GString *text;
    GArray *spans; /* (element-type RpChatSpan): ascending, none overlaps */
} RpChatText;

void rp_chat_text_clear(RpChatText *text);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpChatText, rp_chat_text_clear)

/**
 * rp_chat_render:
 * @file: for messages
 * @line: the record's in its file, from 1
 * @json: the record, @length bytes
 * @text: (out): set on success only
 *
 * Errors: RP_CHAT_ERROR with file, line, column and keys
 */
gboolean rp_chat_render(const RpChat *chat, const char *file, guint64 line, const char *json,
                        gsize length, RpChatText *text, GError **error) G_GNUC_WARN_UNUSED_RESULT;

typedef struct {
    GArray *ids;        /* (element-type gint32) */
    GArray *labels;     /* (element-type gint32): the id, or RP_CHAT_MASKED */
    GArray *weights;    /* (element-type float): the labels'; empty if all are 1 */
    gsize n_learned;    /* labels that are not masked; 0: nothing is learned of it */
    gboolean desirable; /* rp_chat_answer(): its label */
} RpChatSample;

void rp_chat_sample_clear(RpChatSample *sample);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpChatSample, rp_chat_sample_clear)

/**
 * rp_chat_sample:
 *
 * As rp_chat_render(), then tokens. A token is learned if a byte of its text is in a span. `text`
 * and `completion` end in the tokenizer's eos; chats end as their template has it.
 *
 * Errors: RP_CHAT_ERROR; the tokenizer's
 */
gboolean rp_chat_sample(const RpChat *chat, const char *file, guint64 line, const char *json,
                        gsize length, RpChatSample *sample,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_chat_answer:
 * @answer: RP_ANSWER_CHOSEN or RP_ANSWER_REJECTED, of a record of `chosen` and `rejected`; RP_ANSWER_DESIRABLE, of one
 *   of `prompt`, `completion` and `label`, which may say otherwise
 *
 * As rp_chat_sample(), of the prompt and one answer of a preference, which alone is learned. A prompt that has no key of
 * its own is what both answers begin with: their first messages, or the first letters of texts.
 */
gboolean rp_chat_answer(const RpChat *chat, RpAnswerKind answer, const char *file, guint64 line,
                        const char *json, gsize length, RpChatSample *sample,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_chat_prompt:
 * @json: a record that is a chat
 *
 * The text that a model continues: the chat and the start of the assistant's turn.
 *
 * Returns: (transfer full): NULL on error
 * Errors: as rp_chat_render()
 */
GString *rp_chat_prompt(const RpChat *chat, const char *file, guint64 line, const char *json,
                        gsize length, GError **error) G_GNUC_WARN_UNUSED_RESULT;
