#include "exec/model/init.h"

#include <pthread.h>
#include <signal.h>

#define MAX_THREADS 64u

/* Elements that one thread makes and writes at a time. */
#define PIECE ((gsize)1 << 17)

/* FNV-1a, 64 bits. */
static guint64
hash_name(const char *name)
{
    guint64 hash = G_GUINT64_CONSTANT(0xcbf29ce484222325);

    for (const char *p = name; *p; p++) {
        hash ^= (guchar)*p;
        hash *= G_GUINT64_CONSTANT(0x100000001b3);
    }
    return hash;
}

void
rp_init_fill(const RpModel *config, const RpWeight *weight, guint64 seed, guint64 first,
             float *values, gsize n)
{
    g_return_if_fail(config && weight && (values || n == 0));
    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);

    if (weight->rank == 1) {
        for (gsize i = 0; i < n; i++)
            values[i] = weight->norm ? 1.0f : 0.0f;
        return;
    }
    rp_init_normals(seed, hash_name(weight->name), config->initializer_range, first, values, n);
    if (weight->kind != RP_WEIGHT_EMBEDDING || config->pad_id == RP_MODEL_NO_TOKEN)
        return;
    guint64 row = (guint64)config->pad_id * config->hidden;
    for (guint64 i = MAX(row, first); i < MIN(row + config->hidden, first + n); i++)
        values[i - first] = 0;
}

/* ---- writing ---- */

typedef struct _Worker Worker;

/* One run of rp_init_write(). Worker k makes pieces k, k + n, k + 2 n, ... each in memory of its
 * own, and writes each when its turn has come: the writer is one thread's at a time.
 *
 *   worker 0   make 0 |write 0| make 2        |write 2| ...
 *   worker 1   make 1         |write 1| make 3        |write 3| ...
 */
typedef struct {
    const RpModel *config;
    const RpInitOptions *options;
    const RpWeights *weights;
    RpSafetensorsWriter *writer;
    const guint *numbers; /* of each weight in the files */
    pthread_mutex_t mutex;
    Worker *workers;
    guint n_workers; /* settled before the mutex is first free */
    /* under the mutex */
    guint turn; /* worker */
    gboolean failed;
    /* of the worker whose turn it is */
    GError *error;
    guint64 done;
    guint64 total;
} Run;

struct _Worker {
    Run *run;
    guint index;
    pthread_t thread;
    pthread_cond_t turn;
};

typedef struct {
    const RpWeight *weight;
    guint tensor;
    guint64 first;
    gsize n;
} Piece;

static gboolean
wait_for_turn(Worker *worker)
{
    Run *run = worker->run;

    pthread_mutex_lock(&run->mutex);
    while (run->turn != worker->index && !run->failed)
        pthread_cond_wait(&worker->turn, &run->mutex);
    gboolean failed = run->failed;
    pthread_mutex_unlock(&run->mutex);
    return !failed;
}

/* A failure is everybody's turn to end. */
static void
pass_turn(Worker *worker, gboolean good)
{
    Run *run = worker->run;

    pthread_mutex_lock(&run->mutex);
    run->turn = (worker->index + 1) % run->n_workers;
    run->failed = !good;
    for (guint i = 0; i < run->n_workers; i++)
        if (!good || i == run->turn)
            pthread_cond_signal(&run->workers[i].turn);
    pthread_mutex_unlock(&run->mutex);
}

static gboolean
write_piece(Worker *worker, const Piece *piece, const guint8 *bytes)
{
    Run *run = worker->run;
    gsize size = rp_dtype_size(run->config->dtype);

    if (!wait_for_turn(worker))
        return FALSE;
    gboolean good = rp_safetensors_writer_write(run->writer, piece->tensor, bytes, piece->n * size,
                                                &run->error);
    run->done += piece->n;
    if (good && run->options->progress)
        run->options->progress(run->done, run->total, run->options->user_data);
    pass_turn(worker, good);
    return good;
}

