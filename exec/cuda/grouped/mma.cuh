/* Instructions beyond those of attention (sm_80 and later): copies in groups, fp16 sums. */
#pragma once

#include "exec/cuda/attention/mma.cuh"

/* Waits until at most @PENDING of this thread's groups of copies are under way. */
template <int PENDING>
static __device__ __forceinline__ void
copy_async_wait_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ void
copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* A register of C has two elements: (g, 2t), and (g+8, 2t). */
static __device__ __forceinline__ void
multiply_add(__half, uint32_t (&c)[2], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, "
                 "{%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
