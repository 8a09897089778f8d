/* Reading: one function a form, tried in turn. */
#include <math.h>

#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "exec/lowbit/lowbit-file.h"

static const char *const part_suffixes[RP_N_LOWBITS][RP_N_LOWBIT_PARTS] = {
    [RP_LOWBIT_NF4] = {"", ".absmax", ".nested_absmax", ".nested_quant_map"},
    [RP_LOWBIT_NF4_SINGLE] = {"", ".absmax"},
    [RP_LOWBIT_MXFP4] = {"_blocks", "_scales"},
    [RP_LOWBIT_FP8] = {"", "_scale_inv"},
};

/* Other formats are recognised by a tensor beside the weight. @stem: the suffix replaces
 * "weight". */
static const struct {
    const char *suffix;
    gboolean stem;
    const char *name;
} unsupported[] = {
    {"g_idx", TRUE, "GPTQ"},
    {"qweight", TRUE, "AWQ"},
    {"SCB", TRUE, "bitsandbytes int8"},
    {".quant_state.bitsandbytes__fp4", FALSE, "bitsandbytes fp4"},
    {"weight_packed", TRUE, "compressed-tensors"},
    {"weight_scale_2", TRUE, "NVFP4"},
};

static gboolean G_GNUC_PRINTF(5, 6) fail(const char *file, const char *name, RpLowbitError code,
                                         GError **error, const char *format, ...)
{
    g_autofree char *quoted = rp_quote(name);
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail_in(error, file, RP_LOWBIT_ERROR, code, "tensor %s: %s", quoted, text);
}

static const RpSafetensor *
find(const RpSafetensors *tensors, const char *name, const char *suffix)
{
    g_autofree char *full = g_strconcat(name, suffix, NULL);

    return rp_safetensors_find(tensors, full);
}

/* The tensor that shows another format; NULL: none. @format: (out): its name */
static const RpSafetensor *
find_mark(const RpSafetensors *tensors, const char *name, const char **format)
{
    gsize length = strlen(name);

    if (g_str_has_suffix(name, ".weight"))
        length -= strlen("weight");
    g_autofree char *stem = g_strndup(name, length);
    for (guint i = 0; i < G_N_ELEMENTS(unsupported); i++) {
        const RpSafetensor *mark =
            find(tensors, unsupported[i].stem ? stem : name, unsupported[i].suffix);
        *format = unsupported[i].name;
        if (mark != NULL)
            return mark;
    }
    return NULL;
}

const char *
rp_lowbit_source_format(const RpSafetensors *tensors, const char *name)
{
    const char *other = NULL;
    RpLowbitSource source;

    g_return_val_if_fail(tensors && name, NULL);

    if (find_mark(tensors, name, &other) != NULL)
        return other;
    return rp_lowbit_source_find(tensors, name, &source, NULL) && source.is_packed
               ? rp_lowbit_name(source.format)
               : NULL;
}

/* Finds a part and holds it to @bytes of @type; @other: (nullable): another type it may be of. */
static gboolean
find_part(const RpSafetensors *tensors, RpLowbitSource *source, RpLowbitPart part, const char *type,
          const char *other, GError **error)
{
    const RpLowbitLayout layout =
        rp_lowbit_layout(source->format, rp_lowbit_shape_of(source->shape, source->rank));
    const char *suffix = part_suffixes[source->format][part];
    const RpSafetensor *found = find(tensors, source->name, suffix);
    guint64 bytes = layout.bytes[part];

    if (found == NULL) {
        g_autofree char *full = g_strconcat(source->name, suffix, NULL);
        return fail(source->tensor->file, full, RP_LOWBIT_ERROR_MISSING, error,
                    "expected it beside \"%s\", found no such tensor", source->tensor->name);
    }
    const gboolean is_other = other != NULL && strcmp(found->dtype_name, other) == 0;
    if (is_other)
        bytes /= 2; /* bf16 for fp32 */
    if ((!is_other && strcmp(found->dtype_name, type) != 0) || found->bytes != bytes) {
        g_autofree char *shown =
            rp_safetensor_describe(found->dtype_name, found->shape, found->rank);
        return fail(found->file, found->name, RP_LOWBIT_ERROR_SHAPE, error,
                    "expected %" G_GUINT64_FORMAT " bytes of %s, found %s", bytes,
                    is_other ? other : type, shown);
    }
    source->parts[part] = found;
    return TRUE;
}

