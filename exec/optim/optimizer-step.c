/* Sums of squares, and steps. */
#include "exec/optim/optimizer-private.h"

/* Parameters that are widened, or copied, at a time: they stay in the nearest cache. */
#define PIECE ((gsize)(4 * RP_MOMENT_BLOCK))
#define LINE_BYTES 64

typedef struct {
    const RpAdamwOps *ops;
    RpGradient gradient;
    RpGradient added;
    RpDtype dtype;
    double *sums;
} SumJob;

/* Sums the squares of values @first to @first + @n. A tied matrix is summed in pieces; rounds use
 * the lanes of the whole block, as their sum in memory does. */
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

void
rp_optimizer_block_squares(RpOptimizer *optimizer, RpGradient gradient, RpGradient added,
                           RpDtype dtype, gsize n, double *sums)
{
    SumJob job = {
        .ops = optimizer->ops, .gradient = gradient, .added = added, .dtype = dtype, .sums = sums};

    rp_pool_run(optimizer->pool, 0, n, RP_SUM_SQUARES_BLOCK, sum_share, &job);
}

double
rp_optimizer_sum_squares_of_sum(RpOptimizer *optimizer, RpGradient gradient, RpGradient added,
                                RpDtype dtype, gsize n)
{
    const gsize n_blocks = n / RP_SUM_SQUARES_BLOCK + 1;
    double sum = 0, *sums;

    if (optimizer->sums->len < n_blocks)
        g_array_set_size(optimizer->sums, (guint)n_blocks);
    sums = (double *)(void *)optimizer->sums->data;
    rp_optimizer_block_squares(optimizer, gradient, added, dtype, n, sums);
    for (gsize i = 0; i * RP_SUM_SQUARES_BLOCK < n; i++)
        sum += sums[i];
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

/* State of a layer's parameters from @first on, in fp32. */
typedef struct {
    gsize first;
    float *weight;
    float *moment[RP_OPTIMIZER_MOST_MOMENTS];
    gboolean publishes; /* the step itself: weights are as devices read them */
} Wide;

/* Address at which weights from parameter @first on are published; or NULL. */
static char *
published_at(const StepJob *job, gsize first)
{
    const RpOptimizerStep *step = job->step;
    char *published = step->published;

    return published != NULL
               ? published + (first - step->first) * rp_dtype_size(step->published_dtype)
               : NULL;
}

/* The arrays of @job from parameter @first of the layer on. */
static RpAdamwArrays
arrays_at(const StepJob *job, const Wide *wide, gsize first)
{
    const RpOptimizerStep *step = job->step;
    const gsize place = first - wide->first;

    return (RpAdamwArrays){
        .weight = wide->weight + place,
        .moment1 = wide->moment[0] + place,
        .moment2 = wide->moment[1] != NULL ? wide->moment[1] + place : NULL,
        .gradient =
            rp_gradient_at(step->gradient.rounds[0], step->gradient_dtype, first - step->first),
        .published = wide->publishes ? published_at(job, first) : NULL,
        .gradient_dtype = step->gradient_dtype,
        .published_dtype = step->published_dtype,
    };
}

/* Parameters @first to @first + @n, whose gradient is a sum. */
static void
step_with_sum(const StepJob *job, const Wide *wide, const RpAdamwFactors *factors, gsize first,
              gsize n)
{
    const RpOptimizerStep *step = job->step;
    float piece[RP_GRADIENT_PIECE];

    for (gsize i = first; i < first + n; i += RP_GRADIENT_PIECE) {
        const gsize length = MIN(first + n - i, RP_GRADIENT_PIECE);
        RpAdamwArrays arrays = arrays_at(job, wide, i);
        rp_gradient_add(job->ops, &step->gradient, &step->added, step->gradient_dtype,
                        i - step->first, piece, length);
        arrays.gradient = piece;
        arrays.gradient_dtype = RP_DTYPE_FP32;
        job->ops->step(factors, &arrays, length);
    }
}

static void
step_wide(const StepJob *job, const Wide *wide, gsize first, gsize n)
{
    const GArray *runs = job->layer->runs;
    const gsize end = first + n;

    for (guint i = 0; i < runs->len && first < end; i++) {
        const RpOptimizerRun *run = &g_array_index(runs, RpOptimizerRun, i);
        if (run->end <= first)
            continue;
        const RpAdamwFactors *factors = &job->factors[run->decays ? 1 : 0];
        const RpAdamwArrays arrays = arrays_at(job, wide, first);
        const gsize run_end = MIN(run->end, end);
        if (rp_gradient_is_sum(&job->step->gradient, &job->step->added))
            step_with_sum(job, wide, factors, first, run_end - first);
        else
            job->ops->step(factors, &arrays, run_end - first);
        first = run_end;
    }
}

/* Prefetches the lines of an array's next piece: the pieces of three arrays come one after the other, and each ends
 * with its page, so that the hardware does not prefetch them. */
static void
fetch_piece(const guint8 *next, gsize bytes)
{
    for (gsize i = 0; i < bytes; i += LINE_BYTES)
        __builtin_prefetch(next + i, 0, 2);
}

/* Returns @n values in fp32: where they are kept, if a step may change them there, or in the buffer
 * @scratch. @next are widened after them. */
static float *
widen(const StepJob *job, RpMoments kept_as, gboolean squares, guint8 *kept, const float *scale,
      float *scratch, gsize n, gsize next)
{
    const gsize each = rp_moment_bytes(kept_as);

    if (kept_as == RP_MOMENTS_FP32 && !job->preview)
        return (float *)(void *)kept;
    fetch_piece(kept + n * each, next * each);
    if (kept_as == RP_MOMENTS_FP32)
        return memcpy(scratch, kept, n * sizeof(float));
    job->ops->unpack(kept_as, squares, kept, scale, scratch, n);
    return scratch;
}

static void
narrow_moments(const StepJob *job, const Wide *wide, gsize n)
{
    const RpOptimizerLayer *layer = job->layer;
    const gsize first = wide->first;

    for (guint i = 0; i < layer->n_moments; i++) {
        const RpDraw draw = {job->seed, layer->n_steps + 1, layer->number, i};

        job->ops->pack(layer->form.moments, &draw, layer->first_block + first / RP_MOMENT_BLOCK,
                       wide->moment[i], rp_optimizer_moment(layer, i, first),
                       rp_optimizer_scale(layer, i, first), n);
    }
}

/* Copies 16-bit weights to where they are published: lines that no cache has, which @ops write around
 * the caches where they can. */
static void
publish_halves(const RpAdamwOps *ops, const guint16 *halves, char *published, gsize n)
{
    const gsize words = (uintptr_t)published % sizeof(float) == 0 ? n / 2 : 0;

    ops->publish((const float *)(const void *)halves, published, RP_DTYPE_FP32, words);
    memcpy(published + words * sizeof(float), halves + 2 * words, (n - 2 * words) * sizeof *halves);
}

/* Rounds weights, and publishes the kept ones; or keeps the published ones. */
static void
narrow_weights(const StepJob *job, const Wide *wide, gsize n)
{
    const RpOptimizerLayer *layer = job->layer;
    const RpDraw draw = {job->seed, layer->n_steps + 1, layer->number, RP_DRAW_MASTER};
    const gsize first = wide->first;
    guint16 scratch[PIECE] __attribute__((aligned(LINE_BYTES)));
    char *published = published_at(job, first);
    void *kept =
        job->preview || layer->form.shared ? (void *)scratch : rp_optimizer_weight(layer, first);

    job->ops->pack(layer->form.master, &draw, layer->first_block + first / RP_MOMENT_BLOCK,
                   wide->weight, kept, NULL, n);
    if (layer->form.shared)
        publish_halves(job->ops, kept, published, n);
    else if (published != NULL)
        rp_optimizer_publish(job->ops, layer->form.master, kept, published,
                             job->step->published_dtype, n);
}

/* The run of a layer that has all of parameters @first to @first + @n; or NULL. */
static const RpOptimizerRun *
run_of(const RpOptimizerLayer *layer, gsize first, gsize n)
{
    for (guint i = 0; i < layer->runs->len; i++) {
        const RpOptimizerRun *run = &g_array_index(layer->runs, RpOptimizerRun, i);

        if (run->end > first)
            return run->end >= first + n ? run : NULL;
    }
    return NULL;
}

/* step_wide() and narrow_moments() of whole blocks in one pass; or FALSE, and nothing done. */
static gboolean
step_packed(const StepJob *job, const Wide *wide, gsize n, gsize next)
{
    const RpOptimizerLayer *layer = job->layer;
    const RpOptimizerStep *step = job->step;
    const gsize first = wide->first, each = rp_moment_bytes(layer->form.moments);
    const RpOptimizerRun *run = run_of(layer, first, n);
    RpAdamwPacked packed = {.moments = layer->form.moments,
                            .gradient_dtype = step->gradient_dtype,
                            .weight = wide->weight,
                            .gradient = arrays_at(job, wide, first).gradient,
                            .block = layer->first_block + first / RP_MOMENT_BLOCK};

    if (job->preview || job->ops->step_packed == NULL || run == NULL ||
        packed.moments == RP_MOMENTS_FP32 || n % RP_MOMENT_BLOCK != 0 ||
        rp_gradient_is_sum(&step->gradient, &step->added))
        return FALSE;
    for (guint i = 0; i < layer->n_moments; i++) {
        packed.kept[i] = rp_optimizer_moment(layer, i, first);
        packed.scale[i] = rp_optimizer_scale(layer, i, first);
        packed.draw[i] = (RpDraw){job->seed, layer->n_steps + 1, layer->number, i};
        fetch_piece((guint8 *)packed.kept[i] + n * each, next * each);
    }
    job->ops->step_packed(&job->factors[run->decays ? 1 : 0], &packed, n);
    if (wide->publishes && step->published != NULL)
        job->ops->publish(wide->weight, published_at(job, first), step->published_dtype, n);
    return TRUE;
}

/* A piece of which something is kept in fewer bits, or of which all is to stay as it is: @first is
 * where a block begins. @next are stepped after it. */
static void
step_piece(const StepJob *job, gsize first, gsize n, gsize next)
{
    const RpOptimizerLayer *layer = job->layer;
    const RpStateFormat form = layer->form;
    float scratch[1 + RP_OPTIMIZER_MOST_MOMENTS][PIECE];
    Wide wide = {.first = first, .publishes = form.master == RP_MOMENTS_FP32};

    wide.weight = widen(job, form.master, FALSE, rp_optimizer_weight(layer, first), NULL,
                        scratch[0], n, next);
    if (!step_packed(job, &wide, n, next)) {
        for (guint i = 0; i < layer->n_moments; i++)
            wide.moment[i] = widen(job, form.moments, i == 1, rp_optimizer_moment(layer, i, first),
                                   rp_optimizer_scale(layer, i, first), scratch[1 + i], n, next);
        step_wide(job, &wide, first, n);
        if (form.moments != RP_MOMENTS_FP32 && !job->preview)
            narrow_moments(job, &wide, n);
    }
    if (form.master != RP_MOMENTS_FP32)
        narrow_weights(job, &wide, n);
}

static gboolean
is_fp32(const RpOptimizerLayer *layer)
{
    return layer->form.moments == RP_MOMENTS_FP32 && layer->form.master == RP_MOMENTS_FP32;
}

static void
step_share(gsize first, gsize n, gpointer data)
{
    const StepJob *job = data;
    const RpOptimizerLayer *layer = job->layer;

    if (is_fp32(layer) && !job->preview) {
        const Wide all = {0,
                          (float *)(void *)layer->weight,
                          {(float *)(void *)layer->moment[0], (float *)(void *)layer->moment[1]},
                          TRUE};

        step_wide(job, &all, first, n);
        return;
    }
    for (gsize i = first, length; i < first + n; i += length) {
        length = MIN(PIECE, first + n - i);
        step_piece(job, i, length, MIN(PIECE, first + n - i - length));
    }
}

/* Whether a range of @step is made of whole blocks. */
static gboolean
is_of_blocks(const RpOptimizerLayer *layer, const RpOptimizerStep *step)
{
    const gsize end = step->first + step->n_parameters;

    return is_fp32(layer) || (step->first % RP_MOMENT_BLOCK == 0 &&
                              (end % RP_MOMENT_BLOCK == 0 || end == layer->n_parameters));
}

/* Whether weights that it publishes can be all that is kept. */
static gboolean
is_shared(const RpOptimizerStep *step)
{
    return step->published != NULL && step->published_dtype == RP_DTYPE_BF16;
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
    g_return_if_fail(!layer->form.shared || is_shared(step));

    if (layer->form.shared)
        layer->written = (guint8 *)step->published - step->first * sizeof(guint16);
    run_step(optimizer, layer, step, FALSE);
    layer->n_applied += step->n_parameters;
}

void
rp_optimizer_layer_preview(RpOptimizer *optimizer, const RpOptimizerLayer *layer,
                           const RpOptimizerStep *step)
{
    g_return_if_fail(rp_optimizer_holds(layer, step->first, step->n_parameters));
    g_return_if_fail(is_of_blocks(layer, step));
    g_return_if_fail(step->published != NULL && layer->n_applied == 0 && !layer->form.shared);

    run_step(optimizer, layer, step, TRUE);
}

void
rp_optimizer_layer_finish(RpOptimizerLayer *layer)
{
    g_return_if_fail(layer->n_applied == layer->n_parameters);
    layer->n_applied = 0;
    layer->n_steps++;
    if (layer->form.shared)
        layer->weight = layer->written;
}
