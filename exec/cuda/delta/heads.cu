/*
 * The gated delta rule of heads of 128 in bf16, Qwen3.5's, in chunks of 64 tokens, with the passes and the workspace of
 * delta.cu. c: chunks, B: sequences, H: value heads of a pass, s: slices of Dv:
 *
 *   prepare    c x H       factors of tokens, P, and 1 / (1 + A)                      256 threads
 *   forward    B x H x s   out; backward: u, and the states before each chunk         a warp for 16 columns of Dv
 *   reverse    B x H x s   backward: dR, d_v; dS of the same states                   likewise
 *   gradients  c x keys    backward: dq, dk, db, da, and partial sums of d_log and d_bias   512 threads
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
    load_gates(rule, head, piece, &gates);
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
            const float factor = j <= i && i < n ? expf((float)(gates.c[i] - gates.c[j])) * k_scale[j] : 0.0f;

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
                                gates.before[i],
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

template <int N, bool STATES>
static __global__ void
__launch_bounds__(32 * N) forward_heads_kernel(const Heads rule)
{
    scan_forward<N, STATES>(rule);
}

template <int N>
static __global__ void
__launch_bounds__(32 * N) reverse_heads_kernel(const Heads rule)
{
    scan_reverse<N>(rule);
}

static __global__ void
__launch_bounds__(GRADIENT_THREADS) gradients_heads_kernel(const Heads rule)
{
    __shared__ Gates gates;
    __shared__ GateSums sums;
    __shared__ PartSums parts;

    differentiate_heads(rule, gates, sums, parts);
}

static_assert(Scan128<4>::BYTES <= MOST_SHARED, "a scan");
static_assert(GRADIENT_BYTES + sizeof(Gates) + sizeof(GateSums) + sizeof(PartSums) <= MOST_SHARED,
              "gradients");

bool
delta_is_of_heads(const RpDeltaArgs *args)
{
    return delta_has_shape_of_heads(args) && is_wide(args->qkv) && is_wide(args->d_out) && is_wide(args->workspace);
}

/* One launch, with the shared memory that it needs. */
static cudaError_t
launch_heads(void (*kernel)(const Heads), dim3 grid, unsigned threads, size_t bytes, const Heads &rule,
             cudaStream_t stream)
{
    const cudaError_t status = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (status != cudaSuccess)
        return status;
    void *pointers[] = {(void *)&rule};

    return cudaLaunchKernel((const void *)kernel, grid, dim3(threads), pointers, bytes, stream);
}

template <int N>
static cudaError_t
scan_heads(const Heads &rule, cudaStream_t stream)
{
    typedef Scan128<N> Scan;
    const dim3 grid((unsigned)rule.args.sequences, (unsigned)rule.heads, DIM / Scan::WIDTH);
    cudaError_t status = cudaSuccess;

    /* fewer blocks read less of what all columns share, more of them write faster */
    if (!rule.trains)
        return launch_heads(forward_heads_kernel<N, false>, grid, Scan::THREADS, Scan::BYTES, rule, stream);
    status = launch_heads(forward_heads_kernel<N, true>, grid, Scan::THREADS, Scan::STATES_BYTES, rule, stream);
    return status == cudaSuccess
               ? launch_heads(reverse_heads_kernel<N>, grid, Scan::THREADS, Scan::BYTES, rule, stream)
               : status;
}

cudaError_t
delta_run_heads(const Heads &rule, unsigned chunks, cudaStream_t stream)
{
    cudaError_t status = launch_heads(prepare_heads_kernel, dim3(chunks, (unsigned)rule.heads), PREPARE_THREADS,
                                      PREPARE_BYTES, rule, stream);

    if (status == cudaSuccess)
        status = rule.trains ? scan_heads<2>(rule, stream) : scan_heads<4>(rule, stream);
    return status == cudaSuccess && rule.trains
               ? launch_heads(gradients_heads_kernel, dim3(chunks, (unsigned)rule.keys), GRADIENT_THREADS,
                              GRADIENT_BYTES, rule, stream)
               : status;
}
