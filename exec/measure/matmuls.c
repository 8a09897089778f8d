/*
 * Finds the fastest of a library's kernel variants for each of a network's matmuls, of those with the first's bits. A
 * card at its power limit gives each the clocks that its power allows, so that each runs alone for a while, and counts
 * when clocks have settled. The card becomes warmer: those that are near the fastest run again, the other way round.
 *
 *   |0|1|2|..|7|   |  0  |  2  |  6  |  7  |   |    6    |    2    |    0    |
 *     a look            forth: each alone          back, and twice as long
 */
#include "exec/measure/measure.h"

#include <gio/gio.h>
#include <math.h>

#include "core/base/quote.h"
#include "core/base/units.h"

#define WARM_UP_SECONDS 0.5
#define SECONDS 0.15   /* alone, for the largest matmuls: clocks then swing by 3 % */
#define SHARE 2        /* times its share of the largest's work, a smaller one has */
#define MOST_RUNS 1000 /* that count */
#define BEHIND 1.25    /* multiple of the fastest look above which no run alone is worth it */
#define NEAR 1.04      /* of the fastest forth, above which none back is */
#define WORTH 0.985    /* share of the first's time: a smaller gain may be chance */
#define SEED 7
#define TILE 65536 /* random numbers in a row; larger operands repeat them */

/* Buffers that a matmul needs. */
enum {
    BUFFER_A,
    BUFFER_B,
    BUFFER_C,
    BUFFER_BIAS,
    BUFFER_SCALES,
    BUFFER_SUMS,
    BUFFER_WORKSPACE,
    N_BUFFERS
};

typedef struct {
    RpProbe *probe;
    const RpKernels *kernels;
    RpMatmulArgs args;
    void *buffer[N_BUFFERS];
} Product;

/* A part. */
static void
multiply(gpointer data)
{
    const Product *product = data;

    product->kernels->matmul(product->probe->ops->stream(product->probe), &product->args);
}

/* C, stored as the matmul leaves it. */
static RpSumSquaresArgs
squares_of(const Product *product)
{
    const RpMatmulArgs *args = &product->args;

    return (RpSumSquaresArgs){.dtype = args->c_dtype,
                              .n = args->m * args->n,
                              .x = product->buffer[BUFFER_C],
                              .workspace = product->buffer[BUFFER_WORKSPACE]};
}

/* Random numbers of the storage; for fp8, between 2^-3 and 2^3. */
static void
make_tile(RpDtype dtype, GRand *random, void *tile)
{
    g_autofree float *values = g_new(float, TILE);

    for (gsize i = 0; i < TILE; i++)
        values[i] = (float)g_rand_double_range(random, -1, 1);
    if (dtype < RP_N_DTYPES) {
        rp_dtype_from_float(dtype, values, tile, TILE);
        return;
    }
    for (gsize i = 0; i < TILE; i++)
        ((guint8 *)tile)[i] = (guint8)(0x34 + g_rand_int_range(random, 0, 16));
}

/* The tile goes up once, and is then doubled on the device. */
static gboolean
fill(const Product *product, guint buffer, RpDtype dtype, gsize n, GError **error)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED + buffer);
    RpProbe *probe = product->probe;
    const gsize bytes = n * rp_dtype_size(dtype);
    gsize there = MIN(bytes, TILE * rp_dtype_size(dtype));
    g_autofree guint8 *tile = g_malloc(TILE * rp_dtype_size(dtype));
    guint8 *to = product->buffer[buffer];

    make_tile(dtype, random, tile);
    if (!probe->ops->upload(probe, to, tile, there, error))
        return FALSE;
    for (; there < bytes; there *= 2) /* all storages alike: a plain copy */
        product->kernels->convert(
            probe->ops->stream(probe),
            &(RpElementsArgs){.n = MIN(there, bytes - there) / sizeof(guint16),
                              .x = to,
                              .y = to + there,
                              .x_dtype = RP_DTYPE_BF16,
                              .y_dtype = RP_DTYPE_BF16});
    return TRUE;
}

static void
give_buffers(Product *product)
{
    for (guint i = 0; i < N_BUFFERS; i++)
        product->probe->ops->give(product->probe, product->buffer[i]);
}

