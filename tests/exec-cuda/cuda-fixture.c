#include "tests/exec-cuda/cuda-fixture.h"

#include <limits.h>
#include <malloc.h>
#include <math.h>

#define TILE 1024    /* elements converted at once */
#define PERIOD 40009 /* period of cuda_random(); prime, so that rows differ */

static RpKernelStream *stream;
static GPtrArray *device_blocks;

gboolean
cuda_available(void)
{
    int count = 0;

    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static void
free_device(gpointer block)
{
    cudaFree(block);
}

int
cuda_setup(void **state)
{
    g_autoptr(GError) error = NULL;

    if (!rp_cuda_ok(cudaSetDevice(0), "cudaSetDevice", &error))
        return -1;
    stream = rp_cuda_stream_new(0, NULL, &error);
    if (stream == NULL)
        return -1;
    device_blocks = g_ptr_array_new_with_free_func(free_device);
    /* arrays come and go all the time: their pages stay */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    return host_setup(state);
}

int
cuda_teardown(void **state)
{
    rp_cuda_stream_free(stream);
    stream = NULL;
    g_clear_pointer(&device_blocks, g_ptr_array_unref);
    return host_teardown(state);
}

RpKernelStream *
cuda_stream(void)
{
    return stream;
}

static void
check_cuda(cudaError_t status, const char *what)
{
    g_autoptr(GError) error = NULL;

    if (rp_cuda_ok(status, what, &error))
        return;
    print_error("%s\n", error->message);
    fail();
}

static char *
device_bytes(size_t bytes)
{
    void *block = NULL;

    check_cuda(cudaMalloc(&block, MAX(bytes, 1)), "cudaMalloc");
    g_ptr_array_add(device_blocks, block);
    check_cuda(cudaMemset(block, 0xff, MAX(bytes, 1)), "cudaMemset");
    return block;
}

void *
cuda_scratch(const Side *side, size_t n, size_t size)
{
    return side->stream != NULL ? device_bytes((n + side->shift) * size) + side->shift * size
                                : host_bytes(n * size);
}

void *
cuda_copy_in(const Side *side, const void *data, size_t n, size_t size)
{
    void *scratch = cuda_scratch(side, n, size);

    if (side->stream != NULL)
        check_cuda(cudaMemcpy(scratch, data, n * size, cudaMemcpyHostToDevice), "cudaMemcpy");
    else
        memcpy(scratch, data, n * size);
    return scratch;
}

void *
cuda_workspace(const Side *side, size_t bytes)
{
    if (bytes == 0)
        return NULL;
    return side->stream != NULL ? device_bytes(bytes) : host_bytes(bytes);
}

void
cuda_copy_out(const Side *side, const void *data, void *target, size_t bytes)
{
    g_autoptr(GError) error = NULL;
    gboolean ok;

    if (side->stream == NULL) {
        memcpy(target, data, bytes);
        return;
    }
    ok = side->kernels->check(side->stream, &error);
    if (!ok) {
        print_error("%s\n", error->message);
        fail();
    }
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check_cuda(cudaMemcpy(target, data, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void *
cuda_in(const Side *side, Array array)
{
    return cuda_copy_in(side, array.data, array.n, rp_dtype_size(array.dtype));
}

void *
cuda_out(const Side *side, RpDtype dtype, size_t n)
{
    return cuda_scratch(side, n, rp_dtype_size(dtype));
}

Array
cuda_result(const Side *side, RpDtype dtype, size_t n, const void *data)
{
    const Array array = host_output(dtype, n);

    cuda_copy_out(side, data, array.data, n * rp_dtype_size(dtype));
    return array;
}

Array
cuda_random(RpDtype dtype, size_t n, double spread)
{
    const Array some = host_random(dtype, MIN(n, PERIOD), spread);
    const Array array = host_output(dtype, n);
    const size_t size = rp_dtype_size(dtype);

    for (size_t first = 0; first < n; first += PERIOD)
        memcpy((char *)array.data + first * size, some.data, MIN(PERIOD, n - first) * size);
    return array;
}

/* Up to TILE elements of @array from @first on. Returns how many. */
static size_t
read_tile(Array array, size_t first, float *tile)
{
    const size_t n = MIN(TILE, array.n - first);

    rp_dtype_to_float(array.dtype, (char *)array.data + first * rp_dtype_size(array.dtype), tile,
                      n);
    return n;
}

double
cuda_largest(Array array)
{
    float tile[TILE];
    float largest = 1;

    for (size_t first = 0; first < array.n; first += TILE) {
        const size_t n = read_tile(array, first, tile);

        for (size_t i = 0; i < n; i++)
            largest = fabsf(tile[i]) > largest ? fabsf(tile[i]) : largest;
    }
    return (double)largest;
}

static void
assert_close(Array got, Array want, size_t terms, double slack, guint output, const char *where)
{
    static const double units[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = 0x1p-24, [RP_DTYPE_BF16] = 0x1p-8, [RP_DTYPE_FP16] = 0x1p-11};
    const double unit = units[got.dtype];
    const double least = got.dtype == RP_DTYPE_FP16 ? 0x1p-25 : 0;
    const double largest = cuda_largest(want);
    const double always = slack + 2 * (least + 8 * sqrt((double)terms) * 0x1p-24 * largest);
    float values[TILE], wanted[TILE];

    assert_true(got.n == want.n);
    for (size_t first = 0; first < got.n; first += TILE) {
        const size_t n = read_tile(got, first, values);

        read_tile(want, first, wanted);
        for (size_t i = 0; i < n; i++) {
            const double tolerance = always + 2 * unit * fabs((double)wanted[i]);

            if (values[i] == wanted[i] || /* infinities too */
                fabs((double)values[i] - (double)wanted[i]) <= tolerance)
                continue;
            print_error("%s: output %u, %s, element %zu of %zu: %.9g, the host has %.9g +- %.3g\n",
                        where, output, rp_dtype_name(got.dtype), first + i, got.n,
                        (double)values[i], (double)wanted[i], tolerance);
            fail();
        }
    }
}

void
cuda_assert_close(const Outputs *got, const Outputs *want, const char *where)
{
    for (guint i = 0; i < CUDA_MOST_OUTPUTS; i++) {
        assert_close(got->arrays[i], want->arrays[i], want->terms[i], want->slack[i], i, where);
        if (fabs(got->sums[i] - want->sums[i]) <= 1e-6 * fabs(want->sums[i]))
            continue;
        print_error("sum %u: %.9g, the host has %.9g\n", i, got->sums[i], want->sums[i]);
        fail();
    }
}

static void
assert_all_same(const Outputs *got, const Outputs *want)
{
    for (guint i = 0; i < CUDA_MOST_OUTPUTS; i++) {
        const Array a = got->arrays[i];
        const Array b = want->arrays[i];

        /* only then cmocka's slow comparison, which shows where they differ */
        if (a.n > 0 && memcmp(a.data, b.data, a.n * rp_dtype_size(a.dtype)) != 0)
            host_assert_same(a, b);
    }
    assert_memory_equal(got->sums, want->sums, sizeof got->sums);
}

void
cuda_hold_to_host(Compute compute, const void *inputs, gboolean anywhere)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    const Side device = {rp_cuda_kernels(), stream, 0};
    const Side shifted = {rp_cuda_kernels(), stream, 1};
    const guint host_blocks = host_mark();
    const guint blocks = device_blocks->len;
    Outputs want = {0};
    Outputs got = {0};
    Outputs again = {0};
    Outputs elsewhere = {0};

    compute(&host, inputs, &want);
    compute(&device, inputs, &got);
    cuda_assert_close(&got, &want, "device");
    compute(&device, inputs, &again);
    assert_all_same(&again, &got);
    compute(&shifted, inputs, &elsewhere);
    if (anywhere)
        assert_all_same(&elsewhere, &got);
    else
        cuda_assert_close(&elsewhere, &want, "shifted");
    host_free_since(host_blocks);
    g_ptr_array_set_size(device_blocks, (gint)blocks);
}
