/* The data of a run: files become samples, read once before the first step. */
#include "run/train/private.h"

#include <errno.h>
#include <glob.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/quote.h"
#include "exec/data/pack.h"
#include "run/train/train.h"
#include "text/samples/samples.h"

#define CACHE_FOLDER ".roundpipe"
/* The version of how samples are made of records: one more whenever they become others. */
#define ENCODING 1

void
rp_run_samples_clear(RpRunSamples *samples)
{
    g_clear_pointer(&samples->train, rp_dataset_free);
    g_clear_pointer(&samples->validation, rp_dataset_free);
    g_clear_pointer(&samples->cache, g_free);
    g_clear_pointer(&samples->bad, g_free);
}

/* ---- files ---- */

static gboolean
add_folder(GPtrArray *files, const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, error);
    const guint before = files->len;

    for (guint i = 0; names != NULL && i < names->len; i++)
        if (rp_records_can_read(g_ptr_array_index(names, i)))
            g_ptr_array_add(files, g_build_filename(path, g_ptr_array_index(names, i), NULL));
    if (names == NULL || files->len > before)
        return names != NULL;
    g_autofree char *shown = rp_display_name(path);
    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
        "%s: expected files whose names end in .jsonl or .json, perhaps with .gz or .zst "
        "behind it, found none",
        shown);
}

static gboolean
add_pattern(GPtrArray *files, const char *pattern, GError **error)
{
    glob_t found = {0};
    const int status = glob(pattern, 0, NULL, &found);

    for (gsize i = 0; status == 0 && i < found.gl_pathc; i++)
        g_ptr_array_add(files, g_strdup(found.gl_pathv[i]));
    globfree(&found);
    if (status == 0)
        return TRUE;
    g_autofree char *shown = rp_display_name(pattern);
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "%s: expected a pattern of files, found %s", shown,
                   status == GLOB_NOMATCH ? "none that it matches" : "that they cannot be read");
}

static gboolean
add_word(GPtrArray *files, const char *word, GError **error)
{
    if (g_file_test(word, G_FILE_TEST_IS_DIR))
        return add_folder(files, word, error);
    if (!g_file_test(word, G_FILE_TEST_EXISTS) && strpbrk(word, "*?[") != NULL)
        return add_pattern(files, word, error);
    g_ptr_array_add(files, g_strdup(word));
    return TRUE;
}

/* Words with commas between; --set has them in brackets. (transfer full) */
static char **
list_words(const char *list)
{
    const gsize n = strlen(list);
    const gboolean brackets = n > 1 && list[0] == '[' && list[n - 1] == ']';
    g_autofree char *bare = g_strndup(list + brackets, n - 2 * (gsize)brackets);

    return g_strsplit(bare, ",", -1);
}

char **
rp_run_data_files(const char *data, GArray *groups, GError **error)
{
    const gboolean exists = g_file_test(data, G_FILE_TEST_EXISTS); /* perhaps with a comma */
    g_auto(GStrv) words = exists ? g_strsplit(data, "\n", -1) : list_words(data);
    g_autoptr(GPtrArray) files = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; words[i] != NULL; i++) {
        const guint before = files->len;

        if (!add_word(files, g_strstrip(words[i]), error))
            return NULL;
        for (guint f = before; f < files->len && groups != NULL; f++)
            g_array_append_val(groups, i);
    }
    g_ptr_array_add(files, NULL);
    return (char **)g_ptr_array_steal(files, NULL);
}

/* ---- what the cache follows from ---- */

static gboolean
hash_file(const char *path, guint64 *hash, GError **error)
{
    g_autoptr(RpDataBytes) bytes = rp_data_bytes_open(path, error);

    return bytes != NULL && rp_data_bytes_hash(bytes, hash, error);
}

static void
add_to_key(guint64 *key, guint64 number)
{
    const guint64 numbers[] = {GUINT64_TO_LE(*key), GUINT64_TO_LE(number)};

    *key = rp_hash64(numbers, sizeof numbers, 0);
}

double
rp_train_aux_loss(const RpRunSpec *run, const RpModel *model)
{
    return run->router_aux_loss < 0 ? model->router_aux_loss : run->router_aux_loss;
}

/* Whether the answers of a pair stand behind one prompt: where a token then sees the same as with a prompt for each,
 * by its position alone. Noise and dropout would be those of both answers, and the auxiliary loss counts tokens. */
