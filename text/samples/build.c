#include "text/samples/samples.h"

#include <gio/gio.h>
#include <sys/stat.h>

#include "core/base/quote.h"

#define JOB_BYTES ((gsize)1 << 20)
#define MOST_THREADS 64

/* A record of a job, and the sample that it became: n tokens from @at_token on. */
typedef struct {
    gsize at, length;
    guint64 line;
    guint n; /* 0: none */
    RpSplit split;
} Record;

typedef struct {
    guint32 file;
    GString *text;
    GArray *records; /* Record */
    GArray *ids, *labels;
    guint64 n_skipped;
    GError *bad; /* the first: it ends the build, or was left out */
    gboolean fatal;
    gboolean done; /* under the lock */
} Job;

/* A sample of KTO, or the part of it that is known. */
typedef struct {
    GArray *ids,
        *labels;   /* its prompt and its answer; of the first sample the answer alone is needed */
    RpSplit split; /* tokens: of the prompt */
    guint32 file;
    guint64 line;
} Labelled;

typedef struct {
    const RpSamplesBuild *build;
    Labelled first, before; /* samples of KTO */
    guint64 n_labelled;     /* samples of KTO so far */
    GPtrArray *names;       /* names of files, for messages */
    RpCacheWriter *writer;
    GThreadPool *pool;
    GQueue jobs; /* in the order of the files */
    GMutex lock;
    GCond finished;
    guint most_jobs;
    guint64 n_skipped;
    GError *bad;
    guint64 done_bytes, total_bytes;
    guint mode; /* permissions that all files have */
} Builder;

static Job *
job_new(guint32 file)
{
    Job *job = g_new0(Job, 1);

    job->file = file;
    job->text = g_string_sized_new(JOB_BYTES);
    job->records = g_array_new(FALSE, FALSE, sizeof(Record));
    job->ids = g_array_new(FALSE, FALSE, sizeof(gint32));
    job->labels = g_array_new(FALSE, FALSE, sizeof(gint32));
    return job;
}

static void
job_free(Job *job)
{
    g_string_free(job->text, TRUE);
    g_array_unref(job->records);
    g_array_unref(job->ids);
    g_array_unref(job->labels);
    g_clear_error(&job->bad);
    g_free(job);
}

static void
encode(Builder *builder, Job *job)
{
    const RpSamplesBuild *build = builder->build;
    const char *name = g_ptr_array_index(builder->names, job->file);
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(gint32));
    g_autoptr(GArray) labels = g_array_new(FALSE, FALSE, sizeof(gint32));

    for (guint i = 0; i < job->records->len; i++) {
        Record *record = &g_array_index(job->records, Record, i);

        if (!rp_encoder_read(build->encoder, name, record->line, job->text->str + record->at,
                             record->length, ids, labels, &record->split,
                             job->bad == NULL ? &job->bad : NULL)) {
            job->n_skipped++;
            /* the checkpoint has no template: no record is to blame */
            job->fatal =
                !build->skip_bad || g_error_matches(job->bad, RP_CHAT_ERROR, RP_CHAT_ERROR_FILE);
            if (job->fatal)
                return;
            continue;
        }
        record->n = ids->len;
        g_array_append_vals(job->ids, ids->data, ids->len);
        g_array_append_vals(job->labels, labels->data, labels->len);
    }
}

static void
run_job(gpointer data, gpointer user_data)
{
    Job *job = data;
    Builder *builder = user_data;

    encode(builder, job);
    g_mutex_lock(&builder->lock);
    job->done = TRUE;
    g_cond_broadcast(&builder->finished);
    g_mutex_unlock(&builder->lock);
}

static void
labelled_set(Labelled *to, const gint32 *ids, const gint32 *labels, const Record *record,
             guint32 file)
{
    if (to->ids == NULL) {
        to->ids = g_array_new(FALSE, FALSE, sizeof(gint32));
        to->labels = g_array_new(FALSE, FALSE, sizeof(gint32));
    }
    g_array_set_size(to->ids, 0);
    g_array_set_size(to->labels, 0);
    g_array_append_vals(to->ids, ids, record->n);
    g_array_append_vals(to->labels, labels, record->n);
    to->split = record->split;
    to->file = file;
    to->line = record->line;
}

