/* Maps of tensors, from which the tensor copy engine of Hopper copies boxes; is a card one? */
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <atomic>

#include "exec/kernels/args.h"

/* Whether the current device runs code for sm_90a. */
static inline bool
is_hopper()
{
    int device, major, minor;

    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

/* Finds the driver's function; NULL if the driver has none. */
static inline Encode
find_encode()
{
    static std::atomic<Encode> known;
    Encode encode = known.load(std::memory_order_acquire);
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t status;

    if (encode)
        return encode;
#if CUDART_VERSION >= 12050
    status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result);
#else
    status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
        return nullptr;
    encode = (Encode)found;
    known.store(encode, std::memory_order_release);
    return encode;
}

/* Describes a tensor [z,y,x], @stride elements from a row to the next, in boxes of 128 bytes of x by @box of y. */
static inline bool
make_strided_map(CUtensorMap *map, RpDtype dtype, const void *tensor, size_t x, size_t stride,
                 size_t y, size_t z, int box)
{
    static const CUtensorMapDataType types[RP_N_DTYPES] = {
        [RP_DTYPE_FP32] = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        [RP_DTYPE_BF16] = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        [RP_DTYPE_FP16] = CU_TENSOR_MAP_DATA_TYPE_FLOAT16};
    const Encode encode = find_encode();
    const cuuint64_t sizes[] = {x, y > 0 ? y : 1, z};
    const size_t size = rp_dtype_size(dtype);
    const cuuint64_t strides[] = {stride * size, stride * sizes[1] * size};
    const cuuint32_t boxes[] = {(cuuint32_t)(128 / size), (cuuint32_t)box, 1}, steps[] = {1, 1, 1};

    return encode && encode(map, types[dtype], 3, (void *)tensor, sizes, strides, boxes, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Describes a tensor without gaps between rows. */
static inline bool
make_map(CUtensorMap *map, RpDtype dtype, const void *tensor, size_t x, size_t y, size_t z, int box)
{
    return make_strided_map(map, dtype, tensor, x, x, y, z, box);
}
