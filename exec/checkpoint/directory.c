/**
 * Directories that are complete or not there.
 *
 *   save      .checkpoint-9.tmp   ... synced ...   -> checkpoint-9     output synced
 *   replace   .checkpoint-9.tmp  <- exchanged ->      checkpoint-9     old one removed
 *   remove    checkpoint-5  -> .checkpoint-5.tmp      output synced    removed file by file
 *
 * An interrupted operation leaves a name that no reader takes for a checkpoint and that the next
 * save removes.
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/new-file.h"
#include "core/base/quote.h"

#define PREFIX "checkpoint-"
#define WEIGHTS_PREFIX "weights-"
#define BEST "best"
#define OLD_SUFFIX ".old.tmp" /* moved aside where the two cannot be exchanged */

char *
rp_checkpoint_path(const char *output, guint64 step)
{
    g_autofree char *name = g_strdup_printf(PREFIX "%" G_GUINT64_FORMAT, step);

    return g_build_filename(output, name, NULL);
}

char *
rp_checkpoint_weights_path(const char *output, guint64 step)
{
    g_autofree char *name = g_strdup_printf(WEIGHTS_PREFIX "%" G_GUINT64_FORMAT, step);

    return g_build_filename(output, name, NULL);
}

/* Whether @name is `PREFIX STEP SUFFIX`, with the step as we write it. */
static gboolean
parse_name(const char *name, const char *prefix, const char *suffix, guint64 *step)
{
    if (!g_str_has_prefix(name, prefix))
        return FALSE;
    const char *digits = name + strlen(prefix);
    gsize n = strspn(digits, "0123456789");
    if (n == 0 || (n > 1 && *digits == '0') || strcmp(digits + n, suffix) != 0)
        return FALSE;
    g_autofree char *number = g_strndup(digits, n);
    return g_ascii_string_to_unsigned(number, 10, 0, G_MAXUINT64, step, NULL);
}

static gint
compare_descending(gconstpointer a, gconstpointer b)
{
    guint64 x = *(const guint64 *)a;
    guint64 y = *(const guint64 *)b;

    return (x < y) - (x > y);
}

GArray *
rp_checkpoint_list(const char *output, GError **error)
{
    g_autoptr(GError) local = NULL;
    g_autoptr(GPtrArray) names = rp_file_list(output, &local);
    g_autoptr(GArray) steps = g_array_new(FALSE, FALSE, sizeof(guint64));

    if (names == NULL && !g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT))
        return rp_null(rp_propagate_error(error, g_steal_pointer(&local)));
    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        guint64 step;
        if (!parse_name(name, PREFIX, "", &step))
            continue;
        g_autofree char *path = g_build_filename(output, name, NULL);
        struct stat status = {0};
        if (stat(path, &status) != 0 && errno != ENOENT) /* it may be the last one */
            return rp_null(rp_checkpoint_fail_errno(error, "look at", path, errno));
        if (S_ISDIR(status.st_mode))
            g_array_append_val(steps, step);
    }
    g_array_sort(steps, compare_descending);
    return g_steal_pointer(&steps);
}

char *
rp_checkpoint_find_last(const char *output, char **skipped, GError **error)
{
    g_return_val_if_fail(output != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    g_autoptr(GString) passed = g_string_new(NULL);
    g_autoptr(GArray) steps = rp_checkpoint_list(output, error);
    char *found = NULL;

    if (skipped != NULL)
        *skipped = NULL;
    if (steps == NULL)
        return NULL;
    for (guint i = 0; i < steps->len && found == NULL; i++) {
        g_autofree char *path = rp_checkpoint_path(output, g_array_index(steps, guint64, i));
        g_autoptr(GError) reason = NULL;
        if (rp_checkpoint_verify(path, &reason))
            found = g_steal_pointer(&path);
        else
            g_string_append_printf(passed, "%s%s",
                                   passed->len > 0 ? "; " : "passed over: ", reason->message);
    }
    if (skipped != NULL && passed->len > 0)
        *skipped = g_strdup(passed->str);
    return found;
}

static gboolean
sync_directory(const char *path, GError **error)
{
    const int number = rp_new_file_sync_directory(path);

    return number == 0 || rp_checkpoint_fail_errno(error, "sync", path, number);
}

gboolean
rp_checkpoint_make_output(const char *output, GError **error)
{
    if (g_file_test(output, G_FILE_TEST_IS_DIR))
        return TRUE;
    if (g_mkdir_with_parents(output, 0777) != 0)
        return rp_checkpoint_fail_errno(error, "make", output, errno);
    g_autofree char *parent = g_path_get_dirname(output);
    return sync_directory(parent, error);
}

gboolean
rp_checkpoint_remove_tree(const char *path)
{
    struct stat status;

    if (lstat(path, &status) != 0)
        return errno == ENOENT;
    if (!S_ISDIR(status.st_mode))
        return unlink(path) == 0 || errno == ENOENT; /* another server removes its files */
    g_autoptr(GPtrArray) names = rp_file_list(path, NULL);
    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *inner = g_build_filename(path, g_ptr_array_index(names, i), NULL);
        if (!rp_checkpoint_remove_tree(inner))
            return FALSE;
    }
    return rmdir(path) == 0 || errno == ENOENT;
}

