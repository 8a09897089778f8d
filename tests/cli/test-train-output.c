/* Files that `roundpipe train` overwrites, and files that it keeps: the output directory of another run, a
 * branch that is left, files that are somebody's. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set output=@T/"

/* Runs @line to its end; stderr is expected to be @words. */
static void
succeed(const char *line, const char *words)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != 0 || strcmp(run.err, words) != 0)
        fail_msg("%s: exit code %d, expected 0 and \"%s\": %s", line, run.code, words, run.err);
}

static void
assert_names(const char *output, const char *expected)
{
    g_autofree char *names = rp_train_files_list(output);

    assert_string_equal(names, expected);
}

/* ---- the branch that is left ---- */

#define EVERY " --set steps=6 --set checkpoint.every=2 --set optimizer.schedule=constant"

RP_TEST(sets_checkpoints_aside_that_a_resume_leaves_behind)
{
    g_autofree char *root = rp_cli_temporary("branch");
    g_autofree char *note =
        g_strdup_printf("roundpipe train: note: %s: checkpoints behind step 2 are set aside as "
                        "abandoned-checkpoint-4, abandoned-checkpoint-6\n",
                        root);
    g_autofree char *second =
        g_strdup_printf("roundpipe train: note: %s: checkpoints behind step 2 are set aside as "
                        "abandoned-checkpoint-4-2\n",
                        root);

    succeed(TRAIN "branch" EVERY, "");
    succeed(TRAIN "branch --resume=@T/branch/checkpoint-2" EVERY
                  " --set steps=4 --set optimizer.learning_rate=1e-4 --set checkpoint.keep=2",
            note);
    assert_names("branch", "abandoned-checkpoint-4 abandoned-checkpoint-6 checkpoint-2 "
                           "checkpoint-4 metrics.jsonl profile.json run.yaml");
    /* the last is that of the new branch */
    g_autofree char *learned = rp_train_files_learned("branch");
    succeed(TRAIN "branch --resume" EVERY " --set steps=4", "");
    g_autofree char *after = rp_train_files_learned("branch");
    assert_string_equal(learned, after);
    /* names that are taken stay */
    succeed(TRAIN "branch --resume=@T/branch/checkpoint-2" EVERY " --set steps=4", second);
    assert_names("branch", "abandoned-checkpoint-4 abandoned-checkpoint-4-2 abandoned-checkpoint-6 "
                           "checkpoint-2 checkpoint-4 metrics.jsonl profile.json run.yaml");
}

RP_TEST(sets_nothing_aside_if_it_does_not_come_to_a_step)
{
    succeed(TRAIN "stays" EVERY, "");
    rp_cli_must_refuse(TRAIN "stays --resume=@T/stays/checkpoint-2 --set seed=9" EVERY, 1,
                       "the seed 0");
    assert_names("stays",
                 "checkpoint-2 checkpoint-4 checkpoint-6 metrics.jsonl profile.json run.yaml");
}

/* ---- another run ---- */

RP_TEST(refuses_an_output_that_another_run_writes_to)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "$ROUNDPIPE " TRAIN "shared --set steps=100000 >/dev/null 2>&1 & pid=$!; "
        "until [ -s @T/shared/metrics.jsonl ]; do sleep 0.02; done; "
        "$ROUNDPIPE " TRAIN "shared; echo $?; $ROUNDPIPE " TRAIN "shared --resume; echo $?; "
        "$ROUNDPIPE " TRAIN "shared --dry-run >/dev/null; echo $?; kill -TERM $pid; wait $pid");
    g_autofree char *directory = rp_cli_temporary("shared");
    g_autofree char *line =
        g_strdup_printf("roundpipe train: output: %s: another run writes there; wait for its end, "
                        "or choose another with --set output=DIRECTORY\n",
                        directory);
    g_autofree char *twice = g_strconcat(line, line, NULL);

    assert_int_equal(run.code, 143);
    assert_string_equal(run.out, "1\n1\n0\n");
    assert_string_equal(run.err, twice);
    /* the lock went with the process */
    rp_cli_must_run(TRAIN "shared --set steps=100000 --resume --save-gradients "
                          "@T/shared.safetensors");
}

/* ---- what is somebody's ---- */

