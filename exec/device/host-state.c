#include "exec/device/host-state-private.h"

#include "core/base/quote.h"
#include "core/base/units.h"

G_STATIC_ASSERT(RP_MOST_ROUNDS_APART <= RP_GRADIENT_MOST_ROUNDS);

G_DEFINE_QUARK(rp_host_state_error, rp_host_state_error)

/* Whether the plan has @bytes for this; not if it was made from another profile. */
static gboolean
check_buffer(const RpHostState *host_state, guint layer, const char *what, guint32 buffer,
             guint64 bytes, GError **error)
{
    const guint64 has = buffer != RP_NONE ? rp_plan_buffer(host_state->plan, buffer)->bytes : 0;

    if (has >= bytes)
        return TRUE;
    return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_PLAN,
                   "layer %u: the plan has %" G_GUINT64_FORMAT
                   " bytes for its %s, the network needs "
                   "%" G_GUINT64_FORMAT ": the profile is not of this network",
                   layer, has, what, bytes);
}

static gboolean
check_layer(RpHostState *host_state, guint index, GError **error)
{
    const RpLayerLayout *layout = rp_network_layout(host_state->network, index);
    const RpPlanLayer *row = rp_plan_layer(host_state->plan, index);
    const RpShard share = rp_shares_own(host_state->shares, index);
    const guint64 own = layout->elements - layout->tied_elements;

    host_state->layers[index] =
        (RpHostStateLayer){.own = own, .share = share, .tied = layout->tied_elements};
    for (guint v = 0; v < rp_modes_versions(host_state->modes); v++)
        if (!check_buffer(host_state, index, "weights", row->weights[v],
                          own * host_state->element_bytes, error))
            return FALSE;
    for (guint i = 0; i < rp_modes_gradient_buffers(host_state->modes); i++)
        if (!check_buffer(host_state, index, "gradients", row->gradients[i],
                          layout->elements * rp_host_state_gradient_bytes(host_state), error))
            return FALSE;
    return check_buffer(host_state, index, "frozen weights", row->frozen, layout->frozen_bytes,
                        error) &&
           check_buffer(host_state, index, "sums of all servers", row->reduced,
                        host_state->modes->servers > 1
                            ? sizeof(float) * rp_shares_reduced(host_state->shares, index)
                            : 0,
                        error) &&
           check_buffer(host_state, index, "optimizer state", row->optimizer,
                        rp_optimizer_state_bytes(host_state->options.adamw.form, share.n), error);
}

static gboolean
check_layers(RpHostState *host_state, GError **error)
{
    if (rp_plan_n_layers(host_state->plan) != host_state->n_layers)
        return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_PLAN,
                       "the plan has %u layers, the network %u: the profile is not of this network",
                       rp_plan_n_layers(host_state->plan), host_state->n_layers);
    for (guint l = 0; l < host_state->n_layers; l++)
        if (!check_layer(host_state, l, error))
            return FALSE;
    return TRUE;
}

static void
divide(RpHostState *host_state)
{
    g_autofree RpShareLayer *layers = g_new0(RpShareLayer, host_state->n_layers);
    RpSharesOptions options = {.servers = host_state->options.servers,
                               .n_layers = host_state->n_layers,
                               .layers = layers,
                               .n_rounds = rp_modes_gradient_buffers(host_state->modes),
                               .gradient_dtype = rp_host_state_gradient_dtype(host_state),
                               .dtype = host_state->dtype,
                               .n_numbers = host_state->n_numbers};

    for (guint l = 0; l < host_state->n_layers; l++) {
        const RpLayerLayout *layout = rp_network_layout(host_state->network, l);

        layers[l].own = layout->elements - layout->tied_elements;
        layers[l].tied = layout->tied_elements;
    }
    rp_shares_free(host_state->shares);
    host_state->shares = rp_shares_new(&options);
}

void
rp_host_state_set_numbers(RpHostState *host_state, guint n, RpHostStateNumbers numbers,
                          gpointer user_data)
{
    host_state->n_numbers = n;
    host_state->numbers = numbers;
    host_state->numbers_data = user_data;
    g_free(host_state->told);
    host_state->told = g_new0(double, RP_HOST_STATE_RING *(gsize)host_state->modes->servers *n);
    divide(host_state);
}

const double *
rp_host_state_numbers(const RpHostState *host_state, guint64 iteration)
{
    return host_state->told +
           iteration % RP_HOST_STATE_RING * host_state->modes->servers * host_state->n_numbers;
}

