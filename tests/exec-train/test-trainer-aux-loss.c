/* Training with the routers' auxiliary loss: devices, micro-batches, padding, the value. */
#include "tests/exec-train/train-fixture.h"

#include <math.h>

#define STEPS (RP_TEST_SMALL ? 3 : 6)
#define COEFFICIENT 0.7
#define TOKENS (RP_TINY_SEQUENCES * RP_TINY_TOKENS)

static int
set_up(void **state)
{
    *state = rp_tiny_model_new_experts();
    return 0;
}

static int
tear_down(void **state)
{
    rp_tiny_model_free(*state);
    return 0;
}

/* Padding of other lengths in each sequence, where nothing is learned. */
static void
pad(RpTokenBatch *batch, gint32 pad_id)
{
    batch->n_targets = 0;
    for (guint m = 0; m < batch->micro_batches; m++)
        batch->n_micro_targets[m] = 0;
    for (guint row = 0; row < batch->micro_batches * batch->sequences; row++) {
        batch->lengths[row] = batch->tokens - row % 4;
        for (guint t = 0; t < batch->tokens; t++) {
            gint32 *target = &batch->targets[row * batch->tokens + t];

            if (t + 1 >= batch->lengths[row])
                *target = RP_LABEL_MASKED;
            if (t >= batch->lengths[row])
                batch->input_ids[row * batch->tokens + t] = pad_id;
            batch->n_micro_targets[row / batch->sequences] += *target != RP_LABEL_MASKED;
        }
    }
    for (guint m = 0; m < batch->micro_batches; m++)
        batch->n_targets += batch->n_micro_targets[m];
}

static RpTrainer *
make_trainer(const RpTinyModel *model, const RpTinyRun *run)
{
    GError *error = NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, run, &error);

    if (trainer == NULL)
        fail_msg("%s on %u: %s", run->schedule, run->devices, error->message);
    return trainer;
}

/* @batch: (transfer full): of one call */
static void
run_call(RpTrainer *trainer, RpTokenBatch *batch, double *loss)
{
    assert_true(rp_trainer_forward_backward(trainer, batch, loss, NULL));
    rp_token_batch_free(batch);
}

static void
finish_step(RpTrainer *trainer)
{
    assert_true(rp_trainer_step(trainer, NULL));
    assert_true(rp_trainer_flush(trainer, NULL));
}

/* (transfer full): results of steps with padding. */
static char *
train(const RpTinyModel *model, const RpTinyRun *run)
{
    const guint calls = MAX(1, run->calls);
    RpTrainer *trainer = make_trainer(model, run);

    for (guint i = 0; i < STEPS; i++) {
        for (guint c = 0; c < calls; c++) {
            RpTokenBatch *batch = rp_tiny_batch(i, c * run->micro_batches, run->micro_batches);

            pad(batch, 0);
            run_call(trainer, batch, NULL);
        }
        assert_true(rp_trainer_step(trainer, NULL));
    }
    assert_true(rp_trainer_flush(trainer, NULL));
    char *hash = rp_tiny_hash(trainer);
    rp_trainer_free(trainer);
    return hash;
}

RP_TEST_OF(gives_the_same_bits_on_any_devices, const RpTinyModel *model)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16};
    static const guint devices[] = {1, 2, 4};

    for (guint i = 0; i < G_N_ELEMENTS(dtypes); i++) {
        const RpTinyRun one = {"roundpipe",
                               1,
                               8,
                               .async = TRUE,
                               .dtype = dtypes[i],
                               .max_grad_norm = 0.5,
                               .aux_loss = COEFFICIENT};
        RpTinyRun without = one;
        g_autofree char *expected = train(model, &one);

        without.aux_loss = 0;
        g_autofree char *other = train(model, &without);
        assert_string_not_equal(other, expected);
        for (guint d = 0; d < G_N_ELEMENTS(devices); d++) {
            RpTinyRun run = one;

            run.devices = devices[d];
            run.lean = devices[d] == 4;
            run.n_stages = devices[d];
            g_autofree char *dispatched = train(model, &run);
            assert_string_equal(dispatched, expected);
            run.schedule = "1f1b";
            g_autofree char *bound = train(model, &run);
            assert_string_equal(bound, expected);
        }
    }
}

/* Results of one step: gradients of all weights, one after the other, and both losses. */
typedef struct {
    GArray *gradients;
    double loss, aux_loss;
} Step;

static void
note_step(gpointer user_data, const RpStepReport *report)
{
    Step *step = user_data;

    step->loss = report->loss;
    step->aux_loss = report->aux_loss;
}

#define NO_PADDING (-1)

