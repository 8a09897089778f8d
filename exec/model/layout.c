#include "exec/model/layout.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/units.h"

guint64
rp_layout_bytes_left(const RpWeight *weight)
{
    const guint64 all = rp_weight_stack_elements(weight);
    const guint64 end = weight->offset + weight->elements;

    return weight->elements + (end == all ? rp_align_up(all, RP_LAYOUT_ALIGNMENT) - all : 0);
}

RpWeightPlace
rp_layout_place(const RpLayerLayout *layout, const RpWeight *weight)
{
    RpWeightPlace place = layout->place[weight->kind];

    if (place.byte != RP_LAYOUT_NONE)
        place.byte += weight->offset * rp_dtype_size(place.storage);
    if (!place.is_packed)
        place.upload += weight->offset * rp_dtype_size(place.storage);
    if (place.element != RP_LAYOUT_NONE)
        place.element += weight->offset;
    memcpy(place.shape, weight->shape, sizeof place.shape);
    return place;
}

guint
rp_layout_part(const RpWeight *weight)
{
    const gboolean is_a = weight->kind / RP_N_BASE_KINDS == RP_ADAPTER_A;

    return weight->tied ? 3 : !weight->trained ? 2 : is_a ? 0 : 1;
}

static guint64
elements_of(const RpWeightPlace *place)
{
    guint64 elements = 1;

    for (guint i = 0; i < RP_WEIGHT_MAX_RANK; i++)
        elements *= place->shape[i];
    return elements;
}

/* Bytes of a weight as on the host, unless it is packed. */
static guint64
plain_space(const RpWeightPlace *place)
{
    return rp_align_up(elements_of(place), RP_LAYOUT_ALIGNMENT) * rp_dtype_size(place->storage);
}

guint64
rp_layout_byte_capacity(const RpWeightPlace *place)
{
    return place->has_fp8 ? 2 * elements_of(place) + RP_LAYOUT_SCALE_BYTES : plain_space(place);
}

guint64
rp_layout_upload_capacity(const RpWeightPlace *place)
{
    return place->is_packed
               ? rp_align_up(rp_lowbit_layout(place->format, place->packed_shape).total,
                             RP_LAYOUT_ALIGNMENT * sizeof(guint16))
               : plain_space(place);
}

/* Whether fp8 matmuls take all matrices of linear layers, and there are some. */
static gboolean
may_have_fp8(const RpWeights *weights, guint first, guint n)
{
    gboolean any = FALSE;

    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!rp_weight_multiplies_fp8(weight))
            continue;
        if (weight->shape[0] % 16 != 0 || weight->shape[1] % 16 != 0)
            return FALSE;
        any = TRUE;
    }
    return any;
}

/* @seed: of dropout, in which each matrix has a key of its own. The first matrix of a stack does it
 * for all. */
static void
add(RpLayerLayout *layout, const RpWeight *weight, RpDtype dtype, guint64 seed)
{
    const RpDtype storage = weight->trained ? dtype : weight->storage;
    const guint64 space = rp_align_up(rp_weight_stack_elements(weight), RP_LAYOUT_ALIGNMENT);
    const gboolean has_fp8 = layout->has_fp8 && rp_weight_multiplies_fp8(weight);
    RpWeightPlace *place = &layout->place[weight->kind];

    if (weight->offset > 0)
        return;
    *place = (RpWeightPlace){.storage = storage,
                             .byte = layout->bytes,
                             .element = weight->trained ? layout->elements : RP_LAYOUT_NONE,
                             .transposed = weight->transposed,
                             .scale = (float)weight->scale,
                             .upload = layout->upload_bytes,
                             .is_packed = weight->is_packed && !weight->trained,
                             .format = weight->format,
                             .packed_shape = rp_weight_lowbit_shape(weight),
                             .has_fp8 = has_fp8,
                             .code_rows = has_fp8 ? weight->shape[0] : 0};
    memcpy(place->shape, weight->stack[0] > 0 ? weight->stack : weight->shape, sizeof place->shape);
    if (rp_weight_is_adapter(weight->kind))
        place->key = rp_hash64(weight->name, strlen(weight->name), seed);
    const guint64 upload = rp_layout_upload_capacity(place);
    layout->bytes += rp_layout_byte_capacity(place);
    layout->trains_fp8 |= has_fp8 && weight->trained;
    place->as_is = has_fp8 && place->is_packed && weight->one_scale;
    if (has_fp8 && place->is_packed && !place->as_is)
        layout->scratch_bytes = MAX(layout->scratch_bytes, plain_space(place));
    layout->upload_bytes += upload;
    layout->elements += weight->trained ? space : 0;
    if (weight->tied) {
        layout->tied_bytes = upload;
        layout->tied_elements = weight->trained ? space : 0;
    } else if (!weight->trained) {
        layout->frozen_bytes += upload;
    }
}

void
rp_layout_fuse_fp8(RpLayerLayout *layout, const RpWeightKind *kinds, guint n)
{
    g_return_if_fail(layout != NULL && kinds != NULL);

    for (guint i = 1; i < n; i++) {
        layout->place[kinds[0]].code_rows += layout->place[kinds[i]].shape[0];
        layout->place[kinds[i]].code_rows = 0;
    }
}

static RpLayerLayout
layer_layout(const RpWeights *weights, guint layer, RpDtype dtype, gboolean quantized,
             const RpLayerLayout *before)
{
    RpLayerLayout layout = {
        .scratch = RP_LAYOUT_NONE,
        .first_byte = before != NULL ? before->first_byte + before->bytes : 0,
        .first_upload = before != NULL ? before->first_upload + before->upload_bytes : 0,
        .first_element = before != NULL ? before->first_element + before->elements : 0};
    guint first;

    for (guint kind = 0; kind < RP_N_WEIGHT_KINDS; kind++)
        layout.place[kind] =
            (RpWeightPlace){.storage = dtype, .byte = RP_LAYOUT_NONE, .element = RP_LAYOUT_NONE};
    g_return_val_if_fail(weights && layer < rp_weights_n_layers(weights), layout);

    const RpLora *lora = rp_weights_lora(weights);

    guint n = rp_weights_layer(weights, layer, &first);
    layout.has_fp8 = quantized && may_have_fp8(weights, first, n);
    for (guint part = 0; part < RP_LAYOUT_PARTS; part++) {
        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);

            if (part == rp_layout_part(weight))
                add(&layout, weight, dtype, lora != NULL ? lora->seed : 0);
        }
        if (part == 2 && layout.scratch_bytes > 0) {
            layout.scratch = layout.bytes;
            layout.bytes += layout.scratch_bytes;
        }
    }
    return layout;
}

RpLayerLayout
rp_layer_layout(const RpWeights *weights, guint layer, RpDtype dtype, const RpLayerLayout *before)
{
    return layer_layout(weights, layer, dtype, FALSE, before);
}

RpLayerLayout
rp_layer_layout_of_fp8(const RpWeights *weights, guint layer, RpDtype dtype,
                       const RpLayerLayout *before)
{
    return layer_layout(weights, layer, dtype, TRUE, before);
}
