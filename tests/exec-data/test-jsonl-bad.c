#include "tests/rp-test.h"

#include "exec/data/dataset.h"

#define CAPACITY 4

typedef struct {
    RpDataset *dataset;
    GError *error;
    GBytes *bytes;
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

static void
clear(Fixture *f)
{
    g_clear_pointer(&f->dataset, rp_dataset_free);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    g_clear_error(&f->error);
}

static int
teardown(void **state)
{
    clear(*state);
    g_free(*state);
    return 0;
}

/* Opens @length bytes of @text; whether line @index + 1 of it is a sample. */
static gboolean
takes(Fixture *f, const char *text, gsize length, guint64 index)
{
    clear(f);
    f->bytes = g_bytes_new(text, length);
    f->dataset = rp_dataset_new_jsonl("FILE", f->bytes, 100, &f->error);
    rp_assert_no_error(f->error);
    gboolean good = rp_dataset_read(f->dataset, index, &f->sample, &f->error);
    assert_true(good == (f->error == NULL));
    if (!good)
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE));
    return good;
}

static const struct {
    const char *line;
    const char *message; /* behind "FILE: line 2, "; the key may stand in between */
} bad_lines[] = {
    /* not JSON */
    {"{\"input_ids\":[1,2}", "column 18: expected `,` or `]`, found \"}\""},
    {"{\"input_ids\":[1,]}", "column 17: expected an id from 0 to 99, found \"]\""},
    {"{\"input_ids\":[1,2]", "column 19: expected `,` or `}`, found the end of the text"},
    {"{\"input_ids\":[1]} x", "column 19: expected the end of the text, found x"},
    {"{\"input_ids\":[1]}{}", "column 18: expected the end of the text, found an object"},
    {"{'input_ids':[1]}", "column 2: expected a key, found \"'\""},
    {"{\"input_ids\" [1]}", "column 14: expected `:`, found an array"},
    {"{\"input_ids\":[01]}", "column 15: expected a number, found 01"},
    {"{\"input_ids\":[1] \"a\":2}", "column 18: expected `,` or `}`, found \"a\""},
    {"{\"a\":tru,\"input_ids\":[1]}", "column 6: expected a value, found tru"},
    {"{\"a\":NaN,\"input_ids\":[1]}", "column 6: expected a value, found NaN"},
    {"{\"a\":\"\t\",\"input_ids\":[1]}", "column 7: expected a string without control"},
    {"{\"a\":\"\\x\",\"input_ids\":[1]}", "column 7: expected an escape that JSON knows"},
    {"{\"a\":\"\\ud800\",\"input_ids\":[1]}", "column 7: expected a character after \\u"},
    {"{\"a", "column 2: expected a closed string, found the end of the text"},
    {"# a comment", "column 1: expected an object, found \"#\""},
    /* the type is wrong */
    {"[1,2]", "column 1: expected an object, found an array"},
    {"17", "column 1: expected an object, found 17"},
    {"null", "column 1: expected an object, found null"},
    {"{}", "column 1: expected an array of ids, found nothing"},
    {"  {\"labels\":[1]}", "column 3: expected an array of ids, found nothing"},
    {"{\"input_ids\":null}", "column 14: expected an array, found null"},
    {"{\"input_ids\":\"1 2\"}", "column 14: expected an array, found \"1 2\""},
    {"{\"input_ids\":{}}", "column 14: expected an array, found an object"},
    {"{\"input_ids\":3}", "column 14: expected an array, found 3"},
    {"{\"input_ids\":[[1,2]]}", "column 15: expected an id from 0 to 99, found an array"},
    {"{\"input_ids\":[\"1\"]}", "column 15: expected an id from 0 to 99, found \"1\""},
    {"{\"input_ids\":[null]}", "column 15: expected an id from 0 to 99, found null"},
    {"{\"input_ids\":[true]}", "column 15: expected an id from 0 to 99, found true"},
    {"{\"input_ids\":[1.0]}", "column 15: expected a whole number from 0 to 2^64 - 1, found 1.0"},
    {"{\"input_ids\":[1e1]}", "column 15: expected a whole number from 0 to 2^64 - 1, found 1e1"},
    {"{\"input_ids\":[1],\"labels\":1}", "column 27: expected an array, found 1"},
    {"{\"input_ids\":[1],\"labels\":[null]}",
     "column 28: expected -100 or an id from 0 to 99, found null"},
    {"{\"input_ids\":[1],\"labels\":[-100.0]}",
     "column 28: expected -100 or an id from 0 to 99, found -100.0"},
    /* the Trainer of transformers would hand these to the model */
    {"{\"input_ids\":[1,2],\"position_ids\":[5,6]}",
     "column 20: expected no position_ids, for positions count from 0 in each sample"},
    {"{\"inputs_embeds\":[[0.5]],\"input_ids\":[1]}", "column 2: expected no inputs_embeds, for"},
    {"{\"input_ids\":[1],\"label\":3}", "column 18: expected no label, for labels stand in labels"},
    {"{\"input_ids\":[1,2],\"attention_mask\":[1]}",
     "column 37: expected 2 numbers, one for each of input_ids, found 1"},
    {"{\"input_ids\":[1,2],\"attention_mask\":[0,1]}",
     "column 38: expected 1, since the first token is no padding, found 0"},
    {"{\"input_ids\":[1,2,3],\"attention_mask\":[1,0,1]}",
     "column 44: expected 0, as all that follow padding, found 1"},
    {"{\"input_ids\":[1,2],\"attention_mask\":[1,2]}", "column 40: expected 0 or 1, found 2"},
    {"{\"input_ids\":[1,2,3],\"attention_mask\":[1,0,0]}",
     "column 39: expected labels of -100 where attention_mask is 0, found no labels"},
    {"{\"attention_mask\":[1,0,0],\"input_ids\":[1,2,3],\"labels\":[1,-100,3]}",
     "column 19: expected labels of -100 where attention_mask is 0, found another"},
    {"{\"input_ids\":[1],\"attention_mask\":[1],\"attention_mask\":[1]}",
     "column 39: expected each key once, found \"attention_mask\" a second time"},
    /* out of range */
    {"{\"input_ids\":[1,100]}", "column 17: expected an id from 0 to 99, found 100"},
    {"{\"input_ids\":[-1]}", "column 15: expected an id from 0 to 99, found -1"},
    {"{\"input_ids\":[-100]}", "column 15: expected an id from 0 to 99, found -100"},
    {"{\"input_ids\":[-0]}", "column 15: expected an id from 0 to 99, found -0"},
    {"{\"input_ids\":[4294967297]}", "column 15: expected an id from 0 to 99, found 4294967297"},
    {"{\"input_ids\":[18446744073709551617]}", "column 15: expected a whole number from 0 to"},
    {"{\"input_ids\":[1],\"labels\":[-1]}",
     "column 28: expected -100 or an id from 0 to 99, found -1"},
    {"{\"input_ids\":[1],\"labels\":[-1000]}",
     "column 28: expected -100 or an id from 0 to 99, found -1000"},
    {"{\"input_ids\":[1],\"labels\":[100]}",
     "column 28: expected -100 or an id from 0 to 99, found 100"},
    {"{\"input_ids\":[1],\"labels\":[-]}", "column 28: expected a number, found -"},
    /* the lengths differ */
    {"{\"input_ids\":[]}", "column 14: expected at least one id, found none"},
    {"{\"input_ids\":[1,2],\"labels\":[1]}",
     "column 29: expected 2 numbers, one for each of input_ids, found 1"},
    {"{\"labels\":[1,2,3],\"input_ids\":[1,2]}",
     "column 11: expected 2 numbers, one for each of input_ids, found 3"},
    {"{\"labels\":[],\"input_ids\":[1,2]}",
     "column 11: expected 2 numbers, one for each of input_ids, found 0"},
    /* a key twice */
    {"{\"input_ids\":[1],\"input_ids\":[1]}",
     "column 18: expected each key once, found \"input_ids\" a second time"},
    {"{\"input_ids\":[1],\"labels\":[1],\"labels\":[1]}",
     "column 31: expected each key once, found \"labels\" a second time"},
    /* empty */
    {"", "column 1: expected an object, found the end of the text"},
    {" \t ", "column 4: expected an object, found the end of the text"},
    {"\r", "column 2: expected an object, found the end of the text"},
    /* not UTF-8 */
    {"\xef\xbb\xbf{\"input_ids\":[1]}", "column 1: expected an object, found a byte order mark"},
    {"{\"a\":\"\xff\",\"input_ids\":[1]}", "column 7: expected UTF-8 text, found byte 0xff"},
    {"{\"a\":\"\xc0\x80\",\"input_ids\":[1]}", "column 7: expected UTF-8 text, found byte 0xc0"},
    {"{\"a\":\"\xed\xa0\x80\",\"input_ids\":[1]}",
     "column 7: expected UTF-8 text, found byte 0xed"},
};

