/*
 * `full` plans: tiny ones with times worked out by hand, then random ones against the naive
 * simulator. Speeds are in bytes per nanosecond, so that times can be read off.
 */
#include "tests/sim/plan-fixture.h"

#include "tests/sim/naive-simulate.h"

/*
 *   parameter-up    |--------big--------|
 *   activation-up         ready ...     |a|
 */
RP_TEST_OF(a_big_parameter_copy_delays_an_activation, Fixture *f)
{
    begin_full(f, 2);
    RpTaskId made = compute(f, 0, 10, AT_ONCE);
    RpTaskId big = copy(f, 1, RP_LANE_PARAMETER_UP, 1000, AT_ONCE);
    RpTaskId input = copy(f, 1, RP_LANE_ACTIVATION_UP, 10, AFTER({.task = made}));
    RpTaskId action = compute(f, 1, 5, AFTER({.task = input}));
    simulate(f);
    assert_times(f, big, 0, 1000);
    assert_times(f, input, 1000, 1010);
    assert_times(f, action, 1010, 1015);
}

RP_TEST_OF(chunks_of_it_let_the_activation_go_first, Fixture *f)
{
    RpTaskId chunks[20];

    begin_full(f, 2);
    RpTaskId made = compute(f, 0, 10, AT_ONCE);
    for (guint i = 0; i < G_N_ELEMENTS(chunks); i++)
        chunks[i] = copy(f, 1, RP_LANE_PARAMETER_UP, 50, AT_ONCE);
    RpTaskId input = copy(f, 1, RP_LANE_ACTIVATION_UP, 10, AFTER({.task = made}));
    simulate(f);
    assert_times(f, chunks[0], 0, 50);
    assert_times(f, input, 50, 60);
    assert_times(f, chunks[1], 60, 110);
    assert_times(f, chunks[19], 960, 1010);
}

RP_TEST_OF(what_is_ready_when_the_engine_becomes_free_counts, Fixture *f)
{
    begin_full(f, 1);
    RpTaskId first = copy(f, 0, RP_LANE_GRADIENT_DOWN, 10, AT_ONCE);
    RpTaskId second = copy(f, 0, RP_LANE_GRADIENT_DOWN, 10, AT_ONCE);
    RpTaskId made = compute(f, 0, 10, AT_ONCE);
    RpTaskId output = copy(f, 0, RP_LANE_ACTIVATION_DOWN, 10, AFTER({.task = made}));
    simulate(f);
    assert_times(f, first, 0, 10);
    assert_times(f, output, 10, 20);
    assert_times(f, second, 20, 30);
}

RP_TEST_OF(ends_of_equal_copies_come_before_the_next_begins, Fixture *f)
{
    /* both downloads end at 20; the upload which that allows goes before the chunk */
    begin_full(f, 2);
    f->machine.links.gpus_per_root = 2;
    f->machine.links.root_bytes_per_s = BYTE_PER_NS;
    copy(f, 0, RP_LANE_ACTIVATION_DOWN, 10, AT_ONCE);
    RpTaskId output = copy(f, 1, RP_LANE_ACTIVATION_DOWN, 10, AT_ONCE);
    copy(f, 0, RP_LANE_PARAMETER_UP, 20, AT_ONCE);
    RpTaskId chunk = copy(f, 0, RP_LANE_PARAMETER_UP, 5, AT_ONCE);
    RpTaskId input = copy(f, 0, RP_LANE_ACTIVATION_UP, 5, AFTER({.task = output}));
    simulate(f);
    assert_times(f, output, 0, 20);
    assert_times(f, input, 20, 25);
    assert_times(f, chunk, 25, 30);
}

RP_TEST_OF(the_two_directions_do_not_disturb_each_other, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.d2h_bytes_per_s = 2 * BYTE_PER_NS;
    RpTaskId up = copy(f, 0, RP_LANE_ACTIVATION_UP, 100, AT_ONCE);
    RpTaskId down = copy(f, 0, RP_LANE_ACTIVATION_DOWN, 100, AT_ONCE);
    simulate(f);
    assert_times(f, up, 0, 100);
    assert_times(f, down, 0, 50);
}

