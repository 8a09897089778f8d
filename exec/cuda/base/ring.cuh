/*
 * Reading ahead: a thread has 16-byte slots of shared memory, into which packs are copied while
 * those before are worked on. Only the thread itself reads its slots: no barrier is needed, and
 * neighbouring threads have neighbouring slots.
 *
 *   slots    [stages][pieces of a stage][THREADS]; a pack: 1 piece, 2 of fp32
 *   step i   starts to copy what step i + stages - 1 needs, where step i - 1 has read; waits for
 *            its own. Every step commits, even if there is nothing to copy.
 *
 * Packs must stand at multiples of 16 bytes.
 */
#pragma once

#include <cuda_pipeline.h>

#include "exec/cuda/base/common.cuh"

/* Slots of a thread that a pack takes. */
template <typename T> constexpr int pieces_of = (int)(sizeof(Pack<T>) / sizeof(uint4));

/* @slot: of the calling thread, the pack's first */
template <int THREADS, typename T>
__device__ __forceinline__ void
copy_ahead(uint4 *slot, const T *source)
{
#pragma unroll
    for (int piece = 0; piece < pieces_of<T>; piece++)
        __pipeline_memcpy_async(slot + piece * THREADS,
                                reinterpret_cast<const uint4 *>(source) + piece, sizeof(uint4));
}

template <typename T, int THREADS>
__device__ __forceinline__ Pack<T>
take_pack(const uint4 *slot)
{
    Pack<T> pack;

#pragma unroll
    for (int piece = 0; piece < pieces_of<T>; piece++)
        reinterpret_cast<uint4 *>(&pack)[piece] = slot[piece * THREADS];
    return pack;
}
