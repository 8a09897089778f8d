/**
 * Traces as files: Chrome trace JSON (Perfetto, chrome://tracing), CSV, PyTorch pipeline CSV.
 * docs/report.md describes each.
 *
 * Every exporter streams: it holds a few kilobytes however long the trace is.
 */
#pragma once

#include <gio/gio.h>

#include "core/formats/import-pytorch.h"
#include "core/trace/trace.h"

#define RP_EXPORT_ERROR (rp_export_error_quark())
GQuark rp_export_error_quark(void);

typedef enum {
    RP_EXPORT_ERROR_TRACE, /* a file that roundpipe did not write, or that no trace can hold */
    RP_EXPORT_ERROR_GRID   /* RP_PYTORCH_TIMED: the times do not suit a grid */
} RpExportError;

typedef enum {
    RP_CHROME_MEMORY = 1, /* a counter track of each arena; needs the plan */
    RP_CHROME_FLOWS = 2   /* arrows for dependencies between lanes; needs the plan */
} RpChromeFlags;

/**
 * rp_export_chrome:
 * @plan: (nullable): the plan of the trace, for @flags
 * @flags: RpChromeFlags, or 0
 *
 * One process per device and one for the host, one thread per lane, one complete event per task.
 * The file holds everything that the trace does: rp_trace_parse_chrome() gives it back exactly.
 *
 * Errors: those of the stream
 */
gboolean rp_export_chrome(const RpTrace *trace, const RpPlan *plan, guint flags,
                          GOutputStream *stream, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_trace_parse_chrome:
 * @name: file name for messages
 * @text: @length bytes
 *
 * Reads the output of rp_export_chrome(): every task with all its numbers, as many as the file
 * says.
 *
 * Errors: RP_EXPORT_ERROR_TRACE, with file, line, column, key, the expected and the found value
 */
RpTrace *rp_trace_parse_chrome(const char *name, const char *text, gsize length,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same from a file. Errors: also G_FILE_ERROR */
RpTrace *rp_trace_load_chrome(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_trace_load_chrome_memory:
 * @memory: (out) (element-type GArray<RpMemoryStep>): the counters of RP_CHROME_MEMORY, of each
 *   device and then of the host: as rp_report_memory_curve() has them; empty ones where there are none
 *
 * Errors: as rp_trace_load_chrome()
 */
RpTrace *rp_trace_load_chrome_memory(const char *path, GPtrArray **memory,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_export_csv:
 *
 * One line per task under a header line. Cells that do not apply are empty; `device` is a number or
 * `host`; in an overlapped action's line `layer` and `chunk` are the backward part's stage and
 * micro-batch.
 */
gboolean rp_export_csv(const RpTrace *trace, GOutputStream *stream,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_export_pytorch:
 * @note: (out) (optional) (nullable) (transfer full): why PyTorch itself would refuse the file;
 * %NULL if it would not
 *
 * PyTorch pipeline CSV, `RP_PYTORCH_COMPACT`: one row per rank, actions in order, no idle cells. A
 * fused action is written as an overlap of its forward and its backward, `(5F0;5B0)OVERLAP_F_B`.
 */
gboolean rp_export_pytorch(const RpOrders *orders, GOutputStream *stream, char **note,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_export_pytorch_timed:
 * @iteration: the one to write
 *
 * The same, `RP_PYTORCH_TIMED`: column c is the time from c to c + 1 steps after the iteration's
 * first action, a step being the largest time that divides every start and duration. An action
 * stands in the column of its start; the other columns that it takes, and idle ones, are empty.
 *
 * Errors: RP_EXPORT_ERROR_GRID if the grid would have more than %RP_PYTORCH_MAX_CELLS cells, if an
 *   action takes no time, or if two actions of a rank overlap
 */
gboolean rp_export_pytorch_timed(const RpTrace *trace, guint iteration, GOutputStream *stream,
                                 char **note, GError **error) G_GNUC_WARN_UNUSED_RESULT;
