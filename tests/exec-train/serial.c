#include "tests/exec-train/serial.h"

#include "core/base/hash.h"
#include "exec/device/batch-feed.h"
#include "exec/host/kernels.h"
#include "exec/optim/optimizer.h"
#include "exec/optim/rules.h"

typedef struct {
    RpNetwork *network;
    RpProfile *profile;
    guint n_layers;
    guint64 elements; /* elements of all layers, as a stage */
    guint64 *first;   /* [layer] */
    guint64 *n_own;   /* [layer] without a tied matrix */
    gsize element;    /* bytes */
    RpDtype dtype;
    RpOptimizer *optimizer;
    RpOptimizerLayer **layers;
    float **states;
    guint8 *weights[2]; /* weights that forward reads: the newest, and the one before */
    guint8 *gradients;
    float *sums;
    void *workspace, *constants;
} Serial;

static void *
aligned(gsize bytes)
{
    void *memory = g_aligned_alloc0(1, bytes + 64, 64);

    return memory;
}

static void
set_up_layer(Serial *s, const RpTinyModel *model, guint l)
{
    const RpLayerLayout *layout = rp_network_layout(s->network, l);
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpParameterSpan));
    g_autofree float *values = g_new0(float, layout->elements);
    guint64 at = 0;
    guint first;
    const guint n = rp_weights_layer(model->weights, l, &first);

    s->n_own[l] = layout->elements - layout->tied_elements;
    for (guint i = first; i < first + n; i++) {
        const RpWeight *w = rp_weights_nth(model->weights, i);
        const RpParameterSpan gap = {layout->place[w->kind].element - at, FALSE};
        const RpParameterSpan span = {w->elements, w->rank == 2};

        if (w->tied)
            continue;
        g_array_append_val(spans, gap);
        g_array_append_val(spans, span);
        at = layout->place[w->kind].element + w->elements;
        memcpy(values + layout->place[w->kind].element, rp_weights_source(model->weights, i)->data,
               w->elements * sizeof(float));
    }
    const RpParameterSpan rest = {s->n_own[l] - at, FALSE};
    g_array_append_val(spans, rest);
    s->states[l] = g_new(float, 3 * s->n_own[l]);
    s->layers[l] = rp_optimizer_layer_new(s->optimizer, s->states[l], s->n_own[l],
                                          (const RpParameterSpan *)(void *)spans->data, spans->len);
    memcpy(s->states[l], values, s->n_own[l] * sizeof(float));
}

static void
publish(Serial *s, guint8 *target)
{
    const RpLayerLayout *head = rp_network_layout(s->network, s->n_layers - 1);

    for (guint l = 0; l < s->n_layers; l++)
        rp_optimizer_layer_publish(s->optimizer, s->layers[l], 0, s->n_own[l],
                                   target + s->first[l] * s->element, s->dtype);
    memcpy(target + (s->elements - head->tied_elements) * s->element, target,
           head->tied_elements * s->element);
}

static void
set_up(Serial *s, const RpTinyModel *model, const RpSerialRun *run)
{
    const RpNetworkOptions options = {run->dtype, RP_TINY_SEQUENCES, RP_TINY_TOKENS, 8};
    const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    guint64 activations = 0, scratch = 0;

    s->network = rp_network_new(model->weights, rp_host_kernels(), &options);
    s->profile = rp_network_profile(s->network);
    s->n_layers = rp_network_n_layers(s->network);
    s->element = rp_dtype_size(run->dtype);
    s->dtype = run->dtype;
    s->optimizer = rp_optimizer_new(&adamw, NULL, NULL, NULL);
    s->layers = g_new0(RpOptimizerLayer *, s->n_layers);
    s->states = g_new0(float *, s->n_layers);
    s->first = g_new0(guint64, s->n_layers);
    s->n_own = g_new0(guint64, s->n_layers);
    for (guint l = 0; l < s->n_layers; l++) {
        const RpLayer *layer = &s->profile->layers[l];

        s->first[l] = s->elements;
        s->elements += rp_network_layout(s->network, l)->elements;
        activations += layer->activation_bytes;
        scratch =
            MAX(scratch, MAX(layer->forward_workspace_bytes, layer->backward_workspace_bytes));
        set_up_layer(s, model, l);
    }
    for (guint i = 0; i < 2; i++) {
        s->weights[i] = aligned(s->elements * s->element);
        publish(s, s->weights[i]);
    }
    s->gradients = aligned(s->elements * s->element);
    s->sums = aligned(s->elements * sizeof(float));
    s->workspace = aligned(activations + scratch);
    s->constants = aligned(rp_network_constant_bytes(s->network));
    rp_network_fill_constants(s->network, s->constants);
}

