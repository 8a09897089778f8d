#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

typedef struct {
    RpMatmulArgs shape;
    Array a, b, c;
    Array bias;      /* nothing: none */
    Array residual;  /* the same */
    void *workspace; /* the device's, for many calls; NULL: each has its own */
} Product;

/*
 * fp16 sums: at most k + 1 roundings of 2^-11 of a partial sum each. Inputs are random, and so are
 * signs of errors: 8 sqrt(k + 1) 2^-11 max(1, max |C|), as for fp32 with its 2^-24. Nothing
 * overflows: sum |a b| is about 0.64 k, of at most 65504.
 */
static double
slack_of_half_sums(Array result, size_t k)
{
    return 8 * sqrt((double)k + 1) * 0x1p-11 * cuda_largest(result);
}

static void
compute_product(const Side *side, const void *data, Outputs *outputs)
{
    const Product *inputs = data;
    RpMatmulArgs args = inputs->shape;

    args.a = cuda_in(side, inputs->a);
    args.b = cuda_in(side, inputs->b);
    args.c = args.accumulate || args.c_stride > 0 ? cuda_in(side, inputs->c)
                                                  : cuda_out(side, args.c_dtype, args.m * args.n);
    args.bias = inputs->bias.n > 0 ? cuda_in(side, inputs->bias) : NULL;
    args.residual = inputs->residual.n > 0 ? cuda_in(side, inputs->residual) : NULL;
    args.workspace = side->stream != NULL && inputs->workspace != NULL
                         ? inputs->workspace
                         : cuda_workspace(side, side->kernels->matmul_workspace(&args));
    side->kernels->matmul(side->stream, &args);
    outputs->arrays[0] =
        cuda_result(side, args.c_dtype, args.m * rp_matmul_c_stride(&args), args.c);
    outputs->terms[0] = args.k;
    /* cuBLASLt may round a product before it adds to a 16-bit C: half a unit of at most 8. So does
     * a bias that is a pass of its own */
    if ((args.accumulate || args.bias != NULL || args.residual != NULL) &&
        args.c_dtype != RP_DTYPE_FP32)
        outputs->slack[0] = args.c_dtype == RP_DTYPE_BF16 ? 0x1p-6 : 0x1p-9;
    if (args.half_sums)
        outputs->slack[0] += slack_of_half_sums(outputs->arrays[0], args.k);
}

static void
check_product(RpMatmulLayout form, RpDtype in, RpDtype out, gboolean accumulate,
              const size_t size[3])
{
    const RpMatmulArgs shape = {.form = form,
                                .m = size[0],
                                .n = size[1],
                                .k = size[2],
                                .a_dtype = in,
                                .b_dtype = in,
                                .c_dtype = out,
                                .accumulate = accumulate};
    const guint mark = host_mark();
    const Product inputs = {shape, cuda_random(in, shape.m * shape.k, 1),
                            cuda_random(in, shape.n * shape.k, 1),
                            .c = cuda_random(out, shape.m * shape.n, 1)};

    cuda_hold_to_host(compute_product, &inputs, FALSE);
    host_free_since(mark);
}

/* Every form, input and output storage, = and +=, of one size. */
static void
check_products(const size_t size[3])
{
    for (guint i = 0; i < 3 * RP_N_DTYPES * 4; i++) {
        const RpMatmulLayout form = (RpMatmulLayout)(i % 3);
        const RpDtype in = (RpDtype)(i / 3 % RP_N_DTYPES);
        const RpDtype out = i / 9 % 2 ? in : RP_DTYPE_FP32;

        check_product(form, in, out, i / 18, size);
    }
}

RP_TEST(multiplies_sizes_that_are_multiples_of_nothing)
{
    static const size_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},     {67, 129, 31}, {13, 11, 1031},
                                      {1, 300, 9}, {300, 259, 5}, {513, 2, 3},   {17, 1, 130}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        check_products(sizes[s]);
}

