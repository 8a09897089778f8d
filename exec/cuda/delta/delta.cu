/*
 * The gated delta rule in chunks of 64 tokens: formulas in exec/kernels/delta-args.h. Sums and states are fp32, sums of g
 * double. Products are those of tensor cores, as exact as of fp32 (product.cuh). Key heads go in passes, with all value
 * heads that have them, so that the workspace stays small; the launches of a pass (c: chunks, H: its value heads, s:
 * slices of 32 columns of Dv):
 *
 *   prepare    c x H       P, and 1 / (1 + A)                         [T,H,64] each
 *   states     B x H x s   u and out; backward: u, and the states S before each chunk but a sequence's first
 *   reverse    B x H x s   backward: dR, the right side's gradient, d_v; dS of the same states
 *   finish     c x keys    backward: dq, dk, db, da, and partial sums of d_log and d_bias
 *
 * Blocks of 256 threads; a warp has a tile of 16 rows. States stand at the 64 tokens
 * in which their chunk begins: no two chunks but a sequence's first begin in the same. No atomics: partial sums of chunks
 * are added in order.
 *
 * rule.cuh has the parts of chunks, finish.cuh the last kernel. Oracle: exec/host/delta.c
 */
#include "exec/cuda/delta/finish.cuh"
#include "exec/cuda/delta/product.cuh"

/* ---- P, and 1 / (1 + A) ---- */

#define PREPARE_FLOATS (2 * CHUNK * KEY_STRIDE + CHUNK * PAIR_STRIDE)

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
    float query[4][4] = {}, pair[4][4] = {};

    if (piece.n == 0)
        return;
    load_gates(rule, head, piece, &gates);
    load_queries_of(rule, piece, key_of(rule, head), q, NULL);
    load_keys_of(rule, piece, key_of(rule, head), k, NULL);
    __syncthreads();
    multiply<false, true>(q + tile_row() * KEY_STRIDE, KEY_STRIDE, k + tile_half() * 32 * KEY_STRIDE,
                             KEY_STRIDE, depth_of(rule), query);
    multiply<false, true>(k + tile_row() * KEY_STRIDE, KEY_STRIDE, k + tile_half() * 32 * KEY_STRIDE,
                             KEY_STRIDE, depth_of(rule), pair);
#pragma unroll
    for (int e = 0; e < 16; e++) {
        const int i = tile_row() + row_within(e), at = tile_half() * 32 + column_within(e);
        const float decay = at <= i && i < piece.n ? expf((float)(gates.c[i] - gates.c[at])) : 0.0f;

        pairs[i * PAIR_STRIDE + at] = at < i ? pair[e / 4][e % 4] * gates.beta[i] * decay : 0.0f;
        if (i < piece.n)
            rule.pairs[((piece.first + i) * rule.heads + blockIdx.y) * CHUNK + at] = query[e / 4][e % 4] * decay;
    }
    __syncthreads();
    invert(pairs, inverse);
    for (int i = threadIdx.x / CHUNK; i < piece.n; i += DELTA_THREADS / CHUNK)
        rule.inverse[((piece.first + i) * rule.heads + blockIdx.y) * CHUNK + j] =
            inverse[i * PAIR_STRIDE + j];
}

/* ---- states ---- */

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

#define SLICE (COLUMNS + 8) /* floats from a row of a slice to the next: four rows in different banks */
#define SCAN_FLOATS                                                                                \
    (MOST_DIM * SLICE + CHUNK * KEY_STRIDE + CHUNK * PAIR_STRIDE + 2 * CHUNK * SLICE)

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
        target[d * rule.args.value_dim + column] = state[d * SLICE + threadIdx.x % 32];
}

/* A warp's 16 x 16 of a product [64,32]: rows of @a, columns of the slice @b. */
template <bool A_ACROSS>
__device__ __forceinline__ void
multiply_slice(const float *a, int stride, const float *b, int n, float (&c)[2][4])
{
    multiply<A_ACROSS, false>(A_ACROSS ? a + tile_row() : a + tile_row() * stride, stride,
                                 b + tile_half() * 16, SLICE, n, c);
}

/* A warp's 16 x 32 of a state's addition, the sum over a chunk's tokens. */
__device__ __forceinline__ void
multiply_state(const float *keys, const float *b, float (&c)[4][4])
{
    multiply<true, false>(keys + threadIdx.x / 32 * 16, KEY_STRIDE, b, SLICE, CHUNK, c);
}

/* state = all state + c */
__device__ __forceinline__ void
add_to_state(float *state, float all, const float (&c)[4][4])
{
#pragma unroll
    for (int e = 0; e < 16; e++) {
        float *const s = state + ((int)threadIdx.x / 32 * 16 + row_within(e)) * SLICE + column_within(e);

        *s = fmaf(all, *s, c[e / 4][e % 4]);
    }
}

