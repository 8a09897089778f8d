/* Elements of weights, whichever form the checkpoint has them in. */
#include <math.h>

#include "exec/model/init.h"
#include "exec/model/weights-private.h"

/* Weights that no file has: they are made as they are read, the values that rp_init_write() writes. */

#define BLOCK 1024 /* elements that are rounded at a time */

/* Describes the tensors that a file of such a model would have, but for the data. */
static RpWeightOrigin *
describe(const RpWeights *weights, RpDtype dtype, GPtrArray *own)
{
    RpWeightOrigin *origins = g_new0(RpWeightOrigin, weights->list->len);

    for (guint i = 0; i < weights->list->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        RpSafetensor *tensor = g_new0(RpSafetensor, 1);

        *tensor = (RpSafetensor){.name = weight->name,
                                 .dtype_name = rp_dtype_safetensors_name(dtype),
                                 .supported = TRUE,
                                 .dtype = dtype,
                                 .rank = weight->rank,
                                 .elements = weight->elements,
                                 .bytes = weight->elements * rp_dtype_size(dtype)};
        memcpy(tensor->shape, weight->shape, weight->rank * sizeof *tensor->shape);
        g_ptr_array_add(own, tensor);
        origins[i].base = tensor;
    }
    return origins;
}

void
rp_weights_bind_random(RpWeights *weights, guint64 seed)
{
    g_return_if_fail(weights != NULL);

    GPtrArray *own = g_ptr_array_new_with_free_func(g_free);
    const RpDtype dtype = weights->model.has_dtype ? weights->model.dtype : RP_DTYPE_BF16;

    weights->seed = seed;
    rp_weights_take(weights, describe(weights, dtype, own), own, dtype);
}

/* rp_weights_read() of a weight that is made. */
static void
read_random(const RpWeights *weights, guint index, guint64 first, float *values, gsize n)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    guint8 stored[BLOCK * sizeof(float)];

    if (weight->tied)
        weight = rp_weights_nth(weights, 0);
    for (gsize done = 0, some; done < n; done += some) {
        some = MIN(n - done, BLOCK);
        rp_init_fill(&weights->model, weight, weights->seed, first + done, values + done, some);
        rp_dtype_from_float(weights->dtype, values + done, stored, some);
        rp_dtype_to_float(weights->dtype, stored, values + done, some);
    }
}

/* Reads a stack [E,in,out] that is packed as [E,out,in]: 16 bytes and a scale hold 32 inputs of an
 * output. It gives the values of rp_lowbit_expand(). */
static void
read_mxfp4(const RpLowbitSource *source, guint64 first, float *values, gsize n)
{
    static const float table[16] = {RP_MXFP4_VALUES};
    const guint8 *quantized = source->parts[RP_LOWBIT_QUANTIZED]->data;
    const guint8 *scales = source->parts[RP_LOWBIT_SCALES]->data;
    const guint64 out = source->shape[1], in = source->shape[2];
    const guint64 blocks = in / RP_MXFP4_BLOCK;

    for (gsize done = 0, run; done < n; done += run) {
        const guint64 at = first + done;
        const guint64 input = at / out % in;
        const guint64 row = at / (in * out) * out + at % out; /* the outputs follow one another */
        const guint64 block = row * blocks + input / RP_MXFP4_BLOCK;
        const guint shift = input % 2 * 4;
        const guint8 *two = quantized + block * (RP_MXFP4_BLOCK / 2) + input % RP_MXFP4_BLOCK / 2;
        const guint8 *scale = scales + block;

        run = (gsize)MIN(n - done, out - at % out);
        for (gsize i = 0; i < run; i++, two += blocks * (RP_MXFP4_BLOCK / 2), scale += blocks)
            values[done + i] =
                *scale == 255 ? NAN : ldexpf(table[*two >> shift & 15], (int)*scale - 127);
    }
}

