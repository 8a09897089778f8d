/*
 * Matmuls of which each row comes out the same whatever other rows there are, as generating needs it: Y = X W^T, W [n,k],
 * X [m,k] of few tokens m or many; with all else that RpMatmulArgs has in layout NT.
 *
 * Tensor cores by mma.sync.m16n8k16, W on their side of 16 rows, tokens on that of 8. k is cut into 8 parts whatever m is,
 * whose sums are added in order; within a part the instructions follow each other in k:
 *
 *   few tokens     a block has 16 rows of W, and then others, a warp a part of k; W goes straight to registers, a stage
 *                  ahead, X through shared memory. All of its W is on its way before it waits for those who make X
 *   more tokens    a block has a tile of 64 or 128 rows of W, as many tokens or half, and all of k; both through shared
 *                  memory, all stages but one ahead
 *
 * Each lane reads 16 bytes of a row: 8 neighbours in k, which two instructions take as if they were theirs, the same of W
 * and X. Other storages, sizes and places: a warp has a row of W. fp32 sums. Oracle: exec/host/matmul.c
 */
#include <limits.h>

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/grouped/mma.cuh"

#define ROW_WARPS 8
#define ROW_THREADS (ROW_WARPS * 32)
#define ROW_PARTS 8
#define ROW_DEPTH 32 /* of k that a step has */
#define ROW_UNIT 2   /* steps: a part of k has whole units */
#define FEW_BLOCKS 2 /* on a multiprocessor */
#define ANY_TOKENS 8

/* A block's shared memory, 16 bytes a place. */
extern __shared__ __align__(1024) uint4 row_shared[];

__device__ __forceinline__ uint32_t
shared_address()
{
    return (uint32_t)__cvta_generic_to_shared(row_shared);
}

__device__ __forceinline__ uint4
load_weights(const void *at)
{
    uint4 value;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

/* sums += one step of M x 16 rows of W, @low g and @high g + 8 of each, and N x 8 tokens, from fragment @first on. The
 * second instruction of a sum comes after the first ones of all, for it waits for its own. @zero: unknown to the compiler,
 * which would copy W to neighbouring registers for each instruction anew */
template <typename T, int M, int N, int ALL>
__device__ __forceinline__ void
multiply_step(float (&sums)[M][ALL][4], int first, const uint4 (&low)[M], const uint4 (&high)[M],
              const uint4 (&x)[N], uint32_t zero)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t w[M][4];

#pragma unroll
        for (int i = 0; i < M; i++) {
            w[i][0] = (half ? low[i].z : low[i].x) ^ zero;
            w[i][1] = (half ? high[i].z : high[i].x) ^ zero;
            w[i][2] = (half ? low[i].w : low[i].y) ^ zero;
            w[i][3] = (half ? high[i].w : high[i].y) ^ zero;
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int i = 0; i < M; i++)
                multiply_add(T(), sums[i][first + j], w[i], half ? x[j].z : x[j].x,
                             half ? x[j].w : x[j].y);
        }
    }
}

__device__ __forceinline__ int
units_of(const RpMatmulArgs &args)
{
    return ((int)args.k + ROW_UNIT * ROW_DEPTH - 1) / (ROW_UNIT * ROW_DEPTH);
}

/* The first unit of a part. */
__device__ __forceinline__ int
first_unit(int units, int part)
{
    return part * units / ROW_PARTS;
}

__device__ __forceinline__ size_t
stride_of(const RpMatmulArgs &args)
{
    return args.a_stride > 0 ? args.a_stride : args.k;
}

__device__ __forceinline__ uint32_t
zero_of(const RpMatmulArgs &args)
{
    return !args.alone;
}

template <typename T>
__device__ __forceinline__ void
add_pack(float (&sums)[RP_PACK], const T *at, size_t count, bool wide)
{
    const Pack<T> pack = load_pack(at, count, wide);

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sums[i] += to_float(pack.at[i]);
}

