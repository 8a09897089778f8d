/* A kernel of attention's backward, run by soft-warps.cu: for the .cu files of soft warps only. */
#pragma once

#include <functional>

#include "exec/cuda/attention/private.h"
#include "tests/exec-cuda/soft-warps.h"

/* Blocks of 8 warps. */
struct SoftKernel {
    size_t keys; /* keys of a block */
    uint32_t shared_bytes;
    std::function<void(const RpAttentionArgs &args, const AttentionGrid &grid,
                       const BackwardScratch &scratch, unsigned *numbers)>
        run; /* by each thread */
};

/* All blocks, one after another. @delta, @backwards: as soft_attention_backward() */
void soft_run_blocks(const RpAttentionArgs *args, const float *delta, const SoftKernel &kernel,
                     bool backwards);
