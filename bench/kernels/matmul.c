/*
 * Matmuls of a block and of a head by each of the algorithms that cuBLASLt proposes, best first as it thinks, and which
 * of them give the same bits as the first. Shapes of Qwen3-1.7B in bf16 and 16384 tokens, or with --tokens, --hidden,
 * --intermediate and --keys of others; those of q, k, v and of gate, up as one matmul, too. With --warm-up each algorithm
 * is alone, so that a card at its power limit gives it the clocks that its own power allows; else all run in turn.
 *
 *   operation     shape                    first  rank 1 ..
 *   q             16384 x 2048 x 2048      650 =  640 =  661    TFLOP/s; = the first's bits
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/kernels/kernels.h"

typedef struct {
    const char *name;
    RpMatmulLayout form; /* TN: += to fp32 */
    gboolean residual, accumulate;
    size_t m, n, k;
} Shape;

typedef struct {
    const RpKernels *kernels;
    cudaStream_t lane;
    RpKernelStream *streams[RP_MATMUL_MAX_VARIANTS];
    void *a, *b, *residual, *c, *workspace;
    double *sum;
} Bench;

typedef struct {
    const Bench *bench;
    const Shape *shape;
    guint rank;
} Timed;

static void
multiply(const void *data)
{
    const Timed *timed = data;
    const Bench *bench = timed->bench;
    const Shape *shape = timed->shape;
    const gboolean adds_up = shape->form == RP_MATMUL_TN;

    bench->kernels->matmul(bench->streams[timed->rank],
                           &(RpMatmulArgs){.form = shape->form,
                                           .m = shape->m,
                                           .n = shape->n,
                                           .k = shape->k,
                                           .a = bench->a,
                                           .b = bench->b,
                                           .c = bench->c,
                                           .residual = shape->residual ? bench->residual : NULL,
                                           .a_dtype = RP_DTYPE_BF16,
                                           .b_dtype = RP_DTYPE_BF16,
                                           .c_dtype = adds_up ? RP_DTYPE_FP32 : RP_DTYPE_BF16,
                                           .accumulate = adds_up || shape->accumulate,
                                           .workspace = bench->workspace});
}

/* @sum: (out): of the squares of the product, added to zeros. Other bits in some of millions of values are another one.
 * Returns: %FALSE where there is no such algorithm */
static gboolean
sum_product(const Timed *timed, double *sum)
{
    const Bench *bench = timed->bench;
    const Shape *shape = timed->shape;
    const RpDtype dtype = shape->form == RP_MATMUL_TN ? RP_DTYPE_FP32 : RP_DTYPE_BF16;
    const size_t n = shape->m * shape->n;
    RpKernelStream *stream = bench->streams[timed->rank];

    rp_bench_must(cudaMemsetAsync(bench->c, 0, n * rp_dtype_size(dtype), bench->lane),
                  "cudaMemset");
    rp_bench_must(cudaMemsetAsync(bench->sum, 0, sizeof *sum, bench->lane), "cudaMemset");
    multiply(timed);
    bench->kernels->sum_squares(stream, &(RpSumSquaresArgs){.dtype = dtype,
                                                            .n = n,
                                                            .x = bench->c,
                                                            .sum = bench->sum,
                                                            .workspace = bench->workspace});
    rp_bench_must(
        cudaMemcpyAsync(sum, bench->sum, sizeof *sum, cudaMemcpyDeviceToHost, bench->lane),
        "cudaMemcpy");
    rp_bench_must(cudaStreamSynchronize(bench->lane), "cudaStreamSynchronize");
    return bench->kernels->check(stream, NULL);
}

static void
print_shape(const RpBench *given, const Bench *bench, const Shape *shape)
{
    const double flop = 2 * (double)shape->m * (double)shape->n * (double)shape->k;
    gboolean same[RP_MATMUL_MAX_VARIANTS];
    Timed timed[RP_MATMUL_MAX_VARIANTS];
    RpBenchRun runs[RP_MATMUL_MAX_VARIANTS];
    double ms[RP_MATMUL_MAX_VARIANTS], sums[RP_MATMUL_MAX_VARIANTS];
    char text[64];
    guint n = 0;

    for (guint rank = 0; rank < RP_MATMUL_MAX_VARIANTS; rank++) {
        timed[rank] = (Timed){bench, shape, rank};
        runs[rank] = (RpBenchRun){multiply, &timed[rank]};
        if (!sum_product(&timed[rank], &sums[rank]))
            break;
        same[n++] = sums[rank] == sums[0];
    }
    if (n > 0 && given->warm_up_s == 0)
        rp_bench_medians_ms(given, runs, n, ms);
    for (guint rank = 0; rank < n && given->warm_up_s > 0; rank++)
        ms[rank] = rp_bench_median_ms(given, multiply, &timed[rank]);
    g_snprintf(text, sizeof text, "%zu x %zu x %zu", shape->m, shape->n, shape->k);
    printf("%-16s %-2s %-22s", shape->name, rp_matmul_layouts[shape->form], text);
    for (guint rank = 0; rank < n; rank++)
        printf(" %6.0f%s", flop / ms[rank] * 1e-9, same[rank] ? " =" : "  ");
    printf("\n");
    fflush(stdout);
}

