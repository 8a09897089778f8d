#include "core/verify/private.h"

#include <string.h>

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
            return fail_task(verifier, RP_RULE_ACTIONS, index,
                             "an action of a stage or micro-batch that does not exist");
        const RpPlanStage *stage = rp_plan_stage(verifier->plan, part->stage);
        if ((part->runs[RP_PART_FORWARD] && !stage->runs_forward) ||
            ((part->runs[RP_PART_BACKWARD] || part->runs[RP_PART_WEIGHTS]) &&
             !stage->runs_backward))
            return fail_task(verifier, RP_RULE_ACTIONS, index,
                             "the stage does not run in this direction");
        if (!verifier->evaluates && (stage->bound || verifier->modes->slices <= 1) &&
            stage->runs_forward && stage->runs_backward &&
            stage->bound == (task->kind == RP_TASK_FUSED))
            return fail_task(
                verifier, RP_RULE_ACTIONS, index,
                "forward and backward are one action in the fused stage, and two in a bound one");
        if (stage->bound &&
            rp_verifier_device(verifier, index) != bound_device(verifier, stage, part))
            return fail_task(verifier, RP_RULE_ACTIONS, index, "the stage is bound to gpu %u",
                             bound_device(verifier, stage, part));
        if (task->kind != RP_TASK_OVERLAP &&
            task->round != (guint64)part->micro_batch * verifier->rounds / verifier->micro_batches)
            return fail_task(verifier, RP_RULE_ACTIONS, index,
                             "round %u is not that of the micro-batch", task->round);
    }
    if (rp_task_is_piece(task) &&
        (verifier->modes->weights != RP_WEIGHTS_PER_LAYER || task->first_step >= task->end_step ||
         task->end_step > 2 * rp_plan_stage(verifier->plan, task->stage)->layers.count))
        return fail_task(verifier, RP_RULE_ACTIONS, index,
                         "a piece of an action that has none, or not such a one");
    if (task->lead_ns < 0 || task->lead_ns > task->duration_ns)
        return fail_task(verifier, RP_RULE_ACTIONS, index,
                         "the recompute part is longer than the action");
    return TRUE;
}

/* A stage, a round and a chunk that exist, of parameters or gradients. */
static gboolean
check_slot_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    const guint summed = rp_verifier_n_summed(verifier, task);

    if (task->stage >= verifier->n_stages || task->round >= verifier->rounds)
        return fail_task(verifier, RP_RULE_TRANSFERS, index,
                         "a stage or round that does not exist");
    const RpPlanStage *stage = rp_plan_stage(verifier->plan, task->stage);
    const RpChunks *chunks =
        task->kind == RP_TASK_PARAMETER_UPLOAD ? &stage->parameters : &stage->gradients;
    if (task->kind == RP_TASK_EXPAND)
        return (rp_modes_pack(verifier->modes) && stage->parameter_bytes > 0) ||
               fail_task(verifier, RP_RULE_TRANSFERS, index, "nothing of the stage is packed");
    if (task->kind == RP_TASK_GRADIENT_ACCUMULATE)
        return (rp_verifier_stages(verifier) && summed > 0 && summed <= task->round + 1U &&
                stage->gradient_bytes > 0) ||
               fail_task(verifier, RP_RULE_TRANSFERS, index,
                         "gradients of %u rounds are summed, of up to %u", summed,
                         rp_verifier_stages(verifier) ? task->round + 1U : 0);
    return task->chunk < chunks->n_chunks ||
           fail_task(verifier, RP_RULE_TRANSFERS, index, "a chunk that does not exist");
}

static gboolean
check_resident_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    const guint32 device = rp_verifier_device(verifier, index);

    if (task->layer >= verifier->n_layers ||
        rp_plan_resident(verifier->plan, device, task->layer) == RP_NONE)
        return fail_task(verifier, RP_RULE_TRANSFERS, index,
                         "a layer that does not exist, or does not stay on the device");
    return task->iteration == rp_plan_first_iteration(verifier->plan) ||
           fail_task(verifier, RP_RULE_TRANSFERS, index,
                     "weights that stay are uploaded after the first iteration");
}

