#include "tests/exec-host/host-fixture.h"

#include <math.h>

#include "core/base/fp8.h"

static const RpDtype quantized[] = {RP_DTYPE_E4M3, RP_DTYPE_E5M2};
static const size_t shapes[][2] = {{1, 1}, {3, 5}, {64, 64}, {17, 130}, {129, 63}, {16, 1040}};

typedef struct {
    RpDtype code;
    size_t rows, columns;
    guint8 *quantized, *transposed;
    float scale;
} Quantised;

static Quantised
quantise(Array x, RpDtype code, size_t rows, size_t columns)
{
    Quantised q = {code, rows, columns, host_bytes(rows * columns), host_bytes(rows * columns), 0};
    float largest = 0;

    rp_host_kernels()->largest(NULL, &(RpLargestArgs){x.dtype, x.n, x.data, &largest});
    rp_host_kernels()->quantise(NULL,
                                &(RpQuantiseArgs){x.dtype, code, rows, columns, x.data, &largest,
                                                  q.quantized, q.transposed, &q.scale});
    return q;
}

static double
value_at(const Quantised *q, size_t i)
{
    float value;

    rp_dtype_to_float(q->code, q->quantized + i, &value, 1);
    return (double)value * (double)q->scale;
}

/* Half a unit of the last place: of 3 or 2 bits, or of the least step. */
RP_TEST(keeps_values_to_half_a_unit_both_ways)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (guint i = 0; i < 2 * G_N_ELEMENTS(shapes); i++) {
            const size_t *shape = shapes[i / 2];
            const Array x = host_random((RpDtype)dtype, shape[0] * shape[1], 3e-3);
            const Quantised q = quantise(x, quantized[i % 2], shape[0], shape[1]);
            const double unit = q.code == RP_DTYPE_E4M3 ? 0x1p-4 : 0x1p-3;
            const double least = (double)q.scale * (q.code == RP_DTYPE_E4M3 ? 0x1p-10 : 0x1p-17);

            for (size_t at = 0; at < x.n; at++) {
                const size_t row = at / shape[1], column = at % shape[1];

                assert_true(fabs(value_at(&q, at) - x.values[at]) <=
                            unit * fabs(x.values[at]) + least);
                assert_int_equal(q.transposed[column * shape[0] + row], q.quantized[at]);
            }
        }
    }
}

/* Every value of e4m3 is taken, NaN too, with its scale. */
RP_TEST(takes_fp8_values_as_they_are)
{
    const float scale = 0.37f;
    guint8 x[17 * 256], quantized_x[sizeof x], transposed[sizeof x];
    float found;

    for (guint i = 0; i < sizeof x; i++)
        x[i] = (guint8)i;
    rp_host_kernels()->quantise(NULL, &(RpQuantiseArgs){RP_DTYPE_E4M3, RP_DTYPE_E4M3, 17, 256, x,
                                                        &scale, quantized_x, transposed, &found});
    assert_true(found == scale);
    assert_memory_equal(quantized_x, x, sizeof x);
    for (guint i = 0; i < sizeof x; i++)
        assert_int_equal(transposed[i % 256 * 17 + i / 256], x[i]);
}

RP_TEST(uses_the_range_of_the_format)
{
    static const double largest[] = {448, 57344};

    for (guint i = 0; i < 2; i++) {
        for (int exponent = -20; exponent < 20; exponent++) {
            const Array x = host_random(RP_DTYPE_BF16, 1000, ldexp(1, exponent));
            const Quantised q = quantise(x, quantized[i], 10, 100);
            double most = 0;

            for (size_t at = 0; at < x.n; at++)
                most = fmax(most, fabs(value_at(&q, at)) / (double)q.scale);
            assert_true(most > largest[i] * 0.45 && most <= largest[i]);
        }
    }
}

RP_TEST(keeps_zeros_and_breaks_what_is_broken)
{
    static const float broken[] = {INFINITY, -INFINITY, NAN};

    for (guint i = 0; i < 2; i++) {
        const Array x = host_random(RP_DTYPE_FP32, 256, 1);
        Quantised q;

        for (guint b = 0; b < G_N_ELEMENTS(broken); b++) {
            ((float *)x.data)[77] = broken[b];
            q = quantise(x, quantized[i], 16, 16);
            for (size_t at = 0; at < x.n; at++)
                assert_int_equal(!isnan(value_at(&q, at)), at != 77);
        }
        memset(x.data, 0, 256 * sizeof(float));
        q = quantise(x, quantized[i], 16, 16);
        assert_true(q.scale == 1);
        for (size_t at = 0; at < x.n; at++)
            assert_int_equal(q.quantized[at], 0);
    }
}