RP_TEST(multiplies_a_real_model)
{
    static const size_t sizes[][3] = {{512, 2048, 2048}, {256, 256, 6144}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        check_products(sizes[s]);
}

/* Biases of order 1, as products are: one of another column, or none, is an error of that order. */
RP_TEST(adds_biases_to_sizes_that_are_multiples_of_nothing)
{
    static const size_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},     {67, 129, 31},   {13, 11, 1031},
                                      {1, 300, 9}, {300, 259, 5}, {513, 2, 3},     {17, 1, 130},
                                      {5, 7, 0},   {264, 136, 8}, {264, 520, 1000}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
        for (guint i = 0; i < 3 * RP_N_DTYPES * 4; i++) {
            const RpDtype in = (RpDtype)(i / 3 % RP_N_DTYPES);
            const RpDtype out = i / 9 % 2 ? in : RP_DTYPE_FP32;
            const RpMatmulArgs shape = {.form = (RpMatmulLayout)(i % 3),
                                        .m = sizes[s][0],
                                        .n = sizes[s][1],
                                        .k = sizes[s][2],
                                        .a_dtype = in,
                                        .b_dtype = in,
                                        .c_dtype = out,
                                        .accumulate = i / 18};
            const guint mark = host_mark();
            const Product inputs = {
                shape, cuda_random(in, shape.m * shape.k, 1), cuda_random(in, shape.n * shape.k, 1),
                .c = cuda_random(out, shape.m * shape.n, 1), .bias = host_random(out, shape.n, 1)};

            cuda_hold_to_host(compute_product, &inputs, FALSE);
            host_free_since(mark);
        }
    }
}

/* Runs cuBLASLt's other proposals; beyond the last one it is the first again. */
RP_TEST(multiplies_in_other_variants)
{
    static const size_t size[3] = {512, 384, 640};

    for (guint form = RP_MATMUL_NT; form <= RP_MATMUL_TN; form++) {
        for (guint variant = 0; variant <= RP_MATMUL_MAX_VARIANTS; variant++) {
            const guint mark = host_mark();
            const gboolean adds = form == RP_MATMUL_TN;
            const RpMatmulArgs shape = {.form = (RpMatmulLayout)form,
                                        .m = size[0],
                                        .n = size[1],
                                        .k = size[2],
                                        .variant = (uint8_t)variant,
                                        .a_dtype = RP_DTYPE_BF16,
                                        .b_dtype = RP_DTYPE_BF16,
                                        .c_dtype = adds ? RP_DTYPE_FP32 : RP_DTYPE_BF16,
                                        .accumulate = adds};
            const Product inputs = {shape, cuda_random(RP_DTYPE_BF16, shape.m * shape.k, 1),
                                    cuda_random(RP_DTYPE_BF16, shape.n * shape.k, 1),
                                    .c = cuda_random(shape.c_dtype, shape.m * shape.n, 1)};

            cuda_hold_to_host(compute_product, &inputs, FALSE);
            host_free_since(mark);
        }
    }
}

/* A, B and C with gaps, by themselves and together; C adds to a residual, to itself, or to nothing. */
RP_TEST(multiplies_columns_of_wider_matrices)
{
    static const size_t sizes[][3] = {{3, 5, 7}, {67, 129, 31}, {264, 136, 8}, {512, 2048, 2048}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
        for (guint i = 0; i < 3 * RP_N_DTYPES * 8; i++) {
            const RpDtype dtype = (RpDtype)(i / 3 % RP_N_DTYPES);
            const guint gaps = i / 9;
            RpMatmulArgs shape = {.form = (RpMatmulLayout)(i % 3),
                                  .m = sizes[s][0],
                                  .n = sizes[s][1],
                                  .k = sizes[s][2],
                                  .a_dtype = dtype,
                                  .b_dtype = dtype,
                                  .c_dtype = dtype,
                                  .accumulate = gaps == 7};
            const guint mark = host_mark();

            shape.a_stride = gaps & 1 ? 2 * rp_matmul_a_stride(&shape) : 0;
            shape.b_stride = gaps & 2 ? rp_matmul_b_stride(&shape) + 32 : 0;
            shape.c_stride = gaps & 4 ? shape.n + 64 : 0;
            const size_t c = shape.m * rp_matmul_c_stride(&shape);
            const size_t a_rows = shape.form == RP_MATMUL_TN ? shape.k : shape.m;
            const size_t b_rows = shape.form == RP_MATMUL_NT ? shape.n : shape.k;
            Product inputs = {shape, cuda_random(dtype, a_rows * rp_matmul_a_stride(&shape), 1),
                              cuda_random(dtype, b_rows * rp_matmul_b_stride(&shape), 1),
                              .c = cuda_random(dtype, c, 1)};

            if (!shape.accumulate)
                inputs.residual = cuda_random(dtype, c, 1);
            cuda_hold_to_host(compute_product, &inputs, FALSE);
            host_free_since(mark);
        }
    }
}