/* @sums: over k, of @count rows of W from @row on. Stores C[token,row]. */
template <typename T>
__device__ __forceinline__ void
store_sums(const RpMatmulArgs &args, size_t token, size_t row, float (&sums)[RP_PACK], size_t count,
           bool wide)
{
    const size_t at = token * (args.c_stride > 0 ? args.c_stride : args.n) + row;
    T *place = (T *)args.c + at;
    Pack<T> pack;

#pragma unroll
    for (int i = 0; args.scale != 0 && i < RP_PACK; i++)
        sums[i] *= args.scale;
    if (args.accumulate)
        add_pack(sums, place, count, wide);
    if (args.residual)
        add_pack(sums, (const T *)args.residual + at, count, wide);
    if (args.bias)
        add_pack(sums, (const T *)args.bias + row, count, wide);
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack.at[i] = from_float<T>(sums[i]);
    store_pack(place, pack, count, wide);
}

/* ---- few tokens ---- */

/* A block's share of the work: each stage has U steps of every part. */
template <int NT, int U> struct Few {
    static constexpr int TOKENS = NT * 8, PIECE = ROW_DEPTH * U; /* elements of a part and token in a stage */
    /* rows of X stand so that lanes of two rows read all banks */
    static constexpr int PITCH = PIECE * ROW_PARTS + 32;
    static constexpr int STAGES = 2, STAGE_BYTES = TOKENS * PITCH * 2, SUM_PITCH = TOKENS + 1;
    static constexpr int SUM_BYTES = (int)sizeof(float) * ROW_PARTS * 16 * SUM_PITCH;
    static constexpr int BYTES = STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;

    static_assert(PIECE * ROW_PARTS * 2 % 128 == 0, "a pitch of half the banks more");
};

/* A thread copies the same 16 bytes of a stage's rows, of every STEP-th token. */
template <typename T, int NT, int U> struct Loader {
    using Of = Few<NT, U>;
    static constexpr int PACKS = Of::PIECE / 8, ROW = PACKS * ROW_PARTS; /* 16 bytes each */
    static constexpr int STEP = ROW_THREADS / ROW, N = Of::TOKENS / STEP;

    const T *from;
    size_t step; /* elements from a token to the thread's next */
    uint32_t to;
    int k_left;    /* elements of k from the thread's first on, within the part */
    unsigned here; /* bits of its tokens that there are */

    __device__ __forceinline__
    Loader(const RpMatmulArgs &args, uint32_t shared, size_t first_token, int units)
    {
        static_assert(ROW_THREADS % ROW == 0 && Of::TOKENS % STEP == 0, "threads fill rows");
        const int pack = (int)threadIdx.x % PACKS, part = (int)threadIdx.x / PACKS % ROW_PARTS;
        const int token = (int)threadIdx.x / ROW;
        const int first = first_unit(units, part) * ROW_UNIT * ROW_DEPTH + pack * 8;

        here = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            here |= first_token + token + i * STEP < args.m ? 1u << i : 0;
        k_left = min((int)args.k, first_unit(units, part + 1) * ROW_UNIT * ROW_DEPTH) - first;
        from = (const T *)args.a + (first_token + token) * stride_of(args) + first;
        step = STEP * stride_of(args);
        to = shared + 2 * (token * Of::PITCH + part * Of::PIECE + pack * 8);
    }

    /* The next stage, which is number @stage. */
    __device__ __forceinline__ void
    load(const T *any, int stage)
    {
        const uint32_t at = to + stage % Of::STAGES * Of::STAGE_BYTES;

#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool valid = k_left > 0 && (here >> i & 1) != 0;

            copy_async_16(at + 2 * i * STEP * Of::PITCH, valid ? from + i * step : any, valid);
        }
        copy_async_commit();
        from += Of::PIECE;
        k_left -= Of::PIECE;
    }
};

/* Rows g and g + 8 of W, 8 elements each, of U steps. */
template <int U> struct Weights {
    uint4 low[U], high[U];
};

template <typename T, int U>
__device__ __forceinline__ void
load_weights_of(Weights<U> &w, const T *low, const T *high, int step, int end, int k, int column)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int at = (step + u) * ROW_DEPTH + column;
        const bool valid = step + u < end && at < k;

        w.low[u] = valid ? load_weights(low + at) : make_uint4(0, 0, 0, 0);
        w.high[u] = valid ? load_weights(high + at) : make_uint4(0, 0, 0, 0);
    }
}

