/*
 * The gated delta rule token by token, of any shape and type, in fp32. A warp has four columns of Dv of a value head's
 * state S, rows lane + 32 r in the registers of a lane, so that sums over Dk are those of its lanes. A block has 64
 * columns, and walks over a sequence from a state of zeros on. S is the state behind a token, dS its gradient:
 *
 *   walk      x = decay S[t-1];  e = v - x^T k';  u = beta e;  S = x + k' u^T;  out = x^T q' + (k' . q') u
 *             backward: only the states before every 64th token of all
 *   reverse   64 tokens at a time, last to first: the states before each of them; then, with y = decay[t+1] dX[t+1]
 *             w = y^T k' + (k' . q') d_out;  d_v = beta w;  d_beta = w . e
 *             dq' = x d_out + (u . d_out) k';  dk' = y u - x d_v + (u . d_out) q'
 *             dX = y + q' d_out^T - k' d_v^T;  dg = sum x dX
 *   gather    sums of dq', dk', d_beta and dg over columns, then value heads, in order; of them dq, dk, db and da
 *
 * A token's own part of out, dq' and dk' is a multiple of u, k' or q' and keeps their direction to the last digit, for
 * norms before and behind the rule take away whatever is along q, k or out, and leave a small rest.
 *
 * Walks: [sequences, value heads, blocks of Dv], 512 threads; gather: a warp a token and key head. Sums over columns:
 * those of a warp, then warps, then blocks, in order. Oracle: exec/host/delta.c
 */
#pragma once

#include "exec/cuda/delta/rule.cuh"

#define WALK_WARPS 16
#define WALK_THREADS (32 * WALK_WARPS)
#define WARP_COLUMNS 4
#define BLOCK_COLUMNS (WALK_WARPS * WARP_COLUMNS)
#define LANE_ROWS (DIM / 32)
#define SEGMENT 64               /* tokens between states that are kept */
#define LANES 2                  /* sequences that walk back at a time: each has scratch space */
#define TOKEN_SUMS (2 * DIM + 2) /* dq', dk', beta d_beta, dg */
#define GATHER_WARPS 8

/* A lane's part of a state: [LANE_ROWS,WARP_COLUMNS] */
struct alignas(16) State {
    float at[LANE_ROWS * WARP_COLUMNS];
};

template <typename T> struct Walk {
    RpDeltaArgs args;
    size_t first_key;
    size_t heads, blocks; /* value heads of the pass, blocks of each */
    size_t columns;       /* of qkv */
    State *kept, *again;  /* [., heads,blocks,WALK_THREADS]: before every 64th token; before each of 64, of a lane */
    float *sums;          /* [T,heads,blocks,TOKEN_SUMS] */
    float *partials;      /* [T,2 Hv]: parts of d_log and d_bias */
};

/* exp(g). One near 1 is not rounded: what is too little for a float's last digit adds up with what tokens write. */
struct Decay {
    bool near;
    float all, factor; /* exp(g); exp(g) - 1 where it is near 1 */

    __device__ __forceinline__ Decay(float g) : near(g > -0.5f), all(expf(g)), factor(near ? expm1f(g) : all)
    {
    }
    /* x becomes exp(g) x + y. */
    __device__ __forceinline__ void add(float &x, float y) const
    {
        const float changed = fmaf(factor, x, y);

        x = near ? x + changed : changed;
    }
};

/* A row of q or k, times length / |row|; Returns: that factor */
template <typename T>
__device__ __forceinline__ float
load_normed(const T *row, size_t Dk, float length, float (&x)[LANE_ROWS])
{
    float squares = 0;

#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        const size_t d = threadIdx.x % 32 + 32 * r;

        x[r] = d < Dk ? to_float(row[d]) : 0.0f;
        squares = fmaf(x[r], x[r], squares);
    }
    const float scale = length / sqrtf(sum_lanes<32>(squares) + RP_DELTA_EPSILON);

#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
        x[r] *= scale;
    return scale;
}

/* y = s^T x */
__device__ __forceinline__ void
read_state(const State &s, const float (&x)[LANE_ROWS], float (&y)[WARP_COLUMNS])
{
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++) {
        y[c] = 0;
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++)
            y[c] = fmaf(s.at[r * WARP_COLUMNS + c], x[r], y[c]);
        y[c] = sum_lanes<32>(y[c]);
    }
}

