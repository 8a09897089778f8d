#include "tests/rp-test.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "exec/system/pool.h"

#define N 1000
/* A thread that waits for others gives up after so long: a failure, and the test does not hang. */
#define PATIENCE_S 60

typedef struct {
    RpPool *pool;
    pthread_mutex_t mutex;
    guint n_calls;
    guint visits[N];
    gsize first; /* first of the range */
    gsize granule;
    pthread_t caller;
    gboolean in_caller;
    gboolean unpinned; /* a thread was not bound to one processor */
    gboolean misaligned;
} Fixture;

static void
set_up(Fixture *f)
{
    pthread_mutex_init(&f->mutex, NULL);
}

static void
tear_down(Fixture *f)
{
    rp_pool_free(f->pool);
    pthread_mutex_destroy(&f->mutex);
}

static void
visit(gsize first, gsize n, gpointer data)
{
    Fixture *f = data;
    cpu_set_t cpus;

    for (gsize i = first; i < first + n; i++) /* no other thread's: the sanitizer would report it */
        f->visits[i]++;
    sched_getaffinity(0, sizeof cpus, &cpus);
    pthread_mutex_lock(&f->mutex);
    f->n_calls++;
    f->in_caller |= pthread_equal(pthread_self(), f->caller) != 0;
    f->unpinned |= CPU_COUNT(&cpus) != 1;
    f->misaligned |= n == 0 || (first % f->granule != 0 && first != f->first) ||
                     ((first + n) % f->granule != 0 && first + n != N - 3);
    pthread_mutex_unlock(&f->mutex);
}

static RpPool *
new_pool(guint n_threads)
{
    const RpPoolOptions options = {.n_threads = n_threads};
    return rp_must(rp_pool_new, &options);
}

RP_TEST_OF(visits_every_value_once, Fixture *f)
{
    for (guint n_threads = 1; n_threads <= 5; n_threads++) {
        f->pool = new_pool(n_threads);
        assert_int_equal(rp_pool_n_threads(f->pool), n_threads);
        for (gsize granule = 1; granule < 600; granule = granule * 3 + 1)
            for (gsize first = 0; first < 40; first += 13) {
                memset(f->visits, 0, sizeof f->visits);
                f->first = first;
                f->granule = granule;
                f->n_calls = 0;
                f->caller = pthread_self();
                rp_pool_run(f->pool, first, N - 3 - first, granule, visit, f);
                for (gsize i = 0; i < N; i++)
                    assert_int_equal(f->visits[i], i >= first && i < N - 3 ? 1 : 0);
                assert_in_range(f->n_calls, 1, (N - 4) / granule - first / granule + 1);
                assert_false(f->misaligned);
                assert_false(f->in_caller);
                assert_false(f->unpinned);
            }
        rp_pool_free(f->pool);
        f->pool = NULL;
    }
}

RP_TEST_OF(does_small_work_in_the_caller, Fixture *f)
{
    f->pool = new_pool(2);
    f->caller = pthread_self();
    f->granule = 100;
    rp_pool_run(f->pool, 0, 0, 100, visit, f);
    assert_int_equal(f->n_calls, 0);
    rp_pool_run(f->pool, 0, 100, 100, visit, f);
    assert_int_equal(f->n_calls, 1);
    assert_true(f->in_caller);
}

RP_TEST_OF(works_without_a_pool, Fixture *f)
{
    f->granule = 7;
    rp_pool_run(NULL, 10, N - 10, 7, visit, f);
    assert_int_equal(f->n_calls, 1);
    assert_int_equal(f->visits[10], 1);
    assert_int_equal(f->visits[N - 1], 1);
}

RP_TEST_OF(runs_many_times, Fixture *f)
{
    f->pool = new_pool(3);
    f->granule = 10;
    for (guint i = 0; i < 2000; i++)
        rp_pool_run(f->pool, 0, N, 10, visit, f);
    for (gsize i = 0; i < N; i++)
        assert_int_equal(f->visits[i], 2000);
}

