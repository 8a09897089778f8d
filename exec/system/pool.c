/*
 * A run on two threads, shares of three pieces each; thread 1 is late:
 *
 *   thread 0  |--0a--|--0b--|--0c--|--1b--|     1b: of thread 1's share, when its own was empty
 *   thread 1            |--1a--|-----1c-----|
 *   caller    put                           done
 *
 * The caller's data (the run, the bounds of the shares) are plain memory. Only a thread that has
 * taken a piece reads it: the run is not over before that piece is done, and the caller puts
 * nothing new before the run is over. A thread that comes late, or still looks for pieces of a run
 * that is over, sees nothing but the atomic numbers: it finds no piece, or one of the next run,
 * which is then its to do like anybody's.
 */
#include "exec/system/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "core/base/quote.h"
#include "exec/system/nodes.h"

G_DEFINE_QUARK(rp_pool_error, rp_pool_error)

#define CACHE_LINE 64
#define PIECES 16 /* pieces of a share, at least, if it has as many granules */
#define SPIN_US 200
/* Threads that sleep on one condition: as many as queue for its mutex when they are woken. */
#define BED_THREADS 4
#define ENDING G_MAXUINT64 /* in place of a run's number: the threads are to end */

typedef struct {
    _Alignas(CACHE_LINE) pthread_mutex_t mutex;
    pthread_cond_t cond;
} Bed;

typedef struct {
    _Alignas(CACHE_LINE) _Atomic gsize n_left; /* pieces of the share that nobody has taken */
    gsize from, to;                            /* the share, granules */

    RpPool *pool;
    guint index;
    guint cpu;
    pthread_t thread;
} Worker;

struct _RpPool {
    _Alignas(CACHE_LINE) _Atomic guint64 n_runs; /* begun, or ENDING */

    /* the run under way */
    _Alignas(CACHE_LINE) gsize first, n, granule;
    gsize piece; /* granules */
    RpPoolFunc func;
    gpointer data;
    /* fixed */
    gboolean spins;  /* before a thread sleeps */
    guint n_threads; /* started */
    guint n_beds;
    Bed *beds; /* one for each thread */

    _Alignas(CACHE_LINE) _Atomic gsize n_undone; /* pieces of the run */
    _Atomic guint64 n_over;                      /* runs */
    Bed bed;                                     /* the caller's */

    Worker workers[];
};

/* The processors of "0-3,8". */
static gboolean
parse_cpus(const char *list, cpu_set_t *set, GError **error)
{
    if (rp_cpu_list_parse(list, set))
        return TRUE;
    return rp_fail(error, RP_POOL_ERROR, RP_POOL_ERROR_CPU_LIST,
                   "'%s' is not a list of processors like 0-3,8 (the highest is %d)", list,
                   CPU_SETSIZE - 1);
}

/* Chooses the processors of the process that @options name; @n_all: how many the process has. */
static gboolean
choose_cpus(const RpPoolOptions *options, cpu_set_t *chosen, guint *n_all, GError **error)
{
    cpu_set_t listed;

    if (sched_getaffinity(0, sizeof *chosen, chosen) != 0)
        return rp_fail(error, RP_POOL_ERROR, RP_POOL_ERROR_NO_CPU,
                       "cannot tell which processors may be used: %s", g_strerror(errno));
    *n_all = (guint)CPU_COUNT(chosen);
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
    if (CPU_COUNT(chosen) == 0)
        return rp_fail(
            error, RP_POOL_ERROR, RP_POOL_ERROR_NO_CPU,
            "no processor is left: of those that the process may use, use '%s', avoid '%s'",
            options->use != NULL ? options->use : "all",
            options->avoid != NULL ? options->avoid : "none");
    return TRUE;
}

/* The piece of @share after which @left - 1 are left. */
static void
do_piece(const RpPool *pool, const Worker *share, gsize left)
{
    const gsize to = share->to - (left - 1) * pool->piece;
    const gsize from = MAX(to, share->from + pool->piece) - pool->piece; /* the first is shorter */
    const gsize begin = MAX(pool->first, from * pool->granule);
    const gsize end = MIN(pool->first + pool->n, to * pool->granule);

    pool->func(begin, end - begin, pool->data);
}

/* Takes a piece of @share and does it. Returns: %FALSE if none was left */
static gboolean
take_piece(const RpPool *pool, Worker *share)
{
    /* relaxed: nothing is read on the strength of it */
    gsize left = atomic_load_explicit(&share->n_left, memory_order_relaxed);

    while (left > 0)
        /* acquire: with the piece come the caller's writes before it released the number */
        if (atomic_compare_exchange_weak_explicit(&share->n_left, &left, left - 1,
                                                  memory_order_acquire, memory_order_relaxed)) {
            do_piece(pool, share, left);
            return TRUE;
        }
    return FALSE;
}

static void
wake(Bed *bed)
{
    pthread_mutex_lock(&bed->mutex); /* who has looked before this, sleeps now */
    pthread_cond_broadcast(&bed->cond);
    pthread_mutex_unlock(&bed->mutex);
}

