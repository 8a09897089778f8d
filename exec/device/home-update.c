/* Tasks of the host lanes.
 *
 *   accumulate lane   |+ round 1|+ rounds 2, 3|
 *   optimizer lane                             |norm|step 0|step 1| ... |copy 0|copy 1| ...
 *   not gated                  |step 1|step 0| ... |norm|
 *
 * The gradient of a tied matrix is the sum of two, the embedding's and the head's. It is added up
 * on the fly, once for the norm and once for the step, and stored nowhere.
 */
#include <math.h>

#include "exec/device/home-private.h"
#include "exec/optim/clip.h"
#include "exec/optim/sums.h"

/* ---- sums of rounds ---- */

/* Each staging buffer of the task holds a round; the stage's layers stand in it one after the
 * other.
 */
static void
accumulate(RpHome *home, const RpBackendTask *task)
{
    const RpInterval layers = home->stages[task->task.stage];
    const void **added = home->added;
    guint n_added = 0;
    gboolean begin = FALSE;

    for (guint i = 0; i < task->task.access_count; i++) {
        begin = begin || task->accesses[i].mode == RP_ACCESS_WRITE;
        if (task->accesses[i].role != RP_ROLE_STAGING)
            continue;
        g_assert(n_added < home->rounds);
        added[n_added++] = rp_home_memory(home, &task->accesses[i]);
    }
    g_assert(n_added > 0);
    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpHomeLayer *layer = &home->layers[l];
        const guint64 n = layer->own + layer->tied;

        rp_sums_accumulate(home->accumulate_pool, rp_optimizer_ops(home->optimizer),
                           (float *)(void *)layer->gradients[0], added, n_added, home->dtype, begin,
                           n);
        for (guint i = 0; i < n_added; i++)
            added[i] = (const guint8 *)added[i] + n * home->element_bytes;
    }
}

/* ---- norm ---- */

/* Gradients of @layer from parameter @first on, all rounds; none of RP_NONE. */
static RpGradient
gradients_of(const RpHome *home, guint layer, guint64 first)
{
    RpGradient gradient = {{NULL}};

    for (guint i = 0; layer != RP_NONE && i < home->n_gradients; i++)
        gradient.rounds[i] = home->layers[layer].gradients[i] + first * home->gradient_bytes;
    return gradient;
}

/* Gradients of a tied matrix that came home with the head. */
static RpGradient
tied_gradients(const RpHome *home, guint layer)
{
    const guint from = home->layers[layer].tied_from;

    return gradients_of(home, from, from != RP_NONE ? home->layers[from].own : 0);
}

static double
sum_squares(RpHome *home, guint layer)
{
    return rp_optimizer_sum_squares_of_sum(home->optimizer, gradients_of(home, layer, 0),
                                           tied_gradients(home, layer), home->gradient_dtype,
                                           home->layers[layer].own);
}

/* What the task reads and writes of decisions. */
static RpHomeDecision *
decision_of(const RpHome *home, const RpBackendTask *task)
{
    for (guint i = 0; i < task->task.access_count; i++)
        if (task->accesses[i].role == RP_ROLE_DECISION)
            return (RpHomeDecision *)(void *)rp_home_memory(home, &task->accesses[i]);
    g_assert_not_reached();
}

/* What turns stored gradients into those of the mean loss. */
static double
unscale_of(const RpHomeIteration *of, float loss_scale)
{
    g_assert(of->targets > 0);
    return (double)of->reference / ((double)loss_scale * (double)of->targets);
}

static void
close_iteration(RpHome *home, guint64 iteration, const RpClip *clip, float loss_scale)
{
    RpHomeIteration *of = rp_home_iteration(home, iteration);

    of->report = (RpUpdateReport){
        .learning_rate = rp_learning_rate_at(&home->options.learning_rate, home->state.n_updates),
        .grad_norm = clip->norm,
        .skipped = !clip->finite,
        .loss_scale = loss_scale,
        .n_targets = of->targets,
    };
    home->state.n_iterations++;
    if (clip->finite)
        home->state.n_updates++;
    home->next_iteration = iteration + 1;
}

/* Norm, clipping and loss scale of the iteration; whether it is stepped at all. Until now the
 * decision was the one that the iteration's heads have read. */
static gboolean
decide(RpHome *home, const RpBackendTask *task, GError **error)
{
    const guint64 iteration = task->task.iteration;
    RpHomeDecision *decision = decision_of(home, task);
    const float loss_scale = decision->scale;
    const double unscale = unscale_of(rp_home_iteration(home, iteration), loss_scale);

    for (guint l = 0; l < home->n_layers; l++)
        decision->sums[l] = sum_squares(home, l);
    const RpClip clip =
        rp_clip_by_norm(decision->sums, home->n_layers, unscale, home->options.max_grad_norm);

    if (!rp_home_note_finite(home, clip.finite, decision->sums, error))
        return FALSE;
    decision->multiplier = unscale * clip.coefficient;
    decision->learning_rate =
        rp_learning_rate_at(&home->options.learning_rate, home->state.n_updates);
    decision->skipped = !clip.finite;
    decision->scale = home->state.loss_scale.scale;
    close_iteration(home, iteration, &clip, loss_scale);
    return TRUE;
}

