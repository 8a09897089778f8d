/**
 * manifest.json: the size and the SHA-256 of every other file.
 *
 *   {"format":"roundpipe-checkpoint/1","files":{"config.json":{"bytes":731,"sha256":"9f…"}, …}}
 *
 * Checksums are of the files as they are read back. Several threads take files in turn, the largest
 * first: shards are what makes them equal.
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"
#include "exec/system/threads.h"

#define PIECE_BYTES ((gsize)1 << 20)
#define MAX_MANIFEST_BYTES ((gsize)16 << 20)
#define SHA256_DIGITS 64
#define MAX_FILES 10000

typedef struct {
    char *name;
    guint64 bytes;
    char sha256[SHA256_DIGITS + 1];
} File;

static void
clear_file(gpointer data)
{
    g_free(((File *)data)->name);
}

static GArray *
files_new(void)
{
    GArray *files = g_array_new(FALSE, TRUE, sizeof(File));

    g_array_set_clear_func(files, clear_file);
    return files;
}

static File *
file_at(const GArray *files, guint i)
{
    return &g_array_index(files, File, i);
}

static gboolean
has_name(const GArray *files, const char *name)
{
    for (guint i = 0; i < files->len; i++)
        if (strcmp(file_at(files, i)->name, name) == 0)
            return TRUE;
    return FALSE;
}

/* What no checkpoint is without, or its name: one file, or an index of several. */
static const char *
find_missing(const GArray *files)
{
    static const char *const single[] = {RP_CHECKPOINT_CONFIG, RP_CHECKPOINT_STATE};
    static const char *const sharded[] = {RP_CHECKPOINT_MODEL, RP_CHECKPOINT_OPTIMIZER};

    for (gsize i = 0; i < G_N_ELEMENTS(single); i++)
        if (!has_name(files, single[i]))
            return single[i];
    for (gsize i = 0; i < G_N_ELEMENTS(sharded); i++) {
        g_autofree char *index = g_strconcat(sharded[i], RP_CHECKPOINT_INDEX_SUFFIX, NULL);
        if (!has_name(files, sharded[i]) && !has_name(files, index) &&
            (i > 0 || !has_name(files, RP_ADAPTER_TENSORS)))
            return sharded[i];
    }
    return NULL;
}

/* ---- checksums ---- */

typedef struct {
    const char *directory;
    const GArray *files;
    guint *order; /* the largest file first */
    atomic_uint next;
    char (*sha256)[SHA256_DIGITS + 1]; /* of each file */
    int *number;                       /* errno of each file, or 0 */
} Digests;

static int
digest_file(const char *path, guint8 *piece, char *sha256)
{
    g_autoptr(GChecksum) checksum = g_checksum_new(G_CHECKSUM_SHA256);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    gssize n;

    if (fd < 0)
        return errno;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    do {
        n = read(fd, piece, PIECE_BYTES);
        if (n > 0)
            g_checksum_update(checksum, piece, n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    int number = n < 0 ? errno : 0;
    close(fd);
    g_strlcpy(sha256, g_checksum_get_string(checksum), SHA256_DIGITS + 1);
    return number;
}

static void *
digest_some(void *data)
{
    Digests *digests = data;
    g_autofree guint8 *piece = g_malloc(PIECE_BYTES);
    guint k;

    while ((k = atomic_fetch_add(&digests->next, 1)) < digests->files->len) {
        guint i = digests->order[k];
        g_autofree char *path =
            g_build_filename(digests->directory, file_at(digests->files, i)->name, NULL);
        digests->number[i] = digest_file(path, piece, digests->sha256[i]);
    }
    return NULL;
}

static gint
compare_sizes(gconstpointer a, gconstpointer b, gpointer data)
{
    guint64 x = file_at(data, *(const guint *)a)->bytes;
    guint64 y = file_at(data, *(const guint *)b)->bytes;

    return (x < y) - (x > y);
}

static guint *
largest_first(GArray *files)
{
    guint *order = g_new(guint, files->len + 1);

    for (guint i = 0; i < files->len; i++)
        order[i] = i;
    g_qsort_with_data(order, (gint)files->len, sizeof *order, compare_sizes, files);
    return order;
}

static Digests
digests_new(const char *directory, GArray *files)
{
    return (Digests){.directory = directory,
                     .files = files,
                     .order = largest_first(files),
                     .sha256 = g_malloc0_n(files->len + 1, SHA256_DIGITS + 1),
                     .number = g_new0(int, files->len + 1)};
}

static void
digests_clear(Digests *digests)
{
    g_free(digests->order);
    g_free(digests->sha256);
    g_free(digests->number);
}

/* ---- writing ---- */

static GArray *
scan(const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, error);
    g_autoptr(GArray) files = files_new();

    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        g_autofree char *inner = g_build_filename(path, name, NULL);
        struct stat status;
        if (lstat(inner, &status) != 0) {
            rp_checkpoint_fail_errno(error, "read", inner, errno);
            return NULL;
        }
        File file = {.name = g_strdup(name), .bytes = (guint64)status.st_size};
        g_array_append_val(files, file);
    }
    return names != NULL ? g_steal_pointer(&files) : NULL;
}

