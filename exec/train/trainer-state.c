/* Weights, moments and gradients of a trainer whose devices stand still. */
#include "exec/train/trainer-private.h"

#include <string.h>

#include "core/base/quote.h"

/* Place of a trained weight; a tied head's is the embedding's. */
typedef struct {
    guint layer;
    guint64 offset; /* elements */
    guint64 elements;
} Place;

static Place
place_of(const RpTrainer *trainer, guint weight)
{
    const RpWeight *w = rp_weights_nth(trainer->weights, weight);
    const RpWeight *own = w->tied ? rp_weights_nth(trainer->weights, 0) : w;
    const guint layer = own->layer;
    const guint64 offset = rp_layout_place(rp_network_layout(trainer->network, layer), own).element;

    g_assert(offset != RP_LAYOUT_NONE);
    return (Place){layer, offset, w->elements};
}

static gsize
element_bytes(const RpTrainer *trainer)
{
    return rp_dtype_size(rp_network_options(trainer->network)->dtype);
}

const float *
rp_trainer_weight(const RpTrainer *trainer, guint weight)
{
    const Place place = place_of(trainer, weight);

    const float *weights = rp_host_state_layer_state(trainer->host_state, place.layer).weight;

    g_return_val_if_fail(rp_trainer_form(trainer).master == RP_MOMENTS_FP32, NULL);
    return weights + place.offset;
}

static const void *
beyond(const void *values, guint64 bytes)
{
    return values != NULL ? (const guint8 *)values + bytes : NULL;
}

/* Elements of a weight that are in a share of its layer. */
static RpShard
part_in(Place place, RpShard share)
{
    const guint64 end = place.offset + place.elements;
    const guint64 from = CLAMP(share.first, place.offset, end);
    const guint64 to = CLAMP(share.first + share.n, place.offset, end);

    return (RpShard){from - place.offset, to - from};
}

RpShard
rp_trainer_weight_part(const RpTrainer *trainer, guint weight, guint server)
{
    const Place place = place_of(trainer, weight);

    return part_in(place, rp_host_state_share(trainer->host_state, place.layer, server));
}

guint64
rp_trainer_weight_first(const RpTrainer *trainer, guint weight)
{
    return place_of(trainer, weight).offset;
}

RpOptimizerState
rp_trainer_weight_state(const RpTrainer *trainer, guint weight)
{
    const Place place = place_of(trainer, weight);
    const RpShard share = rp_host_state_own_share(trainer->host_state, place.layer);
    const RpShard part = part_in(place, share);
    RpOptimizerState state = rp_host_state_layer_state(trainer->host_state, place.layer);

    state.n_parameters = part.n;
    state.first = place.offset + part.first;
    if (part.n == 0) /* and nothing to point to */
        return state;
    const guint64 within = state.first - share.first; /* the share begins with a block */
    const guint64 offset = within * rp_moment_bytes(state.form.moments);
    const guint64 block = within / RP_MOMENT_BLOCK * sizeof(float);

    state.weight = beyond(state.weight, (state.form.shared ? state.first : within) *
                                            rp_moment_bytes(state.form.master));
    state.moment1 = beyond(state.moment1, offset);
    state.moment2 = beyond(state.moment2, offset);
    state.scale1 = beyond(state.scale1, block);
    state.scale2 = beyond(state.scale2, block);
    return state;
}

RpStateFormat
rp_trainer_form(const RpTrainer *trainer)
{
    return rp_plan_storage(rp_planner_plan(trainer->planner))->form;
}

static guint8 *
next_weight(const RpTrainer *trainer, Place place)
{
    guint version = rp_host_state_version(trainer->host_state, trainer->iteration);
    guint64 run;

    return rp_host_state_weights(trainer->host_state, place.layer, version,
                                 place.offset * element_bytes(trainer), &run);
}

const void *
rp_trainer_next_weight(const RpTrainer *trainer, guint weight)
{
    return next_weight(trainer, place_of(trainer, weight));
}

const void *
rp_trainer_frozen_weight(const RpTrainer *trainer, guint weight)
{
    const RpWeight *of = rp_weights_nth(trainer->weights, weight);
    const RpWeightPlace place = rp_layout_place(rp_network_layout(trainer->network, of->layer), of);
    guint64 run;

    return rp_host_state_weights(trainer->host_state, of->layer, 0, place.upload, &run);
}

