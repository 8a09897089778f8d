/*
 * Tests the engine on a backend under the test's control: order, events, phases, hand-over,
 * retirement.
 */
#include "tests/exec/engine-fixture.h"

static const RpEngineOptions with_trace = {.keep_trace = TRUE};

static guint32
lane_of(const Fixture *f, guint device, RpLaneKind kind)
{
    return rp_plan_lane(f->plan, device, kind);
}

RP_TEST_OF(finishes_an_empty_plan, Fixture *f)
{
    begin(f, 2);
    start_engine(f, &with_trace);
    append_batch(f);
    assert_int_equal(rp_engine_n_appended(f->engine), 0);
    finish(f);
    assert_int_equal(rp_trace_n_records(f->trace), 0);
}

RP_TEST_OF(runs_a_lane_in_order, Fixture *f)
{
    begin(f, 1);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    start_engine(f, &with_trace);
    append_batch(f);
    manual_wait_started(f->manual, a, RP_PART_WHOLE);
    assert_false(manual_is_started(f->manual, b, RP_PART_WHOLE));
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_end(f->manual, b, RP_PART_WHOLE);
    finish(f);
}

RP_TEST_OF(runs_lanes_side_by_side, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    RpTaskId b =
        add(f, RP_TASK_ACTIVATION_UPLOAD, lane_of(f, 0, RP_LANE_ACTIVATION_UP), 0, AT_ONCE);
    RpTaskId c = add(f, RP_TASK_FORWARD, lane_of(f, 1, RP_LANE_COMPUTE), 0, AT_ONCE);
    RpTaskId d =
        add(f, RP_TASK_BARRIER, rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER), 0, AT_ONCE);
    RpTaskId e = add(f, RP_TASK_GRADIENT_ACCUMULATE,
                     rp_plan_host_lane(f->plan, RP_HOST_LANE_ACCUMULATE), 0, AT_ONCE);
    start_engine(f, &with_trace);
    append_batch(f);
    const RpTaskId all[] = {a, b, c, d, e};
    for (guint i = 0; i < G_N_ELEMENTS(all); i++)
        manual_wait_started(f->manual, all[i], RP_PART_WHOLE);
    for (guint i = 0; i < G_N_ELEMENTS(all); i++)
        manual_end(f->manual, all[i], RP_PART_WHOLE);
    finish(f);
}

/* The device's queue is filled while the dependency still runs: no processor is in between. */
RP_TEST_OF(orders_devices_by_events, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_FORWARD, lane_of(f, 1, RP_LANE_COMPUTE), 0, AFTER({.task = a}));
    RpTaskId c =
        add(f, RP_TASK_ACTIVATION_UPLOAD, lane_of(f, 1, RP_LANE_ACTIVATION_UP), 0, AT_ONCE);
    start_engine(f, &with_trace);
    append_batch(f);
    manual_wait_started(f->manual, c, RP_PART_WHOLE); /* issued after b, by the same worker */
    assert_false(manual_is_started(f->manual, b, RP_PART_WHOLE));
    manual_end(f->manual, c, RP_PART_WHOLE);
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_end(f->manual, b, RP_PART_WHOLE);
    finish(f);
}

RP_TEST_OF(runs_the_lead_before_a_late_dependency_is_over, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_BACKWARD, 0, 0, AT_ONCE);
    RpTaskId b =
        add(f, RP_TASK_BACKWARD, lane_of(f, 1, RP_LANE_COMPUTE), 5, AFTER({.task = a, .phase = 1}));
    start_engine(f, &with_trace);
    append_batch(f);
    manual_wait_followed(f->manual, b, RP_PART_LEAD);
    manual_end(f->manual, b, RP_PART_LEAD);
    assert_false(manual_is_started(f->manual, b, RP_PART_REST));
    manual_pass(f->manual, 100000 * MANUAL_TICK_NS);
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_end(f->manual, b, RP_PART_REST);
    finish(f);
    assert_true(manual_find(f->manual, b, RP_PART_REST, FALSE) >
                manual_find(f->manual, a, RP_PART_WHOLE, TRUE));
    /* the time it stood still is not part of its time: the lead ended, a ended and b continued */
    const RpTraceRecord *record = record_of(f, b);
    assert_true(record->start_ns > 0);
    assert_true(record->end_ns - record->start_ns < 50000 * MANUAL_TICK_NS);
}

RP_TEST_OF(takes_a_lead_of_no_length_as_a_start, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_BACKWARD, 0, 0, AT_ONCE);
    RpTaskId b =
        add(f, RP_TASK_BACKWARD, lane_of(f, 1, RP_LANE_COMPUTE), 0, AFTER({.task = a, .phase = 1}));
    start_engine(f, &with_trace);
    append_batch(f);
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_end(f->manual, b, RP_PART_WHOLE);
    finish(f);
}

