#include "core/base/new-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/quote.h"

struct _RpNewFile {
    char *path;
    char *temporary; /* NULL before it is made and after it is renamed */
    int fd;          /* keeps the lock, also over the rename */
};

char *
rp_new_file_temporary_path(const char *path, const char *suffix)
{
    g_autofree char *directory = g_path_get_dirname(path);
    g_autofree char *name = g_path_get_basename(path);
    g_autofree char *hidden = g_strconcat(".", name, suffix, NULL);

    return g_build_filename(directory, hidden, NULL);
}

static gboolean
fail(const char *path, int number, GError **error)
{
    g_autofree char *shown = rp_display_name(path);

    /* a full quota is a full disk */
    return rp_fail(error, G_FILE_ERROR,
                   (gint)(number == EDQUOT ? G_FILE_ERROR_NOSPC : g_file_error_from_errno(number)),
                   "cannot write \"%s\": %s", shown,
                   number == ETXTBSY ? "another process is writing it" : g_strerror(number));
}

gboolean
rp_new_file_free_bytes(const char *directory, guint64 *bytes)
{
    struct statvfs disk;

    if (statvfs(directory, &disk) != 0)
        return FALSE;
    *bytes = (guint64)disk.f_bavail * disk.f_frsize;
    return TRUE;
}

gboolean
rp_new_file_check_space(const char *path, guint64 bytes, GError **error)
{
    g_autofree char *directory = g_path_get_dirname(path);
    g_autofree char *shown = rp_display_name(path);
    guint64 left;

    if (!rp_new_file_free_bytes(directory, &left))
        return fail(path, errno, error);
    return bytes <= left || rp_fail(error, G_FILE_ERROR, (gint)G_FILE_ERROR_NOSPC,
                                    "cannot write \"%s\": expected %" G_GUINT64_FORMAT
                                    " bytes of free disk space, found %" G_GUINT64_FORMAT,
                                    shown, bytes, left);
}

/* A process that was killed left it; a locked one is being written. */
static gboolean
remove_leftover(const char *temporary)
{
    const int fd = open(temporary, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const gboolean is_written =
        fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    if (!is_written)
        (void)unlink(temporary);
    if (fd >= 0)
        close(fd);
    return !is_written;
}

RpNewFile *
rp_new_file_begin(const char *path, guint64 bytes, GError **error)
{
    g_autoptr(RpNewFile) file = g_new0(RpNewFile, 1);
    g_autofree char *temporary = rp_new_file_temporary_path(path, RP_NEW_FILE_SUFFIX);
    int number = 0;

    file->path = g_strdup(path);
    file->fd = -1;
    /* the rename would put a file in the place of a device */
    if (g_file_test(path, G_FILE_TEST_EXISTS) && !g_file_test(path, G_FILE_TEST_IS_REGULAR))
        number = g_file_test(path, G_FILE_TEST_IS_DIR) ? EISDIR : EINVAL;
    else if (!remove_leftover(temporary))
        number = ETXTBSY;
    else if ((file->fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
        number = errno == EEXIST ? ETXTBSY : errno; /* made since it was removed */
    if (number == 0) {
        file->temporary = g_steal_pointer(&temporary);
        (void)flock(file->fd, LOCK_EX | LOCK_NB);
        if (bytes > 0 && fallocate(file->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP &&
            errno != ENOSYS)
            number = errno;
    }
    if (number == 0)
        return g_steal_pointer(&file);
    return rp_null(fail(path, number, error));
}

void
rp_new_file_free(RpNewFile *file)
{
    if (file == NULL)
        return;
    if (file->temporary != NULL)
        (void)unlink(file->temporary);
    if (file->fd >= 0)
        close(file->fd);
    g_free(file->temporary);
    g_free(file->path);
    g_free(file);
}

gboolean
rp_new_file_write(const RpNewFile *file, guint64 offset, const void *data, gsize bytes,
                  GError **error)
{
    for (const guint8 *at = data; bytes > 0;) {
        const gssize n = pwrite(file->fd, at, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(file->path, n == 0 ? ENOSPC : errno, error);
        at += n;
        offset += (guint64)n;
        bytes -= (gsize)n;
    }
    return TRUE;
}

gboolean
rp_new_file_sync(const RpNewFile *file, GError **error)
{
    return fsync(file->fd) == 0 || fail(file->path, errno, error);
}

gboolean
rp_new_file_rename(RpNewFile *file, GError **error)
{
    if (rename(file->temporary, file->path) != 0)
        return fail(file->path, errno, error);
    g_clear_pointer(&file->temporary, g_free);
    return TRUE;
}

int
rp_new_file_sync_directory(const char *directory)
{
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: a file system that has nothing to sync */
    const int number = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL) ? 0 : errno;

    if (fd >= 0)
        close(fd);
    return number;
}
