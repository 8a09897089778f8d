/*
 * Devices that are threads of the host and share its processors: tiny plans with times worked out
 * by hand, then random ones against the naive simulator.
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

/*
 *   gpu 0   |--10--|             half a processor each until 20,
 *   gpu 1   |--30--------|       then b has 20 left and one to itself
 */
RP_TEST_OF(the_longer_of_two_actions_has_the_processor_to_itself_at_the_end, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId b = compute(f, 1, 30, AT_ONCE);
    simulate(f);
    assert_times(f, a, 0, 20);
    assert_times(f, b, 0, 40);
}

/*
 * Parts of one card, alone half as fast again:
 *
 *   gpu 0   |--30--|            as long as the profile says while both work,
 *   gpu 1   |--60------|        then b has 30 left, at 1.5 of the speed
 */
RP_TEST_OF(an_action_is_faster_while_the_others_leave_it_power, Fixture *f)
{
    begin_full(f, 2);
    f->machine.alone_speed = 1.5;
    RpTaskId a = compute(f, 0, 30, AT_ONCE);
    RpTaskId b = compute(f, 1, 60, AT_ONCE);
    simulate(f);
    assert_times(f, a, 0, 30);
    assert_times(f, b, 0, 50);

    begin_full(f, 4); /* three of four leave more than alone_speed: 4 / 3 of it each */
    f->machine.alone_speed = 1.25;
    for (guint g = 0; g < 3; g++)
        a = compute(f, g, 1000, AT_ONCE);
    simulate(f);
    assert_times(f, a, 0, 800);
}

RP_TEST_OF(an_action_that_begins_later_slows_down_those_that_run, Fixture *f)
{
    /* 2 processors; c begins at 30 and gets 2/3 like a and b until those end at 45 */
    begin_on(f, RP_FIDELITY_COMPUTE, 3, 2);
    RpTaskId a = compute(f, 0, 40, AT_ONCE);
    RpTaskId first = compute(f, 1, 10, AT_ONCE);
    RpTaskId b = compute(f, 1, 30, AT_ONCE);
    RpTaskId c = compute(f, 2, 20, AFTER({.task = first, .hop_ns = 20}));
    simulate(f);
    assert_times(f, first, 0, 10);
    assert_times(f, a, 0, 45);
    assert_times(f, b, 10, 45);
    assert_times(f, c, 30, 55);
    assert_transfer(f, c, 20);
}

RP_TEST_OF(rounds_an_actions_end_up, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 3, 2);
    for (guint g = 0; g < 3; g++)
        compute(f, g, 1, AT_ONCE);
    RpTaskId next = compute(f, 2, 1, AT_ONCE);
    simulate(f);
    assert_times(f, 0, 0, 2);
    assert_times(f, next, 2, 3);
}

RP_TEST_OF(a_copy_takes_a_processor, Fixture *f)
{
    begin_on(f, RP_FIDELITY_FULL, 1, 1);
    RpTaskId action = compute(f, 0, 10, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_PARAMETER_UP, 30, AT_ONCE);
    simulate(f);
    assert_times(f, action, 0, 20);
    assert_times(f, up, 0, 40);
}

RP_TEST_OF(a_copys_latency_takes_none, Fixture *f)
{
    begin_on(f, RP_FIDELITY_FULL, 1, 1);
    f->machine.links.copy_latency_ns = 6;
    RpTaskId action = compute(f, 0, 10, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_PARAMETER_UP, 10, AT_ONCE);
    simulate(f);
    /* alone until 6, half until 14 */
    assert_times(f, action, 0, 14);
    assert_times(f, up, 0, 20);
}

RP_TEST_OF(a_copy_keeps_its_processor_while_memory_is_what_limits_it, Fixture *f)
{
    begin_on(f, RP_FIDELITY_FULL, 3, 2);
    f->machine.links.host_bytes_per_s = BYTE_PER_NS;
    RpTaskId a = copy(f, 0, RP_LANE_PARAMETER_UP, 30, AT_ONCE);
    RpTaskId b = copy(f, 1, RP_LANE_PARAMETER_UP, 30, AT_ONCE);
    RpTaskId action = compute(f, 2, 40, AT_ONCE);
    simulate(f);
    /* copies at 1/2, which memory allows, of the 2/3 that processors allow */
    assert_times(f, a, 0, 60);
    assert_times(f, b, 0, 60);
    assert_times(f, action, 0, 60);
}

