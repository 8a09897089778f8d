/*
 * The states of a sequence, one step a chunk, of heads of 128 in bf16. A warp has 16 columns of Dv alone, all in registers
 * and transposed, so that sums of one product are the next one's left operand, and warps meet only for copies:
 *
 *   forward    x = BETA v - READ (k S);  u = x / (1 + A);  out = QUERY (q S) + P u;  S = exp(c[last]) S + k^T WRITE u
 *   reverse    du = WRITE (k dS) + P^T d_out;  dR = du / (1 + A)^T;  d_v = BETA dR
 *              dS = exp(c[last]) dS + q^T QUERY d_out - k^T READ dR
 *
 * Half of a step's tiles are copied while the other half is computed with: "early" ones and "late" ones.
 */
#pragma once

#include "exec/cuda/delta/heads.cuh"

#define STATE_TILES (DIM / 8)
#define PAIR_TILES (CHUNK / 8)
#define FACTOR_BYTES (SCANNED * CHUNK * 4)

#define SCAN_WARPS 4

/* Shared memory: k and the factors twice, one of two while the other is copied. */
struct Scan128 {
    static constexpr int THREADS = 32 * SCAN_WARPS, WIDTH = 16 * SCAN_WARPS;
    static constexpr uint32_t ROW_BYTES = 2 * WIDTH + 16; /* of v or d_out: rows in different banks */
    static constexpr uint32_t INVERSE = 2 * TILE_BYTES, SLICE = INVERSE + TILE_BYTES;
    static constexpr uint32_t RATES = SLICE + CHUNK * ROW_BYTES;
    static constexpr uint32_t QUERIES = RATES + 2 * FACTOR_BYTES, PAIRS = QUERIES + TILE_BYTES;
    static constexpr int STATES_BYTES = (int)QUERIES, BYTES = (int)PAIRS + TILE_BYTES;

    const Heads &rule;
    const Straight straight;
    const Across across;
    const uint32_t shared;
    const int warp, g, t;
    const size_t slot, head, key, column, begin, end;

    __device__ __forceinline__ Scan128(const Heads &of)
        : rule(of), shared(dynamic_shared()), warp((int)threadIdx.x / 32), g((int)threadIdx.x % 32 / 4),
          t((int)threadIdx.x % 4), slot(blockIdx.y), head(of.first_key * group() + blockIdx.y),
          key(head / group()), column((size_t)blockIdx.z * WIDTH),
          begin((size_t)of.args.starts[blockIdx.x]), end((size_t)of.args.starts[blockIdx.x + 1])
    {
    }
    __device__ __forceinline__ size_t group() const
    {
        return rule.args.value_heads / rule.args.key_heads;
    }
    __device__ __forceinline__ int rows(size_t first) const
    {
        return (int)min((size_t)CHUNK, end - first);
    }
    __device__ __forceinline__ const bf16 *token(size_t first) const
    {
        return (const bf16 *)rule.args.qkv + first * rule.columns;
    }
    __device__ __forceinline__ size_t values() const
    {
        return 2 * rule.args.key_heads * DIM + head * DIM + column;
    }
    __device__ __forceinline__ uint32_t keys(int parity) const
    {
        return shared + (uint32_t)parity * TILE_BYTES;
    }
    /* Factor @factor of tokens 2t and 2t + 1 of eight */
    __device__ __forceinline__ float2 factor(int parity, int factor, int eight) const
    {
        return load_shared_pair(shared + RATES + (uint32_t)parity * FACTOR_BYTES +
                                (uint32_t)((factor * CHUNK + eight * 8 + 2 * t) * 4));
    }
    /* exp(c[last]) of the chunk at @first */
    __device__ __forceinline__ float all(size_t first) const
    {
        return expf(rule.factors[factor_place(rule, SUM, slot) + first + (size_t)rows(first) - 1]);
    }

    /* ---- copies ---- */

