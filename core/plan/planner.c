#include "core/plan/device-layout.h"
#include "core/plan/planner-private.h"

#include "core/base/units.h"

G_DEFINE_QUARK(rp_planner_error, rp_planner_error)

/* Default options become definite ones. */
static void
resolve_options(RpPlanner *planner)
{
    RpPlanOptions *options = &planner->options;
    gboolean full = options->fidelity == RP_FIDELITY_FULL;

    options->calls = MAX(1, options->calls);
    if (options->round == 0 || !options->schedule->dispatched)
        options->round = options->micro_batches;
    if (options->recompute == RP_RECOMPUTE_DEFAULT)
        options->recompute =
            options->schedule->dispatched ? RP_RECOMPUTE_EARLY : RP_RECOMPUTE_GATED;
    if (options->fused_forward == RP_FUSED_DEFAULT)
        options->fused_forward = full ? RP_FUSED_PHYSICAL : RP_FUSED_PUBLISHED;
    planner->early = options->recompute == RP_RECOMPUTE_EARLY;
    planner->early_fused = planner->early && options->fused_forward == RP_FUSED_PUBLISHED;
}

static gboolean
check_partition(const RpPlanner *planner, GError **error)
{
    const RpPartition *partition = planner->partition;
    const RpScheduleOps *schedule = planner->options.schedule;

    if (partition->dispatched != schedule->dispatched) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    schedule->dispatched
                        ? "schedule %s needs forward and backward stages, found one stage list"
                        : "schedule %s needs one stage list, found forward and backward stages",
                    schedule->name);
        return FALSE;
    }
    if (planner->options.fidelity == RP_FIDELITY_FULL) {
        if (planner->options.fused_forward == RP_FUSED_PUBLISHED) {
            g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                        "fused forward \"published\" exists in compute fidelity only: a machine "
                        "cannot run the fused stage before its input has arrived");
            return FALSE;
        }
        return rp_profile_check_full(planner->profile, error);
    }
    return TRUE;
}

static gboolean
check_calls(const RpPlanner *planner, GError **error)
{
    const RpScheduleOps *schedule = planner->options.schedule;

    if (planner->options.calls == 1 || schedule->dispatched || !schedule->offloads_weights)
        return TRUE;
    g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                "schedule %s sums gradients over one call: found %u calls a step", schedule->name,
                planner->options.calls);
    return FALSE;
}

static void
sum_bytes(const RpProfile *profile, RpStageInfo *info)
{
    for (guint l = info->layers.first; l < info->layers.first + info->layers.count; l++) {
        info->parameter_bytes += profile->layers[l].parameter_bytes;
        info->gradient_bytes += profile->layers[l].gradient_bytes;
    }
}

static void
fill_bound_stage(RpPlanner *planner, guint s)
{
    RpStageInfo *info = &planner->stages[s];

    info->layers = planner->partition->forward[s];
    info->phase = RP_PHASE_FORWARD;
    info->forward_ns = rp_stage_time_ns(planner->profile, info->layers, RP_PHASE_FORWARD, NULL);
    info->backward_ns =
        rp_stage_time_ns(planner->profile, info->layers, RP_PHASE_BACKWARD, &info->lead_ns);
    info->weight_ns = rp_stage_weight_gradient_ns(planner->profile, info->layers);
    info->device = rp_schedule_gpu(planner->options.schedule, &planner->shape, s, 0);
    info->stash_stage = RP_NONE;
    info->weight_stage = RP_NONE; /* its own device's order says it */
}

/* Forward slot whose last layer is the one before @layer; RP_NONE for the first layer. */
static guint
slot_making_input(const RpPartition *partition, guint layer)
{
    if (layer == 0)
        return RP_NONE;
    for (guint s = 0; s < partition->n_forward; s++)
        if (layer <= partition->forward[s].first + partition->forward[s].count)
            return s;
    return RP_NONE;
}

static guint
backward_slot_of_layer(const RpPartition *partition, guint layer)
{
    for (guint b = 0; b < partition->n_backward; b++)
        if (layer >= partition->backward[b].first)
            return partition->n_forward + b;
    return RP_NONE;
}