RP_TEST(adds_to_residuals)
{
    static const size_t sizes[][3] = {
        {3, 5, 7}, {67, 129, 31}, {5, 7, 0}, {264, 136, 8}, {512, 2048, 2048}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
        for (guint i = 0; i < 2 * RP_N_DTYPES * 2; i++) {
            const RpDtype in = (RpDtype)(i / 2 % RP_N_DTYPES);
            const RpDtype out = i / 6 ? in : RP_DTYPE_FP32;
            const RpMatmulArgs shape = {.form = RP_MATMUL_NT,
                                        .m = sizes[s][0],
                                        .n = sizes[s][1],
                                        .k = sizes[s][2],
                                        .a_dtype = in,
                                        .b_dtype = in,
                                        .c_dtype = out};
            const guint mark = host_mark();
            Product inputs = {shape, cuda_random(in, shape.m * shape.k, 1),
                              cuda_random(in, shape.n * shape.k, 1),
                              .residual = cuda_random(out, shape.m * shape.n, 1)};

            if (i % 2 == 1)
                inputs.bias = host_random(out, shape.n, 1);
            cuda_hold_to_host(compute_product, &inputs, FALSE);
            host_free_since(mark);
        }
    }
}

RP_TEST(multiplies_nothing)
{
    static const size_t no_terms[] = {5, 7, 0};

    for (guint accumulate = 0; accumulate < 2; accumulate++)
        check_product(RP_MATMUL_NT, RP_DTYPE_BF16, RP_DTYPE_FP32, accumulate, no_terms);
}

static Product
half_product(RpMatmulLayout form, RpDtype in, RpDtype out, gboolean accumulate,
             const size_t size[3])
{
    const RpMatmulArgs shape = {.form = form,
                                .m = size[0],
                                .n = size[1],
                                .k = size[2],
                                .a_dtype = in,
                                .b_dtype = in,
                                .c_dtype = out,
                                .accumulate = accumulate,
                                .half_sums = TRUE};

    return (Product){shape, host_random(in, shape.m * shape.k, 1),
                     host_random(in, shape.n * shape.k, 1),
                     .c = host_random(out, shape.m * shape.n, 1)};
}

static const size_t half_sizes[][3] = {{1, 1, 1},       {3, 5, 7},    {67, 129, 31},
                                       {13, 11, 1031},  {513, 2, 33}, {264, 136, 520},
                                       {512, 256, 2048}};

RP_TEST(adds_biases_up_in_fp16_as_closely_as_fp16_can)
{
    for (size_t s = 0; s < G_N_ELEMENTS(half_sizes); s++) {
        for (guint form = 0; form < 3; form++) {
            Product inputs = half_product((RpMatmulLayout)form, RP_DTYPE_FP16, RP_DTYPE_FP16, FALSE,
                                          half_sizes[s]);

            inputs.bias = host_random(RP_DTYPE_FP16, inputs.shape.n, 1);
            cuda_hold_to_host(compute_product, &inputs, FALSE);
        }
    }
}

RP_TEST(adds_up_in_fp16_as_closely_as_fp16_can)
{
    for (size_t s = 0; s < G_N_ELEMENTS(half_sizes); s++) {
        for (guint i = 0; i < 6; i++) {
            const Product inputs = half_product((RpMatmulLayout)(i % 3), RP_DTYPE_FP16,
                                                RP_DTYPE_FP16, i / 3 == 1, half_sizes[s]);

            cuda_hold_to_host(compute_product, &inputs, FALSE);
        }
    }
}

