#include "exec/system/threads.h"

#include <pthread.h>
#include <signal.h>

#define MAX_THREADS 32

void
rp_run_in_threads(guint max, RpThreadWork work, gpointer data)
{
    pthread_t threads[MAX_THREADS];
    guint n = MIN(MIN(g_get_num_processors(), max), MAX_THREADS);
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
