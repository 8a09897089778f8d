/* roundpipe inspect. */
#include "tests/cli/train-files.h"

#include <math.h>

#define CHAT(question, answer)                                                                     \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" question "\"},"                             \
    "{\"role\":\"assistant\",\"content\":\"" answer "\"}]}\n"

static int
setup(void **state)
{
    g_autoptr(GString) letters = g_string_new("");

    if (rp_train_files_setup(state) != 0)
        return 1;
    for (guint i = 0; i < 26; i++)
        g_string_append_printf(letters, "\"%c\":%u,", 'a' + i, i);
    g_autofree char *tokenizer = g_strdup_printf(
        "{\"added_tokens\":[{\"id\":27,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":"
        "false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":"
        "true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{%s\"\xc4\xa0\":26,\"<end>\":27,\"\xc3\x82\":28,"
        "\"\xc4\xa7\":29},\"merges\":[]}}",
        letters->str);
    rp_cli_write("model/tokenizer.json", tokenizer);
    rp_cli_write("model/tokenizer_config.json",
                 "{\"eos_token\":\"<end>\",\"chat_template\":\"{% for m in messages %}"
                 "{{ m.role[0] }} {{ m.content }}<end>{% endfor %}\"}");
    rp_cli_write("chats.jsonl", CHAT("ab", "cde") CHAT("b", "c") CHAT("abcdefgh", "i"));
    return 0;
}

RP_TEST(shows_learned_text)
{
    g_auto(RpCliRun) run =
        rp_cli_run("inspect @T/chats.jsonl --model @T/model --sequence-length 16 --samples 2");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "  samples           3\n"));
    /* u ab<end>a cde<end>: 4 of 11; 2 of 8; 2 of 15 */
    assert_non_null(strstr(run.out, "  tokens            34, 23.5 % of them learned\n"));
    assert_non_null(strstr(run.out, "chats.jsonl: line 1, 11 tokens\n  | u ab<end>a \n"
                                    "  + cde<end>\n"));
    assert_non_null(strstr(run.out, "line 2, 8 tokens"));
    assert_null(strstr(run.out, "line 3,"));
    assert_null(strchr(run.out, '\033'));
}

RP_TEST(tells_all_as_json)
{
    g_autoptr(RpTree) json =
        rp_cli_run_json("inspect @T/chats.jsonl --model @T/model --sequence-length 10 --json "
                        "--train-on all --samples 1 --data-cache @T/cache");

    assert_int_equal(rp_cli_number(json, "samples"), 3);
    assert_int_equal(rp_cli_number(json, "learned_tokens"), 31);
    assert_int_equal(rp_cli_number(json, "lengths.most"), 15);
    assert_int_equal(rp_cli_number(json, "longer_samples"), 2);
    assert_true(fabs(rp_cli_number(json, "useful_ratio_unpacked") - 28.0 / 30) < 1e-6);
    assert_int_equal(rp_cli_number(json, "examples.0.tokens"), 11);
    assert_string_equal(rp_cli_member(json, "examples.0.parts.0.text")->text,
                        "u ab<end>a cde<end>");
    assert_int_equal(rp_cli_number(json, "examples.0.parts.0.cut_tokens"), 1);
    assert_int_equal(rp_cli_member(json, "examples.0.parts.0.ids")->items->len, 11);
    /* letters that would harm a terminal are in JSON as they are trained on */
    rp_cli_write("harmful.jsonl", "{\"text\": \"a\\u0085b\"}\n");
    g_autoptr(RpTree) whole = rp_cli_run_json("inspect @T/harmful.jsonl --model @T/model --json");
    g_auto(RpCliRun) shown = rp_cli_run("inspect @T/harmful.jsonl --model @T/model");
    assert_string_equal(rp_cli_member(whole, "examples.0.parts.0.text")->text, "a\xc2\x85"
                                                                               "b<end>");
    assert_non_null(strstr(shown.out, "a\xef\xbf\xbd"
                                      "b"));
    g_autofree char *names = rp_train_files_list("cache");
    assert_non_null(strstr(names, "samples-"));
}

/* Before anything is read; a part that would fill the screen is cut there. */
RP_TEST(refuses_options_and_cuts_long_parts)
{
    g_auto(RpCliRun) one = rp_cli_run("inspect @T/none --sequence-length 1");
    rp_cli_must_refuse("inspect @T/none --picture @T/x.bmp", 2,
                       "--picture: expected a name that ends in .png");
    g_autofree char *path = rp_cli_temporary("long.jsonl");
    g_autofree char *letters = g_strnfill(50000, 'a');
    g_autofree char *text = g_strdup_printf("{\"text\": \"%s\"}\n", letters);

    assert_int_equal(one.code, 2);
    assert_non_null(strstr(
        one.err, "--sequence-length: expected a whole number from 2 to 1048576, found \"1\""));
    assert_true(g_file_set_contents(path, text, -1, NULL));
    g_auto(RpCliRun) cut = rp_cli_run("inspect @T/long.jsonl --model @T/model");
    g_auto(RpCliRun) whole = rp_cli_run("inspect @T/long.jsonl --model @T/model --json");

    assert_non_null(strstr(cut.out, "aa [46005 more characters] aa"));
    assert_non_null(strstr(whole.out, letters));
}

/* Output on a terminal: `script` makes one. */
RP_TEST(colours_a_terminal_unless_told)
{
    static const char words[] = "inspect @T/chats.jsonl --model @T/model --samples 1";
    g_auto(RpCliRun) colour = rp_cli_shell("TERM=xterm NO_COLOR= script -qec \"$ROUNDPIPE %s\" "
                                           "/dev/null",
                                           words);
    g_auto(RpCliRun) none =
        rp_cli_shell("TERM=xterm NO_COLOR=1 script -qec \"$ROUNDPIPE %s\" /dev/null", words);

    assert_int_equal(colour.code, 0);
    assert_non_null(strstr(colour.out, "\033[32mcde<end>\033[0m"));
    assert_null(strstr(none.out, "\033[32m"));
    assert_non_null(strstr(none.out, "+ cde<end>"));
}

RP_TEST(shows_ids_without_a_model)
{
    g_auto(RpCliRun) run = rp_cli_run("inspect @T/data.jsonl --samples 1");
    rp_cli_must_refuse("inspect @T/chats.jsonl", 1, "name the model with --model");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "line 1, "));
    assert_non_null(strstr(run.out, "  + 1 "));
}

RP_TEST_GROUP(setup, rp_cli_teardown)
