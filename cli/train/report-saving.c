/* roundpipe train: checkpoints, what they take of the disk and of the time. */
#include <math.h>

#include "cli/train/train.h"
#include "core/base/file.h"
#include "exec/checkpoint/checkpoint.h"

/* roundpipe train: what is evaluated, and what came of it. */

void
rp_train_report_validation(RpReport *report, const RpTrainJob *job)
{
    const RpTrainValidation *evaluation = &job->evaluation;
    const gint64 every = rp_train_evaluation_every(job->run);

    if (evaluation->dataset == NULL)
        return;
    rp_report_object(report, "validation", NULL);
    rp_report_text(report, "data", job->run->eval.data, "validation");
    rp_report_show(report,
                   "%" G_GUINT64_FORMAT " samples, %" G_GUINT64_FORMAT
                   " tokens, every %" G_GINT64_FORMAT
                   " steps: %.1f ms each predicted, bubble ratio "
                   "%.2f %%",
                   evaluation->summary.n_samples, evaluation->summary.n_tokens, every,
                   (double)evaluation->ns / 1e6, 100 * evaluation->bubble_ratio);
    rp_report_count(report, "samples", (gint64)evaluation->summary.n_samples, NULL);
    rp_report_count(report, "tokens", (gint64)evaluation->summary.n_tokens, NULL);
    rp_report_count(report, "every", every, NULL);
    rp_report_count(report, "calls", (gint64)evaluation->calls, NULL);
    rp_report_real(report, "predicted_ms", (double)evaluation->ns / 1e6, 6, NULL);
    rp_report_ratio(report, "predicted_bubble_ratio", evaluation->bubble_ratio, NULL);
    rp_report_end(report);
}

void
rp_train_report_evaluations(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome)
{
    const RpEvaluation *last = &outcome->evaluation;

    if (job->evaluation.dataset == NULL)
        return;
    rp_report_object(report, "evaluations", NULL);
    rp_report_count(report, "count", outcome->n_evaluations, NULL);
    if (outcome->n_evaluations > 0) {
        rp_report_real(report, "loss", last->loss, 9, NULL);
        rp_report_real(report, "perplexity", exp(last->loss), 9, NULL);
        rp_report_real(report, "ms", (double)last->ns / 1e6, 6, NULL);
        rp_report_ratio(report, "bubble_ratio", last->bubble_ratio, NULL);
        rp_report_say(report,
                      "validation loss %.6f, perplexity %.5g; measured %.1f ms, bubble ratio %.2f "
                      "%% (predicted %.1f ms, %.2f %%)",
                      last->loss, exp(last->loss), (double)last->ns / 1e6, 100 * last->bubble_ratio,
                      (double)job->evaluation.ns / 1e6, 100 * job->evaluation.bubble_ratio);
    }
    if (outcome->best.step > 0) {
        rp_report_count(report, "best_step", (gint64)outcome->best.step, NULL);
        rp_report_real(report, "best_loss", outcome->best.loss, 9, NULL);
        rp_report_say(report, "lowest validation loss: %.6f, of step %" G_GUINT64_FORMAT "%s%s%s",
                      outcome->best.loss, outcome->best.step, outcome->best.kept ? ": " : "",
                      outcome->best.kept ? job->run->output : "",
                      outcome->best.kept ? "/best" : "");
    }
    rp_report_bool(report, "stopped_early", outcome->stopped_early, NULL);
    rp_report_end(report);
}

/* Checkpoints that may be on the disk at once: those that are kept, the best, and the one being
 * written, or fewer if fewer are saved; G_MAXUINT64: nobody knows how many all are. */
static guint64
most_at_once(const RpRunSpec *run)
{
    const RpRunCheckpoint *checkpoint = &run->checkpoint;
    const guint64 steps = (guint64)run->steps;
    const guint64 best = run->eval.keep_best != 0;
    const guint64 bests = best ? (guint64)rp_train_n_evaluations(run) : 0;
    const guint64 planned = (checkpoint->every > 0 ? steps / (guint64)checkpoint->every : 0) +
                            (checkpoint->final != 0) + bests;
    const guint64 saved = checkpoint->minutes > 0 ? G_MAXUINT64 : MIN(planned, steps);

    return checkpoint->keep > 0 ? MIN(saved, (guint64)checkpoint->keep + 1 + best) : saved;
}

