/* Weights of files, and new adapters, into the host's state; where its memory lies. */
#include <string.h>

#include "exec/device/host-state-private.h"
#include "exec/system/pool.h"

/* Shares of threads end at multiples of this, parameters. */
#define GRANULE ((gsize)16384)

/* Loads a trained weight into its master, or a frozen one into the storage that devices read. */
typedef struct {
    const RpWeights *weights;
    guint index;
    RpOptimizerLayer *state; /* NULL: frozen */
    gsize element;           /* element of the layer at which the weight begins */
    RpShard share;           /* share of the layer that @state has */
    guint8 *frozen;
    RpDtype storage;
} LoadJob;

/* Sets the elements of the share among elements @first to @first + @n of the layer. */
static void
set_weights(const LoadJob *job, gsize first, const float *values, gsize n)
{
    const gsize begin = MAX(first, job->share.first);
    const gsize end = MIN(first + n, job->share.first + job->share.n);

    if (job->state != NULL && begin < end)
        rp_optimizer_layer_set_weights(job->state, begin - job->share.first,
                                       values + (begin - first), end - begin);
}

static void
load_share(gsize first, gsize n, gpointer data)
{
    const LoadJob *job = data;
    float wide[1024];

    if (job->frozen != NULL)
        rp_weights_read_as(job->weights, job->index, job->storage, first,
                           job->frozen + first * rp_dtype_size(job->storage), n);
    for (gsize at = 0, piece; at < n && job->frozen == NULL; at += piece) {
        piece = MIN(n - at, G_N_ELEMENTS(wide));
        rp_weights_read(job->weights, job->index, first + at, wide, piece);
        set_weights(job, job->element + first + at, wide, piece);
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
                job.share = host_state->layers[l].share;
                job.element = place.element;
            } else {
                job.frozen = rp_host_state_weights(host_state, l, 0, place.upload, &run);
                job.storage = place.storage;
            }

            if (!weight->tied)
                rp_pool_run(host_state->pool, 0, weight->elements, GRANULE, load_share, &job);
        }
        rp_host_state_publish_all(host_state, l);
        const RpHostStateLayer *of = &host_state->layers[l];

        if (of->weights[RP_HOST_STATE_REFERENCE] != NULL)
            memcpy(of->weights[RP_HOST_STATE_REFERENCE], of->weights[0],
                   of->own * host_state->element_bytes);
    }
    rp_host_state_begin_fresh(host_state);
}

/* ---- weights in and out ---- */

void
rp_host_state_publish(RpHostState *host_state, guint layer, void *published)
{
    const RpHostStateLayer *of = &host_state->layers[layer];

    if (of->state != NULL)
        rp_optimizer_layer_publish(
            host_state->optimizer, of->state, 0, of->share.n,
            (guint8 *)published + of->share.first * host_state->element_bytes, host_state->dtype);
}

void
rp_host_state_publish_all(RpHostState *host_state, guint layer)
{
    for (guint v = 0; v < rp_modes_versions(host_state->modes); v++) {
        rp_host_state_publish(host_state, layer, host_state->layers[layer].weights[v]);
        (void)!rp_shares_gather_weights(host_state->shares, layer,
                                        host_state->layers[layer].weights[v], RP_SERVERS_CONTROL,
                                        NULL);
    }
}

RpOptimizerState
rp_host_state_layer_state(const RpHostState *host_state, guint layer)
{
    const RpHostStateLayer *of = &host_state->layers[layer];
    RpOptimizerState state = {.form = host_state->options.adamw.form};

    if (of->state != NULL)
        state = rp_optimizer_layer_state(of->state);
    if (of->state != NULL && state.form.shared) /* all of them are here */
        state.weight =
            (const guint8 *)state.weight - of->share.first * rp_moment_bytes(state.form.master);
    return state;
}

RpShard
rp_host_state_share(const RpHostState *host_state, guint layer, guint server)
{
    return rp_shares_of(host_state->shares, layer, server);
}

