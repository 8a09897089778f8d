/**
 * Pictures of one run, drawn by plots/.
 */
#pragma once

#include "cli/cli.h"
#include "plots/figure.h"

/* Whether @path ends in .png, .svg or .pdf, can be written, and gnuplot is there; before long work.
 * Errors: RP_CLI_ERROR_USAGE, RP_PLOT_ERROR_*, G_FILE_ERROR */
gboolean rp_cli_picture_check(const char *option, const char *path,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Draws @figure as the one file @path. Errors: RP_PLOT_ERROR_*, G_IO_ERROR, G_FILE_ERROR */
gboolean rp_cli_picture_write(const RpFigure *figure, const char *path,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Every device's lanes (compute only in `compute` fidelity). (transfer full) */
RpFigure *rp_cli_timeline(const RpRequest *request, const RpProfile *profile, const RpTrace *trace);

/* What the buffers of the GPUs hold over time. (transfer full) */
RpFigure *rp_cli_memory_chart(const RpRequest *request, const RpProfile *profile,
                              const RpPlan *plan, const RpTrace *trace);
