/*
 * Packed weights: what has gone up becomes what layers read. Weights stand in the same order in both,
 * so those that are not packed are copied in runs:
 *
 *   upload       |norm|A|B|q packed|k packed|..|k_norm|q_norm|
 *   parameters   |norm|A|B|q         |k         |..|k_norm|q_norm|
 *                 --copy-- expand     expand        ----copy---
 */
#include "exec/network/private.h"

/* Neighbours in both. */
typedef struct {
    guint64 upload;
    guint64 byte;
    guint64 bytes; /* 0: none yet */
} Run;

typedef struct {
    const RpNetwork *network;
    RpKernelStream *stream;
    const guint8 *upload; /* of the layer */
    guint8 *parameters;
    Run run;
} Expansion;

static void
copy_run(Expansion *expansion)
{
    const Run *run = &expansion->run;

    if (run->bytes > 0) /* bytes of whatever storages: a plain copy */
        expansion->network->kernels->convert(
            expansion->stream, &(RpElementsArgs){.n = run->bytes / sizeof(guint16),
                                                 .x = expansion->upload + run->upload,
                                                 .y = expansion->parameters + run->byte,
                                                 .x_dtype = RP_DTYPE_BF16,
                                                 .y_dtype = RP_DTYPE_BF16});
    expansion->run.bytes = 0;
}

static void
add(Expansion *expansion, const RpWeightPlace *place)
{
    Run *run = &expansion->run;

    if (place->is_packed) {
        expansion->network->kernels->expand(
            expansion->stream, &(RpExpandArgs){.format = place->format,
                                               .dtype = place->storage,
                                               .shape = place->packed_shape,
                                               .packed = expansion->upload + place->upload,
                                               .y = expansion->parameters + place->byte});
        return;
    }
    if (run->bytes > 0 &&
        (run->upload + run->bytes != place->upload || run->byte + run->bytes != place->byte))
        copy_run(expansion);
    if (run->bytes == 0)
        *run = (Run){.upload = place->upload, .byte = place->byte};
    run->bytes += rp_layout_byte_room(place);
}

static void
expand_layer(Expansion *expansion, guint layer)
{
    const RpWeights *weights = expansion->network->weights;
    const RpLayerLayout *layout = &expansion->network->layers[layer].layout;
    guint first;
    const guint n = rp_weights_layer(weights, layer, &first);

    for (guint part = 0; part < RP_LAYOUT_PARTS; part++)
        for (guint i = first; i < first + n; i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);

            if (rp_layout_part(weight) == part && weight->offset == 0)
                add(expansion, &layout->place[weight->kind]);
        }
    copy_run(expansion);
}

void
rp_network_expand(const RpNetwork *network, RpKernelStream *stream, RpInterval layers,
                  const void *upload, void *parameters)
{
    g_return_if_fail(network && layers.count > 0 && upload && parameters);

    const RpLayerLayout *first = rp_network_layout(network, layers.first);

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpLayerLayout *layout = rp_network_layout(network, l);
        Expansion expansion = {
            .network = network,
            .stream = stream,
            .upload = (const guint8 *)upload + (layout->first_upload - first->first_upload),
            .parameters = (guint8 *)parameters + (layout->first_byte - first->first_byte)};

        expand_layer(&expansion, l);
    }
}