/* Whether some stage begins at the boundary and so has a use for the value; a saved one: the layer has
 * them. The task is that of the stage whose action makes the value, or reads it. */
static gboolean
is_used(const RpVerifier *verifier, const RpTask *task)
{
    const RpTaskKind kind = (RpTaskKind)task->kind;
    const guint32 l = task->layer;
    const gboolean saved = kind == RP_TASK_SAVED_DOWNLOAD || kind == RP_TASK_SAVED_UPLOAD;
    const RpDirection backward = kind == RP_TASK_STASH_UPLOAD || kind == RP_TASK_ACTGRAD_DOWNLOAD ||
                                 kind == RP_TASK_ACTGRAD_UPLOAD || kind == RP_TASK_SAVED_UPLOAD;
    const guint below = kind == RP_TASK_ACTIVATION_DOWNLOAD || kind == RP_TASK_ACTGRAD_UPLOAD;

    if (l < below || l >= verifier->n_layers || task->micro_batch >= verifier->micro_batches ||
        task->stage != rp_verifier_stage_of(verifier, l - below, backward))
        return FALSE;
    if (saved)
        return rp_plan_layer(verifier->plan, l)->saved_bytes > 0;
    if (l == 0)
        return kind != RP_TASK_ACTGRAD_DOWNLOAD;
    return rp_verifier_begins_stage(verifier, l, backward) ||
           (kind == RP_TASK_ACTIVATION_DOWNLOAD && !verifier->evaluates &&
            rp_verifier_begins_stage(verifier, l, RP_BACKWARD));
}

static gboolean
check_full_fields(RpVerifier *verifier, guint32 index, const RpTask *task)
{
    const RpTaskKind kind = (RpTaskKind)task->kind;

    switch (rp_verifier_identity(kind)) {
    case RP_PER_CHUNK:
    case RP_PER_SLOT:
        return check_slot_fields(verifier, index, task);
    case RP_PER_DEVICE:
        return check_resident_fields(verifier, index, task);
    case RP_PER_LAYER:
        return (task->layer < verifier->n_layers &&
                rp_ledger_has_kind(verifier, kind, task->layer)) ||
               fail_task(verifier, RP_RULE_OPTIMIZER_ORDER, index,
                         "the plan has no such task of the layer");
    case RP_PER_VALUE:
        return is_used(verifier, task) ||
               fail_task(verifier, RP_RULE_ACTIONS, index, "no stage has a use for this value");
    default:
        return TRUE;
    }
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
            return fail_task(verifier, RP_RULE_ACTIONS, i,
                             "a lane or kind of task that does not exist");
        if ((rp_task_kind((RpTaskKind)task->kind)->lanes >>
                 rp_plan_lane_kind(verifier->plan, task->lane) &
             1) == 0)
            return fail_task(verifier,
                             rp_task_is_compute(task) ? RP_RULE_ACTIONS : RP_RULE_TRANSFERS, i,
                             "this kind of task cannot stand on the %s lane",
                             rp_lane_name(rp_plan_lane_kind(verifier->plan, task->lane)));
        if (verifier->evaluates && !runs_forward((RpTaskKind)task->kind))
            return fail_task(verifier, RP_RULE_ACTIONS, i,
                             "a plan that only runs forward has no such task");
        if (rp_task_is_compute(task) ? !check_action_fields(verifier, i, task)
                                     : verifier->full && !check_full_fields(verifier, i, task))
            return FALSE;
    }
    return TRUE;
}

