#include "text/samples/encode.h"

#include <string.h>

struct _RpEncoder {
    RpEncoderOptions options;
    RpIdsReader ids;
};

RpEncoder *
rp_encoder_new(const RpEncoderOptions *options)
{
    RpEncoder *encoder = g_new0(RpEncoder, 1);

    encoder->options = *options;
    rp_ids_reader_init(&encoder->ids, options->vocabulary);
    return encoder;
}

void
rp_encoder_free(RpEncoder *encoder)
{
    if (encoder == NULL)
        return;
    rp_ids_reader_clear(&encoder->ids);
    g_free(encoder);
}

/* ---- the keys of a record ---- */

/* Texts that a record has; %NULL: it has not. */
typedef struct {
    GString *text, *prompt, *completion;
    gboolean ids;
    const char *chat; /* the key of a kind that is not read here */
} Record;

static void
record_clear(Record *record)
{
    for (guint i = 0; i < 3; i++) {
        GString *text = (GString *[]){record->text, record->prompt, record->completion}[i];
        if (text != NULL)
            g_string_free(text, TRUE);
    }
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Record, record_clear)

static gboolean
read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    GString **text = value;

    if (rp_json_pull_peek(pull) != RP_JSON_STRING)
        return rp_json_pull_fail(pull, "a text");
    *text = g_string_new(NULL);
    return rp_json_pull_string(pull, *text);
}

static gboolean
note_ids(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    *(gboolean *)value = TRUE;
    return rp_json_pull_skip(pull);
}

static gboolean
note_chat(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    *(const char **)value = field->key;
    return rp_json_pull_skip(pull);
}

#define CHAT(name)                                                                                 \
    {                                                                                              \
        name, note_chat, G_STRUCT_OFFSET(Record, chat), .null_is_absent = TRUE                     \
    }

static const RpJsonField fields[] = {
    {"input_ids", note_ids, G_STRUCT_OFFSET(Record, ids), .null_is_absent = TRUE},
    {"text", read_text, G_STRUCT_OFFSET(Record, text), .null_is_absent = TRUE},
    {"prompt", read_text, G_STRUCT_OFFSET(Record, prompt), .null_is_absent = TRUE},
    {"completion", read_text, G_STRUCT_OFFSET(Record, completion), .null_is_absent = TRUE},
    CHAT("messages"),
    CHAT("conversations"),
    CHAT("instruction"),
    {NULL, rp_json_read_ignored},
};

gboolean
rp_record_needs_tokenizer(const char *text, gsize length)
{
    g_auto(Record) record = {0};
    RpJsonPull pull;

    return rp_json_pull_init(&pull, "", text, length, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_RECORD,
                             NULL) &&
           rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), &record, NULL) && !record.ids;
}

/* ---- samples ---- */

static gboolean
encode_ids(const RpEncoder *encoder, RpJsonPull *pull, gsize length, GArray *ids, GArray *labels)
{
    const RpJsonPull again = *pull;
    RpSample sample = {.capacity = 0};

    if (!rp_ids_read(&encoder->ids, pull, &sample))
        return FALSE;
    g_array_set_size(ids, (guint)sample.n_tokens);
    g_array_set_size(labels, (guint)sample.n_tokens);
    sample.input_ids = &g_array_index(ids, gint32, 0);
    sample.labels = &g_array_index(labels, gint32, 0);
    sample.capacity = (gsize)sample.n_tokens;
    *pull = again;
    return rp_ids_read(&encoder->ids, pull, &sample);
}

static gboolean
refuse(RpJsonPull *pull, const char *start, const char *expected, const char *found)
{
    return rp_json_pull_refuse(pull, start, NULL, expected, found);
}

/* Of @text what begins at @learned or later. */
static gboolean
encode_text(const RpEncoder *encoder, RpJsonPull *pull, const char *start, const GString *text,
            gsize learned, GArray *ids, GArray *labels)
{
    const RpEncoderOptions *options = &encoder->options;
    g_autoptr(GArray) tokens = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));
    g_autoptr(GError) problem = NULL;
    gint32 label = RP_LABEL_MASKED;

    if (!rp_tokenizer_encode(options->tokenizer, text->str, text->len, RP_ENCODE_TEMPLATE, tokens,
                             spans, &problem))
        return refuse(pull, start, "a text that the tokenizer takes", problem->message);
    for (guint i = 0; i < tokens->len; i++) {
        const guint32 id = g_array_index(tokens, guint32, i);
        const gint32 token = (gint32)id;

        if (id >= options->vocabulary) {
            g_autofree char *expected =
                g_strdup_printf("ids below the model's vocabulary, %u", options->vocabulary);
            g_autofree char *found = g_strdup_printf("%u: the tokenizer is not the model's", id);
            return refuse(pull, start, expected, found);
        }
        label = g_array_index(spans, RpTokenSpan, i).start >= learned ? token : RP_LABEL_MASKED;
        g_array_append_val(ids, token);
        g_array_append_val(labels, label);
    }
    label = (gint32)options->end_id;
    if (options->end_id >= 0 &&
        (ids->len == 0 || g_array_index(ids, gint32, ids->len - 1) != label)) {
        g_array_append_val(ids, label);
        g_array_append_val(labels, label);
    }
    return ids->len > 0 || refuse(pull, start, "a text with a token", "none");
}

static gboolean
encode_record(const RpEncoder *encoder, RpJsonPull *pull, const char *start, const Record *record,
              GArray *ids, GArray *labels)
{
    const gboolean pair = record->prompt != NULL && record->completion != NULL;

    if (record->chat != NULL) {
        g_autofree char *found = g_strdup_printf("%s: chats are not read yet", record->chat);
        return refuse(pull, start, "input_ids, text, or prompt and completion", found);
    }
    if (record->text == NULL && !pair)
        return refuse(pull, start, "input_ids, text, or prompt and completion",
                      record->prompt != NULL       ? "prompt without completion"
                      : record->completion != NULL ? "completion without prompt"
                                                   : "none of them");
    if (encoder->options.tokenizer == NULL)
        return refuse(pull, start, "input_ids, as the model has no tokenizer.json", "text");
    if (!pair)
        return encode_text(encoder, pull, start, record->text, 0, ids, labels);
    const gsize learned = record->prompt->len;

    g_string_append_len(record->prompt, record->completion->str, (gssize)record->completion->len);
    return encode_text(encoder, pull, start, record->prompt, learned, ids, labels);
}

gboolean
rp_encoder_read(const RpEncoder *encoder, const char *name, guint64 line, const char *text,
                gsize length, GArray *ids, GArray *labels, GError **error)
{
    g_auto(Record) record = {0};
    RpJsonPull pull, again;

    g_array_set_size(ids, 0);
    g_array_set_size(labels, 0);
    if (!rp_json_pull_init_line(&pull, name, line, text, length, RP_SAMPLES_ERROR,
                                RP_SAMPLES_ERROR_RECORD, error))
        return FALSE;
    again = pull;
    if (!rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), &record, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    return record.ids ? encode_ids(encoder, &again, length, ids, labels)
                      : encode_record(encoder, &pull, text, &record, ids, labels);
}
