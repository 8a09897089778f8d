/*
 * Matmuls of fp8 values, and quantization to fp8, beside matmuls of bf16: shapes of Qwen3-1.7B (C 2048, m 6144) and
 * 16384 tokens, or with --hidden and --intermediate of another model.
 */
#include <stdio.h>

#include "bench/kernels/kernels.h"

#define STEP 4 /* floats between scales: cuBLASLt takes them at multiples of 16 bytes */

typedef struct {
    size_t T, C, M;
    const RpKernels *kernels;
    RpKernelStream *stream;
    void *x[2];            /* T x M of bf16, random */
    uint8_t *quantized[4]; /* T x M: of x[0] and x[1] in e4m3, of x[0] in e5m2, any */
    uint8_t *transposed;
    void *y;
    float *sums;   /* M x C */
    float *scales; /* [5 x STEP]: the amax, and scales of fp8 values */
    void *workspace;
} Bench;

/* A matmul of @m x @n x @k, NT; a weights' gradient adds to fp32. Or a pass over [@m,@n]. */
typedef struct {
    const char *name;
    RpDtype dtype; /* type of A */
    gboolean gradient, fast;
    gboolean rows, transposed; /* fp8 layouts that are made; neither: only the amax is looked for */
    size_t m, n, k;            /* k 0: a pass */
} Run;

typedef struct {
    const Bench *bench;
    const Run *run;
} Timed;

static void
multiply(const Bench *bench, const Run *run)
{
    const gboolean quantized = run->dtype >= RP_N_DTYPES;
    const guint a = run->dtype == RP_DTYPE_E5M2 ? 2 : 0;
    const RpMatmulArgs args = {.form = run->gradient && !quantized ? RP_MATMUL_TN : RP_MATMUL_NT,
                               .m = run->m,
                               .n = run->n,
                               .k = run->k,
                               .a = quantized ? (const void *)bench->quantized[a] : bench->x[0],
                               .b = quantized ? (const void *)bench->quantized[1] : bench->x[1],
                               .c = run->gradient ? (void *)bench->sums : bench->y,
                               .a_dtype = run->dtype,
                               .b_dtype = quantized ? RP_DTYPE_E4M3 : run->dtype,
                               .c_dtype = run->gradient ? RP_DTYPE_FP32 : RP_DTYPE_BF16,
                               .accumulate = run->gradient,
                               .half_sums = run->fast,
                               .a_scale = bench->scales + (1 + a) * STEP,
                               .b_scale = bench->scales + 2 * STEP,
                               .workspace = bench->workspace};

    bench->kernels->matmul(bench->stream, &args);
}

static void
quantise(const Bench *bench, const Run *run, const void *x, uint8_t *quantized, uint8_t *transposed,
         float *scale)
{
    bench->kernels->quantise(bench->stream, &(RpQuantiseArgs){.dtype = RP_DTYPE_BF16,
                                                              .code = run->dtype,
                                                              .rows = run->m,
                                                              .columns = run->n,
                                                              .x = x,
                                                              .largest = bench->scales,
                                                              .quantized = quantized,
                                                              .transposed = transposed,
                                                              .scale = scale});
}

static void
run_once(const void *data)
{
    const Timed *timed = data;
    const Bench *bench = timed->bench;
    const Run *run = timed->run;

    if (run->k > 0)
        multiply(bench, run);
    else if (run->rows || run->transposed)
        quantise(bench, run, bench->x[0], run->rows ? bench->quantized[3] : NULL,
                 run->transposed ? bench->transposed : NULL, bench->scales + 4 * STEP);
    else
        bench->kernels->largest(bench->stream, &(RpLargestArgs){RP_DTYPE_BF16, run->m * run->n,
                                                                bench->x[0], bench->scales});
}

static void
setup(Bench *bench)
{
    const size_t n = bench->T * bench->M;

    for (guint i = 0; i < G_N_ELEMENTS(bench->x); i++)
        bench->x[i] = rp_bench_random(RP_DTYPE_BF16, n, 1);
    bench->y = rp_bench_memory(2 * n);
    bench->transposed = rp_bench_memory(n);
    bench->sums = rp_bench_memory(bench->M * bench->C * sizeof(float));
    bench->scales = rp_bench_memory(5 * STEP * sizeof(float));
    bench->workspace = rp_bench_memory((size_t)64 << 20);
    bench->kernels->largest(bench->stream,
                            &(RpLargestArgs){RP_DTYPE_BF16, n, bench->x[0], bench->scales});
    bench->kernels->largest(bench->stream,
                            &(RpLargestArgs){RP_DTYPE_BF16, n, bench->x[1], bench->scales});
    for (guint i = 0; i < G_N_ELEMENTS(bench->quantized); i++) {
        const Run run = {
            .dtype = i < 2 ? RP_DTYPE_E4M3 : RP_DTYPE_E5M2, .m = bench->T, .n = bench->M};

        bench->quantized[i] = rp_bench_memory(n);
        quantise(bench, &run, bench->x[i % 2], bench->quantized[i], NULL,
                 bench->scales + (1 + i) * STEP);
    }
}

