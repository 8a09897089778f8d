/**
 * manifest.json: the size and the SHA-256 of every other file.
 *
 *   {"format":"roundpipe-checkpoint/1","files":{"config.json":{"bytes":731,"sha256":"9f…"}, …}}
 *
 * With several servers, each sends the list of its own files to the first.
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/threads.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

#define MAX_MANIFEST_BYTES ((gsize)16 << 20)
#define MAX_FILES 10000
#define SHA256_DIGITS 64
#define PIECE_BYTES ((gsize)1 << 20)

typedef struct {
    char *name; /* in its directory */
    guint64 bytes;
    char sha256[SHA256_DIGITS + 1];
    char found[SHA256_DIGITS + 1]; /* the SHA-256 of its bytes as they are read back */
    int number;                    /* errno of this, or 0 */
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

/* Whether it is there, or an index of several. */
static gboolean
has_tensors(const GArray *files, const char *name)
{
    g_autofree char *index = g_strconcat(name, RP_CHECKPOINT_INDEX_SUFFIX, NULL);

    return has_name(files, name) || has_name(files, index);
}

/* Name of a file that every checkpoint must have and this one lacks. (transfer full) (nullable) */
static char *
find_missing(const GArray *files, guint n_servers)
{
    static const char *const single[] = {RP_CHECKPOINT_CONFIG, RP_CHECKPOINT_STATE};

    for (gsize i = 0; i < G_N_ELEMENTS(single); i++)
        if (!has_name(files, single[i]))
            return g_strdup(single[i]);
    if (!has_tensors(files, RP_CHECKPOINT_MODEL) && !has_name(files, RP_ADAPTER_TENSORS))
        return g_strdup(RP_CHECKPOINT_MODEL);
    for (guint r = 0; r < n_servers; r++) {
        g_autofree char *name = rp_checkpoint_server_file(RP_CHECKPOINT_OPTIMIZER, r, n_servers);

        if (!has_tensors(files, name))
            return g_steal_pointer(&name);
    }
    return NULL;
}

/* ---- writing ---- */

/* Who may have written a file: others come and go while several servers write. */
typedef struct {
    guint n_servers;
    gboolean own; /* files of the server; else all that belong to none of the servers */
    guint server;
} Writers;

static gboolean
is_theirs(const char *name, Writers writers)
{
    for (guint r = 0; writers.n_servers > 1 && r < writers.n_servers; r++)
        if (rp_checkpoint_is_server_file(name, r, writers.n_servers))
            return writers.own && r == writers.server;
    return !writers.own;
}

static GArray *
scan(const char *path, Writers writers, GError **error)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, error);
    g_autoptr(GArray) files = files_new();

    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        g_autofree char *inner = g_build_filename(path, name, NULL);
        struct stat status;
        if (!is_theirs(name, writers) || strcmp(name, RP_CHECKPOINT_CARD) == 0)
            continue;
        if (lstat(inner, &status) != 0)
            return rp_null(rp_checkpoint_fail_errno(error, "read", inner, errno));
        File file = {.name = g_strdup(name), .bytes = (guint64)status.st_size};
        g_array_append_val(files, file);
    }
    return names != NULL ? g_steal_pointer(&files) : NULL;
}

/* ---- checksums ---- */

typedef struct {
    const char *directory;
    GPtrArray *order; /* (element-type File): the largest first */
} Digesting;

/* RpPieceFunc. @data: Digesting. GLib's checksum takes five times as long: it knows no instructions of
 * processors for it. */
static gboolean
digest_file(guint i, gpointer data, GError **error)
{
    const Digesting *digesting = data;
    File *file = g_ptr_array_index(digesting->order, i);
    g_autofree char *path = g_build_filename(digesting->directory, file->name, NULL);
    g_autofree guint8 *piece = g_malloc(PIECE_BYTES);
    guint8 digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx checksum;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    gssize n;

    if (fd < 0) {
        file->number = errno;
        return TRUE;
    }
    sha256_init(&checksum);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    do {
        n = read(fd, piece, PIECE_BYTES);
        if (n > 0)
            sha256_update(&checksum, (size_t)n, piece);
    } while (n > 0 || (n < 0 && errno == EINTR));
    file->number = n < 0 ? errno : 0;
    close(fd);
    sha256_digest(&checksum, sizeof digest, digest);
    for (gsize k = 0; k < sizeof digest; k++)
        g_snprintf(file->found + 2 * k, 3, "%02x", digest[k]);
    return TRUE;
}

