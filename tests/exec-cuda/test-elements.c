#include "tests/exec-cuda/cuda-fixture.h"

#include <math.h>

static const size_t sizes[] = {1, 7, 8, 1023, 4099, 1 << 20, 8 * 256 * 4096 + 13};

typedef struct {
    Array a, b, c;
    RpDtype target;
    guint alias; /* input that is written over, from 1; 0: none */
    size_t row;
} Inputs;

static void
compute_swiglu(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->a.dtype;
    const size_t n = inputs->a.n;
    void *gate = cuda_in(side, inputs->a);
    void *up = cuda_in(side, inputs->b);
    void *dy = cuda_in(side, inputs->c);
    void *const places[] = {cuda_out(side, dtype, n), gate, up};
    const RpSwigluArgs args = {dtype,          n,           gate, up, places[inputs->alias], dy,
                               .d_gate = NULL, .d_up = NULL};
    RpSwigluArgs backward = args;

    /* the two exponentials differ by a few units; 16-bit ones end at 2^-126 */
    for (guint i = 0; i < 4; i++)
        outputs->terms[i] = 1;
    if (inputs->alias == 0) {
        side->kernels->swiglu_forward(side->stream, &args);
        outputs->arrays[0] = cuda_result(side, dtype, n, args.y);
        backward.d_gate = cuda_out(side, dtype, n);
        backward.d_up = cuda_out(side, dtype, n);
        backward.product = cuda_out(side, dtype, n);
    } else {
        backward.d_gate = inputs->alias == 1 ? dy : gate;
        backward.d_up = up;
        backward.product = inputs->alias == 1 ? gate : dy;
    }
    side->kernels->swiglu_backward(side->stream, &backward);
    outputs->arrays[1] = cuda_result(side, dtype, n, backward.d_gate);
    outputs->arrays[2] = cuda_result(side, dtype, n, backward.d_up);
    outputs->arrays[3] = cuda_result(side, dtype, n, backward.product);
    if (inputs->alias > 0) {
        gate = cuda_in(side, inputs->a);
        up = cuda_in(side, inputs->b);
        backward.gate = gate;
        backward.up = up;
        backward.y = inputs->alias == 1 ? gate : up;
        side->kernels->swiglu_forward(side->stream, &backward);
        outputs->arrays[0] = cuda_result(side, dtype, n, backward.y);
    }
    host_assert_same(outputs->arrays[3], outputs->arrays[0]);
}

RP_TEST(gates_forward_and_backward_in_place_or_not)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(sizes) - 1; s++) {
            for (guint alias = 0; alias < 3; alias++) {
                const guint mark = host_mark();
                const Inputs inputs = {.a = cuda_random((RpDtype)dtype, sizes[s], 3),
                                       .b = cuda_random((RpDtype)dtype, sizes[s], 1),
                                       .c = cuda_random((RpDtype)dtype, sizes[s], 1),
                                       .alias = alias};

                cuda_hold_to_host(compute_swiglu, &inputs, TRUE);
                host_free_since(mark);
            }
        }
    }
}

/* Gate and up as columns of one matrix, forward in place or not, backward in place. */
static void
compute_fused_swiglu(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->a.dtype;
    const size_t n = inputs->c.n, row = inputs->row;
    char *gate = cuda_in(side, inputs->a);
    char *up = gate + row * rp_dtype_size(dtype);
    RpSwigluArgs args = {.dtype = dtype,
                         .n = n,
                         .row = row,
                         .gate = gate,
                         .up = up,
                         .y = cuda_out(side, dtype, n),
                         .dy = cuda_in(side, inputs->c)};

    for (guint i = 0; i < 4; i++)
        outputs->terms[i] = 1;
    side->kernels->swiglu_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, n, args.y);
    args.d_gate = gate;
    args.d_up = up;
    args.product = (void *)(guintptr)args.dy;
    side->kernels->swiglu_backward(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, dtype, 2 * n, gate);
    outputs->arrays[2] = cuda_result(side, dtype, n, args.product);
    host_assert_same(outputs->arrays[2], outputs->arrays[0]);
    gate = cuda_in(side, inputs->a);
    args.gate = gate;
    args.up = gate + row * rp_dtype_size(dtype);
    args.y = gate;
    side->kernels->swiglu_forward(side->stream, &args);
    outputs->arrays[3] = cuda_result(side, dtype, 2 * n, gate);
}