/* Not gated: every layer has been stepped. */
static void
sum_up(RpHome *home, const RpBackendTask *task)
{
    const guint64 iteration = task->task.iteration;
    const RpHomeDecision *decision = decision_of(home, task);
    const RpClip clip =
        rp_clip_by_norm(decision->sums, home->n_layers,
                        unscale_of(rp_home_iteration(home, iteration), decision->scale), 0);

    close_iteration(home, iteration, &clip, decision->scale);
}

/* Not gated: what the norm would have told, as far as it is the layer's. */
static gboolean
decide_alone(RpHome *home, const RpBackendTask *task, GError **error)
{
    const guint layer = task->task.layer;
    RpHomeDecision *decision = decision_of(home, task);

    decision->sums[layer] = sum_squares(home, layer);
    if (!isfinite(decision->sums[layer]))
        return rp_home_fail_gradient(home, layer, error);
    decision->multiplier =
        unscale_of(rp_home_iteration(home, task->task.iteration), decision->scale);
    decision->learning_rate =
        rp_learning_rate_at(&home->options.learning_rate, home->state.n_updates);
    return TRUE;
}

/* ---- step and copies ---- */

/* What the task overwrites; NULL: nothing. */
static void *
written(const RpHome *home, const RpBackendTask *task)
{
    for (guint i = 0; i < task->task.access_count; i++)
        if (task->accesses[i].mode == RP_ACCESS_WRITE)
            return rp_home_memory(home, &task->accesses[i]);
    return NULL;
}

/* Where the step finds the gradients of @layer from parameter @first on; none of RP_NONE. */
static RpGradient
step_gradients(const RpHome *home, guint layer, guint64 first)
{
    if (layer != RP_NONE && home->layers[layer].copied != NULL)
        return (RpGradient){{home->layers[layer].copied + first}};
    return gradients_of(home, layer, first);
}

static gboolean
step(RpHome *home, const RpBackendTask *task, GError **error)
{
    const guint layer = task->task.layer;
    const RpHomeLayer *of = &home->layers[layer];
    const RpHomeDecision *decision = decision_of(home, task);
    void *published = written(home, task);

    if (!home->gated && !decide_alone(home, task, error))
        return FALSE;
    if (decision->skipped) {
        /* of two versions, this one is older than the weights */
        if (published != NULL)
            rp_home_publish(home, layer, published);
        return TRUE;
    }
    const RpOptimizerStep what = {
        .learning_rate = decision->learning_rate,
        .gradient_scale = decision->multiplier,
        .n_parameters = of->own,
        .gradient = step_gradients(home, layer, 0),
        .added = step_gradients(home, of->tied_from,
                                of->tied_from != RP_NONE ? home->layers[of->tied_from].own : 0),
        .published = published,
        .gradient_dtype = of->copied != NULL ? RP_DTYPE_FP32 : home->gradient_dtype,
        .published_dtype = home->dtype,
    };
    rp_optimizer_layer_apply(home->optimizer, of->state, &what);
    rp_optimizer_layer_finish(of->state);
    return TRUE;
}

static void
copy_gradients(RpHome *home, guint layer)
{
    const RpHomeLayer *of = &home->layers[layer];

    const RpGradient gradient = gradients_of(home, layer, 0);

    g_assert(of->copied != NULL);
    if (home->n_gradients > 1)
        rp_sums_accumulate(home->pool, rp_optimizer_ops(home->optimizer), of->copied,
                           gradient.rounds, home->n_gradients, home->gradient_dtype, TRUE,
                           of->own + of->tied);
    else
        rp_sums_widen(home->pool, rp_optimizer_ops(home->optimizer), gradient.rounds[0],
                      home->gradient_dtype, of->copied, of->own + of->tied);
}

static void
copy_parameters(RpHome *home, const RpBackendTask *task)
{
    void *published = written(home, task);

    g_assert(published != NULL);
    rp_home_publish(home, task->task.layer, published);
}

gboolean
rp_home_run(RpHome *home, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    switch ((RpTaskKind)task->task.kind) {
    case RP_TASK_GRADIENT_ACCUMULATE:
        g_assert(kind == RP_HOST_LANE_ACCUMULATE); /* its threads are those of that lane */
        accumulate(home, task);
        return TRUE;
    case RP_TASK_BARRIER:
        return TRUE;
    case RP_TASK_NORM:
        if (home->gated)
            return decide(home, task, error);
        sum_up(home, task);
        return TRUE;
    case RP_TASK_GRADIENT_COPY:
        copy_gradients(home, task->task.layer);
        return TRUE;
    case RP_TASK_OPTIMIZER_STEP:
        return step(home, task, error);
    case RP_TASK_PARAMETER_COPY:
        copy_parameters(home, task);
        return TRUE;
    default:
        g_assert_not_reached();
    }
}
