/*
 * Files that a run reads, and its output directory, before the first step.
 *
 *   look      a place that can be written to, locked, with nothing in the way
 *   begin     made, locked; checkpoints of steps that are done again set aside; run.yaml
 *
 *   resumed from checkpoint-20     checkpoint-20  checkpoint-40  checkpoint-60
 *   becomes                        checkpoint-20  abandoned-checkpoint-40  abandoned-checkpoint-60
 */
#include "run/train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "exec/checkpoint/checkpoint.h"
#include "run/model.h"
#include "run/run-file.h"
#include "run/train/job.h"

/* ---- files that are read, and are not to be written over ---- */

gboolean
rp_train_check_regular(const char *what, const char *path, guint64 most_bytes, GError **error)
{
    GStatBuf status;

    if (g_stat(path, &status) != 0 || S_ISDIR(status.st_mode))
        return TRUE; /* told by whoever reads it */
    if (!S_ISREG(status.st_mode))
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                       "%s%s: expected a regular file, found a device, a pipe or a socket", what,
                       path);
    if ((guint64)status.st_size > most_bytes)
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                       "%s%s: expected at most %" G_GUINT64_FORMAT
                       " bytes, found %" G_GUINT64_FORMAT,
                       what, path, most_bytes, (guint64)status.st_size);
    return TRUE;
}

gboolean
rp_train_check_profile(const RpRunSpec *run, gboolean dry, GError **error)
{
    g_autoptr(GError) problem = NULL;

    if (rp_run_measures(run) || (run->card != NULL && dry))
        return TRUE;
    if (run->card == NULL && strpbrk(run->profile, "/.") == NULL &&
        !g_file_test(run->profile, G_FILE_TEST_EXISTS) && !rp_gpu_find(run->profile, &problem))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "profile: no file %s, and %s",
                       run->profile, problem->message);
    if (run->card == NULL)
        return rp_train_check_regular("profile: ", run->profile, G_MAXUINT64, error);
    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
        "profile: expected auto, measure or a timing file, found %s, a card's name, whose "
        "times are predicted: they are for --dry-run",
        run->profile);
}

/* Whether @path is one of the files of @data, names with commas between. */
static gboolean
is_of_data(const char *path, const char *data)
{
    g_auto(GStrv) files = rp_run_data_files(data, NULL, NULL);
    gboolean is = FALSE;

    for (guint i = 0; files != NULL && files[i] != NULL && !is; i++)
        is = rp_file_is_same(path, files[i]);
    return is;
}

/* Whether @path is @input, or a file of the directory @input. */
static gboolean
is_of(const char *path, const char *input)
{
    const char *name;

    if (!g_file_test(input, G_FILE_TEST_IS_DIR))
        return rp_file_is_same(path, input);
    g_autoptr(GDir) directory = g_dir_open(input, 0, NULL);
    while (directory != NULL && (name = g_dir_read_name(directory)) != NULL) {
        g_autofree char *inner = g_build_filename(input, name, NULL);

        if (rp_file_is_same(path, inner))
            return TRUE;
    }
    return FALSE;
}

static gboolean
fail_input(const char *option, const char *path, const char *what, GError **error)
{
    return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
                   "%s: expected a file that the run does not read, found \"%s\", which is %s",
                   option, path, what);
}

gboolean
rp_train_check_no_input(const char *option, const char *path, const RpRunSpec *run,
                        const RpTrainHow *how, GError **error)
{
    g_autofree char *model = rp_run_model_directory(run->model);
    const char *const inputs[][2] = {
        {"the run file", how->run_file},
        {"a file of the model", model},
        {"the profile", run->profile},
        {"a file of the checkpoint", how->checkpoint},
    };
    const char *const data[][2] = {{"the data", run->data},
                                   {"the validation data", run->eval.data}};

    if (path == NULL)
        return TRUE;
    for (guint i = 0; i < G_N_ELEMENTS(inputs); i++)
        if (inputs[i][1] != NULL && is_of(path, inputs[i][1]))
            return fail_input(option, path, inputs[i][0], error);
    for (guint i = 0; i < G_N_ELEMENTS(data); i++)
        if (data[i][1] != NULL && is_of_data(path, data[i][1]))
            return fail_input(option, path, data[i][0], error);
    return TRUE;
}