/* Has the L2 cache read what a warp's part has of 16 rows of W, from step @begin to @end. */
template <typename T>
__device__ __forceinline__ void
prefetch_part(const RpMatmulArgs &args, size_t first_row, int begin, int end)
{
    constexpr int LINE = 128 / (int)sizeof(T);
    const int first = begin * ROW_DEPTH, last = min(end * ROW_DEPTH, (int)args.k);
    const int lines = (last - first + LINE - 1) / LINE;

    for (int i = (int)threadIdx.x % 32; i < 16 * lines; i += 32)
        prefetch_line((const T *)args.b + min(first_row + i / lines, args.n - 1) * args.k + first +
                      i % lines * LINE);
}

/* A warp's part of 16 rows of W. */
template <typename T, int U> struct PartOfRows {
    const T *low, *high; /* rows g and g + 8 */
    Weights<U> now;      /* the next steps */

    /* The rows from @first_row on, whose W begins to come. */
    __device__ __forceinline__ void
    begin(const RpMatmulArgs &args, size_t first_row, int begin, int end)
    {
        const int lane = (int)threadIdx.x % 32;

        low = (const T *)args.b + min(first_row + lane / 4, args.n - 1) * args.k;
        high = (const T *)args.b + min(first_row + lane / 4 + 8, args.n - 1) * args.k;
        load_weights_of<T, U>(now, low, high, begin, end, (int)args.k, lane % 4 * 8);
        prefetch_part<T>(args, first_row, begin + U, end);
    }
};

/* Sums of a warp over its part, of steps @begin to @end. */
template <typename T, int NT, int U>
__device__ __forceinline__ void
multiply_part(float (&sums)[1][NT][4], PartOfRows<T, U> &rows, const RpMatmulArgs &args,
              size_t first_token, int units, int part, int begin, int end)
{
    using Of = Few<NT, U>;
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int most = (units + ROW_PARTS - 1) / ROW_PARTS * ROW_UNIT, stages = (most + U - 1) / U;
    Weights<U> next;
    Loader<T, NT, U> loader(args, shared_address(), first_token, units);

    loader.load((const T *)args.a, 0);
    for (int stage = 0; stage < stages; stage++) {
        const uint4 *x = row_shared + stage % Of::STAGES * (Of::STAGE_BYTES / 16) +
                         (g * Of::PITCH + part * Of::PIECE) / 8 + t;

        load_weights_of<T, U>(next, rows.low, rows.high, begin + (stage + 1) * U, end, (int)args.k,
                              8 * t);
        if (stage + 1 < stages)
            loader.load((const T *)args.a, stage + 1);
        else
            copy_async_commit();
        copy_async_wait_but<1>();
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (begin + stage * U + u >= end)
                break;
            const uint4 low[1] = {rows.now.low[u]}, high[1] = {rows.now.high[u]};
            uint4 tokens[NT];

#pragma unroll
            for (int i = 0; i < NT; i++)
                tokens[i] = x[(u * ROW_DEPTH + i * 8 * Of::PITCH) / 8];
            multiply_step<T, 1, NT>(sums, 0, low, high, tokens, zero_of(args));
        }
        rows.now = next;
        __syncthreads();
    }
}

/* A block has every gridDim.y-th 16 rows of W: the next ones are on their way before these are stored. */
template <typename T, int NT, int U>
static __global__ void
__launch_bounds__(ROW_THREADS, FEW_BLOCKS) multiply_rows(const RpMatmulArgs args, bool wide)
{
    using Of = Few<NT, U>;
    float(*parts)[16][Of::SUM_PITCH] =
        (float(*)[16][Of::SUM_PITCH])row_shared; /* once X has been read */
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int units = units_of(args), begin = first_unit(units, warp) * ROW_UNIT;
    const int end = first_unit(units, warp + 1) * ROW_UNIT;
    const size_t first_token = (size_t)blockIdx.x * Of::TOKENS;
    PartOfRows<T, U> rows;

    let_next_begin();
    rows.begin(args, (size_t)blockIdx.y * 16, begin, end);
    wait_for_previous(); /* weights are nobody's */
    for (size_t row = (size_t)blockIdx.y * 16; row < args.n; row += (size_t)gridDim.y * 16) {
        float sums[1][NT][4] = {};

        multiply_part<T, NT, U>(sums, rows, args, first_token, units, warp, begin, end);
        if (row + (size_t)gridDim.y * 16 < args.n)
            rows.begin(args, row + (size_t)gridDim.y * 16, begin, end);
        copy_async_wait();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NT; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                parts[warp][g + j / 2 * 8][i * 8 + 2 * t + j % 2] = sums[0][i][j];
        }
        __syncthreads();
        for (int at = (int)threadIdx.x; at < 2 * Of::TOKENS; at += ROW_THREADS) {
            const int of = at % 2 * RP_PACK, token = at / 2;
            float sum[RP_PACK] = {};

            if (row + of >= args.n || first_token + token >= args.m)
                continue;
#pragma unroll
            for (int part = 0; part < ROW_PARTS; part++) {
#pragma unroll
                for (int i = 0; i < RP_PACK; i++)
                    sum[i] += parts[part][of + i][token];
            }
            store_sums<T>(args, first_token + token, row + of, sum, args.n - row - of, wide);
        }
        __syncthreads();
    }
}

