/*
 * The optimizer, and the other passes over gradients and weights, layer by layer as a run makes
 * them.
 *
 * A layer's arrays lie together, as in a run's arena, so that every pass goes through all of the
 * memory: a pass over one large array took half or twice as long as over another (measured in a
 * virtual machine, which does not say where memory lies; the reason is not known).
 *
 *   layer    |g|p|c| state |g|p|c| state |...     g: gradients, p: weights that devices read,
 *                                                 c: a copy of the gradients
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/units.h"
#include "exec/measure/measure.h"
#include "exec/optim/optimizer.h"
#include "exec/system/memory-limit.h"

/*
 * Measures how fast processors step each state format of the optimizer (core/base/moments.h), in caches: every thread
 * steps parameters of its own over and over, all at the same time, as two threads of one processor share its units. In
 * memory a format is as fast as its bytes allow, or as this.
 */

#define PARAMETERS 16384 /* parameters of a thread: 18 bytes each, within its own cache */
#define PARAMETER_BYTES 12
#define SPAN 8                /* steps that are timed together: an even number */
#define SHARE_OF_SECONDS 0.08 /* share of a kind of layer: to measure, and half of it before */

typedef struct {
    RpStateFormat form;
    gint64 measured_us;
    double *parameters_per_s; /* [thread] */
} Forms;

typedef struct {
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    guint16 *gradient,
        *published; /* [2,PARAMETERS]: shared weights are read in one and written in the other */
} Share;

/* Steps for @us. Returns: parameters a second of the median span */
static double
step_for(const Share *share, gint64 us)
{
    g_autoptr(GArray) spans_ns = g_array_new(FALSE, FALSE, sizeof(gint64));
    const gint64 end_us = g_get_monotonic_time() + us;
    gint64 start_us = g_get_monotonic_time();

    do {
        for (guint i = 0; i < SPAN; i++) {
            const RpOptimizerStep step = {.learning_rate = 1e-4,
                                          .gradient_scale = 1,
                                          .n_parameters = PARAMETERS,
                                          .gradient = {{share->gradient}},
                                          .gradient_dtype = RP_DTYPE_BF16,
                                          .published = share->published + i % 2 * PARAMETERS,
                                          .published_dtype = RP_DTYPE_BF16};

            rp_optimizer_layer_apply(share->optimizer, share->layer, &step);
            rp_optimizer_layer_finish(share->layer);
        }
        const gint64 now_us = g_get_monotonic_time();
        const gint64 span_ns = 1000 * MAX(now_us - start_us, 1);

        g_array_append_val(spans_ns, span_ns);
        start_us = now_us;
    } while (start_us < end_us);

    const RpTimes times = rp_times_of((gint64 *)(void *)spans_ns->data, spans_ns->len);

    return (double)SPAN * PARAMETERS * 1e9 / (double)times.median_ns;
}

static double
share_rate(RpStateFormat form, gint64 measured_us)
{
    RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(GError) error = NULL;

    options.form = form;
    g_autoptr(RpOptimizer) optimizer = rp_optimizer_new(&options, NULL, NULL, &error);
    if (optimizer == NULL)
        return 0;
    guint8 *state = g_aligned_alloc0(PARAMETERS, PARAMETER_BYTES, 4096);
    guint16 *numbers = g_aligned_alloc0(PARAMETERS, 3 * sizeof *numbers, 4096);
    Share share = {.optimizer = optimizer, .gradient = numbers, .published = numbers + PARAMETERS};

    for (gsize i = 0; i < PARAMETERS; i++)
        share.gradient[i] = rp_bf16_from_float(1e-3f * (float)(i % 61) - 0.03f);
    share.layer = rp_optimizer_layer_new(optimizer, state, PARAMETERS, NULL, 0);
    if (form.shared)
        rp_optimizer_layer_share(share.layer, share.published + PARAMETERS);
    step_for(&share, measured_us / 2);
    double rate = step_for(&share, measured_us);
    rp_optimizer_layer_free(share.layer);
    g_aligned_free(state);
    g_aligned_free(numbers);
    return rate;
}

