/*
 * Kernels between the matmuls of experts, in bf16, at the shapes of Qwen3-30B-A3B and GPT-OSS-20B and 16384 tokens
 * with random choices.
 */
#include <stdio.h>

#include "bench/kernels/kernels.h"

#define T ((size_t)16384)

typedef struct {
    const char *name;
    size_t C, m, E, k;
    RpExpertGlu form;
    gboolean biased;
} Model;

static const Model models[] = {
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, RP_EXPERT_SILU, FALSE},
    {"GPT-OSS-20B", 2880, 2880, 32, 4, RP_EXPERT_CLAMPED, TRUE},
};

typedef struct {
    const RpKernels *kernels;
    RpKernelStream *stream;
    const Model *model;
    void *logits, *d_logits, *weights; /* [T,E], [T,E], [T,k] */
    int32_t *chosen, *offsets, *rows, *assigned;
    void *x, *y, *of_rows;  /* [T,C], [T,C], [R,C] */
    void *z, *dz, *act, *g; /* [R,2m], [R,2m], [R,m], [R,m] */
    void *bias;             /* [E,C] */
    float *d_weights, *d_bias;
    void *workspace;
} Bench;

static size_t
rows_of(const Model *model)
{
    return T * model->k;
}

static RpRouteArgs
route_args(const Bench *bench)
{
    return (RpRouteArgs){.dtype = RP_DTYPE_BF16,
                         .tokens = T,
                         .experts = bench->model->E,
                         .choices = bench->model->k,
                         .among_chosen = TRUE,
                         .logits = bench->logits,
                         .chosen = bench->chosen,
                         .weights = bench->weights,
                         .d_weights = bench->d_weights,
                         .d_logits = bench->d_logits};
}

static RpSortRowsArgs
sort_args(const Bench *bench)
{
    return (RpSortRowsArgs){
        T,           bench->model->E, bench->model->k, bench->chosen, bench->offsets,
        bench->rows, bench->assigned, bench->workspace};
}

static RpGatherRowsArgs
gather_args(const Bench *bench)
{
    return (RpGatherRowsArgs){RP_DTYPE_BF16, T,        bench->model->k, bench->model->C,
                              bench->rows,   bench->x, bench->of_rows};
}

static RpCombineRowsArgs
combine_args(const Bench *bench)
{
    return (RpCombineRowsArgs){RP_DTYPE_BF16,   T,           bench->model->k,
                               bench->model->C, bench->rows, bench->of_rows,
                               bench->weights,  bench->x,    bench->y};
}

static RpExpertGluArgs
glu_args(const Bench *bench)
{
    return (RpExpertGluArgs){.dtype = RP_DTYPE_BF16,
                             .rows = rows_of(bench->model),
                             .m = bench->model->m,
                             .form = bench->model->form,
                             .alpha = 1.702f,
                             .limit = 7,
                             .z = bench->z,
                             .act = bench->act,
                             .choices = bench->model->k,
                             .n = bench->model->C,
                             .assigned = bench->assigned,
                             .weights = bench->weights,
                             .g = bench->g,
                             .chosen = bench->chosen,
                             .bias = bench->model->biased ? bench->bias : NULL,
                             .dy = bench->x,
                             .dz = bench->dz,
                             .product = bench->act,
                             .d_weights = bench->d_weights};
}

static RpExpertBiasArgs
bias_args(const Bench *bench)
{
    return (RpExpertBiasArgs){
        RP_DTYPE_BF16,  rows_of(bench->model), bench->model->E, bench->model->C, bench->offsets,
        bench->of_rows, bench->weights,        bench->assigned, bench->d_bias,   bench->workspace};
}

/* A function of @name that runs the kernel of that name, with @args of the bench. */
#define RUN(name, Args, args)                                                                      \
    static void run_##name(const void *data)                                                       \
    {                                                                                              \
        const Bench *bench = data;                                                                 \
        const Args these = args(bench);                                                            \
                                                                                                   \
        bench->kernels->name(bench->stream, &these);                                               \
    }
