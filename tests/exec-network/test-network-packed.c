/*
 * Tests samples that share a sequence against each sample alone: losses, gradients, and that a
 * sample does not see the others.
 *
 *   packed    |a a a a a a a b b b b b|c c c c c c c c c d - -|
 *   alone     |a a a a a a a - - - - -|b b b b b - ...|c ...|d - - ...
 */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

#define S 12
#define N_SAMPLES 4

static const guint lengths[N_SAMPLES] = {7, 5, 9, 1};
static const gint32 starts[] = {0, 7, 12, 21, 22, 24}; /* the last is padding */
#define N_STARTS (G_N_ELEMENTS(starts) - 1)

static RpModel
sliding(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_MISTRAL, FALSE);

    config.sliding_window = 4;
    return config;
}

/* Sinks, windows in every second block, biases, experts. */
static RpModel
gpt_oss(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_GPT_OSS, FALSE);

    config.attention_bias = config.mlp_bias = TRUE;
    config.experts = 4;
    config.active_experts = 2;
    config.norm_topk = TRUE;
    config.swiglu_alpha = 1.702;
    config.swiglu_limit = 7;
    config.sliding_window = 3;
    config.sliding_period = 2;
    return config;
}

static RpModel
qwen3_moe(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3_MOE, FALSE);

    config.experts = 5;
    config.active_experts = 2;
    config.norm_topk = TRUE;
    return config;
}

static RpModel
qwen3_5_moe(void)
{
    RpModel config = network_config_qwen3_5();

    config.architecture = RP_ARCHITECTURE_QWEN3_5_MOE;
    config.experts = 4;
    config.active_experts = 2;
    config.shared_intermediate = 9;
    config.norm_topk = TRUE;
    return config;
}

/* Its length rule goes by the sequence, packed or not. */
static RpModel
dynamic(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_LLAMA, TRUE);

    config.rope.type = RP_ROPE_DYNAMIC;
    config.rope.factor = 2;
    config.rope.original_max_positions = 8;
    return config;
}

static RpModel
longrope(void)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);

    config.rope.type = RP_ROPE_LONGROPE;
    config.rope.original_max_positions = 8;
    config.rope.attention_factor = 1.1;
    for (guint i = 0; i < 3; i++) {
        config.rope.short_factor[i] = 1 + 0.1f * (float)i;
        config.rope.long_factor[i] = 2 + 0.3f * (float)i;
    }
    return config;
}

static RpModel
dense(void)
{
    return network_config(RP_ARCHITECTURE_QWEN3, TRUE);
}

static RpModel (*const configs[])(void) = {
    dense, sliding, gpt_oss, qwen3_moe, network_config_qwen3_5, qwen3_5_moe, dynamic, longrope};

/* @shared: (nullable): tokens that samples share with the one before */
static void
set_places(Model *model, const guint32 *shared)
{
    g_autofree gint32 *places = g_new(gint32, 2 * model->tokens + 1);
    const gsize n = rp_network_places(model->network, NULL, starts, shared, N_STARTS, places);

    assert_int_equal(n, model->tokens + N_STARTS + 1 + (shared != NULL ? 2 * N_STARTS - 3 : 0));
    assert_true(rp_network_places_byte(model->network) + n * sizeof *places <=
                rp_network_constant_bytes(model->network));
    memcpy(model->constants + rp_network_places_byte(model->network), places, n * sizeof *places);
    model->n_samples = N_STARTS - (shared != NULL);
    model->has_gaps = shared != NULL;
    model->longest = shared != NULL ? 12 : 9;
}

/* Random ids and targets, as a batcher leaves them: none across samples, none of padding. */
static Model *
packed_model(const RpModel *config, RpDtype dtype, const guint32 *shared)
{
    const RpNetworkOptions options = {
        .dtype = dtype, .sequences = 2, .tokens = S, .head_chunk = 7, .packed_tokens = 6};
    Model *model = network_random(config, &options);

    for (guint i = 0; i < N_STARTS; i++)
        model->targets[starts[i + 1] - 1] = RP_LABEL_MASKED;
    model->targets[22] = RP_LABEL_MASKED;
    set_places(model, shared);
    model->scale = 1;
    return model;
}

/* The same samples, each in a sequence of its own. Nothing is learned of shared tokens there. */
static Model *
model_of_each_alone(const RpModel *config, const Model *packed, RpDtype dtype,
                    const guint32 *shared)
{
    const RpNetworkOptions options = {
        .dtype = dtype, .sequences = N_SAMPLES, .tokens = S, .head_chunk = 7};
    Model *model = network_random(config, &options);

    for (guint i = 0; i < N_SAMPLES; i++) {
        const guint first = i * S + (shared != NULL ? shared[i] : 0);

        for (guint t = 0; t < S; t++) {
            model->ids[i * S + t] = 0;
            model->targets[i * S + t] = RP_LABEL_MASKED;
        }
        if (first > i * S)
            memcpy(model->ids + i * S, packed->ids + starts[i - 1], shared[i] * sizeof(gint32));
        memcpy(model->ids + first, packed->ids + starts[i], lengths[i] * sizeof(gint32));
        memcpy(model->targets + first, packed->targets + starts[i], lengths[i] * sizeof(gint32));
    }
    model->scale = 1;
    return model;
}

/* The order of sums differs, so fp32 leaves some 1e-6 of a gradient; bf16 rounds the outputs of
 * matmuls, whose last bits then differ, to 8 bits. */
