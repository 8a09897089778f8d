#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

#include "exec/host/host-private.h"

static const size_t lengths[] = {0, 1, 7, 511, 512, 513, 2051};

RP_TEST(gates_with_silu)
{
    for (guint d = 0; d < RP_N_DTYPES; d++) {
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const RpDtype dtype = (RpDtype)d;
            const size_t n = lengths[i];
            const Array gate = host_random(dtype, n, 4);
            const Array up = host_random(dtype, n, 1);
            const Array dy = host_random(dtype, n, 1);
            const Array y = host_output(dtype, n);
            RpSwigluArgs args = {dtype, n, gate.data, up.data, .y = y.data, .dy = dy.data};
            double *want[] = {host_doubles(n), host_doubles(n)};

            reference_swiglu(n, gate.values, up.values, want[0]);
            rp_host_kernels()->swiglu_forward(NULL, &args);
            host_assert_close(y, want[0], 1, 0);

            /* in place */
            args.d_gate = gate.data;
            args.d_up = dy.data;
            args.product = up.data;
            reference_swiglu_backward(n, gate.values, up.values, dy.values, want[0], want[1]);
            rp_host_kernels()->swiglu_backward(NULL, &args);
            host_assert_close(gate, want[0], 1, 0);
            host_assert_close(dy, want[1], 1, 0);
            host_assert_same(up, y);
        }
    }
}

/* Gate and up as columns of one matrix: the bits of both without gaps. */
RP_TEST(gates_columns_of_one_matrix)
{
    static const size_t row = 1032, rows = 3, n = 3 * 1032;

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const gsize element = rp_dtype_size((RpDtype)dtype);
        const Array both = host_random((RpDtype)dtype, 2 * n, 3),
                    dy = host_random((RpDtype)dtype, n, 1);
        Array apart[2];
        const Array y = host_output((RpDtype)dtype, n), got = host_output((RpDtype)dtype, n);
        char *gate = both.data, *up = gate + row * element;
        RpSwigluArgs args = {.dtype = (RpDtype)dtype, .n = n, .y = y.data, .dy = dy.data};

        for (guint i = 0; i < 2; i++) {
            apart[i] = host_output((RpDtype)dtype, n);
            for (size_t r = 0; r < rows; r++)
                memcpy((char *)apart[i].data + r * row * element,
                       gate + (2 * r + i) * row * element, row * element);
        }
        args.gate = apart[0].data;
        args.up = apart[1].data;
        rp_host_kernels()->swiglu_forward(NULL, &args);

        RpSwigluArgs joined = args;

        joined.row = row;
        joined.gate = gate;
        joined.up = up;
        joined.y = got.data;
        rp_host_kernels()->swiglu_forward(NULL, &joined);
        host_assert_same(got, y);

        args.d_gate = apart[0].data;
        args.d_up = apart[1].data;
        joined.d_gate = gate;
        joined.d_up = up;
        joined.product = got.data;
        rp_host_kernels()->swiglu_backward(NULL, &joined);
        host_assert_same(got, y);
        rp_host_kernels()->swiglu_backward(NULL, &args);
        for (guint i = 0; i < 2; i++)
            for (size_t r = 0; r < rows; r++)
                assert_memory_equal((char *)apart[i].data + r * row * element,
                                    gate + (2 * r + i) * row * element, row * element);
    }
}

/* A forward that keeps nothing writes the product where the gate was. */
RP_TEST(gates_in_the_place_of_a_column)
{
    static const size_t row = 40, rows = 5;
    const Array both = host_random(RP_DTYPE_BF16, 2 * row * rows, 3),
                y = host_output(RP_DTYPE_BF16, row * rows);
    guint16 *gate = both.data, *up = gate + row;
    const guint16 *want = y.data;
    RpSwigluArgs args = {
        .dtype = RP_DTYPE_BF16, .n = row * rows, .row = row, .gate = gate, .up = up, .y = y.data};

    rp_host_kernels()->swiglu_forward(NULL, &args);
    args.y = gate;
    rp_host_kernels()->swiglu_forward(NULL, &args);
    for (size_t r = 0; r < rows; r++)
        assert_memory_equal(gate + 2 * r * row, want + r * row, row * sizeof *want);
}