RP_TEST(overwrites_no_file_that_no_run_wrote)
{
    static const char *const names[] = {"run.yaml", "metrics.jsonl", "profile.json",
                                        "training_loss.png"};

    succeed(TRAIN "source --set steps=1", "");
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *file = g_strdup_printf("mine%u/%s", i, names[i]);
        g_autofree char *fresh =
            g_strdup_printf(TRAIN "mine%u --set data=@T/no.jsonl --set plot_loss=true", i);
        g_autofree char *resumed = g_strdup_printf("%s --resume=@T/source/checkpoint-1", fresh);
        g_autofree char *expected = g_strdup_printf("expected no %s there", names[i]);
        g_autofree char *directory = g_strdup_printf("mine%u", i);
        g_autofree char *path = rp_cli_temporary(directory);
        g_autofree char *lock = g_build_filename(path, ".lock", NULL);

        assert_int_equal(g_mkdir_with_parents(path, 0777), 0);
        rp_cli_write(file, "mine");
        rp_cli_must_refuse(fresh, 1, expected);
        rp_cli_must_refuse(resumed, 1, expected);
        g_autofree char *text = rp_cli_read(file);
        assert_string_equal(text, "mine");
        assert_false(g_file_test(lock, G_FILE_TEST_EXISTS));
    }
}

/* A run that ended before its first checkpoint has left files of its own. */
RP_TEST(begins_anew_where_a_run_left_no_checkpoint)
{
    succeed(TRAIN "anew --set steps=2", "");
    rp_cli_must_shell("rm -r @T/anew/checkpoint-2");
    succeed(TRAIN "anew --set steps=1", "");
    assert_names("anew", "checkpoint-1 metrics.jsonl profile.json run.yaml");
}

/* Layer times decide about the plan: measured again, they would not be the same. */
RP_TEST(goes_on_with_the_layer_times_that_it_began_with)
{
    succeed(TRAIN "times --set steps=2 --set profile=auto", "");
    rp_cli_must_shell("sed -i 's/\"hop_ms\": [^,]*,/\"hop_ms\": 7.25,/' @T/times/profile.json; "
                      "cp @T/times/profile.json @T/began.json");
    succeed(TRAIN "times --set steps=3 --set profile=auto --resume", "");
    g_autofree char *began = rp_cli_read("began.json");
    g_autofree char *found = rp_cli_read("times/profile.json");
    assert_non_null(strstr(began, "\"hop_ms\": 7.25,"));
    assert_string_equal(began, found);

    /* of other devices, or torn: measured again */
    succeed(TRAIN "times --set steps=4 --set profile=measure --set devices=host:1 --resume", "");
    g_autofree char *other = rp_cli_read("times/profile.json");
    assert_null(strstr(other, "\"hop_ms\": 7.25,"));
    rp_cli_must_shell("head -c 300 @T/began.json > @T/times/profile.json");
    succeed(TRAIN "times --set steps=5 --set profile=measure --resume", "");
    rp_cli_must_shell("$ROUNDPIPE simulate @T/times/profile.json --schedule gpipe -n 2 -m 4");
}

RP_TEST(leaves_the_run_file_alone_that_it_was_started_with)
{
    succeed(TRAIN "own --set steps=2", "");
    rp_cli_must_shell("echo '# mine' >> @T/own/run.yaml; cp @T/own/run.yaml @T/own.yaml");
    succeed("train @T/own/run.yaml --set steps=3 --resume", "");
    g_autofree char *expected = rp_cli_read("own.yaml");
    g_autofree char *found = rp_cli_read("own/run.yaml");
    assert_string_equal(expected, found);
    rp_cli_must_shell("rm -r @T/own/checkpoint-*");
    rp_cli_must_refuse("train @T/own/run.yaml", 1,
                       "expected no run.yaml there, it would be overwritten");
    succeed("train @T/own/run.yaml --set output=@T/other --set steps=1", "");
}

RP_TEST(writes_over_no_file_that_it_reads)
{
    succeed(TRAIN "read --set steps=1", "");
    rp_cli_must_shell(
        "ln @T/model/model.safetensors @T/link.safetensors; cp -r @T/model @T/before; "
        "cp @T/data.jsonl @T/times.json @T/run.yaml @T/read/checkpoint-1/manifest.json "
        "@T/before");
    rp_cli_must_refuse_all("train-output: over no file that it reads");
    rp_cli_must_shell(
        "cd @T/before && cmp config.json ../model/config.json && "
        "cmp model.safetensors ../model/model.safetensors && cmp data.jsonl ../data.jsonl && "
        "cmp times.json ../times.json && cmp run.yaml ../run.yaml && "
        "cmp manifest.json ../read/checkpoint-1/manifest.json");
}

/* ---- what is not read ---- */

RP_TEST(reads_no_run_file_or_profile_that_may_have_no_end)
{
    rp_cli_must_shell("mkfifo @T/fifo; truncate -s 1G @T/large.yaml");
    rp_cli_must_refuse_all("train-output: reads no run file or profile that may have no end");
}

