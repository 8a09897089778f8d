/* forward.cu by soft warps. */
#include "tests/exec-cuda/soft-blocks.h"

#include "exec/cuda/attention/forward.cu"

template <typename T, int D>
static void
run(const RpAttentionArgs *args)
{
    const auto kernel = args->gaps != nullptr ? forward_queries<T, D, true> : forward_queries<T, D, false>;
    AttentionGrid grid;

    attention_grid(args, args->heads, Block<D>::QUERIES, 0, &grid);
    soft_run({grid.units * grid.blocks, 1, 1}, THREADS, (Block<D>::QUERIES + 4 * Block<D>::KEYS) * D * 2,
             [&] { kernel(*args, grid); }, false);
}

template <typename T>
static void
run_any(const RpAttentionArgs *args)
{
    if (args->head_size == 64)
        run<T, 64>(args);
    else if (args->head_size == 128)
        run<T, 128>(args);
    else
        run<T, 256>(args);
}

void
soft_attention_forward(const RpAttentionArgs *args)
{
    if (args->dtype == RP_DTYPE_BF16)
        run_any<__nv_bfloat16>(args);
    else
        run_any<__half>(args);
}