/* A block that has one scale: @n values from element @begin of a row on, as a tensor of its own. */
static void
load_block(const RpLowbitSource *source, guint64 row, guint64 begin, gsize n, guint8 *packed)
{
    const RpLowbitShape shape = rp_lowbit_shape_of(source->shape, source->rank);
    const RpLowbitLayout to = rp_lowbit_layout(source->format, (RpLowbitShape){1, 1, n});
    const RpSafetensor *const *parts = source->parts;
    const guint8 *quantized = parts[RP_LOWBIT_QUANTIZED]->data;
    const guint8 *scales = parts[RP_LOWBIT_SCALES]->data;
    guint64 band;

    switch (source->format) {
    case RP_LOWBIT_NF4:
        memcpy(packed + to.at[RP_LOWBIT_NESTED_SCALES],
               (const guint8 *)parts[RP_LOWBIT_NESTED_SCALES]->data +
                   begin / RP_NF4_BLOCK / RP_NF4_NESTED_BLOCK * sizeof(float),
               sizeof(float));
        memcpy(packed + to.at[RP_LOWBIT_NESTED_MAP], parts[RP_LOWBIT_NESTED_MAP]->data,
               RP_NF4_MAP * sizeof(float));
        memcpy(packed + to.at[RP_LOWBIT_OFFSET], &source->offset, sizeof(float));
        packed[to.at[RP_LOWBIT_SCALES]] = scales[begin / RP_NF4_BLOCK];
        memcpy(packed + to.at[RP_LOWBIT_QUANTIZED], quantized + begin / 2, (n + 1) / 2);
        return;
    case RP_LOWBIT_NF4_SINGLE:
        memcpy(packed + to.at[RP_LOWBIT_SCALES], scales + begin / RP_NF4_BLOCK * sizeof(float),
               sizeof(float));
        memcpy(packed + to.at[RP_LOWBIT_QUANTIZED], quantized + begin / 2, (n + 1) / 2);
        return;
    case RP_LOWBIT_MXFP4:
        packed[to.at[RP_LOWBIT_SCALES]] = scales[(row * shape.columns + begin) / RP_MXFP4_BLOCK];
        memcpy(packed + to.at[RP_LOWBIT_QUANTIZED], quantized + (row * shape.columns + begin) / 2,
               n / 2);
        return;
    case RP_LOWBIT_FP8:
        band = row / shape.rows * ((shape.rows + RP_FP8_BLOCK - 1) / RP_FP8_BLOCK) +
               row % shape.rows / RP_FP8_BLOCK;
        band = band * ((shape.columns + RP_FP8_BLOCK - 1) / RP_FP8_BLOCK) + begin / RP_FP8_BLOCK;
        if (source->one_scale)
            band = 0;
        rp_dtype_to_float(parts[RP_LOWBIT_SCALES]->dtype,
                          scales + band * rp_dtype_size(parts[RP_LOWBIT_SCALES]->dtype),
                          (float *)(void *)(packed + to.at[RP_LOWBIT_SCALES]), 1);
        memcpy(packed + to.at[RP_LOWBIT_QUANTIZED], quantized + row * shape.columns + begin, n);
        return;
    }
}

/* Reads a packed weight: nf4's blocks are of the flat tensor, those of other formats of a row. */
static void
read_packed(const RpWeight *weight, const RpLowbitSource *source, guint64 first, float *values,
            gsize n)
{
    const RpLowbit format = source->n_pieces > 0 ? source->pieces->format : source->format;
    const gboolean flat = format == RP_LOWBIT_NF4 || format == RP_LOWBIT_NF4_SINGLE;
    const gsize block = flat                        ? RP_NF4_BLOCK
                        : format == RP_LOWBIT_MXFP4 ? RP_MXFP4_BLOCK
                                                    : RP_FP8_BLOCK;
    const RpLowbitShape most = {1, 1, block};
    g_autofree guint8 *packed = g_malloc(rp_lowbit_layout(format, most).total);

    for (gsize done = 0, run; done < n; done += run) {
        guint64 at = weight->offset + first + done;
        const RpLowbitSource *piece = rp_lowbit_source_piece(source, &at);
        const RpLowbitShape shape = rp_lowbit_shape_of(piece->shape, piece->rank);
        const guint64 columns = flat ? rp_lowbit_elements(shape) : shape.columns;
        const guint64 column = at % columns;
        const guint64 begin = column / block * block;
        const gsize width = (gsize)MIN(block, columns - begin);

        run = (gsize)MIN(n - done, begin + width - column);
        load_block(piece, at / columns, begin, width, packed);
        rp_lowbit_expand(format, (RpLowbitShape){1, 1, width}, packed, RP_DTYPE_FP32,
                         (gsize)(column - begin), run, values + done);
    }
}

