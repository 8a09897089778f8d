#include "tests/exec-host/host-fixture.h"
#include "tests/exec-host/reference.h"

#include <math.h>

typedef struct {
    size_t rows, n;
} Size;

/* rows of hidden size, and of q/k norm: many short ones */
static const Size sizes[] = {{1, 1}, {3, 7}, {13, 1031}, {65, 512}, {197, 33}};

static void
check_forward(RpDtype dtype, Size size, gboolean in_place)
{
    const size_t n = size.rows * size.n;
    const Array x = host_random(dtype, n, 2);
    const Array weight = host_random(dtype, size.n, 1);
    const Array y = in_place ? x : host_output(dtype, n);
    const Array rstd = host_output(RP_DTYPE_FP32, size.rows);
    const RpRmsnormArgs args = {.dtype = dtype,
                                .rows = size.rows,
                                .n = size.n,
                                .epsilon = 1e-5f,
                                .x = x.data,
                                .weight = weight.data,
                                .y = y.data,
                                .rstd = rstd.data};
    double *s = host_doubles(n);
    double *want = host_doubles(n);

    memcpy(s, x.values, n * sizeof *s);
    rp_host_kernels()->rmsnorm_forward(NULL, &args);
    reference_rmsnorm(size.rows, size.n, 1e-5, s, weight.values, want);
    host_assert_close(y, want, size.n, 0);
    for (size_t r = 0; r < size.rows; r++) {
        double squares = 0;

        for (size_t i = 0; i < size.n; i++)
            squares += s[r * size.n + i] * s[r * size.n + i];
        s[r] = 1 / sqrt(squares / (double)size.n + 1e-5);
    }
    host_assert_close(rstd, s, size.n, 0);
}

RP_TEST(normalises_rows_of_any_length)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
            for (guint in_place = 0; in_place < 2; in_place++)
                check_forward((RpDtype)dtype, sizes[i], in_place == 1);
}

static void
check_backward(RpDtype dtype, Size size, gboolean with_residual, gboolean in_place)
{
    const RpKernels *kernels = rp_host_kernels();
    const size_t n = size.rows * size.n;
    const Array x = host_random(dtype, n, 2);
    const Array weight = host_random(dtype, size.n, 1);
    const Array dy = host_random(dtype, n, 1);
    const Array d_residual = host_random(dtype, n, 1);
    const Array dx = in_place ? (with_residual ? d_residual : dy) : host_output(dtype, n);
    const Array d_weight = host_random(RP_DTYPE_FP32, size.n, 1);
    const Array rstd = host_output(RP_DTYPE_FP32, size.rows);
    const Array y = host_output(dtype, n);
    RpRmsnormArgs args = {.dtype = dtype,
                          .rows = size.rows,
                          .n = size.n,
                          .epsilon = 1e-5f,
                          .x = x.data,
                          .weight = weight.data,
                          .y = y.data,
                          .rstd = rstd.data,
                          .dy = dy.data,
                          .d_residual = with_residual ? d_residual.data : NULL,
                          .dx = dx.data,
                          .d_weight = d_weight.data};
    double *want = host_doubles(n);
    double *want_weight = host_doubles(size.n);

    reference_rmsnorm_backward(size.rows, size.n, 1e-5, x.values, weight.values, dy.values, want,
                               want_weight);
    for (size_t i = 0; with_residual && i < n; i++)
        want[i] += d_residual.values[i];
    for (size_t i = 0; i < size.n; i++)
        want_weight[i] += d_weight.values[i];
    kernels->rmsnorm_forward(NULL, &args);
    args.workspace = host_workspace(kernels->rmsnorm_backward_workspace(&args));
    kernels->rmsnorm_backward(NULL, &args);
    host_assert_close(dx, want, size.n, 0);
    host_assert_close(d_weight, want_weight, size.rows + size.n, 0);
    if (in_place)
        return;
    /* a frozen weight's norm: the same dx */
    args.dx = host_output(dtype, n).data;
    args.d_weight = NULL;
    kernels->rmsnorm_backward(NULL, &args);
    assert_memory_equal(args.dx, dx.data, n * rp_dtype_size(dtype));
}

RP_TEST(differentiates_rows_of_any_length)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
            for (guint variant = 0; variant < 4; variant++)
                check_backward((RpDtype)dtype, sizes[i], variant % 2 == 1, variant / 2 == 1);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
