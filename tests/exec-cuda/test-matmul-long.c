/*
 * Matmuls whose operands have more than 2^31 elements, 2^31 + 2^20, as micro-batches of very many
 * tokens have (8B: from 174,763). Almost all of them are 0: the host multiplies only the rows at
 * either end.
 *
 *   A  |band|  0  0  0  0  0 ...  0  0  0 |band|
 *                                  ^ element 2^31
 */
#include "tests/exec-cuda/cuda-fixture.h"

#define MANY_ROWS (((size_t)1 << 20) + 512)
#define WIDE ((size_t)2048) /* MANY_ROWS of them: 2^31 + 2^20 elements */
#define NARROW ((size_t)64)
#define BAND ((size_t)64) /* rows at either end that are not 0 */

/* -1, 0 and 1: sums of so few have no error in fp32. */
static void
fill_small(guint16 *values, size_t n, guint32 seed)
{
    static const float numbers[] = {-1, 0, 1};
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);

    for (size_t i = 0; i < n; i++)
        rp_dtype_from_float(RP_DTYPE_BF16, &numbers[g_rand_int_range(random, 0, 3)], &values[i], 1);
}

/* MANY_ROWS rows of the device, all 0 but those of @bands, [2 BAND, columns]. */
static guint8 *
long_array(const Side *side, const guint16 *bands, size_t columns)
{
    const size_t bytes = BAND * columns * sizeof *bands;
    guint8 *array = cuda_scratch(side, MANY_ROWS * columns, sizeof *bands);

    assert_int_equal(cudaMemset(array, 0, MANY_ROWS * columns * sizeof *bands), cudaSuccess);
    assert_int_equal(cudaMemcpy(array, bands, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(array + (MANY_ROWS - BAND) * columns * sizeof *bands,
                                bands + BAND * columns, bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
    return array;
}

/* Compares as numbers, as 0 has two signs. */
static void
assert_equal(const guint16 *got, const guint16 *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x, y;

        rp_dtype_to_float(RP_DTYPE_BF16, &got[i], &x, 1);
        rp_dtype_to_float(RP_DTYPE_BF16, &want[i], &y, 1);
        if (x != y)
            fail_msg("value %zu: expected %g, found %g", i, (double)y, (double)x);
    }
}

/* The rows of C at either end, and one in the middle. */
static void
check_rows(const Side *side, const guint8 *c, const guint16 *want, size_t n)
{
    const size_t bytes = BAND * n * sizeof *want;
    g_autofree guint16 *got = g_malloc0(bytes);
    g_autofree guint16 *zeros = g_malloc0(n * sizeof *want);

    cuda_copy_out(side, c, got, bytes);
    assert_equal(got, want, BAND * n);
    cuda_copy_out(side, c + (MANY_ROWS - BAND) * n * sizeof *want, got, bytes);
    assert_equal(got, want + BAND * n, BAND * n);
    cuda_copy_out(side, c + MANY_ROWS / 2 * n * sizeof *want, got, n * sizeof *want);
    assert_equal(got, zeros, n);
}

static void
multiply_on_host(RpMatmulArgs *args)
{
    const Side host = {rp_host_kernels(), NULL, 0};

    args->workspace = cuda_workspace(&host, host.kernels->matmul_workspace(args));
    host.kernels->matmul(NULL, args);
}

/* Tokens are rows of A and of C. */
static void
check_long_rows(RpMatmulLayout form, size_t n, size_t k)
{
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    g_autofree guint16 *a = g_new(guint16, 2 * BAND * k), *b = g_new(guint16, n * k);
    g_autofree guint16 *want = g_new(guint16, 2 * BAND * n);
    RpMatmulArgs args = {.form = form, .m = 2 * BAND, .n = n, .k = k, .a = a, .b = b, .c = want};

    fill_small(a, 2 * BAND * k, 1);
    fill_small(b, n * k, 2);
    args.a_dtype = args.b_dtype = args.c_dtype = RP_DTYPE_BF16;
    multiply_on_host(&args);
    args.m = MANY_ROWS;
    args.a = long_array(&device, a, k);
    args.b = cuda_copy_in(&device, b, n * k, sizeof *b);
    args.c = cuda_scratch(&device, MANY_ROWS * n, sizeof *want);
    args.workspace = cuda_workspace(&device, device.kernels->matmul_workspace(&args));
    device.kernels->matmul(device.stream, &args);
    check_rows(&device, args.c, want, n);
}

/* Gradients of weights sum over tokens. */
static void
check_long_sums(size_t m, size_t n)
{
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    g_autofree guint16 *a = g_new(guint16, 2 * BAND * m), *b = g_new(guint16, 2 * BAND * n);
    g_autofree float *want = g_new0(float, m *n), *got = g_new0(float, m *n);
    RpMatmulArgs args = {.form = RP_MATMUL_TN, .m = m, .n = n, .k = 2 * BAND, .a = a, .b = b};

    fill_small(a, 2 * BAND * m, 3);
    fill_small(b, 2 * BAND * n, 4);
    args.a_dtype = args.b_dtype = RP_DTYPE_BF16;
    args.c_dtype = RP_DTYPE_FP32;
    args.accumulate = TRUE;
    args.c = want;
    multiply_on_host(&args);
    args.k = MANY_ROWS;
    args.a = long_array(&device, a, m);
    args.b = long_array(&device, b, n);
    args.c = cuda_copy_in(&device, got, m * n, sizeof *got);
    args.workspace = cuda_workspace(&device, device.kernels->matmul_workspace(&args));
    device.kernels->matmul(device.stream, &args);
    cuda_copy_out(&device, args.c, got, m * n * sizeof *got);
    for (size_t i = 0; i < m * n; i++)
        if (got[i] != want[i])
            fail_msg("value %zu: expected %g, found %g", i, (double)want[i], (double)got[i]);
}

static gboolean
has_scratch(void)
{
    size_t free_bytes = 0, total_bytes;

    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess &&
           free_bytes > 3 * MANY_ROWS * WIDE;
}

RP_TEST(multiplies_inputs_of_more_than_two_to_the_31)
{
    if (!has_scratch())
        skip();
    check_long_rows(RP_MATMUL_NT, NARROW, WIDE);
}

RP_TEST(multiplies_transposed_inputs_of_more_than_two_to_the_31)
{
    if (!has_scratch())
        skip();
    check_long_rows(RP_MATMUL_NN, NARROW, WIDE);
}

RP_TEST(multiplies_to_outputs_of_more_than_two_to_the_31)
{
    if (!has_scratch())
        skip();
    check_long_rows(RP_MATMUL_NT, WIDE, NARROW);
}

RP_TEST(sums_over_inputs_of_more_than_two_to_the_31)
{
    if (!has_scratch())
        skip();
    check_long_sums(WIDE, NARROW);
}

RP_TEST(sums_over_gradients_of_more_than_two_to_the_31)
{
    if (!has_scratch())
        skip();
    check_long_sums(NARROW, WIDE);
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
