/**
 * A checkpoint into a new trainer. Everything is checked before the first weight is set: files,
 * then the run's settings, then each tensor.
 */
#include "exec/checkpoint/private.h"

#include <string.h>

#include "core/base/quote.h"

typedef struct {
    const char *path;
    RpTrainer *trainer;
    const RpNetwork *network;
    const RpWeights *weights;
    RpCheckpointState state;
    RpCheckpointParts parts;
    RpSafetensors **optimizer; /* [n_servers of the parts] */
    RpSafetensors **next;      /* the same; NULL if synchronous */
} Restore;

static void
restore_clear(Restore *restore)
{
    for (guint r = 0; r < restore->parts.n_servers; r++) {
        rp_safetensors_free(restore->next != NULL ? restore->next[r] : NULL);
        rp_safetensors_free(restore->optimizer != NULL ? restore->optimizer[r] : NULL);
    }
    g_free(restore->next);
    g_free(restore->optimizer);
    rp_checkpoint_parts_clear(&restore->parts);
    rp_checkpoint_state_clear(&restore->state);
}

/* ---- settings of the run ---- */

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
        const RpStateFormat form = rp_trainer_form(restore->trainer);
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
        rp_checkpoint_fail_as(error, RP_CHECKPOINT_ERROR_CORRUPT, cause);
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

    if (tensor == NULL)
        return rp_null(fail_tensor(tensors, name, expected, "no tensor of that name", error));
    gboolean same = strcmp(tensor->dtype_name, like->type) == 0 && tensor->rank == like->rank;
    for (guint i = 0; same && i < like->rank; i++)
        same = tensor->shape[i] == like->shape[i];
    if (!same) {
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        return rp_null(fail_tensor(tensors, name, expected, found, error));
    }
    if ((guintptr)tensor->data % (strcmp(like->type, "F32") == 0 ? 4 : 1) != 0 ||
        (guintptr)tensor->data % (g_str_has_suffix(like->type, "16") ? 2 : 1) != 0)
        return rp_null(
            fail_tensor(tensors, name, "an aligned tensor", "one at an odd place", error));
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

/* Finds the tensors of a part of weight @index. */
static gboolean
find_state(const Restore *restore, guint index, const RpCheckpointPart *part,
           RpOptimizerState *state, const void **next, GError **error)
{
    const RpWeight *whole = rp_weights_nth(restore->weights, index);
    const RpWeight weight =
        rp_checkpoint_part_weight(whole, restore->parts.n_servers, part->end - part->first);

    *next = NULL;
    *state = (RpOptimizerState){
        .n_steps = g_array_index(restore->state.layer_steps, guint64, weight.layer),
        .n_parameters = (gsize)weight.elements,
        .form = restore->state.form,
        .first = rp_trainer_weight_first(restore->trainer, index) + part->first};
    for (guint i = 0; i < rp_checkpoint_n_state_tensors(state->form); i++) {
        const RpCheckpointTensor like =
            rp_checkpoint_state_tensor(&weight, state->form, state->first, i);
        const void *data = find_like(restore->optimizer[part->server], &weight, &like, error);

        if (data == NULL)
            return FALSE;
        rp_checkpoint_state_set_data(&like, state, data);
    }
    if (restore->next == NULL)
        return TRUE;
    *next = find_tensor(restore->next[part->server], &weight, restore->state.dtype, error);
    return *next != NULL;
}

/* Opens the file @name of each server. @files: (transfer full) (array): set on error, too */
static gboolean
open_parts(const Restore *restore, const char *name, RpSafetensors ***files, GError **error)
{
    *files = g_new0(RpSafetensors *, restore->parts.n_servers);
    for (guint r = 0; r < restore->parts.n_servers; r++) {
        g_autofree char *file = rp_checkpoint_server_file(name, r, restore->parts.n_servers);

        (*files)[r] = open_tensors(restore, file, error);
        if ((*files)[r] == NULL)
            return FALSE;
    }
    return TRUE;
}

