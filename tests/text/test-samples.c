/* Files of records to caches of samples. */
#include "tests/rp-test.h"

#include <fcntl.h>
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>
#include <zstd.h>

#include "core/base/file.h"
#include "text/samples/samples.h"

/* Letters, and the end token: ids are places in the alphabet, 26 the space, 27 the end. */
#define TOKENIZER_HEAD                                                                             \
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":27,"      \
    "\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"               \
    "\"normalized\":false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"     \
    "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"          \
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","    \
    "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"                      \
    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{"

typedef struct {
    char *directory, *model;
    RpTokenizer *tokenizer;
    RpChat *chat;
    RpEncoder *encoder;
    gboolean shares;
    GError *error;
} Fixture;

static char *
path_of(const Fixture *f, const char *name)
{
    return g_build_filename(f->directory, name, NULL);
}

static void
write_to(const char *directory, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    assert_true(g_file_set_contents(path, text, -1, NULL));
}

static void
setup(Fixture *f)
{
    g_autoptr(GString) json = g_string_new(TOKENIZER_HEAD);

    for (guint i = 0; i < 26; i++)
        g_string_append_printf(json, "\"%c\":%u,", 'a' + i, i);
    g_string_append(json, "\"\xc4\xa0\":26,\"<end>\":27},\"merges\":[]}}");
    f->directory = g_dir_make_tmp("test-samples-XXXXXX", NULL);
    f->model = g_dir_make_tmp("test-samples-model-XXXXXX", NULL);
    write_to(f->model, "tokenizer.json", json->str);
    write_to(f->model, "tokenizer_config.json",
             "{\"eos_token\":\"<end>\",\"chat_template\":\"{% for m in messages %}{{ m.role[0] }} "
             "{{ m.content }}<end>{% endfor %}\"}");
    f->tokenizer = rp_must(rp_tokenizer_open, f->model);
    f->chat = rp_must(rp_chat_open, f->model, f->tokenizer, &(RpChatOptions){0});
    f->encoder = rp_encoder_new(&(RpEncoderOptions){.chat = f->chat, .vocabulary = 28});
}

static void
teardown(Fixture *f)
{
    rp_encoder_free(f->encoder);
    rp_chat_free(f->chat);
    rp_tokenizer_free(f->tokenizer);
    rp_file_remove_directory(f->directory);
    rp_file_remove_directory(f->model);
    g_free(f->model);
    g_clear_error(&f->error);
    g_free(f->directory);
}

static void
write_file(const Fixture *f, const char *name, const void *bytes, gsize n)
{
    g_autofree char *path = path_of(f, name);

    assert_true(g_file_set_contents(path, bytes, (gssize)n, NULL));
}

static GByteArray *
gzip(const char *text)
{
    g_autoptr(GConverter) converter =
        G_CONVERTER(g_zlib_compressor_new(G_ZLIB_COMPRESSOR_FORMAT_GZIP, 6));
    GByteArray *out = g_byte_array_new();
    gsize used, n;

    g_byte_array_set_size(out, (guint)strlen(text) + 200);
    assert_int_equal(g_converter_convert(converter, text, strlen(text), out->data, out->len,
                                         G_CONVERTER_INPUT_AT_END, &used, &n, NULL),
                     G_CONVERTER_FINISHED);
    g_byte_array_set_size(out, (guint)n);
    return out;
}

static GByteArray *
zstd(const char *text)
{
    GByteArray *out = g_byte_array_new();

    g_byte_array_set_size(out, (guint)ZSTD_compressBound(strlen(text)));
    g_byte_array_set_size(out, (guint)ZSTD_compress(out->data, out->len, text, strlen(text), 3));
    return out;
}

/* The records of a file with "LINE:" before each and "|" behind, or the error. (transfer full) */
static char *
records_of(Fixture *f, const char *name)
{
    g_autofree char *path = path_of(f, name);
    g_autoptr(RpRecords) records = rp_records_open(path, &f->error);
    g_autoptr(GString) all = g_string_new(NULL);
    gboolean found = records != NULL;

    while (found) {
        g_autoptr(GString) text = g_string_new(NULL);
        guint64 line;

        if (!rp_records_next(records, text, &line, &found, &f->error))
            break;
        if (found)
            g_string_append_printf(all, "%u:%s|", (guint)line, text->str);
    }
    if (f->error == NULL)
        return g_string_free(g_steal_pointer(&all), FALSE);
    char *message = g_strdup(strstr(f->error->message, name));
    g_clear_error(&f->error);
    return message;
}

static void
assert_records(Fixture *f, const char *name, const char *text, const char *expected)
{
    write_file(f, name, text, strlen(text));
    g_autofree char *found = records_of(f, name);
    assert_string_equal(found, expected);
}

RP_TEST_OF(reads_lines_and_arrays, Fixture *f)
{
    assert_records(f, "a.jsonl", "{}\n{\"a\":1}\n", "0:{}|1:{\"a\":1}|");
    assert_records(f, "a.jsonl", "{}\n\nx", "0:{}|1:|2:x|");
    assert_records(f, "a.ndjson", "", "");
    assert_records(f, "a.json", " [ {\"a\":\"],\\\"[{\"} ,\n[1,[2]]\n,3] \n",
                   "0:{\"a\":\"],\\\"[{\"} |1:[1,[2]]\n|2:3|");
    assert_records(f, "a.json", "[]", "");
}

/* Python's csv.DictReader reads the same rows. */
RP_TEST_OF(reads_tables, Fixture *f)
{
    assert_records(f, "a.csv", "prompt,completion\na,b\nc,d",
                   "1:{\"prompt\":\"a\",\"completion\":\"b\"}|"
                   "2:{\"prompt\":\"c\",\"completion\":\"d\"}|");
    assert_records(f, "a.csv",
                   "\xef\xbb\xbf"
                   "text\r\n\"a, \"\"b\"\"\r\nc\"\r\n\r\nd \"e\"\r\n",
                   "1:{\"text\":\"a, \\\"b\\\"\\u000d\\u000ac\"}|4:{\"text\":\"d \\\"e\\\"\"}|");
    assert_records(f, "a.csv", "a,b,c\n,2,\n\"\",,3\n,,\n",
                   "1:{\"b\":\"2\"}|2:{\"c\":\"3\"}|3:{}|");
    assert_records(f, "a.tsv", "a\tb\nx, y\t\\n\n", "1:{\"a\":\"x, y\",\"b\":\"\\\\n\"}|");
    assert_records(f, "a.csv", "", "");
    assert_records(f, "a.csv", "text\n", "");
}

RP_TEST_OF(names_the_place_where_a_table_breaks, Fixture *f)
{
    assert_records(f, "a.csv", "a,b\n1,2\n3\n", "a.csv: line 3: expected 2 cells, found 1");
    assert_records(f, "a.csv", "a,b\n1,2,3\n", "a.csv: line 2: expected 2 cells, found 3");
    assert_records(f, "a.csv", "a\n\"x\ny\n",
                   "a.csv: line 2: expected the \" that ends a cell, found the end of the file");
    assert_records(f, "a.csv", "a\n\"x\ny\"z\n",
                   "a.csv: line 3: expected a separator or a line's end behind a quoted cell, "
                   "found something else");
    assert_records(f, "a.csv", "a,b,a\n",
                   "a.csv: line 1: expected a name for each column, found the same name twice");
    assert_records(f, "a.csv", "a,,c\n",
                   "a.csv: line 1: expected a name for each column, found an empty cell");
}

RP_TEST_OF(names_the_place_where_an_array_breaks, Fixture *f)
{
    assert_records(f, "a.json", "",
                   "a.json: line 1: expected an array of records: [, found an "
                   "empty file");
    assert_records(f, "a.json", "{\"a\":[]}",
                   "a.json: line 1: expected an array of records: [, found something else");
    assert_records(f, "a.json", "[{},\n{}",
                   "a.json: line 2: expected the array's ], found the end of the file");
    assert_records(f, "a.json", "[{}]\n\n7",
                   "a.json: line 3: expected nothing behind the array, found more");
    assert_records(f, "a.txt", "",
                   "a.txt: expected a name that ends in .jsonl, .json, .csv or .tsv, perhaps "
                   "with .gz or .zst behind it, found another");
}

RP_TEST_OF(reads_compressed_files_as_they_are, Fixture *f)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < 30000; i++)
        g_string_append_printf(text, "{\"n\":%u}\n", i * 7919 % 10007);
    write_file(f, "plain.jsonl", text->str, text->len);
    g_autofree char *expected = records_of(f, "plain.jsonl");
    g_autoptr(GByteArray) gz = gzip(text->str);
    g_autoptr(GByteArray) zst = zstd(text->str);
    write_file(f, "a.jsonl.gz", gz->data, gz->len);
    write_file(f, "a.jsonl.zst", zst->data, zst->len);
    g_autofree char *from_gz = records_of(f, "a.jsonl.gz");
    g_autofree char *from_zst = records_of(f, "a.jsonl.zst");
    assert_string_equal(from_gz, expected);
    assert_string_equal(from_zst, expected);
    /* cut anywhere it is an error, never a shorter file */
    for (guint n = 1; n < 400; n += RP_TEST_FEW ? 57 : 13) {
        write_file(f, "b.jsonl.gz", gz->data, gz->len - n);
        write_file(f, "b.jsonl.zst", zst->data, zst->len - n);
        g_autofree char *one = records_of(f, "b.jsonl.gz");
        g_autofree char *other = records_of(f, "b.jsonl.zst");
        assert_non_null(strstr(one, "expected gzip data, found the end: the file was cut short"));
        assert_non_null(strstr(other, "expected zstd data, found the end: the file was cut short"));
    }
}

