/* Iterations out of samples' lengths; see pack.h. */
#include "exec/data/pack.h"

#include "core/json/json-write.h"
#include "exec/data/dataset.h"

/* The second: the first index of RpDataState.sampled. */
static const char *const formats[] = {RP_DATA_STATE_FORMAT, RP_DATA_STATE_OLD_FORMAT, NULL};

/* Indices of samples; their upper limit is checked after the object. */
static gboolean
read_held(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpDataState *state = value;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (state->n_held == RP_DATA_MOST_HELD)
            return rp_json_pull_fail_value(pull, field->expected);
        if (!rp_json_pull_whole(pull, &state->held[state->n_held]))
            return FALSE;
        state->n_held++;
    }
    return !pull->failed;
}

#define WHOLE(key, member)                                                                         \
    {                                                                                              \
        key, rp_json_read_uint64, G_STRUCT_OFFSET(RpDataState, member), .required = TRUE           \
    }

/* Keys in the order of the file. */
static const RpJsonField fields[] = {
    {"format", rp_json_read_choice_index, G_STRUCT_OFFSET(RpDataState, sampled), .required = TRUE,
     .choices = formats},
    {"shuffle", rp_json_read_boolean, G_STRUCT_OFFSET(RpDataState, shuffle), .required = TRUE},
    WHOLE("samples", n_samples),
    WHOLE("fingerprint", fingerprint),
    WHOLE("seed", seed),
    WHOLE("epoch", epoch),
    WHOLE("position", position),
    WHOLE("iterations", n_iterations),
    WHOLE("tokens", n_tokens),
    WHOLE("targets", n_targets),
    WHOLE("truncated", n_truncated),
    WHOLE("cut_tokens", n_cut_tokens),
    WHOLE("dropped", n_dropped),
    /* from here on not in every file */
    {"left_out", rp_json_read_uint64, G_STRUCT_OFFSET(RpDataState, n_left_out)},
    {"held", read_held, .expected = "at most " G_STRINGIFY(RP_DATA_MOST_HELD) " samples"},
};
#define N_OPTIONAL 2

char *
rp_data_state_to_json(const RpDataState *state)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_string(json, "format", formats[state->sampled]);
    rp_json_bool(json, "shuffle", state->shuffle);
    for (gsize i = 2; i < G_N_ELEMENTS(fields) - N_OPTIONAL; i++)
        rp_json_uint(json, fields[i].key, G_STRUCT_MEMBER(guint64, state, fields[i].offset));
    if (state->n_left_out > 0)
        rp_json_uint(json, "left_out", state->n_left_out);
    if (state->n_held > 0) {
        rp_json_array(json, "held");
        for (guint i = 0; i < state->n_held; i++)
            rp_json_uint(json, NULL, state->held[i]);
        rp_json_end(json);
    }
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

gboolean
rp_data_state_read(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpDataState read = {0};
    RpJsonRecord record;

    if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), &read, &record))
        return FALSE;
    if (read.n_samples == 0 || read.n_samples > G_MAXINT64)
        return rp_json_record_fail(&record, pull, "samples", "a number of samples");
    if (read.position > read.n_samples)
        return rp_json_record_fail(&record, pull, "position", "at most the number of samples");
    for (guint i = 0; i < read.n_held; i++)
        if (read.held[i] >= read.n_samples)
            return rp_json_record_fail(&record, pull, "held", "samples that there are");
    *(RpDataState *)value = read;
    return TRUE;
}

