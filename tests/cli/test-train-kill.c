/*
 * `roundpipe train` killed with SIGKILL, over and over, and resumed in other shapes, must end with
 * the bytes of a run that was never stopped.
 *
 *   whole   |=1=2=3[c]4=5=6[c]7= ... =40[c]|
 *   parts   |=1=2=3[c]4=X                     host:2 roundpipe
 *                     |4=5=6[X                host:3 gpipe: X while the checkpoint is written
 *                     |4=5=6[c]7= ...         host:1, lists of layers as the paper has them
 */
#include "tests/cli/train-files.h"

#include <glib/gstdio.h>
#include <stdio.h>

#define STEPS "40"
/* Kills of all kinds of runs together; $ROUNDPIPE_TEST_KILLS: another number. */
#define KILLS (RP_TEST_FEW ? 12 : 35)
#define SEED 20240607 /* of the dice; $ROUNDPIPE_TEST_SEED: another, for runs beside each other */
#define KINDS 10      /* of runs */
#define SOME_KILLS 24 /* are enough to meet both sides of a checkpoint */
#define MOST_STARTS 64
#define LOOK_US 200
#define STOP_US 1000 /* until all threads stand still */

/* How a part of a run is run; those of RoundPipe first. */
#define ROUNDPIPE_WAYS 5

static const char *const ways[] = {
    "--set devices=host:2",
    "--set devices=host:1 --set partition=paper",
    "--set devices=host:4 --set consistency=blocking --set optimizer.threads=2",
    "--set devices=host:3 --set transfers=naive --set recompute=selective",
    "--set devices=host:4 --set forward_stages=1,1,1 --set backward_stages=1,1,1,1 "
    "--set recompute=none",
    "--set devices=host:3 --set schedule=gpipe --set round=0",
    "--set devices=host:2 --set schedule=1f1b --set round=0 --set optimizer.threads=2",
    "--set devices=host:2 --set schedule=interleaved-1f1b --set round=0",
    "--set devices=host:4 --set schedule=looped-bfs --set round=0 --set recompute=early",
    "--set devices=host:2 --set schedule=mobius --set round=0",
};

typedef struct {
    guint kills;
    guint torn;   /* of them, while a checkpoint was being written */
    guint starts; /* processes */
} Count;

static GRand *dice;
static Count total;
static guint kills_each; /* of each kind of run */

static guint
environment_number(const char *name, guint otherwise)
{
    const char *text = g_getenv(name);

    return text != NULL ? (guint)g_ascii_strtoull(text, NULL, 10) : otherwise;
}

static int
setup(void **state)
{
    kills_each = (environment_number("ROUNDPIPE_TEST_KILLS", KILLS) + KINDS - 1) / KINDS;
    dice = g_rand_new_with_seed(environment_number("ROUNDPIPE_TEST_SEED", SEED));
    return rp_train_files_setup(state);
}

static int
teardown(void **state)
{
    g_clear_pointer(&dice, g_rand_free);
    return rp_cli_teardown(state);
}

static GSubprocess *
start(const char *line)
{
    g_autoptr(GSubprocessLauncher) launcher =
        g_subprocess_launcher_new(G_SUBPROCESS_FLAGS_STDOUT_SILENCE);
    g_autofree char *root = rp_cli_temporary("");
    g_autofree char *errors = rp_cli_temporary("errors.txt");
    g_autoptr(GString) text = g_string_new(line);
    g_auto(GStrv) argv = NULL;
    GSubprocess *process;

    g_string_replace(text, "@T", root, 0);
    g_string_prepend(text, "roundpipe ");
    assert_true(g_shell_parse_argv(text->str, NULL, &argv, NULL));
    g_free(argv[0]);
    argv[0] = g_strdup(g_getenv("ROUNDPIPE"));
    g_subprocess_launcher_set_stderr_file_path(launcher, errors);
    process = g_subprocess_launcher_spawnv(launcher, (const char *const *)argv, NULL);
    if (process == NULL)
        fail_msg("cannot start %s", line);
    return process;
}

