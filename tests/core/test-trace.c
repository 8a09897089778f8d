/*
 * Traces: storage, lanes, ends.
 */
#include "tests/rp-test.h"

#include "core/trace/trace.h"

typedef struct {
    RpTrace *trace;
    RpPlan *plan;
} Fixture;

static void
tear_down(Fixture *fixture)
{
    rp_trace_free(fixture->trace);
    rp_plan_free(fixture->plan);
}

RP_TEST_OF(a_new_trace_is_empty, Fixture *fixture)
{
    fixture->trace = rp_trace_new_empty(3, RP_TRACE_MEASURED);
    assert_int_equal(rp_trace_gpus(fixture->trace), 3);
    assert_int_equal(rp_trace_origin(fixture->trace), RP_TRACE_MEASURED);
    assert_int_equal(rp_trace_n_records(fixture->trace), 0);
    assert_int_equal(rp_trace_end_ns(fixture->trace), 0);
    assert_int_equal(rp_trace_makespan_ns(fixture->trace), 0);
    assert_false(rp_trace_dispatched(fixture->trace));
}

RP_TEST_OF(keeps_every_record_while_it_grows, Fixture *fixture)
{
    const RpTaskId n = 10000;

    fixture->trace = rp_trace_new_empty(2, RP_TRACE_PREDICTED);
    for (RpTaskId id = 0; id < n;) {
        if (id % 3 == 0) {
            RpTraceRecord record = {.task = id++};
            rp_trace_append(fixture->trace, &record);
            continue;
        }
        RpTraceRecord *records = rp_trace_extend(fixture->trace, 2);
        for (guint i = 0; i < 2; i++)
            records[i] = (RpTraceRecord){.task = id++};
    }
    gsize held = rp_trace_n_records(fixture->trace);
    assert_true(held >= n);
    for (gsize i = 0; i < held; i++)
        assert_int_equal(rp_trace_records(fixture->trace)[i].task, i);
}

RP_TEST_OF(lanes_are_those_of_the_plan, Fixture *fixture)
{
    fixture->plan = rp_plan_new(3, RP_FIDELITY_FULL, 4, 2);
    fixture->trace = rp_trace_new(fixture->plan, RP_TRACE_PREDICTED);
    for (guint32 lane = 0; lane < rp_plan_n_lanes(fixture->plan); lane++) {
        assert_int_equal(rp_trace_lane_device(fixture->trace, lane),
                         rp_plan_lane_device(fixture->plan, lane));
        assert_int_equal(rp_trace_lane_kind(fixture->trace, lane),
                         rp_plan_lane_kind(fixture->plan, lane));
    }
}

RP_TEST_OF(knows_from_the_stages_whether_they_are_dispatched, Fixture *fixture)
{
    RpPlanStage stage = {.bound = TRUE};

    fixture->plan = rp_plan_new(1, RP_FIDELITY_COMPUTE, 2, 1);
    rp_plan_add_stage(fixture->plan, &stage);
    fixture->trace = rp_trace_new(fixture->plan, RP_TRACE_PREDICTED);
    assert_false(rp_trace_dispatched(fixture->trace));
    rp_trace_free(fixture->trace);

    stage.bound = FALSE;
    rp_plan_add_stage(fixture->plan, &stage);
    fixture->trace = rp_trace_new(fixture->plan, RP_TRACE_PREDICTED);
    assert_true(rp_trace_dispatched(fixture->trace));
    rp_trace_set_dispatched(fixture->trace, FALSE);
    assert_false(rp_trace_dispatched(fixture->trace));
}

RP_TEST_OF(makespan_is_the_end_of_the_last_action_and_not_of_the_last_task, Fixture *fixture)
{
    const RpTraceRecord records[] = {
        {.kind = RP_TASK_FORWARD, .start_ns = 0, .end_ns = 5, .task = 0},
        {.kind = RP_TASK_OVERLAP, .start_ns = 5, .end_ns = 9, .task = 1},
        {.kind = RP_TASK_GRADIENT_DOWNLOAD, .start_ns = 9, .end_ns = 14, .task = 2, .lane = 4},
        {.kind = RP_TASK_OPTIMIZER_STEP, .start_ns = 14, .end_ns = 20, .task = 3, .lane = 5},
    };

    fixture->trace = rp_trace_new_empty(1, RP_TRACE_PREDICTED);
    for (guint i = 0; i < G_N_ELEMENTS(records); i++)
        rp_trace_append(fixture->trace, &records[i]);
    assert_int_equal(rp_trace_makespan_ns(fixture->trace), 9);
    assert_int_equal(rp_trace_end_ns(fixture->trace), 20);
}

RP_TEST(a_record_takes_over_everything_of_its_task_but_the_times)
{
    RpTraceRecord record;
    RpTask task = {
        .duration_ns = 7,
        .bytes = 1000,
        .lane = 6,
        .iteration = 2,
        .micro_batch = 3,
        .stage = 4,
        .layer = 5,
        .chunk = 8,
        .round = 9,
        .kind = RP_TASK_PARAMETER_UPLOAD,
    };

    memset(&record, 0xff, sizeof record);
    rp_trace_record_init(&record, 77, &task);
    assert_int_equal(record.task, 77);
    assert_int_equal(record.start_ns, 0);
    assert_int_equal(record.end_ns, 0);
    assert_int_equal(record.transfer_ns, 0);
    assert_int_equal(record.bytes, 1000);
    assert_int_equal(record.lane, 6);
    assert_int_equal(record.iteration, 2);
    assert_int_equal(record.micro_batch, 3);
    assert_int_equal(record.stage, 4);
    assert_int_equal(record.layer, 5);
    assert_int_equal(record.chunk, 8);
    assert_int_equal(record.round, 9);
    assert_int_equal(record.kind, RP_TASK_PARAMETER_UPLOAD);
}

RP_TEST_STATE(Fixture, rp_test_no_state, tear_down)
