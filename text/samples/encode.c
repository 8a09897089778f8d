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
find_ids(RpJsonPull *pull, RpObjective objective, gboolean *has_ids)
{
    static const RpJsonField own[] = {{"input_ids", note_ids, .null_is_absent = TRUE},
                                      {NULL, rp_json_read_ignored}};
    static const RpJsonField of_answers[] = {{"input_ids", note_ids, .null_is_absent = TRUE},
                                             {"chosen_ids", note_ids, .null_is_absent = TRUE},
                                             {"rejected_ids", note_ids, .null_is_absent = TRUE},
                                             {"completion_ids", note_ids, .null_is_absent = TRUE},
                                             {NULL, rp_json_read_ignored}};

    *has_ids = FALSE;
    return objective == RP_OBJECTIVE_SFT
               ? rp_json_read_record(pull, own, G_N_ELEMENTS(own), has_ids, NULL)
               : rp_json_read_record(pull, of_answers, G_N_ELEMENTS(of_answers), has_ids, NULL);
}

gboolean
rp_record_needs_tokenizer(const char *text, gsize length, RpObjective objective)
{
    RpJsonPull pull;
    gboolean has_ids;

    return rp_json_pull_init(&pull, "", text, length, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_RECORD,
                             NULL) &&
           find_ids(&pull, objective, &has_ids) && !has_ids;
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

static const char *
key_of(RpAnswerKind answer)
{
    return answer == RP_ANSWER_CHOSEN     ? "chosen"
           : answer == RP_ANSWER_REJECTED ? "rejected"
                                          : "completion";
}

/* Appends the sample of a record that is text, or of one answer of a preference. */
static gboolean
read_text(const RpEncoder *encoder, RpAnswerKind answer, const char *name, guint64 line,
          const char *text, gsize length, GArray *ids, GArray *labels, gboolean *desirable,
          GError **error)
{
    g_auto(RpChatSample) made = {0};

    if (encoder->options.chat == NULL)
        return rp_samples_fail(name, line,
                               answer == RP_ANSWER_NONE
                                   ? "input_ids, as there is no tokenizer"
                                   : "records of ids, as there is no tokenizer",
                               "another record", error);
    if (!rp_chat_answer(encoder->options.chat, answer, name, line + 1, text, length, &made, error))
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
    if (!take_weights(&made, name, line, made.labels, error))
        return FALSE;
    *desirable = made.desirable;
    g_array_append_vals(ids, made.ids->data, made.ids->len);
    g_array_append_vals(labels, made.labels->data, made.labels->len);
    return TRUE;
}

/* ---- preferences ---- */

/* A record of ids: names are those of TRL's columns. */
typedef struct {
    const RpIdsReader *reader;
    GArray *ids[4]; /* gint32: prompt, chosen, rejected, completion */
    gboolean label;
} Answers;

static gboolean read_token(RpJsonPull *pull, const RpIdsReader *reader, gboolean is_label,
                           gint32 *token);

static gboolean
read_answer_ids(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Answers *answers = value;
    gint32 token = 0;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (!read_token(pull, answers->reader, FALSE, &token))
            return FALSE;
        g_array_append_val(answers->ids[(gsize)field->min], token);
    }
    return !pull->failed;
}

static const RpJsonField answer_fields[] = {
    {"prompt_ids", read_answer_ids, .min = 0, .null_is_absent = TRUE},
    {"chosen_ids", read_answer_ids, .min = 1, .null_is_absent = TRUE},
    {"rejected_ids", read_answer_ids, .min = 2, .null_is_absent = TRUE},
    {"completion_ids", read_answer_ids, .min = 3, .null_is_absent = TRUE},
    {"label", rp_json_read_boolean, G_STRUCT_OFFSET(Answers, label), .null_is_absent = TRUE},
    {NULL, rp_json_read_ignored},
};

