#include "exec/model/init.h"

#include <math.h>
#include <string.h>

#define WORDS 4 /* of one Philox block */

/* Elements that are made and written at a time. */
#define CHUNK ((gsize)1 << 16)

#define PHILOX_ROUNDS 10
#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u

void
rp_philox(const guint32 counter[4], const guint32 key[2], guint32 words[4])
{
    guint32 c[WORDS] = {counter[0], counter[1], counter[2], counter[3]};
    guint32 k0 = key[0];
    guint32 k1 = key[1];

    for (guint round = 0; round < PHILOX_ROUNDS; round++) {
        guint64 product0 = (guint64)PHILOX_M0 * c[0];
        guint64 product1 = (guint64)PHILOX_M1 * c[2];
        guint32 next0 = (guint32)(product1 >> 32) ^ c[1] ^ k0;
        guint32 next2 = (guint32)(product0 >> 32) ^ c[3] ^ k1;
        c[0] = next0;
        c[1] = (guint32)product1;
        c[2] = next2;
        c[3] = (guint32)product0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    memcpy(words, c, sizeof c);
}

/* ln(x) of a normal positive x, by + - x / alone: ln(m 2^e) = e ln 2 + 2 artanh((m - 1)/(m + 1)) */
static double
natural_log(double x)
{
    const double ln2 = 0x1.62e42fefa39efp-1;
    const double sqrt2 = 0x1.6a09e667f3bcdp+0;
    int exponent;
    double m = frexp(x, &exponent) * 2;
    double sum = 0;

    exponent--;
    if (m > sqrt2) {
        m /= 2;
        exponent++;
    }
    double z = (m - 1) / (m + 1); /* |z| < 0.172: z^23 / 23 is below half a unit of 2^-53 */
    double square = z * z;
    for (int power = 21; power >= 1; power -= 2)
        sum = sum * square + 1.0 / power;
    return exponent * ln2 + 2 * z * sum;
}

double
rp_init_normal(double p)
{
    double q = p - 0.5;

    if (fabs(q) <= 0.425) {
        double r = 0.180625 - q * q;
        return q *
               (((5.9109374720e+01 * r + 1.5929113202e+02) * r + 5.0434271938e+01) * r +
                3.3871327179e+00) /
               (((6.7187563600e+01 * r + 7.8757757664e+01) * r + 1.7895169469e+01) * r + 1.0);
    }
    double r = sqrt(-natural_log(q < 0 ? p : 1 - p));
    double value;
    if (r <= 5) {
        r -= 1.6;
        value = (((1.7023821103e-01 * r + 1.3067284816e+00) * r + 2.7568153900e+00) * r +
                 1.4234372777e+00) /
                ((1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0);
    } else {
        r -= 5;
        value = (((1.7337203997e-02 * r + 4.2868294337e-01) * r + 3.0812263860e+00) * r +
                 6.6579051150e+00) /
                ((1.2258202635e-02 * r + 2.4197894225e-01) * r + 1.0);
    }
    return q < 0 ? -value : value;
}

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

static void
fill_normal(const char *name, guint64 seed, double deviation, guint64 first, float *values, gsize n)
{
    guint64 hash = hash_name(name);
    guint32 key[2] = {(guint32)seed, (guint32)(seed >> 32)};
    guint32 words[WORDS];

    for (gsize i = 0; i < n; i++) {
        guint64 position = first + i;
        guint word = (guint)(position % WORDS);
        if (word == 0 || i == 0) {
            guint64 index = position / WORDS;
            guint32 counter[4] = {(guint32)index, (guint32)(index >> 32), (guint32)hash,
                                  (guint32)(hash >> 32)};
            rp_philox(counter, key, words);
        }
        values[i] = (float)(deviation * rp_init_normal(((double)words[word] + 0.5) * 0x1p-32));
    }
}

void
rp_init_fill(const RpModelConfig *config, const RpWeight *weight, guint64 seed, guint64 first,
             float *values, gsize n)
{
    g_return_if_fail(config && weight && (values || n == 0));
    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);

    if (!weight->matrix) {
        for (gsize i = 0; i < n; i++)
            values[i] = weight->norm ? 1.0f : 0.0f;
        return;
    }
    fill_normal(weight->name, seed, config->initializer_range, first, values, n);
    if (weight->kind != RP_WEIGHT_EMBEDDING || config->pad_id == RP_MODEL_NO_TOKEN)
        return;
    guint64 row = (guint64)config->pad_id * config->hidden;
    for (guint64 i = MAX(row, first); i < MIN(row + config->hidden, first + n); i++)
        values[i - first] = 0;
}

/* One run of rp_init_write(). */
typedef struct {
    const RpModelConfig *config;
    const RpInitOptions *options;
    RpSafetensorsWriter *writer;
    float *values; /* CHUNK */
    guint8 *bytes; /* the same in the type of the weights */
    guint64 done;
    guint64 total;
} Run;

static gboolean
write_weight(Run *run, const RpWeight *weight, guint number, GError **error)
{
    RpDtype dtype = run->config->dtype;

    for (guint64 first = 0; first < weight->elements; first += CHUNK) {
        gsize n = (gsize)MIN(CHUNK, weight->elements - first);
        rp_init_fill(run->config, weight, run->options->seed, first, run->values, n);
        rp_dtype_from_float(dtype, run->values, run->bytes, n);
        if (!rp_safetensors_writer_write(run->writer, number, run->bytes, n * rp_dtype_size(dtype),
                                         error))
            return FALSE;
        run->done += n;
        if (run->options->progress)
            run->options->progress(run->done, run->total, run->options->user_data);
    }
    return TRUE;
}

static gboolean
write_all(Run *run, const RpWeights *weights, GError **error)
{
    g_autofree guint *numbers = g_new0(guint, rp_weights_count(weights));

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (!weight->tied)
            numbers[i] = rp_safetensors_writer_add(run->writer, weight->name, run->config->dtype,
                                                   weight->shape, weight->rank);
    }
    if (!rp_safetensors_writer_begin(run->writer, error))
        return FALSE;
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (!weight->tied && !write_weight(run, weight, numbers[i], error))
            return FALSE;
    }
    return rp_safetensors_writer_finish(run->writer, error);
}

gboolean
rp_init_write(const RpModelConfig *config, const char *directory, const RpInitOptions *options,
              GError **error)
{
    g_return_val_if_fail(config && directory && options, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    g_autoptr(RpWeights) weights = rp_weights_new(config);
    g_autofree char *path = g_build_filename(directory, "model.safetensors", NULL);
    g_autofree char *config_path = g_build_filename(directory, "config.json", NULL);
    g_autoptr(RpSafetensorsWriter) writer =
        rp_safetensors_writer_new(path, options->max_shard_bytes);
    g_autofree float *values = g_new(float, CHUNK);
    g_autofree guint8 *bytes = g_new(guint8, CHUNK * sizeof(float));
    RpModelConfig named = *config;
    Run run = {.config = config,
               .options = options,
               .writer = writer,
               .values = values,
               .bytes = bytes,
               .total = rp_weights_elements(weights)};

    named.has_dtype = TRUE;
    return write_all(&run, weights, error) && rp_hf_config_save(&named, config_path, error);
}
