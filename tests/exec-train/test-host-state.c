#include "tests/exec-train/rig.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#define REFERENCE 40 /* targets of an iteration's first call */
#define TARGETS 60   /* targets of all its calls */
#define MAX_ITERATIONS 8

/* ---- the same training, written plainly ---- */

typedef struct {
    RpOptimizer *optimizer;
    RpOptimizerLayer *layers[RIG_LAYERS];
    float *states[RIG_LAYERS];
    GArray *gradients[RIG_LAYERS]; /* float: of the iteration at hand, as stored */
    GArray *before[RIG_LAYERS];    /* float: full-precision weights one step ago */
} Serial;

typedef struct {
    Rig rig;
    Serial serial;
    gint broken_iteration; /* one gradient of it is infinite; -1: none */
    guint broken_layer;
    float scales[MAX_ITERATIONS]; /* scales that iterations ran with, as the devices saw them */
} Fixture;

static void
clear_serial(Serial *serial)
{
    for (guint l = 0; l < RIG_LAYERS; l++) {
        g_clear_pointer(&serial->layers[l], rp_optimizer_layer_free);
        g_clear_pointer(&serial->states[l], g_free);
        g_clear_pointer(&serial->gradients[l], g_array_unref);
        g_clear_pointer(&serial->before[l], g_array_unref);
    }
    g_clear_pointer(&serial->optimizer, rp_optimizer_free);
}

static void
set_up(Fixture *f)
{
    f->broken_iteration = -1;
}

static void
tear_down(Fixture *f)
{
    clear_serial(&f->serial);
    rig_clear(&f->rig);
}

static gsize
own_parameters(const Rig *rig, guint layer)
{
    const RpLayerLayout *layout = rp_network_layout(rig->network, layer);

    return layout->elements - layout->tied_elements;
}

/* Makes a layer with the file's weights; each parameter says for itself whether it decays. */
static void
open_serial_layer(Serial *serial, const Rig *rig, guint layer)
{
    const gsize n = own_parameters(rig, layer);
    g_autofree RpParameterSpan *spans = g_new(RpParameterSpan, n);
    g_autofree float *values = g_new0(float, n);
    guint first;
    const guint n_weights = rp_weights_layer(rig->weights, layer, &first);

    for (gsize i = 0; i < n; i++)
        spans[i] = (RpParameterSpan){.n_parameters = 1};
    for (guint w = first; w < first + n_weights; w++) {
        const RpWeight *weight = rp_weights_nth(rig->weights, w);
        const RpSafetensor *source = rp_weights_source(rig->weights, w);
        const guint64 offset = rp_network_layout(rig->network, layer)->place[weight->kind].element;

        if (weight->tied)
            continue;
        rp_dtype_to_float(source->dtype, source->data, values + offset, weight->elements);
        for (gsize i = 0; i < weight->elements; i++)
            spans[offset + i].decays = weight->rank == 2;
    }
    serial->states[layer] = g_new(float, 3 * n);
    serial->layers[layer] =
        rp_optimizer_layer_new(serial->optimizer, serial->states[layer], n, spans, n);
    memcpy(serial->states[layer], values, n * sizeof(float));
    serial->before[layer] = g_array_new(FALSE, FALSE, sizeof(float));
    serial->gradients[layer] = g_array_new(FALSE, TRUE, sizeof(float));
}

static void
open_serial(Fixture *f)
{
    const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;

    clear_serial(&f->serial);
    f->serial.optimizer = rp_optimizer_new(&adamw, rp_adamw_find("plain"), NULL, NULL);
    for (guint l = 0; l < RIG_LAYERS; l++)
        open_serial_layer(&f->serial, &f->rig, l);
}

static float *
values_of(GArray *array)
{
    return (float *)(void *)array->data;
}

