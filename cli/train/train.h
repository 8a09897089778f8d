/**
 * roundpipe train, piece by piece: files that are read (files.c), the output directory (output.c),
 * signals (signals.c), the loop (loop.c), its checkpoints (save.c, beside.c), one step for its
 * gradients (gradients.c), what is written of it (metrics.c), drawn (plot.c) and printed
 * (report.c). What is known before the first step: run/train/job.h.
 */
#pragma once

#include "cli/cli.h"
#include "cli/progress.h"
#include "exec/train/trainer.h"
#include "plots/charts/loss.h"
#include "run/train/job.h"

/* ---- metrics.c ---- */

/* What is known of steps that are over. */
typedef struct _RpTrainMetrics RpTrainMetrics;

/* Means over steady steps: not the first two, nor the two after a pause. */
typedef struct {
    guint64 steps;
    double step_ns;
    double bubble_ratio; /* of their whole time */
    double tokens;       /* of a step, without padding */
} RpTrainMeans;

/* @scaled: lines also have the loss scale. @total_steps: of the run. @progress_s: where standard
 * error is no terminal, a line of progress every so many seconds; 0 = none */
RpTrainMetrics *rp_train_metrics_new(gboolean scaled, guint64 total_steps, double progress_s);
void rp_train_metrics_free(RpTrainMetrics *metrics);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTrainMetrics, rp_train_metrics_free)

/**
 * rp_train_metrics_open:
 * @path: `metrics.jsonl`
 * @keep_steps: lines up to this step stay, later ones are removed; 0 = a new file
 *
 * From now on every step writes its line. Errors: G_FILE_ERROR
 */
