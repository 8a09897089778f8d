/**
 * A checkpoint into a new trainer. Everything is checked before the first weight is set: files,
 * then what the run was, then each tensor.
 */
#include "exec/checkpoint/private.h"

#include <stdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"

typedef struct {
    const char *path;
    RpTrainer *trainer;
    const RpNetwork *network;
    const RpWeights *weights;
    RpCheckpointState state;
    RpSafetensors *optimizer;
    RpSafetensors *next; /* NULL if synchronous */
} Restore;

static void
restore_clear(Restore *restore)
{
    rp_safetensors_free(restore->next);
    rp_safetensors_free(restore->optimizer);
    rp_checkpoint_state_clear(&restore->state);
}

static gboolean
fail_as(GError **error, RpCheckpointError code, GError *cause)
{
    g_set_error_literal(error, RP_CHECKPOINT_ERROR, code, cause->message);
    g_error_free(cause);
    return FALSE;
}

/* ---- what the run was ---- */

/* Lines of config.json, but for what changes neither the loss nor its gradient. */
static char **
lines_of(const RpModel *model)
{
    RpModel same = *model;

    same.max_positions = 0;
    same.initializer_range = 0;
    same.has_dtype = FALSE;
    same.bos_id = RP_MODEL_NO_TOKEN;
    same.n_eos = 0;
    g_autofree char *json = rp_hf_config_to_json(&same);
    return g_strsplit(json, "\n", -1);
}

static gboolean
fail_model(const char *path, const char *key, const char *expected, const char *found,
           GError **error)
{
    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, path,
                              "%s: expected %s, as the model has it, found %s", key, expected,
                              found);
}

static gboolean
check_model(const Restore *restore, GError **error)
{
    g_autofree char *path = g_build_filename(restore->path, RP_CHECKPOINT_CONFIG, NULL);
    const RpModel *model = rp_network_model(restore->network);
    RpModel saved;
    GError *cause = NULL;

    if (!rp_hf_config_load(path, &saved, &cause))
        return fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
    if (saved.architecture != model->architecture)
        return fail_model(path, "architectures", rp_architectures[model->architecture].hf_name,
                          rp_architectures[saved.architecture].hf_name, error);
    g_auto(GStrv) lines = lines_of(model), other = lines_of(&saved);
    guint i = 0;
    char key[64] = "", expected[64] = "", found[64] = "";

    while (lines[i] != NULL && g_strcmp0(lines[i], other[i]) == 0)
        i++;
    if (lines[i] == NULL)
        return TRUE;
    sscanf(lines[i], " \"%63[^\"]\": %63[^,]", key, expected);
    sscanf(other[i], " \"%63[^\"]\": %63[^,]", key, found);
    return fail_model(path, key, expected[0] == '{' ? "an object" : expected,
                      found[0] == '{' ? "an object" : found, error);
}

static const char *
mode_name(gboolean async)
{
    return async ? "asynchronous" : "synchronous";
}

static gboolean
check_run(const Restore *restore, GError **error)
{
    g_autofree char *path = g_build_filename(restore->path, RP_CHECKPOINT_STATE, NULL);
    gboolean async = rp_trainer_is_async(restore->trainer);
    RpDtype dtype = rp_network_options(restore->network)->dtype;
    guint n_layers = rp_weights_n_layers(restore->weights);

    if (restore->state.async != async)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, path,
                                  "expected a checkpoint of %s training, as this run is, found one "
                                  "of %s training (async: %s would continue it)",
                                  mode_name(async), mode_name(!async), async ? "false" : "true");
    if (restore->state.dtype != dtype)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, path,
                                  "dtype: expected %s, as this run has it, found %s, which "
                                  "would continue it",
                                  rp_dtype_name(dtype), rp_dtype_name(restore->state.dtype));
    for (guint i = 0; i < RP_CHECKPOINT_PROPERTIES; i++) {
        const RpCheckpointProperty *property = &rp_checkpoint_properties[i];
        const RpOptimizerForm form = rp_trainer_form(restore->trainer);
        const guint expected = rp_checkpoint_property(property, &form);
        const guint found = rp_checkpoint_property(property, &restore->state.form);

        if (found != expected)
            return rp_checkpoint_fail(
                error, RP_CHECKPOINT_ERROR_MISMATCH, path,
                "%s: expected %s, as this run has it, found %s, which would continue it",
                property->setting, property->words[expected], property->words[found]);
    }
    if (restore->state.layer_steps->len != n_layers)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, path,
                                  "layer_steps: expected %u numbers, one a layer, found %u",
                                  n_layers, restore->state.layer_steps->len);
    return TRUE;
}