RP_TEST_OF(devices_under_one_root_complex_share_it, Fixture *f)
{
    begin_full(f, 3);
    f->machine.links.gpus_per_root = 2;
    f->machine.links.root_bytes_per_s = BYTE_PER_NS;
    RpTaskId a = copy(f, 0, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId b = copy(f, 1, RP_LANE_PARAMETER_UP, 150, AT_ONCE);
    RpTaskId other_root = copy(f, 2, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId other_way = copy(f, 0, RP_LANE_GRADIENT_DOWN, 100, AT_ONCE);
    simulate(f);
    /* half each until 200, then b has 50 left and the link to itself */
    assert_times(f, a, 0, 200);
    assert_times(f, b, 0, 250);
    assert_times(f, other_root, 0, 100);
    assert_times(f, other_way, 0, 100);
}

RP_TEST_OF(the_optimizer_shares_host_memory_with_the_copies, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.h2d_bytes_per_s = 4 * BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 6 * BYTE_PER_NS;
    f->machine.optimizer_bytes_per_s = 5 * BYTE_PER_NS;
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 600, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_PARAMETER_UP, 300, AT_ONCE);
    RpTaskId alone = host(f, RP_TASK_OPTIMIZER_STEP, 500, AT_ONCE);
    simulate(f);
    /* 3 + 3 until 100; then 5 alone: 300 left take 60 */
    assert_times(f, up, 0, 100);
    assert_times(f, step, 0, 160);
    assert_times(f, alone, 160, 260);
}

RP_TEST_OF(a_slow_flow_leaves_its_share_to_the_others, Fixture *f)
{
    begin_full(f, 2);
    f->machine.links.h2d_bytes_per_s = 4 * BYTE_PER_NS;
    f->machine.links.d2h_bytes_per_s = BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 7 * BYTE_PER_NS;
    RpTaskId slow = copy(f, 0, RP_LANE_ACTIVATION_DOWN, 100, AT_ONCE);
    RpTaskId a = copy(f, 0, RP_LANE_ACTIVATION_UP, 300, AT_ONCE);
    RpTaskId b = copy(f, 1, RP_LANE_ACTIVATION_UP, 300, AT_ONCE);
    simulate(f);
    assert_times(f, slow, 0, 100);
    assert_times(f, a, 0, 100);
    assert_times(f, b, 0, 100);
}

RP_TEST_OF(the_host_lanes_work_side_by_side, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.host_bytes_per_s = 8 * BYTE_PER_NS;
    f->machine.optimizer_bytes_per_s = 5 * BYTE_PER_NS;
    RpTaskId sum = host(f, RP_TASK_GRADIENT_ACCUMULATE, 400, AT_ONCE);
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 500, AFTER({.task = sum}));
    RpTaskId other = host(f, RP_TASK_GRADIENT_ACCUMULATE, 400, AT_ONCE);
    simulate(f);
    assert_times(f, sum, 0, 80);
    assert_times(f, other, 80, 180);
    /* 4 bytes/ns until 180, then 5 */
    assert_times(f, step, 80, 200);
}