gboolean rp_train_metrics_open(RpTrainMetrics *metrics, const char *path, guint64 keep_steps,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The numbers of a line of metrics.jsonl, NAN where they are null. Returns: whether it is one */
gboolean rp_train_metrics_parse(const char *line, RpLossPoint *point);
/* RpStepDone: one line of the file, and of progress on a terminal. @metrics is RpTrainMetrics. */
void rp_train_metrics_add(gpointer metrics, const RpStepReport *report);
/* The pipeline ran empty: the next two steps are not steady. @seconds: what then took so long, in
 * which nothing was trained; the next step's line tells it */
void rp_train_metrics_pause(RpTrainMetrics *metrics, double seconds);
/* The last report. Returns: (nullable): none yet */
const RpStepReport *rp_train_metrics_last(const RpTrainMetrics *metrics);
RpTrainMeans rp_train_metrics_means(const RpTrainMetrics *metrics);
/* Why lines could not be written, or %NULL. */
const GError *rp_train_metrics_error(const RpTrainMetrics *metrics);

/* ---- how ---- */

typedef struct {
    const char *run_file; /* its path */
    gboolean resume;
    char *checkpoint;           /* to go on from; found if it is not given */
    const char *trace;          /* measured, or %NULL */
    const char *picture;        /* of the trace, or %NULL; neither with save_gradients */
    const char *save_gradients; /* %NULL: train */
    RpReport *report;           /* of the plan, and of how it went */
    double progress_s;          /* as rp_train_metrics_new() */
    int lock;                   /* of the output directory, to be closed; -1 = not locked yet */
} RpTrainHow;

/* ---- files.c ---- */

/* A file that reading would wait for, or never come to the end of, is refused. What is not there,
 * or a directory, is for the reader to tell. @what: for messages. Errors: G_FILE_ERROR_INVAL */
gboolean rp_train_check_regular(const char *what, const char *path, guint64 most_bytes,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A @path (nullable) that @option would write is none of the files that the run reads.
 * Errors: G_FILE_ERROR_EXIST */
gboolean rp_train_check_no_input(const char *option, const char *path, const RpRunFile *run,
                                 const RpTrainHow *how, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- output.c ---- */

/* A @path (nullable) that @option would write is none of the files that the run writes into the
 * output directory. Errors: G_FILE_ERROR_EXIST */
gboolean rp_train_check_no_output(const char *option, const char *path, const RpRunFile *run,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Finds the checkpoint to go on from (how->checkpoint, (transfer full)), or sees that nothing is in
 * the way of a new run; that the output directory is there or can be made, and be written to; and
 * that no other run writes there. Errors: G_FILE_ERROR_EXIST with the remedy, G_FILE_ERROR_AGAIN,
 * G_FILE_ERROR, RP_CHECKPOINT_ERROR_* */
gboolean rp_train_find_checkpoint(const RpRunFile *run, RpTrainHow *how,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether the output directory is still the one that the run locked, with its lock in it. */
gboolean rp_train_output_is_there(const RpRunFile *run, const RpTrainHow *how);

/* Makes one that is not there any more anew, with run.yaml and profile.json, and locks it.
 * Errors: G_FILE_ERROR; G_FILE_ERROR_EXIST, G_FILE_ERROR_AGAIN: something else is there now */
gboolean rp_train_renew_output(const RpTrainJob *job, RpTrainHow *how,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Makes and locks the output directory, sets checkpoints behind @step aside, and writes run.yaml
 * and profile.json. Errors: G_FILE_ERROR */
gboolean rp_train_begin_output(const RpTrainJob *job, RpTrainHow *how, guint64 step,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- signals.c ---- */

/* From now on SIGUSR1 asks for a checkpoint; it stays so until the process ends. */
void rp_train_catch_save(void);
/* Whether one was asked for since. */
gboolean rp_train_take_save(void);

/* SIGTERM, SIGINT, SIGHUP and SIGXCPU are noted; a second SIGINT, or SIGTERM after a second, ends
 * the process, as without us. */
void rp_train_catch_stop(void);
void rp_train_release_stop(void);
/* The last one, or 0. */
int rp_train_stop_signal(void);

/* ---- loop.c ---- */

/* How training went. Zero-initialise. */
typedef struct {
    guint64 first_step;  /* done before: 0, or of the checkpoint */
    guint64 last_step;   /* done now */
    RpStepReport last;   /* valid if last_step > first_step */
    RpTrainMeans means;  /* measured */
    GArray *arena_bytes; /* (element-type guint64): of each device, then the host: as opened */
    RpPinnedMemory pinned;
    RpProofCost proof;
    RpActionTime action_time; /* of devices that are threads */
    RpTrace *trace;           /* measured, also of a run that broke off; %NULL: not kept */
    char *checkpoint;         /* the last that was saved, or %NULL */
    char *loss_picture;       /* %NULL: none was drawn */
    guint n_saved;            /* checkpoints */
    double saving_seconds;    /* in which nothing was trained; failed attempts count, too */
    guint n_beside;           /* of the checkpoints, written beside training */
    double beside_seconds;    /* that writing took there, failed attempts included */
    gboolean unsaved;         /* the last attempt failed */
    int signal;               /* that ended it, or 0 */
} RpTrainOutcome;

void rp_train_outcome_clear(RpTrainOutcome *outcome);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainOutcome, rp_train_outcome_clear)

/* Trains. If data cannot be read on, what was learned until then is saved. Errors: those of the
 * trainer and the data, with the last checkpoint's path */
gboolean rp_train_run(const RpTrainJob *job, RpTrainHow *how, RpTrainOutcome *outcome,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- gradients.c ---- */

/* One step that changes nothing; its gradients into a file. */
gboolean rp_train_save_gradients(const RpTrainJob *job, RpTrainHow *how,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- plot.c ---- */

/* Draws the timeline of @trace, measured or predicted. Errors: RP_PLOT_ERROR_*, G_IO_ERROR,
 * G_FILE_ERROR */
gboolean rp_train_plot_timeline(const RpTrainJob *job, const RpTrace *trace, const char *path,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_train_plot_loss:
 * @metrics: `metrics.jsonl`: steps that were resumed from are in it
 * @path: the PNG file
 *
 * Draws the loss curve. Errors: G_FILE_ERROR, RP_PLOT_ERROR_*, G_IO_ERROR
 */
gboolean rp_train_plot_loss(const RpTrainJob *job, const char *metrics, const char *path,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- keys.c ---- */

/* The settings of a run file. */
void rp_train_report_keys(RpReport *report);

/* ---- report.c ---- */

/* The plan, before step 1; text is printed at once. */
void rp_train_report_plan(RpReport *report, const RpTrainJob *job);
/* What pinning the host's memory took, if any was pinned. */
void rp_train_report_pinned(RpReport *report, const RpPinnedMemory *pinned);
/* Predicted against measured, after the last. */
void rp_train_report_outcome(RpReport *report, const RpTrainJob *job,
                             const RpTrainOutcome *outcome);
