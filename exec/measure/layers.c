/*
 * One layer as a stage of its own, run over and over:
 *
 *   embedding   |forward|backward|forward|backward| ...
 *   block       |forward|recompute|recompute as the last|backward|forward| ...
 *   head        |forward|fused|forward|fused| ...
 *
 * The head's loss and gradient are made in one go, so that its backward is what the fused stage
 * takes beyond the forward. The embedding has nothing to recompute but its output, for the layer
 * behind it. A block's recompute makes its output, too, unless it is the last of its stage, so that
 * it is run in both ways.
 */
#include <stdlib.h>

#include "exec/measure/layers.h"
#include "exec/model/init.h"

/* Random numbers in a row; larger tensors repeat them. */
#define TILE 65536
#define SEED 1
#define GRADIENT_SIZE 1e-3f /* of an output */

static void
run_forward(gpointer data)
{
    RpMeasuredLayer *layer = data;

    layer->call.output = layer->room[RP_ROOM_OUTPUT];
    rp_network_forward(layer->network, &layer->call);
}

static void
run_recompute_last(gpointer data)
{
    RpMeasuredLayer *layer = data;
    RpStageCall call = layer->call;

    call.n_boundaries = 0;
    rp_network_recompute(layer->network, &call);
}

static void
run_backward(gpointer data)
{
    RpMeasuredLayer *layer = data;

    layer->call.output = layer->d_input;
    rp_network_backward(layer->network, &layer->call);
}

static void
run_fused(gpointer data)
{
    RpMeasuredLayer *layer = data;

    layer->call.output = layer->d_input;
    rp_network_fused(layer->network, &layer->call);
}

static void
run_expand(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_network_expand(layer->network, layer->call.stream, layer->call.layers,
                      layer->room[RP_ROOM_UPLOAD], (RpResidents){0},
                      layer->room[RP_ROOM_PARAMETERS]);
}

/* ---- what a call needs ---- */

static gboolean
upload(const RpMeasuredLayer *layer, void *to, gsize at, const void *from, gsize bytes,
       GError **error)
{
    return layer->probe->ops->upload(layer->probe, (guint8 *)to + at, from, bytes, error);
}

/* @n elements of what @tile begins with. */
static gboolean
fill(const RpMeasuredLayer *layer, RpDtype dtype, const float *tile, void *to, gsize at, guint64 n,
     GError **error)
{
    const gsize size = rp_dtype_size(dtype);
    g_autofree guint8 *stored = g_malloc(TILE * size);

    rp_dtype_from_float(dtype, tile, stored, (gsize)MIN(n, (guint64)TILE));
    for (guint64 i = 0; i < n; i += TILE)
        if (!upload(layer, to, at + i * size, stored, (gsize)MIN(n - i, (guint64)TILE) * size,
                    error))
            return FALSE;
    return TRUE;
}

/* Where a weight's values go: of a layer with codes they go up first, unless they are packed there. */
static void *
room_of(const RpMeasuredLayer *layer, const RpWeightPlace *place, gsize *byte)
{
    const gboolean up = layer->has_codes && !place->is_packed;

    *byte = (gsize)(up ? place->upload : place->byte);
    return layer->room[up ? RP_ROOM_UPLOAD : RP_ROOM_PARAMETERS];
}

static gboolean
fill_given(const RpMeasuredLayer *layer, const RpWeights *weights, guint index,
           const RpWeightPlace *place, float *tile, GError **error)
{
    const guint64 n = rp_weights_nth(weights, index)->elements;
    gsize byte;
    void *room = room_of(layer, place, &byte);

    for (guint64 done = 0; done < n; done += TILE) {
        const gsize count = (gsize)MIN(n - done, (guint64)TILE);

        rp_weights_read(weights, index, done, tile, count);
        if (!fill(layer, place->storage, tile, room, byte + done * rp_dtype_size(place->storage),
                  count, error))
            return FALSE;
    }
    return TRUE;
}

/* A router that takes the experts that tokens' states say. */
static gboolean
fill_router(const RpMeasuredLayer *layer, const RpWeightPlace *place, GError **error)
{
    const RpModel *model = rp_network_model(layer->network);
    const gsize bytes = model->hidden * rp_dtype_size(place->storage);
    g_autofree float *row = g_new(float, MAX(model->hidden, TILE));
    gsize byte;
    void *room = room_of(layer, place, &byte);

    for (guint e = 0; e < model->experts; e++) {
        rp_measure_route_weight(model, e, row);
        if (!fill(layer, place->storage, row, room, byte + e * bytes, model->hidden, error))
            return FALSE;
    }
    return TRUE;
}

