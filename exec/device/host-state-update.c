/* Tasks of the host lanes.
 *
 *   accumulate lane   |+ round 1|+ rounds 2, 3|
 *   optimizer lane                             |norm|step 0|step 1| ... |copy 0|copy 1| ...
 *   not gated                  |step 1|step 0| ... |norm|
 *   early steps                |early 0|early 1| ... |norm|step 0| ... |late 0|late 1| ...
 *
 * The gradient of a tied matrix is the sum of two, the embedding's and the head's. It is added up
 * on the fly, once for the norm and once for the step, and stored
 * nowhere. */
#include <math.h>

#include "exec/device/batch-feed.h"
#include "exec/device/host-state-private.h"
#include "exec/optim/optimizer.h"
#include "exec/optim/rules.h"

/* ---- iterations ---- */

void
rp_host_state_begin(RpHostState *host_state, guint64 iteration, guint64 reference)
{
    g_return_if_fail(reference > 0);

    *rp_host_state_iteration(host_state, iteration) =
        (RpHostStateIteration){.reference = reference};
}

void
rp_host_state_set_targets(RpHostState *host_state, guint64 iteration, guint64 targets)
{
    g_return_if_fail(targets > 0);

    rp_host_state_iteration(host_state, iteration)->targets = targets;
}

float
rp_host_state_scale(const RpHostState *host_state, guint64 iteration,
                    const RpBackendAccess *decision)
{
    if (host_state->evaluates)
        return 0; /* there is no gradient */
    g_assert((decision != NULL) == rp_modes_wait_for_norm(host_state->modes));
    const RpHostStateDecision *newest =
        decision != NULL
            ? (const RpHostStateDecision *)(void *)rp_host_state_memory(host_state, decision)
            : host_state->decisions[0];
    return (float)((double)newest->scale /
                   (double)host_state->ring[iteration % RP_HOST_STATE_RING].reference);
}

RpUpdateReport
rp_host_state_report(const RpHostState *host_state, guint64 iteration)
{
    return host_state->ring[iteration % RP_HOST_STATE_RING].report;
}

/* ---- sums of rounds ---- */

/* Each staging buffer of the task holds a round; the stage's layers stand in it one after the
 *
 * other. */
static void
accumulate(RpHostState *host_state, const RpBackendTask *task)
{
    const RpInterval layers = rp_plan_stage(host_state->plan, task->task.stage)->layers;
    const void **added = host_state->added;
    guint n_added = 0;
    gboolean begin = FALSE;

    for (guint i = 0; i < task->task.access_count; i++) {
        begin = begin || task->accesses[i].mode == RP_ACCESS_WRITE;
        if (task->accesses[i].role != RP_ROLE_STAGING)
            continue;
        g_assert(n_added < host_state->modes->rounds);
        added[n_added++] = rp_host_state_memory(host_state, &task->accesses[i]);
    }
    g_assert(n_added > 0);
    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpHostStateLayer *layer = &host_state->layers[l];
        const guint64 n = layer->own + layer->tied;

        rp_sums_accumulate(host_state->accumulate_pool, rp_optimizer_ops(host_state->optimizer),
                           (float *)(void *)layer->gradients[0], added, n_added, host_state->dtype,
                           begin, n);
        for (guint i = 0; i < n_added; i++)
            added[i] = (const guint8 *)added[i] + n * host_state->element_bytes;
    }
}

/* ---- norm ---- */

/* Gradients of @layer from parameter @first on, all rounds; none of RP_NONE. */
static RpGradient
gradients_of(const RpHostState *host_state, guint layer, guint64 first)
{
    RpGradient gradient = {{NULL}};

    for (guint i = 0; layer != RP_NONE && i < rp_host_state_gradient_rounds(host_state); i++)
        gradient.rounds[i] = host_state->layers[layer].gradients[i] +
                             first * rp_host_state_gradient_bytes(host_state);
    return gradient;
}

/* Gradients of a tied matrix that came with the head. */
static RpGradient
tied_gradients(const RpHostState *host_state, guint layer)
{
    const guint from = rp_plan_tied_from(host_state->plan, layer);

    return gradients_of(host_state, from, from != RP_NONE ? host_state->layers[from].own : 0);
}

/* The device's sum, if it has made one of all of the layer's gradient. */
static double
sum_squares(RpHostState *host_state, guint64 iteration, guint layer)
{
    if (host_state->squares != NULL && rp_plan_tied_from(host_state->plan, layer) == RP_NONE) {
        double *place =
            host_state->squares + iteration % RP_BATCH_FEED_RING * host_state->n_layers + layer;
        const double sum = *place;

        *place = 0;
        return sum;
    }
    return rp_optimizer_sum_squares_of_sum(
        host_state->optimizer, gradients_of(host_state, layer, 0),
        tied_gradients(host_state, layer), rp_host_state_gradient_dtype(host_state),
        host_state->layers[layer].own);
}

