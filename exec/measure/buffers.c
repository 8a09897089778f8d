/*
 * Buffers of a layer that is run over and over, and the numbers in them.
 *
 * Where memory is the processors', one layer would stay in their caches, and a run's layers do not.
 * So there are as many copies of its weights and sums as the model has layers like it, or as no
 * cache holds. All parts take the next, but for the backward: a run recomputes the layer before it.
 *
 *   weights   |copy 0|copy 1|copy 2| ...      forward 0, recompute 1, recompute as the last 2,
 *   sums      |copy 0|copy 1|copy 2| ...      backward 2, forward 3, ...
 */
#include <math.h>
#include <stdlib.h>

#include "core/base/units.h"
#include "exec/measure/measure.h"
#include "exec/model/init.h"

/*
 * Hidden states and a router that choose given experts: expert e's row of the router is dimension e,
 * and a token's state is large in the dimensions of the experts that it is to have. The norm before
 * the router scales a row as a whole, and attention's output is small beside it.
 *
 *   state   | 9.1 -0.3 8.7 0.2 | ... |      router   | 1 0 0 0 | 0 ...
 *             |         |                            | 0 1 0 0 | 0 ...
 *           expert 0   expert 2                      | 0 0 1 0 | 0 ...
 */

#define CHOSEN 12.0f /* beside states of variance 1 */

gboolean
rp_measure_can_route(const RpModel *model, double skew)
{
    return model->experts > 1 && model->hidden >= model->experts && skew >= 1 &&
           skew * model->active_experts <= model->experts && model->active_experts < model->experts;
}

/* Number of the first @n tokens that choose the fullest expert; they are spread evenly. */
static guint64
n_full(const RpModel *model, double skew, guint64 n)
{
    return (guint64)((double)n * (skew * model->active_experts / model->experts) + 1e-9);
}

void
rp_measure_choices(const RpModel *model, double skew, guint64 token, guint *choices)
{
    const guint64 before = n_full(model, skew, token);
    const gboolean full = n_full(model, skew, token + 1) > before;
    /* the others go round, each token from where the one before it left off */
    guint64 next = token * model->active_experts - before;

    for (guint j = 0; j < model->active_experts; j++)
        choices[j] = j == 0 && full ? 0 : 1 + (guint)(next++ % (model->experts - 1));
}

void
rp_measure_route_state(const RpModel *model, double skew, guint64 token, float *state)
{
    g_autofree guint *choices = g_new(guint, model->active_experts);

    rp_measure_choices(model, skew, token, choices);
    for (guint j = 0; j < model->active_experts; j++)
        state[choices[j]] = CHOSEN - 0.1f * (float)j / (float)model->active_experts;
}

void
rp_measure_route_weight(const RpModel *model, guint expert, float *row)
{
    for (guint i = 0; i < model->hidden; i++)
        row[i] = i == expert ? 1 : 0;
}

/* Random numbers in a row; larger tensors repeat them, but not within the 256 rows that a matmul keeps at once: equal rows
 * take less power. */
#define TILE 1048576
#define SEED 1
#define GRADIENT_SIZE 1e-3f /* size of an output's gradient */
#define ALIGNMENT 256
#define MOST_COPIES_BYTES (256 * RP_MIB) /* limit of weights and sums */

void
rp_measured_layer_take_next(RpMeasuredLayer *layer)
{
    guint8 *const *buffer = (guint8 *const *)layer->buffer;

    layer->copy = (layer->copy + 1) % layer->n_copies;
    layer->call.parameters = buffer[RP_MEASURE_PARAMETERS] + layer->copy * layer->weights_bytes;
    layer->call.sums = (gpointer)(buffer[RP_MEASURE_SUMS] + layer->copy * layer->sums_bytes);
}

void
rp_measured_layer_expand(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_network_expand(layer->network, layer->call.stream, layer->call.layers,
                      layer->buffer[RP_MEASURE_UPLOAD], (RpResidents){0},
                      layer->buffer[RP_MEASURE_PARAMETERS]);
}

