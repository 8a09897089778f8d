/* The file: values are kept in memory as they will stand, data are written as they come, each tensor's padded with
 * zeros. */
#include "exec/gguf/private.h"

#include <string.h>

#include "core/base/new-file.h"
#include "core/base/quote.h"

#define MAGIC "GGUF"
#define VERSION 3
#define ALIGNMENT 32

G_DEFINE_QUARK(rp_gguf_error, rp_gguf_error)

typedef enum {
    VALUE_UINT = 4,
    VALUE_INTEGER = 5,
    VALUE_FLOAT = 6,
    VALUE_BOOLEAN = 7,
    VALUE_TEXT = 8,
    VALUE_ARRAY = 9
} ValueType;

struct _RpGgufFile {
    GString *values;
    guint64 n_values;
    GString *tensors; /* as they stand behind the values */
    guint64 n_tensors;
    guint64 data_bytes;
    guint64 head_bytes, written; /* the latter of data */
    char *directory;
    RpNewFile *target;
};

RpGgufFile *
rp_gguf_file_new(void)
{
    RpGgufFile *file = g_new0(RpGgufFile, 1);

    file->values = g_string_new(NULL);
    file->tensors = g_string_new(NULL);
    return file;
}

void
rp_gguf_file_free(RpGgufFile *file)
{
    if (file == NULL)
        return;
    rp_new_file_free(file->target);
    g_string_free(file->values, TRUE);
    g_string_free(file->tensors, TRUE);
    g_free(file->directory);
    g_free(file);
}

/* ---- little-endian values ---- */

static void
put_number(GString *to, guint64 value, guint bytes)
{
    for (guint i = 0; i < bytes; i++)
        g_string_append_c(to, (char)(value >> (8 * i) & 0xff));
}

static void
put_text(GString *to, const char *text, gsize length)
{
    put_number(to, length, 8);
    g_string_append_len(to, text, (gssize)length);
}

static void
put_key(RpGgufFile *file, const char *key, ValueType type)
{
    put_text(file->values, key, strlen(key));
    put_number(file->values, type, 4);
    file->n_values++;
}

static void
put_array(RpGgufFile *file, const char *key, ValueType type, guint n)
{
    put_key(file, key, VALUE_ARRAY);
    put_number(file->values, type, 4);
    put_number(file->values, n, 8);
}

void
rp_gguf_add_text(RpGgufFile *file, const char *key, const char *text)
{
    put_key(file, key, VALUE_TEXT);
    put_text(file->values, text, strlen(text));
}

void
rp_gguf_add_uint(RpGgufFile *file, const char *key, guint32 value)
{
    put_key(file, key, VALUE_UINT);
    put_number(file->values, value, 4);
}

void
rp_gguf_add_float(RpGgufFile *file, const char *key, double value)
{
    put_key(file, key, VALUE_FLOAT);
    put_number(file->values, rp_float_bits((float)value), 4);
}

void
rp_gguf_add_boolean(RpGgufFile *file, const char *key, gboolean value)
{
    put_key(file, key, VALUE_BOOLEAN);
    put_number(file->values, value ? 1 : 0, 1);
}

void
rp_gguf_add_texts(RpGgufFile *file, const char *key, guint n)
{
    put_array(file, key, VALUE_TEXT, n);
}

void
rp_gguf_add_element(RpGgufFile *file, const char *text, gsize length)
{
    put_text(file->values, text, length);
}

void
rp_gguf_add_integers(RpGgufFile *file, const char *key, const gint32 *values, guint n)
{
    put_array(file, key, VALUE_INTEGER, n);
    for (guint i = 0; i < n; i++)
        put_number(file->values, (guint32)values[i], 4);
}

void
rp_gguf_add_floats(RpGgufFile *file, const char *key, const float *values, guint n)
{
    put_array(file, key, VALUE_FLOAT, n);
    for (guint i = 0; i < n; i++)
        put_number(file->values, rp_float_bits(values[i]), 4);
}

static guint64
aligned(guint64 bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void
rp_gguf_add_tensor(RpGgufFile *file, const char *name, RpGgufType type, const guint64 *shape,
                   guint rank)
{
    static const guint8 ids[RP_N_GGUF_TYPES] = {
        [RP_GGUF_F32] = 0,  [RP_GGUF_F16] = 1,  [RP_GGUF_BF16] = 30,
        [RP_GGUF_Q8_0] = 8, [RP_GGUF_Q4_0] = 2, [RP_GGUF_MXFP4] = 39,
    };
    guint64 n = 1;

    put_text(file->tensors, name, strlen(name));
    put_number(file->tensors, rank, 4);
    for (guint i = rank; i-- > 0; n *= shape[i])
        put_number(file->tensors, shape[i], 8);
    put_number(file->tensors, ids[type], 4);
    put_number(file->tensors, file->data_bytes, 8);
    file->data_bytes += aligned(rp_gguf_bytes(type, n));
    file->n_tensors++;
}

/* ---- writing ---- */

gboolean
rp_gguf_file_begin(RpGgufFile *file, const char *path, GError **error)
{
    g_autoptr(GString) head = g_string_new(MAGIC);

    put_number(head, VERSION, 4);
    put_number(head, file->n_tensors, 8);
    put_number(head, file->n_values, 8);
    g_string_append_len(head, file->values->str, (gssize)file->values->len);
    g_string_append_len(head, file->tensors->str, (gssize)file->tensors->len);
    while (head->len % ALIGNMENT != 0)
        g_string_append_c(head, '\0');
    const guint64 bytes = head->len + file->data_bytes;

    if (!rp_new_file_check_space(path, bytes, error))
        return FALSE;
    file->directory = g_path_get_dirname(path);
    file->head_bytes = head->len;
    file->target = rp_new_file_begin(path, bytes, error);
    return file->target != NULL && rp_new_file_write(file->target, 0, head->str, head->len, error);
}

gboolean
rp_gguf_file_write(RpGgufFile *file, const void *data, gsize bytes, GError **error)
{
    const guint64 offset = file->head_bytes + file->written;

    file->written += bytes;
    return rp_new_file_write(file->target, offset, data, bytes, error);
}

gboolean
rp_gguf_file_pad(RpGgufFile *file, GError **error)
{
    static const char zeros[ALIGNMENT];

    return rp_gguf_file_write(file, zeros, (gsize)(aligned(file->written) - file->written), error);
}

gboolean
rp_gguf_file_finish(RpGgufFile *file, GError **error)
{
    g_assert(file->written == file->data_bytes);
    if (!rp_new_file_sync(file->target, error) || !rp_new_file_rename(file->target, error))
        return FALSE;
    g_autofree char *shown = rp_display_name(file->directory);
    const int number = rp_new_file_sync_directory(file->directory);

    return number == 0 || rp_file_fail(error, number, "cannot write \"%s\"", shown);
}