/* Finds the decision that the task reads or writes. */
static RpHostStateDecision *
decision_of(const RpHostState *host_state, const RpBackendTask *task)
{
    for (guint i = 0; i < task->task.access_count; i++)
        if (task->accesses[i].role == RP_ROLE_DECISION)
            return (RpHostStateDecision *)(void *)rp_host_state_memory(host_state,
                                                                       &task->accesses[i]);
    g_assert_not_reached();
}

/* The factor that makes stored gradients those of the mean loss. */
static double
unscale_of(const RpHostStateIteration *of, float loss_scale)
{
    g_assert(of->targets > 0);
    return (double)of->reference / ((double)loss_scale * (double)of->targets);
}

static void
close_iteration(RpHostState *host_state, guint64 iteration, const RpClip *clip, float loss_scale,
                gboolean held)
{
    RpHostStateIteration *of = rp_host_state_iteration(host_state, iteration);

    of->report = (RpUpdateReport){
        .learning_rate =
            rp_learning_rate_at(&host_state->options.learning_rate, host_state->state.n_updates),
        .grad_norm = clip->norm,
        .skipped = !clip->finite,
        .loss_scale = loss_scale,
        .n_targets = of->targets,
        .held = held,
    };
    host_state->state.n_iterations++;
    if (clip->finite)
        host_state->state.n_updates++;
    host_state->next_iteration = iteration + 1;
}

/* Sends the sums of squares of the own shares, and receives all. */
static gboolean
agree(RpHostState *host_state, guint64 iteration, RpHostStateDecision *decision, GError **error)
{
    g_autofree double *numbers = g_new0(double, (gsize)host_state->n_numbers + 1);

    if (host_state->numbers != NULL)
        host_state->numbers(host_state->numbers_data, iteration, numbers);
    return rp_shares_agree(host_state->shares, numbers, RP_SERVERS_NETWORK, decision->sums,
                           (double *)rp_host_state_numbers(host_state, iteration), error);
}

/* Norm, clipping and loss scale of the iteration; whether it is stepped at all. Until now the
 * decision was the one that the iteration's heads have read. */
static gboolean
decide(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    const guint64 iteration = task->task.iteration;
    RpHostStateDecision *decision = decision_of(host_state, task);
    const gboolean several = host_state->modes->servers > 1;
    const float loss_scale = decision->scale;
    const double unscale = unscale_of(rp_host_state_iteration(host_state, iteration), loss_scale);

    if (several && !agree(host_state, iteration, decision, error))
        return FALSE;
    for (guint l = 0;
         l < host_state->n_layers && host_state->modes->step != RP_STEP_EARLY && !several; l++)
        decision->sums[l] = sum_squares(host_state, iteration, l);
    const RpClip clip = rp_clip_by_norm(decision->sums, host_state->n_layers, unscale,
                                        host_state->options.max_grad_norm);

    if (!rp_host_state_note_finite(host_state, clip.finite, decision->sums, error))
        return FALSE;
    decision->multiplier = unscale * clip.coefficient;
    decision->learning_rate =
        rp_learning_rate_at(&host_state->options.learning_rate, host_state->state.n_updates);
    decision->skipped = !clip.finite;
    decision->scale = host_state->state.loss_scale.scale;
    decision->holds = decision->foresees && clip.finite && clip.coefficient == 1;
    decision->foresees = clip.finite && clip.coefficient == 1;
    close_iteration(host_state, iteration, &clip, loss_scale, decision->holds);
    return TRUE;
}

/* Not gated: every layer has been stepped. */
static void
sum_up(RpHostState *host_state, const RpBackendTask *task)
{
    const guint64 iteration = task->task.iteration;
    const RpHostStateDecision *decision = decision_of(host_state, task);
    const RpClip clip = rp_clip_by_norm(
        decision->sums, host_state->n_layers,
        unscale_of(rp_host_state_iteration(host_state, iteration), decision->scale), 0);

    close_iteration(host_state, iteration, &clip, decision->scale, FALSE);
}