/* Keys that are needed, of pairs and of labelled answers. */
static const char *const pair_keys[] = {"prompt_ids", "chosen_ids", "rejected_ids", NULL};
static const char *const labelled_keys[] = {"prompt_ids", "completion_ids", "label", NULL};

/* Appends the prompt, which is not learned, and an answer. */
static void
add_answer(const Answers *answers, guint answer, GArray *ids, GArray *labels)
{
    const gint32 masked = RP_LABEL_MASKED;

    g_array_append_vals(ids, answers->ids[0]->data, answers->ids[0]->len);
    for (guint i = 0; i < answers->ids[0]->len; i++)
        g_array_append_val(labels, masked);
    g_array_append_vals(ids, answers->ids[answer]->data, answers->ids[answer]->len);
    g_array_append_vals(labels, answers->ids[answer]->data, answers->ids[answer]->len);
}

static gboolean
read_answers(RpJsonPull *pull, gboolean pairs, Answers *answers, GArray *ids, GArray *labels,
             RpSplit *split)
{
    const char *const *keys = pairs ? pair_keys : labelled_keys;
    RpJsonRecord record;

    if (!rp_json_read_record(pull, answer_fields, G_N_ELEMENTS(answer_fields), answers, &record) ||
        !rp_json_pull_end(pull))
        return FALSE;
    for (guint i = 0; keys[i] != NULL; i++)
        if (rp_json_record_at(&record, keys[i]) == NULL)
            return rp_json_record_fail(&record, pull, keys[i],
                                       pairs ? "prompt_ids, chosen_ids and rejected_ids"
                                             : "prompt_ids, completion_ids and label");
    add_answer(answers, pairs ? 1 : 3, ids, labels);
    split->tokens = pairs ? ids->len : answers->ids[0]->len;
    split->answer = pairs            ? RP_ANSWER_CHOSEN
                    : answers->label ? RP_ANSWER_DESIRABLE
                                     : RP_ANSWER_UNDESIRABLE;
    if (pairs)
        add_answer(answers, 2, ids, labels);
    return TRUE;
}

static gboolean
read_answers_of_ids(const RpEncoder *encoder, RpJsonPull *pull, gboolean pairs, GArray *ids,
                    GArray *labels, RpSplit *split)
{
    Answers answers = {.reader = &encoder->ids};

    for (guint i = 0; i < G_N_ELEMENTS(answers.ids); i++)
        answers.ids[i] = g_array_new(FALSE, FALSE, sizeof(gint32));
    const gboolean read = read_answers(pull, pairs, &answers, ids, labels, split);
    for (guint i = 0; i < G_N_ELEMENTS(answers.ids); i++)
        g_array_unref(answers.ids[i]);
    return read;
}

static gboolean
read_answers_of_text(const RpEncoder *encoder, gboolean pairs, const char *name, guint64 line,
                     const char *text, gsize length, GArray *ids, GArray *labels, RpSplit *split,
                     GError **error)
{
    gboolean desirable = FALSE;

    if (!read_text(encoder, pairs ? RP_ANSWER_CHOSEN : RP_ANSWER_DESIRABLE, name, line, text,
                   length, ids, labels, &desirable, error))
        return FALSE;
    split->tokens = ids->len;
    split->answer = pairs       ? RP_ANSWER_CHOSEN
                    : desirable ? RP_ANSWER_DESIRABLE
                                : RP_ANSWER_UNDESIRABLE;
    if (pairs)
        return read_text(encoder, RP_ANSWER_REJECTED, name, line, text, length, ids, labels,
                         &desirable, error);
    for (guint i = ids->len; i-- > 0;)
        if (g_array_index(labels, gint32, i) != RP_LABEL_MASKED)
            split->tokens = i;
    return TRUE;
}

