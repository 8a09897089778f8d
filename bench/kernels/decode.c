/*
 * Kernels of a step of decoding at the shapes of Qwen3-1.7B, in bf16: matmuls of few rows, in microseconds and GB/s of their
 * weights, beside cuBLASLt's, whose rows depend on how many there are; attention to a cache, in GB/s of keys and values;
 * and sampling. --tokens: rows of one number alone
 *
 * Weights are taken from a piece of memory that no cache holds, another part of it each time.
 */
#include <stdio.h>
#include <string.h>

#include "bench/kernels/kernels.h"

#define MEMORY ((size_t)3 << 30) /* bytes of weights, or of a cache */
#define MOST_ROWS 256
#define VOCABULARY 151936
#define WORKSPACE ((size_t)1 << 30)

static const struct {
    const char *name;
    size_t n, k;
} matrices[] = {{"qkv", 4096, 2048},
                {"o", 2048, 2048},
                {"gate_up", 12288, 2048},
                {"down", 2048, 6144},
                {"head", VOCABULARY, 2048}};

static const size_t rows[] = {1, 8, 16, 32, 64, 128, 256};

typedef struct {
    const RpBench *bench;
    RpMatmulArgs args;
    const char *weights;
    size_t *turn;
} Matmul;

static void
run_matmul(const void *data)
{
    const Matmul *run = data;
    const size_t bytes = run->args.n * run->args.k * 2;
    RpMatmulArgs args = run->args;

    args.b = run->weights + (*run->turn)++ % (MEMORY / bytes) * bytes;
    run->bench->kernels->matmul(run->bench->stream, &args);
}

static void
bench_matmuls(const RpBench *bench)
{
    size_t turn = 0;
    Matmul run = {
        .bench = bench, .turn = &turn, .weights = rp_bench_random(RP_DTYPE_BF16, MEMORY / 2, 0.02)};
    const void *x = rp_bench_random(RP_DTYPE_BF16, MOST_ROWS * 6144, 1);
    void *y = rp_bench_memory(MOST_ROWS * VOCABULARY * 2);
    void *workspace = rp_bench_memory((size_t)64 << 20);

    printf("%-8s %5s %9s %9s %10s\n", "matrix", "rows", "us", "GB/s", "cuBLASLt");
    for (guint i = 0; i < G_N_ELEMENTS(matrices); i++)
        for (guint r = 0; r < G_N_ELEMENTS(rows); r++) {
            Matmul alone, library;
            double ms[2];

            if (bench->tokens > 0 && rows[r] != (size_t)bench->tokens)
                continue;
            run.args = (RpMatmulArgs){.form = RP_MATMUL_NT,
                                      .m = rows[r],
                                      .n = matrices[i].n,
                                      .k = matrices[i].k,
                                      .a = x,
                                      .c = y,
                                      .a_dtype = RP_DTYPE_BF16,
                                      .b_dtype = RP_DTYPE_BF16,
                                      .c_dtype = RP_DTYPE_BF16,
                                      .workspace = workspace};
            alone = library = run;
            alone.args.alone = TRUE;
            const RpBenchRun runs[] = {{run_matmul, &alone}, {run_matmul, &library}};

            rp_bench_medians_ms(bench, runs, 2, ms);
            printf("%-8s %5zu %9.1f %9.0f %10.1f\n", matrices[i].name, rows[r], ms[0] * 1e3,
                   (double)(matrices[i].n * matrices[i].k * 2) * 1e-6 / ms[0], ms[1] * 1e3);
            fflush(stdout);
        }
    cudaFree((void *)run.weights);
    cudaFree(y);
}

typedef struct {
    const RpBench *bench;
    RpCachedAttentionArgs args;
} Attention;

static void
run_attention(const void *data)
{
    const Attention *run = data;

    run->bench->kernels->attention_cached(run->bench->stream, &run->args);
}

