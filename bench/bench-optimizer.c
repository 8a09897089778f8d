/*
 * Bytes per second of the CPU optimizer, against a memory copy of the same run.
 *
 * Figure to hold (design.md §9): >= 80 % of the measured memory bandwidth at 28 bytes/parameter.
 *
 * The bandwidth is the best of memcpy(), a copy with non-temporal stores, and reading and writing
 * in place, over as many threads; read and written bytes both count. Everything is measured in
 * turn, several times, and the fastest time counts: other programs on the machine can only slow a
 * run down.
 *
 * With several rounds, the norm and the step read either an fp32 sum of the rounds or every round.
 *
 * "begin and end" is a run of the pool in which there is nothing to do, one after the other and
 * after a pause in which the threads go to sleep: the mean, microseconds.
 *
 *   bench-optimizer [MILLIONS OF PARAMETERS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "exec/optim/optimizer.h"

#define ROUNDS 40
#define FUSED_BYTES 28 /* a parameter: gradient 2, state 12 read and 12 written, weight 2 */
#define EARLY_BYTES 16 /* the same, of which nothing is written but the weight */
#define LEAN_BYTES 32  /* 26 without the weight; then 4 read, 2 written */
#define ACCUMULATE_BYTES 10
#define COPY_BYTES 6 /* gradients or weights: 2 and 4 */
#define PAUSE_US 2000
#define ROUNDS_APART 4

/* State formats other than fp32. */
static const RpStateFormat forms[] = {
    {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_BF16},
    {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8},
    {RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_BF16, .shared = TRUE},
    {RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_FP32},
    {RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_INT8, .shared = TRUE},
};
#define N_FORMS G_N_ELEMENTS(forms)

typedef struct {
    gsize n;
    RpOptimizer *optimizer;
    RpOptimizer *lion; /* uses the same variant */
    RpOptimizerLayer *layer;
    float *state;                      /* the layer's state, 3 n */
    RpOptimizerLayer *narrow[N_FORMS]; /* layers of `forms` */
    void *narrow_state[N_FORMS];
    uint16_t *gradient; /* ROUNDS_APART n: gradients of the rounds, one after the other */
    uint16_t *published;
    float *words; /* 4 n: as many bytes as the optimizer moves through; copied half to half */
} Bench;

typedef enum {
    MEMCPY,
    STREAM,
    IN_PLACE,
    FUSED,
    LEAN,
    FUSED_BF16, /* from here on as `forms` says */
    FUSED_INT8,
    FUSED_SHARED,
    FUSED_LION,
    FUSED_LEAST,
    FUSED_SUM,
    FUSED_TWO,
    FUSED_FOUR,
    EARLY,
    EARLY_FOUR,
    SUM_SQUARES,
    SUM_SQUARES_SUM,
    SUM_SQUARES_TWO,
    SUM_SQUARES_FOUR,
    ACCUMULATE,
    COPY_GRADIENTS,
    COPY_WEIGHTS,
    N_WHATS
} What;

static void
memcpy_share(gsize first, gsize n, gpointer data)
{
    Bench *bench = data;
    memcpy(bench->words + 2 * bench->n + first, bench->words + first, n * sizeof(float));
}

static void
stream_share(gsize first, gsize n, gpointer data)
{
    Bench *bench = data;
    rp_adamw_best()->publish(bench->words + first, bench->words + 2 * bench->n + first,
                             RP_DTYPE_FP32, n);
}

static void
in_place_share(gsize first, gsize n, gpointer data)
{
    Bench *bench = data;
    uint64_t line[8];

    for (gsize i = first; i + 16 <= first + n; i += 16) {
        memcpy(line, bench->words + i, sizeof line);
        for (guint j = 0; j < 8; j++)
            line[j] = ~line[j];
        memcpy(bench->words + i, line, sizeof line);
    }
}

/* Counts the state once read and once written, the gradient, and the published weight of a
 * parameter. */
static double
form_bytes(guint form)
{
    return (double)rp_optimizer_state_traffic(forms[form], RP_MOMENT_BLOCK) / RP_MOMENT_BLOCK + 4;
}

