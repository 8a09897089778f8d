/**
 * The writer: declared tensors -> shards -> files beside their names -> rename.
 *
 *   begin    .model-00001-of-00002.safetensors.tmp     (and the index, whose text is known)
 *   write    ...
 *   finish   sync all, remove the old index, rename the shards, rename the index
 */
#include "exec/safetensors/private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/base/new-file.h"
#include "core/base/quote.h"

#define SUFFIX ".safetensors"

typedef struct {
    char *name;
    const char *type; /* as the format spells it */
    guint element_bytes;
    guint rank;
    guint64 shape[RP_SAFETENSORS_MAX_RANK];
    guint64 bytes;
    guint shard;
    guint64 offset;  /* within the shard's data */
    guint64 written; /* bytes so far */
} Declared;

/* A file being written: a shard, or the index. */
typedef struct {
    char *path;
    RpNewFile *file; /* NULL before it is begun */
    GString *head;   /* length and header; all of an index */
    guint64 data_bytes;
} Target;

struct _RpSafetensorsWriter {
    char *path;
    char *index_path;
    guint64 max_shard_bytes;
    GArray *tensors;   /* (element-type Declared) */
    GHashTable *names; /* names of the tensors */
    GArray *targets;   /* (element-type Target): the shards, then the index if there is one */
    gboolean begun;
    gboolean sharded;
    gboolean finished;
};

static gboolean
fail_errno(GError **error, const char *path, int number)
{
    g_autofree char *shown = rp_display_name(path);

    return rp_file_fail(error, number, "cannot write \"%s\"", shown);
}

static Declared *
declared(const RpSafetensorsWriter *writer, guint i)
{
    return &g_array_index(writer->tensors, Declared, i);
}

static Target *
target(const RpSafetensorsWriter *writer, guint i)
{
    return &g_array_index(writer->targets, Target, i);
}

static void
clear_declared(gpointer data)
{
    Declared *tensor = data;

    g_free(tensor->name);
}

static void
clear_target(gpointer data)
{
    Target *file = data;

    rp_new_file_free(file->file);
    g_free(file->path);
    if (file->head != NULL)
        g_string_free(file->head, TRUE);
}

RpSafetensorsWriter *
rp_safetensors_writer_new(const char *path, guint64 max_shard_bytes)
{
    g_return_val_if_fail(path != NULL, NULL);

    RpSafetensorsWriter *writer = g_new0(RpSafetensorsWriter, 1);
    writer->path = g_strdup(path);
    writer->index_path = g_strconcat(path, RP_SAFETENSORS_INDEX_SUFFIX, NULL);
    writer->max_shard_bytes = max_shard_bytes == 0 ? G_MAXUINT64 : max_shard_bytes;
    writer->tensors = g_array_new(FALSE, FALSE, sizeof(Declared));
    g_array_set_clear_func(writer->tensors, clear_declared);
    writer->names = g_hash_table_new(g_str_hash, g_str_equal);
    writer->targets = g_array_new(FALSE, FALSE, sizeof(Target));
    g_array_set_clear_func(writer->targets, clear_target);
    return writer;
}

void
rp_safetensors_writer_free(RpSafetensorsWriter *writer)
{
    if (writer == NULL)
        return;
    g_array_unref(writer->targets);
    g_hash_table_unref(writer->names);
    g_array_unref(writer->tensors);
    g_free(writer->index_path);
    g_free(writer->path);
    g_free(writer);
}

guint
rp_safetensors_writer_add(RpSafetensorsWriter *writer, const char *name, RpDtype dtype,
                          const guint64 *shape, guint rank)
{
    return rp_safetensors_writer_add_type(writer, name, rp_dtype_safetensors_name(dtype), shape,
                                          rank);
}

guint
rp_safetensors_writer_add_type(RpSafetensorsWriter *writer, const char *name, const char *type,
                               const guint64 *shape, guint rank)
{
    const guint bits = rp_safetensors_type_bits(type);

    g_return_val_if_fail(bits >= 8, 0);
    g_return_val_if_fail(writer && !writer->begun && name, 0);
    g_return_val_if_fail(rank <= RP_SAFETENSORS_MAX_RANK && (shape || rank == 0), 0);
    g_return_val_if_fail(!g_hash_table_contains(writer->names, name), 0);

    Declared tensor = {
        .name = g_strdup(name), .type = type, .element_bytes = bits / 8, .rank = rank};
    tensor.bytes = tensor.element_bytes;
    for (guint i = 0; i < rank; i++) {
        tensor.shape[i] = shape[i];
        if (!g_uint64_checked_mul(&tensor.bytes, tensor.bytes, shape[i]))
            g_assert_not_reached(); /* a tensor is in memory or on a disk */
    }
    g_hash_table_add(writer->names, tensor.name);
    g_array_append_val(writer->tensors, tensor);
    return writer->tensors->len - 1;
}

