/*
 * Layers and losses of the caller's program (core/catalogue/custom.h). A hidden state is [B,C].
 *
 *   forward    |output, if it is not wanted|kept, unless a backward follows|workspace|
 *   backward   |gradient of the output|workspace|       dx may stand where dy does: dy is copied
 *   the last   |output, becomes its gradient|kept|workspace|
 */
#include "exec/network/private.h"

static RpCustomShape
shape_of(const RpPass *pass)
{
    const RpNetwork *network = pass->network;
    RpCustomShape shape = rp_custom_shape(network->model, pass->layer);

    shape.dtype = network->options.dtype;
    shape.samples = network->options.sequences;
    return shape;
}

static size_t
hidden_elements(const RpCustomShape *shape)
{
    return (size_t)shape->samples * shape->hidden;
}

static void *
take_kept(const RpCustomLayer *layer, const RpCustomShape *shape, RpSpace *space)
{
    return rp_pass_take_bytes(space, layer->kept_bytes != NULL ? layer->kept_bytes(shape) : 0);
}

static void *
take_workspace(RpPass *pass, const RpCustomLayer *layer, const RpCustomShape *shape)
{
    return rp_pass_take_bytes(&pass->scratch,
                              layer->workspace_bytes != NULL ? layer->workspace_bytes(shape) : 0);
}

/* @sums: %NULL of frozen ones */
static void
find_tensors(const RpPass *pass, const void **weights, float **sums)
{
    for (guint n = 0; n < RP_CUSTOM_MOST_TENSORS && rp_pass_has(pass, (RpWeightKind)n); n++) {
        weights[n] = rp_pass_weight(pass, (RpWeightKind)n);
        sums[n] = rp_pass_trains(pass, (RpWeightKind)n) ? rp_pass_sum(pass, (RpWeightKind)n) : NULL;
    }
}

static void
run(RpPass *pass, gboolean backward, RpCustomCall *call)
{
    const RpCustomLayer *layer = rp_custom_layer(pass->network->model, pass->layer);
    const void *weights[RP_CUSTOM_MOST_TENSORS] = {NULL};
    float *sums[RP_CUSTOM_MOST_TENSORS] = {NULL};
    const RpCustomLayerArgs args = {.host = backward ? layer->backward : layer->forward,
                                    .cuda = backward ? layer->backward_cuda : layer->forward_cuda,
                                    .call = call};

    call->workspace = take_workspace(pass, layer, &call->shape);
    find_tensors(pass, weights, sums);
    call->weights = weights;
    call->sums = backward ? sums : NULL;
    RUN(pass, custom_layer, &args);
}

static void
forward(RpPass *pass, const void *x, RpSpace *kept, void *y)
{
    const RpCustomLayer *layer = rp_custom_layer(pass->network->model, pass->layer);
    RpCustomCall call = {.shape = shape_of(pass), .input = x};
    void *unwanted = rp_pass_take(pass, &pass->scratch, hidden_elements(&call.shape));

    call.output = y != NULL ? y : unwanted;
    call.kept = take_kept(layer, &call.shape, kept != NULL ? kept : &pass->scratch);
    run(pass, FALSE, &call);
}

static void
backward(RpPass *pass, const void *x, RpSpace *kept, const void *dy, void *dx)
{
    const RpCustomLayer *layer = rp_custom_layer(pass->network->model, pass->layer);
    RpCustomCall call = {.shape = shape_of(pass), .input = x, .d_output = dy};

    const size_t n = hidden_elements(&call.shape);

    call.kept = take_kept(layer, &call.shape, kept);
    if (pass->layer > 0) {
        void *copy = rp_pass_take(pass, &pass->scratch, n);

        rp_pass_copy(pass, n, dy, copy);
        call.d_output = copy;
        call.d_input = pass->lowest ? NULL : dx;
    }
    run(pass, TRUE, &call);
}

const RpLayerOps rp_custom_ops = {.keeps_input = TRUE, .forward = forward, .backward = backward};

void
rp_pass_custom_loss(RpPass *pass, RpLossCall loss)
{
    const RpLoss *of = pass->network->options.loss;
    const RpCustomLossArgs args = {.host = of->host, .cuda = of->cuda, .call = &loss};

    if (pass->measuring)
        return;
    loss.dtype = pass->network->options.dtype;
    loss.scale = pass->call->scale;
    loss.loss = pass->call->loss;
    RUN(pass, custom_loss, &args);
}

/* The last layer, its loss, and with @dx its backward. */
static void
run_output(RpPass *pass, const void *x, gboolean trains, void *dx)
{
    const RpCustomLayer *layer = rp_custom_layer(pass->network->model, pass->layer);
    const RpCustomShape shape = shape_of(pass);
    const guint labels = pass->network->model->custom->labels;
    void *output = rp_pass_take(pass, &pass->scratch, (size_t)shape.samples * shape.outputs);
    RpCustomCall call = {.shape = shape, .input = x, .output = output};

    call.kept = take_kept(layer, &shape, &pass->scratch);
    const gsize before = pass->scratch.used;

    run(pass, FALSE, &call);
    rp_pass_custom_loss(pass, (RpLossCall){.rows = shape.samples,
                                           .width = shape.outputs,
                                           .values = output,
                                           .labels = pass->measuring ? NULL
                                                                     : pass->call->targets +
                                                                           shape.words - 1 - labels,
                                           .label_stride = shape.words,
                                           .gradient = trains});
    pass->scratch.used = before;
    if (!trains)
        return;
    call.output = NULL;
    call.d_output = output;
    call.d_input = pass->lowest ? NULL : dx;
    run(pass, TRUE, &call);
}

static void
output_forward(RpPass *pass, const void *x, RpSpace *kept, void *y)
{
    run_output(pass, x, FALSE, NULL);
}

static void
output_backward(RpPass *pass, const void *x, RpSpace *kept, const void *dy, void *dx)
{
    run_output(pass, x, TRUE, dx);
}

const RpLayerOps rp_custom_output_ops = {
    .keeps_input = TRUE, .forward = output_forward, .backward = output_backward};
