/* Adapters in layers: gradients against differences of the loss, dropout, needless work. */
#include "tests/exec-network/network-fixture.h"

#include <math.h>

static const RpNetworkOptions options = {
    .dtype = RP_DTYPE_FP32, .sequences = 2, .tokens = 9, .head_chunk = 7};

/* The loss with weight @index moved by @by along @direction. */
static double
moved_loss(Model *model, guint index, const float *values, const float *direction, double by)
{
    const guint64 n = rp_weights_nth(model->weights, index)->elements;
    float *moved = host_bytes(n * sizeof *moved);

    for (guint64 i = 0; i < n; i++)
        moved[i] = (float)((double)values[i] + by * (double)direction[i]);
    network_set_weight(model, index, moved);
    const Run run = network_whole(model);
    network_set_weight(model, index, values);
    return run.loss * (double)model->scale;
}

static double
slope(Model *model, guint index, const float *values, const float *direction, double step)
{
    return (moved_loss(model, index, values, direction, step) -
            moved_loss(model, index, values, direction, -step)) /
           (2 * step);
}

/* Checks a trained weight's gradient: along it the loss's slope is the gradient's length. Two steps
 * cancel the error that goes with their square (Richardson). */
static void
check_difference(Model *model, const Run *run, guint index)
{
    const RpWeight *weight = rp_weights_nth(model->weights, index);
    const RpLayerLayout *layout = rp_network_layout(model->network, weight->layer);
    const float *gradient = network_gradient(model, run, index);
    float *values = host_bytes(weight->elements * sizeof *values);
    float *direction = host_bytes(weight->elements * sizeof *direction);
    double length = 0;

    memcpy(values, model->parameters + layout->first_byte + layout->place[weight->kind].byte,
           weight->elements * sizeof *values);
    for (guint64 i = 0; i < weight->elements; i++)
        length += (double)gradient[i] * (double)gradient[i];
    length = sqrt(length);
    assert_true(length > 1e-4);
    for (guint64 i = 0; i < weight->elements; i++)
        direction[i] = (float)((double)gradient[i] / length);
    const double step = fmin(0.002, 0.004 / length);
    const double difference = (4 * slope(model, index, values, direction, step) -
                               slope(model, index, values, direction, 2 * step)) /
                              3;
    if (!(fabs(difference - length) <= 1e-3 * length + 1e-4))
        fail_msg("%s: gradient %.6g, differences %.6g", weight->name, length, difference);
}

static void
check_differences(RpModel config, const RpLora *lora)
{
    Model *model = network_random_adapted(&config, lora, &options);
    guint n = 0;

    model->drops = TRUE;
    const Run run = network_whole(model);
    for (guint i = 0; i < rp_weights_count(model->weights); i++) {
        if (!rp_weight_has_state(rp_weights_nth(model->weights, i)))
            continue;
        check_difference(model, &run, i);
        n++;
    }
    assert_true(n > 10);
    network_free(model);
}

RP_TEST(gradients_are_differences_of_the_loss)
{
    char norm[] = "norm", *saved[] = {norm, NULL};
    const RpLora lora = {.rank = 3, .alpha = 4, .saved = saved};
    const RpLora other = {.rank = 5, .alpha = 9, .rslora = TRUE, .dropout = 0.3, .seed = 5};

    const RpLora joined = {.rank = 4, .alpha = 6};

    check_differences(network_config(RP_ARCHITECTURE_QWEN3, FALSE), &lora);
    check_differences(network_config(RP_ARCHITECTURE_QWEN3, FALSE), &other);
    check_differences(network_config(RP_ARCHITECTURE_LLAMA, FALSE), &other);
    check_differences(network_config_fused(), &joined);
}

/* Adapters whose A [4,16] stand one behind the other; with dropout, which drops nothing here, each is by itself. */
static void
check_joined(const RpModel *config)
{
    const RpLora joined = {.rank = 4, .alpha = 6}, apart = {.rank = 4, .alpha = 6, .dropout = 0.5};
    Model *one = network_random_adapted(config, &joined, &options);
    Model *other = network_random_adapted(config, &apart, &options);
    const Run got = network_whole(one), want = network_whole(other);

    assert_true(fabs(got.loss - want.loss) <= 1e-6 * want.loss);
    assert_true(network_error(got.sums, want.sums, one->elements) < 2e-6);
    for (guint cut = 0; cut < 8; cut++) {
        const Run run = network_cut(one, cut, 7 - cut);

        assert_true(run.loss == got.loss);
        assert_memory_equal(run.sums, got.sums, one->elements * sizeof(float));
    }
    network_free(one);
    network_free(other);
}

RP_TEST(computes_joined_layers_as_it_does_apart)
{
    const RpModel config = network_config_fused();

    check_joined(&config);
}

