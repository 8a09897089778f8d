/* train on several files, texts, shares and epochs. */
#include "tests/cli/train-files.h"

#include <math.h>

#define TRAIN "train @T/run.yaml --set output=@T/"

static char *
ids(guint from, guint n)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < n; i++)
        g_string_append_printf(text, "{\"input_ids\":[1,2,%u,4]}\n", from + i % 20);
    return g_string_free(text, FALSE);
}

static int
setup(void **state)
{
    if (rp_train_files_setup(state) != 0)
        return 1;
    g_autofree char *a = ids(3, 30), *b = ids(5, 50);
    g_autoptr(GString) letters = g_string_new("");
    g_autoptr(GString) texts = g_string_new("");

    rp_cli_write("a.jsonl", a);
    rp_cli_write("b.jsonl", b);
    for (guint i = 0; i < 26; i++)
        g_string_append_printf(letters, "\"%c\":%u,", 'a' + i, i);
    g_autofree char *tokenizer = g_strdup_printf(
        "{\"added_tokens\":[{\"id\":27,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":"
        "false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":"
        "true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{%s\"\xc4\xa0\":26,\"<end>\":27},\"merges\":[]}}",
        letters->str);
    rp_cli_write("tokenizer.json", tokenizer);
    rp_cli_write("tokenizer_config.json", "{\"eos_token\":\"<end>\"}");
    for (guint i = 0; i < 40; i++)
        g_string_append_printf(texts, "{\"text\":\"%.*s\"}\n", (int)(i % 12 + 1), "abcdefghijkl");
    rp_cli_write("texts.jsonl", texts->str);
    rp_cli_write("pairs.json", "[{\"prompt\":\"ab\",\"completion\":\"cd\"},\n"
                               " {\"prompt\":\"b\",\"completion\":\"efg\"}]");
    g_auto(RpCliRun) moved =
        rp_cli_shell("cp -r @T/model @T/texts; mv @T/tokenizer*.json @T/texts; "
                     "gzip -k @T/texts.jsonl; mkdir @T/folder; "
                     "cp @T/a.jsonl @T/folder/2.jsonl; "
                     "cp @T/b.jsonl @T/folder/1.jsonl");
    return moved.code;
}

/* The dry run's JSON. */
static RpTree *
dry(const char *more)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "dry --dry-run --json --set %s", more);

    if (run.code != 0)
        fail_msg("%s: %s", more, run.err);
    return rp_cli_json(&run);
}

static void
assert_samples(const char *more, guint expected)
{
    g_autoptr(RpTree) json = dry(more);

    assert_int_equal(rp_cli_number(json, "samples"), expected);
}

RP_TEST(reads_lists_folders_and_patterns)
{
    assert_samples("data=[@T/a.jsonl,@T/b.jsonl]", 80);
    assert_samples("data=@T/folder", 80);
    assert_samples("data=@T/[ab].jsonl", 80);
    assert_samples("data=@T/[a].jsonl,@T/folder", 110);
    assert_samples("data=[@T/a.jsonl,@T/b.jsonl] --set data_weights=[2,0.5]", 85);
    assert_samples("data=[@T/a.jsonl,@T/b.jsonl] --set data_weights=0.5,1.1", 70);
}

RP_TEST(makes_samples_of_texts_once)
{
    g_auto(RpCliRun) first =
        rp_cli_run(TRAIN "dry --dry-run --set model=@T/texts --set data=@T/texts.jsonl");
    g_auto(RpCliRun) again =
        rp_cli_run(TRAIN "dry --dry-run --set model=@T/texts --set data=@T/texts.jsonl");
    g_auto(RpCliRun) elsewhere =
        rp_cli_run(TRAIN "dry --dry-run --set model=@T/texts --set data=@T/texts.jsonl "
                         "--set data_cache=@T/cache/deep");
    g_auto(RpCliRun) changed =
        rp_cli_shell("echo '{\"text\":\"zz\"}' >> @T/texts.jsonl; $ROUNDPIPE train @T/run.yaml "
                     "--dry-run --set model=@T/texts --set data=@T/texts.jsonl --json");

    assert_int_equal(first.code, 0);
    assert_non_null(strstr(first.err, "note: data: samples written to "));
    assert_non_null(strstr(again.err, "note: data: samples of "));
    assert_non_null(strstr(elsewhere.err, "/cache/deep/samples-"));
    assert_non_null(strstr(changed.err, "note: data: samples written to "));
    g_autoptr(RpTree) json = rp_cli_json(&changed);
    assert_int_equal(rp_cli_number(json, "samples"), 41);
}