/* -1, 0 and 1: sums of up to 2048 of them are whole numbers that fp16 has, in any order; of up to
 * 256, bf16. */
static void
make_whole(Array array)
{
    for (size_t i = 0; i < array.n; i++) {
        const float value = (float)(host_random_below(3) - 1);

        rp_dtype_from_float(array.dtype, &value,
                            (char *)array.data + i * rp_dtype_size(array.dtype), 1);
    }
}

static void
assert_equal_numbers(Array got, Array want, const Product *of)
{
    for (size_t i = 0; i < want.n; i++)
        if (!(host_value(got, i) == host_value(want, i))) /* -0 and 0 are the same */
            fail_msg("form %d, %zu x %zu x %zu, %s -> %s%s, row %zu, column %zu: %g, expected %g",
                     (int)of->shape.form, of->shape.m, of->shape.n, of->shape.k,
                     rp_dtype_name(of->shape.a_dtype), rp_dtype_name(of->shape.c_dtype),
                     of->bias.n > 0 ? " + bias" : "", i / of->shape.n, i % of->shape.n,
                     host_value(got, i), host_value(want, i));
}

RP_TEST(adds_whole_numbers_up_in_fp16_without_an_error)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};

    for (size_t s = 0; s < G_N_ELEMENTS(half_sizes); s++) {
        for (guint i = 0; i < 6; i++) {
            const Product inputs = half_product((RpMatmulLayout)(i % 3), RP_DTYPE_FP16,
                                                RP_DTYPE_FP16, i / 3 == 1, half_sizes[s]);
            Outputs want = {0};
            Outputs got = {0};

            make_whole(inputs.a);
            make_whole(inputs.b);
            make_whole(inputs.c);
            compute_product(&host, &inputs, &want);
            compute_product(&device, &inputs, &got);
            assert_equal_numbers(got.arrays[0], want.arrays[0], &inputs);
        }
    }
}

/* Runs on one stream: without a bias, with one, with another by the same plan, and without again.
 * Exact values show a wrong bias. */
RP_TEST(adds_the_bias_of_each_call_and_of_none)
{
    static const size_t sizes[][3] = {{67, 129, 31}, {13, 11, 131}, {264, 136, 200}};
    const Side host = {rp_host_kernels(), NULL, 0};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    void *workspace =
        cuda_workspace(&device, device.kernels->matmul_workspace(&(RpMatmulArgs){.m = 1}));

    for (guint i = 0; i < G_N_ELEMENTS(sizes) * 3 * RP_N_DTYPES * 3; i++) {
        const RpDtype in = (RpDtype)(i / 3 % RP_N_DTYPES);
        const guint variant = i / 9 % 3; /* C as A and B, fp32, fp16 sums */
        const RpDtype out = variant == 1 ? RP_DTYPE_FP32 : in;
        const guint mark = host_mark();
        Product inputs = half_product((RpMatmulLayout)(i % 3), in, out, FALSE, sizes[i / 27]);

        inputs.shape.half_sums = variant == 2;
        inputs.workspace = workspace;
        make_whole(inputs.a);
        make_whole(inputs.b);
        for (guint call = 0; call < 4; call++) {
            Outputs want = {0};
            Outputs got = {0};

            inputs.bias = (Array){0};
            if (call % 3 != 0) {
                inputs.bias = host_random(out, inputs.shape.n, 1);
                make_whole(inputs.bias);
            }
            compute_product(&host, &inputs, &want);
            compute_product(&device, &inputs, &got);
            assert_equal_numbers(got.arrays[0], want.arrays[0], &inputs);
        }
        host_free_since(mark);
    }
}

