/*
 * Gradients of q, k and the gates of a chunk, of all value heads of a key head, of heads of 128 in bf16. With dS of the
 * state behind the chunk, dR of the right side and m the decays between its tokens:
 *
 *   dP = d_out u^T m;  dA = -dR u^T beta m                                   [64,64], below the diagonal
 *   dq = exp(c) d_out S^T + dP k
 *   dk = dP^T q + dA^T k + dA k + exp(c[last] - c) u dS^T - beta exp(c) dR S^T
 *
 * c's gradient is that of the factors of these products, so that it is made of rows' dot products with q and k. A block
 * has 16 warps: four rows of tiles by four parts of 32 columns of Dk, or of 16 tokens. d_out, v, dR, u, S and dS are
 * copied 16 columns of Dv at a time, while those before are multiplied:
 *
 *   dP = d_out u^T;  dA = -dR u^T;  d_out S^T;  dR S^T;  u dS^T;  dR . v;  S . dS
 *
 * Then dP and dA stand in place of the copies, times the scales of their tokens' q and k, so that they are multiplied
 * by q and k as those come. Columns of Dk are those of S: of 32, column 8 c + 2 t + e stands at 8 t + 2 c + e. Sums of
 * the heads so far are kept where their u and dR were, of which nobody else has need.
 */
#pragma once

#include "exec/cuda/delta/heads.cuh"

#define GRADIENT_THREADS 512
#define GRADIENT_WARPS (GRADIENT_THREADS / 32)
#define PARTS 4
#define SIXTEEN_ROW 48 /* bytes from a row of 16 columns to the next: eight rows in different banks */
#define SIXTEEN_BYTES (CHUNK * SIXTEEN_ROW)
#define HALVES_BYTES (CHUNK * 64)            /* of u or dR */
#define STATE_BYTES (2 * SIXTEEN_HALVES)     /* of S or dS */

/* Offsets within a stage */
enum {
    STAGE_D_OUT = 0,
    STAGE_V = SIXTEEN_BYTES,
    STAGE_RIGHT = 2 * SIXTEEN_BYTES,
    STAGE_U = STAGE_RIGHT + HALVES_BYTES,
    STAGE_STATE = STAGE_U + HALVES_BYTES,
    STAGE_D_STATE = STAGE_STATE + STATE_BYTES,
    STAGE_BYTES = STAGE_D_STATE + STATE_BYTES,
};

/* Shared memory: k, q, two stages */
#define GRADIENT_STAGES (2 * TILE_BYTES)
#define GRADIENT_BYTES (GRADIENT_STAGES + 2 * STAGE_BYTES)

struct PartSums {
    float own[PARTS][CHUNK], rates[PARTS][CHUNK];
    float last[GRADIENT_WARPS], kept[GRADIENT_WARPS];
};

struct Gradient {
    const Heads &rule;
    const Straight straight;
    const Across across;
    const uint32_t keys, queries;
    const int row, part, lane, g, t; /* the warp's tile of rows, and its columns */
    const Piece piece;
    const size_t key;

    __device__ __forceinline__ Gradient(const Heads &of)
        : rule(of), keys(dynamic_shared()), queries(keys + TILE_BYTES), row((int)threadIdx.x / 32 % 4),
          part((int)threadIdx.x / 128), lane((int)threadIdx.x % 32), g(lane / 4), t(lane % 4),
          piece(find_piece(of.args, blockIdx.x)), key(of.first_key + blockIdx.y)
    {
    }
    __device__ __forceinline__ int row_of(int half) const
    {
        return row * 16 + half * 8 + g;
    }
    __device__ __forceinline__ uint32_t stage(int parity) const
    {
        return keys + GRADIENT_STAGES + (uint32_t)parity * STAGE_BYTES;
    }

