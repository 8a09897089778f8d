/**
 * roundpipe train in words: the events of a run in words and pictures (events.c), signals (signals.c),
 * its report (report.c). What is done: run/train/.
 */
#pragma once

#include "cli/cli.h"
#include "run/train/train.h"

/* ---- events.c ---- */

/* Who tells of a run. */
typedef struct {
    const RpTrainJob *job;
    RpTrainOutcome *outcome;
    RpReport *report;    /* of the plan, and of how it went */
    RpProgress progress; /* of steps; its log_seconds are set before */
    RpProgress other;    /* the same of what is done before them and between */
    gboolean draw;       /* the loss, in the end */
    gboolean tells_stop; /* a signal has a step finished and saved, and says so */
} RpTrainWords;

/* Prints events on standard error and in @words's report, and stops at signals. */
RpRunEvents rp_train_events(RpTrainWords *words);

/* ---- servers.c ---- */

/* Joins the other servers, if mpirun or srun has started this process as one of several; from then on only
 * server 0 prints. @command: "train", for messages; must outlive them. @servers: (out): %NULL: there is one. Errors: RP_CLI_ERROR_USAGE, RP_TRANSPORT_ERROR_* */
gboolean rp_train_join(const char *command, RpServers **servers,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Leaves them. @error: why the run ended, or it is %NULL: then the others are told; where it is not for this
 * server to print, nothing more is printed. */
void rp_train_part(const char *command, RpServers *servers, const GError *error);
/* Reports that server 0 alone prints. */
void rp_train_quieten(RpRunEvents *events);

/**
 * rp_train_profile_servers:
 * @model, @devices: (nullable): refused: nothing else is measured
 * @output: the network's file, for --network of plan and simulate: of the slowest server
 *
 * One of several servers, as mpirun and srun start them; server 0 writes and prints.
 * Errors: RP_CLI_ERROR_USAGE, RP_TRANSPORT_ERROR_*, RP_SERVERS_ERROR_*, G_FILE_ERROR
 */
gboolean rp_train_profile_servers(const char *model, const char *devices, const char *output,
                                  RpReport *report, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- signals.c ---- */

/* From now on SIGUSR1 asks for a checkpoint; it stays so until the process ends. */
void rp_train_catch_save(void);
/* Whether one was asked for since. */
gboolean rp_train_take_save(void);

/* SIGTERM, SIGINT, SIGHUP and SIGXCPU are noted; a second SIGINT, or SIGTERM after a second, ends
 * the process, as without us. @with_words: the first one also prints what follows */
void rp_train_catch_stop(gboolean with_words);
/* For that line, as RpRunEvents.begin: @step is the one that is finished, @saved that of the last checkpoint; 0: none.
 * Returns: %FALSE: it was printed already, with an earlier step */
gboolean rp_train_begin_step(gpointer user_data, guint64 step, guint64 saved);
void rp_train_release_stop(void);
/* The last one, or 0. */
int rp_train_stop_signal(void);

/* ---- events.c: pictures ---- */

/* Draws the timeline of @trace, measured or predicted. Errors: RP_PLOT_ERROR_*, G_IO_ERROR,
 * G_FILE_ERROR */
gboolean rp_train_plot_timeline(const RpTrainJob *job, const RpTrace *trace, const char *path,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- report.c ---- */

/* For machines: step time, bubble ratio, tokens/s. @tokens: of a step */
void rp_train_report_figures(RpReport *report, double step_ns, double bubble_ratio, double tokens);
/* The same: device_bytes and host_bytes: planned, or (@outcome, nullable) opened. */
void rp_train_report_arenas(RpReport *report, const RpTrainJob *job, const RpTrainOutcome *outcome);
/* Steps and memory, predicted beside measured. */
void rp_train_report_measured(RpReport *report, const RpTrainJob *job,
                              const RpTrainOutcome *outcome);
/* The plan, before the first step; text is printed at once. @checkpoint: that is gone on from, or %NULL */
void rp_train_report_plan(RpReport *report, const RpTrainJob *job, const char *checkpoint);
/* A run that a signal ended: where, and how it continues. @how: with the options that it was run with */
void rp_train_report_interrupted(RpReport *report, const RpTrainJob *job,
                                 const RpTrainOutcome *outcome, const RpTrainHow *how,
                                 char *const *sets);
/* Reports the time that pinning host memory took, if any was pinned. */
void rp_train_report_pinned(RpReport *report, const RpPinnedMemory *pinned);
/* Predicted against measured, after the last. */
void rp_train_report_outcome(RpReport *report, const RpTrainJob *job,
                             const RpTrainOutcome *outcome);