RP_TEST_OF(a_copys_latency_holds_the_engine_but_no_bandwidth, Fixture *f)
{
    begin_full(f, 2);
    f->machine.links.copy_latency_ns = 20;
    f->machine.links.host_bytes_per_s = BYTE_PER_NS;
    RpTaskId a = copy(f, 0, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId b = copy(f, 0, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId gate = compute(f, 1, 110, AT_ONCE);
    RpTaskId c = copy(f, 1, RP_LANE_PARAMETER_UP, 10, AFTER({.task = gate}));
    simulate(f);
    assert_times(f, a, 0, 120);
    /* c begins to flow at 130, when b does not yet: b's latency ends at 140 */
    assert_times(f, c, 110, 140);
    assert_times(f, b, 120, 240);
}

RP_TEST_OF(rounds_a_copys_end_up, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.h2d_bytes_per_s = 3 * BYTE_PER_NS;
    RpTaskId a = copy(f, 0, RP_LANE_ACTIVATION_UP, 10, AT_ONCE);
    RpTaskId b = copy(f, 0, RP_LANE_ACTIVATION_UP, 9, AT_ONCE);
    simulate(f);
    assert_times(f, a, 0, 4);
    assert_times(f, b, 4, 7);
}

RP_TEST_OF(a_copy_of_nothing_takes_no_time_and_no_engine, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.copy_latency_ns = 20;
    RpTaskId big = copy(f, 0, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId made = compute(f, 0, 10, AT_ONCE);
    RpTaskId nothing = copy(f, 0, RP_LANE_ACTIVATION_UP, 0, AFTER({.task = made}));
    RpTaskId action = compute(f, 0, 5, AFTER({.task = nothing}));
    RpTaskId next = copy(f, 0, RP_LANE_ACTIVATION_UP, 10, AFTER({.task = made}));
    simulate(f);
    assert_times(f, big, 0, 120);
    assert_times(f, nothing, 10, 10);
    assert_times(f, action, 10, 15);
    assert_times(f, next, 120, 150);
}

RP_TEST_OF(a_barrier_joins_lanes_and_takes_no_time, Fixture *f)
{
    begin_full(f, 2);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId b = compute(f, 1, 30, AT_ONCE);
    RpTaskId barrier = host(f, RP_TASK_BARRIER, 0, AFTER({.task = a}, {.task = b}));
    RpTaskId after = compute(f, 0, 5, AFTER({.task = barrier}));
    simulate(f);
    assert_times(f, barrier, 30, 30);
    assert_times(f, after, 30, 35);
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

    RpTrace *without = rp_simulate(f->plan, NULL, &f->error);
    rp_assert_no_error(f->error);
    assert_int_equal(rp_trace_end_ns(without), 0);
    rp_trace_free(without);
}

RP_TEST_OF(a_copy_may_have_a_hop_to_wait_for, Fixture *f)
{
    begin_full(f, 1);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_ACTIVATION_UP, 10, AFTER({.task = a, .hop_ns = 5}));
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 10, AFTER({.task = a, .hop_ns = 5}));
    RpTaskId b = compute(f, 0, 10, AFTER({.task = a, .hop_ns = 4}));
    simulate(f);
    assert_times(f, up, 15, 25);
    assert_times(f, step, 15, 15);
    assert_times(f, b, 14, 24);
    assert_transfer(f, b, 4);
}

/* From the end of the action that made a value to the end of its upload. */
RP_TEST_OF(counts_the_whole_way_of_a_value_through_the_host, Fixture *f)
{
    begin_full(f, 3);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId down = copy(f, 0, RP_LANE_ACTIVATION_DOWN, 20, AFTER({.task = a}));
    RpTaskId up = copy(f, 1, RP_LANE_ACTIVATION_UP, 20, AFTER({.task = down}));
    RpTaskId b = compute(f, 1, 5, AFTER({.task = up}));
    RpTaskId busy = compute(f, 2, 50, AT_ONCE);
    RpTaskId same = copy(f, 2, RP_LANE_ACTIVATION_UP, 20, AFTER({.task = down}));
    RpTaskId c = compute(f, 2, 5, AFTER({.task = same}, {.task = busy}));
    simulate(f);
    assert_times(f, b, 50, 55);
    assert_transfer(f, b, 40);
    assert_transfer(f, up, 0);
    assert_times(f, c, 50, 55);
    assert_transfer(f, c, 0);
}

RP_TEST_OF(counts_an_upload_alone_when_its_origin_is_unknown, Fixture *f)
{
    begin_full(f, 1);
    RpTaskId up = copy(f, 0, RP_LANE_ACTIVATION_UP, 20, AT_ONCE);
    RpTaskId a = compute(f, 0, 5, AFTER({.task = up}));
    RpTaskId parameters = copy(f, 0, RP_LANE_PARAMETER_UP, 20, AFTER({.task = up}));
    RpTaskId b = compute(f, 0, 5, AFTER({.task = parameters}));
    simulate(f);
    assert_times(f, a, 20, 25);
    assert_transfer(f, a, 20);
    assert_times(f, b, 40, 45);
    assert_transfer(f, b, 0);
}

RP_TEST_OF(counts_the_gradient_that_holds_a_recompute_back, Fixture *f)
{
    begin_full(f, 2);
    RpTaskId a = compute(f, 0, 30, AT_ONCE);
    RpTaskId down = copy(f, 0, RP_LANE_ACTIVATION_DOWN, 10, AFTER({.task = a}));
    RpTaskId up = copy(f, 1, RP_LANE_ACTIVATION_UP, 10, AFTER({.task = down}));
    RpTaskId b = backward(f, 1, 20, 15, AFTER({.task = up, .phase = 1}));
    simulate(f);
    assert_times(f, b, 35, 55);
    assert_transfer(f, b, 20);
}

RP_TEST_OF(a_full_plan_may_depend_on_later_tasks_of_other_lanes, Fixture *f)
{
    begin_full(f, 2);
    RpTaskId a = compute(f, 0, 10, AFTER({.task = 1}));
    RpTaskId b = compute(f, 1, 10, AT_ONCE);
    simulate(f);
    assert_times(f, b, 0, 10);
    assert_times(f, a, 10, 20);
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

    char *a_waits = rp_task_describe(f->plan, a);
    char *c_waits = rp_task_describe(f->plan, c);
    char *a_for = rp_task_describe(f->plan, d);
    char *c_for = rp_task_describe(f->plan, b);
    char *one = g_strdup_printf("%s waits for %s", a_waits, a_for);
    char *two = g_strdup_printf("%s waits for %s", c_waits, c_for);
    const gboolean named =
        strstr(f->error->message, one) != NULL || strstr(f->error->message, two) != NULL;
    g_free(a_waits);
    g_free(c_waits);
    g_free(a_for);
    g_free(c_for);
    g_free(one);
    g_free(two);
    assert_true(named);
}

RP_TEST_OF(names_a_task_that_waits_for_itself_or_for_nobody, Fixture *f)
{
    begin_full(f, 1);
    compute(f, 0, 10, AFTER({.task = 0}));
    assert_deadlock(f, "waits for itself");

    begin_full(f, 1);
    copy(f, 0, RP_LANE_PARAMETER_UP, 10, AFTER({.task = 17}));
    assert_deadlock(f, "task 17");

    begin(f, 1, RP_FIDELITY_COMPUTE);
    compute(f, 0, 10, AFTER({.task = 17}));
    assert_deadlock(f, "task 17");
}

static guint64
random_bytes(GRand *random)
{
    static const int most[] = {1, 10, 100, 1000000};

    return (guint64)g_rand_int_range(random, 0, most[g_rand_int_range(random, 0, 4)]);
}

static void
add_random_task(Fixture *f, GRand *random)
{
    const guint32 lane = (guint32)g_rand_int_range(random, 0, (int)rp_plan_n_lanes(f->plan));
    RpTask task = make_task(RP_TASK_FORWARD, lane);
    const guint kind = rp_plan_lane_kind(f->plan, lane);
    const int id = (int)rp_plan_end_id(f->plan);
    RpDependency after[3];
    guint n = 0;

    if (kind == RP_LANE_COMPUTE) {
        task.duration_ns = g_rand_int_range(random, 0, 50);
        task.lead_ns = g_rand_int_range(random, 0, (int)task.duration_ns + 1);
    } else {
        task.kind = kind < RP_LANES_PER_DEVICE                          ? RP_TASK_PARAMETER_UPLOAD
                    : kind < RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK ? RP_TASK_OPTIMIZER_STEP
                    : id % 2 == 0                                       ? RP_TASK_REDUCE
                                                                        : RP_TASK_GATHER;
        task.bytes = random_bytes(random);
    }
    while (n < G_N_ELEMENTS(after) && id > 0 && g_rand_boolean(random)) {
        after[n].task = (RpTaskId)g_rand_int_range(random, MAX(id - 15, 0), id);
        after[n].hop_ns = g_rand_int_range(random, 0, 4) == 0 ? 7 : 0;
        after[n].phase = kind == RP_LANE_COMPUTE && g_rand_boolean(random);
        n++;
    }
    rp_plan_append(f->plan, &task, after, n, NULL, 0);
}

RP_TEST_OF(the_optimizer_takes_more_of_host_memory_than_a_copy, Fixture *f)
{
    begin_full(f, 2);
    f->machine.links.h2d_bytes_per_s = 4 * BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 6 * BYTE_PER_NS;
    f->machine.optimizer_bytes_per_s = 5 * BYTE_PER_NS;
    f->machine.optimizer_weight = 4;
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 400, AT_ONCE);
    RpTaskId a = copy(f, 0, RP_LANE_PARAMETER_UP, 100, AT_ONCE);
    RpTaskId b = copy(f, 1, RP_LANE_PARAMETER_UP, 300, AT_ONCE);
    simulate(f);
    /* 4 + 1 + 1 until 100; b alone after that */
    assert_times(f, step, 0, 100);
    assert_times(f, a, 0, 100);
    assert_times(f, b, 0, 150);
}

