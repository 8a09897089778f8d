/* What benchmarks of kernels share: device memory, random inputs, times by CUDA's events. They end
 * the program, with a message, when a call fails. */
#pragma once

#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"

#define RP_BENCH_WARM_UP 5
#define RP_BENCH_REPEATS 31

void rp_bench_must(cudaError_t status, const char *call);

/* Zeros. Kept until the program ends, or cudaFree(). */
void *rp_bench_memory(size_t bytes);

/* @n random values of 16 bits, about normal, times @spread; they repeat after a while. */
void *rp_bench_random(RpDtype dtype, size_t n, double spread);

/**
 * rp_bench_median_ms:
 * @run: called with @data, puts its work on @stream
 * @warm_up_s: how long it runs before it is timed; 0: RP_BENCH_WARM_UP times
 *
 * Median of RP_BENCH_REPEATS runs by events of @lane, the stream below @stream; milliseconds.
 */
double rp_bench_median_ms(RpKernelStream *stream, cudaStream_t lane, void (*run)(const void *data),
                          const void *data, double warm_up_s);