static gboolean
upload(const RpMeasuredLayer *layer, void *to, gsize at, const void *from, gsize bytes,
       GError **error)
{
    return layer->probe->ops->upload(layer->probe, (guint8 *)to + at, from, bytes, error);
}

/* Fills @n elements with the first ones of @tile. */
static gboolean
fill(const RpMeasuredLayer *layer, RpDtype dtype, const float *tile, void *to, gsize at, guint64 n,
     GError **error)
{
    const gsize size = rp_dtype_size(dtype);
    const gsize most = (gsize)MIN(n, (guint64)TILE);
    g_autofree guint8 *stored = g_malloc(most * size);

    rp_dtype_from_float(dtype, tile, stored, most);
    for (guint64 i = 0; i < n; i += TILE)
        if (!upload(layer, to, at + i * size, stored, (gsize)MIN(n - i, (guint64)TILE) * size,
                    error))
            return FALSE;
    return TRUE;
}

/* Place of a weight's values: in a layer with fp8 values they go to the upload first, unless they
 * are packed there. */
static void *
buffer_of(const RpMeasuredLayer *layer, const RpWeightPlace *place, gsize *byte)
{
    const gboolean up = layer->has_fp8 && !place->is_packed;

    *byte = (gsize)(up ? place->upload : place->byte);
    return layer->buffer[up ? RP_MEASURE_UPLOAD : RP_MEASURE_PARAMETERS];
}

static gboolean
fill_given(const RpMeasuredLayer *layer, const RpWeights *weights, guint index,
           const RpWeightPlace *place, float *tile, GError **error)
{
    const guint64 n = rp_weights_nth(weights, index)->elements;
    gsize byte;
    void *buffer = buffer_of(layer, place, &byte);

    for (guint64 done = 0; done < n; done += TILE) {
        const gsize count = (gsize)MIN(n - done, (guint64)TILE);

        rp_weights_read(weights, index, done, tile, count);
        if (!fill(layer, place->storage, tile, buffer, byte + done * rp_dtype_size(place->storage),
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
    g_autofree float *row = g_new(float, model->hidden);
    gsize byte;
    void *buffer = buffer_of(layer, place, &byte);

    for (guint e = 0; e < model->experts; e++) {
        rp_measure_route_weight(model, e, row);
        if (!fill(layer, place->storage, row, buffer, byte + e * bytes, model->hidden, error))
            return FALSE;
    }
    return TRUE;
}

/* @weights: (nullable): random ones. @packed: takes those that are packed in a layer with fp8 values, or else all
 * others */
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
        void *buffer = buffer_of(layer, &place, &byte);
        const gboolean given =
            weights != NULL && !weight->is_packed &&
            (rp_weights_source(weights, i) != NULL || rp_weights_packed(weights, i) != NULL);

        if (packed != (layer->has_fp8 && place.is_packed) || (packed && place.has_fp8))
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
                  : !fill(layer, place.storage, tile, buffer, byte, weight->elements, error))
            return FALSE;
    }
    return TRUE;
}

/* A number of variance 1 (Box and Muller). Tensor cores take more power for the numbers of a real run, which are near to
 * these, than for uniform ones, and a card at its power limit is slower then. */
static float
normal(GRand *random)
{
    return (float)(sqrt(-2 * log(1 - g_rand_double(random))) *
                   cos(2 * G_PI * g_rand_double(random)));
}

/* Hidden states of variance 1, scaled. */
static gboolean
fill_hidden(const RpMeasuredLayer *layer, GRand *random, float scale, void *to, GError **error)
{
    const RpNetwork *network = layer->network;
    const RpDtype dtype = rp_network_options(network)->dtype;
    g_autofree float *tile = g_new(float, TILE);

    for (guint i = 0; i < TILE; i++)
        tile[i] = scale * normal(random);
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
    g_autofree float *state = g_new(float, model->hidden);

    for (guint64 t = 0; t < tokens; t++) {
        for (guint i = 0; i < model->hidden; i++)
            state[i] = normal(random);
        rp_measure_route_state(model, layer->routing, t, state);
        if (!fill(layer, dtype, state, to, t * bytes, model->hidden, error))
            return FALSE;
    }
    return TRUE;
}