/* Does something with a part of weight @index. */
typedef gboolean (*Visit)(const Restore *restore, guint index, const RpOptimizerState *state,
                          const void *next, GError **error);

/* All parts of all weights that have a state, in order. */
static gboolean
visit_parts(const Restore *restore, Visit visit, GError **error)
{
    for (guint i = 0; i < rp_weights_count(restore->weights); i++) {
        const RpWeight *weight = rp_weights_nth(restore->weights, i);
        g_autoptr(GArray) parts = NULL;

        if (!rp_weight_has_state(weight))
            continue;
        parts = rp_checkpoint_parts_of(&restore->parts, restore->path, weight, error);
        for (guint k = 0; parts != NULL && k < parts->len; k++) {
            const RpCheckpointPart *part = &g_array_index(parts, RpCheckpointPart, k);
            RpOptimizerState state;
            const void *next;

            if (!find_state(restore, i, part, &state, &next, error) ||
                (visit != NULL && !visit(restore, i, &state, next, error)))
                return FALSE;
        }
        if (parts == NULL)
            return FALSE;
    }
    return TRUE;
}

static gboolean
open_files(Restore *restore, GError **error)
{
    return rp_checkpoint_parts_load(restore->path, &restore->parts, error) &&
           open_parts(restore, RP_CHECKPOINT_OPTIMIZER, &restore->optimizer, error) &&
           (!restore->state.async ||
            open_parts(restore, RP_CHECKPOINT_NEXT, &restore->next, error)) &&
           visit_parts(restore, NULL, error);
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

        if (rp_weight_has_state(weight) || !rp_checkpoint_has_weight(restore->weights, weight))
            continue;
        if (model == NULL && (model = open_tensors(restore, RP_CHECKPOINT_MODEL, error)) == NULL)
            return FALSE;
        const void *saved = find_tensor(model, weight, weight->storage, error);
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
set_part(const Restore *restore, guint index, const RpOptimizerState *state, const void *next,
         GError **error)
{
    GError *cause = NULL;

    if (rp_trainer_restore_weight(restore->trainer, index, state, next, &cause))
        return TRUE;
    g_autofree char *shown = rp_display_name(restore->path);
    g_prefix_error(&cause, "%s: ", shown);
    return rp_checkpoint_fail_as(error, RP_CHECKPOINT_ERROR_MISMATCH, cause);
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

/* Each server compares its part of the files; the first that finds a fault reports it to all. */
static gboolean
verify(const char *path, RpServers *servers, GError **error)
{
    g_autoptr(GError) own = NULL;

    if (servers == NULL)
        return rp_checkpoint_verify(path, error);
    const gboolean good =
        rp_checkpoint_verify_some(path, rp_servers_rank(servers), rp_servers_count(servers), &own);
    g_auto(GStrv) told =
        rp_servers_gather_texts(servers, RP_SERVERS_CONTROL, good ? "" : own->message, error);

    for (guint r = 0; told != NULL && told[r] != NULL; r++)
        if (*told[r] != '\0')
            return rp_fail(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT, "%s", told[r]);
    return told != NULL;
}

gboolean
rp_checkpoint_restore(const char *path, RpTrainer *trainer, RpServers *servers, RpDataState *data,
                      char **note, GError **error)
{
    g_return_val_if_fail(path && trainer && data, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    Restore restore = {.path = path, .trainer = trainer};
    restore.network = rp_trainer_network(trainer);
    restore.weights = rp_network_weights(restore.network);
    gboolean good =
        verify(path, servers, error) && rp_checkpoint_state_load(path, &restore.state, error) &&
        rp_checkpoint_check_config(restore.path, rp_network_model(restore.network), error) &&
        check_run(&restore, error) &&
        rp_checkpoint_check_adapters(path, restore.weights, &restore.state, error) &&
        check_frozen(&restore, error) && open_files(&restore, error) &&
        visit_parts(&restore, set_part, error);
    if (good) {
        rp_trainer_restore(trainer, &restore.state.update);
        *data = restore.state.data;
        if (note != NULL)
            *note = note_rounds(&restore);
    }
    restore_clear(&restore);
    return good;
}
