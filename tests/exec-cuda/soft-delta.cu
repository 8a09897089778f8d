/*
 * heads.cu and recurrence.cuh by soft warps, in the launches that they have.
 */
#include "tests/exec-cuda/soft-blocks.h"

#include <vector>

#include "exec/cuda/delta/heads.cu"
#include "exec/cuda/delta/recurrence.cuh"

static void
add_parts(const RpDeltaArgs *args, size_t parts, const float *partials)
{
    const size_t H = args->value_heads;

    for (size_t h = 0; h < 2 * H; h++) {
        float sum = 0;

        for (size_t p = 0; p < parts; p++)
            sum += partials[p * 2 * H + h];
        (h < H ? args->d_log : args->d_bias)[h % H] += sum;
    }
}

void
soft_delta(const RpDeltaArgs *args, bool trains, bool backwards)
{
    const size_t H = args->value_heads, T = args->tokens, states = (T / CHUNK + 2) * DIM * DIM * H;
    const unsigned chunks = (unsigned)(T / CHUNK + args->sequences);
    const SoftIndex scans = {(unsigned)args->sequences, (unsigned)H, DIM / Scan128::WIDTH};
    const size_t sizes[] = {T * H * CHUNK, T * H * CHUNK, T * H * DIM, T * H * DIM, states, states, FACTORS * T * H,
                            chunks * 2 * H};
    std::vector<std::vector<float>> arrays;
    Heads rule = {};
    float **const pointers[] = {&rule.pairs,  &rule.inverse,  &rule.u,       &rule.right,
                                &rule.states, &rule.d_states, &rule.factors, &rule.partials};

    for (size_t i = 0; i < 8; i++) {
        arrays.emplace_back(sizes[i], i < 7 ? NAN : 0.0f);
        *pointers[i] = arrays.back().data();
    }
    rule.args = *args;
    rule.trains = trains;
    rule.keys = args->key_heads;
    rule.heads = H;
    rule.columns = rp_delta_columns(args);
    soft_run({chunks, (unsigned)H, 1}, PREPARE_THREADS, PREPARE_BYTES, [&] { prepare_heads_kernel(rule); }, backwards);
    if (!trains) {
        soft_run(scans, Scan128::THREADS, Scan128::BYTES, [&] { forward_heads_kernel<false>(rule); }, backwards);
        return;
    }
    soft_run(scans, Scan128::THREADS, Scan128::STATES_BYTES, [&] { forward_heads_kernel<true>(rule); }, backwards);
    soft_run(scans, Scan128::THREADS, Scan128::BYTES, [&] { reverse_heads_kernel(rule); }, backwards);
    soft_run({chunks, (unsigned)args->key_heads, 1}, GRADIENT_THREADS, GRADIENT_BYTES,
             [&] { gradients_heads_kernel(rule); }, backwards);
    soft_run({chunks, (unsigned)ceil_divide(H, GATE_WARPS), 1}, GATE_WARPS * 32, 0,
             [&] { gates_heads_kernel(rule); }, backwards);
    add_parts(args, chunks, rule.partials);
}

template <typename T>
static void
walk(const RpDeltaArgs *args, bool trains, bool backwards)
{
    const size_t H = args->value_heads, n = args->tokens, blocks = ceil_divide(args->value_dim, BLOCK_COLUMNS);
    const SoftIndex sequences = {(unsigned)args->sequences, (unsigned)H, (unsigned)blocks};
    std::vector<State> kept(ceil_divide(n, SEGMENT) * H * blocks * WALK_THREADS);
    std::vector<State> again(LANES * SEGMENT * H * blocks * WALK_THREADS);
    std::vector<float> sums(n * H * blocks * TOKEN_SUMS, NAN), partials(n * 2 * H, NAN);
    Walk<T> of = {*args,     0, H, blocks, rp_delta_columns(args), trains ? kept.data() : NULL, again.data(),
                  sums.data(), partials.data()};

    soft_run(sequences, WALK_THREADS, 0, [&] { walk_kernel<T>(of); }, backwards);
    if (!trains)
        return;
    soft_run({LANES, (unsigned)H, (unsigned)blocks}, WALK_THREADS, 0, [&] { reverse_walk_kernel<T>(of); }, backwards);
    soft_run({(unsigned)ceil_divide(n, GATHER_WARPS), (unsigned)args->key_heads, 1}, 32 * GATHER_WARPS, 0,
             [&] { gather_kernel<T>(of); }, backwards);
    add_parts(args, n, partials.data());
}

void
soft_delta_walk(const RpDeltaArgs *args, bool trains, bool backwards)
{
    if (args->dtype == RP_DTYPE_FP32)
        walk<float>(args, trains, backwards);
    else
        walk<bf16>(args, trains, backwards);
}
