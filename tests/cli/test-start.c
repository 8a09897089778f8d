/* How people begin: `doctor`, `new`, `plan -o`, and a dry run without weights and data. */
#include "tests/cli/train-files.h"

#include <string.h>

RP_TEST(says_whether_train_can_run)
{
    g_auto(RpCliRun) text = rp_cli_run("doctor --devices host -o @T");
    g_autoptr(RpTree) json = rp_cli_run_json("doctor --devices host --quick --json");
    g_auto(RpCliRun) nowhere = rp_cli_run("doctor --devices host --quick -o @T/none");
    g_auto(RpCliRun) wrong = rp_cli_run("doctor --devices gpu");

    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "\n  memory "));
    assert_non_null(strstr(text.out, "\n  copies up "));
    assert_non_null(strstr(text.out, "\n  host memory "));
    assert_non_null(strstr(text.out, "\ntrain can run on processor threads"));
    assert_true(rp_cli_member(json, "trains")->number);
    assert_true(rp_cli_member(json, "disk_free_bytes")->number > 0);
    assert_true(rp_cli_member(json, "processors")->number >= 1);
    assert_int_equal(nowhere.code, 1);
    assert_non_null(strstr(nowhere.out, "\n! --output: "));
    assert_non_null(strstr(nowhere.out, "/none: No such file or directory\ntrain cannot run."));
    assert_int_equal(wrong.code, 2);
}

/* The file has the planned values, and it trains. */
RP_TEST(writes_a_run_file_that_trains)
{
    g_autoptr(RpTree) json = rp_cli_run_json(
        "new @T/new.yaml --model @T/model --data @T/data.jsonl --sequence 32 --json");
    g_autofree char *text = rp_cli_read("new.yaml");
    rp_cli_must_run("train @T/new.yaml --set epochs=1 --set devices=host:1 "
                    "--set profile=@T/times.json");
    rp_cli_must_refuse("new @T/new.yaml --model @T/model --data @T/data.jsonl --sequence 32", 2,
                       "found one; --force replaces it");

    assert_int_equal(rp_cli_member(json, "sequence_length")->number, 32);
    assert_non_null(strstr(text, "\n# tokens of a sequence\nsequence_length: 32\n"));
    assert_non_null(strstr(text, "\noptimizer:\n  # the learning rate at its highest\n"
                                 "  learning_rate: 1e-5\n"));
    assert_null(strstr(text, "lora:"));
}

/* It validates a share of the data; its comments hold once they are none. */
RP_TEST(writes_validation)
{
    g_auto(RpCliRun) made =
        rp_cli_run("new @T/validated.yaml --model @T/model --data @T/data.jsonl "
                   "--sequence 32");
    g_auto(RpCliRun) opened = rp_cli_shell("sed -i '/^  split:/,$s/^  # /  /' @T/validated.yaml");
    g_auto(RpCliRun) dry =
        rp_cli_run("train @T/validated.yaml --dry-run --json --set epochs=1 --set devices=host:1 "
                   "--set profile=@T/times.json");

    g_autofree char *text = rp_cli_read("validated.yaml");

    assert_int_equal(made.code + opened.code, 0);
    if (dry.code != 0)
        fail_msg("%s", dry.err);
    g_autoptr(RpTree) json = rp_cli_json(&dry);

    assert_true(rp_cli_member(rp_cli_member(json, "validation"), "every")->number >= 1);
    assert_non_null(strstr(text, "\n  split: 0.05\n"));
    assert_non_null(strstr(text, "\n  warmup_ratio: 0.05\n"));
    assert_non_null(strstr(text, "\n  keep_best: true\n"));
}

