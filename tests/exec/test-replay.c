/*
 * The replay backend: tasks take their time, at the least; how much more is the machine's affair
 * (`roundpipe replay` measures that).
 */
#include "tests/exec/engine-fixture.h"

#include "core/base/units.h"
#include "exec/replay/replay.h"

static void
begin_replay(Fixture *f, guint gpus, const RpReplayOptions *options)
{
    begin(f, gpus);
    f->replay = rp_replay_new(gpus, options);
}

static void
run(Fixture *f)
{
    start_engine(f, &(RpEngineOptions){.keep_trace = TRUE});
    append_batch(f);
    finish(f);
}

static gint64
length_of(const Fixture *f, RpTaskId id)
{
    return record_of(f, id)->end_ns - record_of(f, id)->start_ns;
}

/* Device time and threads' time differ by how late a thread began. */
RP_TEST_OF(ends_no_action_before_its_time, Fixture *f)
{
    const RpReplayOptions options = {.scale = 1e5}; /* 10 ns: 1 ms */
    RpTaskId ids[5];

    begin_replay(f, 1, &options);
    for (guint i = 0; i < G_N_ELEMENTS(ids); i++)
        ids[i] = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    run(f);
    for (guint i = 0; i < G_N_ELEMENTS(ids); i++)
        assert_true(record_of(f, ids[i])->end_ns >= (gint64)(i + 1) * RP_NS_PER_MS);
    assert_int_equal(rp_replay_lateness(f->replay).tasks, G_N_ELEMENTS(ids));
}

RP_TEST_OF(lets_a_hop_pass, Fixture *f)
{
    const RpReplayOptions options = {.scale = 1e5};

    begin_replay(f, 2, &options);
    RpTaskId a = add(f, RP_TASK_FORWARD, 0, 0, AT_ONCE);
    RpTaskId b = add(f, RP_TASK_FORWARD, rp_plan_lane(f->plan, 1, RP_LANE_COMPUTE), 0,
                     AFTER({.task = a, .hop_ns = 20}));
    run(f);
    assert_true(record_of(f, b)->start_ns >= 3 * RP_NS_PER_MS);
    assert_true(record_of(f, b)->end_ns >= 4 * RP_NS_PER_MS);
}

static RpTaskId
add_bytes(Fixture *f, RpTaskKind kind, guint32 lane, guint64 bytes)
{
    RpTask task = {
        .kind = (guint8)kind,
        .lane = lane,
        .bytes = bytes,
        .micro_batch = RP_NONE,
        .stage = RP_NONE,
        .layer = RP_NONE,
        .chunk = RP_NONE,
    };

    return rp_plan_append(f->plan, &task, NULL, 0, NULL, 0);
}

RP_TEST_OF(copies_one_at_a_time_in_each_direction, Fixture *f)
{
    const RpReplayOptions options = {
        .scale = 1,
        .links = {.h2d_bytes_per_s = 1e9, .d2h_bytes_per_s = 2e9, .copy_latency_ns = 1000000}};

    begin_replay(f, 1, &options);
    RpTaskId a = add_bytes(f, RP_TASK_ACTIVATION_UPLOAD, RP_LANE_ACTIVATION_UP, 2000000);
    RpTaskId b = add_bytes(f, RP_TASK_PARAMETER_UPLOAD, RP_LANE_PARAMETER_UP, 2000000);
    RpTaskId c = add_bytes(f, RP_TASK_ACTIVATION_DOWNLOAD, RP_LANE_ACTIVATION_DOWN, 2000000);
    RpTaskId d = add_bytes(f, RP_TASK_GRADIENT_DOWNLOAD, RP_LANE_GRADIENT_DOWN, 0);
    run(f);
    assert_true(MAX(record_of(f, a)->end_ns, record_of(f, b)->end_ns) >= 6 * RP_NS_PER_MS);
    assert_true(record_of(f, c)->end_ns >= 2 * RP_NS_PER_MS);
    assert_true(record_of(f, d)->end_ns >= 0);
}

RP_TEST_OF(takes_host_tasks_at_the_optimizer_s_speed, Fixture *f)
{
    const RpReplayOptions options = {.scale = 2, .optimizer_bytes_per_s = 1e9};

    begin_replay(f, 1, &options);
    RpTaskId a = add_bytes(f, RP_TASK_OPTIMIZER_STEP,
                           rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER), 1000000);
    run(f);
    assert_true(length_of(f, a) >= 2 * RP_NS_PER_MS);
}

RP_TEST(gives_a_free_copy_engine_at_once_and_a_used_one_when_it_is_free)
{
    RpReplayEngine engine;

    rp_copy_engine_init(&engine);
    assert_int_equal(rp_copy_engine_take(&engine, FALSE, 10), 10);
    rp_copy_engine_give(&engine, 30);
    assert_int_equal(rp_copy_engine_take(&engine, TRUE, 20), 30);
    rp_copy_engine_give(&engine, 40);
    assert_int_equal(rp_copy_engine_take(&engine, TRUE, 50), 50);
    rp_copy_engine_give(&engine, 60);
    rp_copy_engine_clear(&engine);
}

RP_TEST_FIXTURE(set_up, tear_down)