/* Random gradients of every weight; gaps stay zero. In the host's state and, as rounded, in @f->serial. */
static void
fill_gradients(Fixture *f, guint64 iteration)
{
    g_autoptr(GRand) random = g_rand_new_with_seed((guint32)iteration + 77);

    for (guint l = 0; l < RIG_LAYERS; l++) {
        const RpLayerLayout *layout = rp_network_layout(f->rig.network, l);
        GArray *gradients = f->serial.gradients[l];
        guint first;
        guint64 run;
        const guint n = rp_weights_layer(f->rig.weights, l, &first);

        g_array_set_size(gradients, 0);
        g_array_set_size(gradients, (guint)layout->elements);
        for (guint w = first; w < first + n; w++) {
            const RpWeight *weight = rp_weights_nth(f->rig.weights, w);
            for (gsize i = 0; i < weight->elements; i++)
                values_of(gradients)[layout->place[weight->kind].element + i] =
                    (float)g_rand_double_range(random, -1, 1);
        }
        if ((gint64)iteration == f->broken_iteration && l >= f->broken_layer)
            values_of(gradients)[layout->elements / 2] = INFINITY;
        guint8 *host_state = rp_host_state_gradients(f->rig.host_state, l, 0, 0, &run);
        const RpDtype dtype = rp_host_state_gradient_dtype(f->rig.host_state);
        assert_int_equal(run, layout->elements * rp_dtype_size(dtype));
        rp_dtype_from_float(dtype, values_of(gradients), host_state, layout->elements);
        rp_dtype_to_float(dtype, host_state, values_of(gradients), layout->elements);
    }
}

static double
norm_of(Fixture *f)
{
    double sum = 0;

    for (guint l = 0; l < RIG_LAYERS; l++)
        for (gsize i = 0; i < own_parameters(&f->rig, l); i++) {
            const double value = (double)values_of(f->serial.gradients[l])[i];
            sum += value * value;
        }
    return sqrt(sum);
}

/* The head's part of a tied matrix belongs to the embedding. */
static void
add_tied(Fixture *f)
{
    const guint head = RIG_LAYERS - 1;
    const float *tied = values_of(f->serial.gradients[head]) + own_parameters(&f->rig, head);

    for (guint i = 0; f->rig.options.tied && i < f->serial.gradients[0]->len; i++)
        values_of(f->serial.gradients[0])[i] += tied[i];
}

static void
step_serially(Fixture *f, double learning_rate, double scale)
{
    for (guint l = 0; l < RIG_LAYERS; l++) {
        const gsize n = own_parameters(&f->rig, l);
        const RpOptimizerStep step = {
            .learning_rate = learning_rate,
            .gradient_scale = scale,
            .n_parameters = n,
            .gradient = {{f->serial.gradients[l]->data}},
            .gradient_dtype = RP_DTYPE_FP32,
        };
        const RpOptimizerState state = rp_optimizer_layer_state(f->serial.layers[l]);

        g_array_set_size(f->serial.before[l], 0);
        g_array_append_vals(f->serial.before[l], state.weight, (guint)n);
        rp_optimizer_layer_apply(f->serial.optimizer, f->serial.layers[l], &step);
        rp_optimizer_layer_finish(f->serial.layers[l]);
    }
}

/* ---- the host's state, task by task in plan order ---- */

static gboolean
run_task(Fixture *f, RpTaskId id)
{
    RpPlan *plan = f->rig.plan;
    const RpTask *task = rp_plan_task(plan, id);
    const RpAccess *accesses = rp_plan_accesses(plan, task);
    const guint kind = rp_plan_lane_kind(plan, task->lane) - RP_LANES_PER_DEVICE;
    g_autofree RpBackendAccess *placed = g_new0(RpBackendAccess, MAX(1, task->access_count));

    for (guint i = 0; i < task->access_count; i++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, accesses[i].buffer);
        placed[i] = (RpBackendAccess){.offset = buffer->offset,
                                      .bytes = buffer->bytes,
                                      .arena = buffer->arena,
                                      .mode = accesses[i].mode,
                                      .role = accesses[i].role,
                                      .buffer = accesses[i].buffer};
    }
    return rp_host_state_run(f->rig.host_state, (RpHostLaneKind)kind,
                             &(RpBackendTask){.task = *task, .id = id, .accesses = placed},
                             &f->rig.error);
}