/* Iterations that follow each other, and those of them that are there from their first task on. */
static gboolean
check_iterations(RpVerifier *verifier)
{
    guint32 low = G_MAXUINT32, high = 0, first_action = G_MAXUINT32;

    if (verifier->ledgers->len > 0) {
        low = verifier->first_iteration;
        high = low + verifier->ledgers->len - 1;
    }
    for (guint32 i = verifier->first_new; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);

        low = MIN(low, task->iteration);
        high = MAX(high, task->iteration);
        if (first_action == G_MAXUINT32 && rp_task_is_compute(task))
            first_action = task->iteration;
    }
    if (high - low >= verifier->n_tasks)
        return fail_plan(verifier, RP_RULE_ACTIONS, "%u tasks cannot be iterations %u to %u",
                         verifier->n_tasks, low, high);
    if (verifier->whole)
        verifier->complete_from = rp_plan_first_iteration(verifier->plan);
    else
        verifier->complete_from = first_action == G_MAXUINT32 ? G_MAXUINT32 : first_action + 1;
    if (verifier->full && (guint64)verifier->micro_batches * verifier->n_layers > G_MAXUINT32)
        return fail_plan(verifier, RP_RULE_NONE,
                         "too large to verify: %u micro-batches of %u layers",
                         verifier->micro_batches, verifier->n_layers);
    return TRUE;
}

static gboolean
prove(RpVerifier *verifier)
{
    verifier->rank = RP_NO_RANK;
    if (verifier->n_tasks == 0)
        return TRUE;
    verifier->tasks = rp_plan_task(verifier->plan, verifier->first_id);
    if (verifier->n_tasks > verifier->max_tasks) {
        verifier->max_tasks = (verifier->source != NULL ? 2 : 1) * (gsize)verifier->n_tasks;
        verifier->places = g_renew(RpTaskPlace, verifier->places, verifier->max_tasks);
    }
    memset(verifier->places + verifier->first_new, 0,
           (verifier->n_tasks - verifier->first_new) * sizeof(RpTaskPlace));
    if (verifier->micro_batches == 0 || verifier->n_layers == 0 || verifier->rounds == 0 ||
        verifier->micro_batches % verifier->rounds != 0)
        return fail_plan(verifier, RP_RULE_ACTIONS,
                         "%u micro-batches of %u layers in %u rounds: not a plan",
                         verifier->micro_batches, verifier->n_layers, verifier->rounds);
    if (!rp_verify_stages(verifier) || !check_fields(verifier) || !check_iterations(verifier) ||
        !rp_verify_deadlock(verifier) || !rp_verify_make_clocks(verifier) ||
        !rp_verify_arenas(verifier))
        return FALSE;
    rp_verify_tables(verifier); /* a table that is wrong is reported if nothing graver is */
    rp_verify_sweep(verifier);
    return verifier->rank == RP_NO_RANK;
}

static void
clear(RpVerifier *verifier)
{
    g_free(verifier->places);
    g_free(verifier->lanes);
    g_free(verifier->clocks);
    g_free(verifier->layers);
    g_free(verifier->first_chunk);
    rp_sweep_free(verifier->sweep);
    g_clear_pointer(&verifier->ledgers, g_ptr_array_unref);
    g_clear_pointer(&verifier->old, g_array_unref);
}

static void
begin(RpVerifier *verifier, const RpPlan *plan, guint64 clock_bytes)
{
    verifier->rank = RP_NO_RANK;
    verifier->plan = plan;
    verifier->modes = rp_plan_modes(plan);
    verifier->storage = rp_plan_storage(plan);
    verifier->evaluates = rp_plan_evaluates(plan);
    verifier->clock_bytes = clock_bytes;
    verifier->first_id = rp_plan_first_id(plan);
    verifier->n_stages = rp_plan_n_stages(plan);
    verifier->n_layers = rp_plan_n_layers(plan);
    verifier->micro_batches = rp_plan_micro_batches(plan);
    verifier->rounds = rp_plan_rounds(plan);
    verifier->full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL;
    verifier->whole = verifier->first_id == 0;
    rp_verifier_pick_rows(verifier);
}

static void
clear_violation(RpViolation *violation)
{
    if (violation != NULL)
        *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
}

gboolean
rp_verify_plan_within(const RpPlan *plan, guint64 clock_bytes, RpViolation *violation)
{
    RpVerifier verifier = {.violation = violation};
    guint64 n_tasks = rp_plan_end_id(plan) - rp_plan_first_id(plan);

    begin(&verifier, plan, clock_bytes);
    clear_violation(violation);
    if (n_tasks >= RP_OLD_TASK)
        return fail_plan(&verifier, RP_RULE_NONE,
                         "too large to verify: %" G_GUINT64_FORMAT " tasks", n_tasks);
    verifier.n_tasks = (guint32)n_tasks;
    gboolean proved = prove(&verifier);
    clear(&verifier);
    return proved;
}

