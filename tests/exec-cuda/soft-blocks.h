/* Kernels run by soft-warps.cu: for the .cu files of soft warps only. */
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

/* All blocks of @threads threads, one after another. @kernel: by each thread; @backwards: the last warp of a block first */
void soft_run(SoftIndex grid, unsigned threads, uint32_t shared_bytes,
              const std::function<void()> &kernel, bool backwards);

/* The same of attention's backward. @delta, @backwards: as soft_attention_backward() */
void soft_run_blocks(const RpAttentionArgs *args, const float *delta, const SoftKernel &kernel,
                     bool backwards);
