#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

static const RpDtype quantized[] = {RP_DTYPE_E4M3, RP_DTYPE_E5M2};

typedef struct {
    Array x;
    RpDtype code;
    size_t rows, columns;
    guint8 *quantized, *transposed; /* the host's results */
    float largest, scale;
} Quantised;

/* Host memory for the fp8 values of @x. */
static Quantised
scratch_for(Array x, RpDtype code, size_t rows, size_t columns)
{
    return (Quantised){x, code, rows, columns, host_bytes(x.n), host_bytes(x.n), 0, 0};
}

/* @both: else the transposed values alone, and then the plain ones alone: the same bits */
static void
quantise(const Side *side, Quantised *q, gboolean both)
{
    const float zero = 0;
    float *largest = cuda_copy_in(side, &zero, 1, sizeof zero);
    guint8 *rows = cuda_scratch(side, q->x.n, 1), *transposed = cuda_scratch(side, q->x.n, 1);
    RpQuantiseArgs args = {.dtype = q->x.dtype,
                           .code = q->code,
                           .rows = q->rows,
                           .columns = q->columns,
                           .x = cuda_in(side, q->x),
                           .largest = largest,
                           .quantized = both ? rows : NULL,
                           .transposed = transposed,
                           .scale = cuda_scratch(side, 1, sizeof(float))};

    side->kernels->largest(side->stream, &(RpLargestArgs){q->x.dtype, q->x.n, args.x, largest});
    side->kernels->quantise(side->stream, &args);
    if (!both) {
        args.quantized = rows;
        args.transposed = NULL;
        side->kernels->quantise(side->stream, &args);
    }
    cuda_copy_out(side, rows, q->quantized, q->x.n);
    cuda_copy_out(side, transposed, q->transposed, q->x.n);
    cuda_copy_out(side, largest, &q->largest, sizeof q->largest);
    cuda_copy_out(side, args.scale, &q->scale, sizeof q->scale);
}

/* On the device, at multiples of 16 bytes and one element further, to the bits of the host. */
static void
hold_to_host(Array x, RpDtype code, size_t rows, size_t columns)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    Quantised want = scratch_for(x, code, rows, columns);

    quantise(&host, &want, TRUE);
    for (guint variant = 0; variant < 3; variant++) {
        const Side device = {rp_cuda_kernels(), cuda_stream(), variant == 2};
        Quantised got = scratch_for(x, code, rows, columns);

        quantise(&device, &got, variant != 1);
        assert_memory_equal(&got.largest, &want.largest, sizeof(float));
        assert_memory_equal(&got.scale, &want.scale, sizeof(float));
        assert_memory_equal(got.quantized, want.quantized, x.n);
        assert_memory_equal(got.transposed, want.transposed, x.n);
    }
}

RP_TEST(quantises_to_the_bits_of_the_host)
{
    static const size_t shapes[][2] = {{1, 1},     {3, 5},     {64, 64},   {17, 130},    {129, 63},
                                       {16, 1040}, {132, 264}, {260, 136}, {2048, 1536}, {130, 8}};

    for (guint i = 0; i < G_N_ELEMENTS(shapes) * 2 * RP_N_DTYPES; i++) {
        const size_t *shape = shapes[i / 2 / RP_N_DTYPES];
        const guint mark = host_mark();

        hold_to_host(cuda_random((RpDtype)(i / 2 % RP_N_DTYPES), shape[0] * shape[1], 0.01),
                     quantized[i % 2], shape[0], shape[1]);
        host_free_since(mark);
    }
}

/* All bf16 values that are finite: they give subnormal fp8 values, ties, and zeros of both signs. */
RP_TEST(rounds_every_bf16_as_the_host_does)
{
    for (guint i = 0; i < 2; i++) {
        for (guint largest = 0x3800; largest < 0x4800; largest += 0xff) {
            const Array x = host_output(RP_DTYPE_BF16, 1 << 16);
            const guint mark = host_mark();

            for (guint bits = 0; bits < 1 << 16; bits++)
                ((guint16 *)x.data)[bits] = (guint16)((bits & 0x7fff) <= largest ? bits : 0);
            hold_to_host(x, quantized[i], 256, 256);
            host_free_since(mark);
        }
    }
}

RP_TEST(keeps_zeros_and_breaks_what_is_broken_as_the_host_does)
{
    static const float broken[] = {INFINITY, -INFINITY, NAN, 0};

    for (guint i = 0; i < 2 * G_N_ELEMENTS(broken); i++) {
        const Array x = host_random(RP_DTYPE_FP32, 160 * 48, 1);

        ((float *)x.data)[1234] = broken[i / 2];
        ((float *)x.data)[7] = broken[i / 2];
        if (broken[i / 2] == 0)
            memset(x.data, 0, x.n * sizeof(float));
        hold_to_host(x, quantized[i % 2], 160, 48);
    }
}

