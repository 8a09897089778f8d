/*
 * `full` plans, and devices that share processors, against the naive simulator on random plans; and what must hold of
 * any times. timelines.txt has small ones by hand.
 */
#include "tests/sim/plan-fixture.h"

#include "core/plan/planner.h"
#include "core/verify/verify.h"
#include "sim/simulate-private.h"
#include "tests/sim/naive-simulate.h"

static void
begin_on(Fixture *f, RpFidelity fidelity, guint gpus, guint processors)
{
    begin_full(f, gpus);
    if (fidelity == RP_FIDELITY_COMPUTE)
        begin(f, gpus, fidelity);
    f->machine.processors = processors;
}

RP_TEST_OF(a_machine_without_limits_copies_in_no_time, Fixture *f)
{
    begin_full(f, 1);
    f->machine = (RpMachine){0};
    f->machine.links.copy_latency_ns = 7;
    RpTaskId a = copy(f, 0, RP_LANE_ACTIVATION_UP, 1 << 30, AT_ONCE);
    RpTaskId b = copy(f, 0, RP_LANE_PARAMETER_UP, 1 << 30, AT_ONCE);
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 1 << 30, AT_ONCE);
    simulate(f);
    assert_times(f, a, 0, 7);
    assert_times(f, b, 7, 14);
    assert_times(f, step, 0, 0);

    RpTrace *without = rp_must(rp_simulate, f->plan, NULL);
    assert_int_equal(rp_trace_end_ns(without), 0);
    rp_trace_free(without);
}

/*
 *   gpu 0   a: after d | b
 *   gpu 1   c: after b | d
 *   gpu 2   e: after d         waits as well, but is not in the cycle
 */
RP_TEST_OF(names_two_tasks_of_the_cycle_in_a_deadlock, Fixture *f)
{
    begin_full(f, 3);
    RpTaskId e = compute(f, 2, 10, AFTER({.task = 4}));
    RpTaskId a = compute(f, 0, 10, AFTER({.task = 4}));
    RpTaskId b = compute(f, 0, 10, AT_ONCE);
    RpTaskId c = compute(f, 1, 10, AFTER({.task = b}));
    RpTaskId d = compute(f, 1, 10, AT_ONCE);
    assert_int_equal(e + 4, d);
    assert_deadlock(f, "deadlock: ");

    g_autofree char *a_waits = rp_task_describe(f->plan, a);
    g_autofree char *c_waits = rp_task_describe(f->plan, c);
    g_autofree char *a_for = rp_task_describe(f->plan, d);
    g_autofree char *c_for = rp_task_describe(f->plan, b);
    g_autofree char *one = g_strdup_printf("%s waits for %s", a_waits, a_for);
    g_autofree char *two = g_strdup_printf("%s waits for %s", c_waits, c_for);

    assert_true(strstr(f->error->message, one) != NULL || strstr(f->error->message, two) != NULL);
}

RP_TEST_OF(equal_devices_slow_each_other_down_alike, Fixture *f)
{
    for (RpFidelity fidelity = RP_FIDELITY_COMPUTE; fidelity <= RP_FIDELITY_FULL; fidelity++) {
        for (guint gpus = 1; gpus <= 8; gpus++) {
            for (guint processors = 1; processors <= 8; processors++) {
                const gint64 each = 840, end = 3 * each * MAX(gpus, processors) / processors;

                begin_on(f, fidelity, gpus, processors);
                for (guint i = 0; i < 3 * gpus; i++)
                    compute(f, i % gpus, each, AT_ONCE);
                simulate(f);
                assert_int_equal(rp_trace_end_ns(f->trace), end);
            }
        }
    }
}

