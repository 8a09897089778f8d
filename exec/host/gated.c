/*
 * The parts beside the delta rule: causal convolution with SiLU, gated norm, the gate of attention's heads, and copies of
 * columns. Formulas and shapes: exec/kernels/delta-args.h. Sums over tokens or rows: fp32, each RP_PARTIAL_ROWS of them
 * apart, then added in order; over a row: fp32 lanes.
 */
#include "exec/host/host-private.h"

/* The derivative of x sigmoid(x). */
static float
silu_slope(float x)
{
    const float s = rp_host_sigmoid(x);

    return s * (1.0f + x * (1.0f - s));
}

/* ---- convolution ---- */

/* weight[c,k] of @n columns from @first on, as [K,n]. */
static void
load_taps(const RpConvArgs *args, size_t first, size_t n, float *taps)
{
    float buffer[RP_MOST_CONV];

    for (size_t c = 0; c < n; c++) {
        const size_t at = (first + c) * args->kernel;
        const float *weight = rp_host_load(args->dtype, args->weight, at, args->kernel, buffer);

        for (size_t k = 0; k < args->kernel; k++)
            taps[k * n + c] = weight[k];
    }
}

/* z of one token; @before: tokens of its sequence before it. */
static void
convolve(const RpConvArgs *args, size_t token, size_t before, size_t first, size_t n,
         const float *taps, float *z)
{
    float buffer[RP_TILE];

    memset(z, 0, n * sizeof *z);
    for (size_t k = 0; k < args->kernel; k++) {
        const size_t back = args->kernel - 1 - k;

        if (back > before)
            continue;
        const float *x =
            rp_host_load(args->dtype, args->x, (token - back) * args->n + first, n, buffer);

        for (size_t c = 0; c < n; c++)
            z[c] += taps[k * n + c] * x[c];
    }
}

void
rp_host_conv_forward(RpKernelStream *stream, const RpConvArgs *args)
{
    float taps[RP_MOST_CONV * RP_TILE], z[RP_TILE];

    g_assert(args->kernel <= RP_MOST_CONV);
    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);

        load_taps(args, first, n, taps);
        for (size_t s = 0; s < args->sequences; s++)
            for (size_t t = (size_t)args->starts[s]; t < (size_t)args->starts[s + 1]; t++) {
                convolve(args, t, t - (size_t)args->starts[s], first, n, taps, z);
                for (size_t c = 0; c < n; c++)
                    z[c] *= rp_host_sigmoid(z[c]);
                rp_host_store(args->dtype, args->y, t * args->n + first, n, z);
            }
    }
}

/* Gradients of z of a tile's last tokens, in a ring, and sums of weights' gradients. */
typedef struct {
    float taps[RP_MOST_CONV * RP_TILE];
    float slopes[RP_MOST_CONV][RP_TILE];
    float sums[RP_MOST_CONV * RP_TILE];
} ConvTile;

size_t
rp_host_conv_backward_workspace(const RpConvArgs *args)
{
    return (sizeof(ConvTile) + 63) / 64 * 64;
}

static void
add_sums(const RpConvArgs *args, size_t first, size_t n, float *sums)
{
    for (size_t c = 0; c < n && args->d_weight != NULL; c++)
        for (size_t k = 0; k < args->kernel; k++)
            args->d_weight[(first + c) * args->kernel + k] += sums[k * n + c];
    memset(sums, 0, args->kernel * n * sizeof *sums);
}

/* e of one token, and what it adds to the weights' gradient. */
static void
differentiate_token(const RpConvArgs *args, size_t token, size_t before, size_t first, size_t n,
                    ConvTile *tile)
{
    float z[RP_TILE], buffer[RP_TILE], *e = tile->slopes[token % RP_MOST_CONV];
    const float *dy = rp_host_load(args->dtype, args->dy, token * args->n + first, n, buffer);

    convolve(args, token, before, first, n, tile->taps, z);
    for (size_t c = 0; c < n; c++)
        e[c] = dy[c] * silu_slope(z[c]);
    for (size_t k = 0; k < args->kernel; k++) {
        const size_t back = args->kernel - 1 - k;

        if (back > before)
            continue;
        const float *x =
            rp_host_load(args->dtype, args->x, (token - back) * args->n + first, n, buffer);

        for (size_t c = 0; c < n; c++)
            tile->sums[k * n + c] += e[c] * x[c];
    }
}

