/* Training on GPUs against training on the host. A GPU may stand for several devices of a plan, so
 * that one is enough. The same program runs over a CUDA of threads (soft-cuda.h) where there is no
 * GPU. Exits 77 without a device. */
#include "tests/exec-train/overflow.h"
#include "tests/exec-train/rig.h"
#include "tests/exec-train/train-fixture.h"

#include <math.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/model/init.h"

#define STEPS (RP_TEST_SMALL ? 3 : 5)
#define DEEP_BLOCKS 8 /* two stages for each of four devices */

typedef struct {
    RpTinyModel *model;
    RpTinyModel *tied;
    RpTinyModel *deep; /* DEEP_BLOCKS blocks; where a test has made it */
    RpTrainer *trainer;
    GError *error;
} Fixture;

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->model = rp_tiny_model_new(FALSE);
    f->tied = rp_tiny_model_new(TRUE);
    *state = f;
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_trainer_free(f->trainer);
    g_clear_error(&f->error);
    if (f->deep != NULL)
        rp_tiny_model_free(f->deep);
    rp_tiny_model_free(f->tied);
    rp_tiny_model_free(f->model);
    g_free(f);
    return 0;
}

static void
make_deep(Fixture *f)
{
    const RpInitOptions options = {.seed = 7};
    RpTinyModel *deep = f->deep = g_new0(RpTinyModel, 1);

    deep->config = f->model->config;
    deep->config.blocks = DEEP_BLOCKS;
    deep->directory = g_dir_make_tmp("rp-deep-XXXXXX", NULL);
    g_assert_true(rp_init_write(&deep->config, deep->directory, &options, &f->error));
    deep->file = rp_safetensors_open(deep->directory, &f->error);
    g_assert_no_error(f->error);
    deep->weights = rp_weights_new(&deep->config);
    g_assert_true(rp_weights_bind(deep->weights, deep->file, &f->error));
}

static void
train(Fixture *f, const RpTinyModel *model, const RpTinyRun *run, double *losses)
{
    g_clear_pointer(&f->trainer, rp_trainer_free);
    f->trainer = rp_must(rp_tiny_trainer, model, run);
    rp_tiny_train(f->trainer, run, 0, STEPS, losses);
}

static void
assert_losses_like_the_host(Fixture *f, const RpTinyModel *model, const RpTinyRun *run)
{
    RpTinyRun host = *run;
    double expected[STEPS], found[STEPS];

    host.backend = NULL;
    train(f, model, &host, expected);
    train(f, model, run, found);
    for (guint i = 0; i < STEPS; i++) {
        /* an update may turn round where a gradient is nearly zero, so later steps drift */
        const double tolerance = i == 0 ? 1e-5 : 1e-4;

        if (!(fabs(found[i] / expected[i] - 1) < tolerance))
            fail_msg("%s on %u devices: step %u: %.9g, on the host %.9g", run->schedule,
                     run->devices, i + 1, found[i], expected[i]);
    }
}

RP_TEST_WITH(gives_the_losses_of_the_host, set_up, tear_down)
{
    Fixture *f = *state;
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = rp_cuda_shared_devices()},
        {"roundpipe", 2, 4, .backend = rp_cuda_shared_devices(), .async = TRUE},
        {"1f1b", 2, 4, .backend = rp_cuda_shared_devices()},
        {"roundpipe", 2, 6, .backend = rp_cuda_shared_devices(), .round = 3},
        {"roundpipe", 1, 2, .backend = rp_cuda_shared_devices(), .calls = 2},
    };

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++)
        assert_losses_like_the_host(f, f->model, &runs[i]);
    assert_losses_like_the_host(f, f->tied, &runs[0]);
    assert_losses_like_the_host(f, f->tied, &runs[3]);
}

static void
assert_same_bits(const RpTinyModel *model, const RpTinyRun *runs, guint n)
{
    g_autofree char *expected = rp_tiny_run_hash(model, &runs[0], STEPS);

    for (guint i = 0; i < n; i++) { /* the first again: two runs are the same */
        g_autofree char *found = rp_tiny_run_hash(model, &runs[i], STEPS);

        if (strcmp(found, expected) != 0)
            fail_msg("%s on %u devices (run %u): other bits than run 0", runs[i].schedule,
                     runs[i].devices, i);
    }
}

/* gpipe, 1f1b and looped-bfs, each on one, two and four devices. On devices of their own as far as
 * there are as many. Returns: how many there are */
static guint
make_bound_runs(RpTinyRun runs[9])
{
    static const char *const schedules[] = {"gpipe", "1f1b", "looped-bfs"};
    guint n = 0;

    for (guint s = 0; s < G_N_ELEMENTS(schedules); s++)
        for (guint devices = 1; devices <= 4; devices *= 2)
            runs[n++] = (RpTinyRun){schedules[s], devices, 4, .n_stages = s == 2 ? DEEP_BLOCKS : 0,
                                    .backend = rp_cuda_shared_devices()};
    return n;
}