static void *
work(void *data)
{
    Worker *worker = data;
    Run *run = worker->run;
    g_autofree float *values = g_new(float, PIECE);
    g_autofree guint8 *bytes = g_malloc(PIECE * sizeof(float));
    guint64 number = 0; /* of the piece */

    pthread_mutex_lock(&run->mutex);
    const guint n_workers = run->n_workers;
    pthread_mutex_unlock(&run->mutex);
    for (guint i = 0; i < rp_weights_count(run->weights); i++) {
        const RpWeight *weight = rp_weights_nth(run->weights, i);
        for (guint64 first = 0; first < weight->elements && !weight->tied; first += PIECE) {
            if (number++ % n_workers != worker->index)
                continue;
            const Piece piece = {weight, run->numbers[i], first,
                                 (gsize)MIN(PIECE, weight->elements - first)};
            rp_init_fill(run->config, weight, run->options->seed, first, values, piece.n);
            rp_dtype_from_float(run->config->dtype, values, bytes, piece.n);
            if (!write_piece(worker, &piece, bytes))
                return NULL;
        }
    }
    return NULL;
}

/* More would wait for the disk. */
static guint
count_threads(const Run *run)
{
    guint wanted = run->options->threads > 0 ? run->options->threads : g_get_num_processors();
    guint64 pieces = run->total / PIECE + 1;

    return (guint)MIN(MIN(wanted, MAX_THREADS), pieces);
}

/* The calling thread is worker 0, and alone if there are no others to be had. */
static void
work_in_threads(Run *run)
{
    guint n = count_threads(run);
    g_autofree Worker *workers = g_new0(Worker, n);
    sigset_t all, before;

    for (guint i = 0; i < n; i++) {
        workers[i] = (Worker){.run = run, .index = i};
        pthread_cond_init(&workers[i].turn, NULL);
    }
    run->workers = workers;
    run->n_workers = 1;
    pthread_mutex_init(&run->mutex, NULL);
    pthread_mutex_lock(&run->mutex);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (run->n_workers < n && pthread_create(&workers[run->n_workers].thread, NULL, work,
                                                &workers[run->n_workers]) == 0)
        run->n_workers++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&run->mutex);
    work(&workers[0]);
    for (guint i = 1; i < run->n_workers; i++)
        pthread_join(workers[i].thread, NULL);
    for (guint i = 0; i < n; i++)
        pthread_cond_destroy(&workers[i].turn);
    pthread_mutex_destroy(&run->mutex);
}

static gboolean
write_all(Run *run, GError **error)
{
    g_autofree guint *numbers = g_new0(guint, rp_weights_count(run->weights));

    for (guint i = 0; i < rp_weights_count(run->weights); i++) {
        const RpWeight *weight = rp_weights_nth(run->weights, i);
        if (!weight->tied)
            numbers[i] = rp_safetensors_writer_add(run->writer, weight->name, run->config->dtype,
                                                   weight->shape, weight->rank);
    }
    if (!rp_safetensors_writer_begin(run->writer, error))
        return FALSE;
    run->numbers = numbers;
    work_in_threads(run);
    if (run->error) {
        g_propagate_error(error, run->error);
        return FALSE;
    }
    return rp_safetensors_writer_finish(run->writer, error);
}

gboolean
rp_init_write(const RpModel *config, const char *directory, const RpInitOptions *options,
              GError **error)
{
    g_return_val_if_fail(config && directory && options, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    g_autoptr(RpWeights) weights = rp_weights_new(config);
    g_autofree char *path = g_build_filename(directory, "model.safetensors", NULL);
    g_autofree char *config_path = g_build_filename(directory, "config.json", NULL);
    g_autoptr(RpSafetensorsWriter) writer =
        rp_safetensors_writer_new(path, options->max_shard_bytes);
    RpModel named = *config;
    Run run = {.config = config,
               .options = options,
               .weights = weights,
               .writer = writer,
               .total = rp_weights_elements(weights)};

    named.has_dtype = TRUE;
    return write_all(&run, error) && rp_hf_config_save(&named, config_path, error);
}
