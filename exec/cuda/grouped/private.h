/* The parts of the grouped matmul: for the .cu files here only. */
#pragma once

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/launch.h"
#include "exec/cuda/runtime/split.h"

/* Runs on tensor cores, for shapes of grouped_is_fast(): tiles of the rows and columns in the
 * name. */
cudaError_t grouped_matmul_64x128(const RpGroupedMatmulArgs *args, cudaStream_t stream);
cudaError_t grouped_matmul_128x64(const RpGroupedMatmulArgs *args, cudaStream_t stream);
cudaError_t grouped_matmul_128x128(const RpGroupedMatmulArgs *args, cudaStream_t stream);
cudaError_t grouped_matmul_128x256(const RpGroupedMatmulArgs *args, cudaStream_t stream);

/* 128x128 with twice the depth in shared memory, where there is space for two blocks of 97 KiB: on Hopper, if that is
 * built. The same bits. */
bool grouped_has_depth(const RpGroupedMatmulArgs *args);
cudaError_t grouped_matmul_128x128_deep(const RpGroupedMatmulArgs *args, cudaStream_t stream);

/* On Hopper: by wgmma, 128 rows and the columns in the name. If it is not built, no device has
 * it. */
bool grouped_has_wgmma(const RpGroupedMatmulArgs *args);
cudaError_t grouped_matmul_wgmma_256(const RpGroupedMatmulArgs *args, cudaStream_t stream);
cudaError_t grouped_matmul_turns_128(const RpGroupedMatmulArgs *args, cudaStream_t stream);
cudaError_t grouped_matmul_turns_192(const RpGroupedMatmulArgs *args, cudaStream_t stream);

/* Do storages, sizes and places suit tensor cores? Rows that are read stand at multiples of 16
 * bytes then, pairs of elements of C and of a bias at multiples of a pair. */
static inline bool
grouped_is_fast(const RpGroupedMatmulArgs *args)
{
    const size_t pair = args->c_dtype == RP_DTYPE_FP32 ? 8 : 4;
    const size_t a_columns = args->form == RP_MATMUL_TN ? args->m : args->k;
    const size_t b_columns = args->form == RP_MATMUL_NT ? args->k : args->n;

    return args->a_dtype != RP_DTYPE_FP32 && a_columns % 8 == 0 && b_columns % 8 == 0 &&
           args->n % 2 == 0 && attention_aligned(args->a, 16) && attention_aligned(args->b, 16) &&
           attention_aligned(args->c, pair) && attention_aligned(args->bias, pair);
}

static inline bool
grouped_sums_in_half(const RpGroupedMatmulArgs *args)
{
    return args->half_sums && args->scale == 0 && args->form != RP_MATMUL_TN &&
           args->a_dtype == RP_DTYPE_FP16 && args->c_dtype == RP_DTYPE_FP16;
}
