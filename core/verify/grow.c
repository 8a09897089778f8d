/*
 * A plan that is proved as it grows.
 *
 *   plan       |- - retired - -|==========|==========|==========|+++ new +++|
 *   verifier   |- - - old - - - - -|  T-3  |   T-2    |   T-1    |     T     |
 *
 * New tasks are copied into a plan of the verifier's own, the window, which has the same tables, and go through all steps of the
 * proof. Clocks, values and ledgers stay from call to call, so that a task is looked at once. At last
 * the window forgets what lies before T - 3. Of an old task there remain, as long as it is the last
 * that touched some buffer, its place in its lane and its clock: all that order needs (a device may
 * rest for many iterations). The value that it left stays with the buffer.
 */
#include "core/verify/private.h"

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
    rp_verifier_begin(verifier, verifier->window, RP_VERIFY_CLOCK_BYTES);
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
