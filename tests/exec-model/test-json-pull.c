#include "tests/rp-test.h"

#include <math.h>

#include "core/json/json-record.h"
#include "core/json/json-write.h"

typedef struct {
    GError *error;
    GString *text;
    GString *key;
} Fixture;

static void
setup(Fixture *f)
{
    f->text = g_string_new(NULL);
    f->key = g_string_new(NULL);
}

static void
teardown(Fixture *f)
{
    g_clear_error(&f->error);
    g_string_free(f->text, TRUE);
    g_string_free(f->key, TRUE);
}

static gboolean
start(Fixture *f, RpJsonPull *pull, const char *text)
{
    g_clear_error(&f->error);
    return rp_json_pull_init(pull, "FILE", text, strlen(text), g_quark_from_static_string("test"),
                             7, &f->error);
}

static gboolean
takes(Fixture *f, const char *text)
{
    RpJsonPull pull;
    gboolean good = start(f, &pull, text) && rp_json_pull_skip(&pull) && rp_json_pull_end(&pull);

    assert_true(good == (f->error == NULL));
    return good;
}

RP_TEST(takes_json)
{
    static const char *const good[] = {
        "{}",
        " [ ] ",
        "0",
        "-0.5e+10",
        "1E9",
        "true",
        "null",
        "\"\\u00e9\\ud83d\\ude00\\n\"",
        "{\"a\":[1,{\"b\":[]},\"x\"],\"c\":false}",
        "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
    };

    for (gsize i = 0; i < G_N_ELEMENTS(good); i++)
        if (!takes(*state, good[i]))
            fail_msg("refused: %s", good[i]);
}

static char *
refusal(const char *text, gpointer data)
{
    Fixture *f = data;

    (void)takes(f, text);
    return rp_test_refusal(&f->error);
}

RP_TEST(refuses_what_is_not_json)
{
    rp_test_lines("tests/exec-model/messages.txt", "json-pull: not JSON", refusal, *state);
}

RP_TEST(refuses_more_levels_than_it_counts)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < RP_JSON_PULL_MAX_DEPTH; i++)
        g_string_append_c(text, '[');
    for (guint i = 0; i < RP_JSON_PULL_MAX_DEPTH; i++)
        g_string_append_c(text, ']');
    assert_true(takes(*state, text->str));
    g_string_prepend_c(text, '[');
    g_string_append_c(text, ']');
    assert_false(takes(*state, text->str));
}

RP_TEST(refuses_every_cut)
{
    const char *whole = "{\"a\":[1,{\"b\":[\"x\\n\"]}],\"c\":false}";

    for (gsize n = 0; n < strlen(whole); n++) {
        g_autofree char *cut = g_strndup(whole, n);
        assert_false(takes(*state, cut));
    }
}

RP_TEST_OF(reads_members_in_order, Fixture *f)
{
    RpJsonPull pull;
    guint64 whole;
    double number;
    gboolean boolean;

    assert_true(start(f, &pull,
                      "{\"a\": 18446744073709551615, \"b\": [-1.5, true], \"c\": {}, "
                      "\"d\\u00e9\": \"x\\\"y\", \"e\": null}"));
    assert_true(rp_json_pull_enter_object(&pull));
    assert_true(rp_json_pull_next_key(&pull, f->key));
    assert_string_equal(f->key->str, "a");
    assert_true(rp_json_pull_whole(&pull, &whole) && whole == G_MAXUINT64);
    assert_true(rp_json_pull_next_key(&pull, f->key) && rp_json_pull_enter_array(&pull));
    assert_true(rp_json_pull_next_element(&pull));
    assert_true(rp_json_pull_number(&pull, &number) && number == -1.5);
    assert_true(rp_json_pull_next_element(&pull));
    assert_true(rp_json_pull_boolean(&pull, &boolean) && boolean);
    assert_false(rp_json_pull_next_element(&pull));
    assert_true(rp_json_pull_next_key(&pull, f->key) && rp_json_pull_skip(&pull));
    assert_true(rp_json_pull_next_key(&pull, f->key) && rp_json_pull_string(&pull, f->text));
    assert_string_equal(f->key->str, "dé");
    assert_string_equal(f->text->str, "x\"y");
    assert_true(rp_json_pull_next_key(&pull, f->key));
    assert_int_equal(rp_json_pull_peek(&pull), RP_JSON_NULL);
    assert_true(rp_json_pull_null(&pull));
    assert_false(rp_json_pull_next_key(&pull, f->key));
    assert_false(pull.failed);
    assert_true(rp_json_pull_end(&pull));
}

static char *
refusal_of_number(const char *text, gpointer data)
{
    Fixture *f = data;
    RpJsonPull pull;
    guint64 whole;

    assert_false(start(f, &pull, text) && rp_json_pull_enter_object(&pull) &&
                 rp_json_pull_next_key(&pull, f->key) && rp_json_pull_whole(&pull, &whole));
    assert_false(rp_json_pull_skip(&pull)); /* once failed, always failed */
    assert_false(rp_json_pull_next_key(&pull, f->key));
    return rp_test_refusal(&f->error);
}

RP_TEST(names_line_column_and_what_it_found)
{
    rp_test_lines("tests/exec-model/messages.txt", "json-pull: no whole number", refusal_of_number,
                  *state);
}

static gboolean
read_id(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint64 id;

    if (!rp_json_pull_whole(pull, &id))
        return FALSE;
    g_string_append_printf(value, "%s=%d ", pull->key, (int)id);
    return TRUE;
}

