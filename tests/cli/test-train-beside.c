/* Checkpoints of `roundpipe train` that are written beside training. $SYNC_GATE_LIBRARY:
 * sync-gate.c, built. */
#include "tests/cli/train-files.h"

#define TRAIN "$ROUNDPIPE train @T/run.yaml --set output=@T/"
/* The first checkpoint is not on the disk before @lines stand in @file. */
#define GATE(file, lines)                                                                          \
    "env LD_PRELOAD=$SYNC_GATE_LIBRARY ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 "      \
    "SYNC_GATE=@T/" file ":" lines " "

static void
expect_code(const RpCliRun *run, int code)
{
    if (run->code != code)
        fail_msg("exit code %d, expected %d (97: nothing came while it was written): %s", run->code,
                 code, run->err);
}

static void
same_checkpoints(const char *expected, const char *found, const char *const *names)
{
    for (; *names != NULL; names++) {
        g_autofree char *a = g_build_filename(expected, *names, NULL);
        g_autofree char *b = g_build_filename(found, *names, NULL);

        rp_train_files_assert_same(a, b);
    }
}

/* Asynchronous and not, in 16 and in 32 bits: a copy holds the next weights, or does not. */
RP_TEST(steps_go_on_while_the_bytes_of_one_in_place_are_written)
{
    static const char *const kinds[] = {"--set async=true", "--set async=false",
                                        "--set async=true --set dtype=fp32"};
    static const char *const names[] = {"checkpoint-6", "checkpoint-12", NULL};

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        /* line 8 comes while checkpoint-6 is being written, or the gate ends the process */
        g_auto(RpCliRun) beside =
            rp_cli_shell("rm -rf @T/beside; " GATE("beside/metrics.jsonl", "8") TRAIN
                         "beside --set steps=12 --set checkpoint.every=6 --json %s "
                         "--set checkpoint.beside=true",
                         kinds[i]);
        g_auto(RpCliRun) place = rp_cli_shell(
            "rm -rf @T/place; " TRAIN "place --set steps=12 --set checkpoint.every=6 --json %s "
            "--set checkpoint.beside=false",
            kinds[i]);
        g_autoptr(RpTree) root = NULL, other = NULL;

        expect_code(&beside, 0);
        expect_code(&place, 0);
        root = rp_cli_json(&beside);
        other = rp_cli_json(&place);
        assert_float_equal(rp_cli_number(root, "checkpoints.beside"), 1, 0);
        assert_float_equal(rp_cli_number(root, "checkpoints.saved"), 2, 0);
        assert_true(rp_cli_number(root, "checkpoints.beside_seconds") > 0);
        assert_float_equal(rp_cli_number(other, "checkpoints.beside"), 0, 0);
        g_autofree char *expected = rp_train_files_learned("place");
        g_autofree char *found = rp_train_files_learned("beside");
        assert_string_equal(expected, found);
        same_checkpoints("place", "beside", names);
    }
}

RP_TEST(a_copy_is_taken_by_default)
{
    g_auto(RpCliRun) usual = rp_cli_shell(GATE("usual/metrics.jsonl", "8") TRAIN
                                          "usual --set steps=12 --set checkpoint.every=6 --json");
    g_autoptr(RpTree) root = rp_cli_json(&usual);
    g_autofree char *metrics = rp_cli_read("usual/metrics.jsonl");

    assert_float_equal(rp_cli_number(root, "checkpoints.beside"), 1, 0);
    assert_non_null(strstr(metrics, "{\"step\":7,"));
    assert_non_null(strstr(strstr(metrics, "{\"step\":7,"), "\"checkpoint_ms\":"));
}

