/*
 * The reference of a preference: what scores batches, and log-probabilities that are kept beside the data.
 *
 *   adapters, copy   next batches | scored by the reference | step | ...
 *   precomputed      all of the data scored before the first step, by the model as it begins -> file | steps
 *
 *   file   |magic|version|key|samples|hash|fp32 of sample 0's two documents|of sample 1's|...|
 *
 * All little-endian. The key is of everything that the numbers follow from, so that a file of another model or of other
 * data has another name. A file may be removed at any time.
 */
#include "run/train/private.h"

#include <gio/gio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/quote.h"
#include "exec/adapter/adapter.h"
#include "run/model.h"
#include "run/run-file.h"
#include "run/values.h"
#include "sim/scored.h"

#define MAGIC G_GUINT64_CONSTANT(0x6372656665727072) /* "rprefer" and "c" */
#define VERSION 1

typedef struct {
    guint64 magic, version, key, n_samples, hash;
} Header;

static guint64
mix(guint64 key, const void *bytes, gsize n)
{
    return rp_hash64(bytes, n, key);
}

static guint64
mix_number(guint64 key, guint64 number)
{
    const guint64 little = GUINT64_TO_LE(number);

    return mix(key, &little, sizeof little);
}

static guint64
mix_text(guint64 key, const char *text)
{
    return text != NULL ? mix(key, text, strlen(text)) : mix_number(key, 0);
}

gboolean
rp_train_reference_hash(const RpTrainJob *job, guint64 *hash, GError **error)
{
    const char *start = job->run->lora.start;
    guint64 of_adapters = 0;

    *hash = 0;
    if (job->run->preference.reference <= RP_REFERENCE_ADAPTERS)
        return TRUE; /* a checkpoint of adapters names its base itself */
    if (start != NULL) {
        g_autofree char *path = g_build_filename(start, RP_ADAPTER_TENSORS, NULL);
        g_autoptr(RpDataBytes) bytes = rp_data_bytes_open(path, error);

        if (bytes == NULL || !rp_data_bytes_hash(bytes, &of_adapters, error))
            return FALSE;
    }
    *hash = job->random ? mix_number(mix_text(VERSION, job->run->model), (guint64)job->run->seed)
                        : mix_text(VERSION, rp_weights_model_hash(job->weights));
    *hash = MAX(1, mix_number(*hash, of_adapters));
    return TRUE;
}

/* Numbers in other formats, and devices of another kind, give other last bits. */
static guint64
key_of(const RpTrainJob *job, guint64 reference, const RpDataset *dataset)
{
    const RpRunSpec *run = job->run;
    guint64 key = mix_number(reference, rp_dataset_fingerprint(dataset).all);

    key = mix_number(key, (guint64)run->sequence_length);
    key = mix_number(key, job->network.dtype);
    key = mix_number(key, (guint64)run->matmul_choice);
    key = mix_number(key, (guint64)run->half_sums);
    key = mix_text(key, rp_run_base_format(job->weights));
    return mix_text(key, run->device_ops->name);
}

static char *
path_of(const RpTrainJob *job, guint64 key)
{
    g_autofree char *name = g_strdup_printf("references-%016" G_GINT64_MODIFIER "x.bin", key);

    return g_build_filename(job->samples_folder, name, NULL);
}

/* Between a header and little-endian bytes; both ways are the same. */
static Header
swap_header(const void *bytes)
{
    guint64 numbers[sizeof(Header) / sizeof(guint64)];
    Header header;

    memcpy(numbers, bytes, sizeof numbers);
    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++)
        numbers[i] = GUINT64_FROM_LE(numbers[i]);
    memcpy(&header, numbers, sizeof header);
    return header;
}

/* Between @n floats and little-endian words, likewise. */
static void
swap_floats(void *to, const void *from, guint64 n)
{
    for (guint64 i = 0; i < n; i++) {
        guint32 word;

        memcpy(&word, (const guint8 *)from + i * sizeof word, sizeof word);
        word = GUINT32_FROM_LE(word);
        memcpy((guint8 *)to + i * sizeof word, &word, sizeof word);
    }
}

/* The header of a file with these little-endian words. */
static Header
make_header(guint64 key, guint64 n_samples, const void *words)
{
    Header header = {MAGIC, VERSION, key, n_samples, 0};
    const Header bytes = swap_header(&header);

    header.hash =
        mix(mix(0, &bytes, G_STRUCT_OFFSET(Header, hash)), words, 2 * n_samples * sizeof(float));
    return header;
}