gboolean
rp_verify_plan(const RpPlan *plan, RpViolation *violation)
{
    return rp_verify_plan_within(plan, RP_VERIFY_CLOCK_BYTES, violation);
}

/*
 * A plan that is proved as it grows.
 *
 *   plan       |- - retired - -|==========|==========|==========|+++ new +++|
 *   verifier   |- - - old - - - - -|  T-3  |   T-2    |   T-1    |     T     |
 *
 * New tasks are copied into a plan of the verifier's own, the window, which has the same tables, and go
 * through all steps of the proof. Clocks, values and ledgers stay from call to call, so that a task is looked
 * at once. At last the window forgets what lies before T - 3. Of an old task there remain, as long as it is
 * the last that touched some buffer, its place in its lane and its clock: all that order needs (a device may
 * rest for many iterations). The value that it left stays with the buffer.
 */

/* Iterations that the window holds in whole: actions of T are compared with those of T - 2, and T - 1
 * may get tasks. */
#define HELD_ITERATIONS 4

static void
copy_tasks(RpVerifier *verifier)
{
    const RpPlan *source = verifier->source;

    for (RpTaskId id = rp_plan_end_id(verifier->window); id < rp_plan_end_id(source); id++) {
        const RpTask *task = rp_plan_task(source, id);

        rp_plan_append(verifier->window, task, rp_plan_dependencies(source, task),
                       task->dependency_count, rp_plan_accesses(source, task), task->access_count);
    }
    verifier->n_tasks = (guint32)(rp_plan_end_id(verifier->window) - verifier->first_id);
    if (verifier->n_tasks > 0)
        verifier->tasks = rp_plan_task(verifier->window, verifier->first_id);
}

RpVerifier *
rp_verifier_new(const RpPlan *plan)
{
    g_return_val_if_fail(rp_plan_end_id(plan) == 0, NULL);

    RpVerifier *verifier = g_new0(RpVerifier, 1);

    verifier->source = plan;
    verifier->window = rp_plan_new_beside(plan);
    begin(verifier, verifier->window, RP_VERIFY_CLOCK_BYTES);
    return verifier;
}

void
rp_verifier_free(RpVerifier *verifier)
{
    if (verifier == NULL)
        return;
    clear(verifier);
    rp_plan_free(verifier->window);
    g_free(verifier);
}

guint
rp_verifier_n_held(const RpVerifier *verifier)
{
    return verifier->n_tasks;
}

/* Iterations before @first have been seen for the last time. */
static void
forget_before(RpVerifier *verifier, guint32 first)
{
    guint32 n = 0;

    while (n < verifier->n_tasks && rp_verifier_task(verifier, n)->iteration < first)
        n++;
    if (n == 0 || n == verifier->n_tasks)
        return;
    rp_verifier_forget_touchers(verifier, n);
    rp_ledger_forget_before(verifier, first);
    rp_verifier_forget_clocks(verifier, n);
    rp_plan_retire(verifier->window, verifier->first_id + n);
    verifier->first_id += n;
    verifier->tasks = rp_plan_task(verifier->window, verifier->first_id);
}

gboolean
rp_verifier_extend(RpVerifier *verifier, RpGrown grown, RpViolation *violation)
{
    clear_violation(violation);
    g_return_val_if_fail(rp_plan_first_id(verifier->source) <= rp_plan_end_id(verifier->window),
                         FALSE);
    verifier->violation = violation;
    verifier->first_new = verifier->n_tasks;
    copy_tasks(verifier);
    verifier->open = grown == RP_GROWN_PART;
    verifier->pending = grown == RP_GROWN_STEP ? 0 : 1;
    if (!prove(verifier))
        return FALSE;
    if (verifier->n_tasks == 0)
        return TRUE;
    const guint32 last = verifier->first_iteration + verifier->ledgers->len - 1;
    if (last >= HELD_ITERATIONS)
        forget_before(verifier, last - (HELD_ITERATIONS - 1));
    return TRUE;
}
