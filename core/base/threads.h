/**
 * Work in several threads at the same time.
 */
#pragma once

#include <glib.h>

/* Returns: %NULL */
typedef void *(*RpThreadWork)(void *data);

/* Runs @work(@data) in @max threads at the same time, or fewer: one of them the caller's, which is
 * alone if there are no others to be had. Returns when all have. Signals go to other threads. */
void rp_run_in_threads(guint max, RpThreadWork work, gpointer data);

/* Piece @i of a work, which knows nothing of the others. */
typedef gboolean (*RpPieceFunc)(guint i, gpointer data, GError **error);

/* Does pieces 0 to @n - 1, begun in this order, in rp_run_in_threads(); none is begun once one has failed.
 * Returns: FALSE with the error of the first that failed, which depends on no thread's speed */
gboolean rp_run_pieces(guint n, RpPieceFunc piece, gpointer data, GError **error);

/* How many of @n pieces are worked on at the same time; 1 at least. */
guint rp_threads_for(guint n);
