/*
 * heads.cu by soft warps, in the launches that it has. Both widths of a scan give the same bits: the order of warps is
 * exchanged together with it.
 */
#include "tests/exec-cuda/soft-blocks.h"

#include <vector>

#include "exec/cuda/delta/heads.cu"

template <int N>
static void
run_scans(const Heads &rule, bool backwards)
{
    typedef Scan128<N> Scan;
    const SoftIndex grid = {(unsigned)rule.args.sequences, (unsigned)rule.heads, DIM / Scan::WIDTH};

    if (!rule.trains) {
        soft_run(grid, Scan::THREADS, Scan::BYTES, [&] { forward_heads_kernel<N, false>(rule); }, backwards);
        return;
    }
    soft_run(grid, Scan::THREADS, Scan::STATES_BYTES, [&] { forward_heads_kernel<N, true>(rule); }, backwards);
    soft_run(grid, Scan::THREADS, Scan::BYTES, [&] { reverse_heads_kernel<N>(rule); }, backwards);
}

void
soft_delta(const RpDeltaArgs *args, bool trains, bool backwards)
{
    const size_t H = args->value_heads, T = args->tokens, states = (T / CHUNK + 2) * DIM * DIM * H;
    const unsigned chunks = (unsigned)(T / CHUNK + args->sequences);
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
    if (backwards)
        run_scans<2>(rule, backwards);
    else
        run_scans<4>(rule, backwards);
    if (!trains)
        return;
    soft_run({chunks, (unsigned)args->key_heads, 1}, GRADIENT_THREADS, GRADIENT_BYTES,
             [&] { gradients_heads_kernel(rule); }, backwards);
    for (size_t c = 0; c < chunks; c++)
        for (size_t h = 0; h < H; h++) {
            args->d_log[h] += rule.partials[c * 2 * H + h];
            args->d_bias[h] += rule.partials[c * 2 * H + H + h];
        }
}