static void
step_both_norms(Fixture *f, guint64 iteration)
{
    const RpUpdateReport report = rp_host_state_report(f->rig.host_state, iteration);
    const double unscale = REFERENCE / ((double)report.loss_scale * TARGETS);
    const double max = f->rig.options.max_grad_norm;

    add_tied(f);
    if (report.skipped)
        return;
    assert_true(fabs(report.grad_norm / (norm_of(f) * unscale) - 1) < 1e-12);
    step_serially(f, report.learning_rate,
                  unscale * (max > 0 ? fmin(1, max / (report.grad_norm + 1e-6)) : 1));
}

/* Runs host tasks of all that was planned. Returns: whether nothing failed */
static gboolean
run_home(Fixture *f)
{
    RpPlan *plan = f->rig.plan;
    guint64 n_begun = 0;

    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const guint64 iteration = task->iteration;
        const gboolean begins = iteration == n_begun && (task->kind == RP_TASK_NORM ||
                                                         task->kind == RP_TASK_OPTIMIZER_STEP);

        if (rp_plan_lane_device(plan, task->lane) != RP_NONE)
            continue;
        if (begins) {
            rp_host_state_begin(f->rig.host_state, iteration, REFERENCE);
            rp_host_state_set_targets(f->rig.host_state, iteration, TARGETS);
            f->scales[iteration] = rig_scale(&f->rig, iteration) * REFERENCE;
            fill_gradients(f, iteration);
            n_begun++;
        }
        if (!run_task(f, id))
            return FALSE;
        if (task->kind == RP_TASK_NORM)
            step_both_norms(f, iteration);
    }
    return TRUE;
}

static void
open_both(Fixture *f, const RigOptions *options, guint iterations)
{
    rig_open(&f->rig, options, iterations);
    rig_attach(&f->rig);
    open_serial(f);
}

static void
run_both(Fixture *f, const RigOptions *options, guint iterations)
{
    open_both(f, options, iterations);
    const gboolean done = run_home(f);
    rp_assert_no_error(f->rig.error);
    assert_true(done);
}

static void
assert_published(const Rig *rig, guint layer, guint version, const float *masters)
{
    const gsize n = own_parameters(rig, layer);
    const gsize size = rp_dtype_size(rig->options.dtype);
    g_autofree guint8 *expected = g_malloc(n * size);
    guint64 run;

    rp_dtype_from_float(rig->options.dtype, masters, expected, n);
    assert_memory_equal(rp_host_state_weights(rig->host_state, layer, version, 0, &run), expected,
                        n * size);
}

static void
assert_equals_serial(Fixture *f)
{
    for (guint l = 0; l < RIG_LAYERS; l++) {
        const RpOptimizerState held = rp_host_state_layer_state(f->rig.host_state, l);
        const RpOptimizerState serial = rp_optimizer_layer_state(f->serial.layers[l]);
        const gsize bytes = serial.n_parameters * sizeof(float);

        assert_int_equal(held.n_parameters, serial.n_parameters);
        assert_int_equal(held.n_steps, serial.n_steps);
        assert_memory_equal(held.weight, serial.weight, bytes);
        assert_memory_equal(held.moment1, serial.moment1, bytes);
        assert_memory_equal(held.moment2, serial.moment2, bytes);
    }
}

static void
assert_versions(Fixture *f, guint newest)
{
    const gboolean twice = rp_modes_versions(rp_plan_modes(f->rig.plan)) == 2;

    for (guint l = 0; l < RIG_LAYERS; l++) {
        const RpOptimizerState state = rp_optimizer_layer_state(f->serial.layers[l]);

        assert_published(&f->rig, l, twice ? newest : 0, state.weight);
        if (twice)
            assert_published(&f->rig, l, 1 - newest, values_of(f->serial.before[l]));
    }
}

