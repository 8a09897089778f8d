/* From the sums of wgmma to C. */
#pragma once

#include "exec/cuda/grouped/store.cuh"
#include "exec/cuda/grouped/wgmma-ring.cuh"

/* C =, of a warp's 16 rows from @m on, 64 columns at a time through its @patch of shared memory, so
 * that eight lanes write 128 bytes of a row. Rows of C are at multiples of 16 bytes. */
template <typename S>
static __device__ __forceinline__ void
store_patches(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
              const float (&d)[S::N][4], int m, int n, uint32_t patch)
{
    using T = typename S::T;
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, swizzle = row % 8;
    const float scale = args.scale != 0 ? args.scale : 1;
    const T *bias = (const T *)args.bias + of.bias_at + n + lane % 4 * 2;
    T *c = (T *)args.c + of.c_at + (size_t)(m + (int)(lane / 8)) * of.n + n + lane % 8 * 8;
    const int rows = of.m - m - (int)(lane / 8), columns = of.n - n;

#pragma unroll
    for (int first = 0; first < S::N; first += 8) {
        float2 more[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int at = (first + j) * 8;

            more[j] = args.bias && at + (int)(lane % 4) * 2 < columns ? load_pair(bias + at)
                                                                      : make_float2(0, 0);
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pairs[4]; /* rows g and g + 8, of two blocks of 8 columns */

#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *sums = d[first + j + i / 2] + i % 2 * 2;
                const float2 bias_pair = more[j + i / 2];

                pairs[i] = pack_pair(T(), fmaf(sums[0], scale, bias_pair.x),
                                     fmaf(sums[1], scale, bias_pair.y));
            }
            store_matrices(patch + row * 128 + ((((uint32_t)j + lane / 16) ^ swizzle) << 4), pairs);
        }
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t from = i * 4 + lane / 8;
            const uint4 words = load_shared_16(patch + from * 128 + ((lane % 8 ^ from % 8) << 4));

            if ((int)i * 4 < rows && first * 8 + (int)(lane % 8) * 8 < columns)
                *(uint4 *)(void *)(c + (size_t)(i * 4) * of.n + first * 8) = words;
        }
    }
}

/* Exchanges the pairs of two blocks of 8 columns: even lanes get four columns of the first, odd
 * ones of the second; (t & 2) * 2 is the first of the four. */
static __device__ __forceinline__ float4
four_of(const float (&first)[4], const float (&second)[4], int half, bool odd)
{
    const float x = first[half * 2], y = first[half * 2 + 1];
    const float z = second[half * 2], w = second[half * 2 + 1];
    const float got_x = __shfl_xor_sync(0xffffffffu, odd ? x : z, 1);
    const float got_y = __shfl_xor_sync(0xffffffffu, odd ? y : w, 1);

    return odd ? make_float4(got_x, got_y, z, w) : make_float4(x, y, got_x, got_y);
}

/* fp32 C = or +=, 16 bytes a lane; many are read before the first is written. */
template <typename S>
static __device__ __forceinline__ void
store_fours(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
            const float (&d)[S::N][4], int row, int n)
{
    constexpr int BATCH = 8; /* blocks of 8 columns */
    const bool odd = threadIdx.x & 1;
    const float scale = args.scale != 0 ? args.scale : 1;
    const int start = n + (odd ? 8 : 0) + (int)(threadIdx.x & 2) * 2;
    const float *bias = (const float *)args.bias + of.bias_at + start;
    float *c = (float *)args.c + of.c_at + (size_t)row * of.n + start;

#pragma unroll
    for (int first = 0; first < S::N; first += BATCH) {
        float4 old[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = (first + i / 2 * 2) * 8, half = i % 2;
            const bool inside = row + half * 8 < of.m && start + at < of.n;

            old[i] = make_float4(0, 0, 0, 0);
            if (inside && args.accumulate)
                old[i] = __ldcs((const float4 *)(c + (size_t)(half * 8) * of.n + at));
            if (inside && args.bias)
                old[i] = *(const float4 *)(bias + at);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int j = first + i / 2 * 2, half = i % 2;
            const float4 sums = four_of(d[j], d[j + 1], half, odd);

            if (row + half * 8 < of.m && start + j * 8 < of.n)
                __stcs((float4 *)(c + (size_t)(half * 8) * of.n + j * 8),
                       make_float4(fmaf(sums.x, scale, old[i].x), fmaf(sums.y, scale, old[i].y),
                                   fmaf(sums.z, scale, old[i].z), fmaf(sums.w, scale, old[i].w)));
        }
    }
}

/* C = or +=, in pairs. */
template <typename S, typename C>
static __device__ __forceinline__ void
store_pairs(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
            const float (&d)[S::N][4], int row, int n)
{
    const float scale = args.scale != 0 ? args.scale : 1;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        C *place = (C *)args.c + of.c_at + (size_t)(row + half * 8) * of.n;

        if (row + half * 8 >= of.m)
            continue;
#pragma unroll
        for (int j = 0; j < S::N; j++) {
            const int column = n + j * 8 + (int)threadIdx.x % 4 * 2;
            float2 old = make_float2(0, 0);

            if (column >= of.n)
                continue;
            if (args.bias)
                old = load_pair((const C *)args.bias + of.bias_at + column);
            if (args.accumulate)
                old = load_pair(place + column);
            store_pair(place + column, fmaf(d[j][half * 2], scale, old.x),
                       fmaf(d[j][half * 2 + 1], scale, old.y));
        }
    }
}

/* C = or +=, of a group's 64 rows from @m on. @patch: PATCH_BYTES, this warp's */
template <typename S>
static __device__ __forceinline__ void
store_rows(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
           const float (&d)[S::N][4], int m, int n, uint32_t patch)
{
    const bool is_float = args.c_dtype == RP_DTYPE_FP32;
    const int first = m + (int)(threadIdx.x / 32 % 4 * 16);
    const int row = first + (int)(threadIdx.x % 32 / 4);
    const bool wide = (is_float || !args.accumulate) && args.n % 8 == 0 &&
                      (uintptr_t)args.c % 16 == 0 && (uintptr_t)args.bias % 16 == 0;

    if (wide && is_float)
        store_fours<S>(args, of, d, row, n);
    else if (wide)
        store_patches<S>(args, of, d, first, n, patch);
    else if (is_float)
        store_pairs<S, float>(args, of, d, row, n);
    else
        store_pairs<S, typename S::T>(args, of, d, row, n);
}