/* As `cat a.gz b.gz` makes them. */
RP_TEST_OF(reads_all_parts_of_a_compressed_file, Fixture *f)
{
    g_autoptr(GByteArray) gz = gzip("1\n2\n"), more_gz = gzip("3\n");
    g_autoptr(GByteArray) zst = zstd("1\n2\n"), more_zst = zstd("3\n");

    g_byte_array_append(gz, more_gz->data, more_gz->len);
    g_byte_array_append(zst, more_zst->data, more_zst->len);
    write_file(f, "a.jsonl.gz", gz->data, gz->len);
    write_file(f, "a.jsonl.zstd", zst->data, zst->len);
    g_autofree char *from_gz = records_of(f, "a.jsonl.gz");
    g_autofree char *from_zst = records_of(f, "a.jsonl.zstd");
    assert_string_equal(from_gz, "0:1|1:2|2:3|");
    assert_string_equal(from_zst, "0:1|1:2|2:3|");
}

/* "ID" of a learned token, "(ID)" of another; of preferences "|" before the second document, and behind all the kind of
 * the first. (transfer full) */
static char *
sample_of(const char *json, gpointer fixture)
{
    Fixture *f = fixture;
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(gint32));
    g_autoptr(GArray) labels = g_array_new(FALSE, FALSE, sizeof(gint32));
    g_autoptr(GString) text = g_string_new(NULL);
    RpSplit split;

    if (!rp_encoder_read(f->encoder, "FILE", 4, json, strlen(json), ids, labels, &split,
                         &f->error)) {
        char *message = g_strdup(f->error->message);
        g_clear_error(&f->error);
        return message;
    }
    assert_int_equal(ids->len, labels->len);
    for (guint i = 0; i < ids->len; i++) {
        const gint32 id = g_array_index(ids, gint32, i), label = g_array_index(labels, gint32, i);

        if (i > 0 && i == split.tokens)
            g_string_append(text, "| ");
        if (label == id)
            g_string_append_printf(text, "%d ", id);
        else if (label == RP_LABEL_MASKED)
            g_string_append_printf(text, "(%d) ", id);
        else
            g_string_append_printf(text, "%d->%d ", id, label);
    }
    if (split.answer != RP_ANSWER_NONE)
        g_string_append_printf(text, "kind %u", split.answer);
    if (split.shared > 0)
        g_string_append_printf(text, ", shares %u", split.shared);
    return g_strchomp(g_string_free(g_steal_pointer(&text), FALSE));
}

