/*
 * Kernels of layers at the shapes of Qwen3-1.7B (C 2048, m 6144, V 151936, 16 query and 8 kv heads of 128) and 16384
 * tokens, in bf16 (causal attention counts half a square). --half-sums: the matmuls alone, in fp16, with fp16 sums
 * where C is fp16.
 */
#include <stdio.h>

#include "bench/kernels/kernels.h"

#define T ((size_t)16384)
#define C ((size_t)2048)
#define M ((size_t)6144)
#define V ((size_t)151936)
#define CHUNK ((size_t)1024)
#define HEADS ((size_t)16)
#define KV_HEADS ((size_t)8)
#define D ((size_t)128)
#define LENGTH ((size_t)2048)         /* tokens of a sequence */
#define PARAMETERS ((size_t)50331648) /* elements of an optimizer's part */

typedef struct {
    RpDtype dtype; /* type of matmuls; all else is bf16 */
    gboolean half_sums;
    const RpKernels *kernels;
    RpKernelStream *stream;
    void *big[6];    /* T x M elements of 16 bits, random, each */
    void *logits;    /* CHUNK x V */
    void *head;      /* V x C of 16 bits */
    float *d_head;   /* V x C */
    float *floats;   /* PARAMETERS */
    float *rows;     /* T x HEADS */
    float *table[2]; /* LENGTH x D/2 */
    int32_t *ids, *positions, *starts, *labels;
    double *sum;
    void *workspace;
} Bench;

typedef struct Entry {
    const char *name, *shape;
    void (*run)(const Bench *bench, const struct Entry *entry);
    double bytes, operations; /* one is 0 */
    RpMatmulLayout form;
    size_t m, n, k;  /* sizes of a matmul; m, n: rows and columns of a norm */
    RpLowbit packed; /* format of an expansion */
    gboolean head;   /* a matmul of the head */
    gboolean second; /* a bias; a residual; the product */
} Entry;

