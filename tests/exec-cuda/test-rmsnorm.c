#include "tests/exec-cuda/cuda-fixture.h"

typedef struct {
    size_t rows, n;
    gboolean residual, in_place;
    Array x, other, weight, rstd, dy, d_weight;
} Inputs;

static void
compute_forward(const Side *side, const void *data, Outputs *outputs)
{
    const Inputs *inputs = data;
    const RpDtype dtype = inputs->x.dtype;
    void *x = cuda_in(side, inputs->x);
    void *residual = inputs->residual ? cuda_in(side, inputs->other) : NULL;
    const RpRmsnormArgs args = {
        .dtype = dtype,
        .rows = inputs->rows,
        .n = inputs->n,
        .epsilon = 1e-6f,
        .x = x,
        .residual = residual,
        .sum = !residual          ? NULL
               : inputs->in_place ? residual
                                  : cuda_out(side, dtype, inputs->x.n),
        .weight = cuda_in(side, inputs->weight),
        .y = inputs->in_place && !residual ? x : cuda_out(side, dtype, inputs->x.n),
        .rstd = cuda_out(side, RP_DTYPE_FP32, inputs->rows)};

    side->kernels->rmsnorm_forward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.y);
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->rows, args.rstd);
    if (residual)
        outputs->arrays[2] = cuda_result(side, dtype, inputs->x.n, args.sum);
    for (guint i = 0; i < 3; i++)
        outputs->terms[i] = inputs->n;
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
                          .dx = !inputs->in_place ? cuda_out(side, dtype, inputs->x.n)
                                : d_residual      ? d_residual
                                                  : dy,
                          .d_weight = cuda_in(side, inputs->d_weight)};

    args.workspace = cuda_workspace(side, side->kernels->rmsnorm_backward_workspace(&args));
    side->kernels->rmsnorm_backward(side->stream, &args);
    outputs->arrays[0] = cuda_result(side, dtype, inputs->x.n, args.dx);
    outputs->terms[0] = inputs->n;
    outputs->arrays[1] = cuda_result(side, RP_DTYPE_FP32, inputs->n, args.d_weight);
    outputs->terms[1] = inputs->rows;
}

static void
check_size(RpDtype dtype, size_t rows, size_t n)
{
    Inputs inputs = {.rows = rows,
                     .n = n,
                     .x = host_random(dtype, rows * n, 1),
                     .other = host_random(dtype, rows * n, 1),
                     .weight = host_random(dtype, n, 1),
                     .rstd = host_random(RP_DTYPE_FP32, rows, 0.1),
                     .dy = host_random(dtype, rows * n, 1),
                     .d_weight = host_random(RP_DTYPE_FP32, n, 1)};

    for (size_t row = 0; row < rows; row++)
        ((float *)inputs.rstd.data)[row] += 1;
    for (guint way = 0; way < 4; way++) {
        inputs.residual = way & 1;
        inputs.in_place = way >> 1;
        cuda_hold_to_host(compute_forward, &inputs, TRUE);
        cuda_hold_to_host(compute_backward, &inputs, TRUE);
    }
}

static void
normalises_rows_of_every_length(void **state)
{
    /* beside every limit where the kernel changes */
    static const size_t lengths[] = {1,    3,    8,    61,   64,   67,    128,   131,
                                     256,  263,  512,  521,  1024, 1031,  2048,  2053,
                                     4096, 4099, 8192, 8200, 8201, 16384, 16392, 20011};

    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++)
            check_size((RpDtype)dtype, 37, lengths[i]);
}

static void
adds_gradients_up_over_many_rows(void **state)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        check_size((RpDtype)dtype, 1, 2048);
        check_size((RpDtype)dtype, 33003, 64);
        check_size((RpDtype)dtype, 2311, 777);
        check_size((RpDtype)dtype, 523, 8208);
    }
}

static void
normalises_a_real_model(void **state)
{
    check_size(RP_DTYPE_BF16, 512, 2048);
    check_size(RP_DTYPE_BF16, 512 * 16, 128);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cuda_test(normalises_rows_of_every_length),
        cuda_test(adds_gradients_up_over_many_rows),
        cuda_test(normalises_a_real_model),
    };

    if (!cuda_available())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
