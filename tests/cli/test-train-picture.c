/* roundpipe train --picture: the timeline of a run, measured or predicted. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set profile=@T/times.json --set output=@T/"

/* Fails unless @T/@name shows what was @origin, on two devices. */
static void
assert_timeline(const char *name, const char *origin)
{
    g_autofree char *svg = rp_cli_read(name);

    if (strstr(svg, origin) == NULL)
        fail_msg("%s: expected \"%s\" in its title, found: %.2000s", name, origin, svg);
    assert_non_null(strstr(svg, "GPU 0 compute"));
    assert_non_null(strstr(svg, "GPU 1 compute"));
    assert_non_null(strstr(svg, "parameter up"));
}

RP_TEST(draws_what_was_measured_beside_its_trace)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "both --set devices=host:2 --set steps=2 "
                                            "--picture @T/both.svg --trace @T/both.json");

    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_timeline("both.svg", "(measured)");
    g_autofree char *svg = rp_cli_read("both.svg");
    assert_non_null(strstr(svg, "CPU optimizer"));
    g_autofree char *trace = rp_cli_read("both.json");
    assert_non_null(strstr(trace, "traceEvents"));
}

/* Not those in which the pipeline fills, and no more than the prediction's picture has. */
RP_TEST(draws_the_steady_steps_of_a_longer_run)
{
    rp_cli_must_run(TRAIN "steady --set devices=host:2 --set steps=40 --picture @T/steady.svg");

    assert_timeline("steady.svg", "(measured)");
    g_autofree char *svg = rp_cli_read("steady.svg");
    if (!g_regex_match_simple("iterations? 2 (to [0-9]+ )?of 40, ", svg, 0, 0))
        fail_msg("no steady steps");
}

RP_TEST(draws_the_steps_after_a_resume_as_png)
{
    rp_cli_must_run(TRAIN "on --set devices=host:2 --set steps=1");
    rp_cli_must_run(TRAIN "on --set devices=host:2 --set steps=3 --resume "
                          "--picture @T/on.png");
    gsize length;

    g_autofree char *png = rp_cli_read_bytes("on.png", &length);
    assert_true(length > 1000);
    assert_memory_equal(png, "\x89PNG\r\n", 6);
}

RP_TEST(draws_what_was_predicted_in_a_dry_run)
{
    g_auto(RpCliRun) run =
        rp_cli_run(TRAIN "dry --set devices=host:2 --dry-run --picture @T/dry.svg");
    g_autofree char *output = rp_cli_temporary("dry");

    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_timeline("dry.svg", "(predicted)");
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

RP_TEST(says_that_a_run_without_steps_has_no_timeline)
{
    rp_cli_must_run(TRAIN "done --set steps=1");
    g_auto(RpCliRun) rest = rp_cli_run(TRAIN "done --set steps=1 --resume --picture @T/done.svg");
    g_autofree char *picture = rp_cli_temporary("done.svg");

    assert_int_equal(rest.code, 0);
    assert_string_equal(rest.err,
                        "roundpipe train: note: --picture: no step was run, nothing was drawn\n");
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

RP_TEST(draws_nothing_of_a_run_that_breaks_off)
{
    g_autoptr(GString) data = g_string_new(NULL);
    g_autofree char *picture = rp_cli_temporary("broken.svg");

    for (guint i = 0; i < 40; i++)
        g_string_append_printf(data, "{\"input_ids\":[1,2,3],\"labels\":[1,%d,-100]}\n",
                               i < 8 ? 2 : -100);
    rp_cli_write("broken.jsonl", data->str);
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "broken --set data=@T/broken.jsonl "
                                            "--set shuffle=false --picture @T/broken.svg "
                                            "--trace /dev/full");
    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.err, "; the last good checkpoint is "));
    assert_non_null(strstr(run.err, "\nroundpipe train: --trace: cannot write \""));
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

