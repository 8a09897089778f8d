/* Validation in `roundpipe train`: its loss, the best checkpoint, patience, and all of it resumed. */
#include "tests/cli/train-files.h"

#include <math.h>

#define TRAIN "train @T/run.yaml --set output=@T/%s --set eval.data=@T/data.jsonl --json "

/* Lines of metrics that have @key. */
static GPtrArray *
lines_with(const char *output, const char *key)
{
    g_autofree char *name = g_strdup_printf("%s/metrics.jsonl", output);
    g_autofree char *text = rp_cli_read(name);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autofree char *quoted = g_strdup_printf("\"%s\":", key);
    GPtrArray *found = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; lines[i] != NULL; i++)
        if (strstr(lines[i], quoted) != NULL)
            g_ptr_array_add(found, g_strdup(lines[i]));
    return found;
}

static double
number_of(const char *line, const char *key)
{
    g_autoptr(RpTree) root = rp_tree_parse(line);

    assert_non_null(root);
    return rp_cli_number(root, key);
}

/* (transfer full) */
static char *
best_of(const char *output)
{
    g_autofree char *name = g_build_filename(output, "best", NULL);
    g_autofree char *link = rp_cli_temporary(name);

    return g_file_read_link(link, NULL);
}

RP_TEST(losses_stand_in_metrics_and_training_is_the_same)
{
    static const char *const kinds[] = {"--set async=true", "--set async=false",
                                        "--set schedule=1f1b --set devices=host:2 --set round=all"};

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autoptr(RpTree) root =
            rp_cli_run_json(TRAIN "--set steps=7 --set eval.every=3 %s", "with", kinds[i]);
        rp_cli_must_run("train @T/run.yaml --set output=@T/without --set steps=7 %s", kinds[i]);
        g_autoptr(GPtrArray) steps = lines_with("with", "loss");
        g_autoptr(GPtrArray) other = lines_with("without", "loss");
        g_autoptr(GPtrArray) losses = lines_with("with", "eval_loss");

        assert_int_equal(losses->len, 4); /* 0, 3, 6 and the last */
        assert_int_equal(steps->len, 7);
        for (guint s = 0; s < steps->len; s++)
            assert_true(number_of(g_ptr_array_index(steps, s), "loss") ==
                        number_of(g_ptr_array_index(other, s), "loss"));
        for (guint e = 0; e < losses->len; e++) {
            const char *line = g_ptr_array_index(losses, e);
            const double loss = number_of(line, "eval_loss");

            assert_float_equal(number_of(line, "step"), e < 3 ? 3 * e : 7, 0);
            assert_float_equal(number_of(line, "eval_perplexity"), exp(loss), 1e-9 * exp(loss));
            assert_true(number_of(line, "eval_tokens") > 0);
            assert_true(number_of(line, "eval_runtime") > 0);
        }
        assert_float_equal(rp_cli_number(root, "evaluations.count"), 4, 0);
        assert_true(rp_cli_number(root, "validation.predicted_ms") > 0);
        rp_cli_must_shell(
            "for file in model optimizer; do cmp @T/with/checkpoint-7/$file.safetensors "
            "@T/without/checkpoint-7/$file.safetensors || exit 1; done");
        rp_cli_must_shell("rm -rf @T/with @T/without");
    }
}

/* A rate that blows up: the first evaluation is the best. */
#define WORSE                                                                                      \
    "--set optimizer.learning_rate=3 --set optimizer.warmup_steps=2 "                              \
    "--set optimizer.max_grad_norm=0 --set eval.every=1 "

RP_TEST(the_best_checkpoint_stays_and_patience_ends_the_run)
{
    g_auto(RpCliRun) run =
        rp_cli_run(TRAIN WORSE "--set steps=40 --set eval.keep_best=true --set eval.patience=3 "
                               "--set checkpoint.every=1 --set checkpoint.keep=1",
                   "best");
    g_autoptr(RpTree) root = rp_cli_json(&run);
    const guint best = (guint)rp_cli_number(root, "evaluations.best_step");
    const guint last = (guint)rp_cli_number(root, "last_step");
    g_autofree char *target = best_of("best");
    g_autofree char *name = g_strdup_printf("checkpoint-%u", best);
    g_autofree char *names = rp_train_files_list("best");
    g_autofree char *expected = g_strdup_printf("checkpoint-%u", last);

    assert_float_equal(rp_cli_number(root, "evaluations.stopped_early"), 1, 0);
    assert_int_equal(last, best + 3);
    assert_string_equal(target, name);
    assert_non_null(strstr(names, name));
    assert_non_null(strstr(names, expected));
    assert_non_null(strstr(run.err, "the run ends"));
}

