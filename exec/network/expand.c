/*
 * Expands packed weights, and quantizes weights to fp8: makes the parameters that layers read of the upload. Weights
 * stand in the same order in both, so those that are not packed are copied in runs. Resident weights are read where
 * they are:
 *
 *   upload       |norm|A|B|q packed|k packed|..|k_norm|q_norm|
 *   parameters   |norm|A|B|q         |k         |..|k_norm|q_norm|
 *                 --copy-- expand     expand        ----copy---
 *
 * Where layers read fp8 values, a matrix is quantized from the upload; a packed one is first expanded in the layer's
 * scratch buffer, unless it is in fp8 with one scale.
 */
#include "exec/network/private.h"

/* Neighbours in both. */
typedef struct {
    const guint8 *from;
    guint64 byte;
    guint64 bytes; /* 0: none yet */
} Run;

typedef struct {
    const RpNetwork *network;
    RpKernelStream *stream;
    const guint8 *upload; /* the layer's */
    const guint8 *frozen; /* the same, or the resident weights */
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
                                                 .x = run->from,
                                                 .y = expansion->parameters + run->byte,
                                                 .x_dtype = RP_DTYPE_BF16,
                                                 .y_dtype = RP_DTYPE_BF16});
    expansion->run.bytes = 0;
}

static void
unpack(const Expansion *expansion, const RpWeightPlace *place, const void *from, void *to)
{
    expansion->network->kernels->expand(expansion->stream,
                                        &(RpExpandArgs){.format = place->format,
                                                        .dtype = place->storage,
                                                        .shape = place->packed_shape,
                                                        .packed = from,
                                                        .y = to});
}

/* Fp8 values of a matrix, transposed ones, amax and scale. */
static void
encode(const Expansion *expansion, const RpLayerLayout *layout, const RpWeightPlace *place,
       const guint8 *from)
{
    const RpKernels *kernels = expansion->network->kernels;
    const gsize scales = rp_lowbit_layout(place->format, place->packed_shape).at[RP_LOWBIT_SCALES];
    guint8 *quantized = expansion->parameters + place->byte;
    float *scale_slots = (float *)(void *)(quantized + rp_fp8_scales_byte(place));
    const gsize n = rp_fp8_transposed_byte(place);
    RpQuantiseArgs quantise = {.dtype = place->storage,
                               .code = RP_DTYPE_E4M3,
                               .rows = place->code_rows,
                               .columns = place->shape[1],
                               .x = from,
                               .largest = scale_slots,
                               .quantized = quantized,
                               .transposed = quantized + n,
                               .scale = scale_slots + RP_SCALE_SLOT_SCALE};

    if (place->as_is) {
        quantise.dtype = RP_DTYPE_E4M3;
        quantise.largest = (const float *)(const void *)(from + scales);
        kernels->quantise(expansion->stream, &quantise);
        return;
    }
    if (place->is_packed) {
        quantise.x = expansion->parameters + layout->scratch;
        unpack(expansion, place, from, expansion->parameters + layout->scratch);
    }
    kernels->fill(expansion->stream,
                  &(RpFillArgs){.dtype = RP_DTYPE_FP32, .n = 1, .x = scale_slots});
    kernels->largest(expansion->stream,
                     &(RpLargestArgs){place->storage, n, quantise.x, scale_slots});
    kernels->quantise(expansion->stream, &quantise);
}

static void
add(Expansion *expansion, const RpLayerLayout *layout, const RpWeightPlace *place)
{
    Run *run = &expansion->run;
    const guint8 *from =
        (place->element != RP_LAYOUT_NONE ? expansion->upload : expansion->frozen) + place->upload;

    if (place->has_fp8) {
        if (place->code_rows > 0)
            encode(expansion, layout, place, from);
        return;
    }
    if (place->is_packed) {
        unpack(expansion, place, from, expansion->parameters + place->byte);
        return;
    }
    if (run->bytes > 0 && (run->from + run->bytes != from || run->byte + run->bytes != place->byte))
        copy_run(expansion);
    if (run->bytes == 0)
        *run = (Run){.from = from, .byte = place->byte};
    run->bytes += rp_layout_byte_capacity(place);
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
                add(expansion, layout, &layout->place[weight->kind]);
        }
    copy_run(expansion);
}

void
rp_network_expand(const RpNetwork *network, RpKernelStream *stream, RpInterval layers,
                  const void *upload, RpResidents residents, void *parameters)
{
    g_return_if_fail(network != NULL && layers.count > 0 && parameters != NULL);
    g_return_if_fail(upload != NULL || residents.first != NULL);

    const RpLayerLayout *first = rp_network_layout(network, layers.first);

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpLayerLayout *layout = rp_network_layout(network, l);
        const guintptr begin = (guintptr)upload +
                               rp_residents_first(&residents, l, layout->first_upload) -
                               rp_residents_first(&residents, layers.first, first->first_upload);
        Expansion expansion = {
            .network = network,
            .stream = stream,
            .upload = (const guint8 *)begin,
            .frozen = (const guint8 *)rp_residents_frozen(&residents, l, layout, begin),
            .parameters = (guint8 *)parameters + (layout->first_byte - first->first_byte)};

        expand_layer(&expansion, l);
    }
}
