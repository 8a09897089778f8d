/*
 * The gated delta rule of heads of 128 in bf16, Qwen3.5's, in chunks of 64 tokens, with the passes and the workspace of
 * delta.cu. c: chunks, B: sequences, H: value heads of a pass, s: slices of Dv:
 *
 *   prepare    c x H       factors of tokens, P, and 1 / (1 + A)                      256 threads
 *   forward    B x H x s   out; backward: u, and the states before each chunk         a warp for 16 columns of Dv
 *   reverse    B x H x s   backward: dR, d_v; dS of the same states                   likewise
 *   gradients  c x keys    backward: dq, dk, and gradients of c and beta              512 threads
 *   gates      c x H       backward: db, da, and partial sums of d_log and d_bias     a warp
 *
 * Sums of g are double. A state stands at the 64 tokens in which its chunk begins: no two chunks but sequences' first
 * ones begin in the same. Shared memory is at most 99 KiB a block, as sm_86, sm_89 and sm_120 have. Oracle:
 * exec/host/delta.c
 */
#include "exec/cuda/delta/gradients.cuh"
#include "exec/cuda/delta/product.cuh"
#include "exec/cuda/delta/scan.cuh"

#define MOST_SHARED (99 * 1024)
#define PREPARE_BYTES (2 * CHUNK * PAIR_STRIDE * 4)
#define GATE_WARPS 8

/* Values that are made of a chunk's gates. */
struct Gates {
    float sum[CHUNK], rest[CHUNK];                 /* c */
    float beta[CHUNK], before[CHUNK], left[CHUNK]; /* exp(c), exp(c[last] - c) */
};

/* By one warp. Tokens behind the last have no rate, and forget nothing. */
__device__ __forceinline__ void
load_gates(const Heads &rule, size_t head, const Piece &piece, Gates &gates)
{
    const int lane = (int)threadIdx.x % 32;
    double sums[2];

#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        Gate gate = {};

        if (i < piece.n)
            gate = gate_of<bf16>(rule.args, piece.first + (size_t)i, head);
        gates.beta[i] = gate.beta;
        sums[e] = (double)gate.g + (e > 0 ? sums[0] : 0.0);
    }
    double sum = sums[1];

#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, step);

        sum += lane >= step ? other : 0.0;
    }
    const double earlier = __shfl_up_sync(0xffffffffu, sum, 1), last = __shfl_sync(0xffffffffu, sum, 31);

#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        const double c = sums[e] + (lane > 0 ? earlier : 0.0);

        gates.sum[i] = (float)c;
        gates.rest[i] = (float)(c - (double)(float)c);
        gates.before[i] = expf((float)c);
        gates.left[i] = expf((float)(last - c));
    }
}

/* Adds the squares of a left operand's rows, the lane's parts. */
__device__ __forceinline__ void
add_squares(const uint32_t (&a)[4], float (&squares)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        squares[i % 2] = fmaf(lower_of(a[i]), lower_of(a[i]), squares[i % 2]);
        squares[i % 2] = fmaf(upper_of(a[i]), upper_of(a[i]), squares[i % 2]);
    }
}

