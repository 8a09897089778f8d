/*
 * paper-figs/measure: real runs on devices of the host, and what becomes of runs that fail. Where
 * numbers must be known, a stand-in trains: it prints a plan and writes metrics.
 */
#include "tests/cli/train-files.h"

#include <stdio.h>

#define MEASURE "bash @R/paper-figs/measure"
#define REAL                                                                                       \
    MEASURE " --devices host:2 --model @T/tiny.json --micro-batch-tokens 32 --step-tokens 64 "     \
            "--steps 3 --work @T/work"
#define STANDS_IN MEASURE " --roundpipe @T/stand-in "

/* Its layer times say on how many devices, and it will not train without them. Six steps of which
 * those after the second take 30, 10, 20 and 90 ms; goes on until it is ended. With a trace it ends
 * by itself a second later, and writes it then; with 64 tokens it loses it. */
#define STAND_IN                                                                                   \
    "#!/usr/bin/env bash\n"                                                                        \
    "if [ \"$1\" = init ]; then\n"                                                                 \
    "    while [ \"$1\" != -o ]; do shift; done\n"                                                 \
    "    mkdir -p \"$2\"\n"                                                                        \
    "    echo '{\"vocab_size\": 70000}' >\"$2/config.json\"\n"                                     \
    "    exit\n"                                                                                   \
    "fi\n"                                                                                         \
    "if [ \"$1\" = profile ]; then\n"                                                              \
    "    while [ \"$1\" != --devices ]; do shift; done\n"                                          \
    "    echo \"  \\\"gpus\\\": ${2#host:},\" >\"${@: -1}\"\n"                                     \
    "    echo \"$*\" >>\"${@: -1}.calls\"\n"                                                       \
    "    [[ $* == *' --sequence-length 8 '* ]] || exit 0\n"                                        \
    "    echo 'no memory for 8' >&2\n"                                                             \
    "    exit 1\n"                                                                                 \
    "fi\n"                                                                                         \
    "if [ \"$3\" = --dry-run ]; then echo predicted >\"$5\" && exit; fi\n"                         \
    "[ -f \"$(sed -n \"s/^profile: '\\(.*\\)'/\\1/p\" \"$2\")\" ] || exit 1\n"                     \
    "out=$(sed -n \"s/^output: '\\(.*\\)'/\\1/p\" \"$2\")\n"                                       \
    "echo '  predicted        12.500 ms a step, bubble ratio 3.25 %, 8000 tokens/s (steady)'\n"    \
    "mkdir \"$out\"\n"                                                                             \
    "if grep -q '^sequence_length: 16$' \"$2\"; then exec sleep 60; fi\n"                          \
    "step=0\n"                                                                                     \
    "for ms in 900 5 30 10 20 90; do\n"                                                            \
    "    step=$((step + 1))\n"                                                                     \
    "    echo \"{\\\"step\\\":$step,\\\"loss\\\":1,\\\"tokens\\\":100,"                            \
    "\\\"step_ms\\\":$ms,\\\"bubble_ratio\\\":0.0$ms}\"\n"                                         \
    "done >\"$out/metrics.jsonl\"\n"                                                               \
    "echo $$ >\"$out/../../pid\"\n"                                                                \
    "[ \"$3\" = --trace ] || exec sleep 60\n"                                                      \
    "sleep 1\n"                                                                                    \
    "if grep -q '^sequence_length: 64$' \"$2\"; then echo 'no trace: disk full' >&2; exit 1; fi\n" \
    "echo measured >\"$4\"\n"

static int
setup(void **state)
{
    if (rp_cli_setup(state) != 0)
        return 1;
    rp_cli_write("tiny.json", RP_TINY_CONFIG);
    rp_cli_write("stand-in", STAND_IN);
    g_auto(RpCliRun) made = rp_cli_shell("chmod +x @T/stand-in");
    return made.code;
}

/* Lines of a file that are no comments, the header first. (transfer full) */
static GStrv
lines_of(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        fail_msg("cannot read %s", path);
    GStrv lines = g_strsplit(g_strchomp(text), "\n", -1);
    g_free(text);
    return lines;
}