static gboolean
take_digests(const GArray *files, const Digests *digests, GError **error)
{
    for (guint i = 0; i < files->len; i++) {
        File *file = file_at(files, i);
        g_autofree char *path = g_build_filename(digests->directory, file->name, NULL);
        if (digests->number[i] != 0)
            return rp_checkpoint_fail_errno(error, "read", path, digests->number[i]);
        memcpy(file->sha256, digests->sha256[i], sizeof file->sha256);
    }
    return TRUE;
}

static char *
to_json(const GArray *files)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "format", RP_CHECKPOINT_MANIFEST_FORMAT);
    rp_json_object(json, "files");
    for (guint i = 0; i < files->len; i++) {
        const File *file = file_at(files, i);
        rp_json_object_as(json, file->name, RP_JSON_SPACED);
        rp_json_uint(json, "bytes", file->bytes);
        rp_json_string(json, "sha256", file->sha256);
        rp_json_end(json);
    }
    rp_json_end(json);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

gboolean
rp_checkpoint_manifest_write(const char *path, GError **error)
{
    g_autofree char *manifest = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);
    g_autoptr(GArray) files = scan(path, error);

    if (files == NULL)
        return FALSE;
    const char *missing = find_missing(files);
    if (missing != NULL)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_WRITE, path,
                                  "expected the file %s, found none of that name", missing);
    Digests digests = digests_new(path, files);
    rp_run_in_threads(files->len, digest_some, &digests);
    gboolean good = take_digests(files, &digests, error);
    digests_clear(&digests);
    if (!good)
        return FALSE;
    g_autofree char *json = to_json(files);
    return g_file_set_contents_full(manifest, json, -1,
                                    G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE,
                                    0666, error);
}

/* ---- reading ---- */

static gboolean
read_sha256(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) digits = g_string_new(NULL);

    if (!rp_json_pull_string(pull, digits))
        return FALSE;
    if (digits->len != SHA256_DIGITS || strspn(digits->str, "0123456789abcdef") != SHA256_DIGITS)
        return rp_json_pull_fail_value(pull, field->expected);
    memcpy(value, digits->str, SHA256_DIGITS + 1);
    return TRUE;
}

/* A name in the directory itself, and not the manifest's. */
static gboolean
is_plain_name(const char *name)
{
    return *name != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strcmp(name, RP_CHECKPOINT_MANIFEST) != 0;
}

static gboolean
read_file(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField fields[] = {
        {"bytes", rp_json_read_uint64, G_STRUCT_OFFSET(File, bytes), .required = TRUE},
        {"sha256", read_sha256, G_STRUCT_OFFSET(File, sha256), .required = TRUE,
         .expected = "64 hexadecimal digits"},
    };
    GArray *files = value;

    if (!is_plain_name(pull->key) || has_name(files, pull->key))
        return rp_json_pull_fail_value(pull, "the names of files beside it, each once");
    if (files->len == MAX_FILES)
        return rp_json_pull_fail_value(pull, "at most " G_STRINGIFY(MAX_FILES) " files");
    g_array_append_vals(files, &(File){.name = g_strdup(pull->key)}, 1);
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), file_at(files, files->len - 1),
                               NULL);
}

