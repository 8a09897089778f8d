/* Times of answers in continuous batches. */
#include "tests/rp-test.h"

#include <math.h>

#include "core/catalogue/cost/decode.h"

static RpDecodePrediction
predict_on(const char *gpu, const char *model, guint slots, guint n, RpDecodeLengths each,
           guint64 tokens)
{
    g_autofree RpDecodeLengths *lengths = g_new(RpDecodeLengths, n);
    const RpDecodeQuery query = {.model = rp_model_find(model, NULL),
                                 .gpu = rp_gpu_find(gpu, NULL),
                                 .slots = slots,
                                 .begin_tokens = 2048,
                                 .tokens = tokens};

    for (guint i = 0; i < n; i++)
        lengths[i] = each;
    return rp_decode_predict(&query, lengths, n);
}

static RpDecodePrediction
predict(const char *model, guint slots, guint n, RpDecodeLengths each)
{
    return predict_on("h200", model, slots, n, each, G_MAXUINT64);
}

/* Measured on H200s with prompts of 128 tokens (docs/generate.md); 32 are those of one of two cards. */
RP_TEST(predicts_measured_rates_within_a_tenth)
{
    static const struct {
        guint n, answer;
        double tokens_per_s;
    } rows[] = {{1, 512, 658}, {32, 256, 10473}, {64, 512, 17497}, {256, 512, 25992}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        const RpDecodePrediction found =
            predict("qwen3-1.7b", rows[i].n, rows[i].n, (RpDecodeLengths){128, rows[i].answer});
        const double rate = (double)rows[i].answer * rows[i].n / found.seconds;

        assert_true(rate > 0.9 * rows[i].tokens_per_s && rate < 1.1 * rows[i].tokens_per_s);
    }
}

/* Weights alone, read for each token, and all that is added to them. */
RP_TEST(a_step_takes_longer_than_its_weights)
{
    const double least_ms = 2 * 8.19e9 / 4.8e12 * 1e3;
    const RpDecodePrediction dense = predict("qwen3-8b", 1, 1, (RpDecodeLengths){16, 64});

    assert_true(dense.step_ms > least_ms * 0.92 && dense.step_ms < 2 * least_ms);
    /* three of thirty billion parameters are read for one token, most of them for many */
    const RpDecodePrediction one = predict("qwen3-30b-a3b", 1, 1, (RpDecodeLengths){16, 64});
    const RpDecodePrediction many = predict("qwen3-30b-a3b", 64, 64, (RpDecodeLengths){16, 64});

    assert_true(one.step_ms < 2 * 30.5e9 / 4.8e12 * 1e3 && many.step_ms > 3 * one.step_ms);
}

/* A prompt is one call, and each of its further tokens. */
RP_TEST(a_call_takes_as_long_as_its_copies)
{
    const RpGpu *gpu = rp_gpu_find("rtx4090", NULL);
    const RpDecodeLengths each = {16, 64};
    RpDecodeQuery query = {.model = rp_model_find("qwen3-8b", NULL),
                           .gpu = gpu,
                           .slots = 1,
                           .begin_tokens = 2048,
                           .tokens = G_MAXUINT64};
    const double resident_s = rp_decode_predict(&query, &each, 1).seconds;

    query.streamed_bytes = 1;
    assert_true(rp_decode_predict(&query, &each, 1).seconds == resident_s);
    query.streamed_bytes = (guint64)10e9;
    assert_true(fabs(rp_decode_predict(&query, &each, 1).seconds - 64 * 10 / gpu->h2d_gb_per_s) <
                1e-9);
}

/* Longer sequences cost attention their keys, and DeltaNet only a quarter of the blocks. */
RP_TEST(longer_sequences_make_longer_steps)
{
    const RpDecodeLengths brief = {128, 64}, tall = {32768, 64};
    const double dense =
        predict("qwen3-1.7b", 8, 8, tall).step_ms / predict("qwen3-1.7b", 8, 8, brief).step_ms;
    const double delta =
        predict("qwen3.5-2b", 8, 8, tall).step_ms / predict("qwen3.5-2b", 8, 8, brief).step_ms;

    assert_true(dense > 3 && delta > 1.05 && delta < dense / 2);
}

/* Twice the prompts take twice as long where all slots are taken; half of the space, half of the answers at once. */
RP_TEST(prompts_wait_for_slots_and_space)
{
    const RpDecodeLengths each = {128, 512};
    const double once = predict("qwen3-1.7b", 64, 64, each).seconds;
    const double twice = predict("qwen3-1.7b", 64, 128, each).seconds;
    const double less = predict_on("h200", "qwen3-1.7b", 64, 64, each, 32 * 640).seconds;
    const double half = 2 * predict("qwen3-1.7b", 32, 32, each).seconds;

    assert_true(twice > 1.95 * once && twice < 2.1 * once);
    assert_true(less > 0.95 * half && less < 1.05 * half);
    assert_true(predict_on("rtx4090", "qwen3-1.7b", 64, 64, each, G_MAXUINT64).seconds > 2 * once);
    /* an answer of one token is its prompt */
    const RpDecodePrediction brief = predict("qwen3-1.7b", 4, 9, (RpDecodeLengths){100, 1});

    assert_true(brief.seconds > 0 && brief.seconds == brief.prefill_seconds);
}
