/* Files that commands read and write. */
#include "cli/cli.h"

#include <errno.h>
#include <gio/gunixoutputstream.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/formats/export.h"
#include "plots/gnuplot.h"

/* Devices and pipes keep nothing that could be lost. */
static gboolean
keeps_data(const char *path)
{
    return !g_file_test(path, G_FILE_TEST_EXISTS) || g_file_test(path, G_FILE_TEST_IS_REGULAR) ||
           g_file_test(path, G_FILE_TEST_IS_DIR);
}

static gboolean
clash(const RpCliFile *written, const RpCliFile *other)
{
    if (strcmp(written->path, "-") == 0 || strcmp(other->path, "-") == 0)
        return other->use != RP_CLI_READ && strcmp(written->path, other->path) == 0;
    return keeps_data(written->path) && rp_file_is_same_place(written->path, other->path);
}

gboolean
rp_cli_check_writable(const char *path, GError **error)
{
    g_autofree char *directory = g_path_get_dirname(path);
    const char *wrong = directory;
    int number = 0;

    if (strcmp(path, "-") == 0)
        return TRUE;
    if (*path == '\0') {
        number = ENOENT;
    } else if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        wrong = path;
        number = EISDIR;
    } else if (g_file_test(path, G_FILE_TEST_EXISTS)) {
        wrong = path;
        number = g_access(path, W_OK) != 0 ? errno : 0;
    } else if (!g_file_test(directory, G_FILE_TEST_IS_DIR)) {
        number = g_file_test(directory, G_FILE_TEST_EXISTS) ? ENOTDIR : ENOENT;
    } else if (g_access(directory, W_OK | X_OK) != 0) {
        number = errno;
    }
    if (number == 0)
        return TRUE;
    return rp_file_fail(
        error, number,
        "cannot write \"%s\": expected a file in a directory that can be written: %s", path, wrong);
}

/* Whether a file that is written can be. */
static gboolean
check_use(const RpCliFile *file, GError **error)
{
    if (file->path == NULL || file->use == RP_CLI_READ || file->use == RP_CLI_FILLED)
        return TRUE;
    if (file->use == RP_CLI_WRITTEN && strcmp(file->path, "-") == 0)
        return rp_cli_refuse(error, "%s: expected a file; standard output has the report",
                             file->what);
    if (file->use == RP_CLI_DRAWN && rp_picture_format_of(file->path) == 0)
        return rp_cli_refuse(
            error, "%s: expected a name that ends in .png, .svg, .pdf or .tex, found \"%s\"",
            file->what, file->path);
    return rp_cli_check_writable(file->path, error) &&
           (file->use != RP_CLI_DRAWN ||
            rp_gnuplot_check_formats((RpPictureFormat)rp_picture_format_of(file->path), error));
}

gboolean
rp_cli_check_files(const RpCliFile *files, gsize n_files, GError **error)
{
    for (gsize i = 0; i < n_files; i++) {
        const RpCliFile *file = &files[i];

        for (gsize k = 0; file->use != RP_CLI_READ && file->path != NULL && k < n_files; k++) {
            const RpCliFile *other = &files[k];
            const gboolean written = other->use != RP_CLI_READ;

            if (k == i || other->path == NULL || (written && k > i) || !clash(file, other))
                continue;
            return rp_cli_refuse(
                error, "%s: expected another file than that of %s, found \"%s\", which would be %s",
                file->what, other->what, file->path,
                written ? "written twice" : "read and written over");
        }
    }
    for (gsize i = 0; i < n_files; i++)
        if (!check_use(&files[i], error))
            return FALSE;
    return TRUE;
}

gboolean
rp_cli_check_outputs(const char *word, const RpArgs *args, const RpCliFile *files, gsize n_files,
                     GError **error)
{
    g_autofree char *read = rp_cli_profile_path(word);
    const RpCliFile reads[] = {{"PROFILE.json", read, RP_CLI_READ},
                               {"--schedule-file", args->run.schedule_file, RP_CLI_READ}};
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(RpCliFile));

    g_array_append_vals(all, reads, G_N_ELEMENTS(reads));
    g_array_append_vals(all, files, (guint)n_files);
    return rp_cli_check_files((const RpCliFile *)(void *)all->data, all->len, error);
}