RP_TEST(makes_samples_of_records)
{
    rp_test_lines("tests/text/messages.txt", "samples: of records", sample_of, *state);
}

static void
set_objective(Fixture *f, RpObjective objective)
{
    rp_encoder_free(f->encoder);
    f->encoder = rp_encoder_new(&(RpEncoderOptions){
        .chat = f->chat, .vocabulary = 28, .objective = objective, .shares = f->shares});
}

RP_TEST_OF(makes_samples_of_pairs, Fixture *f)
{
    set_objective(f, RP_OBJECTIVE_DPO);
    rp_test_lines("tests/text/messages.txt", "samples: of pairs", sample_of, f);
}

RP_TEST_OF(makes_samples_of_pairs_behind_one_prompt, Fixture *f)
{
    f->shares = TRUE;
    set_objective(f, RP_OBJECTIVE_DPO);
    rp_test_lines("tests/text/messages.txt", "samples: of pairs behind one prompt", sample_of, f);
}

RP_TEST_OF(makes_samples_of_labelled_answers, Fixture *f)
{
    set_objective(f, RP_OBJECTIVE_KTO);
    rp_test_lines("tests/text/messages.txt", "samples: of labelled answers", sample_of, f);
}

RP_TEST_OF(refuses_a_tokenizer_of_another_model, Fixture *f)
{
    rp_encoder_free(f->encoder);
    f->encoder = rp_encoder_new(&(RpEncoderOptions){.chat = f->chat, .vocabulary = 20});
    g_autofree char *found = sample_of("{\"text\":\"az\"}", f);
    assert_string_equal(found, "FILE: line 5: expected ids below the model's vocabulary, "
                               "20, found 25: the tokenizer is not the model's");
}

