/**
 * Runs the same work in several threads, for callers that read or write much.
 */
#pragma once

#include <glib.h>

/* Returns: %NULL */
typedef void *(*RpThreadWork)(void *data);

/* Runs @work(@data) in @max threads at the same time, or fewer: one of them the caller's, which is
 * alone if there are no others to be had. Returns when all have. Signals go to other threads. */
void rp_run_in_threads(guint max, RpThreadWork work, gpointer data);