/* Whether @output has a checkpoint. */
static gboolean
has_checkpoint(const char *output)
{
    g_autofree char *path = rp_cli_temporary(output);
    g_autoptr(GDir) directory = g_dir_open(path, 0, NULL);
    const char *name;

    while (directory != NULL && (name = g_dir_read_name(directory)) != NULL)
        if (g_str_has_prefix(name, "checkpoint-"))
            return TRUE;
    return FALSE;
}

/* Unfinished saves of @output: a checkpoint being written, older ones being
 * removed. The same directory with something removed from it, or another of its name, counts as
 * another. (element-type char*) (transfer full) */
static GHashTable *
list_torn(const char *output)
{
    g_autofree char *path = rp_cli_temporary(output);
    g_autoptr(GDir) directory = g_dir_open(path, 0, NULL);
    GHashTable *torn = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    const char *name;

    while (directory != NULL && (name = g_dir_read_name(directory)) != NULL) {
        g_autofree char *inner = g_build_filename(path, name, NULL);
        GStatBuf status;

        if (!g_str_has_prefix(name, ".checkpoint-") || g_lstat(inner, &status) != 0)
            continue;
        g_hash_table_add(torn,
                         g_strdup_printf("%s %" G_GUINT64_FORMAT " %" G_GINT64_FORMAT ".%09ld",
                                         name, (guint64)status.st_ino,
                                         (gint64)status.st_ctim.tv_sec, status.st_ctim.tv_nsec));
    }
    return torn;
}

/* Whether a save is torn now that was not yet when the list was made. */
static gboolean
has_torn(const char *output, GHashTable *before)
{
    g_autoptr(GHashTable) now = list_torn(output);
    GHashTableIter each;
    gpointer entry;

    g_hash_table_iter_init(&each, now);
    while (g_hash_table_iter_next(&each, &entry, NULL))
        if (!g_hash_table_contains(before, entry))
            return TRUE;
    return FALSE;
}

/* Kills after a random time, within a checkpoint, or behind one, as the dice say. @torn: as it was
 * at the start. Returns: whether it was killed; otherwise it is over, with exit code 0 */
static gboolean
run_until_killed(GSubprocess *process, const char *output, GHashTable *torn, gint64 whole_us)
{
    enum { ANY_TIME, WITHIN, BEHIND, N_MOMENTS };
    gint64 end_us = g_get_monotonic_time() + g_rand_int_range(dice, 0, (gint32)whole_us);
    gint32 moment = whole_us < G_MAXINT32 ? g_rand_int_range(dice, 0, N_MOMENTS) : ANY_TIME;
    guint n_left = (guint)g_rand_int_range(dice, 1, 4);
    gboolean before = FALSE;

    while (g_subprocess_get_identifier(process) != NULL) {
        gboolean now = has_torn(output, torn);

        if (moment == ANY_TIME ? g_get_monotonic_time() >= end_us
                               : now != before && now == (moment == WITHIN) && --n_left == 0)
            break;
        before = now;
        g_usleep(LOOK_US);
    }
    if (moment == WITHIN)
        g_usleep((gulong)g_rand_int_range(dice, 0, 3000));
    g_subprocess_force_exit(process);
    assert_true(g_subprocess_wait(process, NULL, NULL));
    if (g_subprocess_get_if_signaled(process))
        return TRUE;
    if (g_subprocess_get_exit_status(process) != 0) {
        g_autofree char *errors = rp_cli_read("errors.txt");

        fail_msg("%s: exit code %d: %s", output, g_subprocess_get_exit_status(process), errors);
    }
    return FALSE;
}

/* One run, in as many parts as it takes. */
static void
run_in_parts(const char *output, const char *kind, gint n_ways, gint64 whole_us, Count *count)
{
    for (guint n = 0; n < MOST_STARTS; n++) {
        const char *way = ways[g_rand_int_range(dice, 0, n_ways)];
        g_autofree char *line =
            g_strdup_printf("train @T/run.yaml --set output=@T/%s --set steps=" STEPS
                            " --set checkpoint.every=3 --set checkpoint.beside=%s %s %s %s",
                            output, g_rand_boolean(dice) ? "true" : "false", way, kind,
                            has_checkpoint(output) ? "--resume" : "");
        g_autoptr(GHashTable) torn = list_torn(output);
        g_autoptr(GSubprocess) process = start(line);

        count->starts++;
        if (!run_until_killed(process, output, torn,
                              count->kills < kills_each ? whole_us : G_MAXINT32))
            return;
        count->kills++;
        count->torn += has_torn(output, torn);
    }
    fail_msg("%s: not over after %d starts", output, MOST_STARTS);
}

