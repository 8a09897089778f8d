#include "exec/measure/profile.h"

#include <sched.h>
#include <string.h>

#include "core/base/units.h"
#include "exec/measure/measure.h"

#define DEFAULT_SECONDS 0.5
#define DEFAULT_RUNS 100
#define HEAD_SHARE 16
#define LINK_SECONDS 0.1 /* for each measurement of links alone */
#define LINK_LAYER_BYTES (64 * RP_MIB)
#define BOX_PARAMETERS G_GUINT64_CONSTANT(4000000000) /* more than no cache holds */

guint
rp_usable_processors(void)
{
    cpu_set_t set;
    int n = 0;

    /* fails with more processors than the set holds */
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    return n > 0 ? (guint)n : g_get_num_processors();
}

static void
copy_times(const RpLayer *from, RpLayer *to)
{
    to->forward_ns = from->forward_ns;
    to->recompute_ns = from->recompute_ns;
    to->recompute_last_ns = from->recompute_last_ns;
    to->backward_ns = from->backward_ns;
    to->weight_gradient_ns = from->weight_gradient_ns;
    to->forward_spread_ns = from->forward_spread_ns;
    to->recompute_spread_ns = from->recompute_spread_ns;
    to->backward_spread_ns = from->backward_spread_ns;
    to->expand_ns = from->expand_ns;
    memcpy(to->saved, from->saved, sizeof to->saved);
}

/* The first layer of each class is measured, the others get its times. */
static gboolean
measure_layers(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network,
               const RpWeights *weights, RpProfile *profile, GError **error)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        const guint like = rp_network_layer_class(network, l);

        /* an embedding copies rows and multiplies nothing, so that the card stays within its power */
        measurer->over_swings = profile->layers[l].kind != RP_LAYER_EMBEDDING;
        measurer->settle = l == rp_profile_first_block(profile) ? RP_SETTLE : 0;
        if (like < l)
            copy_times(&profile->layers[like], &profile->layers[l]);
        else if (!rp_measure_layer(measurer, probe, network, weights, l, profile, error))
            return FALSE;
    }
    measurer->over_swings = FALSE;
    return TRUE;
}

static void
set_origin(RpProfile *profile, RpProbe *probe, guint devices)
{
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();

    rp_profile_take(&profile->source, g_strdup("measured"));
    rp_profile_take(&profile->date,
                    now != NULL ? g_date_time_format(now, "%Y-%m-%d") : g_strdup(""));
    profile->gpus = devices;
    probe->ops->describe(probe, profile);
}

static guint
count_classes(const RpNetwork *network)
{
    guint n = 0;

    for (guint l = 0; l < rp_network_n_layers(network); l++)
        n += rp_network_layer_class(network, l) == l;
    return n;
}

gboolean
rp_measurer_begin_work(RpMeasurer *measurer, RpProbe *probe, const RpProfile *profile,
                       GError **error)
{
    if (measurer->network == NULL)
        return TRUE;
    measurer->work = rp_measure_work_begin(measurer, probe, TRUE, measurer->network, NULL,
                                           rp_profile_first_block(profile), profile, error);
    return measurer->work != NULL;
}

gboolean
rp_measurer_end_work(RpMeasurer *measurer, GError **error)
{
    return rp_measure_work_end(g_steal_pointer(&measurer->work), error);
}

/* @optimizer: (nullable) */
static gboolean
measure_machine(RpMeasurer *measurer, RpProbe *probe, RpMeasureOptimizer *optimizer,
                RpProfile *profile, GError **error)
{
    RpLinks *links = &profile->links;

    if (optimizer != NULL) /* links are measured alone */
        rp_measure_optimizer_wait(optimizer);
    if (!probe->ops->measure_links(probe, measurer, profile, error))
        return FALSE;
    if (optimizer != NULL && !rp_measure_optimizer_finish(optimizer, measurer, probe, error))
        return FALSE;
    /* host memory allows at least the rate of one of them alone */
    links->host_bytes_per_s =
        MAX(MAX(links->host_bytes_per_s, MAX(links->h2d_bytes_per_s, links->d2h_bytes_per_s)),
            (double)rp_measure_optimizer_traffic(profile) * profile->optimizer_parameters_per_s);
    return TRUE;
}

