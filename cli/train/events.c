/* roundpipe train: what is told of a run while it goes on. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/reports/reports.h"
#include "cli/train/train.h"
#include "plots/gnuplot.h"

/* roundpipe train: the loss curve, and the timeline. */

/* In which the pipeline fills, as measured means have it. */
#define FILLING_STEPS 2
/* A run of fewer steps is drawn whole. */
#define FEWEST_STEPS 4

/* Errors: G_FILE_ERROR, RP_PLOT_ERROR_*, G_IO_ERROR */
static gboolean
plot_loss(const RpRunSpec *run, const char *path, GError **error)
{
    g_autofree char *model = g_path_get_basename(run->model);
    g_autofree char *data = g_path_get_basename(run->data);
    g_autofree char *title = g_strdup_printf("Training %s on %s", model, data);
    g_autoptr(GArray) runs = g_array_new(FALSE, FALSE, sizeof(RpCliSteps));
    g_auto(RpCliSteps) steps = {0};

    if (!rp_cli_steps_read(run->output, &steps, error))
        return FALSE;
    g_array_append_val(runs, steps);
    return rp_cli_steps_draw(runs, title, path, FALSE, NULL, error);
}

/* As many steps as the prediction's picture has, behind the first two, in which the pipeline fills. All of a
 * run of few. @shown: (inout): has the iterations of @trace then */
static void
measured_window(const RpTrace *trace, RpRequest *shown, RpPictureWindow *window)
{
    const guint usual = MAX(1, shown->window.end - shown->window.first);
    const RpTraceRecord *records = rp_trace_records(trace);
    guint32 first = G_MAXUINT32, last = 0;
    gint64 unused_ns;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        first = MIN(first, records[i].iteration);
        last = MAX(last, records[i].iteration);
    }
    if (first > last || last - first < FEWEST_STEPS)
        return;
    window->first = first + FILLING_STEPS;
    window->end = MIN(last, window->first + usual);
    if (!rp_report_iteration_span(trace, window->first, &window->from_ns, &unused_ns) ||
        !rp_report_iteration_span(trace, window->end, &window->end_ns, &unused_ns))
        *window = (RpPictureWindow){0};
    shown->iterations = last + 1;
}

gboolean
rp_train_plot_timeline(const RpTrainJob *job, const RpTrace *trace, const char *path,
                       GError **error)
{
    g_autofree char *model = g_path_get_basename(job->run->model);
    RpPictureWindow window = {0};
    const gboolean predicted = rp_trace_origin(trace) == RP_TRACE_PREDICTED;
    RpRequest shown = job->request; /* borrowed */

    if (!predicted)
        measured_window(trace, &shown, &window);
    else if (!rp_cli_picture_window(&job->request, trace, NULL, &window, error))
        return FALSE;
    g_autoptr(RpFigure) figure = rp_cli_timeline(&shown, model, trace, &window, NULL);

    return rp_cli_picture_write(figure, path, error);
}

/* A GPU that has failed keeps the process so long, and no longer. */
#define MOST_SECONDS 8

#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

static void
say(gpointer user_data, const char *kind, const char *text)
{
    g_autofree char *line =
        g_strdelimit(g_strdup(text), "\r\n", ' '); /* a file's name may hold one */

    if (isatty(STDERR_FILENO) != 1) {
        rp_cli_note(kind, "%s", text);
        return;
    }
    /* who reads along knows which program it is */
    const gboolean warns = strcmp(kind, "note") != 0;

    rp_progress_clear();
    const gboolean colour = warns && rp_cli_has_colour(STDERR_FILENO);

    fprintf(stderr, "%s%s%s%s%s\n", colour ? YELLOW : "", warns ? kind : "", warns ? ": " : "",
            line, colour ? PLAIN : "");
}

static void
show_progress(gpointer user_data, const char *what, guint64 done, guint64 total)
{
    rp_progress_event(&((RpTrainWords *)user_data)->other, what, done, total);
}

