/*
 * Grouped matmul on Hopper (compute capability 9.0): wgmma from shared memory, which the tensor copy
 * engine fills. bf16 or fp16, fp32 sums over k in steps of 64. Oracle: exec/host/grouped-matmul.c
 *
 * A block has tiles of 128 x BN of C, one after another. Its first warp copies; two groups of four
 * warps multiply, 64 rows each. Stages of A and B go round between them:
 *
 *   copies     | 0 | 1 | 2 | 3 |   | 4 | 5 | ...      waits until a stage is empty
 *   multiplies |   | 0 | 1 | 2 | 3 |C| 4 | ...        waits until a stage is full; C: stores a tile
 *
 * A tile of the last rows of an expert has the first ones of the next, which are multiplied, but
 * not stored. Where rows are summed (TN) they are set to 0 in shared memory first. The engine
 * fills with 0 beyond the ends of m, n and k.
 *
 * fp32 += goes to the L2 cache as it is (red): one term an element, so that sums have an order.
 */
#include <cudaTypedefs.h>

#include "exec/cuda/grouped/mma.cuh"
#include "exec/cuda/grouped/place.cuh"
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/store.cuh"
#include "exec/cuda/grouped/wgmma.cuh"

#define ROWS 128
#define DEPTH 64
#define CONSUMERS 256
#define THREADS (128 + CONSUMERS)
#define BOX_BYTES (64 * DEPTH * 2) /* 64 of m or n */

template <typename T_, RpMatmulForm FORM_, int BN_, int STAGES_> struct WgmmaShape {
    using T = T_;
    static constexpr RpMatmulForm FORM = FORM_;
    static constexpr int BN = BN_, STAGES = STAGES_, N = BN / 8;
    static constexpr int BOXES = ROWS / 64 + BN / 64; /* of 64 rows or columns */
    static constexpr uint32_t STAGE_BYTES = BOXES * BOX_BYTES;
    static constexpr uint32_t BYTES = STAGES * STAGE_BYTES + STAGES * 16 + 1024;
    static constexpr bool A_TURNED = FORM == RP_MATMUL_TN, B_TURNED = FORM != RP_MATMUL_NT;
};

