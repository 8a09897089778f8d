/* Tests kernels that look for values that are not finite (exec/cuda/kernels/finite.cu). The oracle is isfinite() on the
 * host, value by value. Around the values that a kernel may read stand values that it would notice: 0xff, NaN. The same
 * program runs over a CUDA of threads (soft-cuda.h). Exits 77 without a device. */
#include "tests/rp-test.h"

#include <math.h>

#include "core/base/dtype.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/device.h"

#define GUARD 64 /* elements before and behind; a shift is less */

typedef struct {
    cudaStream_t stream;
    RpKernelStream *kernels;
    guint8 *device; /* memory of one case */
    guint8 *pinned; /* fetch: where from */
    guint32 *left;  /* [0]: in pinned memory */
    guint32 *device_left;
    guint8 *host; /* values of one case: a copy of the device's, from the first value on */
    GRand *rand;
} Fixture;

static void
check_cuda(cudaError_t status, const char *what)
{
    if (status != cudaSuccess)
        fail_msg("%s: %s", what, cudaGetErrorString(status));
}

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    *state = f;
    f->rand = g_rand_new_with_seed(20261122);
    return cudaSetDevice(0) == cudaSuccess &&
                   cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking) == cudaSuccess &&
                   cudaHostAlloc((void **)&f->left, 64, cudaHostAllocDefault) == cudaSuccess &&
                   cudaMalloc((void **)&f->device_left, 64) == cudaSuccess &&
                   (f->kernels = rp_cuda_stream_new(0, f->stream, NULL)) != NULL
               ? 0
               : -1;
}

static void
free_case(Fixture *f)
{
    if (f->device != NULL)
        cudaFree(f->device);
    if (f->pinned != NULL)
        cudaFreeHost(f->pinned);
    f->device = f->pinned = NULL;
    g_clear_pointer(&f->host, g_free);
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    free_case(f);
    cudaFree(f->device_left);
    cudaFreeHost(f->left);
    rp_cuda_stream_free(f->kernels);
    cudaStreamDestroy(f->stream);
    g_rand_free(f->rand);
    g_free(f);
    return 0;
}

