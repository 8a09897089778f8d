#include "cli/cli.h"

#include <math.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "plots/charts/charts.h"

#define MAX_RUNS 16

typedef struct {
    char *title;
    GArray *points; /* RpRunPoint */
    RpTrainLine last;
    RpTrainLine last_evaluation;
} Run;

static void
run_clear(gpointer data)
{
    Run *run = data;

    g_free(run->title);
    g_array_unref(run->points);
}

static RpRunPoint
point_of(const RpTrainLine *line)
{
    return (RpRunPoint){.step = line->step,
                        .loss = line->loss,
                        .learning_rate = line->learning_rate,
                        .grad_norm = line->grad_norm,
                        .tokens_per_s = rp_cli_tokens_per_s(line),
                        .bubble_ratio = line->bubble_ratio,
                        .eval_loss = line->eval_loss};
}

/* @word: the output directory of a run, or its metrics. */
static gboolean
read_run(const char *word, Run *run, GError **error)
{
    g_auto(RpCliSteps) steps = {0};

    if (!rp_cli_steps_read(word, &steps, error))
        return FALSE;
    *run = (Run){.title = g_steal_pointer(&steps.title),
                 .points = g_array_new(FALSE, FALSE, sizeof(RpRunPoint)),
                 .last = {.step = NAN, .loss = NAN},
                 .last_evaluation = {.step = NAN, .eval_loss = NAN}};
    for (guint i = 0; i < steps.lines->len; i++) {
        const RpTrainLine *line = &g_array_index(steps.lines, RpTrainLine, i);
        const RpRunPoint point = point_of(line);

        g_array_append_val(run->points, point);
        *(rp_cli_is_evaluation(line) ? &run->last_evaluation : &run->last) = *line;
    }
    return TRUE;
}

static void
report_runs(RpReport *report, const GArray *runs)
{
    rp_report_table(report, "runs", NULL, 0);
    for (guint i = 0; i < runs->len; i++) {
        const Run *run = &g_array_index(runs, Run, i);

        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "run", run->title, "<run");
        rp_report_real(report, "step", run->last.step, 0, "step");
        rp_report_real(report, "loss", run->last.loss, 6, "loss");
        rp_report_real(report, "eval_loss", run->last_evaluation.eval_loss, 6, "validation loss");
        if (isnan(run->last_evaluation.eval_loss))
            rp_report_show(report, "-");
        rp_report_end(report);
    }
    rp_report_end(report);
}

static gboolean
draw(const GArray *runs, const char *path, gboolean logarithmic, const RpFigureStyle *style,
     GError **error)
{
    g_autofree RpRunCurve *curves = g_new0(RpRunCurve, runs->len);

    for (guint i = 0; i < runs->len; i++) {
        const Run *run = &g_array_index(runs, Run, i);

        curves[i] = (RpRunCurve){.title = run->title,
                                 .points = (const RpRunPoint *)(const void *)run->points->data,
                                 .n = run->points->len};
    }
    g_autoptr(RpFigure) figure =
        rp_runs_figure("runs", runs->len == 1 ? "A training run" : "Training runs", curves,
                       runs->len, logarithmic, style, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : "runs.png";
    const RpCliFile files[] = {{"--output", output, RP_CLI_DRAWN}};
    g_autoptr(GArray) runs = g_array_new(FALSE, TRUE, sizeof(Run));
    RpFigureStyle style;

    g_array_set_clear_func(runs, run_clear);
    if (g_strv_length(words) > MAX_RUNS)
        return rp_cli_refuse(error, "RUN: expected at most %u of them, found %u", MAX_RUNS,
                             g_strv_length(words));
    if (!rp_cli_picture_style(args, TRUE, &style, error) ||
        !rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    for (char **word = words; *word != NULL; word++) {
        Run read;

        if (!read_run(*word, &read, error))
            return FALSE;
        g_array_append_val(runs, read);
    }
    if (!draw(runs, output, args->logarithmic, &style, error))
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
