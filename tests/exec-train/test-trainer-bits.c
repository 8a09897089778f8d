/* Weights after six steps are the same bits, however the work is spread. */
#include "tests/exec-train/train-fixture.h"

#include "exec/host/kernels.h"
#include "exec/optim/adamw/adamw.h"

#define STEPS (RP_TEST_ALL ? 6 : 3)

typedef struct {
    RpTinyModel *model;
} Fixture;

static void
set_up(Fixture *f)
{
    f->model = rp_tiny_model_new(FALSE);
}

static void
tear_down(Fixture *f)
{
    rp_tiny_model_free(f->model);
}

static void
assert_same(const RpTinyModel *model, const RpTinyRun *run, const char *expected)
{
    g_autofree char *hash = rp_tiny_run_hash(model, run, STEPS);

    if (strcmp(hash, expected) != 0)
        fail_msg("%s on %u devices, stages %u, round %u, async %d, blocking %d, lean %d, naive %d: "
                 "other bits",
                 run->schedule, run->devices, run->n_stages, run->round, run->async, run->blocking,
                 run->lean, run->naive);
}

RP_TEST_OF(for_devices_and_partitions, const Fixture *f)
{
    static const guint devices[] = {1, 2, 3, 4, 8};

    for (guint async = 0; async < 2; async++) {
        const RpTinyRun one = {"roundpipe", 1, 8, .async = async, .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(f->model, &one, STEPS);

        for (guint d = 0; d < G_N_ELEMENTS(devices); d++) {
            for (guint stages = 1; stages <= 5; stages += 2) {
                const RpTinyRun run = {
                    "roundpipe",          devices[d],          8,
                    .async = async,       .n_stages = stages,  .gated = stages == 3,
                    .naive = stages == 5, .max_grad_norm = 0.5};

                assert_same(f->model, &run, expected);
            }
        }
    }
}

/* Dense blocks and experts; forwards that save everything that they can, or attention alone. */
RP_TEST_OF(for_all_that_forwards_save, const Fixture *f)
{
    static const guint groups[] = {RP_SAVED(ATTENTION), RP_SAVED(QKV) | RP_SAVED(RESIDUAL),
                                   (1u << RP_N_SAVED_GROUPS) - 1};
    RpTinyModel *experts = rp_tiny_model_new_experts();

    for (guint variant = 0; variant < 4; variant++) {
        const RpTinyModel *model = variant & 1 ? experts : f->model;
        RpTinyRun run = {"roundpipe", 1, 8, .async = variant < 2, .max_grad_norm = 0.5};

        run.round = variant & 2 ? 4 : 0;
        g_autofree char *expected = rp_tiny_run_hash(model, &run, STEPS);

        for (guint i = 0; i < G_N_ELEMENTS(groups); i++) {
            for (guint devices = 1; devices <= 4; devices *= 2) {
                run.devices = devices;
                run.n_stages = 1 + i;
                run.saved = groups[i];
                run.naive = devices == 2;
                assert_same(model, &run, expected);
            }
        }
    }
    rp_tiny_model_free(experts);
}

RP_TEST_OF(for_schedules, const Fixture *f)
{
    static const struct {
        const char *name;
        guint devices, stages;
    } bound[] = {{"gpipe", 2, 2},
                 {"1f1b", 3, 3},
                 {"1f1b", 5, 5},
                 {"looped-bfs", 2, 4},
                 {"interleaved-1f1b", 2, 4},
                 {"mobius", 2, 4}};

    for (guint async = 0; async < 2; async++) {
        const RpTinyRun one = {"roundpipe", 1, 8, .async = async, .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(f->model, &one, STEPS);

        for (guint i = 0; i < G_N_ELEMENTS(bound); i++) {
            const RpTinyRun run = {
                bound[i].name,  bound[i].devices,    8, .n_stages = bound[i].stages,
                .async = async, .max_grad_norm = 0.5};

            assert_same(f->model, &run, expected);
        }
    }
}

RP_TEST_OF(for_consistency_and_optimizer_modes, const Fixture *f)
{
    for (guint async = 0; async < 2; async++) {
        RpTinyRun run = {"roundpipe", 3, 4, .async = async, .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(f->model, &run, STEPS);

        for (guint mode = 1; mode < 4; mode++) {
            run.blocking = (mode & 1) != 0;
            run.lean = (mode & 2) != 0;
            run.threads = mode;
            assert_same(f->model, &run, expected);
        }
    }
}

RP_TEST_OF(for_rounds_on_any_devices_and_for_calls, const Fixture *f)
{
    const RpTinyRun rounds = {"roundpipe", 1, 8, .round = 4, .async = TRUE, .max_grad_norm = 0.5};
    g_autofree char *expected = rp_tiny_run_hash(f->model, &rounds, STEPS);

    for (guint devices = 1; devices <= 4; devices++) {
        const RpTinyRun run = {"roundpipe", devices,       8,
                               .round = 4,  .async = TRUE, .max_grad_norm = 0.5};
        const RpTinyRun calls = {"roundpipe", devices,       4,
                                 .calls = 2,  .async = TRUE, .max_grad_norm = 0.5};

        assert_same(f->model, &run, expected);
        assert_same(f->model, &calls, expected);
    }
}

/* Groups of devices that share out the rounds: sums of rounds are added up in the same order. */
RP_TEST_OF(for_replicas, const Fixture *f)
{
    static const guint rounds[] = {8, 4, 2};

    for (guint i = 0; i < G_N_ELEMENTS(rounds); i++)
        for (guint how = 0; how < 4; how++) {
            RpTinyRun run = {"roundpipe",
                             1,
                             16,
                             .round = rounds[i],
                             .async = how % 2,
                             .saved = how < 2 ? 0 : RP_SAVED(ATTENTION),
                             .max_grad_norm = 0.5};
            g_autofree char *expected = rp_tiny_run_hash(f->model, &run, STEPS);

            for (run.replicas = 2; run.replicas <= 4; run.replicas *= 2)
                for (guint devices = 1; devices <= 2 && 16 / rounds[i] >= run.replicas; devices++) {
                    run.devices = devices * run.replicas;
                    assert_same(f->model, &run, expected);
                }
        }
}

/* One stage of all blocks, so that its rounds leave several devices at once. */
RP_TEST_OF(for_many_rounds_of_few_stages, const Fixture *f)
{
    static const guint devices[] = {2, 3, 5};

    for (guint async = 0; async < 2; async++) {
        RpTinyRun run = {"roundpipe", 1, 20, .round = 5, .async = async, .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(f->model, &run, STEPS);

        run.n_stages = 6;
        for (guint d = 0; d < G_N_ELEMENTS(devices); d++) {
            run.devices = devices[d];
            assert_same(f->model, &run, expected);
        }
    }
}

RP_TEST_OF(for_calls_of_bound_schedules, const Fixture *f)
{
    const RpTinyRun whole = {"1f1b", 2, 8, .max_grad_norm = 0.5};
    g_autofree char *expected = rp_tiny_run_hash(f->model, &whole, STEPS);
    const RpTinyRun calls = {"1f1b", 2, 2, .calls = 4, .max_grad_norm = 0.5};

    assert_same(f->model, &calls, expected);
}

/* A norm that nothing reaches clips nothing, but every step waits for it. */
RP_TEST(for_layers_that_step_as_soon_as_their_gradient_is_home)
{
    RpTinyModel *models[2] = {rp_tiny_model_new(FALSE), rp_tiny_model_new(TRUE)};

    for (guint mode = 0; mode < 16; mode++) {
        RpTinyRun run = {"roundpipe",
                         1 + mode % 3,
                         8,
                         .n_stages = 3,
                         .round = mode & 8 ? 4 : 0,
                         .async = (mode & 2) != 0,
                         .lean = (mode & 4) != 0,
                         .max_grad_norm = 1e9};
        const RpTinyModel *model = models[mode & 1];
        g_autofree char *expected = rp_tiny_run_hash(model, &run, STEPS);

        run.max_grad_norm = 0;
        assert_same(model, &run, expected);
        if (run.round > 0)
            continue;
        run.schedule = "1f1b";
        run.devices = run.n_stages = 3;
        assert_same(model, &run, expected);
    }
    for (guint i = 0; i < 2; i++)
        rp_tiny_model_free(models[i]);
}

RP_TEST(for_sixteen_bit_storage_and_tied_matrices)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};
    RpTinyModel *tied = rp_tiny_model_new(TRUE);

    for (guint i = 0; i < G_N_ELEMENTS(dtypes); i++) {
        const RpTinyRun one = {"roundpipe",         1, 6, .async = TRUE, .dtype = dtypes[i],
                               .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(tied, &one, STEPS);
        const RpTinyRun three = {"roundpipe",
                                 3,
                                 6,
                                 .async = TRUE,
                                 .dtype = dtypes[i],
                                 .n_stages = 1,
                                 .lean = TRUE,
                                 .max_grad_norm = 0.5};
        const RpTinyRun bound = {"1f1b",
                                 2,
                                 6,
                                 .async = TRUE,
                                 .dtype = dtypes[i],
                                 .blocking = TRUE,
                                 .max_grad_norm = 0.5};

        assert_same(tied, &three, expected);
        assert_same(tied, &bound, expected);
    }
    rp_tiny_model_free(tied);
}

/* With random bits that belong to the parameter and the step. */
RP_TEST(for_all_that_optimizers_keep)
{
    static const RpStateFormat forms[] = {
        {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_BF16},
        {RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8},
        {RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_FP32},
        {RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_FP32},
        {RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_INT8},
    };
    RpTinyModel *tied = rp_tiny_model_new(TRUE);

    for (guint i = 0; i < G_N_ELEMENTS(forms); i++) {
        const RpTinyRun one = {
            "roundpipe",     1, 8, .async = TRUE, .dtype = RP_DTYPE_BF16, .max_grad_norm = 0.5,
            .form = forms[i]};
        g_autofree char *expected = rp_tiny_run_hash(tied, &one, STEPS);
        RpTinyRun wide = one;

        wide.form = RP_STATE_FORMAT_FP32;
        g_autofree char *other = rp_tiny_run_hash(tied, &wide, STEPS);

        assert_string_not_equal(other, expected);
        for (guint devices = 1; devices <= 4; devices++) {
            RpTinyRun run = one;

            run.devices = devices;
            run.lean = devices == 2;
            run.blocking = devices == 3;
            run.n_stages = devices % 2;
            run.threads = devices;
            assert_same(tied, &run, expected);
        }
    }
    rp_tiny_model_free(tied);
}

/* The experts' matrices stand in stacks whose size is no multiple of the layout's alignment. */
RP_TEST(for_experts)
{
    static const guint devices[] = {1, 2, 4};
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16};
    RpTinyModel *model = rp_tiny_model_new_experts();

    for (guint i = 0; i < G_N_ELEMENTS(dtypes); i++) {
        const RpTinyRun one = {"roundpipe",         1, 8, .async = TRUE, .dtype = dtypes[i],
                               .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(model, &one, STEPS);

        for (guint d = 0; d < G_N_ELEMENTS(devices); d++) {
            RpTinyRun run = one;

            run.devices = devices[d];
            run.lean = devices[d] == 4;
            run.n_stages = devices[d];
            assert_same(model, &run, expected);
            run.schedule = "1f1b";
            assert_same(model, &run, expected);
        }
    }
    rp_tiny_model_free(model);
}

/* A device's kernel sums a gradient to the same bits as the optimizer. */
RP_TEST(for_squares_wherever_they_are_summed)
{
    static const gsize lengths[] = {1, 31, 513, 65535, 65536, 65537, 200000};
    g_autofree float *values = g_new(float, 200000);
    g_autofree void *stored = g_malloc(200000 * sizeof(float));

    for (gsize i = 0; i < 200000; i++)
        values[i] = (float)((guint32)(i * 2654435761U) % 4093) / 1024 - 2;
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        if (rp_dtype_size((RpDtype)dtype) < 2)
            continue;
        rp_dtype_from_float((RpDtype)dtype, values, stored, 200000);
        for (guint i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const double expected =
                rp_adamw_sum_squares(rp_adamw_best(), stored, (RpDtype)dtype, lengths[i]);
            double sum = 0;

            rp_host_kernels()->sum_squares(
                NULL, &(RpSumSquaresArgs){
                          .dtype = (RpDtype)dtype, .n = lengths[i], .x = stored, .sum = &sum});
            assert_memory_equal(&sum, &expected, sizeof sum);
        }
    }
}

/* Synchronous, one stage of all blocks: actions go in pieces, and each layer travels alone. Naive
 * transfers have whole actions. */
RP_TEST(for_actions_in_pieces)
{
    RpTinyModel *models[] = {rp_tiny_model_new(FALSE), rp_tiny_model_new(TRUE),
                             rp_tiny_model_new_experts()};
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};

    for (guint i = 0; i < 3 * G_N_ELEMENTS(models); i++) {
        const RpTinyModel *model = models[i % 3];
        RpTinyRun run = {
            "roundpipe",         1, 8, .naive = TRUE, .n_stages = 6, .dtype = dtypes[i / 3],
            .max_grad_norm = 0.5};
        g_autofree char *expected = rp_tiny_run_hash(model, &run, STEPS);
        RpTinyRun one = run;

        run.naive = FALSE;
        assert_same(model, &run, expected);
        one.micro_batches = 1;
        g_autofree char *alone = rp_tiny_run_hash(model, &one, STEPS);
        one.naive = FALSE;
        assert_same(model, &one, alone);
        run.round = 4;
        run.naive = TRUE;
        g_autofree char *rounds = rp_tiny_run_hash(model, &run, STEPS);
        for (run.naive = FALSE, run.devices = 1; run.devices <= 4; run.devices++) {
            run.lean = run.devices == 4;
            assert_same(model, &run, rounds);
        }
    }
    for (guint i = 0; i < G_N_ELEMENTS(models); i++)
        rp_tiny_model_free(models[i]);
}

/* Norms that clip no step, every step, and some; in fp16 the first steps are skipped. */
RP_TEST(for_weights_that_are_written_before_the_norm_is_known)
{
    static const double norms[] = {1e9, 0.05, 0.5, 1};
    RpTinyModel *models[2] = {rp_tiny_model_new(FALSE), rp_tiny_model_new(TRUE)};

    for (guint mode = 0; mode < 32; mode++) {
        RpTinyRun run = {"roundpipe",
                         1 + mode % 3,
                         8,
                         .n_stages = mode & 2 ? 6 : 2,
                         .round = mode & 4 ? 4 : 0,
                         .dtype = mode % 5 == 0 ? RP_DTYPE_FP16 : RP_DTYPE_FP32,
                         .threads = mode % 3,
                         .max_grad_norm = norms[mode / 8]};
        const RpTinyModel *model = models[mode & 1];
        g_autofree char *expected = rp_tiny_run_hash(model, &run, STEPS);

        run.early_steps = TRUE;
        assert_same(model, &run, expected);
        if (run.round > 0)
            continue;
        run.schedule = "1f1b";
        run.devices = run.n_stages = 3;
        assert_same(model, &run, expected);
    }
    for (guint i = 0; i < 2; i++)
        rp_tiny_model_free(models[i]);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