/* Micro-batches [first, first + n) of step 0, @calls of them after one another. */
static Step
run_step(const RpTinyModel *model, guint first, guint n, guint calls, gint32 pad_id)
{
    Step step = {.gradients = g_array_new(FALSE, FALSE, sizeof(float))};
    const RpTinyRun run = {"roundpipe",
                           1,
                           n / calls,
                           .calls = calls,
                           .done = note_step,
                           .user_data = &step,
                           .aux_loss = COEFFICIENT};
    RpTrainer *trainer = make_trainer(model, &run);

    for (guint c = 0; c < calls; c++) {
        RpTokenBatch *batch = rp_tiny_batch(0, first + c * run.micro_batches, run.micro_batches);

        /* the first has few targets */
        for (guint t = 0; first + c == 0 && t < TOKENS - 5; t++) {
            batch->n_micro_targets[0] -= batch->targets[t] != RP_LABEL_MASKED;
            batch->n_targets -= batch->targets[t] != RP_LABEL_MASKED;
            batch->targets[t] = RP_LABEL_MASKED;
        }
        for (guint row = 0; row < batch->micro_batches * batch->sequences; row++)
            batch->lengths[row] = batch->tokens;
        if (pad_id != NO_PADDING)
            pad(batch, pad_id);
        run_call(trainer, batch, NULL);
    }
    finish_step(trainer);
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        const guint before = step.gradients->len;

        if (!rp_weight_has_state(weight))
            continue;
        g_array_set_size(step.gradients, before + (guint)weight->elements);
        assert_true(
            rp_trainer_gradient(trainer, w, &g_array_index(step.gradients, float, before), NULL));
    }
    rp_trainer_free(trainer);
    return step;
}

/* Distance of @found from a weighted sum of @a and @b, relative to the norm of that sum. */
static double
difference(const GArray *found, const GArray *a, double of_a, const GArray *b, double of_b)
{
    double difference = 0, norm = 0;

    for (guint i = 0; i < found->len; i++) {
        const double want = of_a * g_array_index(a, float, i) + of_b * g_array_index(b, float, i);
        const double error = g_array_index(found, float, i) - want;

        difference += error * error;
        norm += want * want;
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

/* Other tokens stand there: rows of experts have another order, and sums of fp32 another rounding. */
RP_TEST_OF(does_not_look_at_padding, const RpTinyModel *model)
{
    const Step one = run_step(model, 1, 2, 1, 0), other = run_step(model, 1, 2, 1, 17);
    const Step whole = run_step(model, 1, 2, 1, NO_PADDING);
    const double far = difference(other.gradients, one.gradients, 1, one.gradients, 0);

    assert_true(fabs(other.aux_loss / one.aux_loss - 1) < 1e-7);
    assert_true(fabs(whole.aux_loss / one.aux_loss - 1) > 1e-4);
    if (!(far < 1e-6))
        fail_msg("gradients differ by %.3g", far);
    g_array_unref(one.gradients);
    g_array_unref(other.gradients);
    g_array_unref(whole.gradients);
}

static guint
count_targets(guint m)
{
    g_autoptr(RpTokenBatch) batch = rp_tiny_batch(0, m, 1);
    guint n = 0;

    for (guint t = m == 0 ? TOKENS - 5 : 0; t < TOKENS; t++)
        n += batch->targets[t] != RP_LABEL_MASKED;
    return n;
}

/* The step's loss is the mean of its micro-batches' own losses, each with the share of its targets:
 * loss and auxiliary loss alike. */
RP_TEST_OF(is_the_mean_over_micro_batches_by_targets, const RpTinyModel *model)
{
    const double n[2] = {count_targets(0), count_targets(1)};
    const Step parts[2] = {run_step(model, 0, 1, 1, NO_PADDING),
                           run_step(model, 1, 1, 1, NO_PADDING)};

    assert_true(n[0] > 0 && 2 * n[0] < n[1]);
    for (guint calls = 1; calls <= 2; calls++) {
        const Step both = run_step(model, 0, 2, calls, NO_PADDING);
        const double far = difference(both.gradients, parts[0].gradients, n[0] / (n[0] + n[1]),
                                      parts[1].gradients, n[1] / (n[0] + n[1]));

        if (!(far < 1e-6))
            fail_msg("%u calls: gradients differ by %.3g", calls, far);
        const double want = (n[0] * parts[0].aux_loss + n[1] * parts[1].aux_loss) / (n[0] + n[1]);
        if (!(want > 2 && fabs(both.aux_loss / want - 1) < 1e-6)) /* 2 experts a token */
            fail_msg("auxiliary loss %.9g, expected %.9g", both.aux_loss, want);
        g_array_unref(both.gradients);
    }
    for (guint i = 0; i < 2; i++)
        g_array_unref(parts[i].gradients);
}

RP_TEST_GROUP(set_up, tear_down)