static void
fill_slot(RpPlanner *planner, guint slot)
{
    const RpPartition *partition = planner->partition;
    RpStageInfo *info = &planner->stages[slot];
    gboolean forward = slot < partition->n_forward;
    guint b = slot - partition->n_forward;

    info->layers = forward ? partition->forward[slot] : partition->backward[b];
    info->phase = forward ? RP_PHASE_FORWARD : b == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD;
    info->forward_ns = rp_stage_time_ns(planner->profile, info->layers, RP_PHASE_FORWARD, NULL);
    if (!forward)
        info->backward_ns =
            rp_stage_time_ns(planner->profile, info->layers, info->phase, &info->lead_ns);
    info->device = RP_NONE;
    info->stash_stage = forward ? RP_NONE : slot_making_input(partition, info->layers.first);
    /* backward runs from the last layer to the first: the first layer's gradient is the last */
    info->weight_stage = info->phase == RP_PHASE_BACKWARD
                             ? RP_NONE
                             : backward_slot_of_layer(partition, info->layers.first);
}

static void
fill_stages(RpPlanner *planner)
{
    planner->stages = g_new0(RpStageInfo, planner->n_stages);
    for (guint s = 0; s < planner->n_stages; s++) {
        RpStageInfo *info = &planner->stages[s];

        if (planner->partition->dispatched)
            fill_slot(planner, s);
        else
            fill_bound_stage(planner, s);
        sum_bytes(planner->profile, info);

        RpPlanStage stage = {
            .layers = info->layers,
            .runs_forward = info->phase != RP_PHASE_BACKWARD,
            .runs_backward = !planner->partition->dispatched || info->phase != RP_PHASE_FORWARD,
            .bound = !planner->partition->dispatched,
            .device = info->device,
            .parameter_bytes = info->parameter_bytes,
        };
        if (stage.runs_backward)
            stage.gradient_bytes = rp_planner_leaving_bytes(planner, info->gradient_bytes);
        RpLargest needs = {0};
        rp_largest_note(&needs, planner->profile, planner->partition, stage.layers,
                        stage.runs_forward, stage.runs_backward);
        stage.workspace_bytes =
            needs.workspace[stage.runs_backward ? RP_WAY_BACKWARD : RP_WAY_FORWARD];
        stage.kept_bytes = needs.activations;
        gboolean whole = planner->options.transfers == RP_TRANSFERS_NAIVE ||
                         (stage.bound && !planner->options.schedule->offloads_weights);

        if (planner->options.fidelity == RP_FIDELITY_FULL) {
            const RpChunksOf gradients = planner->keeps_sums ? RP_CHUNKS_SUMS : RP_CHUNKS_GRADIENTS;
            guint windows = planner->shape.round;

            stage.parameters =
                whole ? rp_chunks_whole(planner->profile, info->layers, RP_CHUNKS_PARAMETERS)
                      : rp_chunks_pack(planner->profile, info->layers, RP_CHUNKS_PARAMETERS,
                                       windows, 0);
            /* the next slot's last action turns its own sums into what leaves: by then the bytes
             * before it must be gone, so they have one window less */
            if (stage.runs_backward && info->gradient_bytes > 0)
                stage.gradients = whole ? rp_chunks_whole(planner->profile, info->layers, gradients)
                                        : rp_chunks_pack(planner->profile, info->layers, gradients,
                                                         MAX(2, windows) - 1, 0);
        }
        rp_plan_add_stage(planner->plan, &stage);
    }
}

/* Few rounds are not worth a sum in memory of its own, unless that takes less of it. Traffic, bytes
 * a parameter of k rounds in 16 bits, and of a sum that takes p passes:
 *
 *   summed   download 2 k | sum 2 k + 8 p - 4 | norm 4   | step 4
 *   apart    download 2 k |                   | norm 2 k | step 2 k
 */
static guint
rounds_apart(const RpPlanner *planner)
{
    const guint rounds = rp_planner_rounds_of_iteration(planner);
    const RpProfile *profile = planner->profile;
    guint64 gradients = 0, staging;

    if (planner->options.fidelity != RP_FIDELITY_FULL || planner->options.sum_rounds ||
        planner->keeps_sums || rounds < 2 || rounds > RP_MOST_ROUNDS_APART)
        return 0;
    for (guint l = 0; l < profile->n_layers; l++)
        gradients += profile->layers[l].gradient_bytes;
    staging = planner->options.gpus * rp_largest_dispatched(profile, planner->partition).gradients;
    return rounds * gradients <= rp_profile_sum_bytes(profile, gradients) + staging ? rounds : 0;
}