static gint
compare_sizes(gconstpointer a, gconstpointer b)
{
    const File *x = *(const File *const *)a, *y = *(const File *const *)b;

    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Reads all files back in several threads, which take the largest first; shards make them equal. */
static void
digest_files(const char *path, GArray *files)
{
    g_autoptr(GPtrArray) order = g_ptr_array_new();
    Digesting digesting = {path, order};

    for (guint i = 0; i < files->len; i++)
        g_ptr_array_add(order, file_at(files, i));
    g_ptr_array_sort(order, compare_sizes);
    (void)rp_run_pieces(files->len, digest_file, &digesting, NULL);
}

/* Takes the checksums of all files as they are. */
static gboolean
take_digests(const char *path, GArray *files, GError **error)
{
    digest_files(path, files);
    for (guint i = 0; i < files->len; i++) {
        File *file = file_at(files, i);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);

        if (file->number != 0)
            return rp_checkpoint_fail_errno(error, "read", inner, file->number);
        memcpy(file->sha256, file->found, sizeof file->sha256);
    }
    return TRUE;
}

static char *
to_json(const GArray *files, const RpCheckpointImage *image)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "format",
                   image->n_servers > 1 ? RP_CHECKPOINT_SERVERS_FORMAT
                                        : RP_CHECKPOINT_MANIFEST_FORMAT);
    if (image->n_servers > 1) {
        rp_json_uint(json, "servers", image->n_servers);
        rp_checkpoint_parts_write(image, json);
    }
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

char *
rp_checkpoint_manifest_own(const char *path, guint server, guint n_servers, GError **error)
{
    g_autoptr(GString) lines = g_string_new(NULL);
    g_autoptr(GArray) files = scan(path, (Writers){n_servers, TRUE, server}, error);

    if (files == NULL || !take_digests(path, files, error))
        return NULL;
    for (guint i = 0; i < files->len; i++)
        g_string_append_printf(lines, "%s %" G_GUINT64_FORMAT " %s\n", file_at(files, i)->sha256,
                               file_at(files, i)->bytes, file_at(files, i)->name);
    return g_string_free(g_steal_pointer(&lines), FALSE);
}

/* Adds a file that a server has reported, which must be visible from here, too. */
static gboolean
take_told(GArray *files, const char *path, const char *line, GError **error)
{
    g_auto(GStrv) words = g_strsplit(line, " ", 3);
    g_autofree char *inner = g_build_filename(path, words[2], NULL);
    File file = {.bytes = g_ascii_strtoull(words[1], NULL, 10)};
    struct stat status;

    if (lstat(inner, &status) != 0)
        return rp_checkpoint_fail_errno(error, "read", inner, errno);
    if ((guint64)status.st_size != file.bytes)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_WRITE, inner,
                                  "expected %s bytes, as its server has written, found "
                                  "%" G_GUINT64_FORMAT,
                                  words[1], (guint64)status.st_size);
    g_strlcpy(file.sha256, words[0], sizeof file.sha256);
    file.name = g_strdup(words[2]);
    g_array_append_val(files, file);
    return TRUE;
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(((const File *)a)->name, ((const File *)b)->name);
}

/* Adds the files that the servers have reported. */
static gboolean
add_told(GArray *files, const char *path, char *const *told, GError **error)
{
    for (guint r = 0; told[r] != NULL; r++) {
        g_auto(GStrv) lines = g_strsplit(told[r], "\n", -1);

        for (guint i = 0; lines[i] != NULL && *lines[i] != '\0'; i++)
            if (!take_told(files, path, lines[i], error))
                return FALSE;
    }
    g_array_sort(files, compare_names);
    return TRUE;
}

