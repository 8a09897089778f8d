/* Life of the optimizer and of layers; state out and in. */
#include "exec/optim/optimizer-private.h"

#include <math.h>

#include "core/base/quote.h"

G_DEFINE_QUARK(rp_optimizer_error, rp_optimizer_error)

RpOptimizer *
rp_optimizer_new(const RpAdamwOptions *options, const RpAdamwOps *ops, RpPool *pool, GError **error)
{
    const struct {
        const char *name;
        double value;
        gboolean valid;
        const char *range;
    } checks[] = {
        {"beta1", options->beta1, options->beta1 >= 0 && options->beta1 < 1, "[0, 1)"},
        {"beta2", options->beta2, options->beta2 >= 0 && options->beta2 < 1, "[0, 1)"},
        {"epsilon", options->epsilon, (float)options->epsilon > 0 && isfinite(options->epsilon),
         "above 0, as an fp32"},
        {"weight decay", options->weight_decay,
         options->weight_decay >= 0 && isfinite(options->weight_decay), "0 or more"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(checks); i++)
        if (!checks[i].valid)
            return rp_null(rp_fail(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_VALUE,
                                   "%s is %g, not %s", checks[i].name, checks[i].value,
                                   checks[i].range));

    g_return_val_if_fail(options->form.master != RP_MOMENTS_INT8, NULL);
    RpOptimizer *optimizer = g_new0(RpOptimizer, 1);
    optimizer->options = *options;
    optimizer->ops = ops != NULL ? ops : rp_adamw_best();
    optimizer->pool = pool;
    optimizer->sums = g_array_new(FALSE, TRUE, sizeof(double));
    return optimizer;
}

void
rp_optimizer_free(RpOptimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    g_array_unref(optimizer->sums);
    g_free(optimizer);
}

const RpAdamwOps *
rp_optimizer_ops(const RpOptimizer *optimizer)
{
    return optimizer->ops;
}

static void
add_runs(RpOptimizerLayer *layer, const RpParameterSpan *spans, gsize n_spans)
{
    const RpParameterSpan whole = {.n_parameters = layer->n_parameters, .decays = TRUE};
    RpOptimizerRun run = {0};

    for (gsize i = 0; i < (spans != NULL ? n_spans : 1); i++) {
        const RpParameterSpan *span = spans != NULL ? &spans[i] : &whole;
        run.end += span->n_parameters;
        run.decays = span->decays;
        RpOptimizerRun *last =
            layer->runs->len ? &g_array_index(layer->runs, RpOptimizerRun, layer->runs->len - 1)
                             : NULL;
        if (last != NULL && last->decays == run.decays)
            last->end = run.end;
        else
            g_array_append_val(layer->runs, run);
    }
    g_assert(run.end == layer->n_parameters);
}

static void
touch_share(gsize first, gsize n, gpointer data)
{
    RpOptimizerLayer *layer = data;

    if (!layer->form.shared)
        memset(rp_optimizer_weight(layer, first), 0, n * rp_moment_bytes(layer->form.master));
    for (guint i = 0; i < layer->n_moments; i++)
        memset(rp_optimizer_moment(layer, i, first), rp_moment_zero(layer->form.moments, i),
               n * rp_moment_bytes(layer->form.moments));
}

static void
clear_scales(RpOptimizerLayer *layer)
{
    const gsize n = rp_moment_scales(layer->form.moments, 0, layer->n_parameters);

    for (guint i = 0; n > 0 && i < layer->n_moments; i++)
        memset(layer->scale[i], 0, n * sizeof(float));
}

RpOptimizerPlaces
rp_optimizer_places(RpStateFormat form, guint64 n)
{
    const guint n_moments = rp_optimizer_moments(form);
    const guint64 scales = 4 * n_moments * rp_moment_scales(form.moments, 0, n);
    const guint64 weights = form.shared ? 0 : n * rp_moment_bytes(form.master);
    const guint64 moments = n * rp_moment_bytes(form.moments);
    const gboolean weights_first = weights >= moments;
    RpOptimizerPlaces places = {.weight = scales + (weights_first ? 0 : n_moments * moments)};

    for (guint i = 0; i < n_moments; i++)
        places.moment[i] = scales + (weights_first ? weights : 0) + i * moments;
    return places;
}

static void
place(RpOptimizerLayer *layer, guint8 *memory)
{
    const gsize n_scales = rp_moment_scales(layer->form.moments, 0, layer->n_parameters);
    const RpOptimizerPlaces places = rp_optimizer_places(layer->form, layer->n_parameters);

    if (!layer->form.shared)
        layer->weight = memory + places.weight;
    for (guint i = 0; i < layer->n_moments; i++) {
        layer->moment[i] = memory + places.moment[i];
        if (n_scales > 0)
            layer->scale[i] = (float *)(void *)memory + i * n_scales;
    }
}

RpOptimizerLayer *
rp_optimizer_layer_new(RpOptimizer *optimizer, void *memory, gsize n_parameters,
                       const RpParameterSpan *spans, gsize n_spans)
{
    g_return_val_if_fail(n_parameters > 0, NULL);

    RpOptimizerLayer *layer = g_new0(RpOptimizerLayer, 1);
    layer->n_parameters = n_parameters;
    layer->runs = g_array_new(FALSE, FALSE, sizeof(RpOptimizerRun));
    add_runs(layer, spans, n_spans);
    layer->form = optimizer->options.form;
    layer->n_moments = rp_optimizer_moments(layer->form);
    place(layer, memory);
    clear_scales(layer);
    rp_pool_run(optimizer->pool, 0, n_parameters, RP_OPTIMIZER_GRANULE, touch_share, layer);
    return layer;
}

void
rp_optimizer_layer_share(RpOptimizerLayer *layer, void *weights)
{
    g_return_if_fail(layer->form.shared && layer->n_applied == 0);
    layer->weight = weights;
}

void
rp_optimizer_layer_set_weights(RpOptimizerLayer *layer, gsize first, const float *values, gsize n)
{
    g_return_if_fail(rp_optimizer_holds(layer, first, n));
    rp_dtype_from_float(layer->form.master == RP_MOMENTS_FP32 ? RP_DTYPE_FP32 : RP_DTYPE_BF16,
                        values, rp_optimizer_weight(layer, first), n);
}

void
rp_optimizer_layer_set_number(RpOptimizerLayer *layer, guint32 number, guint64 first)
{
    g_return_if_fail(first % RP_MOMENT_BLOCK == 0);
    layer->number = number;
    layer->first_block = first / RP_MOMENT_BLOCK;
}

void
rp_optimizer_layer_free(RpOptimizerLayer *layer)
{
    if (layer == NULL)
        return;
    g_array_unref(layer->runs);
    g_free(layer);
}

typedef struct {
    const RpAdamwOps *ops;
    const RpOptimizerLayer *layer;
    gsize first;
    char *published;
    RpDtype dtype;
} PublishJob;

static void
publish_share(gsize first, gsize n, gpointer data)
{
    const PublishJob *job = data;

    rp_optimizer_publish(job->ops, job->layer->form.master, rp_optimizer_weight(job->layer, first),
                         job->published + (first - job->first) * rp_dtype_size(job->dtype),
                         job->dtype, n);
}

void
rp_optimizer_layer_publish(RpOptimizer *optimizer, const RpOptimizerLayer *layer, gsize first,
                           gsize n, void *published, RpDtype dtype)
{
    PublishJob job = {.ops = optimizer->ops,
                      .layer = layer,
                      .first = first,
                      .published = published,
                      .dtype = dtype};

    g_return_if_fail(rp_optimizer_holds(layer, first, n));
    rp_pool_run(optimizer->pool, first, n, RP_OPTIMIZER_GRANULE, publish_share, &job);
}

RpOptimizerState
rp_optimizer_layer_state(const RpOptimizerLayer *layer)
{
    g_assert(layer->n_applied == 0);
    return (RpOptimizerState){
        .n_steps = layer->n_steps,
        .n_parameters = layer->n_parameters,
        .weight = layer->weight,
        .moment1 = layer->moment[0],
        .moment2 = layer->moment[1],
        .scale1 = layer->scale[0],
        .scale2 = layer->scale[1],
        .form = layer->form,
    };
}

typedef struct {
    RpOptimizerLayer *layer;
    const RpOptimizerState *state;
} RestoreJob;

static void
restore_share(gsize first, gsize n, gpointer data)
{
    const RestoreJob *job = data;
    const void *moments[] = {job->state->moment1, job->state->moment2};
    const gsize bytes = rp_moment_bytes(job->layer->form.moments);
    const gsize weight_bytes = rp_moment_bytes(job->layer->form.master);

    memcpy(rp_optimizer_weight(job->layer, first),
           (const guint8 *)job->state->weight + first * weight_bytes, n * weight_bytes);
    for (guint i = 0; i < job->layer->n_moments; i++)
        memcpy(rp_optimizer_moment(job->layer, i, first),
               (const guint8 *)moments[i] + first * bytes, n * bytes);
}

static void
restore_scales(RpOptimizerLayer *layer, const RpOptimizerState *state)
{
    const float *scales[] = {state->scale1, state->scale2};
    const gsize n = rp_moment_scales(layer->form.moments, 0, layer->n_parameters);

    for (guint i = 0; n > 0 && i < layer->n_moments; i++)
        memcpy(layer->scale[i], scales[i], n * sizeof(float));
}

gboolean
rp_optimizer_layer_restore(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                           const RpOptimizerState *state, GError **error)
{
    RestoreJob job = {.layer = layer, .state = state};

    g_return_val_if_fail(rp_state_format_equal(state->form, layer->form), FALSE);
    if (state->n_parameters != layer->n_parameters)
        return rp_fail(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_STATE,
                       "the saved optimizer state is of %" G_GSIZE_FORMAT
                       " parameters, the layer has %" G_GSIZE_FORMAT,
                       state->n_parameters, layer->n_parameters);
    rp_pool_run(optimizer->pool, 0, layer->n_parameters, RP_OPTIMIZER_GRANULE, restore_share, &job);
    restore_scales(layer, state);
    layer->n_steps = state->n_steps;
    layer->n_applied = 0;
    return TRUE;
}
