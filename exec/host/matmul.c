/*
 * C[m,n] = A B, or += A B, or residual + A B; + bias; bias: y[t,o] += bias[o], d_bias[o] += sum_t dy[t,o].
 *
 * Matmul is OpenBLAS's sgemm on one thread: fp32 sums, whose order follows from m, n and k. Operands that are not fp32
 * are converted a block at a time; blocks divide m and n, never k, so C is rounded to its storage once, residual and
 * bias added to the finished sum before. Fp8 values are converted as they are, and their scales are sgemm's alpha:
 *
 *            n: RP_BLOCK columns of B converted once
 *          +-----+-----+--
 *   m: A   |  C  |     |     and for each, block after block of A's rows
 *          +-----+-----+--
 */
#include "exec/host/host-private.h"

#include <limits.h>

#include "exec/host/blas.h"

#define RP_BLOCK 256

/* A block of an operand, as sgemm takes it. */
typedef struct {
    const float *data;
    size_t stride;
} Block;

static size_t
block_floats(RpDtype dtype, size_t extent, size_t other)
{
    return dtype == RP_DTYPE_FP32 ? 0 : MIN(extent, RP_BLOCK) * other;
}

size_t
rp_host_matmul_workspace(const RpMatmulArgs *args)
{
    return rp_host_floats(block_floats(args->a_dtype, args->m, args->k)) +
           rp_host_floats(block_floats(args->b_dtype, args->n, args->k)) +
           rp_host_floats(block_floats(args->c_dtype, args->m, MIN(args->n, RP_BLOCK)));
}

/* Rows [row, row + rows) x columns [column, column + columns) of a matrix of @stride columns. */
static Block
load_block(RpDtype dtype, const void *matrix, size_t stride, size_t row, size_t rows, size_t column,
           size_t columns, float *buffer)
{
    if (dtype == RP_DTYPE_FP32)
        return (Block){(const float *)matrix + row * stride + column, stride};
    for (size_t r = 0; r < rows; r++)
        rp_dtype_to_float(dtype, rp_host_at(dtype, matrix, (row + r) * stride + column),
                          buffer + r * columns, columns);
    return (Block){buffer, columns};
}

static Block
load_a(const RpMatmulArgs *args, size_t row, size_t rows, float *buffer)
{
    const size_t stride = rp_matmul_a_stride(args);

    if (args->form == RP_MATMUL_TN)
        return load_block(args->a_dtype, args->a, stride, 0, args->k, row, rows, buffer);
    return load_block(args->a_dtype, args->a, stride, row, rows, 0, args->k, buffer);
}

static Block
load_b(const RpMatmulArgs *args, size_t column, size_t columns, float *buffer)
{
    const size_t stride = rp_matmul_b_stride(args);

    if (args->form == RP_MATMUL_NT)
        return load_block(args->b_dtype, args->b, stride, column, columns, 0, args->k, buffer);
    return load_block(args->b_dtype, args->b, stride, 0, args->k, column, columns, buffer);
}

/* Factor of the sums over k. */
static float
factor_of(const RpMatmulArgs *args)
{
    if (args->a_dtype >= RP_N_DTYPES)
        return *args->a_scale * *args->b_scale;
    return args->scale != 0 ? args->scale : 1.0f;
}

static void
multiply(const RpMatmulArgs *args, size_t m, size_t n, Block a, Block b, float *c, size_t stride)
{
    const CBLAS_TRANSPOSE a_form = args->form == RP_MATMUL_TN ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE b_form = args->form == RP_MATMUL_NT ? CblasTrans : CblasNoTrans;
    const RpBlas *blas = rp_host_blas();

    g_assert(blas != NULL);
    blas->sgemm(CblasRowMajor, a_form, b_form, (blasint)m, (blasint)n, (blasint)args->k,
                factor_of(args), a.data, (blasint)MAX(a.stride, 1), b.data,
                (blasint)MAX(b.stride, 1), args->accumulate || args->residual != NULL ? 1.0f : 0.0f,
                c, (blasint)stride);
}

