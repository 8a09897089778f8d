/* Files, directories and the index; the header of a file is in header.c. */
#include "core/base/quote.h"
#include "core/catalogue/catalogue.h"
#include "exec/safetensors/private.h"

#include <string.h>

#define MAX_INDEX_BYTES 100000000

static RpSafetensors *
safetensors_new(const char *path)
{
    RpSafetensors *tensors = g_new0(RpSafetensors, 1);

    tensors->path = g_strdup(path);
    tensors->files = g_ptr_array_new_with_free_func(g_free);
    tensors->maps = g_ptr_array_new_with_free_func((GDestroyNotify)g_mapped_file_unref);
    tensors->names = g_string_chunk_new(4096);
    tensors->tensors = g_array_new(FALSE, FALSE, sizeof(RpSafetensor));
    tensors->by_name = g_hash_table_new(g_str_hash, g_str_equal);
    return tensors;
}

void
rp_safetensors_free(RpSafetensors *tensors)
{
    if (tensors == NULL)
        return;
    g_hash_table_unref(tensors->by_name);
    g_array_unref(tensors->tensors);
    g_string_chunk_free(tensors->names);
    g_ptr_array_unref(tensors->maps);
    g_ptr_array_unref(tensors->files);
    g_free(tensors->path);
    g_free(tensors);
}

static gboolean
add_file(RpSafetensors *tensors, const char *path, GError **error)
{
    GMappedFile *map = rp_file_map(path, error);

    if (map == NULL)
        return FALSE;
    g_ptr_array_add(tensors->maps, map);
    return rp_safetensors_read_file(tensors, path, g_mapped_file_get_contents(map),
                                    g_mapped_file_get_length(map), error);
}

/* A name beside the index: nothing that leads to another directory. */
static gboolean
is_plain_name(const char *name)
{
    return *name != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static gboolean
read_shard(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) shard = g_string_new(NULL);

    g_autofree char *name = rp_safetensors_module_name(pull->key);

    if (g_hash_table_contains(value, name))
        return rp_json_pull_fail_value(pull, "each tensor once");
    if (!rp_json_pull_string(pull, shard))
        return FALSE;
    if (!is_plain_name(shard->str))
        return rp_json_pull_fail_value(pull, "the name of a file beside the index");
    g_hash_table_insert(value, g_steal_pointer(&name), g_strdup(shard->str));
    return TRUE;
}

GHashTable *
rp_safetensors_parse_index(const char *name, const char *text, gsize length, GError **error)
{
    static const RpJsonField map_fields[] = {{NULL, read_shard}};
    static const RpJsonField fields[] = {
        {"weight_map", RP_JSON_NESTED(map_fields), .required = TRUE,
         .expected = "an object of names"},
        {NULL, rp_json_read_ignored},
    };
    g_autoptr(GHashTable) shards = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_autofree char *shown = rp_display_name(name);
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, shown, text, length, RP_SAFETENSORS_ERROR,
                           RP_SAFETENSORS_ERROR_INDEX, error) ||
        !rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), shards, NULL) ||
        !rp_json_pull_end(&pull))
        return NULL;
    return g_steal_pointer(&shards);
}

static gboolean
fail_index(const char *path, const char *name, GError **error, const char *expected,
           const char *found)
{
    g_autofree char *quoted = rp_quote(name);

    return rp_fail_in(error, path, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_INDEX,
                      "tensor %s: expected it in %s, found it in %s", quoted, expected, found);
}

/* Whether the tensors of @shard, those from @first on, are the ones that the index puts there. */
static gboolean
check_shard(const RpSafetensors *tensors, GHashTable *shards, guint first, const char *shard,
            GError **error)
{
    g_autofree char *found = rp_display_name(shard);

    for (guint i = first; i < tensors->tensors->len; i++) {
        const RpSafetensor *tensor = &g_array_index(tensors->tensors, RpSafetensor, i);
        const char *named = g_hash_table_lookup(shards, tensor->name);

        if (named != NULL && strcmp(named, shard) == 0)
            continue;
        g_autofree char *expected = named != NULL ? rp_display_name(named) : g_strdup("weight_map");
        return fail_index(tensors->path, tensor->name, error, expected, found);
    }
    return TRUE;
}

/* Whether the shards hold all that the index names. */
static gboolean
check_complete(const RpSafetensors *tensors, GHashTable *shards, GError **error)
{
    g_autoptr(GList) names = g_list_sort(g_hash_table_get_keys(shards), (GCompareFunc)strcmp);

    for (GList *item = names; item != NULL; item = item->next) {
        if (!g_hash_table_contains(tensors->by_name, item->data)) {
            g_autofree char *shown = rp_display_name(g_hash_table_lookup(shards, item->data));
            return fail_index(tensors->path, item->data, error, shown, "no file");
        }
    }
    return TRUE;
}