    /* q or k, in the order of S's columns */
    __device__ __forceinline__ void copy_rows(uint32_t tile, size_t column) const
    {
        const int pair = (int)threadIdx.x % 64, chunk = pair / 16 * 4 + pair % 4, place = pair / 4 % 4;
        const bf16 *source = (const bf16 *)rule.args.qkv + piece.first * rule.columns + column + 2 * pair;

        for (int i = (int)threadIdx.x / 64; i < CHUNK; i += GRADIENT_THREADS / 64)
            copy_async_4(tile + tile_offset<DIM>(i, chunk) + (uint32_t)place * 4,
                         source + (size_t)i * rule.columns, i < piece.n);
    }
    /* Starts copying columns 16 @step .. of Dv. */
    __device__ __forceinline__ void copy_step(size_t head, size_t slot, int step) const
    {
        const RpDeltaArgs &args = rule.args;
        const uint32_t target = stage(step % 2);
        const int i = (int)threadIdx.x % 256, which = (int)threadIdx.x / 256;
        const size_t values = 2 * args.key_heads * DIM + head * DIM, at = (size_t)step * SIXTEEN_HALVES;
        const bf16 *const halves = (const bf16 *)(const void *)(which == 0 ? rule.right : rule.u);

        copy_async_16(target + (which == 0 ? STAGE_RIGHT : STAGE_U) + (uint32_t)i * 16,
                      halves + ((piece.first + (size_t)i / 4) * rule.heads + slot) * HALVES + step * 32 + i % 4 * 8,
                      i / 4 < piece.n);
        if (i < 2 * CHUNK) {
            const bf16 *source = which == 0 ? (const bf16 *)args.d_out + head * DIM : (const bf16 *)args.qkv + values;
            const size_t stride = which == 0 ? args.value_heads * DIM : rule.columns;

            copy_async_16(target + (which == 0 ? STAGE_D_OUT : STAGE_V) +
                              (uint32_t)(i / 2 * SIXTEEN_ROW + i % 2 * 16),
                          source + (piece.first + (size_t)i / 2) * stride + step * 16 + i % 2 * 8, i / 2 < piece.n);
        }
        /* 64 bytes of a column's 32 rows: eight columns in different banks */
        const int unit = (int)threadIdx.x / 32;
        const uint32_t place = (uint32_t)(unit * 512 + g * 64 + ((t ^ g / 2) << 4));

        copy_async_16(target + STAGE_STATE + place,
                      (const bf16 *)(const void *)rule.states + halves_place(rule, piece.first, slot) + at +
                          threadIdx.x * 8,
                      !piece.begins);
        copy_async_16(target + STAGE_D_STATE + place,
                      (const bf16 *)(const void *)rule.d_states +
                          halves_place(rule, piece.first + CHUNK, slot) + at + threadIdx.x * 8,
                      !piece.ends);
    }

    /* The warp's rows of 16 columns, a left operand */
    __device__ __forceinline__ void load_left(uint32_t tile, uint32_t (&a)[4]) const
    {
        load_matrices(a, tile + (uint32_t)((row * 16 + lane % 16) * SIXTEEN_ROW + lane / 16 * 16));
    }
    __device__ __forceinline__ void load_left(uint32_t halves, Left &a) const
    {
        const uint4 upper = load_shared_words(halves + (uint32_t)(row_of(0) * 64 + t * 16));
        const uint4 lower = load_shared_words(halves + (uint32_t)(row_of(1) * 64 + t * 16));

        a.high[0] = upper.x, a.high[1] = lower.x, a.high[2] = upper.y, a.high[3] = lower.y;
        a.low[0] = upper.z, a.low[1] = lower.z, a.low[2] = upper.w, a.low[3] = lower.w;
    }
    /* 16 tokens of the warp's part, a right operand */
    __device__ __forceinline__ void load_right(uint32_t halves, uint32_t (&high)[1][4], uint32_t (&low)[1][4]) const
    {
        const uint4 first = load_shared_words(halves + (uint32_t)((part * 16 + g) * 64 + t * 16));
        const uint4 second = load_shared_words(halves + (uint32_t)((part * 16 + 8 + g) * 64 + t * 16));

        high[0][0] = first.x, high[0][1] = first.y, high[0][2] = second.x, high[0][3] = second.y;
        low[0][0] = first.z, low[0][1] = first.w, low[0][2] = second.z, low[0][3] = second.w;
    }
    /* Half @j of the warp's 32 columns of a state's 16 rows of Dv */
    __device__ __forceinline__ void load_state(uint32_t state, int j, uint32_t (&high)[1][4],
                                               uint32_t (&low)[1][4]) const
    {
        const int chunk = 2 * j + lane / 16, column = lane % 8;
        const uint32_t place = state + (uint32_t)((part * 2 + lane / 8 % 2) * 1024 + column * 64 +
                                                  ((chunk ^ column / 2) << 4));

        load_matrices_transposed(high[0], place);
        load_matrices_transposed(low[0], place + 512);
    }
    /* The same of 16 rows of a tile, both halves */
    __device__ __forceinline__ void load_columns(uint32_t tile, int sixteen, uint32_t (&b)[2][4]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices_transposed(b[j], straight.at(tile, sixteen, part * 2 + j));
    }