RP_TEST_OF(names_line_column_expected_and_found, Fixture *f)
{
    for (gsize i = 0; i < G_N_ELEMENTS(bad_lines); i++) {
        g_autofree char *text =
            g_strdup_printf("{\"input_ids\":[1]}\n%s\n{\"input_ids\":[2]}\n", bad_lines[i].line);
        const char *words = strchr(bad_lines[i].message, ':') + 2;
        g_autofree char *place = g_strdup_printf(
            "FILE: line 2, %.*s", (int)(words - bad_lines[i].message), bad_lines[i].message);
        if (takes(f, text, strlen(text), 1))
            fail_msg("took: %s", bad_lines[i].line);
        rp_assert_error_message_contains(f->error, place);
        rp_assert_error_message_contains(f->error, words);
        assert_null(strchr(f->error->message, '\n'));
        assert_true(g_utf8_validate(f->error->message, -1, NULL));
        /* the others are not concerned */
        assert_true(takes(f, text, strlen(text), 0));
        assert_true(takes(f, text, strlen(text), 2));
    }
}

RP_TEST(refuses_every_cut_of_a_line)
{
    const char *line = "{\"input_ids\":[12,3],\"labels\":[-100,3],\"x\":[{\"y\":\"z\"}]}";

    assert_true(takes(*state, line, strlen(line), 0));
    for (gsize n = 1; n < strlen(line); n++)
        if (takes(*state, line, n, 0))
            fail_msg("took the first %zu bytes", n);
}

