/*
 * How fast the CUDA kernels are, at the shapes of Qwen3-1.7B (C 2048, m 6144, V 151936, 16 query
 * and 8 kv heads of 128) and 16384 tokens, in bf16: medians by CUDA events. GB/s count what an
 * operation must read and write at the least, TFLOP/s its multiplications and additions (causal
 * attention: half a square). Inputs are random: constant ones draw less power, and clocks rise.
 * --half-sums: the matmuls alone, in fp16, with fp16 sums where C is fp16.
 * --warm-up SECONDS: each operation runs that long before it is timed, so that clocks are those of
 * a long run at the power limit; else 3 times.
 */
#include <stdio.h>
#include <stdlib.h>

#include "exec/cuda/kernels/kernels.h"

#define T ((size_t)16384)
#define C ((size_t)2048)
#define M ((size_t)6144)
#define V ((size_t)151936)
#define CHUNK ((size_t)1024)
#define HEADS ((size_t)16)
#define KV_HEADS ((size_t)8)
#define D ((size_t)128)
#define LENGTH ((size_t)2048)         /* of a sequence */
#define PARAMETERS ((size_t)50331648) /* of an optimizer's part: elements */
#define WARM_UP 3
#define REPEATS 15

typedef struct {
    RpDtype dtype; /* of matmuls; all else is bf16 */
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

typedef struct {
    const char *name, *shape;
    void (*run)(const Bench *bench);
    double bytes, operations; /* one is 0 */
} Entry;

static void
must(cudaError_t status, const char *what)
{
    g_autoptr(GError) error = NULL;

    if (rp_cuda_ok(status, what, &error))
        return;
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static void *
room(size_t bytes)
{
    void *block = NULL;

    must(cudaMalloc(&block, bytes), "cudaMalloc");
    must(cudaMemset(block, 0, bytes), "cudaMemset");
    return block;
}

/* @n random values of 16 bits, about normal, times @spread; repeats itself after a while. */
static void *
random_room(RpDtype dtype, size_t n, double spread)
{
    const size_t period = MIN(n, ((size_t)4 << 20) + 32);
    g_autofree guint16 *values = g_new(guint16, period);
    guint16 (*from_float)(float) = dtype == RP_DTYPE_FP16 ? rp_fp16_from_float : rp_bf16_from_float;
    g_autoptr(GRand) random = g_rand_new_with_seed(20261120);
    char *block = room(n * sizeof *values);

    for (size_t i = 0; i < period; i++) {
        const double sum = g_rand_double(random) + g_rand_double(random) + g_rand_double(random);

        values[i] = from_float((float)(2 * spread * (sum - 1.5)));
    }
    for (size_t i = 0; i < n; i += period)
        must(cudaMemcpy(block + i * sizeof *values, values, MIN(period, n - i) * sizeof *values,
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
    return block;
}

static int32_t *
upload(const int32_t *values, size_t n)
{
    int32_t *block = room(n * sizeof *values);

    must(cudaMemcpy(block, values, n * sizeof *values, cudaMemcpyHostToDevice), "cudaMemcpy");
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

/* @bias: or NULL */
static void
matmul_biased(const Bench *bench, RpMatmulForm form, size_t m, size_t n, size_t k, const void *a,
              const void *b, const void *bias, void *c)
{
    const gboolean gradient = form == RP_MATMUL_TN;

    bench->kernels->matmul(bench->stream,
                           &(RpMatmulArgs){.form = form,
                                           .m = m,
                                           .n = n,
                                           .k = k,
                                           .a = a,
                                           .b = b,
                                           .c = c,
                                           .bias = bias,
                                           .a_dtype = bench->dtype,
                                           .b_dtype = bench->dtype,
                                           .c_dtype = gradient ? RP_DTYPE_FP32 : bench->dtype,
                                           .accumulate = gradient,
                                           .half_sums = bench->half_sums,
                                           .workspace = bench->workspace});
}

static void
matmul(const Bench *bench, RpMatmulForm form, size_t m, size_t n, size_t k, const void *a,
       const void *b, void *c)
{
    matmul_biased(bench, form, m, n, k, a, b, NULL, c);
}

static void
matmul_q(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NT, T, C, C, bench->big[0], bench->big[1], bench->big[2]);
}

/* A bias of q by a pass of its own, and by the matmul. */
static void
matmul_q_then_bias(const Bench *bench)
{
    matmul_q(bench);
    bench->kernels->bias_forward(
        bench->stream,
        &(RpBiasArgs){
            .dtype = bench->dtype, .tokens = T, .n = C, .bias = bench->head, .y = bench->big[2]});
}

static void
matmul_q_with_bias(const Bench *bench)
{
    matmul_biased(bench, RP_MATMUL_NT, T, C, C, bench->big[0], bench->big[1], bench->head,
                  bench->big[2]);
}

static void
matmul_up(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NT, T, M, C, bench->big[0], bench->big[1], bench->big[2]);
}

static void
matmul_down(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NT, T, C, M, bench->big[0], bench->big[1], bench->big[2]);
}

static void
matmul_up_input(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NN, T, C, M, bench->big[0], bench->big[1], bench->big[2]);
}

static void
matmul_down_input(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NN, T, M, C, bench->big[0], bench->big[1], bench->big[2]);
}