/* ---- tests ---- */

RP_TEST_OF(updates_as_a_serial_program_in_every_mode, Fixture *f)
{
    for (guint mode = 0; mode < 16; mode++) {
        const RigOptions options = {
            .dtype = RP_DTYPE_BF16,
            .async = (mode & 1) != 0,
            .optimizer = mode & 2 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED,
            .consistency = mode & 4 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
            .max_grad_norm = mode & 8 ? 0 : 0.5,
            .warmup = 2,
        };
        run_both(f, &options, 4);
        assert_int_equal(rp_modes_wait_for_norm(rp_plan_modes(f->rig.plan)), (mode & 12) != 8);
        assert_equals_serial(f);
        assert_versions(f, 1);
    }
}

RP_TEST_OF(updates_every_storage_of_weights, Fixture *f)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        run_both(f, &(RigOptions){.dtype = (RpDtype)dtype, .async = TRUE}, 3);
        assert_equals_serial(f);
        assert_versions(f, 0);
    }
}

RP_TEST_OF(adds_the_two_gradients_of_a_tied_matrix, Fixture *f)
{
    for (guint mode = 0; mode < 4; mode++) {
        const RigOptions options = {
            .dtype = RP_DTYPE_BF16,
            .tied = TRUE,
            .async = (mode & 1) != 0,
            .consistency = mode & 2 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
            .max_grad_norm = 2,
        };
        run_both(f, &options, 3);
        assert_equals_serial(f);
        assert_versions(f, 0);
    }
}

RP_TEST_OF(gives_the_same_bits_with_threads, Fixture *f)
{
    run_both(f,
             &(RigOptions){.dtype = RP_DTYPE_BF16, .tied = TRUE, .max_grad_norm = 1, .threads = 3},
             3);
    assert_equals_serial(f);
}

/* Each processor but the first on a node that is not there: whatever the system says to that. */
RP_TEST(gives_the_same_bits_on_several_memory_nodes)
{
    Fixture *f = *state;
    g_autofree char *directory = g_dir_make_tmp("test-host-state-XXXXXX", NULL);
    g_autofree char *command = g_strdup_printf(
        "cd '%s' && mkdir node0 node9 && echo 0,9 >online && echo 0 >node0/cpulist && "
        "echo 1-999 >node9/cpulist",
        directory);
    g_autofree char *remove = g_strdup_printf("rm -r '%s'", directory);
    g_autoptr(RpNodes) nodes = NULL;

    assert_int_equal(system(command), 0);
    nodes = rp_nodes_read(directory);
    assert_int_equal(system(remove), 0);
    run_both(
        f,
        &(RigOptions){
            .dtype = RP_DTYPE_BF16, .tied = TRUE, .max_grad_norm = 1, .threads = 3, .nodes = nodes},
        3);
    assert_equals_serial(f);
    assert_in_range(rp_host_state_numa(f->rig.host_state)->nodes, 1, 2);
}

RP_TEST_OF(finds_the_weights_of_a_tied_head_in_two_places, Fixture *f)
{
    const guint head = RIG_LAYERS - 1;
    guint64 run, other;

    open_both(f, &(RigOptions){.dtype = RP_DTYPE_BF16, .tied = TRUE, .async = TRUE}, 1);
    const guint64 own = own_parameters(&f->rig, head) * 2;
    const guint64 all = rp_network_layout(f->rig.network, head)->elements * 2;
    for (guint v = 0; v < 2; v++) {
        const guint8 *norm = rp_host_state_weights(f->rig.host_state, head, v, 8, &run);
        assert_int_equal(run, own - 8);
        assert_ptr_equal(norm, rp_host_state_weights(f->rig.host_state, head, v, 0, &other) + 8);
        const guint8 *matrix = rp_host_state_weights(f->rig.host_state, head, v, own + 32, &run);
        assert_int_equal(run, all - own - 32);
        assert_ptr_equal(matrix, rp_host_state_weights(f->rig.host_state, 0, v, 32, &other));
        assert_int_equal(other, run);
    }
    rp_host_state_gradients(f->rig.host_state, head, 0, own, &run);
    assert_int_equal(run, all - own);
}