/* ---- tiles ---- */

/* A block's tile: HIGH x WIDE warps, each with M x 16 rows of W and N x 8 tokens; a stage has a unit of k. */
template <typename T_, int M_, int N_, int HIGH_, int WIDE_, int STAGES_, int BLOCKS_> struct RowTile {
    using T = T_;
    static constexpr int M = M_, N = N_, HIGH = HIGH_, WIDE = WIDE_, STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_; /* on a multiprocessor */
    static constexpr int ROWS = HIGH * M * 16, TOKENS = WIDE * N * 8;
    static constexpr int PACKS = ROW_UNIT * 4, PASS = ROW_THREADS / PACKS; /* 16 bytes of a row; rows copied at once */
    static constexpr int GROUP = N < 4 ? N : 4; /* fragments of X that are read together */
    /* a step's rows of 64 bytes; the next stands so that a row's copies go to all banks */
    static constexpr uint32_t W_STEP = ROWS * 64 + 64, X_STEP = TOKENS * 64 + 64;
    static constexpr uint32_t STAGE_BYTES = ROW_UNIT * (W_STEP + X_STEP), BYTES = STAGES * STAGE_BYTES;
    static constexpr int SUM_PITCH = ROWS + 4; /* floats of a token */

    static_assert(HIGH * WIDE == ROW_WARPS && ROWS % PASS == 0 && TOKENS % PASS == 0, "all warps");
    static_assert(BYTES <= 99 * 1024 && SUM_PITCH * TOKENS * 4 <= BYTES, "GeForce cards have 99 KiB");
};

/* A thread copies 16 bytes of rows row, row + PASS, ... of a matrix of @extent rows. */
template <typename S, int COUNT> struct RowCopier {
    const typename S::T *from;
    size_t stride; /* from a row to the thread's next */
    uint32_t to;
    int rows_left;

    __device__ __forceinline__
    RowCopier(const void *matrix, size_t row_stride, size_t first, size_t extent, uint32_t step)
    {
        const int pack = (int)threadIdx.x % S::PACKS, row = (int)threadIdx.x / S::PACKS;

        stride = S::PASS * row_stride;
        from = (const typename S::T *)matrix + (first + row) * row_stride + pack * 8;
        to = shared_address() + pack / 4 * step + row * 64 + pack % 4 * 16;
        rows_left = (int)min(extent - first, (size_t)COUNT) - row;
    }

    /* The next unit, to the stage that is @stage bytes away. FULL: all of it is there; else what is @inside of k is, and
     * @any may be read. */
    template <bool FULL>
    __device__ __forceinline__ void
    copy(uint32_t stage, bool inside, const void *any)
    {
        const typename S::T *row = from;

#pragma unroll
        for (int i = 0; i < COUNT; i += S::PASS, row += stride) {
            const bool valid = FULL || (inside && i < rows_left);

            copy_async_16(to + stage + i * 64, valid ? row : any, valid);
        }
        from += ROW_UNIT * ROW_DEPTH;
    }
};

template <typename S>
__device__ __forceinline__ void
end_row_part(float (&totals)[S::M][S::N][4], float (&sums)[S::M][S::N][4])
{
#pragma unroll
    for (int i = 0; i < S::M; i++) {
#pragma unroll
        for (int j = 0; j < S::N; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                totals[i][j][c] += sums[i][j][c];
                sums[i][j][c] = 0;
            }
        }
    }
}