/* @weights: (nullable): random ones. @packed: those that are packed in a layer with codes, or all others */
static gboolean
fill_weights(const RpMeasuredLayer *layer, const RpWeights *weights, guint index, gboolean packed,
             GError **error)
{
    const RpNetwork *network = layer->network;
    const RpLayerLayout *layout = rp_network_layout(network, index);
    const RpWeights *list = rp_network_weights(network);
    g_autofree float *tile = g_new0(float, TILE);
    guint first;
    const guint n = rp_weights_layer(list, index, &first);

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(list, i);
        const RpWeightPlace place = rp_layout_place(layout, weight);
        gsize byte;
        void *room = room_of(layer, &place, &byte);
        const gboolean given =
            weights != NULL && !weight->is_packed &&
            (rp_weights_source(weights, i) != NULL || rp_weights_packed(weights, i) != NULL);

        if (packed != (layer->has_codes && place.is_packed) || (packed && place.has_codes))
            continue;
        if (layer->routing > 0 && weight->kind == RP_WEIGHT_ROUTER) {
            if (!fill_router(layer, &place, error))
                return FALSE;
            continue;
        }
        if (!given)
            rp_init_fill(rp_network_model(network), weight, SEED, 0, tile,
                         (gsize)MIN(weight->elements, (guint64)TILE));
        if (given ? !fill_given(layer, weights, i, &place, tile, error)
                  : !fill(layer, place.storage, tile, room, byte, weight->elements, error))
            return FALSE;
    }
    return TRUE;
}

/* Hidden states of variance 1, scaled. */
static gboolean
fill_hidden(const RpMeasuredLayer *layer, GRand *random, float scale, void *to, GError **error)
{
    const RpNetwork *network = layer->network;
    const RpDtype dtype = rp_network_options(network)->dtype;
    g_autofree float *tile = g_new(float, TILE);

    for (guint i = 0; i < TILE; i++)
        tile[i] = scale * (float)g_rand_double_range(random, -1.732, 1.732);
    return fill(layer, dtype, tile, to, 0, rp_network_hidden_elements(network), error);
}

/* The same, of tokens that choose their experts with the layer's skew. */
static gboolean
fill_routed(const RpMeasuredLayer *layer, GRand *random, void *to, GError **error)
{
    const RpNetwork *network = layer->network;
    const RpModel *model = rp_network_model(network);
    const RpDtype dtype = rp_network_options(network)->dtype;
    const gsize bytes = model->hidden * rp_dtype_size(dtype);
    const guint64 tokens = rp_network_hidden_elements(network) / model->hidden;
    g_autofree float *state = g_new(float, MAX(model->hidden, TILE));

    for (guint64 t = 0; t < tokens; t++) {
        for (guint i = 0; i < model->hidden; i++)
            state[i] = (float)g_rand_double_range(random, -1.732, 1.732);
        rp_measure_route_state(model, layer->routing, t, state);
        if (!fill(layer, dtype, state, to, t * bytes, model->hidden, error))
            return FALSE;
    }
    return TRUE;
}

