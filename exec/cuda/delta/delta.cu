/*
 * The gated delta rule in chunks of 64 tokens: formulas in exec/kernels/delta-args.h. fp32 products and sums; sums of g
 * in double. Key heads go in passes, with all value heads that have them, so that the workspace stays small; the launches
 * of a pass (c: chunks, H: its value heads, s: slices of 32 columns of Dv):
 *
 *   prepare    c x H       P, and 1 / (1 + A)                         [T,H,64] each
 *   states     B x H x s   u and out; backward: u, and the states S before each chunk but a sequence's first
 *   reverse    B x H x s   backward: dR, the right side's gradient, d_v; dS of the same states
 *   finish     c x keys    backward: dq, dk, db, da, and partial sums of d_log and d_bias
 *
 * Blocks of 256 threads: a warp has every eighth row, a lane a column, or those 32 further. States stand at the 64 tokens
 * in which their chunk begins: no two chunks but a sequence's first begin in the same. No atomics: partial sums of chunks
 * are added in order.
 *
 * rule.cuh has the parts of chunks, finish.cuh the last kernel. Oracle: exec/host/delta.c
 */
#include "exec/cuda/delta/finish.cuh"

/* ---- P, and 1 / (1 + A) ---- */

#define PREPARE_FLOATS (2 * CHUNK * KEY_STRIDE + CHUNK * PAIR_STRIDE)

/* A column of 1 / (1 + A) by four lanes, row after row. */
__device__ __forceinline__ void
invert(const float *pairs, float *inverse)
{
    const int j = threadIdx.x / 4, part = threadIdx.x % 4;

    for (int i = part; i < CHUNK; i += 4)
        inverse[i * PAIR_STRIDE + j] = i == j ? 1.0f : 0.0f;
    __syncwarp();
    for (int i = 1; i < CHUNK; i++) {
        float sum = 0;

        for (int k = j + part; k < i; k += 4)
            sum = fmaf(pairs[i * PAIR_STRIDE + k], inverse[k * PAIR_STRIDE + j], sum);
        sum = sum_lanes<4>(sum);
        if (part == 0 && i > j)
            inverse[i * PAIR_STRIDE + j] = -sum;
        __syncwarp();
    }
}

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) prepare_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    float *const q = (float *)shared4, *const k = q + CHUNK * KEY_STRIDE;
    float *const pairs = k + CHUNK * KEY_STRIDE, *const inverse = q;
    const size_t group = rule.args.value_heads / rule.args.key_heads;
    const size_t head = rule.first_key * group + blockIdx.y;
    const Piece piece = find_piece(rule.args, blockIdx.x);
    const int j = threadIdx.x % CHUNK;

    if (piece.n == 0)
        return;
    load_gates(rule, head, piece, &gates);
    load_queries_of(rule, piece, key_of(rule, head), q, NULL);
    load_keys_of(rule, piece, key_of(rule, head), k, NULL);
    __syncthreads();
    for (int i = threadIdx.x / CHUNK; i < CHUNK; i += DELTA_THREADS / CHUNK) {
        const size_t at = ((piece.first + i) * rule.heads + blockIdx.y) * CHUNK + j;
        float query = 0, pair = 0;

        if (j <= i && i < piece.n) {
            const float decay = expf((float)(gates.c[i] - gates.c[j]));

            for (int d = 0; d < (int)rule.args.key_dim; d++) {
                query = fmaf(q[i * KEY_STRIDE + d], k[j * KEY_STRIDE + d], query);
                pair = fmaf(k[i * KEY_STRIDE + d], k[j * KEY_STRIDE + d], pair);
            }
            query *= decay;
            pair *= j < i ? gates.beta[i] * decay : 0.0f;
        }
        pairs[i * PAIR_STRIDE + j] = pair;
        if (i < piece.n)
            rule.pairs[at] = query;
    }
    __syncthreads();
    invert(pairs, inverse);
    __syncthreads();
    for (int i = threadIdx.x / CHUNK; i < piece.n; i += DELTA_THREADS / CHUNK)
        rule.inverse[((piece.first + i) * rule.heads + blockIdx.y) * CHUNK + j] =
            inverse[i * PAIR_STRIDE + j];
}

