/* backward-pairs.cu by soft warps. */
#include "tests/exec-cuda/soft-blocks.h"

#include "exec/cuda/attention/backward-pairs.cu"

template <typename T>
static void
run(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    const auto thread = [](const RpAttentionArgs &some, const AttentionGrid &grid,
                           const BackwardScratch &scratch, unsigned *numbers) {
        (some.gaps != nullptr ? differentiate_all<T, D, true, Half>
                              : differentiate_all<T, D, false, Half>)(some, grid, scratch, numbers, 0);
    };

    soft_run_blocks(args, delta, {KEYS, Half::SHARED_BYTES, thread}, backwards);
}

void
soft_attention_backward_pairs(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    if (args->dtype == RP_DTYPE_BF16 && args->head_size == 256)
        run<__nv_bfloat16>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 256)
        run<__half>(args, delta, backwards);
    else
        soft_fail("not a type or head size of pairs");
}
