/**
 * manifest.json: the size and the SHA-256 of every other file.
 *
 *   {"format":"roundpipe-checkpoint/1","files":{"config.json":{"bytes":731,"sha256":"9f…"}, …}}
 *
 * With several servers, each sends the list of its own files to the first.
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/json/json-write.h"

#define MAX_MANIFEST_BYTES ((gsize)16 << 20)
#define MAX_FILES 10000

static gboolean
has_name(const GArray *files, const char *name)
{
    for (guint i = 0; i < files->len; i++)
        if (strcmp(rp_checkpoint_file(files, i)->name, name) == 0)
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
    g_autoptr(GArray) files = rp_checkpoint_files_new();

    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        g_autofree char *inner = g_build_filename(path, name, NULL);
        struct stat status;
        if (!is_theirs(name, writers))
            continue;
        if (lstat(inner, &status) != 0) {
            rp_checkpoint_fail_errno(error, "read", inner, errno);
            return NULL;
        }
        RpCheckpointFile file = {.name = g_strdup(name), .bytes = (guint64)status.st_size};
        g_array_append_val(files, file);
    }
    return names != NULL ? g_steal_pointer(&files) : NULL;
}

static gboolean
take_digests(const char *path, const GArray *files, const RpCheckpointDigests *digests,
             GError **error)
{
    for (guint i = 0; i < files->len; i++) {
        RpCheckpointFile *file = rp_checkpoint_file(files, i);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);
        if (digests->number[i] != 0)
            return rp_checkpoint_fail_errno(error, "read", inner, digests->number[i]);
        memcpy(file->sha256, digests->sha256[i], sizeof file->sha256);
    }
    return TRUE;
}

/* Checksums of all files. */
static gboolean
digest(const char *path, GArray *files, GError **error)
{
    RpCheckpointDigests digests = rp_checkpoint_digest(path, files);

    const gboolean good = take_digests(path, files, &digests, error);
    rp_checkpoint_digests_clear(&digests);
    return good;
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
        const RpCheckpointFile *file = rp_checkpoint_file(files, i);
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

    if (files == NULL || !digest(path, files, error))
        return NULL;
    for (guint i = 0; i < files->len; i++)
        g_string_append_printf(
            lines, "%s %" G_GUINT64_FORMAT " %s\n", rp_checkpoint_file(files, i)->sha256,
            rp_checkpoint_file(files, i)->bytes, rp_checkpoint_file(files, i)->name);
    return g_string_free(g_steal_pointer(&lines), FALSE);
}

/* Adds a file that a server has reported, which must be visible from here, too. */
static gboolean
take_told(GArray *files, const char *path, const char *line, GError **error)
{
    g_auto(GStrv) words = g_strsplit(line, " ", 3);
    g_autofree char *inner = g_build_filename(path, words[2], NULL);
    RpCheckpointFile file = {.bytes = g_ascii_strtoull(words[1], NULL, 10)};
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
    return strcmp(((const RpCheckpointFile *)a)->name, ((const RpCheckpointFile *)b)->name);
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

    if (files == NULL || !digest(path, files, error) ||
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
    if (digits->len != RP_CHECKPOINT_SHA256 ||
        strspn(digits->str, "0123456789abcdef") != RP_CHECKPOINT_SHA256)
        return rp_json_pull_fail_value(pull, field->expected);
    memcpy(value, digits->str, RP_CHECKPOINT_SHA256 + 1);
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
        {"bytes", rp_json_read_uint64, G_STRUCT_OFFSET(RpCheckpointFile, bytes), .required = TRUE},
        {"sha256", read_sha256, G_STRUCT_OFFSET(RpCheckpointFile, sha256), .required = TRUE,
         .expected = "64 hexadecimal digits"},
    };
    GArray *files = *(GArray **)value;

    if (!is_plain_name(pull->key) || has_name(files, pull->key))
        return rp_json_pull_fail_value(pull, "the names of files beside it, each once");
    if (files->len == MAX_FILES)
        return rp_json_pull_fail_value(pull, "at most " G_STRINGIFY(MAX_FILES) " files");
    g_array_append_vals(files, &(RpCheckpointFile){.name = g_strdup(pull->key)}, 1);
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields),
                               rp_checkpoint_file(files, files->len - 1), NULL);
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

static void
free_parts(gpointer data)
{
    g_array_unref(data);
}

static gboolean
read_format(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_json_read_choice_index(pull, field, value);
}

static gboolean
parse(const char *name, const char *text, gsize length, Manifest *manifest, GError **error)
{
    static const char *const formats[] = {RP_CHECKPOINT_MANIFEST_FORMAT,
                                          RP_CHECKPOINT_SERVERS_FORMAT, NULL};
    static const RpJsonField file_fields[] = {{NULL, read_file}};
    static const RpJsonField part_fields[] = {{NULL, rp_checkpoint_parts_read}};
    static const RpJsonField fields[] = {
        {"format", read_format, G_STRUCT_OFFSET(Manifest, format), .required = TRUE,
         .choices = formats},
        {"servers", rp_json_read_uint, G_STRUCT_OFFSET(Manifest, of.n_servers), .min = 2,
         .max = RP_SHARD_MOST_SERVERS},
        {"parts", RP_JSON_NESTED(part_fields), .offset = G_STRUCT_OFFSET(Manifest, of.parts),
         .expected = "an object of weights"},
        {"files", RP_JSON_NESTED(file_fields), .offset = G_STRUCT_OFFSET(Manifest, files),
         .required = TRUE, .expected = "an object of files"},
    };
    RpJsonPull pull;

    manifest->files = rp_checkpoint_files_new();
    manifest->of.n_servers = 1;
    manifest->of.parts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, free_parts);
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

    if (map == NULL) {
        g_set_error_literal(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_CORRUPT,
                            local->message);
        return FALSE;
    }
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
        const RpCheckpointFile *file = rp_checkpoint_file(manifest->files, i);
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

static gboolean
check_digests(const char *path, const Manifest *manifest, const RpCheckpointDigests *digests,
              GError **error)
{
    for (guint i = 0; i < manifest->files->len; i++) {
        const RpCheckpointFile *file = rp_checkpoint_file(manifest->files, i);
        const char *more = remedy(manifest, file->name);
        g_autofree char *inner = g_build_filename(path, file->name, NULL);
        if (digests->number[i] != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "cannot be read: %s%s", g_strerror(digests->number[i]), more);
        if (strcmp(digests->sha256[i], file->sha256) != 0)
            return rp_checkpoint_fail(error, RP_CHECKPOINT_ERROR_CORRUPT, inner,
                                      "expected SHA-256 %s, as its manifest has it, found %s%s",
                                      file->sha256, digests->sha256[i], more);
    }
    return TRUE;
}

static gint
compare_largest(gconstpointer a, gconstpointer b)
{
    const RpCheckpointFile *x = a, *y = b;

    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : compare_names(a, b);
}

/* Sizes and checksums of the files that @manifest has. */
static gboolean
check_files(const char *path, Manifest *manifest, GError **error)
{
    if (!check_sizes(path, manifest, error))
        return FALSE;
    RpCheckpointDigests digests = rp_checkpoint_digest(path, manifest->files);
    gboolean good = check_digests(path, manifest, &digests, error);
    rp_checkpoint_digests_clear(&digests);
    return good;
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
        const char *name = rp_checkpoint_file(manifest.files, i)->name;

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
