#include "tests/exec-data/batch-fixture.h"

/* Opens @length bytes of @text; whether line @index + 1 of it is a sample. */
static gboolean
takes(RpSampleFixture *f, const char *text, gsize length, guint64 index)
{
    rp_sample_fixture_open(f, text, length);
    gboolean good = rp_dataset_read(f->dataset, index, &f->sample, &f->error);
    assert_true(good == (f->error == NULL));
    if (!good)
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE));
    return good;
}

/* The refusal of a line between two others, which are not concerned. (transfer full) */
static char *
refusal(const char *line, gpointer data)
{
    RpSampleFixture *f = data;
    g_autofree char *text = g_strdup_printf("{\"input_ids\":[1]}\n%s\n{\"input_ids\":[2]}\n", line);

    assert_true(takes(f, text, strlen(text), 0));
    assert_true(takes(f, text, strlen(text), 2));
    (void)takes(f, text, strlen(text), 1);
    assert_true(f->error == NULL || g_utf8_validate(f->error->message, -1, NULL));
    return rp_test_refusal(&f->error);
}

RP_TEST(names_line_column_expected_and_found)
{
    rp_test_lines("tests/exec-data/messages.txt", "jsonl-bad: lines", refusal, *state);
}

RP_TEST(refuses_every_cut_of_a_line)
{
    const char *line = "{\"input_ids\":[12,3],\"labels\":[-100,3],\"x\":[{\"y\":\"z\"}]}";

    assert_true(takes(*state, line, strlen(line), 0));
    for (gsize n = 1; n < strlen(line); n++)
        if (takes(*state, line, n, 0))
            fail_msg("took the first %zu bytes", n);
}

RP_TEST_OF(refuses_a_zero_byte, RpSampleFixture *f)
{
    static const char text[] = "{\"input_ids\":[1]}\n{\"input\0ids\":[1]}\n";

    assert_false(takes(f, text, sizeof text - 1, 1));
    rp_assert_error_message_contains(f->error,
                                     "line 2, column 8: expected UTF-8 text, found byte 0x00");
}

RP_TEST_OF(refuses_an_empty_line_at_the_end, RpSampleFixture *f)
{
    const char *text = "{\"input_ids\":[1]}\n\n";

    assert_false(takes(f, text, strlen(text), 1));
    assert_int_equal(rp_dataset_n_samples(f->dataset), 2);
    rp_assert_error_message_contains(f->error,
                                     "line 2, column 1: expected an object, found the end");
}

RP_TEST_OF(refuses_deep_nesting, RpSampleFixture *f)
{
    g_autoptr(GString) text = g_string_new("{\"input_ids\":[1],\"x\":");

    for (guint i = 0; i < 100000; i++)
        g_string_append_c(text, '[');
    assert_false(takes(f, text->str, text->len, 0));
    rp_assert_error_message_contains(f->error, "line 1, column 85: expected at most 64 levels");
}

RP_TEST_OF(refuses_a_line_too_long, RpSampleFixture *f)
{
    gsize length = RP_JSONL_MAX_LINE_BYTES + 1;
    char *text = g_malloc(length + 1);

    memset(text, ' ', length);
    memcpy(text, "{\"input_ids\":[1]}", 17);
    text[length] = '\n';
    f->bytes = g_bytes_new_take(text, length + 1);
    f->dataset = rp_dataset_new_jsonl("FILE", f->bytes, 100, &f->error);
    assert_non_null(f->dataset);
    rp_refuses("line 1, column 1: expected at most 67108864 bytes "
               "in a line, found 67108865",
               rp_dataset_read, f->dataset, 0, &f->sample);
}

RP_TEST_OF(reads_a_line_of_a_million_ids_into_a_small_place, RpSampleFixture *f)
{
    g_autoptr(GString) text = g_string_new("{\"input_ids\":[0");

    for (guint i = 1; i < 1000000; i++)
        g_string_append_printf(text, ",%u", i % 100);
    g_string_append(text, "]}");
    assert_true(takes(f, text->str, text->len, 0));
    assert_int_equal(f->sample.n_tokens, 1000000);
    assert_int_equal(f->input_ids[3], 3);
}

RP_TEST_STATE(RpSampleFixture, rp_sample_fixture_setup, rp_sample_fixture_teardown)