/* Device memory, all of it 0xff. */
static void
make_scratch(Fixture *f, gsize bytes)
{
    check_cuda(cudaMalloc((void **)&f->device, bytes), "cudaMalloc");
    check_cuda(cudaMemset(f->device, 0xff, bytes), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/* Copies all bytes before it returns: the stream does not wait for copies that are not its own. */
static void
copy_up(void *to, const void *from, gsize bytes)
{
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static void
copy_down(void *to, const void *from, gsize bytes)
{
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

/* Waits for all that was issued. */
static void
finish(const Fixture *f)
{
    GError *error = NULL;

    if (!rp_cuda_kernels()->check(f->kernels, &error))
        fail_msg("%s", error->message);
    check_cuda(cudaStreamSynchronize(f->stream), "cudaStreamSynchronize");
}

/* ---- find ---- */

typedef struct {
    RpDtype dtype;
    gsize n;
    gsize shift; /* elements that the array is moved by */
} Shape;

static guint32
infinity_of(RpDtype dtype)
{
    static const guint32 bits[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = 0x7f800000, [RP_DTYPE_BF16] = 0x7f80, [RP_DTYPE_FP16] = 0x7c00};

    return bits[dtype];
}

static void
set_bits(Fixture *f, const Shape *shape, gsize i, guint32 bits)
{
    if (rp_dtype_size(shape->dtype) == 4)
        ((guint32 *)(void *)f->host)[i] = bits;
    else
        ((guint16 *)(void *)f->host)[i] = (guint16)bits;
}

static guint32
get_bits(const Fixture *f, const Shape *shape, gsize i)
{
    return rp_dtype_size(shape->dtype) == 4 ? ((const guint32 *)(const void *)f->host)[i]
                                            : ((const guint16 *)(const void *)f->host)[i];
}

static guint8 *
first_value(const Fixture *f, const Shape *shape)
{
    return f->device + (GUARD + shape->shift) * rp_dtype_size(shape->dtype);
}

static void
send(const Fixture *f, const Shape *shape, gsize first, gsize n)
{
    const gsize size = rp_dtype_size(shape->dtype);

    if (n > 0)
        copy_up(first_value(f, shape) + first * size, f->host + first * size, n * size);
}

/* Bits of any kind that are a number: large, small, subnormal, zero. */
static void
make_values(Fixture *f, const Shape *shape)
{
    const gsize size = rp_dtype_size(shape->dtype);
    const guint32 infinity = infinity_of(shape->dtype);

    free_case(f);
    make_scratch(f, (2 * GUARD + shape->shift + shape->n) * size);
    f->host = g_malloc(MAX(1, shape->n * size));
    for (gsize i = 0; i < shape->n; i++) {
        const guint32 bits = g_rand_int(f->rand);
        const gboolean broken = (bits & infinity) == infinity;

        set_bits(f, shape, i, broken ? bits & ~(infinity & (infinity >> 1)) : bits);
    }
    send(f, shape, 0, shape->n);
}

/* The oracle: the first value that is none, or n. */
static gsize
first_broken(const Fixture *f, const Shape *shape)
{
    const gsize size = rp_dtype_size(shape->dtype);
    float values[1024];

    for (gsize first = 0; first < shape->n; first += G_N_ELEMENTS(values)) {
        const gsize n = MIN(G_N_ELEMENTS(values), shape->n - first);

        rp_dtype_to_float(shape->dtype, f->host + first * size, values, n);
        for (gsize i = 0; i < n; i++)
            if (!isfinite(values[i]))
                return first + i;
    }
    return shape->n;
}

/* Multiples of nothing, larger than all, and one. */
static gsize
columns_of(const Shape *shape)
{
    return shape->n % 3 == 0 ? 1 : shape->n % 3 == 1 ? 37 : shape->n + 1;
}

/* Runs the search with @before rows left. Returns: the rows left after it */
static guint32
find(const Fixture *f, const Shape *shape, gboolean on_device, guint32 before)
{
    guint32 *left = on_device ? f->device_left : f->left;
    guint32 after;

    if (on_device)
        copy_up(left, &before, sizeof before);
    else
        *left = before;
    rp_cuda_kernels()->find_broken(f->kernels,
                                   &(RpFindBrokenArgs){shape->dtype, shape->n, columns_of(shape),
                                                       first_value(f, shape), left});
    finish(f);
    if (!on_device)
        return *left;
    copy_down(&after, left, sizeof after);
    return after;
}

/* Checks the array as it is now. @what: its name */
static void
check_flag(const Fixture *f, const Shape *shape, const char *what)
{
    const gsize columns = columns_of(shape), first = first_broken(f, shape);
    const gsize rows = (shape->n + columns - 1) / columns;
    const guint32 left = first < shape->n ? (guint32)(rows - first / columns) : 0;

    for (guint i = 0; i < 3; i++) {
        const guint32 before = i == 2 ? 3 : 0; /* more stays */
        const guint32 found = find(f, shape, i == 1, before);

        if (found != MAX(before, left))
            fail_msg("%s, %zu values, %zu elements further, %s: %u rows left, expected %u; %s",
                     rp_dtype_name(shape->dtype), shape->n, shape->shift,
                     i == 1 ? "on the device" : "in pinned memory", found, MAX(before, left), what);
    }
}

/* Infinity, a quiet NaN, one with the least and one with the most of a mantissa; of both signs. */
static guint32
broken_bits(RpDtype dtype, guint kind)
{
    const guint32 infinity = infinity_of(dtype);
    const guint32 mantissa = (infinity & (~infinity + 1)) - 1;
    const guint32 sign = rp_dtype_size(dtype) == 4 ? 0x80000000 : 0x8000;
    const guint32 mantissas[] = {0, (mantissa + 1) / 2, 1, mantissa};

    return infinity | mantissas[kind % 4] | (kind / 4 % 2 != 0 ? sign : 0);
}
#define BROKEN_KINDS 8

/* One value of the array is no number, then it is one again. */
static void
check_place(Fixture *f, const Shape *shape, gsize place, guint kind)
{
    const guint32 before = get_bits(f, shape, place);
    const guint32 bits = broken_bits(shape->dtype, kind);
    g_autofree char *what = g_strdup_printf("value %zu is 0x%x", place, bits);

    set_bits(f, shape, place, bits);
    assert_true(first_broken(f, shape) == place);
    send(f, shape, place, 1);
    check_flag(f, shape, what);
    set_bits(f, shape, place, before);
    send(f, shape, place, 1);
}

static void
for_each_shape(Fixture *f, const gsize *sizes, guint n_sizes,
               void (*check)(Fixture *f, const Shape *shape))
{
    static const gsize shifts[] = {0, 1, 3, 8};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (guint i = 0; i < n_sizes; i++)
            for (guint s = 0; s < G_N_ELEMENTS(shifts); s++) {
                const Shape shape = {(RpDtype)dtype, sizes[i], shifts[s]};

                make_values(f, &shape);
                check(f, &shape);
            }
}

static void
check_numbers(Fixture *f, const Shape *shape)
{
    assert_true(first_broken(f, shape) == shape->n);
    check_flag(f, shape, "all of them are numbers");
}

static void
check_every_value(Fixture *f, const Shape *shape)
{
    for (gsize place = 0; place < shape->n; place++)
        for (guint kind = 0; kind < BROKEN_KINDS; kind++)
            check_place(f, shape, place, kind);
    check_numbers(f, shape); /* the last value is as it was */
}

/* Both ends, where whole pieces of 16 bytes end, and anywhere. */
static void
check_some_values(Fixture *f, const Shape *shape)
{
    const gsize last = shape->n - 1;
    const gsize pieces =
        shape->n * rp_dtype_size(shape->dtype) / 16 * 16 / rp_dtype_size(shape->dtype);
    const gsize places[] = {0,
                            1,
                            last,
                            last - 1,
                            MIN(pieces, last),
                            pieces - 1,
                            (gsize)(g_rand_double(f->rand) * (double)shape->n),
                            (gsize)(g_rand_double(f->rand) * (double)shape->n),
                            (gsize)(g_rand_double(f->rand) * (double)shape->n)};

    for (guint i = 0; i < G_N_ELEMENTS(places); i++)
        check_place(f, shape, places[i], g_rand_int_range(f->rand, 0, BROKEN_KINDS));
}

/* All values from a place on are no numbers: its row counts. */
static void
check_first_row(Fixture *f, const Shape *shape)
{
    for (gsize i = 0; i < 4; i++) {
        const gsize place = shape->n * i / 4;

        make_values(f, shape);
        for (gsize later = place; later < shape->n; later++)
            set_bits(f, shape, later, broken_bits(shape->dtype, (guint)later));
        send(f, shape, 0, shape->n);
        assert_true(first_broken(f, shape) == place);
        check_flag(f, shape, "all from there on are none");
    }
}

static const gsize few[] = {1, 2, 7, 9, 16, 19};
/* the last is more than one turn of all threads, by pieces and by values */
static const gsize many[] = {1000, 1001, 65537, 3000017};

RP_TEST(finds_every_value_that_is_no_number)
{
    for_each_shape(*state, few, G_N_ELEMENTS(few), check_every_value);
}

RP_TEST(finds_the_one_among_many_that_is_no_number)
{
    for_each_shape(*state, many, G_N_ELEMENTS(many), check_some_values);
}

RP_TEST(tells_the_first_row_that_has_one)
{
    for_each_shape(*state, few, G_N_ELEMENTS(few), check_first_row);
    for_each_shape(*state, many, 3, check_first_row);
}

RP_TEST(leaves_the_flag_alone_where_all_are_numbers)
{
    static const gsize none[] = {0};

    for_each_shape(*state, none, 1, check_numbers);
    for_each_shape(*state, few, G_N_ELEMENTS(few), check_numbers);
    for_each_shape(*state, many, G_N_ELEMENTS(many), check_numbers);
}

/* ---- fetch ---- */

#define FETCH_GUARD 16

static void
check_fetch(Fixture *f, gsize n, gsize from, gsize to)
{
    const gsize scratch = 2 * FETCH_GUARD + n;
    const gint32 *source;
    gint32 *got;

    free_case(f);
    make_scratch(f, scratch * sizeof(gint32));
    check_cuda(cudaHostAlloc((void **)&f->pinned, scratch * sizeof(gint32), cudaHostAllocDefault),
               "cudaHostAlloc");
    for (gsize i = 0; i < scratch * sizeof(gint32); i++)
        f->pinned[i] = (guint8)g_rand_int(f->rand);
    source = (const gint32 *)(void *)f->pinned + from;
    rp_cuda_kernels()->fetch(f->kernels,
                             &(RpFetchArgs){n, source, (gint32 *)(void *)f->device + to});
    finish(f);
    f->host = g_malloc(scratch * sizeof(gint32));
    copy_down(f->host, f->device, scratch * sizeof(gint32));
    got = (gint32 *)(void *)f->host;
    for (gsize i = 0; i < scratch; i++) {
        const gint32 expected = i < to || i >= to + n ? -1 : source[i - to];

        if (got[i] != expected)
            fail_msg("%zu values from place %zu to place %zu: at place %zu %d, expected %d", n,
                     from, to, i, got[i], expected);
    }
}

RP_TEST(fetches_what_stands_there_and_no_more)
{
    /* blocks of 256, 16 of them */
    static const gsize sizes[] = {0, 1, 7, 255, 256, 257, 1000, 4096, 4097, 65537};

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (gsize shift = 0; shift < 4; shift++)
            check_fetch(*state, sizes[i], shift * 5 % FETCH_GUARD, shift);
}

/* The double stands before two floats, the first of which is the sum. */
RP_TEST(breaks_a_sum_whose_loss_is_no_number)
{
    static const double losses[] = {0, -1.5, 1e300, G_MINDOUBLE, INFINITY, -INFINITY, NAN};
    Fixture *f = *state;

    make_scratch(f, 16);
    for (guint i = 0; i < G_N_ELEMENTS(losses); i++) {
        const float before[] = {-0.0f, 3};
        float after[2];

        copy_up(f->device, &losses[i], sizeof losses[i]);
        copy_up(f->device + 8, before, sizeof before);
        rp_cuda_kernels()->break_sum(
            f->kernels,
            &(RpBreakSumArgs){(const double *)(void *)f->device, (float *)(void *)(f->device + 8)});
        finish(f);
        copy_down(after, f->device + 8, sizeof after);
        assert_true(isnan(after[0]) == !isfinite(losses[i]));
        assert_memory_equal(&after[1], &before[1], sizeof after[1]);
        if (isfinite(losses[i]))
            assert_memory_equal(after, before, sizeof after);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
RP_TEST_NEEDS(rp_cuda_device_count() > 0)
