/*
 * The last kernel of the delta rule's backward: gradients of q, k and the gates of a chunk, of all value heads of a key
 * head. With dS of the state behind the chunk, dR of the right side and m the decays between its tokens:
 *
 *   dP = d_out u^T m;  dA = -dR u^T beta m                                   [64,64], below the diagonal
 *   dq = exp(c) d_out S^T + dP k
 *   dk = dP^T q + dA^T k + dA k + exp(c[last] - c) u dS^T - beta exp(c) dR S^T
 *
 * c's gradient is that of the factors of these products, so that it is made of rows' dot products with q and k.
 */
#pragma once

#include "exec/cuda/delta/product.cuh"

#define FINISH_FLOATS                                                                              \
    (CHUNK * KEY_STRIDE + 2 * CHUNK * PAIR_STRIDE + (CHUNK + MOST_DIM) * SLICE_STRIDE)

/* [rows,32] of rows that stand @stride apart, each times its factor; zeros beyond @n. */
template <typename S>
__device__ __forceinline__ void
load_slice(const S *source, size_t stride, int rows, int n, size_t columns, const float *factors,
           float sign, float *slice)
{
    const int lane = threadIdx.x % 32;

    for (int i = threadIdx.x / 32; i < rows; i += WARPS)
        slice[i * SLICE_STRIDE + lane] =
            i < n && (size_t)lane < columns
                ? sign * (factors ? factors[i] : 1.0f) * to_float(source[i * stride + lane])
                : 0.0f;
}

/* c += a b, a warp's 16 x 8 N of [64,16 N]; arguments as those of multiply(). */
template <bool A_ACROSS, bool B_ACROSS, int N>
__device__ __forceinline__ void
add_product(const float *a, int a_stride, const float *b, int b_stride, int n, float (&c)[N][4])
{
    const int column = tile_half() * N * 8;

    multiply<A_ACROSS, B_ACROSS>(a + (A_ACROSS ? tile_row() : tile_row() * a_stride), a_stride,
                                 b + (B_ACROSS ? column * b_stride : column), b_stride, n, c);
}

/* The same elements by rows: a warp has every eighth row, a lane every 32nd column. @shared: 32 rows of KEY_STRIDE */
__device__ __forceinline__ void
to_rows(const float (&c)[2 * GROUPS][4], float *shared, float (&rows)[WARP_ROWS][GROUPS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int part = 0; part < 2; part++) {
        __syncthreads();
        if (tile_row() / 32 == part)
#pragma unroll
            for (int e = 0; e < 8 * GROUPS; e++)
                shared[(tile_row() % 32 + row_within(e)) * KEY_STRIDE + tile_half() * 64 + column_within(e)] =
                    c[e / 4][e % 4];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < WARP_ROWS / 2; r++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                rows[part * (WARP_ROWS / 2) + r][g] = shared[(warp + r * WARPS) * KEY_STRIDE + lane + 32 * g];
    }
    __syncthreads();
}

/* c += rows S^T, of all slices: rows [n,Dv] of @source, S [Dk,Dv] or, of N 4, [n,Dv] */
template <int N, typename S>
__device__ __forceinline__ void
add_slices(const RpDeltaArgs &args, const S *source, size_t stride, int n, const float *factors,
           float sign, const float *other, size_t other_stride, int other_rows, float *slice,
           float *tile, float (&c)[N][4])
{
    for (size_t column = 0; column < args.value_dim; column += COLUMNS) {
        __syncthreads();
        load_slice(source + column, stride, CHUNK, n, args.value_dim - column, factors, sign, slice);
        load_slice(other + column, other_stride, 16 * N, other_rows, args.value_dim - column, NULL, 1.0f, tile);
        __syncthreads();
        add_product<false, true>(slice, SLICE_STRIDE, tile, SLICE_STRIDE, COLUMNS, c);
    }
    __syncthreads();
}