static size_t
size_or(int given, size_t usual)
{
    return given > 0 ? (size_t)given : usual;
}

gboolean
rp_bench_matmul(const RpBench *given)
{
    const size_t T = size_or(given->tokens, 16384), C = size_or(given->hidden, 2048),
                 Q = size_or(given->queries, 2048), K = size_or(given->keys, 1024),
                 M = size_or(given->intermediate, 6144), V = size_or(given->vocabulary, 151936),
                 N = size_or(given->chunk, 4096);
    const Shape shapes[] = {
        {"q", RP_MATMUL_NT, .m = T, .n = Q, .k = C},
        {"k", RP_MATMUL_NT, .m = T, .n = K, .k = C},
        {"q, k, v", RP_MATMUL_NT, .m = T, .n = Q + 2 * K, .k = C},
        {"o", RP_MATMUL_NT, .m = T, .n = C, .k = Q},
        {"o + x", RP_MATMUL_NT, TRUE, .m = T, .n = C, .k = Q},
        {"up", RP_MATMUL_NT, .m = T, .n = M, .k = C},
        {"gate, up", RP_MATMUL_NT, .m = T, .n = 2 * M, .k = C},
        {"down", RP_MATMUL_NT, .m = T, .n = C, .k = M},
        {"down + s", RP_MATMUL_NT, TRUE, .m = T, .n = C, .k = M},
        {"d down", RP_MATMUL_NN, .m = T, .n = M, .k = C},
        {"d up", RP_MATMUL_NN, .m = T, .n = C, .k = M},
        {"d gate +=", RP_MATMUL_NN, FALSE, TRUE, .m = T, .n = C, .k = M},
        {"d gate, up", RP_MATMUL_NN, .m = T, .n = C, .k = 2 * M},
        {"d q", RP_MATMUL_NN, .m = T, .n = C, .k = Q},
        {"d k +=", RP_MATMUL_NN, FALSE, TRUE, .m = T, .n = C, .k = K},
        {"d q, k, v", RP_MATMUL_NN, .m = T, .n = C, .k = Q + 2 * K},
        {"d W q +=", RP_MATMUL_TN, .m = Q, .n = C, .k = T},
        {"d W k +=", RP_MATMUL_TN, .m = K, .n = C, .k = T},
        {"d W q, k, v +=", RP_MATMUL_TN, .m = Q + 2 * K, .n = C, .k = T},
        {"d W up +=", RP_MATMUL_TN, .m = M, .n = C, .k = T},
        {"d W gate, up +=", RP_MATMUL_TN, .m = 2 * M, .n = C, .k = T},
        {"d W down +=", RP_MATMUL_TN, .m = C, .n = M, .k = T},
        {"head", RP_MATMUL_NT, .m = N, .n = V, .k = C},
        {"d head", RP_MATMUL_NN, .m = N, .n = C, .k = V},
        {"d W head +=", RP_MATMUL_TN, .m = V, .n = C, .k = N},
    };
    size_t a = 0, b = 0, c = 0;
    Bench bench = {.kernels = given->kernels, .lane = given->lane};
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++) {
        a = MAX(a, shapes[i].m * shapes[i].k);
        b = MAX(b, shapes[i].n * shapes[i].k);
        c = MAX(c, shapes[i].m * shapes[i].n * (shapes[i].form == RP_MATMUL_TN ? 4 : 2));
    }
    bench.a = rp_bench_random(RP_DTYPE_BF16, a, 1);
    bench.b = rp_bench_random(RP_DTYPE_BF16, b, 1);
    bench.residual = rp_bench_random(RP_DTYPE_BF16, T * C, 1);
    bench.c = rp_bench_memory(c);
    bench.workspace = rp_bench_memory(MAX(
        bench.kernels->matmul_workspace(&(RpMatmulArgs){.m = 1}),
        bench.kernels->sum_squares_workspace(&(RpSumSquaresArgs){.dtype = RP_DTYPE_FP32, .n = c})));
    bench.sum = rp_bench_memory(sizeof *bench.sum);
    for (guint rank = 0; rank < RP_MATMUL_MAX_VARIANTS; rank++) {
        bench.streams[rank] = rp_cuda_stream_new(0, given->lane, &error);
        if (bench.streams[rank] == NULL) {
            fprintf(stderr, "%s\n", error->message);
            exit(1);
        }
        rp_cuda_stream_take_rank(bench.streams[rank], rank);
    }
    printf("TFLOP/s; = : the first's bits\n");
    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++)
        print_shape(given, &bench, &shapes[i]);
    for (guint rank = 0; rank < RP_MATMUL_MAX_VARIANTS; rank++)
        rp_cuda_stream_free(bench.streams[rank]);
    return TRUE;
}
