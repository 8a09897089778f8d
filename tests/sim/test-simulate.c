/*
 * `compute` plans: tiny ones with times worked out by hand, known formulas, and both engines
 * against each other.
 */
#include "tests/sim/plan-fixture.h"

#include <math.h>

#include "sim/search/partition-cost.h"
#include "sim/simulate-private.h"
#include "sim/steady-window.h"

/* Simulates a `compute` plan with both engines, which must agree. */
static void
simulate_with_both(Fixture *f)
{
    simulate(f);
    RpTrace *other = rp_must(rp_simulate_event_loop, f->plan, NULL);
    assert_same_records(f->trace, other);
    rp_trace_free(other);
}

RP_TEST_OF(copies_what_a_task_is_into_its_record, Fixture *f)
{
    RpTask task = {
        .duration_ns = 3,
        .bytes = 11,
        .lane = 5,
        .iteration = 12,
        .micro_batch = 13,
        .stage = 14,
        .backward_stage = 15,
        .backward_micro_batch = 16,
        .round = 17,
        .kind = RP_TASK_OVERLAP,
    };

    begin(f, 2, RP_FIDELITY_COMPUTE);
    rp_plan_append(f->plan, &task, NULL, 0, NULL, 0);
    simulate_with_both(f);
    RpTraceRecord expected;
    rp_trace_record_init(&expected, 0, &task);
    expected.start_ns = 0;
    expected.end_ns = 3;
    expected.transfer_ns = 0;
    assert_memory_equal(record_of(f, 0), &expected, sizeof expected);
}

RP_TEST_OF(takes_retired_dependencies_for_done, Fixture *f)
{
    begin(f, 2, RP_FIDELITY_COMPUTE);
    RpTaskId a = compute(f, 0, 10, AT_ONCE);
    RpTaskId b = compute(f, 1, 5, AFTER({.task = a, .hop_ns = 3}));
    RpTaskId c = compute(f, 0, 5, AFTER({.task = b}, {.task = a}));
    rp_plan_retire(f->plan, b);
    simulate_with_both(f);
    assert_times(f, b, 0, 5);
    assert_times(f, c, 5, 10);
}

RP_TEST_OF(names_both_tasks_when_one_waits_for_a_later_one, Fixture *f)
{
    begin(f, 2, RP_FIDELITY_COMPUTE);
    compute(f, 0, 10, AT_ONCE);
    compute(f, 0, 10, AFTER({.task = 2}));
    compute(f, 1, 10, AT_ONCE);
    f->trace = rp_simulate(f->plan, NULL, &f->error);
    assert_null(f->trace);
    assert_true(g_error_matches(f->error, RP_SIMULATE_ERROR, RP_SIMULATE_ERROR_DEADLOCK));
    char *waiting = rp_task_describe(f->plan, 1);
    char *awaited = rp_task_describe(f->plan, 2);
    rp_assert_error_message_contains(f->error, waiting);
    rp_assert_error_message_contains(f->error, awaited);
    g_free(waiting);
    g_free(awaited);
}

/* GPipe of equal stages without hops: (M + N - 1)(F + B), schedules.md. */
RP_TEST_OF(meets_the_formula_of_gpipe, Fixture *f)
{
    RpTaskId made[8][16];

    for (guint n = 1; n <= 8; n++) {
        for (guint m = 1; m <= 16; m += 3) {
            begin(f, n, RP_FIDELITY_COMPUTE);
            for (guint s = 0; s < n; s++)
                for (guint k = 0; k < m; k++)
                    made[s][k] = s == 0 ? compute(f, s, 3, AT_ONCE)
                                        : compute(f, s, 3, AFTER({.task = made[s - 1][k]}));
            for (guint s = n; s-- > 0;)
                for (guint k = 0; k < m; k++)
                    made[s][k] = s == n - 1 ? compute(f, s, 7, AFTER({.task = made[s][k]}))
                                            : compute(f, s, 7, AFTER({.task = made[s + 1][k]}));
            simulate_with_both(f);
            assert_int_equal(rp_trace_makespan_ns(f->trace), (m + n - 1) * 10);
        }
    }
}

