/**
 * The header of one file: bytes -> RpSafetensor.
 *
 *   0      8                8 + n                               length
 *   | n    | {...}          | a        | b              | c     |
 *                           0          begin            end
 */
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/safetensors/private.h"

/* Descriptions of a tensor or a file for messages. */

G_DEFINE_QUARK(rp_safetensors_error, rp_safetensors_error)

char *
rp_safetensor_describe(const char *dtype_name, const guint64 *shape, guint rank)
{
    GString *text = g_string_new(dtype_name);

    g_string_append(text, " [");
    for (guint i = 0; i < rank; i++)
        g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, i > 0 ? ", " : "", shape[i]);
    g_string_append_c(text, ']');
    return g_string_free(text, FALSE);
}

typedef struct {
    const char *name;
    guint bits; /* bits of an element */
} Format;

/* Every type of the format; the three of RpDtype can be used, the others be listed. */
static const Format formats[] = {
    {"F32", 32},        {"BF16", 16},       {"F16", 16},    {"F64", 64},    {"I64", 64},
    {"I32", 32},        {"I16", 16},        {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16},        {"U8", 8},          {"BOOL", 8},    {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

guint
rp_safetensors_type_bits(const char *type)
{
    for (guint i = 0; i < G_N_ELEMENTS(formats); i++)
        if (strcmp(formats[i].name, type) == 0)
            return formats[i].bits;
    return 0;
}

/* One file being read. */
typedef struct {
    RpSafetensors *tensors;
    const char *file;
    const guint8 *data;
    guint64 data_bytes;
    guint first; /* index of the file's first tensor */
    GError **error;
} Reader;

/* One tensor being read. */
typedef struct {
    RpSafetensor tensor;
    guint bits;
    guint64 begin;
    guint64 end;
} Entry;

static gboolean
fail_header(const Reader *reader, const char *expected, const char *found)
{
    return rp_fail(reader->error, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_HEADER,
                   "%s: header: expected %s, found %s", reader->file, expected, found);
}

static gboolean G_GNUC_PRINTF(3, 4)
    fail_tensor(const Reader *reader, const char *name, const char *format, ...)
{
    g_autofree char *quoted = rp_quote(name);
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(reader->error, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_TENSOR,
                   "%s: tensor %s: %s", reader->file, quoted, text);
}

static gboolean
read_dtype(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) name = g_string_new(NULL);
    Entry *entry = value;

    if (!rp_json_pull_string(pull, name))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        if (strcmp(formats[i].name, name->str) == 0) {
            entry->bits = formats[i].bits;
            entry->tensor.dtype_name = formats[i].name;
            entry->tensor.supported =
                rp_dtype_parse(formats[i].name, rp_dtype_safetensors_name, &entry->tensor.dtype);
            return TRUE;
        }
    }
    return rp_json_pull_fail_value(pull, field->expected);
}

static gboolean
read_shape(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpSafetensor *tensor = &((Entry *)value)->tensor;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    tensor->elements = 1;
    while (rp_json_pull_next_element(pull)) {
        guint64 size;
        if (tensor->rank == RP_SAFETENSORS_MAX_RANK)
            return rp_json_pull_fail(pull,
                                     "at most " G_STRINGIFY(RP_SAFETENSORS_MAX_RANK) " dimensions");
        if (!rp_json_pull_whole(pull, &size))
            return FALSE;
        tensor->shape[tensor->rank++] = size;
        if (!g_uint64_checked_mul(&tensor->elements, tensor->elements, size))
            return rp_json_pull_fail_value(pull, "at most 2^64 - 1 elements");
    }
    return !pull->failed;
}

static gboolean
read_offsets(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Entry *entry = value;
    guint64 *offsets[] = {&entry->begin, &entry->end};
    guint n = 0;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (n == G_N_ELEMENTS(offsets))
            return rp_json_pull_fail(pull, field->expected);
        if (!rp_json_pull_whole(pull, offsets[n++]))
            return FALSE;
    }
    return n == G_N_ELEMENTS(offsets) || rp_json_pull_fail(pull, field->expected);
}