/* A warp at a token. */
template <typename T> struct Walker {
    const Walk<T> &walk;
    const RpDeltaArgs &args;
    const size_t slot, head, column, lane;
    size_t qkv, values, out; /* places of the token's row, its v and its out */
    Gate gate;
    Decay decay;
    float q[LANE_ROWS], k[LANE_ROWS], both, e[WARP_COLUMNS], u[WARP_COLUMNS]; /* q', k', k' . q', e, u */

    __device__ __forceinline__ Walker(const Walk<T> &of)
        : walk(of), args(of.args), slot(blockIdx.y),
          head(of.first_key * (of.args.value_heads / of.args.key_heads) + blockIdx.y),
          column((size_t)blockIdx.z * BLOCK_COLUMNS + threadIdx.x / 32 * WARP_COLUMNS), lane(threadIdx.x % 32),
          decay(0.0f)
    {
    }
    __device__ __forceinline__ void load_values(const void *array, size_t place, float (&x)[WARP_COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++)
            x[c] = column + c < args.value_dim ? to_float(((const T *)array)[place + column + c]) : 0.0f;
    }
    __device__ __forceinline__ void store_values(void *array, size_t place, const float (&x)[WARP_COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++)
            if (lane == (size_t)c && column + c < args.value_dim)
                ((T *)array)[place + column + c] = from_float<T>(x[c]);
    }
    __device__ __forceinline__ State &state_of(State *states, size_t index) const
    {
        return states[((index * walk.heads + slot) * walk.blocks + blockIdx.z) * WALK_THREADS + threadIdx.x];
    }
    /* @s: before the token */
    __device__ __forceinline__ void load(size_t token, const State &s)
    {
        const size_t Dk = args.key_dim, key = key_of(args, head);

        qkv = token * walk.columns;
        values = qkv + 2 * args.key_heads * Dk + head * args.value_dim;
        out = (token * args.value_heads + head) * args.value_dim;
        gate = gate_of<T>(args, token, head);
        decay = Decay(gate.g);
        load_normed((const T *)args.qkv + qkv + key * Dk, Dk, length_of_queries(args), q);
        load_normed((const T *)args.qkv + qkv + (args.key_heads + key) * Dk, Dk, 1.0f, k);
        load_values(args.qkv, values, e);
        read_state(s, k, u);
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++) {
            e[c] = fmaf(-decay.all, u[c], e[c]);
            u[c] = gate.beta * e[c];
        }
        both = 0;
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++)
            both = fmaf(k[r], q[r], both);
        both = sum_lanes<32>(both);
    }
    /* @s: before the token */
    __device__ __forceinline__ void write_out(const State &s) const
    {
        float y[WARP_COLUMNS];

        read_state(s, q, y);
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++)
            y[c] = fmaf(decay.all, y[c], both * u[c]);
        store_values(args.out, out, y);
    }
    /* @s: becomes the state behind the token */
    __device__ __forceinline__ void advance(State &s) const
    {
#pragma unroll
        for (int i = 0; i < LANE_ROWS * WARP_COLUMNS; i++)
            decay.add(s.at[i], k[i / WARP_COLUMNS] * u[i % WARP_COLUMNS]);
    }
    /* @s: before the token; @next: decay of the next; @d: dX of the next, becomes this one's; @sums: of the columns */
    __device__ __forceinline__ void differentiate(const State &s, const Decay &next, State &d, float *sums) const
    {
        float d_out[WARP_COLUMNS], w[WARP_COLUMNS], dq[LANE_ROWS] = {}, dk[LANE_ROWS] = {}, own = 0, rate = 0, dg = 0;

        load_values(args.d_out, out, d_out);
        read_state(d, k, w);
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++) {
            w[c] = gate.beta * fmaf(next.all, w[c], both * d_out[c]);
            rate = fmaf(w[c], e[c], rate);
            own = fmaf(u[c], d_out[c], own);
        }
#pragma unroll
        for (int i = 0; i < LANE_ROWS * WARP_COLUMNS; i++) {
            const int r = i / WARP_COLUMNS, c = i % WARP_COLUMNS;
            const float x = decay.all * s.at[i];

            dq[r] = fmaf(x, d_out[c], dq[r]);
            dk[r] = fmaf(next.all * d.at[i], u[c], fmaf(-x, w[c], dk[r]));
            next.add(d.at[i], fmaf(q[r], d_out[c], -k[r] * w[c]));
            dg = fmaf(x, d.at[i], dg);
        }
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            sums[lane + 32 * r] = fmaf(own, k[r], dq[r]);
            sums[DIM + lane + 32 * r] = fmaf(own, q[r], dk[r]);
        }
        dg = sum_lanes<32>(dg);
        if (lane == 0) {
            sums[2 * DIM] = rate;
            sums[2 * DIM + 1] = dg;
        }
        store_values(args.d_qkv, values, w);
    }
};