/* Adds a weight's gradients of one layer, as stored, to @values. */
static void
add_gradients(const RpTrainer *trainer, guint layer, guint64 offset, guint64 elements,
              float *values)
{
    const RpDtype dtype = rp_host_state_gradient_dtype(trainer->host_state);
    g_autofree float *sum = g_new0(float, elements), *wide = g_new(float, elements);

    for (guint round = 0; round < rp_host_state_gradient_rounds(trainer->host_state); round++) {
        guint64 run;
        const guint8 *from = rp_host_state_gradients(trainer->host_state, layer, round,
                                                     offset * rp_dtype_size(dtype), &run);

        rp_dtype_to_float(dtype, from, wide, elements);
        for (guint64 i = 0; i < elements; i++)
            sum[i] += wide[i];
    }
    for (guint64 i = 0; i < elements; i++)
        values[i] += sum[i];
}

/* With one server: sums the gradients, those of a tied head included. */
static void
sum_gradients(const RpTrainer *trainer, Place place, float *values)
{
    const guint last = rp_network_n_layers(trainer->network) - 1;
    const RpLayerLayout *head = rp_network_layout(trainer->network, last);

    memset(values, 0, place.elements * sizeof *values);
    add_gradients(trainer, place.layer, place.offset, place.elements, values);
    if (place.layer == 0 && head->tied_elements > 0)
        add_gradients(trainer, last, head->elements - head->tied_elements + place.offset,
                      place.elements, values);
}

gboolean
rp_trainer_gradient(const RpTrainer *trainer, guint weight, float *values, GError **error)
{
    const RpUpdateReport report = rp_host_state_report(trainer->host_state, trainer->iteration - 1);
    const Place place = place_of(trainer, weight);
    const double unscale = (double)rp_trainer_most_units(trainer) /
                           ((double)report.loss_scale * (double)report.n_targets);

    if (trainer->servers == 1)
        sum_gradients(trainer, place, values);
    else if (!rp_host_state_gather_gradient(trainer->host_state, place.layer, place.offset,
                                            place.elements, values, error))
        return FALSE;
    for (guint64 i = 0; i < place.elements; i++)
        values[i] = (float)(values[i] * unscale);
    return TRUE;
}

static void
clear_state(RpRestoredLayer *restored)
{
    g_clear_pointer(&restored->weight, g_free);
    for (guint i = 0; i < RP_OPTIMIZER_MOST_MOMENTS; i++) {
        g_clear_pointer(&restored->moment[i], g_free);
        g_clear_pointer(&restored->scale[i], g_free);
    }
}

void
rp_trainer_clear_restored(RpTrainer *trainer)
{
    for (guint l = 0; trainer->restored != NULL && l < rp_network_n_layers(trainer->network); l++) {
        clear_state(&trainer->restored[l]);
        g_free(trainer->restored[l].next);
    }
    g_clear_pointer(&trainer->restored, g_free);
}

static RpRestoredLayer *
restored_layer(RpTrainer *trainer, guint layer, gboolean with_next)
{
    const RpLayerLayout *layout = rp_network_layout(trainer->network, layer);
    const gsize n = layout->elements - layout->tied_elements;
    RpRestoredLayer *restored;
    guint first, count;

    if (trainer->restored == NULL)
        trainer->restored = g_new0(RpRestoredLayer, rp_network_n_layers(trainer->network));
    restored = &trainer->restored[layer];
    if (restored->weight != NULL)
        return restored;
    const RpStateFormat form = rp_trainer_form(trainer);
    restored->weight = g_malloc0(n * rp_moment_bytes(form.master));
    for (guint i = 0; i < rp_optimizer_moments(form); i++) {
        const RpMoments moments = form.moments;
        const gsize n_scales = rp_moment_scales(moments, 0, n),
                    bytes = n * rp_moment_bytes(moments);

        restored->moment[i] = g_malloc(bytes);
        memset(restored->moment[i], rp_moment_zero(moments, i), bytes); /* gaps have these values */
        restored->scale[i] = n_scales > 0 ? g_new0(float, n_scales) : NULL;
    }
    if (with_next)
        restored->next = g_malloc0(n * element_bytes(trainer));
    count = rp_weights_layer(trainer->weights, layer, &first);
    for (guint w = first; w < first + count; w++)
        if (rp_weight_has_state(rp_weights_nth(trainer->weights, w)))
            restored->n_left += rp_weights_nth(trainer->weights, w)->elements;
    return restored;
}

