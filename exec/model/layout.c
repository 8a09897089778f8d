#include "exec/model/layout.h"

#include "core/base/units.h"

guint64
rp_layout_room(const RpWeight *weight)
{
    return rp_align_up(weight->elements, RP_LAYOUT_ALIGNMENT);
}

static void
add(RpLayerLayout *layout, const RpWeight *weight, RpDtype dtype)
{
    const RpDtype storage = weight->trained ? dtype : weight->storage;
    const guint64 room = rp_layout_room(weight);
    const guint64 bytes = room * rp_dtype_size(storage);

    layout->place[weight->kind] =
        (RpWeightPlace){storage,
                        layout->bytes,
                        weight->trained ? layout->elements : RP_LAYOUT_NONE,
                        {weight->shape[0], weight->shape[1]}};
    layout->bytes += bytes;
    layout->elements += weight->trained ? room : 0;
    if (weight->tied) {
        layout->tied_bytes = bytes;
        layout->tied_elements = weight->trained ? room : 0;
    } else if (!weight->trained) {
        layout->frozen_bytes += bytes;
    }
}

RpLayerLayout
rp_layer_layout(const RpWeights *weights, guint layer, RpDtype dtype, const RpLayerLayout *before)
{
    RpLayerLayout layout = {.first_byte = before != NULL ? before->first_byte + before->bytes : 0,
                            .first_element =
                                before != NULL ? before->first_element + before->elements : 0};
    guint first;
    guint n;

    for (guint kind = 0; kind < RP_N_WEIGHT_KINDS; kind++)
        layout.place[kind] = (RpWeightPlace){dtype, RP_LAYOUT_NONE, RP_LAYOUT_NONE, {0}};
    g_return_val_if_fail(weights && layer < rp_weights_n_layers(weights), layout);

    n = rp_weights_layer(weights, layer, &first);
    for (guint part = 0; part < 3; part++)
        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);

            if (part == (weight->tied ? 2 : weight->trained ? 0 : 1))
                add(&layout, weight, dtype);
        }
    return layout;
}