/* ---- adapters ---- */

static gboolean
fail_adapters(const Restore *restore, const char *key, const char *expected, const char *found,
              GError **error)
{
    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                              "%s: expected %s, as this run has it, found %s", key, expected,
                              found);
}

/* Those of @names that are not of @others. (transfer full) (nullable) */
static char *
names_beyond(char *const *names, char *const *others)
{
    g_autoptr(GStrvBuilder) beyond = g_strv_builder_new();

    for (; names != NULL && *names != NULL; names++)
        if (others == NULL || !g_strv_contains((const char *const *)others, *names))
            g_strv_builder_add(beyond, *names);
    g_auto(GStrv) list = g_strv_builder_end(beyond);
    return list[0] != NULL ? g_strjoinv(", ", list) : NULL;
}

static gboolean
check_names(const Restore *restore, const char *key, char *const *run, char *const *saved,
            GError **error)
{
    g_autofree char *expected = names_beyond(run, saved), *found = names_beyond(saved, run);

    return (expected == NULL && found == NULL) ||
           fail_adapters(restore, key, expected != NULL ? expected : "no others",
                         found != NULL ? found : "no others", error);
}

/* Of modules with a rank or an alpha of their own. */
static gboolean
check_scales(const Restore *restore, const RpLora *run, const RpLora *saved, GError **error)
{
    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        const char *name = rp_weights_nth(restore->weights, i)->name;

        if (!g_str_has_suffix(name, RP_LORA_A))
            continue;
        g_autofree char *module = g_strndup(name, strlen(name) - strlen(RP_LORA_A));
        const guint rank = rp_lora_rank(run, module), other = rp_lora_rank(saved, module);
        const double scale = rp_lora_scale(run, module), found = rp_lora_scale(saved, module);

        if (rank == other && scale == found)
            continue;
        g_autofree char *this = g_strdup_printf("%s of rank %u, scale %g", module, rank, scale);
        g_autofree char *that = g_strdup_printf("rank %u, scale %g", other, found);

        return fail_adapters(restore, "lora", this, that, error);
    }
    return TRUE;
}

static char *
describe_lora(const RpLora *lora)
{
    return g_strdup_printf("rank %u, alpha %g%s, dropout %g", lora->rank, lora->alpha,
                           lora->rslora ? ", rslora" : "", lora->dropout);
}

/* Whether the checkpoint's adapters are of the shape and the scale that this run trains. */
static gboolean
check_lora(const Restore *restore, GError **error)
{
    g_autofree char *text = rp_adapter_config_text(restore->weights, "");
    g_auto(RpLora) run = {0};
    g_auto(RpLora) saved = {0};
    GError *cause = NULL;

    if (!rp_adapter_config_load(restore->path, &saved, &cause) ||
        !rp_adapter_config_parse(RP_ADAPTER_CONFIG, text, strlen(text), &run, &cause))
        return fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
    if (saved.rank != run.rank || saved.alpha != run.alpha || saved.rslora != run.rslora ||
        saved.dropout != run.dropout) {
        g_autofree char *expected = describe_lora(&run);
        g_autofree char *found = describe_lora(&saved);

        return fail_adapters(restore, "lora", expected, found, error);
    }
    return check_names(restore, "lora.targets", run.targets, saved.targets, error) &&
           check_names(restore, "lora.save", run.saved, saved.saved, error) &&
           check_scales(restore, &run, &saved, error);
}

static gboolean
check_base_format(const Restore *restore, GError **error)
{
    const char *format = rp_weights_base_format(restore->weights);
    const char *saved = restore->state.base_format;

    return saved == NULL || strcmp(saved, format) == 0 ||
           fail_adapters(restore, "base", format, saved, error);
}

/* The first layer whose tensors are others: its name in files. (transfer full) */
static char *
differing_layer(const RpWeights *weights, const char *saved)
{
    g_auto(GStrv) one = g_strsplit(rp_weights_base_layers(weights), " ", -1);
    g_auto(GStrv) other = g_strsplit(saved, " ", -1);
    const guint blocks = rp_weights_model(weights)->blocks;
    guint layer = 0;

    while (one[layer] != NULL && other[layer] != NULL && strcmp(one[layer], other[layer]) == 0)
        layer++;
    return layer == 0       ? g_strdup("model.embed_tokens")
           : layer > blocks ? g_strdup("model.norm and lm_head")
                            : g_strdup_printf("model.layers.%u", layer - 1);
}

