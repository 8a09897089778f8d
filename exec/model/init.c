#include "exec/model/init.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/base/threads.h"
#include "exec/kernels/philox.h"

/**
 * Random words and the normal distribution's inverse, in groups of counters: whole loops without a
 * branch, which compilers turn into vector code. Every operation is one that IEEE 754 defines, in
 * the order of rp_init_normal(): the same bits one by one or in groups.
 *
 *   counters     j    j+1  j+2  ...
 *   word 0       v0   v4   v8   ...
 *   word 1       v1   v5   v9   ...      made row by row, handed out column by column
 */

#define WORDS 4 /* words of one Philox block */
#define COUNTERS 64
#define GROUP (WORDS * COUNTERS)

#define CENTRE 0.425 /* |p - 1/2| up to which a quotient in (p - 1/2)^2 serves */

/* ---- words ---- */

void
rp_philox(const guint32 counter[4], const guint32 key[2], guint32 words[4])
{
    memcpy(words, counter, WORDS * sizeof *words);
    rp_philox_stir(words, (guint64)key[1] << 32 | key[0]);
}

static void
philox_group(guint64 seed, guint64 stream, guint64 index, guint32 words[GROUP])
{
    guint32 *c[WORDS];

    for (guint row = 0; row < WORDS; row++)
        c[row] = words + row * COUNTERS;
    for (guint j = 0; j < COUNTERS; j++) {
        c[0][j] = (guint32)(index + j);
        c[1][j] = (guint32)((index + j) >> 32);
        c[2][j] = (guint32)stream;
        c[3][j] = (guint32)(stream >> 32);
    }
    for (guint32 round = 0; round < RP_PHILOX_ROUNDS; round++) {
        guint32 k0 = (guint32)seed + round * RP_PHILOX_W0;
        guint32 k1 = (guint32)(seed >> 32) + round * RP_PHILOX_W1;
        for (guint j = 0; j < COUNTERS; j++)
            rp_philox_round(&c[0][j], &c[1][j], &c[2][j], &c[3][j], k0, k1);
    }
}

/* ---- the inverse ---- */

/* ln(x) of a normal positive x, by + - x / alone: ln(m 2^e) = e ln 2 + 2 artanh((m - 1)/(m + 1)) */
static inline double
natural_log(double x)
{
    const double ln2 = 0x1.62e42fefa39efp-1;
    const double sqrt2 = 0x1.6a09e667f3bcdp+0;
    guint64 bits;
    double m;

    memcpy(&bits, &x, sizeof bits);
    gint32 exponent = (gint32)(bits >> 52) - 1023;
    bits = (bits & (((guint64)1 << 52) - 1)) | (guint64)1023 << 52;
    memcpy(&m, &bits, sizeof m);
    exponent += m > sqrt2;
    m = m > sqrt2 ? m / 2 : m;
    double z = (m - 1) / (m + 1); /* |z| < 0.172: z^23 / 23 is below half a unit of 2^-53 */
    double square = z * z;
    double sum = 1.0 / 21;
    sum = sum * square + 1.0 / 19;
    sum = sum * square + 1.0 / 17;
    sum = sum * square + 1.0 / 15;
    sum = sum * square + 1.0 / 13;
    sum = sum * square + 1.0 / 11;
    sum = sum * square + 1.0 / 9;
    sum = sum * square + 1.0 / 7;
    sum = sum * square + 1.0 / 5;
    sum = sum * square + 1.0 / 3;
    sum = sum * square + 1.0;
    return exponent * ln2 + 2 * z * sum;
}

/* @q: p - 1/2 */
static inline double
near_centre(double q)
{
    double r = 0.180625 - q * q;

    return q *
           (((5.9109374720e+01 * r + 1.5929113202e+02) * r + 5.0434271938e+01) * r +
            3.3871327179e+00) /
           (((6.7187563600e+01 * r + 7.8757757664e+01) * r + 1.7895169469e+01) * r + 1.0);
}

