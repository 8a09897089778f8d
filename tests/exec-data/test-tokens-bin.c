#include "tests/rp-test.h"

#include <glib/gstdio.h>

#include "exec/data/dataset.h"

#define CAPACITY 4

typedef struct {
    RpDataset *dataset;
    GError *error;
    GBytes *bytes;
    char *path;
    char *text;
    gint32 input_ids[CAPACITY];
    gint32 labels[CAPACITY];
    RpSample sample;
} Fixture;

static int
setup(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->sample = (RpSample){f->input_ids, f->labels, CAPACITY, 0};
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    Fixture *f = *state;

    rp_dataset_free(f->dataset);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    g_clear_error(&f->error);
    if (f->path != NULL)
        g_remove(f->path);
    g_free(f->path);
    g_free(f->text);
    g_free(f);
    return 0;
}

/* 0x04030201, 2, 3, 0x70000000, 5 as they stand in a file. */
static const guint8 five[] = {1, 2, 3, 4, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0x70, 5, 0, 0, 0};

static void
reads_little_endian_words_at_any_address(void **state)
{
    Fixture *f = *state;
    guint8 shifted[sizeof five + 1];

    for (gsize shift = 0; shift < 2; shift++) {
        memcpy(shifted + shift, five, sizeof five);
        f->bytes = g_bytes_new(shifted, sizeof shifted);
        g_autoptr(GBytes) part = g_bytes_new_from_bytes(f->bytes, shift, sizeof five);
        f->dataset = rp_dataset_new_tokens("FILE", part, G_MAXINT32, 2, &f->error);
        rp_assert_no_error(f->error);
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

static void
stores_what_fits(void **state)
{
    Fixture *f = *state;

    f->bytes = g_bytes_new_static(five, sizeof five);
    f->dataset = rp_dataset_new_tokens("FILE", f->bytes, G_MAXINT32, 5, &f->error);
    f->sample.capacity = 1;
    f->input_ids[1] = 77;
    assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    assert_int_equal(f->sample.n_tokens, 5);
    assert_int_equal(f->input_ids[1], 77);
}

static void
refuses_ids_beyond_the_vocabulary(void **state)
{
    Fixture *f = *state;
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

static void
refuses_an_id_that_would_be_negative(void **state)
{
    Fixture *f = *state;
    static const guint8 masked[4] = {0x9c, 0xff, 0xff, 0xff};

    f->bytes = g_bytes_new_static(masked, sizeof masked);
    f->dataset = rp_dataset_new_tokens("FILE", f->bytes, G_MAXINT32, 1, &f->error);
    assert_false(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    rp_assert_error_message_contains(f->error, "found 4294967196");
}

static void
refuses_lengths_that_are_no_tokens(void **state)
{
    Fixture *f = *state;

    for (gsize length = 17; length < 20; length++) {
        f->bytes = g_bytes_new_static(five, length);
        assert_null(rp_dataset_new_tokens("FILE", f->bytes, 10, 1, &f->error));
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE));
        rp_assert_error_message_contains(f->error, "expected a length that is a multiple of 4");
        g_clear_error(&f->error);
        g_clear_pointer(&f->bytes, g_bytes_unref);
    }
}

static void
refuses_less_than_one_sequence(void **state)
{
    Fixture *f = *state;

    f->bytes = g_bytes_new_static(five, sizeof five);
    assert_null(rp_dataset_new_tokens("FILE", f->bytes, 10, 6, &f->error));
    assert_string_equal(f->error->message,
                        "FILE: expected at least one sequence of 6 tokens, found 5 tokens");
    g_clear_error(&f->error);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    f->bytes = g_bytes_new_static("", 0);
    assert_null(rp_dataset_new_tokens("FILE", f->bytes, 10, 1, &f->error));
    rp_assert_error_message_contains(f->error, "found 0 tokens");
}

static void
reads_a_file(void **state)
{
    Fixture *f = *state;
    int fd = g_file_open_tmp("rp-data-XXXXXX.bin", &f->path, &f->error);

    rp_assert_no_error(f->error);
    g_close(fd, NULL);
    assert_true(g_file_set_contents(f->path, (const char *)five, sizeof five, NULL));
    f->dataset = rp_dataset_open(f->path, G_MAXINT32, 5, &f->error);
    rp_assert_no_error(f->error);
    assert_int_equal(rp_dataset_n_samples(f->dataset), 1);
    assert_true(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    assert_int_equal(f->input_ids[0], 0x04030201);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_little_endian_words_at_any_address, setup, teardown),
        cmocka_unit_test_setup_teardown(stores_what_fits, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_ids_beyond_the_vocabulary, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_an_id_that_would_be_negative, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_lengths_that_are_no_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_less_than_one_sequence, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_a_file, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
