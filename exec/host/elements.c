/*
 * Kernels that work element by element: SwiGLU, conversion, addition, filling, a search for values
 * that are not finite; and the sum of squares.
 *
 *   SwiGLU    y = a s up;  d_gate = dy up s (1 + a (1 - s)),  d_up = dy a s;  s = sigmoid(a)      =
 *   convert   y = x;  add: y = x + b;  fill: x = value                                            =
 *   gather    y[i] += round(x[i]), or = round(x[i]); y fp32                                    +=, =
 *   dropout   y = x / (1 - p), or 0, by a word of Philox for each element                      +=, =
 *   noise     y += m u, u uniform in [-1, 1) by a word of Philox for each element                +=
 *   scatter   y[rows[i]] = x[i]                                                                  =
 *   squares   sum += sum x^2, in double lanes                                                    +=
 *
 * n elements; fp32 arithmetic. A tile is read as a whole before it is written: in place is fine.
 */
#include "core/base/fp8.h"
#include "exec/host/host-private.h"
#include "exec/kernels/philox.h"

/* Finds element @first of gate and up, and how many elements follow it in place, RP_TILE at most. */
static size_t
place_of(const RpSwigluArgs *args, size_t first, size_t *n)
{
    *n = MIN(RP_TILE, args->n - first);
    if (args->row == 0)
        return first;
    *n = MIN(*n, args->row - first % args->row);
    return first + first / args->row * args->row;
}

void
rp_host_swiglu_forward(RpKernelStream *stream, const RpSwigluArgs *args)
{
    float gate_buffer[RP_TILE], up_buffer[RP_TILE], y[RP_TILE];

    for (size_t first = 0, n; first < args->n; first += n) {
        const size_t at = place_of(args, first, &n);
        const float *gate = rp_host_load(args->dtype, args->gate, at, n, gate_buffer);
        const float *up = rp_host_load(args->dtype, args->up, at, n, up_buffer);

        for (size_t i = 0; i < n; i++)
            y[i] = gate[i] * rp_host_sigmoid(gate[i]) * up[i];
        rp_host_store(args->dtype, args->y, args->y == args->gate ? at : first, n, y);
    }
    rp_host_note_largest(args->dtype, args->y, args->n, args->largest);
}

void
rp_host_swiglu_backward(RpKernelStream *stream, const RpSwigluArgs *args)
{
    float gate_buffer[RP_TILE], up_buffer[RP_TILE], dy_buffer[RP_TILE];
    float d_gate[RP_TILE], d_up[RP_TILE], product[RP_TILE];

    for (size_t first = 0, n; first < args->n; first += n) {
        const size_t at = place_of(args, first, &n);
        const float *gate = rp_host_load(args->dtype, args->gate, at, n, gate_buffer);
        const float *up = rp_host_load(args->dtype, args->up, at, n, up_buffer);
        const float *dy = rp_host_load(args->dtype, args->dy, first, n, dy_buffer);

        for (size_t i = 0; i < n; i++) {
            const float s = rp_host_sigmoid(gate[i]);

            d_gate[i] = dy[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
            d_up[i] = dy[i] * (gate[i] * s);
            product[i] = gate[i] * s * up[i];
        }
        rp_host_store(args->dtype, args->d_gate, at, n, d_gate);
        rp_host_store(args->dtype, args->d_up, at, n, d_up);
        if (args->product != NULL)
            rp_host_store(args->dtype, args->product, first, n, product);
    }
    rp_host_note_largest(args->dtype, args->d_gate, args->n, args->d_gate_largest);
    rp_host_note_largest(args->dtype, args->d_up, args->n, args->d_up_largest);
    if (args->product != NULL)
        rp_host_note_largest(args->dtype, args->product, args->n, args->largest);
}

void
rp_host_convert(RpKernelStream *stream, const RpElementsArgs *args)
{
    float buffer[RP_TILE];

    if (args->x_dtype == args->y_dtype) {
        if (args->n > 0 && args->x != args->y)
            memcpy(args->y, args->x, args->n * rp_dtype_size(args->x_dtype));
        return;
    }
    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *x = rp_host_load(args->x_dtype, args->x, first, n, buffer);

        rp_host_store(args->y_dtype, args->y, first, n, x);
    }
}

void
rp_host_add(RpKernelStream *stream, const RpElementsArgs *args)
{
    float x_buffer[RP_TILE], b_buffer[RP_TILE], y[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *x = rp_host_load(args->x_dtype, args->x, first, n, x_buffer);
        const float *b = rp_host_load(args->b_dtype, args->b, first, n, b_buffer);

        for (size_t i = 0; i < n; i++)
            y[i] = x[i] + b[i];
        rp_host_store(args->y_dtype, args->y, first, n, y);
    }
}