#define LOCK_NAME ".lock"
/* A run writes this file first: a folder that has it is ours. */
#define LOCK_TEXT "roundpipe train\n"

#define CHECKPOINT_PREFIX "checkpoint-"
#define ABANDONED_PREFIX "abandoned-"

/* ---- one run at a time ---- */

/* Locks an @output that exists, if it is not yet; the lock is gone with the process. */
static gboolean
lock_output(const char *output, int *lock, GError **error)
{
    g_autofree char *path = g_build_filename(output, LOCK_NAME, NULL);

    if (*lock >= 0)
        return TRUE;
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0)
        return rp_file_fail(error, errno, "output: cannot write to \"%s\"", path);
    /* a file system without locks is no reason to refuse */
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return TRUE;
    close(*lock);
    *lock = -1;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_BUSY, "output: %s: another run writes there",
                   output);
}

static gboolean
lock_is_ours(const char *output)
{
    g_autofree char *path = g_build_filename(output, LOCK_NAME, NULL);
    GStatBuf status;

    return g_stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
}

/* ---- nothing in the way ---- */

gboolean
rp_train_check_no_output(const char *option, const char *path, const RpRunSpec *run, GError **error)
{
    const char *const names[] = {"run.yaml", "metrics.jsonl", RP_TRAIN_PROFILE, LOCK_NAME,
                                 run->plot_loss != 0 ? "training_loss.png" : NULL};

    for (guint i = 0; path != NULL && i < G_N_ELEMENTS(names) && names[i] != NULL; i++) {
        g_autofree char *written = g_build_filename(run->output, names[i], NULL);

        if (!rp_file_is_same_place(path, written))
            continue;
        return rp_fail(
            error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
            "%s: expected a file that the run does not write, found \"%s\", which is %s of "
            "its output",
            option, path, names[i]);
    }
    return TRUE;
}

/* Any name of a checkpoint. Returns: (transfer full), %NULL if there is none, or on error */
static char *
find_any(const char *output, GError **error)
{
    g_autoptr(GPtrArray) names = rp_file_list(output, error);

    if (names == NULL)
        g_prefix_error(error, "output: ");
    for (guint i = 0; names != NULL && i < names->len; i++)
        if (g_str_has_prefix(g_ptr_array_index(names, i), CHECKPOINT_PREFIX))
            return g_strdup(g_ptr_array_index(names, i));
    return NULL;
}

/* Whether the run file is OUTPUT/run.yaml itself. */
static gboolean
is_own_run_file(const RpRunSpec *run, const RpTrainHow *how)
{
    g_autofree char *copy = g_build_filename(run->output, "run.yaml", NULL);

    return rp_file_is_same(copy, how->run_file);
}

/* A new run would mix its checkpoints with those that are there. Files of a run's names that no run
 * of ours wrote are somebody's. */
static gboolean
check_empty(const RpRunSpec *run, const RpTrainHow *how, GError **error)
{
    const char *const names[] = {"run.yaml", "metrics.jsonl", RP_TRAIN_PROFILE,
                                 run->plot_loss != 0 ? "training_loss.png" : NULL};
    gboolean ours = lock_is_ours(run->output);
    g_autofree char *checkpoint = NULL;
    GError *local = NULL;

    if (!g_file_test(run->output, G_FILE_TEST_EXISTS) || (how->resume && how->checkpoint == NULL))
        return TRUE;
    checkpoint = find_any(run->output, &local);
    if (checkpoint != NULL && how->resume)
        return TRUE;
    if (checkpoint != NULL)
        g_set_error(&local, RP_RUN_ERROR, RP_RUN_ERROR_CHECKPOINT,
                    "output: %s: expected no checkpoint there, found %s", run->output, checkpoint);
    for (guint i = 0; i < G_N_ELEMENTS(names) && names[i] != NULL && local == NULL; i++) {
        g_autofree char *path = g_build_filename(run->output, names[i], NULL);
        gboolean kept = rp_file_is_same(path, how->run_file)  ? how->resume
                        : rp_file_is_same(path, run->profile) ? TRUE /* not written */
                                                              : ours;

        if (g_file_test(path, G_FILE_TEST_EXISTS) && !kept)
            g_set_error(&local, RP_RUN_ERROR, RP_RUN_ERROR_OVERWRITTEN,
                        "output: %s: expected no %s there, it would be overwritten", run->output,
                        names[i]);
    }
    if (local == NULL)
        return TRUE;
    return rp_propagate_error(error, local);
}