    __device__ __forceinline__ void copy_keys(size_t first, int parity) const
    {
        copy_tile<DIM, CHUNK, THREADS>(keys(parity),
                                       token(first) + (rule.args.key_heads + key) * DIM, rule.columns,
                                       rows(first));
        for (int i = (int)threadIdx.x; i < SCANNED * CHUNK; i += THREADS)
            copy_async_4(shared + RATES + (uint32_t)(parity * FACTOR_BYTES + i * 4),
                         rule.factors + factor_place(rule, i / CHUNK, slot) + first + i % CHUNK,
                         i % CHUNK < rows(first));
    }
    __device__ __forceinline__ void copy_queries(size_t first) const
    {
        copy_tile<DIM, CHUNK, THREADS>(shared + QUERIES, token(first) + key * DIM, rule.columns,
                                       rows(first));
    }
    __device__ __forceinline__ void copy_pairs(const float *pairs, size_t first, uint32_t place) const
    {
        copy_tile<DIM, CHUNK, THREADS>(shared + place,
                                       (const bf16 *)(const void *)pairs + (first * rule.heads + slot) * DIM,
                                       rule.heads * DIM, rows(first));
    }
    /* v or d_out, the block's columns */
    __device__ __forceinline__ void copy_rows(const bf16 *source, size_t stride, int n) const
    {
        for (int i = (int)threadIdx.x; i < CHUNK * 2 * SCAN_WARPS; i += THREADS) {
            const int row = i / (2 * SCAN_WARPS), eight = i % (2 * SCAN_WARPS);

            copy_async_16(shared + SLICE + (uint32_t)(row * (int)ROW_BYTES + eight * 16),
                          source + (size_t)row * stride + eight * 8, row < n);
        }
    }

    /* The warp's columns of 16 tokens: pairs as a product's sums [2][4] and as left operand have them */
    __device__ __forceinline__ void load_rows(int sixteen, uint32_t (&r)[4]) const
    {
        const int lane = (int)threadIdx.x % 32;

        load_matrices_transposed(r, shared + SLICE +
                                        (uint32_t)((sixteen * 16 + lane % 8 + lane / 16 * 8) * (int)ROW_BYTES +
                                                   warp * 32 + lane / 8 % 2 * 16));
    }