template <typename T>
static __global__ void
__launch_bounds__(WALK_THREADS) walk_kernel(const Walk<T> walk)
{
    const RpDeltaArgs &args = walk.args;
    Walker<T> at(walk);
    State s = {};

    for (size_t t = (size_t)args.starts[blockIdx.x]; t < (size_t)args.starts[blockIdx.x + 1]; t++) {
        if (walk.kept && t % SEGMENT == 0)
            at.state_of(walk.kept, t / SEGMENT) = s;
        at.load(t, s);
        if (!walk.kept)
            at.write_out(s);
        at.advance(s);
    }
}

/* Tokens @first to @end of a sequence, @s: before the first; @next: of the token at @end; @d: its dX */
template <typename T>
__device__ __forceinline__ void
walk_back(Walker<T> &at, size_t first, size_t end, State s, Decay &next, State &d,
          float (&sums)[2][WALK_WARPS][TOKEN_SUMS])
{
    const Walk<T> &walk = at.walk;
    const size_t again = blockIdx.x * SEGMENT;

    for (size_t t = first; t < end; t++) {
        at.state_of(walk.again, again + t - first) = s;
        at.load(t, s);
        at.advance(s);
    }
    for (size_t t = end; t-- > first;) {
        float(*const own)[TOKEN_SUMS] = sums[t % 2];

        s = at.state_of(walk.again, again + t - first);
        at.load(t, s);
        at.differentiate(s, next, d, own[threadIdx.x / 32]);
        next = at.decay;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < TOKEN_SUMS; i += WALK_THREADS) {
            float sum = 0;

            for (int warp = 0; warp < WALK_WARPS; warp++)
                sum += own[warp][i];
            walk.sums[((t * walk.heads + at.slot) * walk.blocks + blockIdx.z) * TOKEN_SUMS + i] = sum;
        }
    }
}

template <typename T>
static __global__ void
__launch_bounds__(WALK_THREADS) reverse_walk_kernel(const Walk<T> walk)
{
    __shared__ float sums[2][WALK_WARPS][TOKEN_SUMS];
    const RpDeltaArgs &args = walk.args;
    Walker<T> at(walk);

    for (size_t sequence = blockIdx.x; sequence < args.sequences; sequence += LANES) {
        const size_t begin = (size_t)args.starts[sequence];
        State d = {};
        Decay next(0.0f);

        __syncthreads(); /* all have read the last one's sums */
        for (size_t end = (size_t)args.starts[sequence + 1], first; end > begin; end = first) {
            State s = {};

            first = max(begin, (end - 1) / SEGMENT * SEGMENT);
            if (first > begin)
                s = at.state_of(walk.kept, first / SEGMENT);
            walk_back(at, first, end, s, next, d, sums);
        }
    }
}

/* Writes the gradient of a row of q or k from @sums, that of the normed row. */
template <typename T>
__device__ __forceinline__ void
write_row(const T *x, size_t Dk, float length, const float (&sums)[LANE_ROWS], T *dx)
{
    const size_t lane = threadIdx.x % 32;
    float y[LANE_ROWS], dot = 0;
    const float scale = load_normed(x, Dk, length, y);

#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
        dot = fmaf(y[r], sums[r], dot);
    dot = sum_lanes<32>(dot) / (length * length);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
        if (lane + 32 * r < Dk)
            dx[lane + 32 * r] = from_float<T>(scale * (sums[r] - y[r] * dot));
}

template <typename T>
static __global__ void
__launch_bounds__(32 * GATHER_WARPS) gather_kernel(const Walk<T> walk)
{
    const RpDeltaArgs &args = walk.args;
    const size_t t = (size_t)blockIdx.x * GATHER_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t group = args.value_heads / args.key_heads, key = walk.first_key + blockIdx.y, Dk = args.key_dim;
    const size_t q = t * walk.columns + key * Dk, k = q + args.key_heads * Dk;
    float dq[LANE_ROWS] = {}, dk[LANE_ROWS] = {};

    if (t >= args.tokens)
        return;
    for (size_t h = 0; h < group; h++) {
        const float *sums = walk.sums + (t * walk.heads + blockIdx.y * group + h) * walk.blocks * TOKEN_SUMS;
        float *const partials = walk.partials + t * 2 * args.value_heads + key * group + h;
        float rate = 0, dg = 0;

        for (size_t b = 0; b < walk.blocks; b++, sums += TOKEN_SUMS) {
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++) {
                dq[r] += sums[lane + 32 * r];
                dk[r] += sums[DIM + lane + 32 * r];
            }
            rate += sums[2 * DIM];
            dg += sums[2 * DIM + 1];
        }
        if (lane == 0)
            write_gate<T>(args, t, key * group + h, gate_of<T>(args, t, key * group + h), dg, rate, partials,
                          partials + args.value_heads);
    }
    write_row((const T *)args.qkv + q, Dk, length_of_queries(args), dq, (T *)args.d_qkv + q);
    write_row((const T *)args.qkv + k, Dk, 1.0f, dk, (T *)args.d_qkv + k);
}
