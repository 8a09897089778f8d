/* Tensors of a checkpoint, of one server or of one of several, into their files. */
#include "core/base/quote.h"
#include "core/base/threads.h"
#include "exec/checkpoint/private.h"

#include <string.h>

/* Shards of files that only this project reads have one size, so that many are written and hashed
 * at once. */
#define STATE_SHARD_BYTES G_GUINT64_CONSTANT(1000000000)

static RpSafetensorsWriter *
new_writer(const RpCheckpointSave *save, const char *name, guint64 max_shard_bytes)
{
    g_autofree char *path = g_build_filename(save->temporary, name, NULL);

    return rp_safetensors_writer_new(path, max_shard_bytes);
}

/* n tensors a weight: numbers n k up for the k-th weight of the file. */
static void
add_optimizer(RpSafetensorsWriter *writer, const RpWeight *weight, const RpOptimizerState *state)
{
    for (guint i = 0; i < rp_checkpoint_n_state_tensors(state->form); i++) {
        const RpCheckpointTensor tensor =
            rp_checkpoint_state_tensor(weight, state->form, state->first, i);
        g_autofree char *name = g_strconcat(weight->name, tensor.suffix, NULL);

        rp_safetensors_writer_add_type(writer, name, tensor.type, tensor.shape, tensor.rank);
    }
}

static gboolean
write_optimizer(RpSafetensorsWriter *writer, const RpWeight *weight, const RpOptimizerState *state,
                guint number, GError **error)
{
    const guint n = rp_checkpoint_n_state_tensors(state->form);

    for (guint i = 0; i < n; i++) {
        const RpCheckpointTensor tensor =
            rp_checkpoint_state_tensor(weight, state->form, state->first, i);

        if (!rp_safetensors_writer_write(writer, n * number + i,
                                         rp_checkpoint_state_data(&tensor, state), tensor.bytes,
                                         error))
            return FALSE;
    }
    return TRUE;
}

/* Finds the elements of a weight that are here. Returns: FALSE if there are none, and so no
 * tensor */
static gboolean
find_part(const RpCheckpointSave *save, guint index, RpWeight *part)
{
    if (!rp_weight_has_state(rp_weights_nth(save->weights, index)))
        return FALSE;
    *part = rp_checkpoint_image_part(save->image, index);
    return part->elements > 0;
}

static RpSafetensorsWriter *
new_state_writer(const RpCheckpointSave *save, const char *name)
{
    const guint64 bytes = save->options->max_shard_bytes;
    g_autofree char *file =
        rp_checkpoint_server_file(name, save->image->server, save->image->n_servers);

    return new_writer(save, file, bytes > 0 ? MIN(bytes, STATE_SHARD_BYTES) : STATE_SHARD_BYTES);
}

gboolean
rp_checkpoint_begin_state(RpCheckpointSave *save, GError **error)
{
    save->optimizer = new_state_writer(save, RP_CHECKPOINT_OPTIMIZER);
    if (save->image->state.async)
        save->next = new_state_writer(save, RP_CHECKPOINT_NEXT);
    for (guint i = 0; i < rp_weights_count(save->weights); i++) {
        RpWeight part;
        if (!find_part(save, i, &part))
            continue;
        add_optimizer(save->optimizer, &part, &save->image->numbers[i].state);
        if (save->next != NULL)
            rp_safetensors_writer_add(save->next, part.name, save->dtype, part.shape, part.rank);
    }
    return rp_safetensors_writer_begin(save->optimizer, error) &&
           (save->next == NULL || rp_safetensors_writer_begin(save->next, error));
}

/* The model that is trained, if it is a part of a larger one whose other tensors are written, too. */
static gboolean
open_base(RpCheckpointSave *save, GError **error)
{
    const char *directory = save->options->model_dir;
    g_autoptr(GError) problem = NULL;

    if (save->adapters || !rp_weights_model(save->weights)->outer || directory == NULL)
        return TRUE;
    save->base = rp_safetensors_open(directory, &problem);
    if (save->base != NULL || g_error_matches(problem, G_FILE_ERROR, G_FILE_ERROR_NOENT))
        return TRUE; /* one that began as random numbers has none */
    return rp_propagate_error(error, g_steal_pointer(&problem));
}

gboolean
rp_checkpoint_finish_model(RpCheckpointSave *save, GError **error)
{
    return rp_weights_write_others(rp_weights_model(save->weights), save->base, save->first_other,
                                   save->model, error) &&
           rp_safetensors_writer_finish(save->model, error);
}

gboolean
rp_checkpoint_begin_model(RpCheckpointSave *save, GError **error)
{
    save->model = save->adapters
                      ? new_writer(save, RP_ADAPTER_TENSORS, 0)
                      : new_writer(save, RP_CHECKPOINT_MODEL, save->options->max_shard_bytes);
    for (guint i = 0; i < rp_weights_count(save->weights); i++) {
        const RpWeight *weight = rp_weights_nth(save->weights, i);
        g_autofree char *name =
            save->adapters ? rp_adapter_tensor_name(save->weights, i) : g_strdup(weight->name);
        guint64 shape[RP_WEIGHT_MAX_RANK];
        const guint rank = rp_adapter_tensor_shape(weight, shape);
        if (rp_checkpoint_has_weight(save->weights, weight))
            rp_safetensors_writer_add(save->model, name, save->model_dtype, shape, rank);
    }
    if (!open_base(save, error))
        return FALSE;
    save->first_other =
        rp_weights_add_others(rp_weights_model(save->weights), save->base, save->model);
    return rp_safetensors_writer_begin(save->model, error);
}