/* Sums of rounds and steps run on the same processors. */
RP_TEST_OF(host_tasks_share_what_the_optimizer_moves, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.h2d_bytes_per_s = 20 * BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 10 * BYTE_PER_NS;
    f->machine.optimizer_bytes_per_s = 6 * BYTE_PER_NS;
    f->machine.optimizer_weight = 4;
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 600, AT_ONCE);
    RpTaskId sum = host(f, RP_TASK_GRADIENT_ACCUMULATE, 300, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_PARAMETER_UP, 400, AT_ONCE);
    simulate(f);
    /* 3 + 3, and 4 for the copy, until 100; then 6 alone */
    assert_times(f, sum, 0, 100);
    assert_times(f, up, 0, 100);
    assert_times(f, step, 0, 150);
}

/* Memory has enough for all; what devices read comes slower nonetheless, and what they write does
 * not. */
RP_TEST_OF(a_copy_up_is_slower_beside_the_optimizer, Fixture *f)
{
    begin_full(f, 1);
    f->machine.links.h2d_bytes_per_s = 4 * BYTE_PER_NS;
    f->machine.links.d2h_bytes_per_s = 4 * BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 20 * BYTE_PER_NS;
    f->machine.optimizer_bytes_per_s = 6 * BYTE_PER_NS;
    f->machine.beside_optimizer_bytes_per_s = 2 * BYTE_PER_NS;
    RpTaskId step = host(f, RP_TASK_OPTIMIZER_STEP, 600, AT_ONCE);
    RpTaskId up = copy(f, 0, RP_LANE_PARAMETER_UP, 400, AT_ONCE);
    RpTaskId down = copy(f, 0, RP_LANE_GRADIENT_DOWN, 400, AT_ONCE);
    simulate(f);
    /* up: 200 bytes until the step is over, 4 a ns after that */
    assert_times(f, step, 0, 100);
    assert_times(f, down, 0, 100);
    assert_times(f, up, 0, 150);
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

RP_TEST_OF(agrees_with_the_naive_simulator_on_random_plans, Fixture *f)
{
    for (guint32 seed = 0; seed < 400; seed++) {
        GRand *random = g_rand_new_with_seed(seed);
        const gint32 n = g_rand_int_range(random, 1, 80);

        begin_full(f, (guint)g_rand_int_range(random, 1, 6));
        set_random_machine(&f->machine, random);
        for (gint32 i = 0; i < n; i++)
            add_random_task(f, random);
        g_rand_free(random);
        simulate(f);

        NaiveTimes *expected = naive_simulate(f->plan, &f->machine);
        gint32 wrong = 0;
        while (wrong < n && record_of(f, (RpTaskId)wrong)->start_ns == expected[wrong].start_ns &&
               record_of(f, (RpTaskId)wrong)->end_ns == expected[wrong].end_ns)
            wrong++;
        g_free(expected);
        if (wrong < n)
            print_error("seed %u: task %d\n", seed, wrong);
        assert_int_equal(wrong, n);
    }
}

RP_TEST_OF(the_same_plan_gives_the_same_bytes, Fixture *f)
{
    GRand *random = g_rand_new_with_seed(7);

    begin_full(f, 5);
    set_random_machine(&f->machine, random);
    f->machine.links.host_bytes_per_s = BYTE_PER_NS / 3;
    for (guint i = 0; i < 20000; i++)
        add_random_task(f, random);
    g_rand_free(random);
    simulate(f);
    RpTrace *again = rp_simulate(f->plan, &f->machine, &f->error);
    rp_assert_no_error(f->error);
    assert_same_records(f->trace, again);
    rp_trace_free(again);
}

RP_TEST_FIXTURE(set_up, tear_down)