RpShard
rp_host_state_own_share(const RpHostState *host_state, guint layer)
{
    return rp_shares_own(host_state->shares, layer);
}

gboolean
rp_host_state_restore_layer(RpHostState *host_state, guint layer, const RpOptimizerState *state,
                            GError **error)
{
    const RpOptimizerState share = rp_shares_cut(host_state->shares, layer, state);

    if (host_state->layers[layer].state != NULL &&
        !rp_optimizer_layer_restore(host_state->optimizer, host_state->layers[layer].state, &share,
                                    error))
        return FALSE;
    rp_host_state_publish_all(host_state, layer);
    return TRUE;
}

/* ---- the newest weights, for a while ----
 *
 *   two versions   the one that the last step wrote
 *   one, sync      it is the newest
 *   one, async     weights: the last step's, rounded now   gradients: those that the next step
 * reads */

/* Address of a layer's weights that are older than the masters; %NULL: nothing to put aside. */
static void *
aside(const RpHostState *host_state, const RpHostStateLayer *layer)
{
    const gboolean older =
        host_state->modes->staleness > 0 && rp_modes_versions(host_state->modes) == 1;

    return older && layer->own > 0 ? layer->gradients[0] : NULL;
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
        rp_host_state_publish_all(host_state, l);
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

/* ---- memory that is NUMA-local to the threads that step it ---- */

/* A layer is divided among all threads, and with them among the nodes: so a step has the memory rate of
 * all nodes, and each thread reads and writes memory of its own. */

/* A buffer in which @n values of @each bytes begin at @offset. */
static void
keep(RpHostState *host_state, const guint8 *memory, guint64 bytes, guint32 buffer, guint64 offset,
     gsize n, gsize each)
{
    if (buffer != RP_NONE && rp_host_state_fits(host_state, buffer, bytes))
        host_state->near.bytes +=
            rp_numa_bind(host_state->pool, host_state->options.nodes,
                         memory + rp_plan_buffer(host_state->plan, buffer)->offset + offset, n,
                         each, RP_OPTIMIZER_GRANULE, &host_state->near.problem);
}

/* Keeps the state of a layer that is stepped here NUMA-local to the threads that step it. */
static void
keep_layer(RpHostState *host_state, const guint8 *memory, guint64 bytes, guint layer)
{
    const RpPlanLayer *row = rp_plan_layer(host_state->plan, layer);
    const RpShard share = host_state->layers[layer].share;
    const RpStateFormat form = host_state->options.adamw.form;
    const gsize element = host_state->element_bytes;
    const gsize gradient = rp_host_state_gradient_bytes(host_state);
    const RpOptimizerPlaces places = rp_optimizer_places(form, share.n);

    for (guint v = 0; v < rp_modes_versions(host_state->modes); v++)
        keep(host_state, memory, bytes, row->weights[v], share.first * element, share.n, element);
    for (guint i = 0; i < rp_host_state_gradient_rounds(host_state); i++)
        keep(host_state, memory, bytes, row->gradients[i], share.first * gradient, share.n,
             gradient);
    if (!form.shared)
        keep(host_state, memory, bytes, row->optimizer, places.weight, share.n,
             rp_moment_bytes(form.master));
    for (guint i = 0; i < rp_optimizer_moments(form); i++)
        keep(host_state, memory, bytes, row->optimizer, places.moment[i], share.n,
             rp_moment_bytes(form.moments));
}

void
rp_host_state_bind_numa(RpHostState *host_state, const guint8 *memory, guint64 bytes)
{
    const RpNodes *nodes = host_state->options.nodes;

    if (host_state->pool == NULL || nodes == NULL || rp_nodes_count(nodes) == 1)
        return;
    host_state->near.nodes = rp_numa_nodes(host_state->pool, nodes);
    for (guint l = 0; l < host_state->n_layers; l++)
        if (host_state->layers[l].share.n > 0)
            keep_layer(host_state, memory, bytes, l);
}

const RpHostStateNuma *
rp_host_state_numa(const RpHostState *host_state)
{
    return &host_state->near;
}
