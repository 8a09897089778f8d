#include "exec/optim/optimizer.h"

#include <math.h>

/* Pieces end at so many parameters: whole pages, and enough work to wake a thread for. */
#define GRANULE ((gsize)16384)

G_DEFINE_QUARK(rp_optimizer_error, rp_optimizer_error)

struct _RpOptimizer {
    RpAdamwOptions options;
    const RpAdamwOps *ops;
    RpPool *pool; /* not owned; or NULL */
    GArray *sums; /* double, one a block */
};

/* Parameters up to @end that are treated alike. */
typedef struct {
    gsize end;
    gboolean decays;
} Run;

struct _RpOptimizerLayer {
    guint64 n_steps;
    gsize n_parameters;
    gsize n_applied; /* in the step under way */
    float *weight;
    float *moment1;
    float *moment2;
    GArray *runs; /* Run */
};

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
        if (!checks[i].valid) {
            g_set_error(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_VALUE, "%s is %g, not %s",
                        checks[i].name, checks[i].value, checks[i].range);
            return NULL;
        }

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

typedef struct {
    const RpAdamwOps *ops;
    RpGradient gradient;
    RpGradient added;
    RpDtype dtype;
    double *sums;
} SumJob;

/* Of values @first to @first + @n. A tied matrix is summed in pieces; rounds have the lanes of the
 * whole block, as their sum has where it stands in memory. */
static double
sum_block(const SumJob *job, gsize first, gsize n)
{
    const gboolean tied = job->added.rounds[0] != NULL;
    double lanes[RP_SUM_LANES] = {0};
    float piece[RP_GRADIENT_PIECE];
    double sum = 0;

    if (!rp_gradient_is_sum(&job->gradient, &job->added))
        return rp_adamw_sum_squares(
            job->ops, rp_gradient_at(job->gradient.rounds[0], job->dtype, first), job->dtype, n);
    for (gsize i = first; i < first + n; i += RP_GRADIENT_PIECE) {
        const gsize length = MIN(first + n - i, RP_GRADIENT_PIECE);

        rp_gradient_add(job->ops, &job->gradient, &job->added, job->dtype, i, piece, length);
        if (tied)
            sum += rp_adamw_sum_squares(job->ops, piece, RP_DTYPE_FP32, length);
        else
            job->ops->add_squares(lanes, piece, RP_DTYPE_FP32, length);
    }
    return tied ? sum : rp_adamw_add_lanes(lanes);
}

static void
sum_share(gsize first, gsize n, gpointer data)
{
    const SumJob *job = data;

    for (gsize i = first; i < first + n; i += RP_SUM_SQUARES_BLOCK)
        job->sums[i / RP_SUM_SQUARES_BLOCK] =
            sum_block(job, i, MIN(first + n - i, RP_SUM_SQUARES_BLOCK));
}

double
rp_optimizer_sum_squares_of_sum(RpOptimizer *optimizer, RpGradient gradient, RpGradient added,
                                RpDtype dtype, gsize n)
{
    const gsize n_blocks = n / RP_SUM_SQUARES_BLOCK + 1;
    double sum = 0;

    if (optimizer->sums->len < n_blocks)
        g_array_set_size(optimizer->sums, (guint)n_blocks);
    SumJob job = {.ops = optimizer->ops,
                  .gradient = gradient,
                  .added = added,
                  .dtype = dtype,
                  .sums = (double *)(void *)optimizer->sums->data};
    rp_pool_run(optimizer->pool, 0, n, RP_SUM_SQUARES_BLOCK, sum_share, &job);
    for (gsize i = 0; i * RP_SUM_SQUARES_BLOCK < n; i++)
        sum += job.sums[i];
    return sum;
}

double
rp_optimizer_sum_squares(RpOptimizer *optimizer, const void *gradient, RpDtype dtype, gsize n)
{
    return rp_optimizer_sum_squares_of_sum(optimizer, (RpGradient){{gradient}}, (RpGradient){0},
                                           dtype, n);
}