static gboolean
shares_prompts(const RpRunSpec *run, const RpModel *model)
{
    if (!rp_objective_info((RpObjective)run->objective)->has_pairs || run->lora.dropout > 0 ||
        run->neftune_alpha > 0 || (model->experts > 1 && rp_train_aux_loss(run, model) > 0))
        return FALSE;
    for (guint b = 0; b < model->blocks; b++) {
        const guint window = rp_model_block_window(model, b);

        if (rp_model_block_is_delta(model, b) || (window > 0 && window < run->sequence_length))
            return FALSE;
    }
    return TRUE;
}

static gboolean
make_key(const RpSamplesSource *source, char *const *files, const RpChat *chat, guint64 *key,
         GError **error)
{
    guint64 hash;

    *key = ENCODING;
    for (guint i = 0; files[i] != NULL; i++) {
        if (!hash_file(files[i], &hash, error))
            return FALSE;
        add_to_key(key, hash);
    }
    add_to_key(key, source->config->vocab);
    add_to_key(key, source->run->skip_bad_samples != 0);
    if (source->run->objective != RP_OBJECTIVE_SFT) /* samples of pairs, or of labelled answers */
        add_to_key(key, rp_objective_info((RpObjective)source->run->objective)->has_pairs +
                            shares_prompts(source->run, source->config));
    if (chat == NULL)
        return TRUE;
    g_autofree char *tokenizer = g_build_filename(source->model, "tokenizer.json", NULL);

    if (!hash_file(tokenizer, &hash, error))
        return FALSE;
    add_to_key(key, hash);
    add_to_key(key, rp_chat_fingerprint(chat));
    return TRUE;
}

/* ---- the cache ---- */

/* Whether the first record of the first file is text. */
static gboolean
needs_tokenizer(const char *path, RpObjective objective, gboolean *needs, GError **error)
{
    g_autoptr(RpRecords) records = rp_records_open(path, error);
    g_autoptr(GString) text = g_string_new(NULL);
    guint64 line;
    gboolean found;

    if (records == NULL || !rp_records_next(records, text, &line, &found, error))
        return FALSE;
    *needs = found && rp_record_needs_tokenizer(text->str, text->len, objective);
    return TRUE;
}

static gboolean
show(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    RP_RUN_TELL(events, progress, "making samples", done, MAX(1, total));
    return TRUE;
}

static char *
cache_path(const RpSamplesSource *source, const char *first, guint64 key)
{
    g_autofree char *beside = g_path_get_dirname(first);
    g_autofree char *folder = source->run->data_cache != NULL
                                  ? g_strdup(source->run->data_cache)
                                  : g_build_filename(beside, CACHE_FOLDER, NULL);
    g_autofree char *name = g_strdup_printf("samples-%016" G_GINT64_MODIFIER "x.bin", key);

    return g_build_filename(folder, name, NULL);
}

static gboolean
build(const RpSamplesSource *source, char *const *files, const RpEncoder *encoder, guint64 key,
      const RpRunEvents *events, RpRunSamples *samples, GError **error)
{
    const RpSamplesBuild how = {.paths = (const char *const *)files,
                                .encoder = encoder,
                                .skip_bad = source->run->skip_bad_samples,
                                .progress = events != NULL ? show : NULL,
                                .user_data = (gpointer)events};
    RpCacheHeader header;
    const gboolean built =
        rp_samples_build(&how, samples->cache, key, &header, &samples->bad, error);

    if (events != NULL)
        RP_RUN_TELL(events, progress, "making samples", 0, 0);
    if (!built && error != NULL && (*error)->domain == G_FILE_ERROR &&
        source->run->data_cache == NULL) {
        char *message = g_strdup_printf("%s (data_cache names another directory for samples)",
                                        (*error)->message);
        g_free((*error)->message);
        (*error)->message = message;
    }
    return built;
}

