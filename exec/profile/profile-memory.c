/*
 * The host's memory: copies of its processors, and the optimizer.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/units.h"
#include "exec/optim/available-memory.h"
#include "exec/optim/optimizer.h"
#include "exec/optim/sums.h"
#include "exec/profile/measure.h"

#define CACHES 4 /* how much larger than the largest cache a buffer is */
#define LEAST_BUFFER_BYTES (64 * RP_MIB)
#define THREAD_BYTES RP_GIB /* no cache holds so much */
#define MOST_OPTIMIZER_BYTES (32 * RP_GIB)
#define MEMORY_SHARE 8 /* of what is available */
#define TILE 65536
#define GRANULE_BYTES 4096
#define TRAFFIC_BYTES 24 /* of a parameter's state; gradient and weight are added */

/* The passes over a run's gradients and weights, in the order in which they are measured. */
typedef enum { NORM, STEP, ACCUMULATE, GRADIENT_COPY, PARAMETER_COPY, N_PASSES } Pass;

gsize
rp_measure_buffer_bytes(gsize most)
{
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return (gsize)CLAMP(cache > 0 ? CACHES * (guint64)cache : 0, LEAST_BUFFER_BYTES, most);
}

typedef struct {
    guint8 *from, *to;
    gsize bytes;
    RpPool *pool;
} Copies;

static void
copy_range(gsize first, gsize n, gpointer data)
{
    const Copies *copies = data;

    memcpy(copies->to + first, copies->from + first, n);
}

/* The buffer, divided among the threads of the pool. */
static void
copy_together(gpointer data)
{
    Copies *copies = data;

    rp_pool_run(copies->pool, 0, copies->bytes, GRANULE_BYTES, copy_range, copies);
}

gboolean
rp_measure_host_copies(RpMeasurer *measurer, gsize bytes, guint threads, double *bytes_per_s,
                       GError **error)
{
    static const RpProbePart part[] = {copy_together};
    const RpPoolOptions options = {.n_threads = threads};
    g_autoptr(RpPool) pool = rp_pool_new(&options, error);
    Copies copies = {.bytes = bytes, .pool = pool};
    RpTimes times;
    gboolean measured = FALSE;

    if (pool == NULL)
        return FALSE;
    copies.from = rp_measure_take(pool, bytes, error);
    copies.to = copies.from ? rp_measure_take(pool, bytes, error) : NULL;
    if (copies.to != NULL)
        measured = rp_measurer_run(measurer, NULL, part, 1, &copies, &times, error);
    if (measured)
        *bytes_per_s = rp_times_rate(&times, (double)bytes);
    free(copies.from);
    free(copies.to);
    return measured;
}

gsize
rp_measure_optimizer_traffic(const RpProfile *profile)
{
    return TRAFFIC_BYTES + 2 * rp_profile_element_bytes(profile);
}

typedef struct {
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    RpOptimizerStep step;
    RpPool *pool;
    float *copied; /* a gradient's copy */
} Update;

static void
sum_squares(gpointer data)
{
    const Update *update = data;

    (void)rp_optimizer_sum_squares(update->optimizer, update->step.gradient,
                                   update->step.gradient_number, update->step.n_parameters);
}

static void
apply_step(gpointer data)
{
    Update *update = data;

    rp_optimizer_layer_apply(update->optimizer, update->layer, &update->step);
    rp_optimizer_layer_finish(update->layer);
}

/* Into what the next step overwrites. */
static void
accumulate(gpointer data)
{
    const Update *update = data;

    rp_sums_accumulate(update->pool, rp_optimizer_ops(update->optimizer), update->step.published,
                       &update->step.gradient, 1, update->step.gradient_number,
                       update->step.n_parameters);
}

static void
copy_gradient(gpointer data)
{
    const Update *update = data;

    rp_sums_widen(update->pool, rp_optimizer_ops(update->optimizer), update->step.gradient,
                  update->step.gradient_number, update->copied, update->step.n_parameters);
}

static void
copy_parameters(gpointer data)
{
    const Update *update = data;

    rp_optimizer_layer_publish(update->optimizer, update->layer, 0, update->step.n_parameters,
                               update->step.published, update->step.published_number);
}

/* The arrays of a run for @n parameters. */
typedef struct {
    void *gradient, *published;
    float *copied;
} Arrays;

static void
arrays_clear(Arrays *arrays)
{
    free(arrays->gradient);
    free(arrays->published);
    free(arrays->copied);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Arrays, arrays_clear)

static gboolean
take_arrays(Arrays *arrays, RpPool *pool, gsize n, gsize size, GError **error)
{
    return (arrays->gradient = rp_measure_take(pool, n * size, error)) != NULL &&
           (arrays->published = rp_measure_take(pool, n * size, error)) != NULL &&
           (arrays->copied = rp_measure_take(pool, n * sizeof(float), error)) != NULL;
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
    links->host_bytes_per_s = beside + rp_times_rate(&times, (double)update->step.n_parameters) *
                                           (double)rp_measure_optimizer_traffic(profile);
    return TRUE;
}

