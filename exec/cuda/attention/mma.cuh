/*
 * Instructions that attention and the delta rule need beyond CUDA C++ (PTX ISA, sm_80 and later), each as a function.
 * Fragments of mma.m16n8k16, with g = lane / 4, t = lane % 4, two elements a register:
 *
 *   A 16x16  a0 (g, 2t)  a1 (g+8, 2t)  a2 (g, 2t+8)  a3 (g+8, 2t+8)     + 1 in the upper half
 *   B 16x8   b0 (2t, g)  b1 (2t+8, g)                                   + 1 in k
 *   C 16x8   c0 (g, 2t)  c1 (g, 2t+1)  c2 (g+8, 2t)  c3 (g+8, 2t+1)     fp32
 *
 * ldmatrix.x4: lanes 8i .. 8i+7 name the rows of 8x8 matrix i, 16 bytes each; lane gets of matrix
 * i, in register i, row g columns 2t, 2t+1; with .trans: column g, rows 2t, 2t+1.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Address of the block's dynamic shared memory, in the shared window, at a multiple of 1024. */
static __device__ __forceinline__ uint32_t
dynamic_shared()
{
    extern __shared__ __align__(1024) unsigned char attention_shared[];

    return (uint32_t)__cvta_generic_to_shared(attention_shared);
}

static __device__ __forceinline__ float2
load_shared_pair(uint32_t address)
{
    float2 pair;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(address)
                 : "memory");
    return pair;
}

/* Copies 16 bytes to shared memory, or zeros unless @valid. In order of commit and wait. */
static __device__ __forceinline__ void
copy_async_16(uint32_t target, const void *source, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void
copy_async_4(uint32_t target, const void *source, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target),
                 "l"(__cvta_generic_to_global(source)), "r"(valid ? 4 : 0)
                 : "memory");
}

/* Waits for all copies of this thread. */
static __device__ __forceinline__ void
copy_async_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

static __device__ __forceinline__ void
load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void
load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c += a b. The first argument only names the storage. */
#define DEFINE_MULTIPLY_ADD(T, type)                                                               \
    static __device__ __forceinline__ void multiply_add(                                           \
        T, float(&c)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1)                          \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
DEFINE_MULTIPLY_ADD(__nv_bfloat16, "bf16")
DEFINE_MULTIPLY_ADD(__half, "f16")

/* A number in tf32 */
static __device__ __forceinline__ uint32_t
to_tf32(float x)
{
    uint32_t bits;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* c += a b, of mma.m16n8k8 (exec/cuda/delta/product.cuh) */
static __device__ __forceinline__ void
multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Columns of the 8 x 8 matrix whose rows the lanes have, as load_matrices() gives one */
static __device__ __forceinline__ uint32_t
transpose_matrix(uint32_t rows)
{
    uint32_t columns;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
    return columns;
}

static __device__ __forceinline__ uint4
load_shared_words(uint32_t address)
{
    uint4 four;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}

/* The floats at an address of shared memory */
static __device__ __forceinline__ float *
shared_floats(uint32_t address)
{
    return (float *)__cvta_shared_to_generic(address);
}

/* 2^x within 2 ulp, 0 for -infinity. */
static __device__ __forceinline__ float
fast_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ void
store_shared(uint32_t address, uint32_t value)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t
load_shared(uint32_t address)
{
    uint32_t value;

    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

static __device__ __forceinline__ void
store_shared_words(uint32_t address, const float (&four)[4])
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four[0]), "f"(four[1]), "f"(four[2]),
                 "f"(four[3])
                 : "memory");
}

/* @threads of the block, whole warps, meet at @barrier, 1 to 15. */
static __device__ __forceinline__ void
meet_some(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* The same without waiting for the others, which see all writes before it. */
static __device__ __forceinline__ void
announce(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