/* Fills shards one after the other in the order of declaration. Returns: how many. */
static guint
divide(RpSafetensorsWriter *writer)
{
    guint64 used = 0;
    guint shard = 0;

    for (guint i = 0; i < writer->tensors->len; i++) {
        Declared *tensor = declared(writer, i);
        guint64 space = writer->max_shard_bytes - MIN(used, writer->max_shard_bytes);
        if (used > 0 && tensor->bytes > space) {
            shard++;
            used = 0;
        }
        tensor->shard = shard;
        used += tensor->bytes;
    }
    return shard + 1;
}

static void
add_entry(RpJsonWriter *json, const Declared *tensor)
{
    rp_json_object(json, tensor->name);
    rp_json_string(json, "dtype", tensor->type);
    rp_json_array(json, "shape");
    for (guint i = 0; i < tensor->rank; i++)
        rp_json_uint(json, NULL, tensor->shape[i]);
    rp_json_end(json);
    rp_json_array(json, "data_offsets");
    rp_json_uint(json, NULL, tensor->offset);
    rp_json_uint(json, NULL, tensor->offset + tensor->bytes);
    rp_json_end(json);
    rp_json_end(json);
}

/* The length and the header of a shard; places its tensors, wider types first. */
static void
build_head(RpSafetensorsWriter *writer, guint shard, Target *file)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
    GString *text = rp_json_writer_text(json);

    rp_json_object(json, NULL);
    rp_json_object(json, "__metadata__");
    rp_json_string(json, "format", "pt");
    rp_json_end(json);
    for (gsize size = 8; size > 0; size /= 2) {
        for (guint i = 0; i < writer->tensors->len; i++) {
            Declared *tensor = declared(writer, i);
            if (tensor->shard != shard || tensor->element_bytes != size)
                continue;
            tensor->offset = file->data_bytes;
            file->data_bytes += tensor->bytes;
            add_entry(json, tensor);
        }
    }
    rp_json_end(json);
    while (text->len % RP_SAFETENSORS_ALIGNMENT != 0)
        g_string_append_c(text, ' ');
    file->head = g_string_new(NULL);
    for (guint i = 0; i < RP_SAFETENSORS_LENGTH_BYTES; i++)
        g_string_append_c(file->head, (char)((guint64)text->len >> (8 * i) & 0xff));
    g_string_append_len(file->head, text->str, (gssize)text->len);
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    const Declared *const *x = a;
    const Declared *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

/* Writes the index as transformers does: names sorted, two spaces a level. */
static GString *
build_index(const RpSafetensorsWriter *writer)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
    g_autoptr(GPtrArray) sorted = g_ptr_array_new();
    guint64 total = 0;

    for (guint i = 0; i < writer->tensors->len; i++) {
        g_ptr_array_add(sorted, declared(writer, i));
        total += declared(writer, i)->bytes;
    }
    g_ptr_array_sort(sorted, compare_names);
    rp_json_object(json, NULL);
    rp_json_object(json, "metadata");
    rp_json_uint(json, "total_size", total);
    rp_json_end(json);
    rp_json_object(json, "weight_map");
    for (guint i = 0; i < sorted->len; i++) {
        const Declared *tensor = g_ptr_array_index(sorted, i);
        g_autofree char *base = g_path_get_basename(target(writer, tensor->shard)->path);
        rp_json_string(json, tensor->name, base);
    }
    rp_json_end(json);
    rp_json_end(json);
    return g_string_new(rp_json_writer_text(json)->str);
}