static RpDataset *
open_cache(const RpSamplesSource *source, char *const *files, gboolean texts,
           const RpRunEvents *events, RpRunSamples *samples, GError **error)
{
    g_autoptr(RpTokenizer) tokenizer = NULL;
    g_autoptr(RpChat) chat = NULL;
    RpEncoderOptions options = {.vocabulary = source->config->vocab,
                                .objective = (RpObjective)source->run->objective,
                                .shares = shares_prompts(source->run, source->config)};
    guint64 key;

    if (texts) {
        const RpChatOptions how = {.train_on = (RpTrainOn)source->run->train_on,
                                   .template_file = source->run->chat_template};

        if (source->model == NULL) {
            g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_NO_MODEL,
                        "%s: expected records of input_ids, found text, which needs a model's "
                        "tokenizer",
                        files[0]);
            return NULL;
        }
        tokenizer = rp_tokenizer_open(source->model, error);
        chat = tokenizer != NULL ? rp_chat_open(source->model, tokenizer, &how, error) : NULL;
        if (chat == NULL)
            return NULL;
        options.chat = chat;
    }
    if (!make_key(source, files, chat, &key, error))
        return NULL;
    samples->cache = cache_path(source, files[0], key);
    const char *const *names = (const char *const *)files;
    RpDataset *dataset = g_file_test(samples->cache, G_FILE_TEST_EXISTS)
                             ? rp_dataset_open_cache(samples->cache, key, source->run->data, names,
                                                     options.vocabulary, &samples->header, NULL)
                             : NULL;

    samples->reused = dataset != NULL;
    if (dataset != NULL)
        return dataset;
    g_autoptr(RpEncoder) encoder = rp_encoder_new(&options);

    return build(source, files, encoder, key, events, samples, error)
               ? rp_dataset_open_cache(samples->cache, key, source->run->data, names,
                                       options.vocabulary, &samples->header, error)
               : NULL;
}

/* ---- weights and split ---- */

/* A number for each word of the data. %NULL: none is given. */
static gboolean
read_weights(const RpSamplesSource *source, guint n, GArray *weights, GError **error)
{
    const char *given = source->run->data_weights;
    g_auto(GStrv) words = given != NULL ? list_words(given) : NULL;

    for (guint i = 0; words != NULL && words[i] != NULL; i++) {
        char *end = NULL;
        const char *word = g_strstrip(words[i]);
        const double weight = g_ascii_strtod(word, &end);

        if (end == word || *end != '\0' || !(weight > 0 && weight <= 1000))
            return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                           "data_weights: expected numbers above 0 and up to 1000, found \"%s\"",
                           word);
        g_array_append_val(weights, weight);
    }
    if (given == NULL || weights->len == n)
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "data_weights: expected %u numbers, one for each of data, found %u", n,
                   weights->len);
}

/* Samples of @indices of a group: whole times all of them, and a part once more. */
static void
add_times(GArray *to, const GArray *indices, double weight)
{
    const guint64 n = indices->len;
    const guint64 part = (guint64)((weight - (double)(guint64)weight) * (double)n + 0.5);
    RpOrder order;

    for (guint64 t = 0; t < (guint64)weight; t++)
        g_array_append_vals(to, indices->data, indices->len);
    if (part == 0)
        return;
    rp_order_init(&order, n, TRUE, 0, 0);
    for (guint64 i = 0; i < part; i++) {
        const guint64 index = g_array_index(indices, guint64, rp_order_sample(&order, i));
        g_array_append_val(to, index);
    }
}

/* Divides samples: of each so many, of a shuffle by the seed, are validated. */
static void
divide(const RpSamplesSource *source, const RpDataset *all, GArray *train, GArray *validation)
{
    const guint64 n = rp_dataset_n_samples(all);
    const guint64 n_validated =
        source->run->eval.split > 0
            ? MIN(MAX(1, (guint64)(source->run->eval.split * (double)n + 0.5)), n)
            : 0;
    g_autofree gboolean *validated = g_new0(gboolean, n);
    RpOrder order;

    rp_order_init(&order, n, TRUE, (guint64)source->run->seed, G_MAXUINT64);
    for (guint64 i = 0; i < n_validated; i++)
        validated[rp_order_sample(&order, i)] = TRUE;
    for (guint64 i = 0; i < n; i++)
        g_array_append_val(validated[i] ? validation : train, i);
}

static gboolean
weigh(RpDataset *all, const GArray *groups, const GArray *weights, GArray *train)
{
    g_autoptr(GArray) weighed = g_array_new(FALSE, FALSE, sizeof(guint64));

    for (guint g = 0; g < weights->len; g++) {
        g_autoptr(GArray) own = g_array_new(FALSE, FALSE, sizeof(guint64));

        for (guint i = 0; i < train->len; i++) {
            const guint64 index = g_array_index(train, guint64, i);
            const guint file = rp_dataset_file(all, index);

            if (g_array_index(groups, guint, file) == g)
                g_array_append_val(own, index);
        }
        add_times(weighed, own, g_array_index(weights, double, g));
    }
    g_array_set_size(train, 0);
    g_array_append_vals(train, weighed->data, weighed->len);
    return train->len > 0;
}

