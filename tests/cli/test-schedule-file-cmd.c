/* Schedules of files through every command that takes one; docs/your-schedule.md word by word. */
#include "tests/cli/train-files.h"

#include <string.h>

/* ---- the page ---- */

/* Each line that the page shows is in what was printed; times of proofs and replays are those of a
 * machine. */
static void
check_shown(const char *command, const RpCliRun *run, char **lines)
{
    if (run->code != 0)
        fail_msg("%s: %d, %s", command, run->code, run->err);
    for (; *lines != NULL; lines++) {
        if (strcmp(g_strchug(*lines), "…") == 0) /* any lines */
            continue;
        const char *more = strstr(*lines, " …");
        const char *proved = more != NULL ? more : strstr(*lines, " proved in ");
        g_autofree char *part = g_strndup(
            g_strchug(*lines), proved != NULL ? (gsize)(proved - *lines) : strlen(*lines));

        if (strstr(run->out, part) == NULL)
            fail_msg("%s: expected \"%s\", found %s", command, part, run->out);
    }
}

/* The commands of a block that begins with one, each with the lines under it. */
static guint
follow_block(const char *block)
{
    g_auto(GStrv) commands = g_strsplit(block, "$ roundpipe ", -1);
    guint n = 0;

    for (char **command = commands + 1; n + 1 < g_strv_length(commands); command++, n++) {
        g_auto(GStrv) lines = g_strsplit(g_strchomp(*command), "\n", -1);
        g_auto(RpCliRun) run = rp_cli_shell("cd @T && $ROUNDPIPE %s", lines[0]);

        check_shown(lines[0], &run, lines + 1);
    }
    return n;
}

RP_TEST(the_page_is_followed_word_by_word)
{
    g_autofree char *page = NULL;
    guint n = 0;

    assert_true(g_file_get_contents(RP_SOURCE_ROOT "/docs/your-schedule.md", &page, NULL, NULL));
    g_auto(GStrv) blocks = g_strsplit(page, "```", -1);

    for (guint i = 1; i < g_strv_length(blocks); i += 2) {
        if (g_str_has_prefix(blocks[i], "text\n")) {
            rp_cli_write("eager.txt", blocks[i] + strlen("text\n"));
        } else if (g_str_has_prefix(blocks[i], "c\n")) {
            g_auto(GStrv) lines = g_strsplit(blocks[i], "\n", -1);

            assert_int_equal(g_strv_length(lines) - 2, 21);
        } else {
            n += follow_block(blocks[i]);
        }
    }
    assert_int_equal(n, 5);
    g_autofree char *picture = rp_cli_temporary("eager.png");

    assert_true(g_file_test(picture, G_FILE_TEST_EXISTS));
}

/* ---- every schedule, and others ---- */

static double
makespan(const char *words)
{
    g_autoptr(RpTree) root = rp_cli_run_json("simulate @Q %s --json", words);

    return rp_cli_number(root, "makespan_ms");
}