/* ---- caches ---- */

/* Builds @name.bin of two files. */
static gboolean
build(Fixture *f, const char *name, guint threads, gboolean skip_bad, RpCacheHeader *header,
      char **bad)
{
    g_autofree char *a = path_of(f, "a.jsonl"), *b = path_of(f, "b.json"), *out = path_of(f, name);
    const char *const paths[] = {a, b, NULL};
    const RpSamplesBuild how = {
        .paths = paths, .encoder = f->encoder, .threads = threads, .skip_bad = skip_bad};

    return rp_samples_build(&how, out, 77, header, bad, &f->error);
}

#define N_MANY (RP_TEST_FEW ? 15000 : 40000)

/* Megabytes of text: several jobs. @bad: one of this many records is none */
static void
write_many(const Fixture *f, guint n, guint bad)
{
    g_autoptr(GString) lines = g_string_new(NULL);
    g_autoptr(GString) array = g_string_new("[");
    g_autoptr(GRand) random = g_rand_new_with_seed(6);

    for (guint i = 0; i < n; i++) {
        GString *to = i % 2 != 0 ? lines : array;

        if (to == array && i > 0)
            g_string_append(array, ",\n");
        g_string_append(to, bad > 0 && i % bad == bad - 1 ? "{\"texts\":\"" : "{\"text\":\"");
        for (gint32 t = g_rand_int_range(random, 1, 200); t > 0; t--)
            g_string_append_c(to, (char)('a' + g_rand_int_range(random, 0, 26)));
        g_string_append(to, to == lines ? "\"}\n" : "\"}");
    }
    g_string_append(array, "]\n");
    write_file(f, "a.jsonl", lines->str, lines->len);
    write_file(f, "b.json", array->str, array->len);
}

RP_TEST_OF(gives_the_same_bytes_on_any_number_of_threads, Fixture *f)
{
    g_autofree char *expected = NULL, *first = path_of(f, "1.bin");
    gsize length;

    write_many(f, N_MANY, 0);
    for (guint threads = 1; threads <= 5; threads += 2) {
        g_autofree char *name = g_strdup_printf("%u.bin", threads), *path = path_of(f, name);
        g_autofree char *found = NULL;
        RpCacheHeader header;
        gsize n;

        assert_true(build(f, name, threads, FALSE, &header, NULL));
        assert_int_equal(header.n_samples, N_MANY);
        assert_int_equal(header.n_skipped, 0);
        assert_int_equal(header.n_learned, header.n_tokens - N_MANY);
        if (expected == NULL)
            assert_true(g_file_get_contents(first, &expected, &length, NULL));
        assert_true(g_file_get_contents(path, &found, &n, NULL));
        assert_int_equal(n, length);
        assert_memory_equal(found, expected, n);
    }
}

