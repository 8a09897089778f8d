/* Tests the two calls against a plain serial program, and their errors. */
#include "tests/exec-train/overflow.h"
#include "tests/exec-train/serial.h"

#include <math.h>

static void
assert_like_serial(const RpTinyModel *model, const RpTinyRun *run)
{
    const RpSerialRun serial = {run->async ? 1 : 0, run->micro_batches, run->dtype,
                                run->max_grad_norm};
    GError *error = NULL;

    for (guint steps = RP_TEST_FEW ? 4 : 1; steps <= 6; steps += RP_TEST_FEW ? 3 : 1) {
        RpTrainer *trainer = rp_tiny_trainer(model, run, &error);
        double losses[6], expected_losses[6];
        g_autofree char *expected = rp_serial_hash(model, &serial, steps, expected_losses);

        assert_non_null(trainer);
        rp_tiny_train(trainer, run, 0, steps, losses);
        g_autofree char *hash = rp_masters_hash(trainer);
        assert_string_equal(hash, expected);
        for (guint i = 0; i < steps; i++)
            if (fabs(losses[i] - expected_losses[i]) > 1e-12 * fabs(expected_losses[i]))
                fail_msg("step %u: loss %.17g, serial %.17g", i, losses[i], expected_losses[i]);
        rp_trainer_free(trainer);
    }
}

RP_TEST(is_a_serial_program_with_updates_one_step_late)
{
    for (guint tied = 0; tied < 2; tied++) {
        RpTinyModel *model = rp_tiny_model_new(tied != 0);

        for (guint mode = 0; mode < 8; mode += RP_TEST_FEW ? 3 : 1) {
            const RpTinyRun run = {"roundpipe",
                                   3,
                                   4,
                                   .async = (mode & 1) != 0,
                                   .dtype = mode & 2 ? RP_DTYPE_BF16 : RP_DTYPE_FP32,
                                   .lean = (mode & 4) != 0,
                                   .max_grad_norm = 0.3};

            assert_like_serial(model, &run);
        }
        rp_tiny_model_free(model);
    }
}

/* A batch is the caller's again as soon as its call has returned: one batch for all, filled with
 * other tokens at once. */
RP_TEST(has_read_a_batch_when_its_call_returns)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);

    for (guint mode = 0; mode < 4; mode++) {
        const RpTinyRun run = {"roundpipe", 2, 4, .calls = 1 + mode / 2, .async = mode % 2 == 1,
                               .threads = 1};
        g_autofree char *expected = rp_tiny_run_hash(model, &run, 6);
        GError *error = NULL;
        RpTrainer *trainer = rp_tiny_trainer(model, &run, &error);

        assert_non_null(trainer);
        rp_tiny_train_overwriting(trainer, &run, 6);
        assert_int_equal(rp_trainer_proof_cost(trainer).tasks, rp_trainer_cost(trainer).tasks);
        g_autofree char *hash = rp_tiny_hash(trainer);
        if (strcmp(hash, expected) != 0)
            fail_msg("mode %u: trained on tokens of another step", mode);
        rp_trainer_free(trainer);
    }
    rp_tiny_model_free(model);
}

typedef struct {
    guint n;
    RpStepReport reports[16];
} Reports;

static void
note_report(gpointer user_data, const RpStepReport *report)
{
    Reports *reports = user_data;

    g_assert(reports->n < 16);
    reports->reports[reports->n++] = *report;
}

RP_TEST(reports_every_step_once)
{
    for (guint async = 0; async < 2; async++) {
        RpTinyModel *model = rp_tiny_model_new(FALSE);
        Reports reports = {0};
        const RpTinyRun run = {
            "roundpipe",          2, 4, .calls = 2, .async = async != 0, .done = note_report,
            .user_data = &reports};
        GError *error = NULL;
        RpTrainer *trainer = rp_tiny_trainer(model, &run, &error);

        assert_non_null(trainer);
        rp_tiny_train(trainer, &run, 0, 3, NULL);
        assert_int_equal(reports.n, 3);
        rp_tiny_train(trainer, &run, 3, 4, NULL);
        assert_int_equal(reports.n, 7);
        for (guint i = 0; i < 7; i++) {
            const RpStepReport *r = &reports.reports[i];

            assert_int_equal(r->step, i + 1);
            assert_true(r->loss > 3 && r->loss < 6);
            assert_true(r->grad_norm > 0);
            assert_true(r->step_ns > 0);
            assert_true(r->bubble_ratio > -1e-9 && r->bubble_ratio < 1);
            assert_int_equal(r->n_tokens, 8 * RP_TINY_SEQUENCES * RP_TINY_TOKENS);
            assert_true(r->n_targets > 0 && r->n_targets < r->n_tokens);
            assert_false(r->skipped);
        }
        assert_true(reports.reports[0].learning_rate == 0); /* warm-up */
        assert_true(reports.reports[2].learning_rate == 3e-3);
        assert_int_equal(rp_trainer_n_steps(trainer), 7);
        rp_trainer_free(trainer);
        rp_tiny_model_free(model);
    }
}