/* A warp multiplies these at once: all of its W of a step, and a group of its X. */
template <typename S> struct Fragments {
    uint4 low[S::M], high[S::M], x[S::GROUP];
};

/* @w, @x: the lane's first pieces of the step */
template <typename S>
__device__ __forceinline__ void
load_fragments(Fragments<S> &to, const uint4 *w, const uint4 *x, int group)
{
#pragma unroll
    for (int i = 0; group == 0 && i < S::M; i++) {
        to.low[i] = w[i * 16 * 4];
        to.high[i] = w[i * 16 * 4 + 8 * 4];
    }
#pragma unroll
    for (int j = 0; j < S::GROUP; j++)
        to.x[j] = x[(group * S::GROUP + j) * 8 * 4];
}

/* The unit before which the sums of parts end. */
struct PartEnds {
    int units, part, end;

    __device__ __forceinline__ explicit PartEnds(int units_) : units(units_), part(0), end(0)
    {
        advance();
    }

    /* To the next part that has a unit. */
    __device__ __forceinline__ void
    advance()
    {
        const int last = end;

        while (part < ROW_PARTS && end == last)
            end = first_unit(units, ++part);
    }
};

/*
 * @totals = the warp's part of the tile, over k. Fragments are read a group ahead, stages copied STAGES - 1 ahead. All
 * threads.
 */
template <typename S>
__device__ __forceinline__ void
sum_row_tile(float (&totals)[S::M][S::N][4], const RpMatmulArgs &args, size_t first_row,
             size_t first_token)
{
    constexpr int GROUPS = S::N / S::GROUP, PLACE = (int)S::STAGE_BYTES / 16;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int pack = (int)threadIdx.x % S::PACKS, units = units_of(args);
    const uint4 *w = row_shared + lane + warp / S::WIDE * S::M * 16 * 4;
    const uint4 *x = row_shared + lane + (ROW_UNIT * S::W_STEP) / 16 + warp % S::WIDE * S::N * 8 * 4;
    const uint32_t zero = zero_of(args);
    const bool full = first_row + S::ROWS <= args.n && first_token + S::TOKENS <= args.m &&
                      args.k % (ROW_UNIT * ROW_DEPTH) == 0;
    RowCopier<S, S::ROWS> w_copier(args.b, args.k, first_row, args.n, S::W_STEP);
    RowCopier<S, S::TOKENS> x_copier(args.a, stride_of(args), first_token, args.m, S::X_STEP);
    float sums[S::M][S::N][4] = {};
    Fragments<S> now, next;
    PartEnds ends(units);
    int place = 0;

    auto copy_w = [&](int unit, uint32_t stage) {
        if (full && unit < units)
            w_copier.template copy<true>(stage, true, args.b);
        else if (unit < units)
            w_copier.template copy<false>(stage, (unit * S::PACKS + pack) * 8 < (int)args.k, args.b);
    };
    auto copy_x = [&](int unit, uint32_t stage) {
        stage += ROW_UNIT * S::W_STEP;
        if (full && unit < units)
            x_copier.template copy<true>(stage, true, args.a);
        else if (unit < units)
            x_copier.template copy<false>(stage, (unit * S::PACKS + pack) * 8 < (int)args.k, args.a);
        copy_async_commit();
    };

#pragma unroll
    for (int unit = 0; unit < S::STAGES; unit++)
        copy_w(unit, unit * S::STAGE_BYTES);
    wait_for_previous(); /* weights are nobody's */
#pragma unroll
    for (int unit = 0; unit < S::STAGES; unit++)
        copy_x(unit, unit * S::STAGE_BYTES);
    copy_async_wait_but<S::STAGES - 1>();
    __syncthreads();
    load_fragments<S>(now, w, x, 0);
    for (int unit = 0; unit < units; unit++) {
        const int next_place = place == (S::STAGES - 1) * PLACE ? 0 : place + PLACE;

#pragma unroll
        for (int u = 0; u < ROW_UNIT; u++) {
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                const int u_next = group == GROUPS - 1 ? u + 1 : u, to = (group + 1) % GROUPS;

                next = now;
                if (u_next < ROW_UNIT) {
                    load_fragments<S>(next, w + place + u_next * (S::W_STEP / 16),
                                      x + place + u_next * (S::X_STEP / 16), to);
                } else {
                    copy_async_wait_but<S::STAGES - 2>();
                    __syncthreads();
                    load_fragments<S>(next, w + next_place, x + next_place, to);
                    copy_w(unit + S::STAGES, (uint32_t)place * 16);
                    copy_x(unit + S::STAGES, (uint32_t)place * 16);
                }
                multiply_step<typename S::T, S::M, S::GROUP>(sums, group * S::GROUP, now.low, now.high,
                                                             now.x, zero);
                now = next;
            }
        }
        place = next_place;
        if (unit + 1 == ends.end) {
            end_row_part<S>(totals, sums);
            ends.advance();
        }
    }
    copy_async_wait();
    __syncthreads();
}

