#include "cli/cli.h"

#include <math.h>

#include "cli/reports/reports.h"

#define MAX_RUNS 16

static void
report_runs(RpReport *report, const GArray *runs)
{
    rp_report_table(report, "runs", NULL, 0);
    for (guint r = 0; r < runs->len; r++) {
        const RpCliSteps *run = &g_array_index(runs, RpCliSteps, r);
        RpTrainLine last = {.step = NAN, .loss = NAN}, evaluation = {.eval_loss = NAN};

        for (guint i = 0; i < run->lines->len; i++) {
            const RpTrainLine *line = &g_array_index(run->lines, RpTrainLine, i);

            *(rp_cli_is_evaluation(line) ? &evaluation : &last) = *line;
        }
        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "run", run->title, "<run");
        rp_report_real(report, "step", last.step, 0, "step");
        rp_report_real(report, "loss", last.loss, 6, "loss");
        rp_report_real(report, "eval_loss", evaluation.eval_loss, 6, "validation loss");
        if (isnan(evaluation.eval_loss))
            rp_report_show(report, "-");
        rp_report_end(report);
    }
    rp_report_end(report);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : "runs.png";
    const RpCliFile files[] = {{"--output", output, RP_CLI_DRAWN}};
    g_autoptr(GArray) runs = g_array_new(FALSE, TRUE, sizeof(RpCliSteps));
    RpFigureStyle style;

    g_array_set_clear_func(runs, (GDestroyNotify)rp_cli_steps_clear);
    if (g_strv_length(words) > MAX_RUNS)
        return rp_cli_refuse(error, "RUN: expected at most %u of them, found %u", MAX_RUNS,
                             g_strv_length(words));
    if (!rp_cli_picture_style(args, TRUE, &style, error) ||
        !rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    for (char **word = words; *word != NULL; word++) {
        RpCliSteps read;

        if (!rp_cli_steps_read(*word, &read, error))
            return FALSE;
        g_array_append_val(runs, read);
    }
    if (!rp_cli_steps_draw(runs, runs->len == 1 ? "A training run" : "Training runs", output,
                           args->logarithmic, &style, error))
        return FALSE;
    report_runs(report, runs);
    rp_report_text(report, "picture", output, "picture");
    return TRUE;
}

static const RpUse uses[] = {
    {"output", "the picture, .png, .svg, .pdf or .tex (default: runs.png)", "FILE"},
    {"log " RP_USE_PICTURE},
    {0},
};

const RpCommand rp_command_plot = {
    .name = "plot",
    .summary = "draw what training runs measured, one over the other",
    .words = "RUN...",
    .help =
        "Draws loss, validation loss, learning rate, gradient norm, tokens/s and bubble ratio\n"
        "of runs: output directories of roundpipe train, or their metrics.jsonl. Needs gnuplot.\n\n"
        "Example:\n  roundpipe plot runs/first runs/second -o runs.png",
    .uses = uses,
    .run = run,
};
