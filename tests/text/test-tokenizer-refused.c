/* Files that need missing features, or are broken: the line, the column, the key. */
#include "tests/rp-test.h"

#include "text/tokenizer/tokenizer.h"

/* A small file in which one part is another. */
#define MODEL                                                                                      \
    "{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}"

static char *
refusal(const char *json, gpointer data)
{
    GError *error = NULL;

    (void)data;
    rp_tokenizer_free(rp_tokenizer_parse("FILE", json, strlen(json), &error));
    return rp_test_refusal(&error);
}

RP_TEST(names_the_place_and_what_was_expected)
{
    rp_test_lines("tests/text/messages.txt", "tokenizer-refused: files", refusal, NULL);
}

RP_TEST(says_which_file_is_not_there)
{
    rp_refuses("/nonexistent: cannot read", rp_tokenizer_open, "/nonexistent");
}

/* Alternatives that all match make a backtracking search exponential: it is given up. */
RP_TEST(gives_up_on_a_pattern_without_end)
{
    static const char json[] =
        "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a|a|aa)+$x\"}, "
        "\"behavior\": \"Isolated\"}, \"model\": " MODEL "}";
    GError *error = NULL;
    RpTokenizer *tokenizer = rp_tokenizer_parse("FILE", json, strlen(json), &error);
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    char text[200];

    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "bx", 2);
    rp_assert_no_error(error);
    const gboolean good =
        rp_tokenizer_encode(tokenizer, text, sizeof text, RP_ENCODE_TEXT, ids, NULL, &error);

    assert_false(good);
    rp_assert_error_message_contains(error, "takes too long");
    assert_int_equal(ids->len, 0);
    g_array_unref(ids);
    rp_tokenizer_free(tokenizer);
    g_clear_error(&error);
}
