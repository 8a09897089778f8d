#include "core/base/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define MAX_THREADS 32

guint
rp_threads_for(guint n)
{
    return MAX(1, MIN(MIN(g_get_num_processors(), n), MAX_THREADS));
}

void
rp_run_in_threads(guint max, RpThreadWork work, gpointer data)
{
    pthread_t threads[MAX_THREADS];
    const guint n = rp_threads_for(max);
    guint started = 0;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started + 1 < n && pthread_create(&threads[started], NULL, work, data) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(data);
    for (guint i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

typedef struct {
    RpPieceFunc piece;
    gpointer data;
    guint n;
    GError **errors;  /* one for each */
    atomic_uint next; /* @n or more: none is begun any more */
} Pieces;

static void *
do_pieces(void *data)
{
    Pieces *pieces = data;
    guint i;

    while ((i = atomic_fetch_add(&pieces->next, 1)) < pieces->n)
        if (!pieces->piece(i, pieces->data, &pieces->errors[i]))
            atomic_store(&pieces->next, pieces->n);
    return NULL;
}

gboolean
rp_run_pieces(guint n, RpPieceFunc piece, gpointer data, GError **error)
{
    g_autofree GError **errors = g_new0(GError *, n + 1);
    Pieces pieces = {.piece = piece, .data = data, .n = n, .errors = errors};
    guint failed = 0;

    rp_run_in_threads(n, do_pieces, &pieces);
    while (failed < n && errors[failed] == NULL)
        failed++;
    if (failed == n)
        return TRUE;
    g_propagate_error(error, errors[failed]);
    for (guint i = failed + 1; i < n; i++)
        g_clear_error(&errors[i]);
    return FALSE;
}