/* The stages, in turn, and their barriers. */
template <typename S> struct Ring {
    uint32_t shared, stage, parity;

    __device__ __forceinline__ Ring()
        : shared((dynamic_shared() + 1023) & ~1023u), stage(0), parity(0)
    {
    }
    __device__ __forceinline__ uint32_t tile() const
    {
        return shared + stage * S::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t full() const
    {
        return shared + S::STAGES * S::STAGE_BYTES + stage * 16;
    }
    __device__ __forceinline__ uint32_t empty() const
    {
        return full() + 8;
    }
    __device__ __forceinline__ void turn()
    {
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* Starts the copies of a step: A's and B's boxes, @k from the expert's first on. */
template <typename S>
static __device__ __forceinline__ void
copy_step(const Ring<S> &ring, const CUtensorMap &a_map, const CUtensorMap &b_map, int first, int m,
          int n, int k, int expert)
{
    const uint32_t a = ring.tile(), b = a + ROWS / 64 * BOX_BYTES;

    barrier_expect(ring.full(), S::STAGE_BYTES);
    if (S::A_TURNED) {
#pragma unroll
        for (int i = 0; i < ROWS / 64; i++)
            copy_box(a + i * BOX_BYTES, &a_map, m + i * 64, first + k, ring.full());
    } else {
        copy_box(a, &a_map, k, first + m, ring.full());
    }
    if (S::B_TURNED) {
#pragma unroll
        for (int j = 0; j < S::BN / 64; j++)
            copy_box(b + j * BOX_BYTES, &b_map, n + j * 64, S::A_TURNED ? first + k : k,
                     S::A_TURNED ? 0 : expert, ring.full());
    } else {
        copy_box(b, &b_map, k, n, expert, ring.full());
    }
}

/* One warp. */
template <typename S>
static __device__ __forceinline__ void
copy_tiles(const RpGroupedMatmulArgs &args, const CUtensorMap &a_map, const CUtensorMap &b_map)
{
    Ring<S> ring;
    Tiles<ROWS, S::BN> tiles;

    while (tiles.next(args)) {
        const Problem<typename S::T> of = problem_of<typename S::T>(args, S::FORM, tiles.expert);

        for (int k = 0; k < of.k; k += DEPTH) {
            barrier_wait(ring.empty(), ring.parity ^ 1);
            if (threadIdx.x == 0)
                copy_step(ring, a_map, b_map, of.first, tiles.m, tiles.n, k, (int)tiles.expert);
            __syncwarp();
            ring.turn();
        }
    }
}

/* Rows of k from @valid on become 0, in all boxes of a stage that lie in rows of k. */
template <typename S>
static __device__ __forceinline__ void
clear_rows(uint32_t tile, int valid)
{
    const int pieces = (DEPTH - valid) * 8;

    for (int i = (int)threadIdx.x - 128; i < S::BOXES * pieces; i += CONSUMERS)
        clear_shared_16(tile + (uint32_t)(i / pieces * BOX_BYTES + valid * 128 + i % pieces * 16));
    publish_shared();
    meet(CONSUMERS);
}

/* d += A B of a stage, of the group's 64 rows. */
template <typename S>
static __device__ __forceinline__ void
multiply_stage(float (&d)[S::N][4], uint32_t tile, uint32_t group)
{
    const uint32_t a = tile + group * BOX_BYTES, b = tile + ROWS / 64 * BOX_BYTES;

    wgmma_hold(d);
    wgmma_begin();
#pragma unroll
    for (uint32_t part = 0; part < DEPTH / 16; part++)
        wgmma<S::A_TURNED, S::B_TURNED>(
            typename S::T(), d, describe_matrix(a + part * (S::A_TURNED ? 2048 : 32), BOX_BYTES),
            describe_matrix(b + part * (S::B_TURNED ? 2048 : 32), BOX_BYTES));
    wgmma_commit();
}

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

template <typename S>
static __device__ __forceinline__ void
multiply_tiles(const RpGroupedMatmulArgs &args)
{
    using T = typename S::T;
    const uint32_t group = threadIdx.x / 128 - 1;
    const int row = (int)(group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    const bool wide = args.c_dtype != RP_DTYPE_FP32 && !args.accumulate && args.n % 8 == 0 &&
                      (uintptr_t)args.c % 16 == 0;
    Ring<S> ring;
    Tiles<ROWS, S::BN> tiles;
    bool more = tiles.next(args);

    while (more) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);
        const int m = tiles.m, n = tiles.n;
        uint32_t before = 0; /* the barrier of the stage that is multiplied */
        float d[S::N][4] = {};

        for (int k = 0; k < of.k; k += DEPTH) {
            barrier_wait(ring.full(), ring.parity);
            if (S::FORM == RP_MATMUL_TN && of.k - k < DEPTH)
                clear_rows<S>(ring.tile(), of.k - k);
            multiply_stage<S>(d, ring.tile(), group);
            if (k > 0) {
                wgmma_wait_but<1>();
                if (threadIdx.x % 32 == 0)
                    barrier_arrive(before);
            }
            before = ring.empty();
            ring.turn();
        }
        more = tiles.next(args); /* while the last step is multiplied */
        wgmma_wait_but<0>();
        wgmma_hold(d);
        if (before != 0 && threadIdx.x % 32 == 0)
            barrier_arrive(before);
        if (before == 0 && args.accumulate)
            continue;
        if (wide)
            store_wide<S>(args, of, d, m + row, n);
        else if (args.c_dtype == RP_DTYPE_FP32)
            store_pairs<S, float>(args, of, d, m + row, n);
        else
            store_pairs<S, T>(args, of, d, m + row, n);
    }
}

template <typename S>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_on_hopper(const __grid_constant__ RpGroupedMatmulArgs args,
                                                 const __grid_constant__ CUtensorMap a_map,
                                                 const __grid_constant__ CUtensorMap b_map)
{
    if (threadIdx.x == 0) {
        Ring<S> ring;

        prefetch_map(&a_map);
        prefetch_map(&b_map);
        for (int stage = 0; stage < S::STAGES; stage++) {
            barrier_init(ring.full(), 1);
            barrier_init(ring.empty(), CONSUMERS / 32);
            ring.turn();
        }
        barrier_publish();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        leave_registers<40>();
        if (threadIdx.x < 32)
            copy_tiles<S>(args, a_map, b_map);
    } else {
        take_registers<232>();
        multiply_tiles<S>(args);
    }
}

/* ---- launch ---- */

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

/* Of the driver; NULL if it has none. */
static Encode
find_encode()
{
    static std::atomic<Encode> known;
    Encode encode = known.load(std::memory_order_acquire);
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t status;

    if (encode)
        return encode;
#if CUDART_VERSION >= 12050
    status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result);
#else
    status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
        return nullptr;
    encode = (Encode)found;
    known.store(encode, std::memory_order_release);
    return encode;
}

/* Of a tensor [z,y,x] of 16 bits, in boxes of 64 of x by @box of y. */
static bool
make_map(CUtensorMap *map, RpDtype dtype, const void *tensor, size_t x, size_t y, size_t z, int box)
{
    const Encode encode = find_encode();
    const cuuint64_t sizes[] = {x, y > 0 ? y : 1, z};
    const cuuint64_t strides[] = {x * 2, x * sizes[1] * 2};
    const cuuint32_t boxes[] = {64, (cuuint32_t)box, 1}, steps[] = {1, 1, 1};

    return encode && encode(map,
                            dtype == RP_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                            z > 0 ? 3 : 2, (void *)tensor, sizes, strides, boxes, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool
make_maps(const RpGroupedMatmulArgs *args, int columns, CUtensorMap *a, CUtensorMap *b)
{
    const RpDtype dtype = args->a_dtype;

    switch (args->form) {
    case RP_MATMUL_NT:
        return make_map(a, dtype, args->a, args->k, args->rows, 0, ROWS) &&
               make_map(b, dtype, args->b, args->k, args->n, args->experts, columns);
    case RP_MATMUL_NN:
        return make_map(a, dtype, args->a, args->k, args->rows, 0, ROWS) &&
               make_map(b, dtype, args->b, args->n, args->k, args->experts, DEPTH);
    case RP_MATMUL_TN:
        return make_map(a, dtype, args->a, args->m, args->rows, 0, DEPTH) &&
               make_map(b, dtype, args->b, args->n, args->rows, 1, DEPTH);
    }
    return false;
}

template <typename S>
static cudaError_t
launch_shape(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const size_t tiles = most_tiles(args, ROWS, S::BN);
    CUtensorMap a_map, b_map;
    int processors;
    cudaError_t status = grouped_processors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)multiply_on_hopper<S>, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;
    if (!make_maps(args, S::BN, &a_map, &b_map))
        return cudaErrorInvalidValue;
    return attention_launch(multiply_on_hopper<S>,
                            (unsigned)(tiles < (size_t)processors ? tiles : (size_t)processors),
                            THREADS, (int)S::BYTES, stream, *args, a_map, b_map);
}

template <typename T, int BN, int STAGES>
static cudaError_t
launch_form(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    switch (args->form) {
    case RP_MATMUL_NT:
        return launch_shape<WgmmaShape<T, RP_MATMUL_NT, BN, STAGES>>(args, stream);
    case RP_MATMUL_NN:
        return launch_shape<WgmmaShape<T, RP_MATMUL_NN, BN, STAGES>>(args, stream);
    case RP_MATMUL_TN:
        return launch_shape<WgmmaShape<T, RP_MATMUL_TN, BN, STAGES>>(args, stream);
    }
    return cudaErrorInvalidValue;
}

template <int BN, int STAGES>
static cudaError_t
launch_wgmma(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return args->a_dtype == RP_DTYPE_BF16 ? launch_form<__nv_bfloat16, BN, STAGES>(args, stream)
                                          : launch_form<__half, BN, STAGES>(args, stream);
}

bool
grouped_has_wgmma(const RpGroupedMatmulArgs *args)
{
    int device, major, minor;

    return grouped_is_fast(args) && (args->form == RP_MATMUL_TN || args->k > 0) &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0 && find_encode() != nullptr;
}

cudaError_t
grouped_matmul_wgmma_128(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return launch_wgmma<128, 6>(args, stream);
}

cudaError_t
grouped_matmul_wgmma_256(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return launch_wgmma<256, 4>(args, stream);
}