RP_TEST(takes_fp8_values_as_the_host_does)
{
    static const size_t shapes[][2] = {{17, 256}, {129, 63}, {2048, 1536}, {16, 1040}};
    const float scale = 0.37f;

    for (guint i = 0; i < 3 * G_N_ELEMENTS(shapes); i++) {
        const Side device = {rp_cuda_kernels(), cuda_stream(), i % 3 == 2};
        const size_t rows = shapes[i / 3][0], columns = shapes[i / 3][1], n = rows * columns;
        guint8 *x = host_bytes(n), *found = host_bytes(n), *transposed = host_bytes(n);
        const RpQuantiseArgs args = {.dtype = RP_DTYPE_E4M3,
                                     .code = RP_DTYPE_E4M3,
                                     .rows = rows,
                                     .columns = columns,
                                     .x = x,
                                     .largest = cuda_copy_in(&device, &scale, 1, sizeof scale),
                                     .quantized = i % 3 == 1 ? NULL : cuda_scratch(&device, n, 1),
                                     .transposed = cuda_scratch(&device, n, 1),
                                     .scale = cuda_scratch(&device, 1, sizeof scale)};
        RpQuantiseArgs on_device = args;
        float found_scale;

        for (size_t at = 0; at < n; at++)
            x[at] = (guint8)(at * 7 + at / columns);
        on_device.x = cuda_copy_in(&device, x, n, 1);
        device.kernels->quantise(device.stream, &on_device);
        cuda_copy_out(&device, args.transposed, transposed, n);
        cuda_copy_out(&device, args.scale, &found_scale, sizeof found_scale);
        assert_true(found_scale == scale);
        for (size_t at = 0; at < n; at++)
            assert_int_equal(transposed[at % columns * rows + at / columns], x[at]);
        if (args.quantized == NULL)
            continue;
        cuda_copy_out(&device, args.quantized, found, n);
        assert_memory_equal(found, x, n);
    }
}

/* Compares the amax that a kernel recorded of its output with that of the output itself: y of a norm and dx of its
 * backward, dx of q/k norm and rope, y, d_gate, d_up and the product of SwiGLU. */
static void
assert_amax(const Side *side, RpDtype dtype, const void *x, size_t n, const float *amax,
            const char *what)
{
    const float zero = 0;
    float *largest = cuda_copy_in(side, &zero, 1, sizeof zero);
    float want, got;

    side->kernels->largest(side->stream, &(RpLargestArgs){dtype, n, x, largest});
    cuda_copy_out(side, largest, &want, sizeof want);
    cuda_copy_out(side, amax, &got, sizeof got);
    if (!(want > 0 && want == got))
        fail_msg("%s in %s: %.9g was noted, %.9g is there", what, rp_dtype_name(dtype), (double)got,
                 (double)want);
}

static void
note_norms(const Side *side, RpDtype dtype, size_t rows, size_t n)
{
    const float zeros[3] = {0};
    float *amax = cuda_copy_in(side, zeros, 3, sizeof *zeros);
    g_autofree float *weights = g_new0(float, n);
    RpRmsnormArgs args = {.dtype = dtype,
                          .rows = rows,
                          .n = n,
                          .epsilon = 1e-6f,
                          .x = cuda_in(side, cuda_random(dtype, rows * n, 1)),
                          .weight = cuda_in(side, cuda_random(dtype, n, 1)),
                          .y = cuda_out(side, dtype, rows * n),
                          .rstd = cuda_out(side, RP_DTYPE_FP32, rows),
                          .dy = cuda_in(side, cuda_random(dtype, rows * n, 1)),
                          .dx = cuda_out(side, dtype, rows * n),
                          .d_weight = cuda_copy_in(side, weights, n, sizeof(float)),
                          .largest = amax};

    side->kernels->rmsnorm_forward(side->stream, &args);
    assert_amax(side, dtype, args.y, rows * n, amax, "rmsnorm");
    args.largest = amax + 1;
    args.workspace = cuda_workspace(side, side->kernels->rmsnorm_backward_workspace(&args));
    side->kernels->rmsnorm_backward(side->stream, &args);
    assert_amax(side, dtype, args.dx, rows * n, amax + 1, "rmsnorm backward");
}