/* All weights of the layer are there. */
static gboolean
finish_layer(RpTrainer *trainer, guint layer, GError **error)
{
    const RpLayerLayout *layout = rp_network_layout(trainer->network, layer);
    const gsize n = layout->elements - layout->tied_elements;
    RpRestoredLayer *restored = &trainer->restored[layer];
    const RpOptimizerState state = {.n_steps = restored->n_steps,
                                    .n_parameters = n,
                                    .weight = restored->weight,
                                    .moment1 = restored->moment[0],
                                    .moment2 = restored->moment[1],
                                    .scale1 = restored->scale[0],
                                    .scale2 = restored->scale[1],
                                    .form = rp_trainer_form(trainer)};

    if (!rp_host_state_restore_layer(trainer->host_state, layer, &state, error))
        return FALSE;
    clear_state(restored);
    return TRUE;
}

/* Restores the moments of [@first, @end) of the layer out of a @state that has more of them. */
static void
restore_moments(RpRestoredLayer *restored, const RpOptimizerState *state, guint64 first,
                guint64 end)
{
    const guint8 *moments[] = {state->moment1, state->moment2};
    const float *scales[] = {state->scale1, state->scale2};
    const gsize each = rp_moment_bytes(state->form.moments);
    const gsize n_scales = rp_moment_scales(state->form.moments, first, end - first);
    const guint64 block = first / RP_MOMENT_BLOCK;

    for (guint i = 0; i < rp_optimizer_moments(state->form); i++) {
        memcpy(restored->moment[i] + first * each, moments[i] + (first - state->first) * each,
               (end - first) * each);
        if (n_scales > 0)
            memcpy(restored->scale[i] + block, scales[i] + (block - state->first / RP_MOMENT_BLOCK),
                   n_scales * sizeof(float));
    }
}

/* Restores the parameters that this server steps; other servers read the rest. */
static void
restore_share(RpRestoredLayer *restored, const RpOptimizerState *state, RpShard share)
{
    const gsize each = rp_moment_bytes(state->form.master);
    const guint64 first = MAX(state->first, share.first);
    const guint64 end = MIN(state->first + state->n_parameters, share.first + share.n);

    if (first >= end)
        return;
    memcpy(restored->weight + first * each,
           (const guint8 *)state->weight + (first - state->first) * each, (end - first) * each);
    restore_moments(restored, state, first, end);
}

gboolean
rp_trainer_restore_weight(RpTrainer *trainer, guint weight, const RpOptimizerState *state,
                          const void *next, GError **error)
{
    const Place place = place_of(trainer, weight);

    g_return_val_if_fail(trainer->iteration == 0 && trainer->call == 0, FALSE);
    g_return_val_if_fail(rp_state_format_equal(state->form, rp_trainer_form(trainer)), FALSE);
    if (state->first < place.offset ||
        state->first - place.offset > place.elements - MIN(state->n_parameters, place.elements) ||
        state->n_parameters > place.elements)
        return rp_fail(error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_STATE,
                       "%s: expected at most %" G_GUINT64_FORMAT " values, found %" G_GSIZE_FORMAT,
                       rp_weights_nth(trainer->weights, weight)->name, place.elements,
                       state->n_parameters);
    RpRestoredLayer *restored = restored_layer(trainer, place.layer, next != NULL);
    restore_share(restored, state, rp_host_state_own_share(trainer->host_state, place.layer));
    restored->n_steps = state->n_steps;
    if (next != NULL)
        memcpy(restored->next + state->first * element_bytes(trainer), next,
               state->n_parameters * element_bytes(trainer));
    g_assert(restored->n_left >= state->n_parameters);
    restored->n_left -= state->n_parameters;
    return restored->n_left > 0 || finish_layer(trainer, place.layer, error);
}

void
rp_trainer_restore(RpTrainer *trainer, const RpUpdateState *state)
{
    /* there are weights older than the masters: the plan must know */
    trainer->first_iteration = rp_trainer_staleness(trainer) > 0 && state->n_iterations > 0 ? 1 : 0;
    trainer->iteration = trainer->first_iteration;
    trainer->steps_before = state->n_iterations;
    rp_planner_set_first_iteration(trainer->planner, (guint)trainer->first_iteration);
    rp_host_state_restore(trainer->host_state, state, trainer->first_iteration);
    for (guint l = 0; trainer->restored != NULL && l < rp_network_n_layers(trainer->network); l++) {
        const RpLayerLayout *layout = rp_network_layout(trainer->network, l);
        const Place place = {.layer = l};

        if (trainer->restored[l].next != NULL)
            memcpy(next_weight(trainer, place), trainer->restored[l].next,
                   (layout->elements - layout->tied_elements) * element_bytes(trainer));
    }
    rp_trainer_clear_restored(trainer);
}

G_DEFINE_QUARK(rp_trainer_error, rp_trainer_error)