/* The embeddings of the tokens, as the model's first block gets them. */
static gboolean
fill_embedded(const RpMeasuredLayer *layer, const RpWeights *weights, void *to, GError **error)
{
    const RpNetwork *network = layer->network;
    const guint hidden = rp_network_model(network)->hidden;
    const RpDtype dtype = rp_network_options(network)->dtype;
    const gsize bytes = hidden * rp_dtype_size(dtype);
    const guint64 tokens = rp_network_hidden_elements(network) / hidden;
    g_autofree float *state = g_new(float, hidden);
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
        filled = upload(layer, layer->buffer[RP_MEASURE_CONSTANTS], 0, constants, bytes, error);
    }
    free(constants);
    return filled;
}

/* Fills the upload: its values do not matter to the time, unless they are quantized. */
static gboolean
clear_upload(const RpMeasuredLayer *layer, const RpLayer *sizes, GError **error)
{
    g_autofree float *tile = g_new0(float, TILE);

    return fill(layer, RP_DTYPE_BF16, tile, layer->buffer[RP_MEASURE_UPLOAD], 0,
                sizes->upload_bytes / sizeof(guint16), error);
}

/* Number of copies: as many as the model has layers like it, or as are too large for the
 * processors' caches. */
static void
count_copies(RpMeasuredLayer *layer, const RpLayerLayout *layout, guint index)
{
    const gsize most = rp_measure_buffer_bytes(MOST_COPIES_BYTES);
    guint alike = 0;

    layer->weights_bytes = (gsize)rp_align_up(layout->bytes, ALIGNMENT);
    layer->sums_bytes = (gsize)rp_align_up(layout->elements * sizeof(float), ALIGNMENT);
    layer->n_copies = 1;
    if (rp_probe_has_links(layer->probe) || layer->has_fp8 || rp_network_is_packed(layer->network))
        return;
    for (guint l = index; l < rp_network_n_layers(layer->network); l++)
        alike += rp_network_layer_class(layer->network, l) == index;
    layer->n_copies =
        (guint)CLAMP(most / MAX(1, layer->weights_bytes + layer->sums_bytes), 1, alike);
}