/* ---- products in shared memory: a thread has ROWS rows and one column ---- */

/* P or 1 / (1 + A), [64,PAIR_STRIDE]; zeros behind the last token */
template <typename T>
__device__ __forceinline__ void
load_pairs(const Rule<T> &rule, const Piece &piece, const float *source, float *pairs)
{
    const int j = threadIdx.x % CHUNK;

    for (int i = threadIdx.x / CHUNK; i < CHUNK; i += DELTA_THREADS / CHUNK)
        pairs[i * PAIR_STRIDE + j] =
            i < piece.n ? source[((piece.first + i) * rule.heads + blockIdx.y) * CHUNK + j] : 0.0f;
}

/* sums[r] += sum_k a[row,k] b[k,column]; @b: [.,32] */
__device__ __forceinline__ void
multiply(const float *a, int stride, const float *b, int n, float sums[ROWS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int k = 0; k < n; k += 4) {
        float values[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            values[i] = b[(k + i) * COLUMNS + lane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 x = *(const float4 *)(a + (warp + r * WARPS) * stride + k);

            sums[r] = fmaf(x.x, values[0], sums[r]);
            sums[r] = fmaf(x.y, values[1], sums[r]);
            sums[r] = fmaf(x.z, values[2], sums[r]);
            sums[r] = fmaf(x.w, values[3], sums[r]);
        }
    }
}

/* sums[r] += sum_k a[k,row] b[k,column], over the chunk's tokens */
template <int N>
__device__ __forceinline__ void
multiply_transposed(const float *a, int stride, const float *b, float sums[N])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int k = 0; k < CHUNK; k++) {
        const float value = b[k * COLUMNS + lane];

#pragma unroll
        for (int r = 0; r < N; r++)
            sums[r] = fmaf(a[k * stride + warp + r * WARPS], value, sums[r]);
    }
}

#define STATE_ROWS (MOST_DIM / WARPS) /* of a warp */
#define SCAN_FLOATS                                                                                \
    (MOST_DIM * COLUMNS + CHUNK * KEY_STRIDE + CHUNK * PAIR_STRIDE + 2 * CHUNK * COLUMNS)

/* Where a pass keeps the state before the chunk that begins at @first. */
template <typename T>
__device__ __forceinline__ size_t
state_place(const Rule<T> &rule, size_t first)
{
    return (first / CHUNK * rule.heads + blockIdx.y) * rule.args.key_dim * rule.args.value_dim;
}