/* Reads a file that is whole and of this key. Returns: (nullable) */
static float *
read_file(const RpTrainJob *job, const char *path, guint64 key, guint64 n_samples)
{
    const gsize length = sizeof(Header) + 2 * (gsize)n_samples * sizeof(float);
    g_autoptr(RpDataBytes) bytes = NULL;
    g_autofree guint8 *scratch = NULL;
    const guint8 *all = NULL;

    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return NULL;
    bytes = rp_data_bytes_open(path, NULL);
    if (bytes != NULL && rp_data_bytes_length(bytes) == length)
        all = rp_data_bytes_get(bytes, 0, length, &scratch, NULL);
    if (all != NULL) {
        const Header found = swap_header(all);
        const Header expected = make_header(key, n_samples, all + sizeof found);

        if (memcmp(&found, &expected, sizeof found) == 0) {
            float *references = g_new(float, 2 * n_samples);

            swap_floats(references, all + sizeof found, 2 * n_samples);
            return references;
        }
    }
    g_autofree char *shown = rp_display_name(path);
    rp_run_say(job->events, "warning",
               "%s: expected the reference's log-probabilities, found a damaged file: it is made "
               "anew",
               shown);
    return NULL;
}

/* A run that cannot keep them has them in memory. */
static void
write_file(const RpTrainJob *job, const char *path, guint64 key, guint64 n_samples,
           const float *references)
{
    const gsize n = 2 * (gsize)n_samples * sizeof(float);
    g_autofree guint8 *bytes = g_malloc(sizeof(Header) + n);
    g_autoptr(GError) problem = NULL;

    swap_floats(bytes + sizeof(Header), references, 2 * n_samples);
    const Header header = make_header(key, n_samples, bytes + sizeof(Header));
    const Header swapped = swap_header(&header);

    memcpy(bytes, &swapped, sizeof swapped);
    if (g_file_set_contents_full(path, (const char *)bytes, (gssize)(sizeof header + n),
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600,
                                 &problem))
        return;
    rp_run_say(job->events, "warning",
               "the reference's log-probabilities are not kept, and a resumed run makes them "
               "anew: %s",
               problem->message);
}

/* Batches of all samples, in their order. With several servers each scores all of them. */
static RpBatcherOptions
options_for(const RpTrainJob *job, const RpDataset *dataset)
{
    RpBatcherOptions once = job->batcher;

    once.micro_batches /= rp_train_n_servers(job);
    once.parts = once.part = 0;
    once.epochs = 1;
    once.shuffle = FALSE;
    once.drop_long = dataset == job->dataset && once.drop_long;
    return once;
}

typedef struct {
    RpBatcher *batcher;
    RpTokenBatch *batches[RP_SCORED_BATCHES];
    guint64 n_scored;
} Scoring;

static gboolean
score_some(RpTrainLoop *loop, Scoring *scoring, float *references, gboolean *more, GError **error)
{
    guint n = 0;

    for (*more = TRUE; n < RP_SCORED_BATCHES && *more;) {
        if (!rp_batcher_next(scoring->batcher, scoring->batches[n], error))
            return FALSE;
        *more = scoring->batches[n]->n_samples > 0;
        n += *more;
    }
    if (n == 0)
        return TRUE;
    if (!rp_trainer_score(loop->trainer, scoring->batches, n, FALSE, error))
        return FALSE;
    for (guint i = 0; i < n; i++) {
        rp_token_batch_get_references(scoring->batches[i], references);
        scoring->n_scored += scoring->batches[i]->n_samples;
    }
    return TRUE;
}

static gboolean
score(RpTrainLoop *loop, const RpDataset *dataset, float *references, GError **error)
{
    const RpTrainJob *job = loop->job;
    const RpBatcherOptions options = options_for(job, dataset);
    Scoring scoring = {.batcher = rp_batcher_new(dataset, &options, error)};
    gboolean more = TRUE, good = scoring.batcher != NULL;

    for (guint i = 0; i < RP_SCORED_BATCHES; i++)
        scoring.batches[i] = rp_token_batch_new(&options);
    while (good && more) {
        good = score_some(loop, &scoring, references, &more, error);
        RP_RUN_TELL(job->events, progress, "scoring the reference", scoring.n_scored,
                    rp_dataset_n_samples(dataset));
        if (good && rp_run_stop(job->events) != 0)
            good = rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED,
                           "the run was stopped while the reference was scored");
    }
    RP_RUN_TELL(job->events, progress, "scoring the reference", 0, 0);
    for (guint i = 0; i < RP_SCORED_BATCHES; i++)
        rp_token_batch_free(scoring.batches[i]);
    rp_batcher_free(scoring.batcher);
    return good;
}

