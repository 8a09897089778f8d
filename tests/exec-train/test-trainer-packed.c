/* Training on samples that share sequences: gradients, devices, resuming. */
#include "tests/exec-train/train-fixture.h"

#include <math.h>

#define STEPS (RP_TEST_SMALL ? 3 : 6)
#define SAMPLES 40

typedef struct {
    RpTinyModel *model, *experts;
    RpDataset *dataset;
} Fixture;

/* Makes samples of all lengths up to a sequence's. */
static RpDataset *
make_dataset(void)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(11);
    g_autoptr(GString) text = g_string_new(NULL);
    RpDatasetSummary summary;

    for (guint i = 0; i < SAMPLES; i++) {
        const gint32 n = g_rand_int_range(random, 2, RP_TINY_TOKENS + 1);

        g_string_append(text, "{\"input_ids\":[");
        for (gint32 t = 0; t < n; t++)
            g_string_append_printf(text, "%s%d", t > 0 ? "," : "", g_rand_int_range(random, 0, 61));
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_bytes_new(text->str, text->len);
    RpDataset *dataset = rp_dataset_new_jsonl("FILE", bytes, 61, NULL);
    assert_non_null(dataset);
    assert_true(rp_dataset_check(dataset, RP_TINY_TOKENS, NULL, NULL, &summary, NULL));
    return dataset;
}

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->model = rp_tiny_model_new(FALSE);
    f->experts = rp_tiny_model_new_experts();
    f->dataset = make_dataset();
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_tiny_model_free(f->model);
    rp_tiny_model_free(f->experts);
    rp_dataset_free(f->dataset);
    g_free(f);
    return 0;
}

static RpBatcherOptions
batcher_options(const RpTinyRun *run)
{
    return (RpBatcherOptions){.micro_batches = run->micro_batches,
                              .sequences = RP_TINY_SEQUENCES,
                              .tokens = RP_TINY_TOKENS,
                              .packing = run->packed,
                              .shuffle = TRUE,
                              .seed = 5};
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

/* (transfer full): the hash of the weights after @steps steps. */
static char *
train(const Fixture *f, const RpTinyModel *model, const RpTinyRun *run)
{
    const RpBatcherOptions options = batcher_options(run);
    RpTrainer *trainer = make_trainer(model, run);
    g_autoptr(RpBatcher) batcher = rp_batcher_new(f->dataset, &options, NULL);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);

    for (guint i = 0; i < STEPS; i++) {
        assert_true(rp_batcher_next(batcher, batch, NULL));
        assert_true(rp_trainer_forward_backward(trainer, batch, NULL, NULL));
        assert_true(rp_trainer_step(trainer, NULL));
    }
    assert_true(rp_trainer_flush(trainer, NULL));
    char *hash = rp_tiny_hash(trainer);
    rp_trainer_free(trainer);
    return hash;
}

RP_TEST_OF(gives_the_same_bits_on_any_devices, const Fixture *f)
{
    const RpTinyModel *models[] = {f->model, f->experts};

    for (guint m = 0; m < G_N_ELEMENTS(models); m++) {
        for (guint async = 0; async < 2; async++) {
            RpTinyRun run = {
                "roundpipe",   1, 8, .async = async, .max_grad_norm = 0.5, .aux_loss = 0.5 * m,
                .packed = TRUE};
            g_autofree char *expected = train(f, models[m], &run);

            for (run.devices = 2; run.devices <= 4; run.devices *= 2) {
                g_autofree char *found = train(f, models[m], &run);
                assert_string_equal(found, expected);
            }
            run.schedule = "1f1b";
            run.devices = 5;
            g_autofree char *found = train(f, models[m], &run);
            assert_string_equal(found, expected);
        }
    }
}

/* One step on the first samples of the order; gradients of all weights, one after the other. */
static GArray *
gradients(const Fixture *f, const RpTinyModel *model, guint micro_batches, gboolean packed,
          guint64 *n_samples, double *loss)
{
    const RpTinyRun run = {"roundpipe", 1, micro_batches, .packed = packed};
    RpBatcherOptions options = batcher_options(&run);

    options.shuffle = FALSE;
    options.epochs = 1;
    RpTrainer *trainer = make_trainer(model, &run);
    g_autoptr(RpBatcher) batcher = rp_batcher_new(f->dataset, &options, NULL);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);
    GArray *all = g_array_new(FALSE, FALSE, sizeof(float));

    assert_true(rp_batcher_next(batcher, batch, NULL));
    *n_samples = batch->n_samples;
    assert_true(rp_trainer_forward_backward(trainer, batch, loss, NULL));
    assert_true(rp_trainer_step(trainer, NULL));
    assert_true(rp_trainer_flush(trainer, NULL));
    for (guint w = 0; w < rp_weights_count(model->weights); w++) {
        const RpWeight *weight = rp_weights_nth(model->weights, w);
        const guint before = all->len;

        if (!rp_weight_has_state(weight))
            continue;
        g_array_set_size(all, before + (guint)weight->elements);
        assert_true(rp_trainer_gradient(trainer, w, &g_array_index(all, float, before), NULL));
    }
    rp_trainer_free(trainer);
    return all;
}

/* All samples in one step, packed and not: only the order in which fp32 sums are added up differs,
 * some 1e-7 of the largest terms. */
RP_TEST_OF(has_the_gradients_of_padded_sequences, const Fixture *f)
{
    const RpTinyModel *models[] = {f->model, f->experts};

    for (guint m = 0; m < G_N_ELEMENTS(models); m++) {
        guint64 n_packed, n_padded;
        double packed_loss, padded_loss, difference = 0, norm = 0;
        g_autoptr(GArray) packed = gradients(f, models[m], 16, TRUE, &n_packed, &packed_loss);
        g_autoptr(GArray) padded = gradients(f, models[m], 20, FALSE, &n_padded, &padded_loss);

        assert_int_equal(n_packed, SAMPLES);
        assert_int_equal(n_padded, SAMPLES);
        assert_true(fabs(packed_loss / padded_loss - 1) < 1e-6);
        for (guint i = 0; i < packed->len; i++) {
            const double a = g_array_index(packed, float, i), b = g_array_index(padded, float, i);

            difference += (a - b) * (a - b);
            norm += b * b;
        }
        assert_true(norm > 0);
        if (!(sqrt(difference / norm) < 2e-6))
            fail_msg("gradients differ by %.3g", sqrt(difference / norm));
    }
}

RP_TEST_GROUP(set_up, tear_down)
