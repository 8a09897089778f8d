#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

static const RpMatmulLayout forms[] = {RP_MATMUL_NT, RP_MATMUL_NN, RP_MATMUL_TN};

static void
check_matmul(RpMatmulArgs args, gboolean has_bias, gboolean has_residual)
{
    const RpKernels *kernels = rp_host_kernels();
    const Array a = host_random(args.a_dtype, args.m * args.k, 1);
    const Array b = host_random(args.b_dtype, args.n * args.k, 1);
    const Array old = host_random(args.c_dtype, args.m * args.n, 1);
    const Array bias = host_random(args.c_dtype, args.n, 1);
    Array c = args.accumulate ? host_copy(old) : host_output(args.c_dtype, args.m * args.n);
    double *want = host_doubles(c.n);

    memcpy(want, old.values, c.n * sizeof *want);
    reference_matmul(args.form, args.m, args.n, args.k, a.values, b.values, want,
                     args.accumulate || has_residual);
    for (size_t i = 0; has_bias && i < c.n; i++)
        want[i] += bias.values[i % args.n];
    args.a = a.data;
    args.b = b.data;
    args.c = c.data;
    args.bias = has_bias ? bias.data : NULL;
    args.residual = has_residual ? old.data : NULL;
    args.workspace = host_workspace(kernels->matmul_workspace(&args));
    kernels->matmul(NULL, &args);
    host_assert_close(c, want, args.k, 0);
}

RP_TEST(multiplies_in_every_form_and_size)
{
    static const size_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},     {67, 129, 31}, {13, 11, 1031},
                                      {1, 300, 9}, {300, 259, 5}, {513, 2, 3},   {17, 1, 130}};

    for (size_t f = 0; f < G_N_ELEMENTS(forms); f++)
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
            for (guint variant = 0; variant < 6; variant++)
                check_matmul((RpMatmulArgs){.form = forms[f],
                                            .m = sizes[s][0],
                                            .n = sizes[s][1],
                                            .k = sizes[s][2],
                                            .accumulate = variant == 1 || variant == 5},
                             variant == 2 || variant > 3, variant == 3 || variant == 4);
}

RP_TEST(multiplies_every_mixture_of_storages)
{
    for (size_t f = 0; f < G_N_ELEMENTS(forms); f++)
        for (guint mixture = 0; mixture < RP_N_DTYPES * RP_N_DTYPES * RP_N_DTYPES; mixture++)
            check_matmul((RpMatmulArgs){.form = forms[f],
                                        .m = 261,
                                        .n = 259,
                                        .k = 13,
                                        .a_dtype = (RpDtype)(mixture % 3),
                                        .b_dtype = (RpDtype)(mixture / 3 % 3),
                                        .c_dtype = (RpDtype)(mixture / 9),
                                        .accumulate = mixture % 4 == 0},
                         mixture % 2 == 1, mixture % 4 > 1);
}

RP_TEST(adds_the_bias_of_a_product_before_it_rounds)
{
    static const float a[] = {256, 1}, b[] = {1, 1};
    static const float one = 1;
    const RpKernels *kernels = rp_host_kernels();
    guint16 stored[5];
    RpMatmulArgs args = {RP_MATMUL_NT,
                         1,
                         1,
                         2,
                         stored,
                         stored + 2,
                         stored + 4,
                         .a_dtype = RP_DTYPE_BF16,
                         .b_dtype = RP_DTYPE_BF16,
                         .c_dtype = RP_DTYPE_BF16};
    guint16 bias;
    float c;

    rp_dtype_from_float(RP_DTYPE_BF16, a, stored, 2);
    rp_dtype_from_float(RP_DTYPE_BF16, b, stored + 2, 2);
    rp_dtype_from_float(RP_DTYPE_BF16, &one, &bias, 1);
    args.workspace = host_workspace(kernels->matmul_workspace(&args));
    kernels->matmul(NULL, &args);
    rp_dtype_to_float(RP_DTYPE_BF16, stored + 4, &c, 1);
    assert_true(c == 256); /* 257, of which bf16 has every second */
    args.bias = &bias;
    kernels->matmul(NULL, &args);
    rp_dtype_to_float(RP_DTYPE_BF16, stored + 4, &c, 1);
    assert_true(c == 258);
}

/* @rows of @n elements, into rows of @to_stride. */
static void
copy_columns(RpDtype dtype, size_t rows, size_t n, Array from, size_t from_stride, Array to,
             size_t to_stride)
{
    const gsize element = rp_dtype_size(dtype);

    for (size_t row = 0; row < rows; row++)
        memcpy((char *)to.data + row * to_stride * element,
               (const char *)from.data + row * from_stride * element, n * element);
}

/* A, B and C in columns of wider matrices: the product of the same rows without the values between
 * them, which stay as they are. */