static const RpJsonField entry_fields[] = {
    {"dtype", read_dtype, .required = TRUE, .expected = "a dtype of the format, such as \"BF16\""},
    {"shape", read_shape, .required = TRUE, .expected = "an array of sizes"},
    {"data_offsets", read_offsets, .required = TRUE, .expected = "two offsets"},
};

static gboolean
check_entry(const Reader *reader, const Entry *entry)
{
    const RpSafetensor *tensor = &entry->tensor;
    guint64 bits;

    if (entry->begin > entry->end || entry->end > reader->data_bytes)
        return fail_tensor(reader, tensor->name,
                           "expected data_offsets within the %" G_GUINT64_FORMAT
                           " bytes of data, found [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]",
                           reader->data_bytes, entry->begin, entry->end);
    g_autofree char *shape =
        rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
    if (!g_uint64_checked_mul(&bits, tensor->elements, entry->bits) || bits % 8 != 0)
        return fail_tensor(reader, tensor->name, "expected a whole number of bytes, found %s",
                           shape);
    if (bits / 8 != entry->end - entry->begin)
        return fail_tensor(reader, tensor->name,
                           "expected %" G_GUINT64_FORMAT " bytes for %s, found %" G_GUINT64_FORMAT
                           " in data_offsets [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]",
                           bits / 8, shape, entry->end - entry->begin, entry->begin, entry->end);
    return TRUE;
}

char *
rp_safetensors_module_name(const char *name)
{
    static const char *const renamed[][2] = {{"language_model.model.", "model.language_model."},
                                             {"language_model.lm_head.", "lm_head."}};

    for (guint i = 0; i < G_N_ELEMENTS(renamed); i++)
        if (g_str_has_prefix(name, renamed[i][0]))
            return g_strconcat(renamed[i][1], name + strlen(renamed[i][0]), NULL);
    return g_strdup(name);
}

static gboolean
read_tensor(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;
    RpSafetensors *tensors = reader->tensors;
    Entry entry = {.tensor = {.file = reader->file}};
    g_autofree char *name = rp_safetensors_module_name(pull->key);
    gpointer at = g_hash_table_lookup(tensors->by_name, name);

    if (at != NULL) {
        const RpSafetensor *other =
            &g_array_index(tensors->tensors, RpSafetensor, GPOINTER_TO_UINT(at) - 1);
        return fail_tensor(reader, other->name, "expected each name once, found it again in %s",
                           other->file);
    }
    entry.tensor.name = g_string_chunk_insert(tensors->names, name);
    if (!rp_json_read_record(pull, entry_fields, G_N_ELEMENTS(entry_fields), &entry, NULL) ||
        !check_entry(reader, &entry))
        return FALSE;
    entry.tensor.bytes = entry.end - entry.begin;
    entry.tensor.data = reader->data + entry.begin;
    g_array_append_val(tensors->tensors, entry.tensor);
    g_hash_table_insert(tensors->by_name, (gpointer)entry.tensor.name,
                        GUINT_TO_POINTER(tensors->tensors->len));
    return TRUE;
}

/* A string, which nothing follows from. */
static gboolean
read_note(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    return rp_json_pull_string(pull, text);
}

static gboolean
read_header(Reader *reader, const char *text, gsize length)
{
    static const RpJsonField notes[] = {{NULL, read_note}};
    static const RpJsonField fields[] = {{"__metadata__", RP_JSON_NESTED(notes)},
                                         {NULL, read_tensor}};
    RpJsonPull pull;

    if (length == 0 || *text != '{')
        return fail_header(reader, "`{` as its first byte", length == 0 ? "no byte" : "another");
    return rp_json_pull_init(&pull, reader->file, text, length, RP_SAFETENSORS_ERROR,
                             RP_SAFETENSORS_ERROR_HEADER, reader->error) &&
           rp_json_read_record(&pull, fields, G_N_ELEMENTS(fields), reader, NULL) &&
           rp_json_pull_end(&pull);
}

