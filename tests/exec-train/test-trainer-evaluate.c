/* Evaluations leave no trace in training, and see the newest weights. */
#include "tests/rp-test.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "tests/exec-train/train-fixture.h"

#define STEPS 5
#define VOCABULARY 61

static int
setup(void **state)
{
    *state = rp_tiny_model_new(TRUE);
    return 0;
}

static int
teardown(void **state)
{
    rp_tiny_model_free(*state);
    return 0;
}

/* @n samples of 1 to RP_TINY_TOKENS + 3 tokens. */
static RpDataset *
new_dataset(guint n)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(5);
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < n; i++) {
        const gint length = g_rand_int_range(rand, 1, RP_TINY_TOKENS + 4);

        g_string_append(text, "{\"input_ids\": [");
        for (gint t = 0; t < length; t++)
            g_string_append_printf(text, "%s%d", t > 0 ? "," : "",
                                   g_rand_int_range(rand, 0, VOCABULARY));
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    return rp_must(rp_dataset_new_jsonl, "samples", bytes, VOCABULARY);
}

static double
evaluate(RpTrainer *trainer, const RpDataset *dataset)
{
    RpEvaluation evaluation;
    GError *error = NULL;

    if (!rp_trainer_evaluate(trainer, dataset, 0, NULL, NULL, &evaluation, &error))
        fail_msg("%s", error->message);
    assert_int_equal(evaluation.n_samples, rp_dataset_n_samples(dataset));
    assert_true(isfinite(evaluation.loss) && evaluation.loss > 1 && evaluation.loss < 10);
    assert_true(evaluation.ns > 0);
    assert_true(evaluation.bubble_ratio >= 0 && evaluation.bubble_ratio < 1);
    return evaluation.loss;
}

static const RpTinyRun runs[] = {
    {.schedule = "roundpipe", .devices = 1, .micro_batches = 4},
    {.schedule = "roundpipe", .devices = 2, .micro_batches = 4, .async = TRUE, .max_grad_norm = 1},
    {.schedule = "roundpipe",
     .devices = 3,
     .micro_batches = 4,
     .async = TRUE,
     .lean = TRUE,
     .max_grad_norm = 1},
    {.schedule = "roundpipe",
     .devices = 2,
     .micro_batches = 4,
     .async = TRUE,
     .blocking = TRUE,
     .max_grad_norm = 1},
    {.schedule = "roundpipe",
     .devices = 2,
     .micro_batches = 4,
     .round = 2,
     .async = TRUE,
     .lean = TRUE},
    {.schedule = "roundpipe", .devices = 2, .micro_batches = 4, .calls = 2},
    {.schedule = "gpipe", .devices = 2, .micro_batches = 4},
    {.schedule = "1f1b", .devices = 3, .micro_batches = 4, .async = TRUE},
    {.schedule = "interleaved-1f1b", .devices = 2, .micro_batches = 4, .n_stages = 4},
    {.schedule = "looped-bfs", .devices = 2, .micro_batches = 4, .n_stages = 4},
    {.schedule = "mobius", .devices = 2, .micro_batches = 4, .n_stages = 4},
    {.schedule = "roundpipe",
     .devices = 2,
     .micro_batches = 4,
     .async = TRUE,
     .dtype = RP_DTYPE_FP16,
     .max_grad_norm = 1},
    {.schedule = "roundpipe", .devices = 2, .micro_batches = 4, .dtype = RP_DTYPE_BF16},
};

/* Trains with evaluations between the steps, once before the first. @losses: [STEPS + 1] */
static char *
train_and_evaluate(const RpTinyModel *model, const RpTinyRun *run, const RpDataset *dataset,
                   double *losses)
{
    RpTinyRun evaluates = *run;
    GError *error = NULL;

    evaluates.evaluates = TRUE;
    RpTrainer *trainer = rp_tiny_trainer(model, &evaluates, &error);
    if (trainer == NULL)
        fail_msg("%s on %u: %s", run->schedule, run->devices, error->message);
    losses[0] = evaluate(trainer, dataset);
    for (guint i = 0; i < STEPS; i++) {
        rp_tiny_train(trainer, run, i, 1, NULL);
        losses[i + 1] = evaluate(trainer, dataset);
    }
    char *hash = rp_tiny_hash(trainer);
    rp_trainer_free(trainer);
    return hash;
}

RP_TEST(training_has_the_same_bits_with_and_without)
{
    g_autoptr(RpDataset) dataset = new_dataset(19);

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++) {
        double losses[STEPS + 1];
        g_autofree char *without = rp_tiny_run_hash(*state, &runs[i], STEPS);
        g_autofree char *with = train_and_evaluate(*state, &runs[i], dataset, losses);

        if (strcmp(with, without) != 0)
            fail_msg("run %u, %s on %u", i, runs[i].schedule, runs[i].devices);
        assert_true(losses[STEPS] != losses[0]);
        if (runs[i].dtype == RP_DTYPE_FP32)
            assert_true(losses[STEPS] != losses[STEPS - 1]);
    }
}

/* The same steps give the same loss, to the last bit, on any devices. */
RP_TEST(losses_are_the_same_on_any_devices)
{
    static const guint same[][2] = {{0, 6}, {6, 8}, {8, 9}, {9, 10}, {1, 2}, {2, 3}};
    g_autoptr(RpDataset) dataset = new_dataset(19);

    for (guint i = 0; i < G_N_ELEMENTS(same); i++) {
        double losses[2][STEPS + 1];

        for (guint k = 0; k < 2; k++) {
            RpTinyRun run = runs[same[i][k]];

            run.max_grad_norm = 1;
            g_autofree char *hash = train_and_evaluate(*state, &run, dataset, losses[k]);
            (void)hash;
        }
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    }
}