/* End of the last action of @iteration on @device; and the first start of all. */
static gint64
last_end(const RpTrace *trace, guint32 iteration, guint device, gint64 *first_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gint64 end_ns = -1;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        if (records[i].kind > RP_TASK_OVERLAP)
            continue;
        *first_ns = MIN(*first_ns, records[i].start_ns);
        if (records[i].iteration == iteration &&
            rp_trace_lane_device(trace, records[i].lane) == device)
            end_ns = MAX(end_ns, records[i].end_ns);
    }
    return end_ns;
}

/* Asynchronous steps overlap, and their last actions may come in pairs: each has a time of its own
 * all the same, and together they have the run's. */
RP_TEST(a_steps_time_is_its_own)
{
    enum { DEVICES = 3, STEPS = 12 };
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    Reports reports = {0};
    const RpTinyRun run = {"roundpipe",
                           DEVICES,
                           3,
                           .calls = 1,
                           .async = TRUE,
                           .keep_trace = TRUE,
                           .done = note_report,
                           .user_data = &reports};
    RpTrainer *trainer = rp_tiny_trainer(model, &run, NULL);

    assert_non_null(trainer);
    rp_tiny_train(trainer, &run, 0, STEPS, NULL);
    assert_int_equal(reports.n, STEPS);
    g_autoptr(RpTrace) trace = rp_trainer_steal_trace(trainer);
    gint64 ends_ns[DEVICES], sum_ns = 0, reported_ns = 0;

    for (guint i = 0; i < STEPS; i++) {
        gint64 first_ns = G_MAXINT64, step_ns = 0;

        for (guint g = 0; g < DEVICES; g++) {
            const gint64 end_ns = last_end(trace, i, g, &first_ns);

            if (i == 0)
                ends_ns[g] = first_ns;
            step_ns += MAX(0, end_ns - ends_ns[g]);
            ends_ns[g] = MAX(ends_ns[g], end_ns);
        }
        assert_int_equal(reports.reports[i].step_ns, step_ns / DEVICES);
        assert_true(i == 0 || reports.reports[i].step_ns != reports.reports[i - 1].step_ns);
        assert_true(reports.reports[i].bubble_ratio > -1e-9);
        sum_ns += step_ns;
        reported_ns += reports.reports[i].step_ns;
    }
    assert_true(sum_ns / DEVICES - reported_ns <= STEPS);
    rp_trainer_free(trainer);
    rp_tiny_model_free(model);
}

RP_TEST(goes_on_after_a_restore_as_if_nothing_had_happened)
{
    for (guint mode = 0; mode < 16; mode += RP_TEST_FEW ? 5 : 1) {
        RpTinyModel *model = rp_tiny_model_new((mode & 1) != 0);
        RpTinyRun run = {"roundpipe",
                         2,
                         4,
                         .async = (mode & 2) != 0,
                         .lean = (mode & 4) != 0,
                         .dtype = mode & 8 ? RP_DTYPE_FP16 : RP_DTYPE_FP32,
                         .max_grad_norm = 0.5,
                         .form = {(RpUpdateRule)(mode / 5 % RP_N_UPDATES),
                                  (RpMoments)(mode / 3 % 2), (RpMoments)(mode % RP_N_MOMENTS)}};
        GError *error = NULL;
        g_autofree char *expected = rp_tiny_run_hash(model, &run, 8);
        RpTrainer *first = rp_tiny_trainer(model, &run, &error);
        RpTrainer *second;
        RpUpdateState update;

        rp_tiny_train(first, &run, 0, 5, NULL);
        run.devices = 3;
        run.n_stages = 1;
        second = rp_tiny_trainer(model, &run, &error);
        for (guint w = 0; w < rp_weights_count(model->weights); w++) {
            const RpOptimizerState weight = rp_trainer_weight_state(first, w);

            if (!rp_weights_nth(model->weights, w)->tied)
                assert_true(rp_trainer_restore_weight(second, w, &weight,
                                                      rp_trainer_next_weight(first, w), &error));
        }
        update = rp_host_state_updates(rp_trainer_host_state(first));
        assert_int_equal(update.n_iterations, 5);
        rp_trainer_restore(second, &update);
        rp_trainer_free(first);
        rp_tiny_train(second, &run, 5, 3, NULL);
        assert_int_equal(rp_trainer_n_steps(second), 8);
        g_autofree char *hash = rp_tiny_hash(second);
        if (strcmp(hash, expected) != 0)
            fail_msg("mode %u: other bits after the restore", mode);
        rp_trainer_free(second);
        rp_tiny_model_free(model);
    }
}

