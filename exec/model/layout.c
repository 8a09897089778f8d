#include "exec/model/layout.h"

#include "core/base/units.h"

RpLayerLayout
rp_layer_layout(const RpWeights *weights, guint layer)
{
    RpLayerLayout layout = {0};
    guint first;
    guint n;

    for (guint kind = 0; kind < RP_N_WEIGHT_KINDS; kind++)
        layout.offset[kind] = RP_LAYOUT_NONE;
    g_return_val_if_fail(weights && layer < rp_weights_n_layers(weights), layout);

    n = rp_weights_layer(weights, layer, &first);
    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const guint64 room = rp_align_up(weight->elements, RP_LAYOUT_ALIGNMENT);

        layout.offset[weight->kind] = layout.elements;
        layout.elements += room;
        g_assert(layout.tied_elements == 0); /* a tied matrix is the last */
        if (weight->tied)
            layout.tied_elements = room;
    }
    return layout;
}
