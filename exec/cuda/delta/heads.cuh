/*
 * Shared by the delta rule's kernels of heads of 128 in bf16 (heads.cu): places of tiles, and products by mma.m16n8k16.
 *
 * q, k, v and d_out are bf16 as they come; their lengths go into factors of rows, in fp32. Each other operand is the sum
 * of two numbers of bf16, so that it has 16 bits or more, and both halves are multiplied. Between kernels such numbers
 * stand as the next one wants them, pairs of neighbours by lanes g = lane / 4, t = lane % 4:
 *
 *   P, 1 / (1 + A)   rows of 64 high halves and 64 low ones
 *   u, dR            by token and 16 columns: high halves of columns 2t, 2t + 8, t from 0 to 3, then the low ones
 *   S, dS            by 16 columns: for 32 rows and eight columns, high or low: lane has of column g rows 2t, 2t + 8,
 *                    2t + 16, 2t + 24
 */
#pragma once

#include "exec/cuda/attention/tile.cuh"
#include "exec/cuda/delta/rule.cuh"

#define TILE_BYTES (CHUNK * DIM * 2) /* a chunk's q or k; or 64 x 64 pairs of tokens, high and low */
#define LOW 4                        /* sixteenths from a pair's high half to its low one */
#define HALVES (2 * DIM)             /* a row of u or dR, both halves */
#define SIXTEEN_HALVES (2 * 16 * DIM) /* 16 columns of a state, both halves */

/* Factors of tokens, [FACTORS,heads,T]; in place of c and beta the gradients' kernel leaves their gradients, beta's times
 * beta */
enum {
    BETA,
    READ,   /* beta exp(c) / |k| */
    WRITE,  /* exp(c[last] - c) / |k| */
    QUERY,  /* exp(c) / |q| / sqrt(Dk) */
    SCANNED,
    SUM = SCANNED, /* c */
    SUM_REST,      /* the rest of it, which is double */
    KEY_SCALE,     /* 1 / |k| */
    QUERY_SCALE,   /* 1 / |q| / sqrt(Dk) */
};

/* Offsets that a lane gives to ldmatrix: rows by columns as they stand, and with the middle matrices exchanged. */
typedef LaneOffset<DIM> Straight;
typedef LaneOffset<DIM, true> Across;

__device__ __forceinline__ size_t
factor_place(const Heads &rule, int factor, size_t slot)
{
    return ((size_t)factor * rule.heads + slot) * rule.args.tokens;
}

/* Where a pass keeps the state before the chunk that begins at @first. */
__device__ __forceinline__ size_t
halves_place(const Heads &rule, size_t first, size_t slot)
{
    return (first / CHUNK * rule.heads + slot) * 2 * DIM * DIM;
}

/* Two numbers, high halves in @high and the rest in @low */
__device__ __forceinline__ void
split(float x, float y, uint32_t &high, uint32_t &low)
{
    high = pack(bf16(), x, y);
    low = pack(bf16(), x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
}

__device__ __forceinline__ float
lower_of(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float
upper_of(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* The left operand of a product, 16 x 16. */
struct Left {
    uint32_t high[4], low[4];

    /* columns 16 @k .. of the sums that a product has left in registers */
    template <int N> __device__ __forceinline__ void set(const float (&c)[N][4], int k)
    {
        split(c[2 * k][0], c[2 * k][1], high[0], low[0]);
        split(c[2 * k][2], c[2 * k][3], high[1], low[1]);
        split(c[2 * k + 1][0], c[2 * k + 1][1], high[2], low[2]);
        split(c[2 * k + 1][2], c[2 * k + 1][3], high[3], low[3]);
    }
};

/* c[16,16] += a b, b as ldmatrix has it */
__device__ __forceinline__ void
add_pair(float (&c)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    multiply_add(bf16(), c[0], a, b[0], b[1]);
    multiply_add(bf16(), c[1], a, b[2], b[3]);
}

/* c[16,16 N] += (high + low) b */
template <int N>
__device__ __forceinline__ void
add_exact(float (&c)[2 * N][4], const Left &a, const uint32_t (&b)[N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
        add_pair(*(float(*)[2][4]) & c[2 * j], a.high, b[j]);
#pragma unroll
    for (int j = 0; j < N; j++)
        add_pair(*(float(*)[2][4]) & c[2 * j], a.low, b[j]);
}

/* c += (high + low) (high + low), without the product of both low halves */
template <int N>
__device__ __forceinline__ void
add_split(float (&c)[2 * N][4], const Left &a, const uint32_t (&high)[N][4],
          const uint32_t (&low)[N][4])
{
    add_exact<N>(c, a, high);
#pragma unroll
    for (int j = 0; j < N; j++)
        add_pair(*(float(*)[2][4]) & c[2 * j], a.high, low[j]);
}

template <int N>
__device__ __forceinline__ void
zero(float (&c)[N][4])
{
#pragma unroll
    for (int e = 0; e < 4 * N; e++)
        c[e / 4][e % 4] = 0;
}
