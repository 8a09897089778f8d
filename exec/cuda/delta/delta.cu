/*
 * The gated delta rule: formulas in exec/kernels/delta-args.h. Heads of 128 in bf16 go in chunks of 64 tokens
 * (heads.cu), everything else token by token (recurrence.cuh). Key heads go in passes, with all value heads that have
 * them, so that the workspace stays small. No atomics: d_log and d_bias are the sums, in order, of parts that chunks or
 * tokens leave behind a pass's workspace.
 */
#include "exec/cuda/delta/recurrence.cuh"

#define PASS_BYTES ((size_t)2 << 30) /* of a pass's workspace, unless one key head needs more */

/* Key heads of a pass, and its workspace. */
typedef struct {
    size_t keys, bytes;
} Pass;

static size_t
group_of(const RpDeltaArgs *args)
{
    return args->value_heads / args->key_heads;
}

static Pass
pass_of(const RpDeltaArgs *args, size_t head_bytes, size_t most_bytes)
{
    const size_t bytes = head_bytes * group_of(args), fit = bytes > 0 ? most_bytes / bytes : args->key_heads;
    const size_t most = fit < 1 ? 1 : fit < args->key_heads ? fit : args->key_heads;
    const size_t keys = ceil_divide(args->key_heads, ceil_divide(args->key_heads, most)); /* alike in all passes */

    return (Pass){keys, round_to_64(keys * bytes)};
}

/* ---- in chunks ---- */

static size_t
chunk_state_floats(const RpDeltaArgs *args)
{
    return (args->tokens / CHUNK + 2) * DIM * DIM;
}

static Pass
chunk_pass(const RpDeltaArgs *args, bool trains)
{
    const size_t floats = args->tokens * (2 * CHUNK + FACTORS + (trains ? 2 * DIM : 0)) +
                          (trains ? 2 * chunk_state_floats(args) : 0);

    return pass_of(args, floats * sizeof(float), PASS_BYTES);
}

/* No fewer than there are. */
static size_t
chunks_of(const RpDeltaArgs *args)
{
    return args->tokens / CHUNK + args->sequences;
}

static cudaError_t
run_chunks(const RpDeltaArgs *args, bool trains, size_t first_key, size_t keys, float *partials, cudaStream_t stream)
{
    Heads rule = {};

    rule.args = *args;
    rule.trains = trains;
    rule.first_key = first_key;
    rule.keys = keys;
    rule.heads = keys * group_of(args);
    rule.columns = rp_delta_columns(args);
    rule.pairs = (float *)args->workspace;
    rule.inverse = rule.pairs + args->tokens * rule.heads * CHUNK;
    rule.u = rule.inverse + args->tokens * rule.heads * CHUNK;
    rule.right = rule.u + args->tokens * rule.heads * DIM;
    rule.states = rule.right + args->tokens * rule.heads * DIM;
    rule.d_states = rule.states + rule.heads * chunk_state_floats(args);
    rule.factors = trains ? rule.d_states + rule.heads * chunk_state_floats(args) : rule.u;
    rule.partials = partials;
    return delta_run_heads(rule, (unsigned)chunks_of(args), stream);
}

/* ---- token by token ---- */

static size_t
kept_states(const RpDeltaArgs *args)
{
    return ceil_divide(args->tokens, SEGMENT);
}

static size_t
walk_blocks(const RpDeltaArgs *args)
{
    return ceil_divide(args->value_dim, BLOCK_COLUMNS);
}

/* Within the workspace that chunks have, where arrays decide which kernels run. */
static Pass
walk_pass(const RpDeltaArgs *args, bool trains)
{
    const size_t block = (kept_states(args) + LANES * SEGMENT) * WALK_THREADS * sizeof(State) +
                         args->tokens * TOKEN_SUMS * sizeof(float);

    return pass_of(args, trains ? walk_blocks(args) * block : 0,
                   delta_has_shape_of_heads(args) ? chunk_pass(args, trains).bytes : PASS_BYTES);
}