/* On one stream, so that the plans of both are in one table. */
RP_TEST(lets_half_sums_change_no_bit_of_other_storages)
{
    static const size_t size[] = {264, 136, 520};
    static const RpDtype storages[][2] = {{RP_DTYPE_BF16, RP_DTYPE_BF16},
                                          {RP_DTYPE_BF16, RP_DTYPE_FP32},
                                          {RP_DTYPE_FP16, RP_DTYPE_FP32},
                                          {RP_DTYPE_FP32, RP_DTYPE_FP32}};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};

    for (guint i = 0; i < 3 * G_N_ELEMENTS(storages); i++) {
        Product inputs = half_product((RpMatmulLayout)(i % 3), storages[i / 3][0],
                                      storages[i / 3][1], TRUE, size);
        Outputs with = {0};
        Outputs without = {0};

        compute_product(&device, &inputs, &with);
        inputs.shape.half_sums = FALSE;
        compute_product(&device, &inputs, &without);
        host_assert_same(with.arrays[0], without.arrays[0]);
    }
}

RP_TEST(keeps_fp32_sums_of_fp16_apart_from_half_sums)
{
    static const size_t size[] = {264, 136, 2048};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    Product inputs = half_product(RP_MATMUL_NT, RP_DTYPE_FP16, RP_DTYPE_FP16, FALSE, size);
    Outputs before = {0};
    Outputs half = {0};
    Outputs after = {0};

    inputs.shape.half_sums = FALSE;
    compute_product(&device, &inputs, &before);
    inputs.shape.half_sums = TRUE;
    compute_product(&device, &inputs, &half);
    inputs.shape.half_sums = FALSE;
    compute_product(&device, &inputs, &after);
    host_assert_same(before.arrays[0], after.arrays[0]);
}

RP_TEST(names_the_mixture_that_it_cannot_multiply_and_tells_once)
{
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    const RpMatmulArgs args = {.form = RP_MATMUL_TN,
                               .m = 8,
                               .n = 16,
                               .k = 24,
                               .a = cuda_scratch(&side, 24 * 8, 2),
                               .b = cuda_scratch(&side, 24 * 16, 2),
                               .c = cuda_scratch(&side, 8 * 16, 4),
                               .a_dtype = RP_DTYPE_BF16,
                               .b_dtype = RP_DTYPE_FP16,
                               .workspace = cuda_workspace(&side, 32 << 20)};
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) none = NULL;
    const gboolean before = side.kernels->check(side.stream, &none);
    gboolean after;
    gboolean later;

    side.kernels->matmul(side.stream, &args);
    after = side.kernels->check(side.stream, &error);
    later = side.kernels->check(side.stream, &none);
    assert_true(before);
    assert_false(after);
    assert_true(later);
    rp_assert_error_message_contains(error, "matmul TN m=8 n=16 k=24, bf16 x fp16 -> fp32");
}

typedef struct {
    size_t tokens, n;
    Array bias, y, d_bias;
} Bias;

static void
compute_bias(const Side *side, const void *data, Outputs *outputs)
{
    const Bias *inputs = data;
    const RpDtype dtype = inputs->y.dtype;
    RpBiasArgs args = {dtype, inputs->tokens, inputs->n, .bias = cuda_in(side, inputs->bias),
                       .y = cuda_in(side, inputs->y)};

    side->kernels->bias_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->y.n, args.y);
    outputs->terms[0] = 1;
    args.dy = cuda_in(side, inputs->y);
    args.d_bias = cuda_in(side, inputs->d_bias);
    args.workspace = cuda_workspace(side, side->kernels->bias_backward_workspace(&args));
    side->kernels->bias_backward(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->n, args.d_bias);
    outputs->terms[1] = inputs->tokens;
}

RP_TEST(adds_biases_and_their_gradients_up)
{
    static const size_t sizes[][2] = {{1, 1}, {13, 1031}, {197, 523}, {40009, 8}, {2048, 2048}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
            const Bias inputs = {sizes[s][0], sizes[s][1],
                                 host_random((RpDtype)dtype, sizes[s][1], 1),
                                 cuda_random((RpDtype)dtype, sizes[s][0] * sizes[s][1], 1),
                                 host_random(RP_DTYPE_FP32, sizes[s][1], 1)};

            cuda_hold_to_host(compute_bias, &inputs, TRUE);
        }
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