RP_TEST(gates_at_the_ends_of_the_range)
{
    float gate[] = {-INFINITY, -3e38f, -200, -88.5f, -20, 0, 20, 88.5f, 200, 3e38f, INFINITY, NAN};
    float up[G_N_ELEMENTS(gate)], y[G_N_ELEMENTS(gate)];
    const RpSwigluArgs args = {RP_DTYPE_FP32, G_N_ELEMENTS(gate), gate, up, .y = y};

    for (size_t i = 0; i < G_N_ELEMENTS(gate); i++)
        up[i] = 1;
    rp_host_kernels()->swiglu_forward(NULL, &args);
    for (size_t i = 1; i + 2 < G_N_ELEMENTS(gate); i++) {
        const double a = (double)gate[i];

        assert_true(fabs((double)y[i] - a / (1 + exp(-a))) <=
                    4e-7 * fabs(a / (1 + exp(-a))) + 1e-30);
    }
    /* as torch has it: silu(-inf) is NaN */
    assert_true(isnan(y[0]));
    assert_true(isinf(y[10]));
    assert_true(isnan(y[11]));
}

RP_TEST(takes_exp_to_two_units)
{
    for (double x = -86.6; x < 88.72; x += 0.0137) {
        const double want = exp((double)(float)x);

        assert_true(fabs((double)rp_host_exp((float)x) - want) <= want * 0x1p-22);
    }
    assert_true(rp_host_exp(0) == 1);
    assert_true(rp_host_exp(-87) == 0);
    assert_true(rp_host_exp(-INFINITY) == 0);
    assert_true(isinf(rp_host_exp(88.8f)));
    assert_true(isinf(rp_host_exp(INFINITY)));
    assert_true(isnan(rp_host_exp(NAN)));
}

RP_TEST(converts_and_adds_between_all_storages)
{
    const size_t n = 1031;

    for (guint mixture = 0; mixture < 27; mixture++) {
        const Array x = host_random((RpDtype)(mixture % 3), n, 1);
        const Array b = host_random((RpDtype)(mixture / 3 % 3), n, 1);
        const Array y = host_output((RpDtype)(mixture / 9), n);
        const RpElementsArgs args = {n, x.data, b.data, y.data, x.dtype, b.dtype, y.dtype};

        rp_host_kernels()->convert(NULL, &args);
        host_assert_close(y, x.values, 1, 0);
        rp_host_kernels()->add(NULL, &args);
        for (size_t i = 0; i < n; i++)
            x.values[i] += b.values[i];
        host_assert_close(y, x.values, 1, 0);
    }
}

/* Through the table: the values that core/lowbit gives in pieces. */
RP_TEST(expands_packed_weights)
{
    const RpLowbitShape shape = {2, 3, 85};

    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        const RpLowbit format = (RpLowbit)f;
        const Array source = host_random(RP_DTYPE_BF16, 510, 1);
        char *packed = host_bytes(rp_lowbit_layout(format, shape).total);
        float *scales = host_bytes(rp_lowbit_pack_scales(format, shape) * sizeof *scales);

        assert_true(rp_lowbit_pack(format, shape, RP_DTYPE_BF16, source.data, 0,
                                   rp_lowbit_strips(format, shape), packed,
                                   scales) == RP_LOWBIT_NONE);
        rp_lowbit_pack_end(format, shape, scales, packed);
        for (guint d = 0; d < RP_N_DTYPES; d++) {
            const Array y = host_output((RpDtype)d, 510);
            float piece[51];

            rp_host_kernels()->expand(NULL,
                                      &(RpExpandArgs){format, (RpDtype)d, shape, packed, y.data});
            for (size_t first = 0; first < 510; first += 51) {
                rp_lowbit_expand(format, shape, packed, (RpDtype)d, first, 51, piece);
                assert_memory_equal(piece, (char *)y.data + first * rp_dtype_size((RpDtype)d),
                                    51 * rp_dtype_size((RpDtype)d));
            }
            for (size_t i = 0; i < 510; i++)
                assert_true(fabs(host_value(y, i) - source.values[i]) < 0.7);
        }
    }
}

