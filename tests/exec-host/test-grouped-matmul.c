#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#define EXPERTS 6

/* Rows of each expert. */
static const gint32 groups[][EXPERTS] = {{3, 0, 17, 1, 0, 41},
                                         {0, 0, 53, 0, 0, 0},
                                         {9, 9, 9, 9, 9, 9},
                                         {0, 0, 0, 0, 0, 0},
                                         {300, 0, 1, 0, 259, 0}};

static const size_t sizes[][2] = {{1, 1}, {7, 5}, {31, 129}, {300, 9}};

static size_t
set_offsets(const gint32 *group, gint32 *offsets)
{
    offsets[0] = 0;
    for (guint e = 0; e < EXPERTS; e++)
        offsets[e + 1] = offsets[e] + group[e];
    return (size_t)offsets[EXPERTS];
}

/* Elements of A, B and C. */
static void
count_elements(const RpGroupedMatmulArgs *args, size_t n[3])
{
    const gboolean adds = args->form == RP_MATMUL_TN;

    n[0] = args->rows * (adds ? args->m : args->k);
    n[1] = adds ? args->rows * args->n : EXPERTS * args->n * args->k;
    n[2] = adds ? EXPERTS * args->m * args->n : args->rows * args->n;
}

/* Computes scale times the products, plus the previous values and the bias, one expert after
 * another. */
static void
set_wanted(const RpGroupedMatmulArgs *args, Array a, Array b, Array old, Array bias, double *want)
{
    const gboolean adds = args->form == RP_MATMUL_TN;
    const double scale = args->scale != 0 ? (double)args->scale : 1;

    for (guint e = 0; e < EXPERTS; e++) {
        const size_t first = (size_t)args->offsets[e];
        const size_t rows = (size_t)args->offsets[e + 1] - first;
        const size_t m = adds ? args->m : rows;
        const size_t c = adds ? e * args->m * args->n : first * args->n;
        const double *left = a.values + first * (adds ? args->m : args->k);
        const double *right = b.values + (adds ? first * args->n : e * args->n * args->k);

        reference_matmul(args->form, m, args->n, adds ? rows : args->k, left, right, want + c,
                         FALSE);
        for (size_t i = 0; i < m * args->n; i++)
            want[c + i] = scale * want[c + i] + (args->accumulate ? old.values[c + i] : 0) +
                          (args->bias != NULL ? bias.values[e * args->n + i % args->n] : 0);
    }
}

static void
check(RpGroupedMatmulArgs args, const gint32 *group, gboolean has_bias)
{
    const RpKernels *kernels = rp_host_kernels();
    const gboolean adds = args.form == RP_MATMUL_TN;
    const guint mark = host_mark();
    gint32 offsets[EXPERTS + 1];
    size_t n[3];

    args.experts = EXPERTS;
    args.rows = set_offsets(group, offsets);
    args.offsets = offsets;
    count_elements(&args, n);

    const Array a = host_random(args.a_dtype, n[0], 1);
    const Array b = host_random(args.b_dtype, n[1], 1);
    const Array old = host_random(args.c_dtype, n[2], 1);
    const Array bias = host_random(args.c_dtype, EXPERTS * args.n, 1);
    const Array c = args.accumulate ? host_copy(old) : host_output(args.c_dtype, n[2]);
    double *want = host_doubles(n[2]);

    args.a = a.data;
    args.b = b.data;
    args.c = c.data;
    args.bias = has_bias ? bias.data : NULL;
    args.workspace = host_workspace(kernels->grouped_matmul_workspace(&args));
    set_wanted(&args, a, b, old, bias, want);
    kernels->grouped_matmul(NULL, &args);
    host_assert_close(c, want, adds ? args.rows : args.k, 0);
    host_free_since(mark);
}

RP_TEST(multiplies_the_rows_of_each_expert_by_its_matrix)
{
    for (guint i = 0; i < G_N_ELEMENTS(groups) * G_N_ELEMENTS(sizes) * 3; i++) {
        const size_t *size = sizes[i / 3 % G_N_ELEMENTS(sizes)];

        for (guint variant = 0; variant < 4; variant++)
            check((RpGroupedMatmulArgs){.form = (RpMatmulLayout)(i % 3),
                                        .m = size[1],
                                        .n = size[0],
                                        .k = size[1],
                                        .accumulate = variant % 2 == 1,
                                        .scale = variant / 2 ? -0.75f : 0},
                  groups[i / 3 / G_N_ELEMENTS(sizes)], variant == 0 && i % 3 != RP_MATMUL_TN);
    }
}

RP_TEST(multiplies_every_mixture_of_storages)
{
    for (guint form = 0; form < 3; form++)
        for (guint mixture = 0; mixture < RP_N_DTYPES * RP_N_DTYPES * RP_N_DTYPES; mixture++)
            check((RpGroupedMatmulArgs){.form = (RpMatmulLayout)form,
                                        .m = 13,
                                        .n = 261,
                                        .k = 13,
                                        .a_dtype = (RpDtype)(mixture % 3),
                                        .b_dtype = (RpDtype)(mixture / 3 % 3),
                                        .c_dtype = (RpDtype)(mixture / 9),
                                        .accumulate = mixture % 2 == 0},
                  groups[0], mixture % 2 == 1 && form != RP_MATMUL_TN);
}

/* Its own rows, those of another expert, or none: the bits of one matmul. */
RP_TEST(gives_an_expert_with_every_row_the_bits_of_a_matmul)
{
    const RpKernels *kernels = rp_host_kernels();

    for (guint form = 0; form < 2; form++) {
        const size_t rows = 53, n = 31, k = 129;
        const Array a = host_random(RP_DTYPE_BF16, rows * k, 1);
        const Array b = host_random(RP_DTYPE_BF16, EXPERTS * n * k, 1);
        const Array c = host_output(RP_DTYPE_BF16, rows * n);
        const Array d = host_output(RP_DTYPE_BF16, rows * n);
        gint32 offsets[EXPERTS + 1];
        RpGroupedMatmulArgs grouped = {(RpMatmulLayout)form,
                                       set_offsets(groups[1], offsets),
                                       EXPERTS,
                                       0,
                                       n,
                                       k,
                                       offsets,
                                       a.data,
                                       b.data,
                                       c.data,
                                       .a_dtype = RP_DTYPE_BF16,
                                       .b_dtype = RP_DTYPE_BF16,
                                       .c_dtype = RP_DTYPE_BF16};
        RpMatmulArgs one = {(RpMatmulLayout)form,
                            rows,
                            n,
                            k,
                            a.data,
                            (const guint16 *)b.data + 2 * n * k,
                            d.data,
                            .a_dtype = RP_DTYPE_BF16,
                            .b_dtype = RP_DTYPE_BF16,
                            .c_dtype = RP_DTYPE_BF16};

        grouped.workspace = host_workspace(kernels->grouped_matmul_workspace(&grouped));
        one.workspace = host_workspace(kernels->matmul_workspace(&one));
        kernels->grouped_matmul(NULL, &grouped);
        kernels->matmul(NULL, &one);
        host_assert_same(c, d);
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
