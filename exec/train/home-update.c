/* Tasks of the host lanes.
 *
 *   accumulate lane   |+ round 1|+ rounds 2, 3|
 *   optimizer lane                             |norm|step 0|step 1| ... |copy 0|copy 1| ...
 *
 * The gradient of a tied matrix is the sum of two, the embedding's and the head's. It is added up
 * on the fly, once for the norm and once for the step, and stored nowhere.
 */
#include <float.h>
#include <math.h>

#include "exec/optim/clip.h"
#include "exec/optim/sums.h"
#include "exec/train/home-private.h"

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

    for (guint i = 0; i < task->task.access_count; i++) {
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
                           layer->gradients, added, n_added, home->number, n);
        for (guint i = 0; i < n_added; i++)
            added[i] = (const guint8 *)added[i] + n * home->element_bytes;
    }
}

/* ---- norm ---- */

/* Gradients of a tied matrix that came home with the head. */
static const void *
tied_gradients(const RpHome *home, guint layer)
{
    const guint from = home->layers[layer].tied_from;

    if (from == RP_NONE)
        return NULL;
    return home->layers[from].gradients + home->layers[from].own * home->element_bytes;
}

static void
sum_squares(RpHome *home)
{
    for (guint l = 0; l < home->n_layers; l++)
        home->sums[l] = rp_optimizer_sum_squares_of_sum(home->optimizer, home->layers[l].gradients,
                                                        tied_gradients(home, l), home->number,
                                                        home->layers[l].own);
}

static gboolean
fail_gradient(const RpHome *home, GError **error)
{
    guint layer = 0;

    while (layer + 1 < home->n_layers && isfinite(home->sums[layer]))
        layer++;
    g_autofree char *name = rp_home_describe_layer(home->network, layer);
    g_set_error(error, RP_HOME_ERROR, RP_HOME_ERROR_GRADIENT,
                "step %" G_GUINT64_FORMAT ": the gradient of %s is not finite; "
                "a lower learning rate or clipping may avoid it",
                home->state.n_iterations + 1, name);
    return FALSE;
}

/* Norm, clipping and loss scale of the iteration; whether it is stepped at all. */
static gboolean
decide(RpHome *home, guint64 iteration, GError **error)
{
    RpHomeIteration *of = rp_home_iteration(home, iteration);
    const float loss_scale = home->scales[iteration % RP_HOME_RING];

    g_assert(of->targets > 0);
    const double unscale = (double)of->reference / ((double)loss_scale * (double)of->targets);
    sum_squares(home);
    const RpClip clip =
        rp_clip_by_norm(home->sums, home->n_layers, unscale, home->options.max_grad_norm);

    of->report = (RpUpdateReport){
        .learning_rate = rp_learning_rate_at(&home->options.learning_rate, home->state.n_updates),
        .grad_norm = clip.norm,
        .skipped = !clip.finite,
        .loss_scale = loss_scale,
        .n_targets = of->targets,
    };
    of->multiplier = unscale * clip.coefficient;
    if (home->options.scale_loss)
        (void)rp_loss_scale_update(&home->state.loss_scale, &home->options.loss_scale, clip.finite);
    /* a scale that small has lost what it was to keep: it is not the scale's fault */
    if (!clip.finite && (!home->options.scale_loss || home->state.loss_scale.scale < FLT_MIN))
        return fail_gradient(home, error);
    home->state.n_iterations++;
    if (clip.finite)
        home->state.n_updates++;
    /* asynchronous: the next iteration runs already */
    rp_home_set_scale(home, iteration + (home->async ? 2 : 1), home->state.loss_scale.scale);
    home->next_iteration = iteration + 1;
    of->decided = TRUE;
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

/* Where the step finds the gradients of @layer from parameter @first on. */
static const void *
step_gradients(const RpHome *home, guint layer, guint64 first)
{
    const RpHomeLayer *of = &home->layers[layer];

    return of->copied != NULL ? (const void *)(of->copied + first)
                              : of->gradients + first * home->element_bytes;
}

static void
step(RpHome *home, const RpBackendTask *task)
{
    const guint layer = task->task.layer;
    const RpHomeLayer *of = &home->layers[layer];
    const RpHomeIteration *iteration = rp_home_iteration(home, task->task.iteration);
    void *published = written(home, task);

    g_assert(iteration->decided);
    if (iteration->report.skipped) {
        /* of two versions, this one is older than the weights */
        if (published != NULL)
            rp_home_publish(home, layer, published);
        return;
    }
    const RpOptimizerStep what = {
        .learning_rate = iteration->report.learning_rate,
        .gradient_scale = iteration->multiplier,
        .n_parameters = of->own,
        .gradient = step_gradients(home, layer, 0),
        .added = of->tied_from == RP_NONE
                     ? NULL
                     : step_gradients(home, of->tied_from, home->layers[of->tied_from].own),
        .published = published,
        .gradient_number = of->copied != NULL ? RP_NUMBER_FP32 : home->number,
        .published_number = home->number,
    };
    rp_optimizer_layer_apply(home->optimizer, of->state, &what);
    rp_optimizer_layer_finish(of->state);
}

static void
copy_gradients(RpHome *home, guint layer)
{
    const RpHomeLayer *of = &home->layers[layer];

    g_assert(of->copied != NULL);
    rp_sums_widen(home->pool, rp_optimizer_ops(home->optimizer), of->gradients, home->number,
                  of->copied, of->own + of->tied);
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
    case RP_TASK_BARRIER: /* blocking: there is a second one, which only joins */
        return rp_home_iteration(home, task->task.iteration)->decided ||
               decide(home, task->task.iteration, error);
    case RP_TASK_GRADIENT_COPY:
        copy_gradients(home, task->task.layer);
        return TRUE;
    case RP_TASK_OPTIMIZER_STEP:
        step(home, task);
        return TRUE;
    case RP_TASK_PARAMETER_COPY:
        copy_parameters(home, task);
        return TRUE;
    default:
        g_assert_not_reached();
    }
}
