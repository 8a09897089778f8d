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

/* d[64,64] += a[64,16] b[16,64], or = unless @add; both in shared memory. */
#define WGMMA_64(TYPE)                                                                             \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "                                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                            \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                       \
        "%32, %33, p, 1, 1, %35, %36; }"                                                           \
        : THIRTY_TWO(d, 0)                                                                         \
        : "l"(a), "l"(b), "r"(add), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED))

/* d[64,128] += a[64,16] b[16,128]: a in registers, b in rows of k in shared memory. */
#define WGMMA_OF_REGISTERS(TYPE)                                                                   \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; "                                                  \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " "                           \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "    \
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "    \
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                                 \
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                                                 \
        : SIXTY_FOUR(d, 0)                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))

template <int A_TRANSPOSED, int B_TRANSPOSED>
static __device__ __forceinline__ void
wgmma_64(__nv_bfloat16, float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    WGMMA_64("bf16");
}

template <int A_TRANSPOSED, int B_TRANSPOSED>
static __device__ __forceinline__ void
wgmma_64(__half, float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    WGMMA_64("f16");
}

static __device__ __forceinline__ void
wgmma_of_registers(__nv_bfloat16, float (&d)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    WGMMA_OF_REGISTERS("bf16");
}

static __device__ __forceinline__ void
wgmma_of_registers(__half, float (&d)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    WGMMA_OF_REGISTERS("f16");
}