/* A row of C by itself, as generating needs it: sgemm's order of sums follows from m, too. */
static void
multiply_row(const RpMatmulArgs *args, size_t n, const float *a, Block b, float *c)
{
    const gboolean adds = args->accumulate || args->residual != NULL;
    const float factor = factor_of(args);
    float sums[RP_TILE];

    for (size_t first = 0; first < n; first += RP_TILE) {
        const size_t some = MIN(RP_TILE, n - first);

        memset(sums, 0, sizeof sums);
        if (args->form == RP_MATMUL_NT)
            for (size_t j = 0; j < some; j++)
                sums[j] = rp_host_dot(a, b.data + (first + j) * b.stride, args->k);
        else
            for (size_t k = 0; k < args->k; k++)
                for (size_t j = 0; j < some; j++)
                    sums[j] += a[k] * b.data[k * b.stride + first + j];
        for (size_t j = 0; j < some; j++)
            c[first + j] = (adds ? c[first + j] : 0) + factor * sums[j];
    }
}

static void
multiply_rows(const RpMatmulArgs *args, size_t m, size_t n, Block a, Block b, float *c,
              size_t stride)
{
    g_assert(args->form != RP_MATMUL_TN);
    for (size_t i = 0; i < m; i++)
        multiply_row(args, n, a.data + i * a.stride, b, c + i * stride);
}

/* @rows x @columns sums of C, which begin at its column @column, += bias */
static void
add_bias(const RpMatmulArgs *args, size_t rows, size_t column, size_t columns, float *c,
         size_t stride)
{
    float buffer[RP_TILE];

    for (size_t first = 0; first < columns; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, columns - first);
        const float *bias = rp_host_load(args->c_dtype, args->bias, column + first, n, buffer);

        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < n; i++)
                c[r * stride + first + i] += bias[i];
    }
}

/* Copies an fp32 residual to C, where the sums are added to it. */
static void
copy_rows(const RpMatmulArgs *args, size_t row, size_t rows, size_t column, size_t columns,
          float *c)
{
    const size_t stride = rp_matmul_c_stride(args);
    const float *from = (const float *)args->residual + row * stride + column;

    for (size_t r = 0; r < rows; r++)
        memcpy(c + r * stride, from + r * stride, columns * sizeof(float));
}

static void
multiply_block(const RpMatmulArgs *args, size_t row, size_t rows, size_t column, size_t columns,
               Block a, Block b, float *buffer)
{
    const gboolean in_place = args->c_dtype == RP_DTYPE_FP32;
    const size_t row_of_c = rp_matmul_c_stride(args);
    float *c = in_place ? (float *)args->c + row * row_of_c + column : buffer;
    const size_t stride = in_place ? row_of_c : columns;

    if (!in_place && (args->accumulate || args->residual != NULL))
        load_block(args->c_dtype, args->residual != NULL ? args->residual : args->c, row_of_c, row,
                   rows, column, columns, buffer);
    else if (args->residual != NULL)
        copy_rows(args, row, rows, column, columns, c);
    (args->alone ? multiply_rows : multiply)(args, rows, columns, a, b, c, stride);
    if (args->bias != NULL)
        add_bias(args, rows, column, columns, c, stride);
    for (size_t r = 0; r < rows && !in_place; r++)
        rp_host_store(args->c_dtype, args->c, (row + r) * row_of_c + column, columns,
                      buffer + r * columns);
}

void
rp_host_matmul(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const gboolean whole = args->a_dtype == RP_DTYPE_FP32 && args->b_dtype == RP_DTYPE_FP32 &&
                           args->c_dtype == RP_DTYPE_FP32;
    const size_t row_step = whole ? args->m : RP_BLOCK;
    const size_t column_step = whole ? args->n : RP_BLOCK;
    void *workspace = args->workspace;
    float *a_buffer = rp_host_take(&workspace, block_floats(args->a_dtype, args->m, args->k));
    float *b_buffer = rp_host_take(&workspace, block_floats(args->b_dtype, args->n, args->k));
    float *c_buffer = workspace;

    g_assert(MAX(MAX(args->m, args->n), args->k) <= INT_MAX);
    g_assert(!(args->bias && args->scale != 0));
    g_assert(!(args->residual && args->accumulate));
    g_assert(rp_matmul_a_stride(args) >= (args->form == RP_MATMUL_TN ? args->m : args->k));
    g_assert(rp_matmul_b_stride(args) >= (args->form == RP_MATMUL_NT ? args->k : args->n));
    g_assert(rp_matmul_c_stride(args) >= args->n && !(args->c_stride > 0 && args->bias));
    g_assert(args->a_dtype < RP_N_DTYPES || (args->form == RP_MATMUL_NT && args->scale == 0));
    for (size_t column = 0; column < args->n; column += column_step) {
        const size_t columns = MIN(column_step, args->n - column);
        const Block b = load_b(args, column, columns, b_buffer);

        for (size_t row = 0; row < args->m; row += row_step) {
            const size_t rows = MIN(row_step, args->m - row);
            const Block a = load_a(args, row, rows, a_buffer);

            multiply_block(args, row, rows, column, columns, a, b, c_buffer);
        }
    }
}