/* Not gated: decides by the layer's own part of the norm's numbers. */
static gboolean
decide_alone(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    const guint layer = task->task.layer;
    RpHostStateDecision *decision = decision_of(host_state, task);

    if (host_state->modes->servers > 1)
        rp_shares_square(host_state->shares, host_state->optimizer, layer);
    decision->sums[layer] = host_state->modes->servers > 1
                                ? rp_shares_own_squares(host_state->shares, layer)
                                : sum_squares(host_state, task->task.iteration, layer);
    if (!isfinite(decision->sums[layer]))
        return rp_host_state_fail_gradient(host_state, layer, error);
    decision->multiplier =
        unscale_of(rp_host_state_iteration(host_state, task->task.iteration), decision->scale);
    decision->learning_rate =
        rp_learning_rate_at(&host_state->options.learning_rate, host_state->state.n_updates);
    return TRUE;
}

/* ---- step and copies ---- */

/* Finds the buffer that the task overwrites; NULL if there is none. */
static void *
written(const RpHostState *host_state, const RpBackendTask *task)
{
    for (guint i = 0; i < task->task.access_count; i++)
        if (task->accesses[i].mode == RP_ACCESS_WRITE)
            return rp_host_state_memory(host_state, &task->accesses[i]);
    return NULL;
}

/* Gradients of @layer from parameter @first on that the step reads; none of RP_NONE. */
static RpGradient
step_gradients(const RpHostState *host_state, guint layer, guint64 first)
{
    if (layer != RP_NONE && host_state->layers[layer].copied != NULL)
        return (RpGradient){{host_state->layers[layer].copied + first}};
    return gradients_of(host_state, layer, first);
}

/* The layer's update, of the gradients as they stand. */
static RpOptimizerStep
update_of(const RpHostState *host_state, guint layer, double learning_rate, double multiplier,
          void *published)
{
    const RpHostStateLayer *of = &host_state->layers[layer];
    const guint tied = rp_plan_tied_from(host_state->plan, layer);
    const gboolean reduced = host_state->modes->servers > 1;
    RpOptimizerStep step = {
        .learning_rate = learning_rate,
        .gradient_scale = multiplier,
        .n_parameters = of->share.n,
        .published = published != NULL
                         ? (guint8 *)published + of->share.first * host_state->element_bytes
                         : NULL,
        .gradient_dtype = of->copied != NULL || reduced ? RP_DTYPE_FP32
                                                        : rp_host_state_gradient_dtype(host_state),
        .published_dtype = host_state->dtype,
    };

    if (reduced) {
        step.gradient.rounds[0] = rp_shares_sum(host_state->shares, layer, FALSE);
        if (tied != RP_NONE)
            step.added.rounds[0] = rp_shares_sum(host_state->shares, tied, TRUE);
        return step;
    }
    step.gradient = step_gradients(host_state, layer, 0);
    step.added =
        step_gradients(host_state, tied, tied != RP_NONE ? host_state->layers[tied].own : 0);
    return step;
}

static void
apply(RpHostState *host_state, guint layer, const RpHostStateDecision *decision, void *published)
{
    const RpHostStateLayer *of = &host_state->layers[layer];
    const RpOptimizerStep what =
        update_of(host_state, layer, decision->learning_rate, decision->multiplier, published);

    if (of->state == NULL)
        return; /* all of the layer is other servers' */
    rp_optimizer_layer_apply(host_state->optimizer, of->state, &what);
    rp_optimizer_layer_finish(of->state);
}

/* Before the norm is known: the weights as they are if it clips nothing, unless that is not likely. */
static void
step_early(RpHostState *host_state, const RpBackendTask *task)
{
    const guint layer = task->task.layer;
    const RpHostStateLayer *of = &host_state->layers[layer];
    RpHostStateDecision *decision = decision_of(host_state, task);

    decision->sums[layer] = sum_squares(host_state, task->task.iteration, layer);
    if (!rp_plan_layer(host_state->plan, layer)->early || !decision->foresees ||
        !isfinite(decision->sums[layer]))
        return;
    const RpOptimizerStep what = update_of(
        host_state, layer,
        rp_learning_rate_at(&host_state->options.learning_rate, host_state->state.n_updates),
        unscale_of(rp_host_state_iteration(host_state, task->task.iteration), decision->scale),
        of->weights[0]);

    rp_optimizer_layer_preview(host_state->optimizer, of->state, &what);
}

/* The norm has clipped nothing: the state goes where the weights are. */
static void
step_late(RpHostState *host_state, const RpBackendTask *task)
{
    const RpHostStateDecision *decision = decision_of(host_state, task);

    if (decision->holds)
        apply(host_state, task->task.layer, decision, NULL);
}