/* Whether an answer has a token to learn; the first of a document never is. */
static gboolean
check_answer(const char *name, guint64 line, RpAnswerKind answer, const GArray *labels, guint from,
             guint to, GError **error)
{
    g_autofree char *expected = g_strdup_printf("tokens of an answer in %s", key_of(answer));

    for (guint i = from + 1; i < to; i++)
        if (g_array_index(labels, gint32, i) != RP_LABEL_MASKED)
            return TRUE;
    return rp_samples_fail(name, line, expected, "none: remove the record, or set skip_bad_samples",
                           error);
}

static gboolean
check_pair(const char *name, guint64 line, const GArray *ids, const GArray *labels,
           const RpSplit *split, GError **error)
{
    const guint n = split->tokens;

    if (!check_answer(name, line, RP_ANSWER_CHOSEN, labels, 0, n, error) ||
        !check_answer(name, line, RP_ANSWER_REJECTED, labels, n, ids->len, error))
        return FALSE;
    return ids->len != 2 * n ||
           memcmp(ids->data, ids->data + n * sizeof(gint32), n * sizeof(gint32)) != 0 ||
           rp_samples_fail(name, line, "two answers of different tokens",
                           "the same twice: remove the record, or set skip_bad_samples", error);
}

/* Leaves out of the second document the tokens that both begin with, up to the last one before what either learns: from
 * that on each has its own, so that each target has a token of its own before it. */
static void
share_prompt(GArray *ids, GArray *labels, RpSplit *split)
{
    const gint32 *id = &g_array_index(ids, gint32, 0), *label = &g_array_index(labels, gint32, 0);
    const guint n = split->tokens;
    guint shared = 0;

    while (n + shared + 1 < ids->len && shared + 1 < n && id[shared] == id[n + shared] &&
           label[shared + 1] == RP_LABEL_MASKED && label[n + shared + 1] == RP_LABEL_MASKED)
        shared++;
    split->shared = shared;
    g_array_remove_range(ids, n, shared);
    g_array_remove_range(labels, n, shared);
}

static gboolean
read_preference(const RpEncoder *encoder, gboolean has_ids, RpJsonPull *pull, const char *name,
                guint64 line, const char *text, gsize length, GArray *ids, GArray *labels,
                RpSplit *split, GError **error)
{
    const gboolean pairs = rp_objective_info(encoder->options.objective)->has_pairs;

    if (!(has_ids ? read_answers_of_ids(encoder, pull, pairs, ids, labels, split)
                  : read_answers_of_text(encoder, pairs, name, line, text, length, ids, labels,
                                         split, error)))
        return FALSE;
    if (!(pairs ? check_pair(name, line, ids, labels, split, error)
                : check_answer(name, line, RP_ANSWER_DESIRABLE, labels, 0, ids->len, error)))
        return FALSE;
    if (pairs && encoder->options.shares)
        share_prompt(ids, labels, split);
    return TRUE;
}

gboolean
rp_encoder_read(const RpEncoder *encoder, const char *name, guint64 line, const char *text,
                gsize length, GArray *ids, GArray *labels, RpSplit *split, GError **error)
{
    RpJsonPull pull, again;
    RpSplit own = {0};
    gboolean has_ids, ignored;

    g_array_set_size(ids, 0);
    g_array_set_size(labels, 0);
    if (!rp_json_pull_init_line(&pull, name, line, text, length, RP_SAMPLES_ERROR,
                                RP_SAMPLES_ERROR_RECORD, error))
        return FALSE;
    again = pull;
    if (!find_ids(&pull, encoder->options.objective, &has_ids) || !rp_json_pull_end(&pull))
        return FALSE;
    if (encoder->options.objective != RP_OBJECTIVE_SFT) {
        if (!read_preference(encoder, has_ids, &again, name, line, text, length, ids, labels, &own,
                             error))
            return FALSE;
    } else if (!(has_ids ? read_sample(encoder, &again, ids, labels)
                         : read_text(encoder, RP_ANSWER_NONE, name, line, text, length, ids, labels,
                                     &ignored, error))) {
        return FALSE;
    }
    if (split != NULL)
        *split = own;
    return TRUE;
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

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
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

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
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
