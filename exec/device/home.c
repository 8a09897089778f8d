#include "exec/device/home-private.h"

G_STATIC_ASSERT(RP_MOST_ROUNDS_APART <= RP_GRADIENT_MOST_ROUNDS);

G_DEFINE_QUARK(rp_home_error, rp_home_error)

#define STATE_BYTES 12 /* of a parameter: full-precision weight and two moments */
/* Shares of threads end at so many parameters. */
#define GRANULE ((gsize)16384)

static RpHomePlace
place_of(const RpPlan *plan, guint32 index)
{
    if (index == RP_NONE)
        return (RpHomePlace){.offset = RP_HOME_NOWHERE};
    const RpBuffer *buffer = rp_plan_buffer(plan, index);
    g_assert(buffer->arena == rp_plan_gpus(plan));
    return (RpHomePlace){.offset = buffer->offset, .bytes = buffer->bytes};
}

/* Whether a plan made from another profile was given. */
static gboolean
check_place(guint layer, const char *what, const RpHomePlace *place, guint64 bytes, GError **error)
{
    if (bytes == 0 || (place->offset != RP_HOME_NOWHERE && place->bytes >= bytes))
        return TRUE;
    g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_PLAN,
                "layer %u: the plan has %" G_GUINT64_FORMAT " bytes for its %s, the network needs "
                "%" G_GUINT64_FORMAT ": the profile is not of this network",
                layer, place->offset == RP_HOME_NOWHERE ? 0 : place->bytes, what, bytes);
    return FALSE;
}

static gboolean
place_layer(RpHome *home, const RpPlan *plan, guint index, GError **error)
{
    const RpLayerLayout *layout = rp_network_layout(home->network, index);
    const RpPlanLayer *planned = rp_plan_layer(plan, index);
    RpHomeLayer *layer = &home->layers[index];

    *layer = (RpHomeLayer){
        .own = layout->elements - layout->tied_elements,
        .tied = layout->tied_elements,
        .tied_to = layout->tied_bytes > 0 ? 0 : RP_NONE,
        .tied_from = RP_NONE,
        .frozen_place = place_of(plan, planned->frozen),
        .optimizer_place = place_of(plan, planned->optimizer),
        .copied_place = place_of(plan, planned->copied),
    };
    for (guint v = 0; v < 2; v++) {
        layer->weight_place[v] = place_of(plan, planned->weights[v]);
        if (v < home->n_versions && !check_place(index, "weights", &layer->weight_place[v],
                                                 layer->own * home->element_bytes, error))
            return FALSE;
    }
    for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++) {
        layer->gradient_place[i] = place_of(plan, planned->gradients[i]);
        if (i < home->n_gradients && !check_place(index, "gradients", &layer->gradient_place[i],
                                                  layout->elements * home->gradient_bytes, error))
            return FALSE;
    }
    return check_place(index, "frozen weights", &layer->frozen_place, layout->frozen_bytes,
                       error) &&
           check_place(index, "optimizer state", &layer->optimizer_place, layer->own * STATE_BYTES,
                       error);
}

static gboolean
place_layers(RpHome *home, const RpPlan *plan, GError **error)
{
    if (rp_plan_n_layers(plan) != home->n_layers) {
        g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_PLAN,
                    "the plan has %u layers, the network %u: the profile is not of this network",
                    rp_plan_n_layers(plan), home->n_layers);
        return FALSE;
    }
    for (guint l = 0; l < home->n_layers; l++)
        if (!place_layer(home, plan, l, error))
            return FALSE;
    for (guint l = 0; l < home->n_layers; l++)
        if (home->layers[l].tied_to != RP_NONE)
            home->layers[home->layers[l].tied_to].tied_from = l;
    return TRUE;
}

/* One thread needs no pool, unless it is to keep off some processors. */
static gboolean
start_pool(const RpUpdateOptions *options, RpPool **pool, GError **error)
{
    const RpPoolOptions pool_options = {.n_threads = MAX(1, options->threads),
                                        .avoid = options->avoid_cpus};

    if (options->threads <= 1 && options->avoid_cpus == NULL)
        return TRUE;
    *pool = rp_pool_new(&pool_options, error);
    return *pool != NULL;
}

static void
set_initial_state(RpHome *home)
{
    const RpLossScale initial = RP_LOSS_SCALE_INIT;

    home->state = (RpUpdateState){.loss_scale = initial, .next_scale = 1};
    if (!home->options.scale_loss)
        home->state.loss_scale.scale = 1;
    home->state.next_scale = home->state.loss_scale.scale;
    rp_home_restore(home, &home->state, 0);
}

