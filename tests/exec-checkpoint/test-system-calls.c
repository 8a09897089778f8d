/**
 * Every system call of a save and of a restore fails in turn, with every error that matters:
 * afterwards there is either an error, and the checkpoint of before is whole, or none, and the new
 * one is.
 *
 * One error for each call, each error in turn, under sanitizers for every third call; with
 * ROUNDPIPE_TEST_LONG in the environment each error for each call, once and from then on.
 */
#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <unistd.h>

#include "tests/exec-checkpoint/fail-call.h"

#define OLD_STEP 1
#define LAST_STEP 2
#define NEW_STEP 3

/* Exit status of a child. */
enum { DONE = 0, FAILED = 1, WRONG = 2, OLDER = 4 };

/* EINVAL: also of a renameat2() that cannot exchange. */
static const struct {
    int number;
    const char *name;
    gboolean may_last; /* a loop that waits for its end would be right */
} errors[] = {
    {ENOSPC, "ENOSPC", TRUE}, {EIO, "EIO", TRUE},       {EINTR, "EINTR", FALSE},
    {EACCES, "EACCES", TRUE}, {EMFILE, "EMFILE", TRUE}, {ENOMEM, "ENOMEM", TRUE},
    {EINVAL, "EINVAL", TRUE},
};

static gboolean full;

typedef struct {
    CheckpointFixture *f;
    guint64 step; /* step that is saved or restored */
} Work;

/* One line, that is not empty. */
static int
refused(const GError *error)
{
    gboolean good =
        error != NULL && error->message[0] != '\0' && strchr(error->message, '\n') == NULL;

    if (!good)
        print_error("message: %s\n", error != NULL ? error->message : "none");
    return good ? FAILED : WRONG;
}

static int
save(gpointer data)
{
    Work *work = data;
    g_autoptr(GError) error = NULL;

    return checkpoint_try_save(work->f, work->step, &error) ? DONE : refused(error);
}

static int
restore(gpointer data)
{
    Work *work = data;
    CheckpointFixture *f = work->f;
    RpModel config = checkpoint_config(TRUE);
    RpTrainer *restored = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
    g_autofree char *path = g_strdup_printf("%s/checkpoint-%d", f->output, LAST_STEP);
    g_autoptr(GError) error = NULL;
    RpDataState state;

    fake_trainer_go_to(f->trainer, LAST_STEP);
    if (!rp_checkpoint_restore(path, restored, NULL, &state, NULL, &error))
        return refused(error);
    return fake_trainer_equal(f->trainer, restored) ? DONE : WRONG;
}

/* The last one; an older one with a word about the last; or an error. Never none without a word. */
static int
find(gpointer data)
{
    Work *work = data;
    g_autofree char *skipped = NULL;
    g_autoptr(GError) error = NULL;
    g_autofree char *found = rp_checkpoint_find_last(work->f->output, &skipped, &error);

    if (found == NULL)
        return error != NULL ? refused(error) : skipped != NULL ? FAILED : WRONG;
    if (g_str_has_suffix(found, "/checkpoint-2"))
        return DONE;
    return skipped != NULL ? OLDER : WRONG;
}

/* ---- files on the disk ---- */

static char *
step_path(const CheckpointFixture *f, guint64 step)
{
    return g_strdup_printf("%s/checkpoint-%" G_GUINT64_FORMAT, f->output, step);
}

static gboolean
is_there(CheckpointFixture *f, guint64 step)
{
    g_autofree char *path = step_path(f, step);

    return g_file_test(path, G_FILE_TEST_EXISTS);
}

/* Whether the checkpoint of @step has all its files, and every bit. @manifest: as it must be */
static gboolean
is_whole(CheckpointFixture *f, guint64 step, const char *manifest)
{
    g_autofree char *path = step_path(f, step);
    g_autofree char *file = g_build_filename(path, "manifest.json", NULL);
    g_autofree char *text = NULL;

    return g_file_get_contents(file, &text, NULL, NULL) && strcmp(text, manifest) == 0 &&
           checkpoint_holds(f, path, step);
}

/* The manifest of @step, saved in peace. (transfer full) */
static char *
manifest_of(CheckpointFixture *f, guint64 step)
{
    char *text = NULL;

    assert_true(checkpoint_save_step(f, step));
    g_autofree char *file = g_build_filename(f->path, "manifest.json", NULL);
    assert_true(g_file_get_contents(file, &text, NULL, NULL));
    return text;
}

/* Two checkpoints, and nothing else but the lock of nobody. */
static void
tidy(CheckpointFixture *f)
{
    g_autofree char *list = checkpoint_list(f->output);
    g_auto(GStrv) names = g_strsplit(list, " ", -1);

    for (guint i = 0; names[i] != NULL; i++) {
        g_autofree char *path = g_build_filename(f->output, names[i], NULL);
        if (names[i][0] == '.' || strcmp(names[i], "checkpoint-3") == 0)
            checkpoint_remove_tree(path);
    }
    for (guint64 step = OLD_STEP; step <= LAST_STEP; step++)
        if (!is_there(f, step))
            assert_true(checkpoint_save_step(f, step));
}

/* ---- the sweep ---- */