/* One thread needs no pool, unless it is to keep off some processors. */
static gboolean
start_pool(const RpUpdateOptions *options, RpPool **pool, GError **error)
{
    const RpPoolOptions pool_options = {.n_threads = MAX(1, options->threads),
                                        .avoid = options->avoid_cpus,
                                        .nodes = options->nodes};

    if (options->threads <= 1 && options->avoid_cpus == NULL)
        return TRUE;
    *pool = rp_pool_new(&pool_options, error);
    return *pool != NULL;
}

void
rp_host_state_begin_fresh(RpHostState *host_state)
{
    const RpLossScale initial = RP_LOSS_SCALE_INIT;

    host_state->state = (RpUpdateState){.loss_scale = initial, .next_scale = 1};
    if (!host_state->options.scale_loss)
        host_state->state.loss_scale.scale = 1;
    host_state->state.next_scale = host_state->state.loss_scale.scale;
    rp_host_state_restore(host_state, &host_state->state, 0);
}

RpHostState *
rp_host_state_new(const RpNetwork *network, const RpPlan *plan, const RpUpdateOptions *options,
                  GError **error)
{
    const RpPlanModes *modes = rp_plan_modes(plan);
    const RpDtype dtype = rp_network_options(network)->dtype;
    g_autoptr(RpHostState) host_state = g_new0(RpHostState, 1);

    g_mutex_init(&host_state->overflow_lock); /* or rp_host_state_free() may not be called */
    g_return_val_if_fail(rp_modes_wait_for_norm(modes) || rp_update_steps_at_once(options), NULL);
    host_state->network = network;
    host_state->plan = plan;
    host_state->modes = modes;
    host_state->options = *options;
    host_state->options.adamw.form = rp_plan_storage(plan)->form;
    host_state->dtype = dtype;
    host_state->element_bytes = rp_dtype_size(dtype);
    host_state->n_layers = rp_network_n_layers(network);
    host_state->layers = g_new0(RpHostStateLayer, host_state->n_layers);
    host_state->added = g_new0(const void *, modes->rounds);
    g_return_val_if_fail(modes->servers ==
                             (options->servers != NULL ? rp_servers_count(options->servers) : 1),
                         NULL);
    divide(host_state);
    if (!check_layers(host_state, error) || !start_pool(options, &host_state->pool, error))
        return NULL;
    if (modes->gradients == RP_GRADIENTS_SUMMED &&
        !start_pool(options, &host_state->accumulate_pool, error))
        return NULL;
    if (host_state->modes->servers > 1 && !start_pool(options, &host_state->network_pool, error))
        return NULL;
    host_state->options.avoid_cpus = NULL; /* the caller's string */
    host_state->optimizer =
        rp_optimizer_new(&host_state->options.adamw, options->variant, host_state->pool, error);
    if (host_state->optimizer == NULL)
        return NULL;
    return g_steal_pointer(&host_state);
}

void
rp_host_state_free(RpHostState *host_state)
{
    if (host_state == NULL)
        return;
    for (guint l = 0; host_state->layers != NULL && l < host_state->n_layers; l++)
        rp_optimizer_layer_free(host_state->layers[l].state);
    rp_shares_free(host_state->shares);
    g_free(host_state->told);
    rp_optimizer_free(host_state->optimizer);
    rp_pool_free(host_state->network_pool);
    rp_pool_free(host_state->accumulate_pool);
    rp_pool_free(host_state->pool);
    g_free(host_state->added);
    g_free(host_state->layers);
    g_mutex_clear(&host_state->overflow_lock);
    g_free(host_state->near.problem);
    g_free(host_state);
}

char *
rp_host_state_describe_layer(const RpNetwork *network, guint layer)
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