gboolean
rp_checkpoint_write_rounded(const RpCheckpointSave *save, const RpWeight *weight, guint tensor,
                            const void *values, RpDtype dtype, const RpCheckpointPiece *piece,
                            GError **error)
{
    gsize size = rp_dtype_size(save->model_dtype);

    for (guint64 at = 0; at < weight->elements; at += RP_CHECKPOINT_PIECE) {
        gsize n = (gsize)MIN(RP_CHECKPOINT_PIECE, weight->elements - at);
        rp_dtype_from_float(save->model_dtype,
                            rp_adapter_to_file(weight, dtype, values, at, n, piece->wide),
                            piece->rounded, n);
        if (!rp_checkpoint_check_finite(save->path, weight, save->model_dtype, piece->rounded, n,
                                        piece->wide, error) ||
            !rp_safetensors_writer_write(save->model, tensor, piece->rounded, n * size, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
write_next(const RpCheckpointSave *save, guint index, const RpWeight *part, guint tensor,
           const RpCheckpointPiece *piece, GError **error)
{
    const guint8 *values = save->image->numbers[index].next;
    gsize size = rp_dtype_size(save->dtype);

    for (guint64 at = 0; at < part->elements; at += RP_CHECKPOINT_PIECE) {
        gsize n = (gsize)MIN(RP_CHECKPOINT_PIECE, part->elements - at);
        if (!rp_checkpoint_check_finite(save->path, part, save->dtype, values + at * size, n,
                                        piece->wide, error) ||
            !rp_safetensors_writer_write(save->next, tensor, values + at * size, n * size, error))
            return FALSE;
    }
    return TRUE;
}

/* A frozen weight has the run's dtype on the host, so that its bytes are written as they are. */
gboolean
rp_checkpoint_write_frozen(const RpCheckpointSave *save, guint index, guint tensor, GError **error)
{
    const RpWeight *weight = rp_weights_nth(save->weights, index);

    g_assert(weight->storage == save->model_dtype);
    return rp_safetensors_writer_write(save->model, tensor, save->image->numbers[index].frozen,
                                       (gsize)weight->elements * rp_dtype_size(weight->storage),
                                       error);
}

/* The weight's numbers among those of the files */
typedef struct {
    guint model;
    guint state; /* number among the trained ones */
} Tensors;

static gboolean
write_model(const RpCheckpointSave *save, guint index, guint tensor, const RpCheckpointPiece *piece,
            GError **error)
{
    const RpWeight *weight = rp_weights_nth(save->weights, index);
    const RpOptimizerState *state = &save->image->numbers[index].state;

    if (!rp_weight_has_state(weight))
        return rp_checkpoint_write_frozen(save, index, tensor, error);
    return rp_checkpoint_write_rounded(
        save, weight, tensor, state->weight,
        state->form.master == RP_MOMENTS_FP32 ? RP_DTYPE_FP32 : RP_DTYPE_BF16, piece, error);
}

static gboolean
write_weight(const RpCheckpointSave *save, guint index, Tensors tensors,
             const RpCheckpointPiece *piece, GError **error)
{
    RpWeight part;

    if (save->model != NULL && !write_model(save, index, tensors.model, piece, error))
        return FALSE;
    if (save->optimizer == NULL || !find_part(save, index, &part))
        return TRUE;
    if (!write_optimizer(save->optimizer, &part, &save->image->numbers[index].state, tensors.state,
                         error))
        return FALSE;
    return save->next == NULL || write_next(save, index, &part, tensors.state, piece, error);
}

/* Different tensors may be written at once: each has a place of its own. */
typedef struct {
    const RpCheckpointSave *save;
    GArray *order;    /* (element-type guint): weights of the files, the largest first */
    Tensors *tensors; /* one for each weight */
} Writing;

static gint
compare_weights(gconstpointer a, gconstpointer b, gpointer weights)
{
    guint64 x = rp_weights_nth(weights, *(const guint *)a)->elements;
    guint64 y = rp_weights_nth(weights, *(const guint *)b)->elements;

    return (x < y) - (x > y);
}

static void
writing_init(Writing *writing, const RpCheckpointSave *save)
{
    const guint n = rp_weights_count(save->weights);
    Tensors next = {0};

    *writing = (Writing){.save = save, .order = g_array_new(FALSE, FALSE, sizeof(guint))};
    writing->tensors = g_new0(Tensors, n);
    for (guint i = 0; i < n; i++) {
        RpWeight part;

        if (!rp_checkpoint_has_weight(save->weights, rp_weights_nth(save->weights, i)))
            continue;
        writing->tensors[i] = next;
        next.model++;
        next.state += find_part(save, i, &part);
        g_array_append_val(writing->order, i);
    }
    g_array_sort_with_data(writing->order, compare_weights, (gpointer)save->weights);
}

/* RpPieceFunc. @data: Writing */
static gboolean
write_one(guint k, gpointer data, GError **error)
{
    const Writing *writing = data;
    const guint index = g_array_index(writing->order, guint, k);
    g_autofree float *wide = g_new(float, RP_CHECKPOINT_PIECE);
    g_autofree guint8 *rounded = g_malloc(RP_CHECKPOINT_PIECE * sizeof(float));
    const RpCheckpointPiece piece = {wide, rounded};

    return write_weight(writing->save, index, writing->tensors[index], &piece, error);
}

gboolean
rp_checkpoint_write_tensors(RpCheckpointSave *save, GError **error)
{
    Writing writing;

    writing_init(&writing, save);
    const gboolean good = rp_run_pieces(writing.order->len, write_one, &writing, error);

    g_free(writing.tensors);
    g_array_unref(writing.order);
    return good && (save->model == NULL || rp_checkpoint_finish_model(save, error)) &&
           (save->optimizer == NULL || rp_safetensors_writer_finish(save->optimizer, error)) &&
           (save->next == NULL || rp_safetensors_writer_finish(save->next, error));
}