RP_TEST_OF(skips_a_step_whose_gradient_is_infinite_and_publishes_all_the_same, Fixture *f)
{
    for (guint mode = 0; mode < 8; mode++) {
        const RigOptions options = {
            .dtype = RP_DTYPE_FP16,
            .async = (mode & 1) != 0,
            .optimizer = mode & 2 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED,
            .consistency = mode & 4 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS,
            .scale_loss = TRUE,
            .max_grad_norm = 1,
        };
        f->broken_iteration = 2;
        f->broken_layer = 3;
        run_both(f, &options, 3);
        assert_true(rp_host_state_report(f->rig.host_state, 2).skipped);
        assert_equals_serial(f);
        for (guint l = 0; l < RIG_LAYERS; l++) /* iteration 2 writes version 0 */
            assert_published(&f->rig, l, 0, rp_optimizer_layer_state(f->serial.layers[l]).weight);
        const RpUpdateState after = rp_host_state_updates(f->rig.host_state);
        assert_int_equal(after.n_iterations, 3);
        assert_int_equal(after.n_updates, 2);
        assert_true(after.loss_scale.scale == RP_LOSS_SCALE_INITIAL / 2);
    }
}

RP_TEST_OF(lowers_the_loss_scale_one_iteration_later_if_asynchronous, Fixture *f)
{
    for (guint async = 0; async < 2; async++) {
        const RigOptions options = {
            .dtype = RP_DTYPE_FP16, .scale_loss = TRUE, .async = async != 0};
        f->broken_iteration = 1;
        run_both(f, &options, 4);
        for (guint i = 0; i < 4; i++)
            assert_true(f->scales[i] ==
                        (i < 2 + async ? RP_LOSS_SCALE_INITIAL : RP_LOSS_SCALE_INITIAL / 2));
        assert_true(rp_host_state_report(f->rig.host_state, 1).loss_scale == RP_LOSS_SCALE_INITIAL);
    }
    /* the scale of the next iteration was decided before the last update */
    f->broken_iteration = 3;
    run_both(f, &(RigOptions){.dtype = RP_DTYPE_FP16, .scale_loss = TRUE, .async = TRUE}, 4);
    assert_true(rp_host_state_updates(f->rig.host_state).next_scale == RP_LOSS_SCALE_INITIAL);
    assert_true(rp_host_state_updates(f->rig.host_state).loss_scale.scale ==
                RP_LOSS_SCALE_INITIAL / 2);
}

RP_TEST_OF(names_the_first_layer_whose_gradient_is_not_finite, Fixture *f)
{
    f->broken_iteration = 1;
    f->broken_layer = 3;
    for (guint at_once = 0; at_once < 2; at_once++) {
        open_both(f, &(RigOptions){.dtype = RP_DTYPE_BF16, .max_grad_norm = at_once ? 0 : 1}, 2);
        assert_false(run_home(f));
        assert_true(
            g_error_matches(f->rig.error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_GRADIENT));
        rp_assert_error_message_contains(f->rig.error, "step 2");
        /* if layers step as their gradients come back, it is the first that is broken */
        rp_assert_error_message_contains(f->rig.error, at_once ? "layer 4 (model.layers.3)"
                                                               : "layer 3 (model.layers.2)");
    }
}