/* A slice of a state, to or from the pass's; @state: [Dk,32] */
template <typename T>
__device__ __forceinline__ void
store_state(const Rule<T> &rule, const float *state, float *target)
{
    const size_t column = (size_t)blockIdx.z * COLUMNS + threadIdx.x % 32;

    for (int d = threadIdx.x / 32; d < (int)rule.args.key_dim && column < rule.args.value_dim;
         d += WARPS)
        target[d * rule.args.value_dim + column] = state[d * COLUMNS + threadIdx.x % 32];
}

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) states_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    float *const state = (float *)shared4, *const keys = state + MOST_DIM * COLUMNS;
    float *const pairs = keys + CHUNK * KEY_STRIDE, *const x = pairs + CHUNK * PAIR_STRIDE;
    float *const u = x + CHUNK * COLUMNS;
    const RpDeltaArgs &args = rule.args;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int D = (int)((args.key_dim + 3) / 4 * 4);
    const size_t head = rule.first_key * (args.value_heads / args.key_heads) + blockIdx.y;
    const size_t column = (size_t)blockIdx.z * COLUMNS + lane, Dv = args.value_dim;
    const size_t values = 2 * args.key_heads * args.key_dim + head * Dv + column;
    const size_t begin = (size_t)args.starts[blockIdx.x], end = (size_t)args.starts[blockIdx.x + 1];
    const bool here = column < Dv;

    for (int i = threadIdx.x; i < MOST_DIM * COLUMNS; i += DELTA_THREADS)
        state[i] = 0;
    for (size_t first = begin; first < end; first += CHUNK) {
        const Piece piece = {first, (int)min((size_t)CHUNK, end - first), first == begin,
                             first + CHUNK >= end};
        float sums[ROWS] = {};

        load_gates(rule, head, piece, &gates);
        load_keys_of(rule, piece, key_of(rule, head), keys, NULL);
        load_pairs(rule, piece, rule.inverse, pairs);
        __syncthreads();
        multiply(keys, KEY_STRIDE, state, D, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = warp + r * WARPS;
            const float v = i < piece.n && here
                                ? to_float(((const T *)args.qkv)[(first + i) * rule.columns + values])
                                : 0.0f;

            x[i * COLUMNS + lane] = gates.beta[i] * (v - gates.before[i] * sums[r]);
            sums[r] = 0;
        }
        __syncthreads();
        multiply(pairs, PAIR_STRIDE, x, CHUNK, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = warp + r * WARPS;

            u[i * COLUMNS + lane] = sums[r];
            if (rule.trains && i < piece.n && here)
                rule.u[((first + i) * rule.heads + blockIdx.y) * Dv + column] = sums[r];
            sums[r] = 0;
        }
        __syncthreads();
        if (!rule.trains) {
            load_queries_of(rule, piece, key_of(rule, head), keys, NULL);
            load_pairs(rule, piece, rule.pairs, pairs);
            __syncthreads();
            multiply(keys, KEY_STRIDE, state, D, sums);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sums[r] *= gates.before[warp + r * WARPS];
            multiply(pairs, PAIR_STRIDE, u, CHUNK, sums);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int i = warp + r * WARPS;

                if (i < piece.n && here)
                    ((T *)args.out)[((first + i) * args.value_heads + head) * Dv + column] =
                        from_float<T>(sums[r]);
            }
            __syncthreads();
            if (!piece.ends)
                load_keys_of(rule, piece, key_of(rule, head), keys, NULL);
        }
        if (piece.ends)
            break;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            u[(warp + r * WARPS) * COLUMNS + lane] *= gates.left[warp + r * WARPS];
        __syncthreads();

        float next[STATE_ROWS] = {};

        multiply_transposed<STATE_ROWS>(keys, KEY_STRIDE, u, next);
#pragma unroll
        for (int r = 0; r < STATE_ROWS; r++) {
            float *const s = state + (warp + r * WARPS) * COLUMNS + lane;

            *s = fmaf(gates.all, *s, next[r]);
        }
        if (rule.trains)
            store_state(rule, state, rule.states + state_place(rule, first + CHUNK));
    }
}

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) reverse_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    float *const state = (float *)shared4, *const keys = state + MOST_DIM * COLUMNS;
    float *const pairs = keys + CHUNK * KEY_STRIDE, *const x = pairs + CHUNK * PAIR_STRIDE;
    float *const u = x + CHUNK * COLUMNS;
    const RpDeltaArgs &args = rule.args;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int D = (int)((args.key_dim + 3) / 4 * 4);
    const size_t head = rule.first_key * (args.value_heads / args.key_heads) + blockIdx.y;
    const size_t column = (size_t)blockIdx.z * COLUMNS + lane, Dv = args.value_dim;
    const size_t values = 2 * args.key_heads * args.key_dim + head * Dv + column;
    const size_t begin = (size_t)args.starts[blockIdx.x], end = (size_t)args.starts[blockIdx.x + 1];
    const size_t chunks = (end - begin + CHUNK - 1) / CHUNK;
    const bool here = column < Dv;

    for (int i = threadIdx.x; i < MOST_DIM * COLUMNS; i += DELTA_THREADS)
        state[i] = 0;
    for (size_t c = chunks; c-- > 0;) {
        const size_t first = begin + c * CHUNK;
        const Piece piece = {first, (int)min((size_t)CHUNK, end - first), c == 0, c + 1 == chunks};
        float sums[ROWS] = {}, next[STATE_ROWS] = {};

        load_gates(rule, head, piece, &gates);
        load_keys_of(rule, piece, key_of(rule, head), keys, NULL);
        load_pairs(rule, piece, rule.pairs, pairs);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = warp + r * WARPS;

            x[i * COLUMNS + lane] =
                i < piece.n && here
                    ? to_float(((const T *)args.d_out)[((first + i) * args.value_heads + head) * Dv +
                                                       column])
                    : 0.0f;
        }
        __syncthreads();
        multiply(keys, KEY_STRIDE, state, D, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sums[r] *= gates.left[warp + r * WARPS];
        multiply_transposed<ROWS>(pairs, PAIR_STRIDE, x, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u[(warp + r * WARPS) * COLUMNS + lane] = sums[r];
            sums[r] = 0;
        }
        __syncthreads();
        load_pairs(rule, piece, rule.inverse, pairs);
        __syncthreads();
        multiply_transposed<ROWS>(pairs, PAIR_STRIDE, u, sums);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = warp + r * WARPS;

            if (i < piece.n && here) {
                rule.right[((first + i) * rule.heads + blockIdx.y) * Dv + column] = sums[r];
                ((T *)args.d_qkv)[(first + i) * rule.columns + values] =
                    from_float<T>(gates.beta[i] * sums[r]);
            }
            u[i * COLUMNS + lane] = -gates.beta[i] * gates.before[i] * sums[r];
            x[i * COLUMNS + lane] *= gates.before[i];
        }
        if (piece.begins)
            break;
        __syncthreads();
        multiply_transposed<STATE_ROWS>(keys, KEY_STRIDE, u, next);
        __syncthreads();
        load_queries_of(rule, piece, key_of(rule, head), keys, NULL);
        __syncthreads();
        multiply_transposed<STATE_ROWS>(keys, KEY_STRIDE, x, next);