/* Checkpoints from before there were hashes of layers had one of samples alone: shapes tell. */
static gboolean
check_hash(const Restore *restore, const RpWeights *weights, GError **error)
{
    const RpCheckpointState *state = &restore->state;

    if (state->base == NULL || state->base_layers == NULL ||
        strcmp(state->base, rp_weights_base_hash(weights)) == 0)
        return TRUE;
    g_autofree char *layer = differing_layer(weights, state->base_layers);

    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                              "expected adapters of a base whose hash is %s, found those of "
                              "another, %s; the first layer that differs is %s",
                              rp_weights_base_hash(weights), state->base, layer);
}

gboolean
rp_checkpoint_check_base(const char *path, const RpWeights *weights, GError **error)
{
    g_autofree char *state = g_build_filename(path, RP_CHECKPOINT_STATE, NULL);
    Restore restore = {.path = path};
    gboolean good;

    if (!g_file_test(state, G_FILE_TEST_EXISTS))
        return TRUE;
    good = rp_checkpoint_state_load(path, &restore.state, error);
    good = good && check_hash(&restore, weights, error);
    restore_clear(&restore);
    return good;
}

static gboolean
check_adapters(const Restore *restore, GError **error)
{
    const char *saved = restore->state.base;
    const gboolean adapts = rp_weights_lora(restore->weights) != NULL;

    if (adapts != (saved != NULL))
        return fail_adapters(restore, "lora", adapts ? "adapters" : "a whole model",
                             adapts ? "a whole model" : "adapters (lora.rank)", error);
    if (!adapts)
        return TRUE;
    return rp_checkpoint_check_base(restore->path, restore->weights, error) &&
           check_base_format(restore, error) && check_lora(restore, error);
}

/* ---- tensors ---- */

static RpSafetensors *
open_tensors(const Restore *restore, const char *name, GError **error)
{
    g_autofree char *single = g_build_filename(restore->path, name, NULL);
    g_autofree char *index = g_strconcat(single, RP_CHECKPOINT_INDEX_SUFFIX, NULL);
    GError *cause = NULL;
    RpSafetensors *tensors =
        rp_safetensors_open(g_file_test(single, G_FILE_TEST_EXISTS) ? single : index, &cause);

    if (tensors == NULL)
        fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
    return tensors;
}

static gboolean
fail_tensor(const RpSafetensors *tensors, const char *name, const char *expected, const char *found,
            GError **error)
{
    g_autofree char *quoted = rp_quote(name);

    return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, rp_safetensors_path(tensors),
                              "tensor %s: expected %s, found %s", quoted, expected, found);
}

/* The data of a tensor of @like's type and shape, or %NULL. */
static const void *
find_like(const RpSafetensors *tensors, const RpWeight *weight, const RpCheckpointTensor *like,
          GError **error)
{
    g_autofree char *name = g_strconcat(weight->name, like->suffix, NULL);
    const RpSafetensor *tensor = rp_safetensors_find(tensors, name);
    g_autofree char *expected = rp_safetensor_describe(like->type, like->shape, like->rank);

    if (tensor == NULL) {
        fail_tensor(tensors, name, expected, "no tensor of that name", error);
        return NULL;
    }
    gboolean same = strcmp(tensor->dtype_name, like->type) == 0 && tensor->rank == like->rank;
    for (guint i = 0; same && i < like->rank; i++)
        same = tensor->shape[i] == like->shape[i];
    if (!same) {
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        fail_tensor(tensors, name, expected, found, error);
        return NULL;
    }
    if ((guintptr)tensor->data % (strcmp(like->type, "F32") == 0 ? 4 : 1) != 0 ||
        (guintptr)tensor->data % (g_str_has_suffix(like->type, "16") ? 2 : 1) != 0) {
        fail_tensor(tensors, name, "an aligned tensor", "one at an odd place", error);
        return NULL;
    }
    return tensor->data;
}

/* The same of @weight's shape. */
static const void *
find_tensor(const RpSafetensors *tensors, const RpWeight *weight, RpDtype dtype, GError **error)
{
    RpCheckpointTensor like = {
        .suffix = "", .type = rp_dtype_safetensors_name(dtype), .rank = weight->rank};

    memcpy(like.shape, weight->shape, weight->rank * sizeof *like.shape);
    return find_like(tensors, weight, &like, error);
}

