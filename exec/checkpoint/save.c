/**
 * Writing a checkpoint into its temporary directory, and giving it its name.
 *
 *   leftovers -> space? -> tensor files asked for from the disk -> written -> small files
 *             -> manifest -> name -> older ones
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include <glib/gstdio.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/system/threads.h"

#define PIECE_ELEMENTS ((guint64)1 << 18)
/* Of files that are ours alone to read: many of one size are written and summed at a time. */
#define STATE_SHARD_BYTES G_GUINT64_CONSTANT(1000000000)

/* A checkpoint being written. */
typedef struct {
    const RpCheckpointOptions *options;
    const RpCheckpointImage *image;
    const RpWeights *weights; /* of the image */
    gboolean adapters;        /* are what is saved, and modules trained whole beside them */
    RpDtype dtype;
    RpDtype model_dtype; /* of the model's file; fp32 of adapters */
    gboolean weights_only;
    char *path;
    char *temporary;
    guint64 needed_bytes;
    RpSafetensorsWriter *model;
    RpSafetensorsWriter *optimizer;
    RpSafetensorsWriter *next; /* NULL if synchronous */
} Save;

static void
save_init(Save *save, const RpCheckpointOptions *options, const RpCheckpointImage *image,
          gboolean weights_only)
{
    guint64 step = image->state.step;

    *save = (Save){.options = options, .image = image, .weights_only = weights_only};
    save->weights = image->weights;
    save->dtype = image->dtype;
    save->adapters = rp_weights_lora(image->weights) != NULL;
    save->model_dtype = save->adapters ? RP_DTYPE_FP32 : image->dtype;
    save->path = weights_only ? rp_checkpoint_weights_path(options->output, step)
                              : rp_checkpoint_path(options->output, step);
    save->temporary = rp_checkpoint_temporary_path(save->path, ".tmp");
}

static void
save_clear(Save *save)
{
    rp_safetensors_writer_free(save->next);
    rp_safetensors_writer_free(save->optimizer);
    rp_safetensors_writer_free(save->model);
    g_free(save->temporary);
    g_free(save->path);
}

/* ---- space ---- */

/* @cause: of what failed although the bytes are there: inodes, a quota */
static gboolean
fail_no_space(const Save *save, guint64 left, const char *cause, GError **error)
{
    g_autofree char *shown = rp_display_name(save->path);
    gboolean enough = cause != NULL && left >= save->needed_bytes;

    g_set_error(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE,
                "cannot write \"%s\": no space left: expected %" G_GUINT64_FORMAT
                " bytes of free disk space, found %" G_GUINT64_FORMAT "%s%s",
                shown, save->needed_bytes, left, enough ? ": " : "", enough ? cause : "");
    return FALSE;
}

static gboolean
check_space(Save *save, GError **error)
{
    guint64 left;

    save->needed_bytes = rp_checkpoint_needed_bytes(save->options, save->image, save->weights_only);
    if (!rp_checkpoint_free_bytes(save->options->output, &left))
        return rp_checkpoint_fail_errno(error, "write", save->options->output, errno);
    return save->needed_bytes <= left || fail_no_space(save, left, NULL, error);
}

/* ---- tensors ---- */

static RpSafetensorsWriter *
new_writer(const Save *save, const char *name, guint64 max_shard_bytes)
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

static gboolean
begin_state(Save *save, GError **error)
{
    for (guint i = 0; i < rp_weights_count(save->weights); i++) {
        const RpWeight *weight = rp_weights_nth(save->weights, i);
        if (!rp_weight_has_state(weight))
            continue;
        add_optimizer(save->optimizer, weight, &save->image->numbers[i].state);
        if (save->next != NULL)
            rp_safetensors_writer_add(save->next, weight->name, save->dtype, weight->shape,
                                      weight->rank);
    }
    return rp_safetensors_writer_begin(save->optimizer, error) &&
           (save->next == NULL || rp_safetensors_writer_begin(save->next, error));
}

