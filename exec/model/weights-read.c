/* Elements of weights, whichever form the checkpoint has them in. */
#include "exec/model/init.h"
#include "exec/model/weights-private.h"

#include <math.h>

/* Of a stack [E,in,out] that is packed as [E,out,in]: 16 bytes and a scale hold 32 of an output's
 * inputs. Value for value what rp_lowbit_expand() makes of it. */
static void
read_mxfp4(const RpLowbitSource *source, guint64 first, float *values, gsize n)
{
    static const float table[16] = {RP_MXFP4_VALUES};
    const guint8 *codes = source->parts[RP_LOWBIT_CODES]->data;
    const guint8 *scales = source->parts[RP_LOWBIT_SCALES]->data;
    const guint64 out = source->shape[1], in = source->shape[2];
    const guint64 blocks = in / RP_MXFP4_BLOCK;

    for (gsize done = 0, run; done < n; done += run) {
        const guint64 at = first + done;
        const guint64 input = at / out % in;
        const guint64 row = at / (in * out) * out + at % out; /* the outputs follow one another */
        const guint64 block = row * blocks + input / RP_MXFP4_BLOCK;
        const guint shift = input % 2 * 4;
        const guint8 *two = codes + block * (RP_MXFP4_BLOCK / 2) + input % RP_MXFP4_BLOCK / 2;
        const guint8 *scale = scales + block;

        run = (gsize)MIN(n - done, out - at % out);
        for (gsize i = 0; i < run; i++, two += blocks * (RP_MXFP4_BLOCK / 2), scale += blocks)
            values[done + i] =
                *scale == 255 ? NAN : ldexpf(table[*two >> shift & 15], (int)*scale - 127);
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
    const RpSafetensor *source = rp_weights_source(weights, index);
    const RpLowbitSource *packed = rp_weights_packed(weights, index);

    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);
    g_return_if_fail(!weight->is_packed);
    if (rp_weights_map(weights, index) != NULL)
        read_mapped(rp_weights_map(weights, index), weight, first, values, n);
    else if (packed != NULL)
        read_mxfp4(packed, first, values, n);
    else if (source != NULL)
        rp_dtype_to_float(source->dtype,
                          (const guint8 *)source->data + first * rp_dtype_size(source->dtype),
                          values, n);
    else
        rp_init_fill(&weights->model, weight, weights->lora.seed, first, values, n);
}
