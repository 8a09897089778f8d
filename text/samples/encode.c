#include "text/samples/samples.h"

#include <string.h>

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
read_sample(const RpEncoder *encoder, RpJsonPull *pull, GArray *ids, GArray *labels)
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
    return has_ids ? read_sample(encoder, &again, ids, labels)
                   : read_text(encoder, name, line, text, length, ids, labels, error);
}

/* Records of token ids, as Hugging Face datasets write them. */

void
rp_ids_reader_init(RpIdsReader *reader, guint vocabulary)
{
    reader->vocabulary = vocabulary;
    reader->expected_id = g_strdup_printf("an id from 0 to %u", vocabulary - 1);
    reader->expected_label =
        g_strdup_printf("%d or an id from 0 to %u", RP_LABEL_MASKED, vocabulary - 1);
}

void
rp_ids_reader_clear(RpIdsReader *reader)
{
    g_free(reader->expected_id);
    g_free(reader->expected_label);
}

/* One line while it is read. */
typedef struct {
    const RpIdsReader *reader;
    RpSample *sample;
    guint64 n_ids;
    guint64 n_labels;
    guint64 labels_end; /* behind the last label that is not masked */
    guint64 n_mask;
    guint64 mask_ones; /* at its beginning */
} Line;

/* Digits only, less than the vocabulary; a label also RP_LABEL_MASKED as an integer is written:
 * -100.0 would be a number of another type. */
static gboolean
read_token(RpJsonPull *pull, const RpIdsReader *reader, gboolean is_label, gint32 *token)
{
    const char *expected = is_label ? reader->expected_label : reader->expected_id;
    guint64 id;
    double number;

    /* whole() would have its own words for a sign */
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER || (*pull->at == '-' && !is_label))
        return rp_json_pull_fail(pull, expected);
    if (*pull->at == '-') {
        *token = RP_LABEL_MASKED;
        return rp_json_pull_number(pull, &number) &&
               ((pull->at - pull->value == 4 && memcmp(pull->value, "-100", 4) == 0) ||
                rp_json_pull_fail_value(pull, expected));
    }
    if (!rp_json_pull_whole(pull, &id))
        return FALSE;
    if (id >= reader->vocabulary)
        return rp_json_pull_fail_value(pull, expected);
    *token = (gint32)id;
    return TRUE;
}

/* Stores as many as fit and counts all. @end: (out) (nullable): behind the last that is not
 * masked */
static gboolean
read_tokens(RpJsonPull *pull, const Line *line, gint32 *tokens, guint64 *n, guint64 *end)
{
    gint32 token = 0;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (!read_token(pull, line->reader, end != NULL, &token))
            return FALSE;
        if (*n < line->sample->capacity)
            tokens[*n] = token;
        (*n)++;
        if (end != NULL && token != RP_LABEL_MASKED)
            *end = *n;
    }
    return !pull->failed;
}

static gboolean
read_ids(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Line *line = value;

    return read_tokens(pull, line, line->sample->input_ids, &line->n_ids, NULL);
}

static gboolean
read_labels(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Line *line = value;

    return read_tokens(pull, line, line->sample->labels, &line->n_labels, &line->labels_end);
}

/* Ones, then zeros behind for padding. Anything else changes which tokens are seen, or where they
 * stand. */
static gboolean
read_mask(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Line *line = value;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        gboolean ended = line->mask_ones < line->n_mask;
        guint64 seen;
        if (!rp_json_pull_whole(pull, &seen))
            return FALSE;
        if (seen > 1 || (seen == 1 && ended) || (seen == 0 && line->n_mask == 0))
            return rp_json_pull_fail_value(pull, line->n_mask == 0
                                                     ? "1, since the first token is no padding"
                                                 : ended ? "0, as all that follow padding"
                                                         : "0 or 1");
        line->mask_ones += seen;
        line->n_mask++;
    }
    return !pull->failed;
}

static gboolean
read_refused(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autofree char *expected = g_strdup_printf("no %s, for %s", field->key, field->note);

    return rp_json_pull_fail_value(pull, expected);
}

#define REFUSED(key, why)                                                                          \
    {                                                                                              \
        key, read_refused, .null_is_absent = TRUE, .note = why                                     \
    }

/* The arguments of transformers' models that its Trainer fills from columns; others it drops.
 * datasets write null where some rows have the key and this one has not. */
static const RpJsonField fields[] = {
    {"input_ids", read_ids, .required = TRUE, .expected = "an array of ids"},
    {"labels", read_labels, .null_is_absent = TRUE},
    {"attention_mask", read_mask, .null_is_absent = TRUE},
    REFUSED("position_ids", "positions count from 0 in each sample"),
    REFUSED("inputs_embeds", "tokens come from input_ids"),
    REFUSED("past_key_values", "a sample begins with nothing before it"),
    REFUSED("cache_position", "positions count from 0 in each sample"),
    REFUSED("logits_to_keep", "labels of -100 say what is not learned"),
    REFUSED("label", "labels stand in labels"),
    REFUSED("label_ids", "labels stand in labels"),
    {NULL, rp_json_read_ignored},
};

/* One number of @key for each id. */
static gboolean
check_count(RpJsonPull *pull, const RpJsonRecord *record, const char *key, const Line *line,
            guint64 n)
{
    const char *at = rp_json_record_at(record, key);

    if (at == NULL || n == line->n_ids)
        return TRUE;
    g_autofree char *expected =
        g_strdup_printf("%" G_GUINT64_FORMAT " numbers, one for each of input_ids", line->n_ids);
    g_autofree char *found = g_strdup_printf("%" G_GUINT64_FORMAT, n);
    return rp_json_pull_refuse(pull, at, key, expected, found);
}

/* Whether padding is neither learned nor learned from: then it changes nothing. */
static gboolean
check_mask(RpJsonPull *pull, const RpJsonRecord *record, const Line *line)
{
    const char *at = rp_json_record_at(record, "attention_mask");
    gboolean has_labels = rp_json_record_at(record, "labels") != NULL;
    /* a label is learned one place before its own */
    guint64 learned = has_labels ? line->labels_end : line->n_ids;

    return at == NULL || learned <= line->mask_ones + 1 || line->mask_ones == line->n_ids ||
           rp_json_pull_refuse(pull, at, "attention_mask",
                               "labels of -100 where attention_mask is 0",
                               has_labels ? "another" : "no labels");
}

gboolean
rp_ids_read(const RpIdsReader *reader, RpJsonPull *pull, RpSample *sample)
{
    Line read = {.reader = reader, .sample = sample};
    Line *line = &read;
    RpJsonRecord record;

    if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), line, &record) ||
        !rp_json_pull_end(pull))
        return FALSE;
    if (line->n_ids == 0)
        return rp_json_pull_refuse(pull, rp_json_record_at(&record, "input_ids"), "input_ids",
                                   "at least one id", "none");
    if (!check_count(pull, &record, "labels", line, line->n_labels) ||
        !check_count(pull, &record, "attention_mask", line, line->n_mask) ||
        !check_mask(pull, &record, line))
        return FALSE;
    if (rp_json_record_at(&record, "labels") == NULL && sample->capacity > 0)
        memcpy(sample->labels, sample->input_ids,
               (gsize)MIN(line->n_ids, sample->capacity) * sizeof *sample->labels);
    sample->n_tokens = line->n_ids;
    return TRUE;
}
