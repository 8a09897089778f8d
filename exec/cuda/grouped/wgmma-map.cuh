/* Maps of a grouped matmul's tensors. */
#pragma once

#include "exec/cuda/base/tensor-map.cuh"
#include "exec/cuda/grouped/wgmma-ring.cuh"

/* Makes the tensor maps of A and B, for tiles of @columns columns. */
static inline bool
make_maps(const RpGroupedMatmulArgs *args, int columns, CUtensorMap *a, CUtensorMap *b)
{
    const RpDtype dtype = args->a_dtype;

    switch (args->form) {
    case RP_MATMUL_NT:
        return make_map(a, dtype, args->a, args->k, args->rows, 1, ROWS) &&
               make_map(b, dtype, args->b, args->k, args->n, args->experts, columns);
    case RP_MATMUL_NN:
        return make_map(a, dtype, args->a, args->k, args->rows, 1, ROWS) &&
               make_map(b, dtype, args->b, args->n, args->k, args->experts, DEPTH);
    case RP_MATMUL_TN:
        return make_map(a, dtype, args->a, args->m, args->rows, 1, DEPTH) &&
               make_map(b, dtype, args->b, args->n, args->rows, 1, DEPTH);
    }
    return false;
}

/* Blocks of @kernel over the tiles of @args, no more than run at once; @more: maps beyond those of A
 * and B. */
template <typename S, typename... More>
static inline cudaError_t
launch_blocks(void (*kernel)(RpGroupedMatmulArgs, CUtensorMap, CUtensorMap, More...),
              const RpGroupedMatmulArgs *args, cudaStream_t stream, More... more)
{
    static std::atomic<uint64_t> done;
    const size_t tiles = most_tiles(args, ROWS, S::BN);
    CUtensorMap a_map, b_map;
    int processors;
    cudaError_t status = rp_cuda_multiprocessors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)kernel, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;
    if (!make_maps(args, S::BN, &a_map, &b_map))
        return cudaErrorInvalidValue;
    return attention_launch(kernel,
                            (unsigned)(tiles < (size_t)processors ? tiles : (size_t)processors),
                            THREADS, (int)S::BYTES, stream, *args, a_map, b_map, more...);
}
