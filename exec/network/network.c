#include "exec/network/network.h"

#include "core/base/fp8.h"
#include "core/base/units.h"
#include "exec/model/rope-table.h"
#include "exec/network/private.h"

/* Each chunk reads and writes the fp32 sums of the head's gradient once, so larger ones are faster;
 * past the largest the gain is small. */
#define LEAST_HEAD_CHUNK 1024
#define MOST_HEAD_CHUNK 4096         /* as long as it takes no more than blocks do */
#define MOST_HEAD_CHUNK_BEYOND 16384 /* with memory of its own */
#define MOST_LOGITS G_MAXINT32       /* logits of a chunk */

static const RpLayerOps *const custom_kinds[] = {
    [RP_LAYER_EMBEDDING] = &rp_custom_ops,
    [RP_LAYER_BLOCK] = &rp_custom_ops,
    [RP_LAYER_HEAD] = &rp_custom_output_ops,
};

static const RpLayerOps *const kinds[] = {
    [RP_LAYER_EMBEDDING] = &rp_embedding_ops,
    [RP_LAYER_BLOCK] = &rp_block_ops,
    [RP_LAYER_HEAD] = &rp_head_ops,
};

static gsize
aligned(gsize bytes)
{
    return rp_align_up(bytes, RP_NETWORK_ALIGNMENT);
}

/* ---- sizes: a layer of each class runs once without arithmetic ---- */

static RpPass
measuring_pass(const RpNetwork *network, guint layer)
{
    return (RpPass){.network = network,
                    .layer = layer,
                    .layout = &network->layers[layer].layout,
                    .measuring = TRUE};
}

static RpScratch
measured(const RpPass *pass)
{
    const gsize kernel = aligned(pass->kernel_bytes);

    return (RpScratch){kernel, kernel + pass->scratch.peak};
}

static RpScratch
larger(RpScratch a, RpScratch b)
{
    const gsize kernel = MAX(a.kernel, b.kernel);

    return (RpScratch){kernel, kernel + MAX(a.total - a.kernel, b.total - b.kernel)};
}

/* Marks an output as wanted while sizes are measured. It is never followed. */
#define WANTED ((void *)1)

static RpLayerSizes
measure_layer(const RpNetwork *network, guint layer)
{
    const RpLayerOps *ops = network->layers[layer].ops;
    const gsize input = ops->keeps_input ? network->hidden_space : 0;
    RpSpace kept = {.used = input, .peak = input};
    RpPass pass = measuring_pass(network, layer);
    RpLayerSizes sizes;

    ops->forward(&pass, WANTED, NULL, WANTED);
    sizes.forward = measured(&pass);
    pass = measuring_pass(network, layer);
    ops->forward(&pass, WANTED, &kept, WANTED);
    sizes.forward = larger(sizes.forward, measured(&pass));
    sizes.kept = kept.peak;
    pass = measuring_pass(network, layer);
    kept.used = input;
    ops->backward(&pass, WANTED, &kept, WANTED, WANTED);
    sizes.backward = measured(&pass);
    g_assert(kept.used == sizes.kept);
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        kept = (RpSpace){.used = input, .peak = input};
        pass = measuring_pass(network, layer);
        pass.saved = 1u << g;
        ops->forward(&pass, WANTED, &kept, WANTED);
        sizes.saved[g] = pass.saved_space.peak;
        g_assert(kept.peak + sizes.saved[g] == sizes.kept);
    }
    return sizes;
}

/* Whether the head needs no more workspace than a block's backward does, or than it may have. */
static gboolean
head_fits(const RpNetwork *network)
{
    const RpLayerSizes head = measure_layer(network, network->n_layers - 1);
    gsize most = 0;

    for (guint layer = 1; layer < network->n_layers - 1; layer++)
        most = MAX(most, network->layers[layer].sizes.backward.total);
    most = MAX(most, network->options.head_memory);
    return head.forward.total <= most && head.backward.total <= most;
}

/* The most tokens that are tried: no more than there are, nor more logits than kernels count. */
static guint
most_head_chunk(const RpNetwork *network)
{
    guint chunk = network->options.head_memory > 0 ? MOST_HEAD_CHUNK_BEYOND : MOST_HEAD_CHUNK;

    while (chunk > MOST_HEAD_CHUNK &&
           ((guint64)chunk * network->model->vocab > MOST_LOGITS || chunk / 2 >= network->tokens))
        chunk /= 2;
    return chunk;
}