/* Cut at each step in turn, also where the best checkpoint is another than the last. */
RP_TEST(a_resumed_run_remembers_the_best)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json(TRAIN WORSE "--set steps=9 --set eval.keep_best=true --set eval.patience=4 "
                                    "--set checkpoint.every=1 --set checkpoint.keep=0",
                        "whole");
    const guint last = (guint)rp_cli_number(root, "last_step");
    g_autofree char *learned = rp_train_files_learned("whole");

    for (guint cut = 1; cut < last; cut++) {
        rp_cli_must_run(TRAIN WORSE "--set steps=9 --set eval.keep_best=true "
                                    "--set eval.patience=4 --set checkpoint.every=1 "
                                    "--set checkpoint.keep=0",
                        "cut");
        g_autoptr(RpTree) other =
            rp_cli_run_json(TRAIN WORSE "--set steps=9 --set eval.keep_best=true "
                                        "--set eval.patience=4 --set checkpoint.every=1 "
                                        "--set checkpoint.keep=0 --resume=@T/cut/checkpoint-%u",
                            "cut", cut);
        g_autofree char *again = rp_train_files_learned("cut");
        g_autofree char *a = g_strdup_printf("whole/checkpoint-%u", last);
        g_autofree char *b = g_strdup_printf("cut/checkpoint-%u", last);
        g_autofree char *x = best_of("whole"), *y = best_of("cut");

        assert_float_equal(rp_cli_number(other, "evaluations.best_step"),
                           rp_cli_number(root, "evaluations.best_step"), 0);
        assert_string_equal(again, learned);
        assert_string_equal(x, y);
        rp_train_files_assert_same(a, b);
        rp_cli_must_shell("rm -rf @T/cut");
    }
}

RP_TEST(keys_without_data_are_refused)
{
    g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml --set output=@T/none --set eval.every=3");
    rp_cli_must_refuse("train @T/run.yaml --set output=@T/none --set eval.data=@T/nothing.jsonl", 1,
                       "eval.data: ");

    assert_int_equal(run.code, 2);
    assert_non_null(strstr(
        run.err, "--set eval.every: expected eval.data or eval.split beside it, found none"));
}

/* The file is cut short behind the first evaluation: what was learned until then is saved. */
RP_TEST(data_that_become_bad_end_the_run_after_a_checkpoint)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "cp @T/data.jsonl @T/held.jsonl; mkdir -p @T/bad; "
        "(for i in $(seq 6000); do grep -qs '\"eval_loss\"' @T/bad/metrics.jsonl && break; "
        "sleep 0.01; done; : > @T/held.jsonl) & "
        "$ROUNDPIPE train @T/run.yaml --set output=@T/bad --set eval.data=@T/held.jsonl "
        "--set eval.every=1 --set steps=3000 --set checkpoint.minutes=0");
    g_autofree char *names = rp_train_files_list("bad");

    assert_int_equal(run.code, 1);
    if (strstr(run.err, "eval.data: ") == NULL || strstr(names, "checkpoint-") == NULL)
        fail_msg("%s; has %s", run.err, names);
}

RP_TEST(evaluations_have_a_trace)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json(TRAIN "--set steps=4 --set eval.every=2 --trace @T/run.json", "traced");
    g_autofree char *text = rp_cli_read("run-evaluations.json");

    assert_non_null(strstr(text, "\"name\""));
    assert_float_equal(rp_cli_number(root, "evaluations.count"), 3, 0);
}

/* Lines of evaluations, "step loss " each. (transfer full) */
static char *
evaluations(const char *output)
{
    g_autofree char *learned = rp_train_files_learned(output);
    g_auto(GStrv) lines = g_strsplit(learned, "\n", -1);
    g_autoptr(GString) found = g_string_new(NULL);

    for (char **line = lines; *line != NULL; line++)
        if (strstr(*line, "eval_loss") != NULL)
            g_string_append_printf(found, "%s\n", *line);
    return g_string_free(g_steal_pointer(&found), FALSE);
}

/* The evaluation's line is taken away, as if Ctrl-C had broken it off: it is made when the run goes on,
 * and one that is there is not made again. */
RP_TEST(an_evaluation_that_was_broken_off_is_made_when_the_run_goes_on)
{
#define MORE "--set optimizer.schedule=constant --set eval.every=2 --set eval.keep_best=true "
    g_auto(RpCliRun) whole = rp_cli_run(TRAIN MORE "--set steps=6", "evaluated");
    g_auto(RpCliRun) first = rp_cli_run(TRAIN MORE "--set steps=4", "broken");
    g_auto(RpCliRun) cut =
        rp_cli_shell("sed -i '/\"step\":4,.*eval_loss/d' @T/broken/metrics.jsonl");
    g_autoptr(RpTree) root = rp_cli_run_json(TRAIN MORE "--set steps=6 --resume", "broken");
    g_autoptr(RpTree) idle = rp_cli_run_json(TRAIN MORE "--set steps=6 --resume", "broken");
    g_autofree char *expected = evaluations("evaluated"), *found = evaluations("broken");

    assert_int_equal(whole.code + first.code + cut.code, 0);
    assert_true(g_str_has_prefix(expected, "step 0 eval_loss "));
    assert_string_equal(found, expected);
    assert_float_equal(rp_cli_number(root, "evaluations.count"), 2, 0);
    assert_float_equal(rp_cli_number(idle, "evaluations.count"), 0, 0);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
