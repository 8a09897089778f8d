/*
 * Measures the CUDA kernels: medians by CUDA events. GB/s count the least bytes that an operation must read and write,
 * TFLOP/s its multiplications and additions. Inputs are random: constant ones draw less power, and clocks rise.
 *
 *   bench-cuda-kernels [layers|attention|delta|experts|fp8|matmul|grouped|decode] [OPTION…]
 *
 * --warm-up SECONDS: each operation runs that long before it is timed, so that clocks are those of a long run at the
 * power limit; else a few times.
 */
#include "bench/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#include <glib.h>

#define MOST (1 << 20) /* rejects typing errors of sizes */

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
rp_bench_medians_ms(const RpBench *bench, const RpBenchRun *runs, guint n, double *ms)
{
    g_autoptr(GError) error = NULL;
    float times[RP_BENCH_MOST_RUNS][RP_BENCH_REPEATS];
    cudaEvent_t events[RP_BENCH_MOST_RUNS][2];

    g_assert(n <= RP_BENCH_MOST_RUNS);
    for (guint i = 0; i < n; i++) {
        for (guint end = 0; end < 2; end++)
            rp_bench_must(cudaEventCreate(&events[i][end]), "cudaEventCreate");
        warm_up(bench->lane, runs[i].run, runs[i].data, bench->warm_up_s);
    }
    for (guint repeat = 0; repeat < RP_BENCH_REPEATS; repeat++) {
        for (guint i = 0; i < n; i++)
            run_between(bench->lane, &runs[i], events[i]);
        rp_bench_must(cudaStreamSynchronize(bench->lane), "cudaStreamSynchronize");
        for (guint i = 0; i < n; i++)
            rp_bench_must(cudaEventElapsedTime(&times[i][repeat], events[i][0], events[i][1]),
                          "cudaEventElapsedTime");
    }
    if (!bench->kernels->check(bench->stream, &error)) {
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
rp_bench_median_ms(const RpBench *bench, void (*run)(const void *data), const void *data)
{
    double ms;

    rp_bench_medians_ms(bench, &(RpBenchRun){run, data}, 1, &ms);
    return ms;
}

static const struct {
    const char *name;
    gboolean (*run)(const RpBench *bench);
} tables[] = {
    {"layers", rp_bench_layers},   {"attention", rp_bench_attention},
    {"delta", rp_bench_delta},     {"experts", rp_bench_experts},
    {"fp8", rp_bench_fp8},         {"matmul", rp_bench_matmul},
    {"grouped", rp_bench_grouped}, {"decode", rp_bench_decode},
};

/* Returns: the wanted table, or -1, with a line on stderr */
static int
parse(int argc, char **argv, RpBench *bench)
{
    const GOptionEntry known[] = {
        {"warm-up", 0, 0, G_OPTION_ARG_DOUBLE, &bench->warm_up_s,
         "Run each operation so long before it is timed", "SECONDS"},
        {"half-sums", 0, 0, G_OPTION_ARG_NONE, &bench->half_sums,
         "layers: matmuls alone; grouped: in fp16, with fp16 sums where C is fp16", NULL},
        {"tokens", 0, 0, G_OPTION_ARG_INT, &bench->tokens, "decode, matmul, grouped: of a batch",
         "T"},
        {"hidden", 0, 0, G_OPTION_ARG_INT, &bench->hidden, "fp8, matmul: hidden size", "C"},
        {"intermediate", 0, 0, G_OPTION_ARG_INT, &bench->intermediate,
         "fp8, matmul: intermediate size", "M"},
        {"queries", 0, 0, G_OPTION_ARG_INT, &bench->queries, "matmul: heads times their size", "Q"},
        {"keys", 0, 0, G_OPTION_ARG_INT, &bench->keys, "matmul: heads of keys times their size",
         "K"},
        {"vocabulary", 0, 0, G_OPTION_ARG_INT, &bench->vocabulary, "matmul: vocabulary", "V"},
        {"chunk", 0, 0, G_OPTION_ARG_INT, &bench->chunk, "matmul: tokens of a head's chunk", "N"},
        {"length", 0, 0, G_OPTION_ARG_INT, &bench->length,
         "attention, delta: one length alone: 2048, and 8192 or 32768, or 4096 or 16384", "N"},
        {"head-size", 0, 0, G_OPTION_ARG_INT, &bench->head_size,
         "attention: 64, 128 (default) or 256", "N"},
        {"model", 0, 0, G_OPTION_ARG_STRING, &bench->model, "grouped: one model alone", "NAME"},
        {"variant", 0, 0, G_OPTION_ARG_STRING, &bench->variant,
         "attention, grouped: kernel variants with this in their names alone", "NAME"},
        {"gradients", 0, 0, G_OPTION_ARG_STRING, &bench->gradients,
         "grouped, of weights: add (default), write or write-16", "HOW"},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new("[TABLE]");
    g_autoptr(GError) error = NULL;

    g_option_context_add_main_entries(context, known, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return -1;
    }
    for (guint i = 0; i < G_N_ELEMENTS(known) - 1; i++)
        if (known[i].arg == G_OPTION_ARG_INT &&
            (*(int *)known[i].arg_data < 0 || *(int *)known[i].arg_data > MOST)) {
            fprintf(stderr, "--%s: expected 1 to %d, found %d\n", known[i].long_name, MOST,
                    *(int *)known[i].arg_data);
            return -1;
        }
    if (!(bench->warm_up_s >= 0 && bench->warm_up_s <= 3600)) {
        fprintf(stderr, "--warm-up: expected 0 to 3600 seconds, found %g\n", bench->warm_up_s);
        return -1;
    }
    for (guint i = 0; i < G_N_ELEMENTS(tables) && argc <= 2; i++)
        if (argc < 2 || g_str_equal(argv[1], tables[i].name))
            return (int)i;
    fprintf(stderr,
            "expected the name of one table, found \"%s\"; there are:", argv[argc > 2 ? 2 : 1]);
    for (guint i = 0; i < G_N_ELEMENTS(tables); i++)
        fprintf(stderr, " %s", tables[i].name);
    fputc('\n', stderr);
    return -1;
}

int
main(int argc, char **argv)
{
    RpBench bench = {.kernels = rp_cuda_kernels()};
    const int table = parse(argc, argv, &bench);
    g_autoptr(GError) error = NULL;
    struct cudaDeviceProp device;
    int count = 0;

    if (table < 0)
        return 2;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return 77;
    rp_bench_must(cudaSetDevice(0), "cudaSetDevice");
    rp_bench_must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    rp_bench_must(cudaStreamCreateWithFlags(&bench.lane, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    bench.device = &device;
    bench.stream = rp_cuda_stream_new(0, bench.lane, &error);
    if (bench.stream == NULL) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    printf("%s, median of %d", device.name, RP_BENCH_REPEATS);
    if (bench.warm_up_s > 0)
        printf(" after %g s each", bench.warm_up_s);
    printf("\n\n");
    gboolean good = tables[table].run(&bench);
    rp_cuda_stream_free(bench.stream);
    g_free(bench.model);
    g_free(bench.variant);
    g_free(bench.gradients);
    return good ? 0 : 2;
}