gboolean
rp_checkpoint_manifest_write(const char *path, const RpCheckpointImage *image, char *const *told,
                             GError **error)
{
    g_autofree char *manifest = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);
    g_autoptr(GArray) files = scan(path, (Writers){.n_servers = image->n_servers}, error);

    if (files == NULL || !take_digests(path, files, error) ||
        (told != NULL && !add_told(files, path, told, error)))
        return FALSE;
    g_autofree char *missing = find_missing(files, image->n_servers);
    if (missing != NULL)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_WRITE, path,
                                  "expected the file %s, found none of that name", missing);
    g_autofree char *json = to_json(files, image);
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
    GArray *files = *(GArray **)value;

    if (!is_plain_name(pull->key) || has_name(files, pull->key))
        return rp_json_pull_fail_value(pull, "the names of files beside it, each once");
    if (files->len == MAX_FILES)
        return rp_json_pull_fail_value(pull, "at most " G_STRINGIFY(MAX_FILES) " files");
    g_array_append_vals(files, &(File){.name = g_strdup(pull->key)}, 1);
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), file_at(files, files->len - 1),
                               NULL);
}

/* Contents of the manifest. */
typedef struct {
    GArray *files;
    guint format; /* index into formats */
    RpCheckpointParts of;
} Manifest;

static void
manifest_clear(Manifest *manifest)
{
    g_clear_pointer(&manifest->files, g_array_unref);
    rp_checkpoint_parts_clear(&manifest->of);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Manifest, manifest_clear)

static gboolean
parse(const char *name, const char *text, gsize length, Manifest *manifest, GError **error)
{
    static const char *const formats[] = {RP_CHECKPOINT_MANIFEST_FORMAT,
                                          RP_CHECKPOINT_SERVERS_FORMAT, NULL};
    static const RpJsonField file_fields[] = {{NULL, read_file}};
    static const RpJsonField part_fields[] = {{NULL, rp_checkpoint_parts_read}};
    static const RpJsonField fields[] = {
        {"format", rp_json_read_choice_index, G_STRUCT_OFFSET(Manifest, format), .required = TRUE,
         .choices = formats},
        {"servers", rp_json_read_uint, G_STRUCT_OFFSET(Manifest, of.n_servers), .min = 2,
         .max = RP_SHARD_MOST_SERVERS},
        {"parts", RP_JSON_NESTED(part_fields), .offset = G_STRUCT_OFFSET(Manifest, of.parts),
         .expected = "an object of weights"},
        {"files", RP_JSON_NESTED(file_fields), .offset = G_STRUCT_OFFSET(Manifest, files),
         .required = TRUE, .expected = "an object of files"},
    };
    RpJsonPull pull;

    manifest->files = files_new();
    manifest->of.n_servers = 1;
    manifest->of.parts =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_array_unref);
    if (!rp_json_pull_init(&pull, name, text, length, RP_CHECKPOINT_ERROR,
                           RP_CHECKPOINT_ERROR_CORRUPT, error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), manifest, NULL) ||
        !rp_json_pull_end(&pull))
        return FALSE;
    if ((manifest->format == 1) != (manifest->of.n_servers > 1))
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, name,
                                  "expected servers in the format %s and in no other, found %u",
                                  RP_CHECKPOINT_SERVERS_FORMAT, manifest->of.n_servers);
    g_autofree char *missing = find_missing(manifest->files, manifest->of.n_servers);

    return missing == NULL ||
           rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, name,
                              "expected the file %s, found none of that name", missing);
}

/* Reads the file; sizes and checksums are not compared. @manifest: zero-initialised */
static gboolean
manifest_read(const char *path, Manifest *manifest, GError **error)
{
    g_autofree char *file = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);
    g_autofree char *shown = rp_display_name(file);
    g_autoptr(GError) local = NULL;
    g_autoptr(GMappedFile) map = rp_file_map(file, &local);

    if (map == NULL)
        return rp_fail(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT, "%s",
                       local->message);
    if (g_mapped_file_get_length(map) > MAX_MANIFEST_BYTES)
        return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, file,
                                  "expected at most %" G_GSIZE_FORMAT
                                  " bytes, found %" G_GSIZE_FORMAT,
                                  MAX_MANIFEST_BYTES, g_mapped_file_get_length(map));
    const char *text = g_mapped_file_get_contents(map);
    return parse(shown, text != NULL ? text : "", g_mapped_file_get_length(map), manifest, error);
}

