/* The CUDA backend over a CUDA of threads: what a GPU cannot be made to do. */
#include "tests/exec-train/train-fixture.h"

#include "exec/cuda/backend.h"
#include "tests/exec-cuda/soft-cuda.h"

typedef struct {
    RpTinyModel *model;
    RpTrainer *trainer;
    GError *error;
} Fixture;

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->model = rp_tiny_model_new(FALSE);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_trainer_free(f->trainer);
    g_clear_error(&f->error);
    rp_tiny_model_free(f->model);
    g_free(f);
    soft_cuda_fail_at(0);
    soft_cuda_delay(0);
    return 0;
}

static const RpTinyRun *
runs(void)
{
    static RpTinyRun table[2];

    table[0] = (RpTinyRun){"roundpipe", 2, 4, .backend = rp_cuda_devices(), .async = TRUE};
    table[1] = (RpTinyRun){"1f1b", 2, 4, .backend = rp_cuda_devices()};
    return table;
}

/* Bit for bit: the kernels are the host's. */
static void
gives_the_bits_of_the_host(void **state)
{
    Fixture *f = *state;

    for (guint i = 0; i < 2; i++) {
        RpTinyRun host = runs()[i];
        g_autofree char *found = rp_tiny_run_hash(f->model, &runs()[i], 4);

        host.backend = NULL;
        g_autofree char *expected = rp_tiny_run_hash(f->model, &host, 4);
        assert_string_equal(found, expected);
        assert_int_equal(soft_cuda_n_left(), 0);
    }
}

/* Three steps; FALSE with the fixture's error where one fails. */
static gboolean
train(Fixture *f, const RpTinyRun *run)
{
    RpTokenBatch *batches[3] = {NULL};
    gboolean done = TRUE;

    f->trainer = rp_tiny_trainer(f->model, run, &f->error);
    for (guint i = 0; f->trainer != NULL && i < G_N_ELEMENTS(batches) && done; i++) {
        batches[i] = rp_tiny_batch(i, 0, run->micro_batches);
        done = rp_trainer_forward_backward(f->trainer, batches[i], NULL, &f->error) &&
               rp_trainer_step(f->trainer, &f->error);
    }
    done = done && f->trainer != NULL && rp_trainer_flush(f->trainer, &f->error);
    g_clear_pointer(&f->trainer, rp_trainer_free);
    for (guint i = 0; i < G_N_ELEMENTS(batches); i++)
        rp_token_batch_free(batches[i]);
    return done;
}

static void
ends_cleanly_whenever_cuda_fails(void **state)
{
    Fixture *f = *state;

    for (guint i = 0; i < 2; i++)
        for (guint64 n = 1; n < 3000; n = n * 5 / 3 + 1) {
            soft_cuda_fail_at(n);
            assert_false(train(f, &runs()[i]));
            rp_assert_error_message_contains(f->error, "illegal memory access");
            rp_assert_error_message_contains(f->error, "device ");
            g_clear_error(&f->error);
            assert_int_equal(soft_cuda_n_left(), 0);
        }
}

static void
sum_losses(gpointer user_data, const RpStepReport *report)
{
    *(double *)user_data += report->loss;
}

/* More micro-batches than there are slots for token ids and targets, whose copies are slow. */
static void
waits_for_copies_and_losses_that_take_long(void **state)
{
    Fixture *f = *state;
    double found = 0, expected = 0;
    RpTinyRun run = {
        "roundpipe",        2, 80, .backend = rp_cuda_devices(), .async = TRUE, .done = sum_losses,
        .user_data = &found};

    soft_cuda_delay(200000);
    assert_true(train(f, &run));
    soft_cuda_delay(0);
    run.backend = NULL;
    run.user_data = &expected;
    assert_true(train(f, &run));
    assert_true(found > 0 && found == expected);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gives_the_bits_of_the_host, set_up, tear_down),
        cmocka_unit_test_setup_teardown(waits_for_copies_and_losses_that_take_long, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ends_cleanly_whenever_cuda_fails, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
