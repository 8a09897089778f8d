/* trainer_state.json: the state of a run that is in no tensor. */
#include "exec/checkpoint/private.h"

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

void
rp_checkpoint_state_clear(RpCheckpointState *state)
{
    g_clear_pointer(&state->base, g_free);
    g_clear_pointer(&state->base_values, g_free);
    g_clear_pointer(&state->base_layers, g_free);
    g_clear_pointer(&state->base_format, g_free);
    g_clear_pointer(&state->layer_steps, g_array_unref);
}

/* 0 of layers that train nothing. */
static GArray *
layer_steps(const RpTrainer *trainer, const RpWeights *weights)
{
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(guint64));

    for (guint layer = 0; layer < rp_weights_n_layers(weights); layer++) {
        guint first;
        guint n = rp_weights_layer(weights, layer, &first);
        guint64 done = 0;

        for (guint i = first; i < first + n; i++)
            if (rp_weight_has_state(rp_weights_nth(weights, i)))
                done = rp_trainer_weight_state(trainer, i).n_steps;
        g_array_append_val(steps, done);
    }
    return steps;
}

void
rp_checkpoint_state_take(RpCheckpointState *state, RpTrainer *trainer, const RpDataState *data)
{
    const RpNetwork *network = rp_trainer_network(trainer);
    const RpWeights *weights = rp_network_weights(network);

    *state = (RpCheckpointState){.step = rp_trainer_n_steps(trainer),
                                 .async = rp_trainer_is_async(trainer),
                                 .dtype = rp_network_options(network)->dtype,
                                 .form = rp_trainer_form(trainer),
                                 .update = rp_host_state_updates(rp_trainer_host_state(trainer)),
                                 .rounds = rp_trainer_rounds(trainer),
                                 .base = g_strdup(rp_weights_base_hash(weights)),
                                 .base_values = g_strdup(rp_weights_base_values(weights)),
                                 .base_format = rp_weights_lora(weights) != NULL
                                                    ? g_strdup(rp_weights_base_format(weights))
                                                    : NULL,
                                 .layer_steps = layer_steps(trainer, weights),
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
    for (guint i = 0; i < RP_CHECKPOINT_PROPERTIES; i++) {
        const RpCheckpointProperty *property = &rp_checkpoint_properties[i];
        const guint value = rp_checkpoint_property(property, &state->form);

        if (value > 0)
            rp_json_string(json, property->key, property->words[value]);
    }
    rp_json_uint(json, "updates", state->update.n_updates);
    rp_json_uint(json, "iterations", state->update.n_iterations);
    rp_json_number(json, "loss_scale", (double)state->update.loss_scale.scale);
    rp_json_uint(json, "good_steps", state->update.loss_scale.good_steps);
    rp_json_number(json, "next_scale", (double)state->update.next_scale);
    rp_json_uint(json, "rounds", state->rounds);
    if (state->base != NULL)
        rp_json_string(json, "base", state->base);
    if (state->base_values != NULL)
        rp_json_string(json, "base_values", state->base_values);
    if (state->base_format != NULL)
        rp_json_string(json, "base_format", state->base_format);
    rp_json_array(json, "layer_steps");
    for (guint i = 0; i < state->layer_steps->len; i++)
        rp_json_uint(json, NULL, g_array_index(state->layer_steps, guint64, i));
    rp_json_end(json);
    if (state->best.step > 0) {
        rp_json_uint(json, "best_step", state->best.step);
        rp_json_number(json, "best_loss", state->best.loss);
        rp_json_uint(json, "evaluations_since", state->best.n_worse);
    }
    rp_json_raw(json, "data", data);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

/* ---- reading ---- */

static gboolean
read_scale(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    if (!rp_json_pull_number(pull, &number))
        return FALSE;
    if (!(number > 0 && number <= (double)G_MAXFLOAT) || (double)(float)number != number)
        return rp_json_pull_fail_value(pull, "a positive number of fp32");
    *(float *)value = (float)number;
    return TRUE;
}

static gboolean
read_dtype(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) name = g_string_new(NULL);

    return rp_json_pull_string(pull, name) &&
           (rp_dtype_parse(name->str, rp_dtype_name, value) ||
            rp_json_pull_fail_value(pull, "\"fp32\", \"bf16\" or \"fp16\""));
}

/* A property, into its enum. */
static gboolean
read_property(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const RpCheckpointProperty *property = rp_checkpoint_properties;
    g_autoptr(GString) name = g_string_new(NULL);

    while (strcmp(property->key, field->key) != 0)
        property++;
    if (!rp_json_pull_string(pull, name))
        return FALSE;
    for (guint i = 0; property->words[i] != NULL; i++)
        if (strcmp(property->words[i], name->str) == 0) {
            *(guint *)value = i;
            return TRUE;
        }
    return rp_json_pull_fail_value(pull, property->expected);
}

static gboolean
read_steps(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    GArray *steps = *(GArray **)value;

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

#define FIELD(key, read, member)                                                                   \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(RpCheckpointState, member), .required = TRUE                    \
    }

static const char *const formats[] = {RP_CHECKPOINT_STATE_FORMAT, NULL};

static const RpJsonField fields[] = {
    {"format", rp_json_read_constant, .required = TRUE, .choices = formats},
    FIELD("step", rp_json_read_uint64, step),
    FIELD("async", rp_json_read_boolean, async),
    FIELD("dtype", read_dtype, dtype),
    /* AdamW, all in fp32, without */
    {"optimizer", read_property, G_STRUCT_OFFSET(RpCheckpointState, form.rule)},
    {"optimizer_master", read_property, G_STRUCT_OFFSET(RpCheckpointState, form.master)},
    {"optimizer_state", read_property, G_STRUCT_OFFSET(RpCheckpointState, form.moments)},
    FIELD("updates", rp_json_read_uint64, update.n_updates),
    FIELD("iterations", rp_json_read_uint64, update.n_iterations),
    FIELD("loss_scale", read_scale, update.loss_scale.scale),
    FIELD("good_steps", rp_json_read_uint, update.loss_scale.good_steps),
    FIELD("next_scale", read_scale, update.next_scale),
    /* checkpoints of before have it not */
    {"rounds", rp_json_read_uint, G_STRUCT_OFFSET(RpCheckpointState, rounds)},
    /* only adapters have these */
    {"base", rp_json_read_text, G_STRUCT_OFFSET(RpCheckpointState, base), .max = 128},
    {"base_values", rp_json_read_text, G_STRUCT_OFFSET(RpCheckpointState, base_values),
     .max = 1 << 20},
    /* checkpoints of before have these instead */
    {"base_layers", rp_json_read_text, G_STRUCT_OFFSET(RpCheckpointState, base_layers),
     .max = 1 << 20},
    {"base_format", rp_json_read_text, G_STRUCT_OFFSET(RpCheckpointState, base_format), .max = 32},
    /* only runs that evaluate have these */
    {"best_step", rp_json_read_uint64, G_STRUCT_OFFSET(RpCheckpointState, best.step)},
    {"best_loss", rp_json_read_number, G_STRUCT_OFFSET(RpCheckpointState, best.loss),
     .min = -G_MAXDOUBLE, .max = G_MAXDOUBLE},
    {"evaluations_since", rp_json_read_uint64, G_STRUCT_OFFSET(RpCheckpointState, best.n_worse)},
    FIELD("layer_steps", read_steps, layer_steps),
    FIELD("data", rp_data_state_read, data),
};

gboolean
rp_checkpoint_state_parse(const char *name, const char *text, gsize length,
                          RpCheckpointState *state, GError **error)
{
    g_auto(RpCheckpointState) read = {0};
    RpJsonPull pull;

    read.layer_steps = g_array_new(FALSE, FALSE, sizeof(guint64));
    if (!rp_json_pull_init(&pull, name, text, length, RP_CHECKPOINT_ERROR,
                           RP_CHECKPOINT_ERROR_CORRUPT, error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), &read, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    *state = read;
    read.layer_steps = NULL;
    read.base = read.base_values = read.base_layers = read.base_format = NULL;
    return TRUE;
}

gboolean
rp_checkpoint_state_load(const char *path, RpCheckpointState *state, GError **error)
{
    g_autofree char *file = g_build_filename(path, RP_CHECKPOINT_STATE, NULL);
    g_autofree char *shown = rp_display_name(file);
    g_autoptr(GError) cause = NULL;
    g_autoptr(GMappedFile) map = rp_file_map(file, &cause);

    if (map == NULL) {
        g_set_error_literal(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT,
                            cause->message);
        return FALSE;
    }
    const char *text = g_mapped_file_get_contents(map);
    return rp_checkpoint_state_parse(shown, text != NULL ? text : "", g_mapped_file_get_length(map),
                                     state, error);
}

gboolean
rp_checkpoint_read_best(const char *path, RpCheckpointBest *best, GError **error)
{
    g_auto(RpCheckpointState) state = {0};

    if (!rp_checkpoint_state_load(path, &state, error))
        return FALSE;
    *best = state.best;
    return TRUE;
}