static gboolean
parse(const char *name, const char *text, gsize length, GArray *files, GError **error)
{
    static const char *const formats[] = {RP_CHECKPOINT_MANIFEST_FORMAT, NULL};
    static const RpJsonField file_fields[] = {{NULL, read_file}};
    static const RpJsonField fields[] = {
        {"format", rp_json_read_constant, .required = TRUE, .choices = formats},
        {"files", RP_JSON_NESTED(file_fields), .required = TRUE, .expected = "an object of files"},
    };
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, name, text, length, RP_CHECKPOINT_ERROR,
                           RP_CHECKPOINT_ERROR_CORRUPT, error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), files, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    const char *missing = find_missing(files);
    return missing == NULL ||
           rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, name,
                              "expected the file %s, found none of that name", missing);
}

/* As in the file, sizes and checksums not compared. */
static GArray *
manifest_read(const char *path, GError **error)
{
    g_autofree char *manifest = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);
    g_autofree char *shown = rp_display_name(manifest);
    g_autoptr(GArray) files = files_new();
    g_autoptr(GError) local = NULL;
    g_autoptr(GMappedFile) map = rp_file_map(manifest, &local);

    if (map == NULL) {
        g_set_error_literal(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT,
                            local->message);
        return NULL;
    }
    if (g_mapped_file_get_length(map) > MAX_MANIFEST_BYTES) {
        rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, manifest,
                           "expected at most %" G_GSIZE_FORMAT " bytes, found %" G_GSIZE_FORMAT,
                           MAX_MANIFEST_BYTES, g_mapped_file_get_length(map));
        return NULL;
    }
    const char *text = g_mapped_file_get_contents(map);
    return parse(shown, text != NULL ? text : "", g_mapped_file_get_length(map), files, error)
               ? g_steal_pointer(&files)
               : NULL;
}

static gboolean
check_sizes(const char *path, const GArray *files, GError **error)
{
    for (guint i = 0; i < files->len; i++) {
        const File *file = file_at(files, i);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);
        struct stat status;
        if (stat(inner, &status) != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "cannot be read: %s", g_strerror(errno));
        if (!S_ISREG(status.st_mode))
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected a regular file, found another");
        if ((guint64)status.st_size != file->bytes)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected %" G_GUINT64_FORMAT
                                      " bytes, as its manifest has it, found %" G_GUINT64_FORMAT,
                                      file->bytes, (guint64)status.st_size);
    }
    return TRUE;
}

gboolean
rp_checkpoint_is_complete(const char *path, GError **error)
{
    g_autoptr(GArray) files = manifest_read(path, error);

    return files != NULL && check_sizes(path, files, error);
}

static gboolean
check_digests(const GArray *files, const Digests *digests, GError **error)
{
    for (guint i = 0; i < files->len; i++) {
        const File *file = file_at(files, i);
        g_autofree char *path = g_build_filename(digests->directory, file->name, NULL);
        if (digests->number[i] != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, path,
                                      "cannot be read: %s", g_strerror(digests->number[i]));
        if (strcmp(digests->sha256[i], file->sha256) != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, path,
                                      "expected SHA-256 %s, as its manifest has it, found %s",
                                      file->sha256, digests->sha256[i]);
    }
    return TRUE;
}

gboolean
rp_checkpoint_verify(const char *path, GError **error)
{
    g_return_val_if_fail(path != NULL, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autoptr(GArray) files = manifest_read(path, error);
    if (files == NULL || !check_sizes(path, files, error))
        return FALSE;
    Digests digests = digests_new(path, files);
    rp_run_in_threads(files->len, digest_some, &digests);
    gboolean good = check_digests(files, &digests, error);
    digests_clear(&digests);
    return good;
}
