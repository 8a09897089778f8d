/*
 * One layer as a stage of its own, run over and over:
 *
 *   embedding, block   |forward|recompute|backward|forward|recompute|backward| ...
 *   head               |forward|fused|forward|fused| ...
 *
 * The head's loss and gradient are made in one go, so that its backward is what the fused stage
 * takes beyond the forward. The embedding has nothing to recompute but its output, for the layer
 * behind it. A block's recompute makes its output, too, as it must unless it is the last of its
 * stage: it is run as the stage of the last block and the head, of which only the block recomputes.
 */
#include <stdlib.h>

#include "exec/host/profile-private.h"
#include "exec/model/init.h"

/* Random numbers in a row; larger tensors repeat them. */
#define TILE 65536
#define SEED 1
#define GRADIENT_SIZE 1e-3f /* of an output */

/* What a call needs. */
enum { CONSTANTS, PARAMETERS, INPUT, GRADIENT, OUTPUT, D_INPUT, SUMS, WORKSPACE, TARGETS, N_ROOMS };

typedef struct {
    const RpNetwork *network;
    guint boundary;
    gboolean with_head; /* at recompute */
    RpStageCall call;   /* with every pointer; parts take what is theirs */
    void *output;
    void *d_input;
    double loss;
} Layer;

static void
run_forward(gpointer data)
{
    Layer *layer = data;

    layer->call.output = layer->output;
    rp_network_forward(layer->network, &layer->call);
}

static void
run_recompute(gpointer data)
{
    Layer *layer = data;
    RpStageCall call = layer->call;

    if (layer->with_head)
        call.layers = (RpInterval){rp_network_n_layers(layer->network) - 2, 2};
    rp_network_recompute(layer->network, &call);
}

static void
run_backward(gpointer data)
{
    Layer *layer = data;

    layer->call.output = layer->d_input;
    rp_network_backward(layer->network, &layer->call);
}

static void
run_fused(gpointer data)
{
    Layer *layer = data;

    layer->call.output = layer->d_input;
    rp_network_fused(layer->network, &layer->call);
}

/* @n elements of what @tile begins with. */
static void
fill(RpDtype dtype, const float *tile, void *to, guint64 n)
{
    for (guint64 i = 0; i < n; i += TILE)
        rp_dtype_from_float(dtype, tile, (guint8 *)to + i * rp_dtype_size(dtype),
                            (gsize)MIN(n - i, (guint64)TILE));
}

static void
fill_weights(const RpNetwork *network, const RpWeights *weights, guint index, guint8 *parameters)
{
    const RpDtype dtype = rp_network_options(network)->dtype;
    const RpLayerLayout *layout = rp_network_layout(network, index);
    const RpWeights *list = rp_network_weights(network);
    g_autofree float *tile = g_new(float, TILE);
    guint first;
    const guint n = rp_weights_layer(list, index, &first);

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(list, i);
        const RpSafetensor *source = weights ? rp_weights_source(weights, i) : NULL;
        guint8 *to = parameters + layout->offset[weight->kind] * rp_dtype_size(dtype);

        if (source == NULL) {
            rp_init_fill(rp_network_config(network), weight, SEED, 0, tile,
                         (gsize)MIN(weight->elements, (guint64)TILE));
            fill(dtype, tile, to, weight->elements);
            continue;
        }
        for (guint64 done = 0; done < weight->elements; done += TILE) {
            const gsize count = (gsize)MIN(weight->elements - done, (guint64)TILE);

            rp_dtype_to_float(source->dtype,
                              (const guint8 *)source->data + done * rp_dtype_size(source->dtype),
                              tile, count);
            rp_dtype_from_float(dtype, tile, to + done * rp_dtype_size(dtype), count);
        }
    }
}

/* Hidden states of variance 1. */
static void
fill_hidden(const RpNetwork *network, GRand *random, float scale, void *to)
{
    const RpDtype dtype = rp_network_options(network)->dtype;
    g_autofree float *tile = g_new(float, TILE);

    for (guint i = 0; i < TILE; i++)
        tile[i] = scale * (float)g_rand_double_range(random, -1.732, 1.732);
    fill(dtype, tile, to, rp_network_hidden_bytes(network) / rp_dtype_size(dtype));
}

static void
fill_ids(const RpNetwork *network, GRand *random, gint32 *ids, gsize n)
{
    for (gsize i = 0; i < n; i++)
        ids[i] = g_rand_int_range(random, 0, (gint32)rp_network_config(network)->vocab);
}