/* Before the first step. */
RP_TEST(refuses_what_it_cannot_draw)
{
    g_autofree char *output = rp_cli_temporary("none");
    g_autofree char *picture = rp_cli_temporary("x.png");

    rp_cli_must_refuse_all("train-picture: cannot draw");
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

/* ---- what cannot be written at the end ---- */

/* In @T/bin: a gnuplot that can draw everything, says so, and crashes when it is asked to. */
static void
write_crashing_gnuplot(void)
{
    rp_cli_must_shell("mkdir -p @T/bin");

    rp_cli_write("bin/gnuplot", "#!/bin/sh\n"
                                "if grep -q GPVAL_TERMINALS; then echo pngcairo svg pdfcairo >&2\n"
                                "else kill -SEGV $$; fi\n");
    rp_cli_must_shell("chmod +x @T/bin/gnuplot");
}

#define CRASHED "gnuplot was ended by signal 11 (Segmentation fault)"

RP_TEST(reports_a_run_whose_picture_cannot_be_drawn)
{
    write_crashing_gnuplot();
    g_auto(RpCliRun) run = rp_cli_shell("PATH=@T/bin:$PATH exec \"$ROUNDPIPE\" " TRAIN
                                        "crash --set steps=2 --picture @T/crash.svg "
                                        "--trace @T/crash.json");
    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.out, "step 2 of 2, loss "));
    assert_non_null(strstr(run.out, "saved: "));
    assert_non_null(strstr(run.out, "crash/checkpoint-2\n"));
    assert_true(g_str_has_prefix(run.err, "roundpipe train: --picture: "));
    assert_non_null(strstr(run.err, CRASHED "\n"));
    assert_ptr_equal(strchr(run.err, '\n'), run.err + strlen(run.err) - 1);
    /* and what can be written is */
    g_autofree char *trace = rp_cli_read("crash.json");
    assert_non_null(strstr(trace, "traceEvents"));

    g_auto(RpCliRun) again = rp_cli_shell("PATH=@T/bin:$PATH exec \"$ROUNDPIPE\" " TRAIN
                                          "crash-json --set steps=2 --json "
                                          "--picture @T/crash.svg --trace /dev/full");
    assert_int_equal(again.code, 1);
    g_autoptr(RpTree) root = rp_tree_parse(again.out);
    assert_non_null(root);
    assert_int_equal(rp_cli_number(root, "last_step"), 2);
    /* one line for each file */
    assert_true(g_str_has_prefix(again.err, "roundpipe train: --trace: cannot write \""));
    assert_non_null(strstr(again.err, "\nroundpipe train: --picture: "));
}

RP_TEST(prints_the_plan_of_a_dry_run_whose_picture_cannot_be_drawn)
{
    write_crashing_gnuplot();
    g_auto(RpCliRun) run = rp_cli_shell("PATH=@T/bin:$PATH exec \"$ROUNDPIPE\" " TRAIN
                                        "dry-crash --dry-run --json --picture @T/dry-crash.svg");
    assert_int_equal(run.code, 1);
    g_autoptr(RpTree) root = rp_tree_parse(run.out);
    assert_non_null(root);
    assert_true(g_str_has_prefix(run.err, "roundpipe train: --picture: "));
    assert_non_null(strstr(run.err, CRASHED));
}

RP_TEST(reports_and_draws_a_run_whose_trace_cannot_be_written)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "full --set devices=host:2 --set steps=2 "
                                            "--picture @T/full.svg --trace /dev/full");

    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.out, "step 2 of 2, loss "));
    assert_non_null(strstr(run.out, "saved: "));
    assert_true(g_str_has_prefix(run.err, "roundpipe train: --trace: cannot write \""));
    assert_ptr_equal(strchr(run.err, '\n'), run.err + strlen(run.err) - 1);
    assert_timeline("full.svg", "(measured)");
}

/* ---- files in each other's way ---- */

RP_TEST(refuses_files_in_each_others_way)
{
    rp_cli_must_shell("mkdir @T/none && ln -s . @T/alias && echo old > @T/old.svg "
                      "&& ln @T/old.svg @T/hard.json");
    g_autofree char *picture = rp_cli_temporary("x.svg");

    rp_cli_must_refuse_all("train-picture: files in each others way");
    g_autofree char *names = rp_train_files_list("none");
    assert_string_equal(names, "");
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
    g_autofree char *old = rp_cli_read("old.svg");
    assert_string_equal(old, "old\n");
    /* a name of the loss's picture is free where there is none, and so are other directories */
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "free --set devices=host:2 --dry-run "
                                            "--picture @T/none/training_loss.png "
                                            "--trace @T/none/training_loss.json");
    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
}