/* Bytes that @what moves, read and written. */
static double
bytes_of(const Bench *bench, What what)
{
    const double bytes[N_WHATS] = {[MEMCPY] = 16,
                                   [STREAM] = 16,
                                   [IN_PLACE] = 32,
                                   [FUSED] = FUSED_BYTES,
                                   [LEAN] = LEAN_BYTES,
                                   [FUSED_BF16] = form_bytes(0),
                                   [FUSED_INT8] = form_bytes(1),
                                   [FUSED_SHARED] = form_bytes(2),
                                   [FUSED_LION] = form_bytes(3),
                                   [FUSED_LEAST] = form_bytes(4),
                                   [FUSED_SUM] = FUSED_BYTES + 2,
                                   [FUSED_TWO] = FUSED_BYTES + 2,
                                   [FUSED_FOUR] = FUSED_BYTES + 6,
                                   [EARLY] = EARLY_BYTES,
                                   [EARLY_FOUR] = EARLY_BYTES + 6,
                                   [SUM_SQUARES] = 2,
                                   [SUM_SQUARES_SUM] = 4,
                                   [SUM_SQUARES_TWO] = 4,
                                   [SUM_SQUARES_FOUR] = 8,
                                   [ACCUMULATE] = ACCUMULATE_BYTES,
                                   [COPY_GRADIENTS] = COPY_BYTES,
                                   [COPY_WEIGHTS] = COPY_BYTES};
    return bytes[what] * (double)bench->n;
}

/* Lists the arrays of gradients that the pass reads. */
static RpGradient
gradient_of(const Bench *bench, What what)
{
    const guint rounds = what == FUSED_FOUR || what == EARLY_FOUR || what == SUM_SQUARES_FOUR
                             ? ROUNDS_APART
                         : what == FUSED_TWO || what == SUM_SQUARES_TWO ? 2
                                                                        : 1;
    RpGradient gradient = {{NULL}};

    if (what == FUSED_SUM || what == SUM_SQUARES_SUM)
        return (RpGradient){{bench->words}};
    for (guint k = 0; k < rounds; k++)
        gradient.rounds[k] = bench->gradient + k * bench->n;
    return gradient;
}

static void
run(Bench *bench, RpPool *pool, What what)
{
    const RpDtype dtype =
        what == FUSED_SUM || what == SUM_SQUARES_SUM ? RP_DTYPE_FP32 : RP_DTYPE_BF16;
    const RpOptimizerStep step = {
        .learning_rate = 1e-4,
        .gradient_scale = 1e-3,
        .n_parameters = bench->n,
        .gradient = gradient_of(bench, what),
        .published = what == LEAN ? NULL : bench->published,
        .gradient_dtype = dtype,
        .published_dtype = RP_DTYPE_BF16,
    };
    RpOptimizerLayer *layer;

    switch (what) {
    case MEMCPY:
        rp_pool_run(pool, 0, 2 * bench->n, 4096, memcpy_share, bench);
        return;
    case STREAM:
        rp_pool_run(pool, 0, 2 * bench->n, 4096, stream_share, bench);
        return;
    case IN_PLACE:
        rp_pool_run(pool, 0, 4 * bench->n, 4096, in_place_share, bench);
        return;
    case SUM_SQUARES:
    case SUM_SQUARES_SUM:
    case SUM_SQUARES_TWO:
    case SUM_SQUARES_FOUR:
        rp_optimizer_sum_squares_of_sum(bench->optimizer, gradient_of(bench, what),
                                        (RpGradient){{NULL}}, dtype, bench->n);
        return;
    case EARLY:
    case EARLY_FOUR:
        rp_optimizer_layer_preview(bench->optimizer, bench->layer, &step);
        return;
    case ACCUMULATE:
        rp_sums_accumulate(pool, rp_optimizer_ops(bench->optimizer), bench->words,
                           &(const void *){bench->gradient}, 1, RP_DTYPE_BF16, FALSE, bench->n);
        return;
    case COPY_GRADIENTS:
        rp_sums_widen(pool, rp_optimizer_ops(bench->optimizer), bench->gradient, RP_DTYPE_BF16,
                      bench->words, bench->n);
        return;
    case COPY_WEIGHTS:
        rp_optimizer_layer_publish(bench->optimizer, bench->layer, 0, bench->n, bench->published,
                                   RP_DTYPE_BF16);
        return;
    case FUSED_BF16:
    case FUSED_INT8:
    case FUSED_SHARED:
    case FUSED_LION:
    case FUSED_LEAST:
        layer = bench->narrow[what - FUSED_BF16];
        rp_optimizer_layer_apply(forms[what - FUSED_BF16].rule == RP_UPDATE_LION ? bench->lion
                                                                                 : bench->optimizer,
                                 layer, &step);
        rp_optimizer_layer_finish(layer);
        return;
    default:
        rp_optimizer_layer_apply(bench->optimizer, bench->layer, &step);
        if (what == LEAN)
            rp_optimizer_layer_publish(bench->optimizer, bench->layer, 0, bench->n,
                                       bench->published, RP_DTYPE_BF16);
        rp_optimizer_layer_finish(bench->layer);
    }
}