/* Field @column of @line, where @header has the names. (transfer full) */
static char *
field(const char *header, const char *line, const char *column)
{
    g_auto(GStrv) names = g_strsplit(header, ",", -1);
    g_auto(GStrv) fields = g_strsplit(line, ",", -1);

    assert_int_equal(g_strv_length(names), g_strv_length(fields));
    for (guint i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], column) == 0)
            return g_strdup(fields[i]);
    fail_msg("no column %s in %s", column, header);
    return NULL;
}

static void
assert_field(const char *header, const char *line, const char *column, const char *expected)
{
    g_autofree char *found = field(header, line, column);

    if (strcmp(found, expected) != 0)
        fail_msg("%s: expected %s, found %s in %s", column, expected, found, line);
}

static double
number(const char *header, const char *line, const char *column)
{
    g_autofree char *text = field(header, line, column);

    return g_ascii_strtod(text, NULL);
}

static void
assert_ran(const RpCliRun *run, int code)
{
    if (run->code != code)
        fail_msg("exit code %d:\n%s", run->code, run->err);
}

static void
assert_measured(const char *header, const char *line)
{
    double tokens = number(header, line, "tokens_per_step");
    double ms = number(header, line, "measured_ms");
    double rate = number(header, line, "tokens_per_s");
    double bubble = number(header, line, "measured_bubble");

    assert_true(ms > 0);
    assert_true(number(header, line, "predicted_ms") > 0);
    assert_true(number(header, line, "predicted_tokens_per_s") > 0);
    assert_true(rate > tokens / ms * 999 && rate < tokens / ms * 1001);
    assert_true(bubble >= 0 && bubble < 1);
    assert_field(header, line, "device", "host");
}

RP_TEST(runs_on_devices_of_the_host_become_rows_and_pictures)
{
    g_auto(RpCliRun) run = rp_cli_shell(REAL " 13 14 16 --sequences 16,32 --output @T/real "
                                             "--only tiny-2-async --only tiny-32 "
                                             "--only 'tiny-[eb]*'");

    assert_ran(&run, 0);
    g_auto(GStrv) gpus = lines_of("real/figure-13.csv");
    g_auto(GStrv) lengths = lines_of("real/figure-14.csv");
    g_auto(GStrv) consistency = lines_of("real/figure-16.csv");
    assert_int_equal(g_strv_length(gpus), 2);
    assert_int_equal(g_strv_length(lengths), 2);
    assert_int_equal(g_strv_length(consistency), 3);
    assert_measured(gpus[0], gpus[1]);
    assert_field(gpus[0], gpus[1], "gpus", "2");
    assert_field(gpus[0], gpus[1], "tokens_per_step", "128");
    for (guint i = 1; i < 3; i++) {
        assert_measured(consistency[0], consistency[i]);
        assert_field(consistency[0], consistency[i], "consistency", i == 1 ? "events" : "blocking");
    }
    assert_measured(lengths[0], lengths[1]);
    assert_field(lengths[0], lengths[1], "micro_batch", "1");
    assert_field(lengths[0], lengths[1], "micro_batches", "4");

    g_auto(RpCliRun) gnuplot = rp_cli_shell("command -v gnuplot");
    if (gnuplot.code != 0)
        return;
    g_auto(RpCliRun) draw = rp_cli_run("figures -o @T/pictures --measured @T/real --format png "
                                       "figure-13-measured figure-14-measured figure-16-measured");
    assert_ran(&draw, 0);
    g_autofree char *rate = field(lengths[0], lengths[1], "tokens_per_s");
    g_autofree char *point = g_strdup_printf("\n32 %s\n", rate);
    g_auto(RpCliRun) data = rp_cli_shell("cat @T/pictures/figure-14-measured.dat");
    assert_non_null(strstr(data.out, point));
}

RP_TEST(traces_of_runs_and_of_their_predictions_are_kept)
{
    g_auto(RpCliRun) run = rp_cli_shell(REAL " 13 --sequences 16 --output @T/traced "
                                             "--traces @T/traces --only tiny-2-sync");
    g_auto(RpCliRun) diff =
        rp_cli_run("report --late @T/traces/tiny-2-sync-predicted.json @T/traces/tiny-2-sync.json");

    assert_ran(&run, 0);
    g_auto(GStrv) lines = lines_of("traced/figure-13.csv");
    assert_int_equal(g_strv_length(lines), 2);
    assert_measured(lines[0], lines[1]);
    assert_ran(&diff, 0);
}