/* Waits for @cond until @done; the mutex is held. Returns: %FALSE if patience ran out */
static gboolean
wait_for(pthread_cond_t *cond, pthread_mutex_t *mutex, const gboolean *done)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    while (!*done)
        if (pthread_cond_timedwait(cond, mutex, &end) != 0)
            return *done;
    return TRUE;
}

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    guint n_threads;
    gsize share;   /* values */
    guint n_begun; /* shares */
    guint n_done;  /* values */
    gboolean all_begun;
    gboolean rest_done;
    gboolean in_vain;
    guint on[N]; /* the processor that did a value */
} Meeting;

#define MEETING_INIT                                                                               \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER                       \
    }

/* A thread that begins a share does not continue before all shares are begun. */
static void
meet(gsize first, gsize n, gpointer data)
{
    Meeting *m = data;

    pthread_mutex_lock(&m->mutex);
    for (gsize i = first; i < first + n; i++)
        m->on[i] = (guint)sched_getcpu();
    if (first % m->share == 0) {
        m->all_begun = ++m->n_begun == m->n_threads;
        pthread_cond_broadcast(&m->cond);
        m->in_vain |= !wait_for(&m->cond, &m->mutex, &m->all_begun);
    }
    pthread_mutex_unlock(&m->mutex);
}

RP_TEST_OF(begins_each_share_in_its_own_thread, Fixture *f)
{
    for (guint n_threads = 2; n_threads <= 5; n_threads++) {
        Meeting m = MEETING_INIT;
        m.n_threads = n_threads;
        m.share = N / n_threads / 10 * 10;
        f->pool = new_pool(n_threads);
        rp_pool_run(f->pool, 0, n_threads * m.share, 10, meet, &m);
        assert_false(m.in_vain);
        for (guint i = 0; i < n_threads; i++)
            assert_int_equal(m.on[i * m.share], rp_pool_cpu(f->pool, i));
        g_clear_pointer(&f->pool, rp_pool_free);
    }
}

/* Who has the first value stays with it until all others are done. */
static void
linger(gsize first, gsize n, gpointer data)
{
    Meeting *m = data;

    pthread_mutex_lock(&m->mutex);
    m->n_done += (guint)n;
    if (first == 0)
        m->share = n;
    m->rest_done = m->n_done == N;
    if (m->rest_done)
        pthread_cond_broadcast(&m->cond);
    if (first == 0)
        m->in_vain = !wait_for(&m->cond, &m->mutex, &m->rest_done);
    pthread_mutex_unlock(&m->mutex);
}

RP_TEST_OF(leaves_a_slow_thread_only_its_piece, Fixture *f)
{
    for (guint n_threads = 2; n_threads <= 5; n_threads++) {
        Meeting m = MEETING_INIT;
        f->pool = new_pool(n_threads);
        rp_pool_run(f->pool, 0, N, 5, linger, &m);
        assert_false(m.in_vain);
        assert_int_equal(m.n_done, N);
        assert_in_range(m.share, 5, MAX(5, N / n_threads / 16)); /* an even piece of its share */
        g_clear_pointer(&f->pool, rp_pool_free);
    }
}

/* The data of one run. */
typedef struct {
    guint sign;
    gsize first, n;
    gsize *values;
} Errand;

static void
carry(const Errand *errand, gsize first, gsize n, guint sign)
{
    if (errand->sign != sign || first < errand->first || first + n > errand->first + errand->n)
        abort(); /* a piece of one run with another's function or data */
    for (gsize i = first; i < first + n; i++)
        errand->values[i - errand->first] += sign == 1 ? i : (gsize)0 - i;
}

static void
add(gsize first, gsize n, gpointer data)
{
    carry(data, first, n, 1);
}

static void
subtract(gsize first, gsize n, gpointer data)
{
    carry(data, first, n, 2);
}

