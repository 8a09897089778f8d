/* Sums of squares, and steps. */
#include "exec/optim/optimizer-private.h"

/* Moments that are widened at a time. */
#define PIECE ((gsize)(4 * RP_MOMENT_BLOCK))

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

typedef struct {
    const RpAdamwOps *ops;
    const RpOptimizerLayer *layer;
    const RpOptimizerStep *step;
    guint64 seed;
    RpAdamwFactors factors[2]; /* by whether weights decay */
    gboolean preview;          /* the state stays as it is */
} StepJob;

/* Parameters whose state is copied at a time, to be stepped in the nearest cache. */
#define PREVIEW_PIECE ((gsize)1024)
#define FLOATS_OF_A_LINE ((gsize)16)

/* Moments of the parameters of a layer from @first on, in fp32. */
typedef struct {
    gsize first;
    float *moment1;
    float *moment2;
} Moments;

/* The arrays of @job from parameter @first of the layer on. */
static RpAdamwArrays
arrays_at(const StepJob *job, const Moments *moments, gsize first)
{
    const RpOptimizerStep *step = job->step;
    const gsize offset = first - step->first;
    char *published = step->published;

    return (RpAdamwArrays){
        .weight = job->layer->weight + first,
        .moment1 = moments->moment1 + (first - moments->first),
        .moment2 = moments->moment2 + (first - moments->first),
        .gradient = rp_gradient_at(step->gradient.rounds[0], step->gradient_dtype, offset),
        .published =
            published != NULL ? published + offset * rp_dtype_size(step->published_dtype) : NULL,
        .gradient_dtype = step->gradient_dtype,
        .published_dtype = step->published_dtype,
    };
}

/* Asks for the lines of an array's next piece: the pieces of three arrays come one after the other, and
 * each ends with its page, so nobody else does. */
static void
fetch_piece(const float *next, gsize n)
{
    for (gsize i = 0; i < n; i += FLOATS_OF_A_LINE)
        __builtin_prefetch(next + i, 0, 2);
}