static void
note_swiglu(const Side *side, RpDtype dtype, size_t n)
{
    const float zeros[4] = {0};
    float *amax = cuda_copy_in(side, zeros, 4, sizeof *zeros);
    RpSwigluArgs args = {.dtype = dtype,
                         .n = n,
                         .gate = cuda_in(side, cuda_random(dtype, n, 2)),
                         .up = cuda_in(side, cuda_random(dtype, n, 1)),
                         .y = cuda_out(side, dtype, n),
                         .dy = cuda_in(side, cuda_random(dtype, n, 1)),
                         .d_gate = cuda_out(side, dtype, n),
                         .d_up = cuda_out(side, dtype, n),
                         .product = cuda_out(side, dtype, n),
                         .largest = amax};

    side->kernels->swiglu_forward(side->stream, &args);
    assert_amax(side, dtype, args.y, n, amax, "swiglu");
    args.largest = amax + 1;
    args.d_gate_largest = amax + 2;
    args.d_up_largest = amax + 3;
    side->kernels->swiglu_backward(side->stream, &args);
    assert_amax(side, dtype, args.product, n, amax + 1, "product of swiglu backward");
    assert_amax(side, dtype, args.d_gate, n, amax + 2, "d gate");
    assert_amax(side, dtype, args.d_up, n, amax + 3, "d up");
}

static void
note_norm_rope(const Side *side, RpDtype dtype, size_t tokens, size_t heads, size_t size)
{
    const size_t n = tokens * heads * size;
    const float zero = 0;
    float *amax = cuda_copy_in(side, &zero, 1, sizeof zero);
    g_autofree gint32 *positions = g_new0(gint32, tokens);
    g_autofree float *weights = g_new0(float, size);
    const Array table = host_random(RP_DTYPE_FP32, size / 2, 1);
    RpNormRopeArgs args = {.dtype = dtype,
                           .tokens = tokens,
                           .heads = heads,
                           .head_size = size,
                           .epsilon = 1e-6f,
                           .positions = cuda_copy_in(side, positions, tokens, sizeof *positions),
                           .cosines = cuda_in(side, table),
                           .sines = cuda_in(side, table),
                           .x = cuda_in(side, cuda_random(dtype, n, 1)),
                           .weight = cuda_in(side, cuda_random(dtype, size, 1)),
                           .y = cuda_out(side, dtype, n),
                           .rstd = cuda_out(side, RP_DTYPE_FP32, tokens * heads),
                           .dy = cuda_in(side, cuda_random(dtype, n, 1)),
                           .dx = cuda_out(side, dtype, n),
                           .d_weight = cuda_copy_in(side, weights, size, sizeof(float)),
                           .largest = amax};

    side->kernels->norm_rope_forward(side->stream, &args);
    args.workspace = cuda_workspace(side, side->kernels->norm_rope_backward_workspace(&args));
    side->kernels->norm_rope_backward(side->stream, &args);
    assert_amax(side, dtype, args.dx, n, amax, "norm and rope backward");
}

RP_TEST(notes_the_largest_of_what_kernels_make)
{
    static const size_t sizes[] = {8, 130, 512, 1040, 2048, 4096, 17000};

    for (guint i = 0; i < 4 * RP_N_DTYPES; i++) {
        const gboolean on_host = i % 2 == 0;
        const Side side = {on_host ? rp_host_kernels() : rp_cuda_kernels(),
                           on_host ? NULL : cuda_stream(), i % 4 == 3};
        const RpDtype dtype = (RpDtype)(i / 4);

        for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
            note_norms(&side, dtype, s == 0 ? 3001 : 37, sizes[s]);
        note_swiglu(&side, dtype, 7);
        note_swiglu(&side, dtype, 100003);
        note_norm_rope(&side, dtype, 333, 5, 128);
        note_norm_rope(&side, dtype, 77, 2, 20);
    }
}

typedef struct {
    RpMatmulArgs shape;
    Quantised a, b;
    Array c, bias; /* nothing: none */
} Product;

static Array
multiply(const Side *side, const Product *of)
{
    RpMatmulArgs args = of->shape;

    args.a = cuda_copy_in(side, of->a.quantized, of->a.x.n, 1);
    args.b = cuda_copy_in(side, of->b.quantized, of->b.x.n, 1);
    args.c = cuda_in(side, of->c);
    args.bias = of->bias.n > 0 ? cuda_in(side, of->bias) : NULL;
    args.a_scale = cuda_copy_in(side, &of->a.scale, 1, sizeof(float));
    args.b_scale = cuda_copy_in(side, &of->b.scale, 1, sizeof(float));
    args.workspace = cuda_workspace(side, side->kernels->matmul_workspace(&args));
    side->kernels->matmul(side->stream, &args);
    return cuda_result(side, args.c_dtype, args.m * args.n, args.c);
}

