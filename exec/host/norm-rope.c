/*
 * RMSNorm, rope, and q/k norm and rope.
 *
 * RMSNorm:
 *
 *   forward   y = weight x rstd,  rstd = 1 / sqrt(mean x^2 + epsilon)                          =
 *   backward  dx = rstd (g - h mean(g h)) + d_residual,  h = x rstd,  g = dy weight           =
 *             d_weight += sum over rows of dy h                                              +=
 *
 * x, y, dx: [rows,n]. Sums over n: fp32 lanes in a tile, tiles in double. Sums over rows: fp32,
 * each RP_PARTIAL_ROWS rows apart, then added to d_weight in order.
 */
#include "exec/host/host-private.h"

/* Rows of a norm that are heads of tokens: heads of a token, and heads from it to the next. Both 1: no gaps */
typedef struct {
    size_t heads, row_heads;
} Heads;

/* The first element of a row, where @heads rows stand at every @row_heads. */
static size_t
place_of(const Heads *of, size_t n, size_t row)
{
    return (row / of->heads * of->row_heads + row % of->heads) * n;
}

/* Without a shift -0 stays -0. */
static float
shifted(const RpRmsnormArgs *args, float weight)
{
    return args->shift != 0 ? weight + args->shift : weight;
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

/* rmsnorm_forward of x, whose rows stand so; y has no gaps. Bits are those without gaps. */
static void
norm_heads(const RpRmsnormArgs *args, Heads of)
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
                y[i] = shifted(args, weight[i]) * (x[i] * rstd);
            rp_host_store(args->dtype, args->y, index, n, y);
        }
    }
    rp_host_note_largest(args->dtype, args->y, args->rows * args->n, args->largest);
}

void
rp_host_rmsnorm_forward(RpKernelStream *stream, const RpRmsnormArgs *args)
{
    norm_heads(args, (Heads){1, 1});
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
            g[i] = tile.dy[i] * shifted(args, tile.weight[i]);
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
            dx[i] = rstd * (tile.dy[i] * shifted(args, tile.weight[i]) - h * mean);
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

/* rmsnorm_backward of x, dy and dx, whose rows stand so. With gaps @args' largest is NULL. */
static void
norm_heads_backward(const RpRmsnormArgs *args, Heads of)
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
    norm_heads_backward(args, (Heads){1, 1});
}

/*
 * Rotary position embedding, rotate-half as in transformers. Its tables: exec/model/rope-table.h.
 * x, y: [T,H,D]; tables [positions,D/2]; =; fp32 products, no sums. Formulas: exec/kernels/args.h.
 */

static size_t
rotary_of(const RpRopeArgs *args)
{
    return args->rotary > 0 ? args->rotary : args->head_size;
}

/* Turns one head, @from and @to its first elements; @direction 1 or -1. */
static void
rotate_head(const RpRopeArgs *args, size_t from, size_t to, const float *cosines,
            const float *sines, float direction)
{
    const size_t rotary = rotary_of(args), half = rotary / 2;
    float x_buffer[2][RP_TILE], y[2][RP_TILE];

    for (size_t first = 0; first < half; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, half - first);
        const float *lower = rp_host_load(args->dtype, args->x, from + first, n, x_buffer[0]);
        const float *upper =
            rp_host_load(args->dtype, args->x, from + half + first, n, x_buffer[1]);

        for (size_t i = 0; i < n; i++) {
            const float c = cosines[first + i];
            const float s = direction * sines[first + i];

            y[0][i] = lower[i] * c - upper[i] * s;
            y[1][i] = upper[i] * c + lower[i] * s;
        }
        rp_host_store(args->dtype, args->y, to + first, n, y[0]);
        rp_host_store(args->dtype, args->y, to + half + first, n, y[1]);
    }
    for (size_t first = rotary; first < args->head_size && args->x != args->y; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->head_size - first);

        rp_host_store(args->dtype, args->y, to + first, n,
                      rp_host_load(args->dtype, args->x, from + first, n, x_buffer[0]));
    }
}

/* @y_heads: from a token of y to the next */
static void
rotate(const RpRopeArgs *args, size_t y_heads, float direction)
{
    const size_t x_heads = args->row_heads > 0 ? args->row_heads : args->heads;
    const size_t half = rotary_of(args) / 2;

    g_assert(rotary_of(args) % 2 == 0);
    for (size_t t = 0; t < args->tokens; t++) {
        const size_t row = (size_t)args->positions[t] * half;

        for (size_t head = 0; head < args->heads; head++)
            rotate_head(args, (t * x_heads + head) * args->head_size,
                        (t * y_heads + head) * args->head_size, args->cosines + row,
                        args->sines + row, direction);
    }
}

void
rp_host_rope_forward(RpKernelStream *stream, const RpRopeArgs *args)
{
    rotate(args, args->heads, 1.0f);
}

void
rp_host_rope_backward(RpKernelStream *stream, const RpRopeArgs *args)
{
    rotate(args, args->row_heads > 0 ? args->row_heads : args->heads, -1.0f);
}

/*
 * q/k norm and rope, one after the other, in place.
 * x, y: [T,H,D]; rows of the norm are heads. Tokens of x, dy and dx may stand apart. Formulas: exec/kernels/kernels.h.
 */
static RpRmsnormArgs
norm_of(const RpNormRopeArgs *args)
{
    return (RpRmsnormArgs){.dtype = args->dtype,
                           .rows = args->tokens * args->heads,
                           .n = args->head_size,
                           .epsilon = args->epsilon,
                           .shift = args->shift,
                           .x = args->x,
                           .weight = args->weight,
                           .y = args->y,
                           .rstd = args->rstd,
                           .dy = args->dx, /* rotated back there */
                           .dx = args->dx,
                           .d_weight = args->d_weight,
                           .workspace = args->workspace,
                           .largest = args->largest};
}

static Heads
heads_of(const RpNormRopeArgs *args)
{
    return (Heads){args->heads, args->row_heads > 0 ? args->row_heads : args->heads};
}

static RpRopeArgs
rope_of(const RpNormRopeArgs *args, const void *x, void *y)
{
    return (RpRopeArgs){.dtype = args->dtype,
                        .tokens = args->tokens,
                        .heads = args->heads,
                        .head_size = args->head_size,
                        .rotary = args->rotary,
                        .positions = args->positions,
                        .cosines = args->cosines,
                        .sines = args->sines,
                        .x = x,
                        .y = y};
}

void
rp_host_norm_rope_forward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    RpRmsnormArgs norm = norm_of(args);
    const RpRopeArgs rope = rope_of(args, args->y, args->y);

    norm.largest = NULL;

    norm_heads(&norm, heads_of(args));
    rp_host_rope_forward(stream, &rope);
}

size_t
rp_host_norm_rope_backward_workspace(const RpNormRopeArgs *args)
{
    const RpRmsnormArgs norm = norm_of(args);

    return rp_host_rmsnorm_backward_workspace(&norm);
}

void
rp_host_norm_rope_backward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    const RpRmsnormArgs norm = norm_of(args);
    RpRopeArgs rope = rope_of(args, args->dy, args->dx);

    rope.row_heads = args->row_heads;
    g_assert(args->row_heads == 0 || args->largest == NULL);
    rp_host_rope_backward(stream, &rope);
    norm_heads_backward(&norm, heads_of(args));
}