static void
clear(Serial *s)
{
    for (guint l = 0; l < s->n_layers; l++) {
        rp_optimizer_layer_free(s->layers[l]);
        g_free(s->states[l]);
    }
    g_free(s->layers);
    g_free(s->states);
    g_free(s->first);
    g_free(s->n_own);
    for (guint i = 0; i < 2; i++)
        g_aligned_free(s->weights[i]);
    g_aligned_free(s->gradients);
    g_aligned_free(s->sums);
    g_aligned_free(s->workspace);
    g_aligned_free(s->constants);
    rp_optimizer_free(s->optimizer);
    rp_network_free(s->network);
    rp_profile_free(s->profile);
}

/* Gradients of micro-batches [@first, @end) at @weights into s->sums. Returns: the summed loss */
static double
sums_at(Serial *s, const guint8 *weights, const RpTokenBatch *batch, guint first, guint end,
        float scale)
{
    const guint n = batch->sequences * batch->tokens;
    g_autofree gint32 *packed = g_new(gint32, n), *rows = g_new(gint32, n);
    double loss = 0;

    memset(s->sums, 0, s->elements * sizeof(float));
    for (guint m = first; m < end; m++) {
        const gint32 *targets = rp_token_batch_targets(batch, m);
        const guint n_packed = rp_targets_pack(targets, n, packed, rows);
        const gboolean all = n_packed == RP_TARGETS_ALL;
        const RpStageCall call = {.layers = {0, s->n_layers},
                                  .constants = s->constants,
                                  .parameters = weights,
                                  .input = rp_token_batch_input_ids(batch, m),
                                  .sums = s->sums,
                                  .workspace = s->workspace,
                                  .targets = all ? targets : packed,
                                  .rows = all ? NULL : rows,
                                  .n_rows = all ? 0 : n_packed,
                                  .scale = scale,
                                  .loss = &loss};

        rp_network_fused(s->network, &call);
    }
    return loss;
}

/* Gradients of one batch at @weights into s->gradients. Returns: the summed loss */
static double
gradients_at(Serial *s, const guint8 *weights, const RpTokenBatch *batch, float scale)
{
    const double loss = sums_at(s, weights, batch, 0, batch->micro_batches, scale);
    const RpDtype dtype = rp_network_options(s->network)->dtype;
    rp_dtype_from_float(dtype, s->sums, s->gradients, s->elements);
    return loss;
}

/* A tied matrix gets the sum of two gradients, in fp32. */
static float *
whole_gradient(const Serial *s, guint l)
{
    const RpDtype dtype = rp_network_options(s->network)->dtype;
    const RpLayerLayout *head = rp_network_layout(s->network, s->n_layers - 1);
    float *wide = g_new(float, s->n_own[l]);

    rp_dtype_to_float(dtype, s->gradients + s->first[l] * s->element, wide, s->n_own[l]);
    if (l == 0 && head->tied_elements > 0) {
        g_autofree float *other = g_new(float, s->n_own[l]);

        rp_dtype_to_float(dtype, s->gradients + (s->elements - head->tied_elements) * s->element,
                          other, s->n_own[l]);
        for (guint64 i = 0; i < s->n_own[l]; i++)
            wide[i] += other[i];
    }
    return wide;
}

static void
update(Serial *s, const RpSerialRun *run, guint step, double unscale)
{
    const RpLearningRate rate = {RP_LEARNING_RATE_COSINE, 3e-3, 2, 40};
    g_autofree double *sums = g_new(double, s->n_layers);
    RpClip clip;

    for (guint l = 0; l < s->n_layers; l++) {
        g_autofree float *gradient = whole_gradient(s, l);

        sums[l] = rp_optimizer_sum_squares(s->optimizer, gradient, RP_DTYPE_FP32, s->n_own[l]);
    }
    clip = rp_clip_by_norm(sums, s->n_layers, unscale, run->max_grad_norm);
    for (guint l = 0; l < s->n_layers; l++) {
        g_autofree float *gradient = whole_gradient(s, l);
        const RpOptimizerStep by = {.learning_rate = rp_learning_rate_at(&rate, step),
                                    .gradient_scale = unscale * clip.coefficient,
                                    .n_parameters = s->n_own[l],
                                    .gradient = {{gradient}},
                                    .gradient_dtype = RP_DTYPE_FP32,
                                    .published_dtype = s->dtype};

        rp_optimizer_layer_apply(s->optimizer, s->layers[l], &by);
        rp_optimizer_layer_finish(s->layers[l]);
    }
}