RP_TEST_OF(waits_for_host_tasks_and_lets_them_wait, Fixture *f)
{
    begin(f, 1);
    guint32 optimizer = rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER);
    RpTaskId a = add(f, RP_TASK_BACKWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_OPTIMIZER_STEP, optimizer, 0, AFTER({.task = a}));
    RpTaskId c = add(f, RP_TASK_PARAMETER_UPLOAD, lane_of(f, 0, RP_LANE_PARAMETER_UP), 0,
                     AFTER({.task = b}));
    start_engine(f, &with_trace);
    append_batch(f);
    manual_wait_started(f->manual, a, RP_PART_WHOLE);
    assert_false(manual_is_started(f->manual, b, RP_PART_WHOLE));
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_wait_started(f->manual, b, RP_PART_WHOLE);
    assert_false(manual_is_started(f->manual, c, RP_PART_WHOLE));
    manual_end(f->manual, b, RP_PART_WHOLE);
    manual_end(f->manual, c, RP_PART_WHOLE);
    finish(f);
}

/* Like the end of a synchronous iteration: the next one begins with the layers that are there. */
RP_TEST_OF(goes_on_while_copies_of_the_same_device_wait_for_the_host, Fixture *f)
{
    begin(f, 1);
    guint32 optimizer = rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER);
    guint32 accumulate = rp_plan_host_lane(f->plan, RP_HOST_LANE_ACCUMULATE);
    RpTaskId step = add(f, RP_TASK_OPTIMIZER_STEP, optimizer, 0, AT_ONCE);
    RpTaskId sum = add(f, RP_TASK_GRADIENT_ACCUMULATE, accumulate, 0, AT_ONCE);
    RpTaskId up = add(f, RP_TASK_PARAMETER_UPLOAD, lane_of(f, 0, RP_LANE_PARAMETER_UP), 0,
                      AFTER({.task = step}));
    RpTaskId down = add(f, RP_TASK_GRADIENT_DOWNLOAD, lane_of(f, 0, RP_LANE_GRADIENT_DOWN), 0,
                        AFTER({.task = sum}));
    RpTaskId ids =
        add(f, RP_TASK_ACTIVATION_UPLOAD, lane_of(f, 0, RP_LANE_ACTIVATION_UP), 0, AT_ONCE);
    RpTaskId forward = add(f, RP_TASK_FORWARD, 0, 0, AFTER({.task = ids}));
    RpTaskId next = add(f, RP_TASK_FORWARD, 0, 0, AFTER({.task = up}));
    start_engine(f, &with_trace);
    append_batch(f);
    manual_end(f->manual, ids, RP_PART_WHOLE);
    manual_end(f->manual, forward, RP_PART_WHOLE);
    manual_end(f->manual, sum, RP_PART_WHOLE);
    manual_end(f->manual, down, RP_PART_WHOLE);
    assert_false(manual_is_started(f->manual, up, RP_PART_WHOLE));
    manual_end(f->manual, step, RP_PART_WHOLE);
    manual_end(f->manual, up, RP_PART_WHOLE);
    manual_end(f->manual, next, RP_PART_WHOLE);
    finish(f);
}

RP_TEST_OF(keeps_the_accumulate_lane_free_of_the_optimizer, Fixture *f)
{
    begin(f, 1);
    guint32 optimizer = rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER);
    guint32 accumulate = rp_plan_host_lane(f->plan, RP_HOST_LANE_ACCUMULATE);
    RpTaskId a = add(f, RP_TASK_OPTIMIZER_STEP, optimizer, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_GRADIENT_ACCUMULATE, accumulate, 0, AT_ONCE);
    start_engine(f, &with_trace);
    append_batch(f);
    manual_end(f->manual, b, RP_PART_WHOLE);
    manual_end(f->manual, a, RP_PART_WHOLE);
    finish(f);
}

RP_TEST_OF(passes_hops_on_to_the_backend, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    add(f, RP_TASK_FORWARD, lane_of(f, 1, RP_LANE_COMPUTE), 0, AFTER({.task = a, .hop_ns = 7}));
    manual_set_automatic(f->manual, 1);
    start_engine(f, &with_trace);
    append_batch(f);
    finish(f);
    assert_int_equal(manual_delay_ns(f->manual), 7);
}

RP_TEST_OF(leaves_out_waits_that_follow_from_others, Fixture *f)
{
    begin(f, 2);
    guint32 other = lane_of(f, 1, RP_LANE_COMPUTE);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_FORWARD, 0, 0, AFTER({.task = a}));
    add(f, RP_TASK_FORWARD, other, 0, AFTER({.task = b}, {.task = a}));
    add(f, RP_TASK_FORWARD, other, 0, AFTER({.task = a}));
    manual_set_automatic(f->manual, 1);
    start_engine(f, &with_trace);
    append_batch(f);
    finish(f);
    assert_int_equal(rp_engine_cost(f->engine).waits, 1);
    assert_int_equal(rp_engine_cost(f->engine).tasks, 4);
}