void
rp_checkpoint_remove_leftovers(const char *output)
{
    g_autoptr(GPtrArray) names = rp_file_list(output, NULL);
    guint64 step;

    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        g_autofree char *path = g_build_filename(output, name, NULL);
        if (parse_name(name, "." PREFIX, RP_NEW_FILE_SUFFIX, &step) ||
            parse_name(name, "." PREFIX, OLD_SUFFIX, &step) ||
            parse_name(name, "." WEIGHTS_PREFIX, RP_NEW_FILE_SUFFIX, &step) ||
            parse_name(name, "." WEIGHTS_PREFIX, OLD_SUFFIX, &step))
            (void)rp_checkpoint_remove_tree(path);
    }
}

/* For file systems without an exchange: for a moment neither name stands. */
static gboolean
replace_in_two(const char *temporary, const char *path, GError **error)
{
    g_autofree char *old = rp_new_file_temporary_path(path, OLD_SUFFIX);

    if (rename(path, old) != 0)
        return rp_checkpoint_fail_errno(error, "replace", path, errno);
    if (rename(temporary, path) != 0) {
        int number = errno;
        (void)rename(old, path);
        return rp_checkpoint_fail_errno(error, "replace", path, number);
    }
    return TRUE;
}

static gboolean
replace(const char *temporary, const char *path, GError **error)
{
    if (!g_file_test(path, G_FILE_TEST_IS_DIR))
        return rp_checkpoint_fail_errno(error, "replace", path, ENOTDIR);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return TRUE;
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
        return replace_in_two(temporary, path, error);
    return rp_checkpoint_fail_errno(error, "replace", path, errno);
}

gboolean
rp_checkpoint_publish(const char *output, const char *temporary, const char *path, GError **error)
{
    struct stat status;

    if (!sync_directory(temporary, error))
        return FALSE;
    gboolean exists = lstat(path, &status) == 0;
    if (exists && !replace(temporary, path, error))
        return FALSE;
    if (!exists && rename(temporary, path) != 0)
        return rp_checkpoint_fail_errno(error, "make", path, errno);
    if (!sync_directory(output, error)) {
        if (exists) /* the old one may be all that is on the disk */
            (void)renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE);
        return FALSE;
    }
    if (exists)
        rp_checkpoint_remove_leftovers(output);
    return TRUE;
}

gboolean
rp_checkpoint_discard(const char *output, const char *path)
{
    g_autofree char *temporary = rp_new_file_temporary_path(path, RP_NEW_FILE_SUFFIX);

    return rename(path, temporary) == 0 && sync_directory(output, NULL) &&
           rp_checkpoint_remove_tree(temporary);
}

guint64
rp_checkpoint_best_step(const char *output)
{
    g_autofree char *link = g_build_filename(output, BEST, NULL);
    g_autofree char *target = g_file_read_link(link, NULL);
    guint64 step;

    return target != NULL && parse_name(target, PREFIX, "", &step) ? step : 0;
}

static gboolean
replace_link(const char *output, const char *link, const char *target, GError **error)
{
    g_autofree char *temporary = g_build_filename(output, "." BEST RP_NEW_FILE_SUFFIX, NULL);

    (void)unlink(temporary);
    if (symlink(target, temporary) != 0)
        return rp_checkpoint_fail_errno(error, "make", temporary, errno);
    if (rename(temporary, link) != 0) {
        const int number = errno;
        (void)unlink(temporary);
        return rp_checkpoint_fail_errno(error, "replace", link, number);
    }
    return sync_directory(output, error);
}

gboolean
rp_checkpoint_link_best(const char *output, guint64 step, GError **error)
{
    g_autofree char *link = g_build_filename(output, BEST, NULL);
    g_autofree char *path = rp_checkpoint_path(output, step);
    g_autofree char *target = g_path_get_basename(path);
    struct stat status;
    const gboolean exists = lstat(link, &status) == 0;

    if (exists && !S_ISLNK(status.st_mode))
        return TRUE;
    if (step > 0 && rp_checkpoint_is_complete(path, NULL))
        return replace_link(output, link, target, error);
    return !exists || unlink(link) == 0 || rp_checkpoint_fail_errno(error, "remove", link, errno);
}

void
rp_checkpoint_prune(const char *output, guint keep, guint64 saved)
{
    g_autoptr(GArray) steps = keep > 0 ? rp_checkpoint_list(output, NULL) : NULL;
    const guint64 best = rp_checkpoint_best_step(output);
    gboolean moved = FALSE;
    guint kept = 0;

    for (guint i = 0; steps != NULL && i < steps->len; i++) {
        guint64 step = g_array_index(steps, guint64, i);
        g_autofree char *path = rp_checkpoint_path(output, step);
        if (!rp_checkpoint_is_complete(path, NULL)) /* incomplete ones are left alone */
            continue;
        if (kept < keep || step == saved) {
            kept++;
            continue;
        }
        if (step == best)
            continue;
        g_autofree char *temporary = rp_new_file_temporary_path(path, RP_NEW_FILE_SUFFIX);
        moved |= rename(path, temporary) == 0;
    }
    /* the names are off the disk before the first file is */
    if (moved && sync_directory(output, NULL))
        rp_checkpoint_remove_leftovers(output);
}
