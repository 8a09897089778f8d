/*
 * Measures how fast processors step each state format of the optimizer (core/base/moments.h), in caches: every thread
 * steps parameters of its own over and over, all at the same time, as two threads of one processor share its units. In
 * memory a format is as fast as its bytes allow, or as this.
 */
#include "exec/measure/measure.h"
#include "exec/optim/optimizer.h"

#define PARAMETERS 16384 /* parameters of a thread: 18 bytes each, within its own cache */
#define PARAMETER_BYTES 12
#define SPAN 8                /* steps that are timed together: an even number */
#define SHARE_OF_SECONDS 0.08 /* share of a kind of layer: to measure, and half of it before */

typedef struct {
    RpStateFormat form;
    gint64 measured_us;
    double *parameters_per_s; /* [thread] */
} Forms;

typedef struct {
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    guint16 *gradient,
        *published; /* [2,PARAMETERS]: shared weights are read in one and written in the other */
} Share;

/* Steps for @us. Returns: parameters a second of the median span */
static double
step_for(const Share *share, gint64 us)
{
    g_autoptr(GArray) spans_ns = g_array_new(FALSE, FALSE, sizeof(gint64));
    const gint64 end_us = g_get_monotonic_time() + us;
    gint64 start_us = g_get_monotonic_time();

    do {
        for (guint i = 0; i < SPAN; i++) {
            const RpOptimizerStep step = {.learning_rate = 1e-4,
                                          .gradient_scale = 1,
                                          .n_parameters = PARAMETERS,
                                          .gradient = {{share->gradient}},
                                          .gradient_dtype = RP_DTYPE_BF16,
                                          .published = share->published + i % 2 * PARAMETERS,
                                          .published_dtype = RP_DTYPE_BF16};

            rp_optimizer_layer_apply(share->optimizer, share->layer, &step);
            rp_optimizer_layer_finish(share->layer);
        }
        const gint64 now_us = g_get_monotonic_time();
        const gint64 span_ns = 1000 * MAX(now_us - start_us, 1);

        g_array_append_val(spans_ns, span_ns);
        start_us = now_us;
    } while (start_us < end_us);

    const RpTimes times = rp_times_of((gint64 *)(void *)spans_ns->data, spans_ns->len);

    return (double)SPAN * PARAMETERS * 1e9 / (double)times.median_ns;
}

static double
share_rate(RpStateFormat form, gint64 measured_us)
{
    RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(GError) error = NULL;

    options.form = form;
    g_autoptr(RpOptimizer) optimizer = rp_optimizer_new(&options, NULL, NULL, &error);
    if (optimizer == NULL)
        return 0;
    guint8 *state = g_aligned_alloc0(PARAMETERS, PARAMETER_BYTES, 4096);
    guint16 *numbers = g_aligned_alloc0(PARAMETERS, 3 * sizeof *numbers, 4096);
    Share share = {.optimizer = optimizer, .gradient = numbers, .published = numbers + PARAMETERS};
    double rate;

    for (gsize i = 0; i < PARAMETERS; i++)
        share.gradient[i] = rp_bf16_from_float(1e-3f * (float)(i % 61) - 0.03f);
    share.layer = rp_optimizer_layer_new(optimizer, state, PARAMETERS, NULL, 0);
    if (form.shared)
        rp_optimizer_layer_share(share.layer, share.published + PARAMETERS);
    step_for(&share, measured_us / 2);
    rate = step_for(&share, measured_us);
    rp_optimizer_layer_free(share.layer);
    g_aligned_free(state);
    g_aligned_free(numbers);
    return rate;
}

static void
run_shares(gsize first, gsize n, gpointer data)
{
    const Forms *forms = data;

    for (gsize i = first; i < first + n; i++)
        forms->parameters_per_s[i] = share_rate(forms->form, forms->measured_us);
}

void
rp_measure_layouts(RpPool *pool, guint n_threads, double seconds, RpProfile *profile)
{
    g_autofree double *each = g_new0(double, n_threads);
    const gint64 measured_us = (gint64)(SHARE_OF_SECONDS * 1e6 * seconds);
    const gboolean shared = rp_profile_element_bytes(profile) == sizeof(guint16);

#define MEASURE(name, rule_, moments_, master_)                                                    \
    {                                                                                              \
        Forms forms = {{rule_, master_, moments_, (master_) != RP_MOMENTS_FP32 && shared},         \
                       measured_us,                                                                \
                       each};                                                                      \
        double *all = &profile->cached_parameters_per_s[rule_][moments_][master_];                 \
                                                                                                   \
        rp_pool_run(pool, 0, n_threads, 1, run_shares, &forms);                                    \
        *all = 0;                                                                                  \
        for (guint i = 0; i < n_threads; i++)                                                      \
            *all += each[i];                                                                       \
        *all = CLAMP(*all, 1e6, 1e15); /* a file's range */                                        \
    }
    RP_STATE_FORMATS(MEASURE)
#undef MEASURE
}
