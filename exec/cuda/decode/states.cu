/*
 * Gated DeltaNet from a state: the convolution and the recurrent delta rule of ranges of tokens, one token after the
 * other. Formulas: exec/kernels/decode-args.h, exec/kernels/delta-args.h.
 *
 *   convolution   a thread has a column of a range, its last inputs and the taps in registers
 *   delta rule    a block has 32 columns of the state of a range and value head, a warp 32 of its rows:
 *                 S [32 rows,32 columns] stands in registers of the warp, a column a lane
 *
 * Sums over rows are those of a warp in order, then warps in order. fp32. Oracle: exec/host/decode.c
 */
#include "exec/cuda/base/common.cuh"

#define STEP_THREADS 128
#define STEP_TAPS 4 /* the kernel that models have; others take RP_MOST_CONV */
#define STATE_ROWS 32     /* of a warp */
#define MOST_STATE_WARPS 8

/* ---- convolution ---- */

template <typename T, int TAPS>
static __global__ void
__launch_bounds__(STEP_THREADS) step_conv(const RpConvStepArgs args)
{
    const size_t column = (size_t)blockIdx.x * STEP_THREADS + threadIdx.x, range = blockIdx.y;
    const int K = (int)args.kernel, gap = TAPS - K; /* taps before the first are 0 */
    float taps[TAPS], x[TAPS];

    if (column >= args.n)
        return;
    T *state = (T *)args.states + (size_t)args.slots[range] * (K - 1) * args.n + column;

#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        taps[k] = k >= gap ? to_float(((const T *)args.weight)[column * K + k - gap]) : 0.0f;
        x[k] = k > gap && !args.begins ? to_float(state[(size_t)(k - gap - 1) * args.n]) : 0.0f;
    }
    for (int t = args.firsts[range]; t < args.ends[range]; t++) {
        const size_t at = (size_t)t * args.n + column;
        float z = 0;

#pragma unroll
        for (int k = 0; k + 1 < TAPS; k++)
            x[k] = x[k + 1];
        x[TAPS - 1] = to_float(((const T *)args.x)[at]);
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            z = fmaf(taps[k], x[k], z);
        ((T *)args.y)[at] = from_float<T>(z / (1.0f + expf(-z)));
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        if (k > gap)
            state[(size_t)(k - gap - 1) * args.n] = from_float<T>(x[k]);
}

