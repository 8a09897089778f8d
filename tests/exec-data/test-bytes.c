#include "tests/rp-test.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "exec/data/batch.h"

#define LINE "{\"input_ids\":[1]}\n"
/* Two pieces of the hash (2^24 bytes each) and a bit. */
#define LARGE_BYTES ((gsize)34000001)

typedef struct {
    char *directory;
    char *path;
    RpDataset *dataset;
    RpDataBytes *bytes;
    RpBatcher *batcher;
    GError *error;
    char *text;
} Fixture;

static void
setup(Fixture *f)
{
    f->directory = g_dir_make_tmp("rp-bytes-XXXXXX", NULL);
    assert_true(f->directory != NULL);
}

static void
teardown(Fixture *f)
{
    rp_batcher_free(f->batcher);
    rp_dataset_free(f->dataset);
    rp_data_bytes_free(f->bytes);
    g_clear_error(&f->error);
    g_autofree char *other = g_build_filename(f->directory, "other", NULL);
    g_remove(other);
    if (f->path != NULL)
        g_remove(f->path);
    g_rmdir(f->directory);
    g_free(f->path);
    g_free(f->text);
    g_free(f->directory);
}

static void
write_file(Fixture *f, const char *name, const char *data, gsize length)
{
    g_free(f->path);
    f->path = g_build_filename(f->directory, name, NULL);
    assert_true(g_file_set_contents(f->path, data, (gssize)length, NULL));
}

static char *
repeat(const char *line, guint n)
{
    g_autoptr(GString) text = g_string_new(NULL);

    while (n-- > 0)
        g_string_append(text, line);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* ---- fingerprints ---- */

RP_TEST(hashes_as_xxhash_does)
{
    guint8 bytes[101];

    for (guint i = 0; i < sizeof bytes; i++)
        bytes[i] = (guint8)i;
    assert_true(rp_hash64("", 0, 0) == G_GUINT64_CONSTANT(0xef46db3751d8e999));
    assert_true(rp_hash64("a", 1, 0) == G_GUINT64_CONSTANT(0xd24ec4f1a98c6e5b));
    assert_true(rp_hash64("abc", 3, 0) == G_GUINT64_CONSTANT(0x44bc2cf5ad770999));
    assert_true(rp_hash64(bytes, sizeof bytes, 0) == G_GUINT64_CONSTANT(0xe99038495f85381e));
    assert_true(rp_hash64(bytes, sizeof bytes, 7) == G_GUINT64_CONSTANT(0xe878e9791dbc64fa));
}

static guint64
hash_memory(const char *data, gsize length)
{
    g_autoptr(GBytes) memory = g_bytes_new_static(data, length);
    g_autoptr(RpDataBytes) bytes = rp_data_bytes_new("FILE", memory);
    guint64 hash = 0;

    assert_true(rp_data_bytes_hash(bytes, &hash, NULL));
    return hash;
}

RP_TEST_OF(finds_every_change_of_one_digit, Fixture *f)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    guint64 first, hash;

    f->text = g_malloc(LARGE_BYTES);
    for (gsize i = 0; i < LARGE_BYTES; i++)
        f->text[i] = (char)('0' + i * 7 % 10);
    first = hash_memory(f->text, LARGE_BYTES);
    for (guint i = 0; i < 40; i++) {
        gsize at = i == 0   ? 0
                   : i == 1 ? LARGE_BYTES - 1
                            : (gsize)g_rand_int_range(rand, 0, LARGE_BYTES);
        f->text[at] ^= 1;
        assert_true(hash_memory(f->text, LARGE_BYTES) != first);
        f->text[at] ^= 1;
    }
    assert_true(hash_memory(f->text, LARGE_BYTES) == first);
    assert_true(hash_memory(f->text, LARGE_BYTES - 1) != first);
    write_file(f, "large", f->text, LARGE_BYTES);
    f->bytes = rp_must(rp_data_bytes_open, f->path);
    assert_true(rp_data_bytes_hash(f->bytes, &hash, &f->error));
    assert_true(hash == first);
}

/* Two pieces change places: each has the hash of before. */
RP_TEST_OF(finds_pieces_that_change_places, Fixture *f)
{
    const gsize piece = (gsize)1 << 24;

    f->text = g_malloc0(2 * piece);
    memset(f->text, 'a', piece);
    memset(f->text + piece, 'b', piece);
    guint64 first = hash_memory(f->text, 2 * piece);
    memset(f->text, 'b', piece);
    memset(f->text + piece, 'a', piece);
    assert_true(hash_memory(f->text, 2 * piece) != first);
}