/* Steps a copy of the state of @n parameters, of which nothing remains. */
static void
preview(const StepJob *job, const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    float state[3][PREVIEW_PIECE];

    for (gsize i = 0; i < n; i += PREVIEW_PIECE) {
        const gsize length = MIN(n - i, PREVIEW_PIECE), behind = i + length;
        const gsize next = MIN(n - behind, PREVIEW_PIECE);
        const RpAdamwArrays piece = {
            .weight = memcpy(state[0], arrays->weight + i, length * sizeof(float)),
            .moment1 = memcpy(state[1], arrays->moment1 + i, length * sizeof(float)),
            .moment2 = memcpy(state[2], arrays->moment2 + i, length * sizeof(float)),
            .gradient = rp_gradient_at(arrays->gradient, arrays->gradient_dtype, i),
            .published = (char *)arrays->published + i * rp_dtype_size(arrays->published_dtype),
            .gradient_dtype = arrays->gradient_dtype,
            .published_dtype = arrays->published_dtype,
        };

        fetch_piece(arrays->weight + behind, next);
        fetch_piece(arrays->moment1 + behind, next);
        fetch_piece(arrays->moment2 + behind, next);
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
step_with_sum(const StepJob *job, const Moments *moments, const RpAdamwFactors *factors,
              gsize first, gsize n)
{
    const RpOptimizerStep *step = job->step;
    float piece[RP_GRADIENT_PIECE];

    for (gsize i = first; i < first + n; i += RP_GRADIENT_PIECE) {
        const gsize length = MIN(first + n - i, RP_GRADIENT_PIECE);
        RpAdamwArrays arrays = arrays_at(job, moments, i);
        rp_gradient_add(job->ops, &step->gradient, &step->added, step->gradient_dtype,
                        i - step->first, piece, length);
        arrays.gradient = piece;
        arrays.gradient_dtype = RP_DTYPE_FP32;
        step_arrays(job, factors, &arrays, length);
    }
}

static void
step_wide(const StepJob *job, const Moments *moments, gsize first, gsize n)
{
    const GArray *runs = job->layer->runs;
    const gsize end = first + n;

    for (guint i = 0; i < runs->len && first < end; i++) {
        const RpOptimizerRun *run = &g_array_index(runs, RpOptimizerRun, i);
        if (run->end <= first)
            continue;
        const RpAdamwFactors *factors = &job->factors[run->decays ? 1 : 0];
        const RpAdamwArrays arrays = arrays_at(job, moments, first);
        const gsize run_end = MIN(run->end, end);
        if (rp_gradient_is_sum(&job->step->gradient, &job->step->added))
            step_with_sum(job, moments, factors, first, run_end - first);
        else
            step_arrays(job, factors, &arrays, run_end - first);
        first = run_end;
    }
}

/* A piece of moments that are kept in fewer bits: @first is where a block begins. */
static void
step_narrow(const StepJob *job, gsize first, gsize n)
{
    const RpOptimizerLayer *layer = job->layer;
    float wide[2][PIECE];
    const Moments moments = {first, wide[0], wide[1]};

    for (guint i = 0; i < 2; i++)
        job->ops->unpack(layer->moments, i == 1, rp_optimizer_moment(layer, i, first),
                         rp_optimizer_scale(layer, i, first), wide[i], n);
    step_wide(job, &moments, first, n);
    for (guint i = 0; i < 2 && !job->preview; i++) {
        const RpDraw draw = {job->seed, layer->n_steps + 1, layer->number, i};

        job->ops->pack(layer->moments, &draw, first / RP_MOMENT_BLOCK, wide[i],
                       rp_optimizer_moment(layer, i, first), rp_optimizer_scale(layer, i, first),
                       n);
    }
}

static void
step_share(gsize first, gsize n, gpointer data)
{
    const StepJob *job = data;
    const RpOptimizerLayer *layer = job->layer;

    if (layer->moments == RP_MOMENTS_FP32) {
        const Moments all = {0, (float *)(void *)layer->moment[0],
                             (float *)(void *)layer->moment[1]};

        step_wide(job, &all, first, n);
        return;
    }
    for (gsize i = first; i < first + n; i += PIECE)
        step_narrow(job, i, MIN(PIECE, first + n - i));
}

/* Whether a range of @step is made of whole blocks. */
static gboolean
is_of_blocks(const RpOptimizerLayer *layer, const RpOptimizerStep *step)
{
    const gsize end = step->first + step->n_parameters;

    return layer->moments == RP_MOMENTS_FP32 ||
           (step->first % RP_MOMENT_BLOCK == 0 &&
            (end % RP_MOMENT_BLOCK == 0 || end == layer->n_parameters));
}

static void
run_step(const RpOptimizer *optimizer, const RpOptimizerLayer *layer, const RpOptimizerStep *step,
         gboolean preview)
{
    RpAdamwOptions options = optimizer->options;
    StepJob job = {.ops = optimizer->ops,
                   .layer = layer,
                   .step = step,
                   .seed = optimizer->options.seed,
                   .preview = preview};

    job.factors[1] =
        rp_adamw_prepare(&options, step->learning_rate, step->gradient_scale, layer->n_steps + 1);
    options.weight_decay = 0;
    job.factors[0] =
        rp_adamw_prepare(&options, step->learning_rate, step->gradient_scale, layer->n_steps + 1);
    rp_pool_run(optimizer->pool, step->first, step->n_parameters, RP_OPTIMIZER_GRANULE, step_share,
                &job);
}

void
rp_optimizer_layer_apply(RpOptimizer *optimizer, RpOptimizerLayer *layer,
                         const RpOptimizerStep *step)
{
    g_return_if_fail(rp_optimizer_holds(layer, step->first, step->n_parameters));
    g_return_if_fail(is_of_blocks(layer, step));
    g_return_if_fail(step->n_parameters <= layer->n_parameters - layer->n_applied);

    run_step(optimizer, layer, step, FALSE);
    layer->n_applied += step->n_parameters;
}

void
rp_optimizer_layer_preview(RpOptimizer *optimizer, const RpOptimizerLayer *layer,
                           const RpOptimizerStep *step)
{
    g_return_if_fail(rp_optimizer_holds(layer, step->first, step->n_parameters));
    g_return_if_fail(is_of_blocks(layer, step));
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