static double
bytes_per_s(Bench *bench, RpPool *pool, What what)
{
    const gint64 start_us = g_get_monotonic_time();
    run(bench, pool, what);
    return bytes_of(bench, what) * 1e6 / (double)(g_get_monotonic_time() - start_us);
}

static void
die_of(GError *error)
{
    if (error == NULL)
        return;
    fprintf(stderr, "bench-optimizer: %s\n", error->message);
    exit(1);
}

/* On huge pages if the system has them, as the optimizer's state is. */
static void *
new_array(gsize n, gsize bytes_each)
{
    const gsize huge = (gsize)2 << 20, bytes = (n * bytes_each + huge - 1) / huge * huge;
    void *array = g_aligned_alloc(1, bytes, huge);
    (void)madvise(array, bytes, MADV_HUGEPAGE);
    memset(array, 0, bytes);
    return array;
}

/* A layer with weights, gradients, and something to copy. */
static void
fill(Bench *bench, RpPool *pool)
{
    GError *error = NULL;
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    GRand *rand = g_rand_new_with_seed(1);

    bench->optimizer = rp_optimizer_new(&options, NULL, pool, &error);
    die_of(error);
    bench->layer = rp_optimizer_layer_new(bench->optimizer, bench->state, bench->n, NULL, 0);
    for (gsize i = 0; i < bench->n; i++) {
        bench->gradient[i] =
            rp_bf16_from_float(i < 65536 ? (float)g_rand_double_range(rand, -1, 1)
                                         : rp_float_from_bf16(bench->gradient[i - 65536]));
    }
    for (guint k = 1; k < ROUNDS_APART; k++)
        memcpy(bench->gradient + k * bench->n, bench->gradient, bench->n * sizeof(uint16_t));
    for (gsize i = 0; i < bench->n; i++)
        bench->state[i] = rp_float_from_bf16(bench->gradient[i]);
    g_rand_free(rand);
    for (guint m = 0; m < N_FORMS; m++) {
        RpAdamwOptions narrow = options;
        g_autoptr(RpOptimizer) optimizer = NULL;

        narrow.form = forms[m];
        optimizer = rp_optimizer_new(&narrow, NULL, pool, &error);
        die_of(error);
        bench->narrow_state[m] = new_array(rp_optimizer_state_bytes(narrow.form, bench->n), 1);
        bench->narrow[m] =
            rp_optimizer_layer_new(optimizer, bench->narrow_state[m], bench->n, NULL, 0);
        if (forms[m].shared)
            rp_optimizer_layer_share(bench->narrow[m], bench->published);
        rp_optimizer_layer_set_weights(bench->narrow[m], 0, bench->state, bench->n);
    }
}

