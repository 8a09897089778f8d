/*
 * Instructions that the matmul on Hopper (sm_90a) needs, each as a function: tensor copies to
 * shared memory, barriers that count their bytes, and wgmma.m64nNk16 with fp32 sums.
 *
 * D of wgmma, with warp w of four, g = lane / 4, t = lane % 4: fragment j of 8 columns has
 *   d[j][0], d[j][1]  (16w + g, 8j + 2t), + 1      d[j][2], d[j][3]  (16w + g + 8, 8j + 2t), + 1
 *
 * A matrix of shared memory, in rows of 64 elements, 128 bytes, as the tensor copy swizzles them
 * (chunk c of row r stands at c ^ (r & 7); at multiples of 1024 bytes):
 *   k in rows       rows of m or n. Eight rows are SBO = 1024 bytes; 16 of k are 32 bytes further
 *   transposed      rows of k. Eight rows are SBO = 1024 bytes; the next 64 of m or n LBO further;
 *                   16 of k are 2048 bytes further
 * Source: PTX ISA, asynchronous warpgroup-level matrix instructions, matrix descriptor
 */
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* Bytes of eight rows. */
#define GROUP_BYTES 1024

/* @lbo: bytes; read for transposed matrices only */
static __device__ __forceinline__ uint64_t
describe_matrix(uint32_t address, uint32_t lbo)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(lbo >> 4) << 16 |
           (uint64_t)(GROUP_BYTES >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void
barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes barriers known to the copy engine. */
static __device__ __forceinline__ void
barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void
barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and has the phase wait for @bytes of copies too. */
static __device__ __forceinline__ void
barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of that parity is over; of a new barrier, 1 is. */
static __device__ __forceinline__ void
barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;

    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

/* @count threads of the block, of whole warps, meet at one of its barriers 1 to 15. */
static __device__ __forceinline__ void
meet(uint32_t barrier, uint32_t count)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void
clear_shared_16(uint32_t address)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

/* Makes this thread's writes to shared memory visible to wgmma. */
static __device__ __forceinline__ void
publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Copies the map's box at (x, y, z) to @target, zeros where the tensor ends; counts at @barrier. */
static __device__ __forceinline__ void
copy_box(uint32_t target, const CUtensorMap *map, int x, int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

/* Copies a box from @source to the map's, without the part beyond the tensor; it is a group of its
 * own. */
static __device__ __forceinline__ void
write_box(const CUtensorMap *map, int x, int y, int z, uint32_t source)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(source)
                 : "memory");
}

/* Waits until all but the last @PENDING of this thread's write_box() have been read. */
template <int PENDING>
static __device__ __forceinline__ void
write_wait_but()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ float4
load_shared_four(uint32_t address)
{
    float4 four;

    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}

static __device__ __forceinline__ void
store_shared_four(uint32_t address, float4 four)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x),
                 "f"(four.y), "f"(four.z), "f"(four.w)
                 : "memory");
}

/* Four matrices of 8 x 8, as D has them in registers; lanes 8i .. 8i+7 name the rows of matrix i. */
static __device__ __forceinline__ void
store_matrices(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

static __device__ __forceinline__ uint4
load_shared_16(uint32_t address)
{
    uint4 words;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
    return words;
}

/* Before the first of some wgmma, and after registers of theirs were written. */
static __device__ __forceinline__ void
wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
static __device__ __forceinline__ void
wgmma_wait_but()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving uses of @d across. */
template <int N>
static __device__ __forceinline__ void
wgmma_hold(float (&d)[N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(d[j][e])::"memory");
    }
}

template <int REGISTERS>
static __device__ __forceinline__ void
take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
static __device__ __forceinline__ void
leave_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Operands of d, and their registers in an instruction. */
#define FOUR(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SIXTEEN(d, j) FOUR(d, j), FOUR(d, (j) + 1), FOUR(d, (j) + 2), FOUR(d, (j) + 3)
#define THIRTY_TWO(d, j) SIXTEEN(d, j), SIXTEEN(d, (j) + 4)
#define SIXTY_FOUR(d, j) THIRTY_TWO(d, j), THIRTY_TWO(d, (j) + 8)
#define D_32                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "        \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_64                                                                                       \
    D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
         "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_96                                                                                       \
    D_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
         "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D_128                                                                                      \
    D_96                                                                                           \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
        "%125, %126, %127"

/* "{ @d }, @a, @b" for the registers and operands of one wgmma that adds if operand @add is not 0. */
#define WGMMA_TEXT(columns, type, d, a, b, add, end)                                               \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; "                                                  \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" d "}, " a ", " b     \
    ", p, 1, 1, " end "; }"

/* d[64,N] += a[64,16] b[16,N], both in shared memory; A_TRANSPOSED, B_TRANSPOSED: 1 if they lie in
 * rows of k. */
#define DEFINE_WGMMA(T, type, columns, fragments, d_text, a, b, add, end, ...)                     \
    template <int A_TRANSPOSED, int B_TRANSPOSED>                                                  \
    static __device__ __forceinline__ void wgmma(T, float(&d)[fragments][4], uint64_t a_at,        \
                                                 uint64_t b_at)                                    \
    {                                                                                              \
        asm volatile(WGMMA_TEXT(columns, type, d_text, a, b, add, end)                             \
                     : __VA_ARGS__                                                                 \
                     : "l"(a_at), "l"(b_at), "r"(1), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));        \
    }
#define DEFINE_WGMMAS(T, type)                                                                     \
    DEFINE_WGMMA(T, type, "128", 16, D_64, "%64", "%65", "%66", "%67, %68", SIXTY_FOUR(d, 0))      \
    DEFINE_WGMMA(T, type, "192", 24, D_96, "%96", "%97", "%98", "%99, %100", SIXTY_FOUR(d, 0),     \
                 THIRTY_TWO(d, 16))                                                                \
    DEFINE_WGMMA(T, type, "256", 32, D_128, "%128", "%129", "%130", "%131, %132",                  \
                 SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 16))
DEFINE_WGMMAS(__nv_bfloat16, "bf16")
DEFINE_WGMMAS(__half, "f16")