RP_TEST_WITH(gives_the_losses_of_the_host_in_bound_schedules, set_up, tear_down)
{
    Fixture *f = *state;
    RpTinyRun runs[9];
    const guint n = make_bound_runs(runs);

    if (RP_TEST_FEW) /* it compares values alone: the next one runs the same */
        return;
    make_deep(f);
    for (guint i = 0; i < n; i++)
        assert_losses_like_the_host(f, f->deep, &runs[i]);
    print_message("%u devices shared among up to four of a plan\n", rp_cuda_device_count());
}

RP_TEST_WITH(gives_the_same_bits_in_bound_schedules, set_up, tear_down)
{
    Fixture *f = *state;
    RpTinyRun runs[9];
    const guint n = make_bound_runs(runs);

    make_deep(f);
    assert_same_bits(f->deep, runs, n);
}

RP_TEST_WITH(gives_the_same_bits_on_any_number_of_devices, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = gpus},
        {"roundpipe", 2, 4, .backend = gpus},
        {"roundpipe", 3, 4, .backend = gpus, .n_stages = 1},
        {"roundpipe", 2, 4, .backend = gpus, .gated = TRUE, .threads = 2},
        {"roundpipe", 2, 4, .backend = gpus, .blocking = TRUE},
        {"roundpipe", 2, 4, .backend = gpus, .naive = TRUE},
        {"1f1b", 2, 4, .backend = gpus},
        {"gpipe", 1, 4, .backend = gpus},
        {"looped-bfs", 2, 4, .backend = gpus, .n_stages = 4},
    };

    assert_same_bits(f->model, runs, G_N_ELEMENTS(runs));
}

RP_TEST_WITH(gives_the_same_bits_whatever_is_saved, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const guint all = (1u << RP_N_SAVED_GROUPS) - 1;
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = gpus, .dtype = RP_DTYPE_BF16},
        {"roundpipe", 1, 4, .backend = gpus, .dtype = RP_DTYPE_BF16, .saved = all},
        {"roundpipe", 2, 4, .backend = gpus, .dtype = RP_DTYPE_BF16, .saved = all, .n_stages = 1},
        {"roundpipe", 2, 4, .backend = gpus, .dtype = RP_DTYPE_BF16, .saved = RP_SAVED(ATTENTION),
         .naive = TRUE},
        {"roundpipe", 3, 4, .backend = gpus, .dtype = RP_DTYPE_BF16,
         .saved = RP_SAVED(QKV) | RP_SAVED(RESIDUAL), .n_stages = 3},
    };

    assert_same_bits(f->model, runs, G_N_ELEMENTS(runs));
}

RP_TEST_WITH(packs_samples_as_the_host_does, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = gpus, .packed = TRUE},
        {"roundpipe", 2, 4, .backend = gpus, .packed = TRUE},
        {"roundpipe", 3, 4, .backend = gpus, .packed = TRUE, .n_stages = 1},
        {"1f1b", 2, 4, .backend = gpus, .packed = TRUE},
    };

    assert_losses_like_the_host(f, f->model, &runs[1]);
    assert_same_bits(f->model, runs, G_N_ELEMENTS(runs));
}

/* Kernels expand to the bits of the host's, so that losses differ as those of other models do. */
RP_TEST_WITH(trains_beside_a_packed_base, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = gpus},
        {"roundpipe", 2, 4, .backend = gpus},
        {"roundpipe", 3, 4, .backend = gpus, .n_stages = 1},
        {"1f1b", 2, 4, .backend = gpus},
    };

    /* with RP_TEST_FEW one format: dependencies are the same for all */
    for (guint format = 0; format < (RP_TEST_FEW ? 1 : RP_N_LOWBITS); format++) {
        rp_tiny_model_adapt(f->model, 3, NULL, RP_DTYPE_FP32);
        rp_tiny_model_pack(f->model, (RpLowbit)format);
        assert_losses_like_the_host(f, f->model, &runs[1]);
        assert_same_bits(f->model, runs, G_N_ELEMENTS(runs));
    }
}

RP_TEST_WITH(gives_the_same_bits_asynchronously_on_any_number_of_devices, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const RpTinyRun runs[] = {
        {"roundpipe", 1, 4, .backend = gpus, .async = TRUE},
        {"roundpipe", 2, 4, .backend = gpus, .async = TRUE},
        {"roundpipe", 3, 4, .backend = gpus, .async = TRUE, .n_stages = 3, .gated = TRUE},
        {"roundpipe", 2, 4, .backend = gpus, .async = TRUE, .blocking = TRUE},
        {"1f1b", 2, 4, .backend = gpus, .async = TRUE},
    };

    assert_same_bits(f->model, runs, G_N_ELEMENTS(runs));
}