/* Returns: whether there is memory for it */
static gboolean
take_buffers(Product *product)
{
    RpMatmulArgs *args = &product->args;
    const RpSumSquaresArgs squares = squares_of(product);
    const gsize bytes[N_BUFFERS] = {
        [BUFFER_A] = args->m * MAX(args->k, args->a_stride) * rp_dtype_size(args->a_dtype),
        [BUFFER_B] = args->n * args->k * rp_dtype_size(args->b_dtype),
        [BUFFER_C] = args->m * args->n * rp_dtype_size(args->c_dtype),
        [BUFFER_BIAS] = args->n * rp_dtype_size(args->c_dtype),
        [BUFFER_SCALES] = 64,
        [BUFFER_SUMS] = RP_MATMUL_MAX_VARIANTS * sizeof(double),
        [BUFFER_WORKSPACE] = MAX(product->kernels->matmul_workspace(args),
                                 product->kernels->sum_squares_workspace(&squares))};

    for (guint i = 0; i < N_BUFFERS; i++) {
        product->buffer[i] = product->probe->ops->take(product->probe, MAX(bytes[i], 1), NULL);
        if (product->buffer[i] == NULL)
            return FALSE;
    }
    args->a = product->buffer[BUFFER_A];
    args->b = product->buffer[BUFFER_B];
    args->c = product->buffer[BUFFER_C];
    args->bias = args->bias != NULL ? product->buffer[BUFFER_BIAS] : NULL;
    args->a_scale = args->b_scale = product->buffer[BUFFER_SCALES];
    args->workspace = product->buffer[BUFFER_WORKSPACE];
    return TRUE;
}

static gboolean
fill_buffers(const Product *product, GError **error)
{
    static const float one[16] = {1};
    const RpMatmulArgs *args = &product->args;

    return fill(product, BUFFER_A, args->a_dtype, args->m * MAX(args->k, args->a_stride), error) &&
           fill(product, BUFFER_B, args->b_dtype, args->n * args->k, error) &&
           product->probe->ops->upload(product->probe, product->buffer[BUFFER_SCALES], one,
                                       sizeof one, error);
}

/* @ns: (out): mean time of a run in the second half of @seconds */
static gboolean
time_alone(Product *product, guint variant, double seconds, double *ns, GError **error)
{
    const RpProbePart part = multiply;
    const RpMeasureOptions options = {.seconds = seconds / 2, .max_runs = MOST_RUNS};
    RpMeasurer measurer = {.options = &options, .n_measures = 1, .settle = 1};
    RpTimes times;

    product->args.variant = (guint8)variant;
    if (!rp_measurer_run(&measurer, product->probe, &part, 1, product, &times, error))
        return FALSE;
    *ns = (double)times.mean_ns;
    return TRUE;
}

/* Adds up the squares of a product by each variant, in double: other bits in some of millions of values are another
 * sum. Then each runs alone, its kernel being loaded. @sums: (out) */
static gboolean
look(Product *product, double ns[RP_MATMUL_MAX_VARIANTS], double sums[RP_MATMUL_MAX_VARIANTS],
     GError **error)
{
    RpProbe *probe = product->probe;
    RpKernelStream *stream = probe->ops->stream(probe);
    RpSumSquaresArgs squares = squares_of(product);

    for (guint v = 0; v < RP_MATMUL_MAX_VARIANTS; v++) {
        product->args.variant = (guint8)v;
        product->kernels->fill(
            stream, &(RpFillArgs){.dtype = squares.dtype, .n = squares.n, .x = product->args.c});
        multiply(product);
        squares.sum = (double *)product->buffer[BUFFER_SUMS] + v;
        product->kernels->sum_squares(stream, &squares);
        if (!time_alone(product, v, 0, &ns[v], error))
            return FALSE;
    }
    return probe->ops->download(probe, sums, product->buffer[BUFFER_SUMS],
                                RP_MATMUL_MAX_VARIANTS * sizeof *sums, error);
}

/* Keeps the first of @n variants, and those that take no more than @most of the fastest's time. Returns: how many */
static guint
keep_fast(guint *variants, guint n, const double *ns, double most)
{
    double least = INFINITY;
    guint kept = 1;

    for (guint i = 0; i < n; i++)
        least = MIN(least, ns[variants[i]]);
    for (guint i = 1; i < n; i++)
        if (ns[variants[i]] <= most * least)
            variants[kept++] = variants[i];
    return kept;
}

/* @share: of the work that the largest matmul has. @fastest: (out): 0, if no other is worth it */
static gboolean
time_variants(Product *product, double share, guint *fastest, GError **error)
{
    double ns[RP_MATMUL_MAX_VARIANTS], sums[RP_MATMUL_MAX_VARIANTS], back_ns;
    const double seconds = SECONDS * MIN(SHARE * share, 1);
    guint variants[RP_MATMUL_MAX_VARIANTS] = {0}, n = 1;

    *fastest = 0;
    if (!look(product, ns, sums, error))
        return FALSE;
    for (guint v = 1; v < RP_MATMUL_MAX_VARIANTS; v++)
        if (sums[v] == sums[0]) /* none, if it is no number */
            variants[n++] = v;
    n = keep_fast(variants, n, ns, BEHIND);
    if (n == 1)
        return TRUE;
    for (guint i = 0; i < n; i++)
        if (!time_alone(product, variants[i], seconds, &ns[variants[i]], error))
            return FALSE;
    n = keep_fast(variants, n, ns, NEAR);
    for (guint i = n; i-- > 0;) {
        if (!time_alone(product, variants[i], 2 * seconds, &back_ns, error))
            return FALSE;
        ns[variants[i]] += 2 * back_ns;
    }
    for (guint i = 1; i < n; i++)
        if (ns[variants[i]] < ns[*fastest] * (*fastest == 0 ? WORTH : 1))
            *fastest = variants[i];
    return TRUE;
}