RpHome *
rp_home_new(const RpNetwork *network, const RpPlan *plan, const RpUpdateOptions *options,
            GError **error)
{
    const RpPlanPromises *promises = rp_plan_promises(plan);
    const RpDtype dtype = rp_network_options(network)->dtype;
    g_autoptr(RpHome) home = g_new0(RpHome, 1);

    g_mutex_init(&home->overflow_lock); /* or rp_home_free() may not be called */
    g_return_val_if_fail(promises->gated || rp_update_steps_at_once(options), NULL);
    home->gated = promises->gated;
    home->n_decisions = rp_plan_n_decisions(plan);
    for (guint i = 0; i < home->n_decisions; i++)
        home->decision_place[i] = place_of(plan, rp_plan_decision(plan, i));
    home->network = network;
    home->options = *options;
    home->dtype = dtype;
    home->element_bytes = rp_dtype_size(dtype);
    home->gradient_dtype = promises->wide_gradients ? RP_DTYPE_FP32 : home->dtype;
    home->gradient_bytes = rp_dtype_size(home->gradient_dtype);
    home->n_gradients = rp_plan_gradient_buffers(promises);
    home->async = promises->async;
    home->n_versions = promises->double_weights ? 2 : 1;
    home->n_layers = rp_network_n_layers(network);
    home->layers = g_new0(RpHomeLayer, home->n_layers);
    home->rounds = promises->rounds;
    home->added = g_new0(const void *, home->rounds);
    home->n_stages = rp_plan_n_stages(plan);
    home->stages = g_new(RpInterval, home->n_stages);
    for (guint s = 0; s < home->n_stages; s++)
        home->stages[s] = rp_plan_stage(plan, s)->layers;
    if (!place_layers(home, plan, error) || !start_pool(options, &home->pool, error))
        return NULL;
    if (promises->wide_gradients && !promises->kept_sums &&
        !start_pool(options, &home->accumulate_pool, error))
        return NULL;
    home->options.avoid_cpus = NULL; /* the caller's string */
    home->optimizer = rp_optimizer_new(&options->adamw, options->variant, home->pool, error);
    if (home->optimizer == NULL)
        return NULL;
    return g_steal_pointer(&home);
}

void
rp_home_free(RpHome *home)
{
    if (home == NULL)
        return;
    for (guint l = 0; home->layers != NULL && l < home->n_layers; l++)
        rp_optimizer_layer_free(home->layers[l].state);
    rp_optimizer_free(home->optimizer);
    rp_pool_free(home->accumulate_pool);
    rp_pool_free(home->pool);
    g_free(home->stages);
    g_free(home->added);
    g_free(home->layers);
    g_mutex_clear(&home->overflow_lock);
    g_free(home);
}

char *
rp_home_describe_layer(const RpNetwork *network, guint layer)
{
    switch (rp_model_layer_kind(rp_network_model(network), layer)) {
    case RP_LAYER_EMBEDDING:
        return g_strdup_printf("layer %u (model.embed_tokens)", layer);
    case RP_LAYER_BLOCK:
        return g_strdup_printf("layer %u (model.layers.%u)", layer, layer - 1);
    case RP_LAYER_HEAD:
        return g_strdup_printf("layer %u (lm_head)", layer);
    }
    g_assert_not_reached();
}

/* ---- places ---- */

/* Which of a layer's own parameters decay; gaps do not. */
static GArray *
decay_spans(const RpHome *home, guint layer)
{
    const RpWeights *weights = rp_network_weights(home->network);
    const RpLayerLayout *layout = rp_network_layout(home->network, layer);
    GArray *spans = g_array_new(FALSE, FALSE, sizeof(RpParameterSpan));
    guint64 at = 0;
    guint first;
    const guint n = rp_weights_layer(weights, layer, &first);

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const guint64 element = layout->place[weight->kind].element;
        const RpParameterSpan gap = {.n_parameters = element - at};
        const RpParameterSpan span = {.n_parameters = weight->elements,
                                      .decays = rp_parameter_decays(weight->name, weight->rank)};

        if (weight->tied || !weight->trained)
            continue;
        if (gap.n_parameters > 0)
            g_array_append_val(spans, gap);
        g_array_append_val(spans, span);
        at = element + weight->elements;
    }
    const RpParameterSpan rest = {.n_parameters = home->layers[layer].own - at};
    if (rest.n_parameters > 0)
        g_array_append_val(spans, rest);
    return spans;
}