    /* Rows times factors, of one array or two */
    __device__ __forceinline__ void scale_rows(float (&c)[4][4], const float *factors,
                                               const float *more = NULL) const
    {
        const float factor[2] = {factors[row_of(0)] * (more ? more[row_of(0)] : 1.0f),
                                 factors[row_of(1)] * (more ? more[row_of(1)] : 1.0f)};

#pragma unroll
        for (int e = 0; e < 16; e++)
            c[e / 4][e % 4] *= factor[e % 4 / 2];
    }
    __device__ __forceinline__ void divide_rows(float (&c)[4][4], const float *factors) const
    {
        const float factor[2] = {1 / factors[row_of(0)], 1 / factors[row_of(1)]};

#pragma unroll
        for (int e = 0; e < 16; e++)
            c[e / 4][e % 4] *= factor[e % 4 / 2];
    }
    /* The lane's part of the rows' dot products with normed rows of @tile */
    __device__ __forceinline__ float2 dot_rows(uint32_t tile, const float *scales, const float (&c)[4][4]) const
    {
        float dots[2] = {};

#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t x = load_shared(tile + tile_offset<DIM>(row_of(half), part * 4 + j) + 4 * t);

                dots[half] = fmaf(lower_of(x), c[j][2 * half], dots[half]);
                dots[half] = fmaf(upper_of(x), c[j][2 * half + 1], dots[half]);
            }
        return make_float2(dots[0] * scales[row_of(0)], dots[1] * scales[row_of(1)]);
    }
    static __device__ __forceinline__ void add(float (&sums)[4][4], const float (&c)[4][4])
    {
#pragma unroll
        for (int e = 0; e < 16; e++)
            sums[e / 4][e % 4] += c[e / 4][e % 4];
    }
    /* Writes dP and dA times their rows' and columns' scales, below the diagonal, dP's on it, too. @rows: of dA */
    __device__ __forceinline__ void write_pairs(uint32_t queried, const float (&dp)[2][4], const float (&da)[2][4],
                                                const Gates &gates, const GateSums &scales, const float *rows) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row_of(half), at = part * 16 + j * 8 + 2 * t;
                const uint32_t place = queried + tile_offset<DIM>(i, part * 2 + j) + 4 * t;
                const uint32_t place_low = queried + tile_offset<DIM>(i, part * 2 + j + 8) + 4 * t;
                float x[2], y[2];
                uint32_t high, low;