static void
check_parts(const char *whole, const char *parts)
{
    g_autofree char *whole_step = g_build_filename(whole, "checkpoint-" STEPS, NULL);
    g_autofree char *parts_step = g_build_filename(parts, "checkpoint-" STEPS, NULL);
    g_autofree char *expected = rp_train_files_learned(whole);
    g_autofree char *found = rp_train_files_learned(parts);
    g_autofree char *names = rp_train_files_list(parts);

    rp_train_files_assert_same(whole_step, parts_step);
    assert_string_equal(expected, found);
    /* more than three may be left if the last kill fell between the last checkpoint's name and the
     * removal of older ones: then there is nothing more to save */
    if (strstr(names, "checkpoint-36 checkpoint-39 checkpoint-" STEPS " metrics.jsonl ") == NULL)
        fail_msg("%s has %s", parts, names);
}

/* @kind: what may not change within a run; @n_ways: of those above */
static void
survives(const char *name, const char *kind, gint n_ways)
{
    g_autofree char *whole = g_strdup_printf("%s-whole", name);
    gint64 begin_us = g_get_monotonic_time();
    rp_cli_must_run("train @T/run.yaml --set output=@T/%s --set steps=" STEPS
                    " --set checkpoint.every=3 --set checkpoint.beside=false %s",
                    whole, kind);
    gint64 whole_us = g_get_monotonic_time() - begin_us;
    Count count = {0};

    for (guint part = 0; count.kills < kills_each; part++) {
        g_autofree char *parts = g_strdup_printf("%s-parts-%u", name, part);

        run_in_parts(parts, kind, n_ways, whole_us, &count);
        check_parts(whole, parts);
    }
    print_message("           %u kills, %u of them within a checkpoint; %u starts\n", count.kills,
                  count.torn, count.starts);
    total.kills += count.kills;
    total.torn += count.torn;
    total.starts += count.starts;
}

/* ---- how kills are counted ---- */

#define COUNTED "train @T/run.yaml --set output=@T/counted --set steps=1000 --set checkpoint.every="

/* Whether it stands still within a checkpoint that is not one of @torn; else it goes on. */
static gboolean
stops_within(GSubprocess *process, GHashTable *torn)
{
    if (!has_torn("counted", torn))
        return FALSE;
    g_subprocess_send_signal(process, SIGSTOP);
    g_usleep(STOP_US);
    if (has_torn("counted", torn))
        return TRUE;
    g_subprocess_send_signal(process, SIGCONT);
    return FALSE;
}

/* Removes what a run would continue from; what kills have left stays. */
static void
begin_anew(void)
{
    rp_cli_must_shell("rm -rf @T/counted/checkpoint-* @T/counted/metrics.jsonl");
}

/* Starts a run and kills it within a checkpoint, or after its first step; nothing if it ends before. */
static void
kill_run(const char *line, GHashTable *torn, gboolean within)
{
    g_autoptr(GSubprocess) process = start(line);
    gint64 end_us = g_get_monotonic_time() + 60 * G_USEC_PER_SEC;
    g_autofree char *metrics = rp_cli_temporary("counted/metrics.jsonl");
    GStatBuf status;

    while (g_get_monotonic_time() < end_us && g_subprocess_get_identifier(process) != NULL &&
           !(within ? stops_within(process, torn)
                    : g_stat(metrics, &status) == 0 && status.st_size > 0))
        g_usleep(LOOK_US);
    g_subprocess_force_exit(process);
    assert_true(g_subprocess_wait(process, NULL, NULL));
}

/* The same; on a busy machine a run may end without having been met within a checkpoint. */
static void
kill_counted(const char *line, GHashTable *torn, gboolean within)
{
    kill_run(line, torn, within);
    for (guint again = 0; within && !has_torn("counted", torn) && again < 4; again++) {
        begin_anew();
        kill_run(line, torn, within);
    }
}