static gboolean
find_for(RpTrainLoop *loop, RpDataset *dataset, GError **error)
{
    const RpTrainJob *job = loop->job;
    const guint64 n = rp_dataset_n_samples(dataset);
    const guint64 key = key_of(job, loop->reference, dataset);
    g_autofree char *path = path_of(job, key);
    float *kept = read_file(job, path, key, n);

    if (kept == NULL) {
        g_autofree float *references = g_new0(float, 2 * n);

        if (!score(loop, dataset, references, error))
            return FALSE;
        if (rp_train_is_first(job->servers))
            write_file(job, path, key, n, references);
        kept = g_steal_pointer(&references);
    }
    rp_dataset_set_references(dataset, kept);
    return TRUE;
}

gboolean
rp_train_loop_find_references(RpTrainLoop *loop, GError **error)
{
    const RpTrainJob *job = loop->job;

    if (!rp_train_reference_hash(job, &loop->reference, error))
        return FALSE;
    if (job->run->preference.reference != RP_REFERENCE_PRECOMPUTED)
        return TRUE;
    return find_for(loop, job->dataset, error) &&
           (job->evaluation.dataset == NULL || find_for(loop, job->evaluation.dataset, error));
}

gboolean
rp_train_scores(const RpTrainJob *job)
{
    return rp_reference_is_scored(job->run->preference.reference);
}

void
rp_train_take_reference(RpTrainJob *job, RpRunSpec *run, RpReference reference, const char *why)
{
    run->preference.reference = job->network.preference.reference = reference;
    job->reference_why = why;
}

void
rp_train_choose_reference(RpTrainJob *job, RpRunSpec *run, const char *earlier_run)
{
    g_autofree char *path =
        earlier_run != NULL ? g_build_filename(earlier_run, "run.yaml", NULL) : NULL;
    g_autoptr(RpRunSpec) earlier = path != NULL ? rp_run_file_load(path, NULL, NULL) : NULL;
    const char *why;
    /* epochs are whole, whatever a packing makes of them */
    RpReference reference =
        rp_run_choose_reference(run, run->epochs > 0 ? 1 : rp_train_job_epochs(job), &why);

    if (reference == RP_REFERENCE_NONE)
        return;
    if (run->reference_choice == RP_REFERENCE_NONE && earlier != NULL &&
        earlier->reference_choice != RP_REFERENCE_NONE) {
        reference = (RpReference)earlier->reference_choice;
        why = "as this run began";
    }
    rp_train_take_reference(job, run, reference, why);
}

void
rp_train_keep_reference(const RpTrainJob *job, RpRunSpec *run)
{
    if (job->reference_why == NULL || run->reference_choice != RP_REFERENCE_NONE)
        return;
    rp_run_value_set(rp_run_values_find(run->values, "reference"),
                     rp_reference_name(run->preference.reference), NULL, FALSE);
}

guint
rp_train_steps_together(const RpTrainJob *job)
{
    return rp_train_scores(job) ? rp_scored_together((guint)job->run->gradient_accumulation_steps)
                                : 1;
}

gboolean
rp_train_loop_score(RpTrainLoop *loop, GError **error)
{
    const guint calls = (guint)loop->job->run->gradient_accumulation_steps;

    if (!loop->scored && rp_train_scores(loop->job) &&
        !rp_trainer_score(loop->trainer, loop->batches, loop->n_read * calls, TRUE, error))
        return FALSE;
    loop->scored = TRUE;
    return TRUE;
}

gboolean
rp_train_loop_check_reference(const RpTrainLoop *loop, const char *checkpoint, GError **error)
{
    guint64 saved;

    if (loop->reference == 0)
        return TRUE;
    if (!rp_checkpoint_read_reference(checkpoint, &saved, error))
        return FALSE;
    if (saved == 0 || saved == loop->reference)
        return TRUE;
    return rp_fail(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_MISMATCH,
                   "%s: expected `model` as it was when the run began, since it is the reference "
                   "of %s, found another: restore it, or begin a new run with another output",
                   checkpoint, rp_objective_info(loop->job->run->preference.objective)->name);
}
