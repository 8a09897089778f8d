/*
 * Finds the fastest of a library's kernel variants for each of a network's matmuls: they run in rotation, so that all
 * have the same clocks. A look at each drops those that are far behind. The others run for a tenth of a second, or for
 * three rounds where those take longer.
 *
 *   |way 0|way 1|way 2|way 3|way 4|   |way 0|way 2|way 0|way 2| ...
 *                look                          rounds
 */
#include "exec/measure/measure.h"

#include <gio/gio.h>

#include "core/base/units.h"
#include "exec/system/clock.h"

#define WARM_UP_SECONDS 0.5 /* clocks need not settle: all variants have the same */
#define SECONDS 0.1         /* time for the rounds of each shape */
#define LEAST_ROUNDS 3
#define BEHIND 1.15 /* multiple of the fastest look above which no round is worth it */
#define WORTH 0.98  /* share of the first's time: a smaller gain may be chance */
#define SEED 7
#define TILE 65536 /* random numbers in a row; larger operands repeat them */

/* Buffers that a matmul needs. */
enum { BUFFER_A, BUFFER_B, BUFFER_C, BUFFER_BIAS, BUFFER_SCALES, BUFFER_WORKSPACE, N_BUFFERS };

typedef struct {
    RpProbe *probe;
    const RpKernels *kernels;
    RpMatmulArgs args;
    void *buffer[N_BUFFERS];
} Product;

static void
multiply(gpointer data, guint8 variant)
{
    Product *product = data;

    product->args.variant = variant;
    product->kernels->matmul(product->probe->ops->stream(product->probe), &product->args);
}

#define VARIANT(n)                                                                                 \
    static void multiply_##n(gpointer data)                                                        \
    {                                                                                              \
        multiply(data, n);                                                                         \
    }
VARIANT(0)
VARIANT(1)
VARIANT(2)
VARIANT(3)
VARIANT(4)

static const RpProbePart parts[] = {multiply_0, multiply_1, multiply_2, multiply_3, multiply_4};

#define VARIANTS G_N_ELEMENTS(parts)

G_STATIC_ASSERT(VARIANTS <= RP_PROBE_MAX_PARTS && VARIANTS <= RP_MATMUL_MAX_VARIANTS);

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
    const gsize bytes[N_BUFFERS] = {[BUFFER_A] = args->m * MAX(args->k, args->a_stride) *
                                                 rp_dtype_size(args->a_dtype),
                                    [BUFFER_B] = args->n * args->k * rp_dtype_size(args->b_dtype),
                                    [BUFFER_C] = args->m * args->n * rp_dtype_size(args->c_dtype),
                                    [BUFFER_BIAS] = args->n * rp_dtype_size(args->c_dtype),
                                    [BUFFER_SCALES] = 64,
                                    [BUFFER_WORKSPACE] = product->kernels->matmul_workspace(args)};

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

static gboolean
time_parts(Product *product, const RpProbePart *which, guint n, guint rounds, gint64 *ns,
           GError **error)
{
    return product->probe->ops->time(product->probe, which, n, rounds, product, ns, error);
}

static gboolean
warm_up(Product *product, GError **error)
{
    const gint64 begin_ns = rp_clock_ns();
    const double ns = MIN(WARM_UP_SECONDS, product->probe->ops->warm_up_seconds) * RP_NS_PER_S;
    gint64 times[VARIANTS];

    while ((double)(rp_clock_ns() - begin_ns) < ns)
        if (!time_parts(product, parts, VARIANTS, 1, times, error))
            return FALSE;
    return TRUE;
}

/* Keeps the first kernel variant, and those that are not far behind after one look. Returns: the number kept;
 * @round_ns: (out): time of all of them */
static guint
keep_variants(const gint64 look[VARIANTS], guint variants[VARIANTS], gint64 *round_ns)
{
    gint64 least = G_MAXINT64;
    guint n = 0;

    *round_ns = 0;
    for (guint w = 0; w < VARIANTS; w++)
        least = MIN(least, look[w]);
    for (guint w = 0; w < VARIANTS; w++)
        if (w == 0 || (double)look[w] <= BEHIND * (double)least) {
            variants[n++] = w;
            *round_ns += look[w];
        }
    return n;
}