void
rp_host_gather(RpKernelStream *stream, const RpGatherArgs *args)
{
    float stored[RP_TILE], x_buffer[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        float *y = args->y + first;

        rp_dtype_from_float(args->dtype, args->x + first, stored, n);
        const float *x = rp_host_load(args->dtype, stored, 0, n, x_buffer);
        for (size_t i = 0; i < n; i++)
            y[i] = args->begin ? x[i] : y[i] + x[i];
    }
}

void
rp_host_scatter(RpKernelStream *stream, const RpScatterArgs *args)
{
    const size_t bytes = args->columns * rp_dtype_size(args->dtype);

    for (size_t i = 0; i < args->n; i++)
        memcpy((guint8 *)args->y + (size_t)args->rows[i] * bytes,
               (const guint8 *)args->x + i * bytes, bytes);
}

void
rp_host_fill(RpKernelStream *stream, const RpFillArgs *args)
{
    float values[RP_TILE];

    for (size_t i = 0; i < RP_TILE; i++)
        values[i] = args->value;
    for (size_t first = 0; first < args->n; first += RP_TILE)
        rp_host_store(args->dtype, args->x, first, MIN(RP_TILE, args->n - first), values);
}

/* @factors: (out): of the elements of a row from @first on, which is a multiple of 4 */
static void
drop(const RpDropoutArgs *args, size_t row, size_t first, size_t n, float *factors)
{
    for (size_t i = 0; i < n; i += 4) {
        uint32_t words[4] = {(uint32_t)((first + i) / 4), args->row + (uint32_t)row, args->step, 0};

        rp_philox_stir(words, args->key);
        for (size_t j = 0; j < 4; j++)
            factors[i + j] = words[j] >= args->threshold ? args->scale : 0;
    }
}

void
rp_host_dropout(RpKernelStream *stream, const RpDropoutArgs *args)
{
    float x_buffer[RP_TILE], y_buffer[RP_TILE], factors[RP_TILE], y[RP_TILE];

    for (size_t row = 0; row < args->rows; row++)
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const float *x = rp_host_load(args->dtype, args->x, at, n, x_buffer);
            const float *old =
                args->accumulate ? rp_host_load(args->dtype, args->y, at, n, y_buffer) : NULL;

            drop(args, row, first, n, factors);
            for (size_t i = 0; i < n; i++) {
                const float kept = factors[i] != 0 ? x[i] * factors[i] : 0;

                y[i] = old != NULL ? old[i] + kept : kept;
            }
            rp_host_store(args->dtype, args->y, at, n, y);
        }
}

void
rp_host_noise(RpKernelStream *stream, const RpNoiseArgs *args)
{
    float y_buffer[RP_TILE], y[RP_TILE];

    for (size_t row = 0; row < args->rows; row++)
        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first), at = row * args->n + first;
            const float *old = rp_host_load(args->dtype, args->y, at, n, y_buffer);
            uint32_t words[4];

            for (size_t i = 0; i < n; i++) {
                if (i % 4 == 0) {
                    words[0] = (uint32_t)((first + i) / 4);
                    words[1] = args->row + (uint32_t)row;
                    words[2] = args->step;
                    words[3] = 1;
                    rp_philox_stir(words, args->key);
                }
                y[i] = old[i] + (float)(int32_t)words[i % 4] * 0x1p-31f * args->magnitude;
            }
            rp_host_store(args->dtype, args->y, at, n, y);
        }
}

void
rp_host_find_broken(RpKernelStream *stream, const RpFindBrokenArgs *args)
{
    const uint16_t infinity = args->dtype == RP_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    const uint32_t *wide = args->x;
    const uint16_t *narrow = args->x;
    /* as wide as the values: vectors of one width */
    uint32_t found_wide = 0;
    uint16_t found_narrow = 0;

    if (args->dtype == RP_DTYPE_FP32)
        for (size_t i = 0; i < args->n; i++)
            found_wide |= (uint32_t)((wide[i] & 0x7f800000) == 0x7f800000);
    else
        for (size_t i = 0; i < args->n; i++)
            found_narrow |= (uint16_t)((narrow[i] & infinity) == infinity);
    if (found_wide == 0 && found_narrow == 0)
        return;
    for (size_t i = 0; i < args->n; i++) {
        const gboolean broken = args->dtype == RP_DTYPE_FP32 ? (wide[i] & 0x7f800000) == 0x7f800000
                                                             : (narrow[i] & infinity) == infinity;

        if (!broken)
            continue;
        *args->left =
            MAX(*args->left, (uint32_t)((args->n - 1) / args->columns - i / args->columns + 1));
        return;
    }
}

void
rp_host_break_sum(RpKernelStream *stream, const RpBreakSumArgs *args)
{
    if (!isfinite(*args->loss))
        *args->sum = NAN;
}