/* Killed and resumed, on one device or four: the same bits as in one go. */
RP_TEST(trains_on_texts_to_the_same_bits)
{
    static const char words[] =
        " --set model=@T/texts --set data=[@T/texts.jsonl.gz,@T/pairs.json] --set epochs=3 "
        "--set steps= --set data_weights=[1,2.5] --set checkpoint.every=2";
    g_auto(RpCliRun) whole = rp_cli_run(TRAIN "whole%s", words);
    g_auto(RpCliRun) four = rp_cli_run(TRAIN "four%s --set devices=host:4", words);
    g_auto(RpCliRun) cut = rp_cli_shell(
        "$ROUNDPIPE train @T/run.yaml --set output=@T/cut %s & pid=$!; "
        "until [ -e @T/cut/checkpoint-2 ]; do sleep 0.01; done; kill -KILL $pid; wait $pid; "
        "$ROUNDPIPE train @T/run.yaml --set output=@T/cut %s --resume",
        words, words);

    if (whole.code != 0 || four.code != 0 || cut.code != 0)
        fail_msg("%s%s%s", whole.err, four.err, cut.err);
    g_autofree char *expected = rp_train_files_learned("whole");
    g_autofree char *on_four = rp_train_files_learned("four");
    g_autofree char *resumed = rp_train_files_learned("cut");
    assert_string_equal(on_four, expected);
    assert_string_equal(resumed, expected);
}

RP_TEST(runs_as_many_steps_as_epochs_take)
{
    /* 30 samples of 4 tokens: 4 of them in a sequence of 16, 16 in a step */
    g_autoptr(RpTree) packed = dry("data=@T/a.jsonl --set steps= --set epochs=3");
    g_autoptr(RpTree) padded =
        rp_cli_run_json(TRAIN "epochs --set data=@T/a.jsonl --set steps= --set epochs=3 "
                              "--set packing=false --set gradient_accumulation_steps=2 --json");
    g_auto(RpCliRun) both = rp_cli_run(TRAIN "both --dry-run --set steps=7 --set epochs=3");

    assert_true(rp_cli_number(packed, "useful_ratio") > 0.9);
    /* 90 samples, 8 a step: the last is not full */
    assert_int_equal(rp_cli_number(padded, "last_step"), 12);
    assert_non_null(strstr(both.out, "  steps            7: ")); /* as transformers has it */
    g_autofree char *metrics = rp_cli_read("epochs/metrics.jsonl");
    g_auto(GStrv) lines = g_strsplit(metrics, "\n", -1);
    guint64 tokens = 0;
    for (guint i = 0; lines[i] != NULL && *lines[i] != '\0'; i++)
        tokens += g_ascii_strtoull(strstr(lines[i], "\"tokens\":") + 9, NULL, 10);
    assert_int_equal(tokens, 90 * 4);
}

RP_TEST(validates_a_share_of_the_samples)
{
    g_auto(RpCliRun) run =
        rp_cli_run(TRAIN "split --set data=[@T/a.jsonl,@T/b.jsonl] --set eval.split=0.25");
    g_auto(RpCliRun) both =
        rp_cli_run(TRAIN "split --set eval.data=@T/a.jsonl --set eval.split=0.25");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "60 samples, 240 tokens"));
    assert_non_null(strstr(run.out, "validation       20 samples, 80 tokens"));
    assert_non_null(strstr(run.err, "validation loss "));
    assert_int_equal(both.code, 2);
}