/* Last to first: dx of a token needs e of those behind it alone. */
static void
backward_sequence(const RpConvArgs *args, size_t begin, size_t end, size_t first, size_t n,
                  ConvTile *tile)
{
    float dx[RP_TILE];

    for (size_t t = end; t-- > begin;) {
        differentiate_token(args, t, t - begin, first, n, tile);
        memset(dx, 0, n * sizeof *dx);
        for (size_t back = 0; back < args->kernel && t + back < end; back++)
            for (size_t c = 0; c < n; c++)
                dx[c] += tile->taps[(args->kernel - 1 - back) * n + c] *
                         tile->slopes[(t + back) % RP_MOST_CONV][c];
        rp_host_store(args->dtype, args->dx, t * args->n + first, n, dx);
        if ((end - t) % RP_PARTIAL_ROWS == 0)
            add_sums(args, first, n, tile->sums);
    }
    add_sums(args, first, n, tile->sums);
}

void
rp_host_conv_backward(RpKernelStream *stream, const RpConvArgs *args)
{
    ConvTile *tile = args->workspace;

    g_assert(args->kernel <= RP_MOST_CONV);
    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);

        load_taps(args, first, n, tile->taps);
        memset(tile->sums, 0, args->kernel * n * sizeof *tile->sums);
        for (size_t s = 0; s < args->sequences; s++)
            backward_sequence(args, (size_t)args->starts[s], (size_t)args->starts[s + 1], first, n,
                              tile);
    }
}

/* ---- gated norm ---- */

/* Rows as floats: x, gate, dy, and f and h. */
typedef struct {
    float *x, *gate, *dy, *f, *weight, *partial;
} NormRow;

static NormRow
take_rows(const RpGatedNormArgs *args, float *memory)
{
    return (NormRow){memory,
                     memory + args->n,
                     memory + 2 * args->n,
                     memory + 3 * args->n,
                     memory + 4 * args->n,
                     memory + 5 * args->n};
}

static void
load_row(const RpGatedNormArgs *args, const void *array, size_t row, float *values)
{
    const float *x = rp_host_load(args->dtype, array, row * args->n, args->n, values);

    if (x != values)
        memcpy(values, x, args->n * sizeof *values);
}

static float
rstd_of(const RpGatedNormArgs *args, const float *x)
{
    const float mean = rp_host_dot(x, x, args->n) / (float)args->n;

    return 1.0f / sqrtf(mean + args->epsilon);
}

void
rp_host_gated_norm_forward(RpKernelStream *stream, const RpGatedNormArgs *args)
{
    g_autofree float *memory = g_new(float, 6 * args->n);
    const NormRow r = take_rows(args, memory);

    load_row(args, args->weight, 0, r.weight);
    for (size_t row = 0; row < args->rows; row++) {
        load_row(args, args->x, row, r.x);
        load_row(args, args->gate, row, r.gate);
        const float rstd = rstd_of(args, r.x);

        for (size_t i = 0; i < args->n; i++)
            r.f[i] = r.weight[i] * (r.x[i] * rstd) * (r.gate[i] * rp_host_sigmoid(r.gate[i]));
        rp_host_store(args->dtype, args->y, row * args->n, args->n, r.f);
    }
}

size_t
rp_host_gated_norm_backward_workspace(const RpGatedNormArgs *args)
{
    return rp_host_floats(6 * args->n);
}

static void
gated_norm_row(const RpGatedNormArgs *args, size_t row, const NormRow *r)
{
    load_row(args, args->x, row, r->x);
    load_row(args, args->gate, row, r->gate);
    load_row(args, args->dy, row, r->dy);
    const float rstd = rstd_of(args, r->x);

    for (size_t i = 0; i < args->n; i++) {
        const float h = r->x[i] * rstd, s = r->gate[i] * rp_host_sigmoid(r->gate[i]);

        r->f[i] = r->dy[i] * r->weight[i] * s;
        r->partial[i] += r->dy[i] * h * s;
        r->gate[i] = r->dy[i] * r->weight[i] * h * silu_slope(r->gate[i]);
        r->x[i] = h;
    }
    const float mean = rp_host_dot(r->f, r->x, args->n) / (float)args->n;

    for (size_t i = 0; i < args->n; i++)
        r->f[i] = rstd * (r->f[i] - r->x[i] * mean);
    rp_host_store(args->dtype, args->d_gate, row * args->n, args->n, r->gate);
    rp_host_store(args->dtype, args->dx, row * args->n, args->n, r->f);
}

