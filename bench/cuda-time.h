/* Helpers of kernel benchmarks: device memory, random inputs, and times by CUDA's events. They end
 * the program, with a message, when a call fails. */
#pragma once

#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"

#define RP_BENCH_WARM_UP 5
#define RP_BENCH_REPEATS 31
#define RP_BENCH_MOST_RUNS 32

void rp_bench_must(cudaError_t status, const char *call);

/* Zeros. Kept until the program ends, or cudaFree(). */
void *rp_bench_memory(size_t bytes);

/* @n random values of 16 bits, about normal, times @spread; they repeat after a while. */
void *rp_bench_random(RpDtype dtype, size_t n, double spread);

/* The work to time: @run is called with @data and puts its work on the stream. */
typedef struct {
    void (*run)(const void *data);
    const void *data;
} RpBenchRun;

/**
 * rp_bench_medians_ms:
 * @runs: [n]
 * @warm_up_s: how long each runs before it is timed; 0: RP_BENCH_WARM_UP times
 * @ms: (out): [n]
 *
 * Medians of RP_BENCH_REPEATS times by events of @lane, the stream below @stream; milliseconds. All
 * are run in turn, one behind the other, so that the clocks of a warm GPU are the same for each.
 */
void rp_bench_medians_ms(RpKernelStream *stream, cudaStream_t lane, const RpBenchRun *runs, guint n,
                         double warm_up_s, double *ms);

/* The same for one run. */
double rp_bench_median_ms(RpKernelStream *stream, cudaStream_t lane, void (*run)(const void *data),
                          const void *data, double warm_up_s);
