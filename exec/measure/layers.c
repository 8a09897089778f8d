/*
 * One layer as a stage of its own, run over and over:
 *
 *   embedding   |forward|backward|forward|backward| ...
 *   block       |forward|recompute|recompute as the last|backward|forward| ...
 *   head        |forward|fused|forward|fused| ...
 *
 * The head's loss and gradient are made in one go, so that its backward is the time of the fused
 * stage beyond the forward. The embedding has nothing to recompute but its output, for the next
 * layer. A block's recompute makes its output, too, unless it is the last of its stage, so that
 * both variants are run.
 */
#include "exec/measure/measure.h"

#include <stdatomic.h>

/*
 * Recomputes of a block without groups of its tensors (core/profile/profile.h):
 *
 *   |forward, saving each|recompute|without attention|without q, k, v|without ...|recompute| ...
 */

static void
run_recompute(gpointer data)
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

/* In fp8 with the backward, which then quantises the inputs of layers whose outputs are saved. */
static void
recompute_with(RpMeasuredLayer *layer, const RpSavedPlace *saved)
{
    RpStageCall call = layer->call;

    call.output = layer->buffer[RP_MEASURE_OUTPUT];
    call.saved = saved;
    rp_network_recompute(layer->network, &call);
    if (!layer->has_fp8)
        return;
    call.output = layer->d_input;
    rp_network_backward(layer->network, &call);
}

static void
run_with_all(gpointer data)
{
    recompute_with(data, NULL);
}

