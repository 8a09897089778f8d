#include "core/verify/private.h"

/* The only device that may run it; each copy of a mirrored stage has one half of the
 * micro-batches. */
static guint
bound_device(const RpVerifier *verifier, const RpPlanStage *stage, const RpActionPart *part)
{
    return stage->mirrored && part->micro_batch >= verifier->micro_batches / 2
               ? rp_plan_gpus(verifier->plan) - 1 - stage->device
               : stage->device;
}

static gboolean
check_action_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    RpActionPart parts[2];
    guint n_parts = rp_action_parts(verifier, task, parts);

    for (guint i = 0; i < n_parts; i++) {
        const RpActionPart *part = &parts[i];

        if (part->stage >= verifier->n_stages || part->micro_batch >= verifier->micro_batches)
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                    "an action of a stage or micro-batch that does not exist");
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, part->stage);
        if ((part->forward && !stage->runs_forward) ||
            ((part->backward || part->weights) && !stage->runs_backward))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                    "the stage does not run in this direction");
        if (!verifier->promises->forward_only &&
            (stage->bound || verifier->promises->slices <= 1) && stage->runs_forward &&
            stage->runs_backward && stage->bound == (task->kind == RP_TASK_FUSED))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                    "forward and backward are one action in the fused stage, and "
                                    "two in a bound one");
        if (stage->bound &&
            rp_verifier_device(verifier, index) != bound_device(verifier, stage, part))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                    "the stage is bound to gpu %u",
                                    bound_device(verifier, stage, part));
        if (task->kind != RP_TASK_OVERLAP &&
            task->round != (guint64)part->micro_batch * verifier->rounds / verifier->micro_batches)
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                    "round %u is not that of the micro-batch", task->round);
    }
    if (rp_task_is_piece(task) &&
        (!verifier->promises->layerwise || task->first_step >= task->end_step ||
         task->end_step > 2 * rp_plan_stage(verifier->plan, task->stage)->layers.count))
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                "a piece of an action that has none, or not such a one");
    if (task->lead_ns < 0 || task->lead_ns > task->duration_ns)
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, index,
                                "the recompute part is longer than the action");
    return TRUE;
}

/* A plan that trains nothing has only these kinds of tasks, so that no weight is written. */
static gboolean
runs_forward(RpTaskKind kind)
{
    return kind == RP_TASK_FORWARD || kind == RP_TASK_EXPAND ||
           kind == RP_TASK_ACTIVATION_DOWNLOAD || kind == RP_TASK_ACTIVATION_UPLOAD ||
           kind == RP_TASK_PARAMETER_UPLOAD || kind == RP_TASK_RESIDENT_UPLOAD;
}

/* Fields that index something: after this nothing can be out of range. */
static gboolean
check_fields(RpVerifier *verifier)
{
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        if (task->lane >= rp_plan_n_lanes(verifier->plan) || task->kind >= RP_N_TASK_KINDS)
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, i,
                                    "a lane or kind of task that does not exist");
        if ((rp_task_kind((RpTaskKind)task->kind)->lanes >>
                 rp_plan_lane_kind(verifier->plan, task->lane) &
             1) == 0)
            return rp_verifier_fail(verifier,
                                    rp_task_is_compute(task) ? RP_RULE_ACTIONS : RP_RULE_TRANSFERS,
                                    RP_NO_TASK, i, "this kind of task cannot stand on the %s lane",
                                    rp_lane_name(rp_plan_lane_kind(verifier->plan, task->lane)));
        if (verifier->promises->forward_only && !runs_forward((RpTaskKind)task->kind))
            return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, i,
                                    "a plan that only runs forward has no such task");
        if (rp_task_is_compute(task) && !check_action_fields(verifier, i, task))
            return FALSE;
    }
    return TRUE;
}

/* Sorts the tasks by iteration, keeping their order. */
static gboolean
sort_by_iteration(RpVerifier *verifier)
{
    guint32 low = G_MAXUINT32, high = 0, first_action = G_MAXUINT32;

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        low = MIN(low, task->iteration);
        high = MAX(high, task->iteration);
        if (first_action == G_MAXUINT32 && rp_task_is_compute(task))
            first_action = task->iteration;
    }
    if (high - low >= verifier->n_tasks)
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                "%u tasks cannot be iterations %u to %u", verifier->n_tasks, low,
                                high);
    verifier->first_iteration = low;
    verifier->n_iterations = high - low + 1;
    if (verifier->whole) /* growing: an iteration held in part is not dirty */
        verifier->complete_from = MAX(verifier->promises->first_iteration, low) - low;
    else
        verifier->complete_from =
            first_action == G_MAXUINT32 ? verifier->n_iterations : first_action - low + 1;
    g_free(verifier->iteration_start);
    g_free(verifier->by_iteration);
    verifier->iteration_start = g_new0(guint32, (gsize)verifier->n_iterations + 2);
    verifier->by_iteration = g_new(guint32, verifier->n_tasks);
    for (guint32 i = 0; i < verifier->n_tasks; i++)
        verifier->iteration_start[rp_verifier_task(verifier, i)->iteration - low + 2]++;
    for (guint32 i = 2; i <= verifier->n_iterations; i++)
        verifier->iteration_start[i] += verifier->iteration_start[i - 1];
    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        guint32 iteration = rp_verifier_task(verifier, i)->iteration - low;

        verifier->by_iteration[verifier->iteration_start[iteration + 1]++] = i;
    }
    return TRUE;
}