/* @times: (out): of each Pass */
static gboolean
measure_update(RpMeasurer *measurer, RpProbe *probe, RpPool *pool, RpNumber number, gsize n,
               const Arrays *arrays, RpProfile *profile, RpTimes *times, GError **error)
{
    static const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    static const RpProbePart parts[N_PASSES] = {[NORM] = sum_squares,
                                                [STEP] = apply_step,
                                                [ACCUMULATE] = accumulate,
                                                [GRADIENT_COPY] = copy_gradient,
                                                [PARAMETER_COPY] = copy_parameters};
    g_autoptr(RpOptimizer) optimizer = rp_optimizer_new(&adamw, NULL, pool, error);
    g_autoptr(RpOptimizerLayer) layer =
        optimizer ? rp_optimizer_layer_new(optimizer, n, NULL, 0, error) : NULL;

    if (layer == NULL)
        return FALSE;
    Update update = {.optimizer = optimizer,
                     .layer = layer,
                     .step = {.learning_rate = 1e-3,
                              .gradient_scale = 1,
                              .n_parameters = n,
                              .gradient = arrays->gradient,
                              .published = arrays->published,
                              .gradient_number = number,
                              .published_number = number},
                     .pool = pool,
                     .copied = arrays->copied};
    return rp_measurer_run(measurer, NULL, parts, G_N_ELEMENTS(parts), &update, times, error) &&
           measure_copies_beside(measurer, probe, &update, profile, error);
}

/* As many as a run has, or as keep every thread's share out of its caches: the threads of a machine
 * have more cache together than one buffer of a few hundred megabytes. And more: where memory lies
 * decides how fast it is, a run's lies everywhere, and in a virtual machine nobody can tell where.
 */
static gsize
optimizer_parameters(const RpNetwork *network, guint n_threads)
{
    const gsize each =
        TRAFFIC_BYTES / 2 + sizeof(float) + 2 * rp_dtype_size(rp_network_options(network)->dtype);
    const guint64 all = rp_weights_elements(rp_network_weights(network));
    const guint64 available = rp_available_memory();
    const guint64 bytes =
        MIN(n_threads * THREAD_BYTES, MIN(MOST_OPTIMIZER_BYTES, available / MEMORY_SHARE));

    return (gsize)MAX(1, MIN(all, MAX(bytes, LEAST_BUFFER_BYTES) / each));
}

static void
fill_gradient(RpDtype dtype, guint8 *gradient, gsize n)
{
    const gsize size = rp_dtype_size(dtype);
    g_autofree float *tile = g_new(float, TILE);

    for (gsize i = 0; i < TILE; i++)
        tile[i] = 1e-3f;
    for (gsize i = 0; i < n; i += TILE)
        rp_dtype_from_float(dtype, tile, gradient + i * size, MIN(n - i, TILE));
}

/* What a file may say (docs/profile-format.md): of a tiny model on a slow machine it would be less.
 */
static double
parameters_per_s(const RpTimes *times, gsize n)
{
    return CLAMP(rp_times_rate(times, (double)n), 1e6, 1e15);
}

gboolean
rp_measure_optimizer(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network,
                     RpProfile *profile, GError **error)
{
    static const RpNumber numbers[] = {[RP_DTYPE_FP32] = RP_NUMBER_FP32,
                                       [RP_DTYPE_BF16] = RP_NUMBER_BF16,
                                       [RP_DTYPE_FP16] = RP_NUMBER_FP16};
    const RpNumber number = numbers[rp_network_options(network)->dtype];
    const gsize size = rp_number_bytes(number);
    const RpPoolOptions pool_options = {.n_threads = measurer->options->optimizer_threads};
    const gsize n = optimizer_parameters(network, pool_options.n_threads);
    g_autoptr(RpPool) pool = NULL;
    g_auto(Arrays) arrays = {0};
    RpTimes times[N_PASSES];

    if (pool_options.n_threads > 1) {
        pool = rp_pool_new(&pool_options, error);
        if (pool == NULL)
            return FALSE;
    }
    if (!take_arrays(&arrays, pool, n, size, error))
        return FALSE;
    fill_gradient(rp_network_options(network)->dtype, arrays.gradient, n);
    if (!measure_update(measurer, probe, pool, number, n, &arrays, profile, times, error))
        return FALSE;
    profile->norm_parameters_per_s = parameters_per_s(&times[NORM], n);
    profile->optimizer_parameters_per_s = parameters_per_s(&times[STEP], n);
    profile->accumulate_parameters_per_s = parameters_per_s(&times[ACCUMULATE], n);
    profile->gradient_copy_parameters_per_s = parameters_per_s(&times[GRADIENT_COPY], n);
    profile->parameter_copy_parameters_per_s = parameters_per_s(&times[PARAMETER_COPY], n);
    return TRUE;
}
