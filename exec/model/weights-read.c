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

void
rp_weights_read(const RpWeights *weights, guint index, guint64 first, float *values, gsize n)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpSafetensor *source = rp_weights_source(weights, index);
    const RpLowbitSource *packed = rp_weights_packed(weights, index);

    g_return_if_fail(first <= weight->elements && n <= weight->elements - first);
    g_return_if_fail(!weight->is_packed);
    if (packed != NULL)
        read_mxfp4(packed, first, values, n);
    else if (source != NULL)
        rp_dtype_to_float(source->dtype,
                          (const guint8 *)source->data + first * rp_dtype_size(source->dtype),
                          values, n);
    else
        rp_init_fill(&weights->model, weight, weights->lora.seed, first, values, n);
}