static gboolean
take_parts(const RpSamplesSource *source, RpDataset *all, const GArray *groups,
           const GArray *weights, RpRunSamples *samples, GError **error)
{
    g_autoptr(GArray) train = g_array_new(FALSE, FALSE, sizeof(guint64));
    g_autoptr(GArray) validation = g_array_new(FALSE, FALSE, sizeof(guint64));

    if (weights->len == 0 && source->run->eval.split <= 0) {
        samples->train = rp_dataset_ref(all);
        return TRUE;
    }
    divide(source, all, train, validation);
    if ((weights->len > 0 && !weigh(all, groups, weights, train)) || train->len == 0)
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "expected a sample to train on beside those of eval.split, found %" G_GUINT64_FORMAT
            " in all",
            rp_dataset_n_samples(all));
    samples->train = rp_dataset_new_view(all, (guint64 *)(void *)train->data, train->len);
    if (validation->len > 0)
        samples->validation =
            rp_dataset_new_view(all, (guint64 *)(void *)validation->data, validation->len);
    return TRUE;
}

/* A file of ids alone is read as it is. */
static RpDataset *
open_files(const RpSamplesSource *source, char *const *files, gboolean weighed,
           const RpRunEvents *events, RpRunSamples *samples, GError **error)
{
    const gboolean preference = source->run->objective != RP_OBJECTIVE_SFT;
    const gboolean one = files[1] == NULL && !weighed && !preference;
    g_autofree char *hint = rp_records_can_read(files[0]) ? NULL : rp_records_hint(files[0]);
    gboolean texts = FALSE;

    if (hint != NULL) {
        g_autofree char *shown = rp_display_name(files[0]);

        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%s: expected a .jsonl, .json or .csv file; %s", shown, hint);
        return NULL;
    }
    if (preference && !rp_records_can_read(files[0])) {
        g_autofree char *shown = rp_display_name(files[0]);

        g_set_error(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "%s: expected records of preferences (.jsonl, .json or .csv) for objective: %s, "
            "found another file",
            shown, rp_objective_info((RpObjective)source->run->objective)->name);
        return NULL;
    }
    if (source->config->custom != NULL && (!one || !g_str_has_suffix(files[0], ".bin"))) {
        rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                "%s: expected one file of 32-bit words whose name ends in .bin, as %s reads it",
                source->run->data, source->config->custom->name);
        return NULL;
    }
    if (one && !rp_records_can_read(files[0]))
        return rp_dataset_open(files[0], rp_model_words(source->config),
                               (guint)source->run->sequence_length, error);
    if (!needs_tokenizer(files[0], (RpObjective)source->run->objective, &texts, error))
        return NULL;
    if (one && !texts && g_str_has_suffix(files[0], ".jsonl"))
        return rp_dataset_open(files[0], rp_model_words(source->config),
                               (guint)source->run->sequence_length, error);
    return open_cache(source, files, texts, events, samples, error);
}

gboolean
rp_run_samples_open(const RpSamplesSource *source, const RpRunEvents *events, RpRunSamples *samples,
                    GError **error)
{
    g_autoptr(GArray) groups = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(double));
    g_auto(GStrv) files = rp_run_data_files(source->run->data, groups, error);
    gboolean opened = FALSE;
    RpDataset *all = NULL;

    *samples = (RpRunSamples){0};
    if (files != NULL &&
        read_weights(source, g_array_index(groups, guint, groups->len - 1) + 1, weights, error))
        all = open_files(source, files, weights->len > 0, events, samples, error);
    if (all != NULL)
        opened = take_parts(source, all, groups, weights, samples, error);
    rp_dataset_free(all);
    if (opened)
        return TRUE;
    g_prefix_error(error, "%s: ", source->key);
    rp_run_samples_clear(samples);
    return FALSE;
}

/* ---- a run: how its samples fill sequences ---- */

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

/* A preference whose prompt fills its share of a sequence has an answer without tokens: one of the samples that are cut,
 * since nothing is dropped of a validation. */
