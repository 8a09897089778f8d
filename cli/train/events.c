/* roundpipe train: what is told of a run while it goes on. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/train/train.h"
#include "plots/gnuplot.h"

/* A GPU that has failed keeps the process so long, and no longer. */
#define MOST_SECONDS 8

#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

/* As of reports. */
static gboolean
has_colour(void)
{
    const char *term = g_getenv("TERM"), *none = g_getenv("NO_COLOR");

    return term != NULL && strcmp(term, "dumb") != 0 && (none == NULL || *none == '\0');
}

static void
say(gpointer user_data, const char *kind, const char *text)
{
    g_autofree char *line =
        g_strdelimit(g_strdup(text), "\r\n", ' '); /* a file's name may hold one */

    if (isatty(STDERR_FILENO) != 1) {
        fprintf(stderr, "roundpipe train: %s: %s\n", kind, line);
        return;
    }
    /* who reads along knows which program it is */
    const gboolean warns = strcmp(kind, "note") != 0;

    rp_progress_clear();
    fprintf(stderr, "%s%s%s%s%s\n", warns && has_colour() ? YELLOW : "", warns ? kind : "",
            warns ? ": " : "", line, warns && has_colour() ? PLAIN : "");
}

static void
show_progress(gpointer user_data, const char *what, guint64 done, guint64 total)
{
    RpTrainWords *words = user_data;

    if (total == 0) {
        rp_progress_clear();
        words->other.what = NULL;
    } else if (words->other.what == NULL) {
        words->other = rp_progress_begin(what, MAX(0, words->progress_s));
    }
    rp_progress_show(&words->other, done, total);
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
    words->progress = rp_progress_begin(NULL, MAX(0, words->progress_s));
    rp_train_catch_stop(words->tells_stop);
}

static gboolean
begin(gpointer user_data, guint64 step, guint64 saved)
{
    (void)user_data;
    return rp_train_begin_step(step, saved);
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

    rp_progress_print(&words->progress,
                      "step %" G_GUINT64_FORMAT "/%" G_GUINT64_FORMAT
                      ", loss %.4f, lr %.3g, grad norm %.3g, %.0f tokens/s, %s left",
                      report->step, steps, report->loss, report->learning_rate, report->grad_norm,
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
    const char *output = words->job->run->output;
    g_autofree char *metrics = g_build_filename(output, "metrics.jsonl", NULL);
    g_autofree char *picture = g_build_filename(output, "training_loss.png", NULL);
    g_autoptr(GError) problem = NULL;

    if (rp_train_plot_loss(words->job, metrics, picture, &problem)) {
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
        .begin = begin,
        .stepped = stepped,
        .stopped = stopped,
        .failed = failed,
        .ended = ended,
        .stop = rp_train_stop_signal,
        .save = rp_train_take_save,
        .user_data = words,
    };
}