/* A new trainer has the masters of one that has trained, asynchronously, and evaluates them. */
RP_TEST_OF(the_newest_weights_are_evaluated, const RpTinyModel *model)
{
    g_autoptr(RpDataset) dataset = new_dataset(5);

    for (guint i = 1; i <= 4; i++) {
        RpTinyRun run = runs[i], fresh = runs[0];
        GError *error = NULL;

        run.evaluates = fresh.evaluates = TRUE;
        RpTrainer *trained = rp_tiny_trainer(model, &run, &error);
        RpTrainer *other = rp_must(rp_tiny_trainer, model, &fresh);
        rp_tiny_train(trained, &run, 0, 4, NULL);
        const double loss = evaluate(trained, dataset);
        for (guint w = 0; w < rp_weights_count(model->weights); w++) {
            const RpWeight *weight = rp_weights_nth(model->weights, w);

            if (!rp_weight_has_state(weight))
                continue;
            const RpOptimizerState numbers = rp_trainer_weight_state(trained, w);
            assert_true(rp_trainer_restore_weight(other, w, &numbers, NULL, &error));
        }
        const RpUpdateState updates = rp_host_state_updates(rp_trainer_host_state(trained));
        rp_trainer_restore(other, &updates);
        assert_true(evaluate(other, dataset) == loss);
        rp_trainer_free(other);
        rp_trainer_free(trained);
    }
}

RP_TEST(adapters_are_evaluated)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    const RpTinyRun run = {.schedule = "roundpipe", .devices = 2, .micro_batches = 4};
    g_autoptr(RpDataset) dataset = new_dataset(7);
    double losses[STEPS + 1];

    rp_tiny_model_adapt(model, 3, NULL, RP_DTYPE_FP32);
    g_autofree char *with = train_and_evaluate(model, &run, dataset, losses);
    g_autofree char *without = rp_tiny_run_hash(model, &run, STEPS);

    assert_string_equal(with, without);
    assert_true(losses[STEPS] != losses[0]);
    rp_tiny_model_free(model);
}

/* A file that becomes bad while it is read: the trainer continues. */
RP_TEST(bad_data_do_not_end_training)
{
    const RpTinyRun run = {.schedule = "roundpipe",
                           .devices = 2,
                           .micro_batches = 2,
                           .async = TRUE,
                           .evaluates = TRUE};
    GString *text = g_string_new(NULL);
    GError *error = NULL;
    RpEvaluation evaluation;

    for (guint i = 0; i < 20; i++)
        g_string_append(text, i < 17 ? "{\"input_ids\": [1,2,3]}\n" : "{\"input_ids\": [61]}\n");
    g_autoptr(GBytes) bytes = g_string_free_to_bytes(text);
    g_autoptr(RpDataset) dataset = rp_must(rp_dataset_new_jsonl, "samples", bytes, VOCABULARY);
    RpTrainer *trainer = rp_must(rp_tiny_trainer, *state, &run);
    rp_tiny_train(trainer, &run, 0, 2, NULL);
    assert_false(rp_trainer_evaluate(trainer, dataset, 0, NULL, NULL, &evaluation, &error));
    assert_true(g_error_matches(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE));
    assert_non_null(strstr(error->message, "line 18"));
    g_clear_error(&error);
    rp_tiny_train(trainer, &run, 2, 2, NULL);
    g_autofree char *hash = rp_tiny_hash(trainer);
    g_autofree char *without = rp_tiny_run_hash(*state, &run, 4);
    assert_string_equal(hash, without);
    rp_trainer_free(trainer);
}

/* Receives progress until it stops the evaluation. */
typedef struct {
    guint64 last, enough;
    guint n_calls;
} Patience;

static gboolean
watch(gpointer user_data, guint64 n_samples)
{
    Patience *patience = user_data;

    assert_true(n_samples >= patience->last);
    patience->last = n_samples;
    patience->n_calls++;
    return n_samples < patience->enough;
}

/* An evaluation that is stopped leaves no trace either, and the next one is whole. */
RP_TEST(may_be_stopped)
{
    const RpTinyRun run = {.schedule = "roundpipe",
                           .devices = 2,
                           .micro_batches = 2,
                           .async = TRUE,
                           .evaluates = TRUE};
    g_autoptr(RpDataset) dataset = new_dataset(40);
    Patience patience = {.enough = 12};
    GError *error = NULL;
    RpEvaluation evaluation;
    RpTrainer *trainer = rp_must(rp_tiny_trainer, *state, &run);

    rp_tiny_train(trainer, &run, 0, 2, NULL);
    const double loss = evaluate(trainer, dataset);

    assert_false(rp_trainer_evaluate(trainer, dataset, 0, watch, &patience, &evaluation, &error));
    assert_true(g_error_matches(error, G_IO_ERROR, G_IO_ERROR_CANCELLED));
    assert_true(patience.last >= 12 && patience.last < 40 && patience.n_calls > 2);
    g_clear_error(&error);
    patience = (Patience){.enough = G_MAXUINT64};
    assert_true(rp_trainer_evaluate(trainer, dataset, 0, watch, &patience, &evaluation, &error));
    assert_true(evaluation.loss == loss);
    assert_true(patience.last > 20 && patience.last <= 40);
    rp_tiny_train(trainer, &run, 2, 2, NULL);
    g_autofree char *hash = rp_tiny_hash(trainer);
    g_autofree char *without = rp_tiny_run_hash(*state, &run, 4);
    assert_string_equal(hash, without);
    rp_trainer_free(trainer);
}

RP_TEST_GROUP(setup, teardown)
