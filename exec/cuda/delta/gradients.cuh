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
 * copied 16 columns of Dv at a time, in the order of halves of u and dR, while those before are multiplied:
 *
 *   dP = d_out u^T;  dA = -dR u^T;  d_out S^T;  dR S^T;  u dS^T;  dR . v;  S . dS
 *
 * Then dP and dA stand in place of copies, times the scales of their tokens' q and k, so that they are multiplied by q
 * and k as those come: dq and dk are those of normed rows, times the rows' scales. Columns of Dk are those of S: of 32,
 * column 8 c + 2 t + e stands at 8 t + 2 c + e. Sums of the heads so far are kept where their u and dR were, and
 * gradients of tokens' c and beta where factors were, of which nobody else has need.
 */
#pragma once

#include "exec/cuda/delta/heads.cuh"

#define GRADIENT_THREADS 512
#define GRADIENT_WARPS (GRADIENT_THREADS / 32)
#define PARTS 4
#define SIXTEEN_BYTES (CHUNK * 32)           /* of 16 columns of d_out or v */
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

struct ChunkOfHead {
    float factors[2][FACTORS][CHUNK];             /* the next head's are copied while this one's are read */
    float own[PARTS][CHUNK], rates[PARTS][CHUNK]; /* sums of warps */
    float last[GRADIENT_WARPS];
};

/* Shared memory: k, q, a stage, another one or pairs, and the rest */
#define GRADIENT_STAGES (2 * TILE_BYTES)
#define GRADIENT_PAIRS (GRADIENT_STAGES + STAGE_BYTES)
#define GRADIENT_CHUNK (GRADIENT_PAIRS + 2 * TILE_BYTES)
#define GRADIENT_BYTES (GRADIENT_CHUNK + (int)sizeof(ChunkOfHead))

/* Where 16 bytes stand, so that eight rows are in different banks: half of a row of d_out or v; a quarter of one of u or
 * dR; a quarter of a column of a state, 32 rows of it */
__device__ __forceinline__ uint32_t
sixteen_offset(int row, int half)
{
    return (uint32_t)(row * 32 + ((half ^ row / 4 % 2) << 4));
}

__device__ __forceinline__ uint32_t
halves_offset(int row, int quarter)
{
    return (uint32_t)(row * 64 + ((quarter ^ row / 2 % 4) << 4));
}

