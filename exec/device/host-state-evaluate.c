/* The newest weights, for a while.
 *
 *   two versions   the one that the last step wrote
 *   one, sync      it is the newest
 *   one, async     weights: the last step's, rounded now   gradients: those that the next step reads
 */
#include <string.h>

#include "exec/device/host-state-private.h"

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