/* A regular file is replaced when all of it is there; anything else (a device, a pipe) is opened.
 */
static GOutputStream *
open_stream(const char *path, GError **error)
{
    if (strcmp(path, "-") == 0) {
        if (fflush(stdout) != 0)
            return rp_null(rp_fail(error, G_FILE_ERROR, g_file_error_from_errno(errno), "%s",
                                   g_strerror(errno)));
        return g_unix_output_stream_new(STDOUT_FILENO, FALSE);
    }
    g_autoptr(GFile) file = g_file_new_for_path(path);
    if (g_file_test(path, G_FILE_TEST_EXISTS) && !g_file_test(path, G_FILE_TEST_IS_REGULAR))
        return G_OUTPUT_STREAM(g_file_append_to(file, G_FILE_CREATE_NONE, NULL, error));
    return G_OUTPUT_STREAM(g_file_replace(file, NULL, FALSE, G_FILE_CREATE_NONE, NULL, error));
}

gboolean
rp_cli_write_file(const char *path, RpCliWrite write, gpointer user_data, GError **error)
{
    g_autoptr(GCancellable) given_up = g_cancellable_new();
    g_autoptr(GOutputStream) stream = open_stream(path, error);
    gboolean written = stream != NULL && write(stream, user_data, error);

    if (stream != NULL && !written) {
        g_cancellable_cancel(given_up); /* leaves the old file as it is */
        (void)g_output_stream_close(stream, given_up, NULL);
    } else if (stream != NULL) {
        written = g_output_stream_close(stream, NULL, error);
    }
    return written || rp_prefix_error(error, "cannot write \"%s\": ", path);
}

static gboolean
write_text(GOutputStream *stream, gpointer text, GError **error)
{
    return g_output_stream_write_all(stream, text, strlen(text), NULL, NULL, error);
}

gboolean
rp_cli_write_text(const char *path, const char *text, GError **error)
{
    return rp_cli_write_file(path, write_text, (gpointer)text, error);
}

gboolean
rp_cli_write_csv(const char *path, RpReport *report, const char *columns, GError **error)
{
    g_autofree char *csv = path != NULL ? rp_report_to_csv(report, "rows", columns) : NULL;

    report->muted = g_strcmp0(path, "-") == 0;
    return path == NULL || rp_cli_write_text(path, csv, error);
}

typedef struct {
    const RpTrace *trace;
    const RpPlan *plan; /* or %NULL */
} Traced;

static gboolean
write_chrome(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Traced *traced = user_data;

    return rp_export_chrome(traced->trace, traced->plan,
                            traced->plan != NULL ? RP_CHROME_MEMORY | RP_CHROME_FLOWS : 0, stream,
                            error);
}

gboolean
rp_cli_write_trace(const char *path, const RpTrace *trace, const RpPlan *plan, GError **error)
{
    Traced traced = {trace, plan};

    return path == NULL || rp_cli_write_file(path, write_chrome, &traced, error);
}

static gboolean
write_tasks(GOutputStream *stream, gpointer trace, GError **error)
{
    return rp_export_csv(trace, stream, error);
}

gboolean
rp_cli_write_tasks(const char *path, const RpTrace *trace, GError **error)
{
    return path == NULL || rp_cli_write_file(path, write_tasks, (gpointer)trace, error);
}

gboolean
rp_cli_make_model_directory(const char *path, gboolean force, GError **error)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};

    if (g_mkdir_with_parents(path, 0777) != 0)
        return rp_file_fail(error, errno, "cannot make \"%s\"", path);
    for (guint i = 0; i < G_N_ELEMENTS(names) && !force; i++) {
        g_autofree char *file = g_build_filename(path, names[i], NULL);

        if (!g_file_test(file, G_FILE_TEST_EXISTS))
            continue;
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
                       "%s: expected no model there, found %s; --force replaces it", path,
                       names[i]);
    }
    return TRUE;
}