__device__ __forceinline__ uint32_t
state_offset(int eight, int column, int quarter)
{
    return (uint32_t)(eight * 1024 + column * 64 + ((quarter ^ column / 2 ^ eight % 2 * 2) << 4));
}

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
    /* The warp's rows of 16 columns, a left operand; and of both halves of u or dR */
    __device__ __forceinline__ void load_left(uint32_t tile, uint32_t (&a)[4]) const
    {
        load_matrices(a, tile + sixteen_offset(row * 16 + lane % 16, lane / 16));
    }
    __device__ __forceinline__ void load_left(uint32_t halves, Left &a) const
    {
        const uint32_t place = halves + halves_offset(row * 16 + lane % 16, lane / 16);

        load_matrices(a.high, place);
        load_matrices(a.low, place ^ 32);
    }
    /* 16 tokens of the warp's part, a right operand */
    __device__ __forceinline__ void load_right(uint32_t halves, uint32_t (&high)[1][4], uint32_t (&low)[1][4]) const
    {
        const uint32_t place = halves + halves_offset(part * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2);

        load_matrices(high[0], place);
        load_matrices(low[0], place ^ 32);
    }
    /* Half @j of the warp's 32 columns of a state's 16 rows of Dv */
    __device__ __forceinline__ void load_state(uint32_t state, int j, uint32_t (&high)[1][4],
                                               uint32_t (&low)[1][4]) const
    {
        const int place = lane % 16, eight = place / 2 % 2, column = place / 4 * 2 + place % 2;
        const uint32_t at = state + state_offset(part * 2 + eight, column, lane / 16) ^ (uint32_t)(j * 32);

        load_matrices_transposed(high[0], at);
        load_matrices_transposed(low[0], at + 512);
    }
    /* The same of 16 rows of a tile, both halves */
    __device__ __forceinline__ void load_columns(uint32_t tile, int sixteen, uint32_t (&b)[2][4]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_matrices_transposed(b[j], straight.at(tile, sixteen, part * 2 + j));
    }

    __device__ __forceinline__ void scale_rows(float (&c)[4][4], const float *factors, float sign = 1) const
    {
        const float factor[2] = {sign * factors[row_of(0)], sign * factors[row_of(1)]};

#pragma unroll
        for (int e = 0; e < 16; e++)
            c[e / 4][e % 4] *= factor[e % 4 / 2];
    }
    /* dots += the lane's part of the rows' dot products with rows of @tile, of N arrays */
    template <int N>
    __device__ __forceinline__ void dot_rows(uint32_t tile, const float (*const (&c)[N])[4], float (&dots)[N][2]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t x = load_shared(tile + tile_offset<DIM>(row_of(half), part * 4 + j) + 4 * t);

#pragma unroll
                for (int n = 0; n < N; n++) {
                    dots[n][half] = fmaf(lower_of(x), c[n][j][2 * half], dots[n][half]);
                    dots[n][half] = fmaf(upper_of(x), c[n][j][2 * half + 1], dots[n][half]);
                }
            }
    }
    /* Writes dP and dA times their rows' and columns' scales, below the diagonal, dP's on it, too. */
    __device__ __forceinline__ void write_pairs(uint32_t queried, const float (&dp)[2][4], const float (&da)[2][4],
                                                const float (&f)[FACTORS][CHUNK]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row_of(half), at = part * 16 + j * 8 + 2 * t;
                const uint32_t place = queried + tile_offset<DIM>(i, part * 2 + j) + 4 * t;
                const uint32_t place_low = queried + tile_offset<DIM>(i, part * 2 + j + 8) + 4 * t;
                const float rate = -f[BETA][i] * f[KEY_SCALE][i];
                float x[2], y[2];
                uint32_t high, low;

#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int k = at + e;
                    const float decay = k <= i && i < piece.n
                                            ? expf((f[SUM][i] - f[SUM][k]) + (f[SUM_REST][i] - f[SUM_REST][k])) *
                                                  f[KEY_SCALE][k]
                                            : 0.0f;

                    x[e] = dp[j][2 * half + e] * decay * f[QUERY_SCALE][i];
                    y[e] = k < i ? da[j][2 * half + e] * decay * rate : 0.0f;
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
    /* Sums of heads, in memory: what a lane stores it loads */
    __device__ __forceinline__ float4 *place_of_sums(float *array, size_t slot, int e) const
    {
        return (float4 *)(void *)(array + ((piece.first + row_of(e % 2)) * rule.heads + slot) * DIM + part * 32 +
                                  e / 2 * 16 + t * 4);
    }
    __device__ __forceinline__ void load_sums(float *array, size_t slot, float4 (&sums)[4]) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[e] = row_of(e % 2) < piece.n ? *place_of_sums(array, slot, e) : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void store_sums(float *array, size_t slot, const float (&c)[4][4]) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (row_of(e % 2) < piece.n)
                *place_of_sums(array, slot, e) =
                    make_float4(c[e / 2 * 2][e % 2 * 2], c[e / 2 * 2][e % 2 * 2 + 1], c[e / 2 * 2 + 1][e % 2 * 2],
                                c[e / 2 * 2 + 1][e % 2 * 2 + 1]);
    }
    static __device__ __forceinline__ void add_sums(const float4 (&sums)[4], float (&c)[4][4])
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            c[e / 2 * 2][e % 2 * 2] += sums[e].x;
            c[e / 2 * 2][e % 2 * 2 + 1] += sums[e].y;
            c[e / 2 * 2 + 1][e % 2 * 2] += sums[e].z;
            c[e / 2 * 2 + 1][e % 2 * 2 + 1] += sums[e].w;
        }
    }
    /* The rows' dot products with those of @tile, by parts */
    __device__ __forceinline__ void sum_parts(uint32_t tile, const float (&c)[4][4], float (&parts)[PARTS][CHUNK]) const
    {
        float dots[1][2] = {};

        dot_rows<1>(tile, {c}, dots);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float dot = sum_lanes<4>(dots[0][half]);

            if (t == 0)
                parts[part][row_of(half)] = dot;
        }
    }
    /* The gradient of x, from that of the normed rows times the rows' scales, and its dot products with x. */
    __device__ __forceinline__ void write(uint32_t tile, size_t column, const float *scales, float length,
                                          const float (&c)[4][4], const float (&parts)[PARTS][CHUNK]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row_of(half);
            float dot = 0;
            uint32_t x[4];

            for (int p = 0; p < PARTS; p++)
                dot += parts[p][i];
            dot *= scales[i] * scales[i] / (length * length);
            if (i >= piece.n)
                continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = load_shared(tile + tile_offset<DIM>(i, part * 4 + j) + 4 * t);
                x[j] = pack(bf16(), c[j][2 * half] - lower_of(x[j]) * dot,
                            c[j][2 * half + 1] - upper_of(x[j]) * dot);
            }
            *(uint4 *)((bf16 *)rule.args.d_qkv + (piece.first + i) * rule.columns + column + part * 32 + t * 8) =
                make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
};