/* The directory, or the nearest one above it that exists, takes new files: seen before anything
 * long is done, and nothing of it stays. */
static gboolean
check_output(const RpRunSpec *run, GError **error)
{
    g_autofree char *directory = rp_file_existing_directory(run->output);
    g_autofree char *probe = g_build_filename(directory, ".roundpipe-XXXXXX", NULL);

    if (g_mkdtemp(probe) != NULL) {
        (void)g_rmdir(probe);
        return TRUE;
    }
    return rp_file_fail(error, errno, "output: cannot write to \"%s\"", run->output);
}

/* A directory that is not there yet is locked when it is made; one that is somebody's gets no lock.
 */
static gboolean
take_output(const RpRunSpec *run, RpTrainHow *how, GError **error)
{
    g_autofree char *lock = g_build_filename(run->output, LOCK_NAME, NULL);

    if (!check_output(run, error) ||
        (g_file_test(lock, G_FILE_TEST_EXISTS) && !lock_output(run->output, &how->lock, error)) ||
        !check_empty(run, how, error))
        return FALSE;
    return !g_file_test(run->output, G_FILE_TEST_IS_DIR) ||
           lock_output(run->output, &how->lock, error);
}

gboolean
rp_train_find_checkpoint(const RpRunSpec *run, RpTrainHow *how, GError **error)
{
    g_autofree char *skipped = NULL;
    GError *local = NULL;

    if (how->save_gradients == NULL && !take_output(run, how, error))
        return FALSE;
    if (!how->resume || how->checkpoint != NULL)
        return TRUE;
    how->checkpoint = rp_checkpoint_find_last(run->output, &skipped, &local);
    if (skipped != NULL)
        rp_run_say(how->events, "note", "%s", skipped);
    if (how->checkpoint == NULL && local == NULL)
        /* without --resume the damaged ones would be in the way */
        g_set_error(&local, RP_RUN_ERROR,
                    skipped != NULL ? RP_RUN_ERROR_OVERWRITTEN : RP_RUN_ERROR_NO_CHECKPOINT,
                    "%s: expected a complete checkpoint, found none%s", run->output,
                    skipped != NULL ? " but damaged ones" : "");
    if (local != NULL)
        g_propagate_error(error, local);
    return how->checkpoint != NULL;
}

/* ---- the first step is near ---- */

/* The step in a checkpoint's name; 0: it is none. */
static guint64
name_step(const char *name)
{
    guint64 step = 0;

    return g_str_has_prefix(name, CHECKPOINT_PREFIX) &&
                   g_ascii_string_to_unsigned(name + strlen(CHECKPOINT_PREFIX), 10, 0, G_MAXUINT64,
                                              &step, NULL)
               ? step
               : 0;
}

static gint
compare_steps(gconstpointer a, gconstpointer b)
{
    guint64 x = name_step(*(const char *const *)a);
    guint64 y = name_step(*(const char *const *)b);

    return (x > y) - (x < y);
}

