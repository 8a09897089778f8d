/*
 * Recomputes of a block without groups of its tensors (core/profile/saved.h):
 *
 *   |forward, saving each|recompute|without attention|without q, k, v|without ...|recompute| ...
 */
#include "exec/measure/layers.h"

void
rp_measured_layer_recompute(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_measured_layer_take_next(layer);
    layer->call.output = layer->buffer[RP_MEASURE_OUTPUT];
    rp_network_recompute(layer->network, &layer->call);
}

/* Place of @group alone in its buffer. */
static RpSavedPlace
place_of(const RpMeasuredLayer *layer, guint group)
{
    const guint64 before =
        rp_network_saved_bytes(layer->network, layer->call.layers.first, (1u << group) - 1);

    return (RpSavedPlace){1u << group, (guint8 *)layer->buffer[RP_MEASURE_SAVED] + before};
}

/* Saves the values of a real forward, because the time of experts depends on their routing. */
static void
run_save(gpointer data)
{
    RpMeasuredLayer *layer = data;

    layer->call.output = layer->buffer[RP_MEASURE_OUTPUT];
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const RpSavedPlace place = place_of(layer, g);
        RpStageCall call = layer->call;

        call.saved = &place;
        rp_network_forward(layer->network, &call);
    }
}

static void
recompute_without(RpMeasuredLayer *layer, RpSavedGroup group)
{
    const RpSavedPlace place = place_of(layer, group);
    RpStageCall call = layer->call;

    call.output = layer->buffer[RP_MEASURE_OUTPUT];
    call.saved = &place;
    rp_network_recompute(layer->network, &call);
}

static void
run_without_attention(gpointer data)
{
    recompute_without(data, RP_SAVED_ATTENTION);
}

static void
run_without_qkv(gpointer data)
{
    recompute_without(data, RP_SAVED_QKV);
}

static void
run_without_residual(gpointer data)
{
    recompute_without(data, RP_SAVED_RESIDUAL);
}

static void
run_without_mlp(gpointer data)
{
    recompute_without(data, RP_SAVED_MLP);
}

gboolean
rp_measure_saved(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    static const RpProbePart save = run_save;
    static const RpProbePart parts[1 + RP_N_SAVED_GROUPS] = {
        rp_measured_layer_recompute,          [1 + RP_SAVED_ATTENTION] = run_without_attention,
        [1 + RP_SAVED_QKV] = run_without_qkv, [1 + RP_SAVED_RESIDUAL] = run_without_residual,
        [1 + RP_SAVED_MLP] = run_without_mlp,
    };
    RpTimes times[G_N_ELEMENTS(parts)];
    gint64 left_ns = to->recompute_ns, once_ns;

    if (to->kind != RP_LAYER_BLOCK || !rp_probe_has_links(layer->probe) || measurer->passes_alone)
        return TRUE;
    if (!layer->probe->ops->time(layer->probe, &save, 1, 1, layer, &once_ns, error))
        return FALSE;

    const gboolean over_swings = measurer->over_swings;

    measurer->over_swings = FALSE; /* only differences count: all parts have the same clocks */
    const gboolean measured =
        rp_measurer_run(measurer, layer->probe, parts, G_N_ELEMENTS(parts), layer, times, error);
    measurer->over_swings = over_swings;
    if (!measured)
        return FALSE;
    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const gint64 saved_ns = rp_probe_typical_ns(layer->probe, &times[0]) -
                                rp_probe_typical_ns(layer->probe, &times[1 + g]);

        if (to->saved[g].bytes == 0)
            continue;
        to->saved[g].recompute_ns = CLAMP(saved_ns, 0, left_ns);
        left_ns -= to->saved[g].recompute_ns;
    }
    return TRUE;
}