RP_TEST(adds_in_place)
{
    const Array x = host_random(RP_DTYPE_BF16, 700, 1);
    const Array y = host_random(RP_DTYPE_FP32, 700, 1);
    const RpElementsArgs args = {700, x.data, y.data, y.data, x.dtype, y.dtype, y.dtype};

    rp_host_kernels()->add(NULL, &args);
    for (size_t i = 0; i < 700; i++)
        y.values[i] += x.values[i];
    host_assert_close(y, y.values, 1, 0);
}

/* Begins with the first of three, and adds the others; each as it is when it has been stored. */
RP_TEST(gathers_what_is_rounded)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const size_t n = lengths[i];
            g_autofree float *sum = g_new(float, n);
            g_autofree float *want = g_new0(float, n);
            g_autofree char *stored = g_malloc(n * rp_dtype_size((RpDtype)dtype));
            g_autofree float *rounded = g_new(float, n);

            for (guint k = 0; k < 3; k++) {
                const Array x = host_random(RP_DTYPE_FP32, n, 1);

                rp_host_kernels()->gather(
                    NULL,
                    &(RpGatherArgs){
                        .dtype = (RpDtype)dtype, .n = n, .begin = k == 0, .x = x.data, .y = sum});
                rp_dtype_from_float((RpDtype)dtype, x.data, stored, n);
                rp_dtype_to_float((RpDtype)dtype, stored, rounded, n);
                for (size_t j = 0; j < n; j++)
                    want[j] = k == 0 ? rounded[j] : want[j] + rounded[j];
            }
            assert_memory_equal(sum, want, n * sizeof *sum);
        }
    }
}

RP_TEST(fills)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const Array x = host_output((RpDtype)dtype, lengths[i]);

            rp_host_kernels()->fill(NULL, &(RpFillArgs){x.dtype, x.n, x.data, 0.75f});
            for (size_t j = 0; j < x.n; j++)
                assert_true(host_value(x, j) == 0.75);
        }
    }
}

/* Rows 4, 0 and 2 of five; the others stay. */
RP_TEST(puts_rows_where_they_belong)
{
    static const int32_t rows[] = {4, 0, 2};
    static const float of[] = {1, -1, 2, -1, 0};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        const float numbers[] = {0, 0, 0, 1, 1, 1, 2, 2, 2},
                    old[15] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
        const Array x = host_output((RpDtype)dtype, 9), y = host_output((RpDtype)dtype, 15);

        rp_dtype_from_float(x.dtype, numbers, x.data, 9);
        rp_dtype_from_float(y.dtype, old, y.data, 15);
        rp_host_kernels()->scatter(
            NULL,
            &(RpScatterArgs){
                .dtype = x.dtype, .n = 3, .columns = 3, .rows = rows, .x = x.data, .y = y.data});
        for (size_t i = 0; i < 15; i++)
            assert_true(host_value(y, i) == of[i / 3]);
    }
}

RP_TEST(adds_up_squares)
{
    const RpKernels *kernels = rp_host_kernels();

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const Array x = host_random((RpDtype)dtype, lengths[i], 1);
            double sum = 2.5;
            double want = 2.5;
            int32_t broken = 0;
            RpSumSquaresArgs args = {x.dtype, x.n, x.data, &sum, &broken};

            for (size_t j = 0; j < x.n; j++)
                want += x.values[j] * x.values[j];
            args.workspace = host_workspace(kernels->sum_squares_workspace(&args));
            kernels->sum_squares(NULL, &args);
            assert_true(fabs(sum - want) <= 1e-13 * want);
            assert_int_equal(broken, 0);
        }
    }
}