__device__ __forceinline__ void
prepare_chunk(const Heads &rule, const Piece &piece, Gates &gates, float *q_scale, float *k_scale)
{
    const size_t slot = blockIdx.y, head = rule.first_key * (rule.args.value_heads / rule.args.key_heads) + slot;
    const size_t key = key_of(rule.args, head);
    const uint32_t queries = dynamic_shared(), keys = queries + TILE_BYTES;
    float *const pairs = shared_floats(queries), *const inverse = pairs + CHUNK * PAIR_STRIDE;
    const bf16 *const token = (const bf16 *)rule.args.qkv + piece.first * rule.columns;
    const int n = piece.n, row = (int)threadIdx.x / 32 % 4, half = tile_half(), own = (int)threadIdx.x / 4;
    const Straight straight;
    const Across across;
    float query[4][4], pair[4][4], of_q[2] = {}, of_k[2] = {};

    copy_tile<DIM, CHUNK, PREPARE_THREADS>(queries, token + key * DIM, rule.columns, n);
    copy_tile<DIM, CHUNK, PREPARE_THREADS>(keys, token + (rule.args.key_heads + key) * DIM, rule.columns, n);
    if (threadIdx.x < 32)
        load_gates(rule, head, piece, gates);
    copy_async_wait();
    __syncthreads();
    zero(query);
    zero(pair);
    if (half * 2 <= row)
#pragma unroll 1
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t q[4], left[4], b[2][4];

            load_matrices(q, straight.at(queries, row, k));
            load_matrices(left, straight.at(keys, row, k));
            if (half == 0) {
                add_squares(q, of_q);
                add_squares(left, of_k);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                load_matrices(b[j], across.at(keys, half * 2 + j, k));
                add_pair(*(float(*)[2][4]) & query[2 * j], q, b[j]);
                add_pair(*(float(*)[2][4]) & pair[2 * j], left, b[j]);
            }
        }
    if (half == 0)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float q = length_of_queries(rule.args) / sqrtf(sum_lanes<4>(of_q[i]) + RP_DELTA_EPSILON);
            const float k = 1.0f / sqrtf(sum_lanes<4>(of_k[i]) + RP_DELTA_EPSILON);

            if (threadIdx.x % 4 == 0) {
                q_scale[row * 16 + i * 8 + (int)threadIdx.x % 32 / 4] = q;
                k_scale[row * 16 + i * 8 + (int)threadIdx.x % 32 / 4] = k;
            }
        }
    __syncthreads(); /* A takes the place of q and k */
#pragma unroll
    for (int e = 0; e < 16; e += 2) {
        const int i = row * 16 + row_within(e), at = half * 32 + column_within(e);
        float x[2];
        uint32_t high, low;

#pragma unroll
        for (int f = 0; f < 2; f++) {
            const int j = at + f;
            const float c = (gates.sum[i] - gates.sum[j]) + (gates.rest[i] - gates.rest[j]);
            const float factor = j <= i && i < n ? expf(c) * k_scale[j] : 0.0f;

            x[f] = query[e / 4][e % 4 + f] * q_scale[i] * factor;
            pairs[i * PAIR_STRIDE + j] =
                j < i ? pair[e / 4][e % 4 + f] * (gates.beta[i] * k_scale[i]) * factor : 0.0f;
        }
        split(x[0], x[1], high, low);
        if (i < n) {
            bf16 *const place = (bf16 *)(void *)rule.pairs + ((piece.first + i) * rule.heads + slot) * DIM + at;

            *(uint32_t *)(void *)place = high;
            *(uint32_t *)(void *)(place + CHUNK) = low;
        }
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        const int i = (int)threadIdx.x;
        const float values[] = {gates.beta[i],
                                gates.beta[i] * gates.before[i] * k_scale[i],
                                gates.left[i] * k_scale[i],
                                gates.before[i] * q_scale[i],
                                gates.sum[i],
                                gates.rest[i],
                                k_scale[i],
                                q_scale[i]};

#pragma unroll
        for (int f = 0; f < FACTORS; f++)
            rule.factors[factor_place(rule, f, slot) + piece.first + (size_t)i] = values[f];
    }
    invert(pairs, inverse);
    if (own < n) {
        const float *from = inverse + own * PAIR_STRIDE + threadIdx.x % 4 * 16;
        bf16 *const place = (bf16 *)(void *)rule.inverse +
                            ((piece.first + own) * rule.heads + slot) * DIM + threadIdx.x % 4 * 16;
        alignas(16) uint32_t high[8], low[8];

#pragma unroll
        for (int e = 0; e < 8; e++)
            split(from[2 * e], from[2 * e + 1], high[e], low[e]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            ((uint4 *)(void *)place)[e] = make_uint4(high[4 * e], high[4 * e + 1], high[4 * e + 2], high[4 * e + 3]);
            ((uint4 *)(void *)(place + CHUNK))[e] =
                make_uint4(low[4 * e], low[4 * e + 1], low[4 * e + 2], low[4 * e + 3]);
        }
    }
}

static __global__ void
__launch_bounds__(PREPARE_THREADS, 4) prepare_heads_kernel(const Heads rule)
{
    __shared__ Gates gates;
    __shared__ float q_scale[CHUNK], k_scale[CHUNK];
    const Piece piece = find_piece(rule.args, blockIdx.x);

    if (piece.n > 0)
        prepare_chunk(rule, piece, gates, q_scale, k_scale);
}

template <bool STATES>
static __global__ void
__launch_bounds__(Scan128::THREADS) forward_heads_kernel(const Heads rule)
{
    scan_forward<STATES>(rule);
}