RP_TEST(refuses_a_picture_or_a_trace_of_gradients)
{
    g_autofree char *gradients = rp_cli_temporary("g.safetensors");
    g_autofree char *trace = rp_cli_temporary("g.json");

    rp_cli_must_refuse_all("train-picture: of gradients");
    assert_false(g_file_test(gradients, G_FILE_TEST_EXISTS));
    /* a key may be there for other runs */
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "g --save-gradients @T/g.safetensors "
                                            "--set trace=@T/g.json");
    assert_string_equal(run.err, "roundpipe train: note: trace: --save-gradients writes none\n");
    assert_int_equal(run.code, 0);
    assert_true(g_file_test(gradients, G_FILE_TEST_EXISTS));
    assert_false(g_file_test(trace, G_FILE_TEST_EXISTS));
}

/* Two runs, one of which evaluates. */
RP_TEST(plot_draws_runs_one_over_the_other)
{
    rp_cli_must_run(TRAIN "one --set steps=4 --set eval.data=@T/data.jsonl "
                          "--set eval.every=2 --set tensorboard=true");
    rp_cli_must_run(TRAIN "two --set steps=3");
    g_autoptr(RpTree) root =
        rp_cli_run_json("plot @T/one @T/two/metrics.jsonl -o @T/runs.svg --json");
    static const char *const parts[] = {"loss of the target tokens",
                                        "validation loss",
                                        "learning rate",
                                        "norm of the gradient",
                                        "tokens/s",
                                        "bubble ratio",
                                        ">one<",
                                        ">two<"};

    g_autofree char *svg = rp_cli_read("runs.svg");
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (strstr(svg, parts[i]) == NULL)
            fail_msg("expected \"%s\" in the picture", parts[i]);
    assert_float_equal(rp_cli_number(root, "runs.0.step"), 4, 0);
    assert_float_equal(rp_cli_number(root, "runs.1.step"), 3, 0);
    assert_true(rp_cli_number(root, "runs.0.eval_loss") > 0);
    assert_string_equal(rp_cli_member(root, "runs.1.eval_loss")->text, "null");
    g_auto(RpCliRun) words = rp_cli_run("plot @T/two -o @T/two.svg --log");
    assert_string_equal(words.err, "");
    assert_int_equal(words.code, 0);
    assert_null(strstr(words.out, "nan"));
    g_autofree char *decades = rp_cli_read("two.svg");
    assert_non_null(strstr(decades, ">2.5<"));
    rp_cli_must_shell("ls @T/one/events.out.tfevents.* && "
                      "! ls @T/two/events.out.tfevents.*");
}

/* A run of one value, or of one step. */
RP_TEST(plot_draws_runs_that_stand_still)
{
#define LINE(step)                                                                                 \
    "{\"step\":" step ",\"loss\":2.5,\"learning_rate\":0,\"grad_norm\":1,\"tokens\":10,"           \
    "\"step_ms\":5,\"bubble_ratio\":0}\n"
    g_autofree char *path = rp_cli_temporary("flat.jsonl");

    assert_true(g_file_set_contents(path, LINE("1") LINE("2"), -1, NULL));
    g_auto(RpCliRun) flat = rp_cli_run("plot @T/flat.jsonl -o @T/flat.svg");
    assert_string_equal(flat.err, "");
    assert_int_equal(flat.code, 0);
    assert_true(g_file_set_contents(path, LINE("1"), -1, NULL));
    g_auto(RpCliRun) step = rp_cli_run("plot @T/flat.jsonl -o @T/flat.svg");
    assert_string_equal(step.err, "");
    assert_int_equal(step.code, 0);
}

RP_TEST(plot_names_what_is_no_run)
{
    rp_cli_must_refuse_all("train-picture: plot names what is no run");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