/* A trace comes after the last step, and what two figures share has it by both names. */
RP_TEST(a_run_is_followed_until_its_trace_is_there)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(STANDS_IN "14 16 --devices host --sequences 32 --only '*-32' "
                               "--only '*-events' --work @T/wait --output @T/waited "
                               "--traces @T/late-traces");
    g_auto(RpCliRun) files = rp_cli_shell("cd @T/late-traces && grep . *");

    assert_ran(&run, 0);
    g_auto(GStrv) lengths = lines_of("waited/figure-14.csv");
    g_auto(GStrv) consistency = lines_of("waited/figure-16.csv");
    assert_int_equal(g_strv_length(lengths), 2);
    assert_int_equal(g_strv_length(consistency), 2);
    assert_string_equal(lengths[1], consistency[1]);
    assert_non_null(strstr(run.err, "(the same run)\n"));
    assert_string_equal(files.out, "qwen3-1.7b-32-predicted.json:predicted\n"
                                   "qwen3-1.7b-32.json:measured\n"
                                   "qwen3-1.7b-events-predicted.json:predicted\n"
                                   "qwen3-1.7b-events.json:measured\n");
}

RP_TEST(a_run_that_loses_its_trace_leaves_no_row)
{
    g_auto(RpCliRun) earlier =
        rp_cli_shell("mkdir @T/lost && echo old >@T/lost/qwen3-1.7b-64.json");
    g_auto(RpCliRun) run = rp_cli_shell(STANDS_IN "14 --devices host --sequences 64 --work @T/lose "
                                                  "--output @T/loses --traces @T/lost");
    g_auto(RpCliRun) files = rp_cli_shell("ls @T/lost");

    assert_ran(&earlier, 0);
    assert_ran(&run, 1);
    g_auto(GStrv) lines = lines_of("loses/figure-14.csv");
    assert_int_equal(g_strv_length(lines), 1);
    if (strstr(run.err, "qwen3-1.7b-64: no row: exit code 1: no trace: disk full\n") == NULL ||
        strstr(run.err, "1 runs failed\n") == NULL)
        fail_msg("%s", run.err);
    assert_string_equal(files.out, "qwen3-1.7b-64-predicted.json\n");
}

RP_TEST(a_run_that_fails_leaves_no_row_and_the_others_go_on)
{
    /* There are 131,072 tokens. Nobody waits for layers of 200,000. */
    g_auto(RpCliRun) kept = rp_cli_shell("mkdir @T/kept && cp @T/work/profiles/tiny-2x16.json "
                                         "@T/kept/tiny-1x200000.json");
    g_auto(RpCliRun) run = rp_cli_shell(REAL " 14 --sequences 200000,16 --output @T/fails "
                                             "--profiles @T/kept");

    assert_ran(&kept, 0);
    assert_ran(&run, 1);
    g_auto(GStrv) lines = lines_of("fails/figure-14.csv");
    assert_int_equal(g_strv_length(lines), 2);
    assert_field(lines[0], lines[1], "sequence", "16");
    if (strstr(run.err, "figure 14, tiny-200000: no row: exit code 1: roundpipe train: ") == NULL ||
        strstr(run.err, "1 rows added in") == NULL)
        fail_msg("%s", run.err);
}

