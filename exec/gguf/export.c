/* A model's file, or an adapter's. */
#include "exec/gguf/private.h"

/* general.file_type, of most of the matrices; and the version of the blocks' layout. */
static const guint8 file_types[RP_N_GGUF_TYPES] = {
    [RP_GGUF_F32] = 0,  [RP_GGUF_F16] = 1,  [RP_GGUF_BF16] = 32,
    [RP_GGUF_Q8_0] = 7, [RP_GGUF_Q4_0] = 2, [RP_GGUF_MXFP4] = 38,
};
#define BLOCKS_VERSION 2

static guint64
count_elements(const GArray *tensors)
{
    guint64 sum = 0;

    for (guint i = 0; i < tensors->len; i++) {
        const guint64 *shape = g_array_index(tensors, RpGgufTensor, i).shape;

        sum += shape[0] * shape[1] * shape[2];
    }
    return sum;
}

static gboolean
write_tensors(const RpWeights *weights, const GArray *tensors, RpGgufFile *file,
              const RpGgufOptions *options, GError **error)
{
    const guint64 total = count_elements(tensors);
    guint64 done = 0;

    for (guint i = 0; i < tensors->len; i++) {
        const RpGgufTensor *tensor = &g_array_index(tensors, RpGgufTensor, i);

        if (!rp_gguf_write_tensor(weights, tensor, file, error))
            return FALSE;
        done += tensor->shape[0] * tensor->shape[1] * tensor->shape[2];
        if (options->progress != NULL)
            options->progress(done, total, options->user_data);
    }
    return TRUE;
}

static void
add_general(RpGgufFile *file, const RpModel *model, const RpGgufOptions *options,
            gboolean is_adapter)
{
    rp_gguf_add_text(file, "general.architecture", rp_gguf_family(model)->name);
    rp_gguf_add_text(file, "general.type", is_adapter ? "adapter" : "model");
    rp_gguf_add_text(file, "general.name", options->name);
    rp_gguf_add_uint(file, "general.file_type", file_types[options->type]);
    rp_gguf_add_uint(file, "general.quantization_version", BLOCKS_VERSION);
}

/* Values that are not finite as they are written; of an adapter alone its own. */
static gboolean
check_finite(const RpWeights *weights, RpGgufType type, GError **error)
{
    const RpDtype dtype = type == RP_GGUF_F16 ? RP_DTYPE_FP16 : RP_DTYPE_FP32;

    return rp_weights_lora(weights) != NULL ? rp_weights_check_finite_trained(weights, error)
                                            : rp_weights_check_finite(weights, dtype, error);
}

gboolean
rp_gguf_write(const RpWeights *weights, const char *path, const RpGgufOptions *options,
              GError **error)
{
    const RpModel *model = rp_weights_model(weights);
    const gboolean is_adapter = rp_weights_lora(weights) != NULL;
    g_autoptr(RpGgufFile) file = rp_gguf_file_new();
    double alpha;

    if (!rp_gguf_check_model(model, error))
        return FALSE;
    g_autoptr(GArray) tensors = is_adapter
                                    ? rp_gguf_list_adapter(weights, options->type, &alpha, error)
                                    : rp_gguf_list_model(weights, options->type);
    if (tensors == NULL)
        return FALSE;
    add_general(file, model, options, is_adapter);
    if (is_adapter) {
        rp_gguf_add_text(file, "adapter.type", "lora");
        rp_gguf_add_float(file, "adapter.lora.alpha", alpha);
    } else {
        rp_gguf_add_model(file, model);
        if (!rp_gguf_add_tokenizer(file, model, options, error))
            return FALSE;
    }
    if (!check_finite(weights, options->type, error))
        return FALSE;
    for (guint i = 0; i < tensors->len; i++) {
        const RpGgufTensor *tensor = &g_array_index(tensors, RpGgufTensor, i);

        rp_gguf_add_tensor(file, tensor->name, tensor->type, tensor->shape, tensor->rank);
    }
    return rp_gguf_file_begin(file, path, error) &&
           write_tensors(weights, tensors, file, options, error) &&
           rp_gguf_file_finish(file, error);
}
