/* Weights that no file has: they are made as they are read, the values that rp_init_write() writes. */
#include "exec/model/init.h"
#include "exec/model/weights-private.h"

#define BLOCK 1024 /* elements that are rounded at a time */

/* Describes the tensors that a file of such a model would have, but for the data. */
static const RpSafetensor **
describe(const RpWeights *weights, RpDtype dtype, GPtrArray *own)
{
    const RpSafetensor **base = g_new0(const RpSafetensor *, weights->list->len);

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
        base[i] = tensor;
    }
    return base;
}

void
rp_weights_bind_random(RpWeights *weights, guint64 seed)
{
    g_return_if_fail(weights != NULL);

    const guint n = weights->list->len;
    GPtrArray *own = g_ptr_array_new_with_free_func(g_free);
    const RpDtype dtype = weights->model.has_dtype ? weights->model.dtype : RP_DTYPE_BF16;

    weights->seed = seed;
    rp_weights_take(weights, g_new0(const RpSafetensor *, n), g_new0(RpLowbitSource *, n),
                    describe(weights, dtype, own), own, dtype);
}

void
rp_weights_read_random(const RpWeights *weights, guint index, guint64 first, float *values, gsize n)
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