RP_TEST_WITH(gives_the_same_bits_in_16_bit_storage, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    const RpTinyRun bf16[] = {
        {"roundpipe", 1, 4, .backend = gpus, .dtype = RP_DTYPE_BF16},
        {"roundpipe", 2, 4, .backend = gpus, .dtype = RP_DTYPE_BF16},
    };
    const RpTinyRun fp16[] = {
        {"roundpipe", 1, 4, .backend = gpus, .dtype = RP_DTYPE_FP16, .async = TRUE},
        {"roundpipe", 2, 4, .backend = gpus, .dtype = RP_DTYPE_FP16, .async = TRUE},
    };

    assert_same_bits(f->model, bf16, G_N_ELEMENTS(bf16));
    assert_same_bits(f->model, fp16, G_N_ELEMENTS(fp16));
}

/* One stage: on one device its sums stay there, on others they are added up on the host. */
RP_TEST_WITH(gives_the_same_bits_wherever_rounds_are_summed, set_up, tear_down)
{
    Fixture *f = *state;
    const RpDeviceOps *gpus = rp_cuda_shared_devices();
    RpTinyRun runs[4];

    for (guint i = 0; i < G_N_ELEMENTS(runs); i++)
        runs[i] = (RpTinyRun){"roundpipe",    i + 1,         16,
                              .round = 4,     .n_stages = 6, .dtype = RP_DTYPE_BF16,
                              .backend = gpus};
    assert_same_bits(f->model, runs, RP_TEST_FEW ? 2 : G_N_ELEMENTS(runs));
}

typedef struct {
    guint n;
    double losses[STEPS];
} Reports;

static void
note_step(gpointer user_data, const RpStepReport *report)
{
    Reports *reports = user_data;

    assert_true(reports->n < STEPS);
    assert_true(report->step_ns > 0);
    reports->losses[reports->n++] = report->loss;
}

RP_TEST_WITH(tells_every_loss_before_its_step_is_over, set_up, tear_down)
{
    Fixture *f = *state;
    Reports reports = {.n = 0};
    double losses[STEPS];
    const RpTinyRun run = {"roundpipe",
                           2,
                           4,
                           .async = TRUE,
                           .backend = rp_cuda_shared_devices(),
                           .done = note_step,
                           .user_data = &reports};

    train(f, f->model, &run, losses);
    assert_int_equal(reports.n, STEPS);
    for (guint i = 0; i < STEPS; i++)
        assert_true(reports.losses[i] == losses[i] && losses[i] > 0);
    g_clear_pointer(&f->trainer, rp_trainer_free);
}

/* Times of one lane come from events of one stream; CUDA's are good to half a microsecond. */
RP_TEST_WITH(measures_tasks_of_a_lane_one_after_the_other, set_up, tear_down)
{
    Fixture *f = *state;
    const RpTinyRun run = {
        "roundpipe", 2, 4, .async = TRUE, .backend = rp_cuda_shared_devices(), .keep_trace = TRUE};
    const gint64 slack_ns = 2000;
    gint64 ends_ns[2 * RP_LANES_PER_DEVICE + RP_HOST_LANES];

    for (guint l = 0; l < G_N_ELEMENTS(ends_ns); l++)
        ends_ns[l] = G_MININT64 / 2; /* events before the first action have negative times */
    train(f, f->model, &run, NULL);
    g_autoptr(RpTrace) trace = rp_trainer_steal_trace(f->trainer);
    assert_non_null(trace);
    assert_true(rp_trace_n_records(trace) > 0);
    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        const RpTraceRecord *record = &rp_trace_records(trace)[i];

        assert_true(record->lane < G_N_ELEMENTS(ends_ns));
        if (record->start_ns < ends_ns[record->lane] - slack_ns ||
            record->end_ns < record->start_ns - slack_ns)
            fail_msg("record %zu of lane %u: %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT
                     ", the one before ended at %" G_GINT64_FORMAT,
                     i, record->lane, record->start_ns, record->end_ns, ends_ns[record->lane]);
        ends_ns[record->lane] = record->end_ns;
    }
}

/* ---- failures ---- */