static void
compare(Bench *bench, RpPool *pool)
{
    static const char *const names[N_WHATS] = {
        "memcpy",         "streaming copy", "in place",      "fused",   "lean",
        "fused, bf16",    "fused, int8",    "fused, shared", "lion",    "lion, shared int8",
        "fused, sum",     "fused, 2",       "fused, 4",      "early",   "early, 4",
        "norm",           "norm, sum",      "norm, 2",       "norm, 4", "accumulate",
        "copy gradients", "copy weights"};
    double best[8][N_WHATS] = {{0}};
    const RpAdamwOps *const *variants = rp_adamw_variants();
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    RpAdamwOptions lion = options;

    lion.form.rule = RP_UPDATE_LION;
    for (guint round = 0; round < ROUNDS; round++)
        for (guint v = 0; variants[v] != NULL; v++) {
            if (!variants[v]->supported())
                continue;
            g_autoptr(GError) error = NULL;
            g_clear_pointer(&bench->optimizer, rp_optimizer_free);
            bench->optimizer = rp_optimizer_new(&options, variants[v], pool, &error);
            die_of(error);
            g_clear_pointer(&bench->lion, rp_optimizer_free);
            bench->lion = rp_optimizer_new(&lion, variants[v], pool, &error);
            die_of(error);
            for (guint what = 0; what < N_WHATS; what++)
                best[v][what] = MAX(best[v][what], bytes_per_s(bench, pool, (What)what));
        }
    const guint n_threads = rp_pool_n_threads(pool);
    double most = 0;
    for (guint what = 0; what < FUSED; what++) {
        double here = 0;
        for (guint v = 0; variants[v] != NULL; v++)
            here = MAX(here, best[v][what]);
        most = MAX(most, here);
        printf("%u       %-24s %7.2f\n", n_threads, names[what], here * 1e-9);
    }
    for (guint what = FUSED; what < N_WHATS; what++)
        for (guint v = 0; variants[v] != NULL; v++)
            if (variants[v]->supported())
                printf("%u       %-15s %-8s %7.2f  %13.0f  %5.1f %%\n", n_threads, names[what],
                       variants[v]->name, best[v][what] * 1e-9,
                       best[v][what] / bytes_of(bench, (What)what) * (double)bench->n * 1e-6,
                       100 * best[v][what] / most);
}

static void
do_nothing(gsize first, gsize n, gpointer data)
{
    (void)first;
    (void)n;
    (void)data;
}

/* Returns the mean time of @n_runs empty runs, each begun after a pause of @pause_us;
 * microseconds. */
static double
empty_run_us(RpPool *pool, guint n_runs, gulong pause_us)
{
    gint64 sum_us = 0;

    for (guint i = 0; i < n_runs; i++) {
        if (pause_us > 0)
            g_usleep(pause_us);
        const gint64 start_us = g_get_monotonic_time();
        rp_pool_run(pool, 0, 2 * rp_pool_n_threads(pool), 1, do_nothing, NULL);
        sum_us += g_get_monotonic_time() - start_us;
    }
    return (double)sum_us / n_runs;
}

/* 1, 2, 4 ... and at last all processors. */
static guint
next_threads(guint n_threads)
{
    const guint all = g_get_num_processors();

    return n_threads == all ? all + 1 : MIN(2 * n_threads, all);
}

int
main(int argc, char **argv)
{
    Bench bench = {.n = (gsize)(argc > 1 ? g_ascii_strtoull(argv[1], NULL, 10) : 16) << 20};

    bench.gradient = new_array(ROUNDS_APART * bench.n, sizeof(uint16_t));
    bench.published = new_array(bench.n, sizeof(uint16_t));
    bench.state = new_array(3 * bench.n, sizeof(float));
    bench.words = new_array(4 * bench.n, sizeof(float));
    printf("%zu MiB of state, bf16 gradients and weights; fastest of %d, measured\n",
           (gsize)(3 * bench.n * sizeof(float) >> 20), ROUNDS);
    printf("threads what            variant     GB/s  Mparameters/s  of best\n");
    for (guint n_threads = 1; n_threads <= g_get_num_processors();
         n_threads = next_threads(n_threads)) {
        GError *error = NULL;
        g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = n_threads}, &error);
        die_of(error);
        if (bench.layer == NULL)
            fill(&bench, pool);
        compare(&bench, pool);
        printf("%u       begin and end: %.1f us, after a pause %.1f us\n", n_threads,
               empty_run_us(pool, 10000, 0), empty_run_us(pool, 200, PAUSE_US));
        g_clear_pointer(&bench.optimizer, rp_optimizer_free);
        g_clear_pointer(&bench.lion, rp_optimizer_free);
    }
    for (guint m = 0; m < N_FORMS; m++) {
        rp_optimizer_layer_free(bench.narrow[m]);
        g_aligned_free(bench.narrow_state[m]);
    }
    rp_optimizer_layer_free(bench.layer);
    g_aligned_free(bench.state);
    g_aligned_free(bench.words);
    g_aligned_free(bench.published);
    g_aligned_free(bench.gradient);
    return 0;
}