RUN(route_forward, RpRouteArgs, route_args)
RUN(route_backward, RpRouteArgs, route_args)
RUN(sort_rows, RpSortRowsArgs, sort_args)
RUN(gather_rows, RpGatherRowsArgs, gather_args)
RUN(combine_rows, RpCombineRowsArgs, combine_args)
RUN(expert_glu_forward, RpExpertGluArgs, glu_args)
RUN(expert_glu_backward, RpExpertGluArgs, glu_args)
RUN(expert_bias_backward, RpExpertBiasArgs, bias_args)

typedef struct {
    const char *name;
    void (*run)(const void *bench);
    size_t bytes;
} Entry;

static void
time_model(const RpBench *given, const Bench *bench)
{
    const Model *model = bench->model;
    const size_t R = rows_of(model), C = model->C, m = model->m, E = model->E, k = model->k;
    const size_t with_bias = model->biased ? 2 * R * C : 0;
    const Entry entries[] = {
        {"route", run_route_forward, T * (2 * E + 6 * k)},
        {"route backward", run_route_backward, T * (4 * E + 8 * k)},
        {"sort rows", run_sort_rows, 12 * R},
        {"gather rows", run_gather_rows, 2 * T * C * (1 + k)},
        {"combine rows", run_combine_rows, 2 * T * C * (2 + k)},
        {"expert glu", run_expert_glu_forward, 6 * R * m},
        {"expert glu backward", run_expert_glu_backward, 12 * R * m + with_bias},
        {"expert bias backward", run_expert_bias_backward, 2 * R * C},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(entries); i++) {
        const double ms = rp_bench_median_ms(given, entries[i].run, bench);

        printf("%-16s %-24s %10.1f %10.0f\n", model->name, entries[i].name, ms * 1e3,
               (double)entries[i].bytes / ms * 1e-6);
        fflush(stdout);
    }
}

static void
setup(Bench *bench, const Model *model)
{
    const size_t R = rows_of(model);

    bench->model = model;
    bench->logits = rp_bench_random(RP_DTYPE_BF16, T * model->E, 1);
    bench->d_logits = rp_bench_memory(T * model->E * 2);
    bench->weights = rp_bench_memory(R * 2);
    bench->chosen = rp_bench_memory(R * sizeof(int32_t));
    bench->offsets = rp_bench_memory((model->E + 1) * sizeof(int32_t));
    bench->rows = rp_bench_memory(R * sizeof(int32_t));
    bench->assigned = rp_bench_memory(R * sizeof(int32_t));
    bench->x = rp_bench_random(RP_DTYPE_BF16, T * model->C, 1);
    bench->y = rp_bench_memory(T * model->C * 2);
    bench->of_rows = rp_bench_random(RP_DTYPE_BF16, R * model->C, 1);
    bench->z = rp_bench_random(RP_DTYPE_BF16, R * 2 * model->m, 1);
    bench->dz = rp_bench_memory(R * 2 * model->m * 2);
    bench->act = rp_bench_memory(R * model->m * 2);
    bench->g = rp_bench_random(RP_DTYPE_BF16, R * model->m, 1);
    bench->bias = rp_bench_random(RP_DTYPE_BF16, model->E * model->C, 1);
    bench->d_weights = rp_bench_memory(R * sizeof(float));
    bench->d_bias = rp_bench_memory(model->E * model->C * sizeof(float));
    bench->workspace = rp_bench_memory((size_t)64 << 20);
    rp_bench_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    run_route_forward(bench);
    run_sort_rows(bench);
}

gboolean
rp_bench_experts(const RpBench *given)
{
    Bench bench = {.kernels = given->kernels, .stream = given->stream};

    printf("%-16s %-24s %10s %10s\n", "shapes of", "operation", "us", "GB/s");
    for (size_t i = 0; i < G_N_ELEMENTS(models); i++) {
        setup(&bench, &models[i]);
        time_model(given, &bench);
    }
    return TRUE;
}