RP_TEST(the_median_of_the_steps_after_the_second_counts)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        STANDS_IN "13 --devices host --device 'Some device' --steps 6 "
                  "--device-memory 24GiB --only '*-async' --work @T/six --output @T/median");

    assert_ran(&run, 0);
    g_auto(GStrv) lines = lines_of("median/figure-13.csv");
    assert_int_equal(g_strv_length(lines), 2);
    assert_field(lines[0], lines[1], "measured_ms", "25.000");
    assert_field(lines[0], lines[1], "measured_bubble", "0.0250");
    assert_field(lines[0], lines[1], "tokens_per_step", "100");
    assert_field(lines[0], lines[1], "tokens_per_s", "4000");
    assert_field(lines[0], lines[1], "predicted_ms", "12.500");
    assert_field(lines[0], lines[1], "predicted_tokens_per_s", "8000");
    assert_field(lines[0], lines[1], "predicted_bubble", "0.0325");
    assert_field(lines[0], lines[1], "device_memory", "24GiB");
    assert_field(lines[0], lines[1], "device", "Some device");

    /* it was ended, not waited for */
    g_auto(RpCliRun) left = rp_cli_shell("kill -0 $(cat @T/six/pid)");
    assert_int_not_equal(left.code, 0);

    /* 512 KiB of ids, four bytes each, below 70,000 and some above 65,535 */
    g_auto(RpCliRun) tokens = rp_cli_shell(
        "od -An -v -tu4 -w4 @T/six/qwen3-1.7b.bin | sort -n | sed -n '1p;$p' | tr -d ' '; "
        "wc -c <@T/six/qwen3-1.7b.bin");
    guint low = 0, high = 0, bytes = 0;
    if (sscanf(tokens.out, "%u %u %u", &low, &high, &bytes) != 3)
        fail_msg("%s", tokens.out);
    assert_true(low < 100);
    assert_true(high > 69900 && high < 70000);
    assert_int_equal(bytes, 524288);
}

RP_TEST(a_run_beyond_its_limit_is_ended)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(STANDS_IN "14 --devices host --steps 3 --limit 1 "
                               "--sequences 16,32 --work @T/late --output @T/limit");

    assert_ran(&run, 1);
    g_auto(GStrv) lines = lines_of("limit/figure-14.csv");
    assert_int_equal(g_strv_length(lines), 2);
    assert_field(lines[0], lines[1], "sequence", "32");
    assert_non_null(strstr(run.err, "qwen3-1.7b-16: no row: not done after 1 s, 0 of 3 steps"));
}

/* How often layers were timed for runs in @T/@work, and with what the last time. */
static void
assert_timed(const char *work, guint times, const char *last)
{
    g_autofree char *name = g_strdup_printf("%s/profile.json.calls", work);
    g_auto(GStrv) calls = lines_of(name);

    assert_int_equal(g_strv_length(calls), times);
    if (strstr(calls[times - 1], last) == NULL)
        fail_msg("expected %s, found %s", last, calls[times - 1]);
}

RP_TEST(layers_are_timed_once_for_each_shape_on_the_most_devices)
{
    static const char *const memory[] = {"", "", "", "24GiB"};
    static const char *const schedule[] = {"roundpipe", "roundpipe", "looped-bfs", "roundpipe"};
    static const char *const mode[] = {"async", "sync", "sync", "async"};
    const char *const words = STANDS_IN "13 16 --steps 3 --work @T/shapes --output @T/once ";

    g_auto(RpCliRun) first = rp_cli_shell("%s --devices host:2", words);
    assert_ran(&first, 0);
    assert_timed("shapes", 1, "host:2 --micro-batch-size 8 --sequence-length 2048 --seconds 0.3");
    g_auto(GStrv) rows = lines_of("once/figure-13.csv");
    assert_int_equal(g_strv_length(rows), 9);
    for (guint i = 0; i < 8; i++) {
        assert_field(rows[0], rows[1 + i], "gpus", i < 4 ? "1" : "2");
        assert_field(rows[0], rows[1 + i], "micro_batches", i < 4 ? "8" : "16");
        assert_field(rows[0], rows[1 + i], "schedule", schedule[i % 4]);
        assert_field(rows[0], rows[1 + i], "mode", mode[i % 4]);
        assert_field(rows[0], rows[1 + i], "device_memory", memory[i % 4]);
    }

    /* what figure 16 shares with figure 13 is the same row, not another run */
    g_auto(GStrv) shared = lines_of("once/figure-16.csv");
    assert_int_equal(g_strv_length(shared), 3);
    assert_string_equal(shared[1], rows[5]);
    assert_non_null(strstr(first.err, "(the same run)\n"));

    /* links were not timed with so many */
    g_auto(RpCliRun) more = rp_cli_shell("%s --devices host:4 --only '*-4-async'", words);
    assert_ran(&more, 0);
    assert_timed("shapes", 2, "host:4 ");
    g_auto(RpCliRun) fewer = rp_cli_shell("%s --devices host:2 --only '*-2-async'", words);
    assert_ran(&fewer, 0);
    assert_timed("shapes", 2, "host:4 ");
    g_auto(RpCliRun) longer = rp_cli_shell("%s --devices host:2 --sequences 4096 "
                                           "--only '*-events'",
                                           words);
    assert_ran(&longer, 0);
    assert_timed("shapes", 3, "host:2 --micro-batch-size 4 --sequence-length 4096");
}