static void
plan_targets(RpSafetensorsWriter *writer)
{
    guint n_shards = divide(writer);
    g_autofree char *stem = g_str_has_suffix(writer->path, SUFFIX)
                                ? g_strndup(writer->path, strlen(writer->path) - strlen(SUFFIX))
                                : g_strdup(writer->path);

    writer->sharded = n_shards > 1;
    for (guint shard = 0; shard < n_shards; shard++) {
        Target file = {0};
        file.path = writer->sharded
                        ? g_strdup_printf("%s-%05u-of-%05u" SUFFIX, stem, shard + 1, n_shards)
                        : g_strdup(writer->path);
        build_head(writer, shard, &file);
        g_array_append_val(writer->targets, file);
    }
    if (writer->sharded) {
        Target index = {.path = g_strdup(writer->index_path)};
        index.head = build_index(writer);
        g_array_append_val(writer->targets, index);
    }
}

static guint64
target_bytes(const Target *target)
{
    return target->head->len + target->data_bytes;
}

static gboolean
open_target(Target *target, GError **error)
{
    target->file = rp_new_file_begin(target->path, target_bytes(target), error);
    return target->file != NULL &&
           rp_new_file_write(target->file, 0, target->head->str, target->head->len, error);
}

gboolean
rp_safetensors_writer_begin(RpSafetensorsWriter *writer, GError **error)
{
    g_return_val_if_fail(writer && !writer->begun, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    guint64 needed = 0;

    writer->begun = TRUE;
    plan_targets(writer);
    for (guint i = 0; i < writer->targets->len; i++)
        needed += target_bytes(target(writer, i));
    if (!rp_new_file_check_space(writer->path, needed, error))
        return FALSE;
    for (guint i = 0; i < writer->targets->len; i++)
        if (!open_target(target(writer, i), error))
            return FALSE;
    return TRUE;
}

gboolean
rp_safetensors_writer_write(RpSafetensorsWriter *writer, guint tensor, const void *data,
                            gsize bytes, GError **error)
{
    g_return_val_if_fail(writer && writer->begun && !writer->finished, FALSE);
    g_return_val_if_fail(tensor < writer->tensors->len && (data || bytes == 0), FALSE);

    Declared *to = declared(writer, tensor);
    const Target *shard = target(writer, to->shard);
    g_return_val_if_fail(shard->file != NULL && bytes <= to->bytes - to->written, FALSE);
    if (!rp_new_file_write(shard->file, shard->head->len + to->offset + to->written, data, bytes,
                           error))
        return FALSE;
    to->written += bytes;
    return TRUE;
}

static gboolean
check_complete(const RpSafetensorsWriter *writer, GError **error)
{
    for (guint i = 0; i < writer->tensors->len; i++) {
        const Declared *tensor = declared(writer, i);
        if (tensor->written == tensor->bytes)
            continue;
        g_autofree char *shown = rp_display_name(target(writer, tensor->shard)->path);
        g_autofree char *quoted = rp_quote(tensor->name);
        return rp_fail(error, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_INCOMPLETE,
                       "cannot write \"%s\": tensor %s: expected %" G_GUINT64_FORMAT
                       " bytes, found %" G_GUINT64_FORMAT,
                       shown, quoted, tensor->bytes, tensor->written);
    }
    return TRUE;
}

static gboolean
remove_old(const char *path, GError **error)
{
    return unlink(path) == 0 || errno == ENOENT || fail_errno(error, path, errno);
}

static gboolean
sync_directory(const char *path, GError **error)
{
    g_autofree char *directory = g_path_get_dirname(path);
    const int number = rp_new_file_sync_directory(directory);

    return number == 0 || fail_errno(error, directory, number);
}

gboolean
rp_safetensors_writer_finish(RpSafetensorsWriter *writer, GError **error)
{
    g_return_val_if_fail(writer && writer->begun && !writer->finished, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    if (!check_complete(writer, error))
        return FALSE;
    for (guint i = 0; i < writer->targets->len; i++)
        if (!rp_new_file_sync(target(writer, i)->file, error))
            return FALSE;
    writer->finished = TRUE;
    if (writer->sharded && !remove_old(writer->index_path, error))
        return FALSE;
    for (guint i = 0; i < writer->targets->len; i++)
        if (!rp_new_file_rename(target(writer, i)->file, error))
            return FALSE;
    /* the other form of the same checkpoint would be read instead, or be taken for this one */
    return sync_directory(writer->path, error) &&
           remove_old(writer->sharded ? writer->path : writer->index_path, error);
}