static int32_t *
upload(const int32_t *values, size_t n)
{
    int32_t *block = rp_bench_memory(n * sizeof *values);

    rp_bench_must(cudaMemcpy(block, values, n * sizeof *values, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    return block;
}

/* Half of all ids among 2000, as in text. */
static void
fill_ids(Bench *bench)
{
    g_autofree int32_t *ids = g_new(int32_t, T);
    g_autofree int32_t *positions = g_new(int32_t, T);
    int32_t starts[T / LENGTH + 1];
    g_autoptr(GRand) random = g_rand_new_with_seed(1);

    for (size_t t = 0; t < T; t++) {
        ids[t] = g_rand_int_range(random, 0, t % 2 ? 2000 : (gint32)V);
        positions[t] = (int32_t)(t % LENGTH);
    }
    for (size_t i = 0; i <= T / LENGTH; i++)
        starts[i] = (int32_t)(i * LENGTH);
    bench->ids = upload(ids, T);
    bench->labels = upload(ids, CHUNK);
    bench->positions = upload(positions, T);
    bench->starts = upload(starts, T / LENGTH + 1);
}

static void
matmul(const Bench *bench, const Entry *entry)
{
    const gboolean gradient = entry->form == RP_MATMUL_TN;
    const void *weight = entry->head ? bench->head : bench->big[1];

    bench->kernels->matmul(
        bench->stream,
        &(RpMatmulArgs){.form = entry->form,
                        .m = entry->m,
                        .n = entry->n,
                        .k = entry->k,
                        .a = entry->head && entry->form != RP_MATMUL_NT ? bench->logits
                                                                        : bench->big[0],
                        .b = gradient && entry->head ? bench->big[0] : weight,
                        .c = !entry->head ? (gradient ? (void *)bench->floats : bench->big[2])
                             : entry->form == RP_MATMUL_NT ? bench->logits
                             : gradient                    ? (void *)bench->d_head
                                                           : bench->big[2],
                        .bias = entry->second ? bench->head : NULL,
                        .a_dtype = bench->dtype,
                        .b_dtype = bench->dtype,
                        .c_dtype = gradient ? RP_DTYPE_FP32 : bench->dtype,
                        .accumulate = gradient,
                        .half_sums = bench->half_sums,
                        .workspace = bench->workspace});
}

/* A bias of q by a pass of its own. */
static void
matmul_then_bias(const Bench *bench, const Entry *entry)
{
    matmul(bench, entry);
    bench->kernels->bias_forward(
        bench->stream,
        &(RpBiasArgs){
            .dtype = bench->dtype, .tokens = T, .n = C, .bias = bench->head, .y = bench->big[2]});
}

/* A function of @name that runs the kernel of that name, with @args of an entry. */
#define RUN(name, Args, args)                                                                      \
    static void name(const Bench *bench, const Entry *entry)                                       \
    {                                                                                              \
        const Args these = args;                                                                   \
                                                                                                   \
        bench->kernels->name(bench->stream, &these);                                               \
    }

static RpAttentionArgs
attention_args(const Bench *bench)
{
    return (RpAttentionArgs){.dtype = RP_DTYPE_BF16,
                             .tokens = T,
                             .sequences = T / LENGTH,
                             .max_length = LENGTH,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS,
                             .head_size = D,
                             .scale = 0.088388348f,
                             .starts = bench->starts,
                             .q = bench->big[0],
                             .k = bench->big[1],
                             .v = bench->big[2],
                             .out = bench->big[3],
                             .lse = bench->rows,
                             .d_out = (char *)bench->big[0] + T * C * 2,
                             .dq = bench->big[4],
                             .dk = bench->big[5],
                             .dv = (char *)bench->big[5] + T * C * 2,
                             .workspace = bench->workspace};
}

RUN(attention_forward, RpAttentionArgs, attention_args(bench))
RUN(attention_backward, RpAttentionArgs, attention_args(bench))

static RpRmsnormArgs
rmsnorm_args(const Bench *bench, size_t rows, size_t n, gboolean residual)
{
    return (RpRmsnormArgs){.dtype = RP_DTYPE_BF16,
                           .rows = rows,
                           .n = n,
                           .epsilon = 1e-6f,
                           .x = bench->big[0],
                           .weight = bench->head,
                           .y = bench->big[3],
                           .rstd = bench->rows,
                           .dy = bench->big[1],
                           .d_residual = residual ? bench->big[2] : NULL,
                           .dx = bench->big[3],
                           .d_weight = bench->floats,
                           .workspace = bench->workspace};
}

RUN(rmsnorm_forward, RpRmsnormArgs, rmsnorm_args(bench, entry->m, entry->n, FALSE))
RUN(rmsnorm_backward, RpRmsnormArgs, rmsnorm_args(bench, entry->m, entry->n, entry->second))

static void
rope(const Bench *bench, const Entry *entry)
{
    bench->kernels->rope_forward(bench->stream, &(RpRopeArgs){.dtype = RP_DTYPE_BF16,
                                                              .tokens = T,
                                                              .heads = HEADS,
                                                              .head_size = D,
                                                              .positions = bench->positions,
                                                              .cosines = bench->table[0],
                                                              .sines = bench->table[1],
                                                              .x = bench->big[0],
                                                              .y = bench->big[1]});
}

static RpNormRopeArgs
norm_rope_args(const Bench *bench, size_t heads)
{
    return (RpNormRopeArgs){.dtype = RP_DTYPE_BF16,
                            .tokens = T,
                            .heads = heads,
                            .head_size = D,
                            .epsilon = 1e-6f,
                            .positions = bench->positions,
                            .cosines = bench->table[0],
                            .sines = bench->table[1],
                            .x = bench->big[0],
                            .weight = bench->head,
                            .y = bench->big[3],
                            .rstd = bench->rows,
                            .dy = bench->big[1],
                            .dx = bench->big[3],
                            .d_weight = bench->floats,
                            .workspace = bench->workspace};
}

RUN(norm_rope_forward, RpNormRopeArgs, norm_rope_args(bench, entry->m))
RUN(norm_rope_backward, RpNormRopeArgs, norm_rope_args(bench, entry->m))

static RpSinkArgs
sink_args(const Bench *bench)
{
    return (RpSinkArgs){RP_DTYPE_BF16,
                        T,
                        64,
                        64,
                        bench->head,
                        bench->big[0],
                        bench->floats,
                        bench->big[1],
                        bench->rows,
                        bench->workspace};
}

RUN(sink_forward, RpSinkArgs, sink_args(bench))
RUN(sink_backward, RpSinkArgs, sink_args(bench))

static RpSwigluArgs
swiglu_args(const Bench *bench, gboolean product)
{
    return (RpSwigluArgs){.dtype = RP_DTYPE_BF16,
                          .n = T * M,
                          .gate = bench->big[0],
                          .up = bench->big[1],
                          .y = bench->big[2],
                          .dy = bench->big[2],
                          .d_gate = bench->big[3],
                          .d_up = bench->big[4],
                          .product = product ? bench->big[5] : NULL};
}

RUN(swiglu_forward, RpSwigluArgs, swiglu_args(bench, FALSE))
RUN(swiglu_backward, RpSwigluArgs, swiglu_args(bench, entry->second))

/* As of Qwen3.5: four taps; heads of 128 behind the rule, and of 256 with a gate behind each. */
static RpConvArgs
conv_args(const Bench *bench, gboolean sums)
{
    return (RpConvArgs){.dtype = RP_DTYPE_BF16,
                        .tokens = T,
                        .sequences = T / LENGTH,
                        .n = M,
                        .kernel = 4,
                        .starts = bench->starts,
                        .x = bench->big[0],
                        .weight = bench->head,
                        .y = bench->big[2],
                        .dy = bench->big[1],
                        .dx = bench->big[2],
                        .d_weight = sums ? bench->floats : NULL,
                        .workspace = bench->workspace};
}

RUN(conv_forward, RpConvArgs, conv_args(bench, FALSE))
RUN(conv_backward, RpConvArgs, conv_args(bench, entry->second))

static RpGatedNormArgs
gated_norm_args(const Bench *bench)
{
    return (RpGatedNormArgs){.dtype = RP_DTYPE_BF16,
                             .rows = T * C / D * 2,
                             .n = D,
                             .epsilon = 1e-6f,
                             .x = bench->big[0],
                             .gate = bench->big[1],
                             .weight = bench->head,
                             .y = bench->big[3],
                             .dy = bench->big[2],
                             .dx = bench->big[3],
                             .d_gate = bench->big[4],
                             .workspace = bench->workspace};
}

RUN(gated_norm_forward, RpGatedNormArgs, gated_norm_args(bench))
RUN(gated_norm_backward, RpGatedNormArgs, gated_norm_args(bench))

static RpHeadGateArgs
head_gate_args(const Bench *bench)
{
    return (RpHeadGateArgs){.dtype = RP_DTYPE_BF16,
                            .rows = T * C / (2 * D),
                            .n = 2 * D,
                            .gate_stride = 4 * D,
                            .x = bench->big[0],
                            .gate = (char *)bench->big[1] + 2 * D * 2,
                            .y = bench->big[3],
                            .dy = bench->big[2],
                            .dx = bench->big[3],
                            .d_gate = bench->big[4]};
}

RUN(head_gate_forward, RpHeadGateArgs, head_gate_args(bench))
RUN(head_gate_backward, RpHeadGateArgs, head_gate_args(bench))

static void
columns(const Bench *bench, const Entry *entry)
{
    bench->kernels->columns(bench->stream, &(RpColumnsArgs){.dtype = RP_DTYPE_BF16,
                                                            .rows = T * C / (2 * D),
                                                            .n = 2 * D,
                                                            .x_stride = 4 * D,
                                                            .y_stride = 2 * D,
                                                            .x = bench->big[0],
                                                            .y = bench->big[1]});
}

static RpEmbeddingArgs
embedding_args(const Bench *bench)
{
    return (RpEmbeddingArgs){RP_DTYPE_BF16,
                             T,
                             C,
                             V,
                             bench->ids,
                             bench->head,
                             bench->big[0],
                             bench->big[1],
                             bench->d_head,
                             -1,
                             bench->workspace};
}

RUN(embedding_forward, RpEmbeddingArgs, embedding_args(bench))
RUN(embedding_backward, RpEmbeddingArgs, embedding_args(bench))

static void
cross_entropy(const Bench *bench, const Entry *entry)
{
    bench->kernels->cross_entropy(
        bench->stream, &(RpCrossEntropyArgs){RP_DTYPE_BF16, CHUNK, V, bench->logits, bench->labels,
                                             1.0f, TRUE, bench->sum, NULL, bench->workspace});
}

static RpBiasArgs
bias_args(const Bench *bench)
{
    return (RpBiasArgs){.dtype = RP_DTYPE_BF16,
                        .tokens = T,
                        .n = C,
                        .bias = bench->head,
                        .y = bench->big[0],
                        .dy = bench->big[0],
                        .d_bias = bench->floats,
                        .workspace = bench->workspace};
}

RUN(bias_forward, RpBiasArgs, bias_args(bench))
RUN(bias_backward, RpBiasArgs, bias_args(bench))

static void
sum_squares(const Bench *bench, const Entry *entry)
{
    bench->kernels->sum_squares(bench->stream,
                                &(RpSumSquaresArgs){RP_DTYPE_FP32, PARAMETERS, bench->floats,
                                                    bench->sum, NULL, bench->workspace});
}

static void
convert(const Bench *bench, const Entry *entry)
{
    bench->kernels->convert(bench->stream,
                            &(RpElementsArgs){PARAMETERS, bench->floats, NULL, bench->big[0],
                                              RP_DTYPE_FP32, RP_DTYPE_FP32, RP_DTYPE_BF16});
}

/* Random bytes as packed weights. */
static void
expand(const Bench *bench, const Entry *entry)
{
    bench->kernels->expand(bench->stream, &(RpExpandArgs){.format = entry->packed,
                                                          .dtype = RP_DTYPE_BF16,
                                                          .shape = {1, T, M},
                                                          .packed = bench->big[0],
                                                          .y = bench->big[1]});
}

static void
add(const Bench *bench, const Entry *entry)
{
    bench->kernels->add(bench->stream,
                        &(RpElementsArgs){T * C, bench->big[0], bench->big[1], bench->big[2],
                                          RP_DTYPE_BF16, RP_DTYPE_BF16, RP_DTYPE_BF16});
}

static void
fill(const Bench *bench, const Entry *entry)
{
    bench->kernels->fill(bench->stream,
                         &(RpFillArgs){RP_DTYPE_FP32, PARAMETERS, bench->floats, 0.0f});
}

#define PRODUCT(form_, m_, n_, k_)                                                                 \
    .form = RP_MATMUL_##form_, .m = (m_), .n = (n_), .k = (k_),                                    \
    .operations = 2.0 * (double)(m_) * (double)(n_) * (double)(k_)
#define BYTES(n, each) .bytes = (double)(each) * (double)(n)
#define ATTENTION (4.0 * (double)(T * LENGTH / 2) * (double)(HEADS * D))

static const Entry entries[] = {
    {"matmul NT", "q: 16384 x 2048 x 2048", matmul, PRODUCT(NT, T, C, C)},
    {"matmul NT, then bias", "q", matmul_then_bias, PRODUCT(NT, T, C, C)},
    {"matmul NT with bias", "q", matmul, PRODUCT(NT, T, C, C), .second = TRUE},
    {"matmul NT", "up: 16384 x 6144 x 2048", matmul, PRODUCT(NT, T, M, C)},
    {"matmul NT", "down: 16384 x 2048 x 6144", matmul, PRODUCT(NT, T, C, M)},
    {"matmul NN", "d up: 16384 x 2048 x 6144", matmul, PRODUCT(NN, T, C, M)},
    {"matmul NN", "d down: 16384 x 6144 x 2048", matmul, PRODUCT(NN, T, M, C)},
    {"matmul TN +=", "d W up: 6144 x 2048 x 16384", matmul, PRODUCT(TN, M, C, T)},
    {"matmul TN +=", "d W down: 2048 x 6144 x 16384", matmul, PRODUCT(TN, C, M, T)},
    {"matmul NT", "head: 1024 x 151936 x 2048", matmul, PRODUCT(NT, CHUNK, V, C), .head = TRUE},
    {"matmul NN", "d head: 1024 x 2048 x 151936", matmul, PRODUCT(NN, CHUNK, C, V), .head = TRUE},
    {"matmul TN +=", "d W head: 151936 x 2048 x 1024", matmul, PRODUCT(TN, V, C, CHUNK),
     .head = TRUE},
    {"attention", "8 x 2048, 16/8 heads of 128", attention_forward, .operations = ATTENTION},
    {"attention backward", "", attention_backward, .operations = 2.5 * ATTENTION},
    {"rmsnorm", "16384 x 2048", rmsnorm_forward, BYTES(T *C, 4), .m = T, .n = C},
    {"rmsnorm backward", "with d residual", rmsnorm_backward, BYTES(T *C, 8), .m = T, .n = C,
     .second = TRUE},
    {"rmsnorm", "262144 x 128", rmsnorm_forward, BYTES(T *C, 4), .m = T * HEADS, .n = D},
    {"rmsnorm backward", "262144 x 128", rmsnorm_backward, BYTES(T *C, 6), .m = T * HEADS, .n = D},
    {"rope", "16384 x 16 x 128", rope, BYTES(T *C, 4)},
    {"norm and rope", "16384 x 16 x 128", norm_rope_forward, BYTES(T *C, 4), .m = HEADS},
    {"norm and rope", "16384 x 8 x 128", norm_rope_forward, BYTES(T *C, 2), .m = KV_HEADS},
    {"norm rope backward", "16384 x 16 x 128", norm_rope_backward, BYTES(T *C, 6), .m = HEADS},
    {"norm rope backward", "16384 x 8 x 128", norm_rope_backward, BYTES(T *C, 3), .m = KV_HEADS},
    {"sinks", "16384 x 64 x 64", sink_forward, BYTES(T * 64 * 64, 4)},
    {"sinks backward", "", sink_backward, BYTES(T * 64 * 64, 4)},
    {"swiglu", "16384 x 6144", swiglu_forward, BYTES(T *M, 6)},
    {"swiglu backward", "", swiglu_backward, BYTES(T *M, 10)},
    {"swiglu backward", "and the product", swiglu_backward, BYTES(T *M, 12), .second = TRUE},
    {"convolution", "16384 x 6144, 4 taps", conv_forward, BYTES(T *M, 4)},
    {"conv. backward", "", conv_backward, BYTES(T *M, 6)},
    {"conv. backward", "and sums", conv_backward, BYTES(T *M, 6), .second = TRUE},
    {"gated norm", "16384 x 32 x 128", gated_norm_forward, BYTES(T *C, 12)},
    {"gated norm backward", "", gated_norm_backward, BYTES(T *C, 20)},
    {"gate of heads", "16384 x 8 x 256", head_gate_forward, BYTES(T *C, 6)},
    {"gate of heads, back", "", head_gate_backward, BYTES(T *C, 10)},
    {"columns", "16384 x 8 x 256 of 512", columns, BYTES(T *C, 4)},
    {"embedding", "16384 x 2048", embedding_forward, BYTES(T *C, 4)},
    {"embedding backward", "of about 9900 ids", embedding_backward, BYTES(2 * T + 8 * 9900, C)},
    {"cross entropy", "1024 x 151936", cross_entropy, BYTES(CHUNK *V, 4)},
    {"bias", "16384 x 2048", bias_forward, BYTES(T *C, 4)},
    {"bias backward", "", bias_backward, BYTES(T *C, 2)},
    {"sum of squares", "48 Mi of fp32", sum_squares, BYTES(PARAMETERS, 4)},
    {"convert", "48 Mi, fp32 to bf16", convert, BYTES(PARAMETERS, 6)},
    {"expand", "16384 x 6144, nf4 to bf16", expand, BYTES(T *M, 2 + 4.127 / 8),
     .packed = RP_LOWBIT_NF4},
    {"expand", "mxfp4 to bf16", expand, BYTES(T *M, 2 + 4.25 / 8), .packed = RP_LOWBIT_MXFP4},
    {"expand", "fp8 to bf16", expand, BYTES(T *M, 3), .packed = RP_LOWBIT_FP8},
    {"add", "16384 x 2048", add, BYTES(T *C, 6)},
    {"fill", "48 Mi of fp32", fill, BYTES(PARAMETERS, 4)},
};

static void
setup(Bench *bench)
{
    for (size_t i = 0; i < G_N_ELEMENTS(bench->big); i++)
        bench->big[i] = rp_bench_random(bench->dtype, T * M, 1);
    bench->logits = rp_bench_random(bench->dtype, CHUNK * V, 3);
    bench->head = rp_bench_random(bench->dtype, V * C, 0.02);
    bench->d_head = rp_bench_memory(V * C * sizeof(float));
    bench->floats = rp_bench_memory(PARAMETERS * sizeof(float));
    bench->rows = rp_bench_memory(T * HEADS * sizeof(float));
    bench->table[0] = rp_bench_memory(LENGTH * D / 2 * sizeof(float));
    bench->table[1] = rp_bench_memory(LENGTH * D / 2 * sizeof(float));
    bench->sum = rp_bench_memory(sizeof(double));
    bench->workspace = rp_bench_memory((size_t)64 << 20);
    fill_ids(bench);
}

typedef struct {
    const Bench *bench;
    const Entry *entry;
} Run;

static void
run(const void *data)
{
    const Run *this = data;

    this->entry->run(this->bench, this->entry);
}

gboolean
rp_bench_layers(const RpBench *given)
{
    Bench bench = {.dtype = given->half_sums ? RP_DTYPE_FP16 : RP_DTYPE_BF16,
                   .half_sums = given->half_sums,
                   .kernels = given->kernels,
                   .stream = given->stream};

    setup(&bench);
    rp_bench_must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    printf("%-20s %-30s %10s %10s %10s\n", "operation", "shape", "us", "GB/s", "TFLOP/s");
    for (size_t i = 0; i < G_N_ELEMENTS(entries); i++) {
        const Entry *entry = &entries[i];

        if (given->half_sums && !g_str_has_prefix(entry->name, "matmul"))
            continue;
        double ms = rp_bench_median_ms(given, run, &(Run){&bench, entry});
        printf("%-20s %-30s %10.1f ", entry->name, entry->shape, ms * 1e3);
        if (entry->bytes > 0)
            printf("%10.0f\n", entry->bytes / ms * 1e-6);
        else
            printf("%10s %10.0f\n", "", entry->operations / ms * 1e-9);
        fflush(stdout);
    }
    return TRUE;
}