#pragma unroll
        for (int r = 0; r < STATE_ROWS; r++) {
            float *const s = state + (warp + r * WARPS) * COLUMNS + lane;

            *s = fmaf(gates.all, *s, next[r]);
        }
        store_state(rule, state, rule.d_states + state_place(rule, first));
    }
}

/* ---- passes ---- */

static size_t
group_of(const RpDeltaArgs *args)
{
    return args->value_heads / args->key_heads;
}

static size_t
state_floats(const RpDeltaArgs *args)
{
    return (args->tokens / CHUNK + 2) * args->key_dim * args->value_dim;
}

/* Floats of a value head. */
static size_t
head_floats(const RpDeltaArgs *args, bool trains)
{
    return args->tokens * (2 * CHUNK + (trains ? 2 * args->value_dim : 0)) +
           (trains ? 2 * state_floats(args) : 0);
}

static size_t
keys_of_pass(const RpDeltaArgs *args, bool trains)
{
    const size_t bytes = head_floats(args, trains) * group_of(args) * sizeof(float);
    const size_t keys = bytes > 0 ? PASS_BYTES / bytes : args->key_heads;

    return keys < 1 ? 1 : keys < args->key_heads ? keys : args->key_heads;
}

static size_t
chunks_of(const RpDeltaArgs *args)
{
    return args->tokens / CHUNK + args->sequences;
}

/* Sums of chunks; no more sequences than tokens, so that a packed call's are fewer than measured. */
static size_t
partial_bytes(const RpDeltaArgs *args)
{
    return round_to_64((args->tokens / CHUNK + args->tokens) * 2 * args->value_heads *
                       sizeof(float));
}

static size_t
pass_bytes(const RpDeltaArgs *args, bool trains)
{
    return round_to_64(keys_of_pass(args, trains) * group_of(args) * head_floats(args, trains) *
                       sizeof(float));
}

size_t
rp_cuda_delta_forward_workspace(const RpDeltaArgs *args)
{
    return pass_bytes(args, false);
}

size_t
rp_cuda_delta_backward_workspace(const RpDeltaArgs *args)
{
    return pass_bytes(args, true) + partial_bytes(args);
}

