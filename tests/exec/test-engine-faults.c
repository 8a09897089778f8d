/*
 * A fault in any task, and engines freed in the middle of a run: everything is joined, the message
 * says where.
 */
#include "tests/exec/engine-fixture.h"

#include "exec/replay/replay.h"

#define TASKS 40

static void
check_message(const Fixture *f, RpTaskId id)
{
    const RpTask *task = rp_plan_task(f->plan, id);
    const guint32 device = rp_plan_lane_device(f->plan, task->lane);
    g_autofree char *text = rp_task_describe(f->plan, id);
    g_autofree char *place =
        device == RP_NONE ? g_strdup("host, ") : g_strdup_printf("gpu %u, ", device);

    assert_true(g_error_matches(f->error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_TASK));
    rp_assert_error_message_contains(f->error, place);
    rp_assert_error_message_contains(f->error,
                                     rp_lane_name(rp_plan_lane_kind(f->plan, task->lane)));
    rp_assert_error_message_contains(f->error, text);
    rp_assert_error_message_contains(f->error, "injected");
}

static void
fail_task(Fixture *f, guint32 seed, RpTaskId id, ManualFault fault)
{
    GRand *random = g_rand_new_with_seed(seed);
    gboolean failed = FALSE;

    begin(f, 2);
    manual_set_fault(f->manual, id, fault);
    manual_set_automatic(f->manual, seed);
    start_engine(f, &(RpEngineOptions){.ring = 2});
    for (guint k = 0; k < 4 && !failed; k++) {
        add_random_tasks(f, random, TASKS / 2);
        failed = !rp_engine_append(f->engine, &f->error);
    }
    if (!failed)
        assert_false(rp_engine_finish(f->engine, &f->error));
    check_message(f, id);
    g_clear_error(&f->error);
    /* it stays failed */
    assert_false(rp_engine_append(f->engine, &f->error));
    g_rand_free(random);
}

RP_TEST(stops_when_any_task_fails_while_it_runs)
{
    for (RpTaskId id = 0; id < 2 * TASKS; id++)
        fail_task(*state, 7, id, MANUAL_FAULT_RUN);
}

RP_TEST(stops_when_any_task_cannot_be_issued)
{
    for (RpTaskId id = 0; id < 2 * TASKS; id++)
        fail_task(*state, 8, id, MANUAL_FAULT_ISSUE);
}

RP_TEST_OF(can_be_freed_while_tasks_run, Fixture *f)
{
    for (guint32 seed = 0; seed < 20; seed++) {
        GRand *random = g_rand_new_with_seed(seed);

        begin(f, 3);
        if (seed % 2 == 0)
            manual_set_automatic(f->manual, seed);
        start_engine(f, &(RpEngineOptions){.ring = 4});
        for (guint k = 0; k < 3; k++) {
            add_random_tasks(f, random, TASKS);
            append_batch(f);
        }
        g_rand_free(random);
    }
}

#define US_PER_S G_USEC_PER_SEC

/* A worker is inside a queue that stays full; the other device fails. The caller gets the error and
 * continues; when the worker comes back, all data that it looks at are still there. */
RP_TEST_OF(tells_and_leaves_a_worker_that_a_device_holds, Fixture *f)
{
    RpTaskId held, fails;
    gint64 begin_us;

    begin(f, 2);
    held = add(f, RP_TASK_FORWARD, rp_plan_lane(f->plan, 0, RP_LANE_COMPUTE), 0, AT_ONCE);
    fails = add(f, RP_TASK_FORWARD, rp_plan_lane(f->plan, 1, RP_LANE_COMPUTE), 0, AT_ONCE);
    manual_hold(f->manual, held);
    manual_set_fault(f->manual, fails, MANUAL_FAULT_RUN);
    start_engine(f, &(RpEngineOptions){.ring = 2});
    append_batch(f);
    manual_wait_held(f->manual);
    manual_wait_started(f->manual, fails, RP_PART_WHOLE);
    begin_us = g_get_monotonic_time();
    manual_end(f->manual, fails, RP_PART_WHOLE);
    assert_false(rp_engine_finish(f->engine, &f->error));
    assert_true(g_get_monotonic_time() - begin_us < US_PER_S);
    check_message(f, fails);
    assert_false(rp_engine_stop(f->engine));
    assert_true(g_get_monotonic_time() - begin_us < 10 * US_PER_S);
    manual_hold(f->manual, RP_TASK_NONE);
    assert_true(rp_engine_stop(f->engine));
}

/* Tasks of an hour: cancelling must wake their threads. */
RP_TEST_OF(wakes_the_replay_s_sleepers, Fixture *f)
{
    const RpReplayOptions hours = {.scale = 3.6e11};

    begin(f, 2);
    f->replay = rp_replay_new(2, &hours);
    for (guint32 lane = 0; lane < rp_plan_n_lanes(f->plan); lane++)
        add(f,
            rp_plan_lane_kind(f->plan, lane) == RP_LANE_COMPUTE ? RP_TASK_FORWARD : RP_TASK_BARRIER,
            lane, 0, AT_ONCE);
    start_engine(f, &(RpEngineOptions){.ring = 4});
    append_batch(f);
    rp_engine_free(g_steal_pointer(&f->engine));
}

RP_TEST_FIXTURE(set_up, tear_down)
