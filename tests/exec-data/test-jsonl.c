#include "tests/exec-data/batch-fixture.h"

#include <gio/gio.h>
#include <glib/gstdio.h>

static void
open_text(RpSampleFixture *f, const char *text)
{
    rp_sample_fixture_open(f, text, strlen(text));
}

static void
read_sample(RpSampleFixture *f, guint64 index)
{
    if (!rp_dataset_read(f->dataset, index, &f->sample, &f->error))
        rp_assert_no_error(f->error);
    assert_null(f->error);
}

static void
assert_tokens(const gint32 *tokens, gsize n, const gint32 *expected)
{
    for (gsize i = 0; i < n; i++)
        assert_int_equal(tokens[i], expected[i]);
}

RP_TEST_OF(reads_what_hugging_face_datasets_write, RpSampleFixture *f)
{
    open_text(f, "{\"input_ids\":[1,2,99],\"attention_mask\":[1,1,1],\"labels\":[-100,2,0]}\n"
                 "{\"text\":\"a\\\"b\\u00e9\",\"x\":{\"input_ids\":[\"no\"],\"y\":[[],{}]},"
                 "\"input_ids\":[7],\"score\":-1.5e3,\"ok\":true}\n");
    assert_int_equal(rp_dataset_n_samples(f->dataset), 2);
    assert_int_equal(rp_dataset_vocabulary(f->dataset), 100);
    assert_string_equal(rp_dataset_name(f->dataset), "FILE");
    read_sample(f, 0);
    assert_int_equal(f->sample.n_tokens, 3);
    assert_tokens(f->input_ids, 3, (const gint32[]){1, 2, 99});
    assert_tokens(f->labels, 3, (const gint32[]){-100, 2, 0});
    read_sample(f, 1);
    assert_int_equal(f->sample.n_tokens, 1);
    assert_int_equal(f->input_ids[0], 7);
    f->text = rp_dataset_locate(f->dataset, 1);
    assert_string_equal(f->text, "line 2");
}

RP_TEST_OF(takes_the_ids_as_labels_where_there_are_none, RpSampleFixture *f)
{
    open_text(f, "{\"input_ids\":[5,6]}\n{\"labels\":null,\"input_ids\":[7,8]}");
    read_sample(f, 0);
    assert_tokens(f->labels, 2, (const gint32[]){5, 6});
    read_sample(f, 1);
    assert_tokens(f->labels, 2, (const gint32[]){7, 8});
}

RP_TEST_OF(takes_padding_that_is_not_learned, RpSampleFixture *f)
{
    /* the label beside the first padding is that of the last token */
    open_text(f, "{\"input_ids\":[5,6,0,0],\"labels\":[5,6,0,-100],\"attention_mask\":[1,1,0,0]}\n"
                 "{\"attention_mask\":null,\"position_ids\":null,\"input_ids\":[7,8]}");
    read_sample(f, 0);
    assert_tokens(f->labels, 4, (const gint32[]){5, 6, 0, -100});
    read_sample(f, 1);
    assert_tokens(f->labels, 2, (const gint32[]){7, 8});
}

RP_TEST_OF(takes_keys_in_any_order_and_spelling, RpSampleFixture *f)
{
    open_text(f, " { \"labels\" : [ 1 , -100 ] , \"input\\u005fids\" : [ 3 , 4 ] } ");
    read_sample(f, 0);
    assert_tokens(f->input_ids, 2, (const gint32[]){3, 4});
    assert_tokens(f->labels, 2, (const gint32[]){1, -100});
}

RP_TEST(takes_either_line_ending_and_none_at_the_end)
{
    static const char *const texts[] = {"{\"input_ids\":[1]}\n{\"input_ids\":[2]}\n",
                                        "{\"input_ids\":[1]}\n{\"input_ids\":[2]}",
                                        "{\"input_ids\":[1]}\r\n{\"input_ids\":[2]}\r\n",
                                        "{\"input_ids\":[1]}\r\n{\"input_ids\":[2]}"};

    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
        RpSampleFixture *f = *state;
        open_text(f, texts[i]);
        assert_int_equal(rp_dataset_n_samples(f->dataset), 2);
        for (gint32 k = 0; k < 2; k++) {
            read_sample(f, (guint64)k);
            assert_int_equal(f->input_ids[0], k + 1);
        }
    }
}

RP_TEST_OF(stores_what_fits_and_counts_all, RpSampleFixture *f)
{
    open_text(f, "{\"labels\":[-100,-100,4,5],\"input_ids\":[2,3,4,5]}");
    memset(f->input_ids, 0x55, sizeof f->input_ids);
    memset(f->labels, 0x55, sizeof f->labels);
    f->sample.capacity = 3;
    read_sample(f, 0);
    assert_int_equal(f->sample.n_tokens, 4);
    assert_tokens(f->input_ids, 4, (const gint32[]){2, 3, 4, 0x55555555});
    assert_tokens(f->labels, 4, (const gint32[]){-100, -100, 4, 0x55555555});
    f->sample = (RpSample){.capacity = 0};
    read_sample(f, 0);
    assert_int_equal(f->sample.n_tokens, 4);
}