RP_TEST(finds_the_largest_wherever_it_is)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const Array x = host_random((RpDtype)dtype, 2000, 1);
        float largest = 0;

        for (size_t at = 0; at < x.n; at += 111) {
            const float more = -(float)(100 + at);
            const double want = fabs((double)more);

            rp_dtype_from_float(x.dtype, &more, (char *)x.data + at * rp_dtype_size(x.dtype), 1);
            rp_host_kernels()->largest(NULL, &(RpLargestArgs){x.dtype, x.n, x.data, &largest});
            assert_true(fabs((double)largest - want) <= want * 0x1p-8);
        }
        /* the value that is there already counts */
        largest = 1e6f;
        rp_host_kernels()->largest(NULL, &(RpLargestArgs){x.dtype, x.n, x.data, &largest});
        assert_true(largest == 1e6f);
    }
}

static void
assert_amax(Array x, float amax)
{
    double largest = 0;

    for (size_t i = 0; i < x.n; i++)
        largest = fmax(largest, fabs(host_value(x, i)));
    assert_true(largest > 0 && (double)amax == largest);
}

/* Tests norms and SwiGLU; CUDA's test has all kernels. */
RP_TEST(notes_the_largest_of_what_kernels_make)
{
    const size_t rows = 17, n = 530, all = rows * n;

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        const RpDtype dtype = (RpDtype)d;
        const Array x = host_random(dtype, all, 1), other = host_random(dtype, all, 1);
        const Array y = host_output(dtype, all), d_gate = host_output(dtype, all);
        const Array d_up = host_output(dtype, all), rstd = host_output(RP_DTYPE_FP32, rows);
        const Array sums = host_random(RP_DTYPE_FP32, n, 1);
        float amax[6] = {0};
        RpRmsnormArgs norm = {.dtype = dtype,
                              .rows = rows,
                              .n = n,
                              .x = x.data,
                              .weight = other.data,
                              .y = y.data,
                              .rstd = rstd.data,
                              .dy = other.data,
                              .dx = d_up.data,
                              .d_weight = sums.data,
                              .largest = &amax[0]};
        RpSwigluArgs swiglu = {.dtype = dtype,
                               .n = all,
                               .gate = x.data,
                               .up = other.data,
                               .y = y.data,
                               .dy = other.data,
                               .d_gate = d_gate.data,
                               .d_up = d_up.data,
                               .product = y.data,
                               .largest = &amax[2],
                               .d_gate_largest = &amax[3],
                               .d_up_largest = &amax[4]};

        rp_host_kernels()->rmsnorm_forward(NULL, &norm);
        assert_amax(y, amax[0]);
        norm.largest = &amax[1];
        norm.workspace = host_workspace(rp_host_kernels()->rmsnorm_backward_workspace(&norm));
        rp_host_kernels()->rmsnorm_backward(NULL, &norm);
        assert_amax(d_up, amax[1]);
        rp_host_kernels()->swiglu_backward(NULL, &swiglu);
        assert_amax(y, amax[2]);
        assert_amax(d_gate, amax[3]);
        assert_amax(d_up, amax[4]);
        swiglu.largest = &amax[5];
        rp_host_kernels()->swiglu_forward(NULL, &swiglu);
        assert_amax(y, amax[5]);
    }
}

/* Tests C = A B^T of fp8 values, or +=, with a bias, in every storage of C. */
RP_TEST(multiplies_codes_as_the_values_that_they_are)
{
    static const size_t sizes[][3] = {{16, 16, 16}, {48, 272, 160}, {272, 32, 1040}};

    for (guint i = 0; i < G_N_ELEMENTS(sizes) * 3 * 2 * RP_N_DTYPES; i++) {
        const size_t m = sizes[i % 3][0], n = sizes[i % 3][1], k = sizes[i % 3][2];
        const guint variant = i / 3 % 3; /* plain, +=, with a bias */
        const RpDtype out = (RpDtype)(i / 18);
        const guint mark = host_mark();
        const Quantised a =
            quantise(host_random(RP_DTYPE_BF16, m * k, 0.5), quantized[i / 9 % 2], m, k);
        const Quantised b = quantise(host_random(RP_DTYPE_BF16, n * k, 2), RP_DTYPE_E4M3, n, k);
        const Array c = host_random(out, m * n, 1), bias = host_random(out, n, 1);
        double *want = host_doubles(m * n);
        RpMatmulArgs args = {.form = RP_MATMUL_NT,
                             .m = m,
                             .n = n,
                             .k = k,
                             .a = a.quantized,
                             .b = b.quantized,
                             .c = c.data,
                             .bias = variant == 2 ? bias.data : NULL,
                             .a_dtype = a.code,
                             .b_dtype = b.code,
                             .c_dtype = out,
                             .accumulate = variant == 1,
                             .a_scale = &a.scale,
                             .b_scale = &b.scale};

        for (size_t at = 0; at < m * n; at++) {
            want[at] = variant == 1 ? c.values[at] : variant == 2 ? bias.values[at % n] : 0;
            for (size_t t = 0; t < k; t++)
                want[at] += value_at(&a, at / n * k + t) * value_at(&b, at % n * k + t);
        }
        args.workspace = host_workspace(rp_host_kernels()->matmul_workspace(&args));
        rp_host_kernels()->matmul(NULL, &args);
        host_assert_close(c, want, k, 0);
        host_free_since(mark);
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