RP_TEST(refuses_what_does_not_fit)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    RpTinyRun run = {"roundpipe", 2, 4, .host_memory_bytes = 1 << 20};
    GError *error = NULL;

    assert_null(rp_tiny_trainer(model, &run, &error));
    assert_int_equal(error->domain, RP_TRAINER_ERROR);
    assert_int_equal(error->code, RP_TRAINER_ERROR_MEMORY);
    assert_non_null(strstr(error->message, "host memory"));
    g_clear_error(&error);
    run.host_memory_bytes = 0;
    run.device_memory_bytes = 4096;
    assert_null(rp_tiny_trainer(model, &run, &error));
    assert_int_equal(error->code, RP_TRAINER_ERROR_MEMORY);
    assert_non_null(strstr(error->message, "gpu 0"));
    g_clear_error(&error);
    run = (RpTinyRun){"zb-h1", 2, 4};
    assert_null(rp_tiny_trainer(model, &run, &error));
    assert_int_equal(error->code, RP_TRAINER_ERROR_OPTIONS);
    g_clear_error(&error);
    rp_tiny_model_free(model);
}

/* A NaN among the weights of a block: where it shows first is named. */
RP_TEST(names_the_layer_whose_output_is_not_finite)
{
    for (guint devices = 1; devices <= 3; devices++) {
        RpTinyModel *model = rp_tiny_model_new(FALSE);
        const RpTinyRun run = {"roundpipe", devices, 4};
        GError *error = NULL;
        RpTrainer *trainer = rp_tiny_trainer(model, &run, &error);
        RpTokenBatch *batch = rp_tiny_batch(0, 0, 4);
        const int q = rp_weights_find(model->weights, 3, RP_WEIGHT_Q);
        double loss;

        ((float *)(gpointer)rp_trainer_next_weight(trainer, (guint)q))[5] = NAN;
        assert_false(rp_trainer_forward_backward(trainer, batch, &loss, &error));
        if (strstr(error->message, "step 1:") == NULL ||
            strstr(error->message, "layer 3 (model.layers.2)") == NULL ||
            strstr(error->message, "learning_rate") == NULL)
            fail_msg("not what was expected: %s", error->message);
        g_clear_error(&error);
        rp_trainer_free(trainer);
        rp_token_batch_free(batch);
        rp_tiny_model_free(model);
    }
}

/* fp16: a scale that is too large is lowered, the step is skipped, nothing else changes. */
RP_TEST(skips_a_step_whose_gradients_overflow)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);
    Reports reports = {0};
    RpTinyRun run = {
        "roundpipe",          2, 4, .dtype = RP_DTYPE_FP16, .async = TRUE, .done = note_report,
        .user_data = &reports};
    GError *error = NULL;
    RpTrainer *trainer = rp_tiny_trainer(model, &run, &error);
    RpUpdateState update = rp_host_state_updates(rp_trainer_host_state(trainer));
    g_autofree char *before = NULL, *after = NULL;

    update.loss_scale.scale = update.next_scale = 0x1p40f;
    rp_trainer_restore(trainer, &update);
    before = rp_tiny_hash(trainer);
    rp_tiny_train(trainer, &run, 0, 2, NULL);
    after = rp_tiny_hash(trainer);
    assert_int_equal(reports.n, 2);
    assert_true(reports.reports[0].skipped && reports.reports[1].skipped);
    assert_true(reports.reports[0].loss_scale == 0x1p40f);
    assert_true(isfinite(reports.reports[0].loss));
    assert_string_equal(before, after);
    assert_true(rp_host_state_updates(rp_trainer_host_state(trainer)).loss_scale.scale == 0x1p38f);
    assert_int_equal(rp_host_state_updates(rp_trainer_host_state(trainer)).n_updates, 0);
    rp_trainer_free(trainer);
    rp_tiny_model_free(model);
}

RP_TEST(skips_a_step_whose_forward_overflows)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);

    for (guint async = 0; async < 2; async++)
        g_free(rp_overflow_check_skips(model, rp_host_devices(), async != 0));
    rp_tiny_model_free(model);
}

/* The head's stage trains nothing, and a loss may be infinite whose gradient is not. */
RP_TEST(skips_it_where_only_the_first_block_has_an_adapter)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);

    rp_tiny_model_adapt(model, 2, "layers.0.mlp.down_proj", RP_DTYPE_FP16);
    for (guint async = 0; async < 2; async++)
        g_free(rp_overflow_check_skips(model, rp_host_devices(), async != 0));
    rp_tiny_model_free(model);
}

RP_TEST(gives_up_after_so_many_skipped_steps)
{
    RpTinyModel *model = rp_tiny_model_new(FALSE);

    rp_overflow_check_gives_up(model, rp_host_devices());
    rp_tiny_model_free(model);
}
