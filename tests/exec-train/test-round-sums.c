/* Gradients of many rounds: as exact as those of one, and the same bits wherever rounds were. */
#include "tests/exec-train/serial.h"

#include <math.h>

/* Each round is rounded once, when it leaves, and so are they together: u / sqrt(3) of bf16, 2^-9,
 * less the errors of rounds that cancel. When their sum was rounded at every addition, 16
 * rounds took 5e-3 and 64 8.5e-3; fp16 an eighth of that. */
#define MOST_ERROR 1.8e-3

/* Norm of the difference to a sum in double, over the norm of that. */
static double
error_of(const RpTinyModel *model, const RpTinyRun *run, float loss_scale)
{
    const RpSerialRun serial = {0, run->micro_batches, run->dtype, 0};
    const double reference = (double)run->micro_batches * RP_TINY_SEQUENCES * RP_TINY_TOKENS;
    g_autofree double *expected =
        rp_serial_gradient(model, &serial, run->round, (float)((double)loss_scale / reference));
    RpTokenBatch *batch = rp_tiny_batch(0, 0, run->micro_batches);
    GError *error = NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, run, &error);
    double difference = 0, norm = 0;
    gsize at = 0;

    if (trainer == NULL)
        fail_msg("%s", error->message);
    const double scale =
        reference / ((double)loss_scale * (double)batch->n_targets); /* factor for the mean loss */
    rp_tiny_train(trainer, run, 0, 1, NULL);
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const gsize n = rp_weights_nth(model->weights, w)->elements;
        g_autofree float *values = g_new(float, n);

        assert_true(rp_trainer_gradient(trainer, w, values, NULL));
        for (gsize i = 0; i < n; i++, at++) {
            const double off = values[i] - expected[at] * scale;

            difference += off * off;
            norm += expected[at] * scale * expected[at] * scale;
        }
    }
    rp_trainer_free(trainer);
    rp_token_batch_free(batch);
    return sqrt(difference / norm);
}

RP_TEST(are_as_exact_as_one_round)
{
    static const guint rounds[] = {2, 16, 64};
    const guint n_rounds = RP_TEST_FEW ? 1 : G_N_ELEMENTS(rounds);

    for (guint i = 0; i < 2 * 2 * 2 * n_rounds; i++) {
        const guint n = rounds[i / 8];
        RpTinyModel *model = rp_tiny_model_new((i & 1) != 0);
        /* one stage, which stays on its device; stages of two blocks, which do not */
        const RpTinyRun run = {"roundpipe",
                               1,
                               n,
                               .round = 1,
                               .n_stages = i & 2 ? 6 : 2,
                               .dtype = i & 4 ? RP_DTYPE_FP16 : RP_DTYPE_BF16};
        const double error =
            error_of(model, &run, run.dtype == RP_DTYPE_FP16 ? RP_LOSS_SCALE_INITIAL : 1);

        if (!(error < (run.dtype == RP_DTYPE_FP16 ? MOST_ERROR / 8 : MOST_ERROR)))
            fail_msg("%u rounds, %s, %s: %g", n, rp_dtype_name(run.dtype),
                     i & 2 ? "kept on the device" : "summed on the host", error);
        rp_tiny_model_free(model);
    }
}

/* One round is rounded once, when it leaves. */
RP_TEST(of_one_round_are_rounded_once)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    const RpTinyRun run = {"roundpipe", 1, 16, .round = 16, .dtype = RP_DTYPE_BF16};
    const double error = error_of(model, &run, 1);

    if (error < 1e-3 || error > 2e-3)
        fail_msg("%g", error);
    rp_tiny_model_free(model);
}

/* Stages of 6 blocks: one stage, which stays where there is one device. With 3, three slots, which
 * stay where there are three. With 2, nothing stays. Four rounds are summed or, of large stages,
 * stand apart; two stand apart. */
RP_TEST(are_the_same_bits_wherever_rounds_were)
{
    static const guint stages[] = {6, 3, 2, 3}, rounds[] = {4, 4, 4, 2};
    const guint steps = RP_TEST_ALL ? 4 : 3;
    RpTinyModel *models[2] = {rp_tiny_model_new(FALSE), rp_tiny_model_new(TRUE)};

    for (guint i = 0; i < G_N_ELEMENTS(stages) * 4; i++) {
        const guint blocks = stages[i / 4], n_rounds = rounds[i / 4];
        g_autofree char *expected = NULL;

        if (RP_TEST_FEW && i % 4 != 0 && i % 4 != 3) /* fp16 with async */
            continue;
        for (guint devices = 1; devices <= 4; devices++) {
            for (guint calls = 1; calls <= n_rounds; calls += n_rounds - 1) {
                if (!RP_TEST_ALL && (devices + calls / 4 + i) % 2 != 0)
                    continue;
                const RpTinyRun run = {"roundpipe",
                                       devices,
                                       16 / calls,
                                       .round = 16 / n_rounds,
                                       .calls = calls,
                                       .n_stages = blocks,
                                       .dtype = i & 1 ? RP_DTYPE_FP16 : RP_DTYPE_BF16,
                                       .async = (i & 2) != 0,
                                       .lean = (i & 2) != 0 && devices % 2 == 0,
                                       .blocking = devices == 3,
                                       .max_grad_norm = 0.5};
                char *hash = rp_tiny_run_hash(models[i & 1], &run, steps);

                if (expected == NULL) {
                    expected = hash;
                    continue;
                }
                if (strcmp(hash, expected) != 0)
                    fail_msg("%u rounds, %u blocks a stage, mode %u, %u devices, %u calls: other "
                             "bits",
                             n_rounds, blocks, i % 4, devices, calls);
                g_free(hash);
            }
        }
    }
    for (guint i = 0; i < 2; i++)
        rp_tiny_model_free(models[i]);
}