static void
check_columns(RpMatmulLayout form, RpDtype dtype, const size_t size[3], guint kind)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t m = size[0], n = size[1], k = size[2];
    const size_t a_rows = form == RP_MATMUL_TN ? k : m, a_row = form == RP_MATMUL_TN ? m : k;
    const size_t b_rows = form == RP_MATMUL_NT ? n : k, b_row = form == RP_MATMUL_NT ? k : n;
    const Array a = host_output(dtype, a_rows * a_row), b = host_output(dtype, b_rows * b_row);
    const Array wide_a = host_random(dtype, a_rows * (2 * a_row + 3), 1);
    const Array wide_b = host_random(dtype, b_rows * (b_row + 5), 1);
    const Array old = host_random(dtype, m * (n + 7), 1);
    const Array got = host_copy(old), want = host_copy(old), c = host_output(dtype, m * n);
    const Array residual = host_output(dtype, m * n);
    RpMatmulArgs args = {.form = form,
                         .m = m,
                         .n = n,
                         .k = k,
                         .a = a.data,
                         .b = b.data,
                         .c = c.data,
                         .residual = kind == 2 ? residual.data : NULL,
                         .accumulate = kind == 1,
                         .a_dtype = dtype,
                         .b_dtype = dtype,
                         .c_dtype = dtype};

    copy_columns(dtype, a_rows, a_row, wide_a, 2 * a_row + 3, a, a_row);
    copy_columns(dtype, b_rows, b_row, wide_b, b_row + 5, b, b_row);
    copy_columns(dtype, m, n, old, n + 7, c, n);
    copy_columns(dtype, m, n, old, n + 7, residual, n);
    args.workspace = host_workspace(kernels->matmul_workspace(&args));
    kernels->matmul(NULL, &args);
    copy_columns(dtype, m, n, c, n, want, n + 7);
    args.a = wide_a.data;
    args.b = wide_b.data;
    args.c = got.data;
    args.residual = kind == 2 ? old.data : NULL;
    args.a_stride = 2 * a_row + 3;
    args.b_stride = b_row + 5;
    args.c_stride = n + 7;
    kernels->matmul(NULL, &args);
    host_assert_same(got, want);
}

RP_TEST(multiplies_columns_of_wider_matrices)
{
    static const size_t sizes[][3] = {{1, 1, 1}, {67, 129, 31}, {300, 259, 5}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        for (guint i = 0; i < 3 * RP_N_DTYPES * 3; i++)
            check_columns(forms[i % 3], (RpDtype)(i / 3 % RP_N_DTYPES), sizes[s], i / 9);
}

RP_TEST(adds_a_residual_before_it_rounds)
{
    static const float a[] = {256, 1}, b[] = {1, 1};
    static const float one = 1;
    const RpKernels *kernels = rp_host_kernels();
    guint16 stored[6];
    RpMatmulArgs args = {RP_MATMUL_NT,
                         1,
                         1,
                         2,
                         stored,
                         stored + 2,
                         stored + 4,
                         .residual = stored + 5,
                         .a_dtype = RP_DTYPE_BF16,
                         .b_dtype = RP_DTYPE_BF16,
                         .c_dtype = RP_DTYPE_BF16};
    float c;

    rp_dtype_from_float(RP_DTYPE_BF16, a, stored, 2);
    rp_dtype_from_float(RP_DTYPE_BF16, b, stored + 2, 2);
    rp_dtype_from_float(RP_DTYPE_BF16, &one, stored + 5, 1);
    args.workspace = host_workspace(kernels->matmul_workspace(&args));
    kernels->matmul(NULL, &args);
    rp_dtype_to_float(RP_DTYPE_BF16, stored + 4, &c, 1);
    assert_true(c == 258); /* 257 would have been 256, of which bf16 has every second */
}

/* A bias is read a tile at a time, and a block of columns may have several. */
RP_TEST(adds_a_bias_of_several_tiles_to_a_product)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16};

    for (size_t d = 0; d < G_N_ELEMENTS(dtypes); d++)
        for (size_t f = 0; f < G_N_ELEMENTS(forms); f++)
            check_matmul((RpMatmulArgs){.form = forms[f],
                                        .m = 3,
                                        .n = 1031,
                                        .k = 5,
                                        .a_dtype = dtypes[d],
                                        .b_dtype = dtypes[d],
                                        .c_dtype = dtypes[d]},
                         TRUE, FALSE);
}

RP_TEST(needs_no_workspace_in_fp32)
{
    const RpMatmulArgs args = {.m = 100, .n = 200, .k = 300};

    assert_int_equal(rp_host_kernels()->matmul_workspace(&args), 0);
}

RP_TEST(adds_a_bias_to_every_token)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const size_t tokens = 13;
        const size_t n = 1031;
        const Array bias = host_random((RpDtype)dtype, n, 1);
        const Array y = host_random((RpDtype)dtype, tokens * n, 1);
        const RpBiasArgs args = {(RpDtype)dtype, tokens, n, .bias = bias.data, .y = y.data};
        double *want = host_doubles(y.n);

        for (size_t i = 0; i < y.n; i++)
            want[i] = y.values[i] + bias.values[i % n];
        rp_host_kernels()->bias_forward(NULL, &args);
        host_assert_close(y, want, 1, 0);
    }
}

RP_TEST(adds_up_the_gradient_of_a_bias)
{
    const RpKernels *kernels = rp_host_kernels();

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const size_t tokens = 197;
        const size_t n = 523;
        const Array dy = host_random((RpDtype)dtype, tokens * n, 1);
        const Array d_bias = host_random(RP_DTYPE_FP32, n, 1);
        RpBiasArgs args = {(RpDtype)dtype, tokens, n, .dy = dy.data, .d_bias = d_bias.data};

        args.workspace = host_workspace(kernels->bias_backward_workspace(&args));
        kernels->bias_backward(NULL, &args);
        for (size_t i = 0; i < dy.n; i++)
            d_bias.values[i % n] += dy.values[i];
        host_assert_close(d_bias, d_bias.values, tokens, 0);
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