/* Few samples make small batches, long ones long sequences: nearly all is learned, in steps enough. */
RP_TEST(fits_the_lengths_of_the_data)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < 216; i++) {
        g_string_append(text, "{\"input_ids\":[1");
        for (guint n = i < 200 ? 100 + 3 * i : 900; n > 1; n--)
            g_string_append(text, ",2");
        g_string_append(text, "]}\n");
    }
    rp_cli_write("long.jsonl", text->str);
    g_auto(RpCliRun) made =
        rp_cli_run("new @T/long.yaml --model @T/model --data @T/long.jsonl --json");
    g_auto(RpCliRun) dry = rp_cli_run("train @T/long.yaml --dry-run --set devices=host:1 "
                                      "--set profile=@T/times.json");
    g_auto(RpCliRun) unread =
        rp_cli_run("new @T/unread.yaml --model @T/model --data @T/times.json");
    g_autoptr(RpTree) json = rp_cli_json(&made);
    const char *steps = strstr(dry.out, "\n  steps ");

    assert_int_equal(made.code + dry.code + unread.code, 0);
    assert_int_equal(rp_cli_member(json, "samples")->number, 216);
    /* 900 tokens, in whole multiples of 64 */
    assert_int_equal(rp_cli_member(json, "sequence_length")->number, 960);
    assert_true(rp_cli_member(json, "cut_ratio")->number < 0.02);
    assert_true(rp_cli_member(json, "steps")->number >= 100);
    assert_null(strstr(dry.out, "  warning "));
    if (steps == NULL || g_ascii_strtoull(steps + strlen("\n  steps"), NULL, 10) < 90)
        fail_msg("%s", dry.out);
    assert_non_null(strstr(unread.out, "the lengths of the samples are not known: "));
}

RP_TEST(writes_adapters_where_they_are_asked_for)
{
    g_auto(RpCliRun) made = rp_cli_run("new \"@T/a b #c.yaml\" --model @T/model --data "
                                       "@T/data.jsonl --sequence 32 --lora --lora-rank 4");
    g_auto(RpCliRun) trained = rp_cli_run("train \"@T/a b #c.yaml\" --set epochs=1 "
                                          "--set devices=host:1 --set profile=@T/times.json");
    g_autofree char *text = rp_cli_read("a b #c.yaml");

    if (made.code + trained.code != 0)
        fail_msg("%s%s", made.err, trained.err);
    assert_non_null(strstr(text, "/a b #c-output\"\n"));
    assert_non_null(strstr(text, "  rank: 4\n"));
    assert_non_null(strstr(text, "  alpha: 8\n"));
    assert_non_null(strstr(trained.out, "\n  adapters "));
}

RP_TEST(refuses_what_no_run_file_can_be_made_of)
{
    g_autofree char *never = rp_cli_temporary("never.yaml");

    rp_cli_must_refuse_all("start: refuses what no run file can be made of");
    assert_false(g_file_test(never, G_FILE_TEST_EXISTS));
}

RP_TEST(writes_the_run_that_plan_recommends)
{
    g_auto(RpCliRun) plan = rp_cli_run("plan @T/model --gpu rtx4090 --gpus 2 --lora-rank 8 "
                                       "--base nf4 --sequence 64 -o @T/planned.yaml");
    g_auto(RpCliRun) dry =
        rp_cli_run("train @T/planned.yaml --set devices=host:2 --set data=@T/data.jsonl "
                   "--set output=@T/planned --set profile=@T/times.json --dry-run");
    g_autofree char *text = rp_cli_read("planned.yaml");
    g_auto(RpCliRun) wrong =
        rp_cli_run("plan @T/model --gpu rtx4090 --max-sequence -o @T/planned.yaml");

    if (plan.code + dry.code != 0)
        fail_msg("%s%s", plan.err, dry.err);
    assert_non_null(strstr(text, "\ndevices: cuda:"));
    assert_non_null(strstr(text, "\nbase: nf4\n"));
    assert_non_null(strstr(text, "\nsequence_length: 64\n"));
    assert_int_equal(wrong.code, 2);
}

RP_TEST(plans_without_weights_and_data)
{
#define BARE                                                                                       \
    "train @T/run.yaml --set model=@T/bare --set data=@T/none.jsonl --set output=@T/bare-out "
    rp_cli_must_shell("mkdir @T/bare && cp @T/model/config.json @T/bare");
    g_autoptr(RpTree) one =
        rp_cli_run_json("train @T/run.yaml --dry-run --json --set packing=true");
    g_auto(RpCliRun) run = rp_cli_run(BARE "--dry-run --json");
    g_auto(RpCliRun) text = rp_cli_run(BARE "--dry-run --set lora.rank=2 --set base=nf4");
    rp_cli_must_refuse(BARE, 1, "model: ");
    g_autoptr(RpTree) other = rp_cli_json(&run);

    assert_int_equal(rp_cli_member(other, "parameters")->number,
                     rp_cli_member(one, "parameters")->number);
    assert_int_equal(rp_cli_member(other, "samples")->number, 0);
    assert_non_null(strstr(run.err, "has no weights: planned from its config.json\n"));
    if (text.code != 0)
        fail_msg("%s", text.err);
    assert_non_null(strstr(text.out, "none.jsonl: no such file yet\n"));
}