/* 0: no gradient passes it, 1: it has gradients of its weights alone, 2: and of its input. */
static guint
backward_of(const RpNetwork *network, guint layer)
{
    return layer < network->lowest ? 0 : layer == network->lowest ? 1 : 2;
}

/* Whether two layers are of one class, and the same weights of both are trained and stored alike,
 * with adapters of the same ranks. */
static gboolean
are_alike(const RpNetwork *network, guint a, guint b)
{
    const RpWeightPlace *x = network->layers[a].layout.place;
    const RpWeightPlace *y = network->layers[b].layout.place;
    guint kind = 0;

    if (rp_model_layer_class(network->model, a) != rp_model_layer_class(network->model, b) ||
        backward_of(network, a) != backward_of(network, b))
        return FALSE;
    while (kind < RP_N_WEIGHT_KINDS && x[kind].element == y[kind].element &&
           x[kind].storage == y[kind].storage &&
           memcmp(x[kind].shape, y[kind].shape, sizeof x[kind].shape) == 0 &&
           x[kind].is_packed == y[kind].is_packed && x[kind].has_fp8 == y[kind].has_fp8 &&
           x[kind].code_rows == y[kind].code_rows && x[kind].as_is == y[kind].as_is &&
           (!x[kind].is_packed || x[kind].format == y[kind].format))
        kind++;
    return kind == RP_N_WEIGHT_KINDS;
}

/* The first layer of each class, for all of it. */
static void
measure_layers(RpNetwork *network)
{
    guint *chunk = &network->options.head_chunk;

    for (guint layer = 0; layer < network->n_layers; layer++) {
        guint *class = &network->layers[layer].class;

        while (!are_alike(network, *class, layer))
            (*class)++;
        const guint amax =
            network->matmuls->len; /* shapes of chunks that are only tried are dropped */

        if (layer == network->n_layers - 1 && *chunk == 0)
            for (*chunk = most_head_chunk(network);
                 *chunk > LEAST_HEAD_CHUNK && !head_fits(network); *chunk /= 2)
                ;
        g_array_set_size(network->matmuls, amax);
        network->layers[layer].sizes =
            *class < layer ? network->layers[*class].sizes : measure_layer(network, layer);
    }
}

/* ---- constants ---- */

/* Positions that tokens may have. */
static guint
table_tokens(const RpNetwork *network)
{
    return network->options.cache_tokens > 0 ? network->options.cache_tokens
                                             : network->options.tokens;
}

/* Numbers of gaps. */
static gsize
most_gaps(const RpNetwork *network)
{
    return rp_preference_is_used(&network->options.preference) ? 2 * network->tokens : 0;
}

static RpConstants
constants_of(const RpNetwork *network)
{
    const gsize table = aligned((gsize)table_tokens(network) *
                                (rp_model_rotary_dim(network->model) / 2) * sizeof(float));
    const guint n_tables = rp_model_n_rope_tables(network->model);
    RpConstants at = {
        .cosines = 0, .sines = table, .table_bytes = 2 * table, .positions = n_tables * 2 * table};

    if (network->options.aux_loss > 0) { /* at once before positions */
        const gsize lengths = network->options.sequences * sizeof(gint32);

        at.positions += aligned(lengths);
        at.lengths = at.positions - lengths;
    }
    if (network->options.packed_tokens > 0) { /* at once behind positions: one copy has both */
        at.starts = at.positions + network->tokens * sizeof(gint32);
        at.bytes = aligned(at.starts + (network->tokens + 1 + most_gaps(network)) * sizeof(gint32));
        return at;
    }
    at.starts = at.positions + aligned(network->tokens * sizeof(gint32));
    at.bytes = at.starts + aligned(((gsize)network->options.sequences + 1) * sizeof(gint32));
    return at;
}

guint64
rp_network_constant_bytes(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, 0);
    return network->constants.bytes;
}

gsize
rp_network_places_byte(const RpNetwork *network)
{
    g_return_val_if_fail(network, 0);
    return network->options.aux_loss > 0 ? network->constants.lengths
                                         : network->constants.positions;
}

/* Number of lengths, which stand first among places. */
static gsize
n_lengths(const RpNetwork *network)
{
    return network->options.aux_loss > 0 ? network->options.sequences : 0;
}