/* Waits until @number is not @seen. Returns: its value */
static guint64
wait_for_change(const RpPool *pool, Bed *bed, _Atomic guint64 *number, guint64 seen)
{
    const gint64 end_us = pool->spins ? g_get_monotonic_time() + SPIN_US : 0;
    guint64 now;

    /* acquire: writes before the number was released are seen */
    while ((now = atomic_load_explicit(number, memory_order_acquire)) == seen && pool->spins &&
           g_get_monotonic_time() < end_us)
        sched_yield();
    if (now != seen)
        return now;
    pthread_mutex_lock(&bed->mutex);
    while ((now = atomic_load_explicit(number, memory_order_acquire)) == seen)
        pthread_cond_wait(&bed->cond, &bed->mutex);
    pthread_mutex_unlock(&bed->mutex);
    return now;
}

/* @n pieces are done. */
static void
report(RpPool *pool, gsize n)
{
    /* Who does the last hands the work of all to the caller. release: its own; acquire: the
     * others'. */
    if (n == 0 || atomic_fetch_sub_explicit(&pool->n_undone, n, memory_order_acq_rel) != n)
        return;
    /* release: to wait_for_change() */
    atomic_fetch_add_explicit(&pool->n_over, 1, memory_order_release);
    wake(&pool->bed);
}

/* Does @worker's share, then pieces of the others', always looking at its own first: the next run
 * may have begun. */
static void
do_pieces(RpPool *pool, Worker *worker)
{
    guint other = worker->index;
    gsize n_done = 0;

    do {
        while (take_piece(pool, worker))
            n_done++;
        report(pool, n_done);
        n_done = 0;
        for (guint i = 0; i < pool->n_threads && n_done == 0; i++)
            if (take_piece(pool, &pool->workers[other]))
                n_done = 1;
            else
                other = (other + 1) % pool->n_threads;
    } while (n_done > 0);
}

static void *
run_worker(void *data)
{
    Worker *worker = data;
    RpPool *pool = worker->pool;
    Bed *bed = &pool->beds[worker->index / BED_THREADS];
    guint64 seen = 0;

    while ((seen = wait_for_change(pool, bed, &pool->n_runs, seen)) != ENDING)
        do_pieces(pool, worker);
    return NULL;
}

static gboolean
start_worker(Worker *worker, GError **error)
{
    pthread_attr_t attributes;
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    CPU_SET(worker->cpu, &cpus);
    pthread_attr_init(&attributes);
    int status = pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
    if (status == 0)
        status = pthread_create(&worker->thread, &attributes, run_worker, worker);
    pthread_attr_destroy(&attributes);
    if (status != 0)
        g_set_error(error, RP_POOL_ERROR, RP_POOL_ERROR_THREAD,
                    "cannot start a thread on processor %u: %s", worker->cpu, g_strerror(status));
    return status == 0;
}

/* The processors of @n_threads threads. (transfer full) */
static guint *
spread(const RpNodes *nodes, const cpu_set_t *set, guint n_threads)
{
    guint *cpus = g_new(guint, n_threads);
    guint all[CPU_SETSIZE], n = 0;

    for (guint cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set))
            all[n++] = cpu;
    rp_nodes_choose(nodes, all, n, cpus, n_threads);
    return cpus;
}

