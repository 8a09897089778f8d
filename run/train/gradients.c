/* roundpipe train --save-gradients: one step that changes nothing; its gradients into a file. */
#include "run/train/loop.h"

static gboolean
write_gradients(const RpTrainer *trainer, const RpWeights *weights, const char *path,
                GError **error)
{
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(path, 0);
    g_autoptr(GArray) numbers = g_array_new(FALSE, TRUE, sizeof(guint));
    guint64 most = 0;

    g_array_set_size(numbers, rp_weights_count(weights));
    for (guint i = 0; i < numbers->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->tied)
            continue;
        g_array_index(numbers, guint, i) = rp_safetensors_writer_add(
            writer, weight->name, RP_DTYPE_FP32, weight->shape, weight->rank);
        most = MAX(most, weight->elements);
    }
    if (!rp_safetensors_writer_begin(writer, error))
        return FALSE;

    g_autofree float *values = g_new(float, most);

    for (guint i = 0; i < numbers->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->tied)
            continue;
        rp_trainer_gradient(trainer, i, values);
        if (!rp_safetensors_writer_write(writer, g_array_index(numbers, guint, i), values,
                                         (gsize)weight->elements * sizeof *values, error))
            return FALSE;
    }
    return rp_safetensors_writer_finish(writer, error);
}

/* The first step; in fp16 again, with the lower scale that follows, until its gradients are finite.
 * A skipped step changes no weight. Too low a scale is an error of the step: it ends. */
static gboolean
run_first(RpTrainLoop *loop, GError **error)
{
    const guint calls = (guint)loop->job->run->gradient_accumulation_steps;
    const RpStepReport *last = NULL;
    float first = 0;

    if (!rp_train_loop_next_batches(loop, loop->batches, calls, error))
        return FALSE;
    do {
        if (!rp_train_loop_run_step(loop, loop->batches, error) ||
            !rp_trainer_flush(loop->trainer, error))
            return FALSE;
        last = rp_train_metrics_last(loop->metrics);
        if (first == 0)
            first = last->loss_scale;
    } while (last->skipped);
    if (last->loss_scale != first)
        rp_run_say(loop->job->events, "note",
                   "--save-gradients: they overflow at a loss scale of %g; "
                   "these were computed at %g",
                   (double)first, (double)last->loss_scale);
    return TRUE;
}

gboolean
rp_train_save_gradients(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome,
                        GError **error)
{
    g_auto(RpTrainLoop) loop = {.job = job, .how = how, .outcome = outcome};

    return rp_train_loop_start(&loop, error) && run_first(&loop, error) &&
           write_gradients(loop.trainer, job->weights, how->save_gradients, error);
}
