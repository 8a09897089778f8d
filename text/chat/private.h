/**
 * Shared by a chat's parts: its templates, and records as they were read. Within this folder.
 */
#pragma once

#include "text/chat/chat.h"
#include "text/template/template.h"

#define RP_CHAT_MAX_BYTES ((gsize)512 << 20) /* limit of a record's values in memory */

struct _RpChat {
    const RpTokenizer *tokenizer;
    RpChatOptions options;
    char *checkpoint;
    RpArena *arena;      /* owns @tokens */
    RpDict *tokens;      /* bos_token, ...: as the template sees them */
    RpTemplate *plain;   /* NULL: none was found */
    RpTemplate *tools;   /* (nullable): for chats with tools */
    GString *prompt;     /* the result of rp_chat_find_prompt() without variables and tools */
    gboolean takes_text; /* content as a string */
    gboolean takes_parts;
    guint64 fingerprint;
};

/* From files of the checkpoint, or options->template_file. */
gboolean rp_chat_read_checkpoint(RpChat *chat, GError **error);

typedef enum { RP_RECORD_CHAT, RP_RECORD_COMPLETION, RP_RECORD_TEXT } RpRecordKind;

typedef enum { RP_TRAIN_DEFAULT, RP_TRAIN_YES, RP_TRAIN_NO } RpTrainMessage;

typedef struct {
    RpDict *dict; /* as the template sees it; tag: its index + 1 */
    gboolean assistant;
    RpTrainMessage train;
    double weight;
} RpMessage;

typedef struct {
    RpRecordKind kind;
    RpArena *arena;
    GArray *messages;   /* (element-type RpMessage) */
    guint n_prompt;     /* messages that are a prompt */
    RpValue tools;      /* none: there are none */
    RpValue documents;  /* the same */
    RpDict *variables;  /* chat_template_kwargs; (nullable) */
    RpValue prompt;     /* a completion's */
    RpValue text;       /* a text's or a completion's */
    gboolean desirable; /* label of the answer of RP_ANSWER_DESIRABLE */
    const char *file;   /* for messages, with @line */
    guint64 line;
} RpRecord;

void rp_record_clear(RpRecord *record);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpRecord, rp_record_clear)

/* @answer: as of rp_chat_answer(); RP_ANSWER_NONE: the record is no preference. @record: (out). Errors:
 * RP_CHAT_ERROR_RECORD */
gboolean rp_record_read(const char *file, guint64 line, const char *json, gsize length,
                        RpAnswerKind answer, RpRecord *record, GError **error);

/* How the messages of a key are written. */
typedef enum {
    RP_MESSAGES_ROLE, /* role and content */
    RP_MESSAGES_FROM  /* ShareGPT: from and value, or as above */
} RpMessageStyle;
/* Appends the messages that stand next to record->messages. */
gboolean rp_record_read_messages(RpRecord *record, RpJsonPull *pull, RpMessageStyle style);
/* Appends one of which all is known. */
void rp_record_add_message(RpRecord *record, const char *role, RpValue content);

/* The template that @record is rendered with; NULL, with the error set: there is none. */
const RpTemplate *rp_chat_template_of(const RpChat *chat, const RpRecord *record, GError **error);
/* The first @n messages. @prompt: asks for an answer. @content: (nullable): text of all of them,
 * instead of their own. Errors: those of the template */
gboolean rp_chat_render_messages(const RpChat *chat, const RpRecord *record, guint n,
                                 gboolean prompt, const char *content, RpRendered *rendered,
                                 GError **error);
/* The text that the template writes to ask for an answer, as a short chat shows it. (transfer
 * full); NULL: not known */
GString *rp_chat_find_prompt(const RpChat *chat, const RpDict *variables, gboolean tools);