/* The fields that bitsandbytes keeps as JSON. */
typedef struct {
    RpLowbitSource *source;
    gboolean is_nested;
    double offset;
} State;

static gboolean
read_shape(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpLowbitSource *source = ((State *)value)->source;
    guint64 elements = 1;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        guint64 size;
        if (source->rank == RP_SAFETENSORS_MAX_RANK)
            return rp_json_pull_fail(pull, "at most 8 dimensions");
        if (!rp_json_pull_whole(pull, &size))
            return FALSE;
        source->shape[source->rank++] = size;
        if (!g_uint64_checked_mul(&elements, elements, size) || elements == 0 ||
            elements > G_MAXSSIZE / 8)
            return rp_json_pull_fail_value(pull, "a shape that memory could hold");
    }
    return !pull->failed;
}

static gboolean
read_offset(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    State *state = value;

    state->is_nested = TRUE;
    return rp_json_pull_number(pull, &state->offset);
}

/* A whole number that must be `min`. */
static gboolean
read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    guint64 number;

    if (!rp_json_pull_whole(pull, &number))
        return FALSE;
    return (double)number == field->min || rp_json_pull_fail_value(pull, field->expected);
}

static const char *const quant_types[] = {"nf4", NULL};
static const char *const nested_dtypes[] = {"float32", NULL};

static const RpJsonField state_fields[] = {
    {"quant_type", rp_json_read_constant, .required = TRUE, .choices = quant_types},
    {"blocksize", read_exactly, .required = TRUE, .min = RP_NF4_BLOCK, .expected = "blocks of 64"},
    {"shape", read_shape, .required = TRUE, .expected = "an array of sizes"},
    {"nested_blocksize", read_exactly, .min = RP_NF4_NESTED_BLOCK,
     .expected = "nested blocks of 256"},
    {"nested_dtype", rp_json_read_constant, .choices = nested_dtypes},
    {"nested_offset", read_offset, .expected = "a number"},
    {NULL, rp_json_read_ignored},
};

static gboolean
read_state(const RpSafetensor *tensor, State *state, GError **error)
{
    g_autofree char *shown = rp_display_name(tensor->file);
    g_autofree char *quoted = rp_quote(tensor->name);
    g_autofree char *place = g_strdup_printf("%s: tensor %s", shown, quoted);
    RpJsonPull pull;

    return rp_json_pull_init(&pull, place, tensor->data, tensor->bytes, RP_LOWBIT_ERROR,
                             RP_LOWBIT_ERROR_STATE, error) &&
           rp_json_read_record(&pull, state_fields, G_N_ELEMENTS(state_fields), state, NULL) &&
           rp_json_pull_end(&pull);
}

static gboolean
find_nf4(const RpSafetensors *tensors, const RpSafetensor *json, RpLowbitSource *source,
         GError **error)
{
    static const float values[16] = {RP_NF4_VALUES};
    const RpSafetensor *map = find(tensors, source->name, ".quant_map");
    State state = {source};

    source->tensor = json;
    if (!read_state(json, &state, error))
        return FALSE;
    source->is_packed = TRUE;
    source->format = state.is_nested ? RP_LOWBIT_NF4 : RP_LOWBIT_NF4_SINGLE;
    source->offset = (float)state.offset;
    if (!isfinite(source->offset))
        return fail(json->file, json->name, RP_LOWBIT_ERROR_VALUE, error,
                    "expected a finite nested_offset, found %g", state.offset);
    if (!find_part(tensors, source, RP_LOWBIT_QUANTIZED, "U8", NULL, error))
        return FALSE;
    source->tensor = source->parts[RP_LOWBIT_QUANTIZED];
    if (map == NULL || map->bytes != sizeof values || memcmp(map->data, values, sizeof values) != 0)
        return fail(source->tensor->file, source->name, RP_LOWBIT_ERROR_SHAPE, error,
                    "expected the 16 values of NF4 in its quant_map, found %s",
                    map != NULL ? "others" : "no such tensor");
    if (!state.is_nested)
        return find_part(tensors, source, RP_LOWBIT_SCALES, "F32", NULL, error);
    return find_part(tensors, source, RP_LOWBIT_SCALES, "U8", NULL, error) &&
           find_part(tensors, source, RP_LOWBIT_NESTED_SCALES, "F32", NULL, error) &&
           find_part(tensors, source, RP_LOWBIT_NESTED_MAP, "F32", NULL, error);
}

