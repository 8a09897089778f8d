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
 *
 * Each state format, with `formats`: parameters per second of one thread in its processor's own caches, where
 * only instructions count, and of all threads in memory, beside a copy by as many threads.
 *
 * Threads step disjoint parts of one layer, as they copy disjoint parts of it. Bytes are those that a format
 * reads and writes of a parameter, by the layout of its state: nothing that a processor reads only because it
 * writes. Everything is measured in spans, in turn, and the fastest counts: other programs on the machine take
 * whole spans.
 *
 * Arrays of a layer of 2^26 parameters lie at powers of two from each other, and meet in the same banks of
 * memory: fp32 moves a third there. So the default is no power of two.
 *
 * Threads that bring a format to 80 % of this copy are 0.8 copy / (bytes x parameters per second in the caches),
 * if a processor is no slower beside busy ones.
 *
 *   bench-optimizer formats [SECONDS A FORMAT AND VARIANT [THREADS [MILLIONS OF PARAMETERS]]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "exec/optim/optimizer.h"

#define ROUNDS 40
#define PAUSE_US 2000
#define ROUNDS_APART 4
#define MOST_VARIANTS 8

typedef struct {
    gsize n;
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    float *state;       /* the layer's state, 3 n */
    uint16_t *gradient; /* ROUNDS_APART n: gradients of the rounds, one after the other */
    uint16_t *published;
    float *words; /* 4 n: as many bytes as the optimizer moves through; copied half to half */
} Bench;

typedef struct {
    guint8 *from;
    guint8 *to;
} Copy;

static void
copy_share(gsize first, gsize n, gpointer data)
{
    const Copy *copy = data;

    memcpy(copy->to + first, copy->from + first, n);
}

/* Copies around the caches. */
static void
stream_share(gsize first, gsize n, gpointer data)
{
    const Copy *copy = data;

    rp_adamw_best()->publish((const float *)(const void *)(copy->from + first),
                             (float *)(void *)(copy->to + first), RP_DTYPE_FP32, n / sizeof(float));
}

/* Reads and writes in place. */
static void
invert_share(gsize first, gsize n, gpointer data)
{
    const Copy *copy = data;
    guint64 *words = (guint64 *)(void *)(copy->from + first);

    for (gsize i = 0; i < n / sizeof *words; i++)
        words[i] = ~words[i];
}

typedef enum { COPY, STEP, LEAN, EARLY, NORM, ACCUMULATE, WIDEN, PUBLISH } Kind;

typedef struct {
    const char *name;
    Kind kind;
    guint bytes;  /* a parameter, read and written */
    guint rounds; /* whose gradients are read; 0: their sum in fp32 */
    RpPoolFunc copy;
} Pass;

/* A step: gradient 2, state 12 read and 12 written, weight 2. The lean one publishes its weights behind it,
 * and an early one writes nothing else. */
static const Pass passes[] = {
    {"memcpy", COPY, 16, .copy = copy_share},
    {"streaming copy", COPY, 16, .copy = stream_share},
    {"in place", COPY, 32, .copy = invert_share},
    {"fused", STEP, 28, 1},
    {"lean", LEAN, 32, 1},
    {"fused, sum", STEP, 30, 0},
    {"fused, 2", STEP, 30, 2},
    {"fused, 4", STEP, 34, ROUNDS_APART},
    {"early", EARLY, 16, 1},
    {"early, 4", EARLY, 22, ROUNDS_APART},
    {"norm", NORM, 2, 1},
    {"norm, sum", NORM, 4, 0},
    {"norm, 2", NORM, 4, 2},
    {"norm, 4", NORM, 8, ROUNDS_APART},
    {"accumulate", ACCUMULATE, 10},
    {"copy gradients", WIDEN, 6},
    {"copy weights", PUBLISH, 6},
};

static void
run(Bench *bench, RpPool *pool, const Pass *pass)
{
    const gboolean lean = pass->kind == LEAN;
    const RpAdamwOps *ops = rp_optimizer_ops(bench->optimizer);
    Copy copy = {(guint8 *)bench->words, (guint8 *)(bench->words + 2 * bench->n)};
    RpOptimizerStep step = {
        .learning_rate = 1e-4,
        .gradient_scale = 1e-3,
        .n_parameters = bench->n,
        .gradient = {{pass->rounds == 0 ? (void *)bench->words : NULL}},
        .published = lean ? NULL : bench->published,
        .gradient_dtype = pass->rounds == 0 ? RP_DTYPE_FP32 : RP_DTYPE_BF16,
        .published_dtype = RP_DTYPE_BF16,
    };

    for (guint k = 0; k < pass->rounds; k++)
        step.gradient.rounds[k] = bench->gradient + k * bench->n;
    if (pass->kind == COPY)
        rp_pool_run(pool, 0, pass->bytes / 2 * bench->n, 16384, pass->copy, &copy);
    if (pass->kind == NORM)
        rp_optimizer_sum_squares_of_sum(bench->optimizer, step.gradient, (RpGradient){{NULL}},
                                        step.gradient_dtype, bench->n);
    if (pass->kind == EARLY)
        rp_optimizer_layer_preview(bench->optimizer, bench->layer, &step);
    if (pass->kind == ACCUMULATE)
        rp_sums_accumulate(pool, ops, bench->words, &(const void *){bench->gradient}, 1,
                           RP_DTYPE_BF16, FALSE, bench->n);
    if (pass->kind == WIDEN)
        rp_sums_widen(pool, ops, bench->gradient, RP_DTYPE_BF16, bench->words, bench->n);
    if (pass->kind == STEP || lean)
        rp_optimizer_layer_apply(bench->optimizer, bench->layer, &step);
    if (pass->kind == PUBLISH || lean)
        rp_optimizer_layer_publish(bench->optimizer, bench->layer, 0, bench->n, bench->published,
                                   RP_DTYPE_BF16);
    if (pass->kind == STEP || lean)
        rp_optimizer_layer_finish(bench->layer);
}

static double
seconds_since(gint64 start_us)
{
    return (double)(g_get_monotonic_time() - start_us) * 1e-6;
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
}

static void
compare(Bench *bench, RpPool *pool)
{
    double best[MOST_VARIANTS][G_N_ELEMENTS(passes)] = {{0}}; /* parameters per second */
    const RpAdamwOps *const *variants = rp_adamw_variants();
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    const guint n_threads = rp_pool_n_threads(pool);
    double most = 0; /* bytes per second of a copy */

    for (guint round = 0; round < ROUNDS; round++)
        for (guint v = 0; variants[v] != NULL; v++) {
            if (!variants[v]->supported())
                continue;
            g_autoptr(GError) error = NULL;
            g_clear_pointer(&bench->optimizer, rp_optimizer_free);
            bench->optimizer = rp_optimizer_new(&options, variants[v], pool, &error);
            die_of(error);
            for (guint i = 0; i < G_N_ELEMENTS(passes); i++) {
                const gint64 start_us = g_get_monotonic_time();

                run(bench, pool, &passes[i]);
                best[v][i] = MAX(best[v][i], (double)bench->n / seconds_since(start_us));
            }
        }
    for (guint i = 0; i < G_N_ELEMENTS(passes); i++) {
        double here = 0;

        for (guint v = 0; variants[v] != NULL; v++)
            here = MAX(here, best[v][i] * passes[i].bytes);
        if (passes[i].kind == COPY) {
            most = MAX(most, here);
            printf("%u       %-24s %7.2f\n", n_threads, passes[i].name, here * 1e-9);
            continue;
        }
        for (guint v = 0; variants[v] != NULL; v++)
            if (variants[v]->supported())
                printf("%u       %-15s %-8s %7.2f  %13.0f  %5.1f %%\n", n_threads, passes[i].name,
                       variants[v]->name, best[v][i] * passes[i].bytes * 1e-9, best[v][i] * 1e-6,
                       100 * best[v][i] * passes[i].bytes / most);
    }
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

static void
measure_passes(const char *millions)
{
    Bench bench = {.n = (gsize)(millions != NULL ? g_ascii_strtoull(millions, NULL, 10) : 16)
                        << 20};

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
    }
    rp_optimizer_layer_free(bench.layer);
    g_aligned_free(bench.state);
    g_aligned_free(bench.words);
    g_aligned_free(bench.published);
    g_aligned_free(bench.gradient);
}

/* ---- state formats ---- */

#define CACHED ((gsize)16384) /* parameters of a span in the caches */
#define SPAN ((gsize)262144)  /* parameters of a thread's span in memory */
#define MILLIONS 61           /* size of the layer in memory: more than caches hold */
#define STATE ((gsize)12)     /* most bytes of state a parameter */
#define COPIED (8 * SPAN)     /* bytes that a thread copies in a span: of a parameter, 8 */

static const struct {
    const char *name;
    RpStateFormat form;
} formats[] = {
    {"fp32", {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_FP32}},
    {"bf16", {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_BF16}},
    {"int8", {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8}},
    {"fp32, master bf16", {RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_FP32, .shared = TRUE}},
    {"bf16, master bf16", {RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_BF16, .shared = TRUE}},
    {"int8, master bf16", {RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_INT8, .shared = TRUE}},
    {"lion fp32", {RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_FP32}},
    {"lion bf16", {RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_BF16}},
    {"lion int8, master bf16", {RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_INT8, .shared = TRUE}},
};

/* Memory that all threads work on; it lies on huge pages if the system has them. */
typedef struct {
    RpPool *pool;
    gsize n; /* parameters in memory: whole spans of all threads */
    guint8 *state;
    uint16_t *gradient;
    uint16_t *published[2]; /* a step of shared weights reads one and writes the other */
} Memory;

static gsize
span_of(const Memory *memory)
{
    return SPAN * rp_pool_n_threads(memory->pool);
}

/* The fastest of memcpy(), of a copy around the caches, and of one in place: bytes read and written per
 * second by all threads. */
static double
copy_bytes_per_s(const Memory *memory, double seconds)
{
    const RpPoolFunc variants[] = {copy_share, stream_share, invert_share};
    const gint64 begin_us = g_get_monotonic_time();
    const gsize bytes = COPIED * rp_pool_n_threads(memory->pool);
    const gsize half = memory->n * STATE / 2 / bytes * bytes;
    double best_s = G_MAXDOUBLE;

    for (gsize at = 0; seconds_since(begin_us) < seconds; at = (at + bytes) % half)
        for (guint variant = 0; variant < G_N_ELEMENTS(variants); variant++) {
            Copy copy = {memory->state + at, memory->state + half + at};
            const gint64 start_us = g_get_monotonic_time();

            rp_pool_run(memory->pool, 0, bytes, 4096, variants[variant], &copy);
            best_s = MIN(best_s, seconds_since(start_us));
            at = (at + bytes) % half;
        }
    return 2.0 * (double)bytes / best_s;
}

/* Parameters per second of a layer of @n, stepped @span at a time by @pool; the fastest of @count spans in
 * a row. */
static double
parameters_per_s(const Memory *memory, RpPool *pool, const RpAdamwOps *ops, RpStateFormat form,
                 gsize n, gsize span, guint count, double seconds)
{
    const gint64 begin_us = g_get_monotonic_time();
    RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(GError) error = NULL;
    g_autoptr(RpOptimizer) optimizer = NULL;
    g_autoptr(RpOptimizerLayer) layer = NULL;
    gint64 start_us = begin_us;
    double best = 0;

    options.form = form;
    optimizer = rp_optimizer_new(&options, ops, pool, &error);
    die_of(error);
    layer = rp_optimizer_layer_new(optimizer, memory->state, n, NULL, 0);
    if (form.shared)
        rp_optimizer_layer_share(layer, memory->published[1]);
    for (guint64 done = 0; done <= 2 * count || seconds_since(begin_us) < seconds; done++) {
        const gsize first = done * span % n;
        const RpOptimizerStep step = {.learning_rate = 1e-4,
                                      .gradient_scale = 1e-3,
                                      .first = first,
                                      .n_parameters = span,
                                      .gradient = {{memory->gradient + first}},
                                      .gradient_dtype = RP_DTYPE_BF16,
                                      .published = memory->published[done * span / n % 2] + first,
                                      .published_dtype = RP_DTYPE_BF16};

        if (done % count == 0) {
            if (done > count)
                best = MAX(best, (double)(count * span) / seconds_since(start_us));
            start_us = g_get_monotonic_time();
        }
        rp_optimizer_layer_apply(optimizer, layer, &step);
        if (first + span == n)
            rp_optimizer_layer_finish(layer);
    }
    return best;
}

/* Counts the state once read and once written, the gradient, and the published weight of a
 * parameter. */
static double
format_bytes(RpStateFormat form)
{
    return (double)rp_optimizer_state_traffic(form, RP_MOMENT_BLOCK) / RP_MOMENT_BLOCK + 4;
}

/* Measures one state format and variant. */
static void
measure(const Memory *memory, const char *name, RpStateFormat form, const RpAdamwOps *ops,
        double copy, double seconds)
{
    const double bytes = format_bytes(form);
    const double cached = parameters_per_s(memory, NULL, ops, form, CACHED, CACHED, 16, seconds);
    const double apart =
        parameters_per_s(memory, memory->pool, ops, form, memory->n, span_of(memory), 1, seconds);

    printf("%-23s %-8s %5.1f  %9.0f  %9.0f  %7.1f  %6.1f %%  %7.1f\n", name, ops->name, bytes,
           cached * 1e-6, apart * 1e-6, apart * bytes * 1e-9, 100 * apart * bytes / copy,
           0.8 * copy / (bytes * cached));
    fflush(stdout);
}

/* Measures every state format and variant with a pool of @n_threads. */
static void
measure_formats(double seconds, guint n_threads, gsize millions)
{
    GError *error = NULL;
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = n_threads}, &error);
    Memory memory = {.pool = pool};

    die_of(error);
    memory.n = MAX((millions << 20) / span_of(&memory), 2) * span_of(&memory);
    memory.state = new_array(memory.n, STATE);
    memory.gradient = new_array(memory.n, sizeof(uint16_t));
    for (guint i = 0; i < 2; i++)
        memory.published[i] = new_array(memory.n, sizeof(uint16_t));
    for (gsize i = 0; i < memory.n; i++)
        memory.gradient[i] = rp_bf16_from_float(sinf((float)(i % 65521)));
    double copy = copy_bytes_per_s(&memory, 4 * seconds);
    printf("%u threads copy %.1f GB/s, read and written\n"
           "                                        Mparameters/s                       threads\n"
           "format                  variant  bytes  in caches  in memory     GB/s   of copy  for "
           "80 %%\n",
           rp_pool_n_threads(pool), copy * 1e-9);
    for (gsize i = 0; i < G_N_ELEMENTS(formats); i++)
        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++)
            if ((*ops)->supported())
                measure(&memory, formats[i].name, formats[i].form, *ops, copy, seconds);
    for (guint i = 0; i < 2; i++)
        g_aligned_free(memory.published[i]);
    g_aligned_free(memory.state);
    g_aligned_free(memory.gradient);
}

int
main(int argc, char **argv)
{
    if (argc > 1 && g_str_equal(argv[1], "formats"))
        measure_formats(argc > 2 ? g_ascii_strtod(argv[2], NULL) : 0.5,
                        argc > 3 ? (guint)g_ascii_strtoull(argv[3], NULL, 10) : 0,
                        argc > 4 ? g_ascii_strtoull(argv[4], NULL, 10) : MILLIONS);
    else
        measure_passes(argc > 1 ? argv[1] : NULL);
    return 0;
}