/* Sizes, data and functions alternate, and a run's data are freed right after it: a thread
 * that is late, of which there are more than processors, must not touch it. */
RP_TEST_OF(takes_one_run_after_the_other, Fixture *f)
{
    f->pool = new_pool(5);
    for (gsize i = 0; i < 6000; i++) {
        Errand *errand = g_new(Errand, 1);
        const gsize granule = 1 + i % 3;

        *errand = (Errand){.sign = 1 + i % 2, .first = i % 7, .n = 4 + i * 37 % 211};
        errand->values = g_new0(gsize, errand->n);
        rp_pool_run(f->pool, errand->first, errand->n, granule, i % 2 ? subtract : add, errand);
        gboolean right = TRUE;
        for (gsize k = 0; k < errand->n; k++) {
            const gsize value = errand->first + k;
            right &= errand->values[k] == (i % 2 ? (gsize)0 - value : value);
        }
        memset(errand->values, 0xff, errand->n * sizeof *errand->values);
        g_free(errand->values);
        memset(errand, 0xff, sizeof *errand);
        g_free(errand);
        assert_true(right);
    }
}

RP_TEST_OF(ends_right_after_a_run, Fixture *f)
{
    for (guint i = 0; i < 300; i++) {
        memset(f->visits, 0, sizeof f->visits);
        f->granule = 10;
        f->pool = new_pool(1 + i % 6);
        if (i % 10 > 0)
            rp_pool_run(f->pool, 0, N, 10, visit, f);
        g_clear_pointer(&f->pool, rp_pool_free);
        for (gsize k = 0; k < N; k++)
            assert_int_equal(f->visits[k], i % 10 > 0 ? 1 : 0);
    }
}

RP_TEST_OF(keeps_to_the_processors_it_is_given, Fixture *f)
{
    cpu_set_t mine;
    char list[64];
    guint last = 0, n_cpus;

    sched_getaffinity(0, sizeof mine, &mine);
    n_cpus = (guint)CPU_COUNT(&mine);
    for (guint cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mine))
            last = cpu;
    g_snprintf(list, sizeof list, "%u", last);

    f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = 3, .use = list});
    for (guint thread = 0; thread < 3; thread++)
        assert_int_equal(rp_pool_cpu(f->pool, thread), last);
    rp_pool_free(f->pool);

    f->pool = new_pool(0);
    assert_int_equal(rp_pool_n_threads(f->pool), n_cpus);
    rp_pool_free(f->pool);
    f->pool = NULL;

    f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = 1, .avoid = ""});
    rp_pool_free(f->pool);
    f->pool = NULL;

    if (n_cpus == 1)
        return;
    f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.avoid = list});
    assert_int_equal(rp_pool_n_threads(f->pool), n_cpus - 1);
    for (guint thread = 0; thread < n_cpus - 1; thread++)
        assert_int_not_equal(rp_pool_cpu(f->pool, thread), last);
}

RP_TEST(refuses_what_is_not_a_list_of_processors)
{
    const char *const bad[] = {"x", "1-", "-1", "3-1", "0,,1", "0-5000", "1-2-3", "99999999999"};

    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        assert_null(rp_pool_new(&(RpPoolOptions){.use = bad[i]}, &error));
        assert_true(g_error_matches(error, RP_POOL_ERROR, RP_POOL_ERROR_CPU_LIST));
        rp_assert_error_message_contains(error, "not a list of processors");
    }
}

RP_TEST(refuses_to_run_nowhere)
{
    g_autoptr(GError) error = NULL;
    assert_null(rp_pool_new(&(RpPoolOptions){.avoid = "0-1023"}, &error));
    assert_true(g_error_matches(error, RP_POOL_ERROR, RP_POOL_ERROR_NO_CPU));
    rp_assert_error_message_contains(error, "avoid '0-1023'");
}

RP_TEST_STATE(Fixture, set_up, tear_down)
