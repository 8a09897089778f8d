/*
 * Sums over rows and over whole arrays, in two stages: blocks write partial sums into the
 * workspace, then a second kernel adds those up in order. No atomics.
 *
 *   bias backward   d_bias[o] += sum_t dy[t,o]         dy: [tokens,n]; fp32                     +=
 *   experts' bias   d_bias[e,o] += sum over the rows r of expert e of weights[assigned[r]] dy[r,o]   +=
 *   squares         sum[0] += sum_i x[i]^2             double; broken[0] = 1 if not finite      +=
 *
 *   tokens: chunks of rows, each summed by the 8 rows of threads of a block
 *          +-- 32 packs of 8 columns: a block --+--
 *   chunk  |  partial sums [n]                  |         partials: [chunks,n], added chunk after
 *          +------------------------------------+--       chunk (8 strands, then together)
 *
 * Experts' biases: dy [R,n], d_bias [E,n] fp32, partials [parts,E,n]. Rows of an expert are cut into as many parts as
 * there are, a number that E alone decides, so that one expert that gets everything still has some blocks; a block takes
 * 256 columns of a part in 8 strands of rows. Bytes: R n of dy, 8 parts E n of partials.
 *
 * Squares: a warp for each RP_SQUARES_BLOCK values, lane by lane; then one block adds them in order.
 * Oracle: exec/host/elements.c, bias in exec/host/matmul.c, that of experts in exec/host/experts.c
 */
#include "exec/cuda/base/common.cuh"

#define LANES 32
#define STRANDS 8
#define THREADS (LANES * STRANDS)
#define LEAST_ROWS 128 /* rows of a chunk */
#define MOST_CHUNKS 256
#define MOST_PARTS 16
#define PARTS_OF_ALL 256
#define SQUARES_TILE 1024 /* values of a warp at a time */

static size_t
rows_of_chunk(size_t tokens)
{
    const size_t rows = ceil_divide(tokens, MOST_CHUNKS);

    return rows > LEAST_ROWS ? rows : LEAST_ROWS;
}