#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float decay =
                        at + e <= i ? expf((float)(gates.c[i] - gates.c[at + e])) * scales.k_scale[at + e] : 0.0f;

                    x[e] = dp[j][2 * half + e] * decay * scales.q_scale[i];
                    y[e] = at + e < i ? da[j][2 * half + e] * decay * rows[i] : 0.0f;
                }
                split(x[0], x[1], high, low);
                store_shared(place, high);
                store_shared(place_low, low);
                split(y[0], y[1], high, low);
                store_shared(place + TILE_BYTES, high);
                store_shared(place_low + TILE_BYTES, low);
            }
    }
    /* c += pairs rows: of the pairs' tokens up to the warp's */
    __device__ __forceinline__ void add_earlier(uint32_t pairs, uint32_t rows, float (&c)[4][4]) const
    {
        for (int k = 0; k <= row; k++) {
            uint32_t b[2][4];
            Left a;

            load_columns(rows, k, b);
            load_matrices(a.high, straight.at(pairs, row, k));
            load_matrices(a.low, straight.at(pairs, row, k + LOW));
            add_exact<2>(c, a, b);
        }
    }
    /* c += pairs^T rows: of the warp's tokens and later ones */
    __device__ __forceinline__ void add_later(uint32_t pairs, uint32_t rows, float (&c)[4][4]) const
    {
        for (int k = row; k < 4; k++) {
            uint32_t b[2][4];
            Left a;

            load_columns(rows, k, b);
            load_matrices_transposed(a.high, across.at(pairs, k, row));
            load_matrices_transposed(a.low, across.at(pairs, k, row + LOW));
            add_exact<2>(c, a, b);
        }
    }
    /* Sums of a head, in memory */
    __device__ __forceinline__ float4 *place_of_sums(float *array, size_t slot, int half) const
    {
        return (float4 *)(void *)(array + ((piece.first + row_of(half)) * rule.heads + slot) * DIM + part * 32 + t * 8);
    }
    __device__ __forceinline__ void load_sums(float *array, size_t slot, float (&c)[4][4]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const float4 four = row_of(half) < piece.n ? place_of_sums(array, slot, half)[j / 2]
                                                           : make_float4(0, 0, 0, 0);

                c[j][2 * half] += four.x;
                c[j][2 * half + 1] += four.y;
                c[j + 1][2 * half] += four.z;
                c[j + 1][2 * half + 1] += four.w;
            }
    }
    __device__ __forceinline__ void store_sums(float *array, size_t slot, const float (&c)[4][4]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j += 2)
                if (row_of(half) < piece.n)
                    place_of_sums(array, slot, half)[j / 2] =
                        make_float4(c[j][2 * half], c[j][2 * half + 1], c[j + 1][2 * half], c[j + 1][2 * half + 1]);
    }
    /* The gradient of x of the normed rows, from theirs. */
    __device__ __forceinline__ void write(uint32_t tile, size_t column, const float *scales, float length,
                                          const float (&c)[4][4], float (&parts)[PARTS][CHUNK]) const
    {
        const float2 own = dot_rows(tile, scales, c);
        const float dots[2] = {sum_lanes<4>(own.x), sum_lanes<4>(own.y)};

        __syncthreads();
        if (t == 0) {
            parts[part][row_of(0)] = dots[0];
            parts[part][row_of(1)] = dots[1];
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row_of(half);
            const float scale = scales[i];
            float dot = 0;
            uint32_t x[4];

            for (int p = 0; p < PARTS; p++)
                dot += parts[p][i];
            dot *= scale / (length * length);
            if (i >= piece.n)
                continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = load_shared(tile + tile_offset<DIM>(i, part * 4 + j) + 4 * t);
                x[j] = pack(bf16(), scale * (c[j][2 * half] - lower_of(x[j]) * dot),
                            scale * (c[j][2 * half + 1] - upper_of(x[j]) * dot));
            }
            *(uint4 *)((bf16 *)rule.args.d_qkv + (piece.first + i) * rule.columns + column + part * 32 + t * 8) =
                make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
};

/* Sums of a head's products over Dv */
struct HeadSums {
    float dq[4][4], dk[4][4], written[4][4]; /* d_out S^T, dR S^T, u dS^T */
    float queried[2][4], paired[2][4];       /* dP, -dA */
    float rates[2], kept;                    /* dR . v; S . dS */
};

