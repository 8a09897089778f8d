/*
 * Each form of the CPU optimizer: parameters per second of one thread in its processor's own caches, where
 * only instructions count, and of all threads in memory, beside a copy by as many threads.
 *
 * Threads step disjoint parts of one layer, as they copy disjoint parts of it. Bytes are those that a form
 * reads and writes of a parameter, by the layout of its state: nothing that a processor reads only because it
 * writes. Everything is measured in spans, in turn, and the fastest counts: other programs on the machine take
 * whole spans.
 *
 * Arrays of a layer of 2^26 parameters lie at powers of two from each other, and meet in the same banks of
 * memory: fp32 moves a third there. So the default is no power of two.
 *
 * Threads that bring a form to 80 % of this copy are 0.8 copy / (bytes x parameters per second in the caches),
 * if a processor is no slower beside busy ones.
 *
 *   bench-optimizer-forms [SECONDS A FORM AND VARIANT [THREADS [MILLIONS OF PARAMETERS]]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "exec/optim/optimizer.h"

#define CACHED ((gsize)16384) /* parameters of a span in the caches */
#define SPAN ((gsize)262144)  /* parameters of a thread's span in memory */
#define MILLIONS 61           /* size of the layer in memory: more than caches hold */
#define STATE ((gsize)12)     /* most bytes of state a parameter */
#define COPIED (8 * SPAN)     /* bytes that a thread copies in a span: of a parameter, 8 */

static const struct {
    const char *name;
    RpStateFormat form;
} forms[] = {
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

static void *
new_array(gsize bytes)
{
    const gsize huge = (gsize)2 << 20, whole = (bytes + huge - 1) / huge * huge;
    void *array = g_aligned_alloc(1, whole, huge);

    (void)madvise(array, whole, MADV_HUGEPAGE);
    memset(array, 0, whole);
    return array;
}

static gsize
span_of(const Memory *memory)
{
    return SPAN * rp_pool_n_threads(memory->pool);
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
    fprintf(stderr, "bench-optimizer-forms: %s\n", error->message);
    exit(1);
}

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
bytes_of(RpStateFormat form)
{
    return (double)rp_optimizer_state_traffic(form, RP_MOMENT_BLOCK) / RP_MOMENT_BLOCK + 4;
}

/* Measures one state format and variant. */
static void
measure(const Memory *memory, const char *name, RpStateFormat form, const RpAdamwOps *ops,
        double copy, double seconds)
{
    const double bytes = bytes_of(form);
    const double cached = parameters_per_s(memory, NULL, ops, form, CACHED, CACHED, 16, seconds);
    const double apart =
        parameters_per_s(memory, memory->pool, ops, form, memory->n, span_of(memory), 1, seconds);

    printf("%-23s %-8s %5.1f  %9.0f  %9.0f  %7.1f  %6.1f %%  %7.1f\n", name, ops->name, bytes,
           cached * 1e-6, apart * 1e-6, apart * bytes * 1e-9, 100 * apart * bytes / copy,
           0.8 * copy / (bytes * cached));
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    const double seconds = argc > 1 ? g_ascii_strtod(argv[1], NULL) : 0.5;
    const guint n_threads = argc > 2 ? (guint)g_ascii_strtoull(argv[2], NULL, 10) : 0;
    const gsize millions = argc > 3 ? g_ascii_strtoull(argv[3], NULL, 10) : MILLIONS;
    GError *error = NULL;
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = n_threads}, &error);
    Memory memory = {.pool = pool};
    double copy;

    die_of(error);
    memory.n = MAX((millions << 20) / span_of(&memory), 2) * span_of(&memory);
    memory.state = new_array(memory.n * STATE);
    memory.gradient = new_array(2 * memory.n);
    for (guint i = 0; i < 2; i++)
        memory.published[i] = new_array(2 * memory.n);
    for (gsize i = 0; i < memory.n; i++)
        memory.gradient[i] = rp_bf16_from_float(sinf((float)(i % 65521)));
    copy = copy_bytes_per_s(&memory, 4 * seconds);
    printf("%u threads copy %.1f GB/s, read and written\n"
           "                                        Mparameters/s                       threads\n"
           "form                    variant  bytes  in caches  in memory     GB/s   of copy  for "
           "80 %%\n",
           rp_pool_n_threads(pool), copy * 1e-9);
    for (gsize i = 0; i < G_N_ELEMENTS(forms); i++)
        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++)
            if ((*ops)->supported())
                measure(&memory, forms[i].name, forms[i].form, *ops, copy, seconds);
    for (guint i = 0; i < 2; i++)
        g_aligned_free(memory.published[i]);
    g_aligned_free(memory.state);
    g_aligned_free(memory.gradient);
    return 0;
}
