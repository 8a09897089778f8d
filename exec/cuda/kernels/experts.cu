/*
 * Between the matmuls of experts: R = T k rows, sorted by expert.
 *
 *   gather     y[rows[t,j]] = x[t]                                                               =
 *   combine    y[t] = residual[t] + sum_j weights[t,j] x[rows[t,j]], j ascending                 =
 *   forward    act[r,i] of gate and up in z[r], halves or neighbours                             =
 *   backward   dz, product = weight act;  d_weights[assigned[r]] = act . g (+ bias . dy)         =
 *
 * x, y: [T,n] or [R,n], z: [R,2m], act, g: [R,m]. fp32 arithmetic, stored values rounded once; the
 * sum of d_weights is of lanes, then a tree. Gather and combine: a block a token, whose threads take
 * packs of eight. Activations: a warp a row, whose lanes take packs of eight; a lane reads its packs
 * before it writes them, so dz may be z and product g.
 *
 * Elements moved, of the storage: gather T n (1 + k); combine T n (k + 1), with a residual + T n;
 * forward 3 R m; backward 6 R m, and with a bias R n. Oracles: exec/host/route.c, experts.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

/* Rows of @n words: elements, or 16 bytes. */
template <typename Word>
static __global__ void
__launch_bounds__(THREADS) gather_kernel(RpGatherRowsArgs args, size_t n)
{
    const Word *x = (const Word *)args.x + blockIdx.x * n;
    const int32_t *rows = args.rows + blockIdx.x * args.choices;

    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        const Word word = x[i];

#pragma unroll 4
        for (unsigned j = 0; j < args.choices; j++)
            ((Word *)args.y)[(size_t)__ldg(rows + j) * n + i] = word;
    }
}

template <typename Word>
static cudaError_t
gather(const RpGatherRowsArgs *args, cudaStream_t stream)
{
    const size_t words = args->n * rp_dtype_size(args->dtype) / sizeof(Word);

    gather_kernel<Word>
        <<<(unsigned)args->tokens, threads_for(words * RP_PACK, THREADS), 0, stream>>>(*args,
                                                                                       words);
    return cudaGetLastError();
}

