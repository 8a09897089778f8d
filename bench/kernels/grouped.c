/*
 * Matmuls of experts at the shapes of published models: TFLOP/s of each kernel variant (exec/cuda/grouped/variants.h; *
 * marks the one that layers get) and of cuBLASLt called for one expert after another, which must know their rows.
 * Variants run in rotation, in bf16. Rows of experts are the mean, or (skewed) between 0.2 and 1.8 times it.
 * NT: forward, NN: input gradient, TN: weight gradient, += fp32 (--gradients: or =, as a slot's first micro-batch, or =
 * in 16 bits, as torch._grouped_mm).
 */
#include <stdio.h>
#include <string.h>

#include "bench/kernels/kernels.h"
#include "exec/cuda/grouped/variants.h"

#define MOST_EXPERTS 128

typedef struct {
    const char *model, *matrix;
    size_t experts, choices; /* choices: experts of a token */
    size_t out, in;          /* rows and columns of an expert's matrix */
} Entry;

static const Entry entries[] = {
    {"gpt-oss-20b", "gate_up", 32, 4, 5760, 2880},
    {"gpt-oss-20b", "down", 32, 4, 2880, 2880},
    {"gpt-oss-120b", "gate_up", 128, 4, 5760, 2880},
    {"qwen3-30b-a3b", "gate_up", 128, 8, 1536, 2048},
    {"qwen3-30b-a3b", "down", 128, 8, 2048, 768},
    {"qwen3-235b-a22b", "gate_up", 128, 8, 3072, 4096},
    {"qwen3-235b-a22b", "down", 128, 8, 4096, 1536},
    {"qwen3-235b-a22b", "adapter A", 128, 8, 32, 4096},
    {"qwen3-235b-a22b", "adapter B", 128, 8, 3072, 32},
};

typedef struct {
    const RpBench *bench;
    RpGroupedMatmulArgs args;
    int32_t offsets[MOST_EXPERTS + 1];
    RpGroupedVariant variant;
    void *workspace; /* cuBLASLt's */
} Run;

static void
run_variant(const void *data)
{
    const Run *run = data;

    rp_bench_must(rp_cuda_grouped_matmul_by(run->variant, &run->args, run->bench->lane),
                  "grouped matmul");
}

static const void *
at(const void *array, RpDtype dtype, size_t element)
{
    return (const char *)array + element * rp_dtype_size(dtype);
}

static void
run_loop(const void *data)
{
    const Run *run = data;
    const RpGroupedMatmulArgs *args = &run->args;
    const gboolean adds = args->form == RP_MATMUL_TN;

    for (size_t e = 0; e < args->experts; e++) {
        const size_t first = (size_t)run->offsets[e];
        const size_t rows = (size_t)run->offsets[e + 1] - first;
        const size_t b = adds ? first * args->n : e * args->n * args->k;
        const size_t c = adds ? e * args->m * args->n : first * args->n;

        run->bench->kernels->matmul(
            run->bench->stream,
            &(RpMatmulArgs){.form = args->form,
                            .m = adds ? args->m : rows,
                            .n = args->n,
                            .k = adds ? rows : args->k,
                            .a = at(args->a, args->a_dtype, first * (adds ? args->m : args->k)),
                            .b = at(args->b, args->b_dtype, b),
                            .c = (void *)at(args->c, args->c_dtype, c),
                            .a_dtype = args->a_dtype,
                            .b_dtype = args->b_dtype,
                            .c_dtype = args->c_dtype,
                            .accumulate = args->accumulate,
                            .half_sums = args->half_sums,
                            .workspace = run->workspace});
    }
}

/* The mean, or 1.8 to 0.2 times it, in a random order. */
static void
set_rows(Run *run, gboolean skewed)
{
    const size_t experts = run->args.experts;
    const double mean = (double)run->args.rows / (double)experts;
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    double shares[MOST_EXPERTS], sum = 0;

    for (size_t e = 0; e < experts; e++)
        shares[e] = skewed ? 1.8 - 1.6 * (double)e / (double)(experts - 1) : 1;
    for (size_t e = experts - 1; e > 0; e--) {
        const size_t other = (size_t)g_rand_int_range(random, 0, (gint32)e + 1);
        const double share = shares[e];

        shares[e] = shares[other];
        shares[other] = share;
    }
    run->offsets[0] = 0;
    for (size_t e = 0; e < experts; e++) {
        sum += shares[e];
        run->offsets[e + 1] = (int32_t)(sum * mean + 0.5);
    }
    run->offsets[experts] = (int32_t)run->args.rows;
    rp_bench_must(cudaMemcpy((void *)run->args.offsets, run->offsets,
                             (experts + 1) * sizeof run->offsets[0], cudaMemcpyHostToDevice),
                  "cudaMemcpy");
}

static gboolean
is_timed(const Run *run, guint variant)
{
    return rp_cuda_grouped_variant_can((RpGroupedVariant)variant, &run->args) &&
           (run->bench->variant == NULL ||
            strstr(rp_cuda_grouped_variant_name((RpGroupedVariant)variant), run->bench->variant) !=
                NULL);
}

