#include "core/base/file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/quote.h"

static int
fail(GError **error, const char *path, const char *what, int number)
{
    (void)rp_fail_in(error, path, G_FILE_ERROR, (gint)g_file_error_from_errno(number), "%s: %s",
                     what, g_strerror(number));
    return -1;
}

int
rp_file_open(const char *path, struct stat *status, GError **error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return fail(error, path, "cannot be opened", errno);
    int number = fstat(fd, status) != 0 ? errno : 0;
    if (number == 0 && S_ISREG(status->st_mode))
        return fd;
    close(fd);
    return number != 0 ? fail(error, path, "cannot be looked at", number)
                       : fail(error, path, "expected a regular file",
                              S_ISDIR(status->st_mode) ? EISDIR : EINVAL);
}

GMappedFile *
rp_file_map(const char *path, GError **error)
{
    g_autoptr(GError) map_error = NULL;
    struct stat status;

    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    int fd = rp_file_open(path, &status, error);
    if (fd < 0)
        return NULL;
    GMappedFile *map = g_mapped_file_new_from_fd(fd, FALSE, &map_error);
    close(fd);
    if (map == NULL)
        (void)rp_fail_in(error, path, map_error->domain, map_error->code, "cannot be mapped: %s",
                         map_error->message);
    return map;
}

/* A read of a descriptor that does not block ends at once where a pipe has no writer, and fails
 * with EAGAIN where its writer has written nothing yet. */
static gssize
read_some(int fd, guint8 *buffer, gsize size)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    gssize n;

    do
        n = read(fd, buffer, size);
    while ((n < 0 && errno == EINTR) ||
           (n < 0 && errno == EAGAIN && (poll(&waiting, 1, -1) >= 0 || errno == EINTR)));
    return n;
}

gboolean
rp_file_is_pointer(const void *bytes, gsize length)
{
    static const char start[] = "version https://git-lfs";

    return length >= strlen(start) && memcmp(bytes, start, strlen(start)) == 0;
}

char *
rp_file_read(const char *path, gsize max_bytes, gsize *length, GError **error)
{
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    guint8 buffer[16384];
    gssize n = 1;

    g_return_val_if_fail(path && length, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    const gboolean silent = fd >= 0 && poll(&waiting, 1, RP_FILE_WAIT_MS) == 0;
    while (fd >= 0 && n > 0 && bytes->len <= max_bytes) {
        n = read_some(fd, buffer, sizeof buffer);
        g_byte_array_append(bytes, buffer, (guint)MAX(0, n));
    }
    int number = fd < 0 || n < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (number != 0) {
        (void)fail(error, path, "cannot read", number);
        return NULL;
    }
    const gboolean unwritten = silent && bytes->len == 0;
    const gboolean pointer = rp_file_is_pointer(bytes->data, bytes->len);
    if (unwritten)
        (void)rp_fail_in(error, path, G_FILE_ERROR, G_FILE_ERROR_PIPE,
                         "expected a pipe that is written to, found no writer for %d seconds",
                         RP_FILE_WAIT_MS / 1000);
    else if (bytes->len > max_bytes)
        (void)rp_fail_in(error, path, G_FILE_ERROR, G_FILE_ERROR_FAILED,
                         "expected at most %" G_GSIZE_FORMAT " bytes, found more", max_bytes);
    else if (pointer)
        (void)rp_fail_in(error, path, G_FILE_ERROR, G_FILE_ERROR_INVAL, "expected the file, %s",
                         RP_FILE_POINTER_WORDS);
    if (unwritten || bytes->len > max_bytes || pointer)
        return NULL;
    g_byte_array_append(bytes, (const guint8 *)"", 1);
    char *text = (char *)g_byte_array_steal(bytes, length);
    (*length)--;
    return text;
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *
rp_file_existing_directory(const char *path)
{
    char *directory = g_strdup(path);

    while (!g_file_test(directory, G_FILE_TEST_EXISTS)) {
        char *above = g_path_get_dirname(directory);

        g_free(directory);
        directory = above;
    }
    return directory;
}

GPtrArray *
rp_file_list(const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const struct dirent *entry;

    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    DIR *directory = opendir(path);
    if (directory == NULL) {
        (void)fail(error, path, "cannot be opened", errno);
        return NULL;
    }
    for (;;) {
        errno = 0;
        entry = readdir(directory);
        if (entry == NULL)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            g_ptr_array_add(names, g_strdup(entry->d_name));
    }
    int number = errno;
    closedir(directory);
    if (number != 0) {
        (void)fail(error, path, "cannot be listed", number);
        return NULL;
    }
    g_ptr_array_sort(names, compare_names);
    return g_steal_pointer(&names);
}

void
rp_file_remove_directory(const char *path)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, NULL);

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *file = g_build_filename(path, g_ptr_array_index(names, i), NULL);

        (void)unlink(file);
    }
    (void)rmdir(path);
}

void
rp_file_remove_leftovers(const char *path)
{
    g_autofree char *directory = g_path_get_dirname(path);
    g_autofree char *name = g_path_get_basename(path);
    g_autofree char *prefix = g_strconcat(name, ".", NULL);
    g_autoptr(GPtrArray) names = rp_file_list(directory, NULL);

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *left = g_build_filename(directory, g_ptr_array_index(names, i), NULL);
        struct stat status;

        if (!g_str_has_prefix(g_ptr_array_index(names, i), prefix))
            continue;
        const int fd = rp_file_open(left, &status, NULL);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            (void)unlink(left);
        close(fd);
    }
}

gboolean
rp_file_is_same(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

gboolean
rp_file_is_same_place(const char *a, const char *b)
{
    g_autofree char *whole_a = g_canonicalize_filename(a, NULL);
    g_autofree char *whole_b = g_canonicalize_filename(b, NULL);
    g_autofree char *name_a = g_path_get_basename(whole_a);
    g_autofree char *name_b = g_path_get_basename(whole_b);
    g_autofree char *directory_a = g_path_get_dirname(a);
    g_autofree char *directory_b = g_path_get_dirname(b);

    return rp_file_is_same(a, b) || strcmp(whole_a, whole_b) == 0 ||
           (strcmp(name_a, name_b) == 0 && rp_file_is_same(directory_a, directory_b));
}

char *
rp_file_own_directory(void)
{
    static const char here;
    Dl_info info;
    struct link_map *map = NULL;

    /* The dynamic linker knows the program by an empty name. */
    if (dladdr1(&here, &info, (void **)(void *)&map, RTLD_DL_LINKMAP) != 0 && map != NULL &&
        *map->l_name != '\0')
        return g_path_get_dirname(map->l_name);
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);

    return g_path_get_dirname(program != NULL ? program : ".");
}

char *
rp_file_find_module(const char *folder, const char *file)
{
    g_autofree char *here = rp_file_own_directory();
    char *const places[] = {
        g_build_filename(here, "..", folder, file, NULL),
        g_build_filename(here, "..", "..", folder, file, NULL),
        g_build_filename(here, file, NULL),
        g_build_filename(here, "roundpipe", file, NULL),
        g_build_filename(here, "..", RP_LIBDIR, "roundpipe", file, NULL),
        g_build_filename(RP_MODULE_DIR, file, NULL),
    };
    char *found = NULL;

    for (guint i = 0; i < G_N_ELEMENTS(places); i++)
        if (found == NULL && g_file_test(places[i], G_FILE_TEST_IS_REGULAR))
            found = places[i];
        else
            g_free(places[i]);
    return found;
}
