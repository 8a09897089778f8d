/* The calls of a loop: forward and backward, step, flush. */
#include "exec/train/trainer-private.h"

#include "core/verify/verify.h"

/* A caller that waits for a loss checks this often whether the engine still runs. */
#define LOOK_NS (50 * G_GINT64_CONSTANT(1000000))

gboolean
rp_trainer_fail_proof(RpViolation *violation, GError **error)
{
    g_set_error(error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_OPTIONS,
                "the plan is not correct, please report this: %s", violation->message);
    rp_violation_clear(violation);
    return FALSE;
}

gboolean
rp_trainer_prove(const RpPlan *plan, GError **error)
{
    RpViolation violation;

    return rp_verify_plan(plan, &violation) || rp_trainer_fail_proof(&violation, error);
}

/* Hands over the planned tasks, once they are proved. */
static gboolean
append(RpTrainer *trainer, RpGrown grown, GError **error)
{
    const RpPlan *plan = rp_planner_plan(trainer->planner);
    const gint64 start_us = g_get_monotonic_time();
    RpViolation violation;
    gboolean proved;

    proved = rp_verifier_extend(trainer->verifier, grown, &violation);
    trainer->proof.tasks = rp_plan_end_id(plan);
    trainer->proof.ns += 1000 * (g_get_monotonic_time() - start_us);
    if (!proved)
        return rp_trainer_fail_proof(&violation, error);
    return rp_engine_append(trainer->engine, error);
}

/* Two iterations at most are under way, so that rings never run over. */
gboolean
rp_trainer_wait_to_begin(RpTrainer *trainer, GError **error)
{
    return trainer->iteration < trainer->first_iteration + 2 ||
           rp_engine_wait(trainer->engine,
                          rp_trainer_record(trainer, trainer->iteration - 2)->end_batch, error);
}

static gboolean
begin_iteration(RpTrainer *trainer, GError **error)
{
    RpStepRecord *record = rp_trainer_record(trainer, trainer->iteration);

    if (!rp_trainer_wait_to_begin(trainer, error))
        return FALSE;
    if (trainer->iteration >= trainer->first_iteration + 2)
        rp_batch_feed_let_go(trainer->feed, trainer->iteration - 2);
    *record = (RpStepRecord){.iteration = trainer->iteration};
    for (guint g = 0; g < trainer->gpus; g++)
        rp_trainer_ends(trainer, trainer->iteration)[g] = -1;
    rp_host_state_begin(trainer->host_state, trainer->iteration,
                        (guint64)trainer->servers *
                            rp_plan_micro_batches(rp_planner_plan(trainer->planner)) *
                            rp_network_options(trainer->network)->sequences *
                            rp_network_options(trainer->network)->tokens);
    return TRUE;
}

gboolean
rp_trainer_wait_for_loss(RpTrainer *trainer, const RpBatchFeedCall *call, double *loss,
                         GError **error)
{
    const guint m_end = rp_plan_micro_batches(rp_planner_plan(trainer->planner)) / trainer->calls;
    double sum = 0;

    while (!rp_batch_feed_wait(trainer->feed, call, LOOK_NS))
        if (!rp_engine_wait(trainer->engine, 0, error)) /* has a task failed? */
            return FALSE;
    for (guint m = 0; m < m_end; m++)
        sum += call->losses[m];
    *loss = sum;
    return TRUE;
}

gboolean
rp_trainer_forward_backward(RpTrainer *trainer, const RpTokenBatch *batch, double *loss,
                            GError **error)
{
    const RpNetworkOptions *shape = rp_network_options(trainer->network);
    RpStepRecord *record = rp_trainer_record(trainer, trainer->iteration);
    const RpBatchFeedCall *call;

    g_return_val_if_fail(trainer->call < trainer->calls, FALSE);
    g_return_val_if_fail(batch->sequences == shape->sequences && batch->tokens == shape->tokens,
                         FALSE);
    g_return_val_if_fail(!batch->packed == (shape->packed_tokens == 0), FALSE);
    g_return_val_if_fail(batch->micro_batches * trainer->calls ==
                             rp_plan_micro_batches(rp_planner_plan(trainer->planner)),
                         FALSE);
    if (trainer->call == 0 && !begin_iteration(trainer, error))
        return FALSE;
    call = rp_batch_feed_push(trainer->feed, trainer->iteration, trainer->call, batch);
    record->n_tokens += batch->n_tokens;
    record->n_targets += batch->n_targets;
    if (++trainer->call == trainer->calls)
        rp_host_state_set_targets(trainer->host_state, trainer->iteration, record->n_targets);
    if (!rp_planner_append_call(trainer->planner, error) ||
        !append(trainer, trainer->call < trainer->calls ? RP_GROWN_PART : RP_GROWN_CALLS, error))
        return FALSE;
    record->end_batch = rp_engine_n_appended(trainer->engine);
    if (loss == NULL)
        return TRUE;
    if (!rp_trainer_wait_for_loss(trainer, call, loss, error))
        return FALSE;
    *loss /= (double)batch->n_targets;
    return TRUE;
}

gboolean
rp_trainer_step(RpTrainer *trainer, GError **error)
{
    g_return_val_if_fail(trainer->call == trainer->calls, FALSE);
    rp_planner_append_step(trainer->planner);
    trainer->call = 0;
    trainer->iteration++;
    return append(trainer, RP_GROWN_STEP, error);
}

gboolean
rp_trainer_flush(RpTrainer *trainer, GError **error)
{
    g_return_val_if_fail(trainer->call == 0, FALSE);
    rp_planner_flush(trainer->planner);
    if (!append(trainer, RP_GROWN_STEP, error) || !rp_engine_finish(trainer->engine, error))
        return FALSE;
    rp_trainer_stand_still(trainer);
    return TRUE;
}