RP_TEST(layers_that_cannot_be_timed_are_not_tried_again)
{
    g_auto(RpCliRun) run =
        rp_cli_shell(STANDS_IN "16 --devices host --sequences 8 --work @T/cannot --output @T/none");

    assert_ran(&run, 1);
    assert_timed("cannot", 1, "--sequence-length 8");
    assert_non_null(strstr(run.err, "qwen3-1.7b-events: no row: no memory for 8\n"));
    assert_non_null(strstr(run.err, "qwen3-1.7b-blocking: no row: no memory for 8\n"));
    g_auto(GStrv) lines = lines_of("none/figure-16.csv");
    assert_int_equal(g_strv_length(lines), 1);
}

RP_TEST(a_step_of_qwen3_8b_is_the_same_on_any_number_of_devices)
{
    g_auto(RpCliRun) run = rp_cli_shell(MEASURE " 13 --model qwen3-8b --devices cuda:4 --list | "
                                                "sed 1d");
    g_auto(RpCliRun) asked = rp_cli_shell(MEASURE " 13 --model qwen3-8b --devices cuda:4 --list "
                                                  "--only '*-4-*' | sed 1d | wc -l");

    assert_string_equal(run.out,
                        "13 qwen3-8b-1-async qwen3-8b 1 roundpipe async events 2048 4 16 -\n"
                        "13 qwen3-8b-2-async qwen3-8b 2 roundpipe async events 2048 4 16 -\n"
                        "13 qwen3-8b-4-async qwen3-8b 4 roundpipe async events 2048 4 16 -\n");
    assert_int_equal(g_ascii_strtoull(asked.out, NULL, 10), 4);
}

RP_TEST(rows_are_added_to_those_that_are_there)
{
    for (guint i = 1; i <= 2; i++) {
        g_auto(RpCliRun) run = rp_cli_shell(STANDS_IN "16 --devices host --only '*-events' "
                                                      "--work @T/again --output @T/twice");

        assert_ran(&run, 0);
        g_auto(GStrv) lines = lines_of("twice/figure-16.csv");
        assert_int_equal(g_strv_length(lines), 1 + i);
    }
}

RP_TEST(wrong_words_are_refused_before_any_run)
{
    static const struct {
        const char *words;
        const char *part;
    } cases[] = {
        {"15 --devices host", "found \"15\""},
        {"--devices gpu:2", "expected cuda:N or host:N, found \"gpu:2\""},
        {"--devices host --steps 2", "expected at least 3"},
        {"--devices host --limit soon", "--limit: expected a whole number, found \"soon\""},
        {"--devices host --sequences 16,x", "found \"x\""},
        {"--devices host --only none", "no run has such a name"},
        {"--devices host --model 'a b'", "found \"a b\""},
        {"--devices host --roundpipe @T/none", "none\": --roundpipe or ROUNDPIPE"},
        {"--devices", "--devices: expected a value"},
        {"13 --devices host --output @T/other", "figure-13.csv: expected the columns model,"},
    };

    g_auto(RpCliRun) made = rp_cli_shell("mkdir @T/other && echo a,b >@T/other/figure-13.csv");
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run = rp_cli_shell(MEASURE " --output @T/wrong %s", cases[i].words);

        if (run.code != 2 || strstr(run.err, cases[i].part) == NULL)
            fail_msg("%s: exit code %d: %s", cases[i].words, run.code, run.err);
    }
}

RP_TEST_GROUP(setup, rp_cli_teardown)