/* Lists the spans of a layer's own parameters with their decay; gaps do not decay. */
static GArray *
decay_spans(const RpHostState *host_state, guint layer)
{
    const RpWeights *weights = rp_network_weights(host_state->network);
    const RpLayerLayout *layout = rp_network_layout(host_state->network, layer);
    GArray *spans = g_array_new(FALSE, FALSE, sizeof(RpParameterSpan));
    /* first element of a trained weight, and the weight: experts' stand in another order than
     * listed */
    typedef struct {
        guint64 element;
        const RpWeight *weight;
    } Begin;
    g_autoptr(GArray) begins = g_array_new(FALSE, FALSE, sizeof(Begin));
    guint64 at = 0;
    guint first;
    const guint n = rp_weights_layer(weights, layer, &first);

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const Begin begin = {rp_layout_place(layout, weight).element, weight};

        if (rp_weight_has_state(weight))
            g_array_append_val(begins, begin);
    }
    g_array_sort(begins, rp_compare_uint64);
    for (guint i = 0; i < begins->len; i++) {
        const Begin *begin = &g_array_index(begins, Begin, i);
        const RpWeight *weight = begin->weight;
        const RpParameterSpan gap = {.n_parameters = begin->element - at};
        const RpParameterSpan span = {.n_parameters = weight->elements,
                                      .decays = rp_parameter_decays(weight->name, weight->rank)};

        if (gap.n_parameters > 0)
            g_array_append_val(spans, gap);
        g_array_append_val(spans, span);
        at = begin->element + weight->elements;
    }
    const RpParameterSpan rest = {.n_parameters = host_state->layers[layer].own - at};
    if (rest.n_parameters > 0)
        g_array_append_val(spans, rest);
    return spans;
}

static void *
address(const RpHostState *host_state, guint32 buffer)
{
    return buffer == RP_NONE
               ? NULL
               : host_state->memory + rp_plan_buffer(host_state->plan, buffer)->offset;
}

/* Whether all of a layer's buffers lie in an arena of @bytes, and those that layers have in common. */
static gboolean
layer_fits(const RpHostState *host_state, guint layer, guint64 bytes)
{
    const RpPlanLayer *row = rp_plan_layer(host_state->plan, layer);
    const RpPlanExchange exchange = rp_plan_exchange(host_state->plan);
    const guint32 buffers[] = {exchange.squares,
                               exchange.space,
                               rp_plan_decision(host_state->plan, 0),
                               rp_plan_decision(host_state->plan, 1),
                               row->reduced,
                               row->weights[0],
                               row->weights[1],
                               row->optimizer,
                               row->copied,
                               row->reference,
                               row->frozen};

    for (guint i = 0; i < G_N_ELEMENTS(buffers); i++)
        if (!rp_host_state_fits(host_state, buffers[i], bytes))
            return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(row->gradients); i++)
        if (!rp_host_state_fits(host_state, row->gradients[i], bytes))
            return FALSE;
    return TRUE;
}

/* Weights that the optimizer shares with the devices: the next iteration reads older ones. */
static void
share_newest(RpHostState *host_state)
{
    const guint n = rp_modes_versions(host_state->modes);
    const guint newest = (guint)((host_state->next_iteration + n - 1) % n);

    for (guint l = 0; l < host_state->n_layers && host_state->options.adamw.form.shared; l++)
        if (host_state->layers[l].state != NULL)
            rp_optimizer_layer_share(host_state->layers[l].state,
                                     host_state->layers[l].weights[newest] +
                                         host_state->layers[l].share.first *
                                             host_state->element_bytes);
}

/* Memory of messages between servers. */
static void
attach_shares(RpHostState *host_state)
{
    const RpPlanExchange exchange = rp_plan_exchange(host_state->plan);
    g_autofree float **reduced = g_new0(float *, host_state->n_layers);

    if (host_state->modes->servers == 1)
        return;
    for (guint l = 0; l < host_state->n_layers; l++)
        reduced[l] = address(host_state, rp_plan_layer(host_state->plan, l)->reduced);
    rp_shares_attach(host_state->shares, reduced, address(host_state, exchange.squares),
                     address(host_state, exchange.space),
                     rp_plan_buffer(host_state->plan, exchange.space)->bytes);
}