static void
run_shares(gsize first, gsize n, gpointer data)
{
    const Forms *forms = data;

    for (gsize i = first; i < first + n; i++)
        forms->parameters_per_s[i] = share_rate(forms->form, forms->measured_us);
}

/* Measures the optimizer's state formats, profile->cached_parameters_per_s. @pool: of @n_threads,
 * or %NULL for one; @seconds: RpMeasureOptions.seconds; it takes 1.5 times as long */
static void
measure_layouts(RpPool *pool, guint n_threads, double seconds, RpProfile *profile)
{
    g_autofree double *each = g_new0(double, n_threads);
    const gint64 measured_us = (gint64)(SHARE_OF_SECONDS * 1e6 * seconds);
    const gboolean shared = rp_profile_element_bytes(profile) == sizeof(guint16);

#define MEASURE(name, rule_, moments_, master_)                                                    \
    {                                                                                              \
        Forms forms = {{rule_, master_, moments_, (master_) != RP_MOMENTS_FP32 && shared},         \
                       measured_us,                                                                \
                       each};                                                                      \
        double *all = &profile->cached_parameters_per_s[rule_][moments_][master_];                 \
                                                                                                   \
        rp_pool_run(pool, 0, n_threads, 1, run_shares, &forms);                                    \
        *all = 0;                                                                                  \
        for (guint i = 0; i < n_threads; i++)                                                      \
            *all += each[i];                                                                       \
        *all = CLAMP(*all, 1e6, 1e15); /* a file's range */                                        \
    }
    RP_STATE_FORMATS(MEASURE)
#undef MEASURE
}

#define LEAST_BYTES (64 * RP_MIB)
#define THREAD_BYTES (256 * RP_MIB) /* no cache holds this much for each of its threads */
#define MOST_BYTES (16 * RP_GIB)
#define MEMORY_SHARE 8                     /* part of the available memory */
#define LAYER_PARAMETERS ((gsize)48 << 20) /* at most */
#define STATE_BYTES (3 * sizeof(float))    /* state of a parameter */
#define TRAFFIC_BYTES (2 * STATE_BYTES)    /* gradient and weight are added */
#define PAGE 4096
#define GRANULE 16384
#define TILE 4096

/* In the order in which they are measured. */
typedef enum { NORM, STEP, ACCUMULATE, GRADIENT_COPY, PARAMETER_COPY, N_PASSES } Pass;

typedef struct {
    RpOptimizerLayer *state;
    RpOptimizerStep step; /* step of all its parameters */
    float *copied;
} Layer;

typedef struct {
    RpDtype dtype;
    RpPool *pool;
    RpOptimizer *optimizer;
    void *memory;
    guint n_layers;
    gsize each; /* parameters of a layer */
    Layer *layers;
} Update;

gsize
rp_measure_optimizer_traffic(const RpProfile *profile)
{
    return TRAFFIC_BYTES + 2 * rp_profile_element_bytes(profile);
}

/* ---- passes ---- */

static void
sum_squares(gpointer data)
{
    const Update *update = data;

    for (guint l = 0; l < update->n_layers; l++) {
        const RpOptimizerStep *step = &update->layers[l].step;

        (void)rp_optimizer_sum_squares(update->optimizer, step->gradient.rounds[0],
                                       step->gradient_dtype, step->n_parameters);
    }
}

static void
apply_step(gpointer data)
{
    Update *update = data;

    for (guint l = 0; l < update->n_layers; l++) {
        rp_optimizer_layer_apply(update->optimizer, update->layers[l].state,
                                 &update->layers[l].step);
        rp_optimizer_layer_finish(update->layers[l].state);
    }
}

/* Copies into a buffer that the next copy overwrites. */
static void
accumulate(gpointer data)
{
    const Update *update = data;

    for (guint l = 0; l < update->n_layers; l++) {
        const RpOptimizerStep *step = &update->layers[l].step;

        rp_sums_accumulate(update->pool, rp_optimizer_ops(update->optimizer),
                           update->layers[l].copied, step->gradient.rounds, 1, step->gradient_dtype,
                           FALSE, step->n_parameters);
    }
}

