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

/* Of a trained weight, along its gradient: the loss's slope is the gradient's length. Two steps, from
 * which what goes with their square is left out (Richardson). */
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
check_differences(RpArchitecture architecture, const RpLora *lora)
{
    const RpModel config = network_config(architecture, FALSE);
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

static void
gradients_are_differences_of_the_loss(void **state)
{
    char norm[] = "norm", *saved[] = {norm, NULL};
    const RpLora lora = {.rank = 3, .alpha = 4, .saved = saved};
    const RpLora other = {.rank = 5, .alpha = 9, .rslora = TRUE, .dropout = 0.3, .seed = 5};

    check_differences(RP_ARCHITECTURE_QWEN3, &lora);
    check_differences(RP_ARCHITECTURE_QWEN3, &other);
    check_differences(RP_ARCHITECTURE_LLAMA, &other);
}

static void
drops_the_same_however_the_model_is_cut(void **state)
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

static double
loss_of(const RpModel *config, const RpLora *lora, gboolean drops)
{
    Model *model = network_random_adapted(config, lora, &options);

    model->drops = drops;
    const Run run = network_whole(model);
    network_free(model);
    return run.loss;
}

static void
drops_by_seed_and_in_training_alone(void **state)
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        host_test(gradients_are_differences_of_the_loss),
        host_test(drops_the_same_however_the_model_is_cut),
        host_test(drops_by_seed_and_in_training_alone),
    };

    return cmocka_run_group_tests_name("adapters of layers", tests, NULL, NULL);
}