RP_TEST(counts_a_kill_within_a_checkpoint_only_if_it_tore_one)
{
    g_autoptr(GHashTable) none = list_torn("counted");

    assert_int_equal(g_hash_table_size(none), 0);
    kill_counted(COUNTED "1", none, TRUE);
    assert_true(has_torn("counted", none));

    /* what the kill left stays, and the next, between checkpoints, is not taken for another */
    g_autoptr(GHashTable) left = list_torn("counted");

    begin_anew();
    kill_counted(COUNTED "0", left, FALSE);
    assert_true(has_torn("counted", none));
    assert_false(has_torn("counted", left));

    /* one that tears another of the same name is */
    begin_anew();
    kill_counted(COUNTED "1", left, TRUE);
    assert_true(has_torn("counted", left));
}

RP_TEST(survives_in_fp32_asynchronously)
{
    survives("fp32", "--set dtype=fp32 --set async=true", G_N_ELEMENTS(ways));
}

RP_TEST(survives_in_bf16_asynchronously_and_lean)
{
    survives("bf16-lean", "--set dtype=bf16 --set async=true --set optimizer.mode=lean",
             G_N_ELEMENTS(ways));
}

/* Gradients of a call leave the device rounded; bound schedules sum those of all calls there. */
RP_TEST(survives_in_bf16_asynchronously_over_several_calls)
{
    survives("bf16-calls", "--set dtype=bf16 --set async=true --set gradient_accumulation_steps=2",
             ROUNDPIPE_WAYS);
}

/* The best checkpoint and what is remembered of it. */
RP_TEST(survives_with_evaluations)
{
    survives("evaluates",
             "--set async=true --set eval.data=@T/data.jsonl --set eval.every=4 "
             "--set eval.keep_best=true --set eval.patience=9",
             G_N_ELEMENTS(ways));
}

/* The scale falls while a step is in flight. */
#define FP16 "--set dtype=fp16 --set loss_scale.initial=8388608"

RP_TEST(survives_in_fp16_asynchronously_with_a_loss_scale_that_moves)
{
    survives("fp16", FP16 " --set async=true", G_N_ELEMENTS(ways));

    g_autofree char *learned = rp_train_files_learned("fp16-whole");
    assert_non_null(strstr(learned, "skipped true "));
    assert_non_null(strstr(learned, "skipped false "));
}

RP_TEST(survives_in_fp16_synchronously_and_lean)
{
    survives("fp16-lean", FP16 " --set async=false --set optimizer.mode=lean", G_N_ELEMENTS(ways));
}

RP_TEST(survives_in_bf16_synchronously)
{
    survives("bf16", "--set dtype=bf16 --set async=false", G_N_ELEMENTS(ways));
}

/* A resumed run makes the weights that are not trained, and has all others of its checkpoint. */
RP_TEST(survives_with_weights_that_are_made_in_memory)
{
    survives("random", "--set model=random:@T/tiny.json --set freeze=embed_tokens --set async=true",
             G_N_ELEMENTS(ways));
}

/* Kills also fall while the reference scores the data, before the first step. */
#define PAIRS "--set data=@T/pairs.jsonl --set eval.data=@T/pairs.jsonl --set eval.every=5 "

RP_TEST(survives_with_a_preference_whose_reference_is_precomputed)
{
    survives("dpo", PAIRS "--set objective=dpo --set eval.keep_best=true --set async=true",
             G_N_ELEMENTS(ways));
}

RP_TEST(survives_with_a_preference_whose_reference_has_no_adapters)
{
    survives("dpo-lora", PAIRS "--set objective=ipo --set lora.rank=2 --set async=false",
             G_N_ELEMENTS(ways));
}

RP_TEST(some_kills_fell_within_a_checkpoint_and_some_between)
{
    print_message("           all in all %u kills, %u of them within a checkpoint; %u starts\n",
                  total.kills, total.torn, total.starts);
    assert_true(total.kills >= KINDS * kills_each);
    if (total.kills < SOME_KILLS)
        return;
    assert_true(total.torn > 0);
    assert_true(total.torn < total.kills);
}

RP_TEST_GROUP(setup, teardown)
