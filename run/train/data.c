/* The data of a run before its first step: read once, and how they fill sequences. */
#include "run/train/private.h"

#include <string.h>

#include "run/train/train.h"

/* Sequences from whose samples the useful share of a packed run is known, and how many are filled at
 * once. */
#define SURVEYED 4096
#define MOST_AT_ONCE 64
/* Samples whose targets are counted for the prediction. */
#define SAMPLED 1000

static gboolean
show_samples(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    RP_RUN_TELL(events, progress, "reading data", done, total);
    return TRUE;
}

/* The token that fills up a short sample. Nothing is learned there. */
static gint32
pad_id(const RpModel *config)
{
    gint64 id = config->pad_id;

    if (id == RP_MODEL_NO_TOKEN && config->n_eos > 0)
        id = config->eos_ids[0];
    return id >= 0 && id < (gint64)config->vocab ? (gint32)id : 0;
}

static gboolean
check_lengths(const RpTrainJob *job, GError **error)
{
    const RpDatasetSummary *data = &job->summary;
    const RpRunSpec *run = job->run;

    if (data->n_truncated_samples == 0 || run->excess_length_choice == RP_RUN_EXCESS_TRUNCATE ||
        (run->excess_length_choice == RP_RUN_EXCESS_DROP &&
         data->n_truncated_samples < data->n_samples))
        return TRUE;
    g_autofree char *place = rp_dataset_locate(job->dataset, data->longest_index);

    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
        "data: %s: %s: expected at most %" G_GINT64_FORMAT
        " tokens (sequence_length), found %" G_GUINT64_FORMAT "; %" G_GUINT64_FORMAT
        " of %" G_GUINT64_FORMAT
        " samples are longer: raise sequence_length, or set excess_length_strategy to %s",
        rp_dataset_name(job->dataset), place, run->sequence_length, data->longest_tokens,
        data->n_truncated_samples, data->n_samples,
        data->n_truncated_samples < data->n_samples ? "truncate or drop" : "truncate");
}

/* Tokens that fill places of sequences, one sample a sequence. */
static double
useful_unpacked(const RpTrainJob *job)
{
    const RpDatasetSummary *data = &job->summary;
    const double s = (double)job->run->sequence_length;
    const double cut = (double)data->n_truncated_samples * s;
    const double all = (double)(data->n_tokens - data->n_truncated_tokens);

    if (!job->batcher.drop_long)
        return all / ((double)data->n_samples * s);
    return (all - cut) / ((double)(data->n_samples - data->n_truncated_samples) * s);
}

/* Targets of the samples' tokens, of some samples all over the data. */
static gboolean
sample_targets(const RpTrainJob *job, double *targets, GError **error)
{
    const guint64 n = job->summary.n_samples, step = MAX(1, n / SAMPLED);
    const gsize space = (gsize)job->run->sequence_length;
    g_autofree gint32 *ids = g_new(gint32, space), *labels = g_new(gint32, space);
    guint64 n_tokens = 0, n_targets = 0;

    for (guint64 i = 0; i < n; i += step) {
        RpSample sample = {.input_ids = ids, .labels = labels, .capacity = space};

        if (!rp_dataset_read(job->dataset, i, &sample, error))
            return FALSE;
        if (job->batcher.drop_long && sample.n_tokens > space)
            continue;
        const gsize length = (gsize)MIN(sample.n_tokens, space);
        n_tokens += length;
        for (gsize t = 1; t < length; t++)
            n_targets += labels[t] != RP_LABEL_MASKED;
    }
    *targets = n_tokens > 0 ? (double)n_targets / (double)n_tokens : 1;
    return TRUE;
}

static gboolean
survey(RpTrainJob *job, GError **error)
{
    double targets; /* of tokens of samples */

    RpBatcherOptions few = job->batcher;
    const RpDataState start = {.n_samples = job->summary.n_samples};
    RpPackingSurvey packed;

    if (job->dataset == NULL) {
        job->useful = job->useful_unpacked = job->targets = 1;
        job->network.packed_tokens = job->batcher.packing ? job->batcher.tokens : 0;
        return TRUE;
    }
    if (!sample_targets(job, &targets, error))
        return FALSE;
    job->useful = job->useful_unpacked = useful_unpacked(job);
    job->targets = job->useful * targets;
    if (!job->batcher.packing)
        return TRUE;
    few.micro_batches = 1;
    few.sequences = (guint)MIN((guint64)few.sequences * job->batcher.micro_batches, MOST_AT_ONCE);
    g_autoptr(RpPacker) packer = rp_packer_new(job->dataset, &few);
    if (!rp_packer_survey(packer, &start, SURVEYED / few.sequences, &packed, error))
        return FALSE;
    job->useful = packed.useful;
    job->targets = job->useful * targets;
    job->network.packed_tokens = packed.typical_tokens;
    return TRUE;
}

static gboolean
check_data(RpTrainJob *job, const char *key, RpDataset *dataset, RpDatasetSummary *summary,
           GError **error)
{
    const gboolean read = rp_dataset_check(dataset, (guint)job->run->sequence_length, show_samples,
                                           (gpointer)job->events, summary, error);

    RP_RUN_TELL(job->events, progress, "reading data", 0, 0);
    if (!read && dataset == job->evaluation.dataset)
        g_prefix_error(error, "%s: ", key);
    return read;
}