/* Whether there will be a picture of the loss: told at the start, for it is no reason to stop. */
static gboolean
can_draw(gpointer words, const RpRunSpec *run)
{
    g_autoptr(GError) problem = NULL;

    if (run->plot_loss == 0 || rp_gnuplot_check_formats(RP_PICTURE_PNG, &problem))
        return run->plot_loss != 0;
    g_prefix_error(&problem, "plot_loss: ");
    say(words, "warning", problem->message);
    return FALSE;
}

static void
resumed(gpointer words, const char *note)
{
    g_autofree char *text = g_strconcat("--resume: ", note, NULL);

    say(words, "note", text);
}

static void
rescaled(gpointer words, double first, double last)
{
    g_autofree char *text = g_strdup_printf("--save-gradients: they overflow at a loss scale of "
                                            "%g; these were computed at %g",
                                            first, last);

    say(words, "note", text);
}

static void
started(gpointer user_data, const RpPinnedMemory *pinned)
{
    RpTrainWords *words = user_data;

    words->draw = can_draw(words, words->job->run);
    rp_train_report_pinned(words->report, pinned);
    words->progress = rp_progress_begin(NULL, words->progress.log_seconds);
    rp_train_catch_stop(words->tells_stop);
}

static void
stepped(gpointer user_data, const RpStepReport *report, double step_ns)
{
    RpTrainWords *words = user_data;
    const guint64 steps = (guint64)words->job->run->steps;

    if (!rp_progress_is_due(&words->progress) &&
        !(words->progress.terminal && report->step >= steps))
        return;
    g_autofree char *left =
        rp_progress_format_time((double)(steps - MIN(report->step, steps)) * step_ns / 1e9);

    const double right = report->metrics[RP_PREFERENCE_REWARDS_ACCURACIES];
    g_autofree char *accuracy =
        isfinite(right) ? g_strdup_printf(", accuracy %.3f", right) : g_strdup("");

    rp_progress_print(&words->progress,
                      "step %" G_GUINT64_FORMAT "/%" G_GUINT64_FORMAT
                      ", loss %.4f%s, lr %.3g, grad norm %.3g, %.0f tokens/s, %s left",
                      report->step, steps, report->loss, accuracy, report->learning_rate,
                      report->grad_norm,
                      (double)report->n_tokens * 1e9 / (double)MAX(1, report->step_ns), left);
}

static void
stopped(gpointer user_data)
{
    rp_train_release_stop();
    rp_progress_clear();
}

static void
failed(gpointer user_data, GError **error)
{
    rp_progress_clear();
    rp_cli_tell("train", error);
}

static void
draw(RpTrainWords *words)
{
    const RpRunSpec *run = words->job->run;
    g_autofree char *picture = g_build_filename(run->output, "training_loss.png", NULL);
    g_autoptr(GError) problem = NULL;

    if (plot_loss(run, picture, &problem)) {
        words->outcome->loss_picture = g_steal_pointer(&picture);
        return;
    }
    g_prefix_error(&problem, "plot_loss: ");
    say(words, "warning", problem->message);
}

static void
ended(gpointer user_data, gboolean stuck)
{
    RpTrainWords *words = user_data;

    if (words->draw)
        draw(words);
    if (!stuck)
        return;
    rp_cli_leave();
    rp_cli_leave_within(MOST_SECONDS);
}

RpRunEvents
rp_train_events(RpTrainWords *words)
{
    return (RpRunEvents){
        .say = say,
        .progress = show_progress,
        .resumed = resumed,
        .rescaled = rescaled,
        .started = started,
        .begin = rp_train_begin_step,
        .stepped = stepped,
        .stopped = stopped,
        .failed = failed,
        .ended = ended,
        .stop = rp_train_stop_signal,
        .save = rp_train_take_save,
        .user_data = words,
    };
}