/* One processor is busy from the first action to the last if nothing takes time but actions. */
RP_TEST_OF(one_processor_takes_as_long_as_the_work_whatever_the_schedule, Fixture *f)
{
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++) {
        RpProfile *profile = rp_profile_new(8);
        RpPlanOptions options = {.schedule = *s, .gpus = 4, .micro_batches = 8, .round = 4};
        RpMachine one = {.processors = 1};
        gint64 work = 0;

        for (guint i = 0; i < 8; i++) {
            profile->layers[i].forward_ns = 1000000;
            profile->layers[i].recompute_ns = 1000000;
            profile->layers[i].backward_ns = 2000000;
            profile->layers[i].weight_gradient_ns = 1000000;
        }
        options.recompute = RP_RECOMPUTE_EARLY;
        RpPartition *partition = (*s)->dispatched ? rp_partition_paper(profile, 4, 4, 0, &f->error)
                                                  : rp_partition_min_max(profile, 8, &f->error);
        if (partition != NULL && (*s)->stages_per_gpu == 1) {
            rp_partition_free(partition);
            partition = rp_partition_min_max(profile, 4, &f->error);
        }
        rp_assert_no_error(f->error);
        g_clear_pointer(&f->plan, rp_plan_free);
        g_clear_pointer(&f->trace, rp_trace_free);
        f->plan = rp_plan_make(profile, partition, &options, 1, &f->error);
        rp_partition_free(partition);
        rp_profile_free(profile);
        rp_assert_no_error(f->error);
        f->trace = rp_must(rp_simulate, f->plan, &one);
        for (RpTaskId id = 0; id < rp_plan_end_id(f->plan); id++)
            work += rp_plan_task(f->plan, id)->duration_ns;
        assert_true(rp_trace_end_ns(f->trace) >= work);
        /* an end is rounded up to a nanosecond */
        assert_true(rp_trace_end_ns(f->trace) <= work + 2 * (gint64)rp_plan_end_id(f->plan));
    }
}

static guint64
random_bytes(GRand *random)
{
    static const int most[] = {1, 10, 100, 1000000};

    return (guint64)g_rand_int_range(random, 0, most[g_rand_int_range(random, 0, 4)]);
}

/* With processors half of the tasks compute, and take longer. */
static void
add_random_task(Fixture *f, GRand *random)
{
    const gboolean shared = f->machine.processors > 0;
    const gboolean any_lane =
        rp_plan_fidelity(f->plan) == RP_FIDELITY_FULL && (!shared || g_rand_boolean(random));
    const guint gpu = (guint)g_rand_int_range(random, 0, (int)rp_plan_gpus(f->plan));
    const guint32 lane = any_lane
                             ? (guint32)g_rand_int_range(random, 0, (int)rp_plan_n_lanes(f->plan))
                             : rp_plan_lane(f->plan, gpu, RP_LANE_COMPUTE);
    RpTask task = make_task(RP_TASK_FORWARD, lane);
    const guint kind = rp_plan_lane_kind(f->plan, lane);
    const int id = (int)rp_plan_end_id(f->plan);
    RpDependency after[3];
    guint n = 0;

    if (kind == RP_LANE_COMPUTE) {
        task.duration_ns = g_rand_int_range(random, 0, shared ? 500 : 50);
        task.lead_ns = g_rand_int_range(random, 0, (int)task.duration_ns + 1);
    } else {
        task.kind = kind < RP_LANES_PER_DEVICE                          ? RP_TASK_PARAMETER_UPLOAD
                    : kind < RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK ? RP_TASK_OPTIMIZER_STEP
                    : id % 2 == 0                                       ? RP_TASK_REDUCE
                                                                        : RP_TASK_GATHER;
        task.bytes = shared ? (guint64)g_rand_int_range(random, 0, 1000) : random_bytes(random);
    }
    while (n < G_N_ELEMENTS(after) && id > 0 && g_rand_boolean(random)) {
        after[n].task = (RpTaskId)g_rand_int_range(random, MAX(id - 15, 0), id);
        after[n].hop_ns = g_rand_int_range(random, 0, 4) == 0 ? 7 : 0;
        after[n].phase = kind == RP_LANE_COMPUTE && g_rand_boolean(random);
        n++;
    }
    rp_plan_append(f->plan, &task, after, n, NULL, 0);
}

static double
random_limit(GRand *random)
{
    return g_rand_int_range(random, 0, 5) * 0.7e9; /* 0 = none */
}

static void
set_random_machine(RpMachine *machine, GRand *random)
{
    machine->links.copy_latency_ns = g_rand_boolean(random) ? 0 : 13;
    machine->links.h2d_bytes_per_s = random_limit(random);
    machine->links.d2h_bytes_per_s = random_limit(random);
    machine->links.root_bytes_per_s = random_limit(random);
    machine->links.host_bytes_per_s = 2 * random_limit(random);
    machine->links.gpus_per_root = (guint)g_rand_int_range(random, 0, 4);
    machine->optimizer_bytes_per_s = random_limit(random);
    machine->optimizer_weight = g_rand_int_range(random, 0, 5) * 0.75; /* 0 = none */
    machine->beside_optimizer_bytes_per_s = random_limit(random) / 2;
    machine->links.network_bytes_per_s = random_limit(random);
    machine->links.network_latency_ns = g_rand_int_range(random, 0, 2) * 11;
}

