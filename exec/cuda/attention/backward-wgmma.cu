/*
 * Attention backward on Hopper, D 128 or 256: the same pass as backward.cu, by wgmma. Oracle:
 * exec/host/attention.c.
 *
 * A block has two groups of four warps. D 128: it has 128 keys, each group 64 of them and all columns of dk and dv,
 * and half of the columns of dq. D 256: it has 64 keys; each group makes P and Y of all of them, which the other makes,
 * too, and has half of the columns of dk, dv and dq: sums of 64 keys and 256 columns would not fit its registers.
 * In a third group one warp has the copy engine fill two stages with q and d_out, another fills in lse and delta, a
 * third ends turns.
 * A group's order of a step, and the work of tensor cores meanwhile:
 *
 *   threads        | dq's rest  | P           | Y | write Y | meet |           | dq's turn   |
 *   tensor cores   | S = k q^T  | d_out v^T   |   | dv += P^T d_out  | dq = Y k  | dk += Y^T q |
 *
 * At its turn a warp adds half of its part of dq, the rest while the next S and d_out v^T are multiplied,
 * before the meeting at which the turn ends. D 256: before that half it adds another part, whose product is by itself.
 *
 * Y^T has two buffers: a group that writes one has waited for its own dq of the step before last, and
 * at that step's meeting for the other's of the step before.
 */
#include <math.h>

#include "exec/cuda/attention/steps.cuh"
#include "exec/cuda/attention/wgmma.cuh"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/base/tensor-map.cuh"

#define QUERIES 64
#define GROUP 128 /* threads */
#define THREADS (3 * GROUP)
#define STAGES 2
#define MEETING (2 * GROUP + 32) /* threads */
#define COLUMNS 128              /* of dk and dv that a group has */
#define QUERY_BOX (QUERIES * 128)
#define ROW_BYTES (2 * QUERIES * 4)

/* Shared memory, and sizes, of heads of D. Bytes: a box has 64 columns, rows of 128 bytes, as the copy engine swizzles
 * them. */