RP_TEST_OF(counts_the_learning_rate_by_steps_that_were_applied, Fixture *f)
{
    const RigOptions options = {.dtype = RP_DTYPE_FP16, .scale_loss = TRUE, .warmup = 4};

    f->broken_iteration = 1;
    run_both(f, &options, 4);
    for (guint i = 0; i < 4; i++) {
        const guint n_updates = i < 2 ? i : i - 1;
        assert_true(fabs(rp_host_state_report(f->rig.host_state, i).learning_rate -
                         0.01 * n_updates / 4) < 1e-15);
    }
}

static RpTaskId
find_task(const RpPlan *plan, RpTaskKind kind)
{
    RpTaskId id = rp_plan_first_id(plan);

    while (rp_plan_task(plan, id)->kind != kind)
        id++;
    return id;
}

/* A value of round @round's gradients in the storage of @dtype; written to @place as well. */
static float
gradient_of_round(RpDtype dtype, guint round, guint i, guint8 *place)
{
    float value = (round % 2 == 0 ? -0.61f : 0.83f) / (float)(1 + i % (5 + round));

    rp_dtype_from_float(dtype, &value, place, 1);
    rp_dtype_to_float(dtype, place, &value, 1);
    return value;
}

/* Runs the task, whose rounds are put into its staging buffers, where the stage's layers stand end
 * to end. */
static void
check_sum(Fixture *f, RpTaskId id, RpDtype dtype, guint first, guint n)
{
    const RpTask *task = rp_plan_task(f->rig.plan, id);
    const RpAccess *accesses = rp_plan_accesses(f->rig.plan, task);
    const RpInterval layers = rp_plan_stage(f->rig.plan, task->stage)->layers;
    guint64 at = 0, run;

    assert_int_equal(task->round, first + n - 1);
    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        GArray *gradients = f->serial.gradients[l];
        for (guint i = 0; i < gradients->len; i++, at += rp_dtype_size(dtype))
            for (guint k = 0; k < n; k++) {
                guint8 *staging = (guint8 *)f->rig.memory +
                                  rp_plan_buffer(f->rig.plan, accesses[k].buffer)->offset;
                float *sum = &values_of(gradients)[i];

                assert_int_equal(accesses[k].role, RP_ROLE_STAGING);
                const float value = gradient_of_round(dtype, first + k, i, staging + at);
                *sum = first + k == 0 ? value : *sum + value;
            }
    }
    assert_true(run_task(f, id));
    for (guint l = 0; l < RIG_LAYERS; l++) {
        GArray *gradients = f->serial.gradients[l];
        assert_memory_equal(rp_host_state_gradients(f->rig.host_state, l, 0, 0, &run),
                            values_of(gradients), gradients->len * sizeof(float));
    }
}

RP_TEST_OF(adds_a_round_without_rounding, Fixture *f)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        open_both(f,
                  &(RigOptions){.dtype = (RpDtype)dtype,
                                .tied = TRUE,
                                .micro_batches = 2,
                                .round = 1,
                                .threads = 2},
                  1);
        fill_gradients(f, 0);
        RpTaskId id = find_task(f->rig.plan, RP_TASK_GRADIENT_ACCUMULATE);
        check_sum(f, id, (RpDtype)dtype, 0, 1);
        const guint32 stage = rp_plan_task(f->rig.plan, id)->stage;
        do
            id++;
        while (rp_plan_task(f->rig.plan, id)->kind != RP_TASK_GRADIENT_ACCUMULATE ||
               rp_plan_task(f->rig.plan, id)->stage != stage);
        check_sum(f, id, (RpDtype)dtype, 1, 1);
    }
}

/* One stage, a round on each of four devices: one task adds all, in their order. */
RP_TEST_OF(adds_rounds_that_left_together_one_after_the_other, Fixture *f)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++) {
        open_both(f,
                  &(RigOptions){.dtype = (RpDtype)dtype,
                                .tied = TRUE,
                                .forward = "",
                                .backward = "4",
                                .gpus = 4,
                                .micro_batches = 16,
                                .round = 4,
                                .threads = 2},
                  1);
        fill_gradients(f, 0);
        check_sum(f, find_task(f->rig.plan, RP_TASK_GRADIENT_ACCUMULATE), (RpDtype)dtype, 0, 4);
    }
}