/* @name gets a name that no reader takes for a checkpoint. Returns: it, or %NULL. */
static char *
abandon(const char *output, const char *name, GError **error)
{
    g_autofree char *from = g_build_filename(output, name, NULL);
    g_autofree char *to = g_strdup_printf(ABANDONED_PREFIX "%s", name);
    g_autofree char *path = g_build_filename(output, to, NULL);

    for (guint n = 2; g_file_test(path, G_FILE_TEST_EXISTS | G_FILE_TEST_IS_SYMLINK); n++) {
        g_free(to);
        g_free(path);
        to = g_strdup_printf(ABANDONED_PREFIX "%s-%u", name, n);
        path = g_build_filename(output, to, NULL);
    }
    if (g_rename(from, path) == 0)
        return g_steal_pointer(&to);
    (void)rp_file_fail(error, errno, "output: cannot rename \"%s\" to \"%s\"", from, path);
    return NULL;
}

/* Checkpoints of the branch that is left: the next --resume would take them for the newest, and
 * checkpoint.keep would keep them in place of new ones. */
static gboolean
abandon_later(const char *output, const RpRunEvents *events, guint64 step, GError **error)
{
    g_autoptr(GPtrArray) names = rp_file_list(output, error);
    g_autoptr(GString) said = g_string_new(NULL);

    if (names == NULL)
        return rp_prefix_error(error, "output: ");
    for (guint i = names->len; i-- > 0;)
        if (name_step(g_ptr_array_index(names, i)) <= step)
            g_ptr_array_remove_index(names, i);
    g_ptr_array_sort(names, compare_steps);
    for (guint i = 0; i < names->len; i++) {
        g_autofree char *to = abandon(output, g_ptr_array_index(names, i), error);

        if (to == NULL)
            return FALSE;
        g_string_append_printf(said, "%s%s", i > 0 ? ", " : "", to);
    }
    if (names->len > 0)
        rp_run_say(events, "note",
                   "%s: checkpoints behind step %" G_GUINT64_FORMAT " are set aside as %s", output,
                   step, said->str);
    return TRUE;
}

gboolean
rp_train_begin_output(const RpTrainJob *job, RpTrainHow *how, guint64 step, GError **error)
{
    const RpRunSpec *run = job->run;
    g_autofree char *profile = g_build_filename(run->output, RP_TRAIN_PROFILE, NULL);
    g_autofree char *copy = g_build_filename(run->output, "run.yaml", NULL);
    g_autofree char *file = rp_run_file_of(run);

    if (g_mkdir_with_parents(run->output, 0777) != 0)
        return rp_file_fail(error, errno, "output: cannot make \"%s\"", run->output);
    /* seen again: nobody was locked out of a directory that was not there */
    if (!lock_output(run->output, &how->lock, error) || !check_empty(run, how, error))
        return FALSE;
    if (!lock_is_ours(run->output) &&
        pwrite(how->lock, LOCK_TEXT, strlen(LOCK_TEXT), 0) != (gssize)strlen(LOCK_TEXT))
        return rp_file_fail(error, errno, "output: cannot write to \"%s\"", run->output);
    return (!how->resume || abandon_later(run->output, how->events, step, error)) &&
           (is_own_run_file(run, how) || g_file_set_contents(copy, file, -1, error)) &&
           (rp_file_is_same(profile, run->profile) ||
            g_file_set_contents(profile, job->profile_json, -1, error));
}

/* ---- the steps ---- */

gboolean
rp_train_output_is_there(const RpRunSpec *run, const RpTrainHow *how)
{
    g_autofree char *path = g_build_filename(run->output, LOCK_NAME, NULL);
    struct stat ours, there;

    return fstat(how->lock, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

gboolean
rp_train_renew_output(const RpTrainJob *job, RpTrainHow *how, GError **error)
{
    RpTrainHow anew = *how;

    anew.resume = FALSE; /* nothing of ours can be there */
    anew.lock = -1;
    if (!rp_train_begin_output(job, &anew, 0, error)) {
        if (anew.lock >= 0)
            close(anew.lock);
        return FALSE;
    }
    close(how->lock);
    how->lock = anew.lock;
    return TRUE;
}
