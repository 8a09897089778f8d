/* Trains a model with a loop of one's own, in the two calls of the paper's §4.1.1, on devices as
 * host:2 or cuda:4:  train MODEL_DIR DATA.jsonl DEVICES STEPS */
#include <stdio.h>
#include <stdlib.h>

#include <roundpipe.h>

/* Keys of docs/train.md; those of the command line are set below. */
static const char run_file[] = "micro_batches: 8\n"
                               "micro_batch_size: 4\n"
                               "sequence_length: 32\n"
                               "seed: 1\n"
                               "output: .\n" /* left alone */
                               "optimizer: {learning_rate: 1e-3, warmup_ratio: 0.1}\n";

static int
fail(const GError *error)
{
    fprintf(stderr, "train: %s\n", error->message);
    return 1;
}

int
main(int argc, char **argv)
{
    GError *error = NULL;

    if (argc != 5) {
        fprintf(stderr, "usage: train MODEL_DIR DATA.jsonl DEVICES STEPS\n");
        return 2;
    }
    g_autofree char *model = g_strdup_printf("model=%s", argv[1]);
    g_autofree char *data = g_strdup_printf("data=%s", argv[2]);
    g_autofree char *devices = g_strdup_printf("devices=%s", argv[3]);
    g_autofree char *steps = g_strdup_printf("steps=%s", argv[4]);
    const char *const sets[] = {model, data, devices, steps, NULL};

    /* the run; model, data, layer times, stages and a proved plan; then memory and devices */
    RpRunSpec *run = rp_run_file_parse("train", run_file, sizeof run_file - 1, sets, &error);
    g_autoptr(RpSession) session =
        run != NULL ? rp_session_new(run, RP_SESSION_LOOP, NULL, &error) : NULL;
    g_autoptr(RpBatcher) batcher = session != NULL ? rp_session_batcher(session, &error) : NULL;
    g_autoptr(RpTrainer) trainer = batcher != NULL ? rp_session_trainer(session, &error) : NULL;
    if (trainer == NULL)
        return fail(error);
    g_autoptr(RpTokenBatch) batch = rp_session_batch(session);
    for (int step = 1; step <= atoi(argv[4]); step++) {
        double loss;

        if (!rp_batcher_next(batcher, batch, &error) ||
            !rp_trainer_forward_backward(trainer, batch, &loss, &error) ||
            !rp_trainer_step(trainer, &error))
            return fail(error);
        printf("step %d: loss %.4f\n", step, loss);
    }
    return rp_trainer_flush(trainer, &error) ? 0 : fail(error);
}
