/* From the sums of wgmma to C. */
#pragma once

#include "exec/cuda/grouped/store.cuh"
#include "exec/cuda/grouped/wgmma-ring.cuh"

/* Pair i of lane t of four becomes pair t of lane i. */
static __device__ __forceinline__ void
turn_pairs(uint32_t (&pairs)[4])
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit)
                continue;

            const uint32_t sent = upper ? pairs[i] : pairs[i | bit];
            const uint32_t got = __shfl_xor_sync(0xffffffffu, sent, bit);

            if (upper)
                pairs[i] = got;
            else
                pairs[i | bit] = got;
        }
    }
}

/* C =, 16 bytes a lane: 64 bytes of a row by four. Rows of C are at multiples of 16 bytes. */
template <typename S>
static __device__ __forceinline__ void
store_wide(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
           const float (&d)[S::N][4], int row, int n)
{
    using T = typename S::T;
    const int t = (int)threadIdx.x % 4;
    const float scale = args.scale != 0 ? args.scale : 1;
    const T *bias = (const T *)args.bias + of.bias_at;
    T *c = (T *)args.c + of.c_at;

#pragma unroll
    for (int j = 0; j < S::N; j += 4) {
        const int column = n + (j + t) * 8;
        float2 more[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = n + (j + i) * 8 + t * 2;

            more[i] = args.bias && at < of.n ? load_pair(bias + at) : make_float2(0, 0);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pairs[4];

#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i] = pack_pair(T(), fmaf(d[j + i][half * 2], scale, more[i].x),
                                     fmaf(d[j + i][half * 2 + 1], scale, more[i].y));
            turn_pairs(pairs);
            if (row + half * 8 < of.m && column < of.n)
                *(uint4 *)(void *)(c + (size_t)(row + half * 8) * of.n + column) =
                    make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}

/* Of the pairs of two blocks of 8 columns: even lanes get four columns of the first, odd ones of
 * the second; (t & 2) * 2 is their first. */
static __device__ __forceinline__ float4
four_of(const float (&first)[4], const float (&second)[4], int half, bool odd)
{
    const float x = first[half * 2], y = first[half * 2 + 1];
    const float z = second[half * 2], w = second[half * 2 + 1];
    const float got_x = __shfl_xor_sync(0xffffffffu, odd ? x : z, 1);
    const float got_y = __shfl_xor_sync(0xffffffffu, odd ? y : w, 1);

    return odd ? make_float4(got_x, got_y, z, w) : make_float4(x, y, got_x, got_y);
}

/* fp32 C = or +=, 16 bytes a lane. */
template <typename S>
static __device__ __forceinline__ void
store_fours(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
            const float (&d)[S::N][4], int row, int n)
{
    const bool odd = threadIdx.x & 1;
    const float scale = args.scale != 0 ? args.scale : 1;
    const float *bias = (const float *)args.bias + of.bias_at;
    float *c = (float *)args.c + of.c_at;

#pragma unroll
    for (int j = 0; j < S::N; j += 2) {
        const int column = n + (j + (odd ? 1 : 0)) * 8 + (int)(threadIdx.x & 2) * 2;
        const bool inside = column < of.n;
        const float4 more =
            args.bias && inside ? *(const float4 *)(bias + column) : make_float4(0, 0, 0, 0);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 sums = four_of(d[j], d[j + 1], half, odd);
            const float4 four =
                make_float4(fmaf(sums.x, scale, more.x), fmaf(sums.y, scale, more.y),
                            fmaf(sums.z, scale, more.z), fmaf(sums.w, scale, more.w));
            float *place = c + (size_t)(row + half * 8) * of.n + column;

            if (row + half * 8 >= of.m || !inside)
                continue;
            if (args.accumulate)
                add_four(place, four);
            else
                *(float4 *)place = four;
        }
    }
}

static __device__ __forceinline__ void
add_or_store(float *place, float x, float y, bool adds)
{
    if (adds)
        add_pair(place, x, y);
    else
        store_pair(place, x, y);
}

template <typename C>
static __device__ __forceinline__ void
add_or_store(C *place, float x, float y, bool adds)
{
    const float2 old = adds ? load_pair(place) : make_float2(0, 0);

    store_pair(place, x + old.x, y + old.y);
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
            float2 bias = make_float2(0, 0);

            if (column >= of.n)
                continue;
            if (args.bias)
                bias = load_pair((const C *)args.bias + of.bias_at + column);
            add_or_store(place + column, fmaf(d[j][half * 2], scale, bias.x),
                         fmaf(d[j][half * 2 + 1], scale, bias.y), args.accumulate);
        }
    }
}

/* C = or +=, of a group's 64 rows from @m on. */
template <typename S>
static __device__ __forceinline__ void
store_rows(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
           const float (&d)[S::N][4], int m, int n)
{
    const bool is_float = args.c_dtype == RP_DTYPE_FP32;
    const int row = m + (int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    const bool wide = (is_float || !args.accumulate) && args.n % 8 == 0 &&
                      (uintptr_t)args.c % 16 == 0 && (uintptr_t)args.bias % 16 == 0;

    if (wide && is_float)
        store_fours<S>(args, of, d, row, n);
    else if (wide)
        store_wide<S>(args, of, d, row, n);
    else if (is_float)
        store_pairs<S, float>(args, of, d, row, n);
    else
        store_pairs<S, typename S::T>(args, of, d, row, n);
}
