#include "text/samples/samples.h"

#include "core/base/quote.h"

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

static gboolean
note_ids(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    *(gboolean *)value = TRUE;
    return rp_json_pull_skip(pull);
}

/* Whether the object that stands next has ids. */
static gboolean
find_ids(RpJsonPull *pull, gboolean *has_ids)
{
    static const RpJsonField fields[] = {{"input_ids", note_ids, .null_is_absent = TRUE},
                                         {NULL, rp_json_read_ignored}};

    *has_ids = FALSE;
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), has_ids, NULL);
}

gboolean
rp_record_needs_tokenizer(const char *text, gsize length)
{
    RpJsonPull pull;
    gboolean has_ids;

    return rp_json_pull_init(&pull, "", text, length, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_RECORD,
                             NULL) &&
           find_ids(&pull, &has_ids) && !has_ids;
}

static gboolean
read_ids(const RpEncoder *encoder, RpJsonPull *pull, GArray *ids, GArray *labels)
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

gboolean
rp_samples_fail(const char *name, guint64 line, const char *expected, const char *found,
                GError **error)
{
    return rp_fail(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_RECORD,
                   "%s: line %" G_GUINT64_FORMAT ": expected %s, found %s", name, line + 1,
                   expected, found);
}

/* Losses have no weights here: a label counts, or does not. */
static gboolean
take_weights(const RpChatSample *made, const char *name, guint64 line, GArray *labels,
             GError **error)
{
    for (guint i = 0; i < made->weights->len; i++) {
        const float weight = g_array_index(made->weights, float, i);

        if (weight == 0)
            g_array_index(labels, gint32, i) = RP_LABEL_MASKED;
        else if (weight != 1 && g_array_index(labels, gint32, i) != RP_LABEL_MASKED) {
            g_autofree char *found =
                g_strdup_printf("%g: set train: false, or repeat the record", (double)weight);

            return rp_samples_fail(name, line, "a message's weight to be 0 or 1", found, error);
        }
    }
    return TRUE;
}

static gboolean
read_text(const RpEncoder *encoder, const char *name, guint64 line, const char *text, gsize length,
          GArray *ids, GArray *labels, GError **error)
{
    g_auto(RpChatSample) made = {0};

    if (encoder->options.chat == NULL)
        return rp_samples_fail(name, line, "input_ids, as there is no tokenizer", "another record",
                               error);
    if (!rp_chat_sample(encoder->options.chat, name, line + 1, text, length, &made, error))
        return FALSE;
    if (made.ids->len == 0)
        return rp_samples_fail(name, line, "a record with a token", "none", error);
    for (guint i = 0; i < made.ids->len; i++) {
        const gint32 id = g_array_index(made.ids, gint32, i);

        if (id >= 0 && (guint)id < encoder->options.vocabulary)
            continue;
        g_autofree char *expected =
            g_strdup_printf("ids below the model's vocabulary, %u", encoder->options.vocabulary);
        g_autofree char *found = g_strdup_printf("%d: the tokenizer is not the model's", id);
        return rp_samples_fail(name, line, expected, found, error);
    }
    g_array_append_vals(ids, made.ids->data, made.ids->len);
    g_array_append_vals(labels, made.labels->data, made.labels->len);
    return take_weights(&made, name, line, labels, error);
}

gboolean
rp_encoder_read(const RpEncoder *encoder, const char *name, guint64 line, const char *text,
                gsize length, GArray *ids, GArray *labels, GError **error)
{
    RpJsonPull pull, again;
    gboolean has_ids;

    g_array_set_size(ids, 0);
    g_array_set_size(labels, 0);
    if (!rp_json_pull_init_line(&pull, name, line, text, length, RP_SAMPLES_ERROR,
                                RP_SAMPLES_ERROR_RECORD, error))
        return FALSE;
    again = pull;
    if (!find_ids(&pull, &has_ids) || !rp_json_pull_end(&pull))
        return FALSE;
    return has_ids ? read_ids(encoder, &again, ids, labels)
                   : read_text(encoder, name, line, text, length, ids, labels, error);
}