static void
recompute_without(RpMeasuredLayer *layer, RpSavedGroup group)
{
    const RpSavedPlace place = place_of(layer, group);

    recompute_with(layer, &place);
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

/* Measures by how much a block's recompute and backward are shorter with each group of tensors that its forward may
 * save, where these would go over a link. All of them together take no more than the recompute. */
static gboolean
measure_saved(RpMeasurer *measurer, RpMeasuredLayer *layer, RpLayer *to, GError **error)
{
    static const RpProbePart save = run_save;
    static const RpProbePart parts[1 + RP_N_SAVED_GROUPS] = {
        run_with_all,
        [1 + RP_SAVED_ATTENTION] = run_without_attention,
        [1 + RP_SAVED_QKV] = run_without_qkv,
        [1 + RP_SAVED_RESIDUAL] = run_without_residual,
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

#define WORK_REPEATS 4 /* repeats of all parts, in one go */

static void
run_forward(gpointer data)
{
    RpMeasuredLayer *layer = data;

    rp_measured_layer_take_next(layer);
    layer->call.output = layer->buffer[RP_MEASURE_OUTPUT];
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

/* Parts of each kind of layer: a forward first, and last the backward, for the head together with
 * its forward. */
static const struct {
    guint n;
    RpProbePart parts[4];
} kinds[] = {
    [RP_LAYER_EMBEDDING] = {2, {run_forward, run_backward}},
    [RP_LAYER_BLOCK] = {4, {run_forward, run_recompute, run_recompute_last, run_backward}},
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

    if (to->upload_bytes == 0 || measurer->passes_alone)
        return TRUE;
    if (!rp_measurer_run(measurer, layer->probe, &part, 1, layer, &times, error))
        return FALSE;
    to->expand_ns = rp_probe_typical_ns(layer->probe, &times);
    return TRUE;
}

/* ---- layers at work beside a measurement ---- */

/* A layer that runs on one device until it is stopped. */
typedef struct {
    RpMeasuredLayer run;
    RpLayerKind kind;
    GThread *thread;
    atomic_bool *ending;
    GError *error;
} Worker;

struct _RpMeasureWork {
    guint n;
    atomic_bool ending;
    Worker workers[];
};

static gpointer
run_worker(gpointer data)
{
    Worker *worker = data;
    RpProbe *probe = worker->run.probe;
    gint64 ns[G_N_ELEMENTS(kinds[0].parts) * WORK_REPEATS];

    while (!atomic_load(worker->ending) && worker->error == NULL)
        (void)probe->ops->time(probe, kinds[worker->kind].parts, kinds[worker->kind].n,
                               WORK_REPEATS, &worker->run, ns, &worker->error);
    return NULL;
}

gboolean
rp_measure_work_end(RpMeasureWork *work, GError **error)
{
    gboolean done = TRUE;

    if (work == NULL)
        return TRUE;
    atomic_store(&work->ending, TRUE);
    for (guint i = 0; i < work->n; i++) {
        Worker *worker = &work->workers[i];

        if (worker->thread != NULL)
            g_thread_join(worker->thread);
        if (worker->run.probe != NULL)
            rp_measured_layer_give_buffers(&worker->run);
        if (worker->error != NULL && done)
            g_propagate_error(error, g_steal_pointer(&worker->error));
        done = done && worker->error == NULL && (error == NULL || *error == NULL);
        g_clear_error(&worker->error);
    }
    g_free(work);
    return done;
}

RpMeasureWork *
rp_measure_work_begin(const RpMeasurer *measurer, RpProbe *probe, gboolean on_probe,
                      const RpNetwork *network, const RpWeights *weights, guint layer,
                      const RpProfile *profile, GError **error)
{
    const guint n = probe->n_beside + on_probe;
    RpMeasureWork *work = g_malloc0(sizeof *work + n * sizeof(Worker));
    gboolean done = TRUE;

    atomic_init(&work->ending, FALSE);
    for (; work->n < n && done; work->n++) {
        Worker *worker = &work->workers[work->n];

        worker->run =
            (RpMeasuredLayer){.probe = work->n < probe->n_beside ? probe->beside[work->n] : probe,
                              .network = network,
                              .has_fp8 = rp_network_layout(network, layer)->has_fp8,
                              .routing = measurer->options->routing,
                              .tokens = weights != NULL ? measurer->options->tokens : NULL};
        worker->kind = profile->layers[layer].kind;
        worker->ending = &work->ending;
        done = rp_measured_layer_take_buffers(&worker->run, profile, layer, error) &&
               rp_measured_layer_fill_buffers(&worker->run, weights, profile, layer, error);
    }
    for (guint i = 0; i < n && done; i++)
        work->workers[i].thread = g_thread_new("work", run_worker, &work->workers[i]);
    if (done)
        return work;
    (void)rp_measure_work_end(work, NULL);
    return NULL;
}

/* Times while all other parts of the card run the same layer; and how much faster a block is alone. */
static gboolean
measure_with_others(RpMeasurer *measurer, RpMeasuredLayer *run, const RpWeights *weights,
                    guint layer, RpProfile *profile, GError **error)
{
    RpLayer *to = &profile->layers[layer];
    RpMeasureWork *work = rp_measure_work_begin(measurer, run->probe, FALSE, run->network, weights,
                                                layer, profile, error);
    gboolean done = work != NULL && measure(measurer, run, to, error) &&
                    measure_saved(measurer, run, to, error);

    done = rp_measure_work_end(work, done ? error : NULL) && done;
    if (done && run->probe->n_beside > 0 && to->kind == RP_LAYER_BLOCK &&
        profile->alone_speed == 0) {
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
                           .has_fp8 = rp_network_layout(network, layer)->has_fp8,
                           .routing = options->routing,
                           .tokens = weights != NULL ? options->tokens : NULL};
    gboolean measured = FALSE;

    if (rp_measured_layer_take_buffers(&run, profile, layer, error) &&
        rp_measured_layer_fill_buffers(&run, given, profile, layer, error))
        measured = measure_with_others(measurer, &run, given, layer, profile, error) &&
                   measure_expansion(measurer, &run, to, error);
    rp_measured_layer_give_buffers(&run);
    to->weight_gradient_ns = to->backward_ns / 2;
    return measured;
}

gboolean
rp_measure_run_once(RpProbe *probe, const RpNetwork *network, guint layer, const RpProfile *profile,
                    GError **error)
{
    const RpLayerKind kind = profile->layers[layer].kind;
    RpMeasuredLayer run = {
        .probe = probe, .network = network, .has_fp8 = rp_network_layout(network, layer)->has_fp8};
    gint64 ns[G_N_ELEMENTS(kinds[0].parts)];
    gboolean done = FALSE;

    if (!rp_measured_layer_take_buffers(&run, profile, layer, NULL))
        done = TRUE; /* a plan has no memory where a layer has none, and reports it better */
    else if (rp_measured_layer_fill_buffers(&run, NULL, profile, layer, error))
        done = probe->ops->time(probe, kinds[kind].parts, kinds[kind].n, 1, &run, ns, error);
    rp_measured_layer_give_buffers(&run);
    return done;
}

/* Finds the faster attention on this device: a block of each class is run with each. */

#define SECONDS 0.2

static guint
count_alike(const RpNetwork *network, guint class)
{
    guint n = 0;

    for (guint l = 0; l < rp_network_n_layers(network); l++)
        n += rp_network_layer_class(network, l) == class;
    return n;
}

/* Forward and backward of all blocks with attention: of each class the first is run. */
static gboolean
time_blocks(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
            const RpMeasureOptions *options, gint64 *ns, GError **error)
{
    RpMeasurer measurer = {
        .options = options, .n_measures = 1, .settle = RP_SETTLE, .passes_alone = TRUE};
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    *ns = 0;
    for (guint l = 1; l + 1 < rp_network_n_layers(network); l++) {
        if (rp_network_layer_class(network, l) != l ||
            rp_network_layout(network, l)->place[RP_WEIGHT_Q].byte == RP_LAYOUT_NONE)
            continue;
        if (!rp_measure_layer(&measurer, probe, network, weights, l, profile, error))
            return FALSE;
        *ns += count_alike(network, l) *
               (profile->layers[l].forward_ns + profile->layers[l].backward_ns);
    }
    return TRUE;
}

gboolean
rp_measure_attention(RpProbe *probe, const RpNetwork *network, const RpWeights *weights,
                     RpAttentionChoice *fastest, GError **error)
{
    g_return_val_if_fail(probe && network && fastest, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    const RpKernels *kernels = rp_network_kernels(network);
    const RpMeasureOptions measure = {
        .devices = 1, .seconds = SECONDS, .max_runs = 20, .optimizer_threads = 1};
    RpAttentionChoice best = RP_ATTENTION_BUILTIN;
    gint64 least_ns = G_MAXINT64;

    for (guint c = RP_N_ATTENTIONS; c-- > 0;) {
        RpNetworkOptions options = *rp_network_options(network);
        gint64 ns;

        /* the last one has nothing to be compared with, if it is the only one */
        if (!kernels->has_attention((RpAttentionChoice)c) || (c == 0 && least_ns == G_MAXINT64))
            continue;
        options.attention = (RpAttentionChoice)c;
        g_autoptr(RpNetwork) other = rp_network_new(rp_network_weights(network), kernels, &options);

        if (!time_blocks(probe, other, weights, &measure, &ns, error))
            return FALSE;
        if (ns <= least_ns) { /* both 0 where no block has attention */
            least_ns = ns;
            best = (RpAttentionChoice)c;
        }
    }
    *fastest = best;
    return TRUE;
}