/* A tokenizer's text, whose tokens hold quotes, spaces and characters after \u. */
RP_TEST_OF(a_record_without_keys_reads_any_in_order, Fixture *f)
{
    static const RpJsonField any = {NULL, read_id};
    RpJsonPull pull;

    assert_true(
        start(f, &pull, "{\"\\u0120a\": 1, \"\\\"\": 2, \"\\ud83d\\ude00\": 3, \"é\\n\": 4}"));
    assert_true(rp_json_read_record(&pull, &any, 1, f->text, NULL) && rp_json_pull_end(&pull));
    assert_string_equal(f->text->str, "Ġa=1 \"=2 😀=3 é\n=4 ");
}

RP_TEST_OF(writes_strings_that_read_back, Fixture *f)
{
    const char *hard = "a\"b\\c\n\x01\x1f é 😀 /";
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
    RpJsonPull pull;

    rp_json_string(json, NULL, hard);
    const char *text = rp_json_writer_text(json)->str;
    assert_true(start(f, &pull, text) && rp_json_pull_string(&pull, f->text));
    assert_string_equal(f->text->str, hard);
}

RP_TEST(writes_numbers_in_the_fewest_digits)
{
    static const struct {
        double value;
        const char *text;
        const char *short_text;
    } cases[] = {
        {1e-6, "1e-06", "1e-06"},
        {0.02, "0.02", "0.02"},
        {1e6, "1000000.0", "1e+06"},
        {500000, "500000.0", "5e+05"},
        {8, "8.0", "8.0"},
        {1e15, "1e+15", "1e+15"},
        {-0.0, "-0.0", "-0.0"},
        {19.0676, "19.0676", "19.0676"},
        {1.0 / 3, "0.3333333333333333", "0.3333333333333333"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
        rp_json_number(json, NULL, cases[i].value);
        assert_string_equal(rp_json_writer_text(json)->str, cases[i].text);
        g_string_truncate(rp_json_writer_text(json), 0);
        rp_json_append_number(rp_json_writer_text(json), cases[i].value, 1);
        assert_string_equal(rp_json_writer_text(json)->str, cases[i].short_text);
    }
}

RP_TEST(writes_every_kind_of_value)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_array(json, NULL);
    rp_json_int(json, NULL, G_MININT64);
    rp_json_uint(json, NULL, G_MAXUINT64);
    rp_json_bool(json, NULL, FALSE);
    rp_json_string(json, NULL, NULL);
    rp_json_number(json, NULL, NAN);
    rp_json_number(json, NULL, -INFINITY);
    rp_json_double(json, NULL, 2.0 / 3, 3);
    rp_json_decimal(json, NULL, 1500, 3, 3);
    rp_json_decimal(json, NULL, 1500, 3, 1);
    rp_json_decimal(json, NULL, -1, 3, 3);
    rp_json_decimal(json, NULL, G_MININT64, 3, 1);
    rp_json_object(json, NULL);
    rp_json_end(json);
    rp_json_end(json);
    assert_string_equal(rp_json_writer_text(json)->str,
                        "[-9223372036854775808,18446744073709551615,false,null,null,null,0.667,"
                        "1.500,1.5,-0.001,-9223372036854775.808,{}]");
}

RP_TEST(writes_each_layout)
{
    static const char *const texts[] = {
        [RP_JSON_COMPACT] = "{\"a\":1,\"b\":[1,2],\"c\":[{\"d\":1},[]]}",
        [RP_JSON_SPACED] = "{\"a\": 1, \"b\": [1, 2], \"c\": [{\"d\": 1}, []]}",
        [RP_JSON_PADDED] = "{ \"a\": 1, \"b\": [1, 2], \"c\": [{ \"d\": 1 }, []] }",
        [RP_JSON_LINES] = "{\n  \"a\": 1,\n  \"b\": [1, 2],\n  \"c\": [\n    {\n      \"d\": 1\n"
                          "    },\n    []\n  ]\n}\n",
    };

    for (guint layout = 0; layout < G_N_ELEMENTS(texts); layout++) {
        g_autoptr(RpJsonWriter) json = rp_json_writer_new((RpJsonLayout)layout);
        rp_json_object(json, NULL);
        rp_json_int(json, "a", 1);
        rp_json_array(json, "b");
        rp_json_int(json, NULL, 1);
        rp_json_int(json, NULL, 2);
        rp_json_end(json);
        rp_json_array(json, "c");
        rp_json_object(json, NULL);
        rp_json_int(json, "d", 1);
        rp_json_end(json);
        rp_json_array(json, NULL);
        rp_json_end(json);
        rp_json_end(json);
        rp_json_end(json);
        assert_string_equal(rp_json_writer_text(json)->str, texts[layout]);
    }
}

RP_TEST(layouts_nest_and_lines_break_where_asked)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_object_as(json, "a", RP_JSON_PADDED);
    rp_json_int(json, "b", 1);
    rp_json_break(json);
    rp_json_int(json, "c", 2);
    rp_json_end(json);
    rp_json_array(json, "d");
    rp_json_break(json);
    rp_json_string(json, NULL, "e");
    rp_json_end(json);
    rp_json_end(json);
    assert_string_equal(
        rp_json_writer_text(json)->str,
        "{\n  \"a\": { \"b\": 1,\n    \"c\": 2 },\n  \"d\": [\n    \"e\"\n  ]\n}\n");
}

RP_TEST_STATE(Fixture, setup, teardown)