static void
copy_gradients(gpointer data)
{
    const Update *update = data;

    for (guint l = 0; l < update->n_layers; l++) {
        const RpOptimizerStep *step = &update->layers[l].step;

        rp_sums_widen(update->pool, rp_optimizer_ops(update->optimizer), step->gradient.rounds[0],
                      step->gradient_dtype, update->layers[l].copied, step->n_parameters);
    }
}

static void
copy_parameters(gpointer data)
{
    const Update *update = data;

    for (guint l = 0; l < update->n_layers; l++) {
        const RpOptimizerStep *step = &update->layers[l].step;

        rp_optimizer_layer_publish(update->optimizer, update->layers[l].state, 0,
                                   step->n_parameters, step->published, step->published_dtype);
    }
}

/* ---- memory ---- */

typedef struct {
    RpDtype dtype;
    guint8 *gradient, *published;
    float *copied;
} Filling;

static void
fill_share(gsize first, gsize n, gpointer data)
{
    const Filling *filling = data;
    const gsize size = rp_dtype_size(filling->dtype);
    float values[TILE];

    for (gsize i = 0; i < TILE; i++)
        values[i] = 1e-3f;
    for (gsize i = first; i < first + n; i += TILE)
        rp_dtype_from_float(filling->dtype, values, filling->gradient + i * size,
                            MIN(TILE, first + n - i));
    memset(filling->published + first * size, 0, n * size);
    memset(filling->copied + first, 0, n * sizeof(float));
}

/* Bytes of an array, in whole pages. */
static gsize
array_bytes(gsize n, gsize element_bytes)
{
    return rp_align_up(n * element_bytes, PAGE);
}

/* Makes layer @l of the memory at @memory. Returns: its end */
static guint8 *
place_layer(Update *update, guint l, guint8 *memory)
{
    const gsize bytes = array_bytes(update->each, rp_dtype_size(update->dtype));
    Layer *layer = &update->layers[l];
    Filling filling = {.dtype = update->dtype,
                       .gradient = memory,
                       .published = memory + bytes,
                       .copied = (float *)(void *)(memory + 2 * bytes)};

    memory += 2 * bytes + array_bytes(update->each, sizeof(float));
    rp_pool_run(update->pool, 0, update->each, GRANULE, fill_share, &filling);
    layer->state = rp_optimizer_layer_new(update->optimizer, memory, update->each, NULL, 0);
    layer->step = (RpOptimizerStep){.learning_rate = 1e-3,
                                    .gradient_scale = 1,
                                    .n_parameters = update->each,
                                    .gradient = {{filling.gradient}},
                                    .published = filling.published,
                                    .gradient_dtype = update->dtype,
                                    .published_dtype = update->dtype};
    layer->copied = filling.copied;
    return memory + array_bytes(update->each, STATE_BYTES);
}

static void
update_clear(Update *update)
{
    for (guint l = 0; l < update->n_layers; l++)
        rp_optimizer_layer_free(update->layers[l].state);
    g_free(update->layers);
    rp_optimizer_free(update->optimizer);
    rp_pool_free(update->pool);
    free(update->memory);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Update, update_clear)

/* Layers of @n parameters together, or a few less. */
static gboolean
update_init(Update *update, guint n_threads, RpStateFormat form, gsize n, GError **error)
{
    RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(RpNodes) nodes = rp_nodes_read(RP_NODES_DIRECTORY);
    const RpPoolOptions pool_options = {.n_threads = n_threads, .nodes = nodes};
    const guint n_layers = (guint)((n - 1) / LAYER_PARAMETERS + 1);

    adamw.form = form;
    update->each = n / n_layers;
    if (n_threads > 1 && (update->pool = rp_pool_new(&pool_options, error)) == NULL)
        return FALSE;
    update->optimizer = rp_optimizer_new(&adamw, NULL, update->pool, error);
    if (update->optimizer == NULL)
        return FALSE;
    update->memory =
        rp_measure_reserve(n_layers * (2 * array_bytes(update->each, rp_dtype_size(update->dtype)) +
                                       array_bytes(update->each, sizeof(float)) +
                                       array_bytes(update->each, STATE_BYTES)),
                           error);
    if (update->memory == NULL)
        return FALSE;
    guint8 *at = update->memory;
    update->layers = g_new0(Layer, n_layers);
    while (update->n_layers < n_layers)
        at = place_layer(update, update->n_layers++, at);
    return TRUE;
}

