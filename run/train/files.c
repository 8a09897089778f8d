/* Files that are read, and those that must not be written over them. */
#include "run/train/train.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "run/model.h"

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
    g_autoptr(GDir) directory = NULL;
    const char *name;

    if (!g_file_test(input, G_FILE_TEST_IS_DIR))
        return rp_file_is_same(path, input);
    directory = g_dir_open(input, 0, NULL);
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
