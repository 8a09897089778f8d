/*
 * Rotary position embedding, rotate-half as in transformers. Its tables: exec/model/rope-table.h.
 * x, y: [T,H,D]; tables [positions,D/2]; =; fp32 products, no sums. Formulas: exec/kernels/args.h.
 */
#include "exec/host/host-private.h"

/* Turns one head, @from and @to its first elements; @direction 1 or -1. */
static void
rotate_head(const RpRopeArgs *args, size_t from, size_t to, const float *cosines,
            const float *sines, float direction)
{
    const size_t half = args->head_size / 2;
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
}

/* @y_heads: from a token of y to the next */
static void
rotate(const RpRopeArgs *args, size_t y_heads, float direction)
{
    const size_t x_heads = args->row_heads > 0 ? args->row_heads : args->heads;
    const size_t half = args->head_size / 2;

    g_assert(args->head_size % 2 == 0);
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