/* All files have their space before the first tensor is written. */
static gboolean
begin_tensors(Save *save, GError **error)
{
    guint64 bytes = save->options->max_shard_bytes;
    guint64 state_bytes = bytes > 0 ? MIN(bytes, STATE_SHARD_BYTES) : STATE_SHARD_BYTES;

    save->model = save->adapters ? new_writer(save, RP_ADAPTER_TENSORS, 0)
                                 : new_writer(save, RP_CHECKPOINT_MODEL, bytes);
    if (!save->weights_only)
        save->optimizer = new_writer(save, RP_CHECKPOINT_OPTIMIZER, state_bytes);
    if (!save->weights_only && save->image->state.async)
        save->next = new_writer(save, RP_CHECKPOINT_NEXT, state_bytes);
    for (guint i = 0; i < rp_weights_count(save->weights); i++) {
        const RpWeight *weight = rp_weights_nth(save->weights, i);
        g_autofree char *name =
            save->adapters ? rp_adapter_tensor_name(save->weights, i) : g_strdup(weight->name);
        guint64 shape[RP_WEIGHT_MAX_RANK];
        const guint rank = rp_adapter_tensor_shape(weight, shape);
        if (rp_checkpoint_has_weight(save->weights, weight))
            rp_safetensors_writer_add(save->model, name, save->model_dtype, shape, rank);
    }
    return rp_safetensors_writer_begin(save->model, error) &&
           (save->weights_only || begin_state(save, error));
}

/* Memory for a piece of a tensor, in fp32 and in the network's dtype. */
typedef struct {
    float *wide;
    guint8 *rounded;
} Piece;