RP_TEST(refuses_a_zero_byte)
{
    static const char text[] = "{\"input_ids\":[1]}\n{\"input\0ids\":[1]}\n";
    Fixture *f = *state;

    assert_false(takes(f, text, sizeof text - 1, 1));
    rp_assert_error_message_contains(f->error,
                                     "line 2, column 8: expected UTF-8 text, found byte 0x00");
}

RP_TEST_OF(refuses_an_empty_line_at_the_end, Fixture *f)
{
    const char *text = "{\"input_ids\":[1]}\n\n";

    assert_false(takes(f, text, strlen(text), 1));
    assert_int_equal(rp_dataset_n_samples(f->dataset), 2);
    rp_assert_error_message_contains(f->error,
                                     "line 2, column 1: expected an object, found the end");
}

RP_TEST_OF(refuses_deep_nesting, Fixture *f)
{
    g_autoptr(GString) text = g_string_new("{\"input_ids\":[1],\"x\":");

    for (guint i = 0; i < 100000; i++)
        g_string_append_c(text, '[');
    assert_false(takes(f, text->str, text->len, 0));
    rp_assert_error_message_contains(f->error, "line 1, column 85: expected at most 64 levels");
}

RP_TEST_OF(refuses_a_line_too_long, Fixture *f)
{
    gsize length = RP_JSONL_MAX_LINE_BYTES + 1;
    char *text = g_malloc(length + 1);

    memset(text, ' ', length);
    memcpy(text, "{\"input_ids\":[1]}", 17);
    text[length] = '\n';
    f->bytes = g_bytes_new_take(text, length + 1);
    f->dataset = rp_dataset_new_jsonl("FILE", f->bytes, 100, &f->error);
    assert_non_null(f->dataset);
    assert_false(rp_dataset_read(f->dataset, 0, &f->sample, &f->error));
    rp_assert_error_message_contains(f->error, "line 1, column 1: expected at most 67108864 bytes "
                                               "in a line, found 67108865");
}

RP_TEST_OF(reads_a_line_of_a_million_ids_into_a_small_place, Fixture *f)
{
    g_autoptr(GString) text = g_string_new("{\"input_ids\":[0");

    for (guint i = 1; i < 1000000; i++)
        g_string_append_printf(text, ",%u", i % 100);
    g_string_append(text, "]}");
    assert_true(takes(f, text->str, text->len, 0));
    assert_int_equal(f->sample.n_tokens, 1000000);
    assert_int_equal(f->input_ids[3], 3);
}

RP_TEST_FIXTURE(setup, teardown)