static void
add_runs(RpOptimizerLayer *layer, const RpParameterSpan *spans, gsize n_spans)
{
    const RpParameterSpan whole = {.n_parameters = layer->n_parameters, .decays = TRUE};
    Run run = {0};

    for (gsize i = 0; i < (spans != NULL ? n_spans : 1); i++) {
        const RpParameterSpan *span = spans != NULL ? &spans[i] : &whole;
        run.end += span->n_parameters;
        run.decays = span->decays;
        Run *last =
            layer->runs->len ? &g_array_index(layer->runs, Run, layer->runs->len - 1) : NULL;
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

    memset(layer->weight + first, 0, n * sizeof(float));
    memset(layer->moment1 + first, 0, n * sizeof(float));
    memset(layer->moment2 + first, 0, n * sizeof(float));
}

RpOptimizerLayer *
rp_optimizer_layer_new(RpOptimizer *optimizer, void *memory, gsize n_parameters,
                       const RpParameterSpan *spans, gsize n_spans)
{
    g_return_val_if_fail(n_parameters > 0, NULL);

    RpOptimizerLayer *layer = g_new0(RpOptimizerLayer, 1);
    layer->n_parameters = n_parameters;
    layer->runs = g_array_new(FALSE, FALSE, sizeof(Run));
    add_runs(layer, spans, n_spans);
    layer->weight = memory;
    layer->moment1 = layer->weight + n_parameters;
    layer->moment2 = layer->moment1 + n_parameters;
    rp_pool_run(optimizer->pool, 0, n_parameters, GRANULE, touch_share, layer);
    return layer;
}

void
rp_optimizer_layer_free(RpOptimizerLayer *layer)
{
    if (layer == NULL)
        return;
    g_array_unref(layer->runs);
    g_free(layer);
}

/* Whether [@first, @first + @n) lies within @layer. */
static gboolean
within(const RpOptimizerLayer *layer, gsize first, gsize n)
{
    return first <= layer->n_parameters && n <= layer->n_parameters - first;
}

typedef struct {
    const RpAdamwOps *ops;
    const RpOptimizerLayer *layer;
    const RpOptimizerStep *step;
    RpAdamwFactors factors[2]; /* by whether weights decay */
    gboolean preview;          /* the state stays as it is */
} StepJob;

/* Parameters whose state is copied at a time, to be stepped in the nearest cache. */
#define PREVIEW_PIECE ((gsize)1024)

/* The arrays of @job from parameter @first of the layer on. */
static RpAdamwArrays
arrays_at(const StepJob *job, gsize first)
{
    const RpOptimizerStep *step = job->step;
    const gsize offset = first - step->first;
    char *published = step->published;

    return (RpAdamwArrays){
        .weight = job->layer->weight + first,
        .moment1 = job->layer->moment1 + first,
        .moment2 = job->layer->moment2 + first,
        .gradient = rp_gradient_at(step->gradient.rounds[0], step->gradient_dtype, offset),
        .published =
            published != NULL ? published + offset * rp_dtype_size(step->published_dtype) : NULL,
        .gradient_dtype = step->gradient_dtype,
        .published_dtype = step->published_dtype,
    };
}

/* Steps a copy of the state of @n parameters, of which nothing remains. */
static void
preview(const StepJob *job, const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    float state[3][PREVIEW_PIECE];

    for (gsize i = 0; i < n; i += PREVIEW_PIECE) {
        const gsize length = MIN(n - i, PREVIEW_PIECE);
        const RpAdamwArrays piece = {
            .weight = memcpy(state[0], arrays->weight + i, length * sizeof(float)),
            .moment1 = memcpy(state[1], arrays->moment1 + i, length * sizeof(float)),
            .moment2 = memcpy(state[2], arrays->moment2 + i, length * sizeof(float)),
            .gradient = rp_gradient_at(arrays->gradient, arrays->gradient_dtype, i),
            .published = (char *)arrays->published + i * rp_dtype_size(arrays->published_dtype),
            .gradient_dtype = arrays->gradient_dtype,
            .published_dtype = arrays->published_dtype,
        };

        job->ops->step(factors, &piece, length);
    }
}

static void
step_arrays(const StepJob *job, const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    if (job->preview)
        preview(job, factors, arrays, n);
    else
        job->ops->step(factors, arrays, n);
}

/* Parameters @first to @first + @n, whose gradient is a sum. */
static void
step_with_sum(const StepJob *job, const RpAdamwFactors *factors, gsize first, gsize n)
{
    const RpOptimizerStep *step = job->step;
    float piece[RP_GRADIENT_PIECE];

    for (gsize i = first; i < first + n; i += RP_GRADIENT_PIECE) {
        const gsize length = MIN(first + n - i, RP_GRADIENT_PIECE);
        RpAdamwArrays arrays = arrays_at(job, i);
        rp_gradient_add(job->ops, &step->gradient, &step->added, step->gradient_dtype,
                        i - step->first, piece, length);
        arrays.gradient = piece;
        arrays.gradient_dtype = RP_DTYPE_FP32;
        step_arrays(job, factors, &arrays, length);
    }
}

static void
step_share(gsize first, gsize n, gpointer data)
{
    const StepJob *job = data;
    const GArray *runs = job->layer->runs;
    const gsize end = first + n;

    for (guint i = 0; i < runs->len && first < end; i++) {
        const Run *run = &g_array_index(runs, Run, i);
        if (run->end <= first)
            continue;
        const RpAdamwFactors *factors = &job->factors[run->decays ? 1 : 0];
        const RpAdamwArrays arrays = arrays_at(job, first);
        const gsize run_end = MIN(run->end, end);
        if (rp_gradient_is_sum(&job->step->gradient, &job->step->added))
            step_with_sum(job, factors, first, run_end - first);
        else
            step_arrays(job, factors, &arrays, run_end - first);
        first = run_end;
    }
}

static void
run_step(const RpOptimizer *optimizer, const RpOptimizerLayer *layer, const RpOptimizerStep *step,
         gboolean preview)
{
    RpAdamwOptions options = optimizer->options;
    StepJob job = {.ops = optimizer->ops, .layer = layer, .step = step, .preview = preview};

    job.factors[1] =
        rp_adamw_prepare(&options, step->learning_rate, step->gradient_scale, layer->n_steps + 1);
    options.weight_decay = 0;
    job.factors[0] =
        rp_adamw_prepare(&options, step->learning_rate, step->gradient_scale, layer->n_steps + 1);
    rp_pool_run(optimizer->pool, step->first, step->n_parameters, GRANULE, step_share, &job);
}

void
rp_optimizer_layer_apply(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                         const RpOptimizerStep *step)
{
    g_return_if_fail(within(layer, step->first, step->n_parameters));
    g_return_if_fail(step->n_parameters <= layer->n_parameters - layer->n_applied);

    run_step(optimizer, layer, step, FALSE);
    layer->n_applied += step->n_parameters;
}

void
rp_optimizer_layer_preview(RpOptimizer *optimizer, const RpOptimizerLayer *layer,
                           const RpOptimizerStep *step)
{
    g_return_if_fail(within(layer, step->first, step->n_parameters));
    g_return_if_fail(step->published != NULL && layer->n_applied == 0);

    run_step(optimizer, layer, step, TRUE);
}

void
rp_optimizer_layer_finish(RpOptimizerLayer *layer)
{
    g_return_if_fail(layer->n_applied == layer->n_parameters);
    layer->n_applied = 0;
    layer->n_steps++;
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

    job->ops->publish(job->layer->weight + first,
                      job->published + (first - job->first) * rp_dtype_size(job->dtype), job->dtype,
                      n);
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

    g_return_if_fail(within(layer, first, n));
    rp_pool_run(optimizer->pool, first, n, GRANULE, publish_share, &job);
}

RpOptimizerState
rp_optimizer_layer_state(const RpOptimizerLayer *layer)
{
    g_assert(layer->n_applied == 0);
    return (RpOptimizerState){
        .n_steps = layer->n_steps,
        .n_parameters = layer->n_parameters,
        .weight = layer->weight,
        .moment1 = layer->moment1,
        .moment2 = layer->moment2,
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

    memcpy(job->layer->weight + first, job->state->weight + first, n * sizeof(float));
    memcpy(job->layer->moment1 + first, job->state->moment1 + first, n * sizeof(float));
    memcpy(job->layer->moment2 + first, job->state->moment2 + first, n * sizeof(float));
}

gboolean
rp_optimizer_layer_restore(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                           const RpOptimizerState *state, GError **error)
{
    RestoreJob job = {.layer = layer, .state = state};

    if (state->n_parameters != layer->n_parameters) {
        g_set_error(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_STATE,
                    "the saved optimizer state is of %" G_GSIZE_FORMAT
                    " parameters, the layer has %" G_GSIZE_FORMAT,
                    state->n_parameters, layer->n_parameters);
        return FALSE;
    }
    rp_pool_run(optimizer->pool, 0, layer->n_parameters, GRANULE, restore_share, &job);
    layer->n_steps = state->n_steps;
    layer->n_applied = 0;
    return TRUE;
}
