/*
 * In which of the ways that a library proposes each of a network's matmuls is the fastest: they run in
 * turn, so that all have the same clocks.
 *
 *   |way 0|way 1|way 2|way 3|way 4|way 0|way 1| ...
 */
#include "exec/measure/measure.h"

#define SECONDS 0.1 /* of each way */
#define MOST_RUNS 100
#define WORTH 0.98 /* of the first's time: what is hardly faster may be so by chance */
#define SEED 7
#define TILE 1048576 /* random numbers in a row; larger operands repeat them */

/* What a matmul needs. */
enum { ROOM_A, ROOM_B, ROOM_C, ROOM_BIAS, ROOM_SCALES, ROOM_WORKSPACE, N_ROOMS };

typedef struct {
    RpProbe *probe;
    const RpKernels *kernels;
    RpMatmulArgs args;
    void *room[N_ROOMS];
} Product;

static void
multiply(gpointer data, guint8 way)
{
    Product *product = data;

    product->args.way = way;
    product->kernels->matmul(product->probe->ops->stream(product->probe), &product->args);
}

#define WAY(n)                                                                                     \
    static void multiply_##n(gpointer data)                                                        \
    {                                                                                              \
        multiply(data, n);                                                                         \
    }
WAY(0)
WAY(1)
WAY(2)
WAY(3)
WAY(4)

static const RpProbePart parts[] = {multiply_0, multiply_1, multiply_2, multiply_3, multiply_4};

G_STATIC_ASSERT(G_N_ELEMENTS(parts) <= RP_PROBE_MAX_PARTS);
G_STATIC_ASSERT(G_N_ELEMENTS(parts) <= RP_MATMUL_MOST_WAYS);

/* Random numbers of the storage; of codes, those between 2^-3 and 2^3. */
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

static gboolean
fill(const Product *product, guint room, RpDtype dtype, guint64 n, GError **error)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED + room);
    const gsize size = rp_dtype_size(dtype);
    g_autofree guint8 *tile = g_malloc(TILE * size);

    make_tile(dtype, random, tile);
    for (guint64 i = 0; i < n; i += TILE)
        if (!product->probe->ops->upload(product->probe, (guint8 *)product->room[room] + i * size,
                                         tile, (gsize)MIN(n - i, (guint64)TILE) * size, error))
            return FALSE;
    return TRUE;
}

static void
give_rooms(Product *product)
{
    for (guint i = 0; i < N_ROOMS; i++)
        product->probe->ops->give(product->probe, product->room[i]);
}

/* Returns: whether there is memory for it */
static gboolean
take_rooms(Product *product)
{
    RpMatmulArgs *args = &product->args;
    const gsize bytes[N_ROOMS] = {[ROOM_A] = args->m * MAX(args->k, args->a_stride) *
                                             rp_dtype_size(args->a_dtype),
                                  [ROOM_B] = args->n * args->k * rp_dtype_size(args->b_dtype),
                                  [ROOM_C] = args->m * args->n * rp_dtype_size(args->c_dtype),
                                  [ROOM_BIAS] = args->n * rp_dtype_size(args->c_dtype),
                                  [ROOM_SCALES] = 64,
                                  [ROOM_WORKSPACE] = product->kernels->matmul_workspace(args)};

    for (guint i = 0; i < N_ROOMS; i++) {
        product->room[i] = product->probe->ops->take(product->probe, MAX(bytes[i], 1), NULL);
        if (product->room[i] == NULL)
            return FALSE;
    }
    args->a = product->room[ROOM_A];
    args->b = product->room[ROOM_B];
    args->c = product->room[ROOM_C];
    args->bias = args->bias != NULL ? product->room[ROOM_BIAS] : NULL;
    args->a_scale = args->b_scale = product->room[ROOM_SCALES];
    args->workspace = product->room[ROOM_WORKSPACE];
    return TRUE;
}

static gboolean
fill_rooms(const Product *product, GError **error)
{
    static const float one[16] = {1};
    const RpMatmulArgs *args = &product->args;

    return fill(product, ROOM_A, args->a_dtype, args->m * MAX(args->k, args->a_stride), error) &&
           fill(product, ROOM_B, args->b_dtype, args->n * args->k, error) &&
           product->probe->ops->upload(product->probe, product->room[ROOM_SCALES], one, sizeof one,
                                       error);
}

/* @way: (inout): its shape, and then its way */
static gboolean
measure_shape(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network, RpMatmulWay *way,
              GError **error)
{
    const RpDtype c = (RpDtype)way->c;
    Product product = {.probe = probe,
                       .kernels = rp_network_kernels(network),
                       .args = {.form = (RpMatmulForm)way->form,
                                .m = way->m,
                                .n = way->n,
                                .k = way->k,
                                .a_stride = way->a_stride,
                                .a_dtype = (RpDtype)way->a,
                                .b_dtype = (RpDtype)way->b,
                                .c_dtype = c,
                                .accumulate = c == RP_DTYPE_FP32 && !way->bias,
                                .half_sums = rp_network_options(network)->half_sums,
                                .bias = way->bias ? way : NULL}};
    RpTimes times[G_N_ELEMENTS(parts)];
    gboolean good = TRUE;

    way->way = 0;
    if (take_rooms(&product)) {
        good = fill_rooms(&product, error) &&
               rp_measurer_run(measurer, probe, parts, G_N_ELEMENTS(parts), &product, times, error);
        measurer->is_warm = TRUE;
        for (guint i = 1; good && i < G_N_ELEMENTS(parts); i++)
            if ((double)times[i].mean_ns < WORTH * (double)times[0].mean_ns &&
                (way->way == 0 || times[i].mean_ns < times[way->way].mean_ns))
                way->way = i;
    }
    give_rooms(&product);
    return good;
}

/* (element-type RpMatmulWay) (transfer full) */
static GArray *
measure_shapes(RpProbe *probe, const RpNetwork *network, GError **error)
{
    const RpMeasureOptions options = {.devices = 1, .seconds = SECONDS, .max_runs = MOST_RUNS};
    guint n;
    const RpMatmulWay *shapes = rp_network_matmuls(network, &n);
    RpMeasurer measurer = {.options = &options, .n_measures = n};
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(RpMatmulWay));

    for (guint i = 0; i < n; i++) {
        RpMatmulWay way = shapes[i];

        if (!measure_shape(&measurer, probe, network, &way, error))
            return NULL;
        if (way.way > 0)
            g_array_append_val(found, way);
    }
    return g_steal_pointer(&found);
}

RpNetwork *
rp_measure_ways(RpProbe *probe, RpNetwork *network, GError **error)
{
    g_return_val_if_fail(probe && network, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    const RpKernels *kernels = rp_network_kernels(network);
    g_autoptr(RpNetwork) given = network;
    g_autofree char *library = kernels->matmul_library != NULL ? kernels->matmul_library() : NULL;
    RpNetworkOptions options = *rp_network_options(network);

    if (library == NULL)
        return g_steal_pointer(&given);
    g_autoptr(GArray) ways = measure_shapes(probe, network, error);
    if (ways == NULL)
        return NULL;
    options.matmul_library = library;
    options.matmul_ways = (const RpMatmulWay *)(void *)ways->data;
    options.n_matmul_ways = ways->len;
    return rp_network_new(rp_network_weights(network), kernels, &options);
}