static guint64
hash_state(const RpOptimizerState *state, guint64 offset, gsize n, guint64 hash)
{
    hash = rp_hash64((const float *)state->weight + offset, n * sizeof(float), hash);
    hash = rp_hash64((const float *)state->moment1 + offset, n * sizeof(float), hash);
    return rp_hash64((const float *)state->moment2 + offset, n * sizeof(float), hash);
}

/* Adds the values in s->sums. */
static void
add_sums(const Serial *s, const RpTinyModel *model, double *values)
{
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        const RpLayerLayout *head = rp_network_layout(s->network, s->n_layers - 1);
        const guint l = weight->tied ? 0 : weight->layer;
        const RpWeightKind kind = weight->tied ? RP_WEIGHT_EMBEDDING : weight->kind;
        const float *sums =
            s->sums + s->first[l] + rp_network_layout(s->network, l)->place[kind].element;

        for (guint64 i = 0; i < weight->elements; i++)
            values[i] += sums[i];
        if (l == 0 && head->tied_elements > 0)
            for (guint64 i = 0; i < weight->elements; i++)
                values[i] += s->sums[s->elements - head->tied_elements + i];
        values += weight->elements;
    }
}

double *
rp_serial_gradient(const RpTinyModel *model, const RpSerialRun *run, guint round, float scale)
{
    RpTokenBatch *batch = rp_tiny_batch(0, 0, run->micro_batches);
    Serial s = {0};
    guint64 n = 0;
    double *values;

    for (guint w = 0; w < rp_weights_count(model->weights); w++)
        n += rp_weights_nth(model->weights, w)->elements;
    values = g_new0(double, n);
    set_up(&s, model, run);
    for (guint first = 0; first < run->micro_batches; first += round) {
        sums_at(&s, s.weights[0], batch, first, first + round, scale);
        add_sums(&s, model, values);
    }
    clear(&s);
    rp_token_batch_free(batch);
    return values;
}

char *
rp_serial_hash(const RpTinyModel *model, const RpSerialRun *run, guint steps, double *losses)
{
    const double reference = (double)run->micro_batches * RP_TINY_SEQUENCES * RP_TINY_TOKENS;
    guint64 hash = 0;
    Serial s = {0};

    set_up(&s, model, run);
    for (guint i = 0; i < steps; i++) {
        RpTokenBatch *batch = rp_tiny_batch(i, 0, run->micro_batches);
        guint8 *newest = s.weights[0];
        double loss = gradients_at(&s, s.weights[run->delay], batch, (float)(1 / reference));

        if (losses != NULL)
            losses[i] = loss / (double)batch->n_targets;
        update(&s, run, i, reference / (double)batch->n_targets);
        s.weights[0] = s.weights[1];
        s.weights[1] = newest;
        publish(&s, s.weights[0]);
        rp_token_batch_free(batch);
    }
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        const guint l = weight->tied ? 0 : weight->layer;
        const RpWeightKind kind = weight->tied ? RP_WEIGHT_EMBEDDING : weight->kind;
        const RpOptimizerState state = rp_optimizer_layer_state(s.layers[l]);

        hash = hash_state(&state, rp_network_layout(s.network, l)->place[kind].element,
                          weight->elements, hash);
    }
    clear(&s);
    return g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash);
}

char *
rp_masters_hash(RpTrainer *trainer)
{
    const RpWeights *weights = rp_network_weights(rp_trainer_network(trainer));
    guint64 hash = 0;

    for (guint w = 0; w < rp_weights_count(weights); w++) {
        const RpOptimizerState state = rp_trainer_weight_state(trainer, w);

        hash = hash_state(&state, 0, rp_weights_nth(weights, w)->elements, hash);
    }
    return g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash);
}
