#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "exec/data/dataset.h"

#define KEY 42

typedef struct {
    char *directory, *path;
    RpDataset *dataset;
    RpCacheHeader header;
    GError *error;
} Fixture;

/* Sample i has i % 7 + 1 tokens from i on; of every fourth the first half is masked, every fifth has
 * other labels. */
static void
make_sample(guint i, gint32 *ids, gint32 *labels, guint32 *n)
{
    *n = i % 7 + 1;
    for (guint32 t = 0; t < *n; t++) {
        ids[t] = (gint32)((i + t) % 50);
        labels[t] = i % 5 == 4                 ? (gint32)((i + t + 1) % 50)
                    : i % 4 == 3 && t < *n / 2 ? RP_LABEL_MASKED
                                               : ids[t];
    }
}

#define N 100

static void
setup(Fixture *f)
{
    g_autoptr(RpCacheWriter) writer = NULL;

    f->directory = g_dir_make_tmp("test-cache-XXXXXX", NULL);
    f->path = g_build_filename(f->directory, "folder", "samples.bin", NULL);
    writer = rp_cache_writer_new(f->path, KEY, 0640, NULL);
    assert_non_null(writer);
    for (guint i = 0; i < N; i++) {
        gint32 ids[8], labels[8];
        guint32 n;

        make_sample(i, ids, labels, &n);
        assert_true(
            rp_cache_writer_add(writer, ids, labels, n, (RpSplit){0}, i / 60, i % 60, NULL));
    }
    assert_true(rp_cache_writer_finish(writer, 3, &f->header, NULL));
}

static void
teardown(Fixture *f)
{
    g_autofree char *folder = g_build_filename(f->directory, "folder", NULL);

    rp_dataset_free(f->dataset);
    rp_file_remove_directory(folder);
    rp_file_remove_directory(f->directory);
    g_clear_error(&f->error);
    g_free(f->directory);
    g_free(f->path);
}

static gboolean
open_cache(Fixture *f, guint64 key, guint vocabulary)
{
    static const char *const names[] = {"a.jsonl", "b.jsonl", NULL};

    g_clear_pointer(&f->dataset, rp_dataset_free);
    g_clear_error(&f->error);
    f->dataset =
        rp_dataset_open_cache(f->path, key, "DATA", names, vocabulary, &f->header, &f->error);
    return f->dataset != NULL;
}

static void
assert_sample(const RpDataset *dataset, guint64 index, guint expected, gsize capacity)
{
    gint32 ids[8], labels[8], expected_ids[8], expected_labels[8];
    RpSample sample = {.input_ids = ids, .labels = labels, .capacity = capacity};
    guint32 n;

    make_sample(expected, expected_ids, expected_labels, &n);
    assert_true(rp_dataset_read(dataset, index, &sample, NULL));
    assert_int_equal(sample.n_tokens, n);
    assert_memory_equal(ids, expected_ids, MIN(n, capacity) * sizeof(gint32));
    assert_memory_equal(labels, expected_labels, MIN(n, capacity) * sizeof(gint32));
}

RP_TEST_OF(reads_what_was_written, Fixture *f)
{
    RpDatasetSummary summary;

    assert_true(open_cache(f, KEY, 50));
    assert_int_equal(rp_dataset_n_samples(f->dataset), N);
    assert_int_equal(f->header.n_skipped, 3);
    for (guint i = 0; i < N; i++) {
        assert_sample(f->dataset, i, i, 8);
        assert_sample(f->dataset, i, i, 3);
        assert_int_equal(rp_dataset_file(f->dataset, i), i / 60);
    }
    g_autofree char *place = rp_dataset_locate(f->dataset, 61);
    assert_string_equal(place, "b.jsonl: line 2");
    assert_true(rp_dataset_check(f->dataset, 5, NULL, NULL, &summary, NULL));
    assert_int_equal(summary.n_tokens, f->header.n_tokens);
    assert_int_equal(summary.shortest_tokens, 1);
    assert_int_equal(summary.longest_tokens, 7);
}

/* Without fsync(), which g_file_set_contents() waits for. */
static void
replace(const char *path, const char *bytes, gsize length)
{
    assert_int_equal(g_unlink(path), 0);
    assert_true(g_file_set_contents_full(path, bytes, (gssize)length, G_FILE_SET_CONTENTS_NONE,
                                         0600, NULL));
}

RP_TEST_OF(refuses_another_and_a_damaged_one, Fixture *f)
{
    g_autofree char *bytes = NULL;
    gsize length;

    assert_false(open_cache(f, KEY + 1, 50));
    assert_non_null(strstr(f->error->message, "expected a cache of these samples, found another"));
    assert_true(g_file_get_contents(f->path, &bytes, &length, NULL));
    for (gsize n = 0; n < length; n += 7) {
        replace(f->path, bytes, n);
        assert_false(open_cache(f, KEY, 50));
    }
    /* any bit of the header's numbers, of the words and of the index */
    for (gsize at = 0; at < length; at += at < sizeof(RpCacheHeader) ? 1 : 5) {
        g_autofree char *changed = g_memdup2(bytes, length);

        if (at >= sizeof(RpCacheHeader) && at < RP_CACHE_HEADER_BYTES)
            continue;
        changed[at] = (char)(changed[at] ^ 4);
        replace(f->path, changed, length);
        if (open_cache(f, KEY, 50))
            fail_msg("byte %zu was changed", at);
    }
}