static void
print_run(const RpBench *given, const Bench *bench, const Run *run)
{
    const double ms = rp_bench_median_ms(given, run_once, &(Timed){bench, run});
    const double elements = (double)run->m * (double)run->n;
    char shape[64];

    if (run->k > 0)
        g_snprintf(shape, sizeof shape, "%zu x %zu x %zu", run->m, run->n, run->k);
    else
        g_snprintf(shape, sizeof shape, "%zu x %zu", run->m, run->n);
    printf("%-22s %-5s %-22s %10.1f ", run->name, rp_dtype_name(run->dtype), shape, ms * 1e3);
    if (run->k > 0)
        printf("%10s %10.0f\n", "", 2 * elements * (double)run->k / ms * 1e-9);
    else
        printf("%10.0f\n", (2 + run->rows + run->transposed) * elements / ms * 1e-6);
    fflush(stdout);
}

static void
print_all(const RpBench *given, const Bench *bench, gboolean units)
{
    const size_t T = bench->T, C = bench->C, M = bench->M;
    const Run runs[] = {
        {"up", RP_DTYPE_BF16, .m = T, .n = M, .k = C},
        {"up", RP_DTYPE_E4M3, .m = T, .n = M, .k = C},
        {"up, fast sums", RP_DTYPE_E4M3, .fast = TRUE, .m = T, .n = M, .k = C},
        {"o", RP_DTYPE_BF16, .m = T, .n = C, .k = C},
        {"o", RP_DTYPE_E4M3, .m = T, .n = C, .k = C},
        {"o, fast sums", RP_DTYPE_E4M3, .fast = TRUE, .m = T, .n = C, .k = C},
        {"down, d up", RP_DTYPE_BF16, .m = T, .n = C, .k = M},
        {"down", RP_DTYPE_E4M3, .m = T, .n = C, .k = M},
        {"down, fast sums", RP_DTYPE_E4M3, .fast = TRUE, .m = T, .n = C, .k = M},
        {"d up", RP_DTYPE_E5M2, .m = T, .n = C, .k = M},
        {"d W up +=", RP_DTYPE_BF16, TRUE, .m = M, .n = C, .k = T},
        {"d W up +=", RP_DTYPE_E5M2, TRUE, .m = M, .n = C, .k = T},
        {"d W up +=, fast sums", RP_DTYPE_E5M2, TRUE, TRUE, .m = M, .n = C, .k = T},
        {"d W o +=", RP_DTYPE_E5M2, TRUE, .m = C, .n = C, .k = T},
        {"largest", RP_DTYPE_BF16, .m = T, .n = M},
        {"quantise, rows", RP_DTYPE_E4M3, .rows = TRUE, .m = T, .n = M},
        {"quantise, transposed", RP_DTYPE_E4M3, .transposed = TRUE, .m = T, .n = M},
        {"quantise, both", RP_DTYPE_E4M3, .rows = TRUE, .transposed = TRUE, .m = T, .n = M},
        {"quantise, both", RP_DTYPE_E5M2, .rows = TRUE, .transposed = TRUE, .m = T, .n = C},
    };

    printf("%-22s %-5s %-22s %10s %10s %10s\n", "operation", "A", "shape", "us", "GB/s", "TFLOP/s");
    for (size_t i = 0; i < G_N_ELEMENTS(runs); i++)
        if (units || runs[i].k == 0 || runs[i].dtype < RP_N_DTYPES)
            print_run(given, bench, &runs[i]);
}

gboolean
rp_bench_fp8(const RpBench *given)
{
    Bench bench = {.T = 16384,
                   .C = given->hidden > 0 ? (size_t)given->hidden : 2048,
                   .M = given->intermediate > 0 ? (size_t)given->intermediate : 6144,
                   .kernels = given->kernels,
                   .stream = given->stream};

    if (bench.C < 16 || bench.M < bench.C || bench.M > 65536 || bench.C % 16 || bench.M % 16) {
        fprintf(stderr, "expected C <= M <= 65536, multiples of 16\n");
        return FALSE;
    }
    setup(&bench);
    rp_bench_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    print_all(given, &bench, given->device->major * 10 + given->device->minor >= 89);
    return TRUE;
}
