/* `roundpipe tokenize`, with --decode too: there and back, forms of output, and what is refused. */
#include "tests/cli/run-cli.h"

#define LLAMA3 "@R/tests/text/fixtures/llama3.json"

static void
expect(const char *line, const char *out)
{
    g_auto(RpCliRun) run = rp_cli_shell("%s", line);

    if (run.code != 0 || strcmp(run.out, out) != 0)
        fail_msg("%s: exit code %d, expected\n%s\nfound\n%s%s", line, run.code, out, run.out,
                 run.err);
}

RP_TEST(goes_there_and_back)
{
    expect("printf 'Hello w\\303\\266rld<|end|>\\n\\n' | $ROUNDPIPE tokenize " LLAMA3
           " --no-template | $ROUNDPIPE tokenize --decode " LLAMA3,
           "Hello wörld<|end|>\n\n");
    expect("printf 'Hello<|end|>' | $ROUNDPIPE tokenize " LLAMA3
           " | $ROUNDPIPE tokenize --decode " LLAMA3 " -",
           "<|begin|>Hello<|end|>");
    expect("printf 'Hello<|end|>' | $ROUNDPIPE tokenize " LLAMA3
           " | $ROUNDPIPE tokenize --decode " LLAMA3 " --no-special",
           "Hello");
    expect("printf 'one\\n\\ntwo' | $ROUNDPIPE tokenize " LLAMA3
           " --lines --no-template | $ROUNDPIPE tokenize --decode " LLAMA3 " --lines",
           "one\n\ntwo\n");
    expect("echo '[423, 424]' | $ROUNDPIPE tokenize --decode " LLAMA3, "<|begin|><|end|>");
}

/* JSON was cut at the first one. */
RP_TEST(writes_a_nul_of_a_text)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("printf 'a\\000b' | $ROUNDPIPE tokenize " LLAMA3
                     " --no-template | $ROUNDPIPE tokenize --decode " LLAMA3 " --json");

    assert_int_equal(run.code, 0);
    if (strstr(run.out, "\"a\\u0000b\"") == NULL)
        fail_msg("%s%s", run.out, run.err);
}

RP_TEST(shows_ids_places_and_counts)
{
    expect("printf 'a<|end|>' | $ROUNDPIPE tokenize " LLAMA3, "423 64 424\n");
    expect("printf 'a<|end|>' | $ROUNDPIPE tokenize " LLAMA3 " --text",
           "     423         0        0  <|begin|>\n"
           "      64         0        1  a\n"
           "     424         1        8  <|end|>\n");
    expect("printf 'a<|end|>' | $ROUNDPIPE tokenize " LLAMA3 " --count --no-special --no-template",
           "7\n");

    g_auto(RpCliRun) run =
        rp_cli_shell("printf 'a\\nb b' | $ROUNDPIPE tokenize " LLAMA3 " --lines --text --json");
    g_autoptr(RpTree) root = rp_cli_json(&run);
    g_autofree char *ids = rp_cli_list(root, "texts.1.ids");
    g_autofree char *starts = rp_cli_list(root, "texts.1.starts");

    assert_int_equal(rp_cli_number(root, "vocabulary"), 426);
    assert_int_equal(rp_cli_number(root, "tokens"), 5);
    assert_string_equal(ids, "423,65,347");
    assert_string_equal(starts, "0,0,1");
    assert_string_equal(rp_cli_member(root, "texts.1.tokens.2")->text, "Ġb");
}

RP_TEST(says_what_is_wrong)
{
    rp_cli_must_refuse_all("tokenize: says what is wrong");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
