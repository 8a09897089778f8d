/*
 * Each form of the CPU optimizer with one thread: parameters per second in the processor's own caches,
 * where only instructions count, and in memory, beside a copy.
 *
 * Both are measured in short spans, each timed alone, and the fastest counts: other programs on the
 * machine take whole spans. Threads that bring a form to 80 % of a copy of B bytes per second are
 * 0.8 B / (what one thread reaches in the caches).
 *
 *   bench-optimizer-forms [SECONDS A FORM AND VARIANT]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "exec/optim/optimizer.h"

#define CACHED ((gsize)16384) /* parameters of a span in the caches */
#define SPAN ((gsize)262144)  /* of one in memory */
#define APART (48 * SPAN)     /* of the layer in memory: more than caches hold */
#define STATE ((gsize)12)     /* most bytes of state a parameter */

static const struct {
    const char *name;
    RpOptimizerForm form;
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

/* What all spans work on; on huge pages if the system has them. */
typedef struct {
    guint8 *state;
    uint16_t *gradient;
    uint16_t *published;
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

/* Reads and writes in place. */
static void
invert(guint64 *words, gsize n)
{
    for (gsize i = 0; i < n; i++)
        words[i] = ~words[i];
}

/* The fastest of memcpy(), of a copy around the caches, and of what invert() does: bytes read and
 * written per second. */
static double
copy_bytes_per_s(const Memory *memory, double seconds)
{
    const gint64 begin_us = g_get_monotonic_time();
    const gsize half = APART * STATE / 2, bytes = 8 * SPAN;
    double best_s = G_MAXDOUBLE;

    for (gsize at = 0; seconds_since(begin_us) < seconds; at = (at + bytes) % (half - bytes)) {
        guint8 *from = memory->state + at, *to = from + half;
        gint64 start_us = g_get_monotonic_time();

        memcpy(to, from, bytes);
        best_s = MIN(best_s, seconds_since(start_us));
        start_us = g_get_monotonic_time();
        rp_adamw_best()->publish((const float *)(const void *)from, (float *)(void *)to,
                                 RP_DTYPE_FP32, bytes / sizeof(float));
        best_s = MIN(best_s, seconds_since(start_us));
        at = (at + bytes) % (half - bytes);
        start_us = g_get_monotonic_time();
        invert((guint64 *)(void *)(memory->state + at), bytes / sizeof(guint64));
        best_s = MIN(best_s, seconds_since(start_us));
    }
    return 2.0 * (double)bytes / best_s;
}

/* Parameters per second of a layer of @n, stepped @span at a time; the fastest of @count spans in a row. */
static double
parameters_per_s(const Memory *memory, const RpAdamwOps *ops, RpOptimizerForm form, gsize n,
                 gsize span, guint count, double seconds)
{
    const gint64 begin_us = g_get_monotonic_time();
    RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(GError) error = NULL;
    g_autoptr(RpOptimizer) optimizer = NULL;
    g_autoptr(RpOptimizerLayer) layer = NULL;
    gint64 start_us = begin_us;
    double best = 0;

    options.form = form;
    optimizer = rp_optimizer_new(&options, ops, NULL, &error);
    die_of(error);
    layer = rp_optimizer_layer_new(optimizer, memory->state, n, NULL, 0);
    if (form.shared)
        rp_optimizer_layer_share(layer, memory->published);
    for (guint64 done = 0; seconds_since(begin_us) < seconds; done++) {
        const gsize first = done * span % n;
        const RpOptimizerStep step = {.learning_rate = 1e-4,
                                      .gradient_scale = 1e-3,
                                      .first = first,
                                      .n_parameters = span,
                                      .gradient = {{memory->gradient + first}},
                                      .gradient_dtype = RP_DTYPE_BF16,
                                      .published = memory->published + first,
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

/* Of a parameter: of the state, read and written, of its gradient and its published weight. */
static double
bytes_of(RpOptimizerForm form)
{
    return (double)rp_optimizer_state_traffic(form, RP_MOMENT_BLOCK) / RP_MOMENT_BLOCK + 4;
}

int
main(int argc, char **argv)
{
    const double seconds = argc > 1 ? g_ascii_strtod(argv[1], NULL) : 0.5;
    const Memory memory = {new_array(APART * STATE), new_array(2 * APART), new_array(2 * APART)};
    double copy;

    for (gsize i = 0; i < APART; i++)
        memory.gradient[i] = rp_bf16_from_float(sinf((float)(i % 65521)));
    copy = copy_bytes_per_s(&memory, 4 * seconds);
    printf("copy: %.1f GB/s, read and written\n", copy * 1e-9);
    printf("form                    variant  bytes  in caches  in memory      of copy\n"
           "                                        Mparameters/s     GB/s\n");
    for (gsize i = 0; i < G_N_ELEMENTS(forms); i++)
        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++) {
            if (!(*ops)->supported())
                continue;
            const double bytes = bytes_of(forms[i].form);
            const double cached =
                parameters_per_s(&memory, *ops, forms[i].form, CACHED, CACHED, 16, seconds);
            const double apart =
                parameters_per_s(&memory, *ops, forms[i].form, APART, SPAN, 1, seconds);

            printf("%-23s %-8s %5.1f  %9.0f  %9.0f  %7.1f  %5.1f %%\n", forms[i].name, (*ops)->name,
                   bytes, cached * 1e-6, apart * 1e-6, apart * bytes * 1e-9,
                   100 * apart * bytes / copy);
            fflush(stdout);
        }
    g_aligned_free(memory.state);
    g_aligned_free(memory.gradient);
    g_aligned_free(memory.published);
    return 0;
}