/* DeltaNet and gated attention have inputs whose outputs stand apart. */
RP_TEST(computes_joined_adapters_as_it_does_apart)
{
    RpModel config = network_config_qwen3_5();

    config.hidden = 16;
    check_joined(&config);
}

RP_TEST(drops_the_same_however_the_model_is_cut)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpLora lora = {.rank = 3, .alpha = 4, .dropout = 0.4};
    Model *model = network_random_adapted(&config, &lora, &options);

    model->drops = TRUE;
    const Run run = network_whole(model);
    for (guint backward = 0; backward < 8; backward++)
        for (guint forward = 0; forward < 8; forward++) {
            const Run cut = network_cut(model, forward, backward);

            assert_true(cut.loss == run.loss);
            assert_memory_equal(cut.sums, run.sums, model->elements * sizeof(float));
        }
    network_free(model);
}

/* A tile drops the elements that its rows drop in the whole. */
RP_TEST(drops_the_same_in_tiles)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpLora lora = {.rank = 3, .alpha = 4, .dropout = 0.4};
    RpNetworkOptions tiles = options;
    Model *whole = network_random_adapted(&config, &lora, &options), *tiled;

    tiles.mlp_tile = 5;
    tiled = network_random_adapted(&config, &lora, &tiles);
    whole->drops = tiled->drops = TRUE;
    const Run expected = network_whole(whole), run = network_whole(tiled);

    assert_true(fabs(run.loss - expected.loss) <= 1e-6 * expected.loss);
    assert_true(network_error(run.sums, expected.sums, whole->elements) < 2e-6);
    network_free(whole);
    network_free(tiled);
}

static double
loss_of(const RpModel *config, const RpLora *lora, gboolean drops)
{
    Model *model = network_random_adapted(config, lora, &options);

    model->drops = drops;
    const Run run = network_whole(model);
    network_free(model);
    return run.loss;
}

RP_TEST(drops_by_seed_and_in_training_alone)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    RpLora lora = {.rank = 3, .alpha = 4};
    const double plain = loss_of(&config, &lora, TRUE);

    lora.dropout = 0.4;
    const double dropped = loss_of(&config, &lora, TRUE);
    assert_true(loss_of(&config, &lora, FALSE) == plain);
    assert_true(dropped != plain);
    assert_true(loss_of(&config, &lora, TRUE) == dropped);
    lora.seed++;
    assert_true(loss_of(&config, &lora, TRUE) != dropped);
}

/* ---- noise ---- */

static double
padded_loss(const RpModel *config, const RpNetworkOptions *noisy, gboolean drops, guint padded)
{
    const RpLora lora = {.rank = 3, .alpha = 4};
    Model *model = network_random_adapted(config, &lora, noisy);

    model->drops = drops;
    model->padded = padded;
    const Run run = network_whole(model);
    network_free(model);
    return run.loss;
}

static double
noisy_loss(const RpModel *config, const RpNetworkOptions *noisy, gboolean drops)
{
    return padded_loss(config, noisy, drops, 0);
}

/* As in trl, noise is three times as large in a micro-batch whose longest sequence has a ninth of the tokens. */
RP_TEST(noise_follows_from_the_longest_sequence)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    RpNetworkOptions noisy = options;

    assert_int_equal(options.tokens, 9);
    noisy.noise = 5;
    const double whole = noisy_loss(&config, &noisy, TRUE);
    const double ninth = padded_loss(&config, &noisy, TRUE, 1);
    assert_true(padded_loss(&config, &noisy, TRUE, options.tokens) == whole);
    noisy.noise = 15;
    const double thrice = noisy_loss(&config, &noisy, TRUE);
    assert_true(fabs(ninth - thrice) < 1e-6 * thrice && ninth != whole);
}

RP_TEST(embeddings_have_noise_by_seed_and_in_training_alone)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    RpNetworkOptions noisy = options;
    const double plain = noisy_loss(&config, &noisy, TRUE);

    noisy.noise = 5;
    const double moved = noisy_loss(&config, &noisy, TRUE);
    assert_true(moved != plain);
    assert_true(noisy_loss(&config, &noisy, TRUE) == moved);
    assert_true(noisy_loss(&config, &noisy, FALSE) == plain);
    noisy.noise_seed++;
    assert_true(noisy_loss(&config, &noisy, TRUE) != moved);
}

RP_TEST(noise_is_the_same_however_the_model_is_cut)
{
    const RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    const RpLora lora = {.rank = 3, .alpha = 4};
    RpNetworkOptions noisy = options;

    noisy.noise = 5;
    noisy.label_smoothing = 0.1;
    Model *model = network_random_adapted(&config, &lora, &noisy);
    model->drops = TRUE;
    const Run run = network_whole(model);
    for (guint backward = 0; backward < 8; backward++)
        for (guint forward = 0; forward < 8; forward++) {
            const Run cut = network_cut(model, forward, backward);

            assert_true(cut.loss == run.loss);
            assert_memory_equal(cut.sums, run.sums, model->elements * sizeof(float));
        }
    network_free(model);
}

