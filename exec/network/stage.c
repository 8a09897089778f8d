/*
 * Stages: layers after one another. Places of hidden states, for a stage of layers a, b, c:
 *
 *   forward     input -> a -> ping -> b -> pong -> c -> output    (or straight into the output, if
 *                                                                 the boundary is requested)
 *               workspace |ping|pong|scratch|
 *
 *   recompute   input -> a -> input of b -> b -> input of c -> c
 *   backward    output <- a <- between <- b <- between <- c <- gradient
 *               workspace |kept of a|kept of b|kept of c|between|scratch|
 *                          each: |its input|what its backward needs and its forward has not saved|
 *
 * The place for the input of a stays empty: it is read from the call. A call in pieces
 * (RpStageCall.steps) finds and leaves all in the same places.
 *
 * Below the lowest layer that trains something (adapters of some layers alone) nothing runs backward,
 * and no gradient leaves that layer: the call's buffer for it stays as it was.
 */
#include "exec/network/private.h"

static gboolean
is_head(const RpNetwork *network, guint layer)
{
    return layer == network->n_layers - 1;
}

/* Layers of the call that run forward, or backward. */
static RpInterval
upward(const RpStageCall *call)
{
    return call->steps != NULL ? call->steps->up : call->layers;
}

static RpInterval
downward(const RpStageCall *call)
{
    return call->steps != NULL ? call->steps->down : call->layers;
}

static gboolean
contains(RpInterval layers, guint layer)
{
    return layer >= layers.first && layer - layers.first < layers.count;
}

static const RpSavedPlace *
saved_of(const RpStageCall *call, guint layer)
{
    return &call->saved[layer - call->layers.first];
}

/* Groups to save, without those that the layer does not have. */
static guint
saved_groups(const RpNetwork *network, const RpStageCall *call, guint layer)
{
    const gsize *bytes = network->layers[layer].sizes.saved;
    guint groups = call->saved != NULL ? saved_of(call, layer)->groups : 0;

    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
        if (bytes[g] == 0)
            groups &= ~(1u << g);
    return groups;
}

guint64
rp_network_saved_bytes(const RpNetwork *network, guint layer, guint groups)
{
    guint64 bytes = 0;

    g_return_val_if_fail(network && layer < network->n_layers, 0);
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++)
        if ((groups >> g & 1) != 0)
            bytes += network->layers[layer].sizes.saved[g];
    return bytes;
}

/* Bytes that the layer keeps in the workspace. */
static gsize
kept_of(const RpNetwork *network, const RpStageCall *call, guint layer)
{
    const guint groups = saved_groups(network, call, layer);

    return network->layers[layer].sizes.kept -
           (groups > 0 ? rp_network_saved_bytes(network, layer, groups) : 0);
}

/* @address: where the layer's scratch begins */
static RpPass
begin_pass(const RpNetwork *network, const RpStageCall *call, guint layer, RpScratch scratch,
           guintptr address)
{
    const RpLayerLayout *first = &network->layers[call->layers.first].layout;
    const RpLayerLayout *layout = &network->layers[layer].layout;
    const RpResidents *residents = &call->residents;
    const guint groups = saved_groups(network, call, layer);
    const guintptr parameters =
        (guintptr)call->parameters + rp_residents_first(residents, layer, layout->first_byte) -
        rp_residents_first(residents, call->layers.first, first->first_byte);

    return (RpPass){
        .network = network,
        .call = call,
        .lowest = layer == network->lowest,
        .layer = layer,
        .layout = layout,
        .parameters = parameters,
        .frozen = rp_residents_frozen(residents, layer, layout, parameters),
        .sums =
            (guintptr)call->sums + (layout->first_element - first->first_element) * sizeof(float),
        .kernel_workspace = (void *)address,
        .scratch = {.base = address + scratch.kernel},
        .saved = groups,
        .saved_space = {.base = groups > 0 ? (guintptr)saved_of(call, layer)->memory : 0}};
}

static void
run_forward(const RpNetwork *network, const RpStageCall *call, guint layer, guintptr scratch,
            const void *x, RpSpace *kept, void *y)
{
    const RpNetworkLayer *of = &network->layers[layer];
    RpPass pass = begin_pass(network, call, layer, of->sizes.forward, scratch);

    pass.input = x;
    pass.output = y;
    pass.saved_before = kept != NULL;
    of->ops->forward(&pass, x, kept, y);
}

