/* Code that every source of samples shares. */
#include "exec/data/dataset.h"

#include <gio/gio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/quote.h"
#include "exec/data/dataset-private.h"

#define PROGRESS_SAMPLES 256

/* Constants of the fingerprints of roundpipe-data/1. */
#define OLD_PLACES G_GUINT64_CONSTANT(256)
#define OLD_PLACE_BYTES 64

struct _RpDataset {
    guint n_references;
    const RpDatasetOps *ops;
    gpointer source;
    char *name;
    guint64 n_samples;
    guint vocabulary;
    RpFingerprints fingerprints;
    guint32 *lengths;  /* %NULL before a check */
    float *references; /* [n_samples][2]; or %NULL */
};

RpDataset *
rp_dataset_new(const RpDatasetOps *ops, gpointer source, const char *name, guint64 n_samples,
               guint vocabulary, const RpFingerprints *fingerprints)
{
    g_return_val_if_fail(ops && source && name && n_samples > 0 && fingerprints, NULL);

    RpDataset *dataset = g_new0(RpDataset, 1);
    dataset->n_references = 1;
    dataset->ops = ops;
    dataset->source = source;
    dataset->name = g_strdup(name);
    dataset->n_samples = n_samples;
    dataset->vocabulary = vocabulary;
    dataset->fingerprints = *fingerprints;
    return dataset;
}

RpDataset *
rp_dataset_ref(RpDataset *dataset)
{
    dataset->n_references++;
    return dataset;
}

void
rp_dataset_free(RpDataset *dataset)
{
    if (dataset == NULL || --dataset->n_references > 0)
        return;
    dataset->ops->free(dataset->source);
    g_free(dataset->lengths);
    g_free(dataset->references);
    g_free(dataset->name);
    g_free(dataset);
}

const char *
rp_dataset_name(const RpDataset *dataset)
{
    g_return_val_if_fail(dataset != NULL, NULL);

    return dataset->name;
}

guint64
rp_dataset_n_samples(const RpDataset *dataset)
{
    g_return_val_if_fail(dataset != NULL, 0);

    return dataset->n_samples;
}

guint
rp_dataset_vocabulary(const RpDataset *dataset)
{
    g_return_val_if_fail(dataset != NULL, 0);

    return dataset->vocabulary;
}

RpFingerprints
rp_dataset_fingerprint(const RpDataset *dataset)
{
    g_return_val_if_fail(dataset != NULL, (RpFingerprints){0});

    return dataset->fingerprints;
}