gsize
rp_network_most_places(const RpNetwork *network)
{
    g_return_val_if_fail(network, 0);
    return n_lengths(network) +
           (network->options.packed_tokens > 0 ? 2 * network->tokens + 1 + most_gaps(network) : 0);
}

/* @starts: of sequences. Returns: numbers of their gaps */
static gsize
set_gaps(const gint32 *documents, const guint32 *shared, guint n, const gint32 *starts,
         gint32 *gaps)
{
    gsize s = 0;

    for (guint i = 0; i < n; i++) {
        if (shared[i] == 0) {
            gaps[2 * s] = gaps[2 * s + 1] = 0;
            s++;
        } else {
            gaps[2 * s - 2] = (gint32)shared[i];
            gaps[2 * s - 1] = documents[i] - starts[s - 1];
        }
    }
    return 2 * s;
}

gsize
rp_network_places(const RpNetwork *network, const guint32 *lengths, const gint32 *starts,
                  const guint32 *shared, guint n, gint32 *places)
{
    const size_t T = network->tokens;
    const gsize before = n_lengths(network);
    gsize s = 0;

    for (gsize b = 0; b < before; b++)
        places[b] = (gint32)lengths[b];
    if (network->options.packed_tokens == 0)
        return before;
    places += before;
    g_return_val_if_fail(n > 0 && n <= T && starts[0] == 0 && starts[n] == (gint32)T, 0);
    gint32 *sequences = places + T;

    for (guint i = 0; i < n; i++) {
        const gint32 first = shared != NULL ? (gint32)shared[i] : 0;

        if (first == 0)
            sequences[s++] = starts[i];
        for (gint32 t = starts[i]; t < starts[i + 1]; t++)
            places[t] = first + t - starts[i];
    }
    sequences[s] = starts[n];
    return before + T + s + 1 +
           (s < n ? set_gaps(starts, shared, n, sequences, sequences + s + 1) : 0);
}

/* Default starts of samples: sequences, packed ones divided. @starts: %NULL: not wanted. Returns:
 * their number */
static guint
typical_starts(const RpNetwork *network, gint32 *starts)
{
    const guint S = network->options.tokens;
    const guint step = network->options.packed_tokens > 0 ? network->options.packed_tokens : S;
    guint n = 0;

    for (guint b = 0; b < network->options.sequences; b++)
        for (guint at = 0; at < S; at += step, n++)
            if (starts != NULL)
                starts[n] = (gint32)(b * S + at);
    if (starts != NULL)
        starts[n] = (gint32)network->tokens;
    return n;
}

void
rp_network_set_rope_tokens(RpNetwork *network, guint tokens)
{
    g_return_if_fail(network != NULL);
    network->options.rope_tokens = tokens;
}

static void
fill_ropes(const RpNetwork *network, guint8 *constants)
{
    const RpConstants *at = &network->constants;
    const RpModel *model = network->model;
    const guint S = table_tokens(network), n = rp_model_n_rope_tables(model);
    const guint tokens = network->options.rope_tokens > 0 ? network->options.rope_tokens : S;
    const guint rotary = rp_model_rotary_dim(model);
    g_autofree float *frequencies = g_new(float, rotary / 2);

    for (guint i = 0; i < n; i++) {
        gboolean queries;
        const RpRope *rope = rp_model_nth_rope(model, i, &queries);
        float *cosines = (float *)(constants + i * at->table_bytes + at->cosines);
        float *sines = (float *)(constants + i * at->table_bytes + at->sines);

        rp_rope_frequencies(rope, rotary, tokens, frequencies);
        rp_rope_table(frequencies, rotary, S, rp_rope_scale(rope), cosines, sines);
        if (queries)
            rp_rope_scale_queries(rope, rotary, S, cosines, sines);
    }
}

void
rp_network_fill_constants(const RpNetwork *network, void *constants)
{
    g_return_if_fail(network && constants);

    const RpConstants *at = &network->constants;
    gint32 *positions = (gint32 *)((guint8 *)constants + at->positions);
    gint32 *starts = (gint32 *)((guint8 *)constants + at->starts);
    gint32 *lengths = (gint32 *)((guint8 *)constants + at->lengths);

    memset(constants, 0, at->bytes);
    fill_ropes(network, constants);
    const guint n = typical_starts(network, starts);

    for (gsize b = 0; b < n_lengths(network); b++)
        lengths[b] = (gint32)network->options.tokens;
    for (guint i = 0; i < n; i++)
        for (gint32 t = starts[i]; t < starts[i + 1]; t++)
            positions[t] = t - starts[i];
}

