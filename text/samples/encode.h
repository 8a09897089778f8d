/**
 * From a record to a sample: token ids, and which of them are learned. Records of ids are samples as
 * they stand; chats and texts are made into them by a checkpoint's template and tokenizer
 * (text/chat).
 */
#pragma once

#include "text/chat/chat.h"
#include "text/samples/ids.h"
#include "text/samples/inflate.h"

typedef struct {
    const RpChat *chat; /* %NULL: records of ids alone */
    guint vocabulary;   /* the model's: ids are less than this */
} RpEncoderOptions;

typedef struct _RpEncoder RpEncoder;

/* Its chat is borrowed. */
RpEncoder *rp_encoder_new(const RpEncoderOptions *options);
void rp_encoder_free(RpEncoder *encoder);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpEncoder, rp_encoder_free)

/* Whether a sample of the record needs a tokenizer; FALSE too if it is no record. */
gboolean rp_record_needs_tokenizer(const char *text, gsize length);

/**
 * rp_encoder_read:
 * @name: for messages
 * @line: lines of the file before the record
 * @ids: (element-type gint32): set to the sample's, at least one
 * @labels: (element-type gint32): as many, each the id or RP_LABEL_MASKED
 *
 * From any thread. Errors: RP_SAMPLES_ERROR_RECORD with line and column; those of rp_chat_sample()
 */
gboolean rp_encoder_read(const RpEncoder *encoder, const char *name, guint64 line, const char *text,
                         gsize length, GArray *ids, GArray *labels,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