/* Copies of a head's columns of Dv, 16 at a time. */
struct Copies {
    const Gradient &of;
    const bf16 *halves, *rows, *state; /* the thread's of the next copy: of dR or u, d_out or v, and S */
    const ptrdiff_t d_state;           /* from S to dS */

    __device__ __forceinline__ explicit Copies(const Gradient &gradient)
        : of(gradient), d_state((const bf16 *)(const void *)of.rule.d_states -
                                (const bf16 *)(const void *)of.rule.states + of.rule.heads * 2 * DIM * DIM)
    {
    }
    /* Head @h's factors and first columns */
    __device__ __forceinline__ void begin(size_t h, size_t group)
    {
        const Heads &rule = of.rule;
        const RpDeltaArgs &args = rule.args;
        const size_t i = threadIdx.x, first = of.piece.first, token = first + i % 256 / 4;
        const size_t head = of.key * group + h, slot = blockIdx.y * group + h;

        static_assert(FACTORS * CHUNK == GRADIENT_THREADS, "a thread a factor");
        copy_async_4(of.keys + GRADIENT_CHUNK + (uint32_t)(h % 2 * GRADIENT_THREADS + i) * 4,
                     rule.factors + factor_place(rule, (int)i / CHUNK, slot) + first + i % CHUNK,
                     (int)i % CHUNK < of.piece.n);
        halves = (const bf16 *)(const void *)(i < 256 ? rule.right : rule.u) + (token * rule.heads + slot) * HALVES +
                 i % 4 * 8;
        rows = (i < 256 ? (const bf16 *)args.d_out + (token * args.value_heads + head) * DIM
                        : (const bf16 *)args.qkv + token * rule.columns + (2 * args.key_heads + head) * DIM) +
               i % 4 * 2;
        state = (const bf16 *)(const void *)rule.states + halves_place(rule, first, slot) + i * 8;
        step(of.stage(0));
    }
    __device__ __forceinline__ void step(uint32_t stage)
    {
        const int i = (int)threadIdx.x, which = i / 256, row = i % 256 / 4, unit = i / 32;
        const uint32_t words = stage + (uint32_t)(which * (STAGE_V - STAGE_D_OUT)) + sixteen_offset(row, i % 4 / 2) +
                               (uint32_t)(i % 2 * 8);
        const uint32_t place = stage + STAGE_STATE + state_offset(unit / 2, of.g, of.t) + (uint32_t)(unit % 2 * 512);
        const bool there = row < of.piece.n;

        copy_async_16(stage + STAGE_RIGHT + halves_offset(i / 4, i % 4), halves, there);
        copy_async_4(words, rows, there);
        copy_async_4(words + 4, rows + 8, there);
        copy_async_16(place, state, !of.piece.begins);
        copy_async_16(place + STATE_BYTES, state + d_state, !of.piece.ends);
        halves += 32;
        rows += 16;
        state += SIXTEEN_HALVES;
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

/* Gradients of c and beta of head @h of @group, and in @sums q's and k's of the heads so far */
__device__ __forceinline__ void
differentiate_head(const Gradient &of, Copies &copies, size_t h, size_t group, ChunkOfHead &chunk, HeadSums &sums)
{
    const float(&f)[FACTORS][CHUNK] = chunk.factors[h % 2];
    const size_t slot = blockIdx.y * group + h;
    float4 earlier[2][4];
    const uint32_t queried = of.keys + GRADIENT_PAIRS, paired = queried + TILE_BYTES;
    const int n = of.piece.n;
    float of_query[1][2] = {}, of_keys[2][2] = {}, written[1][2] = {};

    zero(sums.dq);
    zero(sums.dk);
    zero(sums.written);
    zero(sums.queried);
    zero(sums.paired);
    sums.rates[0] = sums.rates[1] = sums.kept = 0;
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
        copy_async_wait();
        __syncthreads();
        if (step < 7)
            copies.step(of.stage((step + 1) % 2));
        multiply_step(of, of.stage(step % 2), sums);
    }
    of.scale_rows(sums.dq, f[QUERY]);
    of.scale_rows(sums.dk, f[READ], -1);
    of.scale_rows(sums.written, f[WRITE]);
    of.dot_rows<1>(of.keys, {sums.written}, written);
    __syncthreads(); /* all have read the stages */
    if (h + 1 < group)
        copies.begin(h + 1, group);
    if (of.part <= of.row)
        of.write_pairs(queried, sums.queried, sums.paired, f);
    if (h > 0) {
        of.load_sums(of.rule.u, slot - 1, earlier[0]);
        of.load_sums(of.rule.right, slot - 1, earlier[1]);
    }
    __syncthreads();
    of.add_earlier(queried, of.keys, sums.dq);
    of.add_earlier(paired, of.keys, sums.dk);
    of.add_later(queried, of.queries, sums.written);
    of.add_later(paired, of.keys, sums.written);
    of.dot_rows<1>(of.queries, {sums.dq}, of_query);
    of.dot_rows<2>(of.keys, {sums.dk, sums.written}, of_keys);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = of.row_of(half);
        const float own = sum_lanes<4>(of_query[0][half] + of_keys[0][half] - of_keys[1][half]);
        const float rate = sum_lanes<4>(of_keys[0][half] + f[BETA][i] * sums.rates[half]);

        if (of.t == 0) {
            chunk.own[of.part][i] = own;
            chunk.rates[of.part][i] = rate;
        }
    }
    const float last = sum_lanes<32>(written[0][0] + written[0][1] + sums.kept * expf(f[SUM][n - 1]));