/* ---- the network ---- */

static RpLayerLayout
layout_of(const RpNetwork *network, guint layer)
{
    const RpLayerLayout *before = layer > 0 ? &network->layers[layer - 1].layout : NULL;

    return (rp_fp8_is_wanted(network, layer) ? rp_layer_layout_of_fp8 : rp_layer_layout)(
        network->weights, layer, network->options.dtype, before);
}

static void
join_fp8(RpNetwork *network)
{
    for (guint l = 0; l < network->n_layers; l++) {
        const RpPass pass = measuring_pass(network, l);
        RpNetworkLayer *layer = &network->layers[l];

        if (layer->layout.has_fp8 && layer->ops->join_fp8 != NULL)
            layer->ops->join_fp8(&pass, &layer->layout);
    }
}

RpNetwork *
rp_network_new(const RpWeights *weights, const RpKernels *kernels, const RpNetworkOptions *options)
{
    g_return_val_if_fail(weights && kernels && options, NULL);
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0, NULL);
    g_return_val_if_fail((guint64)options->sequences * options->tokens <= G_MAXINT32, NULL);
    g_return_val_if_fail(options->packed_tokens <= options->tokens, NULL);
    g_return_val_if_fail(options->aux_loss <= 0 || rp_weights_model(weights)->experts > 1, NULL);
    g_return_val_if_fail(
        options->cache_tokens == 0 || options->tokens == 1 || options->packed_tokens > 0, NULL);
    g_return_val_if_fail(
        !options->fp8.used || (guint64)options->sequences * options->tokens % 16 == 0, NULL);

    const RpModel *model = rp_weights_model(weights);
    RpNetwork *network = g_new0(RpNetwork, 1);

    network->model = model;
    network->weights = weights;
    network->kernels = kernels;
    network->options = *options;
    rp_matmuls_open(network);
    network->n_layers = rp_model_n_layers(model);
    network->layers = g_new(RpNetworkLayer, network->n_layers);
    for (guint l = 0; l < network->n_layers; l++)
        network->layers[l] = (RpNetworkLayer){
            .ops = (model->custom != NULL ? custom_kinds : kinds)[rp_model_layer_kind(model, l)],
            .layout = layout_of(network, l)};
    if (rp_weights_lora(weights) != NULL)
        network->dropout = rp_weights_lora(weights)->dropout;
    while (network->lowest < network->n_layers - 1 &&
           network->layers[network->lowest].layout.elements == 0)
        network->lowest++;
    network->tokens = (size_t)options->sequences * options->tokens;
    network->hidden_bytes = rp_model_rows(model, options->sequences, options->tokens) *
                            model->hidden * rp_dtype_size(options->dtype);
    if (options->aux_loss > 0)
        network->hidden_bytes = rp_balance_end_byte(network);
    join_fp8(network);
    network->hidden_space = aligned(network->hidden_bytes);
    network->constants = constants_of(network);
    network->typical_samples = typical_starts(network, NULL);
    measure_layers(network);
    return network;
}

void
rp_network_free(RpNetwork *network)
{
    if (network == NULL)
        return;
    rp_matmuls_close(network);
    g_free(network->layers);
    g_free(network);
}

guint
rp_network_n_layers(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, 0);
    return network->n_layers;
}

const RpNetworkOptions *
rp_network_options(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);
    return &network->options;
}

const RpModel *
rp_network_model(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);
    return network->model;
}

const RpWeights *
rp_network_weights(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);
    return network->weights;
}

const RpKernels *
rp_network_kernels(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);
    return network->kernels;
}

guint
rp_network_layer_class(const RpNetwork *network, guint layer)
{
    g_return_val_if_fail(network && layer < network->n_layers, 0);
    return network->layers[layer].class;
}

const RpLayerLayout *
rp_network_layout(const RpNetwork *network, guint layer)
{
    g_return_val_if_fail(network && layer < network->n_layers, NULL);
    return &network->layers[layer].layout;
}

gboolean
rp_network_is_packed(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, FALSE);

    for (guint l = 0; l < network->n_layers; l++)
        if (network->layers[l].layout.has_fp8)
            return TRUE;
    return rp_weights_is_packed(network->weights);
}

