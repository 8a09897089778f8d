/* The gated delta rule, and the parts beside it, against double: the rule as a recurrence, token by token. */
#include "tests/exec-host/delta-recurrence.h"

#include <math.h>

static void
run(DeltaCase *c)
{
    const RpKernels *kernels = rp_host_kernels();

    c->args.workspace = host_workspace(kernels->delta_forward_workspace(&c->args));
    kernels->delta_forward(NULL, &c->args);
    c->args.workspace = host_workspace(kernels->delta_backward_workspace(&c->args));
    kernels->delta_backward(NULL, &c->args);
}

static void
check(const DeltaCase *c, size_t terms)
{
    host_assert_close(c->out, c->want_out, terms, 0);
    host_assert_close(c->d_qkv, c->want_qkv, terms, 0);
    host_assert_close(c->d_b, c->want_b, terms, 0);
    host_assert_close(c->d_a, c->want_a, terms, 0);
    host_assert_close(c->d_log, c->want_log, terms, 0);
    host_assert_close(c->d_bias, c->want_bias, terms, 0);
}

RP_TEST(computes_the_recurrence_in_chunks)
{
    static const DeltaSizes sizes[] = {{1, 1, 8, 8}, {2, 4, 6, 10}, {1, 3, 16, 5}};
    static const gint32 starts[][5] = {
        {0, 1}, {0, 63}, {0, 64, 128}, {0, 65, 66, 66, 200}, {0, 3, 131, 195, 196}};
    static const size_t sequences[] = {1, 1, 2, 4, 4};

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint z = 0; z < G_N_ELEMENTS(sizes); z++)
            for (guint s = 0; s < G_N_ELEMENTS(sequences); s++) {
                const guint mark = host_mark();
                DeltaCase c = delta_case((RpDtype)d, &sizes[z], starts[s], sequences[s]);

                delta_want(&c);
                run(&c);
                check(&c, 200 * 16);
                host_free_since(mark);
            }
}

/* Gates of all sizes: some forget everything at once, some nothing in thousands of tokens. */
RP_TEST(keeps_small_gates_of_many_tokens)
{
    static const gint32 starts[] = {0, 16385};
    static const DeltaSizes sizes = {1, 2, 8, 8};
    DeltaCase c = delta_case(RP_DTYPE_FP32, &sizes, starts, 1);
    float *log = c.log.data;

    for (guint head = 0; head < 2; head++)
        c.log.values[head] = log[head] = head == 0 ? -12.0f : 5.0f;
    delta_want(&c);
    run(&c);
    check(&c, 16385);
}

/* A sequence gives the same bits alone and packed. */
RP_TEST(packed_sequences_have_the_bits_that_they_have_alone)
{
    static const gint32 packed[] = {0, 70, 200}, alone[] = {0, 130};
    static const DeltaSizes sizes = {1, 2, 8, 4};
    DeltaCase c = delta_case(RP_DTYPE_BF16, &sizes, packed, 2),
              one = delta_case(RP_DTYPE_BF16, &sizes, alone, 1);
    const size_t n = rp_delta_columns(&c.args), size = rp_dtype_size(RP_DTYPE_BF16);

    memcpy(one.qkv.data, (char *)c.qkv.data + 70 * n * size, 130 * n * size);
    memcpy(one.b.data, (char *)c.b.data + 70 * 2 * size, 130 * 2 * size);
    memcpy(one.a.data, (char *)c.a.data + 70 * 2 * size, 130 * 2 * size);
    memcpy(one.log.data, c.log.data, 2 * size);
    memcpy(one.bias.data, c.bias.data, 2 * size);
    memcpy(one.d_out.data, (char *)c.d_out.data + 70 * 8 * size, 130 * 8 * size);
    run(&c);
    run(&one);
    assert_memory_equal((char *)c.out.data + 70 * 8 * size, one.out.data, 130 * 8 * size);
    assert_memory_equal((char *)c.d_qkv.data + 70 * n * size, one.d_qkv.data, 130 * n * size);
}

static double
sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double
slope(double x)
{
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
}