/* A thread has eight elements of each slice [64,32]: of rows row(e), columns in_slice(e). */
template <typename T> struct Scan {
    float *state, *keys, *pairs, *x, *u; /* in shared memory: [Dk,32], q or k, P or its like, slices [64,32] */
    size_t head, column, values, begin, end;
    size_t Dv;

    __device__ __forceinline__ Scan(const Rule<T> &rule, float *shared)
        : state(shared), keys(state + MOST_DIM * SLICE), pairs(keys + CHUNK * KEY_STRIDE),
          x(pairs + CHUNK * PAIR_STRIDE), u(x + CHUNK * SLICE),
          head(rule.first_key * (rule.args.value_heads / rule.args.key_heads) + blockIdx.y),
          column((size_t)blockIdx.z * COLUMNS), begin((size_t)rule.args.starts[blockIdx.x]),
          end((size_t)rule.args.starts[blockIdx.x + 1]), Dv(rule.args.value_dim)
    {
        values = 2 * rule.args.key_heads * rule.args.key_dim + head * Dv + column;
        for (int i = threadIdx.x; i < MOST_DIM * SLICE; i += DELTA_THREADS)
            state[i] = 0;
    }
    static __device__ __forceinline__ int row(int e)
    {
        return tile_row() + row_within(e);
    }
    static __device__ __forceinline__ int in_slice(int e)
    {
        return tile_half() * 16 + column_within(e);
    }
    static __device__ __forceinline__ int at(int e)
    {
        return row(e) * SLICE + in_slice(e);
    }
    __device__ __forceinline__ bool has(const Piece &piece, int e) const
    {
        return row(e) < piece.n && column + (size_t)in_slice(e) < Dv;
    }
};

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) states_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    const RpDeltaArgs &args = rule.args;
    const Scan<T> of(rule, (float *)shared4);
    const size_t Dv = of.Dv, key = key_of(rule, of.head);
    const int D = depth_of(rule);

    for (size_t first = of.begin; first < of.end; first += CHUNK) {
        const Piece piece = {first, (int)min((size_t)CHUNK, of.end - first), first == of.begin,
                             first + CHUNK >= of.end};
        float sums[2][4] = {}, made[2][4] = {};

        load_gates(rule, of.head, piece, &gates);
        load_keys_of(rule, piece, key, of.keys, NULL);
        load_pairs(rule, piece, rule.inverse, of.pairs);
        __syncthreads();
        multiply_slice<false>(of.keys, KEY_STRIDE, of.state, D, sums);
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++) {
            const int i = of.row(e);
            const float v = of.has(piece, e)
                                ? to_float(((const T *)args.qkv)[(first + i) * rule.columns + of.values +
                                                                 of.in_slice(e)])
                                : 0.0f;

            of.x[of.at(e)] = gates.beta[i] * (v - gates.before[i] * sums[e / 4][e % 4]);
        }
        __syncthreads();
        multiply_slice<false>(of.pairs, PAIR_STRIDE, of.x, CHUNK, made);
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++) {
            of.u[of.at(e)] = made[e / 4][e % 4];
            if (rule.trains && of.has(piece, e))
                rule.u[((first + of.row(e)) * rule.heads + blockIdx.y) * Dv + of.column + of.in_slice(e)] =
                    made[e / 4][e % 4];
        }
        __syncthreads();
        if (!rule.trains) {
            float out[2][4] = {};

            load_queries_of(rule, piece, key, of.keys, NULL);
            load_pairs(rule, piece, rule.pairs, of.pairs);
            __syncthreads();
            multiply_slice<false>(of.keys, KEY_STRIDE, of.state, D, out);
#pragma unroll
            for (int e = 0; e < WARP_ROWS; e++)
                out[e / 4][e % 4] *= gates.before[of.row(e)];
            multiply_slice<false>(of.pairs, PAIR_STRIDE, of.u, CHUNK, out);
#pragma unroll
            for (int e = 0; e < WARP_ROWS; e++)
                if (of.has(piece, e))
                    ((T *)args.out)[((first + of.row(e)) * args.value_heads + of.head) * Dv + of.column +
                                    of.in_slice(e)] = from_float<T>(out[e / 4][e % 4]);
            __syncthreads();
            if (!piece.ends)
                load_keys_of(rule, piece, key, of.keys, NULL);
        }
        if (piece.ends)
            break;
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++)
            of.u[of.at(e)] *= gates.left[of.row(e)];
        __syncthreads();

        float next[4][4] = {};

        multiply_state(of.keys, of.u, next);
        add_to_state(of.state, gates.all, next);
        __syncthreads();
        if (rule.trains)
            store_state(rule, of.state, rule.states + state_place(rule, first + CHUNK));
    }
}