/* [.., rows, blocks, 16] of 32 values each. */
static gboolean
find_mxfp4(const RpSafetensors *tensors, const RpSafetensor *blocks, RpLowbitSource *source,
           GError **error)
{
    source->tensor = blocks;
    if (blocks->rank < 2 || blocks->shape[blocks->rank - 1] != RP_MXFP4_BLOCK / 2 ||
        blocks->elements == 0) {
        g_autofree char *shown =
            rp_safetensor_describe(blocks->dtype_name, blocks->shape, blocks->rank);
        return fail(blocks->file, blocks->name, RP_LOWBIT_ERROR_SHAPE, error,
                    "expected U8 [.., blocks, 16], found %s", shown);
    }
    source->is_packed = TRUE;
    source->format = RP_LOWBIT_MXFP4;
    source->rank = blocks->rank - 1;
    memcpy(source->shape, blocks->shape, source->rank * sizeof *source->shape);
    source->shape[source->rank - 1] *= RP_MXFP4_BLOCK;
    return find_part(tensors, source, RP_LOWBIT_QUANTIZED, "U8", NULL, error) &&
           find_part(tensors, source, RP_LOWBIT_SCALES, "U8", NULL, error);
}

static gboolean
find_fp8(const RpSafetensors *tensors, const RpSafetensor *quantized, RpLowbitSource *source,
         GError **error)
{
    if (quantized->rank < 1 || quantized->elements == 0)
        return fail(quantized->file, quantized->name, RP_LOWBIT_ERROR_SHAPE, error,
                    "expected a matrix, found no values");
    const RpSafetensor *scale =
        find(tensors, source->name, part_suffixes[RP_LOWBIT_FP8][RP_LOWBIT_SCALES]);

    source->is_packed = TRUE;
    source->format = RP_LOWBIT_FP8;
    if (!find_part(tensors, source, RP_LOWBIT_QUANTIZED, "F8_E4M3", NULL, error))
        return FALSE;
    source->one_scale =
        scale != NULL && scale->elements == 1 && scale->supported && scale->dtype != RP_DTYPE_FP16;
    if (!source->one_scale)
        return find_part(tensors, source, RP_LOWBIT_SCALES, "F32", "BF16", error);
    source->parts[RP_LOWBIT_SCALES] = scale;
    return TRUE;
}

gboolean
rp_lowbit_source_find(const RpSafetensors *tensors, const char *name, RpLowbitSource *source,
                      GError **error)
{
    g_return_val_if_fail(tensors && name && source, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    RpLowbitSource found = {.name = name};
    const RpSafetensor *plain = rp_safetensors_find(tensors, name);
    const RpSafetensor *json = find(tensors, name, ".quant_state.bitsandbytes__nf4");
    const RpSafetensor *blocks = find(tensors, name, "_blocks");
    const char *other = NULL;
    const RpSafetensor *mark = find_mark(tensors, name, &other);
    gboolean ok = TRUE;

    found.tensor = plain;
    if (plain != NULL && json == NULL) {
        found.rank = plain->rank;
        memcpy(found.shape, plain->shape, plain->rank * sizeof *plain->shape);
    }
    if (mark != NULL)
        ok = fail(mark->file, mark->name, RP_LOWBIT_ERROR_UNSUPPORTED, error,
                  "expected a weight in bf16, fp16, fp32, nf4, mxfp4 or fp8, found %s", other);
    else if (json != NULL)
        ok = find_nf4(tensors, json, &found, error);
    else if (blocks != NULL)
        ok = find_mxfp4(tensors, blocks, &found, error);
    else if (plain != NULL && strcmp(plain->dtype_name, "F8_E4M3") == 0)
        ok = find_fp8(tensors, plain, &found, error);
    else if (plain == NULL)
        ok = fail(rp_safetensors_path(tensors), name, RP_LOWBIT_ERROR_MISSING, error,
                  "expected a weight, found no such tensor");
    else if (!plain->supported)
        ok = fail(plain->file, name, RP_LOWBIT_ERROR_UNSUPPORTED, error,
                  "expected a weight in bf16, fp16, fp32, nf4, mxfp4 or fp8, found %s",
                  plain->dtype_name);
    if (ok)
        *source = found;
    return ok;
}
