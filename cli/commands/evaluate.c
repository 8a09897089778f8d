/* roundpipe evaluate: the loss and the perplexity of a model on data. */
#include <math.h>

#include "cli/generate/model.h"
#include "cli/progress.h"
#include "exec/data/dataset.h"
#include "exec/generate/evaluate.h"

#define DEFAULT_TOKENS 2048 /* or as many as the model has positions for */

typedef struct {
    char *data;
    char *adapter;
    char *devices;
    int sequence_length;
} EvaluateArgs;

static void
report_evaluated(RpReport *report, const EvaluateArgs *args, const RpEvaluated *evaluated,
                 guint tokens, double seconds)
{
    const double perplexity = exp(evaluated->loss);

    rp_report_real(report, "loss", evaluated->loss, 6, NULL);
    rp_report_real(report, "perplexity", perplexity, 6, NULL);
    rp_report_count(report, "targets", (gint64)evaluated->n_targets, NULL);
    rp_report_count(report, "samples", (gint64)evaluated->n_samples, NULL);
    rp_report_count(report, "tokens", (gint64)evaluated->n_tokens, NULL);
    rp_report_count(report, "truncated", (gint64)evaluated->n_truncated, NULL);
    rp_report_count(report, "sequence_length", tokens, NULL);
    rp_report_real(report, "seconds", seconds, 3, NULL);
    rp_report_say(report,
                  "loss %.6f, perplexity %.5g: of %" G_GUINT64_FORMAT
                  " tokens that are learned, in %" G_GUINT64_FORMAT " samples of %s (%.1f s)",
                  evaluated->loss, perplexity, evaluated->n_targets, evaluated->n_samples,
                  args->data, seconds);
    if (evaluated->n_truncated > 0)
        rp_report_say(report,
                      "%" G_GUINT64_FORMAT
                      " samples were cut to %u tokens; --sequence-length takes more",
                      evaluated->n_truncated, tokens);
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const EvaluateArgs *args = user_args;
    RpProgress progress = rp_progress_begin("evaluating", 0);
    g_auto(RpCliModel) model = {0};
    g_autoptr(RpDataset) dataset = NULL;
    RpEvaluated evaluated;

    if (args->data == NULL)
        return rp_cli_refuse(error, "--data: expected a file, found nothing; see --help");
    if (!rp_cli_model_open(&model, words[0], args->adapter, args->devices, error))
        return FALSE;
    const RpModel *config = &model.config;
    const guint most = config->max_positions;
    const guint tokens =
        args->sequence_length > 0 ? (guint)args->sequence_length : MIN(most, DEFAULT_TOKENS);
    const gint32 pad_id = config->pad_id >= 0 ? (gint32)config->pad_id : 0;

    if (tokens > most)
        return rp_cli_refuse(error, "--sequence-length: expected at most %u, found %u", most,
                             tokens);
    dataset = rp_dataset_open(args->data, config->vocab, tokens, error);
    if (dataset == NULL)
        return FALSE;
    const gboolean good =
        rp_evaluate_model(model.weights, model.kernels, model.probe, dataset, tokens, pad_id,
                          rp_progress_counted_on, &progress, &evaluated, error);

    rp_progress_clear();
    if (!good)
        return FALSE;
    report_evaluated(report, args, &evaluated, tokens,
                     (double)(g_get_monotonic_time() - progress.begin_us) / G_USEC_PER_SEC);
    return TRUE;
}

static const GOptionEntry options[] = {
    {"data", 0, RP_FILE(EvaluateArgs, data), "what training reads, too", "FILE"},
    {"adapter", 0, RP_FILE(EvaluateArgs, adapter),
     "adapters of the model: a checkpoint of them, or a directory of peft's", "DIR"},
    {"devices", 0, RP_WORD(EvaluateArgs, devices), "host, or cuda: the first GPU (default: host)",
     "DEVICE"},
    {"sequence-length", 0, RP_COUNT(EvaluateArgs, sequence_length),
     "tokens that go through the model together; longer samples are cut (default: 2048, or as many "
     "as the model has positions)",
     "T"},
    {0},
};

const RpCommand rp_command_evaluate = {
    .name = "evaluate",
    .summary = "loss and perplexity of a model on data",
    .words = "MODEL_DIR",
    .help = "Prints the mean loss of the tokens that training would learn of a file, and its\n"
            "exponential, the perplexity: of a model, a checkpoint or the output of a run.\n\n"
            "Example:\n  roundpipe evaluate run --data held-out.jsonl",
    .options = options,
    .args_size = sizeof(EvaluateArgs),
    .run = run,
};