RP_TEST(every_schedule_is_written_and_read_to_the_same_makespan)
{
    static const struct {
        const char *name, *words;
    } cases[] = {
        {"gpipe", "--stages 7*4"},
        {"1f1b", "--stages 7*4"},
        {"interleaved-1f1b", "--stages 3*4,4*4"},
        {"looped-bfs", "--stages 3*4,4*4"},
        {"zb-h1", "--stages 7*4"},
        {"interleaved-zb", "--stages 3*4,4*4"},
        {"zb-v", "--stages 3*4,4*4"},
        {"dualpipe-v", "--stages 3*4,4*4"},
        {"mobius", "--stages 3*4,4*4"},
        {"roundpipe", "--forward-stages 7*4 --backward-stages 0,4*7"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        const gboolean rounds = strcmp(cases[i].name, "roundpipe") == 0;
        g_autofree char *named =
            g_strdup_printf("--schedule %s --gpus 4 --micro-batches 8 %s %s", cases[i].name,
                            cases[i].words, rounds ? "--round 4" : "");
        g_autofree char *filed = g_strdup_printf("--schedule-file @T/order.txt %s", cases[i].words);
        rp_cli_must_run("export @Q %s --write-schedule @T/order.txt", named);

        assert_true(makespan(named) == makespan(filed));
    }
}

RP_TEST(a_stage_of_no_layer_is_simulated)
{
    assert_true(makespan("--schedule 1f1b --gpus 3 --micro-batches 4 --stages 14,0,14") >
                makespan("--schedule 1f1b --gpus 2 --micro-batches 4 --stages 14,14"));
    assert_true(makespan("--schedule looped-bfs --gpus 6 --micro-batches 4 --stages 0,1*28,0") > 0);
}

RP_TEST(sweeps_and_partitions_take_files)
{
    rp_cli_write("a.txt", "F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1\n");
    rp_cli_write("b.txt", "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1\n");
    rp_cli_must_run("sweep @Q --schedule-file @T/a.txt,@T/b.txt -o @T/sweep.csv");
    g_auto(RpCliRun) rows = rp_cli_shell("grep -c '[0-9]\\.[0-9]' @T/sweep.csv");
    g_auto(RpCliRun) partition = rp_cli_run("partition @Q --schedule-file @T/a.txt");
    rp_cli_must_run("sweep qwen3-8b --gpu l40s,rtx4090 --pcie 4x8,4x16 --gpus 2 "
                    "--micro-batches 4 -o @T/cards.csv");

    assert_string_equal(rows.out, "2\n");
    assert_int_equal(partition.code, 0);
    assert_non_null(strstr(partition.out, "--stages "));
}

RP_TEST(refuses_words_that_do_not_suit_the_file)
{
    rp_cli_write("two.txt", "F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1\n");
    rp_cli_write("bad.txt", "F0.0 G0.0\n");
    rp_cli_write("turns.txt", "FB1.0 FB1.1\nF0.0 F0.1 B2.0 B2.1\n");
    rp_cli_must_refuse_all("schedule-file-cmd: refuses words that do not suit the file");
    assert_true(makespan("--schedule-file @T/turns.txt") > 0);
}

/* ---- training ---- */

static void
assert_refused(const char *order, const char *words, const char *part)
{
    rp_cli_write("bad-order.txt", order);
    g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml --set devices=host:1 --set round=all "
                                      "--set schedule_file=@T/bad-order.txt %s",
                                      words);

    if (run.code == 0 || strstr(run.err, part) == NULL)
        fail_msg("%s: %d, %s", order, run.code, run.err);
}

static void
assert_same_weights(const char *a, const char *b)
{
    g_autofree char *path_a = g_build_filename(a, "checkpoint-5", "model.safetensors", NULL);
    g_autofree char *path_b = g_build_filename(b, "checkpoint-5", "model.safetensors", NULL);
    gsize length_a, length_b;
    g_autofree char *weights_a = rp_cli_read_bytes(path_a, &length_a);
    g_autofree char *weights_b = rp_cli_read_bytes(path_b, &length_b);

    assert_int_equal(length_a, length_b);
    assert_memory_equal(weights_a, weights_b, length_a);
}

RP_TEST(trains_as_any_bound_schedule_does)
{
    rp_cli_must_run("export @T/times.json --schedule 1f1b --gpus 2 --micro-batches 4 "
                    "--write-schedule @T/order.txt");

    rp_cli_write("own.txt", "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3\n"
                            "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3\n");
    rp_train_files_train("--set round=all --set schedule=1f1b --set output=@T/named");
    rp_train_files_train("--set round=all --set schedule_file=@T/order.txt "
                         "--set output=@T/filed");
    rp_train_files_train("--set round=all --set schedule_file=@T/own.txt --set output=@T/own "
                         "--set async=false");
    g_autofree char *named = rp_train_files_learned("named");
    g_autofree char *filed = rp_train_files_learned("filed");
    g_autofree char *own = rp_train_files_learned("own");

    assert_true(strlen(named) > 100);
    assert_string_equal(named, filed);
    assert_string_equal(named, own);
    assert_same_weights("named", "filed");
    assert_same_weights("named", "own");
}

RP_TEST(training_refuses_what_it_does_not_run)
{
    assert_refused("F0.0 I0.0 W0.0\n", "", "found I and W, or an overlap");
    assert_refused("FB0.0\n", "", "found a fused stage (FB): use `schedule: roundpipe`");
    assert_refused("F0.0 B0.0\n", "",
                   "the file's order has 1 micro-batches, found 4; use micro_batches: 1");
    assert_refused("F0.0 B0.0\nF1.0 B1.0\n", "--set micro_batches=1", "has 2 GPUs, found 1");
    assert_refused("F0.0 B0.0 X\n", "", "bad-order.txt: line 1, column 11: expected an action");
    assert_refused("F0.0 B0.0\n", "--set schedule=1f1b",
                   "expected either the name of a schedule or a schedule_file");
    assert_refused("F0.0 B0.0\n", "--set round=2", "runs all micro-batches as one round");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