static void
tell_samples(const RpTrainJob *job, const char *key, const RpRunSamples *samples)
{
    const RpCacheHeader *header = &samples->header;

    if (header->n_skipped > 0)
        rp_run_say(job->events, "warning",
                   "%s: %" G_GUINT64_FORMAT " bad record%s left out (skip_bad_samples)%s%s", key,
                   header->n_skipped, header->n_skipped == 1 ? "" : "s",
                   samples->bad != NULL ? "; the first: " : "",
                   samples->bad != NULL ? samples->bad : "");
    if (samples->cache != NULL)
        rp_run_say(job->events, "note", "%s: samples %s %s", key,
                   samples->reused ? "of" : "written to", samples->cache);
}

/* @validation: (out) (nullable): of eval.split */
static gboolean
open_samples(RpTrainJob *job, const RpSamplesSource *source, RpDataset **dataset,
             RpDataset **validation, GError **error)
{
    RpRunSamples samples;

    if (!rp_run_samples_open(source, job->events, &samples, error))
        return FALSE;
    tell_samples(job, source->key, &samples);
    *dataset = g_steal_pointer(&samples.train);
    if (validation != NULL)
        *validation = g_steal_pointer(&samples.validation);
    rp_run_samples_clear(&samples);
    return TRUE;
}

/* A dry run plans without: for sequences that are full, and where steps follow from them, for one. */
static gboolean
is_absent(const RpTrainJob *job)
{
    return job->dry && strpbrk(job->run->data, ",*?[") == NULL &&
           !g_file_test(job->run->data, G_FILE_TEST_EXISTS);
}

static gboolean
open_all(RpTrainJob *job, GError **error)
{
    RpRunSpec validated = *job->run;
    RpSamplesSource source = {job->run, "data", job->model_dir, &job->config};

    if (!open_samples(job, &source, &job->dataset, &job->evaluation.dataset, error))
        return FALSE;
    if (validated.eval.data == NULL)
        return TRUE;
    validated.data = validated.eval.data;
    validated.data_weights = NULL;
    validated.eval.split = 0;
    source.run = &validated;
    source.key = "eval.data";
    return open_samples(job, &source, &job->evaluation.dataset, NULL, error);
}

/* Steps that so many epochs take: all samples of the last may leave a step that is not full. */
static gboolean
count_steps(RpTrainJob *job, RpRunSpec *run, GError **error)
{
    g_autoptr(RpPacker) packer = rp_packer_new(job->dataset, &job->batcher);
    const RpDataState start = {.n_samples = job->summary.n_samples};
    const guint64 calls = (guint64)run->gradient_accumulation_steps;
    RpPackingSurvey all;

    if (!rp_packer_survey(packer, &start, G_MAXUINT64, &all, error))
        return FALSE;
    run->steps = (gint64)((all.iterations + calls - 1) / calls);
    return TRUE;
}

gboolean
rp_train_open_data(RpTrainJob *job, RpRunSpec *run, GError **error)
{
    const guint tokens = (guint)run->sequence_length;
    const gboolean absent = is_absent(job);

    if (absent)
        rp_run_say(job->events, "note", "data: no file %s: planned for full sequences", run->data);
    else if (!open_all(job, error) ||
             !check_data(job, "data", job->dataset, &job->summary, error) ||
             !check_lengths(job, error) ||
             (job->evaluation.dataset != NULL &&
              !check_data(job, run->eval.data != NULL ? "eval.data" : "eval.split",
                          job->evaluation.dataset, &job->evaluation.summary, error)))
        return FALSE;
    job->batcher = (RpBatcherOptions){
        .micro_batches = (guint)run->micro_batches,
        .sequences = (guint)run->micro_batch_size,
        .tokens = tokens,
        .pad_id = pad_id(&job->config),
        .shuffle = run->shuffle != 0,
        .seed = (guint64)run->seed,
        .epoch_end = RP_EPOCH_END_CONTINUE,
        .packing = run->packing_choice == RP_RUN_PACKING_AUTO
                       ? job->summary.shortest_tokens < tokens
                       : run->packing_choice == 2,
        .drop_long = run->excess_length_choice == RP_RUN_EXCESS_DROP,
        .epochs = (guint64)run->epochs,
        .parts = rp_train_n_servers(job),
        .part = job->servers != NULL ? rp_servers_rank(job->servers) : 0,
    };
    if (absent)
        run->steps = MAX(run->steps, 1);
    if (!survey(job, error) || (!absent && run->epochs > 0 && !count_steps(job, run, error)))
        return FALSE;
    if (!absent && run->optimizer.warmup_steps > run->steps)
        rp_run_say(job->events, "note",
                   "optimizer.warmup_steps %" G_GINT64_FORMAT
                   " is beyond the run's %" G_GINT64_FORMAT
                   " steps: the learning rate never reaches its peak",
                   run->optimizer.warmup_steps, run->steps);
    return TRUE;
}