static void
set_promises(RpPlanner *planner)
{
    const RpPlanOptions *options = &planner->options;
    RpPlanPromises promises = {
        .async = options->async,
        .early_fused = planner->early_fused,
        .rounds = planner->rounds * (options->schedule->dispatched ? options->calls : 1),
        .wide_gradients = rp_planner_is_wide(planner),
        .kept_sums = planner->keeps_sums,
        .rounds_apart = planner->rounds_apart,
        .double_weights = options->async && options->optimizer == RP_OPTIMIZER_FUSED &&
                          options->consistency == RP_CONSISTENCY_EVENTS,
        .resident_weights = !options->schedule->dispatched && !options->schedule->offloads_weights,
        .stash_on_host = options->schedule->dispatched,
        .schedule = options->schedule->name,
        .first_iteration = options->first_iteration,
        .element_bytes = (guint)rp_profile_element_bytes(planner->profile),
        .gradient_copies = options->consistency == RP_CONSISTENCY_BLOCKING,
        .parameter_copies = options->consistency == RP_CONSISTENCY_BLOCKING ||
                            options->optimizer == RP_OPTIMIZER_LEAN,
        .constant_bytes = options->constant_bytes,
        .gated = !options->step_at_once || options->consistency == RP_CONSISTENCY_BLOCKING,
    };

    rp_plan_set_promises(planner->plan, &promises);
}

static void
allocate_weave(RpPlanner *planner)
{
    gsize actions = (gsize)planner->n_stages * planner->shape.micro_batches;
    guint gpus = planner->options.gpus;

    planner->orders = g_new0(GArray *, gpus);
    for (guint g = 0; g < gpus; g++)
        planner->orders[g] = g_array_new(FALSE, FALSE, sizeof(RpAction));
    planner->cursors = g_new0(guint, gpus);
    planner->forward_task = g_new(RpTaskId, actions);
    planner->backward_task = g_new(RpTaskId, actions);
    planner->last_compute = g_new(RpTaskId, gpus);
    for (guint g = 0; g < gpus; g++)
        planner->last_compute[g] = RP_TASK_NONE;
    for (guint i = 0; i < 2; i++) {
        planner->previous_last_backward[i] = g_new(RpTaskId, planner->n_stages);
        for (guint s = 0; s < planner->n_stages; s++)
            planner->previous_last_backward[i][s] = RP_TASK_NONE;
    }
    planner->barrier = RP_TASK_NONE;
    planner->dependencies = g_array_new(FALSE, FALSE, sizeof(RpDependency));
    planner->dependency_lanes = g_array_new(FALSE, FALSE, sizeof(guint32));
    planner->accesses = g_array_new(FALSE, FALSE, sizeof(RpAccess));
    planner->buffer_states = g_array_new(FALSE, FALSE, sizeof(RpBufferState));
    planner->histories = g_array_new(FALSE, FALSE, sizeof(guint32));
}

void
rp_planner_set_first_iteration(RpPlanner *planner, guint iteration)
{
    g_return_if_fail(rp_plan_end_id(planner->plan) == 0);
    planner->options.first_iteration = iteration;
    planner->iteration = iteration;
    planner->next_step = iteration;
    planner->first_copy = iteration > 0 ? iteration - 1 : 0;
    set_promises(planner);
}

RpPlanner *
rp_planner_new(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
               GError **error)
{
    g_autoptr(RpPlanner) planner = g_new0(RpPlanner, 1);

    g_return_val_if_fail(options->schedule != NULL, NULL);
    planner->profile = profile;
    planner->partition = rp_partition_copy(partition);
    planner->options = *options;
    resolve_options(planner);
    if (!check_partition(planner, error))
        return NULL;
    planner->n_stages = partition->n_forward + partition->n_backward;
    planner->shape = (RpShape){
        .gpus = options->gpus,
        .micro_batches = options->micro_batches,
        .stages = planner->n_stages,
        .round = planner->options.round,
        .forward_slots = partition->dispatched ? partition->n_forward : 0,
        .group = options->group,
        .reverse_backward = options->reverse_backward,
        .gpus_per_root = profile->links.gpus_per_root,
    };
    if (!rp_schedule_check(options->schedule, &planner->shape, error))
        return NULL;
    if (!check_calls(planner, error))
        return NULL;
    planner->rounds = options->micro_batches / planner->options.round;
    planner->keeps_sums =
        rp_planner_is_wide(planner) && rp_partition_keeps_sums(planner->partition, options->gpus);
    planner->rounds_apart = rounds_apart(planner);
    planner->plan = rp_plan_new(options->gpus, options->fidelity, profile->n_layers,
                                options->micro_batches * planner->options.calls);
    rp_planner_set_first_iteration(planner, options->first_iteration);
    fill_stages(planner);
    allocate_weave(planner);
    if (options->fidelity == RP_FIDELITY_FULL)
        rp_planner_lay_out(planner);
    return g_steal_pointer(&planner);
}