RP_TEST(counts_and_refuses_long_samples)
{
    g_auto(RpCliRun) error = rp_cli_run(TRAIN "long --set excess_length_strategy=error");
    g_auto(RpCliRun) drop = rp_cli_run(TRAIN "long --set excess_length_strategy=drop --dry-run");
    g_auto(RpCliRun) cut = rp_cli_run(TRAIN "long --dry-run");

    assert_int_equal(error.code, 1);
    assert_non_null(strstr(error.err, "expected at most 16 tokens (sequence_length), found 24; "));
    assert_non_null(strstr(error.err, "set excess_length_strategy to truncate or drop"));
    assert_non_null(strstr(drop.out, "samples are longer than a sequence and left out"));
    assert_non_null(strstr(cut.out, "samples are cut, "));
    assert_non_null(strstr(cut.out, "% of their tokens are useful, "));
}

RP_TEST(names_bad_records_and_leaves_them_out_if_it_may)
{
    rp_cli_write("bad.json", "[{\"text\":\"ab\"},\n{\"txt\":\"ab\"},\n{\"text\":\"\xff\"}]");
    g_auto(RpCliRun) bad =
        rp_cli_run(TRAIN "bad --dry-run --set model=@T/texts --set data=@T/bad.json");
    g_auto(RpCliRun) skipped =
        rp_cli_run(TRAIN "bad --dry-run --set model=@T/texts --set data=@T/bad.json "
                         "--set skip_bad_samples=true");
    rp_cli_must_refuse(TRAIN "bad --dry-run --set data=@T/bad.json", 1, "tokenizer.json");

    assert_int_equal(bad.code, 1);
    assert_non_null(strstr(bad.err, "data: "));
    assert_non_null(strstr(bad.err, "bad.json: line 2, column 1: "));
    assert_int_equal(skipped.code, 0);
    assert_non_null(strstr(skipped.err, "warning: data: 2 bad records left out (skip_bad_samples); "
                                        "the first: "));
}

/* Rises in as many steps as transformers takes: ceil(0.3 * 5) = 2. */
RP_TEST(warms_up_in_a_share_of_the_steps)
{
    g_auto(RpCliRun) share = rp_cli_run(TRAIN "share --set optimizer.warmup_ratio=0.3");
    g_auto(RpCliRun) steps = rp_cli_run(TRAIN "steps --set optimizer.warmup_steps=2");
    g_auto(RpCliRun) both = rp_cli_run(TRAIN "never --set optimizer.warmup_steps=2 "
                                             "--set optimizer.warmup_ratio=0.3");
    g_autofree char *by_share = rp_train_files_learned("share");
    g_autofree char *by_steps = rp_train_files_learned("steps");

    assert_int_equal(share.code + steps.code, 0);
    assert_string_equal(by_share, by_steps);
    rp_cli_assert_refused(&both, "both", 2, "found both");
}

RP_TEST(warns_of_lost_tokens_and_samples_and_of_few_steps)
{
#define LINE " --dry-run --set steps= --set epochs=1 --set sequence_length="
    static const struct {
        const char *more, *part;
        gboolean warns;
    } cases[] = {
        {LINE "12", "  warning          ", TRUE},
        {LINE "12", " % of the tokens are cut: raise sequence_length, the longest sample has 2",
         TRUE},
        {LINE "12 --set excess_length_strategy=drop", " % of the samples are left out: ", TRUE},
        {LINE "12 --set excess_length_strategy=drop", " tokens are cut", FALSE},
        {LINE "32", "are cut", FALSE},
        {LINE "32", " steps: fewer micro_batches give more, or more epochs", TRUE},
        {LINE "32 --set epochs=40", "fewer micro_batches", FALSE},
        {" --dry-run", "fewer micro_batches", FALSE},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml%s", cases[i].more);

        if (run.code != 0 || (strstr(run.out, cases[i].part) != NULL) != cases[i].warns)
            fail_msg("%s: %s: %s%s", cases[i].more, cases[i].part, run.out, run.err);
    }
#undef LINE
}

RP_TEST(says_how_other_data_become_records)
{
    static const char *const rows[][2] = {
        {"@T/x.parquet",
         "x.parquet: expected a .jsonl or .json file; Python's datasets rewrites it"},
        {"@T/x.csv", "load_dataset(\"csv\", data_files="},
        {"org/chats", "org/chats: expected a .jsonl or .json file; no such file; "},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *line = g_strconcat(TRAIN "other --set data=", rows[i][0], NULL);

        rp_cli_must_refuse(line, 1, rows[i][1]);
    }
}

RP_TEST_GROUP(setup, rp_cli_teardown)