typedef struct {
    const char *name;
    int (*work)(gpointer data);
    guint64 step;
    guint least_calls;
} Sweep;

typedef struct {
    CheckpointFixture *f;
    const Sweep *sweep;
    char *manifests[NEW_STEP + 1]; /* as they are in peace */
    guint n_failed;
    guint n_done;
    GHashTable *names; /* names of calls that failed once */
} Run;

static void
check(Run *run, const RpFailure *failure, const char *error_name, const RpFailOutcome *outcome)
{
    CheckpointFixture *f = run->f;
    const Sweep *sweep = run->sweep;
    gboolean done = outcome->end == RP_FAIL_EXITED && outcome->code == DONE;
    gboolean failed = outcome->end == RP_FAIL_EXITED && outcome->code == FAILED;
    gboolean older = outcome->end == RP_FAIL_EXITED && outcome->code == OLDER;
    gboolean last = is_there(f, LAST_STEP);
    gboolean good = done || failed || older;

    /* the old one is whole as long as it is there, and is there if there was an error */
    good = good && (!last || is_whole(f, LAST_STEP, run->manifests[LAST_STEP]));
    good = good && (last || (done && sweep->step == NEW_STEP));
    good = good && (!is_there(f, OLD_STEP) || is_whole(f, OLD_STEP, run->manifests[OLD_STEP]));
    if (sweep->step == NEW_STEP && (done || is_there(f, NEW_STEP)))
        good = good && is_whole(f, NEW_STEP, run->manifests[NEW_STEP]);
    if (!good) {
        g_autofree char *list = checkpoint_list(f->output);
        fail_msg("%s: call %u (%s)%s fails with %s: %s %d; there are %s", sweep->name, failure->nth,
                 outcome->name, failure->onward ? " and all after" : "", error_name,
                 outcome->end == RP_FAIL_EXITED ? "exit code" : "signal", outcome->code, list);
    }
    run->n_done += done;
    run->n_failed += failed;
}

/* Returns: whether there was an N-th call */
static gboolean
fail_nth(Run *run, guint nth, gsize which, gboolean onward)
{
    const RpFailure failure = {.nth = nth, .number = errors[which].number, .onward = onward};
    Work work = {run->f, run->sweep->step};

    tidy(run->f);
    RpFailOutcome outcome = rp_fail_call(&failure, run->sweep->work, &work);
    if (outcome.end == RP_FAIL_NOT_ALLOWED)
        skip();
    check(run, &failure, errors[which].name, &outcome);
    if (outcome.name != NULL)
        g_hash_table_add(run->names, (gpointer)outcome.name);
    return outcome.name != NULL;
}

static void
sweep_calls(CheckpointFixture *f, const Sweep *sweep)
{
    Run run = {.f = f, .sweep = sweep};
    gboolean more = TRUE;
    guint nth = 0;

    f->options.keep = 2;
    checkpoint_write_text(f->model_dir, "tokenizer.json", "{}");
    for (guint64 step = OLD_STEP; step <= NEW_STEP; step++)
        run.manifests[step] = manifest_of(f, step);
    run.names = f->files = g_hash_table_new(g_str_hash, g_str_equal);
    while (more) {
        nth += RP_TEST_FEW ? 3 : 1;
        for (gsize e = 0; e < G_N_ELEMENTS(errors); e++) {
            if (!full && e != nth % G_N_ELEMENTS(errors))
                continue;
            more = fail_nth(&run, nth, e, FALSE);
            if (more && full && errors[e].may_last)
                (void)fail_nth(&run, nth, e, TRUE);
        }
    }
    for (guint64 step = OLD_STEP; step <= NEW_STEP; step++)
        g_free(run.manifests[step]);
    print_message("%s: %u calls; %u runs with an error, %u without\n", sweep->name, nth - 1,
                  run.n_failed, run.n_done);
    assert_true(nth > sweep->least_calls);
    assert_true(run.n_failed > 0 && run.n_done > 0);
    /* the next save removes any leftovers */
    assert_true(checkpoint_save_step(f, NEW_STEP + 1));
    f->text = checkpoint_list(f->output);
    assert_null(strstr(f->text, ".tmp"));
}

RP_TEST(of_a_save)
{
    static const Sweep sweep = {"save", save, NEW_STEP, 100};

    sweep_calls(*state, &sweep);
}

RP_TEST(of_a_replacement)
{
    static const Sweep sweep = {"replacement", save, LAST_STEP, 100};

    sweep_calls(*state, &sweep);
}

RP_TEST(of_a_restore)
{
    static const Sweep sweep = {"restore", restore, LAST_STEP, 40};

    sweep_calls(*state, &sweep);
}

RP_TEST(of_a_look_for_the_last)
{
    static const Sweep sweep = {"find", find, LAST_STEP, 20};

    sweep_calls(*state, &sweep);
}

static int
be_quick(void **state)
{
    (void)state;
    if (g_access("/dev/shm", W_OK) == 0) /* nothing is waited for there */
        g_setenv("TMPDIR", "/dev/shm", TRUE);
    full = g_getenv("ROUNDPIPE_TEST_LONG") != NULL;
    return 0;
}

RP_TEST_FIXTURE(checkpoint_setup, checkpoint_teardown)
RP_TEST_GROUP(be_quick, NULL)