__device__ __forceinline__ void
multiply_step(const Gradient &of, uint32_t stage, HeadSums &sums)
{
    uint32_t d_out[4], high[1][4], low[1][4];
    Left a;

    of.load_left(stage + STAGE_D_OUT, d_out);
    of.load_left(stage + STAGE_RIGHT, a);
    if (of.part == 0) {
        uint32_t v[4];

        of.load_left(stage + STAGE_V, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums.rates[i % 2] = fmaf(lower_of(v[i]), lower_of(a.high[i]) + lower_of(a.low[i]), sums.rates[i % 2]);
            sums.rates[i % 2] = fmaf(upper_of(v[i]), upper_of(a.high[i]) + upper_of(a.low[i]), sums.rates[i % 2]);
        }
    }
    if (of.part <= of.row) {
        of.load_right(stage + STAGE_U, high, low);
        add_pair(sums.queried, d_out, high[0]);
        add_split<1>(sums.paired, a, high, low);
        add_pair(sums.queried, d_out, low[0]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        of.load_state(stage + STAGE_STATE, j, high, low);
        add_pair(*(float(*)[2][4]) & sums.dq[2 * j], d_out, high[0]);
        add_split<1>(*(float(*)[2][4]) & sums.dk[2 * j], a, high, low);
        add_pair(*(float(*)[2][4]) & sums.dq[2 * j], d_out, low[0]);
    }
    of.load_left(stage + STAGE_U, a);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        of.load_state(stage + STAGE_D_STATE, j, high, low);
        add_split<1>(*(float(*)[2][4]) & sums.written[2 * j], a, high, low);
    }
    const uint32_t four = stage + (uint32_t)(threadIdx.x / 64 * 1024 + threadIdx.x % 64 * 8);

#pragma unroll
    for (uint32_t i = 0; i < 8; i += 4) {
        const uint32_t x = load_shared(four + STAGE_STATE + i), x_low = load_shared(four + STAGE_STATE + 512 + i);
        const uint32_t y = load_shared(four + STAGE_D_STATE + i), y_low = load_shared(four + STAGE_D_STATE + 512 + i);

        sums.kept = fmaf(lower_of(x) + lower_of(x_low), lower_of(y) + lower_of(y_low), sums.kept);
        sums.kept = fmaf(upper_of(x) + upper_of(x_low), upper_of(y) + upper_of(y_low), sums.kept);
    }
}