RP_TEST(finds_what_is_not_finite)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        for (size_t place = 0; place < 603; place += 67) {
            const Array x = host_random(RP_DTYPE_FP32, 603, 1);
            double sum = 0;
            int32_t broken = 0;
            const RpSumSquaresArgs args = {x.dtype, x.n, x.data, &sum, &broken};

            ((float *)x.data)[place] = 3e38f;
            rp_host_kernels()->sum_squares(NULL, &args);
            assert_int_equal(broken, 0);
            ((float *)x.data)[place] = bad[i];
            rp_host_kernels()->sum_squares(NULL, &args);
            assert_int_equal(broken, 1);
            assert_false(isfinite(sum));
        }
    }
}

RP_TEST(never_fails)
{
    GError *error = NULL;

    assert_true(rp_host_kernels()->check(NULL, &error));
    assert_null(error);
}

static RpDropoutArgs
dropout_args(double p, RpDtype dtype, size_t rows, size_t n, const void *x, void *y)
{
    return (RpDropoutArgs){.dtype = dtype,
                           .rows = rows,
                           .n = n,
                           .key = 0x123456789abcdef0u,
                           .step = 7,
                           .row = 5,
                           .threshold = (uint32_t)(p * 0x1p32),
                           .scale = (float)(1 / (1 - p)),
                           .x = x,
                           .y = y};
}

/* Every 1 becomes 1/(1-p) or 0. */
static float *
drop_ones(RpDropoutArgs args)
{
    const size_t n = args.rows * args.n;
    float *ones = host_bytes(n * sizeof *ones), *y = host_bytes(n * sizeof *y);

    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    args.x = ones;
    args.y = y;
    rp_host_kernels()->dropout(NULL, &args);
    return y;
}

/* Kept by one of two masks, and by both: within 5 deviations of a fair draw. */
static void
check_independent(const float *a, const float *b, size_t n, double p, const char *what)
{
    double both = 0, deviation = sqrt((double)n * (1 - p) * (1 - p) * (1 - (1 - p) * (1 - p)));

    for (size_t i = 0; i < n; i++)
        both += a[i] != 0 && b[i] != 0;
    if (!(fabs(both - (double)n * (1 - p) * (1 - p)) <= 5 * deviation))
        fail_msg("%s: %g of %zu kept by both, p %g", what, both, n, p);
}

RP_TEST(drops_as_often_as_asked_and_independently)
{
    static const double chances[] = {0.05, 0.1, 0.5, 0.9};
    const size_t rows = 256, n = 1000, all = rows * n;

    for (size_t c = 0; c < G_N_ELEMENTS(chances); c++) {
        const double p = chances[c];
        RpDropoutArgs args = dropout_args(p, RP_DTYPE_FP32, rows, n, NULL, NULL);
        const float *first = drop_ones(args);
        double kept = 0, sum = 0;

        for (size_t i = 0; i < all; i++) {
            assert_true(first[i] == 0 || first[i] == args.scale);
            kept += first[i] != 0;
            sum += (double)first[i];
        }
        assert_true(fabs(kept - (double)all * (1 - p)) <= 5 * sqrt((double)all * p * (1 - p)));
        assert_true(fabs(sum / (double)all - 1) <= 5 * sqrt(p / (1 - p) / (double)all));
        check_independent(first, first + 1, all - 1, p, "neighbours");
        check_independent(first, first + n, all - n, p, "rows");
        args.step++;
        check_independent(first, drop_ones(args), all, p, "steps");
        args.step--;
        args.key++;
        check_independent(first, drop_ones(args), all, p, "keys");
    }
}