/* Starts @n_threads threads on @cpus, with all signals blocked. */
static gboolean
start_workers(RpPool *pool, guint n_threads, const guint *cpus, GError **error)
{
    sigset_t all, before;
    gboolean started = TRUE;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (guint i = 0; i < n_threads && started; i++) {
        Worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        worker->cpu = cpus[i];
        started = start_worker(worker, error);
        if (started)
            pool->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void
make(Bed *bed)
{
    pthread_mutex_init(&bed->mutex, NULL);
    pthread_cond_init(&bed->cond, NULL);
}

static void
unmake(Bed *bed)
{
    pthread_cond_destroy(&bed->cond);
    pthread_mutex_destroy(&bed->mutex);
}

/* Wakes all threads to a run, or to ENDING. */
static void
announce(RpPool *pool, guint64 number)
{
    /* release: hands earlier writes to wait_for_change() */
    atomic_store_explicit(&pool->n_runs, number, memory_order_release);
    for (guint i = 0; i < pool->n_beds; i++)
        wake(&pool->beds[i]);
}

RpPool *
rp_pool_new(const RpPoolOptions *options, GError **error)
{
    g_autoptr(RpPool) pool = NULL;
    cpu_set_t cpus;
    guint n_all = 0;

    g_return_val_if_fail(options != NULL, NULL);

    if (!choose_cpus(options, &cpus, &n_all, error))
        return NULL;

    const guint n_cpus = (guint)CPU_COUNT(&cpus);
    const guint n_threads = options->n_threads > 0 ? options->n_threads : n_cpus;
    pool = g_aligned_alloc0(1, sizeof *pool + n_threads * sizeof *pool->workers, CACHE_LINE);
    pool->spins = n_threads <= n_cpus && n_threads < n_all; /* disturbs nobody */
    pool->n_beds = (n_threads + BED_THREADS - 1) / BED_THREADS;
    pool->beds = g_aligned_alloc0(pool->n_beds, sizeof *pool->beds, CACHE_LINE);
    for (guint i = 0; i < pool->n_beds; i++)
        make(&pool->beds[i]);
    make(&pool->bed);
    g_autofree guint *chosen = spread(options->nodes, &cpus, n_threads);

    if (!start_workers(pool, n_threads, chosen, error))
        return NULL;
    return g_steal_pointer(&pool);
}

void
rp_pool_free(RpPool *pool)
{
    if (pool == NULL)
        return;
    announce(pool, ENDING);
    for (guint i = 0; i < pool->n_threads; i++)
        pthread_join(pool->workers[i].thread, NULL);
    unmake(&pool->bed);
    for (guint i = 0; i < pool->n_beds; i++)
        unmake(&pool->beds[i]);
    g_aligned_free(pool->beds);
    g_aligned_free(pool);
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

typedef struct {
    gsize from, to; /* granules */
} Share;

/* The share of @thread: the first threads take one granule more. */
static Share
share_of(const RpPool *pool, guint thread, gsize first, gsize n, gsize granule)
{
    const gsize first_granule = first / granule;
    const gsize n_granules = (first + n - 1) / granule - first_granule + 1;
    const gsize each = n_granules / pool->n_threads;
    const gsize more = n_granules % pool->n_threads;
    const gsize from = first_granule + thread * each + MIN(thread, more);

    return (Share){from, from + each + (thread < more ? 1 : 0)};
}

void
rp_pool_share(const RpPool *pool, guint thread, gsize first, gsize n, gsize granule, gsize *begin,
              gsize *end)
{
    g_return_if_fail(n > 0 && granule > 0 && thread < pool->n_threads);

    const Share share = share_of(pool, thread, first, n, granule);

    *begin = CLAMP(share.from * granule, first, first + n);
    *end = CLAMP(share.to * granule, first, first + n);
}

static gsize
pieces_of(const RpPool *pool, const Worker *share)
{
    return (share->to - share->from + pool->piece - 1) / pool->piece;
}

/* Divides the run under way into shares, and these into pieces. From here on a thread that looks
 * for pieces finds them. */
static void
put_pieces(RpPool *pool)
{
    const Share last = share_of(pool, pool->n_threads - 1, pool->first, pool->n, pool->granule);
    gsize n_undone = 0;

    pool->piece = MAX(1, (last.to - last.from) / PIECES);
    for (guint i = 0; i < pool->n_threads; i++) {
        const Share share = share_of(pool, i, pool->first, pool->n, pool->granule);

        pool->workers[i].from = share.from;
        pool->workers[i].to = share.to;
        n_undone += pieces_of(pool, &pool->workers[i]);
    }
    /* relaxed: the releases below cover it */
    atomic_store_explicit(&pool->n_undone, n_undone, memory_order_relaxed);
    for (guint i = 0; i < pool->n_threads; i++)
        /* release: the run and the share, to take_piece() */
        atomic_store_explicit(&pool->workers[i].n_left, pieces_of(pool, &pool->workers[i]),
                              memory_order_release);
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

    /* relaxed: numbers that only the caller changes, or that are at rest between runs */
    const guint64 n_before = atomic_load_explicit(&pool->n_runs, memory_order_relaxed);
    g_assert(atomic_load_explicit(&pool->n_over, memory_order_relaxed) == n_before);
    pool->first = first;
    pool->n = n;
    pool->granule = granule;
    pool->func = func;
    pool->data = data;
    put_pieces(pool);
    announce(pool, n_before + 1);
    (void)wait_for_change(pool, &pool->bed, &pool->n_over, n_before);
}

static guint
node_of(const RpPool *pool, const RpNodes *nodes, guint thread)
{
    return rp_nodes_of_cpu(nodes, rp_pool_cpu(pool, thread));
}

/* The first thread from @thread on that is on another node. */
static guint
next_node(const RpPool *pool, const RpNodes *nodes, guint thread)
{
    const guint n = rp_pool_n_threads(pool), node = node_of(pool, nodes, thread);

    while (thread < n && node_of(pool, nodes, thread) == node)
        thread++;
    return thread;
}

guint
rp_numa_nodes(const RpPool *pool, const RpNodes *nodes)
{
    guint n = 0;

    /* threads of one node follow each other */
    for (guint i = 0; i < rp_pool_n_threads(pool); i = next_node(pool, nodes, i))
        n++;
    return n;
}

guint64
rp_numa_bind(const RpPool *pool, const RpNodes *nodes, const guint8 *array, gsize n, gsize each,
             gsize granule, char **problem)
{
    guint64 bytes = 0;

    for (guint i = 0, next; i < rp_pool_n_threads(pool) && n > 0 && *problem == NULL; i = next) {
        gsize begin, end, other;

        next = next_node(pool, nodes, i);
        rp_pool_share(pool, i, 0, n, granule, &begin, &other);
        rp_pool_share(pool, next - 1, 0, n, granule, &other, &end);
        bytes += rp_nodes_prefer(array + begin * each, array + end * each, node_of(pool, nodes, i),
                                 problem);
    }
    return bytes;
}