static void
assert_same_gradients(const RpModel *config, RpDtype dtype, const guint32 *shared,
                      double loss_error, double error)
{
    Model *packed = packed_model(config, dtype, shared);
    Model *alone = model_of_each_alone(config, packed, dtype, shared);
    const Run one = network_whole(packed), each = network_whole(alone);

    if (!(fabs(one.loss / each.loss - 1) <= loss_error))
        fail_msg("loss %.9g packed, %.9g alone", one.loss, each.loss);
    for (guint i = 0; i < rp_weights_count(packed->weights); i++) {
        const RpWeight *weight = rp_weights_nth(packed->weights, i);
        const double found = network_error(network_gradient(packed, &one, i),
                                           network_gradient(alone, &each, i), weight->elements);

        if (!(found <= error))
            fail_msg("%s: gradients differ by %.3g", weight->name, found);
    }
    network_free(packed);
    network_free(alone);
}

RP_TEST(has_the_gradients_of_each_sample_alone)
{
    for (guint c = 0; c < G_N_ELEMENTS(configs); c++) {
        const RpModel config = configs[c]();

        assert_same_gradients(&config, RP_DTYPE_FP32, NULL, 1e-6, 1e-5);
    }
}

/* The second sample begins with three tokens of the first. */
RP_TEST(has_them_with_two_samples_behind_one_prompt)
{
    static RpModel (*const some[])(void) = {dense, qwen3_moe, dynamic, longrope};
    static const guint32 shared[N_STARTS] = {0, 3};

    for (guint c = 0; c < G_N_ELEMENTS(some); c++) {
        const RpModel config = some[c]();

        assert_same_gradients(&config, RP_DTYPE_FP32, shared, 1e-6, 1e-5);
        assert_same_gradients(&config, RP_DTYPE_BF16, shared, 1e-3, 0.02);
    }
}

RP_TEST(has_them_in_16_bits)
{
    const RpModel config = dense(), windows = sliding();

    assert_same_gradients(&config, RP_DTYPE_BF16, NULL, 1e-3, 0.02);
    assert_same_gradients(&windows, RP_DTYPE_BF16, NULL, 1e-3, 0.02);
}

/* Only sample @sample is learned, the others have other tokens each time. Bits stay, but those of experts on
 * the host: other tokens are routed elsewhere, and OpenBLAS may round a row otherwise in a matrix of other
 * rows (some processors), which DeltaNet passes on to later tokens. */
static void
assert_blind(const RpModel *config, guint sample)
{
    Model *model = packed_model(config, RP_DTYPE_FP32, NULL);
    g_autoptr(GRand) random = g_rand_new_with_seed(4);
    const double error = config->experts <= 1 ? 0 : config->full_period > 0 ? 2e-7 : 1e-7;
    double loss = 0;

    for (gint32 t = 0; t < (gint32)model->tokens; t++)
        if (t < starts[sample] || t >= starts[sample + 1])
            model->targets[t] = RP_LABEL_MASKED;
    for (guint i = 0; i < 4; i++) {
        const Run run = network_whole(model);

        if (i == 0)
            loss = run.loss;
        assert_true(loss > 0);
        if (!(fabs(run.loss - loss) <= error * loss))
            fail_msg("sample %u: loss %.17g became %.17g", sample, loss, run.loss);
        for (gint32 t = 0; t < (gint32)model->tokens; t++)
            if (t < starts[sample] || t >= starts[sample + 1])
                model->ids[t] = g_rand_int_range(random, 0, (gint32)config->vocab);
    }
    network_free(model);
}

RP_TEST(sees_no_token_of_another_sample)
{
    for (guint c = 0; c < G_N_ELEMENTS(configs); c++) {
        const RpModel config = configs[c]();

        for (guint sample = 0; sample < 3; sample++)
            assert_blind(&config, sample);
    }
}

/* A test of the test: where all is one sample, tokens do see those before them. */
RP_TEST(would_see_them_without_starts)
{
    const RpModel config = dense();
    const RpNetworkOptions options = {
        .dtype = RP_DTYPE_FP32, .sequences = 2, .tokens = S, .head_chunk = 7};
    Model *model = network_random(&config, &options);

    for (guint t = 0; t < 2 * S; t++)
        if (t < 7 || t >= 12)
            model->targets[t] = RP_LABEL_MASKED;
    const double before = network_whole(model).loss;
    model->ids[0] = (model->ids[0] + 1) % 41;
    assert_true(network_whole(model).loss != before);
    network_free(model);
}

/* Places of whole sequences are the same bytes, and so are the results. */
RP_TEST(is_the_same_where_samples_fill_sequences)
{
    const RpModel config = sliding();
    RpNetworkOptions options = {
        .dtype = RP_DTYPE_FP32, .sequences = 2, .tokens = S, .head_chunk = 7};
    Model *model = network_random(&config, &options);

    options.packed_tokens = S;
    Model *packed = network_random(&config, &options);
    const Run expected = network_whole(model), typical = network_whole(packed);
    assert_memory_equal(typical.sums, expected.sums, model->elements * sizeof(float));
    assert_memory_equal(&typical.loss, &expected.loss, sizeof(double));
    const gint32 whole[] = {0, S, 2 * S};
    g_autofree gint32 *places = g_new(gint32, 4 * S + 1);
    const gsize n = rp_network_places(packed->network, NULL, whole, NULL, 2, places);
    memcpy(packed->constants + rp_network_places_byte(packed->network), places, n * sizeof *places);
    packed->n_samples = 2;
    packed->longest = S;
    const Run given = network_whole(packed);
    assert_memory_equal(given.sums, expected.sums, model->elements * sizeof(float));
    network_free(model);
    network_free(packed);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
