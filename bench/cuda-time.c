#include "bench/cuda-time.h"

#include <stdio.h>
#include <stdlib.h>

#include <glib.h>

void
rp_bench_must(cudaError_t status, const char *call)
{
    g_autoptr(GError) error = NULL;

    if (rp_cuda_ok(status, call, &error))
        return;
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

void *
rp_bench_memory(size_t bytes)
{
    void *block = NULL;

    rp_bench_must(cudaMalloc(&block, bytes), "cudaMalloc");
    rp_bench_must(cudaMemset(block, 0, bytes), "cudaMemset");
    return block;
}

void *
rp_bench_random(RpDtype dtype, size_t n, double spread)
{
    const size_t period = MIN(n, ((size_t)4 << 20) + 32);
    g_autofree guint16 *values = g_new(guint16, period);
    g_autoptr(GRand) random = g_rand_new_with_seed(20261120);
    char *block = rp_bench_memory(n * sizeof *values);

    for (size_t i = 0; i < period; i++) {
        const double sum = g_rand_double(random) + g_rand_double(random) + g_rand_double(random);
        const float value = (float)(2 * spread * (sum - 1.5));

        values[i] = dtype == RP_DTYPE_FP16 ? rp_fp16_from_float(value) : rp_bf16_from_float(value);
    }
    for (size_t i = 0; i < n; i += period)
        rp_bench_must(cudaMemcpy(block + i * sizeof *values, values,
                                 MIN(period, n - i) * sizeof *values, cudaMemcpyHostToDevice),
                      "cudaMemcpy");
    return block;
}

static int
by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* A few runs are in flight at a time, so that the GPU does not wait for the host. */
static void
warm_up(cudaStream_t lane, void (*run)(const void *data), const void *data, double seconds)
{
    const gint64 end_us = g_get_monotonic_time() + (gint64)(seconds * G_USEC_PER_SEC);
    cudaEvent_t done[2];

    for (guint i = 0; i < 2; i++)
        rp_bench_must(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming),
                      "cudaEventCreate");
    for (guint n = 0; n == 0 || g_get_monotonic_time() < end_us; n++) {
        /* an event that was never recorded is done */
        rp_bench_must(cudaEventSynchronize(done[n % 2]), "cudaEventSynchronize");
        for (guint i = 0; i < RP_BENCH_WARM_UP; i++)
            run(data);
        rp_bench_must(cudaEventRecord(done[n % 2], lane), "cudaEventRecord");
    }
    for (guint i = 0; i < 2; i++)
        cudaEventDestroy(done[i]);
}

static void
run_between(cudaStream_t lane, const RpBenchRun *run, const cudaEvent_t events[2])
{
    rp_bench_must(cudaEventRecord(events[0], lane), "cudaEventRecord");
    run->run(run->data);
    rp_bench_must(cudaEventRecord(events[1], lane), "cudaEventRecord");
}

void
rp_bench_medians_ms(RpKernelStream *stream, cudaStream_t lane, const RpBenchRun *runs, guint n,
                    double warm_up_s, double *ms)
{
    g_autoptr(GError) error = NULL;
    float times[RP_BENCH_MOST_RUNS][RP_BENCH_REPEATS];
    cudaEvent_t events[RP_BENCH_MOST_RUNS][2];

    g_assert(n <= RP_BENCH_MOST_RUNS);
    for (guint i = 0; i < n; i++) {
        for (guint end = 0; end < 2; end++)
            rp_bench_must(cudaEventCreate(&events[i][end]), "cudaEventCreate");
        warm_up(lane, runs[i].run, runs[i].data, warm_up_s);
    }
    for (guint repeat = 0; repeat < RP_BENCH_REPEATS; repeat++) {
        for (guint i = 0; i < n; i++)
            run_between(lane, &runs[i], events[i]);
        rp_bench_must(cudaStreamSynchronize(lane), "cudaStreamSynchronize");
        for (guint i = 0; i < n; i++)
            rp_bench_must(cudaEventElapsedTime(&times[i][repeat], events[i][0], events[i][1]),
                          "cudaEventElapsedTime");
    }
    if (!rp_cuda_kernels()->check(stream, &error)) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
    for (guint i = 0; i < n; i++) {
        cudaEventDestroy(events[i][0]);
        cudaEventDestroy(events[i][1]);
        qsort(times[i], RP_BENCH_REPEATS, sizeof times[i][0], by_value);
        ms[i] = (double)times[i][RP_BENCH_REPEATS / 2];
    }
}

double
rp_bench_median_ms(RpKernelStream *stream, cudaStream_t lane, void (*run)(const void *data),
                   const void *data, double warm_up_s)
{
    double ms;

    rp_bench_medians_ms(stream, lane, &(RpBenchRun){run, data}, 1, warm_up_s, &ms);
    return ms;
}
