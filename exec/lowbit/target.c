/* Writing: the tensors of a weight, in the form that others read. */
#include "core/base/quote.h"
#include "core/json/json-write.h"
#include "exec/lowbit/lowbit-file.h"

#define OFFSET_DIGITS 32 /* space for the number after "nested_offset" and the end of the text */
#define EDGE 4096        /* bytes of a tensor's ends that its hash is made of */

void
rp_lowbit_target_clear(RpLowbitTarget *target)
{
    g_clear_pointer(&target->state_text, g_free);
}

static guint
add(RpSafetensorsWriter *writer, const char *name, const char *suffix, const char *type,
    const guint64 *shape, guint rank)
{
    g_autofree char *full = g_strconcat(name, suffix, NULL);

    return rp_safetensors_writer_add_type(writer, full, type, shape, rank);
}

/* All but the last member, which is the offset of nf4: its digits are known when it is packed. */
static char *
make_state(RpLowbit format, const guint64 *shape, guint rank, RpDtype dtype)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);

    rp_json_object(json, NULL);
    rp_json_string(json, "quant_type", "nf4");
    rp_json_uint(json, "blocksize", RP_NF4_BLOCK);
    rp_json_string(json, "dtype", rp_dtype_torch_name(dtype));
    rp_json_array(json, "shape");
    for (guint i = 0; i < rank; i++)
        rp_json_uint(json, NULL, shape[i]);
    rp_json_end(json);
    if (format == RP_LOWBIT_NF4) {
        rp_json_uint(json, "nested_blocksize", RP_NF4_NESTED_BLOCK);
        rp_json_string(json, "nested_dtype", "float32");
    }
    rp_json_end(json);
    return g_strdup(rp_json_writer_text(json)->str);
}

static void
add_nf4(RpSafetensorsWriter *writer, const char *name, const guint64 *shape, guint rank,
        RpDtype dtype, RpLowbitTarget *target)
{
    const RpLowbitLayout layout = rp_lowbit_layout(target->format, target->shape);
    const gboolean is_nested = target->format == RP_LOWBIT_NF4;
    const guint64 quantized[] = {layout.bytes[RP_LOWBIT_QUANTIZED], 1};
    const guint64 scales = layout.bytes[RP_LOWBIT_SCALES] / (is_nested ? 1 : sizeof(float));
    const guint64 nested = layout.bytes[RP_LOWBIT_NESTED_SCALES] / sizeof(float);
    const guint64 values = 16, map = RP_NF4_MAP;

    target->parts[RP_LOWBIT_QUANTIZED] = add(writer, name, "", "U8", quantized, 2);
    target->parts[RP_LOWBIT_SCALES] =
        add(writer, name, ".absmax", is_nested ? "U8" : "F32", &scales, 1);
    target->map = add(writer, name, ".quant_map", "F32", &values, 1);
    if (is_nested) {
        target->parts[RP_LOWBIT_NESTED_SCALES] =
            add(writer, name, ".nested_absmax", "F32", &nested, 1);
        target->parts[RP_LOWBIT_NESTED_MAP] =
            add(writer, name, ".nested_quant_map", "F32", &map, 1);
    }
    target->state_text = make_state(target->format, shape, rank, dtype);
    target->state_bytes = strlen(target->state_text);
    if (is_nested)
        target->state_bytes += strlen(",\"nested_offset\":") + OFFSET_DIGITS;
    const guint64 bytes = target->state_bytes;
    target->state = add(writer, name, ".quant_state.bitsandbytes__nf4", "U8", &bytes, 1);
}

static gboolean
add_mxfp4(RpSafetensorsWriter *writer, const char *name, const guint64 *shape, guint rank,
          RpLowbitTarget *target, GError **error)
{
    guint64 blocks[RP_SAFETENSORS_MAX_RANK];

    if (rank == RP_SAFETENSORS_MAX_RANK || shape[rank - 1] % RP_MXFP4_BLOCK != 0) {
        g_autofree char *quoted = rp_quote(name);
        return rp_fail(error, RP_LOWBIT_ERROR, RP_LOWBIT_ERROR_SHAPE,
                       "tensor %s: expected rows of a multiple of 32 values for mxfp4, found "
                       "%" G_GUINT64_FORMAT,
                       quoted, shape[rank - 1]);
    }
    memcpy(blocks, shape, rank * sizeof *blocks);
    blocks[rank - 1] /= RP_MXFP4_BLOCK;
    blocks[rank] = RP_MXFP4_BLOCK / 2;
    target->parts[RP_LOWBIT_QUANTIZED] = add(writer, name, "_blocks", "U8", blocks, rank + 1);
    target->parts[RP_LOWBIT_SCALES] = add(writer, name, "_scales", "U8", blocks, rank);
    return TRUE;
}

