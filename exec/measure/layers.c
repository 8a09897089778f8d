/*
 * One layer as a stage of its own, run over and over:
 *
 *   embedding   |forward|backward|forward|backward| ...
 *   block       |forward|recompute|recompute as the last|backward|forward| ...
 *   head        |forward|fused|forward|fused| ...
 *
 * The head's loss and gradient are made in one go, so that its backward is what the fused stage
 * takes beyond the forward. The embedding has nothing to recompute but its output, for the layer
 * behind it. A block's recompute makes its output, too, unless it is the last of its stage, so that
 * it is run in both ways.
 */
#include "exec/measure/layers.h"

#include <stdatomic.h>

#define BESIDE_REPEATS 4 /* of all parts, in one go */

static void
run_forward(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_measured_layer_take_next(layer);
    layer->call.output = layer->room[RP_ROOM_OUTPUT];
    rp_network_forward(layer->network, &layer->call);
}

static void
run_recompute_last(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_measured_layer_take_next(layer);

    RpStageCall call = layer->call;

    call.n_boundaries = 0;
    rp_network_recompute(layer->network, &call);
}

static void
run_backward(gpointer data)
{
    RpMeasuredLayer *layer = data;

    layer->call.output = layer->d_input;
    rp_network_backward(layer->network, &layer->call);
}

static void
run_fused(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_measured_layer_take_next(layer);
    layer->call.output = layer->d_input;
    rp_network_fused(layer->network, &layer->call);
}

/* By kind: a forward first, and last the backward, of the head with the forward before it. */
static const struct {
    guint n;
    RpProbePart parts[4];
} kinds[] = {
    [RP_LAYER_EMBEDDING] = {2, {run_forward, run_backward}},
    [RP_LAYER_BLOCK] = {4,
                        {run_forward, rp_measured_layer_recompute, run_recompute_last,
                         run_backward}},
    [RP_LAYER_HEAD] = {2, {run_forward, run_fused}},
};

static gboolean
measure(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    const guint n = kinds[to->kind].n;
    RpTimes times[G_N_ELEMENTS(kinds[0].parts)];
    const RpTimes *recompute = &times[n > 2 ? 1 : 0], *backward = &times[n - 1];

    if (!rp_measurer_run(measurer, layer->probe, kinds[to->kind].parts, n, layer, times, error))
        return FALSE;
    to->forward_ns = rp_probe_typical_ns(layer->probe, &times[0]);
    to->forward_spread_ns = times[0].spread_ns;
    to->recompute_ns = rp_probe_typical_ns(layer->probe, recompute);
    to->recompute_spread_ns = recompute->spread_ns;
    if (n > 2)
        to->recompute_last_ns = MIN(rp_probe_typical_ns(layer->probe, &times[2]), to->recompute_ns);
    to->backward_ns = MAX(0, rp_probe_typical_ns(layer->probe, backward) -
                                 (to->kind == RP_LAYER_HEAD ? to->forward_ns : 0));
    to->backward_spread_ns = backward->spread_ns;
    return TRUE;
}

/* Last: it leaves zeros for weights. */
static gboolean
measure_expansion(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    const RpProbePart part = rp_measured_layer_expand;
    RpTimes times;

    if (to->upload_bytes == 0)
        return TRUE;
    if (!rp_measurer_run(measurer, layer->probe, &part, 1, layer, &times, error))
        return FALSE;
    to->expand_ns = rp_probe_typical_ns(layer->probe, &times);
    return TRUE;
}

/* ---- parts of a card ---- */

/* The same layer on another part of the card. */
typedef struct {
    RpMeasuredLayer run;
    RpLayerKind kind;
    GThread *thread;
    atomic_bool *ending;
    GError *error;
} Beside;

static gpointer
run_beside(gpointer data)
{
    Beside *beside = data;
    RpProbe *probe = beside->run.probe;
    gint64 ns[G_N_ELEMENTS(kinds[0].parts) * BESIDE_REPEATS];

    while (!atomic_load(beside->ending) && beside->error == NULL)
        (void)probe->ops->time(probe, kinds[beside->kind].parts, kinds[beside->kind].n,
                               BESIDE_REPEATS, &beside->run, ns, &beside->error);
    return NULL;
}

