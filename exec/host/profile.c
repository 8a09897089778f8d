#include <sched.h>

#include "exec/host/profile-private.h"

#define DEFAULT_SECONDS 0.5
#define DEFAULT_RUNS 100

/* Processors that the process may use. */
static guint
usable_processors(void)
{
    cpu_set_t set;
    int n = 0;

    /* fails with more processors than the set has room for */
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    return n > 0 ? (guint)n : g_get_num_processors();
}

static void
set_string(char **string, char *value)
{
    g_free(*string);
    *string = value;
}

static void
describe(RpProfile *profile, const RpHostProfileOptions *options)
{
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();

    set_string(&profile->device, g_strdup("host"));
    set_string(&profile->source, g_strdup("measured"));
    set_string(&profile->date, now ? g_date_time_format(now, "%Y-%m-%d") : g_strdup(""));
    profile->gpus = options->devices;
    profile->processors = usable_processors();
}

static void
copy_times(const RpLayer *from, RpLayer *to)
{
    to->forward_ns = from->forward_ns;
    to->recompute_ns = from->recompute_ns;
    to->backward_ns = from->backward_ns;
    to->weight_gradient_ns = from->weight_gradient_ns;
    to->forward_spread_ns = from->forward_spread_ns;
    to->backward_spread_ns = from->backward_spread_ns;
}

/* The first layer of each kind is measured, the others get its times. */
static gboolean
measure_layers(RpMeasurer *measurer, const RpNetwork *network, const RpWeights *weights,
               RpProfile *profile, GError **error)
{
    const RpLayer *measured[RP_LAYER_HEAD + 1] = {NULL};

    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        if (measured[layer->kind] != NULL) {
            copy_times(measured[layer->kind], layer);
            continue;
        }
        if (!rp_measure_layer(measurer, network, weights, l, profile, error))
            return FALSE;
        measured[layer->kind] = layer;
    }
    return TRUE;
}

RpProfile *
rp_host_profile(const RpNetwork *network, const RpWeights *weights,
                const RpHostProfileOptions *options, GError **error)
{
    g_return_val_if_fail(network && options, NULL);
    g_return_val_if_fail(!error || !*error, NULL);

    RpHostProfileOptions resolved = *options;

    resolved.devices = MAX(options->devices, 1);
    resolved.seconds = options->seconds > 0 ? options->seconds : DEFAULT_SECONDS;
    resolved.max_runs = options->max_runs > 0 ? options->max_runs : DEFAULT_RUNS;
    RpMeasurer measurer = {.options = &resolved,
                           .n_measures = RP_LAYER_HEAD + 1 + RP_MEMORY_MEASURES};
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    describe(profile, &resolved);
    if (!measure_layers(&measurer, network, weights, profile, error) ||
        !rp_measure_memory(&measurer, network, profile, error))
        return NULL;
    return g_steal_pointer(&profile);
}
