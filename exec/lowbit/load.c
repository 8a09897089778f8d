/* From a file into memory: a weight in one piece, or a stack whose matrices stand one by one. */
#include <string.h>

#include "core/base/quote.h"
#include "exec/lowbit/lowbit-file.h"

#define COPY_BYTES ((gsize)1 << 18) /* bytes that a thread copies at a time */

/* ---- stacks ---- */

RpLowbit
rp_lowbit_stacked_format(RpLowbit format)
{
    return format == RP_LOWBIT_NF4 ? RP_LOWBIT_NF4_SINGLE : format;
}

/* Whether no block of @piece would have rows, or values, of the next. */
static gboolean
ends_with_a_block(const RpLowbitSource *piece, const guint64 *stack)
{
    const guint64 elements = piece->shape[0] * piece->shape[1];

    if (piece->format == RP_LOWBIT_FP8)
        return piece->shape[0] == stack[1] || piece->shape[0] % RP_FP8_BLOCK == 0;
    return piece->format == RP_LOWBIT_MXFP4 || elements % RP_NF4_BLOCK == 0;
}

gboolean
rp_lowbit_source_stack(RpLowbitSource *stack, GError **error)
{
    const RpLowbitSource *first = stack->pieces;

    g_return_val_if_fail(first != NULL && stack->n_pieces > 0, FALSE);
    stack->tensor = first->tensor;
    stack->is_packed = TRUE;
    stack->format = rp_lowbit_stacked_format(first->format);
    for (guint i = 0; i < stack->n_pieces; i++) {
        const RpLowbitSource *piece = &stack->pieces[i];
        const gboolean alike = piece->is_packed && piece->format == first->format;

        if (alike && ends_with_a_block(piece, stack->shape))
            continue;
        g_autofree char *quoted = rp_quote(piece->name);
        const char *type =
            piece->is_packed ? rp_lowbit_name(piece->format) : piece->tensor->dtype_name;
        g_autofree char *found = rp_safetensor_describe(type, piece->shape, piece->rank);

        return rp_fail_in(error, piece->tensor->file, RP_LOWBIT_ERROR, RP_LOWBIT_ERROR_SHAPE,
                          "tensor %s: expected %s%s, found %s", quoted,
                          alike ? "whole blocks of " : "", rp_lowbit_name(first->format), found);
    }
    return TRUE;
}

const RpLowbitSource *
rp_lowbit_source_piece(const RpLowbitSource *source, guint64 *element)
{
    if (source->n_pieces == 0)
        return source;
    const guint64 elements = source->pieces->shape[0] * source->pieces->shape[1];
    const RpLowbitSource *piece = &source->pieces[*element / elements];

    *element %= elements;
    return piece;
}

/* ---- loading ---- */

typedef struct {
    const guint8 *from;
    guint8 *to;
} Copy;

static void
copy_some(gsize first, gsize n, gpointer data)
{
    const Copy *copy = data;

    memcpy(copy->to + first, copy->from + first, n);
}

/* Pages of a file that nobody has read yet come as fast as threads read them. */
static void
copy_part(guint8 *to, const RpSafetensor *tensor, RpPool *pool)
{
    Copy copy = {tensor->data, to};

    if (tensor->bytes > 0)
        rp_pool_run(pool, 0, tensor->bytes, COPY_BYTES, copy_some, &copy);
}

static RpLowbitLayout
layout_of(const RpLowbitSource *source)
{
    return rp_lowbit_layout(source->format, rp_lowbit_shape_of(source->shape, source->rank));
}

static void
repeat_scale(const RpSafetensor *scale, float *to, gsize n)
{
    float value;

    rp_dtype_to_float(scale->dtype, scale->data, &value, 1);
    for (gsize i = 0; i < n; i++)
        to[i] = value;
}

/* A part, or where the file has none of it the offset. */
static void
load_part(const RpLowbitSource *source, guint part, guint8 *to, RpPool *pool)
{
    const RpSafetensor *tensor = source->parts[part];
    const gsize bytes = layout_of(source).bytes[part];

    if (part == RP_LOWBIT_SCALES && source->one_scale)
        repeat_scale(tensor, (float *)(gpointer)to, bytes / sizeof(float));
    else if (tensor != NULL && tensor->bytes < bytes)
        rp_dtype_to_float(RP_DTYPE_BF16, tensor->data, (float *)(gpointer)to, tensor->elements);
    else if (tensor != NULL)
        copy_part(to, tensor, pool);
    else if (part == RP_LOWBIT_OFFSET && bytes > 0)
        memcpy(to, &source->offset, sizeof source->offset);
}

/* Scales of nf4 as nf4-single has them, rounded twice as in rp_lowbit_expand(). */
static void
load_nested_scales(const RpLowbitSource *piece, float *scales)
{
    const guint8 *quantized = piece->parts[RP_LOWBIT_SCALES]->data;
    const guint8 *nested = piece->parts[RP_LOWBIT_NESTED_SCALES]->data; /* at any address */
    const gsize blocks = layout_of(piece).bytes[RP_LOWBIT_SCALES];
    float map[RP_NF4_MAP];

    memcpy(map, piece->parts[RP_LOWBIT_NESTED_MAP]->data, sizeof map);
    for (gsize i = 0; i < blocks; i++) {
        float scale;

        memcpy(&scale, nested + i / RP_NF4_NESTED_BLOCK * sizeof scale, sizeof scale);
        scale *= map[quantized[i]];
        scales[i] = scale + piece->offset;
    }
}

static void
load_pieces(const RpLowbitSource *stack, const RpLowbitLayout *layout, guint8 *bytes, RpPool *pool)
{
    guint8 *quantized = bytes + layout->at[RP_LOWBIT_QUANTIZED];
    guint8 *scales = bytes + layout->at[RP_LOWBIT_SCALES];

    for (guint i = 0; i < stack->n_pieces; i++) {
        const RpLowbitSource *piece = &stack->pieces[i];
        const gboolean nested = piece->format == RP_LOWBIT_NF4;
        const RpLowbitLayout one = layout_of(piece);

        load_part(piece, RP_LOWBIT_QUANTIZED, quantized, pool);
        if (nested)
            load_nested_scales(piece, (float *)(gpointer)scales);
        else
            load_part(piece, RP_LOWBIT_SCALES, scales, pool);
        quantized += one.bytes[RP_LOWBIT_QUANTIZED];
        scales += one.bytes[RP_LOWBIT_SCALES] * (nested ? sizeof(float) : 1);
    }
}

void
rp_lowbit_source_load(const RpLowbitSource *source, void *packed, RpPool *pool)
{
    g_return_if_fail(source && source->is_packed && packed);

    const RpLowbitLayout layout = layout_of(source);
    guint8 *bytes = packed;

    if (source->n_pieces > 0)
        load_pieces(source, &layout, bytes, pool);
    for (guint part = 0; part < RP_N_LOWBIT_PARTS; part++) {
        const gsize end = part + 1 < RP_N_LOWBIT_PARTS ? layout.at[part + 1] : layout.total;

        if (source->n_pieces == 0)
            load_part(source, part, bytes + layout.at[part], pool);
        memset(bytes + layout.at[part] + layout.bytes[part], 0,
               end - layout.at[part] - layout.bytes[part]);
    }
}