/* The dot product of each of a warp's rows with rows of q or k in memory, times @scales; in all lanes */
template <typename T>
__device__ __forceinline__ void
dot_rows(const Rule<T> &rule, const Piece &piece, size_t column, const float *scales,
         const float (&sums)[WARP_ROWS][GROUPS], float dots[WARP_ROWS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int i = warp + r * WARPS;
        const T *x = (const T *)rule.args.qkv + (piece.first + i) * rule.columns + column;
        float dot = 0;

#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (i < piece.n && lane + 32 * g < (int)rule.args.key_dim)
                dot = fmaf(to_float(x[lane + 32 * g]), sums[r][g], dot);
        dots[r] = sum_lanes<32>(dot) * scales[i];
    }
}

template <int N>
__device__ __forceinline__ void
add_to(float (&sums)[WARP_ROWS][N], const float (&more)[WARP_ROWS][N])
{
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++)
#pragma unroll
        for (int g = 0; g < N; g++)
            sums[r][g] += more[r][g];
}

/* The gradient of x of the normed rows, from theirs. @column: of q or k; @length: of the rows */
template <typename T>
__device__ __forceinline__ void
write_keys(const Rule<T> &rule, const Piece &piece, size_t column, const float *scales,
           float length, const float (&sums)[WARP_ROWS][GROUPS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float dots[WARP_ROWS];

    dot_rows(rule, piece, column, scales, sums, dots);
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int i = warp + r * WARPS;
        const size_t at = (piece.first + i) * rule.columns + column;

#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int d = lane + 32 * g;

            if (i < piece.n && d < (int)rule.args.key_dim) {
                const float x = to_float(((const T *)rule.args.qkv)[at + d]) * scales[i];

                ((T *)rule.args.d_qkv)[at + d] =
                    from_float<T>(scales[i] * (sums[r][g] - x * dots[r] / (length * length)));
            }
        }
    }
}

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) finish_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    __shared__ GateSums of;
    float *const keys = (float *)shared4, *const queries = keys + CHUNK * KEY_STRIDE;
    float *const pairs = queries + CHUNK * PAIR_STRIDE, *const slice = pairs + CHUNK * PAIR_STRIDE;
    float *const tile = slice + CHUNK * SLICE_STRIDE;
    const RpDeltaArgs &args = rule.args;
    const size_t group = args.value_heads / args.key_heads, key = rule.first_key + blockIdx.y;
    const size_t Dk = args.key_dim, Dv = args.value_dim;
    const size_t q_column = key * Dk, k_column = (args.key_heads + key) * Dk;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Piece piece = find_piece(args, blockIdx.x);
    float dq[WARP_ROWS][GROUPS] = {}, dk[WARP_ROWS][GROUPS] = {};

    if (piece.n == 0)
        return;
    for (size_t h = 0; h < group; h++) {
        const size_t head = key * group + h, slot = blockIdx.y * group + h, size = Dk * Dv;
        const size_t values = 2 * args.key_heads * Dk + head * Dv;
        const T *d_out = (const T *)args.d_out + (piece.first * args.value_heads + head) * Dv;
        const size_t row = rule.heads * Dv, at = (piece.first * rule.heads + slot) * Dv;
        const float *u = rule.u + at, *right = rule.right + at;
        const float *before = rule.states + (piece.first / CHUNK * rule.heads + slot) * size;
        const float *behind =
            rule.d_states + ((piece.first + CHUNK) / CHUNK * rule.heads + slot) * size;
        float dots[WARP_ROWS], own[WARP_ROWS] = {}, rates[WARP_ROWS] = {}, last = 0;

        load_gates(rule, head, piece, &gates);
        {
            float queried[4][4] = {}, paired[4][4] = {};

            add_slices(args, d_out, args.value_heads * Dv, piece.n, NULL, 1.0f, u, row, piece.n,
                          slice, tile, queried);
            add_slices(args, right, row, piece.n, NULL, -1.0f, u, row, piece.n, slice, tile,
                          paired);
#pragma unroll
            for (int e = 0; e < 16; e++) {
                const int i = tile_row() + row_within(e), j = tile_half() * 32 + column_within(e);
                const float decay = j <= i ? expf((float)(gates.c[i] - gates.c[j])) : 0.0f;

                queries[i * PAIR_STRIDE + j] = queried[e / 4][e % 4] * decay;
                pairs[i * PAIR_STRIDE + j] =
                    j < i ? paired[e / 4][e % 4] * gates.beta[i] * decay : 0.0f;
            }
        }
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const int i = warp + r * WARPS;
            float dot = 0;

            for (size_t e = lane; e < Dv && i < piece.n; e += 32)
                dot = fmaf(right[i * row + e],
                           to_float(((const T *)args.qkv)[(piece.first + i) * rule.columns + values +
                                                          e]),
                           dot);
            rates[r] = sum_lanes<32>(dot) * gates.beta[i];
        }
        load_queries_of(rule, piece, key, keys, of.q_scale);
        __syncthreads();
        float later[WARP_ROWS][GROUPS]; /* gradients of k whose tokens come earlier */
        {
            float c[2 * GROUPS][4] = {};

            add_product<true, false>(queries, PAIR_STRIDE, keys, KEY_STRIDE, CHUNK, c);
            __syncthreads();
            load_keys_of(rule, piece, key, keys, of.k_scale);
            __syncthreads();
            add_product<true, false>(pairs, PAIR_STRIDE, keys, KEY_STRIDE, CHUNK, c);
            to_rows(c, slice, later);
        }
        {
            float c[2 * GROUPS][4] = {}, sums[WARP_ROWS][GROUPS];

            if (!piece.ends)
                add_slices(args, u, row, piece.n, gates.left, 1.0f, behind, Dv, (int)Dk, slice, tile, c);
            to_rows(c, slice, sums);
            dot_rows(rule, piece, k_column, of.k_scale, sums, dots);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++)
                last += dots[r];
            add_to(later, sums);
            dot_rows(rule, piece, k_column, of.k_scale, later, dots);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++)
                own[r] -= dots[r];
            add_to(dk, later);
        }
        {
            float c[2 * GROUPS][4] = {}, sums[WARP_ROWS][GROUPS];

            if (!piece.begins)
                add_slices(args, d_out, args.value_heads * Dv, piece.n, gates.before, 1.0f, before, Dv, (int)Dk,
                           slice, tile, c);
            add_product<false, false>(queries, PAIR_STRIDE, keys, KEY_STRIDE, CHUNK, c);
            to_rows(c, slice, sums);
            dot_rows(rule, piece, q_column, of.q_scale, sums, dots);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++)
                own[r] += dots[r];
            add_to(dq, sums);
        }
        {
            float c[2 * GROUPS][4] = {}, sums[WARP_ROWS][GROUPS];

            /* -beta exp(c) dR: the factor of beta is in the gates' own array */
            __syncthreads();
            if (threadIdx.x < CHUNK)
                of.beta[threadIdx.x] = gates.beta[threadIdx.x] * gates.before[threadIdx.x];
            __syncthreads();
            if (!piece.begins)
                add_slices(args, right, row, piece.n, of.beta, -1.0f, before, Dv, (int)Dk, slice, tile, c);
            add_product<false, false>(pairs, PAIR_STRIDE, keys, KEY_STRIDE, CHUNK, c);
            to_rows(c, slice, sums);
            dot_rows(rule, piece, k_column, of.k_scale, sums, dots);
            __syncthreads();
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++) {
                own[r] += dots[r];
                rates[r] += dots[r];
                if (lane == 0) {
                    of.c[warp + r * WARPS] = (double)own[r];
                    of.beta[warp + r * WARPS] = rates[r];
                }
            }
            add_to(dk, sums);
        }
        float kept = 0;

        for (size_t e = threadIdx.x; e < size && !piece.begins && !piece.ends; e += DELTA_THREADS)
            kept = fmaf(before[e], behind[e], kept);
        __syncthreads();
        kept = sum_block<DELTA_THREADS>(kept, of.warps) * gates.all;
        __syncthreads();
        if (lane == 0)
            of.warps[warp] = last;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int w = 0; w < WARPS; w++)
                of.c[piece.n - 1] += (double)of.warps[w] + (w == 0 ? (double)kept : 0.0);
        write_gates(rule, head, piece, gates, &of);
    }
    write_keys(rule, piece, q_column, of.q_scale, length_of_queries(args), dq);
    write_keys(rule, piece, k_column, of.k_scale, 1.0f, dk);
}