static void
add_fp8(RpSafetensorsWriter *writer, const char *name, const guint64 *shape, guint rank,
        RpLowbitTarget *target)
{
    guint64 blocks[RP_SAFETENSORS_MAX_RANK];

    for (guint i = 0; i < rank; i++)
        blocks[i] = i + 2 < rank ? shape[i] : (shape[i] + RP_FP8_BLOCK - 1) / RP_FP8_BLOCK;
    target->parts[RP_LOWBIT_QUANTIZED] = add(writer, name, "", "F8_E4M3", shape, rank);
    target->parts[RP_LOWBIT_SCALES] = add(writer, name, "_scale_inv", "F32", blocks, rank);
}

gboolean
rp_lowbit_target_add(RpSafetensorsWriter *writer, const char *name, RpLowbit format,
                     const guint64 *shape, guint rank, RpDtype dtype, RpLowbitTarget *target,
                     GError **error)
{
    g_return_val_if_fail(writer && name && shape && rank > 0 && target, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    *target = (RpLowbitTarget){.format = format, .shape = rp_lowbit_shape_of(shape, rank)};
    switch (format) {
    case RP_LOWBIT_NF4:
    case RP_LOWBIT_NF4_SINGLE:
        add_nf4(writer, name, shape, rank, dtype, target);
        return TRUE;
    case RP_LOWBIT_MXFP4:
        return add_mxfp4(writer, name, shape, rank, target, error);
    case RP_LOWBIT_FP8:
        add_fp8(writer, name, shape, rank, target);
        return TRUE;
    }
    g_return_val_if_reached(FALSE);
}

/* The JSON with the offset, filled with spaces: readers of JSON pass over them. */
static char *
finish_state(const RpLowbitTarget *target, float offset)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];
    char *text = g_malloc(target->state_bytes);
    gsize length = strlen(target->state_text);

    memset(text, ' ', target->state_bytes);
    memcpy(text, target->state_text, length);
    if (target->format == RP_LOWBIT_NF4) {
        g_autofree char *last =
            g_strdup_printf(",\"nested_offset\":%s}",
                            g_ascii_formatd(digits, sizeof digits, "%.17g", (double)offset));

        g_assert(length - 1 + strlen(last) <= target->state_bytes);
        memcpy(text + length - 1, last, strlen(last));
    }
    return text;
}

gboolean
rp_lowbit_target_write(RpSafetensorsWriter *writer, const RpLowbitTarget *target,
                       const void *packed, GError **error)
{
    static const float values[16] = {RP_NF4_VALUES};

    g_return_val_if_fail(writer && target && packed, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    const RpLowbitLayout layout = rp_lowbit_layout(target->format, target->shape);
    const guint8 *bytes = packed;
    float offset = 0;

    for (guint part = 0; part < RP_LOWBIT_OFFSET; part++)
        if (layout.bytes[part] > 0 &&
            !rp_safetensors_writer_write(writer, target->parts[part], bytes + layout.at[part],
                                         layout.bytes[part], error))
            return FALSE;
    if (target->state_text == NULL)
        return TRUE;
    if (layout.bytes[RP_LOWBIT_OFFSET] > 0)
        memcpy(&offset, bytes + layout.at[RP_LOWBIT_OFFSET], sizeof offset);
    g_autofree char *text = finish_state(target, offset);
    return rp_safetensors_writer_write(writer, target->map, values, sizeof values, error) &&
           rp_safetensors_writer_write(writer, target->state, text, target->state_bytes, error);
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    const RpSafetensor *const *x = a;
    const RpSafetensor *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

char *
rp_lowbit_cache_name(RpLowbit format, const RpSafetensors *checkpoint)
{
    g_return_val_if_fail(checkpoint != NULL, NULL);

    g_autoptr(GChecksum) checksum = g_checksum_new(G_CHECKSUM_SHA256);
    g_autoptr(GPtrArray) sorted = g_ptr_array_new();

    for (guint i = 0; i < rp_safetensors_count(checkpoint); i++)
        g_ptr_array_add(sorted, (gpointer)(guintptr)rp_safetensors_nth(checkpoint, i));
    g_ptr_array_sort(sorted, compare_names);
    for (guint i = 0; i < sorted->len; i++) {
        const RpSafetensor *tensor = g_ptr_array_index(sorted, i);
        g_autofree char *shape =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        const guint8 *data = tensor->data;
        const gsize edge = MIN(EDGE, tensor->bytes);

        g_checksum_update(checksum, (const guchar *)tensor->name, (gssize)strlen(tensor->name) + 1);
        g_checksum_update(checksum, (const guchar *)shape, (gssize)strlen(shape) + 1);
        g_checksum_update(checksum, data, (gssize)edge);
        g_checksum_update(checksum, data + tensor->bytes - edge, (gssize)edge);
    }
    return g_strdup_printf("model.%s-%.16s.safetensors", rp_lowbit_name(format),
                           g_checksum_get_string(checksum));
}