static gboolean
report_race(RpVerifier *verifier)
{
    if (verifier->race == RP_RULE_NONE)
        return TRUE;
    return rp_verifier_fail(verifier, verifier->race, verifier->race_first, verifier->race_second,
                            "%s", verifier->race_text);
}

gboolean
rp_verifier_prove(RpVerifier *verifier)
{
    if (verifier->n_tasks == 0)
        return TRUE;
    verifier->tasks = rp_plan_task(verifier->plan, verifier->first_id);
    if (verifier->micro_batches == 0 || verifier->n_layers == 0 || verifier->rounds == 0 ||
        verifier->micro_batches % verifier->rounds != 0)
        return rp_verifier_fail(verifier, RP_RULE_ACTIONS, RP_NO_TASK, RP_NO_TASK,
                                "%u micro-batches of %u layers in %u rounds: not a plan",
                                verifier->micro_batches, verifier->n_layers, verifier->rounds);
    return check_fields(verifier) && sort_by_iteration(verifier) && rp_verify_stages(verifier) &&
           rp_verify_deadlock(verifier) && rp_verify_make_clocks(verifier) &&
           rp_verify_places(verifier) && rp_verify_accesses(verifier) &&
           rp_verify_dataflow(verifier) && rp_verify_pieces(verifier) &&
           rp_verify_parameters(verifier) &&
           (verifier->promises->forward_only ||
            (rp_verify_consistency(verifier) && rp_verify_decisions(verifier))) &&
           rp_verify_tables(verifier) && rp_verify_operands(verifier) && report_race(verifier);
}

void
rp_verifier_clear(RpVerifier *verifier)
{
    g_free(verifier->iteration_start);
    g_free(verifier->by_iteration);
    g_free(verifier->lane);
    g_free(verifier->position);
    g_free(verifier->start_row);
    g_free(verifier->end_row);
    g_free(verifier->clocks);
    g_free(verifier->dense);
    g_free(verifier->length);
    g_free(verifier->lane_row);
    g_free(verifier->forward_of);
    g_free(verifier->backward_of);
    g_free(verifier->trainable);
    g_free(verifier->parameter_bytes);
    g_free(verifier->gradient_bytes);
    g_free(verifier->claimed);
    g_free(verifier->contents);
    rp_verifier_free_sweep(verifier->sweep);
    g_clear_pointer(&verifier->old, g_array_unref);
    g_free(verifier->race_text);
}

gboolean
rp_verify_plan_within(const RpPlan *plan, guint64 clock_bytes, RpViolation *violation)
{
    RpVerifier verifier = {
        .plan = plan,
        .promises = rp_plan_promises(plan),
        .violation = violation,
        .clock_bytes = clock_bytes,
        .first_id = rp_plan_first_id(plan),
        .n_stages = rp_plan_n_stages(plan),
        .n_layers = rp_plan_n_layers(plan),
        .micro_batches = rp_plan_micro_batches(plan),
        .rounds = rp_plan_promises(plan)->rounds,
        .full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL,
        .whole = rp_plan_first_id(plan) == 0,
    };
    guint64 n_tasks = rp_plan_end_id(plan) - verifier.first_id;
    gboolean proved;

    if (violation != NULL)
        *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
    if (n_tasks >= RP_OLD_TASK)
        return rp_verifier_fail(&verifier, RP_RULE_NONE, RP_NO_TASK, RP_NO_TASK,
                                "too large to verify: %" G_GUINT64_FORMAT " tasks", n_tasks);
    verifier.n_tasks = (guint32)n_tasks;
    proved = rp_verifier_prove(&verifier);
    rp_verifier_clear(&verifier);
    return proved;
}

gboolean
rp_verify_plan(const RpPlan *plan, RpViolation *violation)
{
    return rp_verify_plan_within(plan, RP_VERIFY_CLOCK_BYTES, violation);
}