/* @r: square root of -ln(min(p, 1 - p)), up to 5 */
static inline double
in_tail(double r)
{
    r -= 1.6;
    return (((1.7023821103e-01 * r + 1.3067284816e+00) * r + 2.7568153900e+00) * r +
            1.4234372777e+00) /
           ((1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0);
}

/* The same above 5. */
static double
far_out(double r)
{
    r -= 5;
    return (((1.7337203997e-02 * r + 4.2868294337e-01) * r + 3.0812263860e+00) * r +
            6.6579051150e+00) /
           ((1.2258202635e-02 * r + 2.4197894225e-01) * r + 1.0);
}

double
rp_init_normal(double p)
{
    double q = p - 0.5;

    if (fabs(q) <= CENTRE)
        return near_centre(q);
    double r = sqrt(-natural_log(q < 0 ? p : 1 - p));
    double value = r <= 5 ? in_tail(r) : far_out(r);
    return q < 0 ? -value : value;
}

/* (word + 1/2) / 2^32, exactly: all processors convert signed numbers. */
static inline double
probability(guint32 word)
{
    return ((double)(gint32)(word ^ 0x80000000u) + 2147483648.5) * 0x1p-32;
}

/* @values: (out): normals of @words. None is far out: sqrt(-ln(2^-33)) is 4.8. */
static void
normal_group(const guint32 words[GROUP], double values[GROUP])
{
    guint32 tails[GROUP];
    guint16 places[GROUP];
    double tail_values[GROUP];
    guint n_tails = 0;

    for (guint i = 0; i < GROUP; i++)
        values[i] = near_centre(probability(words[i]) - 0.5);
    for (guint i = 0; i < GROUP; i++) {
        tails[n_tails] = words[i];
        places[n_tails] = (guint16)i;
        n_tails += fabs(probability(words[i]) - 0.5) > CENTRE;
    }
    for (guint i = 0; i < n_tails; i++) {
        double p = probability(tails[i]);
        double r = sqrt(-natural_log(p < 0.5 ? p : 1 - p));
        tail_values[i] = p < 0.5 ? -in_tail(r) : in_tail(r);
    }
    for (guint i = 0; i < n_tails; i++)
        values[places[i]] = tail_values[i];
}

void
rp_init_normals(guint64 seed, guint64 stream, double deviation, guint64 first, float *values,
                gsize n)
{
    guint32 words[GROUP];
    double normals[GROUP];
    float columns[GROUP];

    g_return_if_fail(values || n == 0);

    while (n > 0) {
        gsize skip = (gsize)(first % WORDS);
        gsize take = MIN(n, GROUP - skip);
        philox_group(seed, stream, first / WORDS, words);
        normal_group(words, normals);
        for (guint j = 0; j < COUNTERS; j++)
            for (guint word = 0; word < WORDS; word++)
                columns[j * WORDS + word] = (float)(deviation * normals[word * COUNTERS + j]);
        memcpy(values, columns + skip, take * sizeof *values);
        values += take;
        first += take;
        n -= take;
    }
}

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

/* Logarithms of uniform numbers from 0.01 to 16. Source: transformers, Qwen3_5PreTrainedModel._init_weights */
static void
fill_decays(guint64 seed, guint64 stream, guint64 first, float *values, gsize n)
{
    fill_uniform(seed, stream, 0.5, first, values, n);
    for (gsize i = 0; i < n; i++)
        values[i] = (float)natural_log(0.01 + (16 - 0.01) * (0.5 + (double)values[i]));
}

/* The value of a weight that does not begin as random numbers. */
static float
constant_of(const RpModel *config, const RpWeight *weight)
{
    const gboolean zero_norms = rp_architectures[config->architecture].zero_norms;

    return weight->kind == RP_WEIGHT_DELTA_BIAS || weight->kind == RP_WEIGHT_DELTA_NORM ||
                   (weight->norm && !zero_norms)
               ? 1.0f
               : 0.0f;
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
    if (weight->kind == RP_WEIGHT_DELTA_LOG) {
        fill_decays(seed, hash_name(weight->name), first, values, n);
        return;
    }
    if (config->custom != NULL ? weight->deviation == 0 : is_constant(weight)) {
        for (gsize i = 0; i < n; i++)
            values[i] = constant_of(config, weight);
        return;
    }
    rp_init_normals(seed, hash_name(weight->name),
                    config->custom != NULL ? weight->deviation : config->initializer_range, first,
                    values, n);
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
