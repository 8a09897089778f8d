#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

#include "exec/cuda/grouped/variants.h"

#define MOST_EXPERTS 40

/* Rows of each expert. */
typedef struct {
    guint experts;
    gint32 rows[MOST_EXPERTS];
} Groups;

static const Groups groups[] = {
    {6, {3, 0, 17, 1, 0, 41}},
    {5, {0, 0, 203, 0, 0}},
    {4, {0, 0, 0, 0}},
    {7, {300, 0, 1, 0, 259, 128, 64}},
    {40, {[0] = 1, [3] = 130, [31] = 65, [32] = 127, [33] = 2, [39] = 193}},
};

typedef struct {
    RpGroupedMatmulArgs shape;
    gint32 offsets[MOST_EXPERTS + 1];
    Array a, b, c;
    Array bias;  /* nothing: none */
    int variant; /* on the device, where it can; -1: as the table chooses */
} Product;

static Product
make_product(RpGroupedMatmulArgs shape, const Groups *group, gboolean has_bias)
{
    const gboolean adds = shape.form == RP_MATMUL_TN;
    Product product = {shape, .variant = -1};

    for (guint e = 0; e < group->experts; e++)
        product.offsets[e + 1] = product.offsets[e] + group->rows[e];
    shape.experts = group->experts;
    shape.rows = (size_t)product.offsets[group->experts];
    product.shape = shape;
    product.a = cuda_random(shape.a_dtype, shape.rows * (adds ? shape.m : shape.k), 1);
    product.b = cuda_random(shape.b_dtype,
                            adds ? shape.rows * shape.n : shape.experts * shape.n * shape.k, 1);
    product.c = cuda_random(shape.c_dtype,
                            adds ? shape.experts * shape.m * shape.n : shape.rows * shape.n, 1);
    if (has_bias)
        product.bias = cuda_random(shape.c_dtype, shape.experts * shape.n, 1);
    return product;
}

/* fp16 sums: as in test-matmul.c. */
static double
slack_of_half_sums(Array result, size_t terms)
{
    return 8 * sqrt((double)terms + 1) * 0x1p-11 * cuda_largest(result);
}

static void
compute_product(const Side *side, const void *data, Outputs *outputs)
{
    const Product *inputs = data;
    RpGroupedMatmulArgs args = inputs->shape;

    args.offsets = cuda_copy_in(side, inputs->offsets, args.experts + 1, sizeof inputs->offsets[0]);
    args.a = cuda_in(side, inputs->a);
    args.b = cuda_in(side, inputs->b);
    args.c = args.accumulate ? cuda_in(side, inputs->c) : cuda_out(side, args.c_dtype, inputs->c.n);
    args.bias = inputs->bias.n > 0 ? cuda_in(side, inputs->bias) : NULL;
    args.workspace = cuda_workspace(side, side->kernels->grouped_matmul_workspace(&args));
    if (side->stream != NULL && inputs->variant >= 0 &&
        rp_cuda_grouped_variant_can((RpGroupedVariant)inputs->variant, &args))
        assert_int_equal(rp_cuda_grouped_matmul_by((RpGroupedVariant)inputs->variant, &args, NULL),
                         cudaSuccess);
    else
        side->kernels->grouped_matmul(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, args.c_dtype, inputs->c.n, args.c);
    outputs->terms[0] = args.form == RP_MATMUL_TN ? args.rows : args.k;
    if (args.half_sums)
        outputs->slack[0] = slack_of_half_sums(outputs->arrays[0], args.k);
}

static void
check_product(RpGroupedMatmulArgs shape, const Groups *group, gboolean has_bias, int variant)
{
    const guint mark = host_mark();
    Product inputs = make_product(shape, group, has_bias);

    inputs.variant = variant;
    cuda_hold_to_host(compute_product, &inputs, FALSE);
    host_free_since(mark);
}

/* Tests every form, input and output storage; =, +=, times a number, and with a bias. @by: a kernel
 * variant */