static void
print_times(const Run *run, const Entry *entry, gboolean skewed)
{
    const RpGroupedMatmulArgs *args = &run->args;
    const double flop = 2.0 * (double)args->rows * (double)entry->out * (double)entry->in;
    Run of_variant[RP_N_GROUPED_VARIANTS];
    RpBenchRun runs[RP_N_GROUPED_VARIANTS];
    double ms[RP_N_GROUPED_VARIANTS];
    guint n = 0, at = 0;

    for (guint variant = RP_GROUPED_ANY + 1; variant < RP_N_GROUPED_VARIANTS; variant++) {
        if (!is_timed(run, variant))
            continue;
        of_variant[n] = *run;
        of_variant[n].variant = (RpGroupedVariant)variant;
        runs[n] = (RpBenchRun){run_variant, &of_variant[n]};
        n++;
    }
    runs[n] = (RpBenchRun){run_loop, run};
    rp_bench_medians_ms(run->bench, runs, n + 1, ms);
    printf("%-15s %-9s %6zu %4s %s ", entry->model, entry->matrix, args->rows, skewed ? "1.8" : "1",
           rp_matmul_layouts[args->form]);
    for (guint variant = RP_GROUPED_ANY + 1; variant < RP_N_GROUPED_VARIANTS; variant++) {
        if (!is_timed(run, variant))
            printf(" %14s", "-");
        else
            printf(" %13.0f%c", flop * 1e-9 / ms[at++],
                   rp_cuda_grouped_variant_of(args) == (int)variant ? '*' : ' ');
    }
    printf(" %6.0f\n", flop * 1e-9 / ms[n]);
    fflush(stdout);
}

/* All forms, with rows alike and not. @x, @y: rows; @w: matrices; @dw: their sums */
static void
bench_entry(Run *run, const Entry *entry, guint tokens, const void *x, const void *y, const void *w,
            float *dw)
{
    const RpBench *bench = run->bench;
    const char *gradients = bench->gradients != NULL ? bench->gradients : "add";
    const RpDtype dtype = bench->half_sums ? RP_DTYPE_FP16 : RP_DTYPE_BF16;

    for (guint i = 0; i < 6; i++) {
        const RpMatmulLayout form = (RpMatmulLayout)(i % 3);
        const gboolean adds = form == RP_MATMUL_TN;
        const gboolean forward = form == RP_MATMUL_NT;

        run->args.form = form;
        run->args.rows = (size_t)tokens * entry->choices;
        run->args.experts = entry->experts;
        run->args.m = adds ? entry->out : 0;
        run->args.n = forward ? entry->out : entry->in;
        run->args.k = adds ? 0 : forward ? entry->in : entry->out;
        run->args.a = forward ? x : y;
        run->args.b = adds ? x : w;
        run->args.c = adds ? (void *)dw : (void *)(forward ? y : x);
        run->args.a_dtype = run->args.b_dtype = dtype;
        run->args.c_dtype = adds && !g_str_equal(gradients, "write-16") ? RP_DTYPE_FP32 : dtype;
        run->args.accumulate = adds && g_str_equal(gradients, "add");
        run->args.half_sums = bench->half_sums;
        set_rows(run, i >= 3);
        print_times(run, entry, i >= 3);
    }
}

static gboolean
is_wanted(const Entry *entry, const RpBench *bench)
{
    return bench->model == NULL || g_str_equal(bench->model, entry->model);
}

gboolean
rp_bench_grouped(const RpBench *bench)
{
    static const char *const gradients[] = {"add", "write", "write-16", NULL};
    const RpDtype dtype = bench->half_sums ? RP_DTYPE_FP16 : RP_DTYPE_BF16;
    const guint tokens = bench->tokens > 0 ? (guint)bench->tokens : 8192;
    size_t x = 0, y = 0, w = 0;

    for (guint i = 0; i < G_N_ELEMENTS(entries); i++) {
        const Entry *entry = &entries[i];
        const size_t rows = tokens * entry->choices;

        if (!is_wanted(entry, bench))
            continue;
        x = MAX(x, rows * entry->in);
        y = MAX(y, rows * entry->out);
        w = MAX(w, entry->experts * entry->out * entry->in);
    }
    if (w == 0 || (bench->gradients != NULL && !g_strv_contains(gradients, bench->gradients))) {
        fprintf(stderr, "expected a model of the table, and --gradients add, write or write-16\n");
        return FALSE;
    }

    Run run = {.bench = bench, .workspace = rp_bench_memory((size_t)64 << 20)};
    void *xs = rp_bench_random(dtype, x, 1);
    void *ys = rp_bench_random(dtype, y, 1);
    void *ws = rp_bench_random(dtype, w, 0.02);
    float *dws = rp_bench_memory(w * sizeof(float));

    run.args.offsets = rp_bench_memory((MOST_EXPERTS + 1) * sizeof(int32_t));
    printf("%-15s %-9s %6s %4s form", "model", "matrix", "rows", "skew");
    for (guint variant = RP_GROUPED_ANY + 1; variant < RP_N_GROUPED_VARIANTS; variant++)
        printf("%14s ", rp_cuda_grouped_variant_name((RpGroupedVariant)variant));
    printf("%6s\n", "loop");
    for (guint i = 0; i < G_N_ELEMENTS(entries); i++)
        if (is_wanted(&entries[i], bench))
            bench_entry(&run, &entries[i], tokens, xs, ys, ws, dws);
    return TRUE;
}
