/*
 * Gradients of the biases of experts.
 *
 *   d_bias[e,o] += sum over the rows r of expert e of weights[assigned[r]] dy[r,o]              +=
 *
 * dy: [R,n], d_bias: [E,n] fp32, and so are the sums. Rows of an expert are cut into as many parts
 * as there are, a number that E alone decides, so that one expert that gets everything still has
 * some blocks; a block takes 256 columns of a part in 8 strands of rows. A second kernel adds the
 * parts up in order.
 *
 *   partials: [parts,E,n]; bytes: R n of dy, 8 parts E n of partials. Oracle: exec/host/experts.c
 */
#include "exec/cuda/base/common.cuh"

#define LANES 32
#define STRANDS 8
#define THREADS (LANES * STRANDS)
#define MOST_PARTS 16
#define PARTS_OF_ALL 256

static unsigned
parts_of(size_t experts)
{
    const size_t parts = PARTS_OF_ALL / (experts > 0 ? experts : 1);

    return (unsigned)(parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) sum_parts_kernel(RpExpertBiasArgs args, float *partials, bool wide)
{
    __shared__ float shared[STRANDS][LANES * RP_PACK + 1];
    const size_t n = args.n, e = blockIdx.y;
    const size_t begin = (size_t)blockIdx.x * LANES * RP_PACK; /* first of the block's columns */
    const size_t first = begin + threadIdx.x * RP_PACK;
    const size_t offset = (size_t)args.offsets[e], end = (size_t)args.offsets[e + 1];
    const size_t rows = (end - offset + gridDim.z - 1) / gridDim.z;
    const size_t start = offset + blockIdx.z * rows;
    const size_t stop = start + rows < end ? start + rows : end;
    const unsigned column = threadIdx.y * LANES + threadIdx.x;
    float sums[RP_PACK] = {};

    if (first < n) {
#pragma unroll 4
        for (size_t r = start + threadIdx.y; r < stop; r += STRANDS) {
            const Pack<T> pack = load_pack((const T *)args.dy + r * n + first, n - first, wide);
            const float weight =
                args.weights ? to_float(((const T *)args.weights)[args.assigned[r]]) : 1.0f;

#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                sums[i] += weight * to_float(pack.at[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        shared[threadIdx.y][threadIdx.x * RP_PACK + i] = sums[i];
    __syncthreads();
    if (begin + column < n) {
        float sum = 0;

#pragma unroll
        for (int strand = 0; strand < STRANDS; strand++)
            sum += shared[strand][column];
        partials[(blockIdx.z * (size_t)gridDim.y + e) * n + begin + column] = sum;
    }
}

static __global__ void
__launch_bounds__(THREADS)
    add_parts_kernel(const float *partials, unsigned parts, size_t n, float *d_bias)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (i >= n)
        return;
#pragma unroll 4
    for (unsigned part = 0; part < parts; part++)
        sum += partials[part * n + i];
    d_bias[i] += sum;
}

size_t
rp_cuda_expert_bias_backward_workspace(const RpExpertBiasArgs *args)
{
    return round_to_64(parts_of(args->experts) * args->experts * args->n * sizeof(float));
}

cudaError_t
rp_cuda_expert_bias_backward(const RpExpertBiasArgs *args, cudaStream_t stream)
{
    const RpExpertBiasArgs copy = *args;
    const unsigned parts = parts_of(copy.experts);
    const size_t n = copy.experts * copy.n;
    const dim3 blocks((unsigned)ceil_divide(copy.n, LANES * RP_PACK), (unsigned)copy.experts,
                      parts);
    cudaError_t status;

    if (args->rows == 0 || n == 0)
        return cudaSuccess;
    status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        sum_parts_kernel<T><<<blocks, dim3(LANES, STRANDS), 0, stream>>>(
            copy, (float *)copy.workspace, rows_are_wide(copy.dy, copy.n));
        return cudaGetLastError();
    });
    if (status != cudaSuccess)
        return status;
    add_parts_kernel<<<(unsigned)ceil_divide(n, THREADS), THREADS, 0, stream>>>(
        (const float *)copy.workspace, parts, n, copy.d_bias);
    return cudaGetLastError();
}