static void
matmul_up_weight(const Bench *bench)
{
    matmul(bench, RP_MATMUL_TN, M, C, T, bench->big[0], bench->big[1], bench->floats);
}

static void
matmul_down_weight(const Bench *bench)
{
    matmul(bench, RP_MATMUL_TN, C, M, T, bench->big[0], bench->big[1], bench->floats);
}

static void
matmul_head(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NT, CHUNK, V, C, bench->big[0], bench->head, bench->logits);
}

static void
matmul_head_input(const Bench *bench)
{
    matmul(bench, RP_MATMUL_NN, CHUNK, C, V, bench->logits, bench->head, bench->big[2]);
}

static void
matmul_head_weight(const Bench *bench)
{
    matmul(bench, RP_MATMUL_TN, V, C, CHUNK, bench->logits, bench->big[0], bench->d_head);
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

static void
attention_forward(const Bench *bench)
{
    const RpAttentionArgs args = attention_args(bench);

    bench->kernels->attention_forward(bench->stream, &args);
}

static void
attention_backward(const Bench *bench)
{
    const RpAttentionArgs args = attention_args(bench);

    bench->kernels->attention_backward(bench->stream, &args);
}

static RpRmsnormArgs
rmsnorm_args(const Bench *bench, size_t rows, size_t n, gboolean residual)
{
    return (RpRmsnormArgs){.dtype = RP_DTYPE_BF16,
                           .rows = rows,
                           .n = n,
                           .epsilon = 1e-6f,
                           .x = bench->big[0],
                           .residual = residual ? bench->big[1] : NULL,
                           .sum = residual ? bench->big[2] : NULL,
                           .weight = bench->head,
                           .y = bench->big[3],
                           .rstd = bench->rows,
                           .dy = bench->big[1],
                           .d_residual = residual ? bench->big[2] : NULL,
                           .dx = bench->big[3],
                           .d_weight = bench->floats,
                           .workspace = bench->workspace};
}

static void
rmsnorm_forward(const Bench *bench)
{
    const RpRmsnormArgs args = rmsnorm_args(bench, T, C, FALSE);

    bench->kernels->rmsnorm_forward(bench->stream, &args);
}

static void
rmsnorm_sum_forward(const Bench *bench)
{
    const RpRmsnormArgs args = rmsnorm_args(bench, T, C, TRUE);

    bench->kernels->rmsnorm_forward(bench->stream, &args);
}

static void
rmsnorm_head_forward(const Bench *bench)
{
    const RpRmsnormArgs args = rmsnorm_args(bench, T * HEADS, D, FALSE);

    bench->kernels->rmsnorm_forward(bench->stream, &args);
}

static void
rmsnorm_backward(const Bench *bench)
{
    const RpRmsnormArgs args = rmsnorm_args(bench, T, C, TRUE);

    bench->kernels->rmsnorm_backward(bench->stream, &args);
}

static void
rmsnorm_head_backward(const Bench *bench)
{
    const RpRmsnormArgs args = rmsnorm_args(bench, T * HEADS, D, FALSE);

    bench->kernels->rmsnorm_backward(bench->stream, &args);
}

static void
rope(const Bench *bench)
{
    bench->kernels->rope_forward(
        bench->stream, &(RpRopeArgs){RP_DTYPE_BF16, T, HEADS, D, bench->positions, bench->table[0],
                                     bench->table[1], bench->big[0], bench->big[1]});
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

static void
norm_rope_q(const Bench *bench)
{
    const RpNormRopeArgs args = norm_rope_args(bench, HEADS);

    bench->kernels->norm_rope_forward(bench->stream, &args);
}

static void
norm_rope_k(const Bench *bench)
{
    const RpNormRopeArgs args = norm_rope_args(bench, KV_HEADS);

    bench->kernels->norm_rope_forward(bench->stream, &args);
}

static void
norm_rope_q_backward(const Bench *bench)
{
    const RpNormRopeArgs args = norm_rope_args(bench, HEADS);

    bench->kernels->norm_rope_backward(bench->stream, &args);
}

static void
norm_rope_k_backward(const Bench *bench)
{
    const RpNormRopeArgs args = norm_rope_args(bench, KV_HEADS);

    bench->kernels->norm_rope_backward(bench->stream, &args);
}

static void
swiglu_forward(const Bench *bench)
{
    bench->kernels->swiglu_forward(bench->stream, &(RpSwigluArgs){.dtype = RP_DTYPE_BF16,
                                                                  .n = T * M,
                                                                  .gate = bench->big[0],
                                                                  .up = bench->big[1],
                                                                  .y = bench->big[2]});
}

static void
swiglu_backward(const Bench *bench)
{
    bench->kernels->swiglu_backward(bench->stream, &(RpSwigluArgs){.dtype = RP_DTYPE_BF16,
                                                                   .n = T * M,
                                                                   .gate = bench->big[0],
                                                                   .up = bench->big[1],
                                                                   .dy = bench->big[2],
                                                                   .d_gate = bench->big[3],
                                                                   .d_up = bench->big[4]});
}

static void
swiglu_backward_product(const Bench *bench)
{
    bench->kernels->swiglu_backward(bench->stream, &(RpSwigluArgs){.dtype = RP_DTYPE_BF16,
                                                                   .n = T * M,
                                                                   .gate = bench->big[0],
                                                                   .up = bench->big[1],
                                                                   .dy = bench->big[2],
                                                                   .d_gate = bench->big[3],
                                                                   .d_up = bench->big[4],
                                                                   .product = bench->big[5]});
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

static void
embedding_forward(const Bench *bench)
{
    const RpEmbeddingArgs args = embedding_args(bench);

    bench->kernels->embedding_forward(bench->stream, &args);
}

static void
embedding_backward(const Bench *bench)
{
    const RpEmbeddingArgs args = embedding_args(bench);

    bench->kernels->embedding_backward(bench->stream, &args);
}

static void
cross_entropy(const Bench *bench)
{
    bench->kernels->cross_entropy(
        bench->stream, &(RpCrossEntropyArgs){RP_DTYPE_BF16, CHUNK, V, bench->logits, bench->labels,
                                             1.0f, TRUE, bench->sum, NULL, bench->workspace});
}

static void
bias_forward(const Bench *bench)
{
    bench->kernels->bias_forward(bench->stream,
                                 &(RpBiasArgs){RP_DTYPE_BF16, T, C, bench->head, bench->big[0]});
}

static void
bias_backward(const Bench *bench)
{
    bench->kernels->bias_backward(bench->stream, &(RpBiasArgs){.dtype = RP_DTYPE_BF16,
                                                               .tokens = T,
                                                               .n = C,
                                                               .dy = bench->big[0],
                                                               .d_bias = bench->floats,
                                                               .workspace = bench->workspace});
}

static void
sum_squares(const Bench *bench)
{
    bench->kernels->sum_squares(bench->stream,
                                &(RpSumSquaresArgs){RP_DTYPE_FP32, PARAMETERS, bench->floats,
                                                    bench->sum, NULL, bench->workspace});
}

static void
convert(const Bench *bench)
{
    bench->kernels->convert(bench->stream,
                            &(RpElementsArgs){PARAMETERS, bench->floats, NULL, bench->big[0],
                                              RP_DTYPE_FP32, RP_DTYPE_FP32, RP_DTYPE_BF16});
}

static void
add(const Bench *bench)
{
    bench->kernels->add(bench->stream,
                        &(RpElementsArgs){T * C, bench->big[0], bench->big[1], bench->big[2],
                                          RP_DTYPE_BF16, RP_DTYPE_BF16, RP_DTYPE_BF16});
}

static void
fill(const Bench *bench)
{
    bench->kernels->fill(bench->stream, bench->floats, RP_DTYPE_FP32, PARAMETERS, 0.0f);
}

#define PRODUCT(m, n, k) .operations = 2.0 * (double)(m) * (double)(n) * (double)(k)
#define ATTENTION (4.0 * (double)(T * LENGTH / 2) * (double)(HEADS * D))

static const Entry entries[] = {
    {"matmul NT", "q: 16384 x 2048 x 2048", matmul_q, PRODUCT(T, C, C)},
    {"matmul NT, then bias", "q", matmul_q_then_bias, PRODUCT(T, C, C)},
    {"matmul NT with bias", "q", matmul_q_with_bias, PRODUCT(T, C, C)},
    {"matmul NT", "up: 16384 x 6144 x 2048", matmul_up, PRODUCT(T, M, C)},
    {"matmul NT", "down: 16384 x 2048 x 6144", matmul_down, PRODUCT(T, C, M)},
    {"matmul NN", "d up: 16384 x 2048 x 6144", matmul_up_input, PRODUCT(T, C, M)},
    {"matmul NN", "d down: 16384 x 6144 x 2048", matmul_down_input, PRODUCT(T, M, C)},
    {"matmul TN +=", "d W up: 6144 x 2048 x 16384", matmul_up_weight, PRODUCT(T, C, M)},
    {"matmul TN +=", "d W down: 2048 x 6144 x 16384", matmul_down_weight, PRODUCT(T, C, M)},
    {"matmul NT", "head: 1024 x 151936 x 2048", matmul_head, PRODUCT(CHUNK, V, C)},
    {"matmul NN", "d head: 1024 x 2048 x 151936", matmul_head_input, PRODUCT(CHUNK, V, C)},
    {"matmul TN +=", "d W head: 151936 x 2048 x 1024", matmul_head_weight, PRODUCT(CHUNK, V, C)},
    {"attention", "8 x 2048, 16/8 heads of 128", attention_forward, .operations = ATTENTION},
    {"attention backward", "", attention_backward, .operations = 2.5 * ATTENTION},
    {"rmsnorm", "16384 x 2048", rmsnorm_forward, .bytes = 4.0 * (double)(T * C)},
    {"rmsnorm of a sum", "", rmsnorm_sum_forward, .bytes = 8.0 * (double)(T * C)},
    {"rmsnorm backward", "with d residual", rmsnorm_backward, .bytes = 8.0 * (double)(T * C)},
    {"rmsnorm", "262144 x 128", rmsnorm_head_forward, .bytes = 4.0 * (double)(T * C)},
    {"rmsnorm backward", "262144 x 128", rmsnorm_head_backward, .bytes = 6.0 * (double)(T * C)},
    {"rope", "16384 x 16 x 128", rope, .bytes = 4.0 * (double)(T * C)},
    {"norm and rope", "16384 x 16 x 128", norm_rope_q, .bytes = 4.0 * (double)(T * C)},
    {"norm and rope", "16384 x 8 x 128", norm_rope_k, .bytes = 2.0 * (double)(T * C)},
    {"norm rope backward", "16384 x 16 x 128", norm_rope_q_backward,
     .bytes = 6.0 * (double)(T * C)},
    {"norm rope backward", "16384 x 8 x 128", norm_rope_k_backward, .bytes = 3.0 * (double)(T * C)},
    {"swiglu", "16384 x 6144", swiglu_forward, .bytes = 6.0 * (double)(T * M)},
    {"swiglu backward", "", swiglu_backward, .bytes = 10.0 * (double)(T * M)},
    {"swiglu backward", "and the product", swiglu_backward_product,
     .bytes = 12.0 * (double)(T * M)},
    {"embedding", "16384 x 2048", embedding_forward, .bytes = 4.0 * (double)(T * C)},
    {"embedding backward", "of about 9900 ids", embedding_backward,
     .bytes = (double)(C * (2 * T + 8 * 9900))},
    {"cross entropy", "1024 x 151936", cross_entropy, .bytes = 4.0 * (double)(CHUNK * V)},
    {"bias", "16384 x 2048", bias_forward, .bytes = 4.0 * (double)(T * C)},
    {"bias backward", "", bias_backward, .bytes = 2.0 * (double)(T * C)},
    {"sum of squares", "48 Mi of fp32", sum_squares, .bytes = 4.0 * (double)PARAMETERS},
    {"convert", "48 Mi, fp32 to bf16", convert, .bytes = 6.0 * (double)PARAMETERS},
    {"add", "16384 x 2048", add, .bytes = 6.0 * (double)(T * C)},
    {"fill", "48 Mi of fp32", fill, .bytes = 4.0 * (double)PARAMETERS},
};

static void
setup(Bench *bench)
{
    for (size_t i = 0; i < G_N_ELEMENTS(bench->big); i++)
        bench->big[i] = random_room(bench->dtype, T * M, 1);
    bench->logits = random_room(bench->dtype, CHUNK * V, 3);
    bench->head = random_room(bench->dtype, V * C, 0.02);
    bench->d_head = room(V * C * sizeof(float));
    bench->floats = room(PARAMETERS * sizeof(float));
    bench->rows = room(T * HEADS * sizeof(float));
    bench->table[0] = room(LENGTH * D / 2 * sizeof(float));
    bench->table[1] = room(LENGTH * D / 2 * sizeof(float));
    bench->sum = room(sizeof(double));
    bench->workspace = room((size_t)64 << 20);
    fill_ids(bench);
}

static int
by_value(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;

    return (x > y) - (x < y);
}

/* A few runs are on their way at a time, so that the GPU does not wait for the host. */
static void
warm_up(const Bench *bench, const Entry *entry, cudaStream_t stream, double seconds)
{
    const gint64 end_us = g_get_monotonic_time() + (gint64)(seconds * G_USEC_PER_SEC);
    cudaEvent_t done[2];
    guint n = 0;

    for (guint i = 0; i < 2; i++)
        must(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
    for (; g_get_monotonic_time() < end_us; n++) {
        /* an event that was never recorded is done */
        must(cudaEventSynchronize(done[n % 2]), entry->name);
        for (guint i = 0; i < WARM_UP; i++)
            entry->run(bench);
        must(cudaEventRecord(done[n % 2], stream), "cudaEventRecord");
    }
    for (guint i = 0; i < 2; i++)
        cudaEventDestroy(done[i]);
}

/* Median of one run, milliseconds. @warm_up_s: or 0 */
static float
measure(const Bench *bench, const Entry *entry, cudaStream_t stream, double warm_up_s)
{
    g_autoptr(GError) error = NULL;
    float times[REPEATS];
    cudaEvent_t start, end;

    must(cudaEventCreate(&start), "cudaEventCreate");
    must(cudaEventCreate(&end), "cudaEventCreate");
    warm_up(bench, entry, stream, warm_up_s);
    for (int i = -WARM_UP; i < REPEATS; i++) {
        must(cudaEventRecord(start, stream), "cudaEventRecord");
        entry->run(bench);
        must(cudaEventRecord(end, stream), "cudaEventRecord");
        must(cudaEventSynchronize(end), entry->name);
        must(cudaEventElapsedTime(&times[MAX(i, 0)], start, end), "cudaEventElapsedTime");
    }
    if (!bench->kernels->check(bench->stream, &error)) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    qsort(times, REPEATS, sizeof *times, by_value);
    return times[REPEATS / 2];
}

typedef struct {
    gboolean half_sums;
    double warm_up_s;
} Options;

static gboolean
parse(int *argc, char ***argv, Options *options)
{
    const GOptionEntry known[] = {
        {"half-sums", 0, 0, G_OPTION_ARG_NONE, &options->half_sums, "Matmuls alone, fp16 sums",
         NULL},
        {"warm-up", 0, 0, G_OPTION_ARG_DOUBLE, &options->warm_up_s,
         "Run each operation so long before it is timed", "SECONDS"},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) error = NULL;

    g_option_context_add_main_entries(context, known, NULL);
    if (!g_option_context_parse(context, argc, argv, &error))
        fprintf(stderr, "%s\n", error->message);
    else if (*argc > 1)
        fprintf(stderr, "expected no argument, found \"%s\"\n", (*argv)[1]);
    else if (!(options->warm_up_s >= 0 && options->warm_up_s <= 3600))
        fprintf(stderr, "--warm-up: expected 0 to 3600 seconds, found %g\n", options->warm_up_s);
    else
        return TRUE;
    return FALSE;
}

int
main(int argc, char **argv)
{
    Options options = {0};
    g_autoptr(GError) error = NULL;
    struct cudaDeviceProp device;
    cudaStream_t stream;
    int count = 0;
    Bench bench;

    if (!parse(&argc, &argv, &options))
        return 2;
    bench = (Bench){.dtype = options.half_sums ? RP_DTYPE_FP16 : RP_DTYPE_BF16,
                    .half_sums = options.half_sums,
                    .kernels = rp_cuda_kernels()};
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return 77;
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    bench.stream = rp_cuda_stream_new(0, stream, &error);
    if (!bench.stream) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    setup(&bench);
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    printf("%s, %s, median of %d", device.name, options.half_sums ? "fp16, fp16 sums" : "bf16",
           REPEATS);
    if (options.warm_up_s > 0)
        printf(" after %g s each", options.warm_up_s);
    printf("\n\n");
    printf("%-20s %-30s %10s %10s %10s\n", "operation", "shape", "us", "GB/s", "TFLOP/s");
    for (size_t i = 0; i < G_N_ELEMENTS(entries); i++) {
        const Entry *entry = &entries[i];
        double ms;

        if (options.half_sums && !g_str_has_prefix(entry->name, "matmul"))
            continue;
        ms = (double)measure(&bench, entry, stream, options.warm_up_s);
        printf("%-20s %-30s %10.1f ", entry->name, entry->shape, ms * 1e3);
        if (entry->bytes > 0)
            printf("%10.0f\n", entry->bytes / ms * 1e-6);
        else
            printf("%10s %10.0f\n", "", entry->operations / ms * 1e-9);
        fflush(stdout);
    }
    rp_cuda_stream_free(bench.stream);
    return 0;
}
