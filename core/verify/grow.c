/*
 * A plan that is proved as it grows.
 *
 *   plan       |- - retired - -|==========|==========|==========|+++ new +++|
 *   verifier   |- - - old - - - - -|  T-3  |   T-2    |   T-1    |     T     |
 *
 * New tasks are copied into a plan of the verifier's own, the window, and go through all steps of the
 * proof. Clocks, values and ledgers stay from call to call, so that a task is looked at once. At last
 * the window forgets what lies before T - 3. Of an old task there remain, as long as it is the last
 * that touched some buffer, its place in its lane and its clock: all that order needs (a device may
 * rest for many iterations). The value that it left stays with the buffer.
 */
#include "core/verify/private.h"

/* Iterations that the window holds in whole: actions of T are compared with those of T - 2, and T - 1
 * may get tasks. */
#define HELD_ITERATIONS 4

/* Tables of the plan; they are made before its first task. */
static void
copy_tables(RpVerifier *verifier)
{
    const RpPlan *source = verifier->source;
    RpPlan *window = verifier->window;
    guint32 decisions[2];

    rp_plan_set_alike(window, source);
    for (guint s = 0; s < rp_plan_n_stages(source); s++) {
        const RpPlanStage *stage = rp_plan_stage(source, s);
        RpPlanStage copy = *stage;

        copy.parameters = rp_chunks_copy(&stage->parameters);
        copy.gradients = rp_chunks_copy(&stage->gradients);
        copy.boundaries = g_memdup2(stage->boundaries, stage->n_boundaries * sizeof(guint));
        rp_plan_add_stage(window, &copy);
    }
    for (guint l = 0; l < rp_plan_n_layers(source); l++)
        rp_plan_set_layer(window, l, rp_plan_layer(source, l));
    for (guint g = 0; g < rp_plan_gpus(source); g++) {
        rp_plan_set_constants(window, g, rp_plan_constants(source, g));
        for (guint l = 0; l < rp_plan_n_layers(source); l++) {
            rp_plan_set_resident(window, g, l, rp_plan_resident(source, g, l));
            rp_plan_set_slot_layer(window, g, l, rp_plan_slot_layer(source, g, l));
        }
    }
    for (guint i = 0; i < rp_plan_n_decisions(source); i++)
        decisions[i] = rp_plan_decision(source, i);
    rp_plan_set_decisions(window, decisions, rp_plan_n_decisions(source));
    rp_plan_set_exchange(window, rp_plan_exchange(source));
    verifier->modes = rp_plan_modes(window);
    verifier->storage = rp_plan_storage(window);
    verifier->evaluates = rp_plan_evaluates(window);
    verifier->rounds = rp_plan_rounds(window);
    verifier->n_stages = rp_plan_n_stages(window);
}

static void
copy_tasks(RpVerifier *verifier)
{
    const RpPlan *source = verifier->source;

    for (guint b = rp_plan_n_buffers(verifier->window); b < rp_plan_n_buffers(source); b++)
        rp_plan_place_buffer(verifier->window, rp_plan_buffer(source, b));
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
    verifier->window = rp_plan_new(rp_plan_gpus(plan), rp_plan_fidelity(plan),
                                   rp_plan_n_layers(plan), rp_plan_micro_batches(plan));
    verifier->plan = verifier->window;
    verifier->clock_bytes = RP_VERIFY_CLOCK_BYTES;
    verifier->n_layers = rp_plan_n_layers(plan);
    verifier->micro_batches = rp_plan_micro_batches(plan);
    verifier->full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL;
    verifier->whole = TRUE;
    return verifier;
}

void
rp_verifier_free(RpVerifier *verifier)
{
    if (verifier == NULL)
        return;
    rp_verifier_clear(verifier);
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
    guint32 last = 0;

    if (violation != NULL)
        *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
    if (rp_plan_n_stages(verifier->window) == 0)
        copy_tables(verifier);
    g_return_val_if_fail(rp_plan_first_id(verifier->source) <= rp_plan_end_id(verifier->window),
                         FALSE);
    verifier->violation = violation;
    verifier->first_new = verifier->n_tasks;
    copy_tasks(verifier);
    verifier->open = grown == RP_GROWN_PART;
    verifier->pending = grown == RP_GROWN_STEP ? 0 : 1;
    if (!rp_verifier_prove(verifier))
        return FALSE;
    for (guint32 i = 0; i < verifier->n_tasks; i++)
        last = MAX(last, rp_verifier_task(verifier, i)->iteration);
    if (last >= HELD_ITERATIONS)
        forget_before(verifier, last - (HELD_ITERATIONS - 1));
    return TRUE;
}