/* ---- measuring ---- */

/* Keeps to the range that a file may have (docs/profile-format.md): the rate of a tiny model on a
 * slow machine would be below it. */
static double
parameters_per_s(const Update *update, const RpTimes *times)
{
    return CLAMP(rp_times_rate(times, (double)update->n_layers * (double)update->each), 1e6, 1e15);
}

/* Converts @rate to AdamW's rate with all state in fp32, as a file has it: it moves as many bytes a
 * second as the run's state format did. Plans divide by the run's bytes again. */
static double
rate_of_fp32(const RpMeasurer *measurer, const RpProfile *profile, double rate)
{
    const RpStateFormat fp32 = RP_STATE_FORMAT_FP32, form = measurer->options->form;
    const double wide = (double)rp_optimizer_state_traffic(fp32, RP_MOMENT_BLOCK);
    const double narrow = (double)rp_optimizer_state_traffic(form, RP_MOMENT_BLOCK);
    const double others = 2.0 * RP_MOMENT_BLOCK * rp_profile_element_bytes(profile);

    return rp_state_format_equal(form, fp32) ? rate : rate * (narrow + others) / (wide + others);
}

/* The same of copies of weights. */
static double
copy_rate_of_fp32(const RpMeasurer *measurer, const RpProfile *profile, double rate)
{
    const RpMoments master = measurer->options->form.master;
    const double element = rp_profile_element_bytes(profile);

    return master == RP_MOMENTS_FP32 ? rate
                                     : rate * ((double)rp_moment_bytes(master) + element) /
                                           ((double)rp_moment_bytes(RP_MOMENTS_FP32) + element);
}

/* Steps, while the devices copy: how much both move together, and the copies of it. */
static gboolean
measure_copies_beside(RpMeasurer *measurer, RpProbe *probe, Update *update, RpProfile *profile,
                      GError **error)
{
    static const RpProbePart part[] = {apply_step};
    RpLinks *links = &profile->links;
    double beside;
    RpTimes times;

    if (probe->ops->begin_copies == NULL)
        return TRUE;
    gpointer copies = probe->ops->begin_copies(probe, MAX(profile->gpus, 1), error);
    if (copies == NULL)
        return FALSE;
    const gboolean timed = rp_measurer_run(measurer, NULL, part, 1, update, &times, error);
    if (!probe->ops->end_copies(probe, copies, &beside, timed ? error : NULL) || !timed)
        return FALSE;
    links->beside_optimizer_bytes_per_s = beside;
    links->host_bytes_per_s =
        beside + rate_of_fp32(measurer, profile, parameters_per_s(update, &times)) *
                     (double)rp_measure_optimizer_traffic(profile);
    return TRUE;
}

/* The threads of a machine have more cache together than one buffer of a few hundred megabytes. */
gsize
rp_measure_optimizer_parameters(guint64 all, gsize element_bytes, guint n_threads,
                                guint64 available_bytes)
{
    const gsize each = STATE_BYTES + sizeof(float) + 2 * element_bytes;
    const guint64 bytes =
        MIN(n_threads * THREAD_BYTES, MIN(MOST_BYTES, available_bytes / MEMORY_SHARE));

    return (gsize)MAX(1, MIN(all, MAX(bytes, LEAST_BYTES) / each));
}

struct _RpMeasureOptimizer {
    RpMeasureOptions options;
    RpMeasurer silent; /* the thread's: only the calling thread's tells of its progress */
    RpMeasurer *measurer;
    Update update;
    RpDtype dtype;
    guint64 parameters;
    RpProfile *profile; /* borrowed */
    GThread *thread;    /* NULL: measured when asked for */
    gint given_up;      /* atomic */
    gboolean measured;
    GError *error;
};