static void
run_backward(const RpNetwork *network, const RpStageCall *call, guint layer, guintptr scratch,
             const void *x, RpSpace *kept, const void *dy, void *dx)
{
    const RpNetworkLayer *of = &network->layers[layer];
    RpPass pass = begin_pass(network, call, layer, of->sizes.backward, scratch);

    of->ops->backward(&pass, x, kept, dy, dx);
}

/* Address at which the call wants the input of @layer, or NULL. */
static void *
boundary(const RpNetwork *network, const RpStageCall *call, guint layer)
{
    for (guint i = 0; i < call->n_boundaries; i++)
        if (call->boundaries[i] == layer)
            return (guint8 *)call->output + i * network->hidden_bytes;
    return NULL;
}

static gboolean
is_valid(const RpNetwork *network, const RpStageCall *call)
{
    return network != NULL && call != NULL && call->layers.count > 0 &&
           call->layers.first < network->n_layers &&
           call->layers.count <= network->n_layers - call->layers.first;
}

/* Whether the stage has the head; then @call must have the head's operands. */
static gboolean
has_head(const RpNetwork *network, const RpStageCall *call)
{
    return is_head(network, call->layers.first + call->layers.count - 1);
}

static void
observe(const RpStageCall *call, guint layer, const void *output)
{
    if (call->observe != NULL && output != NULL)
        call->observe(call->observe_data, layer, output);
}

/* Scratch buffer of a forward's layers: after the two spare hidden states. */
static guintptr
forward_scratch(const RpNetwork *network, const RpStageCall *call)
{
    return (guintptr)call->workspace + (call->layers.count > 1 ? 2 * network->hidden_space : 0);
}

void
rp_network_forward(const RpNetwork *network, const RpStageCall *call)
{
    g_return_if_fail(is_valid(network, call));

    const guint end = call->layers.first + call->layers.count;
    guintptr spare[2] = {(guintptr)call->workspace,
                         (guintptr)call->workspace + network->hidden_space};
    const guintptr scratch = forward_scratch(network, call);
    const void *x = call->input;
    guint turn = 0;

    for (guint layer = call->layers.first; layer < end; layer++) {
        void *y = boundary(network, call, layer + 1);

        if (is_head(network, layer) ? call->loss == NULL : y == NULL && layer == end - 1)
            break; /* nothing is wanted of it */
        if (y == NULL && !is_head(network, layer))
            y = (void *)spare[turn++ % 2];
        run_forward(network, call, layer, scratch, x, NULL, y);
        observe(call, layer, y);
        x = y;
    }
}

const void *
rp_network_logits(const RpNetwork *network, const RpStageCall *call)
{
    g_return_val_if_fail(is_valid(network, call) && has_head(network, call) && call->rows, NULL);

    const guint head = network->n_layers - 1;
    const guintptr scratch = forward_scratch(network, call);
    const void *x = call->input;

    if (call->layers.count > 1) {
        RpStageCall body = *call;

        body.loss = NULL;
        body.boundaries = &head;
        body.n_boundaries = 1;
        /* the spare hidden state that does not hold the last layer's input */
        body.output =
            (guint8 *)call->workspace + (call->layers.count - 2) % 2 * network->hidden_space;
        rp_network_forward(network, &body);
        x = body.output;
    }
    RpPass pass = begin_pass(network, call, head, network->layers[head].sizes.forward, scratch);
    return rp_head_logits(&pass, x);
}

/* Bytes that the stage's layers keep, before the scratch buffer. */
static gsize
kept_bytes(const RpNetwork *network, const RpStageCall *call)
{
    gsize bytes = 0;

    for (guint i = 0; i < call->layers.count; i++)
        bytes += kept_of(network, call, call->layers.first + i);
    return bytes;
}

/* Space for the values that a layer keeps, behind its input. */
static RpSpace
kept_space(const RpNetwork *network, guintptr kept)
{
    return (RpSpace){.base = kept, .used = network->hidden_space};
}

/* All layers but the head, whose forward belongs to its backward. */
static void
keep(const RpNetwork *network, const RpStageCall *call, gboolean observed)
{
    const guint end = call->layers.first + call->layers.count;
    const guintptr scratch = (guintptr)call->workspace + kept_bytes(network, call);
    guintptr kept = (guintptr)call->workspace;
    const void *x = call->input;

    for (guint layer = call->layers.first; layer < end && !is_head(network, layer); layer++) {
        const guintptr next = kept + kept_of(network, call, layer);
        void *y = layer + 1 < end ? (void *)next : boundary(network, call, end);
        RpSpace space = kept_space(network, kept);

        if (contains(upward(call), layer)) {
            run_forward(network, call, layer, scratch, x, &space, y);
            if (observed)
                observe(call, layer, y);
        }
        kept = next;
        x = y;
    }
}

