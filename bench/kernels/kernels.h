/* Benchmarks of CUDA kernels, a file each, and their helpers: device memory, random inputs, and times by CUDA's events.
 * Helpers end the program, with a message, when a call fails. */
#pragma once

#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/check.h"

#define RP_BENCH_WARM_UP 5
#define RP_BENCH_REPEATS 31
#define RP_BENCH_MOST_RUNS 32

/* The device, and options of the command; sizes that are 0 were not given. */
typedef struct {
    const RpKernels *kernels;
    RpKernelStream *stream;
    cudaStream_t lane; /* the stream below it */
    const struct cudaDeviceProp *device;
    double
        warm_up_s; /* how long each operation runs before it is timed; 0: RP_BENCH_WARM_UP times */
    gboolean half_sums;
    int tokens, hidden, intermediate, queries, keys, vocabulary, chunk, length, head_size;
    char *model, *variant, *gradients;
} RpBench;

/* Each prints a table. Returns: %FALSE, with a line on stderr, where an option is not one of its values. */
gboolean rp_bench_layers(const RpBench *bench);
gboolean rp_bench_attention(const RpBench *bench);
gboolean rp_bench_delta(const RpBench *bench);
gboolean rp_bench_experts(const RpBench *bench);
gboolean rp_bench_fp8(const RpBench *bench);
gboolean rp_bench_matmul(const RpBench *bench);
gboolean rp_bench_grouped(const RpBench *bench);
gboolean rp_bench_decode(const RpBench *bench);

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
 * @ms: (out): [n]
 *
 * Medians of RP_BENCH_REPEATS times by events; milliseconds. All are run in turn, one behind the other, so that the
 * clocks of a warm GPU are the same for each.
 */
void rp_bench_medians_ms(const RpBench *bench, const RpBenchRun *runs, guint n, double *ms);

/* The same for one run. */
double rp_bench_median_ms(const RpBench *bench, void (*run)(const void *data), const void *data);