template <typename T>
static cudaError_t
run_walks(const RpDeltaArgs *args, bool trains, size_t first_key, size_t keys, float *partials, cudaStream_t stream)
{
    const size_t heads = keys * group_of(args), blocks = walk_blocks(args), states = heads * blocks * WALK_THREADS;
    const dim3 sequences((unsigned)args->sequences, (unsigned)heads, (unsigned)blocks);
    const dim3 lanes(LANES, (unsigned)heads, (unsigned)blocks);
    const dim3 gathers((unsigned)ceil_divide(args->tokens, GATHER_WARPS), (unsigned)keys);
    Walk<T> walk = {};

    walk.args = *args;
    walk.first_key = first_key;
    walk.heads = heads;
    walk.blocks = blocks;
    walk.columns = rp_delta_columns(args);
    if (trains) {
        walk.kept = (State *)args->workspace;
        walk.again = walk.kept + kept_states(args) * states;
        walk.sums = (float *)(walk.again + LANES * SEGMENT * states);
        walk.partials = partials;
    }
    walk_kernel<T><<<sequences, WALK_THREADS, 0, stream>>>(walk);
    if (trains) {
        reverse_walk_kernel<T><<<lanes, WALK_THREADS, 0, stream>>>(walk);
        gather_kernel<T><<<gathers, 32 * GATHER_WARPS, 0, stream>>>(walk);
    }
    return cudaGetLastError();
}

/* ---- both ---- */

static size_t
pass_bytes(const RpDeltaArgs *args, bool trains)
{
    const size_t walks = walk_pass(args, trains).bytes;
    const size_t chunks = delta_has_shape_of_heads(args) ? chunk_pass(args, trains).bytes : 0;

    return walks > chunks ? walks : chunks;
}

size_t
rp_cuda_delta_forward_workspace(const RpDeltaArgs *args)
{
    return pass_bytes(args, false);
}

/* No more sequences than tokens, so that a packed call's parts are fewer than measured. */
size_t
rp_cuda_delta_backward_workspace(const RpDeltaArgs *args)
{
    return pass_bytes(args, true) +
           round_to_64((args->tokens / CHUNK + args->tokens) * 2 * args->value_heads * sizeof(float));
}

static cudaError_t
run_all(const RpDeltaArgs *args, bool trains, float *partials, cudaStream_t stream)
{
    const bool in_chunks = delta_is_of_heads(args);
    cudaError_t status = cudaSuccess;

    if (args->key_dim > DIM)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->sequences == 0 || args->value_heads == 0)
        return cudaSuccess;

    const size_t most = in_chunks ? chunk_pass(args, trains).keys : walk_pass(args, trains).keys;

    for (size_t key = 0; key < args->key_heads && status == cudaSuccess; key += most) {
        const size_t keys = most < args->key_heads - key ? most : args->key_heads - key;

        status = in_chunks ? run_chunks(args, trains, key, keys, partials, stream)
                           : for_dtype(args->dtype, [=](auto zero) {
                                 return run_walks<decltype(zero)>(args, trains, key, keys, partials, stream);
                             });
    }
    return status;
}

cudaError_t
rp_cuda_delta_forward(const RpDeltaArgs *args, cudaStream_t stream)
{
    return run_all(args, false, NULL, stream);
}

/* d_log and d_bias += the sums of all parts, a warp a head. */
static __global__ void
add_gate_sums(size_t parts, size_t heads, const float *partials, float *d_log, float *d_bias)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float *const target = i < heads ? d_log : d_bias;
    float sum = 0;

    if (i >= 2 * heads || target == NULL)
        return;
    for (size_t p = threadIdx.x % 32; p < parts; p += 32)
        sum += partials[p * 2 * heads + i];
    sum = sum_lanes<32>(sum);
    if (threadIdx.x % 32 == 0)
        target[i % heads] += sum;
}

cudaError_t
rp_cuda_delta_backward(const RpDeltaArgs *args, cudaStream_t stream)
{
    const size_t heads = args->value_heads, parts = delta_is_of_heads(args) ? chunks_of(args) : args->tokens;
    float *const partials = (float *)((char *)args->workspace + pass_bytes(args, true));
    cudaError_t status = cudaSuccess;

    if (args->tokens == 0 || args->sequences == 0 || heads == 0)
        return cudaSuccess;
    status = cudaMemsetAsync(partials, 0, parts * 2 * heads * sizeof(float), stream);
    if (status == cudaSuccess)
        status = run_all(args, true, partials, stream);
    if (status != cudaSuccess)
        return status;
    add_gate_sums<<<(unsigned)ceil_divide(2 * heads * 32, 128), 128, 0, stream>>>(parts, heads, partials, args->d_log,
                                                                                   args->d_bias);
    return cudaGetLastError();
}