/* ---- needless work ---- */

static guint n_matmuls;

static void
count_matmul(RpKernelStream *stream, const RpMatmulArgs *args)
{
    n_matmuls++;
    rp_host_kernels()->matmul(stream, args);
}

/* Matmuls of a backward stage, its recompute included. @d_hidden: (out): whether it wrote the gradient of
 * its input */
static guint
count_backward(Model *model, RpInterval layers, Run *run, gboolean *wrote)
{
    const guint8 *written;

    n_matmuls = 0;
    network_stage(model, STAGE_BACKWARD, layers, NULL, 0, run);
    written = run->d_hidden[layers.first];
    *wrote = FALSE;
    for (guint64 i = 0; i < rp_network_hidden_bytes(model->network); i++)
        *wrote = *wrote || written[i] != 0xff;
    return n_matmuls;
}

RP_TEST(nothing_runs_backward_below_the_lowest_layer_that_trains)
{
    RpModel config = network_config(RP_ARCHITECTURE_QWEN3, FALSE);
    char all[] = "*.layers.*", third[] = "model.layers.2.*", *targets[] = {all, NULL};
    const RpLora lora = {.rank = 3, .alpha = 4, .targets = targets};
    RpKernels counting = *rp_host_kernels();
    guint n[4] = {0}, everywhere;
    gboolean wrote[4];

    config.blocks = 4;
    counting.matmul = count_matmul;
    Model *model = network_random_adapted(&config, &lora, &options);
    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, &counting, &options);
    Run run = network_cut(model, 31, 31);
    everywhere = count_backward(model, (RpInterval){3, 1}, &run, &wrote[3]);
    assert_true(wrote[3]);
    network_free(model);

    targets[0] = third;
    model = network_random_adapted(&config, &lora, &options);
    rp_network_free(model->network);
    model->network = rp_network_new(model->weights, &counting, &options);
    run = network_cut(model, 31, 31);
    for (guint layer = 1; layer < 4; layer++)
        n[layer] = count_backward(model, (RpInterval){layer, 1}, &run, &wrote[layer]);
    assert_int_equal(n[1] + n[2], 0);
    assert_false(wrote[1] || wrote[2] || wrote[3]);
    /* q, k and v have no gradient of their input: a wide and a thin matmul each */
    assert_int_equal(n[3], everywhere - 6);

    const Run whole = network_whole(model);
    for (guint backward = 0; backward < 32; backward++) {
        const Run cut = network_cut(model, 31 - backward, backward);

        assert_true(cut.loss == whole.loss);
        assert_memory_equal(cut.sums, whole.sums, model->elements * sizeof(float));
    }
    network_free(model);
}

/* A block's sums do not depend on whether anything below it is trained. */
RP_TEST(sums_are_the_same_whatever_is_trained_below)
{
    const RpModel config = network_config(RP_ARCHITECTURE_LLAMA, FALSE);
    char second[] = "model.layers.1.*", *targets[] = {second, NULL};
    const RpLora some = {.rank = 3, .alpha = 4, .targets = targets}, all = {.rank = 3, .alpha = 4};
    Model *one = network_new_adapted(&config, &some, &options);
    Model *other = network_random_adapted(&config, &all, &options);
    const guint n = rp_weights_count(one->weights);

    /* the same weights, and of adapters that one of them lacks zeros */
    for (guint i = 0, j = 0; j < rp_weights_count(other->weights); j++) {
        const RpWeight *weight = rp_weights_nth(other->weights, j);
        const RpLayerLayout *layout = rp_network_layout(other->network, weight->layer);
        float *values = (float *)(void *)(other->parameters + layout->first_byte +
                                          layout->place[weight->kind].byte);

        if (i < n && strcmp(rp_weights_nth(one->weights, i)->name, weight->name) == 0)
            network_set_weight(one, i++, values);
        else
            memset(values, 0, weight->elements * sizeof *values);
    }
    memcpy(one->ids, other->ids, one->tokens * sizeof *one->ids);
    memcpy(one->targets, other->targets, one->tokens * sizeof *one->targets);
    one->scale = other->scale;
    const Run a = network_whole(one), b = network_whole(other);

    assert_true(a.loss == b.loss);
    for (guint i = 0, j = 0; i < n; j++) {
        const RpWeight *weight = rp_weights_nth(other->weights, j);

        if (strcmp(rp_weights_nth(one->weights, i)->name, weight->name) != 0)
            continue;
        if (weight->trained)
            assert_memory_equal(network_gradient(one, &a, i), network_gradient(other, &b, j),
                                weight->elements * sizeof(float));
        i++;
    }
    network_free(one);
    network_free(other);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