static gint
compare_data(gconstpointer a, gconstpointer b, gpointer unused)
{
    const RpSafetensor *x = a;
    const RpSafetensor *y = b;
    const guint8 *x_data = x->data;
    const guint8 *y_data = y->data;

    if (x_data != y_data)
        return x_data < y_data ? -1 : 1;
    if (x->bytes != y->bytes) /* empty ones first */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts the file's tensors by their place and checks that they cover the data. */
static gboolean
check_cover(const Reader *reader)
{
    RpSafetensors *tensors = reader->tensors;
    guint n = tensors->tensors->len - reader->first;
    guint64 at = 0;

    if (n > 0) {
        RpSafetensor *first = &g_array_index(tensors->tensors, RpSafetensor, reader->first);
        g_qsort_with_data(first, (gint)n, sizeof *first, compare_data, NULL);
    }
    for (guint i = reader->first; i < tensors->tensors->len; i++) {
        const RpSafetensor *tensor = &g_array_index(tensors->tensors, RpSafetensor, i);
        guint64 begin = (guint64)((const guint8 *)tensor->data - reader->data);

        if (begin != at)
            return fail_tensor(reader, tensor->name,
                               "expected its data at %" G_GUINT64_FORMAT
                               ", where those before end, found %s at %" G_GUINT64_FORMAT,
                               at, begin < at ? "an overlap" : "a gap", begin);
        at = begin + tensor->bytes;
        g_hash_table_insert(tensors->by_name, (gpointer)tensor->name, GUINT_TO_POINTER(i + 1));
    }
    if (at == reader->data_bytes)
        return TRUE;
    return rp_fail(reader->error, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_HEADER,
                   "%s: expected %" G_GUINT64_FORMAT
                   " bytes of data, as the header says, found %" G_GUINT64_FORMAT,
                   reader->file, at, reader->data_bytes);
}

gboolean
rp_safetensors_read_file(RpSafetensors *tensors, const char *name, const void *bytes, gsize length,
                         GError **error)
{
    const guint8 *start = bytes;
    guint64 header_bytes = 0;
    char *file = rp_display_name(name);
    Reader reader = {
        .tensors = tensors, .file = file, .first = tensors->tensors->len, .error = error};

    g_ptr_array_add(tensors->files, file);
    if (rp_file_is_pointer(bytes, length))
        return rp_fail(error, RP_SAFETENSORS_ERROR, RP_SAFETENSORS_ERROR_HEADER,
                       "%s: expected tensors, %s", file, RP_FILE_POINTER_WORDS);
    if (length < RP_SAFETENSORS_LENGTH_BYTES) {
        g_autofree char *found = g_strdup_printf("%" G_GSIZE_FORMAT, length);
        return fail_header(&reader, "at least 8 bytes in the file", found);
    }
    for (guint i = RP_SAFETENSORS_LENGTH_BYTES; i > 0; i--)
        header_bytes = header_bytes << 8 | start[i - 1];
    gsize rest = length - RP_SAFETENSORS_LENGTH_BYTES;
    if (header_bytes > MIN(rest, RP_SAFETENSORS_MAX_HEADER_BYTES)) {
        g_autofree char *expected = g_strdup_printf("at most %" G_GSIZE_FORMAT " bytes",
                                                    MIN(rest, RP_SAFETENSORS_MAX_HEADER_BYTES));
        g_autofree char *found = g_strdup_printf("%" G_GUINT64_FORMAT, header_bytes);
        return fail_header(&reader, expected, found);
    }
    reader.data = start + RP_SAFETENSORS_LENGTH_BYTES + header_bytes;
    reader.data_bytes = rest - header_bytes;
    return read_header(&reader, (const char *)start + RP_SAFETENSORS_LENGTH_BYTES,
                       (gsize)header_bytes) &&
           check_cover(&reader);
}
