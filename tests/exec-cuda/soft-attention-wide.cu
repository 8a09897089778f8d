/* backward-wide.cu by soft warps. */
#include "tests/exec-cuda/soft-blocks.h"

#include "exec/cuda/attention/backward-wide.cu"

template <typename T>
static void
run(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    const auto thread = [](const RpAttentionArgs &some, const AttentionGrid &grid,
                           const BackwardScratch &scratch, unsigned *numbers) {
        (some.gaps != nullptr ? differentiate_all<T, 64, true> : differentiate_all<T, 64, false>)(
            some, grid, scratch, numbers, 0);
    };

    soft_run_blocks(args, delta, {KEYS, Shared<64>::BYTES, thread}, backwards);
}

void
soft_attention_backward_wide(const RpAttentionArgs *args, const float *delta, bool backwards)
{
    if (args->dtype == RP_DTYPE_BF16 && args->head_size == 64)
        run<__nv_bfloat16>(args, delta, backwards);
    else if (args->dtype == RP_DTYPE_FP16 && args->head_size == 64)
        run<__half>(args, delta, backwards);
    else
        soft_fail("not a type or head size of wide");
}