/* The sums of a block's columns, over its strands in order. @sums: of a strand */
static __device__ __forceinline__ void
add_strands(const float (&sums)[RP_PACK], size_t n, float *to)
{
    __shared__ float shared[STRANDS][LANES * RP_PACK + 1];
    const unsigned column = threadIdx.y * LANES + threadIdx.x;
    const size_t at = (size_t)blockIdx.x * LANES * RP_PACK + column;
    float sum = 0;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        shared[threadIdx.y][threadIdx.x * RP_PACK + i] = sums[i];
    __syncthreads();
#pragma unroll
    for (int strand = 0; strand < STRANDS; strand++)
        sum += shared[strand][column];
    if (at < n)
        to[at] = sum;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
sum_rows_kernel(size_t tokens, size_t n, size_t rows, const T *dy, float *partials, bool wide)
{
    const size_t first = ((size_t)blockIdx.x * LANES + threadIdx.x) * RP_PACK;
    const size_t start = (size_t)blockIdx.y * rows;
    const size_t end = start + rows < tokens ? start + rows : tokens;
    float sums[RP_PACK] = {};

    if (first < n) {
#pragma unroll 4
        for (size_t t = start + threadIdx.y; t < end; t += STRANDS) {
            const Pack<T> pack = load_pack(dy + t * n + first, n - first, wide);

#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                sums[i] += to_float(pack.at[i]);
        }
    }
    add_strands(sums, n, partials + (size_t)blockIdx.y * n);
}

/* A block: WIDTH columns, each by DEPTH strands of every DEPTHth chunk */
template <int WIDTH, int DEPTH>
static __global__ void __launch_bounds__(WIDTH * DEPTH)
add_partials_kernel(const float *partials, size_t count, size_t n, float *sums)
{
    __shared__ float shared[DEPTH][WIDTH];
    const size_t column = (size_t)blockIdx.x * WIDTH + threadIdx.x;
    float sum = 0;

    if (column < n) {
#pragma unroll 8
        for (size_t chunk = threadIdx.y; chunk < count; chunk += DEPTH)
            sum += partials[chunk * n + column];
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        sum = 0;
#pragma unroll
        for (int strand = 0; strand < DEPTH; strand++)
            sum += shared[strand][threadIdx.x];
        sums[column] += sum;
    }
}

/* A warp a block of values, a lane of it the sum of one lane: values come as packs and turn in shared
 * memory. A square of a float is exact in double, so that no multiplication rounds. A warp is a block of threads: few of
 * them are spread over all multiprocessors, which have few units for doubles. */
template <typename T>
static __global__ void __launch_bounds__(32)
squares_kernel(size_t n, const T *x, double *partials, bool wide)
{
    __shared__ Pack<T> packs[SQUARES_TILE / RP_PACK];
    const unsigned lane = threadIdx.x;
    const size_t begin = (size_t)blockIdx.x * RP_SQUARES_BLOCK;
    const size_t end = n - begin < RP_SQUARES_BLOCK ? n : begin + RP_SQUARES_BLOCK;
    const T *tile = packs[0].at;
    Pack<T> next[SQUARES_TILE / RP_PACK / 32]; /* under way while those before are added */
    double sum = 0, total = 0;
    const auto load = [&](size_t at) {
#pragma unroll
        for (unsigned k = 0; k < SQUARES_TILE / RP_PACK / 32; k++) {
            const size_t first = at + (k * 32 + lane) * RP_PACK;

            next[k] = load_pack(x + (first < end ? first : begin), first < end ? end - first : 0, wide);
        }
    };

    load(begin);
    for (size_t at = begin; at < end; at += SQUARES_TILE) {
#pragma unroll
        for (unsigned k = 0; k < SQUARES_TILE / RP_PACK / 32; k++)
            packs[k * 32 + lane] = next[k];
        __syncwarp();
        load(at + SQUARES_TILE);
#pragma unroll 16
        for (unsigned row = 0; row < SQUARES_TILE / 32; row++) {
            const double value = (double)to_float(tile[row * 32 + lane]);

            sum += value * value;
        }
        __syncwarp();
    }
#pragma unroll
    for (int from = 0; from < 32; from++)
        total += __shfl_sync(~0u, sum, from);
    if (lane == 0)
        partials[blockIdx.x] = total;
}

/* One block: in order. Squares of floats do not overflow a double: only values that are not finite make the sum so. */
static __global__ void __launch_bounds__(THREADS)
add_in_order_kernel(const double *values, size_t n, double *total, int32_t *broken)
{
    __shared__ double shared[THREADS];
    double sum = 0;

    for (size_t first = 0; first < n; first += THREADS) {
        shared[threadIdx.x] = first + threadIdx.x < n ? values[first + threadIdx.x] : 0;
        __syncthreads();
        for (size_t i = 0; threadIdx.x == 0 && i < THREADS && first + i < n; i++)
            sum += shared[i];
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    if (broken && !isfinite(sum))
        *broken = 1;
    *total += sum;
}

/* Runs as one block. */
static __global__ void __launch_bounds__(THREADS)
add_doubles_kernel(const double *values, size_t n, double *total)
{
    __shared__ double shared[THREADS / 32];
    double sum = 0;

    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum += values[i];
    sum = sum_block<THREADS>(sum, shared);
    if (threadIdx.x != 0)
        return;
    *total += sum;
}

template <int WIDTH, int DEPTH>
static cudaError_t
add_partials(const float *partials, size_t count, size_t n, float *sums, cudaStream_t stream)
{
    add_partials_kernel<WIDTH, DEPTH>
        <<<(unsigned)ceil_divide(n, WIDTH), dim3(WIDTH, DEPTH), 0, stream>>>(partials, count, n,
                                                                             sums);
    return cudaGetLastError();
}

/* Few columns and many chunks as a rule: narrow blocks, so that there are enough of them */
cudaError_t
rp_cuda_add_partials(const float *partials, size_t count, size_t n, float *sums,
                     cudaStream_t stream)
{
    return add_partials<8, 32>(partials, count, n, sums, stream);
}

size_t
rp_cuda_bias_backward_workspace(const RpBiasArgs *args)
{
    const size_t chunks = ceil_divide(args->tokens, rows_of_chunk(args->tokens));

    return round_to_64(chunks * args->n * sizeof(float));
}

cudaError_t
rp_cuda_bias_backward(const RpBiasArgs *args, cudaStream_t stream)
{
    const size_t tokens = args->tokens, n = args->n, rows = rows_of_chunk(tokens);
    const size_t chunks = ceil_divide(tokens, rows);
    const dim3 blocks((unsigned)ceil_divide(n, LANES * RP_PACK), (unsigned)chunks);
    float *partials = (float *)args->workspace;
    cudaError_t status;

    if (tokens == 0 || n == 0)
        return cudaSuccess;
    status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        sum_rows_kernel<T><<<blocks, dim3(LANES, STRANDS), 0, stream>>>(
            tokens, n, rows, (const T *)args->dy, partials, rows_are_wide(args->dy, n));
        return cudaGetLastError();
    });
    return status == cudaSuccess
               ? add_partials<LANES, STRANDS>(partials, chunks, n, args->d_bias, stream)
               : status;
}

cudaError_t
rp_cuda_add_doubles(const double *values, size_t n, double *sum, cudaStream_t stream)
{
    add_doubles_kernel<<<1, THREADS, 0, stream>>>(values, n, sum);
    return cudaGetLastError();
}

static size_t
squares_blocks(size_t n)
{
    return ceil_divide(n, RP_SQUARES_BLOCK);
}

size_t
rp_cuda_sum_squares_workspace(const RpSumSquaresArgs *args)
{
    return round_to_64(squares_blocks(args->n) * sizeof(double));
}

cudaError_t
rp_cuda_sum_squares(const RpSumSquaresArgs *args, cudaStream_t stream)
{
    const size_t n_blocks = squares_blocks(args->n);
    double *partials = (double *)args->workspace;
    cudaError_t status;

    if (args->n == 0)
        return cudaSuccess;
    status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        squares_kernel<T><<<(unsigned)n_blocks, 32, 0, stream>>>(args->n, (const T *)args->x, partials,
                                                                 is_wide(args->x));
        return cudaGetLastError();
    });
    if (status != cudaSuccess)
        return status;
    add_in_order_kernel<<<1, THREADS, 0, stream>>>(partials, n_blocks, args->sum, args->broken);
    return cudaGetLastError();
}

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
    const size_t n = args.n, e = blockIdx.y;
    const size_t first = ((size_t)blockIdx.x * LANES + threadIdx.x) * RP_PACK;
    const size_t offset = (size_t)args.offsets[e], end = (size_t)args.offsets[e + 1];
    const size_t rows = (end - offset + gridDim.z - 1) / gridDim.z;
    const size_t start = offset + blockIdx.z * rows;
    const size_t stop = start + rows < end ? start + rows : end;
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
    add_strands(sums, n, partials + (blockIdx.z * (size_t)gridDim.y + e) * n);
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