RP_TEST(convolves_within_sequences)
{
    static const gint32 starts[] = {0, 1, 4, 4, 140};
    static const size_t columns[] = {1, 5, 513}, kernels[] = {1, 2, 4};
    const size_t T = 140;

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint i = 0; i < 9; i++) {
            const RpDtype dtype = (RpDtype)d;
            const size_t n = columns[i % 3], K = kernels[i / 3];
            const guint mark = host_mark();
            const Array x = host_random(dtype, T * n, 1), w = host_random(dtype, n * K, 1),
                        dy = host_random(dtype, T * n, 1), y = host_output(dtype, T * n),
                        dx = host_output(dtype, T * n), dw = host_random(RP_DTYPE_FP32, n * K, 1);
            double *want_y = host_doubles(T * n), *want_x = host_doubles(T * n),
                   *want_w = host_doubles(n * K);
            RpConvArgs args = {dtype,  T,      4,       n,       K,       starts, x.data,
                               w.data, y.data, dy.data, dx.data, dw.data, NULL};

            memset(want_x, 0, T * n * sizeof(double));
            memcpy(want_w, dw.values, n * K * sizeof(double));
            for (size_t s = 0; s < 4; s++)
                for (size_t t = (size_t)starts[s]; t < (size_t)starts[s + 1]; t++)
                    for (size_t c = 0; c < n; c++) {
                        double z = 0;

                        for (size_t k = 0; k < K; k++)
                            if (t + k + 1 >= (size_t)starts[s] + K)
                                z += w.values[c * K + k] * x.values[(t + k + 1 - K) * n + c];
                        want_y[t * n + c] = z * sigmoid(z);
                        for (size_t k = 0; k < K; k++)
                            if (t + k + 1 >= (size_t)starts[s] + K) {
                                const double e = dy.values[t * n + c] * slope(z);

                                want_x[(t + k + 1 - K) * n + c] += e * w.values[c * K + k];
                                want_w[c * K + k] += e * x.values[(t + k + 1 - K) * n + c];
                            }
                    }
            args.workspace = host_workspace(rp_host_kernels()->conv_backward_workspace(&args));
            rp_host_kernels()->conv_forward(NULL, &args);
            rp_host_kernels()->conv_backward(NULL, &args);
            host_assert_close(y, want_y, K, 0);
            host_assert_close(dx, want_x, K, 0);
            host_assert_close(dw, want_w, T, 0);
            host_free_since(mark);
        }
}

RP_TEST(gates_after_the_norm)
{
    static const size_t rows = 67, sizes[] = {5, 8, 129};

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
            const RpDtype dtype = (RpDtype)d;
            const size_t n = sizes[i];
            const Array x = host_random(dtype, rows * n, 1), gate = host_random(dtype, rows * n, 2),
                        w = host_random(dtype, n, 1), dy = host_random(dtype, rows * n, 1),
                        y = host_output(dtype, rows * n), dg = host_output(dtype, rows * n),
                        dx = host_output(dtype, rows * n), dw = host_random(RP_DTYPE_FP32, n, 1);
            double *want_y = host_doubles(rows * n), *want_x = host_doubles(rows * n),
                   *want_g = host_doubles(rows * n), *want_w = host_doubles(n);
            RpGatedNormArgs args = {dtype,  rows,    n,       1e-6f,   x.data,  gate.data, w.data,
                                    y.data, dy.data, dx.data, dg.data, dw.data, NULL};

            memcpy(want_w, dw.values, n * sizeof(double));
            for (size_t r = 0; r < rows; r++) {
                const double *xr = x.values + r * n, *gr = gate.values + r * n,
                             *dr = dy.values + r * n;
                const double rstd = 1 / sqrt(delta_dot(xr, xr, n) / (double)n + 1e-6);
                double mean = 0;

                for (size_t c = 0; c < n; c++)
                    mean += dr[c] * w.values[c] * gr[c] * sigmoid(gr[c]) * xr[c] * rstd / (double)n;
                for (size_t c = 0; c < n; c++) {
                    const double h = xr[c] * rstd, s = gr[c] * sigmoid(gr[c]);

                    want_y[r * n + c] = w.values[c] * h * s;
                    want_x[r * n + c] = rstd * (dr[c] * w.values[c] * s - h * mean);
                    want_g[r * n + c] = dr[c] * w.values[c] * h * slope(gr[c]);
                    want_w[c] += dr[c] * h * s;
                }
            }
            args.workspace =
                host_workspace(rp_host_kernels()->gated_norm_backward_workspace(&args));
            rp_host_kernels()->gated_norm_forward(NULL, &args);
            rp_host_kernels()->gated_norm_backward(NULL, &args);
            host_assert_close(y, want_y, n, 0);
            host_assert_close(dx, want_x, n, 0);
            host_assert_close(dg, want_g, n, 0);
            host_assert_close(dw, want_w, rows, 0);
        }
}