gboolean
rp_checkpoint_parts_load(const char *path, RpCheckpointParts *parts, GError **error)
{
    g_auto(Manifest) manifest = {0};

    if (!manifest_read(path, &manifest, error))
        return FALSE;
    *parts = manifest.of;
    manifest.of.parts = NULL;
    return TRUE;
}

/* Sentence that follows the fault of a file, in a checkpoint of several servers. */
static const char *
remedy(const Manifest *manifest, const char *name)
{
    gboolean part = FALSE;

    for (guint r = 0; manifest->of.n_servers > 1 && r < manifest->of.n_servers && !part; r++)
        part = rp_checkpoint_is_server_file(name, r, manifest->of.n_servers);
    return part ? ": a server's part of this checkpoint; put it back, or resume from another one "
                  "(--resume=DIR)"
                : "";
}

static gboolean
check_sizes(const char *path, const Manifest *manifest, GError **error)
{
    for (guint i = 0; i < manifest->files->len; i++) {
        const File *file = file_at(manifest->files, i);
        const char *more = remedy(manifest, file->name);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);
        struct stat status;
        if (stat(inner, &status) != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "cannot be read: %s%s", g_strerror(errno), more);
        if (!S_ISREG(status.st_mode))
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected a regular file, found another");
        if ((guint64)status.st_size != file->bytes)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected %" G_GUINT64_FORMAT
                                      " bytes, as its manifest has it, found %" G_GUINT64_FORMAT
                                      "%s",
                                      file->bytes, (guint64)status.st_size, more);
    }
    return TRUE;
}

gboolean
rp_checkpoint_is_complete(const char *path, GError **error)
{
    g_auto(Manifest) manifest = {0};

    return manifest_read(path, &manifest, error) && check_sizes(path, &manifest, error);
}

static gint
compare_largest(gconstpointer a, gconstpointer b)
{
    const File *x = a, *y = b;

    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : compare_names(a, b);
}

/* Checks sizes and checksums of the files that @manifest has. */
static gboolean
check_files(const char *path, Manifest *manifest, GError **error)
{
    if (!check_sizes(path, manifest, error))
        return FALSE;
    digest_files(path, manifest->files);
    for (guint i = 0; i < manifest->files->len; i++) {
        const File *file = file_at(manifest->files, i);
        const char *more = remedy(manifest, file->name);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);

        if (file->number != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "cannot be read: %s%s", g_strerror(file->number), more);
        if (strcmp(file->found, file->sha256) != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected SHA-256 %s, as its manifest has it, found %s%s",
                                      file->sha256, file->found, more);
    }
    return TRUE;
}

gboolean
rp_checkpoint_verify_model(const char *path, GError **error)
{
    g_autofree char *file = g_build_filename(path, RP_CHECKPOINT_MANIFEST, NULL);
    g_auto(Manifest) manifest = {0};

    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    if (!g_file_test(file, G_FILE_TEST_EXISTS))
        return TRUE;
    if (!manifest_read(path, &manifest, error))
        return FALSE;
    for (guint i = manifest.files->len; i-- > 0;) {
        const char *name = file_at(manifest.files, i)->name;

        if (!g_str_has_suffix(name, ".safetensors") ||
            !(g_str_has_prefix(name, "model") || g_str_has_prefix(name, "adapter_model")))
            g_array_remove_index(manifest.files, i);
    }
    return check_files(path, &manifest, error);
}

gboolean
rp_checkpoint_verify_some(const char *path, guint server, guint n_servers, GError **error)
{
    g_auto(Manifest) manifest = {0};

    if (!manifest_read(path, &manifest, error) || !check_sizes(path, &manifest, error))
        return FALSE;
    if (n_servers > 1)
        g_array_sort(manifest.files, compare_largest);
    for (guint i = manifest.files->len; i-- > 0;)
        if (i % n_servers != server)
            g_array_remove_index(manifest.files, i);
    return check_files(path, &manifest, error);
}

gboolean
rp_checkpoint_verify(const char *path, GError **error)
{
    g_return_val_if_fail(path != NULL, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    return rp_checkpoint_verify_some(path, 0, 1, error);
}
