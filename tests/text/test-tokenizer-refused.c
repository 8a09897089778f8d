/* Files that need missing features, or are broken: the line, the column, the key. */
#include "tests/rp-test.h"

#include "text/tokenizer/tokenizer.h"

/* A small file in which one part is another. */
#define MODEL                                                                                      \
    "{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}"

static const struct {
    const char *json;
    const char *message;
} refused[] = {
    {"", "FILE: line 1, column 1: expected an object, found the end of the text"},
    {"{}", "model: expected an object, found nothing"},
    {"{\"model\": {\"type\": \"Unigram\"}}",
     "line 1, column 20: model.type: expected \"BPE\", found \"Unigram\""},
    {"{\"modell\": {}}", "expected a known key such as \"model\""},
    {"{\"model\": " MODEL "} x", "expected the end of the text"},
    {"{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
     "model.vocab.b: expected each token and each id once"},
    {"{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}",
     "each token and each id once"},
    {"{\"model\": {\"vocab\": {\"a\": 99999999}, \"merges\": []}}", "at most 16777215"},
    {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", "expected a whole number"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\n\"a b\"]}}",
     "line 2, column 1: model.merges[0]: expected two tokens of the vocabulary that make a third"},
    {"{\"model\": {\"merges\": [\n\"a b\"], \"vocab\": {\"a\": 0}}}",
     "line 2, column 1: model.merges[0]: expected two tokens"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}", "with a space between them"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b c\"]}}", "with a space between them"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", "expected two tokens"},
    {"{\"model\": {\"vocab\": {}, \"merges\": [], \"dropout\": 0.5}}",
     "dropout: expected 0 or null"},
    {"{\"model\": {\"vocab\": {}, \"merges\": [], \"unk_token\": \"u\"}}",
     "unk_token: expected a token of the vocabulary"},
    {"{\"model\": {\"vocab\": {}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}}",
     "end_of_word_suffix: expected null"},
    {"{\"model\": {\"vocab\": {}, \"merges\": [], \"continuing_subword_prefix\": \"##\"}}",
     "continuing_subword_prefix: expected null"},
    {"{\"normalizer\": {\"type\": \"Lowercase\"}, \"model\": " MODEL "}", "found \"Lowercase\""},
    {"{\"normalizer\": {\"type\": \"Replace\"}, \"model\": " MODEL "}",
     "normalizer.pattern: expected a Regex or a String"},
    {"{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, "
     "{\"type\": \"Nmt\"}]}, \"model\": " MODEL "}",
     "normalizer.normalizers[1].type: expected one of"},
    {"{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"model\": " MODEL "}",
     "pre_tokenizer.type: expected one of"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, "
     "\"behavior\": \"Isolated\"}, \"model\": " MODEL "}",
     "pre_tokenizer.pattern: expected a regular expression"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\w+\"}, "
     "\"behavior\": \"Isolated\"}, \"model\": " MODEL "}",
     "found \\w"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, "
     "\"behavior\": \"Isolated\"}, \"model\": " MODEL "}",
     "found &&"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[b]]\"}, "
     "\"behavior\": \"Isolated\"}, \"model\": " MODEL "}",
     "found a class within a class"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}, "
     "\"model\": " MODEL "}",
     "expected a Regex or a String"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}}, "
     "\"model\": " MODEL "}",
     "pre_tokenizer.behavior: expected a word"},
    {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", "
     "\"add_prefix_space\": false}, {\"type\": \"WhitespaceSplit\"}]}, \"model\": " MODEL "}",
     "pretokenizers[1].type: expected nothing behind ByteLevel"},
    {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
     "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}]}, \"model\": " MODEL "}",
     "add_prefix_space: expected this in the first pre_tokenizer only"},
    {"{\"post_processor\": {\"type\": \"BertProcessing\"}, \"model\": " MODEL "}",
     "post_processor.type: expected one of"},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
     "{\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {}}, "
     "\"model\": " MODEL "}",
     "single: expected tokens of special_tokens, found \"<s>\""},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
     "{\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"id\": "
     "\"<s>\", \"ids\": [7], \"tokens\": [\"<s>\"]}}}, \"model\": " MODEL "}",
     "post_processor: expected ids of tokens, found 7"},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}, \"model\": " MODEL
     "}",
     "single: expected an array with the text"},
    {"{\"decoder\": {\"type\": \"WordPiece\"}, \"model\": " MODEL "}",
     "decoder.type: expected one of"},
    {"{\"added_tokens\": [{\"id\": 2, \"content\": \"<x>\"}], \"model\": " MODEL "}",
     "line 1, column 19: added_tokens: expected the vocabulary's id, or one that it has not, found "
     "2 "
     "for \"<x>\""},
    {"{\"added_tokens\": [{\"id\": 5, \"content\": \"ab\"}], \"model\": " MODEL "}",
     "found 5 for \"ab\""},
    {"{\"added_tokens\": [{\"content\": \"ab\"}], \"model\": " MODEL "}",
     "added_tokens[0].id: expected"},
};

RP_TEST(names_the_place_and_what_was_expected)
{
    for (gsize i = 0; i < G_N_ELEMENTS(refused); i++) {
        GError *error = NULL;
        RpTokenizer *tokenizer =
            rp_tokenizer_parse("FILE", refused[i].json, strlen(refused[i].json), &error);

        rp_assert_error_message_contains(error, refused[i].message);
        assert_true(error->domain == RP_TOKENIZER_ERROR);
        assert_null(tokenizer);
        g_clear_error(&error);
    }
}

RP_TEST(says_which_file_is_not_there)
{
    GError *error = NULL;

    assert_null(rp_tokenizer_open("/nonexistent", &error));
    rp_assert_error(&error, "/nonexistent: cannot read");
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