gboolean
rp_data_state_parse(const char *name, const char *text, gsize length, RpDataState *state,
                    GError **error)
{
    RpDataState read;
    RpJsonPull pull;

    g_return_val_if_fail(name && (text || length == 0) && state, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    if (!rp_json_pull_init(&pull, name, text, length, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE,
                           error) ||
        !rp_data_state_read(&pull, NULL, &read) || !rp_json_pull_end(&pull))
        return FALSE;
    *state = read;
    return TRUE;
}

#define GOLDEN G_GUINT64_CONSTANT(0x9e3779b97f4a7c15)

/* The finaliser of SplitMix64: one to one, each bit of @x in each bit of the result. */
static guint64
mix(guint64 x)
{
    x = (x ^ (x >> 30)) * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * G_GUINT64_CONSTANT(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void
rp_order_init(RpOrder *order, guint64 n_samples, gboolean shuffle, guint64 seed, guint64 epoch)
{
    g_return_if_fail(order && n_samples > 0 && n_samples <= RP_ORDER_MAX_SAMPLES);

    *order = (RpOrder){n_samples, seed, epoch, shuffle};
    /* mixed in turn: seed 1 of epoch 2 is not seed 2 of epoch 1 */
    guint64 state = mix(mix(seed + GOLDEN) ^ (epoch + GOLDEN));
    for (guint i = 0; i < RP_ORDER_ROUNDS; i++) {
        state += GOLDEN;
        order->pairs[i] = mix(state) % n_samples;
        state += GOLDEN;
        order->bits[i] = mix(state);
    }
}

guint64
rp_order_sample(const RpOrder *order, guint64 position)
{
    g_return_val_if_fail(order && position < order->n_samples, 0);

    guint64 x = position;
    for (guint i = 0; order->shuffle && i < RP_ORDER_ROUNDS; i++) {
        guint64 k = order->pairs[i];
        guint64 partner = x <= k ? k - x : k + (order->n_samples - x);
        /* the same of both, so that they change places or neither does */
        guint64 name = MAX(x, partner);
        if (mix((name + 1) * GOLDEN ^ order->bits[i]) >> 63)
            x = partner;
    }
    return x;
}

#define MOST_SURVEYED 1000000 /* samples */

struct _RpPacker {
    const RpDataset *dataset;
    RpBatcherOptions options;
    gsize n_rows;
    RpOrder order;
    guint32 *used;  /* [n_rows] tokens */
    gsize n_leaves; /* n_rows or the next power of two */
    /* [2 n_leaves]: [n_leaves + row] space of a row, [i] the most of [2 i] and [2 i + 1] */
    guint32 *space;
    gsize *next;    /* [n_rows + 1] for sorting */
    GArray *placed; /* RpPackPlace, as they came */
    GArray *sorted; /* by row */
};

RpPacker *
rp_packer_new(const RpDataset *dataset, const RpBatcherOptions *options)
{
    g_return_val_if_fail(dataset && options, NULL);

    RpPacker *packer = g_new0(RpPacker, 1);
    packer->dataset = dataset;
    packer->options = *options;
    packer->n_rows = (gsize)options->micro_batches * options->sequences;
    packer->used = g_new0(guint32, packer->n_rows);
    for (packer->n_leaves = 1; packer->n_leaves < packer->n_rows;)
        packer->n_leaves *= 2;
    packer->space = g_new0(guint32, 2 * packer->n_leaves);
    packer->next = g_new0(gsize, packer->n_rows + 1);
    packer->placed = g_array_new(FALSE, FALSE, sizeof(RpPackPlace));
    packer->sorted = g_array_new(FALSE, FALSE, sizeof(RpPackPlace));
    rp_order_init(&packer->order, rp_dataset_n_samples(dataset), options->shuffle, options->seed,
                  0);
    return packer;
}

void
rp_packer_free(RpPacker *packer)
{
    if (packer == NULL)
        return;
    g_free(packer->used);
    g_free(packer->space);
    g_free(packer->next);
    g_array_unref(packer->placed);
    g_array_unref(packer->sorted);
    g_free(packer);
}

/* An iteration does not begin with the end of an epoch but with the start of the next; nor, if
 * incomplete iterations are dropped, with too few samples at an epoch's end. */
static void
skip_end_of_epoch(const RpPacker *packer, RpDataState *state)
{
    guint64 left = state->n_samples - state->position;
    guint64 needed = packer->options.epoch_end == RP_EPOCH_END_DROP ? packer->n_rows : 1;

    if (left >= needed || (left == 0 && state->epoch + 1 == packer->options.epochs))
        return;
    state->n_dropped += left;
    state->epoch++;
    state->position = 0;
}

/* The next of the order. Returns: whether there is one */
static gboolean
next_of_order(RpPacker *packer, RpDataState *state, guint64 *sample)
{
    const RpBatcherOptions *options = &packer->options;

    if (options->epochs > 0 && state->epoch >= options->epochs)
        return FALSE; /* a resumed run has fewer */
    if (state->position == state->n_samples) {
        if (state->epoch + 1 == options->epochs)
            return FALSE;
        state->epoch++;
        state->position = 0;
    }
    if (packer->order.epoch != state->epoch)
        rp_order_init(&packer->order, state->n_samples, options->shuffle, options->seed,
                      state->epoch);
    *sample = rp_order_sample(&packer->order, state->position++);
    return TRUE;
}

/* Length of @sample, cut; 0: it is left out. Not read where it does not matter. */
static gboolean
length_of(const RpPacker *packer, guint64 sample, guint32 *length, GError **error)
{
    guint64 tokens = packer->options.tokens;

    if ((packer->options.packing || packer->options.drop_long) &&
        !rp_dataset_length(packer->dataset, sample, &tokens, error))
        return FALSE;
    *length = (guint32)MIN(tokens, packer->options.tokens);
    if (packer->options.drop_long && tokens > packer->options.tokens)
        *length = 0;
    return TRUE;
}

/* The next that is not left out. @length: 0: there is none */
static gboolean
next_sample(RpPacker *packer, RpDataState *state, guint64 *sample, guint32 *length, GError **error)
{
    *length = 0;
    for (guint64 n = 0; next_of_order(packer, state, sample); n++) {
        if (n == state->n_samples) {
            g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                        "%s: expected a sample of at most %u tokens, found longer ones alone",
                        rp_dataset_name(packer->dataset), packer->options.tokens);
            return FALSE;
        }
        if (!length_of(packer, *sample, length, error))
            return FALSE;
        if (*length > 0)
            return TRUE;
        state->n_left_out++;
    }
    return TRUE;
}

static void
clear_rows(RpPacker *packer)
{
    guint32 *space = packer->space;

    for (gsize row = 0; row < packer->n_rows; row++) {
        packer->used[row] = 0;
        space[packer->n_leaves + row] = packer->options.tokens;
    }
    for (gsize i = packer->n_leaves; i-- > 1;)
        space[i] = MAX(space[2 * i], space[2 * i + 1]);
}

static gboolean
has_space(const RpPacker *packer)
{
    return packer->space[1] > 0;
}

/* First-fit; not packed: into an empty row. Returns: whether it has a place */
static gboolean
place(RpPacker *packer, guint64 sample, guint32 length)
{
    guint32 *space = packer->space;
    gsize i = 1;

    if (space[1] < length)
        return FALSE;
    while (i < packer->n_leaves)
        i = 2 * i + (space[2 * i] < length);
    const gsize row = i - packer->n_leaves;
    const RpPackPlace placement = {sample, row, packer->used[row], length};
    g_array_append_val(packer->placed, placement);
    packer->used[row] += length;
    space[i] = packer->options.packing ? space[i] - length : 0;
    while (i > 1) {
        i /= 2;
        space[i] = MAX(space[2 * i], space[2 * i + 1]);
    }
    return TRUE;
}

static void
sort_by_row(RpPacker *packer)
{
    const RpPackPlace *placed = (const RpPackPlace *)(void *)packer->placed->data;

    for (gsize row = 0; row <= packer->n_rows; row++)
        packer->next[row] = 0;
    for (guint i = 0; i < packer->placed->len; i++)
        packer->next[placed[i].row + 1]++;
    for (gsize row = 0; row < packer->n_rows; row++)
        packer->next[row + 1] += packer->next[row];
    g_array_set_size(packer->sorted, packer->placed->len);
    for (guint i = 0; i < packer->placed->len; i++)
        g_array_index(packer->sorted, RpPackPlace, packer->next[placed[i].row]++) = placed[i];
}

/* Held samples come first. They may be too many for one iteration if a run is resumed with other
 * shapes. */
static gboolean
place_held(RpPacker *packer, RpDataState *state, GError **error)
{
    guint left = 0;

    for (guint i = 0; i < state->n_held; i++) {
        const guint64 sample = state->held[i];
        guint32 length;
        if (!length_of(packer, sample, &length, error))
            return FALSE;
        if (length == 0)
            state->n_left_out++;
        else if (!place(packer, sample, length))
            state->held[left++] = sample;
    }
    state->n_held = left;
    return TRUE;
}

const GArray *
rp_packer_next(RpPacker *packer, RpDataState *state, guint64 *epoch, GError **error)
{
    g_return_val_if_fail(packer && state, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    clear_rows(packer);
    g_array_set_size(packer->placed, 0);
    skip_end_of_epoch(packer, state);
    if (epoch != NULL)
        *epoch = state->epoch;
    if (!place_held(packer, state, error))
        return NULL;
    while (has_space(packer) && state->n_held < RP_DATA_MOST_HELD) {
        guint64 sample = 0;
        guint32 length;
        if (!next_sample(packer, state, &sample, &length, error))
            return NULL;
        if (length == 0)
            break;
        if (!place(packer, sample, length))
            state->held[state->n_held++] = sample;
    }
    sort_by_row(packer);
    return packer->sorted;
}

/* Attention's steps are as many as pairs of tokens, about half the square of each length. */
gboolean
rp_packer_survey(RpPacker *packer, const RpDataState *state, guint64 most, RpPackingSurvey *survey,
                 GError **error)
{
    g_return_val_if_fail(packer && state && survey, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    const double s = packer->options.tokens;
    RpDataState at = *state;
    double tokens = 0, places = 0, squares = 0;
    guint64 n = 0, n_samples = 0;
    gboolean ended = FALSE;

    for (; n < most && (n_samples < MOST_SURVEYED || most == G_MAXUINT64) && !ended; n++) {
        const GArray *placed = rp_packer_next(packer, &at, NULL, error);
        if (placed == NULL)
            return FALSE;
        ended = placed->len == 0;
        n_samples += placed->len;
        for (guint i = 0; i < placed->len; i++) {
            const double length = g_array_index(placed, RpPackPlace, i).length;
            tokens += length;
            /* tokens of two documents see nothing of each other, and are about as many */
            const double own = packer->options.preference ? 1 - packer->options.shared : 0;
            squares += length * length * (1 - own * own / 2);
        }
        for (gsize row = 0; row < packer->n_rows && !ended; row++) {
            const double padding = s - packer->used[row];
            squares += padding * padding;
            places += s;
        }
    }
    *survey = (RpPackingSurvey){.iterations = n - ended,
                                .ended = ended,
                                .useful = places > 0 ? tokens / places : 0,
                                .typical_tokens =
                                    places > 0 ? MAX(1, (guint)(squares / places + 0.5)) : 1};
    return TRUE;
}
