/**
 * Writing a checkpoint into its temporary directory, and giving it its name.
 *
 *   leftovers -> space? -> tensor files allocated on the disk -> written -> small files
 *             -> manifest -> name -> older ones
 */
#include "exec/checkpoint/private.h"

#include "core/base/new-file.h"

static void
save_init(RpCheckpointSave *save, const RpCheckpointOptions *options,
          const RpCheckpointImage *image, gboolean weights_only)
{
    guint64 step = image->state.step;

    *save = (RpCheckpointSave){.options = options, .image = image, .weights_only = weights_only};
    save->weights = image->weights;
    save->dtype = image->dtype;
    save->adapters = rp_weights_lora(image->weights) != NULL;
    save->model_dtype = save->adapters ? RP_DTYPE_FP32 : image->dtype;
    save->path = weights_only ? rp_checkpoint_weights_path(options->output, step)
                              : rp_checkpoint_path(options->output, step);
    save->temporary = rp_new_file_temporary_path(save->path, RP_NEW_FILE_SUFFIX);
}

static void
save_clear(RpCheckpointSave *save)
{
    rp_safetensors_writer_free(save->next);
    rp_safetensors_writer_free(save->optimizer);
    rp_safetensors_writer_free(save->model);
    rp_safetensors_free(save->base);
    g_free(save->temporary);
    g_free(save->path);
}

/* ---- all of it ---- */

/* All files have their space before the first tensor is written. */
static gboolean
write_directory(RpCheckpointSave *save, GError **error)
{
    return rp_checkpoint_begin_model(save, error) &&
           (save->weights_only || rp_checkpoint_begin_state(save, error)) &&
           rp_checkpoint_write_tensors(save, error) &&
           rp_checkpoint_write_small(save->options, save->image, save->temporary, error) &&
           (save->weights_only ||
            (rp_checkpoint_write_state(save->options, save->image, save->temporary, error) &&
             rp_checkpoint_manifest_write(save->temporary, save->image, NULL, error)));
}

/* Once. On error nothing is left of it. Returns: (transfer full): the path */
static char *
try_save(RpCheckpointSave *save, GError **error)
{
    g_autoptr(GError) local = NULL;

    if (save->image->n_servers > 1)
        return rp_checkpoint_save_together(save, error) ? g_strdup(save->path) : NULL;
    if (rp_checkpoint_save_begin(save, &local) && write_directory(save, &local) &&
        rp_checkpoint_publish(save->options->output, save->temporary, save->path, &local))
        return g_strdup(save->path);
    (void)rp_checkpoint_remove_tree(save->temporary);
    rp_checkpoint_save_explain(save, local, error);
    return NULL;
}

/* Whether an older one has made space for another try. Errors: RP_SERVERS_ERROR_* */
static gboolean
make_space(const RpCheckpointOptions *options, const RpCheckpointImage *image, GString *gone,
           GError **error)
{
    gboolean made = FALSE;

    if (!g_error_matches(*error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE))
        return FALSE;
    if (image->server == 0)
        made = rp_checkpoint_make_space(options, image, gone);
    if (image->n_servers > 1) {
        g_autoptr(GError) full = g_steal_pointer(error);

        if (!rp_checkpoint_as_first(image, &made, error))
            return FALSE;
        *error = g_steal_pointer(&full);
    }
    return made;
}

/* Called once the checkpoint is there. */
static void
tidy(const RpCheckpointOptions *options, guint64 step)
{
    if (options->best.kept && options->best.step == step)
        rp_checkpoint_link_best(options->output, options->best.step, NULL);
    rp_checkpoint_prune(options->output, options->keep, step);
}

/* With several servers the first one does this, at a point where it can report a failure to all:
 * save-servers.c. */
static gboolean
prepare_output(const RpCheckpointOptions *options, const RpCheckpointImage *image, GError **error)
{
    if (image->n_servers > 1)
        return TRUE;
    if (!rp_checkpoint_make_output(options->output, error))
        return FALSE;
    rp_checkpoint_remove_leftovers(options->output);
    return TRUE;
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
    if (!prepare_output(options, image, error))
        return NULL;
    do {
        RpCheckpointSave save;
        g_clear_error(&local);
        save_init(&save, options, image, FALSE);
        path = try_save(&save, &local);
        save_clear(&save);
    } while (path == NULL && make_space(options, image, gone, &local));
    if (path != NULL && image->server == 0)
        tidy(options, image->state.step);
    if (path == NULL)
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

    rp_checkpoint_image_take(&image, trainer, options->servers, data);
    return rp_checkpoint_save_image(options, &image, removed, error);
}

char *
rp_checkpoint_save_weights(const RpCheckpointOptions *options, RpTrainer *trainer, GError **error)
{
    g_auto(RpCheckpointImage) image = {0};
    RpCheckpointSave save;

    g_return_val_if_fail(options && options->output && trainer, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    rp_checkpoint_image_take(&image, trainer, options->servers, NULL);
    if (!prepare_output(options, &image, error))
        return NULL;
    save_init(&save, options, &image, TRUE);
    char *path = try_save(&save, error);
    save_clear(&save);
    return path;
}