static gboolean
check_cut(const RpTrainJob *job, const char *key, const RpDataset *dataset,
          const RpDatasetSummary *data, gboolean drop, GError **error)
{
    const guint32 most = (guint32)job->run->sequence_length;
    guint64 n = 0, first = 0;
    g_autofree gint32 *ids = NULL, *labels = NULL;

    if (job->run->objective == RP_OBJECTIVE_SFT || data->n_truncated_samples == 0 || drop)
        return TRUE;
    ids = g_new(gint32, data->longest_tokens);
    labels = g_new(gint32, data->longest_tokens);
    for (guint64 i = 0; i < data->n_samples; i++) {
        RpSample sample = {
            .input_ids = ids, .labels = labels, .capacity = (gsize)data->longest_tokens};

        if (!rp_dataset_read(dataset, i, &sample, error))
            return FALSE;
        if (sample.n_tokens <= most || rp_batch_cut_is_learned(&sample, most))
            continue;
        if (n++ == 0)
            first = i;
    }
    if (n == 0)
        return TRUE;
    g_autofree char *place = rp_dataset_locate(dataset, first);

    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                   "%s: %s: expected a prompt that leaves space for both answers in %u tokens "
                   "(sequence_length), found a longer one; %" G_GUINT64_FORMAT
                   " of %" G_GUINT64_FORMAT " preferences have such: raise sequence_length%s",
                   key, place, most, n, data->n_samples,
                   dataset == job->dataset ? ", or set excess_length_strategy to drop" : "");
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

/* Targets of the samples' tokens, and shared ones, of some samples all over the data. */
static gboolean
sample_targets(const RpTrainJob *job, double *targets, double *shared, GError **error)
{
    const guint64 n = job->summary.n_samples, step = MAX(1, n / SAMPLED);
    const gsize space = (gsize)job->run->sequence_length;
    g_autofree gint32 *ids = g_new(gint32, space), *labels = g_new(gint32, space);
    guint64 n_tokens = 0, n_targets = 0, n_shared = 0;

    for (guint64 i = 0; i < n; i += step) {
        RpSample sample = {.input_ids = ids, .labels = labels, .capacity = space};

        if (!rp_dataset_read(job->dataset, i, &sample, error))
            return FALSE;
        if (job->batcher.drop_long && sample.n_tokens > space)
            continue;
        const gsize length = (gsize)MIN(sample.n_tokens, space);
        n_tokens += length;
        n_shared += MIN(sample.split.shared, length);
        for (gsize t = 1; t < length; t++)
            n_targets += labels[t] != RP_LABEL_MASKED;
    }
    *targets = n_tokens > 0 ? (double)n_targets / (double)n_tokens : 1;
    *shared = (double)n_shared / (double)MAX(1, n_tokens);
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
    if (!sample_targets(job, &targets, &few.shared, error))
        return FALSE;
    job->useful = job->useful_unpacked = useful_unpacked(job);
    job->targets = job->config.custom != NULL ? 1 : job->useful * targets;
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
    if (samples.cache != NULL && job->samples_folder == NULL)
        job->samples_folder = g_path_get_dirname(samples.cache);
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
    const gboolean preference = run->objective != RP_OBJECTIVE_SFT;
    const char *validated = run->eval.data != NULL ? "eval.data" : "eval.split";

    if (absent)
        rp_run_say(job->events, "note", "data: no file %s: planned for full sequences", run->data);
    else if (!open_all(job, error) ||
             !check_data(job, "data", job->dataset, &job->summary, error) ||
             !check_lengths(job, error) ||
             !check_cut(job, "data", job->dataset, &job->summary,
                        run->excess_length_choice == RP_RUN_EXCESS_DROP, error) ||
             (job->evaluation.dataset != NULL &&
              (!check_data(job, validated, job->evaluation.dataset, &job->evaluation.summary,
                           error) ||
               !check_cut(job, validated, job->evaluation.dataset, &job->evaluation.summary, FALSE,
                          error))))
        return FALSE;
    job->batcher = (RpBatcherOptions){
        .micro_batches = (guint)run->micro_batches,
        .sequences = (guint)run->micro_batch_size,
        .tokens = tokens,
        .labels = rp_model_labels(&job->config),
        .pad_id = pad_id(&job->config),
        .shuffle = run->shuffle != 0,
        .seed = (guint64)run->seed,
        .epoch_end = RP_EPOCH_END_CONTINUE,
        .preference = preference,
        .packing = preference ? TRUE
                   : run->packing_choice == RP_RUN_PACKING_AUTO
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

double
rp_train_job_epochs(const RpTrainJob *job)
{
    const RpRunSpec *run = job->run;
    /* without packing as many sequences as samples */
    const double sequences = (double)run->steps * (double)run->gradient_accumulation_steps *
                             (double)run->micro_batches * (double)run->micro_batch_size;
    const guint64 left_out = job->batcher.drop_long ? job->summary.n_truncated_samples : 0;

    return job->dataset == NULL ? 0
                                : sequences * job->useful / job->useful_unpacked /
                                      (double)MAX(1, job->summary.n_samples - left_out);
}