static __global__ void
__launch_bounds__(Scan128::THREADS) reverse_heads_kernel(const Heads rule)
{
    scan_reverse(rule);
}

static __global__ void
__launch_bounds__(GRADIENT_THREADS) gradients_heads_kernel(const Heads rule)
{
    differentiate_heads(rule);
}

/* A warp a chunk and head: c's gradients, from the last token on, are g's. */
static __global__ void
__launch_bounds__(GATE_WARPS * 32) gates_heads_kernel(const Heads rule)
{
    const RpDeltaArgs &args = rule.args;
    const Piece piece = find_piece(args, blockIdx.x);
    const size_t slot = blockIdx.y * GATE_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t head = rule.first_key * (args.value_heads / args.key_heads) + slot;
    float own[2], log[2] = {}, bias[2] = {};
    double sums[2];

    if (slot >= rule.heads || piece.n == 0)
        return;
    const float *const of_c = rule.factors + factor_place(rule, SUM, slot) + piece.first;
    const float *const of_beta = rule.factors + factor_place(rule, BETA, slot) + piece.first;

#pragma unroll
    for (int e = 0; e < 2; e++)
        own[e] = (int)(2 * lane + e) < piece.n ? of_c[2 * lane + e] : 0.0f;
    sums[0] = (double)own[0] + (double)own[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_down_sync(0xffffffffu, sums[0], step);

        sums[0] += lane + step < 32 ? other : 0.0;
    }
    sums[1] = sums[0] - (double)own[0];
#pragma unroll
    for (int e = 0; e < 2; e++)
        if ((int)(2 * lane + e) < piece.n) {
            const size_t token = piece.first + 2 * lane + e;

            write_gate<bf16>(args, token, head, gate_of<bf16>(args, token, head), (float)sums[e],
                             of_beta[2 * lane + e], &log[e], &bias[e]);
        }
    log[0] = sum_lanes<32>(log[0] + log[1]);
    bias[0] = sum_lanes<32>(bias[0] + bias[1]);
    if (lane == 0) {
        float *const partials = rule.partials + (size_t)blockIdx.x * 2 * args.value_heads;

        partials[head] = log[0];
        partials[args.value_heads + head] = bias[0];
    }
}

static_assert(Scan128::BYTES <= MOST_SHARED, "a scan");
static_assert(GRADIENT_BYTES <= MOST_SHARED, "gradients");

bool
delta_is_of_heads(const RpDeltaArgs *args)
{
    return delta_has_shape_of_heads(args) && is_wide(args->qkv) && is_wide(args->d_out) && is_wide(args->workspace);
}

cudaError_t
delta_run_heads(const Heads &rule, unsigned chunks, cudaStream_t stream)
{
    const unsigned heads = (unsigned)rule.heads, keys = (unsigned)rule.keys;
    const dim3 scans((unsigned)rule.args.sequences, heads, DIM / Scan128::WIDTH);
    const struct {
        void (*kernel)(const Heads);
        dim3 grid;
        int threads, bytes; /* of shared memory */
    } launches[] = {
        {prepare_heads_kernel, dim3(chunks, heads), PREPARE_THREADS, PREPARE_BYTES},
        {rule.trains ? forward_heads_kernel<true> : forward_heads_kernel<false>, scans, Scan128::THREADS,
         rule.trains ? Scan128::STATES_BYTES : Scan128::BYTES},
        {reverse_heads_kernel, scans, Scan128::THREADS, Scan128::BYTES},
        {gradients_heads_kernel, dim3(chunks, keys), GRADIENT_THREADS, GRADIENT_BYTES},
        {gates_heads_kernel, dim3(chunks, (unsigned)ceil_divide(heads, GATE_WARPS)), GATE_WARPS * 32, 0},
    };
    cudaError_t status = cudaSuccess;

    for (int i = 0; i < (rule.trains ? 5 : 2) && status == cudaSuccess; i++) {
        void *pointers[] = {(void *)&rule};

        status = cudaFuncSetAttribute((const void *)launches[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      launches[i].bytes);
        if (status == cudaSuccess)
            status = cudaLaunchKernel((const void *)launches[i].kernel, launches[i].grid, dim3(launches[i].threads),
                                      pointers, (size_t)launches[i].bytes, stream);
    }
    return status;
}