void
rp_network_recompute(const RpNetwork *network, const RpStageCall *call)
{
    g_return_if_fail(is_valid(network, call));

    if (call->layers.first + call->layers.count > network->lowest)
        keep(network, call, FALSE);
}

static void
clear_sums(const RpNetwork *network, const RpStageCall *call, guint64 begin, guint64 end)
{
    if (end > begin)
        network->kernels->fill(
            call->stream,
            &(RpFillArgs){.dtype = RP_DTYPE_FP32, .n = end - begin, .x = call->sums + begin});
}

/* Whether a kind's sum begins by being written: no need to set it to 0. A head without rows has no chunk
 * that would, and layers of the caller's program add. */
static gboolean
is_written(const RpNetwork *network, const RpStageCall *call, const RpWeightPlace *place,
           RpWeightKind kind)
{
    return network->model->custom == NULL &&
           ((place->shape[2] > 1 && kind != RP_WEIGHT_DELTA_CONV) ||
            (rp_linear_writes_sums(kind) &&
             (kind % RP_N_BASE_KINDS != RP_WEIGHT_HEAD || call->rows == NULL || call->n_rows > 0)));
}

/* Finds the first weight that is written and begins at @element of the layer or behind it; %NULL:
 * there is none. */
static const RpWeightPlace *
next_written(const RpNetwork *network, const RpStageCall *call, const RpLayerLayout *layout,
             guint64 element)
{
    const RpWeightPlace *next = NULL;

    for (guint kind = 0; kind < RP_N_WEIGHT_KINDS; kind++) {
        const RpWeightPlace *place = &layout->place[kind];

        if (place->element != RP_LAYOUT_NONE && place->element >= element &&
            is_written(network, call, place, (RpWeightKind)kind) &&
            (next == NULL || place->element < next->element))
            next = place;
    }
    return next;
}

/* Sets sums to 0 that the backward of @layers adds to. */
static void
begin_sums(const RpNetwork *network, const RpStageCall *call, RpInterval layers)
{
    const guint64 base = network->layers[call->layers.first].layout.first_element;
    const guint64 begin = network->layers[layers.first].layout.first_element - base;
    guint64 done = begin; /* sums that are 0, or will be written */

    for (guint i = 0; i < layers.count; i++) {
        const RpLayerLayout *layout = &network->layers[layers.first + i].layout;
        const guint64 first = layout->first_element - base;
        const RpWeightPlace *next;

        while ((next = next_written(network, call, layout, done > first ? done - first : 0)) !=
               NULL) {
            clear_sums(network, call, done, first + next->element);
            done = first + next->element + next->shape[0] * next->shape[1] * next->shape[2];
        }
    }
    clear_sums(network, call, done, begin + rp_network_elements(network, layers));
}

void
rp_network_backward(const RpNetwork *network, const RpStageCall *call)
{
    g_return_if_fail(is_valid(network, call));
    g_return_if_fail(call->sums || rp_network_elements(network, call->layers) == 0);
    g_return_if_fail(!has_head(network, call)                          ? call->gradient != NULL
                     : contains(downward(call), network->n_layers - 1) ? call->loss && call->targets
                                                                       : TRUE);
    g_return_if_fail(call->layers.first == 0 || call->output);

    const guint first = call->layers.first, end = MAX(first, network->lowest);
    guintptr kept = (guintptr)call->workspace + kept_bytes(network, call);
    void *between = (void *)kept;
    const guintptr scratch = kept + network->hidden_space;
    const void *dy = call->gradient;

    if (call->begins_sums && downward(call).count > 0)
        begin_sums(network, call, downward(call));
    for (guint layer = first + call->layers.count; layer-- > end;) {
        kept -= kept_of(network, call, layer);
        const void *x = layer == first ? call->input : (const void *)kept;
        void *dx = layer == first ? call->output : between;
        RpSpace space = kept_space(network, kept);

        if (contains(downward(call), layer))
            run_backward(network, call, layer, scratch, x, &space, dy, dx);
        dy = dx;
    }
}

void
rp_network_fused(const RpNetwork *network, const RpStageCall *call)
{
    g_return_if_fail(is_valid(network, call) && has_head(network, call) && call->saved == NULL);

    keep(network, call, TRUE);
    if (downward(call).count > 0)
        rp_network_backward(network, call);
}