RP_TEST_OF(scales_the_loss_by_the_targets_of_the_first_call, Fixture *f)
{
    open_both(f, &(RigOptions){.dtype = RP_DTYPE_BF16}, 1);
    rp_host_state_begin(f->rig.host_state, 0, 3);
    assert_true(rig_scale(&f->rig, 0) == 1.0f / 3.0f);
    open_both(f, &(RigOptions){.dtype = RP_DTYPE_FP16, .scale_loss = TRUE}, 1);
    rp_host_state_begin(f->rig.host_state, 0, 3);
    assert_true(rig_scale(&f->rig, 0) == RP_LOSS_SCALE_INITIAL / 3);
}

RP_TEST_OF(continues_from_a_restored_state, Fixture *f)
{
    const RigOptions options = {
        .dtype = RP_DTYPE_FP16, .tied = TRUE, .scale_loss = TRUE, .async = TRUE};

    run_both(f, &options, 3);
    RpHostState *old = g_steal_pointer(&f->rig.host_state);
    void *old_memory = g_steal_pointer(&f->rig.memory);
    const gsize old_bytes = f->rig.memory_bytes;
    RpUpdateState kept = rp_host_state_updates(old);

    rig_open(&f->rig, &options, 1);
    rig_attach(&f->rig);
    for (guint l = 0; l < RIG_LAYERS; l++) {
        const RpOptimizerState layer = rp_host_state_layer_state(old, l);
        assert_true(rp_host_state_restore_layer(f->rig.host_state, l, &layer, &f->rig.error));
        assert_published(&f->rig, l, 0, layer.weight);
        assert_published(&f->rig, l, 1, layer.weight);
    }
    kept.next_scale = 4;
    kept.loss_scale.scale = 8;
    rp_host_state_restore(f->rig.host_state, &kept, 1);
    assert_equals_serial(f);
    rp_host_state_begin(f->rig.host_state, 1, 1);
    rp_host_state_begin(f->rig.host_state, 2, 1);
    assert_true(rig_scale(&f->rig, 1) == 4);
    assert_true(rig_scale(&f->rig, 2) == 8);
    assert_int_equal(rp_host_state_updates(f->rig.host_state).n_updates, 3);
    rp_host_state_free(old);
    munmap(old_memory, old_bytes);
}

RP_TEST_OF(refuses_a_plan_of_another_network, Fixture *f)
{
    rig_open(&f->rig, &(RigOptions){.dtype = RP_DTYPE_BF16}, 1);
    g_clear_pointer(&f->rig.host_state, rp_host_state_free);
    rp_profile_set_tensors(f->rig.profile, 2, (guint64[]){1024}, 1);
    f->rig.profile->layers[2].gradient_bytes = 1024;
    g_clear_pointer(&f->rig.planner, rp_planner_free);
    const RpPlanOptions plan = {.schedule = rp_schedule_find("roundpipe", NULL),
                                .gpus = 1,
                                .micro_batches = 1,
                                .fidelity = RP_FIDELITY_FULL};
    f->rig.planner = rp_must(rp_planner_new, f->rig.profile, f->rig.partition, &plan);
    const RpUpdateOptions update = {.adamw = RP_ADAMW_OPTIONS_INIT};
    assert_null(
        rp_host_state_new(f->rig.network, rp_planner_plan(f->rig.planner), &update, &f->rig.error));
    assert_true(g_error_matches(f->rig.error, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_PLAN));
    rp_assert_error_message_contains(f->rig.error, "layer 2: the plan has 1024 bytes");
}

RP_TEST_STATE(Fixture, set_up, tear_down)
