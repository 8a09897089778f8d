/* roundpipe train: what is evaluated, and what came of it. */
#include <math.h>

#include "cli/train/train.h"

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