void
rp_host_bias_forward(RpKernelStream *stream, const RpBiasArgs *args)
{
    float bias_buffer[RP_TILE], y_buffer[RP_TILE], sum[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *bias = rp_host_load(args->dtype, args->bias, first, n, bias_buffer);

        for (size_t t = 0; t < args->tokens; t++) {
            const size_t index = t * args->n + first;
            const float *y = rp_host_load(args->dtype, args->y, index, n, y_buffer);

            for (size_t i = 0; i < n; i++)
                sum[i] = y[i] + bias[i];
            rp_host_store(args->dtype, args->y, index, n, sum);
        }
    }
}

void
rp_host_bias_backward(RpKernelStream *stream, const RpBiasArgs *args)
{
    float dy_buffer[RP_TILE], partial[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);

        for (size_t t = 0; t < args->tokens; t += RP_PARTIAL_ROWS) {
            const size_t end = MIN(t + RP_PARTIAL_ROWS, args->tokens);

            memset(partial, 0, sizeof partial);
            for (size_t row = t; row < end; row++) {
                const float *dy =
                    rp_host_load(args->dtype, args->dy, row * args->n + first, n, dy_buffer);

                for (size_t i = 0; i < n; i++)
                    partial[i] += dy[i];
            }
            for (size_t i = 0; i < n; i++)
                args->d_bias[first + i] += partial[i];
        }
    }
}

/*
 * A matmul for each expert, over the rows that offsets give it: fp32 sums, whose order
 * follows from the number of its rows, n, and k or m.
 */

/* Expert @expert's matmul, of @rows rows from row @first on. */
static RpMatmulArgs
args_of(const RpGroupedMatmulArgs *args, size_t expert, size_t first, size_t rows)
{
    const gboolean sums_rows = args->form == RP_MATMUL_TN;
    RpMatmulArgs of = {.form = args->form,
                       .m = sums_rows ? args->m : rows,
                       .n = args->n,
                       .k = sums_rows ? rows : args->k,
                       .a_dtype = args->a_dtype,
                       .b_dtype = args->b_dtype,
                       .c_dtype = args->c_dtype,
                       .accumulate = args->accumulate,
                       .alone = args->alone,
                       .scale = args->scale,
                       .workspace = args->workspace};
    const size_t b_at = sums_rows ? first * args->n : expert * args->n * args->k;
    const size_t c_at = sums_rows ? expert * args->m * args->n : first * args->n;

    of.a = rp_host_at(args->a_dtype, args->a, first * (sums_rows ? args->m : args->k));
    of.b = rp_host_at(args->b_dtype, args->b, b_at);
    of.c = (void *)rp_host_at(args->c_dtype, args->c, c_at);
    if (args->bias != NULL)
        of.bias = rp_host_at(args->c_dtype, args->bias, expert * args->n);
    return of;
}

/* All rows may be one expert's. */
size_t
rp_host_grouped_matmul_workspace(const RpGroupedMatmulArgs *args)
{
    RpMatmulArgs all = {.form = args->form,
                        .m = args->form == RP_MATMUL_TN ? args->m : args->rows,
                        .n = args->n,
                        .k = args->form == RP_MATMUL_TN ? args->rows : args->k,
                        .a_dtype = args->a_dtype,
                        .b_dtype = args->b_dtype,
                        .c_dtype = args->c_dtype};

    return rp_host_matmul_workspace(&all);
}

void
rp_host_grouped_matmul(RpKernelStream *stream, const RpGroupedMatmulArgs *args)
{
    g_assert(!(args->bias && args->form == RP_MATMUL_TN));
    for (size_t expert = 0; expert < args->experts; expert++) {
        const size_t first = (size_t)args->offsets[expert];
        const size_t rows = (size_t)args->offsets[expert + 1] - first;
        const RpMatmulArgs of = args_of(args, expert, first, rows);

        if (rows > 0 || (args->form == RP_MATMUL_TN && !args->accumulate))
            rp_host_matmul(stream, &of);
    }
}
