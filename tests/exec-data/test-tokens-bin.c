#include "tests/exec-data/batch-fixture.h"

#include <glib/gstdio.h>

/* 0x04030201, 2, 3, 0x70000000, 5 as they stand in a file. */
static const guint8 five[] = {1, 2, 3, 4, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0x70, 5, 0, 0, 0};

RP_TEST_OF(reads_little_endian_words_at_any_address, RpSampleFixture *f)
{
    guint8 shifted[sizeof five + 1];

    for (gsize shift = 0; shift < 2; shift++) {
        memcpy(shifted + shift, five, sizeof five);
        f->bytes = g_bytes_new(shifted, sizeof shifted);
        g_autoptr(GBytes) part = g_bytes_new_from_bytes(f->bytes, shift, sizeof five);
        f->dataset = rp_must(rp_dataset_new_tokens, "FILE", part, G_MAXINT32, 2);
        assert_int_equal(rp_dataset_n_samples(f->dataset), 2);
        assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
        assert_int_equal(f->sample.n_tokens, 2);
        assert_int_equal(f->input_ids[0], 0x04030201);
        assert_int_equal(f->input_ids[1], 2);
        assert_int_equal(f->labels[0], 0x04030201);
        assert_true(rp_dataset_read(f->dataset, 1, &f->sample, &f->error));
        assert_int_equal(f->input_ids[0], 3);
        assert_int_equal(f->input_ids[1], 0x70000000);
        g_clear_pointer(&f->dataset, rp_dataset_free);
        g_clear_pointer(&f->bytes, g_bytes_unref);
    }
}

RP_TEST_OF(stores_what_fits, RpSampleFixture *f)
{
    f->bytes = g_bytes_new_static(five, sizeof five);
    f->dataset = rp_dataset_new_tokens("FILE", f->bytes, G_MAXINT32, 5, &f->error);
    f->sample.capacity = 1;
    f->input_ids[1] = 77;
    assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    assert_int_equal(f->sample.n_tokens, 5);
    assert_int_equal(f->input_ids[1], 77);
}

RP_TEST_OF(refuses_ids_beyond_the_vocabulary, RpSampleFixture *f)
{
    guint8 words[16] = {9, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0};

    f->bytes = g_bytes_new(words, sizeof words);
    f->dataset = rp_dataset_new_tokens("FILE", f->bytes, 10, 2, &f->error);
    assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    f->sample.capacity = 0; /* also where nothing is stored */
    assert_false(rp_dataset_read(f->dataset, 1, &f->sample, &f->error));
    assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE));
    assert_string_equal(f->error->message,
                        "FILE: token 3 at byte 12: expected an id from 0 to 9, found 10");
    f->text = rp_dataset_locate(f->dataset, 1);
    assert_string_equal(f->text, "tokens 2 to 3");
}

RP_TEST_OF(refuses_an_id_that_would_be_negative, RpSampleFixture *f)
{
    static const guint8 masked[4] = {0x9c, 0xff, 0xff, 0xff};

    f->bytes = g_bytes_new_static(masked, sizeof masked);
    f->dataset = rp_dataset_new_tokens("FILE", f->bytes, G_MAXINT32, 1, &f->error);
    rp_refuses("found 4294967196", rp_dataset_read, f->dataset, 0, &f->sample);
}

RP_TEST_OF(refuses_lengths_that_are_no_tokens, RpSampleFixture *f)
{
    for (gsize length = 17; length < 20; length++) {
        f->bytes = g_bytes_new_static(five, length);
        assert_null(rp_dataset_new_tokens("FILE", f->bytes, 10, 1, &f->error));
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE));
        rp_assert_error(&f->error, "expected a length that is a multiple of 4");
        g_clear_pointer(&f->bytes, g_bytes_unref);
    }
}

RP_TEST_OF(refuses_less_than_one_sequence, RpSampleFixture *f)
{
    f->bytes = g_bytes_new_static(five, sizeof five);
    assert_null(rp_dataset_new_tokens("FILE", f->bytes, 10, 6, &f->error));
    assert_string_equal(f->error->message,
                        "FILE: expected at least one sequence of 6 tokens, found 5 tokens");
    g_clear_error(&f->error);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    f->bytes = g_bytes_new_static("", 0);
    rp_refuses("found 0 tokens", rp_dataset_new_tokens, "FILE", f->bytes, 10, 1);
}

RP_TEST_OF(reads_a_file, RpSampleFixture *f)
{
    int fd = rp_must(g_file_open_tmp, "rp-data-XXXXXX.bin", &f->path);

    g_close(fd, NULL);
    assert_true(g_file_set_contents(f->path, (const char *)five, sizeof five, NULL));
    f->dataset = rp_must(rp_dataset_open, f->path, G_MAXINT32, 5);
    assert_int_equal(rp_dataset_n_samples(f->dataset), 1);
    assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    assert_int_equal(f->input_ids[0], 0x04030201);
}

RP_TEST_STATE(RpSampleFixture, rp_sample_fixture_setup, rp_sample_fixture_teardown)
