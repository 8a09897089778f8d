/*
 * The host's memory: copies of its processors, and the optimizer.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/units.h"
#include "exec/optim/optimizer.h"
#include "exec/profile/measure.h"

#define CACHES 4 /* how much larger than the largest cache a buffer is */
#define LEAST_BUFFER_BYTES (64 * RP_MIB)
#define MOST_OPTIMIZER_BYTES (2 * RP_GIB)
#define GRANULE_BYTES 4096
#define TRAFFIC_BYTES 24 /* of a parameter's state; gradient and weight are added */

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
    copies.from = rp_measure_take(bytes, error);
    copies.to = copies.from ? rp_measure_take(bytes, error) : NULL;
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

/* @times: (out): of the norm and of the step */
static gboolean
measure_update(RpMeasurer *measurer, RpPool *pool, RpNumber number, gsize n, void *gradient,
               void *published, RpTimes *times, GError **error)
{
    static const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    static const RpProbePart parts[] = {sum_squares, apply_step};
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
                              .gradient = gradient,
                              .published = published,
                              .gradient_number = number,
                              .published_number = number}};
    return rp_measurer_run(measurer, NULL, parts, G_N_ELEMENTS(parts), &update, times, error);
}

gboolean
rp_measure_optimizer(RpMeasurer *measurer, const RpNetwork *network, RpProfile *profile,
                     GError **error)
{
    static const RpNumber numbers[] = {[RP_DTYPE_FP32] = RP_NUMBER_FP32,
                                       [RP_DTYPE_BF16] = RP_NUMBER_BF16,
                                       [RP_DTYPE_FP16] = RP_NUMBER_FP16};
    const RpNumber number = numbers[rp_network_options(network)->dtype];
    const gsize size = rp_number_bytes(number);
    const guint64 all = rp_weights_elements(rp_network_weights(network));
    const gsize n = (gsize)MAX(
        1, MIN(all, rp_measure_buffer_bytes(MOST_OPTIMIZER_BYTES) / (TRAFFIC_BYTES / 2 + size)));
    const RpPoolOptions pool_options = {.n_threads = measurer->options->optimizer_threads};
    RpPool *pool = NULL;
    RpTimes times[2];

    if (pool_options.n_threads > 1) {
        pool = rp_pool_new(&pool_options, error);
        if (pool == NULL)
            return FALSE;
    }
    float *ones = rp_measure_take(n * sizeof(float), error);
    void *gradient = ones ? rp_measure_take(n * size, error) : NULL;
    void *published = gradient ? rp_measure_take(n * size, error) : NULL;
    gboolean measured = FALSE;

    if (published != NULL) {
        for (gsize i = 0; i < n; i++)
            ones[i] = 1e-3f;
        rp_dtype_from_float(rp_network_options(network)->dtype, ones, gradient, n);
        measured = measure_update(measurer, pool, number, n, gradient, published, times, error);
    }
    free(ones);
    free(gradient);
    free(published);
    rp_pool_free(pool);
    if (measured) {
        profile->norm_parameters_per_s = rp_times_rate(&times[0], (double)n);
        profile->optimizer_parameters_per_s = rp_times_rate(&times[1], (double)n);
    }
    return measured;
}