RP_TEST(gates_columns_of_one_matrix)
{
    static const size_t shapes[][2] = {{1, 8}, {3, 40}, {197, 1032}, {1024, 6144}};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(shapes); s++) {
            const size_t n = shapes[s][0] * shapes[s][1];
            const guint mark = host_mark();
            const Inputs inputs = {.a = cuda_random((RpDtype)dtype, 2 * n, 3),
                                   .c = cuda_random((RpDtype)dtype, n, 1),
                                   .row = shapes[s][1]};

            cuda_hold_to_host(compute_fused_swiglu, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

RP_TEST(gates_beyond_where_exp_overflows)
{
    float values[] = {-1e4f, -100, -89, -88, -50, 0, 50, 88, 100, 1e4f};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        Inputs inputs = {.a = host_output((RpDtype)dtype, G_N_ELEMENTS(values)),
                         .b = host_random((RpDtype)dtype, G_N_ELEMENTS(values), 1),
                         .c = host_random((RpDtype)dtype, G_N_ELEMENTS(values), 1)};

        rp_dtype_from_float((RpDtype)dtype, values, inputs.a.data, G_N_ELEMENTS(values));
        cuda_hold_to_host(compute_swiglu, &inputs, TRUE);
    }
}

static void
compute_mixture(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t n = inputs->a.n;
    const RpElementsArgs args = {n,
                                 cuda_in(side, inputs->a),
                                 cuda_in(side, inputs->b),
                                 cuda_out(side, inputs->target, n),
                                 inputs->a.dtype,
                                 inputs->b.dtype,
                                 inputs->target};
    const RpElementsArgs in_place = {
        n, args.x, args.b, (void *)(guintptr)args.b, args.x_dtype, args.b_dtype, args.b_dtype};

    side->kernels->convert(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, inputs->target, n, args.y);
    side->kernels->add(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, inputs->target, n, args.y);
    side->kernels->add(side->stream, &in_place);
    outputs->arrays[2] = cuda_result(side, args.b_dtype, n, args.b);
    side->kernels->fill(side->stream, &(RpFillArgs){inputs->target, n, args.y, -2.7182818f});
    outputs->arrays[3] = cuda_result(side, inputs->target, n, args.y);
}

RP_TEST(converts_adds_and_fills_every_mixture_of_storages)
{
    for (guint mixture = 0; mixture < RP_N_DTYPES * RP_N_DTYPES * RP_N_DTYPES; mixture++) {
        for (size_t s = 0; s < G_N_ELEMENTS(sizes) - (mixture % 9 == 5 ? 0 : 2); s++) {
            const guint mark = host_mark();
            const Inputs inputs = {.a = cuda_random((RpDtype)(mixture % 3), sizes[s], 1),
                                   .b = cuda_random((RpDtype)(mixture / 3 % 3), sizes[s], 1),
                                   .target = (RpDtype)(mixture / 9)};

            cuda_hold_to_host(compute_mixture, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

static void
compute_gather(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t n = inputs->a.n;
    RpGatherArgs args = {.dtype = inputs->target,
                         .n = n,
                         .begin = TRUE,
                         .x = cuda_in(side, inputs->a),
                         .y = cuda_out(side, RP_DTYPE_FP32, n)};

    side->kernels->gather(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, RP_DTYPE_FP32, n, args.y);
    args.begin = FALSE;
    args.x = cuda_in(side, inputs->b);
    side->kernels->gather(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, n, args.y);
}

RP_TEST(gathers_what_is_rounded)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
            const guint mark = host_mark();
            const Inputs inputs = {.a = cuda_random(RP_DTYPE_FP32, sizes[s], 1),
                                   .b = cuda_random(RP_DTYPE_FP32, sizes[s], 1),
                                   .target = (RpDtype)dtype};

            cuda_hold_to_host(compute_gather, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

static void
compute_dropout(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t rows = inputs->alias, n = inputs->a.n / rows;
    const RpDtype dtype = inputs->a.dtype;
    RpDropoutArgs args = {.dtype = dtype,
                          .rows = rows,
                          .n = n,
                          .key = 0xfedcba9876543210u,
                          .step = 3,
                          .row = 4096,
                          .threshold = 0x40000000u,
                          .scale = 1.3333334f,
                          .x = cuda_in(side, inputs->a),
                          .y = cuda_out(side, dtype, rows * n)};

    side->kernels->dropout(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, rows * n, args.y);
    args.y = cuda_in(side, inputs->b);
    args.accumulate = TRUE;
    side->kernels->dropout(side->stream, &args);
    outputs->arrays[1] = cuda_result(side, dtype, rows * n, args.y);
}

/* @alias: rows */
RP_TEST(drops_the_bits_of_the_host)
{
    static const size_t rows[] = {1, 3, 64, 1025};
    static const size_t columns[] = {1, 7, 8, 20, 4096, 4100};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(rows) * G_N_ELEMENTS(columns); s++) {
            const guint mark = host_mark();
            const size_t r = rows[s % 4], n = r * columns[s / 4];
            const Inputs inputs = {.a = cuda_random((RpDtype)dtype, n, 1),
                                   .b = cuda_random((RpDtype)dtype, n, 1),
                                   .alias = (guint)r};
            const Side host = {rp_host_kernels(), NULL, 0};
            const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
            Outputs want = {0}, got = {0};

            compute_dropout(&host, &inputs, &want);
            compute_dropout(&device, &inputs, &got);
            host_assert_same(got.arrays[0], want.arrays[0]);
            host_assert_same(got.arrays[1], want.arrays[1]);
            cuda_hold_to_host(compute_dropout, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

static void
compute_squares(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const double old = 3;
    const int32_t unbroken = 0;
    int32_t broken;
    RpSumSquaresArgs args = {.dtype = inputs->a.dtype,
                             .n = inputs->a.n,
                             .x = cuda_in(side, inputs->a),
                             .sum = cuda_copy_in(side, &old, 1, sizeof old),
                             .broken = cuda_copy_in(side, &unbroken, 1, sizeof unbroken)};

    args.workspace = cuda_workspace(side, side->kernels->sum_squares_workspace(&args));
    side->kernels->sum_squares(side->stream, &args);
    cuda_copy_out(side, args.sum, &outputs->sums[0], sizeof(double));
    cuda_copy_out(side, args.broken, &broken, sizeof broken);
    outputs->sums[1] = broken;
    if (!isfinite(outputs->sums[0]))
        outputs->sums[0] = 0;
}

/* The same bits: lanes and blocks are the host's. */
RP_TEST(adds_squares_up)
{
    static const size_t more[] = {65535, 65536, 65537, 1000003};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(sizes) + G_N_ELEMENTS(more); s++) {
            const guint mark = host_mark();
            const size_t n = s < G_N_ELEMENTS(sizes) ? sizes[s] : more[s - G_N_ELEMENTS(sizes)];
            const Inputs inputs = {.a = cuda_random((RpDtype)dtype, n, 1)};
            const Side host = {rp_host_kernels(), NULL, 0};
            const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
            Outputs want = {0}, got = {0};

            compute_squares(&host, &inputs, &want);
            compute_squares(&device, &inputs, &got);
            assert_memory_equal(got.sums, want.sums, 2 * sizeof(double));
            cuda_hold_to_host(compute_squares, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

RP_TEST(tells_what_is_not_finite)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
            const Inputs inputs = {.a = host_random((RpDtype)dtype, 5003, 1)};
            const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
            Outputs outputs = {0};

            rp_dtype_from_float((RpDtype)dtype, &bad[i],
                                (char *)inputs.a.data + 4999 * rp_dtype_size((RpDtype)dtype), 1);
            compute_squares(&device, &inputs, &outputs);
            assert_true(outputs.sums[1] == 1);
            assert_true(outputs.sums[0] == 0);
        }
    }
}

static void
compute_noise(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const size_t rows = inputs->alias, n = inputs->a.n / rows;
    const RpDtype dtype = inputs->a.dtype;
    const RpNoiseArgs args = {.dtype = dtype,
                              .rows = rows,
                              .n = n,
                              .key = 0xfedcba9876543210u,
                              .step = 3,
                              .row = 4096,
                              .magnitude = 0.3f,
                              .y = cuda_in(side, inputs->a)};

    side->kernels->noise(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, rows * n, args.y);
}

RP_TEST(adds_the_noise_of_the_host)
{
    static const size_t rows[] = {1, 3, 64, 1025};
    static const size_t columns[] = {1, 7, 8, 20, 4096, 4100};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        for (size_t s = 0; s < G_N_ELEMENTS(rows) * G_N_ELEMENTS(columns); s++) {
            const guint mark = host_mark();
            const size_t r = rows[s % 4], n = r * columns[s / 4];
            const Inputs inputs = {.a = cuda_random((RpDtype)dtype, n, 1), .alias = (guint)r};
            const Side host = {rp_host_kernels(), NULL, 0};
            const Side device = {rp_cuda_kernels(), cuda_stream(), 0};
            Outputs want = {0}, got = {0};

            compute_noise(&host, &inputs, &want);
            compute_noise(&device, &inputs, &got);
            host_assert_same(got.arrays[0], want.arrays[0]);
            cuda_hold_to_host(compute_noise, &inputs, TRUE);
            host_free_since(mark);
        }
    }
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