/* Everything that a call needs, in @memory: freed by the caller whether it works or not. */
static gboolean
prepare(Layer *layer, const RpWeights *weights, const RpProfile *profile, guint index,
        GPtrArray *memory, GError **error)
{
    const RpNetwork *network = layer->network;
    const RpLayer *sizes = &profile->layers[index];
    const RpLayerLayout *layout = rp_network_layout(network, index);
    const guint64 hidden = rp_network_hidden_bytes(network);
    const gsize tokens = (gsize)profile->sequences * profile->tokens_per_sequence;
    const gsize bytes[N_ROOMS] = {
        [CONSTANTS] = (gsize)rp_network_constant_bytes(network),
        [PARAMETERS] =
            (gsize)(layout->elements * rp_dtype_size(rp_network_options(network)->dtype)),
        [INPUT] = (gsize)MAX(hidden, sizes->input_bytes),
        [GRADIENT] = (gsize)hidden,
        [OUTPUT] = (gsize)hidden,
        [D_INPUT] = (gsize)hidden,
        [SUMS] = (gsize)(layout->elements * sizeof(float)),
        [WORKSPACE] = (gsize)(sizes->activation_bytes +
                              profile->layers[profile->n_layers - 1].activation_bytes +
                              MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        [TARGETS] = tokens * sizeof(gint32),
    };
    void *taken[N_ROOMS];
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED);

    for (guint i = 0; i < N_ROOMS; i++) {
        taken[i] = rp_measurer_take(bytes[i], error);
        if (taken[i] == NULL)
            return FALSE;
        g_ptr_array_add(memory, taken[i]);
    }
    rp_network_fill_constants(network, taken[CONSTANTS]);
    fill_weights(network, weights, index, taken[PARAMETERS]);
    if (sizes->kind == RP_LAYER_EMBEDDING)
        fill_ids(network, random, taken[INPUT], tokens);
    else
        fill_hidden(network, random, 1, taken[INPUT]);
    fill_hidden(network, random, GRADIENT_SIZE, taken[GRADIENT]);
    fill_ids(network, random, taken[TARGETS], tokens);
    layer->boundary = index + 1;
    layer->with_head = sizes->kind == RP_LAYER_BLOCK;
    layer->output = taken[OUTPUT];
    layer->d_input = index == 0 ? NULL : taken[D_INPUT];
    layer->call = (RpStageCall){
        .layers = {index, 1},
        .constants = taken[CONSTANTS],
        .parameters = taken[PARAMETERS],
        .input = taken[INPUT],
        .boundaries = &layer->boundary,
        .n_boundaries = sizes->kind == RP_LAYER_HEAD ? 0 : 1,
        .gradient = taken[GRADIENT],
        .sums = taken[SUMS],
        .workspace = taken[WORKSPACE],
        .targets = taken[TARGETS],
        .scale = 1.0f / (float)tokens,
        .loss = &layer->loss,
    };
    return TRUE;
}

static gboolean
measure(RpMeasurer *measurer, Layer *layer, RpLayer *to, GError **error)
{
    static const RpMeasuredPart head[] = {run_forward, run_fused};
    static const RpMeasuredPart others[] = {run_forward, run_recompute, run_backward};
    const gboolean is_head = to->kind == RP_LAYER_HEAD;
    RpTimes times[RP_PROFILE_MAX_PARTS];

    if (!rp_measurer_run(measurer, is_head ? head : others, is_head ? 2 : 3, layer, times, error))
        return FALSE;
    to->forward_ns = times[0].median_ns;
    to->forward_spread_ns = times[0].spread_ns;
    to->recompute_ns = to->kind == RP_LAYER_BLOCK ? times[1].median_ns : to->forward_ns;
    to->backward_ns = times[is_head ? 1 : 2].median_ns;
    to->backward_spread_ns = times[is_head ? 1 : 2].spread_ns;
    if (is_head)
        to->backward_ns = MAX(0, to->backward_ns - to->forward_ns);
    to->weight_gradient_ns = to->backward_ns / 2;
    return TRUE;
}

gboolean
rp_measure_layer(RpMeasurer *measurer, const RpNetwork *network, const RpWeights *weights,
                 guint layer, RpProfile *profile, GError **error)
{
    g_autoptr(GPtrArray) memory = g_ptr_array_new_with_free_func(free);
    Layer run = {.network = network};

    return prepare(&run, weights, profile, layer, memory, error) &&
           measure(measurer, &run, &profile->layers[layer], error);
}