static void
set_hop(const RpNetwork *network, RpProfile *profile)
{
    RpLinks *links = &profile->links;
    const double hidden = (double)rp_network_hidden_bytes(network);

    /* down and up again */
    links->hop_ns = 2 * links->copy_latency_ns +
                    llround((hidden / links->d2h_bytes_per_s + hidden / links->h2d_bytes_per_s) *
                            (double)RP_NS_PER_S);
}

RpProfile *
rp_measure_box(RpProbe *probe, const RpMeasureOptions *options, GError **error)
{
    g_return_val_if_fail(probe && options, NULL);

    RpMeasureOptions resolved = *options;
    const gboolean steps = options->optimizer_threads > 0;
    RpMeasurer measurer = {.options = &resolved,
                           .n_measures = probe->ops->n_link_measures +
                                         (steps ? 1 + rp_probe_has_links(probe) : 0)};
    g_autoptr(RpProfile) box = rp_profile_new(1);
    g_autoptr(RpMeasureOptimizer) optimizer = NULL;

    resolved.seconds = LINK_SECONDS;
    resolved.max_runs = DEFAULT_RUNS;
    set_origin(box, probe, resolved.devices);
    box->layers[0].parameter_bytes = LINK_LAYER_BYTES;
    if (steps)
        optimizer = rp_measure_optimizer_new(&resolved, RP_DTYPE_BF16, BOX_PARAMETERS, box, FALSE);
    if (!measure_machine(&measurer, probe, optimizer, box, error))
        return NULL;
    box->n_layers = 0;
    return g_steal_pointer(&box);
}

gboolean
rp_measure_memory(RpProbe *probe, const RpNetwork *network, guint devices, guint64 *bytes,
                  GError **error)
{
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++)
        if (rp_network_layer_class(network, l) == l &&
            !rp_measure_run_once(probe, network, l, profile, error))
            return FALSE;
    profile->gpus = devices;
    probe->ops->describe(probe, profile);
    *bytes = profile->gpu_memory_bytes;
    return TRUE;
}

guint64
rp_measure_head_memory(RpProbe *probe, guint64 limit_bytes)
{
    g_autoptr(RpProfile) profile = rp_profile_new(1);

    if (!rp_probe_has_links(probe))
        return 0;
    profile->gpus = 1;
    probe->ops->describe(probe, profile);
    /* whole GiB: the free memory differs by a little from run to run */
    return (limit_bytes > 0 ? limit_bytes : profile->gpu_memory_bytes) / RP_GIB * RP_GIB /
           HEAD_SHARE;
}

RpProfile *
rp_measure_profile(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                   const RpMeasureOptions *options, GError **error)
{
    g_return_val_if_fail(probe && network && options, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpMeasureOptions resolved = *options;

    resolved.devices = MAX(options->devices, 1);
    resolved.seconds = options->seconds > 0 ? options->seconds : DEFAULT_SECONDS;
    resolved.max_runs = options->max_runs > 0 ? options->max_runs : DEFAULT_RUNS;
    resolved.optimizer_threads = MAX(options->optimizer_threads, 1);
    const guint classes = count_classes(network);
    const guint layers = classes + (rp_network_is_packed(network) ? classes : 0) +
                         (rp_probe_has_links(probe) ? classes - 2 : 0) + /* blocks */
                         (probe->n_beside > 0);                          /* one of them alone */
    RpMeasurer measurer = {.options = &resolved,
                           .n_measures = layers + probe->ops->n_link_measures + 1 +
                                         rp_probe_has_links(probe)};
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    set_origin(profile, probe, resolved.devices);
    measurer.network = network;
    g_autoptr(RpMeasureOptimizer) optimizer = rp_measure_optimizer_new(
        &resolved, rp_network_options(network)->dtype,
        rp_weights_elements(rp_network_weights(network)), profile, rp_probe_has_links(probe));

    if (!measure_layers(&measurer, probe, network, weights, profile, error) ||
        !measure_machine(&measurer, probe, optimizer, profile, error))
        return NULL;
    set_hop(network, profile);
    probe->ops->describe(probe, profile); /* once more: all kernels are loaded now */
    return g_steal_pointer(&profile);
}