template <typename S>
static __global__ void
__launch_bounds__(ROW_THREADS, S::BLOCKS) multiply_row_tiles(const RpMatmulArgs args, bool wide)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = warp / S::WIDE * S::M * 16 + lane / 4;
    const int token = warp % S::WIDE * S::N * 8 + lane % 4 * 2;
    const size_t first_token = (size_t)blockIdx.x * S::TOKENS;
    const size_t first_row = (size_t)blockIdx.y * S::ROWS;
    float totals[S::M][S::N][4] = {};
    float *tile = (float *)row_shared;

    let_next_begin();
    sum_row_tile<S>(totals, args, first_row, first_token);
#pragma unroll
    for (int i = 0; i < S::M; i++) {
#pragma unroll
        for (int j = 0; j < S::N; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                tile[(token + j * 8 + c % 2) * S::SUM_PITCH + row + i * 16 + c / 2 * 8] =
                    totals[i][j][c];
        }
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < S::TOKENS * S::ROWS / RP_PACK; at += ROW_THREADS) {
        const int of = at % (S::ROWS / RP_PACK) * RP_PACK, t = at / (S::ROWS / RP_PACK);
        float sums[RP_PACK];

        if (first_row + of >= args.n || first_token + t >= args.m)
            continue;
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            sums[i] = tile[t * S::SUM_PITCH + of + i];
        store_sums<typename S::T>(args, first_token + t, first_row + of, sums,
                                  args.n - first_row - of, wide);
    }
}

/* ---- any storage ---- */

/* X of type A, W of B. */
template <typename A, typename B>
static __global__ void
__launch_bounds__(ROW_WARPS * 32) multiply_any_rows(const RpMatmulArgs args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    const size_t stride = stride_of(args);
    const int lane = (int)threadIdx.x % 32;

    if (row >= args.n)
        return;
    const B *w = (const B *)args.b + row * args.k;

    for (size_t first = (size_t)blockIdx.y * ANY_TOKENS; first < args.m;
         first += (size_t)gridDim.y * ANY_TOKENS) {
        float sums[ANY_TOKENS] = {};

        for (size_t l = lane; l < args.k; l += 32) {
            const float weight = to_float(w[l]);

#pragma unroll
            for (int i = 0; i < ANY_TOKENS; i++)
                if (first + i < args.m)
                    sums[i] =
                        fmaf(to_float(((const A *)args.a)[(first + i) * stride + l]), weight, sums[i]);
        }
#pragma unroll
        for (int i = 0; i < ANY_TOKENS; i++) {
            float sum[RP_PACK] = {sum_lanes<32>(sums[i])};

            if (lane == 0 && first + i < args.m)
                store_sums<A>(args, first + i, row, sum, 1, false);
        }
    }
}

/* ---- launching ---- */

/* Whether what is stored may be in 16-byte pieces. */
static bool
stores_wide(const RpMatmulArgs *args)
{
    return rows_are_wide(args->c, args->n) && args->c_stride % RP_PACK == 0 && is_wide(args->residual) &&
           is_wide(args->bias);
}

static size_t
multiprocessors()
{
    int device, count = 0;

    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count > 0 ? (size_t)count : 1;
}

/* @blocks: for each @tokens */
static cudaError_t
launch_rows(void (*kernel)(RpMatmulArgs, bool), size_t blocks, size_t tokens, int bytes,
            std::atomic<uint64_t> *allowed, const RpMatmulArgs *args, cudaStream_t stream)
{
    const dim3 grid((unsigned)ceil_divide(args->m, tokens), (unsigned)blocks);
    const cudaError_t status = attention_allow_shared((const void *)kernel, bytes, allowed);

    if (status != cudaSuccess)
        return status;
    return launch_early(kernel, grid, ROW_THREADS, (size_t)bytes, stream, *args, stores_wide(args));
}

