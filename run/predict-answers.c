#include "run/predict-answers.h"

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "run/devices.h"
#include "run/settings.h"

RpGpu *
rp_run_find_gpu(const char *word, GError **error)
{
    g_autofree char *here = word == NULL && rp_cuda_device_count() > 0
                                ? rp_run_device_kind(rp_cuda_devices(), 0, NULL)
                                : NULL;

    if (word != NULL || here != NULL)
        return rp_gpu_open(word != NULL ? word : here, error);
    (void)rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                  "--gpu: expected a name (`roundpipe gpus`), found nothing");
    return NULL;
}

/* Sizes of a device with @share prompts. */
static RpGeneratorSizes
find_sizes(const RpAnswersQuestion *question, guint share, guint64 memory)
{
    const RpDeviceOps *devices = rp_cuda_devices() != NULL ? rp_cuda_devices() : rp_host_devices();
    const RpModel *config = question->config;
    const RpLora none = {0};
    g_autoptr(RpWeights) weights = rp_weights_new_adapted(config, &none);
    const guint most = question->slots > 0 ? question->slots : RP_GENERATOR_MAX_SLOTS;
    RpGeneratorOptions options = {.slots = MIN(share, most), .memory_bytes = memory};
    guint prompt = 0, answer = 0;

    for (guint i = 0; i < question->n; i++) {
        prompt = MAX(prompt, question->lengths[i].n_prompt);
        answer = MAX(answer, question->lengths[i].n_answer);
    }
    options.tokens = prompt + answer;
    return rp_generator_sizes(config, weights, config->has_dtype ? config->dtype : RP_DTYPE_BF16,
                              devices->kernels(), &options);
}

gboolean
rp_run_predict_answers(const RpAnswersQuestion *question, RpAnswersPrediction *prediction,
                       GError **error)
{
    const RpGpu *gpu = question->gpu;
    const guint share = (question->n + question->devices - 1) / question->devices;
    g_autofree RpDecodeLengths *first = g_new(RpDecodeLengths, share);
    double tokens = 0;

    if (question->config->has_dtype && question->config->dtype == RP_DTYPE_FP32)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "times of fp32 are not predicted: expected a model in bf16 or fp16");
    for (guint i = 0; i < question->n; i++) {
        if (i % question->devices == 0)
            first[i / question->devices] = question->lengths[i];
        tokens += question->lengths[i].n_answer;
    }
    const guint64 card = rp_gpu_plan_bytes(gpu->memory_bytes);
    const guint64 memory = question->memory_bytes > 0 ? MIN(card, question->memory_bytes) : card;
    const RpGeneratorSizes sizes = find_sizes(question, share, memory);

    if (sizes.blocks == 0)
        return rp_fail(
            error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY,
            "GPU memory: layers, workspace and the cache of a sequence need %" G_GUINT64_FORMAT
            " bytes, of an %s there are %" G_GUINT64_FORMAT ": use more memory, or shorter answers",
            sizes.least_bytes, gpu->title, memory);
    const RpDecodeQuery query = {.model = question->config,
                                 .gpu = gpu,
                                 .slots = sizes.slots,
                                 .begin_tokens = sizes.begin_tokens,
                                 .tokens = (guint64)sizes.blocks * RP_CACHE_BLOCK,
                                 .streamed_bytes = sizes.streamed_bytes,
                                 .samples = question->samples};
    const RpDecodePrediction decode = rp_decode_predict(&query, first, share);

    *prediction = (RpAnswersPrediction){
        .decode = decode,
        .sizes = sizes,
        .cache_bytes = sizes.state_bytes + (sizes.blocks + 1) * sizes.block_bytes,
        .memory_bytes = memory,
        .tokens_per_s = tokens / decode.seconds,
        .at_once = MIN(sizes.slots, sizes.blocks / sizes.blocks_each)};
    return TRUE;
}