static void
add_random_action(Fixture *f, GRand *random)
{
    RpTask task =
        make_task((RpTaskKind)g_rand_int_range(random, 0, RP_TASK_OVERLAP + 1),
                  rp_plan_lane(f->plan, g_rand_int_range(random, 0, (int)rp_plan_gpus(f->plan)),
                               RP_LANE_COMPUTE));
    const int id = (int)rp_plan_end_id(f->plan);
    RpDependency after[4];
    guint n = 0;

    if (g_rand_int_range(random, 0, 20) == 0)
        task = make_task(RP_TASK_BARRIER, rp_plan_host_lane(f->plan, RP_HOST_LANE_OPTIMIZER));
    else
        task.duration_ns = g_rand_int_range(random, 0, 6);
    task.lead_ns = g_rand_int_range(random, 0, (int)task.duration_ns + 1);
    while (n < G_N_ELEMENTS(after) && id > 0 && g_rand_boolean(random)) {
        after[n].task = (RpTaskId)g_rand_int_range(random, MAX(id - 30, 0), id);
        after[n].hop_ns = g_rand_boolean(random) ? (guint32)g_rand_int_range(random, 0, 5) : 0;
        after[n].phase = g_rand_boolean(random);
        n++;
    }
    rp_plan_append(f->plan, &task, after, n, NULL, 0);
}

RP_TEST_OF(both_engines_agree_on_random_plans, Fixture *f)
{
    for (guint32 seed = 0; seed < 500; seed++) {
        GRand *random = g_rand_new_with_seed(seed);
        const gint32 n = g_rand_int_range(random, 1, 300);

        begin(f, (guint)g_rand_int_range(random, 1, 6), RP_FIDELITY_COMPUTE);
        for (gint32 i = 0; i < n; i++)
            add_random_action(f, random);
        if (seed % 3 == 0)
            rp_plan_retire(f->plan, (RpTaskId)n / 3);
        g_rand_free(random);
        simulate_with_both(f);
    }
}

RP_TEST(takes_the_machine_from_a_profile)
{
    RpProfile *profile = rp_profile_new(1);

    profile->links.h2d_bytes_per_s = 25e9;
    profile->links.gpus_per_root = 4;
    profile->processors = 6;
    profile->optimizer_parameters_per_s = 3e9;
    const RpMachine machine = rp_machine_from_profile(profile);
    rp_profile_free(profile);
    assert_true(machine.links.h2d_bytes_per_s == 25e9);
    assert_int_equal(machine.links.gpus_per_root, 4);
    assert_int_equal(machine.processors, 6);
    assert_true(machine.optimizer_bytes_per_s == 84e9);
}

/* The rest of host memory's rate beside a copy. */
RP_TEST(weighs_the_optimizer_as_measured)
{
    const struct {
        double host, beside, weight;
        guint gpus;
    } cases[] = {{205e9, 91e9, 4 * 114.0 / 91, 4},
                 {200e9, 50e9, 3, 0},
                 {200e9, 0, 0, 4},
                 {0, 50e9, 0, 4},
                 {50e9, 50e9, 0, 4},
                 {1e15, 1e9, 100, 4},
                 {1.00001e9, 1e9, 0.01, 1}};

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        RpProfile *profile = rp_profile_new(1);

        profile->gpus = cases[i].gpus;
        profile->links.host_bytes_per_s = cases[i].host;
        profile->links.beside_optimizer_bytes_per_s = cases[i].beside;
        const RpMachine machine = rp_machine_from_profile(profile);
        rp_profile_free(profile);
        assert_true(fabs(machine.optimizer_weight - cases[i].weight) <= 1e-12);
        assert_true(machine.beside_optimizer_bytes_per_s ==
                    cases[i].beside / MAX(cases[i].gpus, 1));
    }
}

/* Rotation of devices, and pairs of iterations: an update is for the iteration after the next. */
RP_TEST(a_steady_window_has_whole_pairs_and_turns)
{
    for (guint gpus = 1; gpus <= 9; gpus++)
        for (guint slots = 1; slots <= 40; slots++) {
            const RpSteadyWindow window = rp_steady_window(gpus, slots);
            const guint iterations = window.end - window.first;

            assert_true(window.first >= 4 && iterations > 0);
            assert_int_equal(window.first % 2, 0);
            assert_int_equal(iterations % 2, 0);
            assert_int_equal(iterations * slots % gpus, 0);
            assert_true(window.end < window.iterations);
        }
}

RP_TEST_FIXTURE(set_up, tear_down)