/* ---- what is left of a run that breaks off ---- */

/* @T/late.jsonl: samples that have a target, then none that has. */
static void
write_late(guint good)
{
    g_autoptr(GString) data = g_string_new(NULL);

    for (guint i = 0; i < good + 40; i++)
        g_string_append_printf(data, "{\"input_ids\":[1,2,%u],\"labels\":[1,%d,-100]}\n",
                               i % 30 + 3, i < good ? 2 : -100);
    rp_cli_write("late.jsonl", data->str);
}

#define LATE                                                                                       \
    " --set data=@T/late.jsonl --set shuffle=false --set packing=false --set steps=100 "           \
    "--set optimizer.schedule=constant"

RP_TEST(saves_what_was_learned_before_data_without_targets)
{
    write_late(14);
    rp_cli_must_refuse(TRAIN "late --trace @T/late.json" LATE, 1, "late/checkpoint-4");
    succeed(TRAIN "late" LATE " --set steps=4 --resume", "");
    succeed(TRAIN "good" LATE " --set steps=4", "");
    g_autofree char *expected = rp_train_files_learned("good");
    g_autofree char *found = rp_train_files_learned("late");
    assert_string_equal(expected, found);
    rp_cli_must_shell(
        "cmp @T/good/checkpoint-4/model.safetensors @T/late/checkpoint-4/model.safetensors");
    /* the trace is written too */
    g_autofree char *trace = rp_cli_read("late.json");
    g_autoptr(RpTree) root = rp_tree_parse(trace);
    assert_non_null(root);
    assert_non_null(rp_cli_member(root, "traceEvents.100"));
}

/* The second call of step 2 has nothing to learn, and adds nothing; step 3 has nothing at all: the data
 * stay before its first call. */
RP_TEST(saves_the_place_of_the_last_whole_step)
{
    write_late(12);
    rp_cli_must_refuse(TRAIN "calls --set gradient_accumulation_steps=2" LATE, 1,
                       "calls/checkpoint-2");
    g_autofree char *text = rp_cli_read("calls/checkpoint-2/trainer_state.json");
    assert_non_null(strstr(text, "\"position\":16,"));
    assert_non_null(strstr(text, "\"iterations\":4,"));
    /* as one call with all of them */
    succeed(TRAIN "one-call --set micro_batches=8" LATE " --set steps=2", "");
    succeed(TRAIN "two-calls --set gradient_accumulation_steps=2" LATE " --set steps=2", "");
    g_autofree char *one = rp_train_files_learned("one-call");
    g_autofree char *two = rp_train_files_learned("two-calls");
    assert_string_equal(one, two);
}

RP_TEST(tells_that_metrics_are_missing_also_of_a_run_that_breaks_off)
{
    write_late(160);
    g_auto(RpCliRun) run = rp_cli_shell("ulimit -f 4; exec $ROUNDPIPE " TRAIN "short" LATE);

    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.err, "warning: no checkpoint of step 40: "));
    assert_non_null(strstr(run.err, "the last one is none\n"));
    assert_non_null(strstr(run.err, "short/metrics.jsonl\": "));
    assert_non_null(strstr(run.err, "no checkpoint was saved before"));
}

/* ---- a request to save that comes early ---- */

/* From /proc: SIGUSR1 is caught, SIGTERM is not: there are no steps yet, or none any more. */
#define EARLY "'SigCgt:.*[012389ab][2367abef][0-9a-f][0-9a-f]$'"

RP_TEST(stands_a_request_to_save_before_the_first_step)
{
    rp_cli_must_shell("$ROUNDPIPE " TRAIN "early --set profile=auto >/dev/null & pid=$!; "
                      "until grep -q " EARLY " /proc/$pid/status; do kill -0 $pid || exit 9; done; "
                      "kill -USR1 $pid && wait $pid");
}

/* Times are kept under a name that another user may have made a link of: what it leads to stays. */
RP_TEST(keeps_times_through_no_link)
{
    rp_cli_must_shell("rm -rf @T/cache/roundpipe/profiles");
    succeed(TRAIN "times-one --set profile=auto --set steps=1 --set devices=host:1", "");
    rp_cli_must_shell(
        "cd @T/cache/roundpipe/profiles && echo mine >@T/victim && kept=$(ls) && rm $kept && "
        "ln -s @T/victim $kept");
    succeed(TRAIN "times-two --set profile=measure --set steps=1 --set devices=host:1", "");
    rp_cli_must_shell("grep -qx mine @T/victim && test ! -L @T/cache/roundpipe/profiles/*.json");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