void
rp_host_gated_norm_backward(RpKernelStream *stream, const RpGatedNormArgs *args)
{
    const NormRow r = take_rows(args, args->workspace);

    load_row(args, args->weight, 0, r.weight);
    for (size_t first = 0; first < args->rows; first += RP_PARTIAL_ROWS) {
        memset(r.partial, 0, args->n * sizeof *r.partial);
        for (size_t row = first; row < MIN(first + RP_PARTIAL_ROWS, args->rows); row++)
            gated_norm_row(args, row, &r);
        for (size_t i = 0; i < args->n && args->d_weight != NULL; i++)
            args->d_weight[i] += r.partial[i];
    }
}

/* ---- gates of heads and rows, and columns ---- */

void
rp_host_head_gate_forward(RpKernelStream *stream, const RpHeadGateArgs *args)
{
    float x_buffer[RP_TILE], gate_buffer[RP_TILE], y[RP_TILE];

    for (size_t row = 0; row < args->rows; row++)
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const float *x = rp_host_load(args->dtype, args->x, at, n, x_buffer);
            const float *gate = rp_host_load(args->dtype, args->gate,
                                             row * args->gate_stride + first, n, gate_buffer);

            for (size_t i = 0; i < n; i++)
                y[i] = x[i] * rp_host_sigmoid(gate[i]);
            rp_host_store(args->dtype, args->y, at, n, y);
        }
}

void
rp_host_head_gate_backward(RpKernelStream *stream, const RpHeadGateArgs *args)
{
    float x_buffer[RP_TILE], gate_buffer[RP_TILE], dy_buffer[RP_TILE], dx[RP_TILE], d_gate[RP_TILE];

    for (size_t row = 0; row < args->rows; row++)
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const size_t gate_at = row * args->gate_stride + first;
            const float *x = rp_host_load(args->dtype, args->x, at, n, x_buffer);
            const float *dy = rp_host_load(args->dtype, args->dy, at, n, dy_buffer);
            const float *gate = rp_host_load(args->dtype, args->gate, gate_at, n, gate_buffer);

            for (size_t i = 0; i < n; i++) {
                const float s = rp_host_sigmoid(gate[i]);

                dx[i] = dy[i] * s;
                d_gate[i] = dy[i] * x[i] * s * (1 - s);
            }
            rp_host_store(args->dtype, args->dx, at, n, dx);
            rp_host_store(args->dtype, args->d_gate, gate_at, n, d_gate);
        }
}

void
rp_host_row_gate_forward(RpKernelStream *stream, const RpRowGateArgs *args)
{
    float x_buffer[RP_TILE], y[RP_TILE];

    for (size_t row = 0; row < args->rows; row++) {
        const float s = rp_host_sigmoid(rp_host_element(args->dtype, args->gate, row));

        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const float *x = rp_host_load(args->dtype, args->x, at, n, x_buffer);

            for (size_t i = 0; i < n; i++)
                y[i] = x[i] * s;
            rp_host_store(args->dtype, args->y, at, n, y);
        }
    }
}

void
rp_host_row_gate_backward(RpKernelStream *stream, const RpRowGateArgs *args)
{
    float x_buffer[RP_TILE], dy_buffer[RP_TILE], y[RP_TILE], dx[RP_TILE];

    for (size_t row = 0; row < args->rows; row++) {
        const float s = rp_host_sigmoid(rp_host_element(args->dtype, args->gate, row));
        float sum = 0;

        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const float *x = rp_host_load(args->dtype, args->x, at, n, x_buffer);
            const float *dy = rp_host_load(args->dtype, args->dy, at, n, dy_buffer);

            sum += rp_host_dot(dy, x, n);
            for (size_t i = 0; i < n; i++) {
                y[i] = x[i] * s;
                dx[i] = dy[i] * s;
            }
            rp_host_store(args->dtype, args->y, at, n, y);
            rp_host_store(args->dtype, args->dx, at, n, dx);
        }
        sum *= s * (1 - s);
        rp_host_store(args->dtype, args->d_gate, row, 1, &sum);
    }
}

void
rp_host_columns(RpKernelStream *stream, const RpColumnsArgs *args)
{
    const size_t size = rp_dtype_size(args->dtype);

    for (size_t row = 0; row < args->rows; row++)
        memcpy((char *)args->y + row * args->y_stride * size,
               (const char *)args->x + row * args->x_stride * size, args->n * size);
}