void
rp_planner_free(RpPlanner *planner)
{
    if (planner == NULL)
        return;
    if (planner->buffer_states != NULL)
        rp_planner_free_full(planner);
    if (planner->orders != NULL)
        for (guint g = 0; g < planner->options.gpus; g++)
            g_array_unref(planner->orders[g]);
    g_free(planner->orders);
    g_free(planner->cursors);
    g_free(planner->forward_task);
    g_free(planner->backward_task);
    g_free(planner->last_compute);
    g_free(planner->previous_last_backward[0]);
    g_free(planner->previous_last_backward[1]);
    g_clear_pointer(&planner->dependencies, g_array_unref);
    g_clear_pointer(&planner->dependency_lanes, g_array_unref);
    g_clear_pointer(&planner->accesses, g_array_unref);
    g_clear_pointer(&planner->buffer_states, g_array_unref);
    g_clear_pointer(&planner->histories, g_array_unref);
    g_free(planner->stages);
    rp_partition_free(planner->partition);
    rp_plan_free(planner->plan);
    g_free(planner);
}

static void
begin_call(RpPlanner *planner)
{
    gsize actions = (gsize)planner->n_stages * planner->shape.micro_batches;

    for (gsize i = 0; i < actions; i++) {
        planner->forward_task[i] = RP_TASK_NONE;
        planner->backward_task[i] = RP_TASK_NONE;
    }
    for (guint g = 0; g < planner->options.gpus; g++) {
        g_array_set_size(planner->orders[g], 0);
        planner->options.schedule->order(&planner->shape, g, planner->orders[g]);
        planner->cursors[g] = 0;
    }
    if (planner->options.fidelity == RP_FIDELITY_FULL)
        rp_planner_begin_call_host(planner);
    else if (planner->iteration > 0 && planner->call == 0 && !planner->options.async)
        rp_planner_compute_flush(planner);
}

static void
end_call(RpPlanner *planner)
{
    planner->shape.first_gpu =
        rp_schedule_next_first_gpu(planner->options.schedule, &planner->shape);
    planner->rounds_before += planner->rounds;
    planner->call++;
}

void
rp_planner_append_step(RpPlanner *planner)
{
    g_return_if_fail(planner->call == planner->options.calls);

    RpTaskId *oldest = planner->previous_last_backward[1];

    planner->previous_last_backward[1] = planner->previous_last_backward[0];
    planner->previous_last_backward[0] = oldest;
    for (guint s = 0; s < planner->n_stages; s++)
        oldest[s] = planner->backward_task[(gsize)s * planner->shape.micro_batches +
                                           planner->shape.micro_batches - 1];
    if (planner->options.fidelity == RP_FIDELITY_FULL)
        rp_planner_end_iteration_host(planner);
    planner->iteration++;
    planner->call = 0;
}

gboolean
rp_planner_append_call(RpPlanner *planner, GError **error)
{
    g_return_val_if_fail(planner->call < planner->options.calls, FALSE);
    begin_call(planner);
    if (!rp_planner_append_actions(planner, error))
        return FALSE;
    end_call(planner);
    return TRUE;
}

gboolean
rp_planner_append_iteration(RpPlanner *planner, GError **error)
{
    for (guint c = 0; c < planner->options.calls; c++)
        if (!rp_planner_append_call(planner, error))
            return FALSE;
    rp_planner_append_step(planner);
    return TRUE;
}

void
rp_planner_flush(RpPlanner *planner)
{
    if (planner->options.fidelity == RP_FIDELITY_FULL)
        rp_planner_flush_host(planner);
}

void
rp_planner_finish(RpPlanner *planner)
{
    if (planner->options.fidelity == RP_FIDELITY_FULL)
        rp_planner_finish_host(planner);
}

RpPlan *
rp_planner_plan(RpPlanner *planner)
{
    return planner->plan;
}

RpPlan *
rp_planner_steal_plan(RpPlanner *planner)
{
    return g_steal_pointer(&planner->plan);
}

RpPlan *
rp_plan_make(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
             guint iterations, GError **error)
{
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, error);

    if (planner == NULL)
        return NULL;
    for (guint i = 0; i < iterations; i++)
        if (!rp_planner_append_iteration(planner, error))
            return NULL;
    rp_planner_finish(planner);
    return rp_planner_steal_plan(planner);
}