/* The rows of a token, AT_ONCE of them read before the first is added: as many as keep the card's memory busy. */
template <typename T, bool WIDE, unsigned AT_ONCE>
static __global__ void
__launch_bounds__(THREADS) combine_kernel(RpCombineRowsArgs args)
{
    const size_t n = args.n, t = blockIdx.x;
    const int32_t *rows = args.rows + t * args.choices;
    const T *weights = (const T *)args.weights + (args.weights ? t * args.choices : 0);

    for (size_t first = threadIdx.x * RP_PACK; first < n; first += blockDim.x * RP_PACK) {
        const size_t count = WIDE ? RP_PACK : n - first; /* rows that are wide have whole packs */
        float sums[RP_PACK] = {};
        Pack<T> pack;

        for (unsigned base = 0; base < args.choices; base += AT_ONCE) {
            Pack<T> packs[AT_ONCE];
            float scales[AT_ONCE];

#pragma unroll
            for (unsigned j = 0; j < AT_ONCE; j++) {
                const unsigned row = base + j < args.choices ? base + j : base;

                packs[j] = load_pack((const T *)args.x + (size_t)__ldg(rows + row) * n + first,
                                     count, WIDE);
                scales[j] = args.weights ? to_float(weights[row]) : 1.0f;
            }
            if (base == 0 && args.residual) {
                pack = load_pack((const T *)args.residual + t * n + first, count, WIDE);
#pragma unroll
                for (int i = 0; i < RP_PACK; i++)
                    sums[i] = to_float(pack.at[i]);
            }
#pragma unroll
            for (unsigned j = 0; j < AT_ONCE; j++) {
#pragma unroll
                for (int i = 0; i < RP_PACK; i++)
                    if (base + j < args.choices)
                        sums[i] += scales[j] * to_float(packs[j].at[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            pack.at[i] = from_float<T>(sums[i]);
        store_pack((T *)args.y + t * n + first, pack, count, WIDE);
    }
}

template <typename T, bool WIDE>
static cudaError_t
combine(const RpCombineRowsArgs *args, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)args->tokens, threads = threads_for(args->n, THREADS);

    if (args->choices > 4)
        combine_kernel<T, WIDE, 8><<<blocks, threads, 0, stream>>>(*args);
    else
        combine_kernel<T, WIDE, 4><<<blocks, threads, 0, stream>>>(*args);
    return cudaGetLastError();
}

/* Eight gates and ups of a row of z, or the values that replace them. */
template <typename T> struct Gates {
    Pack<T> packs[2];
};

/* Elements of the two packs at @first of a row; of neighbours the second follows the first. */
template <RpExpertGlu FORM>
__device__ __forceinline__ void
places_of(size_t m, size_t first, size_t *places, size_t *counts)
{
    const size_t count = m - first;

    places[0] = FORM == RP_EXPERT_SILU ? first : 2 * first;
    places[1] = FORM == RP_EXPERT_SILU ? m + first : 2 * first + RP_PACK;
    counts[0] = FORM == RP_EXPERT_SILU ? count : 2 * count;
    counts[1] = FORM == RP_EXPERT_SILU ? count : 2 * count > RP_PACK ? 2 * count - RP_PACK : 0;
}

/* Place of gate (@up 0) or up (1) of element @i in the packs. */
template <RpExpertGlu FORM, typename T>
__device__ __forceinline__ T &
part_of(Gates<T> &gates, int up, int i)
{
    return FORM == RP_EXPERT_SILU ? gates.packs[up].at[i]
                                  : gates.packs[(2 * i + up) / RP_PACK].at[(2 * i + up) % RP_PACK];
}

template <RpExpertGlu FORM, typename T>
__device__ __forceinline__ Gates<T>
load_gates(const T *row, size_t m, size_t first, bool wide)
{
    size_t places[2], counts[2];
    Gates<T> gates;

    places_of<FORM>(m, first, places, counts);
#pragma unroll
    for (int i = 0; i < 2; i++)
        gates.packs[i] = load_pack(row + places[i], counts[i], wide);
    return gates;
}

template <RpExpertGlu FORM, typename T>
__device__ __forceinline__ void
store_gates(T *row, size_t m, size_t first, bool wide, const Gates<T> &gates)
{
    size_t places[2], counts[2];

    places_of<FORM>(m, first, places, counts);
#pragma unroll
    for (int i = 0; i < 2; i++)
        store_pack(row + places[i], gates.packs[i], counts[i], wide);
}

/* act, and its derivatives by gate and up. */
struct Activation {
    float act, of_gate, of_up;
};

template <RpExpertGlu FORM, typename T>
__device__ __forceinline__ Activation
activate(float gate, float up, float alpha, float limit)
{
    if (FORM == RP_EXPERT_SILU) {
        const float s = sigmoid<T>(gate);

        return {gate * s * up, s * (1.0f + gate * (1.0f - s)) * up, gate * s};
    }
    const float a = gate > limit ? limit : gate;
    const float b = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
    const float s = sigmoid<T>(alpha * a);

    return {a * s * b, gate > limit ? 0.0f : s * (1.0f + alpha * a * (1.0f - s)) * b,
            fabsf(up) > limit ? 0.0f : a * s};
}

template <typename T, RpExpertGlu FORM>
static __global__ void
__launch_bounds__(THREADS) glu_kernel(RpExpertGluArgs args, bool wide)
{
    const size_t m = args.m, row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
#pragma unroll 2
    for (size_t first = threadIdx.x % 32 * RP_PACK; first < m; first += 32 * RP_PACK) {
        Gates<T> z = load_gates<FORM>((const T *)args.z + row * 2 * m, m, first, wide);
        Pack<T> pack;

#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            const float gate = to_float(part_of<FORM>(z, 0, i));
            const float up = to_float(part_of<FORM>(z, 1, i));

            pack.at[i] = from_float<T>(activate<FORM, T>(gate, up, args.alpha, args.limit).act);
        }
        store_pack((T *)args.act + row * m + first, pack, m - first, wide);
    }
}

/* This lane's part of sum_c bias[e,c] dy[t,c] */
template <typename T>
__device__ __forceinline__ float
dot_bias(const RpExpertGluArgs &args, size_t a, bool wide)
{
    const size_t n = args.n;
    const T *bias = (const T *)args.bias + (size_t)args.chosen[a] * n;
    const T *dy = (const T *)args.dy + a / args.choices * n;
    float sum = 0;

#pragma unroll 2
    for (size_t first = threadIdx.x % 32 * RP_PACK; first < n; first += 32 * RP_PACK) {
        const Pack<T> biases = load_pack(bias + first, n - first, wide);
        const Pack<T> dys = load_pack(dy + first, n - first, wide);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            sum += to_float(biases.at[i]) * to_float(dys.at[i]);
    }
    return sum;
}

template <typename T, RpExpertGlu FORM>
static __global__ void
__launch_bounds__(THREADS) glu_backward_kernel(RpExpertGluArgs args, bool wide, bool bias_wide)
{
    const size_t m = args.m, row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    size_t a;
    float weight, sum;

    if (row >= args.rows)
        return;
    a = (size_t)args.assigned[row];
    weight = to_float(((const T *)args.weights)[a]);
    sum = args.bias ? dot_bias<T>(args, a, bias_wide) : 0.0f;
    for (size_t first = threadIdx.x % 32 * RP_PACK; first < m; first += 32 * RP_PACK) {
        Gates<T> z = load_gates<FORM>((const T *)args.z + row * 2 * m, m, first, wide);
        Pack<T> g = load_pack((const T *)args.g + row * m + first, m - first, wide);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            T &gate = part_of<FORM>(z, 0, i);
            T &up = part_of<FORM>(z, 1, i);
            const Activation of =
                activate<FORM, T>(to_float(gate), to_float(up), args.alpha, args.limit);
            const float d = to_float(g.at[i]);

            sum += of.act * d;
            gate = from_float<T>(weight * d * of.of_gate);
            up = from_float<T>(weight * d * of.of_up);
            g.at[i] = from_float<T>(weight * of.act);
        }
        store_gates<FORM>((T *)args.dz + row * 2 * m, m, first, wide, z);
        if (args.product)
            store_pack((T *)args.product + row * m + first, g, m - first, wide);
    }
    sum = sum_lanes<32>(sum);
    if (threadIdx.x % 32 == 0)
        args.d_weights[a] = sum;
}

cudaError_t
rp_cuda_gather_rows(const RpGatherRowsArgs *args, cudaStream_t stream)
{
    if (args->tokens == 0 || args->choices == 0 || args->n == 0)
        return cudaSuccess;
    if (rows_are_wide(args->x, args->n) && is_wide(args->y))
        return gather<uint4>(args, stream);
    return for_dtype(args->dtype, [=](auto zero) { return gather<decltype(zero)>(args, stream); });
}

cudaError_t
rp_cuda_combine_rows(const RpCombineRowsArgs *args, cudaStream_t stream)
{
    const bool wide =
        rows_are_wide(args->x, args->n) && is_wide(args->y) && is_wide(args->residual);

    if (args->tokens == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return wide ? combine<T, true>(args, stream) : combine<T, false>(args, stream);
    });
}