static gboolean
goes_on(guint64 done, guint64 total, gpointer user_data)
{
    RpMeasureOptimizer *self = user_data;

    (void)done;
    (void)total;
    return !g_atomic_int_get(&self->given_up);
}

/* All passes but the one beside copies. */
static gpointer
measure_passes(gpointer data)
{
    static const RpProbePart parts[N_PASSES] = {[NORM] = sum_squares,
                                                [STEP] = apply_step,
                                                [ACCUMULATE] = accumulate,
                                                [GRADIENT_COPY] = copy_gradients,
                                                [PARAMETER_COPY] = copy_parameters};
    RpMeasureOptimizer *self = data;
    Update *update = &self->update;
    RpProfile *profile = self->profile;
    const guint n_threads = self->options.optimizer_threads;
    const gsize n = rp_measure_optimizer_parameters(self->parameters, rp_dtype_size(self->dtype),
                                                    n_threads, rp_available_memory());
    RpTimes times[N_PASSES];

    if (!update_init(update, n_threads, self->options.form, n, &self->error) ||
        !rp_measurer_run(self->measurer, NULL, parts, G_N_ELEMENTS(parts), update, times,
                         &self->error))
        return NULL;
    self->measured = TRUE;
    profile->norm_parameters_per_s = parameters_per_s(update, &times[NORM]);
    profile->optimizer_parameters_per_s =
        rate_of_fp32(self->measurer, profile, parameters_per_s(update, &times[STEP]));
    profile->sum_parameters_per_s = parameters_per_s(update, &times[ACCUMULATE]);
    profile->gradient_copy_parameters_per_s = parameters_per_s(update, &times[GRADIENT_COPY]);
    profile->parameter_copy_parameters_per_s = copy_rate_of_fp32(
        self->measurer, profile, parameters_per_s(update, &times[PARAMETER_COPY]));
    measure_layouts(update->pool, n_threads, self->options.seconds, profile);
    return NULL;
}

RpMeasureOptimizer *
rp_measure_optimizer_new(const RpMeasureOptions *options, RpDtype dtype, guint64 parameters,
                         RpProfile *profile, gboolean at_once)
{
    RpMeasureOptimizer *self = g_new0(RpMeasureOptimizer, 1);

    self->options = *options;
    self->options.progress = goes_on;
    self->options.user_data = self;
    self->silent = (RpMeasurer){.options = &self->options, .n_measures = 1};
    self->measurer = &self->silent;
    self->update.dtype = self->dtype = dtype;
    self->parameters = parameters;
    self->profile = profile;
    if (at_once) /* where no thread can be had, it is measured when asked for */
        self->thread = g_thread_try_new("measure", measure_passes, self, NULL);
    return self;
}

void
rp_measure_optimizer_wait(RpMeasureOptimizer *self)
{
    GThread *thread = g_steal_pointer(&self->thread);

    if (thread != NULL)
        g_thread_join(thread);
}

void
rp_measure_optimizer_free(RpMeasureOptimizer *self)
{
    if (self == NULL)
        return;
    g_atomic_int_set(&self->given_up, TRUE);
    rp_measure_optimizer_wait(self);
    update_clear(&self->update);
    g_clear_error(&self->error);
    g_free(self);
}

gboolean
rp_measure_optimizer_finish(RpMeasureOptimizer *self, RpMeasurer *measurer, RpProbe *probe,
                            GError **error)
{
    rp_measure_optimizer_wait(self);
    if (self->measured) {
        rp_measurer_skip(measurer, 1);
    } else if (self->error == NULL) {
        self->measurer = measurer;
        measure_passes(self);
    }
    if (self->error != NULL) {
        g_propagate_error(error, g_steal_pointer(&self->error));
        return FALSE;
    }
    return measure_copies_beside(measurer, probe, &self->update, self->profile, error);
}