static void *
address(const RpHome *home, const RpHomePlace *place)
{
    return place->offset == RP_HOME_NOWHERE ? NULL : home->memory + place->offset;
}

static gboolean
fits(const RpHomePlace *place, guint64 bytes)
{
    return place->offset == RP_HOME_NOWHERE ||
           (place->offset <= bytes && place->bytes <= bytes - place->offset);
}

/* Of all rounds. */
static gboolean
gradients_fit(const RpHomeLayer *layer, guint64 bytes)
{
    for (guint i = 0; i < G_N_ELEMENTS(layer->gradient_place); i++)
        if (!fits(&layer->gradient_place[i], bytes))
            return FALSE;
    return TRUE;
}

gboolean
rp_home_attach(RpHome *home, void *memory, guint64 bytes, GError **error)
{
    g_return_val_if_fail(home->memory == NULL, FALSE);

    for (guint l = 0; l < home->n_layers; l++) {
        const RpHomeLayer *layer = &home->layers[l];

        if (fits(&home->decision_place[0], bytes) && fits(&home->decision_place[1], bytes) &&
            fits(&layer->weight_place[0], bytes) && fits(&layer->weight_place[1], bytes) &&
            gradients_fit(layer, bytes) && fits(&layer->optimizer_place, bytes) &&
            fits(&layer->copied_place, bytes) && fits(&layer->frozen_place, bytes))
            continue;
        g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_MEMORY,
                    "layer %u lies outside of the host's arena of %" G_GUINT64_FORMAT " bytes", l,
                    bytes);
        return FALSE;
    }
    home->memory = memory;
    for (guint i = 0; i < home->n_decisions; i++)
        home->decisions[i] = address(home, &home->decision_place[i]);
    set_initial_state(home);
    for (guint l = 0; l < home->n_layers; l++) {
        RpHomeLayer *layer = &home->layers[l];
        g_autoptr(GArray) spans = decay_spans(home, l);

        for (guint v = 0; v < home->n_versions; v++)
            layer->weights[v] = address(home, &layer->weight_place[v]);
        for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++)
            layer->gradients[i] = address(home, &layer->gradient_place[i]);
        layer->copied = address(home, &layer->copied_place);
        layer->frozen = address(home, &layer->frozen_place);
        layer->master = address(home, &layer->optimizer_place);
        if (layer->own > 0)
            layer->state =
                rp_optimizer_layer_new(home->optimizer, layer->master, layer->own,
                                       (const RpParameterSpan *)(void *)spans->data, spans->len);
    }
    return TRUE;
}

guint8 *
rp_home_weights(const RpHome *home, guint layer, guint version, guint64 offset, guint64 *run)
{
    const RpLayerLayout *layout = rp_network_layout(home->network, layer);
    const RpHomeLayer *of = &home->layers[layer];
    const guint64 trained = of->own * home->element_bytes;
    const guint64 own = trained + layout->frozen_bytes;

    *run = (offset < trained ? trained : offset < own ? own : layout->bytes) - offset;
    if (offset < trained)
        return of->weights[version] + offset;
    if (offset < own)
        return of->frozen + (offset - trained);
    g_assert(of->tied_to != RP_NONE);
    return rp_home_weights(home, of->tied_to, version, offset - own, &offset);
}

guint
rp_home_version(const RpHome *home, guint64 iteration)
{
    return (guint)(iteration % home->n_versions);
}

guint8 *
rp_home_gradients(const RpHome *home, guint layer, guint round, guint64 offset, guint64 *run)
{
    const RpHomeLayer *of = &home->layers[layer];

    *run = (of->own + of->tied) * home->gradient_bytes - offset;
    return of->gradients[home->n_gradients > 1 ? round : 0] + offset;
}

guint
rp_home_gradient_rounds(const RpHome *home)
{
    return home->n_gradients;
}

RpDtype
rp_home_gradient_dtype(const RpHome *home)
{
    return home->gradient_dtype;
}

guint8 *
rp_home_memory(const RpHome *home, const RpBackendAccess *access)
{
    return home->memory + access->offset;
}

/* ---- weights in and out ---- */

/* Of a trained weight to its master, or of a frozen one to the storage that devices read. */
typedef struct {
    RpDtype dtype;
    const guint8 *source;
    float *master; /* NULL: frozen */
    guint8 *frozen;
    RpDtype storage;
} LoadJob;