/* The embeddings of the tokens: what the model's first block gets. */
static gboolean
fill_embedded(const RpMeasuredLayer *layer, const RpWeights *weights, void *to, GError **error)
{
    const RpNetwork *network = layer->network;
    const guint hidden = rp_network_model(network)->hidden;
    const RpDtype dtype = rp_network_options(network)->dtype;
    const gsize bytes = hidden * rp_dtype_size(dtype);
    const guint64 tokens = rp_network_hidden_elements(network) / hidden;
    g_autofree float *state = g_new(float, MAX(hidden, TILE));
    guint embedding;

    rp_weights_layer(weights, 0, &embedding);
    for (guint64 t = 0; t < tokens; t++) {
        rp_weights_read(weights, embedding, (guint64)layer->tokens[t] * hidden, state, hidden);
        if (!fill(layer, dtype, state, to, t * bytes, hidden, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
fill_ids(const RpMeasuredLayer *layer, GRand *random, void *to, gsize n, GError **error)
{
    g_autofree gint32 *ids = g_new(gint32, n);

    for (gsize i = 0; i < n; i++)
        ids[i] = g_rand_int_range(random, 0, (gint32)rp_network_model(layer->network)->vocab);
    return upload(layer, to, 0, ids, n * sizeof *ids, error);
}

static gboolean
fill_constants(const RpMeasuredLayer *layer, GError **error)
{
    const gsize bytes = (gsize)rp_network_constant_bytes(layer->network);
    void *constants = rp_measure_take(NULL, bytes, error);
    gboolean filled = FALSE;

    if (constants != NULL) {
        rp_network_fill_constants(layer->network, constants);
        filled = upload(layer, layer->room[RP_ROOM_CONSTANTS], 0, constants, bytes, error);
    }
    free(constants);
    return filled;
}

/* What it holds is of no matter to the time, but where it becomes codes. */
static gboolean
clear_upload(const RpMeasuredLayer *layer, const RpLayer *sizes, GError **error)
{
    g_autofree float *tile = g_new0(float, TILE);

    return fill(layer, RP_DTYPE_BF16, tile, layer->room[RP_ROOM_UPLOAD], 0,
                sizes->upload_bytes / sizeof(guint16), error);
}

static gboolean
take_rooms(RpMeasuredLayer *layer, const RpProfile *profile, guint index, GError **error)
{
    const RpNetwork *network = layer->network;
    const RpLayer *sizes = &profile->layers[index];
    const RpLayerLayout *layout = rp_network_layout(network, index);
    const guint64 hidden = rp_network_hidden_bytes(network);
    const gsize bytes[RP_N_ROOMS] = {
        [RP_ROOM_CONSTANTS] = (gsize)rp_network_constant_bytes(network),
        [RP_ROOM_PARAMETERS] = (gsize)layout->bytes,
        [RP_ROOM_UPLOAD] = (gsize)sizes->upload_bytes,
        [RP_ROOM_INPUT] = (gsize)MAX(hidden, sizes->input_bytes),
        [RP_ROOM_GRADIENT] = (gsize)hidden,
        [RP_ROOM_OUTPUT] = (gsize)hidden,
        [RP_ROOM_D_INPUT] = (gsize)hidden,
        [RP_ROOM_SUMS] = (gsize)(layout->elements * sizeof(float)),
        [RP_ROOM_WORKSPACE] =
            (gsize)(sizes->activation_bytes +
                    profile->layers[profile->n_layers - 1].activation_bytes +
                    MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        [RP_ROOM_SAVED] =
            (gsize)rp_network_saved_bytes(network, index, (1u << RP_N_SAVED_GROUPS) - 1),
        [RP_ROOM_TARGETS] = (gsize)rp_profile_micro_batch_tokens(profile) * sizeof(gint32),
        [RP_ROOM_LOSS] = 2 * sizeof(double),
    };

    for (guint i = 0; i < RP_N_ROOMS; i++) {
        layer->room[i] = layer->probe->ops->take(layer->probe, bytes[i], error);
        if (layer->room[i] == NULL)
            return FALSE;
    }
    return TRUE;
}

static void
give_rooms(RpMeasuredLayer *layer)
{
    for (guint i = 0; i < RP_N_ROOMS; i++)
        layer->probe->ops->give(layer->probe, layer->room[i]);
}

static void
make_call(RpMeasuredLayer *layer, const RpProfile *profile, guint index)
{
    void *const *room = layer->room;

    layer->boundary = index + 1;
    layer->d_input = index == 0 ? NULL : room[RP_ROOM_D_INPUT];
    layer->call = (RpStageCall){
        .stream = layer->probe->ops->stream(layer->probe),
        .layers = {index, 1},
        .constants = room[RP_ROOM_CONSTANTS],
        .parameters = room[RP_ROOM_PARAMETERS],
        .input = room[RP_ROOM_INPUT],
        .boundaries = &layer->boundary,
        .n_boundaries = profile->layers[index].kind == RP_LAYER_HEAD ? 0 : 1,
        .gradient = room[RP_ROOM_GRADIENT],
        .sums = room[RP_ROOM_SUMS],
        .workspace = room[RP_ROOM_WORKSPACE],
        .targets = room[RP_ROOM_TARGETS],
        .scale = 1.0f / (float)rp_profile_micro_batch_tokens(profile),
        .loss = room[RP_ROOM_LOSS],
        .drops = TRUE,
    };
}

/* Of a layer that reads some: a run of what else is timed by itself. */
static gboolean
make_codes(RpMeasuredLayer *layer, GError **error)
{
    const RpProbePart part = run_expand;
    gint64 ns;

    return !layer->has_codes ||
           layer->probe->ops->time(layer->probe, &part, 1, 1, layer, &ns, error);
}

static gboolean
fill_rooms(RpMeasuredLayer *layer, const RpWeights *weights, const RpProfile *profile, guint index,
           GError **error)
{
    const gsize tokens = (gsize)rp_profile_micro_batch_tokens(profile);
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED);
    void *input = layer->room[RP_ROOM_INPUT];

    const RpLayerKind kind = profile->layers[index].kind;
    const gboolean block = kind == RP_LAYER_BLOCK;

    make_call(layer, profile, index);
    return fill_constants(layer, error) && clear_upload(layer, &profile->layers[index], error) &&
           fill_weights(layer, weights, index, FALSE, error) && make_codes(layer, error) &&
           fill_weights(layer, weights, index, TRUE, error) &&
           (kind == RP_LAYER_EMBEDDING       ? fill_ids(layer, random, input, tokens, error)
            : block && layer->routing > 0    ? fill_routed(layer, random, input, error)
            : block && layer->tokens != NULL ? fill_embedded(layer, weights, input, error)
                                             : fill_hidden(layer, random, 1, input, error)) &&
           fill_hidden(layer, random, GRADIENT_SIZE, layer->room[RP_ROOM_GRADIENT], error) &&
           fill_ids(layer, random, layer->room[RP_ROOM_TARGETS], tokens, error);
}

/* ---- times ---- */

/* By kind: a forward first, and last the backward, of the head with the forward before it. */
static const struct {
    guint n;
    RpProbePart parts[4];
} kinds[] = {
    [RP_LAYER_EMBEDDING] = {2, {run_forward, run_backward}},
    [RP_LAYER_BLOCK] = {4,
                        {run_forward, rp_measured_layer_recompute, run_recompute_last,
                         run_backward}},
    [RP_LAYER_HEAD] = {2, {run_forward, run_fused}},
};

static gboolean
measure(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    const guint n = kinds[to->kind].n;
    RpTimes times[G_N_ELEMENTS(kinds[0].parts)];
    const RpTimes *recompute = &times[n > 2 ? 1 : 0], *backward = &times[n - 1];

    if (!rp_measurer_run(measurer, layer->probe, kinds[to->kind].parts, n, layer, times, error))
        return FALSE;
    to->forward_ns = rp_probe_typical_ns(layer->probe, &times[0]);
    to->forward_spread_ns = times[0].spread_ns;
    to->recompute_ns = rp_probe_typical_ns(layer->probe, recompute);
    to->recompute_spread_ns = recompute->spread_ns;
    if (n > 2)
        to->recompute_last_ns = MIN(rp_probe_typical_ns(layer->probe, &times[2]), to->recompute_ns);
    to->backward_ns = MAX(0, rp_probe_typical_ns(layer->probe, backward) -
                                 (to->kind == RP_LAYER_HEAD ? to->forward_ns : 0));
    to->backward_spread_ns = backward->spread_ns;
    return TRUE;
}

/* Last: it leaves zeros for weights. */
static gboolean
measure_expansion(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    const RpProbePart part = run_expand;
    RpTimes times;

    if (to->upload_bytes == 0)
        return TRUE;
    if (!rp_measurer_run(measurer, layer->probe, &part, 1, layer, &times, error))
        return FALSE;
    to->expand_ns = rp_probe_typical_ns(layer->probe, &times);
    return TRUE;
}

gboolean
rp_measure_layer(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network,
                 const RpWeights *weights, guint layer, RpProfile *profile, GError **error)
{
    RpLayer *to = &profile->layers[layer];
    const RpMeasureOptions *options = measurer->options;
    RpMeasuredLayer run = {.probe = probe,
                           .network = network,
                           .has_codes = rp_network_layout(network, layer)->has_codes,
                           .routing = options->routing,
                           .tokens = weights != NULL ? options->tokens : NULL};
    gboolean measured = FALSE;

    if (take_rooms(&run, profile, layer, error) &&
        fill_rooms(&run, run.routing > 0 ? NULL : weights, profile, layer, error))
        measured = measure(measurer, &run, to, error) &&
                   rp_measure_saved(measurer, &run, to, error) &&
                   measure_expansion(measurer, &run, to, error);
    give_rooms(&run);
    to->weight_gradient_ns = to->backward_ns / 2;
    return measured;
}

gboolean
rp_measure_run_once(RpProbe *probe, const RpNetwork *network, guint layer, const RpProfile *profile,
                    GError **error)
{
    const RpLayerKind kind = profile->layers[layer].kind;
    RpMeasuredLayer run = {.probe = probe,
                           .network = network,
                           .has_codes = rp_network_layout(network, layer)->has_codes};
    gint64 ns[G_N_ELEMENTS(kinds[0].parts)];
    gboolean done = FALSE;

    if (!take_rooms(&run, profile, layer, NULL))
        done = TRUE; /* where a layer has no room, a plan has none: it says so better */
    else if (fill_rooms(&run, NULL, profile, layer, error))
        done = probe->ops->time(probe, kinds[kind].parts, kinds[kind].n, 1, &run, ns, error);
    give_rooms(&run);
    return done;
}