template <int D_> struct SharedOf {
    static constexpr int D = D_, KEYS = D == 128 ? 128 : 64;
    static constexpr bool SHARES_KEYS = KEYS == 64; /* both groups have the same */
    static constexpr int BOXES = D / 64, DQ_PARTS = D / 128; /* of 64 columns, for each group */
    static constexpr int KEY_BOX = KEYS * 128, KEY_BYTES = BOXES * KEY_BOX;
    static constexpr int STAGE_BYTES = 2 * BOXES * QUERY_BOX, Y_BYTES = KEYS * QUERIES * 2;
    static constexpr int BYTES =
        2 * KEY_BYTES + STAGES * (STAGE_BYTES + Y_BYTES + ROW_BYTES) + 64 + 1024;

    uint32_t k; /* at a multiple of 1024 */

    __device__ __forceinline__ SharedOf() : k((dynamic_shared() + 1023) & ~1023u)
    {
    }
    __device__ __forceinline__ uint32_t v() const
    {
        return k + KEY_BYTES;
    }
    __device__ __forceinline__ uint32_t q(uint32_t stage) const
    {
        return k + 2 * KEY_BYTES + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t d_out(uint32_t stage) const
    {
        return q(stage) + BOXES * QUERY_BOX;
    }
    __device__ __forceinline__ uint32_t y(uint32_t stage) const
    {
        return q(STAGES) + stage * Y_BYTES;
    }
    /* lse / ln 2, then delta */
    __device__ __forceinline__ uint32_t rows(uint32_t stage) const
    {
        return y(STAGES) + stage * ROW_BYTES;
    }
    __device__ __forceinline__ uint32_t keys_full() const
    {
        return rows(STAGES);
    }
    __device__ __forceinline__ uint32_t full(uint32_t stage) const
    {
        return keys_full() + 8 + stage * 16;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t stage) const
    {
        return full(stage) + 8;
    }
};

struct Maps {
    CUtensorMap q, k, v, d_out;
};

/* One warp calls it: it copies k and v, then q and d_out of every step. */
template <class Shared>
static __device__ __forceinline__ void
copy_all(const RpAttentionArgs &args, const Maps &maps, const Shared &shared, const Place &place,
         Steps at)
{
    const bool leads = (threadIdx.x & 31) == 0;
    const int key = (int)place.start + at.begin;

    if (leads) {
        barrier_expect(shared.keys_full(), 2 * Shared::KEY_BYTES);
        for (int box = 0; box < Shared::BOXES; box++) {
            copy_box(shared.k + box * Shared::KEY_BOX, &maps.k, place.head * Shared::D + box * 64, key, 0,
                     shared.keys_full());
            copy_box(shared.v() + box * Shared::KEY_BOX, &maps.v, place.head * Shared::D + box * 64, key, 0,
                     shared.keys_full());
        }
    }
    for (uint32_t step = 0; at.more(); step++, at = next_step<QUERIES>(at)) {
        const uint32_t stage = step % STAGES;
        const int token = (int)place.start + at.query, column = head_of(place, at) * Shared::D;

        barrier_wait(shared.empty(stage), step / STAGES % 2 ^ 1);
        if (leads) {
            barrier_expect(shared.full(stage), Shared::STAGE_BYTES);
            for (int box = 0; box < Shared::BOXES; box++)
                copy_box(shared.q(stage) + box * QUERY_BOX, &maps.q, column + box * 64, token, 0,
                         shared.full(stage));
            for (int box = 0; box < Shared::BOXES; box++)
                copy_box(shared.d_out(stage) + box * QUERY_BOX, &maps.d_out, column + box * 64,
                         token, 0, shared.full(stage));
        }
        __syncwarp();
    }
}

/* One warp: lse and delta of every step. Queries beyond the sequence are another's, or zeros: their
 * lse is infinite, so that P and Y are 0. */
template <class Shared>
static __device__ __forceinline__ void
copy_rows(const RpAttentionArgs &args, const float *delta, const Shared &shared, const Place &place,
          Steps at)
{
    const int lane = (int)threadIdx.x & 31;

    for (uint32_t step = 0; at.more(); step++, at = next_step<QUERIES>(at)) {
        const uint32_t stage = step % STAGES;
        const size_t first =
            (size_t)head_of(place, at) * args.tokens + place.start + (size_t)at.query;
        float lses[2], deltas[2];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = lane + i * 32;
            const bool valid = row < place.length - at.query;

            lses[i] = valid ? args.lse[first + (size_t)row] * LOG2_E : INFINITY;
            deltas[i] = valid ? delta[first + (size_t)row] : 0;
        }
        barrier_wait(shared.empty(stage), step / STAGES % 2 ^ 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            store_shared(shared.rows(stage) + (uint32_t)(lane + i * 32) * 4,
                         __float_as_uint(lses[i]));
            store_shared(shared.rows(stage) + (uint32_t)(QUERIES + lane + i * 32) * 4,
                         __float_as_uint(deltas[i]));
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(shared.full(stage));
    }
}

/* One warp, which meets the groups when they write Y^T: all have added to dq's tile of the step
 * before then, whose turn it ends. */
template <class Shared>
static __device__ __forceinline__ void
end_turns(const RpAttentionArgs &args, const AttentionGrid &grid, const BackwardScratch &scratch,
          const Place &place, Steps at)
{
    Share before = {TURN_ONLY, 0, nullptr};

    for (bool more = true; more; at = next_step<QUERIES>(at)) {
        meet(1, MEETING);
        if (before.ends() && (threadIdx.x & 31) == 0)
            end_turn(before.count);
        more = at.more();
        before = share_of<QUERIES, Shared::KEYS>(args, scratch, grid.window, place, at);
    }
}

/* d = A B^T over D columns: 64 rows of a tile of keys, 64 of queries. */
template <typename T, class Shared>
static __device__ __forceinline__ void
multiply_scores(float (&d)[8][4], uint32_t keys, uint32_t queries)
{
    const Matrix a(keys, 0), b(queries, 0);

#pragma unroll
    for (int k = 0; k < Shared::D / 16; k++)
        wgmma_64<0, 0>(T(), d, a.at(k / 4 * Shared::KEY_BOX + k % 4 * 32),
                       b.at(k / 4 * QUERY_BOX + k % 4 * 32), k > 0);
}

/* For this group's keys: d[64,128] += a B, where B is q or d_out. */
template <typename T>
static __device__ __forceinline__ void
multiply_weights(float (&d)[16][4], const uint32_t (&a)[4][4], uint32_t queries)
{
    const Matrix b(queries, QUERY_BOX);

#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        wgmma_of_registers(T(), d, a[i], b.at(i * 2048));
}

/* d = Y k: 64 queries, 64 columns of @k_box. */
template <typename T, class Shared>
static __device__ __forceinline__ void
multiply_queries(float (&d)[8][4], uint32_t y, uint32_t k_box)
{
    const Matrix a(y, QUERY_BOX), b(k_box, Shared::KEY_BOX);

#pragma unroll
    for (int i = 0; i < Shared::KEYS / 16; i++)
        wgmma_64<1, 1>(T(), d, a.at(i * 2048), b.at(i * 2048), i > 0);
}

/* s = P^T: 64 keys from @key on, 64 queries from @query on. */
static __device__ __forceinline__ void
make_weights(float (&s)[8][4], uint32_t rows, float scale_log2, bool masked, const Place &place,
             int query, int key, int window)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 lses = load_shared_pair(rows + (uint32_t)(n * 8 + (lane & 3) * 2) * 4);

#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = fast_exp2(fmaf(s[n][e], scale_log2, -(e % 2 ? lses.y : lses.x)));
    }
    if (!masked)
        return;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = query + n * 8 + (lane & 3) * 2 + e % 2;
            const int j = key + ((int)threadIdx.x % GROUP) / 32 * 16 + e / 2 * 8 + lane / 4;

            if (is_hidden(place, window, i, j))
                s[n][e] = 0;
        }
    }
}