static void
load_share(gsize first, gsize n, gpointer data)
{
    const LoadJob *job = data;
    const guint8 *source = job->source + first * rp_dtype_size(job->dtype);
    float wide[1024];

    if (job->master != NULL) {
        rp_dtype_to_float(job->dtype, source, job->master + first, n);
        return;
    }
    for (gsize at = 0, piece; at < n; at += piece) {
        piece = MIN(n - at, G_N_ELEMENTS(wide));
        rp_dtype_to_float(job->dtype, source + at * rp_dtype_size(job->dtype), wide, piece);
        rp_dtype_from_float(job->storage, wide,
                            job->frozen + (first + at) * rp_dtype_size(job->storage), piece);
    }
}

void
rp_home_publish(RpHome *home, guint layer, void *published)
{
    if (home->layers[layer].state != NULL)
        rp_optimizer_layer_publish(home->optimizer, home->layers[layer].state, 0,
                                   home->layers[layer].own, published, home->dtype);
}

static void
publish_all(RpHome *home, guint layer)
{
    for (guint v = 0; v < home->n_versions; v++)
        rp_home_publish(home, layer, home->layers[layer].weights[v]);
}

void
rp_home_load(RpHome *home, const RpWeights *weights)
{
    for (guint l = 0; l < home->n_layers; l++) {
        const RpLayerLayout *layout = rp_network_layout(home->network, l);
        guint first;
        const guint n = rp_weights_layer(weights, l, &first);

        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);
            const RpSafetensor *source = rp_weights_source(weights, i);
            const RpWeightPlace *place = &layout->place[weight->kind];
            guint64 run;
            LoadJob job = {.dtype = source->dtype, .source = source->data};

            if (weight->trained)
                job.master = home->layers[l].master + place->element;
            else {
                job.frozen = rp_home_weights(home, l, 0, place->byte, &run);
                job.storage = place->storage;
            }

            if (!weight->tied)
                rp_pool_run(home->pool, 0, weight->elements, GRANULE, load_share, &job);
        }
        publish_all(home, l);
    }
    set_initial_state(home);
}

RpOptimizerState
rp_home_layer_state(const RpHome *home, guint layer)
{
    const RpOptimizerLayer *state = home->layers[layer].state;

    return state != NULL ? rp_optimizer_layer_state(state) : (RpOptimizerState){0};
}

gboolean
rp_home_restore_layer(RpHome *home, guint layer, const RpOptimizerState *state, GError **error)
{
    if (!rp_optimizer_layer_restore(home->optimizer, home->layers[layer].state, state, error))
        return FALSE;
    publish_all(home, layer);
    return TRUE;
}

/* ---- iterations ---- */

void
rp_home_restore(RpHome *home, const RpUpdateState *state, guint64 first_iteration)
{
    home->state = *state;
    home->n_skipped = 0;
    home->next_iteration = first_iteration;
    home->first_iteration = first_iteration;
    home->steps_before = state->n_iterations;
    for (guint i = 0; i < home->n_decisions; i++)
        rp_home_decision(home, first_iteration + i)->scale =
            i == 0 ? state->next_scale : state->loss_scale.scale;
}

guint64
rp_home_step(const RpHome *home, guint64 iteration)
{
    return home->steps_before + (iteration - home->first_iteration) + 1;
}

RpUpdateState
rp_home_state(const RpHome *home)
{
    RpUpdateState state = home->state;

    state.next_scale = rp_home_decision(home, home->next_iteration)->scale;
    return state;
}

void
rp_home_begin(RpHome *home, guint64 iteration, guint64 reference)
{
    g_return_if_fail(reference > 0);

    *rp_home_iteration(home, iteration) = (RpHomeIteration){.reference = reference};
}

void
rp_home_set_targets(RpHome *home, guint64 iteration, guint64 targets)
{
    g_return_if_fail(targets > 0);

    rp_home_iteration(home, iteration)->targets = targets;
}

float
rp_home_scale(const RpHome *home, guint64 iteration, const RpBackendAccess *decision)
{
    const RpHomeDecision *newest;

    g_assert((decision != NULL) == home->gated);
    newest = decision != NULL ? (const RpHomeDecision *)(void *)rp_home_memory(home, decision)
                              : home->decisions[0];
    return (float)((double)newest->scale / (double)home->ring[iteration % RP_HOME_RING].reference);
}

RpUpdateReport
rp_home_report(const RpHome *home, guint64 iteration)
{
    return home->ring[iteration % RP_HOME_RING].report;
}