extern "C" cudaError_t
rp_cuda_conv_step(const RpConvStepArgs *args, cudaStream_t stream)
{
    const dim3 grid((unsigned)ceil_divide(args->n, STEP_THREADS), (unsigned)args->ranges);

    if (args->kernel == 0 || args->kernel > RP_MOST_CONV)
        return cudaErrorInvalidValue;
    if (args->ranges == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        if (args->kernel <= STEP_TAPS)
            step_conv<T, STEP_TAPS><<<grid, STEP_THREADS, 0, stream>>>(*args);
        else
            step_conv<T, RP_MOST_CONV><<<grid, STEP_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

/* ---- delta rule ---- */

typedef struct {
    float keys[MOST_STATE_WARPS * STATE_ROWS], queries[MOST_STATE_WARPS * STATE_ROWS]; /* k', q' */
    float squares[2][MOST_STATE_WARPS];
    float sums[2][MOST_STATE_WARPS][32];
} StateShared;

/* k' and q' of a token; a thread has a row. */
template <typename T>
__device__ __forceinline__ void
load_state_token(const RpDeltaStepArgs &args, size_t token, size_t head, StateShared &shared)
{
    const int Dk = (int)args.key_dim, row = (int)threadIdx.x, warps = (int)blockDim.x / 32;
    const size_t keys = args.key_heads * Dk;
    const size_t at = token * (2 * keys + args.value_heads * args.value_dim) +
                      head / (args.value_heads / args.key_heads) * Dk + row;
    const float q = row < Dk ? to_float(((const T *)args.qkv)[at]) : 0.0f;
    const float k = row < Dk ? to_float(((const T *)args.qkv)[at + keys]) : 0.0f;
    const float qq = sum_lanes<32>(q * q), kk = sum_lanes<32>(k * k);
    float q_sum = 0, k_sum = 0;

    if (threadIdx.x % 32 == 0) {
        shared.squares[0][threadIdx.x / 32] = qq;
        shared.squares[1][threadIdx.x / 32] = kk;
    }
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        q_sum += shared.squares[0][w];
        k_sum += shared.squares[1][w];
    }
    shared.queries[row] = q / sqrtf(q_sum + RP_DELTA_EPSILON) / sqrtf((float)Dk);
    shared.keys[row] = k / sqrtf(k_sum + RP_DELTA_EPSILON);
    __syncthreads();
}

template <typename T>
static __global__ void
__launch_bounds__(MOST_STATE_WARPS * 32) step_delta(const RpDeltaStepArgs args)
{
    __shared__ StateShared shared;
    const int Dk = (int)args.key_dim, Dv = (int)args.value_dim;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int warps = (int)blockDim.x / 32, column = (int)blockIdx.x * 32 + lane;
    const size_t head = blockIdx.y, range = blockIdx.z, H = args.value_heads;
    const bool valid = column < Dv;
    float *state = args.states + ((size_t)args.slots[range] * H + head) * Dk * Dv + column;
    const float rate = expf(to_float(((const T *)args.log)[head]));
    const float bias = to_float(((const T *)args.bias)[head]);
    float S[STATE_ROWS];

#pragma unroll
    for (int i = 0; i < STATE_ROWS; i++) {
        const int row = warp * STATE_ROWS + i;

        S[i] = valid && row < Dk && !args.begins ? state[(size_t)row * Dv] : 0.0f;
    }
    for (int t = args.firsts[range]; t < args.ends[range]; t++) {
        const size_t v_at = (size_t)t * (2 * args.key_heads * Dk + H * Dv) +
                            2 * args.key_heads * Dk + head * Dv + column;
        const float x = to_float(((const T *)args.a)[t * H + head]) + bias;
        const float decay = expf(-rate * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))));
        const float beta = 1.0f / (1.0f + expf(-to_float(((const T *)args.b)[t * H + head])));
        const float v = valid ? to_float(((const T *)args.qkv)[v_at]) : 0.0f;
        float sum = 0, u = 0, out = 0;

        load_state_token<T>(args, t, head, shared);
#pragma unroll
        for (int i = 0; i < STATE_ROWS; i++)
            sum = fmaf(S[i], shared.keys[warp * STATE_ROWS + i], sum);
        shared.sums[0][warp][lane] = sum;
        __syncthreads();
        for (int w = 0; w < warps; w++)
            u += shared.sums[0][w][lane];
        u = beta * (v - decay * u);
#pragma unroll
        for (int i = 0; i < STATE_ROWS; i++) {
            S[i] = fmaf(decay, S[i], shared.keys[warp * STATE_ROWS + i] * u);
            out = fmaf(S[i], shared.queries[warp * STATE_ROWS + i], out);
        }
        shared.sums[1][warp][lane] = out;
        __syncthreads();
        if (warp > 0)
            continue;
        out = 0;
        for (int w = 0; w < warps; w++)
            out += shared.sums[1][w][lane];
        if (valid)
            ((T *)args.out)[(t * H + head) * Dv + column] = from_float<T>(out);
    }
#pragma unroll
    for (int i = 0; i < STATE_ROWS; i++) {
        const int row = warp * STATE_ROWS + i;

        if (valid && row < Dk)
            state[(size_t)row * Dv] = S[i];
    }
}

extern "C" cudaError_t
rp_cuda_delta_step(const RpDeltaStepArgs *args, cudaStream_t stream)
{
    const size_t warps = ceil_divide(args->key_dim, STATE_ROWS);
    const dim3 grid((unsigned)ceil_divide(args->value_dim, 32), (unsigned)args->value_heads,
                    (unsigned)args->ranges);

    if (warps == 0 || warps > MOST_STATE_WARPS || args->key_heads == 0 || args->ranges > 65535)
        return cudaErrorInvalidValue;
    if (args->ranges == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        step_delta<decltype(zero)><<<grid, (unsigned)warps * 32, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}