/* y = Y^T, of d_out v^T. */
static __device__ __forceinline__ void
make_gradients(float (&y)[8][4], const float (&s)[8][4], uint32_t rows)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 deltas =
            load_shared_pair(rows + (uint32_t)(QUERIES + n * 8 + (threadIdx.x & 3) * 2) * 4);

#pragma unroll
        for (int e = 0; e < 4; e++)
            y[n][e] = s[n][e] * (y[n][e] - (e % 2 ? deltas.y : deltas.x));
    }
}

/* Packs weights as left operands of products over queries. */
template <typename T>
static __device__ __forceinline__ void
pack_weights(uint32_t (&a)[4][4], const float (&s)[8][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[i][r] = pack(T(), s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
    }
}

/* A group's 64 keys, a warp's 16, and COLUMNS from @column on: their sums. */
template <typename T, class Shared>
static __device__ __forceinline__ void
store_gradients(const RpAttentionArgs &args, const Place &place, int row, int column, float (&dk)[16][4],
                float (&dv)[16][4])
{
    const size_t stride = attention_v_row(args) * Shared::D;
    const size_t target = (place.start + (size_t)row) * stride + (size_t)(place.head * Shared::D + column);
    const float scale[1][2] = {{args.scale, args.scale}}, one[1][2] = {{1, 1}};

    store_rows<T, COLUMNS>((T *)args.dk + target, stride, place.length - row, (float(&)[1][16][4])dk,
                     scale, true);
    store_rows<T, COLUMNS>((T *)args.dv + target, stride, place.length - row, (float(&)[1][16][4])dv, one,
                     true);
}

/* The second half of a tile of dq, which a warp has yet to add. */
struct Rest {
    float *sums; /* the warp's; or none */
    bool first;  /* nothing is there before */
};

/* Like add_queries(), but holds back half, the rest, of a tile to which others add after this
 * block. */
template <typename T, int D>
static __device__ __forceinline__ Rest
add_half(const RpAttentionArgs &args, const BackwardScratch &scratch, const Place &place, const Steps &at,
         const Share &share, int head, unsigned seen, float (&c)[8][4], float (&held)[4][4],
         int part, int row, int column)
{
    const size_t token = place.start + (size_t)at.query;

    if (!share.ends() || place.length - at.query < QUERIES) {
        add_queries<T, D, QUERIES, 8>(args, scratch, place, at, share, head, seen, c, part, row,
                                      column);
        return Rest{nullptr, false};
    }

    const WholeTile tile{scratch.sums + ((size_t)head * args.tokens + token) * D + part * (8 * 128)};

    await_turn(share.turn, share.count, share.before, seen);
    if (share.turn == TURN_NEXT)
        give_sums<true, 4>(c, tile);
    else
        give_sums<false, 4>(c, tile);
#pragma unroll
    for (int i = 0; i < 16; i++)
        held[i / 4][i % 4] = c[4 + i / 4][i % 4];
    return Rest{tile.sums, share.turn == TURN_FIRST};
}

static __device__ __forceinline__ void
add_rest(const Rest &rest, const float (&held)[4][4])
{
    if (rest.sums == nullptr)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 four = make_float4(held[i][0], held[i][1], held[i][2], held[i][3]);

        if (rest.first)
            store_sums(WholeTile{rest.sums}.at(4 + i), four);
        else
            add_to_sums(WholeTile{rest.sums}.at(4 + i), four);
    }
}