static double
work_of(const RpMatmulVariant *shape)
{
    return (double)shape->m * (double)shape->n * (double)shape->k;
}

/* @variant: (inout): its shape, and then its variant. @first: of all shapes. @share: as above */
static gboolean
measure_shape(RpProbe *probe, const RpNetwork *network, gboolean first, double share,
              RpMatmulVariant *variant, GError **error)
{
    const RpDtype c = (RpDtype)variant->c;
    Product product = {.probe = probe,
                       .kernels = rp_network_kernels(network),
                       .args = {.form = (RpMatmulLayout)variant->form,
                                .m = variant->m,
                                .n = variant->n,
                                .k = variant->k,
                                .a_stride = variant->a_stride,
                                .a_dtype = (RpDtype)variant->a,
                                .b_dtype = (RpDtype)variant->b,
                                .c_dtype = c,
                                .accumulate = c == RP_DTYPE_FP32 && !variant->bias,
                                .half_sums = rp_network_options(network)->half_sums,
                                .bias = variant->bias ? variant : NULL}};
    gboolean good = TRUE;
    double ns;

    variant->variant = 0;
    if (take_buffers(&product))
        good = fill_buffers(&product, error) &&
               (!first || time_alone(&product, 0, WARM_UP_SECONDS, &ns, error)) &&
               time_variants(&product, share, &variant->variant, error);
    give_buffers(&product);
    return good;
}

/* (element-type RpMatmulVariant) (transfer full) */
static GArray *
measure_shapes(RpProbe *probe, const RpNetwork *network, const RpMeasureOptions *options,
               GError **error)
{
    guint n;
    const RpMatmulVariant *shapes = rp_network_matmuls(network, &n);
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(RpMatmulVariant));
    double largest = 0;

    for (guint i = 0; i < n; i++)
        largest = MAX(largest, work_of(&shapes[i]));
    for (guint i = 0; i < n; i++) {
        RpMatmulVariant variant = shapes[i];

        if (options->progress != NULL && !options->progress(i, n, options->user_data))
            return rp_null(
                rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "the measurement was cancelled"));
        if (!measure_shape(probe, network, i == 0, work_of(&variant) / largest, &variant, error))
            return NULL;
        if (variant.variant > 0)
            g_array_append_val(found, variant);
    }
    return g_steal_pointer(&found);
}

RpNetwork *
rp_measure_matmul_variants(RpProbe *probe, RpNetwork *network, const RpMeasureOptions *options,
                           GError **error)
{
    g_return_val_if_fail(probe && network && options, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    const RpKernels *kernels = rp_network_kernels(network);
    g_autoptr(RpNetwork) given = network;
    g_autofree char *library = kernels->matmul_library != NULL ? kernels->matmul_library() : NULL;
    RpNetworkOptions chosen = *rp_network_options(network);

    if (library == NULL)
        return g_steal_pointer(&given);
    g_autoptr(GArray) variants = measure_shapes(probe, network, options, error);
    if (variants == NULL)
        return NULL;
    chosen.matmul_library = library;
    chosen.matmul_variants = (const RpMatmulVariant *)(void *)variants->data;
    chosen.n_matmul_variants = variants->len;
    return rp_network_new(rp_network_weights(network), kernels, &chosen);
}

gboolean
rp_measure_matmul(RpProbe *probe, const RpKernels *kernels, const RpMatmulArgs *shape,
                  double seconds, double *flops_per_s, GError **error)
{
    const RpProbePart part = multiply;
    const RpMeasureOptions options = {.seconds = seconds, .max_runs = RP_PROBE_MAX_REPEATS};
    RpMeasurer measurer = {
        .options = &options, .n_measures = 1, .over_swings = TRUE, .settle = RP_SETTLE};
    Product product = {.probe = probe, .kernels = kernels, .args = *shape};
    gboolean good = FALSE;
    RpTimes times;

    if (!take_buffers(&product))
        g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
                            "the device has no memory for the matrices");
    else
        good = fill_buffers(&product, error) &&
               rp_measurer_run(&measurer, probe, &part, 1, &product, &times, error);
    give_buffers(&product);
    if (good)
        *flops_per_s = 2.0 * (double)(shape->m * shape->n * shape->k) * (double)RP_NS_PER_S /
                       (double)MAX(rp_probe_typical_ns(probe, &times), 1);
    return good;
}