void
rp_host_custom_layer(RpKernelStream *stream, const RpCustomLayerArgs *args)
{
    args->host(args->call);
}

void
rp_host_custom_loss(RpKernelStream *stream, const RpCustomLossArgs *args)
{
    args->host(args->call);
}

void
rp_host_fetch(RpKernelStream *stream, const RpFetchArgs *args)
{
    memcpy(args->to, args->from, args->n * sizeof *args->to);
}

/* Sums the squares of at most a block. */
static double
sum_block_squares(RpDtype dtype, const void *values, size_t first, size_t n)
{
    float buffer[RP_TILE];
    double lanes[RP_SQUARES_LANES] = {0};
    double sum = 0;

    for (size_t at = 0; at < n; at += RP_TILE) {
        const size_t length = MIN(RP_TILE, n - at);
        const float *x = rp_host_load(dtype, values, first + at, length, buffer);

        for (size_t i = 0; i < length; i++)
            lanes[i % RP_SQUARES_LANES] += (double)x[i] * (double)x[i];
    }
    for (size_t lane = 0; lane < RP_SQUARES_LANES; lane++)
        sum += lanes[lane];
    return sum;
}

G_STATIC_ASSERT(RP_TILE % RP_SQUARES_LANES == 0);

void
rp_host_sum_squares(RpKernelStream *stream, const RpSumSquaresArgs *args)
{
    double sum = 0;

    for (size_t first = 0; first < args->n; first += RP_SQUARES_BLOCK)
        sum +=
            sum_block_squares(args->dtype, args->x, first, MIN(RP_SQUARES_BLOCK, args->n - first));
    /* squares of floats do not overflow a double: only values that are not finite make the sum so */
    if (args->broken != NULL && !isfinite(sum))
        *args->broken = 1;
    *args->sum += sum;
}

/*
 * Low-bit formats: expands packed weights to a storage that layers read, and quantizes to fp8 for
 * matmuls.
 *
 *   expand     y = value(code) scale, rounded; formats: core/lowbit/lowbit.h, which does it        =
 *   largest    largest[0] = max(largest[0], max_i |x[i]|): bits of magnitudes are in its order
 *   quantise   codes[r,c] = turned[c,r] = x[r,c] / scale; scale and codes: core/base/fp8.h         =
 *
 * The transposed array is written by strips of columns, so that successive writes are close.
 */

#define STRIP 64 /* columns */

void
rp_host_expand(RpKernelStream *stream, const RpExpandArgs *args)
{
    rp_lowbit_expand(args->format, args->shape, args->packed, args->dtype, 0,
                     rp_lowbit_elements(args->shape), args->y);
}

void
rp_host_largest(RpKernelStream *stream, const RpLargestArgs *args)
{
    uint32_t largest = rp_float_bits(*args->largest);
    float buffer[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *x = rp_host_load(args->dtype, args->x, first, n, buffer);

        for (size_t i = 0; i < n; i++) {
            const uint32_t bits = rp_float_bits(x[i]) & 0x7fffffff;

            largest = bits > largest ? bits : largest;
        }
    }
    *args->largest = rp_float_from_bits(largest);
}

static void
encode(RpDtype code, const float *x, float factor, size_t n, uint8_t *quantized)
{
    if (code == RP_DTYPE_E4M3)
        for (size_t i = 0; i < n; i++)
            quantized[i] = rp_e4m3_from_float(x[i] * factor);
    else
        for (size_t i = 0; i < n; i++)
            quantized[i] = rp_e5m2_from_float(x[i] * factor);
}

void
rp_host_quantise(RpKernelStream *stream, const RpQuantiseArgs *args)
{
    const gboolean as_is = args->dtype == RP_DTYPE_E4M3;
    const float scale = as_is ? *args->largest : rp_fp8_scale(args->code, *args->largest);
    uint8_t quantized[STRIP];
    float buffer[STRIP];

    *args->scale = scale;
    for (size_t column = 0; column < args->columns; column += STRIP) {
        const size_t n = MIN(STRIP, args->columns - column);

        for (size_t row = 0; row < args->rows; row++) {
            const size_t at = row * args->columns + column;

            if (as_is)
                memcpy(quantized, (const guint8 *)args->x + at, n);
            else
                encode(args->code, rp_host_load(args->dtype, args->x, at, n, buffer), 1.0f / scale,
                       n, quantized);
            if (args->quantized != NULL)
                memcpy(args->quantized + at, quantized, n);
            for (size_t i = 0; i < n && args->transposed != NULL; i++)
                args->transposed[(column + i) * args->rows + row] = quantized[i];
        }
    }
}

void
rp_host_note_largest(RpDtype dtype, const void *x, size_t n, float *largest)
{
    if (largest != NULL)
        rp_host_largest(NULL, &(RpLargestArgs){dtype, n, x, largest});
}