gboolean
rp_host_state_attach(RpHostState *host_state, void *memory, guint64 bytes, GError **error)
{
    g_return_val_if_fail(host_state->memory == NULL, FALSE);

    for (guint l = 0; l < host_state->n_layers; l++) {
        if (layer_fits(host_state, l, bytes))
            continue;
        return rp_fail(error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_MEMORY,
                       "layer %u lies outside of the host's arena of %" G_GUINT64_FORMAT " bytes",
                       l, bytes);
    }
    host_state->memory = memory;
    for (guint i = 0; i < rp_plan_n_decisions(host_state->plan); i++)
        host_state->decisions[i] = address(host_state, rp_plan_decision(host_state->plan, i));
    rp_host_state_begin_fresh(host_state);
    for (guint l = 0; l < host_state->n_layers; l++) {
        RpHostStateLayer *layer = &host_state->layers[l];
        const RpPlanLayer *row = rp_plan_layer(host_state->plan, l);
        g_autoptr(GArray) all = decay_spans(host_state, l);
        g_autoptr(GArray) spans = rp_shares_cut_spans(host_state->shares, l, all);

        for (guint v = 0; v < rp_modes_versions(host_state->modes); v++)
            layer->weights[v] = address(host_state, row->weights[v]);
        layer->weights[RP_HOST_STATE_REFERENCE] = address(host_state, row->reference);
        for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++)
            layer->gradients[i] = address(host_state, row->gradients[i]);
        layer->copied = address(host_state, row->copied);
        layer->frozen = address(host_state, row->frozen);
        if (layer->share.n == 0)
            continue;
        layer->state = rp_optimizer_layer_new(
            host_state->optimizer, address(host_state, row->optimizer), layer->share.n,
            (const RpParameterSpan *)(void *)spans->data, spans->len);
        rp_optimizer_layer_set_number(layer->state, l, layer->share.first);
    }
    share_newest(host_state);
    attach_shares(host_state);
    return TRUE;
}

void
rp_host_state_set_squares(RpHostState *host_state, double *squares)
{
    host_state->squares = squares;
}

guint8 *
rp_host_state_weights(const RpHostState *host_state, guint layer, guint version, guint64 offset,
                      guint64 *run)
{
    const RpLayerLayout *layout = rp_network_layout(host_state->network, layer);
    const RpHostStateLayer *of = &host_state->layers[layer];
    const guint64 trained = of->own * host_state->element_bytes;
    const guint64 own = trained + layout->frozen_bytes;

    *run = (offset < trained ? trained : offset < own ? own : layout->upload_bytes) - offset;
    if (offset < trained)
        return of->weights[version] + offset;
    if (offset < own)
        return of->frozen + (offset - trained);
    const guint32 tied_to = rp_plan_layer(host_state->plan, layer)->tied_to;

    g_assert(tied_to != RP_NONE);
    return rp_host_state_weights(host_state, tied_to, version, offset - own, &offset);
}

guint
rp_host_state_version(const RpHostState *host_state, guint64 iteration)
{
    /* the step of iteration T writes the weights that T + n reads, with n versions */
    const guint n = rp_modes_versions(host_state->modes);

    return (guint)((host_state->evaluates ? host_state->next_iteration + n - 1 : iteration) % n);
}

guint8 *
rp_host_state_gradients(const RpHostState *host_state, guint layer, guint round, guint64 offset,
                        guint64 *run)
{
    const RpHostStateLayer *of = &host_state->layers[layer];

    *run = (of->own + of->tied) * rp_host_state_gradient_bytes(host_state) - offset;
    return of->gradients[rp_host_state_gradient_rounds(host_state) > 1 ? round : 0] + offset;
}

guint
rp_host_state_gradient_rounds(const RpHostState *host_state)
{
    return rp_modes_gradient_buffers(host_state->modes);
}

RpDtype
rp_host_state_gradient_dtype(const RpHostState *host_state)
{
    return rp_modes_sum(host_state->modes) ? RP_DTYPE_FP32 : host_state->dtype;
}

gsize
rp_host_state_gradient_bytes(const RpHostState *host_state)
{
    return rp_dtype_size(rp_host_state_gradient_dtype(host_state));
}

guint8 *
rp_host_state_memory(const RpHostState *host_state, const RpBackendAccess *access)
{
    return host_state->memory + access->offset;
}

/* ---- iterations ---- */

void
rp_host_state_restore(RpHostState *host_state, const RpUpdateState *state, guint64 first_iteration)
{
    host_state->state = *state;
    host_state->n_skipped = 0;
    host_state->next_iteration = first_iteration;
    host_state->first_iteration = first_iteration;
    host_state->steps_before = state->n_iterations;
    share_newest(host_state);
    for (guint i = 0; i < rp_plan_n_decisions(host_state->plan); i++) {
        RpHostStateDecision *decision = rp_host_state_decision(host_state, first_iteration + i);

        decision->scale = i == 0 ? state->next_scale : state->loss_scale.scale;
        decision->foresees = TRUE;
    }
}

guint64
rp_host_state_step(const RpHostState *host_state, guint64 iteration)
{
    return host_state->steps_before + (iteration - host_state->first_iteration) + 1;
}

RpUpdateState
rp_host_state_updates(const RpHostState *host_state)
{
    RpUpdateState state = host_state->state;

    state.next_scale = rp_host_state_decision(host_state, host_state->next_iteration)->scale;
    return state;
}