/* Times while all parts of the card run the layer @run; and how much faster a block is alone. */
static gboolean
measure_with_others(RpMeasurer *measurer, RpMeasuredLayer *run, const RpWeights *weights,
                    guint layer, RpProfile *profile, GError **error)
{
    RpLayer *to = &profile->layers[layer];
    const guint n = run->probe->n_beside;
    g_autofree Beside *others = g_new0(Beside, n);
    const RpMeasuredLayer like = *run;
    atomic_bool ending = FALSE;
    gboolean done = TRUE;

    for (guint i = 0; i < n && done; i++) {
        others[i] = (Beside){.run = {.probe = run->probe->beside[i],
                                     .network = like.network,
                                     .has_codes = like.has_codes,
                                     .routing = like.routing,
                                     .tokens = like.tokens},
                             .kind = to->kind,
                             .ending = &ending};
        done = rp_measured_layer_take_rooms(&others[i].run, profile, layer, error) &&
               rp_measured_layer_fill_rooms(&others[i].run, weights, profile, layer, error);
    }
    for (guint i = 0; i < n && done; i++)
        others[i].thread = g_thread_new("beside", run_beside, &others[i]);
    done = done && measure(measurer, run, to, error) && rp_measure_saved(measurer, run, to, error);
    atomic_store(&ending, TRUE);
    for (guint i = 0; i < n; i++) {
        if (others[i].thread != NULL)
            g_thread_join(others[i].thread);
        if (others[i].run.probe != NULL)
            rp_measured_layer_give_rooms(&others[i].run);
        if (others[i].error != NULL && done) {
            g_propagate_error(error, g_steal_pointer(&others[i].error));
            done = FALSE;
        }
        g_clear_error(&others[i].error);
    }
    if (done && n > 0 && to->kind == RP_LAYER_BLOCK && profile->alone_speed == 0) {
        RpLayer alone = *to;

        done = measure(measurer, run, &alone, error);
        if (done)
            profile->alone_speed =
                MAX(1, (double)(to->forward_ns + to->recompute_ns + to->backward_ns) /
                           (double)(alone.forward_ns + alone.recompute_ns + alone.backward_ns));
    }
    return done;
}

gboolean
rp_measure_layer(RpMeasurer *measurer, RpProbe *probe, const RpNetwork *network,
                 const RpWeights *weights, guint layer, RpProfile *profile, GError **error)
{
    RpLayer *to = &profile->layers[layer];
    const RpMeasureOptions *options = measurer->options;
    const RpWeights *given = options->routing > 0 ? NULL : weights;
    RpMeasuredLayer run = {.probe = probe,
                           .network = network,
                           .has_codes = rp_network_layout(network, layer)->has_codes,
                           .routing = options->routing,
                           .tokens = weights != NULL ? options->tokens : NULL};
    gboolean measured = FALSE;

    if (rp_measured_layer_take_rooms(&run, profile, layer, error) &&
        rp_measured_layer_fill_rooms(&run, given, profile, layer, error))
        measured = measure_with_others(measurer, &run, given, layer, profile, error) &&
                   measure_expansion(measurer, &run, to, error);
    rp_measured_layer_give_rooms(&run);
    to->weight_gradient_ns = to->backward_ns / 2;
    return measured;
}

gboolean
rp_measure_run_once(RpProbe *probe, const RpNetwork *network, guint layer, const RpProfile *profile,
                    GError **error)
{
    const RpLayerKind kind = profile->layers[layer].kind;
    RpMeasuredLayer run = {.probe = probe,
                           .network = network,
                           .has_codes = rp_network_layout(network, layer)->has_codes};
    gint64 ns[G_N_ELEMENTS(kinds[0].parts)];
    gboolean done = FALSE;

    if (!rp_measured_layer_take_rooms(&run, profile, layer, NULL))
        done = TRUE; /* where a layer has no room, a plan has none: it says so better */
    else if (rp_measured_layer_fill_rooms(&run, NULL, profile, layer, error))
        done = probe->ops->time(probe, kinds[kind].parts, kinds[kind].n, 1, &run, ns, error);
    rp_measured_layer_give_rooms(&run);
    return done;
}