static __device__ __forceinline__ void
release_stage(uint32_t empty)
{
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(empty);
}

/* A group of four warps. */
template <typename T, class Shared>
static __device__ __forceinline__ void
differentiate(const RpAttentionArgs &args, const AttentionGrid &grid, const BackwardScratch &scratch,
              const Shared &shared, const Place &place, Steps at, int first_head)
{
    constexpr bool SHARES_KEYS = Shared::SHARES_KEYS;
    constexpr int DQ_PARTS = Shared::DQ_PARTS, KEY_BOX = Shared::KEY_BOX;
    const int group = uniform((int)threadIdx.x / GROUP) - 1;
    const int warp = uniform((int)threadIdx.x % GROUP / 32);
    const int row = SHARES_KEYS ? 0 : group * 64;    /* of the block's keys, this group's first */
    const int column = SHARES_KEYS ? group * COLUMNS : 0; /* of dk and dv */
    const uint32_t k_rows = (uint32_t)row * 128, boxes = (uint32_t)(column / 64 * QUERY_BOX);
    const int key = at.begin + row;
    const LaneOffset<64> lane;
    float dk[16][4] = {}, dv[16][4] = {};
    float held[4][4];
    Rest rest = {nullptr, false};

    barrier_wait(shared.keys_full(), 0);
    for (uint32_t step = 0; at.more(); step++, at = next_step<QUERIES>(at)) {
        const uint32_t stage = step % STAGES;
        const Share share = share_of<QUERIES, Shared::KEYS>(args, scratch, grid.window, place, at);
        float s[8][4], y[8][4], dq[8][4];
        uint32_t p_weights[4][4], y_weights[4][4];

        barrier_wait(shared.full(stage), step / STAGES % 2);
        wgmma_begin();
        multiply_scores<T, Shared>(s, shared.k + k_rows, shared.q(stage));
        wgmma_commit();
        multiply_scores<T, Shared>(y, shared.v() + k_rows, shared.d_out(stage));
        wgmma_commit();
        add_rest(rest, held);
        wgmma_wait_but<1>();
        wgmma_hold(s);
        make_weights(s, shared.rows(stage), grid.scale_log2,
                     is_masked<QUERIES, Shared::KEYS>(place, grid.window, at.query, at.begin), place,
                     at.query, key, grid.window);
        pack_weights<T>(p_weights, s);
        wgmma_wait_but<0>();
        wgmma_hold(y);
        make_gradients(y, s, shared.rows(stage));
        pack_weights<T>(y_weights, y);
        wgmma_begin();
        multiply_weights<T>(dv, p_weights, shared.d_out(stage) + boxes);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!SHARES_KEYS || i / 2 == group)
                store_matrices(lane.at(shared.y(stage) + k_rows, warp, i), y_weights[i]);
        publish_shared();

        const unsigned seen = glance_at_count(share.count);
        const int head = head_of(place, at) - first_head;

        meet(1, MEETING);
        wgmma_begin();
        multiply_queries<T, Shared>(dq, shared.y(stage), shared.k + (uint32_t)(group * DQ_PARTS) * KEY_BOX);
        wgmma_commit();
        multiply_weights<T>(dk, y_weights, shared.q(stage) + boxes);
        wgmma_commit();
        wgmma_wait_but<1>();
        wgmma_hold(dq);
        if (DQ_PARTS > 1) {
            add_queries<T, Shared::D, QUERIES, 8>(args, scratch, place, at, share, head, seen, dq, group * 8 + warp,
                                          warp * 16, group * 128);
            wgmma_begin();
            multiply_queries<T, Shared>(dq, shared.y(stage), shared.k + (uint32_t)(group * DQ_PARTS + 1) * KEY_BOX);
            wgmma_commit();
            wgmma_wait_but<0>();
            wgmma_hold(dq);
        }
        rest = add_half<T, Shared::D>(args, scratch, place, at, share, head, seen, dq, held,
                           ((group + 1) * DQ_PARTS - 1) * 4 + warp, warp * 16, ((group + 1) * DQ_PARTS - 1) * 64);
        wgmma_wait_but<0>();
        release_stage(shared.empty(stage));
    }
    add_rest(rest, held);
    meet(1, MEETING);
    wgmma_hold(dk);
    wgmma_hold(dv);
    store_gradients<T, Shared>(args, place, key + warp * 16, column, dk, dv);
}