/* Cards that are not here: a dry run predicts as `plan` does, a real one says why it cannot. */
RP_TEST(predicts_for_a_card_that_is_not_here)
{
#define CARDS "train @T/cards.yaml --set data=@T/none.jsonl --set output=@T/cards "
    static const struct {
        const char *line;
        const char *says;
    } cases[] = {
        {CARDS "--dry-run --set devices=cuda:4096", "--set profile=CARD"},
        {CARDS "--set profile=rtx4090", "profile: expected auto, measure or a timing file, found "},
        {CARDS "--dry-run --set profile=rtx4090 --set devices=host:2", "devices: expected cuda:N"},
        {CARDS "--dry-run --set profile=rtx4090 --set devices=cuda", "devices: expected cuda:N"},
        {CARDS "--dry-run --set profile=rtx4090 --set dtype=fp32", "rtx4090: dtype: expected fp16"},
        {CARDS "--dry-run --set profile=rtx4091 --set devices=host:2",
         "profile: no file rtx4091, and "},
    };
    g_auto(RpCliRun) plan = rp_cli_run("plan qwen3-0.6b --gpu rtx4090 --gpus 2 --lora-rank 8 "
                                       "--base nf4 --json -o @T/cards.yaml");
    g_auto(RpCliRun) dry = rp_cli_run(CARDS "--dry-run --json --set profile=rtx4090");
    g_auto(RpCliRun) slow = rp_cli_run(CARDS "--dry-run --json --set profile=rtx3060");

    if (plan.code + dry.code + slow.code != 0)
        fail_msg("%s%s%s", plan.err, dry.err, slow.err);
    g_autoptr(RpTree) planned = rp_cli_json(&plan), one = rp_cli_json(&dry);
    g_autoptr(RpTree) other = rp_cli_json(&slow);
    const double ratio = rp_cli_number(one, "predicted.tokens_per_s") /
                         rp_cli_number(planned, "recommendation.tokens_per_s");

    if (!(ratio > 0.99 && ratio < 1.01))
        fail_msg("%s%s", plan.out, dry.out);
    assert_true(rp_cli_number(other, "predicted.tokens_per_s") <
                0.7 * rp_cli_number(one, "predicted.tokens_per_s"));
    assert_string_equal(rp_cli_member(one, "times")->text, "predicted");
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run = rp_cli_run("%s", cases[i].line);

        if (run.code == 0 || strstr(run.err, cases[i].says) == NULL)
            fail_msg("%s: exit code %d: %s", cases[i].line, run.code, run.err);
    }
}

/* A second start takes the times of the first; a run of other shapes, one that asks, and one that finds a file which
 * is cut, measure. */
RP_TEST(measures_layers_once)
{
#define DRY                                                                                        \
    "train @T/new.yaml --dry-run --json --set epochs=1 --set devices=host:1 --set "                \
    "micro_batches=2 "
#define NOTE "layer times of "
    g_auto(RpCliRun) first = rp_cli_run(DRY);
    g_auto(RpCliRun) second = rp_cli_run(DRY);
    g_auto(RpCliRun) other = rp_cli_run(DRY "--set micro_batch_size=2");
    g_auto(RpCliRun) anew = rp_cli_run(DRY "--set profile=measure");
    g_auto(RpCliRun) third = rp_cli_run(DRY);
    g_auto(RpCliRun) cut = rp_cli_shell("for f in @T/cache/roundpipe/profiles/*.json; do "
                                        "truncate -s 100 $f; done; ls @T/cache/roundpipe/profiles");
    g_auto(RpCliRun) after = rp_cli_run(DRY);
#undef DRY
    g_autoptr(RpTree) one = rp_cli_json(&first), two = rp_cli_json(&second);

    assert_null(strstr(first.err, NOTE));
    assert_non_null(strstr(second.err, NOTE));
    assert_true(rp_cli_number(one, "predicted.step_ms") == rp_cli_number(two, "predicted.step_ms"));
    assert_null(strstr(other.err, NOTE));
    assert_null(strstr(anew.err, NOTE));
    assert_non_null(strstr(third.err, NOTE));
    assert_int_equal(rp_cli_count_lines(cut.out), 2);
    assert_int_equal(after.code, 0);
    assert_null(strstr(after.err, NOTE));
#undef NOTE
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