/* Finds what belongs to weight @index. */
static gboolean
find_state(const Restore *restore, guint index, RpOptimizerState *state, const void **next,
           GError **error)
{
    const RpWeight *weight = rp_weights_nth(restore->weights, index);

    *next = NULL;
    *state = (RpOptimizerState){
        .n_steps = g_array_index(restore->state.layer_steps, guint64, weight->layer),
        .n_parameters = (gsize)weight->elements,
        .form = restore->state.form,
        .first = rp_trainer_weight_state(restore->trainer, index).first};
    for (guint i = 0; i < rp_checkpoint_n_state_tensors(state->form); i++) {
        const RpCheckpointTensor like =
            rp_checkpoint_state_tensor(weight, state->form, state->first, i);
        const void *data = find_like(restore->optimizer, weight, &like, error);

        if (data == NULL)
            return FALSE;
        rp_checkpoint_state_set_data(&like, state, data);
    }
    if (restore->next == NULL)
        return TRUE;
    *next = find_tensor(restore->next, weight, restore->state.dtype, error);
    return *next != NULL;
}

static gboolean
open_files(Restore *restore, GError **error)
{
    restore->optimizer = open_tensors(restore, RP_CHECKPOINT_OPTIMIZER, error);
    if (restore->optimizer == NULL)
        return FALSE;
    if (restore->state.async) {
        restore->next = open_tensors(restore, RP_CHECKPOINT_NEXT, error);
        if (restore->next == NULL)
            return FALSE;
    }
    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        RpOptimizerState state;
        const void *next;
        if (rp_weight_has_state(rp_weights_nth(restore->weights, i)) &&
            !find_state(restore, i, &state, &next, error))
            return FALSE;
    }
    return TRUE;
}

/* Frozen tensors of the model itself are the run's own, and must be those that the others were trained
 * beside. */
static gboolean
check_frozen(const Restore *restore, GError **error)
{
    g_autoptr(RpSafetensors) model = NULL;

    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        const RpWeight *weight = rp_weights_nth(restore->weights, i);
        const gsize bytes = (gsize)weight->elements * rp_dtype_size(weight->storage);
        const void *saved;

        if (rp_weight_has_state(weight) || !rp_checkpoint_has_weight(restore->weights, weight))
            continue;
        if (model == NULL && (model = open_tensors(restore, RP_CHECKPOINT_MODEL, error)) == NULL)
            return FALSE;
        saved = find_tensor(model, weight, weight->storage, error);
        if (saved == NULL)
            return FALSE;
        if (memcmp(saved, rp_trainer_frozen_weight(restore->trainer, i), bytes) == 0)
            continue;
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_MISMATCH, restore->path,
                                  "%s: expected it as in the checkpoint, for it is frozen, found "
                                  "other values: model and freeze must be those of the run",
                                  weight->name);
    }
    return TRUE;
}

static gboolean
set_weights(const Restore *restore, GError **error)
{
    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        RpOptimizerState state;
        const void *next;
        GError *cause = NULL;
        if (!rp_weight_has_state(rp_weights_nth(restore->weights, i)))
            continue;
        if (!find_state(restore, i, &state, &next, error))
            return FALSE;
        if (rp_trainer_restore_weight(restore->trainer, i, &state, next, &cause))
            continue;
        g_autofree char *shown = rp_display_name(restore->path);
        g_prefix_error(&cause, "%s: ", shown);
        return fail_as(error, RP_CHECKPOINT_ERROR_MISMATCH, cause);
    }
    return TRUE;
}

/* Whether steps from here on have the bits that the checkpoint's run would have given them. */
static char *
note_rounds(const Restore *restore)
{
    guint now = rp_trainer_rounds(restore->trainer);

    if (restore->state.rounds == 0 || restore->state.rounds == now)
        return NULL;
    return g_strdup_printf(
        "gradients of a step are summed in %u round%s, in the checkpoint's run in %u: the same "
        "training to rounding, not to the bit (round, gradient_accumulation_steps or schedule "
        "differ)",
        now, now == 1 ? "" : "s", restore->state.rounds);
}

gboolean
rp_checkpoint_restore(const char *path, RpTrainer *trainer, RpDataState *data, char **note,
                      GError **error)
{
    g_return_val_if_fail(path && trainer && data, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    Restore restore = {.path = path, .trainer = trainer};
    restore.network = rp_trainer_network(trainer);
    restore.weights = rp_network_weights(restore.network);
    gboolean good = rp_checkpoint_verify(path, error) &&
                    rp_checkpoint_state_load(path, &restore.state, error) &&
                    check_model(&restore, error) && check_run(&restore, error) &&
                    check_adapters(&restore, error) && check_frozen(&restore, error) &&
                    open_files(&restore, error) && set_weights(&restore, error);
    if (good) {
        rp_trainer_restore(trainer, &restore.state.update);
        *data = restore.state.data;
        if (note != NULL)
            *note = note_rounds(&restore);
    }
    restore_clear(&restore);
    return good;
}