template <typename T, int NT, int U>
static cudaError_t
launch_few(const RpMatmulArgs *args, cudaStream_t stream)
{
    using Of = Few<NT, U>;
    static std::atomic<uint64_t> allowed;
    const size_t wanted = ceil_divide(args->n, 16), most = multiprocessors() * FEW_BLOCKS;
    const size_t turns = args->m > Of::TOKENS ? 1 : ceil_divide(wanted, most);

    return launch_rows(multiply_rows<T, NT, U>, ceil_divide(wanted, turns), Of::TOKENS,
                       Of::BYTES, &allowed, args, stream);
}

template <typename S>
static cudaError_t
launch_tiles(const RpMatmulArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> allowed;

    return launch_rows(multiply_row_tiles<S>, ceil_divide(args->n, S::ROWS), S::TOKENS, S::BYTES,
                       &allowed, args, stream);
}

/* Whether a multiprocessor is one of those that multiply so fast that tiles must be large: they have more shared memory
 * than GeForce cards' 99 KiB. */
static bool
is_large(size_t bytes)
{
    int device, most = 0;

    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
               cudaSuccess &&
           (size_t)most >= bytes;
}

/* Larger tiles read less, smaller ones keep all multiprocessors busy. As measured on an H200; no number depends on it. */
template <typename T>
static cudaError_t
multiply_fast(const RpMatmulArgs *args, cudaStream_t stream)
{
    using Wide = RowTile<T, 2, 8, 4, 2, 3, 1>;
    using Narrow = RowTile<T, 2, 2, 2, 4, 5, 2>;
    using Low = RowTile<T, 1, 2, 4, 2, 6, 2>;
    const bool large = is_large(Few<8, 2>::BYTES);
    const size_t tiles = ceil_divide(args->m, 64) * ceil_divide(args->n, 64);

    if (args->m <= 8)
        return launch_few<T, 1, 4>(args, stream);
    if (args->m <= 16)
        return launch_few<T, 2, 4>(args, stream);
    if (args->m <= 32)
        return tiles >= 128 ? launch_tiles<Low>(args, stream) : launch_few<T, 4, 2>(args, stream);
    if (args->m > 64 && tiles >= (large ? 160 : 2048))
        return launch_tiles<Wide>(args, stream);
    if (tiles >= 96)
        return launch_tiles<Narrow>(args, stream);
    return tiles <= 32 && large ? launch_few<T, 8, 2>(args, stream) : launch_few<T, 8, 1>(args, stream);
}

static bool
is_fast(const RpMatmulArgs *args)
{
    return args->a_dtype != RP_DTYPE_FP32 && args->a_dtype == args->b_dtype &&
           args->c_dtype == args->a_dtype && args->k % 8 == 0 && args->a_stride % 8 == 0 &&
           is_wide(args->a) && is_wide(args->b) && args->k < ((size_t)1 << 30) &&
           ceil_divide(args->n, 16) < 65536;
}

extern "C" cudaError_t
rp_cuda_matmul_rows(const RpMatmulArgs *args, cudaStream_t stream)
{
    if (args->form != RP_MATMUL_NT || args->c_dtype != args->a_dtype || !args->alone) /* zero_of() */
        return cudaErrorInvalidValue;
    if (args->m == 0 || args->n == 0)
        return cudaSuccess;
    if (is_fast(args))
        return args->a_dtype == RP_DTYPE_BF16 ? multiply_fast<__nv_bfloat16>(args, stream)
                                              : multiply_fast<__half>(args, stream);
    return for_dtype(args->a_dtype, [=](auto x) {
        return for_dtype(args->b_dtype, [=](auto w) {
            const size_t turns = ceil_divide(args->m, ANY_TOKENS);
            const dim3 grid((unsigned)ceil_divide(args->n, ROW_WARPS),
                            (unsigned)(turns < 1024 ? turns : 1024));

            multiply_any_rows<decltype(x), decltype(w)>
                <<<grid, ROW_THREADS, 0, stream>>>(*args);
            return cudaGetLastError();
        });
    });
}
