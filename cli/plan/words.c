/* roundpipe plan: words and figures that text and JSON share. */
#include <string.h>

#include "cli/plan/plan.h"
#include "core/base/units.h"

char *
rp_plan_number(double value)
{
    g_autofree char *digits = g_strdup_printf("%.0f", value);
    GString *text = g_string_new(NULL);
    gsize length = strlen(digits);

    for (gsize i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            g_string_append_c(text, ',');
        g_string_append_c(text, digits[i]);
    }
    return g_string_free(text, FALSE);
}

static void append_words(GString *text, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void
append_words(GString *text, const char *format, ...)
{
    va_list arguments;

    if (text->len > 0)
        g_string_append_c(text, ' ');
    va_start(arguments, format);
    g_string_append_vprintf(text, format, arguments);
    va_end(arguments);
}

char *
rp_plan_remedy_words(const RpAdviseRemedy *remedy)
{
    GString *text = g_string_new(NULL);
    guint changes = remedy->changes;

    if (changes & RP_ADVISE_CHANGE_GPU)
        append_words(text, "--gpu %s", remedy->gpu->name);
    if (changes & RP_ADVISE_CHANGE_HOST_MEMORY)
        append_words(text, "--host-memory %" G_GUINT64_FORMAT "GiB", remedy->host_bytes / RP_GIB);
    if (changes & RP_ADVISE_CHANGE_ROUND)
        append_words(text, "--round %u", remedy->round);
    if (changes & RP_ADVISE_CHANGE_MICRO_BATCH)
        append_words(text, "--micro-batch 1");
    if (changes & RP_ADVISE_CHANGE_LEAN)
        append_words(text, "--optimizer lean");
    if (changes & RP_ADVISE_CHANGE_SYNC)
        append_words(text, "--sync");
    if (changes & RP_ADVISE_CHANGE_SEQUENCE)
        append_words(text, "--sequence %u", remedy->sequence);
    return g_string_free(text, FALSE);
}

const char *
rp_plan_waits_words(RpAdviseWaits waits)
{
    static const char *const words[] = {
        [RP_ADVISE_WAITS_LITTLE] = NULL,
        [RP_ADVISE_WAITS_OPTIMIZER] = "the optimizer on the host",
        [RP_ADVISE_WAITS_SUMS] = "sums of rounds' gradients on the host",
        [RP_ADVISE_WAITS_UPLOADS] = "uploads from the host",
        [RP_ADVISE_WAITS_DOWNLOADS] = "downloads to the host",
        [RP_ADVISE_WAITS_STAGES] = "each other, because stages are uneven or few",
    };

    return words[waits];
}

char *
rp_plan_run_name(const RpAdviseRun *run)
{
    if (!run->options.schedule->dispatched)
        return g_strdup(run->options.schedule->name);
    return g_strdup_printf("%s %s", run->options.schedule->name,
                           run->options.async ? "async" : "sync");
}

const char *
rp_plan_device_name(const RpAdviseQuery *query)
{
    return query->gpu != NULL       ? query->gpu->title
           : query->profile != NULL ? query->profile->device
                                    : NULL;
}

void
rp_plan_count_parameters(const RpProfile *profile, guint64 *parameters, guint64 *trained)
{
    guint element = rp_profile_element_bytes(profile);

    *parameters = 0;
    *trained = 0;
    for (guint i = 0; i < profile->n_layers; i++) {
        const RpLayer *layer = &profile->layers[i];

        *parameters += (layer->parameter_bytes - layer->tied_bytes) / element;
        if (layer->gradient_bytes > 0)
            *trained +=
                (layer->gradient_bytes - MIN(layer->gradient_bytes, layer->tied_bytes)) / element;
    }
}

guint64
rp_plan_checkpoint_bytes(const RpProfile *profile, const RpPlanOptions *options)
{
    guint element = rp_profile_element_bytes(profile);
    guint64 parameters, trained;

    rp_plan_count_parameters(profile, &parameters, &trained);
    return parameters * element + trained * 3 * sizeof(float) +
           (options->async ? trained * element : 0);
}

guint
rp_plan_batch_to_hide(const RpAdviseRun *run, guint batch)
{
    double compute_ns = (double)run->step_ns * (1 - run->bubble_ratio);
    double times = compute_ns > 0 ? (double)run->optimizer_ns / compute_ns : 0;
    guint gpus = run->options.gpus;
    guint unit = gpus * run->sequences;

    if (times <= 1 || times * batch > G_MAXINT)
        return 0;
    return ((guint)(times * batch) / unit + 1) * unit;
}

const RpAdviseRun *
rp_plan_shown_run(const RpAdvice *advice)
{
    return advice->best != NULL      ? advice->best
           : advice->instead != NULL ? advice->instead
                                     : advice->nearest;
}