/* One thread calls it. */
template <class Shared>
static __device__ __forceinline__ void
make_barriers(const Shared &shared)
{
    barrier_init(shared.keys_full(), 1);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        barrier_init(shared.full(stage), 2);
        barrier_init(shared.empty(stage), 2 * GROUP / 32);
    }
    barrier_publish();
}

template <typename T, int D, bool GAPS>
static __global__ void
__launch_bounds__(THREADS, 1)
    differentiate_on_hopper(const __grid_constant__ RpAttentionArgs args,
                            const __grid_constant__ AttentionGrid grid,
                            const __grid_constant__ BackwardScratch scratch, unsigned *numbers,
                            int first_kv_head, const __grid_constant__ Maps maps)
{
    using Shared = SharedOf<D>;
    const Shared shared;

    if (threadIdx.x == 0)
        make_barriers(shared);

    Place place = find_place<GAPS>(args, grid, take_number(numbers, shared.rows(0)));
    const Steps at = begin_steps<QUERIES, Shared::KEYS>(args, place, grid.window);

    place.head += first_kv_head;
    __syncthreads();
    if (at.begin >= place.length)
        return;
    if (threadIdx.x < GROUP) {
        leave_registers<24>();
        if (threadIdx.x < 32)
            copy_all(args, maps, shared, place, at);
        else if (threadIdx.x < 64)
            copy_rows(args, scratch.delta, shared, place, at);
        else if (threadIdx.x < 96)
            end_turns<Shared>(args, grid, scratch, place, at);
    } else {
        take_registers<240>();
        differentiate<T>(args, grid, scratch, shared, place, at, first_kv_head * at.group);
    }
}

template <typename T, int D>
static cudaError_t
launch(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
       size_t first, unsigned *numbers, cudaStream_t stream)
{
    using Shared = SharedOf<D>;
    static std::atomic<uint64_t> done[2];
    const bool gaps = args->gaps != nullptr;
    const auto kernel = gaps ? differentiate_on_hopper<T, D, true> : differentiate_on_hopper<T, D, false>;
    const size_t q_row = args->heads * D, k_row = args->kv_heads * D;
    const cudaError_t status = attention_allow_shared((const void *)kernel, Shared::BYTES, &done[gaps]);
    Maps maps;

    if (status != cudaSuccess)
        return status;
    if (!make_map(&maps.q, args->dtype, args->q, q_row, args->tokens, 1, QUERIES) ||
        !make_map(&maps.d_out, args->dtype, args->d_out, q_row, args->tokens, 1, QUERIES) ||
        !make_map(&maps.k, args->dtype, args->k, k_row, args->tokens, 1, Shared::KEYS) ||
        !make_strided_map(&maps.v, args->dtype, args->v, k_row, attention_v_row(*args) * D,
                          args->tokens, 1, Shared::KEYS))
        return cudaErrorInvalidValue;
    return attention_launch(kernel, grid->units * grid->blocks, THREADS, Shared::BYTES, stream, *args, *grid,
                            *scratch, numbers, (int)first, maps);
}

bool
attention_has_wgmma(const RpAttentionArgs *args)
{
    return (args->head_size == 128 || args->head_size == 256) && is_hopper() && find_encode() != nullptr;
}

bool
attention_has_wide(const RpAttentionArgs *args)
{
    return args->head_size == 64 && is_hopper();
}

cudaError_t
attention_backward_wgmma(const RpAttentionArgs *args, const AttentionGrid *grid,
                         const BackwardScratch *scratch, size_t first, unsigned *numbers,
                         cudaStream_t stream)
{
    const bool is_bf16 = args->dtype == RP_DTYPE_BF16, is_wide = args->head_size == 256;
    const auto run = is_wide   ? is_bf16 ? launch<__nv_bfloat16, 256> : launch<__half, 256>
                     : is_bf16 ? launch<__nv_bfloat16, 128>
                               : launch<__half, 128>;

    return run(args, grid, scratch, first, numbers, stream);
}
