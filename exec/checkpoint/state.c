/* trainer_state.json: what of a run stands in no tensor. */
#include "exec/checkpoint/private.h"

#include <string.h>

#include "core/json/json-pull.h"
#include "core/json/json-write.h"

typedef enum { FORMAT, WHOLE, COUNT, BOOLEAN, SCALE, DTYPE, STEPS, DATA } Kind;

typedef struct {
    const char *key;
    Kind kind;
    gsize offset;
    gboolean optional; /* checkpoints of before have it not */
} Field;

#define OFFSET(member) G_STRUCT_OFFSET(RpCheckpointState, member)

/* In the order of the file. */
static const Field fields[] = {
    {"format", FORMAT, 0},
    {"step", WHOLE, OFFSET(step)},
    {"async", BOOLEAN, OFFSET(async)},
    {"dtype", DTYPE, OFFSET(dtype)},
    {"updates", WHOLE, OFFSET(update.n_updates)},
    {"iterations", WHOLE, OFFSET(update.n_iterations)},
    {"loss_scale", SCALE, OFFSET(update.loss_scale.scale)},
    {"good_steps", COUNT, OFFSET(update.loss_scale.good_steps)},
    {"next_scale", SCALE, OFFSET(update.next_scale)},
    {"rounds", COUNT, OFFSET(rounds), TRUE},
    {"layer_steps", STEPS, OFFSET(layer_steps)},
    {"data", DATA, OFFSET(data)},
};

void
rp_checkpoint_state_clear(RpCheckpointState *state)
{
    g_clear_pointer(&state->layer_steps, g_array_unref);
}

/* Every layer has a weight of its own: of a tied head, the norm. */
static GArray *
layer_steps(const RpTrainer *trainer, const RpWeights *weights)
{
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(guint64));

    for (guint layer = 0; layer < rp_weights_n_layers(weights); layer++) {
        guint first;
        guint n = rp_weights_layer(weights, layer, &first);
        guint i = first;
        while (i + 1 < first + n && rp_weights_nth(weights, i)->tied)
            i++;
        guint64 done = rp_trainer_weight_state(trainer, i).n_steps;
        g_array_append_val(steps, done);
    }
    return steps;
}

void
rp_checkpoint_state_take(RpCheckpointState *state, RpTrainer *trainer, const RpDataState *data)
{
    const RpNetwork *network = rp_trainer_network(trainer);

    *state = (RpCheckpointState){.step = rp_trainer_n_steps(trainer),
                                 .async = rp_trainer_is_async(trainer),
                                 .dtype = rp_network_options(network)->dtype,
                                 .update = rp_home_state(rp_trainer_home(trainer)),
                                 .rounds = rp_trainer_rounds(trainer),
                                 .layer_steps = layer_steps(trainer, rp_network_weights(network)),
                                 .data = *data};
}

/* ---- writing ---- */

char *
rp_checkpoint_state_to_json(const RpCheckpointState *state)
{
    g_autofree char *data = rp_data_state_to_json(&state->data);
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "format", RP_CHECKPOINT_STATE_FORMAT);
    rp_json_uint(json, "step", state->step);
    rp_json_bool(json, "async", state->async);
    rp_json_string(json, "dtype", rp_dtype_name(state->dtype));
    rp_json_uint(json, "updates", state->update.n_updates);
    rp_json_uint(json, "iterations", state->update.n_iterations);
    rp_json_number(json, "loss_scale", (double)state->update.loss_scale.scale);
    rp_json_uint(json, "good_steps", state->update.loss_scale.good_steps);
    rp_json_number(json, "next_scale", (double)state->update.next_scale);
    rp_json_uint(json, "rounds", state->rounds);
    rp_json_array(json, "layer_steps");
    for (guint i = 0; i < state->layer_steps->len; i++)
        rp_json_uint(json, NULL, g_array_index(state->layer_steps, guint64, i));
    rp_json_end(json);
    rp_json_raw(json, "data", data);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

/* ---- reading ---- */

static gboolean
read_format(RpJsonPull *pull, GString *scratch)
{
    return rp_json_pull_string(pull, scratch) &&
           (strcmp(scratch->str, RP_CHECKPOINT_STATE_FORMAT) == 0 ||
            rp_json_pull_fail_value(pull, "\"" RP_CHECKPOINT_STATE_FORMAT "\""));
}

static gboolean
read_count(RpJsonPull *pull, guint *count)
{
    guint64 whole;

    if (!rp_json_pull_whole(pull, &whole))
        return FALSE;
    if (whole > G_MAXUINT)
        return rp_json_pull_fail_value(pull, "a whole number below 2^32");
    *count = (guint)whole;
    return TRUE;
}