/* A weight that is no number, where the first iteration reads it. */
static gboolean
train_poisoned(Fixture *f, const RpTinyRun *run, guint layer)
{
    g_autoptr(RpTokenBatch) batch = rp_tiny_batch(0, 0, run->micro_batches);
    float *weights;
    guint64 bytes;
    double loss;
    gboolean done;

    g_clear_pointer(&f->trainer, rp_trainer_free);
    g_clear_error(&f->error);
    f->trainer = rp_must(rp_tiny_trainer, f->model, run);
    weights = (float *)(void *)rp_host_state_weights(rp_trainer_host_state(f->trainer), layer, 0, 0,
                                                     &bytes);
    for (guint64 i = 0; i < bytes / sizeof(float); i++)
        weights[i] = NAN;
    done = rp_trainer_forward_backward(f->trainer, batch, &loss, &f->error);
    g_clear_pointer(&f->trainer, rp_trainer_free); /* before the batch */
    return done;
}

RP_TEST_WITH(names_the_first_layer_that_breaks, set_up, tear_down)
{
    Fixture *f = *state;

    for (guint devices = 1; devices <= 2; devices++) {
        const RpTinyRun run = {"roundpipe", devices, 4, .backend = rp_cuda_shared_devices()};

        assert_false(train_poisoned(f, &run, 3));
        rp_assert_error_message_contains(f->error, "step 1: the loss is not a number");
        rp_assert_error_message_contains(
            f->error, "in the output of layer 3 (model.layers.2), sequence 0, token 0;");
        assert_false(train_poisoned(f, &run, 6));
        rp_assert_error_message_contains(f->error, "in the head (lm_head)");
    }
}

/* fp16: not a failure */
RP_TEST_WITH(skips_a_step_whose_forward_overflows, set_up, tear_down)
{
    Fixture *f = *state;

    for (guint async = RP_TEST_FEW ? 1 : 0; async < 2; async++)
        g_free(rp_overflow_check_skips(f->model, rp_cuda_shared_devices(), async != 0));
    if (!RP_TEST_FEW) /* soft-cuda does */
        rp_overflow_check_gives_up(f->model, rp_cuda_shared_devices());
}

static RpBackend *
make_backend(Rig *rig, const RpDeviceOps *ops, guint gpus, guint64 limit)
{
    const RigOptions options = {.dtype = RP_DTYPE_FP32, .gpus = gpus, .micro_batches = gpus};
    const RpDeviceOptions device_options = {.memory_bytes = limit};

    rig_open(rig, &options, 2);
    return ops->backend_new(rig->plan, rig->network, rig->host_state, NULL, &device_options,
                            &rig->error);
}

static void
assert_refuses_arenas(Rig *rig, guint64 limit, guint64 device_bytes, guint64 host_bytes,
                      const char *message)
{
    const RpDeviceOps *ops = rp_cuda_devices();
    RpBackend *backend = make_backend(rig, ops, 1, limit);
    guint64 bytes[2];
    gboolean opened;

    rp_assert_no_error(rig->error);
    bytes[0] = MAX(device_bytes, rp_plan_arena_bytes(rig->plan, 0));
    bytes[1] = MAX(host_bytes, rp_plan_arena_bytes(rig->plan, 1));
    opened = backend->ops->open_arenas(backend, bytes, 2, &rig->error);
    ops->backend_free(backend);
    assert_false(opened);
    rp_assert_error_message_contains(rig->error, message);
    rig_clear(rig);
}

RP_TEST_WITH(refuses_memory_that_is_not_there, rig_set_up, rig_tear_down)
{
    assert_refuses_arenas(*state, 1000, 0, 0, "device 0: the plan needs");
    assert_refuses_arenas(*state, 1000, 0, 0, "more than the limit of 1000");
    assert_refuses_arenas(*state, 0, G_GUINT64_CONSTANT(1) << 46, 0,
                          "device 0: the plan needs 70368744177664 bytes");
    assert_refuses_arenas(*state, 0, 0, G_GUINT64_CONSTANT(1) << 50, "host memory");
}

RP_TEST_WITH(refuses_more_devices_than_there_are, rig_set_up, rig_tear_down)
{
    Rig *rig = *state;
    const guint count = rp_cuda_device_count();
    g_autofree char *message = g_strdup_printf("CUDA finds %u", count);
    RpBackend *backend = make_backend(rig, rp_cuda_devices(), count + 1, 0);

    assert_null(backend);
    rp_assert_error_message_contains(rig->error, message);
}

RP_TEST_WITH(describes_every_device, rig_set_up, rig_tear_down)
{
    const guint count = rp_cuda_device_count();
    Rig *rig = *state;
    RpCudaDeviceInfo info;

    for (guint g = 0; g < count; g++) {
        assert_true(rp_cuda_device_info(g, &info, &rig->error));
        assert_true(info.name[0] != '\0' && info.sm >= 50 && info.multiprocessors > 0);
        assert_true(info.free_bytes > 0 && info.free_bytes <= info.memory_bytes);
    }
    rp_refuses("there is no device", rp_cuda_device_info, count, &info);
}

RP_TEST_NEEDS(rp_cuda_device_count() > 0)