gboolean
rp_measured_layer_take_buffers(RpMeasuredLayer *layer, const RpProfile *profile, guint index,
                               GError **error)
{
    const RpNetwork *network = layer->network;
    const RpLayer *sizes = &profile->layers[index];
    const RpLayerLayout *layout = rp_network_layout(network, index);
    const guint64 hidden = rp_network_hidden_bytes(network);

    count_copies(layer, layout, index);

    const gsize bytes[RP_N_MEASURE_BUFFERS] = {
        [RP_MEASURE_CONSTANTS] = (gsize)rp_network_constant_bytes(network),
        [RP_MEASURE_PARAMETERS] = layer->n_copies * layer->weights_bytes,
        [RP_MEASURE_UPLOAD] = (gsize)sizes->upload_bytes,
        [RP_MEASURE_INPUT] = (gsize)MAX(hidden, sizes->input_bytes),
        [RP_MEASURE_GRADIENT] = (gsize)hidden,
        [RP_MEASURE_OUTPUT] = (gsize)hidden,
        [RP_MEASURE_D_INPUT] = (gsize)hidden,
        [RP_MEASURE_SUMS] = layer->n_copies * layer->sums_bytes,
        [RP_MEASURE_WORKSPACE] =
            (gsize)(sizes->activation_bytes +
                    profile->layers[profile->n_layers - 1].activation_bytes +
                    MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        [RP_MEASURE_SAVED] =
            (gsize)rp_network_saved_bytes(network, index, (1u << RP_N_SAVED_GROUPS) - 1),
        [RP_MEASURE_TARGETS] = (gsize)rp_profile_micro_batch_tokens(profile) * sizeof(gint32),
        [RP_MEASURE_LOSS] = 2 * sizeof(double),
    };

    guint64 all = 0;

    for (guint i = 0; i < RP_N_MEASURE_BUFFERS; i++)
        all += bytes[i];
    if (!rp_probe_has_links(layer->probe) && !rp_measure_check_memory(all, error))
        return FALSE;
    for (guint i = 0; i < RP_N_MEASURE_BUFFERS; i++) {
        layer->buffer[i] = layer->probe->ops->take(layer->probe, bytes[i], error);
        if (layer->buffer[i] == NULL)
            return FALSE;
    }
    return TRUE;
}

void
rp_measured_layer_give_buffers(RpMeasuredLayer *layer)
{
    for (guint i = 0; i < RP_N_MEASURE_BUFFERS; i++)
        layer->probe->ops->give(layer->probe, layer->buffer[i]);
}

static void
make_call(RpMeasuredLayer *layer, const RpProfile *profile, guint index)
{
    void *const *buffer = layer->buffer;

    layer->boundary = index + 1;
    layer->d_input = index == 0 ? NULL : buffer[RP_MEASURE_D_INPUT];
    layer->call = (RpStageCall){
        .stream = layer->probe->ops->stream(layer->probe),
        .layers = {index, 1},
        .constants = buffer[RP_MEASURE_CONSTANTS],
        .parameters = buffer[RP_MEASURE_PARAMETERS],
        .input = buffer[RP_MEASURE_INPUT],
        .boundaries = &layer->boundary,
        .n_boundaries = profile->layers[index].kind == RP_LAYER_HEAD ? 0 : 1,
        .gradient = buffer[RP_MEASURE_GRADIENT],
        .sums = buffer[RP_MEASURE_SUMS],
        .workspace = buffer[RP_MEASURE_WORKSPACE],
        .targets = buffer[RP_MEASURE_TARGETS],
        .scale = 1.0f / (float)rp_profile_micro_batch_tokens(profile),
        .loss = buffer[RP_MEASURE_LOSS],
        .drops = TRUE,
    };
}

/* Quantizes the weights of a layer that reads fp8 values, by one run of the part that is also timed
 * by itself. */
static gboolean
make_fp8(RpMeasuredLayer *layer, GError **error)
{
    const RpProbePart part = rp_measured_layer_expand;
    gint64 ns;

    return !layer->has_fp8 || layer->probe->ops->time(layer->probe, &part, 1, 1, layer, &ns, error);
}

/* The weights to all copies. */
static gboolean
fill_copies(const RpMeasuredLayer *layer, GError **error)
{
    const guint8 *weights = layer->buffer[RP_MEASURE_PARAMETERS];

    for (guint i = 1; i < layer->n_copies; i++)
        if (!upload(layer, layer->buffer[RP_MEASURE_PARAMETERS], i * layer->weights_bytes, weights,
                    layer->weights_bytes, error))
            return FALSE;
    return TRUE;
}

gboolean
rp_measured_layer_fill_buffers(RpMeasuredLayer *layer, const RpWeights *weights,
                               const RpProfile *profile, guint index, GError **error)
{
    const gsize tokens = (gsize)rp_profile_micro_batch_tokens(profile);
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED);
    void *input = layer->buffer[RP_MEASURE_INPUT];

    const RpLayerKind kind = profile->layers[index].kind;
    const gboolean block = kind == RP_LAYER_BLOCK;

    make_call(layer, profile, index);
    return fill_constants(layer, error) && clear_upload(layer, &profile->layers[index], error) &&
           fill_weights(layer, weights, index, FALSE, error) && make_fp8(layer, error) &&
           fill_weights(layer, weights, index, TRUE, error) && fill_copies(layer, error) &&
           (kind == RP_LAYER_EMBEDDING       ? fill_ids(layer, random, input, tokens, error)
            : block && layer->routing > 0    ? fill_routed(layer, random, input, error)
            : block && layer->tokens != NULL ? fill_embedded(layer, weights, input, error)
                                             : fill_hidden(layer, random, 1, input, error)) &&
           fill_hidden(layer, random, GRADIENT_SIZE, layer->buffer[RP_MEASURE_GRADIENT], error) &&
           fill_ids(layer, random, layer->buffer[RP_MEASURE_TARGETS], tokens, error);
}