template <typename T>
static __global__ void
__launch_bounds__(DELTA_THREADS) reverse_kernel(const Rule<T> rule)
{
    extern __shared__ float4 shared4[];
    __shared__ Gates gates;
    const RpDeltaArgs &args = rule.args;
    const Scan<T> of(rule, (float *)shared4);
    const size_t Dv = of.Dv, key = key_of(rule, of.head);
    const size_t chunks = (of.end - of.begin + CHUNK - 1) / CHUNK;
    const int D = depth_of(rule);

    for (size_t c = chunks; c-- > 0;) {
        const size_t first = of.begin + c * CHUNK;
        const Piece piece = {first, (int)min((size_t)CHUNK, of.end - first), c == 0, c + 1 == chunks};
        float sums[2][4] = {}, right[2][4] = {}, next[4][4] = {};

        load_gates(rule, of.head, piece, &gates);
        load_keys_of(rule, piece, key, of.keys, NULL);
        load_pairs(rule, piece, rule.pairs, of.pairs);
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++)
            of.x[of.at(e)] =
                of.has(piece, e)
                    ? to_float(((const T *)args.d_out)[((first + of.row(e)) * args.value_heads + of.head) * Dv +
                                                       of.column + of.in_slice(e)])
                    : 0.0f;
        __syncthreads();
        multiply_slice<false>(of.keys, KEY_STRIDE, of.state, D, sums);
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++)
            sums[e / 4][e % 4] *= gates.left[of.row(e)];
        multiply_slice<true>(of.pairs, PAIR_STRIDE, of.x, CHUNK, sums);
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++)
            of.u[of.at(e)] = sums[e / 4][e % 4];
        __syncthreads();
        load_pairs(rule, piece, rule.inverse, of.pairs);
        __syncthreads();
        multiply_slice<true>(of.pairs, PAIR_STRIDE, of.u, CHUNK, right);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < WARP_ROWS; e++) {
            const int i = of.row(e);
            const float value = right[e / 4][e % 4];

            if (of.has(piece, e)) {
                rule.right[((first + i) * rule.heads + blockIdx.y) * Dv + of.column + of.in_slice(e)] = value;
                ((T *)args.d_qkv)[(first + i) * rule.columns + of.values + of.in_slice(e)] =
                    from_float<T>(gates.beta[i] * value);
            }
            of.u[of.at(e)] = -gates.beta[i] * gates.before[i] * value;
            of.x[of.at(e)] *= gates.before[i];
        }
        if (piece.begins)
            break;
        __syncthreads();
        multiply_state(of.keys, of.u, next);
        __syncthreads();
        load_queries_of(rule, piece, key, of.keys, NULL);
        __syncthreads();
        multiply_state(of.keys, of.x, next);
        add_to_state(of.state, gates.all, next);
        __syncthreads();
        store_state(rule, of.state, rule.d_states + state_place(rule, first));
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
    return args->tokens * (2 * CHUNK + FACTORS + (trains ? 2 * args->value_dim : 0)) +
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
    rule.factors = trains ? rule.d_states + rule.heads * state_floats(args) : rule.u;
    rule.partials = (float *)((char *)args->workspace + pass_bytes(args, trains));
    return rule;
}

template <typename T>
static cudaError_t
run_pass(const Rule<T> &rule, cudaStream_t stream)
{
    const RpDeltaArgs &args = rule.args;
    const unsigned heads = (unsigned)rule.heads, chunks = (unsigned)chunks_of(&args);
    const dim3 scan((unsigned)args.sequences, heads,
                    (unsigned)ceil_divide(args.value_dim, COLUMNS));
    const auto run = [&](void (*kernel)(const Rule<T>), dim3 grid, size_t floats) {
        return delta_launch<T>(kernel, grid, DELTA_THREADS, floats * sizeof(float), rule, stream);
    };
    cudaError_t status = run(prepare_kernel<T>, dim3(chunks, heads), PREPARE_FLOATS);

    if (status == cudaSuccess)
        status = run(states_kernel<T>, scan, SCAN_FLOATS);
    if (status == cudaSuccess && rule.trains)
        status = run(reverse_kernel<T>, scan, SCAN_FLOATS);
    if (status == cudaSuccess && rule.trains)
        status = run(finish_kernel<T>, dim3(chunks, (unsigned)rule.keys), FINISH_FLOATS);
    return status;
}

static cudaError_t
run_pass(const Rule<__nv_bfloat16> &rule, cudaStream_t stream)
{
    return delta_is_of_heads(&rule.args) ? delta_run_heads(rule, (unsigned)chunks_of(&rule.args), stream)
                                         : run_pass<__nv_bfloat16>(rule, stream);
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

            status = run_pass(rule, stream);
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

/* d_log and d_bias += the sums of all chunks, a warp a head. */
static __global__ void
add_gate_sums(size_t chunks, size_t heads, const float *partials, float *d_log, float *d_bias)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float *const target = i < heads ? d_log : d_bias;
    float sum = 0;

    if (i >= 2 * heads || target == NULL)
        return;
    for (size_t c = threadIdx.x % 32; c < chunks; c += 32)
        sum += partials[c * 2 * heads + i];
    sum = sum_lanes<32>(sum);
    if (threadIdx.x % 32 == 0)
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
    add_gate_sums<<<(unsigned)ceil_divide(2 * heads * 32, 128), 128, 0, stream>>>(
        chunks, heads, partials, args->d_log, args->d_bias);
    return cudaGetLastError();
}
