#include "exec/optim/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

G_DEFINE_QUARK(rp - pool - error - quark, rp_pool_error)

typedef struct {
    RpPool *pool;
    guint index;
    guint cpu;
    pthread_t thread;
} Worker;

struct _RpPool {
    pthread_mutex_t mutex;
    pthread_cond_t start;
    pthread_cond_t done;
    /* under the mutex */
    guint64 n_runs;
    guint n_busy;
    gboolean ending;
    /* the run under way */
    gsize first, n, granule;
    RpPoolFunc func;
    gpointer data;

    guint n_threads; /* started */
    Worker workers[];
};

/* Adds the processors of "0-3,8" to @set. */
static gboolean
parse_cpus(const char *list, cpu_set_t *set, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(list, ",", -1);

    CPU_ZERO(set);
    for (char **part = parts; *part; part++) {
        g_auto(GStrv) ends = g_strsplit(g_strstrip(*part), "-", 2);
        guint64 from = 0, to = 0;
        if (ends[0] == NULL ||
            !g_ascii_string_to_unsigned(ends[0], 10, 0, CPU_SETSIZE - 1, &from, NULL) ||
            !g_ascii_string_to_unsigned(ends[1] ? ends[1] : ends[0], 10, from, CPU_SETSIZE - 1, &to,
                                        NULL)) {
            g_set_error(error, RP_POOL_ERROR, RP_POOL_ERROR_CPU_LIST,
                        "'%s' is not a list of processors like 0-3,8 (the highest is %d)", list,
                        CPU_SETSIZE - 1);
            return FALSE;
        }
        for (guint64 cpu = from; cpu <= to; cpu++)
            CPU_SET((int)cpu, set);
    }
    return TRUE;
}

/* Those of the process that @options want. */
static gboolean
choose_cpus(const RpPoolOptions *options, cpu_set_t *chosen, GError **error)
{
    cpu_set_t listed;

    if (sched_getaffinity(0, sizeof *chosen, chosen) != 0) {
        g_set_error(error, RP_POOL_ERROR, RP_POOL_ERROR_NO_CPU,
                    "cannot tell which processors may be used: %s", g_strerror(errno));
        return FALSE;
    }
    if (options->use != NULL) {
        if (!parse_cpus(options->use, &listed, error))
            return FALSE;
        CPU_AND(chosen, chosen, &listed);
    }
    if (options->avoid != NULL) {
        if (!parse_cpus(options->avoid, &listed, error))
            return FALSE;
        CPU_AND(&listed, &listed, chosen);
        CPU_XOR(chosen, chosen, &listed);
    }
    if (CPU_COUNT(chosen) == 0) {
        g_set_error(error, RP_POOL_ERROR, RP_POOL_ERROR_NO_CPU,
                    "no processor is left: of those that the process may use, use '%s', avoid '%s'",
                    options->use ? options->use : "all", options->avoid ? options->avoid : "none");
        return FALSE;
    }
    return TRUE;
}

/* Thread @index's part of the run. */
static void
run_share(const RpPool *pool, guint index)
{
    const gsize first_granule = pool->first / pool->granule;
    const gsize n_granules = (pool->first + pool->n - 1) / pool->granule - first_granule + 1;
    const gsize each = n_granules / pool->n_threads;
    const gsize more = n_granules % pool->n_threads; /* the first so many take one more */
    const gsize from = first_granule + index * each + MIN(index, more);
    const gsize to = from + each + (index < more ? 1 : 0);
    const gsize begin = MAX(pool->first, from * pool->granule);
    const gsize end = MIN(pool->first + pool->n, to * pool->granule);

    if (begin < end)
        pool->func(begin, end - begin, pool->data);
}

static void *
work(void *data)
{
    const Worker *worker = data;
    RpPool *pool = worker->pool;
    guint64 n_done = 0;

    pthread_mutex_lock(&pool->mutex);
    while (TRUE) {
        while (pool->n_runs == n_done && !pool->ending)
            pthread_cond_wait(&pool->start, &pool->mutex);
        if (pool->ending)
            break;
        pthread_mutex_unlock(&pool->mutex);
        run_share(pool, worker->index);
        n_done++;
        pthread_mutex_lock(&pool->mutex);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static gboolean
start_worker(Worker *worker, GError **error)
{
    pthread_attr_t attributes;
    cpu_set_t cpus;
    int status;

    CPU_ZERO(&cpus);
    CPU_SET(worker->cpu, &cpus);
    pthread_attr_init(&attributes);
    status = pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
    if (status == 0)
        status = pthread_create(&worker->thread, &attributes, work, worker);
    pthread_attr_destroy(&attributes);
    if (status != 0)
        g_set_error(error, RP_POOL_ERROR, RP_POOL_ERROR_THREAD,
                    "cannot start a thread on processor %u: %s", worker->cpu, g_strerror(status));
    return status == 0;
}

/* Starts @n_threads threads on @cpus in turn, with all signals blocked. */
static gboolean
start_workers(RpPool *pool, guint n_threads, const cpu_set_t *cpus, GError **error)
{
    sigset_t all, before;
    guint cpu = CPU_SETSIZE - 1;
    gboolean started = TRUE;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (guint i = 0; i < n_threads && started; i++) {
        do
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, cpus));
        pool->workers[i] = (Worker){.pool = pool, .index = i, .cpu = cpu};
        started = start_worker(&pool->workers[i], error);
        if (started)
            pool->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

RpPool *
rp_pool_new(const RpPoolOptions *options, GError **error)
{
    g_autoptr(RpPool) pool = NULL;
    cpu_set_t cpus;

    g_return_val_if_fail(options != NULL, NULL);

    if (!choose_cpus(options, &cpus, error))
        return NULL;

    const guint n_threads = options->n_threads > 0 ? options->n_threads : (guint)CPU_COUNT(&cpus);
    pool = g_malloc0(sizeof *pool + n_threads * sizeof *pool->workers);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (!start_workers(pool, n_threads, &cpus, error))
        return NULL;
    return g_steal_pointer(&pool);
}

void
rp_pool_free(RpPool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->ending = TRUE;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    for (guint i = 0; i < pool->n_threads; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    g_free(pool);
}

guint
rp_pool_n_threads(const RpPool *pool)
{
    return pool->n_threads;
}

guint
rp_pool_cpu(const RpPool *pool, guint thread)
{
    g_return_val_if_fail(thread < pool->n_threads, 0);
    return pool->workers[thread].cpu;
}

void
rp_pool_run(RpPool *pool, gsize first, gsize n, gsize granule, RpPoolFunc func, gpointer data)
{
    g_return_if_fail(granule > 0);

    if (pool == NULL || n <= granule) {
        if (n > 0)
            func(first, n, data);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    g_assert(pool->n_busy == 0);
    pool->first = first;
    pool->n = n;
    pool->granule = granule;
    pool->func = func;
    pool->data = data;
    pool->n_busy = pool->n_threads;
    pool->n_runs++;
    pthread_cond_broadcast(&pool->start);
    while (pool->n_busy > 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}
