/**
 * One line on standard error that tells how long work goes on: written over and over on a terminal,
 * at most ten times a second; in a log file line after line, as seldom as asked for.
 */
#pragma once

#include <glib.h>

typedef struct {
    const char *what; /* "reading data" */
    gboolean terminal;
    gint64 interval_us; /* 0: never */
    gint64 begin_us;
    gint64 shown_us;
} RpProgress;

/* @log_seconds: between lines where standard error is no terminal; 0: none */
RpProgress rp_progress_begin(const char *what, double log_seconds);
/* Whether it is time for a line. */
gboolean rp_progress_is_due(RpProgress *progress);
/* The line, due or not. */
void rp_progress_print(const RpProgress *progress, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* "reading data: 34 % of 1200, 56/s, 14 s left", if it is due. */
void rp_progress_show(RpProgress *progress, guint64 done, guint64 total);
/* As callbacks, with an RpProgress; the second lets work go on. */
void rp_progress_counted(guint64 done, guint64 total, gpointer progress);
gboolean rp_progress_counted_on(guint64 done, guint64 total, gpointer progress);
/* Removes the line of a terminal, before something else is printed. */
void rp_progress_clear(void);
/* "45 s", "12 min", "3.5 h" (transfer full) */
char *rp_progress_format_time(double seconds);
