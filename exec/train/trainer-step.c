/* The calls of a loop: forward and backward, step, flush. */
#include "exec/train/trainer-private.h"

#include <math.h>

#include "core/verify/verify.h"

/* Steps that are over.
 *
 * A step's time on a device is from the end of the last action of the step before to the end of its
 * own last one: on one device steps follow each other, though asynchronous ones overlap across
 * devices. Its time is the mean over devices, so that times of steps add up to that of the run.
 *
 *   device 0  | 1 | 1 | 2 | 2 | 3 | 3 |             step 2:  |------>|
 *   device 1      | 1 | 1 | 2 | 2 | 3 | 3 |                      |------>|
 *   host                  |norm of 1|               1 is reported
 *
 * A synchronous step is over on all devices before the next begins: its time is that of the
 * last. */

void
rp_trainer_tell_losses(gpointer user_data, guint64 iteration, double *numbers)
{
    RpTrainer *trainer = user_data;
    const guint micro_batches = rp_plan_micro_batches(rp_planner_plan(trainer->planner));
    const gsize n = rp_trainer_n_numbers(trainer);

    for (guint32 m = 0; m < micro_batches; m++) {
        guint at;
        const RpBatchFeedCall *call = rp_batch_feed_find(trainer->feed, iteration, m, &at);

        numbers[n * m] = call->losses[at];
        numbers[n * m + 1] = call->aux_losses[at];
        if (n > 2)
            *rp_stage_sums(numbers + n * m) = call->sums[at];
    }
}

/* Mean loss of all micro-batches of all servers, and their metrics. */
static void
measure(RpTrainer *trainer, const RpStepRecord *record, RpStepReport *report)
{
    const RpPreference *preference = rp_trainer_preference(trainer);
    const gsize n = rp_trainer_n_numbers(trainer);
    RpPreferenceSums sums = {0};
    const guint micro_batches = rp_plan_micro_batches(rp_planner_plan(trainer->planner));
    g_autofree double *own = NULL;
    const double *numbers;
    double sum = 0, aux_sum = 0;

    if (trainer->servers > 1) {
        numbers = rp_host_state_numbers(trainer->host_state, record->iteration);
    } else {
        numbers = own = g_new(double, n *micro_batches);
        rp_trainer_tell_losses(trainer, record->iteration, own);
    }
    for (guint32 m = 0; m < trainer->servers * micro_batches; m++) {
        sum += numbers[n * m];
        aux_sum += numbers[n * m + 1];
        if (preference != NULL)
            rp_preference_sums_add(&sums, rp_stage_sums(numbers + n * m));
    }
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++)
        report->metrics[i] = NAN;
    if (preference != NULL)
        (void)rp_preference_measure(preference, &sums, report->metrics);
    report->loss = sum / (double)record->n_units;
    report->aux_loss = aux_sum / (double)record->n_units;
}

void
rp_trainer_stand_still(RpTrainer *trainer)
{
    trainer->first_start_ns = G_MAXINT64;
    for (guint g = 0; g < trainer->gpus; g++)
        trainer->last_ends_ns[g] = -1;
}

/* The time of @iteration, all devices' together. */
static gint64
take_window(RpTrainer *trainer, guint64 iteration)
{
    const gint64 *ends_ns = rp_trainer_ends(trainer, iteration);
    gint64 last_ns = -1, sum_ns = 0;

    for (guint g = 0; g < trainer->gpus; g++)
        last_ns = MAX(last_ns, ends_ns[g]);
    for (guint g = 0; g < trainer->gpus; g++) {
        const gint64 start_ns =
            trainer->last_ends_ns[g] >= 0 ? trainer->last_ends_ns[g] : trainer->first_start_ns;
        const gint64 end_ns =
            MAX(start_ns, rp_trainer_staleness(trainer) > 0 ? ends_ns[g] : last_ns);

        sum_ns += end_ns - start_ns;
        trainer->last_ends_ns[g] = end_ns;
    }
    return sum_ns;
}

