/* backward.cu by soft warps. */
#include "tests/exec-cuda/soft-blocks.h"

#include "exec/cuda/attention/backward.cu"

template <typename T, int D>
static void
run(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    const auto thread = [](const RpAttentionArgs &some, const AttentionGrid &grid,
                           const BackwardScratch &scratch, unsigned *numbers) {
        (some.gaps != nullptr ? differentiate_all<T, D, true> : differentiate_all<T, D, false>)(
            some, grid, scratch, numbers, 0);
    };

    soft_run_blocks(args, delta, {KEYS, Shared<D>::BYTES, thread}, backwards);
}

void
soft_attention_backward(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    if (args->dtype == RP_DTYPE_BF16 && args->head_size == 128)
        run<__nv_bfloat16, 128>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_BF16 && args->head_size == 64)
        run<__nv_bfloat16, 64>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 128)
        run<__half, 128>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 64)
        run<__half, 64>(args, delta, backwards);
    else
        soft_fail("not a type or head size of tensor cores");
}