/* A row is the same whatever stands around it; and in place, added, and in every storage. */
RP_TEST(drops_a_row_alone_as_among_others)
{
    const size_t rows = 3, n = 1030;

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        const RpDtype dtype = (RpDtype)d;
        const Array x = host_random(dtype, rows * n, 1), y = host_output(dtype, rows * n);
        const Array row = host_output(dtype, n), sum = host_random(dtype, rows * n, 1);
        RpDropoutArgs args = dropout_args(0.25, dtype, rows, n, x.data, y.data);
        double *want = host_doubles(rows * n), *added = host_doubles(rows * n);
        size_t dropped = 0;

        rp_host_kernels()->dropout(NULL, &args);
        for (size_t i = 0; i < rows * n; i++) {
            dropped += host_value(y, i) == 0;
            want[i] = host_value(y, i) == 0 ? 0 : x.values[i] / 0.75;
            added[i] = sum.values[i] + want[i];
        }
        assert_true(dropped > rows * n / 5 && dropped < rows * n / 3);
        host_assert_close(y, want, 1, 1);
        args.y = sum.data;
        args.accumulate = TRUE;
        rp_host_kernels()->dropout(NULL, &args);
        host_assert_close(sum, added, 1, 1);
        args = dropout_args(0.25, dtype, 1, n, rp_host_at(dtype, x.data, 2 * n), row.data);
        args.row += 2;
        rp_host_kernels()->dropout(NULL, &args);
        assert_memory_equal(row.data, rp_host_at(dtype, y.data, 2 * n), n * rp_dtype_size(dtype));
        args = dropout_args(0.25, dtype, rows, n, x.data, x.data);
        rp_host_kernels()->dropout(NULL, &args);
        host_assert_same(x, y);
    }
}

RP_TEST(adds_noise_by_place)
{
    const size_t rows = 3, n = 1030;
    const float magnitude = 0.25f;

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        const RpDtype dtype = (RpDtype)d;
        const Array y = host_output(dtype, rows * n), again = host_output(dtype, rows * n);
        const Array row = host_output(dtype, n);
        RpNoiseArgs args = {.dtype = dtype,
                            .rows = rows,
                            .n = n,
                            .key = 77,
                            .step = 5,
                            .row = 40,
                            .magnitude = magnitude,
                            .y = y.data};
        double sum = 0, squares = 0;

        rp_host_kernels()->fill(NULL, &(RpFillArgs){dtype, rows * n, y.data, 0});
        rp_host_kernels()->fill(NULL, &(RpFillArgs){dtype, rows * n, again.data, 0});
        rp_host_kernels()->fill(NULL, &(RpFillArgs){dtype, n, row.data, 0});
        rp_host_kernels()->noise(NULL, &args);
        for (size_t i = 0; i < rows * n; i++) {
            const double u = host_value(y, i) / (double)magnitude;

            assert_true(fabs(u) <= 1);
            sum += u;
            squares += u * u;
        }
        /* mean 0 and variance 1/3, within five deviations */
        assert_true(fabs(sum / (double)(rows * n)) < 5 * sqrt(1.0 / 3 / (double)(rows * n)));
        assert_true(fabs(squares / (double)(rows * n) - 1.0 / 3) < 0.03);
        args.y = again.data;
        rp_host_kernels()->noise(NULL, &args);
        host_assert_same(y, again);
        args.y = row.data; /* the third row alone */
        args.rows = 1;
        args.row = 42;
        rp_host_kernels()->noise(NULL, &args);
        assert_memory_equal(row.data, rp_host_at(dtype, y.data, 2 * n), n * rp_dtype_size(dtype));
        args.step++;
        args.y = again.data;
        rp_host_kernels()->fill(NULL, &(RpFillArgs){dtype, n, again.data, 0});
        rp_host_kernels()->noise(NULL, &args);
        assert_memory_not_equal(again.data, row.data, n * rp_dtype_size(dtype));
    }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