static gboolean
read_scale(RpJsonPull *pull, float *scale)
{
    double number;

    if (!rp_json_pull_number(pull, &number))
        return FALSE;
    if (!(number > 0 && number <= (double)G_MAXFLOAT) || (double)(float)number != number)
        return rp_json_pull_fail_value(pull, "a positive number of fp32");
    *scale = (float)number;
    return TRUE;
}

static gboolean
read_dtype(RpJsonPull *pull, GString *scratch, RpDtype *dtype)
{
    return rp_json_pull_string(pull, scratch) &&
           (rp_dtype_parse(scratch->str, rp_dtype_name, dtype) ||
            rp_json_pull_fail_value(pull, "\"fp32\", \"bf16\" or \"fp16\""));
}

static gboolean
read_steps(RpJsonPull *pull, GArray *steps)
{
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        guint64 step;
        if (!rp_json_pull_whole(pull, &step))
            return FALSE;
        g_array_append_val(steps, step);
    }
    return !pull->failed;
}

/* The object as it stands, for its own reader. */
static gboolean
read_data(RpJsonPull *pull, RpDataState *data)
{
    if (rp_json_pull_peek(pull) != RP_JSON_OBJECT)
        return rp_json_pull_fail(pull, "an object");
    const char *start = pull->at;
    if (!rp_json_pull_skip(pull))
        return FALSE;
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("%s: data", pull->file);
    if (rp_data_state_parse(name, start, (gsize)(pull->at - start), data, &error))
        return TRUE;
    pull->failed = TRUE;
    g_set_error_literal(pull->error, pull->domain, pull->code, error->message);
    return FALSE;
}

static gboolean
read_field(RpJsonPull *pull, const Field *field, GString *scratch, RpCheckpointState *state)
{
    gpointer at = G_STRUCT_MEMBER_P(state, field->offset);

    switch (field->kind) {
    case FORMAT:
        return read_format(pull, scratch);
    case WHOLE:
        return rp_json_pull_whole(pull, at);
    case COUNT:
        return read_count(pull, at);
    case BOOLEAN:
        return rp_json_pull_boolean(pull, at);
    case SCALE:
        return read_scale(pull, at);
    case DTYPE:
        return read_dtype(pull, scratch, at);
    case STEPS:
        return read_steps(pull, state->layer_steps);
    case DATA:
        return read_data(pull, at);
    }
    return FALSE;
}

static gboolean
read_member(RpJsonPull *pull, GString *key, RpCheckpointState *state, guint *seen)
{
    gsize i = 0;

    while (i < G_N_ELEMENTS(fields) && strcmp(key->str, fields[i].key) != 0)
        i++;
    if (i == G_N_ELEMENTS(fields))
        return rp_json_pull_fail_value(pull, "a key of " RP_CHECKPOINT_STATE_FORMAT);
    if (*seen & (1u << i))
        return rp_json_pull_fail_value(pull, "each key once");
    *seen |= 1u << i;
    return read_field(pull, &fields[i], key, state);
}

/* The first key that is not there and has to be; their number if none. */
static gsize
find_missing(guint seen)
{
    gsize i = 0;

    while (i < G_N_ELEMENTS(fields) && (fields[i].optional || seen & (1u << i)))
        i++;
    return i;
}

static gboolean
fail_missing(RpJsonPull *pull, gsize i)
{
    g_autofree char *expected = g_strdup_printf("the key \"%s\" too", fields[i].key);
    return rp_json_pull_fail(pull, expected);
}

gboolean
rp_checkpoint_state_parse(const char *name, const char *text, gsize length,
                          RpCheckpointState *state, GError **error)
{
    g_autoptr(GString) key = g_string_new(NULL);
    g_auto(RpCheckpointState) read = {0};
    RpJsonPull pull;
    guint seen = 0;

    read.layer_steps = g_array_new(FALSE, FALSE, sizeof(guint64));
    if (!rp_json_pull_init(&pull, name, text, length, RP_CHECKPOINT_ERROR,
                           RP_CHECKPOINT_ERROR_CORRUPT, error) ||
        !rp_json_pull_enter_object(&pull))
        return FALSE;
    while (rp_json_pull_next_key(&pull, key)) {
        if (!read_member(&pull, key, &read, &seen))
            return FALSE;
    }
    if (pull.failed || !rp_json_pull_end(&pull))
        return FALSE;
    if (find_missing(seen) < G_N_ELEMENTS(fields))
        return fail_missing(&pull, find_missing(seen));
    *state = read;
    read.layer_steps = NULL;
    return TRUE;
}