RP_TEST_OF(a_host_task_takes_a_processor, Fixture *f)
{
    begin_on(f, RP_FIDELITY_FULL, 1, 1);
    f->machine.optimizer_bytes_per_s = 2 * BYTE_PER_NS;
    RpTaskId action = compute(f, 0, 10, AT_ONCE);
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 40, AT_ONCE);
    RpTaskId barrier = host(f, RP_TASK_BARRIER, 0, AT_ONCE);
    simulate(f);
    assert_times(f, action, 0, 20);
    assert_times(f, step, 0, 30);
    assert_times(f, barrier, 30, 30);
}

/*
 *   gpu 0   |-------a-------|           half a processor until 30, then one
 *   gpu 1   |--lead--|......|-rest-|    lead of 15, rest of 5
 */
RP_TEST_OF(a_recompute_shares_processors_while_its_gradient_is_made, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    RpTaskId a = compute(f, 0, 30, AT_ONCE);
    RpTaskId b = backward(f, 1, 20, 15, AFTER({.task = a, .phase = 1}));
    simulate(f);
    assert_times(f, a, 0, 45);
    assert_times(f, b, 15, 50); /* its lead ran from 0 to 30, and counts from 15 */

    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    a = compute(f, 0, 30, AT_ONCE);
    b = backward(f, 1, 20, 15, AFTER({.task = a, .hop_ns = 5, .phase = 1}));
    simulate(f);
    assert_times(f, b, 20, 55);
    assert_transfer(f, b, 5);
}

RP_TEST_OF(a_rest_does_not_wait_when_its_gradient_is_there, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 3, 2);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId other = compute(f, 2, 60, AT_ONCE);
    RpTaskId b = backward(f, 1, 40, 20, AFTER({.task = a, .phase = 1}));
    simulate(f);
    /* three at 2/3 until 15; b's lead has 10 left then, ends at 25, and its rest at 45 */
    assert_times(f, a, 0, 15);
    assert_times(f, b, 0, 45);
    assert_times(f, other, 0, 65);
    assert_transfer(f, b, 0);
}

RP_TEST_OF(an_action_of_no_length_needs_no_processor, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId nothing = compute(f, 1, 0, AT_ONCE);
    RpTaskId all_lead = backward(f, 1, 10, 10, AFTER({.task = a, .phase = 1}));
    simulate(f);
    assert_times(f, nothing, 0, 0);
    assert_times(f, a, 0, 20);
    assert_times(f, all_lead, 0, 20);
}

RP_TEST_OF(names_what_a_rest_waits_for_in_a_deadlock, Fixture *f)
{
    begin_on(f, RP_FIDELITY_COMPUTE, 2, 1);
    backward(f, 0, 10, 5, AFTER({.task = 17, .phase = 1}));
    assert_deadlock(f, "task 17");
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
        f->trace = rp_simulate(f->plan, &one, &f->error);
        rp_assert_no_error(f->error);
        for (RpTaskId id = 0; id < rp_plan_end_id(f->plan); id++)
            work += rp_plan_task(f->plan, id)->duration_ns;
        assert_true(rp_trace_end_ns(f->trace) >= work);
        /* an end is rounded up to a nanosecond */
        assert_true(rp_trace_end_ns(f->trace) <= work + 2 * (gint64)rp_plan_end_id(f->plan));
    }
}