static gboolean
step(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    const guint layer = task->task.layer;
    const RpHostStateDecision *decision = decision_of(host_state, task);
    void *published = host_state->modes->step == RP_STEP_EARLY
                          ? host_state->layers[layer].weights[0]
                          : written(host_state, task);

    if (!rp_modes_wait_for_norm(host_state->modes) && !decide_alone(host_state, task, error))
        return FALSE;
    if (rp_plan_layer(host_state->plan, layer)->early && decision->holds)
        return TRUE;
    if (decision->skipped) {
        /* with two versions this one is older than the weights; early ones are not theirs */
        if (published != NULL)
            rp_host_state_publish(host_state, layer, published);
    } else {
        apply(host_state, layer, decision, published);
    }
    return TRUE;
}

static void
copy_gradients(RpHostState *host_state, guint layer)
{
    const RpHostStateLayer *of = &host_state->layers[layer];

    const RpGradient gradient = gradients_of(host_state, layer, 0);

    g_assert(of->copied != NULL);
    if (rp_host_state_gradient_rounds(host_state) > 1)
        rp_sums_accumulate(host_state->pool, rp_optimizer_ops(host_state->optimizer), of->copied,
                           gradient.rounds, rp_host_state_gradient_rounds(host_state),
                           rp_host_state_gradient_dtype(host_state), TRUE, of->own + of->tied);
    else
        rp_sums_widen(host_state->pool, rp_optimizer_ops(host_state->optimizer), gradient.rounds[0],
                      rp_host_state_gradient_dtype(host_state), of->copied, of->own + of->tied);
}

static void
copy_parameters(RpHostState *host_state, const RpBackendTask *task)
{
    void *published = written(host_state, task);

    g_assert(published != NULL);
    rp_host_state_publish(host_state, task->task.layer, published);
}

/* ---- several servers ---- */

static gboolean
reduce(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    const RpGradient gradient = gradients_of(host_state, task->task.layer, 0);

    return rp_shares_reduce(host_state->shares, host_state->optimizer, host_state->network_pool,
                            task->task.layer, gradient.rounds, RP_SERVERS_NETWORK, error);
}

gboolean
rp_host_state_gather_gradient(const RpHostState *host_state, guint layer, guint64 first, guint64 n,
                              float *values, GError **error)
{
    return rp_shares_gather_sum(host_state->shares, layer, first, n, RP_SERVERS_CONTROL, values,
                                error);
}

/* Gathers the version that the step or copy before it has written. */
static gboolean
gather(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    g_assert(task->task.access_count > 0 && task->accesses[0].role == RP_ROLE_HOST);
    return rp_shares_gather_weights(host_state->shares, task->task.layer,
                                    rp_host_state_memory(host_state, &task->accesses[0]),
                                    RP_SERVERS_NETWORK, error);
}

/* Gated: the own squares alone, from which all servers decide. */
static gboolean
norm(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    const gboolean several = host_state->modes->servers > 1;

    if (rp_modes_wait_for_norm(host_state->modes) && !several)
        return decide(host_state, task, error);
    if (!several)
        sum_up(host_state, task);
    for (guint l = 0; l < host_state->n_layers && rp_modes_wait_for_norm(host_state->modes); l++)
        rp_shares_square(host_state->shares, host_state->optimizer, l);
    return TRUE;
}

static gboolean
close_norm(RpHostState *host_state, const RpBackendTask *task, GError **error)
{
    if (rp_modes_wait_for_norm(host_state->modes))
        return decide(host_state, task, error);
    if (!agree(host_state, task->task.iteration, decision_of(host_state, task), error))
        return FALSE;
    sum_up(host_state, task);
    return TRUE;
}

gboolean
rp_host_state_run(RpHostState *host_state, RpHostLaneKind kind, const RpBackendTask *task,
                  GError **error)
{
    switch ((RpTaskKind)task->task.kind) {
    case RP_TASK_GRADIENT_ACCUMULATE:
        g_assert(kind == RP_HOST_LANE_ACCUMULATE); /* its threads are those of that lane */
        accumulate(host_state, task);
        return TRUE;
    case RP_TASK_BARRIER:
        return TRUE;
    case RP_TASK_NORM:
        return norm(host_state, task, error);
    case RP_TASK_GRADIENT_COPY:
        copy_gradients(host_state, task->task.layer);
        return TRUE;
    case RP_TASK_EARLY_STEP:
        step_early(host_state, task);
        return TRUE;
    case RP_TASK_OPTIMIZER_STEP:
        return step(host_state, task, error);
    case RP_TASK_LATE_STEP:
        step_late(host_state, task);
        return TRUE;
    case RP_TASK_PARAMETER_COPY:
        copy_parameters(host_state, task);
        return TRUE;
    case RP_TASK_REDUCE:
        return reduce(host_state, task, error);
    case RP_TASK_AGREE:
        return close_norm(host_state, task, error);
    case RP_TASK_GATHER:
        return gather(host_state, task, error);
    default:
        g_assert_not_reached();
    }
}
