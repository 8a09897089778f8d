#include "tests/exec-cuda/cuda-fixture.h"

typedef struct {
    size_t rows, n;
    gboolean residual, in_place; /* residual: backward has that of a sum */
    Array x, other, weight, rstd, dy, d_weight;
} Inputs;

static void
compute_forward(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    void *x = cuda_in(side, inputs->x);
    const RpRmsnormArgs args = {.dtype = dtype,
                                .rows = inputs->rows,
                                .n = inputs->n,
                                .epsilon = 1e-6f,
                                .x = x,
                                .weight = cuda_in(side, inputs->weight),
                                .y = inputs->in_place ? x : cuda_out(side, dtype, inputs->x.n),
                                .rstd = cuda_out(side, RP_DTYPE_FP32, inputs->rows)};

    side->kernels->rmsnorm_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->rows, args.rstd);
    outputs->terms[0] = outputs->terms[1] = inputs->n;
}

static void
compute_backward(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    void *dy = cuda_in(side, inputs->dy);
    void *d_residual = inputs->residual ? cuda_in(side, inputs->other) : NULL;
    RpRmsnormArgs args = {.dtype = dtype,
                          .rows = inputs->rows,
                          .n = inputs->n,
                          .x = cuda_in(side, inputs->x),
                          .weight = cuda_in(side, inputs->weight),
                          .rstd = cuda_in(side, inputs->rstd),
                          .dy = dy,
                          .d_residual = d_residual,
                          .dx = !inputs->in_place    ? cuda_out(side, dtype, inputs->x.n)
                                : d_residual != NULL ? d_residual
                                                     : dy,
                          .d_weight = cuda_in(side, inputs->d_weight)};

    args.workspace = cuda_workspace(side, side->kernels->rmsnorm_backward_workspace(&args));
    side->kernels->rmsnorm_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.dx);
    outputs->terms[0] = inputs->n;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->n, args.d_weight);
    outputs->terms[1] = inputs->rows;
    if (args.dx == args.dy || args.dx == args.d_residual)
        return;
    args.dx = cuda_out(side, dtype, inputs->x.n);
    args.d_weight = NULL; /* frozen */
    side->kernels->rmsnorm_backward(side->stream, &args);
    outputs->arrays[2] = cuda_result(side, dtype, inputs->x.n, args.dx);
    outputs->terms[2] = inputs->n;
}

static Inputs
make_inputs(RpDtype dtype, size_t rows, size_t n)
{
    const Inputs inputs = {.rows = rows,
                           .n = n,
                           .x = cuda_random(dtype, rows * n, 1),
                           .other = cuda_random(dtype, rows * n, 1),
                           .weight = host_random(dtype, n, 1),
                           .rstd = host_random(RP_DTYPE_FP32, rows, 0.1),
                           .dy = cuda_random(dtype, rows * n, 1),
                           .d_weight = host_random(RP_DTYPE_FP32, n, 1)};

    for (size_t row = 0; row < rows; row++)
        ((float *)inputs.rstd.data)[row] += 1;
    return inputs;
}

static void
check_size(RpDtype dtype, size_t rows, size_t n)
{
    const guint mark = host_mark();
    Inputs inputs = make_inputs(dtype, rows, n);

    for (guint variant = 0; variant < 4; variant++) {
        inputs.residual = variant & 1;
        inputs.in_place = variant >> 1;
        cuda_hold_to_host(compute_forward, &inputs, TRUE);
        cuda_hold_to_host(compute_backward, &inputs, TRUE);
    }
    host_free_since(mark);
}

/* One direction, for sizes at which the host is slow. */
static void
check_backward(RpDtype dtype, size_t rows, size_t n, gboolean residual, gboolean in_place)
{
    const guint mark = host_mark();
    Inputs inputs = make_inputs(dtype, rows, n);

    inputs.residual = residual;
    inputs.in_place = in_place;
    cuda_hold_to_host(compute_backward, &inputs, TRUE);
    host_free_since(mark);
}

RP_TEST(normalises_rows_of_every_length)
{
    /* beside every limit where the kernel changes */
    static const size_t lengths[] = {1,    3,    8,    61,   64,   67,    128,   131,
                                     256,  263,  512,  521,  1024, 1031,  2048,  2053,
                                     4096, 4099, 8192, 8200, 8201, 16384, 16392, 20011};

    /* more rows than a block has at once, and than a chunk of backward: the last is short */
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++)
            check_size((RpDtype)dtype, lengths[i] <= 521 ? 37 : 7, lengths[i]);
}

RP_TEST(adds_gradients_up_over_many_rows)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        check_size((RpDtype)dtype, 1, 64);
        check_size((RpDtype)dtype, 1, 2048);
        check_size((RpDtype)dtype, 3303, 64);
        check_size((RpDtype)dtype, 131, 777);
        check_size((RpDtype)dtype, 13, 8208);
        check_backward((RpDtype)dtype, 33003, 61, TRUE, FALSE); /* read as they come */
        check_backward((RpDtype)dtype, 4111, 523, FALSE, TRUE);
        check_backward((RpDtype)dtype, 523, 8208, TRUE, TRUE);
    }
}

/* Chunks have enough rows to fill every stage of a ring more than twice; each kernel runs once. */
RP_TEST(reads_rows_ahead)
{
    static const struct {
        size_t rows, n;
    } sizes[] = {
        {100003, 8},  /* chunks of 196 rows, 32 at once: 7 steps, of 3 stages */
        {40961, 72},  /* 81 rows, 16 at once: 6 steps */
        {22531, 136}, /* 45 rows, 8 at once: 6 steps */
        {2003, 264},  /* 32 rows, 8 at once: 4 steps, of 2 stages */
        {6661, 520},  /* 7 rows, one by one as all that follow */
        {3333, 1032}, /* 7 rows, the last chunk 1 */
        {1801, 2056}, /* 8 rows */
        {1027, 4104}, /* 5 rows, 2 stages */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
            check_backward((RpDtype)dtype, sizes[i].rows, sizes[i].n, (dtype + i) % 2 == 0,
                           (dtype + i) % 3 == 0);
}

RP_TEST(normalises_a_real_model)
{
    static const size_t hidden[] = {1024, 2048, 4096, 5120};

    for (size_t i = 0; i < G_N_ELEMENTS(hidden); i++)
        check_size(RP_DTYPE_BF16, 70, hidden[i]);
    check_size(RP_DTYPE_BF16, 512 * 16, 128);
}

RP_TEST_FIXTURE(cuda_setup, cuda_teardown)
RP_TEST_NEEDS(cuda_available())
