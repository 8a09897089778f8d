/*
 * No operand that cuBLASLt gets has 2^31 elements: not all of its kernels count further. Tokens go
 * in parts then: rows of A and C, or (TN) rows of A and B, whose sums are added to C one after
 * another.
 */
#include "exec/cuda/kernels/kernels-private.h"

#define MOST_ELEMENTS (((size_t)1 << 31) - 1)
#define PART_ROWS 512 /* parts have a multiple of these, so that their alignment stays */

/* Elements from a row to the next; of A^T, a column. */
static size_t
row_of_a(const RpMatmulArgs *args)
{
    return args->form == RP_MATMUL_TN ? args->m : args->a_stride > 0 ? args->a_stride : args->k;
}

/* Rows of a part, 0: it cannot be divided, or need not be. */
static size_t
find_part(const RpMatmulArgs *args)
{
    const gboolean adds = args->form == RP_MATMUL_TN;
    const size_t rows = adds ? args->k : args->m;
    const size_t width = adds ? MAX(args->m, args->n) : MAX(row_of_a(args), args->n);

    if (width == 0 || rows <= MOST_ELEMENTS / width || (adds && args->c_dtype != RP_DTYPE_FP32))
        return 0;
    return MOST_ELEMENTS / width / PART_ROWS * PART_ROWS;
}

static const void *
at_element(const void *array, RpDtype dtype, size_t element)
{
    return (const guint8 *)array + element * rp_dtype_size(dtype);
}

void
rp_cuda_matmul(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const gboolean adds = args->form == RP_MATMUL_TN;
    const size_t step = adds && (args->bias || args->residual) ? 0 : find_part(args);
    const size_t rows = adds ? args->k : args->m;

    if (step == 0) {
        rp_cuda_multiply(stream, args);
        return;
    }
    for (size_t at = 0; at < rows; at += step) {
        RpMatmulArgs part = *args;

        part.a = at_element(args->a, args->a_dtype, at * row_of_a(args));
        if (adds) {
            part.k = MIN(step, rows - at);
            part.b = at_element(args->b, args->b_dtype, at * args->n);
            part.accumulate = args->accumulate || at > 0;
        } else {
            part.m = MIN(step, rows - at);
            part.c = (void *)at_element(args->c, args->c_dtype, at * args->n);
            if (args->residual != NULL)
                part.residual = at_element(args->residual, args->c_dtype, at * args->n);
        }
        rp_cuda_multiply(stream, &part);
    }
}