static void
add_random_task(Fixture *f, GRand *random)
{
    const gboolean full = rp_plan_fidelity(f->plan) == RP_FIDELITY_FULL;
    const guint gpus = rp_plan_gpus(f->plan);
    const guint32 lane =
        full && g_rand_boolean(random)
            ? (guint32)g_rand_int_range(random, 0, (int)rp_plan_n_lanes(f->plan))
            : rp_plan_lane(f->plan, (guint)g_rand_int_range(random, 0, (int)gpus), RP_LANE_COMPUTE);
    RpTask task = make_task(RP_TASK_FORWARD, lane);
    const guint kind = rp_plan_lane_kind(f->plan, lane);
    const int id = (int)rp_plan_end_id(f->plan);
    RpDependency after[3];
    guint n = 0;

    if (kind == RP_LANE_COMPUTE) {
        task.duration_ns = g_rand_int_range(random, 0, 500);
        task.lead_ns = g_rand_int_range(random, 0, (int)task.duration_ns + 1);
    } else {
        task.kind = kind < RP_LANES_PER_DEVICE                          ? RP_TASK_PARAMETER_UPLOAD
                    : kind < RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK ? RP_TASK_OPTIMIZER_STEP
                    : id % 2 == 0                                       ? RP_TASK_REDUCE
                                                                        : RP_TASK_GATHER;
        task.bytes = (guint64)g_rand_int_range(random, 0, 1000);
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
make_random(Fixture *f, guint32 seed, guint n)
{
    GRand *random = g_rand_new_with_seed(seed);
    const RpFidelity fidelity = seed % 3 == 0 ? RP_FIDELITY_COMPUTE : RP_FIDELITY_FULL;

    begin_on(f, fidelity, (guint)g_rand_int_range(random, 1, 6),
             (guint)g_rand_int_range(random, 1, 6));
    f->machine.links.copy_latency_ns = g_rand_boolean(random) ? 0 : 13;
    f->machine.links.h2d_bytes_per_s = random_limit(random);
    f->machine.links.d2h_bytes_per_s = random_limit(random);
    f->machine.links.root_bytes_per_s = random_limit(random);
    f->machine.links.host_bytes_per_s = 2 * random_limit(random);
    f->machine.links.gpus_per_root = (guint)g_rand_int_range(random, 0, 4);
    f->machine.optimizer_bytes_per_s = random_limit(random);
    f->machine.optimizer_weight = g_rand_int_range(random, 0, 5) * 0.75; /* 0 = none */
    f->machine.beside_optimizer_bytes_per_s = random_limit(random) / 2;
    f->machine.links.network_bytes_per_s = random_limit(random);
    f->machine.links.network_latency_ns = 11;
    for (guint i = 0; i < n; i++)
        add_random_task(f, random);
    g_rand_free(random);
}

RP_TEST_OF(agrees_with_the_naive_simulator_on_random_plans, Fixture *f)
{
    for (guint32 seed = 0; seed < 400; seed++) {
        guint n = 1 + seed % 80, wrong = 0;

        make_random(f, seed, n);
        simulate(f);
        NaiveTimes *expected = naive_simulate(f->plan, &f->machine);
        while (wrong < n && record_of(f, (RpTaskId)wrong)->start_ns == expected[wrong].start_ns &&
               record_of(f, (RpTaskId)wrong)->end_ns == expected[wrong].end_ns)
            wrong++;
        g_free(expected);
        if (wrong < n)
            print_error("seed %u: task %u\n", seed, wrong);
        assert_int_equal(wrong, n);
    }
}

RP_TEST_OF(enough_processors_change_nothing, Fixture *f)
{
    for (guint32 seed = 0; seed < 100; seed++) {
        make_random(f, seed, 300);
        /* these count without processors only */
        f->machine.optimizer_weight = f->machine.beside_optimizer_bytes_per_s = 0;
        f->machine.processors = 0;
        simulate(f);
        /* every action and every copy at once, and the host lanes */
        f->machine.processors = 3 * rp_plan_gpus(f->plan) + RP_HOST_LANES;
        RpTrace *shared = rp_simulate_event_loop(f->plan, &f->machine, &f->error);
        rp_assert_no_error(f->error);
        assert_same_records(f->trace, shared);
        rp_trace_free(shared);
    }
}

RP_TEST_OF(fewer_processors_never_end_earlier_than_the_work_allows, Fixture *f)
{
    for (guint32 seed = 0; seed < 100; seed++) {
        gint64 work = 0;

        make_random(f, seed, 200);
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

        make_random(f, seed, 200);
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
    make_random(f, 7, 20000);
    f->machine.processors = 2;
    simulate(f);
    RpTrace *again = rp_simulate(f->plan, &f->machine, &f->error);
    rp_assert_no_error(f->error);
    assert_same_records(f->trace, again);
    rp_trace_free(again);
}

RP_TEST_FIXTURE(set_up, tear_down)
