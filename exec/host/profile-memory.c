/*
 * Copies and the optimizer. A virtual device's memory is the host's, so both directions are one
 * measurement, and what limits all copies together is what the processors copy at once.
 *
 * The buffers are larger than the caches: pieces as large as a block's weights walk through them.
 *
 *   from   |piece|piece|piece|piece| ... and again      to   |piece|piece| ...
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/units.h"
#include "exec/host/profile-private.h"
#include "exec/optim/optimizer.h"

#define CACHES 4 /* how much larger than the largest cache a buffer is */
#define LEAST_BUFFER_BYTES (64 * RP_MIB)
#define MOST_BUFFER_BYTES (256 * RP_MIB)
#define LEAST_PIECE_BYTES 65536
#define SMALL_BYTES 64
#define GRANULE_BYTES 4096
#define TRAFFIC_BYTES 24 /* of a parameter's state; gradient and weight are added */

typedef struct {
    guint8 *from, *to;
    gsize buffer_bytes;
    gsize piece_bytes;
    gsize at;
    RpPool *pool; /* all processors */
} Copies;

static gsize
buffer_bytes(void)
{
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return (gsize)CLAMP(cache > 0 ? CACHES * (guint64)cache : 0, LEAST_BUFFER_BYTES,
                        MOST_BUFFER_BYTES);
}

static void
copy_piece(gpointer data)
{
    Copies *copies = data;

    memcpy(copies->to + copies->at, copies->from + copies->at, copies->piece_bytes);
    copies->at += copies->piece_bytes;
    if (copies->at + copies->piece_bytes > copies->buffer_bytes)
        copies->at = 0;
}

static void
copy_little(gpointer data)
{
    Copies *copies = data;

    memcpy(copies->to, copies->from, SMALL_BYTES);
}

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

    rp_pool_run(copies->pool, 0, copies->buffer_bytes, GRANULE_BYTES, copy_range, copies);
}

static double
per_second(double amount, const RpTimes *times)
{
    return amount / (double)MAX(times->median_ns, 1) * (double)RP_NS_PER_S;
}

static gboolean
measure_together(RpMeasurer *measurer, Copies *copies, guint processors, double *bytes_per_s,
                 GError **error)
{
    static const RpMeasuredPart part[] = {copy_together};
    const RpPoolOptions options = {.n_threads = processors};
    g_autoptr(RpPool) pool = rp_pool_new(&options, error);
    RpTimes times;

    if (pool == NULL)
        return FALSE;
    copies->pool = pool;
    if (!rp_measurer_run(measurer, part, 1, copies, &times, error))
        return FALSE;
    *bytes_per_s = per_second((double)copies->buffer_bytes, &times);
    return TRUE;
}

static gboolean
measure_copies(RpMeasurer *measurer, const RpProfile *profile, RpLinks *links, GError **error)
{
    static const RpMeasuredPart alone[] = {copy_piece}, little[] = {copy_little};
    const guint block = rp_profile_first_block(profile);
    Copies copies = {.buffer_bytes = buffer_bytes()};
    RpTimes times;
    gboolean measured = FALSE;

    copies.piece_bytes =
        (gsize)CLAMP(profile->layers[MIN(block, profile->n_layers - 1)].parameter_bytes,
                     LEAST_PIECE_BYTES, copies.buffer_bytes);
    copies.from = rp_measurer_take(copies.buffer_bytes, error);
    copies.to = copies.from ? rp_measurer_take(copies.buffer_bytes, error) : NULL;
    if (copies.to != NULL && rp_measurer_run(measurer, alone, 1, &copies, &times, error)) {
        links->h2d_bytes_per_s = per_second((double)copies.piece_bytes, &times);
        links->d2h_bytes_per_s = links->h2d_bytes_per_s;
        measured = rp_measurer_run(measurer, little, 1, &copies, &times, error);
        links->copy_latency_ns = measured ? times.median_ns : 0;
        measured = measured && measure_together(measurer, &copies, profile->processors,
                                                &links->host_bytes_per_s, error);
    }
    free(copies.from);
    free(copies.to);
    return measured;
}

typedef struct {
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    RpOptimizerStep step;
} Update;

static void
apply_step(gpointer data)
{
    Update *update = data;

    rp_optimizer_layer_apply(update->optimizer, update->layer, &update->step);
    rp_optimizer_layer_finish(update->layer);
}

static gboolean
measure_update(RpMeasurer *measurer, RpPool *pool, RpNumber number, gsize n, void *gradient,
               void *published, RpTimes *times, GError **error)
{
    static const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    static const RpMeasuredPart part[] = {apply_step};
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
    return rp_measurer_run(measurer, part, 1, &update, times, error);
}

/* One pass over gradients, state and weights: the fused mode, on the threads that a run gives it.
 */
static gboolean
measure_optimizer(RpMeasurer *measurer, const RpNetwork *network, RpProfile *profile,
                  GError **error)
{
    static const RpNumber numbers[] = {[RP_DTYPE_FP32] = RP_NUMBER_FP32,
                                       [RP_DTYPE_BF16] = RP_NUMBER_BF16,
                                       [RP_DTYPE_FP16] = RP_NUMBER_FP16};
    const RpNumber number = numbers[rp_network_options(network)->dtype];
    const gsize size = rp_number_bytes(number);
    const guint64 all = rp_weights_elements(rp_network_weights(network));
    const gsize n = (gsize)MAX(1, MIN(all, buffer_bytes() / (TRAFFIC_BYTES / 2 + size)));
    const RpPoolOptions pool_options = {.n_threads = measurer->options->optimizer_threads};
    RpPool *pool = NULL;
    RpTimes times;

    if (pool_options.n_threads > 1) {
        pool = rp_pool_new(&pool_options, error);
        if (pool == NULL)
            return FALSE;
    }
    float *ones = rp_measurer_take(n * sizeof(float), error);
    void *gradient = ones ? rp_measurer_take(n * size, error) : NULL;
    void *published = gradient ? rp_measurer_take(n * size, error) : NULL;
    gboolean measured = FALSE;

    if (published != NULL) {
        for (gsize i = 0; i < n; i++)
            ones[i] = 1e-3f;
        rp_dtype_from_float(rp_network_options(network)->dtype, ones, gradient, n);
        measured = measure_update(measurer, pool, number, n, gradient, published, &times, error);
    }
    free(ones);
    free(gradient);
    free(published);
    rp_pool_free(pool);
    if (measured)
        profile->optimizer_parameters_per_s = per_second((double)n, &times);
    return measured;
}

gboolean
rp_measure_memory(RpMeasurer *measurer, const RpNetwork *network, RpProfile *profile,
                  GError **error)
{
    RpLinks *links = &profile->links;
    const double hidden = (double)rp_network_hidden_bytes(network);
    const gsize traffic = TRAFFIC_BYTES + 2 * rp_profile_element_bytes(profile);

    if (!measure_copies(measurer, profile, links, error) ||
        !measure_optimizer(measurer, network, profile, error))
        return FALSE;
    /* host memory allows at least what one of them does alone */
    links->host_bytes_per_s = MAX(MAX(links->host_bytes_per_s, links->h2d_bytes_per_s),
                                  (double)traffic * profile->optimizer_parameters_per_s);
    /* down and up again */
    links->hop_ns = 2 * links->copy_latency_ns +
                    llround(2 * hidden / links->h2d_bytes_per_s * (double)RP_NS_PER_S);
    return TRUE;
}
