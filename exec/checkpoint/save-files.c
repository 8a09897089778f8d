/* The small files of a checkpoint. */
#include "exec/checkpoint/files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"

static gboolean
write_text(const char *directory, const char *name, const char *text, gsize length, GError **error)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    return g_file_set_contents_full(path, text, (gssize)length,
                                    G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE,
                                    0666, error);
}

static gboolean
write_config(const RpCheckpointOptions *options, const RpCheckpointImage *image,
             const char *directory, GError **error)
{
    g_autofree char *path = g_build_filename(directory, RP_CHECKPOINT_CONFIG, NULL);
    RpModel config = *rp_network_model(image->network);

    config.has_dtype = TRUE;
    config.dtype = image->dtype;
    return rp_hf_config_save(&config, path, error) &&
           (rp_weights_lora(image->weights) == NULL ||
            rp_adapter_config_save(image->weights, options->model_dir, directory, error));
}

static gboolean
copy_files(const RpCheckpointOptions *options, const char *directory, GError **error)
{
    for (gsize i = 0; options->model_dir != NULL && rp_checkpoint_copied_files[i] != NULL; i++) {
        g_autofree char *from =
            g_build_filename(options->model_dir, rp_checkpoint_copied_files[i], NULL);
        struct stat status = {0};
        if (stat(from, &status) != 0 && errno != ENOENT && errno != ENOTDIR)
            return rp_checkpoint_fail_errno(error, "read", from, errno);
        if (!S_ISREG(status.st_mode))
            continue;
        g_autoptr(GMappedFile) map = rp_file_map(from, error);
        if (map == NULL)
            return FALSE;
        const char *text = g_mapped_file_get_contents(map);
        if (!write_text(directory, rp_checkpoint_copied_files[i], text != NULL ? text : "",
                        g_mapped_file_get_length(map), error))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_checkpoint_write_small(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                          const char *directory, GError **error)
{
    return write_config(options, image, directory, error) && copy_files(options, directory, error);
}

gboolean
rp_checkpoint_write_state(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                          const char *directory, GError **error)
{
    RpCheckpointState state = image->state; /* borrowed */

    state.best = options->best;
    g_autofree char *json = rp_checkpoint_state_to_json(&state);

    return write_text(directory, RP_CHECKPOINT_STATE, json, strlen(json), error);
}
