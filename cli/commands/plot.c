#include "cli/cli.h"

#include <math.h>
#include <string.h>

#include "cli/reports/picture.h"
#include "core/base/quote.h"
#include "plots/charts/runs.h"
#include "run/train/train.h"

#define METRICS "metrics.jsonl"
#define MAX_RUNS 16

typedef struct {
    char *output;
} PlotArgs;

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
                        .tokens_per_s =
                            line->step_ms > 0 ? line->tokens * 1000 / line->step_ms : NAN,
                        .bubble_ratio = line->bubble_ratio,
                        .eval_loss = line->eval_loss};
}

/* @word: the output directory of a run, or its metrics. */
static gboolean
read_run(const char *word, Run *run, GError **error)
{
    const gboolean directory = g_file_test(word, G_FILE_TEST_IS_DIR);
    g_autofree char *path = directory ? g_build_filename(word, METRICS, NULL) : g_strdup(word);
    g_autofree char *whole = g_canonicalize_filename(word, NULL);
    g_autofree char *named = directory ? g_strdup(whole) : g_path_get_dirname(whole);
    g_autoptr(GArray) lines = NULL;

    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        g_autofree char *shown = rp_display_name(word);

        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                    "%s: expected the output directory of a run, or its " METRICS ", found %s",
                    shown, directory ? "a directory without " METRICS : "nothing");
        return FALSE;
    }
    if (!rp_train_check_regular("", path, G_MAXUINT64, error) ||
        (lines = rp_train_metrics_read(path, error)) == NULL)
        return FALSE;
    if (lines->len == 0) {
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                    "%s: expected lines of metrics, as roundpipe train writes them, found none",
                    path);
        return FALSE;
    }
    *run = (Run){.title = g_path_get_basename(named),
                 .points = g_array_new(FALSE, FALSE, sizeof(RpRunPoint)),
                 .last = {.step = NAN},
                 .last_evaluation = {.step = NAN}};
    for (guint i = 0; i < lines->len; i++) {
        const RpTrainLine *line = &g_array_index(lines, RpTrainLine, i);
        const RpRunPoint point = point_of(line);

        g_array_append_val(run->points, point);
        *(isnan(line->eval_runtime) ? &run->last : &run->last_evaluation) = *line;
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
        rp_report_end(report);
    }
    rp_report_end(report);
}

static gboolean
draw(const GArray *runs, const char *path, GError **error)
{
    g_autofree RpRunCurve *curves = g_new0(RpRunCurve, runs->len);

    for (guint i = 0; i < runs->len; i++) {
        const Run *run = &g_array_index(runs, Run, i);

        curves[i] = (RpRunCurve){.title = run->title,
                                 .points = (const RpRunPoint *)(const void *)run->points->data,
                                 .n = run->points->len};
    }
    g_autoptr(RpFigure) figure = rp_runs_figure(
        "runs", runs->len == 1 ? "A training run" : "Training runs", curves, runs->len, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}

static gboolean
run(gpointer user_args, char **words, RpReport *report, GError **error)
{
    const PlotArgs *args = user_args;
    const char *output = args->output != NULL ? args->output : "runs.png";
    const RpCliFile files[] = {{"--output", output, RP_CLI_DRAWN}};
    g_autoptr(GArray) runs = g_array_new(FALSE, TRUE, sizeof(Run));

    g_array_set_clear_func(runs, run_clear);
    if (g_strv_length(words) > MAX_RUNS)
        return rp_cli_refuse(error, "RUN: expected at most %u of them, found %u", MAX_RUNS,
                             g_strv_length(words));
    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    for (char **word = words; *word != NULL; word++) {
        Run read;

        if (!read_run(*word, &read, error))
            return FALSE;
        g_array_append_val(runs, read);
    }
    if (!draw(runs, output, error))
        return FALSE;
    report_runs(report, runs);
    rp_report_text(report, "picture", output, "picture");
    return TRUE;
}

static const GOptionEntry options[] = {
    {"output", 'o', RP_FILE(PlotArgs, output),
     "the picture, .png, .svg or .pdf (default: runs.png)", "FILE"},
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
    .options = options,
    .args_size = sizeof(PlotArgs),
    .run = run,
};
