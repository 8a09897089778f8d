/* The image that a checkpoint is written from: numbers and state of a trainer that stands still. */
#include "exec/checkpoint/parts.h"

#include <math.h>

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
