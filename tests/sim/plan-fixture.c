#include "tests/sim/plan-fixture.h"

int
set_up(void **state)
{
    *state = g_new0(Fixture, 1);
    return 0;
}

static void
clear(Fixture *f)
{
    g_clear_pointer(&f->plan, rp_plan_free);
    g_clear_pointer(&f->trace, rp_trace_free);
    g_clear_error(&f->error);
}

int
tear_down(void **state)
{
    clear(*state);
    g_free(*state);
    return 0;
}

void
begin(Fixture *f, guint gpus, RpFidelity fidelity)
{
    clear(f);
    f->plan = rp_plan_new(gpus, fidelity, 1, 1);
    rp_plan_tables(f->plan)->modes.servers = 3;
}

void
begin_full(Fixture *f, guint gpus)
{
    begin(f, gpus, RP_FIDELITY_FULL);
    f->machine = (RpMachine){0};
    f->machine.links.h2d_bytes_per_s = BYTE_PER_NS;
    f->machine.links.d2h_bytes_per_s = BYTE_PER_NS;
}

RpTask
make_task(RpTaskKind kind, guint32 lane)
{
    return (RpTask){
        .lane = lane,
        .micro_batch = RP_NONE,
        .stage = RP_NONE,
        .layer = RP_NONE,
        .chunk = RP_NONE,
        .kind = (guint8)kind,
    };
}

RpTaskId
compute(Fixture *f, guint device, gint64 duration_ns, const RpDependency *after, gsize n)
{
    RpTask task = make_task(RP_TASK_FORWARD, rp_plan_lane(f->plan, device, RP_LANE_COMPUTE));

    task.duration_ns = duration_ns;
    return rp_plan_append(f->plan, &task, after, (guint)n, NULL, 0);
}

RpTaskId
backward(Fixture *f, guint device, gint64 duration_ns, gint64 lead_ns, const RpDependency *after,
         gsize n)
{
    RpTask task = make_task(RP_TASK_BACKWARD, rp_plan_lane(f->plan, device, RP_LANE_COMPUTE));

    task.duration_ns = duration_ns;
    task.lead_ns = lead_ns;
    return rp_plan_append(f->plan, &task, after, (guint)n, NULL, 0);
}

RpTaskId
copy(Fixture *f, guint device, RpLaneKind kind, guint64 bytes, const RpDependency *after, gsize n)
{
    static const RpTaskKind kinds[RP_LANES_PER_DEVICE] = {
        [RP_LANE_ACTIVATION_UP] = RP_TASK_ACTIVATION_UPLOAD,
        [RP_LANE_ACTIVATION_DOWN] = RP_TASK_ACTIVATION_DOWNLOAD,
        [RP_LANE_PARAMETER_UP] = RP_TASK_PARAMETER_UPLOAD,
        [RP_LANE_GRADIENT_DOWN] = RP_TASK_GRADIENT_DOWNLOAD,
    };
    RpTask task = make_task(kinds[kind], rp_plan_lane(f->plan, device, kind));

    task.bytes = bytes;
    return rp_plan_append(f->plan, &task, after, (guint)n, NULL, 0);
}

RpTaskId
host(Fixture *f, RpTaskKind kind, guint64 bytes, const RpDependency *after, gsize n)
{
    const RpHostLaneKind lane = kind == RP_TASK_GRADIENT_ACCUMULATE ? RP_HOST_LANE_ACCUMULATE
                                : kind >= RP_TASK_REDUCE            ? RP_HOST_LANE_NETWORK
                                                                    : RP_HOST_LANE_OPTIMIZER;
    RpTask task = make_task(kind, rp_plan_host_lane(f->plan, lane));

    task.bytes = bytes;
    return rp_plan_append(f->plan, &task, after, (guint)n, NULL, 0);
}

void
simulate(Fixture *f)
{
    f->trace = rp_must(rp_simulate, f->plan, &f->machine);
    assert_non_null(f->trace);
    assert_int_equal(rp_trace_n_records(f->trace),
                     rp_plan_end_id(f->plan) - rp_plan_first_id(f->plan));
}

void
assert_same_records(const RpTrace *a, const RpTrace *b)
{
    assert_int_equal(rp_trace_n_records(a), rp_trace_n_records(b));
    assert_memory_equal(rp_trace_records(a), rp_trace_records(b),
                        rp_trace_n_records(a) * sizeof(RpTraceRecord));
}

const RpTraceRecord *
record_of(const Fixture *f, RpTaskId id)
{
    return &rp_trace_records(f->trace)[id - rp_plan_first_id(f->plan)];
}

void
assert_deadlock(Fixture *f, const char *part)
{
    f->trace = rp_simulate(f->plan, &f->machine, &f->error);
    assert_null(f->trace);
    assert_true(g_error_matches(f->error, RP_SIMULATE_ERROR, RP_SIMULATE_ERROR_DEADLOCK));
    rp_assert_error_message_contains(f->error, part);
}