/* Another token with a hash that fits it is another cache, so that no run continues on it. */
RP_TEST_OF(has_a_fingerprint_of_its_words, Fixture *f)
{
    assert_true(open_cache(f, KEY, 50));
    const RpFingerprints before = rp_dataset_fingerprint(f->dataset);
    g_autoptr(RpDataset) view_before = rp_dataset_new_view(f->dataset, &(guint64){7}, 1);

    for (guint i = 0; i < 2; i++) {
        g_autoptr(RpCacheWriter) writer = rp_cache_writer_new(f->path, KEY, 0600, NULL);
        RpCacheHeader header;

        for (guint s = 0; s < N; s++) {
            gint32 ids[8], labels[8];
            guint32 n;

            make_sample(s, ids, labels, &n);
            if (i == 1 && s == 50)
                ids[0] = labels[0] = 49;
            assert_true(
                rp_cache_writer_add(writer, ids, labels, n, (RpSplit){0}, s / 60, s % 60, NULL));
        }
        assert_true(rp_cache_writer_finish(writer, 3, &header, NULL));
        assert_true(open_cache(f, KEY, 50));
        assert_int_equal(rp_dataset_fingerprint(f->dataset).all == before.all, i == 0);
        g_autoptr(RpDataset) view = rp_dataset_new_view(f->dataset, &(guint64){7}, 1);
        assert_int_equal(
            rp_dataset_fingerprint(view).all == rp_dataset_fingerprint(view_before).all, i == 0);
        /* older checkpoints have one of the key and the entries alone */
        assert_true(rp_dataset_fingerprint(f->dataset).sampled == before.sampled);
        assert_true(rp_dataset_fingerprint(view).sampled ==
                    rp_dataset_fingerprint(view_before).sampled);
    }
}

/* Samples are as secret as the files that they are made of. */
RP_TEST_OF(takes_the_permissions_that_it_is_given, Fixture *f)
{
    const mode_t mask = umask(0);
    struct stat status;

    umask(mask);
    assert_int_equal(stat(f->path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640 & ~mask);
}

/* Nobody's link is written through, and two writers of one number have two files. */
RP_TEST_OF(writes_a_file_of_its_own, Fixture *f)
{
    g_autofree char *victim = g_build_filename(f->directory, "victim", NULL);
    g_autofree char *link = g_strdup_printf("%s.%d", f->path, (int)getpid());
    g_autofree char *found = NULL;

    assert_true(g_file_set_contents(victim, "secret", -1, NULL));
    assert_int_equal(symlink(victim, link), 0);
    g_autoptr(RpCacheWriter) writer = rp_cache_writer_new(f->path, KEY, 0600, NULL);
    assert_non_null(writer);
    assert_true(g_file_get_contents(victim, &found, NULL, NULL));
    assert_string_equal(found, "secret");
}

/* A vocabulary that is another than the cache was made for: ids are checked as they are read. */
RP_TEST_OF(names_the_sample_of_a_damaged_id, Fixture *f)
{
    gint32 ids[8], labels[8];
    RpSample sample = {.input_ids = ids, .labels = labels, .capacity = 8};

    assert_true(open_cache(f, KEY, 30));
    for (guint i = 0; i < N; i++)
        if (!rp_dataset_read(f->dataset, i, &sample, &f->error))
            break;
    assert_non_null(f->error);
    assert_non_null(strstr(f->error->message, "expected ids from 0 to 29, found another"));
}

/* An error, not SIGBUS. */
RP_TEST_OF(tells_that_it_became_shorter, Fixture *f)
{
    gint32 ids[8], labels[8];
    RpSample sample = {.input_ids = ids, .labels = labels, .capacity = 8};

    assert_true(open_cache(f, KEY, 50));
    assert_int_equal(truncate(f->path, RP_CACHE_HEADER_BYTES + 40), 0);
    assert_true(rp_dataset_read(f->dataset, 0, &sample, &f->error));
    assert_false(rp_dataset_read(f->dataset, 50, &sample, &f->error));
    assert_non_null(strstr(f->error->message, "the file was cut short while it was read"));
}

RP_TEST_OF(shows_some_samples_in_another_order, Fixture *f)
{
    const guint64 indices[] = {70, 3, 3, 99};
    RpDatasetSummary summary;

    assert_true(open_cache(f, KEY, 50));
    g_autoptr(RpDataset) view = rp_dataset_new_view(f->dataset, indices, 4);
    const guint64 print = rp_dataset_fingerprint(view).all;
    g_clear_pointer(&f->dataset, rp_dataset_free); /* the view holds it */
    assert_int_equal(rp_dataset_n_samples(view), 4);
    for (guint i = 0; i < 4; i++)
        assert_sample(view, i, (guint)indices[i], 8);
    assert_true(rp_dataset_check(view, 5, NULL, NULL, &summary, NULL));
    assert_int_equal(summary.n_tokens, 1 + 4 + 4 + 2);
    assert_true(open_cache(f, KEY, 50));
    g_autoptr(RpDataset) other = rp_dataset_new_view(f->dataset, indices + 1, 3);
    assert_true(rp_dataset_fingerprint(other).all != print);
    g_autofree char *place = rp_dataset_locate(other, 2);
    assert_string_equal(place, "b.jsonl: line 40");
}

RP_TEST_STATE(Fixture, setup, teardown)