RP_TEST(a_stop_waits_for_the_write_and_the_next_one_does)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        GATE("gate", "1") TRAIN
        "stop --set steps=100000 --set checkpoint.every=6 --set checkpoint.keep=0 "
        "--set checkpoint.beside=true >/dev/null & pid=$!; "
        "for i in $(seq 1000); do "
        "[ $(cat @T/stop/metrics.jsonl 2>/dev/null | wc -l) -ge 12 ] && break; sleep 0.02; done; "
        "sleep 0.3; wc -l <@T/stop/metrics.jsonl >@T/stop.lines; ls -A @T/stop >@T/stop.names; "
        "kill -TERM $pid; sleep 0.3; echo >@T/gate; wait $pid");
    g_autofree char *lines = rp_cli_read("stop.lines");
    g_autofree char *before = rp_cli_read("stop.names");
    g_autofree char *names = rp_train_files_list("stop");

    expect_code(&run, 143);
    assert_string_equal(g_strchomp(lines), "12"); /* the one of step 12 waits */
    assert_non_null(strstr(before, ".checkpoint-6.tmp"));
    assert_null(strstr(before, "\ncheckpoint-6"));
    assert_non_null(strstr(names, "checkpoint-12 checkpoint-6 "));
    assert_null(strstr(names, ".tmp"));
}

/* Bytes of host memory that the run's arenas take. */
static guint64
arena_bytes(double *parameters)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("train @T/run.yaml --set output=@T/none --dry-run --json --set async=true");

    *parameters = rp_cli_number(root, "parameters");
    return (guint64)(rp_cli_number(root, "predicted.host_bytes") +
                     rp_cli_number(root, "predicted.device_bytes.0") +
                     rp_cli_number(root, "predicted.device_bytes.1"));
}

RP_TEST(a_copy_that_does_not_fit_is_refused_or_not_made)
{
    static const char words[] = "checkpoint.beside: a copy of weights and optimizer state needs ";
    double parameters;
    const guint64 bytes = arena_bytes(&parameters);
    g_autofree char *keys =
        g_strdup_printf("--set async=true --set host_memory=%" G_GUINT64_FORMAT, bytes + 1000);
    g_auto(RpCliRun) refused = rp_cli_shell(TRAIN "refused --set checkpoint.beside=true %s", keys);
    g_auto(RpCliRun) place =
        rp_cli_shell(TRAIN "auto --set steps=4 --set checkpoint.every=2 --json %s", keys);
    g_autofree char *made = rp_cli_temporary("refused/metrics.jsonl");

    expect_code(&refused, 1);
    const char *at = strstr(refused.err, words);

    if (at == NULL || strchr(refused.err, '\n') != refused.err + strlen(refused.err) - 1 ||
        strstr(refused.err, "beside training there are 1000; the limit is host_memory: use "
                            "checkpoint.beside: auto or false") == NULL)
        fail_msg("%s", refused.err);
    /* 12 bytes a parameter and 2 of the next weights, and what aligns them */
    assert_in_range(g_ascii_strtoull(at + strlen(words), NULL, 10), (guint64)(14 * parameters),
                    (guint64)(14 * parameters) + 4 * 64 * 100);
    assert_false(g_file_test(made, G_FILE_TEST_EXISTS));
    g_autoptr(RpTree) root = rp_cli_json(&place);
    assert_float_equal(rp_cli_number(root, "checkpoints.beside"), 0, 0);
    assert_float_equal(rp_cli_number(root, "checkpoints.saved"), 2, 0);
}

/* Files may have 8 blocks: what is written beside does not fit, what is trained does not suffer. */
RP_TEST(an_error_of_the_writer_is_told_and_the_next_one_tried)
{
    g_auto(RpCliRun) run =
        rp_cli_shell("ulimit -f 8; exec " TRAIN "small --set steps=9 --set checkpoint.every=3 "
                     "--set checkpoint.beside=true");
    g_auto(RpCliRun) again = rp_cli_shell(TRAIN "large --set steps=9 --set checkpoint.final=false");
    g_autofree char *found = rp_train_files_learned("small");
    g_autofree char *expected = rp_train_files_learned("large");

    expect_code(&run, 1);
    expect_code(&again, 0);
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 3: cannot write "));
    assert_non_null(strstr(run.err, "; training goes on\n"));
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 6: cannot write "));
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 9: cannot write "));
    assert_non_null(strstr(run.err, "; the last one is none\n"));
    assert_string_equal(expected, found);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
