/* roundpipe evaluate: the loss and the perplexity of a model on data. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "exec/data/dataset.h"
#include "run/train/job.h"
#include "run/trained.h"

#define DEFAULT_TOKENS 2048 /* or as many as the model has positions for */

/* Prints the warnings of training; its notes are about training alone. */
static void
say(gpointer user_data, const char *kind, const char *text)
{
    if (strcmp(kind, "warning") == 0)
        rp_cli_note(kind, "%s", text);
}

static void
report_evaluated(RpReport *report, const RpArgs *args, const RpEvaluation *evaluation, guint tokens)
{
    const double accuracy = evaluation->metrics[RP_PREFERENCE_REWARDS_ACCURACIES];
    const double perplexity = exp(evaluation->loss);
    const double seconds = (double)evaluation->ns / 1e9;

    rp_report_real(report, "loss", evaluation->loss, 6, NULL);
    if (evaluation->n_pairs == 0)
        rp_report_real(report, "perplexity", perplexity, 6, NULL);
    for (guint i = 0; i < RP_N_PREFERENCE_METRICS; i++)
        if (isfinite(evaluation->metrics[i]))
            rp_report_real(report, rp_preference_metric_name(i), evaluation->metrics[i], 6, NULL);
    rp_report_count(report, "targets", (gint64)evaluation->n_targets, NULL);
    rp_report_count(report, "samples", (gint64)evaluation->n_samples, NULL);
    rp_report_count(report, "tokens", (gint64)evaluation->n_tokens, NULL);
    rp_report_count(report, "sequence_length", tokens, NULL);
    rp_report_real(report, "seconds", seconds, 3, NULL);
    rp_report_ratio(report, "bubble_ratio", evaluation->bubble_ratio, NULL);
    if (evaluation->n_pairs > 0) {
        g_autofree char *right = isfinite(accuracy)
                                     ? g_strdup_printf(", accuracy %.2f %%", 100 * accuracy)
                                     : g_strdup("");

        rp_report_say(report, "loss %.6f%s: of %" G_GUINT64_FORMAT " preferences in %s (%.1f s)",
                      evaluation->loss, right, evaluation->n_pairs, args->run.data, seconds);
        return;
    }
    rp_report_say(report,
                  "loss %.6f, perplexity %.5g: of %" G_GUINT64_FORMAT
                  " tokens that are learned, in %" G_GUINT64_FORMAT " samples of %s (%.1f s)",
                  evaluation->loss, perplexity, evaluation->n_targets, evaluation->n_samples,
                  args->run.data, seconds);
}

static gboolean
evaluate(const RpArgs *args, const char *model, const char *adapter, guint tokens, RpReport *report,
         GError **error)
{
    RpProgress progress = {0};
    const RpRunEvents events = {.say = say, .progress = rp_progress_event, .user_data = &progress};
    RpRunSpec run = args->run;
    g_autofree char *length = g_strdup_printf("%u", tokens);
    g_auto(RpTrainEvaluated) evaluated = {0};
    const gboolean good = rp_run_spec_set(&run, rp_setting_find("sequence_length"), length) &&
                          rp_train_evaluate_file(model, adapter, &run, &events, &evaluated, error);

    rp_progress_clear();
    if (evaluated.left)
        rp_cli_leave();
    if (!good)
        return FALSE;
    if (evaluated.result.n_targets == 0)
        return rp_fail(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                       "%s: expected a token to learn, found none in %" G_GUINT64_FORMAT " samples",
                       args->run.data, evaluated.result.n_samples);
    report_evaluated(report, args, &evaluated.result, tokens);
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_auto(RpTrained) model = {0};

    if (args->run.data == NULL)
        return rp_cli_refuse(error, "--data: expected a file, found nothing; see --help");
    if (!rp_trained_find(&model, words[0], args->adapter, error))
        return FALSE;
    const RpObjectiveInfo *objective = rp_objective_info((RpObjective)args->run.objective);

    if (objective->has_reference && model.adapter == NULL)
        return rp_cli_refuse(error,
                             "--objective: expected orpo or simpo, which have no reference, or "
                             "adapters, without which the model is one; found %s",
                             objective->name);
    const guint most = model.config.max_positions;
    const guint tokens = args->run.sequence_length > 0 ? (guint)args->run.sequence_length
                                                       : MIN(most, DEFAULT_TOKENS);

    if (tokens > most)
        return rp_cli_refuse(error, "--sequence-length: expected at most %u, found %u", most,
                             tokens);
    return evaluate(args, model.path, model.adapter, tokens, report, error);
}

static const RpUse uses[] = {
    {"data", "as training reads them", "FILE"},
    {"adapter any-base"},
    {"objective", "compare answers of preferences: orpo, simpo; of adapters also dpo, ipo, kto"},
    {"devices", .value = "DEVICES"},
    {"dtype", .value = "TYPE"},
    {"sequence-length",
     "tokens that go through the model together; longer samples are cut (default: 2048, or as many "
     "as the model has positions)",
     "T"},
    {"micro-batch-size", .value = "B"},
    {0},
};

const RpCommand rp_command_evaluate = {
    .name = "evaluate",
    .summary = "loss and perplexity of a model on data",
    .words = "MODEL_DIR",
    .help = "Prints the mean loss of the tokens that training would learn of a file, and its\n"
            "exponential, the perplexity: of a model, a checkpoint or the output of a run, by the\n"
            "plan and on the devices of training.\n\n"
            "Example:\n  roundpipe evaluate run --data held-out.jsonl",
    .uses = uses,
    .run = run,
};