static void
report_step(RpTrainer *trainer, RpStepRecord *record)
{
    const RpUpdateReport update = rp_host_state_report(trainer->host_state, record->iteration);
    const gint64 window_ns = take_window(trainer, record->iteration);
    RpStepReport report = {
        .step = trainer->steps_before + record->iteration - trainer->first_iteration + 1,
        .learning_rate = update.learning_rate,
        .grad_norm = update.grad_norm,
        .loss_scale = update.loss_scale,
        .skipped = update.skipped,
        .held = update.held,
        .n_tokens = record->n_tokens,
        .n_targets = record->n_targets,
    };

    measure(trainer, record, &report);
    report.step_ns = window_ns / trainer->gpus;
    if (window_ns > 0)
        report.bubble_ratio = 1 - (double)record->busy_ns / (double)window_ns;
    trainer->n_reported++;
    if (trainer->done != NULL)
        trainer->done(trainer->user_data, &report);
}

void
rp_trainer_note_batch(gpointer user_data, guint64 batch, const RpTraceRecord *records, gsize n)
{
    RpTrainer *trainer = user_data;

    for (gsize i = 0; i < n; i++) {
        RpStepRecord *record = rp_trainer_record(trainer, records[i].iteration);

        if (records[i].kind > RP_TASK_OVERLAP && records[i].kind != RP_TASK_EXPAND)
            continue;
        gint64 *end_ns = rp_trainer_ends(trainer, records[i].iteration) +
                         rp_plan_lane_device(rp_planner_plan(trainer->planner), records[i].lane);
        *end_ns = MAX(*end_ns, records[i].end_ns);
        trainer->first_start_ns = MIN(trainer->first_start_ns, records[i].start_ns);
        record->busy_ns += records[i].end_ns - records[i].start_ns;
    }
    for (gsize i = 0; i < n; i++)
        if (records[i].kind == RP_TASK_NORM &&
            records[i].iteration == trainer->first_iteration + trainer->n_reported)
            report_step(trainer, rp_trainer_record(trainer, records[i].iteration));
}

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

    gboolean proved = rp_verifier_extend(trainer->verifier, grown, &violation);
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
    *record = (RpStepRecord){.iteration = trainer->iteration, .busy_ns = trainer->scored_ns};
    trainer->scored_ns = 0;
    for (guint g = 0; g < trainer->gpus; g++)
        rp_trainer_ends(trainer, trainer->iteration)[g] = -1;
    rp_host_state_begin(trainer->host_state, trainer->iteration, rp_trainer_most_units(trainer));
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
    const guint64 n_units = batch->preference ? batch->n_pairs : batch->n_targets;
    const RpBatchFeedCall *call;

    g_return_val_if_fail(trainer->call < trainer->calls, FALSE);
    g_return_val_if_fail(batch->sequences == shape->sequences && batch->tokens == shape->tokens,
                         FALSE);
    g_return_val_if_fail(!batch->packed == (shape->packed_tokens == 0), FALSE);
    g_return_val_if_fail(!batch->preference == (rp_trainer_preference(trainer) == NULL), FALSE);
    g_return_val_if_fail(batch->micro_batches * trainer->calls ==
                             rp_plan_micro_batches(rp_planner_plan(trainer->planner)),
                         FALSE);
    if (trainer->call == 0 && !begin_iteration(trainer, error))
        return FALSE;
    call = rp_batch_feed_push(trainer->feed, trainer->iteration, trainer->call, batch);
    record->n_tokens += batch->n_tokens;
    record->n_targets += batch->n_targets;
    record->n_units += n_units;
    if (++trainer->call == trainer->calls)
        rp_host_state_set_targets(trainer->host_state, trainer->iteration, record->n_units);
    if (!rp_planner_append_call(trainer->planner, error) ||
        !append(trainer, trainer->call < trainer->calls ? RP_GROWN_PART : RP_GROWN_CALLS, error))
        return FALSE;
    record->end_batch = rp_engine_n_appended(trainer->engine);
    if (loss == NULL)
        return TRUE;
    if (!rp_trainer_wait_for_loss(trainer, call, loss, error))
        return FALSE;
    *loss /= (double)n_units;
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
rp_trainer_settle(RpTrainer *trainer, GError **error)
{
    g_return_val_if_fail(trainer->call == 0, FALSE);
    rp_planner_flush(trainer->planner);
    return append(trainer, RP_GROWN_STEP, error) && rp_engine_finish(trainer->engine, error);
}

gboolean
rp_trainer_flush(RpTrainer *trainer, GError **error)
{
    if (!rp_trainer_settle(trainer, error))
        return FALSE;
    rp_trainer_stand_still(trainer);
    return TRUE;
}
