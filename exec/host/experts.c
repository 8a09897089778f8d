/*
 * Kernels between the matmuls of experts, over R rows sorted by expert.
 *
 *   activation   act[r,i] of gate and up in z[r], halves or neighbours                              =
 *                dz, product = weight act, d_weights[assigned[r]]                                   =
 *   bias         d_bias[e] += sum over the rows r of e of weight dy[r]                             +=
 *
 * z: [R,2m], g: [R,m]. Sums over m: fp32 lanes in a tile, tiles in double. Sums over rows: fp32,
 * RP_PARTIAL_ROWS of an expert apart, then added to d_bias in order.
 */
#include "exec/host/host-private.h"

/* One tile of a row, as floats. */
typedef struct {
    float gate[RP_TILE], up[RP_TILE];
    float act[RP_TILE], of_gate[RP_TILE], of_up[RP_TILE]; /* act and its derivatives */
} Tile;

static void
load_tile(Tile *tile, const RpExpertGluArgs *args, size_t row, size_t first, size_t n)
{
    const size_t z = row * 2 * args->m;
    float buffer[2 * RP_TILE];

    if (args->form == RP_EXPERT_SILU) {
        memcpy(tile->gate, rp_host_load(args->dtype, args->z, z + first, n, buffer),
               n * sizeof *buffer);
        memcpy(tile->up, rp_host_load(args->dtype, args->z, z + args->m + first, n, buffer),
               n * sizeof *buffer);
        return;
    }
    const float *pairs = rp_host_load(args->dtype, args->z, z + 2 * first, 2 * n, buffer);

    for (size_t i = 0; i < n; i++) {
        tile->gate[i] = pairs[2 * i];
        tile->up[i] = pairs[2 * i + 1];
    }
}

/* @gate, @up: dz of the tile */
static void
store_tile(const RpExpertGluArgs *args, size_t row, size_t first, size_t n, const float *gate,
           const float *up)
{
    const size_t z = row * 2 * args->m;
    float pairs[2 * RP_TILE];

    if (args->form == RP_EXPERT_SILU) {
        rp_host_store(args->dtype, args->dz, z + first, n, gate);
        rp_host_store(args->dtype, args->dz, z + args->m + first, n, up);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        pairs[2 * i] = gate[i];
        pairs[2 * i + 1] = up[i];
    }
    rp_host_store(args->dtype, args->dz, z + 2 * first, 2 * n, pairs);
}

/* NaN stays. */
static inline float
at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static inline float
at_least(float x, float limit)
{
    return x < limit ? limit : x;
}

static void
activate(Tile *tile, const RpExpertGluArgs *args, size_t n)
{
    const gboolean clamped = args->form == RP_EXPERT_CLAMPED;
    const float alpha = clamped ? args->alpha : 1;
    const float limit = clamped ? args->limit : INFINITY;
    const float shift = clamped ? 1 : 0;

    for (size_t i = 0; i < n; i++) {
        const float a = at_most(tile->gate[i], limit);
        const float b = at_least(at_most(tile->up[i], limit), -limit) + shift;
        const float s = 1.0f / (1.0f + rp_host_exp(-alpha * a));

        tile->act[i] = a * s * b;
        tile->of_gate[i] = tile->gate[i] > limit ? 0 : s * (1.0f + alpha * a * (1.0f - s)) * b;
        tile->of_up[i] = fabsf(tile->up[i]) > limit ? 0 : a * s;
    }
}

void
rp_host_expert_glu_forward(RpKernelStream *stream, const RpExpertGluArgs *args)
{
    Tile tile;

    for (size_t row = 0; row < args->rows; row++) {
        for (size_t first = 0; first < args->m; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->m - first);

            load_tile(&tile, args, row, first, n);
            activate(&tile, args, n);
            rp_host_store(args->dtype, args->act, row * args->m + first, n, tile.act);
        }
    }
}

/* sum_c bias[e,c] dy[t,c], for assignment @a */
static double
bias_of_row(const RpExpertGluArgs *args, size_t a)
{
    const size_t bias_row = (size_t)args->chosen[a] * args->n;
    const size_t dy_row = a / args->choices * args->n;
    float bias_buffer[RP_TILE], dy_buffer[RP_TILE];
    double sum = 0;

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *bias = rp_host_load(args->dtype, args->bias, bias_row + first, n, bias_buffer);
        const float *dy = rp_host_load(args->dtype, args->dy, dy_row + first, n, dy_buffer);

        sum += (double)rp_host_dot(bias, dy, n);
    }
    return sum;
}

void
rp_host_expert_glu_backward(RpKernelStream *stream, const RpExpertGluArgs *args)
{
    float g_buffer[RP_TILE], product[RP_TILE];
    Tile tile;

    for (size_t row = 0; row < args->rows; row++) {
        const size_t a = (size_t)args->assigned[row];
        const float w = rp_host_element(args->dtype, args->weights, a);
        double sum = args->bias != NULL ? bias_of_row(args, a) : 0;

        for (size_t first = 0; first < args->m; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->m - first);
            const size_t index = row * args->m + first;
            const float *g = rp_host_load(args->dtype, args->g, index, n, g_buffer);

            load_tile(&tile, args, row, first, n);
            activate(&tile, args, n);
            sum += (double)rp_host_dot(tile.act, g, n);
            for (size_t i = 0; i < n; i++) {
                tile.of_gate[i] *= w * g[i];
                tile.of_up[i] *= w * g[i];
                product[i] = w * tile.act[i];
            }
            store_tile(args, row, first, n, tile.of_gate, tile.of_up);
            if (args->product != NULL)
                rp_host_store(args->dtype, args->product, index, n, product);
        }
        args->d_weights[a] = (float)sum;
    }
}

size_t
rp_host_expert_bias_backward_workspace(const RpExpertBiasArgs *args)
{
    return rp_host_floats(args->n);
}

/* @partial: [n], = the sum over rows [begin, end) */
static void
sum_rows(const RpExpertBiasArgs *args, size_t begin, size_t end, float *partial)
{
    float buffer[RP_TILE];

    memset(partial, 0, args->n * sizeof *partial);
    for (size_t row = begin; row < end; row++) {
        const float weight = args->weights != NULL ? rp_host_element(args->dtype, args->weights,
                                                                     (size_t)args->assigned[row])
                                                   : 1;

        for (size_t first = 0; first < args->n; first += RP_TILE) {
            const size_t n = MIN(RP_TILE, args->n - first);
            const float *dy = rp_host_load(args->dtype, args->dy, row * args->n + first, n, buffer);

            for (size_t i = 0; i < n; i++)
                partial[first + i] += weight * dy[i];
        }
    }
}

void
rp_host_expert_bias_backward(RpKernelStream *stream, const RpExpertBiasArgs *args)
{
    float *partial = args->workspace;

    for (size_t e = 0; e < args->experts; e++) {
        const size_t end = (size_t)args->offsets[e + 1];

        for (size_t row = (size_t)args->offsets[e]; row < end; row += RP_PARTIAL_ROWS) {
            sum_rows(args, row, MIN(row + RP_PARTIAL_ROWS, end), partial);
            for (size_t i = 0; i < args->n; i++)
                args->d_bias[e * args->n + i] += partial[i];
        }
    }
}