static void
check_size(size_t n, size_t k, const Groups *group, int by)
{
    for (guint i = 0; i < 3 * RP_N_DTYPES * 2 * 4; i++) {
        const RpMatmulLayout form = (RpMatmulLayout)(i % 3);
        const RpDtype in = (RpDtype)(i / 3 % RP_N_DTYPES);
        const guint variant = i / 18;

        if ((form == RP_MATMUL_TN && variant == 3) || (by >= 0 && in == RP_DTYPE_FP32))
            continue;
        check_product((RpGroupedMatmulArgs){.form = form,
                                            .m = k,
                                            .n = n,
                                            .k = k,
                                            .a_dtype = in,
                                            .b_dtype = in,
                                            .c_dtype = i / 9 % 2 ? in : RP_DTYPE_FP32,
                                            .accumulate = variant == 1 || variant == 2,
                                            .scale = variant == 2 ? -0.75f : 0},
                      group, variant == 3, by);
    }
}

RP_TEST(multiplies_sizes_that_are_multiples_of_nothing)
{
    static const size_t sizes[][2] = {{1, 1}, {5, 7}, {67, 129}, {131, 31}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        for (size_t g = 0; g < G_N_ELEMENTS(groups); g++)
            check_size(sizes[s][0], sizes[s][1], &groups[g], -1);
}

/* Rows at multiples of 16 bytes; tiles that are not whole in every direction. */
RP_TEST(multiplies_sizes_of_tensor_cores)
{
    static const size_t sizes[][2] = {{8, 8}, {16, 200}, {264, 72}, {128, 256}, {520, 328}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        for (size_t g = 0; g < G_N_ELEMENTS(groups); g++)
            check_size(sizes[s][0], sizes[s][1], &groups[g], -1);
}

/* ---- one kernel variant, a test's state ---- */

static int
variant_of(void **state)
{
    return *(const int *)*state;
}

static void
multiplies_every_storage(void **state)
{
    static const size_t sizes[][2] = {{66, 40}, {72, 40}, {264, 136}, {520, 328}};

    for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++)
        for (size_t g = 0; g < G_N_ELEMENTS(groups); g++)
            check_size(sizes[s][0], sizes[s][1], &groups[g], variant_of(state));
}

/* More tiles than blocks at a time, in more than one swath. */
static void
multiplies_many_tiles(void **state)
{
    static const Groups many = {4, {1500, 0, 2100, 700}};

    for (guint form = 0; form < 3; form++)
        check_product((RpGroupedMatmulArgs){.form = (RpMatmulLayout)form,
                                            .m = 1032,
                                            .n = 1544,
                                            .k = 200,
                                            .a_dtype = RP_DTYPE_BF16,
                                            .b_dtype = RP_DTYPE_BF16,
                                            .c_dtype = RP_DTYPE_FP32,
                                            .accumulate = form == RP_MATMUL_TN},
                      &many, FALSE, variant_of(state));
}

static void
adds_up_in_fp16_as_closely_as_fp16_can(void **state)
{
    for (guint i = 0; i < 2 * G_N_ELEMENTS(groups) * 3; i++)
        check_product((RpGroupedMatmulArgs){.form = (RpMatmulLayout)(i % 2),
                                            .n = 264,
                                            .k = 520,
                                            .a_dtype = RP_DTYPE_FP16,
                                            .b_dtype = RP_DTYPE_FP16,
                                            .c_dtype = RP_DTYPE_FP16,
                                            .accumulate = i / 2 % 3 == 1,
                                            .half_sums = TRUE},
                      &groups[i / 6], i / 2 % 3 == 2, variant_of(state));
}

/* -1, 0 and 1: their sums are whole numbers that fp32 has, in any order. */
static void
make_whole(Array array)
{
    for (size_t i = 0; i < array.n; i++) {
        const float value = (float)(host_random_below(3) - 1);

        rp_dtype_from_float(array.dtype, &value,
                            (char *)array.data + i * rp_dtype_size(array.dtype), 1);
    }
}

/* No rounding hides a row or a column that is not the right one. */
static void
check_whole_numbers(RpGroupedMatmulArgs shape, const Groups *group, int variant)
{
    const Side host = {rp_host_kernels(), NULL, 0};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
    const guint mark = host_mark();
    Product inputs = make_product(shape, group, FALSE);
    Outputs want = {0};
    Outputs got = {0};

    inputs.variant = variant;
    make_whole(inputs.a);
    make_whole(inputs.b);
    make_whole(inputs.c);
    compute_product(&host, &inputs, &want);
    compute_product(&device, &inputs, &got);
    for (size_t i = 0; i < inputs.c.n; i++)
        if (!(host_value(got.arrays[0], i) == host_value(want.arrays[0], i)))
            fail_msg("%s, form %d, %s, %zu x %zu, row %zu, column %zu: %g, expected %g",
                     variant >= 0 ? rp_cuda_grouped_variant_name((RpGroupedVariant)variant)
                                  : "chosen",
                     (int)shape.form, rp_dtype_name(shape.a_dtype), shape.n, shape.k, i / shape.n,
                     i % shape.n, host_value(got.arrays[0], i), host_value(want.arrays[0], i));
    host_free_since(mark);
}

static void
adds_whole_numbers_up_without_an_error(void **state)
{
    static const size_t sizes[][2] = {{67, 129}, {72, 40}, {264, 72}, {520, 328}};
    const guint n = G_N_ELEMENTS(sizes) * G_N_ELEMENTS(groups) * 3 * RP_N_DTYPES;

    for (guint i = 0; i < n; i++) {
        const size_t *size = sizes[i / 9 % G_N_ELEMENTS(sizes)];

        check_whole_numbers((RpGroupedMatmulArgs){.form = (RpMatmulLayout)(i % 3),
                                                  .m = size[1],
                                                  .n = size[0],
                                                  .k = size[1],
                                                  .a_dtype = (RpDtype)(i / 3 % RP_N_DTYPES),
                                                  .b_dtype = (RpDtype)(i / 3 % RP_N_DTYPES),
                                                  .accumulate = i % 2},
                            &groups[i / 9 / G_N_ELEMENTS(sizes)], variant_of(state));
    }
}

/* ---- of two ---- */

RP_TEST(gives_the_same_bits_at_any_depth)
{
    static const RpGroupedVariant variants[] = {RP_GROUPED_128X128, RP_GROUPED_128X128_DEEP};
    const Side device = {rp_cuda_kernels(), cuda_stream(), 0};

    for (guint i = 0; i < 3 * G_N_ELEMENTS(groups); i++) {
        const RpGroupedMatmulArgs shape = {.form = (RpMatmulLayout)(i % 3),
                                           .m = 328,
                                           .n = 264,
                                           .k = 328,
                                           .a_dtype = RP_DTYPE_BF16,
                                           .b_dtype = RP_DTYPE_BF16,
                                           .c_dtype = RP_DTYPE_FP32,
                                           .accumulate = i % 3 == RP_MATMUL_TN};
        const guint mark = host_mark();
        Product inputs = make_product(shape, &groups[i / 3], FALSE);
        Outputs sums[2] = {0};

        for (guint deep = 0; deep < 2; deep++) {
            inputs.variant = (int)variants[deep];
            compute_product(&device, &inputs, &sums[deep]);
        }
        assert_memory_equal(sums[0].arrays[0].data, sums[1].arrays[0].data,
                            inputs.c.n * sizeof(float));
        host_free_since(mark);
    }
}

/* ---- of none ---- */

RP_TEST(refuses_storages_that_differ)
{
    const Side side = {rp_cuda_kernels(), cuda_stream(), 0};
    const RpGroupedMatmulArgs args = {.form = RP_MATMUL_NT,
                                      .rows = 8,
                                      .experts = 1,
                                      .n = 8,
                                      .k = 8,
                                      .a_dtype = RP_DTYPE_BF16,
                                      .b_dtype = RP_DTYPE_FP16};
    g_autoptr(GError) error = NULL;
    gboolean ok;

    side.kernels->grouped_matmul(side.stream, &args);
    ok = side.kernels->check(side.stream, &error);
    assert_false(ok);
    rp_assert_error_message_contains(error, "grouped matmul");
}

/* The tests of one variant, of each. */
RP_TEST_AT_START(add_variants)
{
    static const struct {
        const char *name;
        CMUnitTestFunction function;
    } rows[] = {
        {"adds_whole_numbers_up_without_an_error", adds_whole_numbers_up_without_an_error},
        {"multiplies_every_storage", multiplies_every_storage},
        {"multiplies_many_tiles", multiplies_many_tiles},
        {"adds_up_in_fp16_as_closely_as_fp16_can", adds_up_in_fp16_as_closely_as_fp16_can},
    };
    static int variants[RP_N_GROUPED_VARIANTS];

    for (int variant = 0; variant < RP_N_GROUPED_VARIANTS; variant++) {
        const char *name = rp_cuda_grouped_variant_name((RpGroupedVariant)variant);

        variants[variant] = variant;
        for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
            rp_test_add(g_strdup_printf("%s_by_%s", rows[i].name, name), rows[i].function, NULL,
                        NULL, &variants[variant]);
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