RP_TEST(gates_heads_between_queries)
{
    static const size_t rows = 9, n = 6, stride = 12;

    for (guint d = 0; d < RP_N_DTYPES; d++) {
        const RpDtype dtype = (RpDtype)d;
        const size_t size = rp_dtype_size(dtype);
        const Array both = host_random(dtype, rows * stride, 1),
                    dy = host_random(dtype, rows * n, 1), x = host_output(dtype, rows * n),
                    y = host_output(dtype, rows * n), dx = host_output(dtype, rows * n),
                    dg = host_output(dtype, rows * stride);
        double *want_y = host_doubles(rows * n), *want_x = host_doubles(rows * n);
        const char *gate = (const char *)both.data + n * size;
        const RpHeadGateArgs args = {dtype, rows,   n,       stride,  x.data,
                                     gate,  y.data, dy.data, dx.data, (char *)dg.data + n * size};

        rp_host_kernels()->columns(NULL,
                                   &(RpColumnsArgs){dtype, rows, n, stride, n, both.data, x.data});
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < n; c++) {
                const double s = sigmoid(both.values[r * stride + n + c]);

                want_y[r * n + c] = both.values[r * stride + c] * s;
                want_x[r * n + c] = dy.values[r * n + c] * s;
            }
        rp_host_kernels()->head_gate_forward(NULL, &args);
        rp_host_kernels()->head_gate_backward(NULL, &args);
        host_assert_close(y, want_y, 1, 0);
        host_assert_close(dx, want_x, 1, 0);
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < n; c++) {
                const double s = sigmoid(both.values[r * stride + n + c]);
                const double q = both.values[r * stride + c],
                             v = dy.values[r * n + c] * q * s * (1 - s);

                assert_true(fabs(host_value(dg, r * stride + n + c) - v) <= 1e-2);
                assert_true(isnan(host_value(dg, r * stride + c)));
            }
    }
}

RP_TEST(gates_rows_in_place)
{
    static const size_t rows = 9, sizes[] = {1, 7, 1500};

    for (guint d = 0; d < RP_N_DTYPES; d++)
        for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
            const RpDtype dtype = (RpDtype)d;
            const size_t n = sizes[i];
            const Array x = host_random(dtype, rows * n, 1), gate = host_random(dtype, rows, 1),
                        dy = host_random(dtype, rows * n, 1), y = host_output(dtype, rows * n),
                        dg = host_output(dtype, rows);
            double *want_y = host_doubles(rows * n), *want_x = host_doubles(rows * n),
                   *want_g = host_doubles(rows);
            RpRowGateArgs args = {.dtype = dtype,
                                  .rows = rows,
                                  .n = n,
                                  .x = x.data,
                                  .gate = gate.data,
                                  .y = y.data,
                                  .dy = dy.data,
                                  .dx = dy.data,
                                  .d_gate = dg.data};

            for (size_t r = 0; r < rows; r++) {
                const double s = sigmoid(gate.values[r]);

                want_g[r] = 0;
                for (size_t c = r * n; c < (r + 1) * n; c++) {
                    want_y[c] = x.values[c] * s;
                    want_x[c] = dy.values[c] * s;
                    want_g[r] += dy.values[c] * x.values[c] * s * (1 - s);
                }
            }
            rp_host_kernels()->row_gate_forward(NULL, &args);
            host_assert_close(y, want_y, 1, 0);
            args.y = x.data;
            rp_host_kernels()->row_gate_backward(NULL, &args);
            host_assert_close(x, want_y, 1, 0);
            host_assert_close(dy, want_x, 1, 0);
            host_assert_close(dg, want_g, n, 0);
        }
}

RP_TEST_FIXTURE(host_setup, host_teardown)