static void
labelled_clear(Labelled *labelled)
{
    g_clear_pointer(&labelled->ids, g_array_unref);
    g_clear_pointer(&labelled->labels, g_array_unref);
}

/* Writes the sample before, now that another's answer is known: its prompt again, and that answer. */
static gboolean
write_labelled(Builder *builder, const gint32 *ids, const gint32 *labels, guint n, guint n_prompt,
               GError **error)
{
    Labelled *before = &builder->before;
    const RpSplit split = {before->ids->len, before->split.answer};

    for (guint i = 0; i < before->split.tokens; i++) {
        const gint32 id = g_array_index(before->ids, gint32, i);
        const gint32 label = RP_LABEL_MASKED;

        g_array_append_val(before->ids, id);
        g_array_append_val(before->labels, label);
    }
    g_array_append_vals(before->ids, ids + n_prompt, n - n_prompt);
    g_array_append_vals(before->labels, labels + n_prompt, n - n_prompt);
    return rp_cache_writer_add(builder->writer, &g_array_index(before->ids, gint32, 0),
                               &g_array_index(before->labels, gint32, 0), before->ids->len, split,
                               before->file, before->line, error);
}

static gboolean
write_sample(Builder *builder, const gint32 *ids, const gint32 *labels, const Record *record,
             guint32 file, GError **error)
{
    const RpAnswerKind answer = record->split.answer;

    if (answer != RP_ANSWER_DESIRABLE && answer != RP_ANSWER_UNDESIRABLE)
        return rp_cache_writer_add(builder->writer, ids, labels, record->n, record->split, file,
                                   record->line, error);
    if (builder->n_labelled > 0 &&
        !write_labelled(builder, ids, labels, record->n, record->split.tokens, error))
        return FALSE;
    if (builder->n_labelled++ == 0)
        labelled_set(&builder->first, ids, labels, record, file);
    labelled_set(&builder->before, ids, labels, record, file);
    return TRUE;
}

/* The last sample of KTO has the first one's answer. */
static gboolean
write_last(Builder *builder, GError **error)
{
    const Labelled *first = &builder->first;

    if (builder->n_labelled == 0)
        return TRUE;
    if (builder->n_labelled == 1)
        return rp_fail(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_NOTHING,
                       "expected at least two labelled answers, as the KL term of kto puts one "
                       "behind the prompt of the other, found one");
    return write_labelled(builder, &g_array_index(first->ids, gint32, 0),
                          &g_array_index(first->labels, gint32, 0), first->ids->len,
                          first->split.tokens, error);
}

/* Writes the oldest job's samples, once it is done. */
static gboolean
write_oldest(Builder *builder, GError **error)
{
    Job *job = g_queue_peek_head(&builder->jobs);
    gsize at = 0;
    gboolean written = TRUE;

    g_mutex_lock(&builder->lock);
    while (!job->done)
        g_cond_wait(&builder->finished, &builder->lock);
    g_mutex_unlock(&builder->lock);
    (void)g_queue_pop_head(&builder->jobs);
    builder->n_skipped += job->n_skipped;
    if (job->fatal) {
        g_propagate_error(error, g_steal_pointer(&job->bad));
        written = FALSE;
    }
    if (builder->bad == NULL)
        builder->bad = g_steal_pointer(&job->bad);
    for (guint i = 0; i < job->records->len && written; i++) {
        const Record *record = &g_array_index(job->records, Record, i);

        if (record->n == 0)
            continue;
        written = write_sample(builder, &g_array_index(job->ids, gint32, at),
                               &g_array_index(job->labels, gint32, at), record, job->file, error);
        at += record->n;
    }
    job_free(job);
    return written;
}

static gboolean
push_job(Builder *builder, Job *job, GError **error)
{
    g_queue_push_tail(&builder->jobs, job);
    g_thread_pool_push(builder->pool, job, NULL);
    return builder->jobs.length < builder->most_jobs || write_oldest(builder, error);
}

static gboolean
show(const Builder *builder, guint64 done, GError **error)
{
    const RpSamplesBuild *build = builder->build;

    if (build->progress == NULL || build->progress(done, builder->total_bytes, build->user_data))
        return TRUE;
    return rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "reading the data was stopped");
}