RP_TEST_OF(checks_what_does_not_fit, RpSampleFixture *f)
{
    open_text(f, "{\"input_ids\":[2,3,4,100]}");
    f->sample.capacity = 1;
    rp_refuses("expected an id from 0 to 99, found 100", rp_dataset_read, f->dataset, 0,
               &f->sample);
}

RP_TEST_OF(finds_every_line_of_many, RpSampleFixture *f)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < 5000; i++)
        g_string_append_printf(text, "{\"input_ids\":[%u%s]}\n", i % 100, i % 3 ? "" : ",1");
    open_text(f, text->str);
    assert_int_equal(rp_dataset_n_samples(f->dataset), 5000);
    for (guint i = 5000; i-- > 0;) {
        read_sample(f, i);
        assert_int_equal(f->input_ids[0], i % 100);
        assert_int_equal(f->sample.n_tokens, i % 3 ? 1 : 2);
    }
}

RP_TEST_OF(reads_a_file, RpSampleFixture *f)
{
    int fd = rp_must(g_file_open_tmp, "rp-data-XXXXXX.jsonl", &f->path);

    g_close(fd, NULL);
    assert_true(g_file_set_contents(f->path, "{\"input_ids\":[1,2]}\n", -1, NULL));
    f->dataset = rp_must(rp_dataset_open, f->path, 10, 4);
    read_sample(f, 0);
    assert_int_equal(f->sample.n_tokens, 2);
    rp_sample_fixture_clear(f);

    assert_true(g_file_set_contents(f->path, "", 0, NULL));
    assert_null(rp_dataset_open(f->path, 10, 4, &f->error));
    assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE));
    rp_assert_error_message_contains(f->error, "expected at least one line, found an empty file");
    rp_assert_error_message_contains(f->error, f->path);
}

RP_TEST_OF(refuses_files_that_are_not_there_or_of_another_kind, RpSampleFixture *f)
{
    assert_null(rp_dataset_open("/no/such/file.jsonl", 10, 4, &f->error));
    assert_true(g_error_matches(f->error, G_FILE_ERROR, G_FILE_ERROR_NOENT));
    g_clear_error(&f->error);
    rp_refuses("expected a regular file", rp_dataset_open_jsonl, "/tmp", 10);
    assert_null(rp_dataset_open("data.parquet", 10, 4, &f->error));
    rp_assert_error_message_contains(
        f->error, "data.parquet: expected a name that ends in .jsonl or .bin, found another");
}

RP_TEST_OF(sums_up_a_file, RpSampleFixture *f)
{
    RpDatasetSummary sum;

    open_text(f, "{\"input_ids\":[1]}\n{\"input_ids\":[1,2,3,4,5]}\n{\"input_ids\":[1,2,3]}\n");
    assert_true(rp_dataset_check(f->dataset, 2, NULL, NULL, &sum, &f->error));
    assert_int_equal(sum.n_samples, 3);
    assert_int_equal(sum.n_tokens, 9);
    assert_int_equal(sum.longest_tokens, 5);
    assert_int_equal(sum.longest_index, 1);
    assert_int_equal(sum.n_truncated_samples, 2);
    assert_int_equal(sum.n_truncated_tokens, 4);
    assert_true(rp_dataset_check(f->dataset, 0, NULL, NULL, &sum, &f->error));
    assert_int_equal(sum.n_truncated_samples, 0);
}

static gboolean
stop_at_once(guint64 done, guint64 total, gpointer user_data)
{
    return done > 0 || total == 0 || user_data == NULL;
}

RP_TEST_OF(finds_a_bad_line_by_checking_and_stops_when_asked, RpSampleFixture *f)
{
    RpDatasetSummary sum = {.n_samples = 77};
    int stop = 1;

    open_text(f, "{\"input_ids\":[1]}\n{\"input_ids\":[1,x]}\n");
    rp_refuses("FILE: line 2, column 17: input_ids[1]: expected", rp_dataset_check, f->dataset, 2,
               NULL, NULL, &sum);
    assert_false(rp_dataset_check(f->dataset, 2, stop_at_once, &stop, &sum, &f->error));
    assert_true(g_error_matches(f->error, G_IO_ERROR, G_IO_ERROR_CANCELLED));
    assert_int_equal(sum.n_samples, 77);
}

RP_TEST_OF(has_another_fingerprint_for_another_content, RpSampleFixture *f)
{
    open_text(f, "{\"input_ids\":[1]}\n{\"input_ids\":[2]}\n");
    guint64 first = rp_dataset_fingerprint(f->dataset).all;
    open_text(f, "{\"input_ids\":[1]}\n{\"input_ids\":[3]}\n");
    assert_true(first != rp_dataset_fingerprint(f->dataset).all);
    open_text(f, "{\"input_ids\":[1]}\n{\"input_ids\":[2]}\n");
    assert_true(first == rp_dataset_fingerprint(f->dataset).all);

    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < 10000; i++)
        g_string_append(text, "{\"input_ids\":[1]}\n");
    open_text(f, text->str);
    first = rp_dataset_fingerprint(f->dataset).all;
    text->str[text->len - 4] = '2';
    open_text(f, text->str);
    assert_true(first != rp_dataset_fingerprint(f->dataset).all);
}

RP_TEST_STATE(RpSampleFixture, rp_sample_fixture_setup, rp_sample_fixture_teardown)