guint64
rp_network_weight_bytes(const RpNetwork *network, RpInterval layers)
{
    const RpLayerLayout *first = rp_network_layout(network, layers.first);
    const RpLayerLayout *last = rp_network_layout(network, layers.first + layers.count - 1);

    return last->first_byte + last->bytes - first->first_byte;
}

guint64
rp_network_elements(const RpNetwork *network, RpInterval layers)
{
    if (layers.count == 0)
        return 0;
    const RpLayerLayout *first = rp_network_layout(network, layers.first);
    const RpLayerLayout *last = rp_network_layout(network, layers.first + layers.count - 1);

    return last->first_element + last->elements - first->first_element;
}

guint64
rp_network_hidden_bytes(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, 0);
    return network->hidden_bytes;
}

guint64
rp_network_hidden_elements(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, 0);
    return rp_model_rows(network->model, network->options.sequences, network->options.tokens) *
           network->model->hidden;
}

/* The profile of a network: every size, and no times. */

/* Tensor by tensor, each with the gap behind it. */
static void
set_tensors(const RpNetwork *network, RpProfile *profile, guint index)
{
    guint first;
    const guint n = rp_weights_layer(network->weights, index, &first);
    const RpLayerLayout *layout = &network->layers[index].layout;
    g_autofree guint64 *bytes = g_new(guint64, n + 1);

    for (guint i = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(network->weights, first + i);
        const RpWeightPlace *place = &layout->place[weight->kind];

        bytes[i] = place->has_fp8 ? rp_layout_byte_capacity(place)
                                  : rp_layout_bytes_left(weight) * rp_dtype_size(place->storage);
    }
    bytes[n] = layout->scratch_bytes;
    rp_profile_set_tensors(profile, index, bytes, n + (layout->scratch_bytes > 0));
}

static void
set_layer(const RpNetwork *network, gboolean packed, RpProfile *profile, guint index)
{
    RpLayer *layer = &profile->layers[index];
    const RpNetworkLayer *of = &network->layers[index];
    /* hidden states between layers begin at multiples, but are counted without */
    const gsize gaps = 2 * (network->hidden_space - network->hidden_bytes);

    set_tensors(network, profile, index);
    if (packed)
        layer->upload_bytes = of->layout.upload_bytes;
    layer->gradient_bytes = of->layout.elements * rp_dtype_size(network->options.dtype);
    layer->tied_bytes = of->layout.tied_bytes;
    layer->tied_gradient_bytes = of->layout.tied_elements * rp_dtype_size(network->options.dtype);
    layer->input_bytes = index > 0 ? network->hidden_bytes : layer->input_bytes;
    layer->output_bytes = index < network->n_layers - 1 ? network->hidden_bytes : 0;
    layer->activation_bytes = of->sizes.kept;
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
        layer->saved[g].bytes = of->sizes.saved[g];
    layer->forward_workspace_bytes =
        rp_align_up(of->sizes.forward.total + gaps, RP_NETWORK_ALIGNMENT);
    layer->backward_workspace_bytes = of->sizes.backward.total + network->hidden_space;
}

RpProfile *
rp_network_profile(const RpNetwork *network)
{
    g_return_val_if_fail(network != NULL, NULL);

    const RpNetworkOptions *options = &network->options;
    const gboolean packed = rp_network_is_packed(network);
    RpProfile *profile = rp_model_profile(network->model, options->sequences, options->tokens,
                                          rp_dtype_size(options->dtype));

    rp_profile_take(&profile->model,
                    g_strdup_printf("%ux%u", network->model->hidden, network->model->blocks));
    rp_profile_take(&profile->dtype, g_strdup(rp_dtype_name(network->options.dtype)));
    rp_profile_take(&profile->accumulate, g_strdup(network->options.half_sums ? "fp16" : "fp32"));
    rp_profile_take(&profile->matmul,
                    g_strdup(rp_fp8_name(network->options.fp8.used, network->options.fp8.head)));
    rp_profile_take(&profile->attention, g_strdup(rp_attention_name(network->options.attention)));
    rp_profile_take(&profile->source, g_strdup("measured"));
    profile->head_chunk = network->options.head_chunk;
    if (options->matmul_library != NULL)
        rp_profile_set_matmuls(profile, options->matmul_library, options->matmul_variants,
                               options->n_matmul_variants);
    for (guint i = 0; i < network->n_layers; i++)
        set_layer(network, packed, profile, i);
    profile->constant_bytes = rp_network_constant_bytes(network);
    return profile;
}
