/**
 * Pictures of one run, drawn by plots/.
 */
#pragma once

#include "cli/cli.h"
#include "plots/figure.h"

/* Draws @figure as the one file @path; of a .tex the graphics beside it, as .pdf. Errors: RP_PLOT_ERROR_*, G_IO_ERROR, G_FILE_ERROR */
gboolean rp_cli_picture_write(const RpFigure *figure, const char *path,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @drawn: whether a picture is asked for; without one the options have no effect. Errors:
 * RP_CLI_ERROR_USAGE */
gboolean rp_cli_picture_style(const RpArgs *args, gboolean drawn, RpFigureStyle *style,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The part of a run that is drawn. */
typedef struct {
    guint first; /* iteration */
    guint end;   /* excluded */
    gint64 from_ns;
    gint64 end_ns; /* not after from_ns: all of it */
} RpPictureWindow;

/**
 * rp_cli_picture_window:
 * @text: (nullable): "A:B", iterations A to B - 1; %NULL: the steady state if the run has one, as
 *   the report has it, else all
 *
 * From the start of the first iteration to that of the one after the last, as rp_report_steady().
 * Errors: RP_CLI_ERROR_USAGE
 */
gboolean rp_cli_picture_window(const RpRequest *request, const RpTrace *trace, const char *text,
                               RpPictureWindow *window, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Every device's lanes (compute only in `compute` fidelity). @window: (nullable): all of it. The
 * bubble ratio of its title is that of what is drawn. @style: (nullable). (transfer full) */
RpFigure *rp_cli_timeline(const RpRequest *request, const char *model, const RpTrace *trace,
                          const RpPictureWindow *window, const RpFigureStyle *style);

/* Bytes in the buffers of each GPU and of the host over time. (transfer full) */
RpFigure *rp_cli_memory_chart(const RpRequest *request, const RpProfile *profile,
                              const RpPlan *plan, const RpTrace *trace,
                              const RpPictureWindow *window, const RpFigureStyle *style);