cudaError_t
rp_cuda_expert_glu_forward(const RpExpertGluArgs *args, cudaStream_t stream)
{
    const RpExpertGluArgs copy = *args;
    const unsigned blocks = (unsigned)ceil_divide(copy.rows, WARPS);

    if (args->rows == 0 || args->m == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);
        const bool wide = rows_are_wide(copy.z, copy.m) && is_wide(copy.act);

        if (copy.form == RP_EXPERT_SILU)
            glu_kernel<T, RP_EXPERT_SILU><<<blocks, THREADS, 0, stream>>>(copy, wide);
        else
            glu_kernel<T, RP_EXPERT_CLAMPED><<<blocks, THREADS, 0, stream>>>(copy, wide);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_expert_glu_backward(const RpExpertGluArgs *args, cudaStream_t stream)
{
    const RpExpertGluArgs copy = *args;
    const unsigned blocks = (unsigned)ceil_divide(copy.rows, WARPS);

    if (args->rows == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);
        const bool wide = rows_are_wide(copy.z, copy.m) && is_wide(copy.g) && is_wide(copy.dz) &&
                          is_wide(copy.product);
        const bool bias_wide = rows_are_wide(copy.bias, copy.n) && is_wide(copy.dy);

        if (copy.form == RP_EXPERT_SILU)
            glu_backward_kernel<T, RP_EXPERT_SILU>
                <<<blocks, THREADS, 0, stream>>>(copy, wide, bias_wide);
        else
            glu_backward_kernel<T, RP_EXPERT_CLAMPED>
                <<<blocks, THREADS, 0, stream>>>(copy, wide, bias_wide);
        return cudaGetLastError();
    });
}