/* Computed by another program, after the text of data.md of then. */
RP_TEST_OF(knows_the_fingerprints_of_before, Fixture *f)
{
    static const char small[] = "{\"input_ids\":[1]}\n{\"input_ids\":[2]}\n";
    g_autofree char *lines = repeat(LINE, 5000);
    g_autofree char *large = g_strconcat(lines, "{\"input_ids\":[7]}", NULL);
    const struct {
        const char *text;
        guint64 fingerprint;
    } cases[] = {{small, G_GUINT64_CONSTANT(2415279087813361780)},
                 {large, G_GUINT64_CONSTANT(5360204725016573289)}};

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GBytes) bytes = g_bytes_new_static(cases[i].text, strlen(cases[i].text));
        g_clear_pointer(&f->dataset, rp_dataset_free);
        f->dataset = rp_dataset_new_jsonl("FILE", bytes, 100, &f->error);
        assert_true(rp_dataset_fingerprint(f->dataset).sampled == cases[i].fingerprint);
        assert_true(rp_dataset_fingerprint(f->dataset).all != cases[i].fingerprint);
    }

    guint8 *tokens = g_malloc0(400000);
    for (guint i = 0; i < 100000; i++)
        tokens[4 * i] = (guint8)(i % 97);
    g_autoptr(GBytes) bytes = g_bytes_new_take(tokens, 400000);
    g_clear_pointer(&f->dataset, rp_dataset_free);
    f->dataset = rp_dataset_new_tokens("FILE", bytes, 100, 32, &f->error);
    assert_true(rp_dataset_fingerprint(f->dataset).sampled ==
                G_GUINT64_CONSTANT(7146678931643794875));
}

RP_TEST_OF(resumes_from_a_place_with_the_fingerprint_of_before, Fixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 2, .sequences = 1, .tokens = 4};
    g_autofree char *text = repeat("{\"input_ids\":[1,2]}\n", 9);
    g_autoptr(GBytes) bytes = g_bytes_new_static(text, strlen(text));

    f->dataset = rp_dataset_new_jsonl("FILE", bytes, 100, &f->error);
    f->batcher = rp_batcher_new(f->dataset, &options, &f->error);
    RpFingerprints prints = rp_dataset_fingerprint(f->dataset);
    RpDataState saved = rp_batcher_state(f->batcher);
    assert_true(saved.fingerprint == prints.all && !saved.sampled);
    saved.sampled = TRUE;
    assert_false(rp_batcher_restore(f->batcher, &saved, &f->error));
    g_clear_error(&f->error);
    saved.fingerprint = prints.sampled;
    assert_true(rp_batcher_restore(f->batcher, &saved, &f->error));
    /* the newer format of a cache had this one, too */
    saved.sampled = FALSE;
    saved.position = 4;
    assert_true(rp_batcher_restore(f->batcher, &saved, &f->error));
    saved.fingerprint = prints.sampled + 1;
    assert_false(rp_batcher_restore(f->batcher, &saved, &f->error));
    /* fingerprints saved from now on are of all of the file */
    saved = rp_batcher_state(f->batcher);
    assert_true(saved.fingerprint == prints.all && !saved.sampled && saved.position == 4);
}

/* ---- files that change while they are read ---- */

RP_TEST_OF(a_file_that_is_cut_short_is_an_error_with_a_message, Fixture *f)
{
    static const char *const names[] = {"data.jsonl", "data.bin"};
    /* 18 bytes each: the length is a multiple of 4, too */
    g_autofree char *lines = repeat(LINE, 4096);
    RpDatasetSummary sum;

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        gint32 ids[2], labels[2];
        RpSample sample = {ids, labels, 2, 0};
        g_clear_pointer(&f->dataset, rp_dataset_free);
        if (f->path != NULL)
            g_remove(f->path);
        write_file(f, names[i], lines, strlen(lines));
        f->dataset = rp_must(rp_dataset_open, f->path, RP_DATASET_MAX_VOCABULARY, 2);
        assert_int_equal(truncate(f->path, 40000), 0);
        assert_true(rp_dataset_read(f->dataset, 0, &sample, &f->error));
        assert_false(
            rp_dataset_read(f->dataset, rp_dataset_n_samples(f->dataset) - 1, &sample, &f->error));
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE));
        rp_assert_error_message_contains(
            f->error, ": expected 73728 bytes, as there were at the start, found ");
        rp_assert_error(&f->error, ": the file was cut short while it was read");
        assert_false(rp_dataset_check(f->dataset, 0, NULL, NULL, &sum, &f->error));
        g_clear_error(&f->error);
        rp_refuses("found 40000: the file was cut short", rp_dataset_check_unchanged, f->dataset);
    }
}

RP_TEST_OF(tells_a_file_that_was_written_to, Fixture *f)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000, .tv_nsec = 5}};

    write_file(f, "data.jsonl", LINE, strlen(LINE));
    f->dataset = rp_dataset_open(f->path, 100, 2, &f->error);
    assert_true(rp_dataset_check_unchanged(f->dataset, &f->error));
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    rp_refuses("found it written to since: samples may be others", rp_dataset_check_unchanged,
               f->dataset);
    assert_int_equal(truncate(f->path, 100), 0);
    rp_refuses("found it grown since", rp_dataset_check_unchanged, f->dataset);
}

RP_TEST_OF(reads_on_in_a_file_whose_name_another_takes, Fixture *f)
{
    gint32 ids[1], labels[1];
    RpSample sample = {ids, labels, 1, 0};
    g_autofree char *other = g_build_filename(f->directory, "other", NULL);

    write_file(f, "data.jsonl", LINE, strlen(LINE));
    f->dataset = rp_dataset_open(f->path, 100, 2, &f->error);
    assert_true(g_file_set_contents(other, "", 0, NULL));
    assert_int_equal(g_rename(other, f->path), 0);
    assert_true(rp_dataset_check_unchanged(f->dataset, &f->error));
    assert_true(rp_dataset_read(f->dataset, 0, &sample, &f->error));
    assert_int_equal(ids[0], 1);
}

RP_TEST_STATE(Fixture, setup, teardown)