/* Gradients of a head's gates, and its part of q's and k's in @sums. */
__device__ __forceinline__ void
differentiate_head(const Gradient &of, size_t head, size_t slot, Gates &gates, GateSums &shared, PartSums &parts,
                   HeadSums &sums)
{
    const Heads &rule = of.rule;
    const int warp = (int)threadIdx.x / 32, n = of.piece.n;
    const uint32_t queried = of.stage(0), paired = queried + TILE_BYTES;
    float own[2], rates[2], last, c[4][4];
    float2 dots;

    zero(sums.dq);
    zero(sums.dk);
    zero(sums.written);
    zero(sums.queried);
    zero(sums.paired);
    sums.rates[0] = sums.rates[1] = sums.kept = 0;
    of.copy_step(head, slot, 0);
    load_gates(rule, head, of.piece, &gates);
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
        copy_async_wait();
        __syncthreads();
        if (step < 7)
            of.copy_step(head, slot, step + 1);
        multiply_step(of, of.stage(step % 2), sums);
    }
    if (threadIdx.x < CHUNK) {
        const size_t place = of.piece.first + threadIdx.x;
        const bool there = (int)threadIdx.x < n;

        shared.q_scale[threadIdx.x] = there ? rule.factors[factor_place(rule, QUERY_SCALE, slot) + place] : 1.0f;
        shared.k_scale[threadIdx.x] = there ? rule.factors[factor_place(rule, KEY_SCALE, slot) + place] : 1.0f;
        shared.beta[threadIdx.x] = -gates.beta[threadIdx.x] * shared.k_scale[threadIdx.x];
        shared.bias[threadIdx.x] = -gates.beta[threadIdx.x];
    }
    __syncthreads(); /* all have read the stages */
    if (of.part <= of.row)
        of.write_pairs(queried, sums.queried, sums.paired, gates, shared, shared.beta);
    of.scale_rows(sums.dq, gates.before);
    of.scale_rows(sums.dk, gates.before, shared.bias);
    of.scale_rows(sums.written, gates.left);
    dots = of.dot_rows(of.queries, shared.q_scale, sums.dq);
    own[0] = dots.x, own[1] = dots.y;
    dots = of.dot_rows(of.keys, shared.k_scale, sums.dk);
    rates[0] = dots.x - shared.bias[of.row_of(0)] * sums.rates[0];
    rates[1] = dots.y - shared.bias[of.row_of(1)] * sums.rates[1];
    own[0] += dots.x, own[1] += dots.y;
    dots = of.dot_rows(of.keys, shared.k_scale, sums.written);
    own[0] -= dots.x, own[1] -= dots.y;
    last = dots.x + dots.y;
    Gradient::add(sums.dk, sums.written);
    __syncthreads();
    zero(c);
    of.add_earlier(queried, of.keys, c);
    of.divide_rows(c, shared.q_scale);
    dots = of.dot_rows(of.queries, shared.q_scale, c);
    own[0] += dots.x, own[1] += dots.y;
    Gradient::add(sums.dq, c);
    zero(c);
    of.add_later(queried, of.queries, c);
    of.add_later(paired, of.keys, c);
    of.divide_rows(c, shared.k_scale);
    dots = of.dot_rows(of.keys, shared.k_scale, c);
    own[0] -= dots.x, own[1] -= dots.y;
    Gradient::add(sums.dk, c);
    zero(c);
    of.add_earlier(paired, of.keys, c);
    of.divide_rows(c, shared.k_scale);
    dots = of.dot_rows(of.keys, shared.k_scale, c);
    own[0] += dots.x, own[1] += dots.y;
    rates[0] += dots.x, rates[1] += dots.y;
    Gradient::add(sums.dk, c);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        own[half] = sum_lanes<4>(own[half]);
        rates[half] = sum_lanes<4>(rates[half]);
        if (of.t == 0) {
            parts.own[of.part][of.row_of(half)] = own[half];
            parts.rates[of.part][of.row_of(half)] = rates[half];
        }
    }
    last = sum_lanes<32>(last);
    sums.kept = sum_lanes<32>(sums.kept);
    if (of.lane == 0) {
        parts.last[warp] = last;
        parts.kept[warp] = sums.kept;
    }
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        double sum = 0;
        float rate = 0;

        for (int p = 0; p < PARTS; p++) {
            sum += (double)parts.own[p][threadIdx.x];
            rate += parts.rates[p][threadIdx.x];
        }
        if ((int)threadIdx.x == n - 1)
            for (int w = 0; w < GRADIENT_WARPS; w++)
                sum += (double)parts.last[w] + (double)(parts.kept[w] * gates.all);
        shared.c[threadIdx.x] = sum;
        shared.beta[threadIdx.x] = rate;
    }
    write_gates(rule, head, of.piece, gates, &shared);
}

__device__ __forceinline__ void
differentiate_heads(const Heads &rule, Gates &gates, GateSums &shared, PartSums &parts)
{
    const RpDeltaArgs &args = rule.args;
    const Gradient of(rule);
    const size_t group = args.value_heads / args.key_heads, first = blockIdx.y * group;
    HeadSums sums;

    if (of.piece.n == 0)
        return;
    of.copy_rows(of.keys, (args.key_heads + of.key) * DIM);
    of.copy_rows(of.queries, of.key * DIM);
    for (size_t h = 0; h < group; h++) {
        differentiate_head(of, of.key * group + h, first + h, gates, shared, parts, sums);
        if (h > 0) {
            of.load_sums(rule.u, first + h - 1, sums.dq);
            of.load_sums(rule.right, first + h - 1, sums.dk);
        }
        if (h + 1 < group) {
            of.store_sums(rule.u, first + h, sums.dq);
            of.store_sums(rule.right, first + h, sums.dk);
        }
    }
    of.write(of.queries, of.key * DIM, shared.q_scale, length_of_queries(args), sums.dq, parts.own);
    of.write(of.keys, (args.key_heads + of.key) * DIM, shared.k_scale, 1.0f, sums.dk, parts.own);
}