    if (of.lane == 0)
        chunk.last[threadIdx.x / 32] = last;
#pragma unroll
    for (int e = 0; e < 16; e++)
        sums.dk[e / 4][e % 4] += sums.written[e / 4][e % 4];
    if (h > 0) {
        of.add_sums(earlier[0], sums.dq);
        of.add_sums(earlier[1], sums.dk);
    }
    if (h + 1 < group) {
        of.store_sums(of.rule.u, slot, sums.dq);
        of.store_sums(of.rule.right, slot, sums.dk);
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        const int i = (int)threadIdx.x;
        double sum = 0;
        float rate = 0;

        for (int p = 0; p < PARTS; p++) {
            sum += (double)chunk.own[p][i];
            rate += chunk.rates[p][i];
        }
        if (i == n - 1)
            for (int w = 0; w < GRADIENT_WARPS; w++)
                sum += (double)chunk.last[w];
        of.rule.factors[factor_place(of.rule, SUM, slot) + of.piece.first + (size_t)i] = (float)sum;
        of.rule.factors[factor_place(of.rule, BETA, slot) + of.piece.first + (size_t)i] = rate;
    }
}

__device__ __forceinline__ void
differentiate_heads(const Heads &rule)
{
    const RpDeltaArgs &args = rule.args;
    const Gradient of(rule);
    const size_t group = args.value_heads / args.key_heads;
    ChunkOfHead &chunk = *(ChunkOfHead *)(void *)shared_floats(of.keys + GRADIENT_CHUNK);
    Copies copies(of);
    HeadSums sums;

    if (of.piece.n == 0)
        return;
    of.copy_rows(of.keys, (args.key_heads + of.key) * DIM);
    of.copy_rows(of.queries, of.key * DIM);
    copies.begin(0, group);
    for (size_t h = 0; h < group; h++)
        differentiate_head(of, copies, h, group, chunk, sums);
    __syncthreads(); /* sums of the last head are read */
    of.sum_parts(of.queries, sums.dq, chunk.own);
    of.sum_parts(of.keys, sums.dk, chunk.rates);
    __syncthreads();
    of.write(of.queries, of.key * DIM, chunk.factors[0][QUERY_SCALE], length_of_queries(args), sums.dq, chunk.own);
    of.write(of.keys, (args.key_heads + of.key) * DIM, chunk.factors[0][KEY_SCALE], 1.0f, sums.dk, chunk.rates);
}
