/* Evaluations on GPUs, or on a CUDA of threads: the host's losses, and training as without. */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "tests/exec-train/train-fixture.h"

#define STEPS 4
#define VOCABULARY 61
#define RELATIVE 1e-5

static RpDataset *
new_dataset(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(3);
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < 21; i++) {
        const gint length = g_rand_int_range(rand, 1, RP_TINY_TOKENS + 3);

        g_string_append(text, "{\"input_ids\": [");
        for (gint t = 0; t < length; t++)
            g_string_append_printf(text, "%s%d", t > 0 ? "," : "",
                                   g_rand_int_range(rand, 0, VOCABULARY));
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    return rp_must(rp_dataset_new_jsonl, "samples", bytes, VOCABULARY);
}

/* @losses: [STEPS] (nullable): evaluations after each step. Returns: the hash of the trained
 * weights */
static char *
train(const RpTinyModel *model, const RpTinyRun *run, const RpDataset *dataset, double *losses)
{
    GError *error = NULL;
    RpTinyRun evaluates = *run;

    evaluates.evaluates = losses != NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, &evaluates, &error);
    if (trainer == NULL)
        fail_msg("%s", error->message);
    for (guint i = 0; i < STEPS; i++) {
        RpEvaluation evaluation;

        rp_tiny_train(trainer, run, i, 1, NULL);
        if (losses == NULL)
            continue;
        if (!rp_trainer_evaluate(trainer, dataset, 0, NULL, NULL, &evaluation, &error))
            fail_msg("%s", error->message);
        losses[i] = evaluation.loss;
        assert_int_equal(evaluation.n_samples, rp_dataset_n_samples(dataset));
        assert_true(evaluation.ns > 0 && evaluation.bubble_ratio < 1);
    }
    char *hash = rp_tiny_hash(trainer);
    rp_trainer_free(trainer);
    return hash;
}

static const RpTinyRun runs[] = {
    {.schedule = "roundpipe", .devices = 1, .micro_batches = 4},
    {.schedule = "roundpipe", .devices = 2, .micro_batches = 4, .async = TRUE, .max_grad_norm = 1},
    {.schedule = "roundpipe", .devices = 2, .micro_batches = 4, .async = TRUE, .lean = TRUE},
    {.schedule = "1f1b", .devices = 2, .micro_batches = 4},
};

RP_TEST(losses_are_the_hosts)
{
    RpTinyModel *model = rp_tiny_model_new(TRUE);
    g_autoptr(RpDataset) dataset = new_dataset();

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++) {
        RpTinyRun cuda = runs[i];
        double host_losses[STEPS], losses[STEPS];

        cuda.backend = rp_cuda_shared_devices();
        g_autofree char *host = train(model, &runs[i], dataset, host_losses);
        g_autofree char *found = train(model, &cuda, dataset, losses);
        (void)host;
        (void)found;
        for (guint s = 0; s < STEPS; s++)
            if (!(fabs(losses[s] - host_losses[s]) <= RELATIVE * host_losses[s]))
                fail_msg("run %u, step %u: %.9g, host %.9g", i, s + 1, losses[s], host_losses[s]);
    }
    rp_tiny_model_free(model);
}

RP_TEST(training_has_the_same_bits_with_and_without)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    g_autoptr(RpDataset) dataset = new_dataset();

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++) {
        RpTinyRun cuda = runs[i];
        double losses[STEPS];

        cuda.backend = rp_cuda_shared_devices();
        g_autofree char *with = train(model, &cuda, dataset, losses);
        g_autofree char *without = train(model, &cuda, dataset, NULL);

        assert_string_equal(with, without);
        assert_true(losses[STEPS - 1] != losses[0]);
    }
    rp_tiny_model_free(model);
}

RP_TEST(adapters_beside_a_packed_base_are_evaluated)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    g_autoptr(RpDataset) dataset = new_dataset();
    RpTinyRun cuda = runs[1];
    double host_losses[STEPS], losses[STEPS];

    rp_tiny_model_adapt(model, 3, NULL, RP_DTYPE_FP32);
    rp_tiny_model_pack(model, RP_LOWBIT_FP8);
    cuda.backend = rp_cuda_shared_devices();
    g_autofree char *host = train(model, &runs[1], dataset, host_losses);
    g_autofree char *found = train(model, &cuda, dataset, losses);
    g_autofree char *without = train(model, &cuda, dataset, NULL);
    (void)host;
    assert_string_equal(found, without);
    for (guint s = 0; s < STEPS; s++)
        assert_true(fabs(losses[s] - host_losses[s]) <= RELATIVE * host_losses[s]);
    rp_tiny_model_free(model);
}

RP_TEST_NEEDS(rp_cuda_device_count() > 0)