static gboolean
add_shards(RpSafetensors *tensors, GError **error)
{
    g_autoptr(GMappedFile) map = rp_file_map(tensors->path, error);

    if (map == NULL)
        return FALSE;
    if (g_mapped_file_get_length(map) > MAX_INDEX_BYTES)
        return rp_fail_in(error, tensors->path, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_INDEX,
                          "expected at most %d bytes, found %" G_GSIZE_FORMAT, MAX_INDEX_BYTES,
                          g_mapped_file_get_length(map));
    const char *text = g_mapped_file_get_contents(map);
    g_autoptr(GHashTable) shards = rp_safetensors_parse_index(
        tensors->path, text != NULL ? text : "", g_mapped_file_get_length(map), error);
    if (shards == NULL)
        return FALSE;

    g_autoptr(GHashTable) files = g_hash_table_new(g_str_hash, g_str_equal);
    GHashTableIter iter;
    gpointer shard;
    g_hash_table_iter_init(&iter, shards);
    while (g_hash_table_iter_next(&iter, NULL, &shard))
        g_hash_table_add(files, shard);
    g_autoptr(GList) sorted = g_list_sort(g_hash_table_get_keys(files), (GCompareFunc)strcmp);
    g_autofree char *directory = g_path_get_dirname(tensors->path);
    for (GList *item = sorted; item != NULL; item = item->next) {
        g_autofree char *path = g_build_filename(directory, item->data, NULL);
        guint first = tensors->tensors->len;
        if (!add_file(tensors, path, error) ||
            !check_shard(tensors, shards, first, item->data, error))
            return FALSE;
    }
    return check_complete(tensors, shards, error);
}

/* The file that stands for a directory. */
static char *
find_in_directory(const char *directory, GError **error)
{
    static const char *const names[] = {RP_SAFETENSORS_SINGLE,
                                        RP_SAFETENSORS_SINGLE RP_SAFETENSORS_INDEX_SUFFIX};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(directory, names[i], NULL);
        if (g_file_test(path, G_FILE_TEST_EXISTS))
            return g_steal_pointer(&path);
    }
    g_autofree char *hint = rp_model_hint(directory);

    return rp_null(rp_fail_in(error, directory, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                              "expected %s or %s, found neither%s%s", names[0], names[1],
                              hint != NULL ? ": " : "", hint != NULL ? hint : ""));
}

RpSafetensors *
rp_safetensors_open(const char *path, GError **error)
{
    g_autofree char *found = NULL;

    g_return_val_if_fail(path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        found = find_in_directory(path, error);
        if (found == NULL)
            return NULL;
        path = found;
    }
    g_autoptr(RpSafetensors) tensors = safetensors_new(path);
    gboolean is_index = g_str_has_suffix(path, RP_SAFETENSORS_INDEX_SUFFIX);
    if (!(is_index ? add_shards(tensors, error) : add_file(tensors, path, error)))
        return NULL;
    return g_steal_pointer(&tensors);
}

RpSafetensors *
rp_safetensors_parse(const char *name, const void *bytes, gsize length, GError **error)
{
    g_return_val_if_fail(name && (bytes || length == 0), NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    g_autoptr(RpSafetensors) tensors = safetensors_new(name);
    if (!rp_safetensors_read_file(tensors, name, bytes, length, error))
        return NULL;
    return g_steal_pointer(&tensors);
}

const char *
rp_safetensors_path(const RpSafetensors *tensors)
{
    g_return_val_if_fail(tensors != NULL, NULL);
    return tensors->path;
}

guint
rp_safetensors_count(const RpSafetensors *tensors)
{
    g_return_val_if_fail(tensors != NULL, 0);
    return tensors->tensors->len;
}

const RpSafetensor *
rp_safetensors_nth(const RpSafetensors *tensors, guint index)
{
    g_return_val_if_fail(tensors && index < tensors->tensors->len, NULL);
    return &g_array_index(tensors->tensors, RpSafetensor, index);
}

const RpSafetensor *
rp_safetensors_find(const RpSafetensors *tensors, const char *name)
{
    g_return_val_if_fail(tensors && name, NULL);

    gpointer at = g_hash_table_lookup(tensors->by_name, name);
    return at != NULL ? rp_safetensors_nth(tensors, GPOINTER_TO_UINT(at) - 1) : NULL;
}