template <typename T>
static Rule<T>
rule_of(const RpDeltaArgs *args, bool trains, size_t first_key)
{
    const size_t most = keys_of_pass(args, trains), rest = args->key_heads - first_key;
    Rule<T> rule = {};
    float *at = (float *)args->workspace;

    rule.args = *args;
    rule.trains = trains;
    rule.first_key = first_key;
    rule.keys = most < rest ? most : rest;
    rule.heads = rule.keys * group_of(args);
    rule.columns = rp_delta_columns(args);
    rule.pairs = at;
    rule.inverse = rule.pairs + args->tokens * rule.heads * CHUNK;
    rule.u = rule.inverse + args->tokens * rule.heads * CHUNK;
    rule.right = rule.u + args->tokens * rule.heads * args->value_dim;
    rule.states = rule.right + args->tokens * rule.heads * args->value_dim;
    rule.d_states = rule.states + rule.heads * state_floats(args);
    rule.partials = (float *)((char *)args->workspace + pass_bytes(args, trains));
    return rule;
}

/* One launch, with the shared memory that it needs. */
template <typename T>
static cudaError_t
launch(void (*kernel)(const Rule<T>), dim3 grid, size_t floats, const Rule<T> &rule,
       cudaStream_t stream)
{
    const size_t bytes = floats * sizeof(float);
    const cudaError_t status = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (status != cudaSuccess)
        return status;
    kernel<<<grid, DELTA_THREADS, bytes, stream>>>(rule);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t
run_pass(const Rule<T> &rule, cudaStream_t stream)
{
    const RpDeltaArgs &args = rule.args;
    const unsigned heads = (unsigned)rule.heads, chunks = (unsigned)chunks_of(&args);
    const dim3 scan((unsigned)args.sequences, heads,
                    (unsigned)ceil_divide(args.value_dim, COLUMNS));
    cudaError_t status =
        launch<T>(prepare_kernel<T>, dim3(chunks, heads), PREPARE_FLOATS, rule, stream);

    if (status == cudaSuccess)
        status = launch<T>(states_kernel<T>, scan, SCAN_FLOATS, rule, stream);
    if (status == cudaSuccess && rule.trains)
        status = launch<T>(reverse_kernel<T>, scan, SCAN_FLOATS, rule, stream);
    if (status == cudaSuccess && rule.trains)
        status = launch<T>(finish_kernel<T>, dim3(chunks, (unsigned)rule.keys), FINISH_FLOATS, rule,
                           stream);
    return status;
}

static cudaError_t
run_all(const RpDeltaArgs *args, bool trains, cudaStream_t stream)
{
    if (args->key_dim > MOST_DIM)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->sequences == 0 || args->value_heads == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);
        cudaError_t status = cudaSuccess;

        for (size_t key = 0; key < args->key_heads && status == cudaSuccess;) {
            const Rule<T> rule = rule_of<T>(args, trains, key);

            status = run_pass<T>(rule, stream);
            key += rule.keys;
        }
        return status;
    });
}

cudaError_t
rp_cuda_delta_forward(const RpDeltaArgs *args, cudaStream_t stream)
{
    return run_all(args, false, stream);
}

/* d_log and d_bias += the sums of all chunks, in order. */
static __global__ void
add_gate_sums(size_t chunks, size_t heads, const float *partials, float *d_log, float *d_bias)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float *const target = i < heads ? d_log : d_bias;
    float sum = 0;

    if (i >= 2 * heads || target == NULL)
        return;
    for (size_t c = 0; c < chunks; c++)
        sum += partials[c * 2 * heads + i];
    target[i % heads] += sum;
}

cudaError_t
rp_cuda_delta_backward(const RpDeltaArgs *args, cudaStream_t stream)
{
    const size_t heads = args->value_heads, chunks = chunks_of(args);
    float *const partials = (float *)((char *)args->workspace + pass_bytes(args, true));
    cudaError_t status = cudaSuccess;

    if (args->tokens == 0 || args->sequences == 0 || heads == 0)
        return cudaSuccess;
    status = cudaMemsetAsync(partials, 0, chunks * 2 * heads * sizeof(float), stream);
    if (status == cudaSuccess)
        status = run_all(args, true, stream);
    if (status != cudaSuccess)
        return status;
    add_gate_sums<<<(unsigned)ceil_divide(2 * heads, 128), 128, 0, stream>>>(
        chunks, heads, partials, args->d_log, args->d_bias);
    return cudaGetLastError();
}
