/* Weights of files, and new adapters, into the host's state. */
#include <string.h>

#include "exec/device/host-state-private.h"

/* Shares of threads end at so many parameters. */
#define GRANULE ((gsize)16384)

/* Of a trained weight to its master, or of a frozen one to the storage that devices read. */
typedef struct {
    const RpWeights *weights;
    guint index;
    RpOptimizerLayer *state; /* NULL: frozen */
    gsize element;           /* of the layer's state, with which the weight begins */
    guint8 *frozen;
    RpDtype storage;
} LoadJob;

static void
load_share(gsize first, gsize n, gpointer data)
{
    const LoadJob *job = data;
    float wide[1024];

    for (gsize at = 0, piece; at < n; at += piece) {
        piece = MIN(n - at, G_N_ELEMENTS(wide));
        rp_weights_read(job->weights, job->index, first + at, wide, piece);
        if (job->state != NULL)
            rp_optimizer_layer_set_weights(job->state, job->element + first + at, wide, piece);
        else
            rp_dtype_from_float(job->storage, wide,
                                job->frozen + (first + at) * rp_dtype_size(job->storage), piece);
    }
}

void
rp_host_state_load(RpHostState *host_state, const RpWeights *weights)
{
    for (guint l = 0; l < host_state->n_layers; l++) {
        const RpLayerLayout *layout = rp_network_layout(host_state->network, l);
        guint first;
        const guint n = rp_weights_layer(weights, l, &first);

        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);
            const RpWeightPlace place = rp_layout_place(layout, weight);
            const RpLowbitSource *packed = rp_weights_packed(weights, i);
            guint64 run;
            LoadJob job = {.weights = weights, .index = i};

            if (place.is_packed) {
                if (weight->offset == 0)
                    rp_lowbit_source_load(
                        packed, rp_host_state_weights(host_state, l, 0, place.upload, &run),
                        host_state->pool);
                continue;
            }
            if (weight->trained) {
                job.state = host_state->layers[l].state;
                job.element = place.element;
            } else {
                job.frozen = rp_host_state_weights(host_state, l, 0, place.upload, &run);
                job.storage = place.storage;
            }

            if (!weight->tied)
                rp_pool_run(host_state->pool, 0, weight->elements, GRANULE, load_share, &job);
        }
        rp_host_state_publish_all(host_state, l);
    }
    rp_host_state_begin_fresh(host_state);
}

/* ---- the newest weights, for a while ----
 *
 *   two versions   the one that the last step wrote
 *   one, sync      it is the newest
 *   one, async     weights: the last step's, rounded now   gradients: those that the next step reads
 */

/* Where weights older than the masters stand, a layer of them; %NULL: nothing to put aside. */
static void *
aside(const RpHostState *host_state, const RpHostStateLayer *layer)
{
    const gboolean older = host_state->async && host_state->n_versions == 1;

    return older && layer->state != NULL ? layer->gradients[0] : NULL;
}

void
rp_host_state_begin_evaluation(RpHostState *host_state)
{
    g_return_if_fail(!host_state->evaluates);

    host_state->evaluates = TRUE;
    for (guint l = 0; l < host_state->n_layers; l++) {
        RpHostStateLayer *layer = &host_state->layers[l];
        void *kept = aside(host_state, layer);

        if (kept == NULL)
            continue;
        memcpy(kept, layer->weights[0], layer->own * host_state->element_bytes);
        rp_host_state_publish(host_state, l, layer->weights[0]);
    }
}

void
rp_host_state_end_evaluation(RpHostState *host_state)
{
    g_return_if_fail(host_state->evaluates);

    host_state->evaluates = FALSE;
    for (guint l = 0; l < host_state->n_layers; l++) {
        RpHostStateLayer *layer = &host_state->layers[l];
        const void *kept = aside(host_state, layer);

        if (kept != NULL)
            memcpy(layer->weights[0], kept, layer->own * host_state->element_bytes);
    }
}

gboolean
rp_host_state_evaluates(const RpHostState *host_state)
{
    return host_state->evaluates;
}
