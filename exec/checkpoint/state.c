/* trainer_state.json: the state of a run that is in no tensor. */
#include "exec/checkpoint/private.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

/* The tensors of optimizer.safetensors, two to five a weight: a new format of moments is a row of
 * `types` and its name. */

/* Formats of weights and moments in the file. */
static const char *const types[RP_N_MOMENTS] = {
    [RP_MOMENTS_FP32] = "F32", [RP_MOMENTS_BF16] = "BF16", [RP_MOMENTS_INT8] = "U8"};

static const char *const rules[] = {
    [RP_UPDATE_ADAMW] = "adamw", [RP_UPDATE_LION] = "lion", [RP_N_UPDATES] = NULL};
static const char *const masters[] = {[RP_MOMENTS_FP32] = "fp32", [RP_MOMENTS_BF16] = "bf16", NULL};
static const char *const moments[] = {[RP_MOMENTS_FP32] = "fp32",
                                      [RP_MOMENTS_BF16] = "bf16",
                                      [RP_MOMENTS_INT8] = "int8",
                                      [RP_N_MOMENTS] = NULL};

const RpCheckpointProperty rp_checkpoint_properties[] = {
    {"optimizer", "optimizer.name", rules, "\"adamw\" or \"lion\"",
     G_STRUCT_OFFSET(RpStateFormat, rule)},
    {"optimizer_master", "optimizer.master", masters, "\"fp32\" or \"bf16\"",
     G_STRUCT_OFFSET(RpStateFormat, master)},
    {"optimizer_state", "optimizer.state", moments, "\"fp32\", \"bf16\" or \"int8\"",
     G_STRUCT_OFFSET(RpStateFormat, moments)},
};

/* State tensors of a weight. */
static const struct {
    const char *suffix;
    gsize member; /* offset of a pointer in RpOptimizerState */
    guint moment; /* the first is 1; 0: the weight itself */
    gboolean scale;
} rows[] = {
    {".master", G_STRUCT_OFFSET(RpOptimizerState, weight), 0, FALSE},
    {".exp_avg", G_STRUCT_OFFSET(RpOptimizerState, moment1), 1, FALSE},
    {".exp_avg_sq", G_STRUCT_OFFSET(RpOptimizerState, moment2), 2, FALSE},
    {".exp_avg.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale1), 1, TRUE},
    {".exp_avg_sq.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale2), 2, TRUE},
};

guint
rp_checkpoint_property(const RpCheckpointProperty *property, const RpStateFormat *form)
{
    return *(const guint *)(const void *)((const guint8 *)form + property->member);
}

static gboolean
is_kept(RpStateFormat form, guint row)
{
    return rows[row].moment <= rp_optimizer_moments(form) &&
           (!rows[row].scale || rp_moment_scales(form.moments, 0, 1) > 0);
}

guint
rp_checkpoint_n_state_tensors(RpStateFormat form)
{
    guint n = 0;

    for (guint row = 0; row < G_N_ELEMENTS(rows); row++)
        n += is_kept(form, row);
    return n;
}

RpCheckpointTensor
rp_checkpoint_state_tensor(const RpWeight *weight, RpStateFormat form, guint64 first, guint index)
{
    guint row = 0;

    for (guint n = 0; !is_kept(form, row) || n++ < index; row++)
        ;
    const RpMoments kept_as = rows[row].moment == 0 ? form.master : form.moments;
    RpCheckpointTensor tensor = {.suffix = rows[row].suffix,
                                 .type = rows[row].scale ? "F32" : types[kept_as],
                                 .member = rows[row].member,
                                 .rank = weight->rank};

    memcpy(tensor.shape, weight->shape, weight->rank * sizeof *tensor.shape);
    tensor.bytes = (gsize)weight->elements * rp_moment_bytes(kept_as);
    if (rows[row].scale) {
        tensor.rank = 1;
        tensor.shape[0] = rp_moment_scales(form.moments, first, weight->elements);
        tensor.bytes = (gsize)tensor.shape[0] * sizeof(float);
    }
    return tensor;
}

const void *
rp_checkpoint_state_data(const RpCheckpointTensor *tensor, const RpOptimizerState *state)
{
    const void *data;

    memcpy(&data, (const guint8 *)state + tensor->member, sizeof data);
    return data;
}

void
rp_checkpoint_state_set_data(const RpCheckpointTensor *tensor, RpOptimizerState *state,
                             const void *data)
{
    memcpy((guint8 *)state + tensor->member, &data, sizeof data);
}

/* A block more than a weight of its own would have: where it begins in its layer is not known here. */
guint64
rp_checkpoint_state_bytes(const RpWeight *weight, RpStateFormat form, guint index)
{
    return rp_checkpoint_state_tensor(weight, form, RP_MOMENT_BLOCK - 1, index).bytes;
}

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
        if (state->best.accuracy > 0)
            rp_json_number(json, "best_accuracy", state->best.accuracy);
        rp_json_uint(json, "evaluations_since", state->best.n_worse);
    }
    if (state->reference != 0)
        rp_json_uint(json, "reference", state->reference);
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

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
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
    {"best_accuracy", rp_json_read_number, G_STRUCT_OFFSET(RpCheckpointState, best.accuracy),
     .max = 1},
    {"reference", rp_json_read_uint64, G_STRUCT_OFFSET(RpCheckpointState, reference)},
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

    if (map == NULL)
        return rp_fail(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT, "%s",
                       cause->message);
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

gboolean
rp_checkpoint_read_reference(const char *path, guint64 *reference, GError **error)
{
    g_auto(RpCheckpointState) state = {0};

    if (!rp_checkpoint_state_load(path, &state, error))
        return FALSE;
    *reference = state.reference;
    return TRUE;
}
