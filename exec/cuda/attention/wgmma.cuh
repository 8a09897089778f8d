/*
 * Instructions that attention on Hopper (sm_90a) needs beyond the grouped matmul's: wgmma of tiles
 * of 64 columns, and left operands in registers, as mma.m16n8k16 has them, 16 rows a warp.
 */
#pragma once

#include "exec/cuda/base/wgmma.cuh"

/* A matrix's descriptor, computed once: each product adds how much further it begins. The upper half is
 * the same for all. */
struct Matrix {
    uint32_t low;

    __device__ __forceinline__ Matrix(uint32_t address, uint32_t lbo)
        : low((uint32_t)describe_matrix(address, lbo))
    {
    }
    /* Descriptor of the matrix that begins @bytes further. */
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const
    {
        return describe_matrix(0, 0) | (uint64_t)(low + (bytes >> 4));
    }
};

#define DEFINE_ATTENTION_WGMMAS(T, type)                                                           \
    /* d[64,64] += a[64,16] b[16,64], or = unless @add; both in shared memory. */                  \
    template <int A_TRANSPOSED, int B_TRANSPOSED>                                                  \
    static __device__ __forceinline__ void wgmma_64(T, float(&d)[8][4], uint64_t a, uint64_t b,    \
                                                    int add)                                       \
    {                                                                                              \
        asm volatile(WGMMA_TEXT("64", type, D_32, "%32", "%33", "%34", "%35, %36")                 \
                     : THIRTY_TWO(d, 0)                                                            \
                     : "l"(a), "l"(b), "r"(add), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));            \
    }                                                                                              \
    /* d[64,128] += a[64,16] b[16,128]: a in registers, b in rows of k in shared memory. */        \
    static __device__ __forceinline__ void wgmma_of_registers(T, float(&d)[16][4],                 \
                                                              const uint32_t(&a)[4], uint64_t b)   \
    {                                                                                              \
        asm volatile(WGMMA_TEXT("128", type, D_64, "{%64, %65, %66, %67}", "%68", "%69", "1")      \
                     : SIXTY_FOUR(d, 0)                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                \
    }
DEFINE_ATTENTION_WGMMAS(__nv_bfloat16, "bf16")
DEFINE_ATTENTION_WGMMAS(__half, "f16")