/* A late wait delays the work after the task's lead, not its start. */
RP_TEST_OF(does_not_take_a_late_wait_for_an_early_one, Fixture *f)
{
    begin(f, 2);
    RpTaskId a = add(f, RP_TASK_BACKWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_BACKWARD, 0, 0, AT_ONCE);
    RpTaskId c = add(f, RP_TASK_BACKWARD, lane_of(f, 1, RP_LANE_COMPUTE), 5,
                     AFTER({.task = b, .phase = 1}, {.task = a}));
    start_engine(f, &with_trace);
    append_batch(f);
    manual_wait_started(f->manual, a, RP_PART_WHOLE);
    assert_false(manual_is_started(f->manual, c, RP_PART_LEAD));
    manual_end(f->manual, a, RP_PART_WHOLE);
    manual_end(f->manual, c, RP_PART_LEAD);
    manual_end(f->manual, b, RP_PART_WHOLE);
    manual_end(f->manual, c, RP_PART_REST);
    finish(f);
    assert_true(manual_find(f->manual, c, RP_PART_LEAD, FALSE) >
                manual_find(f->manual, a, RP_PART_WHOLE, TRUE));
}

RP_TEST_OF(follows_random_plans, Fixture *f)
{
    for (guint32 seed = 0; seed < 60; seed++) {
        GRand *random = g_rand_new_with_seed(seed);
        const guint batches = 1 + seed % 9;

        begin(f, 1 + seed % 4);
        manual_set_automatic(f->manual, seed);
        start_engine(f, &(RpEngineOptions){.keep_trace = TRUE, .ring = 1 + seed % 5});
        for (guint k = 0; k < batches; k++) {
            add_random_tasks(f, random, 40);
            append_batch(f);
        }
        finish(f);
        assert_int_equal(rp_trace_n_records(f->trace), 40 * batches);
        g_rand_free(random);
    }
}

typedef struct {
    guint64 n_batches;
    gsize n_records;
    RpTaskId next;
} Seen;

static void
see(gpointer user_data, guint64 batch, const RpTraceRecord *records, gsize n)
{
    Seen *seen = user_data;

    assert_int_equal(batch, seen->n_batches++);
    for (gsize i = 0; i < n; i++)
        assert_int_equal(records[i].task, seen->next++);
    seen->n_records += n;
}

RP_TEST_OF(retires_what_is_over_and_tells_its_times, Fixture *f)
{
    GRand *random = g_rand_new_with_seed(1);
    Seen seen = {0};

    begin(f, 2);
    manual_set_automatic(f->manual, 1);
    start_engine(f, &(RpEngineOptions){.retire = TRUE, .done = see, .user_data = &seen});
    for (guint k = 0; k < 50; k++) {
        add_random_tasks(f, random, 20);
        append_batch(f);
        assert_true(rp_plan_end_id(f->plan) - rp_plan_first_id(f->plan) <= 4 * 20);
    }
    assert_true(rp_engine_wait(f->engine, 48, &f->error));
    assert_true(seen.n_batches >= 48);
    assert_true(rp_engine_finish(f->engine, &f->error));
    assert_int_equal(rp_plan_first_id(f->plan), rp_plan_end_id(f->plan));
    assert_int_equal(seen.n_batches, 50);
    assert_int_equal(seen.n_records, 1000);
    g_rand_free(random);
}

RP_TEST_OF(refuses_a_task_that_waits_for_a_later_one, Fixture *f)
{
    begin(f, 2);
    add(f, RP_TASK_FORWARD, 0, 0, AFTER({.task = 1}));
    add(f, RP_TASK_FORWARD, lane_of(f, 1, RP_LANE_COMPUTE), 0, AT_ONCE);
    start_engine(f, &with_trace);
    assert_false(rp_engine_append(f->engine, &f->error));
    assert_true(g_error_matches(f->error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN));
    rp_assert_error_message_contains(f->error, "does not come before it");
}

RP_TEST_OF(refuses_an_arena_that_grows_after_it_was_opened, Fixture *f)
{
    begin(f, 1);
    manual_set_automatic(f->manual, 1);
    rp_plan_add_buffer(f->plan, 0, RP_BUFFER_STASH, 1024);
    add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    start_engine(f, &with_trace);
    append_batch(f);
    rp_plan_add_buffer(f->plan, 0, RP_BUFFER_STASH, 1024);
    add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    assert_false(rp_engine_append(f->engine, &f->error));
    assert_true(g_error_matches(f->error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN));
    rp_assert_error_message_contains(f->error, "from 1024 to 2048");
}

RP_TEST_FIXTURE(set_up, tear_down)