/* Element (e, i, j) of a stack whose experts have tensors of their own; %NULL: a zero. */
static const void *
of_expert(const RpAdapterMap *map, const RpWeight *weight, guint64 e, guint64 i, guint64 j)
{
    const guint64 rows = weight->shape[1] / map->parts, part = i / rows;
    const RpSafetensor *tensor = map->tensors[e * map->parts + part];
    const guint64 columns = tensor->shape[1];
    const gsize size = rp_dtype_size(tensor->dtype);

    if (map->side == RP_ADAPTER_B && j / columns != part)
        return NULL;
    return (const guint8 *)tensor->data + (i % rows * columns + j % columns) * size;
}

static void
read_mapped(const RpAdapterMap *map, const RpWeight *weight, guint64 first, float *values, gsize n)
{
    const RpSafetensor *tensor = map->tensors[0];
    const gsize size = rp_dtype_size(tensor->dtype);

    for (gsize k = 0; k < n; k++) {
        const guint64 at = first + k, j = at % weight->shape[2];
        const guint64 i = at / weight->shape[2] % weight->shape[1];
        const guint64 e = at / weight->shape[2] / weight->shape[1];
        const void *place =
            map->parts > 0
                ? of_expert(map, weight, e, i, j)
                : (const guint8 *)tensor->data +
                      (e * map->stride[0] + i * map->stride[1] + j * map->stride[2]) * size;

        values[k] = 0;
        if (place != NULL)
            rp_dtype_to_float(tensor->dtype, place, &values[k], 1);
    }
}

void
rp_weights_read(const RpWeights *weights, guint index, guint64 first, float *values, gsize n)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpWeightOrigin origin = rp_weights_origin(weights, index);
    const RpSafetensor *tensor = origin.tensor;

    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);
    if (origin.map != NULL)
        read_mapped(origin.map, weight, first, values, n);
    else if (origin.packed != NULL && weight->transposed &&
             origin.packed->format == RP_LOWBIT_MXFP4)
        read_mxfp4(origin.packed, first, values, n);
    else if (origin.packed != NULL)
        read_packed(weight, origin.packed, first, values, n);
    else if (tensor != NULL)
        rp_dtype_to_float(tensor->dtype,
                          (const guint8 *)tensor->data + first * rp_dtype_size(tensor->dtype),
                          values, n);
    else if (rp_weight_is_adapter(weight->kind))
        rp_init_fill(&weights->model, weight, weights->lora.seed, first, values, n);
    else
        read_random(weights, index, first, values, n);
}

void
rp_weights_read_as(const RpWeights *weights, guint index, RpDtype dtype, guint64 first, void *at,
                   gsize n)
{
    const RpWeightOrigin origin = rp_weights_origin(weights, index);
    const gsize size = rp_dtype_size(dtype);
    float values[BLOCK];

    if (origin.map == NULL && origin.packed == NULL && origin.tensor != NULL &&
        origin.tensor->dtype == dtype) {
        memcpy(at, (const guint8 *)origin.tensor->data + first * size, n * size);
        return;
    }
    for (gsize done = 0, some; done < n; done += some) {
        some = MIN(n - done, BLOCK);
        rp_weights_read(weights, index, first + done, values, some);
        rp_dtype_from_float(dtype, values, (guint8 *)at + done * size, some);
    }
}
