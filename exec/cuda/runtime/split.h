/*
 * One card as several devices: each part is a green context of CUDA 12.5, with multiprocessors and streams of its own.
 *
 *   card   |multiprocessors of part 0|of part 1|of part 2| the rest idles |
 *          |one memory, one copy engine a direction, one link, one power limit|
 *
 * A process decides that once, before its first other call of CUDA (rp_cuda_split_devices(), exec/cuda/runtime/device.h),
 * as CUDA_VISIBLE_DEVICES is decided. Afterwards a device's number is that of a part, parts of card 0 first.
 */
#pragma once

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Devices, where there are @cards. */
int rp_cuda_parts(int cards);
/* 1 unless cards are split. */
int rp_cuda_parts_per_card(void);
/* The card of a device. */
int rp_cuda_card_of(int device);

/* Makes @device the calling thread's. */
cudaError_t rp_cuda_use(int device);
/* The calling thread's device. */
cudaError_t rp_cuda_current(int *device);
/* Multiprocessors of a device, and of the calling thread's. */
cudaError_t rp_cuda_multiprocessors_of(int device, int *n);
cudaError_t rp_cuda_multiprocessors(int *n);

/* "NVIDIA H200", of a part "NVIDIA H200 (24 of 132 multiprocessors)". */
cudaError_t rp_cuda_name(int device, char *name, size_t bytes);

/* A stream of the calling thread's device that no other stream waits for. */
cudaError_t rp_cuda_stream(cudaStream_t *stream, int priority);

#ifdef __cplusplus
}
#endif
