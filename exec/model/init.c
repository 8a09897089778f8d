#include "exec/model/init.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "exec/system/threads.h"

#define MAX_THREADS 32u /* more would wait for the disk */

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

/* Word i of the stream becomes (2 (word + 1/2) / 2^32 - 1) x @bound. */
static void
fill_uniform(guint64 seed, guint64 stream, double bound, guint64 first, float *values, gsize n)
{
    const guint32 key[2] = {(guint32)seed, (guint32)(seed >> 32)};
    guint32 words[4];

    for (guint64 i = first; i < first + n; i++) {
        const guint64 index = i / 4;
        const guint32 counter[4] = {(guint32)index, (guint32)(index >> 32), (guint32)stream,
                                    (guint32)(stream >> 32)};

        if (i == first || i % 4 == 0)
            rp_philox(counter, key, words);
        values[i - first] = (float)(((2.0 * (double)words[i % 4] + 1) * 0x1p-32 - 1) * bound);
    }
}

static void
fill_adapter(const RpWeight *weight, guint64 seed, guint64 first, float *values, gsize n)
{
    if (weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B))
        memset(values, 0, n * sizeof *values);
    else
        fill_uniform(seed, hash_name(weight->name),
                     1 / sqrt((double)weight->shape[weight->rank - 1]), first, values, n);
}

/* Biases, but for a router's, and norms do not begin as random numbers; sinks do. Source: transformers,
 * GptOssPreTrainedModel._init_weights */
static gboolean
is_constant(const RpWeight *weight)
{
    switch (weight->kind) {
    case RP_WEIGHT_SINKS:
    case RP_WEIGHT_ROUTER_BIAS:
        return FALSE;
    case RP_WEIGHT_GATE_UP_BIAS:
    case RP_WEIGHT_DOWN_BIAS:
        return TRUE;
    default:
        return weight->rank == 1;
    }
}

void
rp_init_fill(const RpModel *config, const RpWeight *weight, guint64 seed, guint64 first,
             float *values, gsize n)
{
    g_return_if_fail(config && weight && (values || n == 0));
    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);

    if (rp_weight_is_adapter(weight->kind)) {
        fill_adapter(weight, seed, first, values, n);
        return;
    }
    if (is_constant(weight)) {
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

/* One run of rp_init_write(). Each thread takes the next piece, makes it in memory of its own, and
 * writes it when its turn has come: the writer is one thread's at a time.
 *
 *   one thread   make 0 |write 0| make 2        |write 2| ...
 *   another      make 1         |write 1| make 3        |write 3| ...
 */
typedef struct {
    const RpModel *config;
    const RpInitOptions *options;
    const RpWeights *weights;
    RpSafetensorsWriter *writer;
    const guint *numbers; /* each weight's number in the files */
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    /* under the mutex: where the next piece begins, how many were taken and written */
    guint weight;
    guint64 first;
    guint64 n_taken;
    guint64 n_written;
    gboolean failed;
    /* belongs to the thread that writes now */
    GError *error;
    guint64 done;
    guint64 total;
} Run;

typedef struct {
    guint64 number;
    guint weight;
    guint64 first;
    gsize n;
} Piece;

/* Returns: whether there is one. A failure is everybody's turn to end. */
static gboolean
take_piece(Run *run, Piece *piece)
{
    const guint count = rp_weights_count(run->weights);
    const RpWeight *weight = NULL;

    pthread_mutex_lock(&run->mutex);
    for (; run->weight < count; run->weight++, run->first = 0) {
        weight = rp_weights_nth(run->weights, run->weight);
        if (!weight->tied && run->first < weight->elements)
            break;
    }
    const gboolean found = run->weight < count && !run->failed;
    if (found) {
        *piece = (Piece){run->n_taken++, run->weight, run->first,
                         (gsize)MIN(PIECE, weight->elements - run->first)};
        run->first += piece->n;
    }
    pthread_mutex_unlock(&run->mutex);
    return found;
}

static gboolean
write_piece(Run *run, const Piece *piece, const guint8 *bytes)
{
    const gsize size = rp_dtype_size(run->config->dtype);

    pthread_mutex_lock(&run->mutex);
    while (run->n_written != piece->number && !run->failed)
        pthread_cond_wait(&run->turn, &run->mutex);
    gboolean good = !run->failed;
    pthread_mutex_unlock(&run->mutex);
    if (!good)
        return FALSE;
    good = rp_safetensors_writer_write(run->writer, run->numbers[piece->weight], bytes,
                                       piece->n * size, &run->error);
    run->done += piece->n;
    if (good && run->options->progress != NULL)
        run->options->progress(run->done, run->total, run->options->user_data);
    pthread_mutex_lock(&run->mutex);
    run->n_written++;
    run->failed = !good;
    pthread_cond_broadcast(&run->turn);
    pthread_mutex_unlock(&run->mutex);
    return good;
}

static void *
work(void *data)
{
    Run *run = data;
    g_autofree float *values = g_new(float, PIECE);
    g_autofree guint8 *bytes = g_malloc(PIECE * sizeof(float));
    Piece piece;
    gboolean good = TRUE;

    while (good && take_piece(run, &piece)) {
        rp_init_fill(run->config, rp_weights_nth(run->weights, piece.weight), run->options->seed,
                     piece.first, values, piece.n);
        rp_dtype_from_float(run->config->dtype, values, bytes, piece.n);
        good = write_piece(run, &piece, bytes);
    }
    return NULL;
}

static void
work_in_threads(Run *run)
{
    const guint wanted = run->options->threads > 0 ? run->options->threads : MAX_THREADS;

    pthread_mutex_init(&run->mutex, NULL);
    pthread_cond_init(&run->turn, NULL);
    rp_run_in_threads((guint)MIN(wanted, run->total / PIECE + 1), work, run);
    pthread_cond_destroy(&run->turn);
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
    if (run->error != NULL) {
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
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

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