/* A plan of @n tasks, of devices of their own or, if @shared, of either fidelity on a few processors. */
static void
make_random(Fixture *f, guint32 seed, guint n, gboolean shared)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);
    const RpFidelity fidelity = shared && seed % 3 == 0 ? RP_FIDELITY_COMPUTE : RP_FIDELITY_FULL;

    begin_on(f, fidelity, (guint)g_rand_int_range(random, 1, 6),
             shared ? (guint)g_rand_int_range(random, 1, 6) : 0);
    set_random_machine(&f->machine, random);
    for (guint i = 0; i < n; i++)
        add_random_task(f, random);
}

RP_TEST_OF(agrees_with_the_naive_simulator_on_random_plans, Fixture *f)
{
    for (guint32 seed = 0; seed < 800; seed++) {
        const guint n = 1 + seed / 2 % 80;
        guint wrong = 0;

        make_random(f, seed, n, seed % 2);
        simulate(f);
        NaiveTimes *expected = naive_simulate(f->plan, &f->machine);
        while (wrong < n && record_of(f, (RpTaskId)wrong)->start_ns == expected[wrong].start_ns &&
               record_of(f, (RpTaskId)wrong)->end_ns == expected[wrong].end_ns)
            wrong++;
        g_free(expected);
        if (wrong < n)
            fail_msg("seed %u: task %u", seed, wrong);
    }
}

RP_TEST_OF(enough_processors_change_nothing, Fixture *f)
{
    for (guint32 seed = 0; seed < 100; seed++) {
        make_random(f, seed, 300, TRUE);
        /* these count without processors only */
        f->machine.optimizer_weight = f->machine.beside_optimizer_bytes_per_s = 0;
        f->machine.processors = 0;
        simulate(f);
        /* every action and every copy at once, and the host lanes */
        f->machine.processors = 3 * rp_plan_gpus(f->plan) + RP_HOST_LANES;
        RpTrace *shared = rp_must(rp_simulate_event_loop, f->plan, &f->machine);
        assert_same_records(f->trace, shared);
        rp_trace_free(shared);
    }
}

RP_TEST_OF(fewer_processors_never_end_earlier_than_the_work_allows, Fixture *f)
{
    for (guint32 seed = 0; seed < 100; seed++) {
        gint64 work = 0;

        make_random(f, seed, 200, TRUE);
        simulate(f);
        for (RpTaskId id = 0; id < rp_plan_end_id(f->plan); id++) {
            const RpTask *task = rp_plan_task(f->plan, id);

            work += task->duration_ns;
            if (rp_task_is_compute(task))
                assert_true(record_of(f, id)->end_ns - record_of(f, id)->start_ns >=
                            task->duration_ns);
        }
        assert_true(rp_trace_end_ns(f->trace) * f->machine.processors >= work);
    }
}

/* The verifier knows no processors: what takes longer than planned may have shared them. */
RP_TEST_OF(traces_of_shared_processors_are_proved, Fixture *f)
{
    for (guint32 seed = 0; seed < 100; seed++) {
        RpViolation violation = {0};

        make_random(f, seed, 200, TRUE);
        simulate(f);
        if (!rp_verify_trace(f->plan, f->trace, &violation))
            fail_msg("seed %u: %s", seed, violation.message);
    }
}

RP_TEST_OF(a_rest_that_ends_too_early_is_found, Fixture *f)
{
    RpViolation violation = {0};

    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    RpTaskId a = compute(f, 0, 30, AT_ONCE);
    RpTaskId b = backward(f, 1, 20, 15, AFTER({.task = a, .phase = 1}));
    simulate(f);
    g_autoptr(RpTrace) early = rp_trace_new(f->plan, RP_TRACE_PREDICTED);
    for (RpTaskId id = a; id <= b; id++) {
        RpTraceRecord record = *record_of(f, id);

        record.end_ns -= id == b;
        rp_trace_append(early, &record);
    }
    assert_true(rp_verify_trace(f->plan, f->trace, &violation));
    assert_false(rp_verify_trace(f->plan, early, &violation));
    assert_int_equal(violation.first, a);
    assert_int_equal(violation.second, b);
    assert_non_null(strstr(violation.message, "1 ns before what it waits for"));
    rp_violation_clear(&violation);
}

RP_TEST_OF(the_same_plan_gives_the_same_bytes, Fixture *f)
{
    for (guint shared = 0; shared < 2; shared++) {
        make_random(f, 7, 20000, shared);
        f->machine.links.host_bytes_per_s = BYTE_PER_NS / 3;
        simulate(f);
        g_autoptr(RpTrace) again = rp_must(rp_simulate, f->plan, &f->machine);

        assert_same_records(f->trace, again);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
