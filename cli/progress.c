#include "cli/cli.h"

#include <stdio.h>
#include <unistd.h>

#define TERMINAL_INTERVAL_US (G_USEC_PER_SEC / 10)
#define CLEAR "\r\033[K"

RpProgress
rp_progress_begin(const char *what, double log_seconds)
{
    const gboolean terminal = isatty(STDERR_FILENO) == 1;
    const gint64 now_us = g_get_monotonic_time();

    return (RpProgress){
        .what = what,
        .log_seconds = log_seconds,
        .terminal = terminal,
        .interval_us = terminal ? TERMINAL_INTERVAL_US : (gint64)(log_seconds * G_USEC_PER_SEC),
        .begin_us = now_us,
        .shown_us = terminal ? 0 : now_us,
    };
}

gboolean
rp_progress_is_due(RpProgress *progress)
{
    const gint64 now_us = g_get_monotonic_time();

    if (progress->interval_us <= 0 || now_us - progress->shown_us < progress->interval_us)
        return FALSE;
    progress->shown_us = now_us;
    return TRUE;
}

void
rp_progress_print(const RpProgress *progress, const char *format, ...)
{
    va_list arguments;

    fputs(progress->terminal ? CLEAR : "", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputs(progress->terminal ? "" : "\n", stderr);
    fflush(stderr);
}

/* "596 x 10^6", "1200" */
static char *
format_count(double count)
{
    return count < 1e6 ? g_strdup_printf("%.*f", count < 10 && count != (guint)count ? 1 : 0, count)
                       : g_strdup_printf("%.0f x 10^6", count / 1e6);
}

void
rp_progress_show(RpProgress *progress, guint64 done, guint64 total)
{
    if (done == 0 || total == 0 || !rp_progress_is_due(progress))
        return;
    const double seconds =
        (double)(progress->shown_us - progress->begin_us + 1) / (double)G_USEC_PER_SEC;
    g_autofree char *whole = format_count((double)total);
    g_autofree char *rate = format_count((double)done / seconds);
    g_autofree char *left =
        rp_progress_format_time(seconds * (double)(total - done) / (double)done);

    rp_progress_print(progress, "%s: %.0f %% of %s, %s/s, %s left", progress->what,
                      100 * (double)done / (double)total, whole, rate, left);
}

void
rp_progress_event(gpointer data, const char *what, guint64 done, guint64 total)
{
    RpProgress *progress = data;

    if (total == 0) {
        rp_progress_clear();
        progress->what = NULL;
    } else if (progress->what == NULL) {
        *progress = rp_progress_begin(what, progress->log_seconds);
    }
    rp_progress_show(progress, done, total);
}

void
rp_progress_counted(guint64 done, guint64 total, gpointer progress)
{
    rp_progress_show(progress, done, total);
}

gboolean
rp_progress_counted_on(guint64 done, guint64 total, gpointer progress)
{
    rp_progress_show(progress, done, total);
    return TRUE;
}

void
rp_progress_clear(void)
{
    if (isatty(STDERR_FILENO) == 1)
        fputs(CLEAR, stderr);
}

char *
rp_progress_format_time(double seconds)
{
    if (seconds < 120)
        return g_strdup_printf("%.0f s", seconds);
    return seconds < 7200 ? g_strdup_printf("%.0f min", seconds / 60)
                          : g_strdup_printf("%.1f h", seconds / 3600);
}