/* As many records as fill a job, by their text and by the memory that each needs even if it is
 * empty. */
static gboolean
read_job(RpRecords *records, Job *job, GError **error)
{
    while (job->text->len + job->records->len * sizeof(Record) < JOB_BYTES) {
        g_autoptr(GString) text = g_string_new(NULL);
        Record record = {.at = job->text->len};
        gboolean found;

        if (!rp_records_next(records, text, &record.line, &found, error))
            return FALSE;
        if (!found)
            return TRUE;
        record.length = text->len;
        g_string_append_len(job->text, text->str, (gssize)text->len);
        g_array_append_val(job->records, record);
    }
    return TRUE;
}

static gboolean
read_file(Builder *builder, guint32 file, GError **error)
{
    g_autoptr(RpRecords) records = rp_records_open(builder->build->paths[file], error);

    for (gboolean more = records != NULL; more;) {
        Job *job = job_new(file);

        if (!read_job(records, job, error)) {
            job_free(job);
            return FALSE;
        }
        more = job->records->len > 0;
        if (!more)
            job_free(job);
        else if (!push_job(builder, job, error) ||
                 !show(builder, builder->done_bytes + rp_records_offset(records), error))
            return FALSE;
    }
    if (records != NULL)
        builder->done_bytes += rp_records_offset(records);
    return records != NULL;
}

static gboolean
build_all(Builder *builder, RpCacheHeader *header, GError **error)
{
    for (guint32 file = 0; builder->build->paths[file] != NULL; file++)
        if (!read_file(builder, file, error))
            return FALSE;
    while (builder->jobs.length > 0)
        if (!write_oldest(builder, error))
            return FALSE;
    if (!write_last(builder, error))
        return FALSE;
    if (rp_cache_writer_n_learned(builder->writer) == 0)
        return rp_fail(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_NOTHING,
                       "expected a sample of which something is learned, found none%s%s",
                       builder->bad != NULL ? "; the first record that was left out: " : "",
                       builder->bad != NULL ? builder->bad->message : "");
    return rp_cache_writer_finish(builder->writer, builder->n_skipped, header, error);
}

static void
list_files(Builder *builder)
{
    for (const char *const *path = builder->build->paths; *path != NULL; path++) {
        struct stat status;

        g_ptr_array_add(builder->names, rp_display_name(*path));
        if (stat(*path, &status) != 0)
            continue;
        builder->total_bytes += (guint64)status.st_size;
        builder->mode &= status.st_mode | 0600;
    }
}

gboolean
rp_samples_build(const RpSamplesBuild *build, const char *path, guint64 key, RpCacheHeader *header,
                 char **bad, GError **error)
{
    const guint threads = build->threads > 0 ? build->threads : g_get_num_processors();
    Builder builder = {.build = build, .most_jobs = 2 * MIN(threads, MOST_THREADS), .mode = 0666};

    builder.names = g_ptr_array_new_with_free_func(g_free);
    list_files(&builder);
    builder.writer = rp_cache_writer_new(path, key, builder.mode, error);
    if (builder.writer == NULL) {
        g_ptr_array_unref(builder.names);
        return FALSE;
    }
    g_mutex_init(&builder.lock);
    g_cond_init(&builder.finished);
    builder.pool =
        g_thread_pool_new(run_job, &builder, (gint)MIN(threads, MOST_THREADS), FALSE, NULL);
    gboolean built = build_all(&builder, header, error);
    g_thread_pool_free(builder.pool, FALSE, TRUE); /* waits for running tasks */
    g_queue_clear_full(&builder.jobs, (GDestroyNotify)job_free);
    if (bad != NULL)
        *bad = built && builder.bad != NULL ? g_strdup(builder.bad->message) : NULL;
    labelled_clear(&builder.first);
    labelled_clear(&builder.before);
    g_clear_error(&builder.bad);
    g_cond_clear(&builder.finished);
    g_mutex_clear(&builder.lock);
    g_ptr_array_unref(builder.names);
    rp_cache_writer_free(builder.writer);
    return built;
}