/* Ours is `one`; the process that writes `other` has locked it, here the test. */
RP_TEST_OF(removes_what_a_killed_build_has_left, Fixture *f)
{
    g_autofree char *one = path_of(f, "1.bin.123"), *other = path_of(f, "1.bin.124");
    RpCacheHeader header;

    write_many(f, 4, 0);
    write_to(f->directory, "1.bin.123", "half");
    write_to(f->directory, "1.bin.124", "half");
    const int lock = open(other, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    assert_true(build(f, "1.bin", 1, FALSE, &header, NULL));
    assert_false(g_file_test(one, G_FILE_TEST_EXISTS));
    assert_true(g_file_test(other, G_FILE_TEST_EXISTS));
    close(lock);
    assert_true(build(f, "1.bin", 1, FALSE, &header, NULL));
    assert_false(g_file_test(other, G_FILE_TEST_EXISTS));
}

/* Builds of other keys are removed an hour after the last byte was written. */
RP_TEST_OF(removes_what_killed_builds_of_other_keys_have_left, Fixture *f)
{
    g_autofree char *old = path_of(f, "samples-00ff.bin.123");
    g_autofree char *young = path_of(f, "samples-00fe.bin.123");
    g_autofree char *whole = path_of(f, "samples-00fd.bin");
    const struct utimbuf hours_ago = {.actime = 0, .modtime = time(NULL) - 2 * 3600};
    RpCacheHeader header;

    write_many(f, 4, 0);
    write_to(f->directory, "samples-00ff.bin.123", "half");
    write_to(f->directory, "samples-00fe.bin.123", "half");
    write_to(f->directory, "samples-00fd.bin", "whole");
    assert_int_equal(g_utime(old, (struct utimbuf *)&hours_ago), 0);
    assert_int_equal(g_utime(whole, (struct utimbuf *)&hours_ago), 0);
    assert_true(build(f, "1.bin", 1, FALSE, &header, NULL));
    assert_false(g_file_test(old, G_FILE_TEST_EXISTS));
    assert_true(g_file_test(young, G_FILE_TEST_EXISTS));
    assert_true(g_file_test(whole, G_FILE_TEST_EXISTS));
}

static gboolean
count_call(guint64 done, guint64 total, gpointer user_data)
{
    (void)done;
    (void)total;
    ++*(guint *)user_data;
    return TRUE;
}

/* A record without bytes needs memory, too: a job ends before a million of them are in it. */
RP_TEST_OF(holds_no_file_of_empty_lines_in_memory, Fixture *f)
{
    g_autofree char *path = path_of(f, "a.jsonl"), *out = path_of(f, "1.bin");
    g_autofree char *lines = g_malloc(1000000);
    const char *const paths[] = {path, NULL};
    guint n_jobs = 0;
    const RpSamplesBuild how = {.paths = paths,
                                .encoder = f->encoder,
                                .threads = 1,
                                .skip_bad = TRUE,
                                .progress = count_call,
                                .user_data = &n_jobs};
    RpCacheHeader header;

    memset(lines, '\n', 1000000);
    write_file(f, "a.jsonl", lines, 1000000);
    assert_false(rp_samples_build(&how, out, 77, &header, NULL, &f->error));
    assert_true(g_error_matches(f->error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_NOTHING));
    assert_true(n_jobs > 10);
}

/* One of the two files is private: so is the cache. */
RP_TEST_OF(has_the_permissions_that_all_files_have, Fixture *f)
{
    g_autofree char *a = path_of(f, "a.jsonl"), *b = path_of(f, "b.json");
    g_autofree char *out = path_of(f, "1.bin");
    const mode_t mask = umask(0);
    GStatBuf status;
    RpCacheHeader header;

    umask(mask);
    write_many(f, 4, 0);
    assert_int_equal(g_chmod(a, 0600), 0);
    assert_int_equal(g_chmod(b, 0444), 0);
    assert_true(build(f, "1.bin", 1, FALSE, &header, NULL));
    assert_int_equal(g_stat(out, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600 & ~mask);
}

RP_TEST_OF(leaves_bad_records_out_only_if_it_may, Fixture *f)
{
    g_autofree char *bad = NULL;
    RpCacheHeader header;

    write_many(f, 30000, 1000);
    assert_false(build(f, "x.bin", 4, FALSE, &header, NULL));
    /* the first in the files' order, whichever thread came upon one first */
    assert_non_null(strstr(f->error->message, "a.jsonl: line 500, column 1: expected "));
    g_clear_error(&f->error);
    g_autoptr(GPtrArray) names = rp_file_list(f->directory, NULL);
    assert_int_equal(names->len, 2); /* nothing is left of it */
    assert_true(build(f, "x.bin", 4, TRUE, &header, &bad));
    assert_int_equal(header.n_samples, 29970);
    assert_int_equal(header.n_skipped, 30);
    assert_non_null(strstr(bad, "a.jsonl: line 500, column 1: "));
}

RP_TEST_OF(refuses_data_of_which_nothing_is_learned, Fixture *f)
{
    RpCacheHeader header;

    static const char unlearned[] = "{\"input_ids\":[1,2],\"labels\":[1,-100]}\n";

    write_file(f, "a.jsonl", unlearned, strlen(unlearned));
    write_file(f, "b.json", "[]", 2);
    assert_false(build(f, "x.bin", 2, FALSE, &header, NULL));
    assert_string_equal(f->error->message,
                        "expected a sample of which something is learned, found none");
}

RP_TEST_STATE(Fixture, setup, teardown)