/* Free bytes of the disk that @output is on, or will be. */
static gboolean
free_bytes(const char *output, guint64 *bytes)
{
    g_autofree char *directory = g_canonicalize_filename(output, NULL);

    while (!g_file_test(directory, G_FILE_TEST_EXISTS)) {
        char *above = g_path_get_dirname(directory);

        g_free(directory);
        directory = above;
    }
    return rp_checkpoint_free_bytes(directory, bytes);
}

void
rp_train_report_disk(RpReport *report, const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    const guint64 bytes =
        rp_checkpoint_bytes(job->weights, job->network.dtype, job->request.options.form,
                            job->request.options.async, FALSE, job->model_dir);
    const guint64 most = most_at_once(run);
    const gboolean counted = most < G_MAXUINT64;
    const guint64 most_bytes = counted ? most * bytes : 0;
    guint64 left = 0, copy_bytes;
    const gboolean beside = rp_train_saves_beside(job, &copy_bytes);
    const gboolean known = free_bytes(run->output, &left);
    g_autofree char *each = rp_cli_format_bytes(bytes);
    g_autofree char *all = rp_cli_format_bytes(most_bytes);
    g_autofree char *there = rp_cli_format_bytes(left);
    g_autofree char *copy = rp_cli_format_bytes(copy_bytes);
    g_autofree char *needed =
        counted
            ? g_strdup_printf(", %" G_GUINT64_FORMAT " at once at most: %s of the disk", most, all)
            : g_strdup(", all are kept");

    rp_report_object(report, "checkpoint_disk", NULL);
    rp_report_bytes(report, "checkpoint_bytes", bytes, NULL);
    rp_report_bytes(report, "needed_bytes", most_bytes, NULL);
    rp_report_bytes(report, "free_bytes", left, NULL);
    rp_report_bool(report, "beside", beside, NULL);
    rp_report_bytes(report, "copy_bytes", copy_bytes, NULL);
    rp_report_end(report);
    if (most == 0) {
        rp_report_line(report, "checkpoints", "none is planned; %s each", each);
        return;
    }
    rp_report_line(report, "checkpoints", "%s each%s%s%s%s", each, needed,
                   known ? ", which has " : "", known ? there : "", known ? " free" : "");
    rp_report_line(report, "saving",
                   beside
                       ? "while training goes on, from a copy of %s of host memory"
                       : "nothing is trained meanwhile: there is no copy of %s (checkpoint.beside)",
                   copy);
    if (known && most_bytes > left)
        rp_report_line(report, "note",
                       "the disk has less: fewer checkpoints will stay (checkpoint.keep)");
}

void
rp_train_report_saved(RpReport *report, const RpTrainOutcome *outcome)
{
    g_autofree char *beside =
        outcome->n_beside > 0 ? g_strdup_printf("; writing %u of them beside training took %.1f s",
                                                outcome->n_beside, outcome->beside_seconds)
                              : g_strdup("");

    rp_report_object(report, "checkpoints", NULL);
    rp_report_count(report, "saved", outcome->n_saved, NULL);
    rp_report_real(report, "seconds", outcome->saving_seconds, 6, NULL);
    rp_report_count(report, "beside", outcome->n_beside, NULL);
    rp_report_real(report, "beside_seconds", outcome->beside_seconds, 6, NULL);
    rp_report_end(report);
    if (outcome->saving_seconds >= 1 || outcome->beside_seconds >= 1)
        rp_report_say(report, "%u checkpoint%s: nothing was trained for %.1f s%s", outcome->n_saved,
                      outcome->n_saved == 1 ? "" : "s", outcome->saving_seconds, beside);
    rp_report_text(report, "checkpoint", outcome->checkpoint, NULL);
    rp_report_text(report, "loss_picture", outcome->loss_picture, NULL);
    rp_report_bool(report, "saved", !outcome->unsaved, NULL);
    rp_report_count(report, "signal", outcome->signal, NULL);
    if (outcome->loss_picture != NULL)
        rp_report_say(report, "loss curve: %s", outcome->loss_picture);
    if (outcome->checkpoint != NULL)
        rp_report_say(report, "saved: %s", outcome->checkpoint);
}