/* Sums of tensor cores: terms are cut to 2^-13 of the largest of them (Hopper, Ada), before they join
 * fp32 every 128 terms; fast ones never join it. */
static void
check_product(const Product *of)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    const double cut = of->shape.half_sums ? 0x1p-8 : 0x1p-10;
    Outputs want = {.arrays = {multiply(&host, of)}, .terms = {of->shape.k}};
    Outputs got = {.arrays = {multiply(&device, of)}};
    const Array again = multiply(&device, of);

    want.slack[0] = cut * cuda_largest(want.arrays[0]);
    if ((of->shape.accumulate || of->bias.n > 0) && of->shape.c_dtype != RP_DTYPE_FP32)
        want.slack[0] += of->shape.c_dtype == RP_DTYPE_BF16 ? 0x1p-6 : 0x1p-9;
    cuda_assert_close(&got, &want, "device");
    host_assert_same(again, got.arrays[0]);
}

static Product
product_of(const size_t size[3], RpDtype a, RpDtype b, RpDtype c)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    Product of = {
        .shape = {.form = RP_MATMUL_NT,
                  .m = size[0],
                  .n = size[1],
                  .k = size[2],
                  .a_dtype = a,
                  .b_dtype = b,
                  .c_dtype = c},
        .a = scratch_for(cuda_random(RP_DTYPE_BF16, size[0] * size[2], 0.5), a, size[0], size[2]),
        .b = scratch_for(cuda_random(RP_DTYPE_BF16, size[1] * size[2], 0.1), b, size[1], size[2]),
        .c = cuda_random(c, size[0] * size[1], 1)};

    quantise(&host, &of.a, TRUE);
    quantise(&host, &of.b, TRUE);
    return of;
}

/* Skips a test of fp8 unless the device multiplies it: Hopper and Ada on do. */
static void
need_units(void)
{
    int major = 0, minor = 0;

    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (major * 10 + minor < 89)
        skip();
}

/* Forward (e4m3, e4m3), input gradients (e5m2, e4m3), weights' gradients (e5m2, e4m3, += fp32). */
RP_TEST(multiplies_fp8_as_the_host_does)
{
    static const size_t sizes[][3] = {
        {16, 16, 16}, {48, 272, 160}, {272, 32, 1040}, {512, 2048, 2048}, {256, 256, 6144}};

    need_units();
    for (guint i = 0; i < G_N_ELEMENTS(sizes) * 2 * 3 * RP_N_DTYPES; i++) {
        const guint variant = i / 2 % 3; /* plain, +=, with a bias */
        const RpDtype c = (RpDtype)(i / 6 % RP_N_DTYPES);
        const size_t *size = sizes[i / 6 / RP_N_DTYPES];
        const guint mark = host_mark();
        Product of = product_of(size, quantized[i % 2], RP_DTYPE_E4M3, c);

        of.shape.accumulate = variant == 1;
        if (variant == 2)
            of.bias = host_random(c, size[1], 1);
        check_product(&of);
        of.shape.half_sums = TRUE;
        check_product(&of);
        host_free_since(mark);
    }
}

/* Weights' gradients of e4m3 and, as B, of e5m2. */
RP_TEST(multiplies_every_pair_of_fp8_but_two_of_e5m2)
{
    static const size_t size[3] = {272, 144, 528};
    const Product variants[] = {product_of(size, RP_DTYPE_E4M3, RP_DTYPE_E4M3, RP_DTYPE_FP32),
                                product_of(size, RP_DTYPE_E4M3, RP_DTYPE_E5M2, RP_DTYPE_FP32),
                                product_of(size, RP_DTYPE_E5M2, RP_DTYPE_E4M3, RP_DTYPE_FP32)};

    need_units();
    for (guint i = 0; i < G_N_ELEMENTS(variants); i++)
        check_product(&variants[i]);
}

RP_TEST(names_fp8_that_it_cannot_multiply)
{
    static const size_t size[3] = {16, 16, 16};
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    const Product of = product_of(size, RP_DTYPE_E5M2, RP_DTYPE_E4M3, RP_DTYPE_BF16);
    RpMatmulArgs args = of.shape;
    g_autoptr(GError) error = NULL;
    gboolean ok;

    need_units();
    args.form = RP_MATMUL_TN;
    side.kernels->matmul(side.stream, &args);
    ok = side.kernels->check(side.stream, &error);
    assert_false(ok);
    rp_assert_error_message_contains(error, "matmul TN m=16 n=16 k=16, e5m2 x e4m3 -> bf16");
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
