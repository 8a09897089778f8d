/* The image that a checkpoint is written from: numbers and state of a trainer that stands still. */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"

/* With several servers, records which server has which elements. */
static void
take_parts(RpCheckpointImage *image, const RpTrainer *trainer)
{
    if (image->n_servers == 1)
        return;
    image->parts = g_new0(RpShard, (gsize)rp_weights_count(image->weights) * image->n_servers);
    for (guint i = 0; i < rp_weights_count(image->weights); i++)
        for (guint r = 0;
             rp_weight_has_state(rp_weights_nth(image->weights, i)) && r < image->n_servers; r++)
            image->parts[(gsize)i * image->n_servers + r] = rp_trainer_weight_part(trainer, i, r);
}

void
rp_checkpoint_image_take(RpCheckpointImage *image, RpTrainer *trainer, RpServers *servers,
                         const RpDataState *data)
{
    const RpDataState none = {0};

    *image = (RpCheckpointImage){.servers = servers, .n_servers = 1};
    if (servers != NULL) {
        image->n_servers = rp_servers_count(servers);
        image->server = rp_servers_rank(servers);
    }
    image->network = rp_trainer_network(trainer);
    image->weights = rp_network_weights(image->network);
    image->dtype = rp_network_options(image->network)->dtype;
    rp_checkpoint_state_take(&image->state, trainer, data != NULL ? data : &none);
    image->numbers = g_new0(RpCheckpointNumbers, rp_weights_count(image->weights));
    take_parts(image, trainer);
    for (guint i = 0; i < rp_weights_count(image->weights); i++) {
        RpCheckpointNumbers *numbers = &image->numbers[i];
        const RpWeight *weight = rp_weights_nth(image->weights, i);
        if (!rp_weight_has_state(weight)) {
            if (rp_checkpoint_has_weight(image->weights, weight))
                numbers->frozen = rp_trainer_frozen_weight(trainer, i);
            continue;
        }
        numbers->state = rp_trainer_weight_state(trainer, i);
        if (image->state.async)
            numbers->next = (const guint8 *)rp_trainer_next_weight(trainer, i) +
                            rp_checkpoint_image_share(image, i, image->server).first *
                                rp_dtype_size(image->dtype);
    }
}

void
rp_checkpoint_image_clear(RpCheckpointImage *image)
{
    g_clear_pointer(&image->numbers, g_free);
    g_clear_pointer(&image->parts, g_free);
    rp_checkpoint_state_clear(&image->state);
}

gboolean
rp_checkpoint_check_finite(const char *path, const RpWeight *weight, RpDtype dtype,
                           const guint8 *values, gsize n, float *wide, GError **error)
{
    gsize i = 0;

    rp_dtype_to_float(dtype, values, wide, n);
    while (i < n && isfinite(wide[i]))
        i++;
    return i == n || rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_WRITE, path,
                                        "%s: expected finite weights in %s, found %f", weight->name,
                                        rp_dtype_name(dtype), (double)wide[i]);
}

/* The small files of a checkpoint. */

static gboolean
write_text(const char *directory, const char *name, const char *text, gsize length, GError **error)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    return g_file_set_contents_full(path, text, (gssize)length,
                                    G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE,
                                    0666, error);
}

/* Does nothing if there is none. */
static gboolean
copy_file(const char *from_directory, const char *directory, const char *name, GError **error)
{
    g_autofree char *from = g_build_filename(from_directory, name, NULL);
    struct stat status = {0};

    if (stat(from, &status) != 0 && errno != ENOENT && errno != ENOTDIR)
        return rp_checkpoint_fail_errno(error, "read", from, errno);
    if (!S_ISREG(status.st_mode))
        return TRUE;
    g_autoptr(GMappedFile) map = rp_file_map(from, error);
    if (map == NULL)
        return FALSE;
    const char *text = g_mapped_file_get_contents(map);

    return write_text(directory, name, text != NULL ? text : "", g_mapped_file_get_length(map),
                      error);
}

/* Whether config.json stays as the base has it, with the sizes of a larger model's other parts: if it says the same of
 * this one. */
static gboolean
keeps_config(const RpCheckpointOptions *options, const RpModel *config)
{
    RpModel base;

    if (!config->outer || options->model_dir == NULL ||
        !rp_hf_config_load(options->model_dir, &base, NULL))
        return FALSE;
    g_autofree char *own = rp_hf_config_to_json(config), *of_base = rp_hf_config_to_json(&base);

    return strcmp(own, of_base) == 0;
}

static gboolean
write_config(const RpCheckpointOptions *options, const RpCheckpointImage *image,
             const char *directory, GError **error)
{
    g_autofree char *path = g_build_filename(directory, RP_CHECKPOINT_CONFIG, NULL);
    RpModel config = *rp_network_model(image->network);

    config.has_dtype = TRUE;
    config.dtype = image->dtype;
    return (keeps_config(options, &config)
                ? copy_file(options->model_dir, directory, RP_CHECKPOINT_CONFIG, error)
                : rp_hf_config_save(&config, path, error)) &&
           (rp_weights_lora(image->weights) == NULL ||
            rp_adapter_config_save(image->weights,
                                   options->base != NULL ? options->base : options->model_dir,
                                   directory, error));
}

static gboolean
copy_files(const RpCheckpointOptions *options, const char *directory, GError **error)
{
    for (gsize i = 0; options->model_dir != NULL && rp_checkpoint_copied_files[i] != NULL; i++)
        if (!copy_file(options->model_dir, directory, rp_checkpoint_copied_files[i], error))
            return FALSE;
    return TRUE;
}

gboolean
rp_checkpoint_write_small(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                          const char *directory, GError **error)
{
    const char *card = options->card;

    return write_config(options, image, directory, error) &&
           copy_files(options, directory, error) &&
           (card == NULL || write_text(directory, RP_CHECKPOINT_CARD, card, strlen(card), error));
}

gboolean
rp_checkpoint_write_state(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                          const char *directory, GError **error)
{
    RpCheckpointState state = image->state; /* borrowed */

    state.best = options->best;
    state.reference = options->reference;
    g_autofree char *json = rp_checkpoint_state_to_json(&state);

    return write_text(directory, RP_CHECKPOINT_STATE, json, strlen(json), error);
}
