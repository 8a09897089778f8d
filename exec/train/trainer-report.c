/* Steps that are over.
 *
 *   compute    |---- T-1 ----|---- T ----|
 *   window                   |<--------->|     from the last action's end to the last action's end
 *                 |<------ / 2 -------->|     asynchronous: two steps overlap, so the mean of two
 *   host                        |norm T-1   |  tells that T-1 is reported
 */
#include "exec/train/trainer-private.h"

static double
mean_loss(RpTrainer *trainer, const RpStepRecord *record)
{
    const guint micro_batches = rp_plan_micro_batches(rp_planner_plan(trainer->planner));
    double sum = 0;

    for (guint32 m = 0; m < micro_batches; m++) {
        guint at;
        const RpFeedCall *call = rp_feed_find(trainer->feed, record->iteration, m, &at);

        sum += call->losses[at];
    }
    return sum / (double)record->n_targets;
}

/* Busy time of all devices between @start_ns and @end_ns. */
static gint64
busy_between(const RpTrainer *trainer, gint64 start_ns, gint64 end_ns)
{
    gint64 sum_ns = 0;

    for (guint i = 0; i < trainer->busy->len; i++) {
        const RpBusy busy = g_array_index(trainer->busy, RpBusy, i);

        sum_ns += MAX(0, MIN(busy.end_ns, end_ns) - MAX(busy.start_ns, start_ns));
    }
    return sum_ns;
}

static void
forget_busy(RpTrainer *trainer, gint64 before_ns)
{
    guint kept = 0;

    for (guint i = 0; i < trainer->busy->len; i++) {
        const RpBusy busy = g_array_index(trainer->busy, RpBusy, i);

        if (busy.end_ns > before_ns)
            g_array_index(trainer->busy, RpBusy, kept++) = busy;
    }
    g_array_set_size(trainer->busy, kept);
}

static gint64
first_start(const RpTrainer *trainer)
{
    gint64 first_ns = G_MAXINT64;

    for (guint i = 0; i < trainer->busy->len; i++)
        first_ns = MIN(first_ns, g_array_index(trainer->busy, RpBusy, i).start_ns);
    return first_ns;
}

static void
report_step(RpTrainer *trainer, RpStepRecord *record)
{
    const RpUpdateReport update = rp_home_report(trainer->home, record->iteration);
    const guint n_steps = trainer->async && trainer->earlier_end_ns >= 0 ? 2 : 1;
    gint64 start_ns = n_steps == 2 ? trainer->earlier_end_ns : trainer->last_end_ns;
    RpStepReport report = {
        .step = trainer->steps_before + record->iteration - trainer->first_iteration + 1,
        .loss = mean_loss(trainer, record),
        .learning_rate = update.learning_rate,
        .grad_norm = update.grad_norm,
        .loss_scale = update.loss_scale,
        .skipped = update.skipped,
        .n_tokens = record->n_tokens,
        .n_targets = record->n_targets,
    };

    if (start_ns < 0)
        start_ns = first_start(trainer);
    /* on other devices, an asynchronous step may end before the one before it does */
    const gint64 end_ns = MAX(record->last_compute_ns, MAX(start_ns, trainer->last_end_ns));
    if (end_ns > start_ns)
        report.bubble_ratio = 1 - (double)busy_between(trainer, start_ns, end_ns) /
                                      ((double)trainer->gpus * (double)(end_ns - start_ns));
    report.step_ns = (end_ns - start_ns) / n_steps;
    trainer->earlier_end_ns = trainer->last_end_ns >= 0 ? trainer->last_end_ns : start_ns;
    trainer->last_end_ns = end_ns;
    forget_busy(trainer, trainer->async ? trainer->earlier_end_ns : end_ns);
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
        const RpBusy busy = {records[i].start_ns, records[i].end_ns};

        if (records[i].kind > RP_TASK_OVERLAP)
            continue;
        record->last_compute_ns = MAX(record->last_compute_ns, records[i].end_ns);
        g_array_append_val(trainer->busy, busy);
    }
    for (gsize i = 0; i < n; i++)
        if (records[i].kind == RP_TASK_NORM &&
            records[i].iteration == trainer->first_iteration + trainer->n_reported)
            report_step(trainer, rp_trainer_record(trainer, records[i].iteration));
}
