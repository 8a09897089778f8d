/*
 * Attention sinks: a learned logit of each head joins the rows of an attention that was computed
 * without it.
 *
 *   forward   l = log(exp(lse) + exp(sink));  out *= exp(lse - l);  lse = l                         =
 *   backward  d_sinks[h] -= sum_t exp(sinks[h] - lse[h,t]) (d_out[t,h] . out[t,h])                 +=
 *
 * out, d_out: [T,H,D]; lse: [H,T]. fp32; sums over t in double: of CHUNK tokens apart, then of the
 * chunks in order. A warp has one row of out:
 *
 *   forward    block: 8 rows of out one after the other;  grid: x = rows
 *   backward   block: 8 warps, a token of a head at a time each;  grid: x = chunks, y = heads
 *
 * Oracle: exec/host/attention.c
 */
#include "exec/cuda/base/common.cuh"

#define WARPS 8
#define CHUNK 256 /* tokens */

template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
join_sinks(size_t tokens, size_t heads, size_t head_size, const T *sinks, T *out, float *lse,
           bool wide)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32; /* token, then head */
    const unsigned lane = threadIdx.x % 32;
    const size_t head = row % heads, token = row / heads;
    T *values = out + row * head_size;

    if (token >= tokens)
        return;
    const float sink = to_float(sinks[head]), before = lse[head * tokens + token];
    /* the lesser of the two, as a share of the other */
    const float lesser = expf(-fabsf(sink - before));
    const float left = (sink > before ? lesser : 1.0f) / (1.0f + lesser);

    __syncwarp(); /* all have read it */
    if (lane == 0)
        lse[head * tokens + token] = fmaxf(sink, before) + logf(1.0f + lesser);
    for (size_t first = lane * RP_PACK; first < head_size; first += 32 * RP_PACK) {
        Pack<T> pack = load_pack(values + first, head_size - first, wide);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            pack.at[i] = from_float<T>(left * to_float(pack.at[i]));
        store_pack(values + first, pack, head_size - first, wide);
    }
}

/* The sums of a chunk of tokens; @sums: [chunks,heads] */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
sum_chunks(size_t tokens, size_t heads, size_t head_size, const T *sinks, const T *out,
           const float *lse, const T *d_out, double *sums, bool wide)
{
    __shared__ double shared[WARPS];
    const size_t head = blockIdx.y, begin = (size_t)blockIdx.x * CHUNK;
    const size_t end = begin + CHUNK < tokens ? begin + CHUNK : tokens;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float sink = to_float(sinks[head]);
    double sum = 0;

    for (size_t t = begin + warp; t < end; t += WARPS) {
        const size_t row = (t * heads + head) * head_size;
        float delta = 0;

        for (size_t first = lane * RP_PACK; first < head_size; first += 32 * RP_PACK) {
            const Pack<T> a = load_pack(out + row + first, head_size - first, wide);
            const Pack<T> b = load_pack(d_out + row + first, head_size - first, wide);

#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                delta = fmaf(to_float(a.at[i]), to_float(b.at[i]), delta);
        }
        sum += (double)(expf(sink - lse[head * tokens + t]) * sum_lanes<32>(delta));
    }
    if (lane == 0)
        shared[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < WARPS; i++)
        sum += shared[i];
    sums[blockIdx.x * heads + head] = sum;
}

static __global__ void
subtract_chunks(size_t chunks, size_t heads, const double *sums, float *d_sinks)
{
    const size_t head = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;

    if (head >= heads)
        return;
    for (size_t i = 0; i < chunks; i++)
        sum += sums[i * heads + head];
    d_sinks[head] -= (float)sum;
}

cudaError_t
rp_cuda_sink_forward(const RpSinkArgs *args, cudaStream_t stream)
{
    const size_t rows = args->tokens * args->heads;
    const bool wide = rows_are_wide(args->out, args->head_size);

    if (rows == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        join_sinks<T><<<(unsigned)ceil_divide(rows, WARPS), WARPS * 32, 0, stream>>>(
            args->tokens, args->heads, args->head_size, (const T *)args->sinks, (T *)args->out,
            args->lse, wide);
        return cudaGetLastError();
    });
}

size_t
rp_cuda_sink_backward_workspace(const RpSinkArgs *args)
{
    return round_to_64(ceil_divide(args->tokens, CHUNK) * args->heads * sizeof(double));
}

cudaError_t
rp_cuda_sink_backward(const RpSinkArgs *args, cudaStream_t stream)
{
    const size_t chunks = ceil_divide(args->tokens, CHUNK);
    const bool wide =
        rows_are_wide(args->out, args->head_size) && rows_are_wide(args->d_out, args->head_size);

    if (args->tokens == 0 || args->heads == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);
        double *sums = (double *)args->workspace;

        sum_chunks<T><<<dim3((unsigned)chunks, (unsigned)args->heads), WARPS * 32, 0, stream>>>(
            args->tokens, args->heads, args->head_size, (const T *)args->sinks,
            (const T *)args->out, args->lse, (const T *)args->d_out, sums, wide);
        subtract_chunks<<<(unsigned)ceil_divide(args->heads, 64), 64, 0, stream>>>(
            chunks, args->heads, sums, args->d_sinks);
        return cudaGetLastError();
    });
}
