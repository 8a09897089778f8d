/* Trains a model on virtual devices with a loop of one's own, in the two calls of the paper's
 * §4.1.1:  train MODEL_DIR DATA.jsonl DEVICES STEPS */
#include <stdio.h>
#include <stdlib.h>

#include "exec/data/batch.h"
#include "exec/host/kernels.h"
#include "exec/measure/profile.h"
#include "exec/train/trainer.h"

static int
fail(const GError *error)
{
    fprintf(stderr, "train: %s\n", error->message);
    return 1;
}

int
main(int argc, char **argv)
{
    /* micro-batches of a step, sequences of each, tokens of each */
    const RpBatcherOptions shape = {8, 4, 32, .shuffle = TRUE, .seed = 1};
    RpModel config;
    GError *error = NULL;

    if (argc != 5) {
        fprintf(stderr, "usage: train MODEL_DIR DATA.jsonl DEVICES STEPS\n");
        return 2;
    }
    const guint devices = (guint)atoi(argv[3]), steps = (guint)atoi(argv[4]);
    /* the model, the data, and the costs of the model's layers on this machine */
    g_autoptr(RpSafetensors) file = rp_safetensors_open(argv[1], &error);
    if (file == NULL || !rp_hf_config_load(argv[1], &config, &error))
        return fail(error);
    g_autoptr(RpWeights) weights = rp_weights_new(&config);
    g_autoptr(RpDataset) data = rp_dataset_open(argv[2], config.vocab, shape.tokens, &error);
    g_autoptr(RpBatcher) batcher = data != NULL ? rp_batcher_new(data, &shape, &error) : NULL;
    if (batcher == NULL || !rp_weights_bind(weights, file, &error))
        return fail(error);
    const RpNetworkOptions options = {.sequences = shape.sequences, .tokens = shape.tokens};
    const RpMeasureOptions measure = {.devices = devices, .seconds = 0.1};
    g_autoptr(RpNetwork) network = rp_network_new(weights, rp_host_kernels(), &options);
    g_autoptr(RpProbe) probe = rp_host_probe_new(0, &error);
    g_autoptr(RpProfile) profile =
        probe != NULL ? rp_measure_profile(probe, network, weights, &measure, &error) : NULL;
    if (profile == NULL)
        return fail(error);
    /* stages of even length for the schedule */
    g_autoptr(RpPartition) stages =
        rp_partition_paper(profile, devices, shape.micro_batches, 0, &error);
    const RpTrainerOptions how = {
        .weights = weights,
        .profile = profile,
        .partition = stages,
        .plan = {rp_schedule_find("roundpipe", NULL), devices, shape.micro_batches, .async = TRUE},
        .network = options, /* dtype: fp32 */
        .update = {.adamw = RP_ADAMW_OPTIONS_INIT,
                   .learning_rate = {RP_LEARNING_RATE_COSINE, 1e-3, steps / 10, steps}},
    };
    g_autoptr(RpTrainer) trainer = stages != NULL ? rp_trainer_new(&how, &error) : NULL;
    if (trainer == NULL)
        return fail(error);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&shape);
    for (guint step = 0; step < steps; step++) {
        double loss;

        if (!rp_batcher_next(batcher, batch, &error) ||
            !rp_trainer_forward_backward(trainer, batch, &loss, &error) ||
            !rp_trainer_step(trainer, &error))
            return fail(error);
        printf("step %u: loss %.4f\n", step + 1, loss);
    }
    return rp_trainer_flush(trainer, &error) ? 0 : fail(error);
}