/* @n int32 numbers, each (i first + step) % most. */
static const int32_t *
numbers(size_t n, size_t first, size_t step, size_t most)
{
    g_autofree int32_t *values = g_new(int32_t, n);
    int32_t *memory = rp_bench_memory(n * sizeof *values);

    for (size_t i = 0; i < n; i++)
        values[i] = (int32_t)((first + i * step) % most);
    rp_bench_must(cudaMemcpy(memory, values, n * sizeof *values, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    return memory;
}

static void
bench_attention(const RpBench *bench)
{
    static const size_t sequences[] = {1, 64, 256}, lengths[] = {256, 640, 4096};
    const size_t width = 8 * 128, blocks = MEMORY / 2 / (RP_CACHE_BLOCK * width * 2);
    Attention run = {.bench = bench,
                     .args = {.dtype = RP_DTYPE_BF16,
                              .heads = 16,
                              .kv_heads = 8,
                              .head_size = 128,
                              .scale = 0.09f,
                              .q = rp_bench_random(RP_DTYPE_BF16, MOST_ROWS * 16 * 128, 1),
                              .keys = rp_bench_random(RP_DTYPE_BF16, MEMORY / 4, 1),
                              .values = rp_bench_random(RP_DTYPE_BF16, MEMORY / 4, 1),
                              .out = rp_bench_memory(MOST_ROWS * 16 * 128 * 2),
                              .lse = rp_bench_memory(MOST_ROWS * 16 * sizeof(float)),
                              .workspace = rp_bench_memory(WORKSPACE)}};

    printf("\n%-9s %9s %9s %9s\n", "sequences", "keys", "us", "GB/s");
    for (guint i = 0; i < G_N_ELEMENTS(sequences); i++)
        for (guint l = 0; l < G_N_ELEMENTS(lengths); l++) {
            run.args.queries = sequences[i];
            run.args.longest = lengths[l];
            run.args.most_blocks = lengths[l] / RP_CACHE_BLOCK;
            run.args.positions = numbers(sequences[i], lengths[l] - 1, 0, G_MAXINT32);
            run.args.tables = numbers(sequences[i] * run.args.most_blocks, 1, 7, blocks);
            const double ms = rp_bench_median_ms(bench, run_attention, &run);

            printf("%-9zu %9zu %9.1f %9.0f\n", sequences[i], lengths[l], ms * 1e3,
                   (double)(sequences[i] * lengths[l] * width * 4) * 1e-6 / ms);
        }
}

typedef struct {
    const RpBench *bench;
    RpSampleArgs args;
} Sampling;

static void
run_sampling(const void *data)
{
    const Sampling *run = data;

    run->bench->kernels->sample(run->bench->stream, &run->args);
}

static void
bench_sampling(const RpBench *bench)
{
    static const struct {
        const char *name;
        RpSampleChoice choice;
    } entries[] = {{"greedy", {.temperature = 0, .top_p = 1}},
                   {"temperature", {.temperature = 1, .top_p = 1}},
                   {"top_p", {.temperature = 1, .top_p = 0.9}},
                   {"top_k, top_p", {.temperature = 1, .top_p = 0.9, .top_k = 50}}};
    static const size_t counts[] = {1, 64, 256};
    Sampling run = {.bench = bench,
                    .args = {.dtype = RP_DTYPE_BF16,
                             .vocabulary = VOCABULARY,
                             .logits = rp_bench_random(RP_DTYPE_BF16, MOST_ROWS * VOCABULARY, 3),
                             .choices = rp_bench_memory(MOST_ROWS * sizeof(RpSampleChoice)),
                             .ids = rp_bench_memory(MOST_ROWS * sizeof(int32_t))}};

    printf("\n%-14s %5s %9s\n", "sampling", "rows", "us");
    for (guint i = 0; i < G_N_ELEMENTS(entries); i++) {
        RpSampleChoice choices[MOST_ROWS];

        for (guint r = 0; r < MOST_ROWS; r++)
            choices[r] = entries[i].choice;
        rp_bench_must(
            cudaMemcpy((void *)run.args.choices, choices, sizeof choices, cudaMemcpyHostToDevice),
            "cudaMemcpy");
        for (guint r = 0; r < G_N_ELEMENTS(counts); r++) {
            run.args.rows = counts[r];
            printf("%-14s %5zu %9.1f\n", entries[i].name, counts[r],
                   rp_bench_median_ms(bench, run_sampling, &run) * 1e3);
        }
    }
}

gboolean
rp_bench_decode(const RpBench *bench)
{
    bench_matmuls(bench);
    bench_attention(bench);
    bench_sampling(bench);
    return TRUE;
}
