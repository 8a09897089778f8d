/*
 * RMSNorm.
 *
 *   forward   y = weight x rstd,  rstd = 1 / sqrt(mean x^2 + epsilon)                          =
 *   backward  dx = rstd (g - h mean(g h)) + d_residual,  h = x rstd,  g = dy weight           =
 *             d_weight += sum over rows of dy h                                              +=
 *
 * x, y, dx: [rows,n]. Sums over n: fp32 lanes in a tile, tiles in double. Sums over rows: fp32,
 * each RP_PARTIAL_ROWS rows apart, then added to d_weight in order.
 */
#include "exec/host/host-private.h"

/* The first element of a row, where @heads rows stand at every @row_heads. */
static size_t
place_of(const RpHostHeads *of, size_t n, size_t row)
{
    return (row / of->heads * of->row_heads + row % of->heads) * n;
}

static double
sum_squares(const RpRmsnormArgs *args, size_t place)
{
    float buffer[RP_TILE];
    double squares = 0;

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *x = rp_host_load(args->dtype, args->x, place + first, n, buffer);

        squares += (double)rp_host_dot(x, x, n);
    }
    return squares;
}

void
rp_host_norm_heads(const RpRmsnormArgs *args, RpHostHeads of)
{
    float x_buffer[RP_TILE], weight_buffer[RP_TILE], y[RP_TILE];

    for (size_t row = 0; row < args->rows; row++) {
        const size_t place = place_of(&of, args->n, row);
        const float mean = (float)(sum_squares(args, place) / (double)args->n);
        const float rstd = 1.0f / sqrtf(mean + args->epsilon);

        args->rstd[row] = rstd;
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first);
            const size_t index = row * args->n + first;
            const float *x = rp_host_load(args->dtype, args->x, place + first, n, x_buffer);
            const float *weight = rp_host_load(args->dtype, args->weight, first, n, weight_buffer);

            for (size_t i = 0; i < n; i++)
                y[i] = weight[i] * (x[i] * rstd);
            rp_host_store(args->dtype, args->y, index, n, y);
        }
    }
    rp_host_note_largest(args->dtype, args->y, args->rows * args->n, args->largest);
}

void
rp_host_rmsnorm_forward(RpKernelStream *stream, const RpRmsnormArgs *args)
{
    rp_host_norm_heads(args, (RpHostHeads){1, 1});
}

/* Rows of one tile of columns, as floats. */
typedef struct {
    float s_buffer[RP_TILE], dy_buffer[RP_TILE], weight_buffer[RP_TILE];
    const float *s, *dy, *weight;
    size_t n;
} Tile;

static void
load_tile(Tile *tile, const RpRmsnormArgs *args, size_t place, size_t first)
{
    const size_t n = MIN(RP_TILE, args->n - first);
    const size_t index = place + first;

    tile->n = n;
    tile->s = rp_host_load(args->dtype, args->x, index, n, tile->s_buffer);
    tile->dy = rp_host_load(args->dtype, args->dy, index, n, tile->dy_buffer);
    tile->weight = rp_host_load(args->dtype, args->weight, first, n, tile->weight_buffer);
}

/* mean over a row of g h */
static float
mean_gradient(const RpRmsnormArgs *args, size_t place, float rstd)
{
    float g[RP_TILE], h[RP_TILE];
    double sum = 0;
    Tile tile;

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        load_tile(&tile, args, place, first);
        for (size_t i = 0; i < tile.n; i++) {
            g[i] = tile.dy[i] * tile.weight[i];
            h[i] = tile.s[i] * rstd;
        }
        sum += (double)rp_host_dot(g, h, tile.n);
    }
    return (float)(sum / (double)args->n);
}

/* dx of one row; adds the row to @partial, [n]. */
static void
backward_row(const RpRmsnormArgs *args, size_t place, float rstd, float *partial)
{
    const float mean = mean_gradient(args, place, rstd);
    float dx[RP_TILE], residual_buffer[RP_TILE];
    Tile tile;

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t index = place + first;

        load_tile(&tile, args, place, first);
        for (size_t i = 0; i < tile.n; i++) {
            const float h = tile.s[i] * rstd;

            partial[first + i] += tile.dy[i] * h;
            dx[i] = rstd * (tile.dy[i] * tile.weight[i] - h * mean);
        }
        if (args->d_residual != NULL) {
            const float *residual =
                rp_host_load(args->dtype, args->d_residual, index, tile.n, residual_buffer);

            for (size_t i = 0; i < tile.n; i++)
                dx[i] += residual[i];
        }
        rp_host_store(args->dtype, args->dx, index, tile.n, dx);
    }
}

size_t
rp_host_rmsnorm_backward_workspace(const RpRmsnormArgs *args)
{
    return rp_host_floats(args->n);
}

void
rp_host_norm_heads_backward(const RpRmsnormArgs *args, RpHostHeads of)
{
    float *partial = args->workspace;

    for (size_t first = 0; first < args->rows; first += RP_PARTIAL_ROWS) {
        const size_t end = MIN(first + RP_PARTIAL_ROWS, args->rows);

        memset(partial, 0, args->n * sizeof *partial);
        for (size_t row = first; row < end; row++)
            backward_row(args, place_of(&of, args->n, row), args->rstd[row], partial);
        for (size_t i = 0; i < args->n && args->d_weight != NULL; i++)
            args->d_weight[i] += partial[i];
    }
    rp_host_note_largest(args->dtype, args->dx, args->rows * args->n, args->largest);
}

void
rp_host_rmsnorm_backward(RpKernelStream *stream, const RpRmsnormArgs *args)
{
    rp_host_norm_heads_backward(args, (RpHostHeads){1, 1});
}