    /* Writes @n tokens' columns of the warp, tokens @stride apart. */
    __device__ __forceinline__ void write_rows(bf16 *target, size_t stride, int n,
                                               const float (&c)[PAIR_TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < PAIR_TILES; i++) {
            bf16 *const place = target + (size_t)(i * 8 + g) * stride + warp * 16 + 2 * t;
            const uint32_t upper = transpose_matrix(pack(bf16(), c[i][0], c[i][1]));
            const uint32_t lower = transpose_matrix(pack(bf16(), c[i][2], c[i][3]));

            if (i * 8 + g >= n)
                continue;
            *(uint32_t *)(void *)place = upper;
            *(uint32_t *)(void *)(place + 8) = lower;
        }
    }
    /* u or dR */
    __device__ __forceinline__ void write_halves(float *array, size_t first,
                                                 const float (&c)[PAIR_TILES][4]) const
    {
        bf16 *const target = (bf16 *)(void *)array + (first * rule.heads + slot) * HALVES +
                             (column / 16 + warp) * 32 + t * 4;

#pragma unroll
        for (int i = 0; i < PAIR_TILES; i++) {
            bf16 *const place = target + (size_t)(i * 8 + g) * rule.heads * HALVES;
            uint2 high, low;

            split(c[i][0], c[i][1], high.x, low.x);
            split(c[i][2], c[i][3], high.y, low.y);
            high = make_uint2(transpose_matrix(high.x), transpose_matrix(high.y));
            low = make_uint2(transpose_matrix(low.x), transpose_matrix(low.y));
            if (i * 8 + g < rows(first)) {
                *(uint2 *)(void *)place = high;
                *(uint2 *)(void *)(place + 16) = low;
            }
        }
    }
    __device__ __forceinline__ void write_state(float *array, size_t first,
                                                const float (&s)[STATE_TILES][4]) const
    {
        bf16 *const target = (bf16 *)(void *)array + halves_place(rule, first, slot) +
                             (column / 16 + warp) * SIXTEEN_HALVES + threadIdx.x % 32 * 8;

#pragma unroll
        for (int i = 0; i < STATE_TILES; i += 4)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 *const place = (uint4 *)(void *)(target + (i + half * 2) * 256);
                uint4 high, low;

                split(s[i][2 * half], s[i][2 * half + 1], high.x, low.x);
                split(s[i + 1][2 * half], s[i + 1][2 * half + 1], high.y, low.y);
                split(s[i + 2][2 * half], s[i + 2][2 * half + 1], high.z, low.z);
                split(s[i + 3][2 * half], s[i + 3][2 * half + 1], high.w, low.w);
                place[0] = high;
                place[32] = low;
            }
    }

    /* ---- products ---- */

    __device__ __forceinline__ void load_tokens(uint32_t tile, int sixteen, uint32_t (&b)[4][4]) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
            load_matrices(b[j], across.at(tile, j, sixteen));
    }
    /* c = s rows^T of two tiles, or of the first alone: [16,Dk] [64,Dk]^T */
    template <bool BOTH>
    __device__ __forceinline__ void read_state(const float (&s)[STATE_TILES][4], uint32_t first,
                                               uint32_t second, float (&c)[PAIR_TILES][4],
                                               float (&d)[PAIR_TILES][4]) const
    {
        constexpr int STEPS = BOTH ? DIM / 8 : DIM / 16;
        uint32_t b[2][4][4];
        Left a;

        load_tokens(first, 0, b[0]);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int next = step + 1;

            if (next < STEPS)
                load_tokens(BOTH && next % 2 ? second : first, BOTH ? next / 2 : next, b[next % 2]);
            if (!BOTH || step % 2 == 0)
                a.set(s, BOTH ? step / 2 : step);
            add_exact<4>(BOTH && step % 2 ? d : c, a, b[step % 2]);
        }
    }
    /* s += x rows: [16,64] [64,Dk]; @sign: of x */
    template <typename X>
    __device__ __forceinline__ void add_to_state(const X &x, uint32_t tile, float (&s)[STATE_TILES][4]) const
    {
        uint32_t b[2][4][4];
        Left a;

#pragma unroll
        for (int j = 0; j < 4; j++)
            load_matrices_transposed(b[0][j], straight.at(tile, 0, j));
#pragma unroll
        for (int step = 0; step < 8; step++) {
            const int next = step + 1;

            if (next < 8)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    load_matrices_transposed(b[next % 2][j], straight.at(tile, next / 2, next % 2 * 4 + j));
            if (step % 2 == 0)
                x(step / 2, a);
            add_exact<4>(*(float(*)[8][4]) & s[step % 2 * 8], a, b[step % 2]);
        }
    }
    /* c += x pairs^T, of pairs i >= j: [16,j] [i,j]^T */
    __device__ __forceinline__ void times_later(const float (&x)[PAIR_TILES][4], uint32_t tile,
                                                float (&c)[PAIR_TILES][4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t high[4][4], low[4][4];
            Left a;

#pragma unroll
            for (int i = k; i < 4; i++) {
                load_matrices(high[i], across.at(tile, i, k));
                load_matrices(low[i], across.at(tile, i, k + LOW));
            }
            a.set(x, k);
#pragma unroll
            for (int i = k; i < 4; i++)
                add_pair(*(float(*)[2][4]) & c[2 * i], a.high, high[i]);
#pragma unroll
            for (int i = k; i < 4; i++)
                add_pair(*(float(*)[2][4]) & c[2 * i], a.low, high[i]);
#pragma unroll
            for (int i = k; i < 4; i++)
                add_pair(*(float(*)[2][4]) & c[2 * i], a.high, low[i]);
        }
    }
    /* c += x pairs, of pairs i >= j: [16,i] [i,j]; EXACT: x has no low half */
    template <bool EXACT, typename X>
    __device__ __forceinline__ void times_earlier(const X &x, uint32_t tile, float (&c)[PAIR_TILES][4]) const
    {
#pragma unroll
        for (int k = 3; k >= 0; k--) {
            uint32_t high[4][4], low[4][4];
            Left a;

#pragma unroll
            for (int j = 0; j <= k; j++) {
                load_matrices_transposed(high[j], straight.at(tile, k, j));
                load_matrices_transposed(low[j], straight.at(tile, k, j + LOW));
            }
            x(k, a);
#pragma unroll
            for (int j = 0; j <= k; j++)
                add_pair(*(float(*)[2][4]) & c[2 * j], a.high, high[j]);
            if (!EXACT)
#pragma unroll
                for (int j = 0; j <= k; j++)
                    add_pair(*(float(*)[2][4]) & c[2 * j], a.low, high[j]);
#pragma unroll
            for (int j = 0; j <= k; j++)
                add_pair(*(float(*)[2][4]) & c[2 * j], a.high, low[j]);
        }
    }
    __device__ __forceinline__ void scale(int parity, int which, float (&c)[PAIR_TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < PAIR_TILES; i++) {
            const float2 f = factor(parity, which, i);

#pragma unroll
            for (int e = 0; e < 4; e++)
                c[i][e] *= e % 2 ? f.y : f.x;
        }
    }
    __device__ __forceinline__ void forget(float all, float (&s)[STATE_TILES][4]) const
    {
#pragma unroll
        for (int e = 0; e < 4 * STATE_TILES; e++)
            s[e / 4][e % 4] *= all;
    }
};

