/* bench/overheads-in-runs: what it gives the runs after the first. */
#include "tests/cli/train-files.h"

#define RUN                                                                                        \
    "model: %s/model\ndata: %s/data.jsonl\noutput: %s/untouched\ndevices: host:1\n"                \
    "sequence_length: 4\nmicro_batches: 2\nsteps: 5\n"
#define N_RUNS 8

/* Does what the program does and keeps what it was told. */
#define RECORDER                                                                                   \
    "#!/bin/sh\n"                                                                                  \
    "echo \"$*\" >>\"${0%/*}/$CALLS\"\n"                                                           \
    "exec \"$ROUNDPIPE\" \"$@\"\n"
#define OVERHEADS "bash @R/bench/overheads-in-runs -n 3 -r @T/recorder -w @T @T/run.yaml "

static int
setup(void **state)
{
    if (rp_cli_setup(state) != 0)
        return 1;

    g_autofree char *root = rp_cli_temporary("");
    g_autofree char *run = g_strdup_printf(RUN, root, root, root);

    rp_cli_write("tiny.json", RP_TINY_CONFIG);
    rp_cli_write("data.jsonl", "{\"input_ids\":[1,2,3,4,5]}\n{\"input_ids\":[5,4,3,2,1]}\n");
    rp_cli_write("run.yaml", run);
    rp_cli_write("recorder", RECORDER);
    g_auto(RpCliRun) made = rp_cli_shell("chmod +x @T/recorder && \"$ROUNDPIPE\" init "
                                         "@T/tiny.json -o @T/model --seed 1");
    return made.code;
}

/* The arguments of each run. (transfer full) */
static GStrv
calls_of(const RpCliRun *run, const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    char *text = NULL;

    if (run->code != 0)
        fail_msg("exit code %d: %s%s", run->code, run->out, run->err);
    if (!g_file_get_contents(path, &text, NULL, NULL))
        fail_msg("cannot read %s", path);
    GStrv calls = g_strsplit(g_strchomp(text), "\n", -1);
    g_free(text);
    assert_int_equal(g_strv_length(calls), N_RUNS);
    return calls;
}

static void
assert_told(const char *call, const char *words, gboolean expected)
{
    if ((strstr(call, words) != NULL) != expected)
        fail_msg("expected %s\"%s\" in: %s", expected ? "" : "no ", words, call);
}

RP_TEST(stages_and_layer_times_are_those_of_the_base)
{
    g_auto(RpCliRun) run = rp_cli_shell("CALLS=fused " OVERHEADS);
    g_auto(GStrv) calls = calls_of(&run, "fused");

    assert_told(calls[0], "profile=", FALSE);
    assert_told(calls[0], "_stages=", FALSE);
    for (guint i = 1; i < N_RUNS; i++) {
        assert_told(calls[i], "/base/profile.json ", TRUE);
        assert_told(calls[i], "forward_stages=none --set backward_stages=4", TRUE);
        assert_told(calls[i], "checkpoint.final=false ", TRUE);
    }
    assert_null(strstr(run.out, "other stages"));

    /* the prediction, too: nothing was timed anew */
    const char *again = strstr(run.out, "base again: the noise");
    assert_non_null(again);
    assert_true(g_str_has_suffix(again, " +0.00 %\n"));
}

RP_TEST(given_layer_times_stay)
{
    rp_cli_must_shell("\"$ROUNDPIPE\" profile @T/model --devices host:1 "
                      "--sequence-length 4 --seconds 0.01 -o @T/given.json");
    g_auto(RpCliRun) run = rp_cli_shell("CALLS=given " OVERHEADS "profile=@T/given.json "
                                        "forward_stages=2 backward_stages=2,2");
    g_auto(GStrv) calls = calls_of(&run, "given");

    for (guint i = 0; i < N_RUNS; i++) {
        assert_told(calls[i], "/given.json ", TRUE);
        assert_told(calls[i], "/base/profile.json", FALSE);
        assert_told(calls[i], "forward_stages=none", FALSE);
    }
    assert_told(calls[N_RUNS - 1], "round=2 --set forward_stages=2 --set backward_stages=2,2",
                TRUE);
}

RP_TEST_GROUP(setup, rp_cli_teardown)