gboolean
rp_dataset_check_unchanged(const RpDataset *dataset, GError **error)
{
    g_return_val_if_fail(dataset != NULL, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    return rp_data_bytes_check_unchanged(dataset->ops->bytes(dataset->source), error);
}

void
rp_dataset_set_references(RpDataset *dataset, float *references)
{
    g_return_if_fail(dataset != NULL);

    g_free(dataset->references);
    dataset->references = references;
}

const float *
rp_dataset_references(const RpDataset *dataset)
{
    g_return_val_if_fail(dataset != NULL, NULL);

    return dataset->references;
}

guint
rp_dataset_file(const RpDataset *dataset, guint64 index)
{
    g_return_val_if_fail(dataset != NULL && index < dataset->n_samples, 0);

    return dataset->ops->file != NULL ? dataset->ops->file(dataset->source, index) : 0;
}

char *
rp_dataset_locate(const RpDataset *dataset, guint64 index)
{
    g_return_val_if_fail(dataset && index < dataset->n_samples, NULL);

    return dataset->ops->locate(dataset->source, index);
}

gboolean
rp_dataset_read(const RpDataset *dataset, guint64 index, RpSample *sample, GError **error)
{
    g_return_val_if_fail(dataset && index < dataset->n_samples && sample, FALSE);
    g_return_val_if_fail(sample->capacity == 0 || (sample->input_ids && sample->labels), FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    sample->split = (RpSplit){0};
    return dataset->ops->read(dataset->source, index, sample, error);
}

const RpDataBytes *
rp_dataset_bytes(const RpDataset *dataset)
{
    return dataset->ops->bytes(dataset->source);
}

guint64
rp_dataset_known_length(const RpDataset *dataset, guint64 index)
{
    return dataset->lengths != NULL       ? dataset->lengths[index]
           : dataset->ops->length != NULL ? dataset->ops->length(dataset->source, index)
                                          : 0;
}

gboolean
rp_dataset_length(const RpDataset *dataset, guint64 index, guint64 *n_tokens, GError **error)
{
    RpSample sample = {.capacity = 0};

    g_return_val_if_fail(dataset != NULL && n_tokens != NULL, FALSE);
    sample.n_tokens = rp_dataset_known_length(dataset, index);
    if (sample.n_tokens == 0 && !rp_dataset_read(dataset, index, &sample, error))
        return FALSE;
    *n_tokens = sample.n_tokens;
    return TRUE;
}

gboolean
rp_dataset_check(RpDataset *dataset, guint sequence_tokens, RpDatasetProgress progress,
                 gpointer user_data, RpDatasetSummary *summary, GError **error)
{
    g_return_val_if_fail(dataset && summary, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    RpDatasetSummary sum = {.n_samples = dataset->n_samples, .shortest_tokens = G_MAXUINT64};
    g_autofree guint32 *lengths = g_new(guint32, dataset->n_samples);
    for (guint64 i = 0; i < dataset->n_samples; i++) {
        RpSample sample = {.capacity = 0};
        if (progress != NULL && i % PROGRESS_SAMPLES == 0 &&
            !progress(i, dataset->n_samples, user_data)) {
            g_set_error(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "%s: the check was stopped",
                        dataset->name);
            return FALSE;
        }
        if (dataset->ops->length != NULL)
            sample.n_tokens = dataset->ops->length(dataset->source, i);
        else if (!dataset->ops->read(dataset->source, i, &sample, error))
            return FALSE;
        lengths[i] = (guint32)MIN(sample.n_tokens, G_MAXUINT32);
        sum.n_tokens += sample.n_tokens;
        sum.shortest_tokens = MIN(sum.shortest_tokens, sample.n_tokens);
        if (sample.n_tokens > sum.longest_tokens) {
            sum.longest_tokens = sample.n_tokens;
            sum.longest_index = i;
        }
        if (sequence_tokens > 0 && sample.n_tokens > sequence_tokens) {
            sum.n_truncated_samples++;
            sum.n_truncated_tokens += sample.n_tokens - sequence_tokens;
        }
    }
    if (progress != NULL)
        (void)progress(dataset->n_samples, dataset->n_samples, user_data);
    g_free(dataset->lengths);
    dataset->lengths = g_steal_pointer(&lengths);
    *summary = sum;
    return TRUE;
}

/* ---- fingerprints ---- */

/* FNV-1a, 64 bits */
static guint64
old_bytes(guint64 hash, const guint8 *bytes, gsize length)
{
    for (gsize i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * G_GUINT64_CONSTANT(0x100000001b3);
    return hash;
}

static guint64
old_number(guint64 hash, guint64 number)
{
    guint64 little = GUINT64_TO_LE(number);

    return old_bytes(hash, (const guint8 *)&little, sizeof little);
}

static gboolean
old_place(const RpDataBytes *bytes, guint64 at, gsize n, guint64 *hash, GError **error)
{
    g_autofree guint8 *scratch = NULL;
    const guint8 *place = rp_data_bytes_get(bytes, at, n, &scratch, error);

    if (place == NULL)
        return FALSE;
    *hash = old_bytes(*hash, place, n);
    return TRUE;
}

/* The old fingerprint is of the length and of the bytes at 256 places; of all bytes of a small
 * file. */
static gboolean
old_fingerprint(const char *kind, guint64 shape, const RpDataBytes *bytes, guint64 *fingerprint,
                GError **error)
{
    const guint64 length = rp_data_bytes_length(bytes);
    guint64 hash = G_GUINT64_CONSTANT(0xcbf29ce484222325);

    hash = old_bytes(hash, (const guint8 *)kind, strlen(kind));
    hash = old_number(hash, shape);
    hash = old_number(hash, length);
    if (length <= OLD_PLACES * OLD_PLACE_BYTES) {
        if (!old_place(bytes, 0, (gsize)length, &hash, error))
            return FALSE;
    } else {
        guint64 last = length - OLD_PLACE_BYTES;
        for (guint64 i = 0; i <= OLD_PLACES; i++) {
            /* not i × last / (places - 1), which could overflow */
            guint64 at = i < OLD_PLACES ? last / (OLD_PLACES - 1) * i : last;
            if (!old_place(bytes, at, OLD_PLACE_BYTES, &hash, error))
                return FALSE;
        }
    }
    *fingerprint = hash;
    return TRUE;
}

gboolean
rp_dataset_fingerprints(const char *kind, guint64 shape, const RpDataBytes *bytes,
                        RpFingerprints *fingerprints, GError **error)
{
    guint64 all, old;

    if (!rp_data_bytes_hash(bytes, &all, error) ||
        !old_fingerprint(kind, shape, bytes, &old, error))
        return FALSE;
    guint64 numbers[] = {GUINT64_TO_LE(all), GUINT64_TO_LE(shape)};
    guint64 seed = rp_hash64(kind, strlen(kind), 0);
    *fingerprints = (RpFingerprints){rp_hash64(numbers, sizeof numbers, seed), old};
    return TRUE;
}

/* Some samples of a dataset, in an order of their own, each once or several times. */

typedef struct {
    RpDataset *base;
    guint64 *indices;
} View;

static gboolean
view_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const View *view = source;

    return rp_dataset_read(view->base, view->indices[index], sample, error);
}

static char *
view_locate(gconstpointer source, guint64 index)
{
    const View *view = source;

    return rp_dataset_locate(view->base, view->indices[index]);
}

static const RpDataBytes *
view_bytes(gconstpointer source)
{
    return rp_dataset_bytes(((const View *)source)->base);
}

static void
view_free(gpointer source)
{
    View *view = source;

    rp_dataset_free(view->base);
    g_free(view->indices);
    g_free(view);
}

/* Where all have been read once. */
static guint64
view_length(gconstpointer source, guint64 index)
{
    const View *view = source;

    return rp_dataset_known_length(view->base, view->indices[index]);
}

RpDataset *
rp_dataset_new_view(RpDataset *base, const guint64 *indices, guint64 n)
{
    static const RpDatasetOps ops = {view_read, view_locate, view_bytes, view_free, NULL, NULL};
    static const RpDatasetOps known = {view_read, view_locate, view_bytes,
                                       view_free, view_length, NULL};

    g_return_val_if_fail(base != NULL && indices != NULL && n > 0, NULL);

    View *view = g_new0(View, 1);
    const RpFingerprints before = rp_dataset_fingerprint(base);
    const RpFingerprints prints = {rp_hash64(indices, n * sizeof *indices, before.all),
                                   rp_hash64(indices, n * sizeof *indices, before.sampled)};

    view->base = rp_dataset_ref(base);
    view->indices = g_memdup2(indices, n * sizeof *indices);
    return rp_dataset_new(rp_dataset_known_length(base, 0) > 0 ? &known : &ops, view,
                          rp_dataset_name(base), n, rp_dataset_vocabulary(base), &prints);
}