/* STATES: u and the states before chunks, for the backward; else out. */
template <bool STATES>
__device__ __forceinline__ void
scan_forward(const Heads &rule)
{
    const Scan128 of(rule);
    float s[STATE_TILES][4];
    int parity = 0;

    zero(s);
    if (of.begin == of.end)
        return;
    of.copy_keys(of.begin, 0);
    if (!STATES)
        of.copy_queries(of.begin);
    for (size_t first = of.begin; first < of.end; first += CHUNK, parity ^= 1) {
        const int n = of.rows(first);
        const float all = of.all(first);
        const bool ends = first + CHUNK >= of.end;
        float x[PAIR_TILES][4], out[PAIR_TILES][4], u[PAIR_TILES][4];

        copy_async_wait();
        __syncthreads();
        of.copy_pairs(rule.inverse, first, Scan128::INVERSE);
        of.copy_rows(of.token(first) + of.values(), rule.columns, n);
        if (!STATES)
            of.copy_pairs(rule.pairs, first, Scan128::PAIRS);
        zero(x);
        zero(out);
        zero(u);
        of.read_state<!STATES>(s, of.keys(parity), of.shared + Scan128::QUERIES, x, out);
        copy_async_wait();
        __syncthreads();
        if (!ends) {
            of.copy_keys(first + CHUNK, parity ^ 1);
            if (!STATES)
                of.copy_queries(first + CHUNK);
        }
#pragma unroll
        for (int i = 0; i < PAIR_TILES; i += 2) {
            uint32_t v[4];

            of.load_rows(i / 2, v);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 beta = of.factor(parity, BETA, i + half), read = of.factor(parity, READ, i + half);

#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t pair = v[2 * half + e / 2];

                    x[i + half][e] = e % 2 ? beta.y * upper_of(pair) - read.y * x[i + half][e]
                                           : beta.x * lower_of(pair) - read.x * x[i + half][e];
                }
            }
        }
        of.times_later(x, of.shared + Scan128::INVERSE, u);
        if (STATES) {
            of.write_halves(rule.u, first, u);
        } else {
            of.scale(parity, QUERY, out);
            of.times_later(u, of.shared + Scan128::PAIRS, out);
            of.write_rows((bf16 *)rule.args.out + (first * rule.args.value_heads + of.head) * DIM + of.column,
                          rule.args.value_heads * DIM, n, out);
        }
        if (ends)
            break;
        of.scale(parity, WRITE, u);
        of.forget(all, s);
        of.add_to_state([&](int k, Left &a) { a.set(u, k); }, of.keys(parity), s);
        if (STATES)
            of.write_state(rule.states, first + CHUNK, s);
    }
}