static gboolean
write_rounded(const Save *save, const RpWeight *weight, guint tensor, const RpOptimizerState *state,
              const Piece *piece, GError **error)
{
    gsize size = rp_dtype_size(save->model_dtype);
    const RpDtype dtype = state->form.master == RP_MOMENTS_FP32 ? RP_DTYPE_FP32 : RP_DTYPE_BF16;

    for (guint64 at = 0; at < weight->elements; at += PIECE_ELEMENTS) {
        gsize n = (gsize)MIN(PIECE_ELEMENTS, weight->elements - at);
        rp_dtype_from_float(save->model_dtype,
                            rp_adapter_to_file(weight, dtype, state->weight, at, n, piece->wide),
                            piece->rounded, n);
        if (!rp_checkpoint_check_finite(save->path, weight, save->model_dtype, piece->rounded, n,
                                        piece->wide, error) ||
            !rp_safetensors_writer_write(save->model, tensor, piece->rounded, n * size, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
write_next(const Save *save, guint index, guint tensor, const Piece *piece, GError **error)
{
    const RpWeight *weight = rp_weights_nth(save->weights, index);
    const guint8 *values = save->image->numbers[index].next;
    gsize size = rp_dtype_size(save->dtype);

    for (guint64 at = 0; at < weight->elements; at += PIECE_ELEMENTS) {
        gsize n = (gsize)MIN(PIECE_ELEMENTS, weight->elements - at);
        if (!rp_checkpoint_check_finite(save->path, weight, save->dtype, values + at * size, n,
                                        piece->wide, error) ||
            !rp_safetensors_writer_write(save->next, tensor, values + at * size, n * size, error))
            return FALSE;
    }
    return TRUE;
}

/* Of the run's dtype, as it lies on the host. */
static gboolean
write_frozen(const Save *save, guint index, guint tensor, GError **error)
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
    guint state; /* of trained ones */
} Tensors;

static gboolean
write_weight(const Save *save, guint index, Tensors tensors, const Piece *piece, GError **error)
{
    const guint tensor = tensors.state;
    const RpWeight *weight = rp_weights_nth(save->weights, index);
    const RpCheckpointNumbers *numbers = &save->image->numbers[index];

    if (numbers->state.weight == NULL)
        return write_frozen(save, index, tensors.model, error);
    if (!write_rounded(save, weight, tensors.model, &numbers->state, piece, error))
        return FALSE;
    if (save->weights_only)
        return TRUE;
    if (!write_optimizer(save->optimizer, weight, &numbers->state, tensor, error))
        return FALSE;
    return save->next == NULL || write_next(save, index, tensor, piece, error);
}

/* Weights being written by several threads. Different tensors may be: each has a place of its own.
 * The error that is kept is that of the first weight that fails, as with one thread. */
typedef struct {
    const Save *save;
    GArray *order;    /* (element-type guint): weights of the files, the largest first */
    Tensors *tensors; /* of each weight */
    pthread_mutex_t mutex;
    /* under the mutex */
    guint next;    /* in order */
    guint failed;  /* weight; beyond all if none */
    GError *error; /* of that */
} Writing;

static gint
compare_weights(gconstpointer a, gconstpointer b, gpointer weights)
{
    guint64 x = rp_weights_nth(weights, *(const guint *)a)->elements;
    guint64 y = rp_weights_nth(weights, *(const guint *)b)->elements;

    return (x < y) - (x > y);
}

static void
writing_init(Writing *writing, const Save *save)
{
    guint n = rp_weights_count(save->weights);
    Tensors next = {0};

    *writing = (Writing){.save = save, .failed = n};
    writing->order = g_array_new(FALSE, FALSE, sizeof(guint));
    writing->tensors = g_new0(Tensors, n);
    for (guint i = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(save->weights, i);
        if (!rp_checkpoint_has_weight(save->weights, weight))
            continue;
        writing->tensors[i] = next;
        next.model++;
        next.state += rp_weight_has_state(weight);
        g_array_append_val(writing->order, i);
    }
    g_array_sort_with_data(writing->order, compare_weights, (gpointer)save->weights);
    pthread_mutex_init(&writing->mutex, NULL);
}

static void
writing_clear(Writing *writing)
{
    pthread_mutex_destroy(&writing->mutex);
    g_free(writing->tensors);
    g_array_unref(writing->order);
}

/* After a failure, those before it only. */
static gboolean
take_weight(Writing *writing, guint *index)
{
    gboolean taken = FALSE;

    pthread_mutex_lock(&writing->mutex);
    while (!taken && writing->next < writing->order->len) {
        *index = g_array_index(writing->order, guint, writing->next++);
        taken = *index < writing->failed;
    }
    pthread_mutex_unlock(&writing->mutex);
    return taken;
}

static void
keep_error(Writing *writing, guint index, GError *error)
{
    pthread_mutex_lock(&writing->mutex);
    if (index < writing->failed) {
        GError *other = writing->error;
        writing->failed = index;
        writing->error = error;
        error = other;
    }
    pthread_mutex_unlock(&writing->mutex);
    g_clear_error(&error);
}

static void *
write_some(void *data)
{
    Writing *writing = data;
    g_autofree float *wide = g_new(float, PIECE_ELEMENTS);
    g_autofree guint8 *rounded = g_malloc(PIECE_ELEMENTS * sizeof(float));
    const Piece piece = {wide, rounded};
    guint index;

    while (take_weight(writing, &index)) {
        GError *error = NULL;
        if (!write_weight(writing->save, index, writing->tensors[index], &piece, &error))
            keep_error(writing, index, error);
    }
    return NULL;
}

static gboolean
write_tensors(Save *save, GError **error)
{
    Writing writing;

    if (!begin_tensors(save, error))
        return FALSE;
    writing_init(&writing, save);
    rp_run_in_threads(writing.order->len, write_some, &writing);
    writing_clear(&writing);
    if (writing.error != NULL) {
        g_propagate_error(error, writing.error);
        return FALSE;
    }
    return rp_safetensors_writer_finish(save->model, error) &&
           (save->optimizer == NULL || rp_safetensors_writer_finish(save->optimizer, error)) &&
           (save->next == NULL || rp_safetensors_writer_finish(save->next, error));
}

/* ---- all of it ---- */

static gboolean
write_directory(Save *save, GError **error)
{
    if (g_mkdir(save->temporary, 0777) != 0)
        return rp_checkpoint_fail_errno(error, "make", save->temporary, errno);
    return write_tensors(save, error) &&
           rp_checkpoint_write_small(save->options, save->image, save->temporary, error) &&
           (save->weights_only ||
            (rp_checkpoint_write_state(save->options, save->image, save->temporary, error) &&
             rp_checkpoint_manifest_write(save->temporary, error)));
}

/* What other layers say, as an error of a checkpoint; what was written is gone by now. */
static void
explain(const Save *save, const GError *cause, GError **error)
{
    guint64 left;
    gboolean full = g_error_matches(cause, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_NO_SPACE) ||
                    g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOSPC) ||
                    g_error_matches(cause, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE);

    if (full && save->needed_bytes > 0 && rp_checkpoint_free_bytes(save->options->output, &left))
        fail_no_space(save, left, cause->message, error);
    else
        g_set_error_literal(error, RP_CHECKPOINT_ERROR,
                            full ? RP_CHECKPOINT_ERROR_NO_SPACE : RP_CHECKPOINT_ERROR_WRITE,
                            cause->message);
}

/* Once. On error nothing is left of it. Returns: (transfer full): the path */
static char *
try_save(Save *save, GError **error)
{
    g_autoptr(GError) local = NULL;

    if (check_space(save, &local) && write_directory(save, &local) &&
        rp_checkpoint_publish(save->options->output, save->temporary, save->path, &local))
        return g_strdup(save->path);
    (void)rp_checkpoint_remove_tree(save->temporary);
    explain(save, local, error);
    return NULL;
}

char *
rp_checkpoint_save_image(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                         char **removed, GError **error)
{
    g_autoptr(GString) gone = g_string_new(NULL);
    g_autoptr(GError) local = NULL;
    char *path = NULL;

    if (removed != NULL)
        *removed = NULL;
    if (!rp_checkpoint_make_output(options->output, error))
        return NULL;
    rp_checkpoint_remove_leftovers(options->output);
    do {
        Save save;
        g_clear_error(&local);
        save_init(&save, options, image, FALSE);
        path = try_save(&save, &local);
        save_clear(&save);
    } while (path == NULL &&
             g_error_matches(local, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE) &&
             rp_checkpoint_make_space(options, image, gone));
    if (path != NULL && options->best.kept && options->best.step == image->state.step)
        rp_checkpoint_link_best(options->output, options->best.step, NULL);
    if (path != NULL)
        rp_checkpoint_prune(options->output, options->keep, image->state.step);
    else
        g_propagate_error(error, g_steal_pointer(&local));
    if (removed != NULL && gone->len > 0)
        *removed = g_strdup(gone->str);
    return path;
}

char *
rp_checkpoint_save(const RpCheckpointOptions *options, RpTrainer *trainer, const RpDataState *data,
                   char **removed, GError **error)
{
    g_auto(RpCheckpointImage) image = {0};

    g_return_val_if_fail(options && options->output && trainer && data, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    rp_checkpoint_image_take(&image, trainer, data);
    return rp_checkpoint_save_image(options, &image, removed, error);
}

char *
rp_checkpoint_save_weights(const RpCheckpointOptions *options, RpTrainer *trainer, GError **error)
{
    g_auto(RpCheckpointImage) image = {0};
    Save save;

    g_return_val_if_fail(options && options->output && trainer, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (!rp_checkpoint_make_output(options->output, error))
        return NULL;
    rp_checkpoint_remove_leftovers(options->output);
    rp_checkpoint_image_take(&image, trainer, NULL);
    save_init(&save, options, &image, TRUE);
    char *path = try_save(&save, error);
    save_clear(&save);
    return path;
}