/* @fastest: (out): of those that are worth it */
static gboolean
time_variants(Product *product, guint *fastest, GError **error)
{
    gint64 ns[VARIANTS * RP_PROBE_MAX_REPEATS], values[RP_PROBE_MAX_REPEATS], round_ns, least = 0;
    RpProbePart which[VARIANTS];
    guint variants[VARIANTS];

    *fastest = 0;
    if (!time_parts(product, parts, VARIANTS, 1, ns, error))
        return FALSE;
    const guint n = keep_variants(ns, variants, &round_ns);
    const double rounds_wanted = SECONDS * (double)RP_NS_PER_S / (double)MAX(round_ns, 1);
    const guint rounds =
        (guint)CLAMP(rounds_wanted, (double)LEAST_ROUNDS, (double)RP_PROBE_MAX_REPEATS);

    if (n == 1)
        return TRUE;
    for (guint i = 0; i < n; i++)
        which[i] = parts[variants[i]];
    if (!time_parts(product, which, n, rounds, ns, error))
        return FALSE;
    for (guint i = 0; i < n; i++) {
        for (guint r = 0; r < rounds; r++)
            values[r] = ns[r * n + i];
        const gint64 mean = rp_times_of(values, rounds).mean_ns;

        if (i == 0) {
            least = llround(WORTH * (double)mean);
        } else if (mean < least) {
            least = mean;
            *fastest = variants[i];
        }
    }
    return TRUE;
}

/* @variant: (inout): its shape, and then its variant. @first: of all shapes */
static gboolean
measure_shape(RpProbe *probe, const RpNetwork *network, gboolean first, RpMatmulVariant *variant,
              GError **error)
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

    variant->variant = 0;
    if (take_buffers(&product))
        good = fill_buffers(&product, error) && (!first || warm_up(&product, error)) &&
               time_variants(&product, &variant->variant, error);
    give_buffers(&product);
    return good;
}

/* (element-type RpMatmulVariant) (transfer full) */
static GArray *
measure_shapes(RpProbe *probe, const RpNetwork *network, GError **error)
{
    guint n;
    const RpMatmulVariant *shapes = rp_network_matmuls(network, &n);
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(RpMatmulVariant));

    for (guint i = 0; i < n; i++) {
        RpMatmulVariant variant = shapes[i];

        if (!measure_shape(probe, network, i == 0, &variant, error))
            return NULL;
        if (variant.variant > 0)
            g_array_append_val(found, variant);
    }
    return g_steal_pointer(&found);
}

RpNetwork *
rp_measure_matmul_variants(RpProbe *probe, RpNetwork *network, GError **error)
{
    g_return_val_if_fail(probe && network, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    const RpKernels *kernels = rp_network_kernels(network);
    g_autoptr(RpNetwork) given = network;
    g_autofree char *library = kernels->matmul_library != NULL ? kernels->matmul_library() : NULL;
    RpNetworkOptions options = *rp_network_options(network);

    if (library == NULL)
        return g_steal_pointer(&given);
    g_autoptr(GArray) variants = measure_shapes(probe, network, error);
    if (variants == NULL)
        return NULL;
    options.matmul_library = library;
    options.matmul_variants = (const RpMatmulVariant *)(void *)variants->data;
    options.n_matmul_variants = variants->len;
    return rp_network_new(rp_network_weights(network), kernels, &options);
}

gboolean
rp_measure_matmul(RpProbe *probe, const RpKernels *kernels, const RpMatmulArgs *shape,
                  double seconds, double *flops_per_s, GError **error)
{
    const RpMeasureOptions options = {.seconds = seconds, .max_runs = RP_PROBE_MAX_REPEATS};
    RpMeasurer measurer = {
        .options = &options, .n_measures = 1, .over_swings = TRUE, .settle = TRUE};
    Product product = {.probe = probe, .kernels = kernels, .args = *shape};
    gboolean good = FALSE;
    RpTimes times;

    if (!take_buffers(&product))
        g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
                            "the device has no memory for the matrices");
    else
        good = fill_buffers(&product, error) &&
               rp_measurer_run(&measurer, probe, parts, 1, &product, &times, error);
    give_buffers(&product);
    if (good)
        *flops_per_s = 2.0 * (double)(shape->m * shape->n * shape->k) * (double)RP_NS_PER_S /
                       (double)MAX(rp_probe_typical_ns(probe, &times), 1);
    return good;
}