__device__ __forceinline__ void
scan_reverse(const Heads &rule)
{
    const Scan128 of(rule);
    const size_t values = rule.args.value_heads * DIM;
    const bf16 *const d_out = (const bf16 *)rule.args.d_out + of.head * DIM + of.column;
    bf16 *const d_values = (bf16 *)rule.args.d_qkv + of.values();
    float s[STATE_TILES][4];
    int parity = 0;

    zero(s);
    if (of.begin == of.end)
        return;
    const auto copy_early = [&](size_t first, int which) {
        of.copy_keys(first, which);
        of.copy_pairs(rule.pairs, first, Scan128::PAIRS);
        of.copy_rows(d_out + first * values, values, of.rows(first));
    };
    copy_early(of.begin + (of.end - of.begin - 1) / CHUNK * CHUNK, 0);
    for (size_t c = (of.end - of.begin + CHUNK - 1) / CHUNK; c-- > 0; parity ^= 1) {
        const size_t first = of.begin + c * CHUNK;
        const int n = of.rows(first);
        const float all = of.all(first);
        float du[PAIR_TILES][4], right[PAIR_TILES][4];
        uint32_t d[4][4];

        copy_async_wait();
        __syncthreads();
        of.copy_pairs(rule.inverse, first, Scan128::INVERSE);
        of.copy_queries(first);
        zero(du);
        zero(right);
        of.read_state<false>(s, of.keys(parity), 0, du, du);
        of.scale(parity, WRITE, du);
#pragma unroll
        for (int k = 0; k < 4; k++)
            of.load_rows(k, d[k]);
        of.times_earlier<true>(
            [&](int k, Left &a) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a.high[i] = d[k][i];
            },
            of.shared + Scan128::PAIRS, du);
        copy_async_wait();
        __syncthreads();
        if (c > 0)
            copy_early(first - CHUNK, parity ^ 1);
        of.times_earlier<false>([&](int k, Left &a) { a.set(du, k); }, of.shared + Scan128::INVERSE,
                                         right);
        of.write_halves(rule.right, first, right);
#pragma unroll
        for (int e = 0; e < 4 * PAIR_TILES; e++)
            du[e / 4][e % 4] = right[e / 4][e % 4];
        of.scale(parity, BETA, du);
        of.write_rows(d_values + first * rule.columns, rule.columns, n, du);
        if (c == 0)
            break;
        of.scale(parity, READ, right);
        of.forget(all, s);
        of.add_to_state(
            [&](int k, Left &a) {
                float some[2][4];

#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float2 f = of.factor(parity, QUERY, 2 * k + half);

#pragma unroll
                    for (int e = 0; e < 4; e++)
                        some[half][e] = e % 2 ? f.y * upper_of(d[k][2 * half + e / 2])
                                              : f.x * lower_of(d[k][2 * half + e / 2]);
                }
                a.set(some, 0);
            },
            of.shared + Scan128::QUERIES, s);
#pragma unroll
        for (int e = 0; e < 4 * PAIR_TILES; e++)
            right[e / 4][e % 4] = -right[e / 4][e % 4];
        of.add_to_state([&](int k, Left &a) { a.set(right, k); }, of.keys(parity), s);
        of.write_state(rule.d_states, first, s);
    }
}
