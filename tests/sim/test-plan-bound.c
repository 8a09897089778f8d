#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "sim/plan-bound.h"
#include "tests/sim/plan-fixture.h"
#include "tests/sim/random-cut.h"

#define TASKS 6
#define NORM 3 /* task that is a norm if it is the host's */
#define CASES 150

/* A task of a random plan: its lane, its size, and which of the tasks before it it waits for. */
typedef struct {
    guint32 device;
    guint lane;
    guint64 size; /* ns or bytes */
    gint64 lead_ns;
    guint waits_for; /* bits */
    guint32 hop_ns;
} Task;

enum { LANE_HOST = RP_LANES_PER_DEVICE };

static void
make_tasks(GRand *rand, gboolean full, Task *tasks)
{
    guint on_host = 0;

    for (guint i = 0; i < TASKS; i++) {
        Task *task = &tasks[i];

        *task = (Task){
            .device = (guint32)g_rand_int_range(rand, 0, 2),
            .lane = full && g_rand_int_range(rand, 0, 3) > 0
                        ? (guint)g_rand_int_range(rand, 0, LANE_HOST + 1)
                        : RP_LANE_COMPUTE,
            .size = (guint64)g_rand_int_range(rand, 1, 40),
            .waits_for = g_rand_int(rand) & g_rand_int(rand) & ((1u << i) - 1),
            .hop_ns = full ? 0 : (guint32)g_rand_int_range(rand, 0, 4),
        };
        if (task->lane == LANE_HOST) { /* the order of the host's lane is kept */
            task->waits_for |= on_host;
            on_host = 1u << i;
        }
        if (task->lane == RP_LANE_COMPUTE && g_rand_boolean(rand))
            task->lead_ns = g_rand_int_range(rand, 0, (gint32)task->size);
    }
}

/* The tasks in the order of @order as a plan. */
static void
lay(Fixture *f, const Task *tasks, const guint *order)
{
    RpTaskId ids[TASKS];

    for (guint k = 0; k < TASKS; k++) {
        const Task *task = &tasks[order[k]];
        RpDependency after[TASKS];
        gsize n = 0;

        for (guint j = 0; j < TASKS; j++)
            if (task->waits_for >> j & 1)
                after[n++] = (RpDependency){
                    .task = ids[j], .hop_ns = task->hop_ns, .phase = task->lead_ns > 0 && j % 2};
        if (task->lane == LANE_HOST)
            ids[order[k]] = host(f, order[k] == NORM ? RP_TASK_NORM : RP_TASK_OPTIMIZER_STEP,
                                 task->size, after, n);
        else if (task->lane == RP_LANE_COMPUTE)
            ids[order[k]] = backward(f, task->device, (gint64)task->size, task->lead_ns, after, n);
        else
            ids[order[k]] = copy(f, task->device, task->lane, task->size, after, n);
    }
}

static RpMachine
random_machine(GRand *rand)
{
    return (RpMachine){
        .links =
            {
                .copy_latency_ns = g_rand_int_range(rand, 0, 3),
                .h2d_bytes_per_s = g_rand_double_range(rand, 0.5e9, 2e9),
                .d2h_bytes_per_s = g_rand_double_range(rand, 0.5e9, 2e9),
                .host_bytes_per_s = g_rand_double_range(rand, 0.5e9, 4e9),
                .root_bytes_per_s = g_rand_double_range(rand, 0.5e9, 3e9),
                .gpus_per_root = (guint)g_rand_int_range(rand, 0, 3),
            },
        .optimizer_bytes_per_s = g_rand_double_range(rand, 0.5e9, 2e9),
        .optimizer_weight = g_rand_boolean(rand) ? 2 : 0,
        .processors = (guint)(g_rand_int_range(rand, 0, 3) == 0),
    };
}

static gboolean
next_permutation(guint *order)
{
    guint i = TASKS - 1, j = TASKS - 1;

    while (i > 0 && order[i - 1] > order[i])
        i--;
    if (i == 0)
        return FALSE;
    while (order[j] < order[i - 1])
        j--;
    guint other = order[j];
    order[j] = order[i - 1];
    order[i - 1] = other;
    for (j = TASKS - 1; i < j; i++, j--) {
        other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    return TRUE;
}

/* Whether every task stands behind the tasks it waits for. */
static gboolean
is_valid(const Task *tasks, const guint *order)
{
    guint before = 0;

    for (guint k = 0; k < TASKS; k++) {
        if (tasks[order[k]].waits_for & ~before)
            return FALSE;
        before |= 1u << order[k];
    }
    return TRUE;
}

/* Checks the bound for all orders of the tasks' lanes; counts those that reach it. */
static void
hold_against_all_orders(Fixture *f, gboolean full, guint least_reached)
{
    GRand *rand = g_rand_new_with_seed(7);
    guint reached = 0;

    for (guint c = 0; c < CASES; c++) {
        const RpMachine machine = full ? random_machine(rand) : (RpMachine){0};
        Task tasks[TASKS];
        guint order[TASKS] = {0, 1, 2, 3, 4, 5};
        gint64 optimum_ns = G_MAXINT64, bound_ns = -1;

        make_tasks(rand, full, tasks);
        do {
            if (!is_valid(tasks, order))
                continue;
            begin(f, 2, full ? RP_FIDELITY_FULL : RP_FIDELITY_COMPUTE);
            f->machine = machine;
            lay(f, tasks, order);
            simulate(f);
            const RpPlanBound bound = rp_plan_bound(f->plan, &machine, NULL);

            /* the order of lanes makes no difference to it */
            assert_true(bound_ns < 0 || bound.time_ns == bound_ns);
            assert_true(bound.busy_ns <= bound.time_ns && bound.path_ns <= bound.time_ns);
            bound_ns = bound.time_ns;
            optimum_ns = MIN(optimum_ns, rp_trace_end_ns(f->trace));
        } while (next_permutation(order));
        assert_true(bound_ns > 0);
        assert_true(bound_ns <= optimum_ns);
        reached += bound_ns == optimum_ns;
    }
    g_rand_free(rand);

    assert_true(reached >= least_reached);
}

RP_TEST(no_order_of_a_tiny_plan_is_faster)
{
    hold_against_all_orders(*state, FALSE, CASES * 4 / 5);
}

RP_TEST(no_order_of_copies_and_host_tasks_is_faster)
{
    hold_against_all_orders(*state, TRUE, CASES / 3);
}

/* gpu 1 begins after F of gpu 0 and ends before its B: fill 10, busy 60, drain 20 of 30, 60, .. */
RP_TEST_OF(fill_and_drain_are_added_to_the_busiest, Fixture *f)
{
    begin(f, 2, RP_FIDELITY_COMPUTE);
    const RpTaskId forward = compute(f, 0, 10, AT_ONCE);
    const RpTaskId first = compute(f, 1, 25, AFTER({.task = forward}));
    const RpTaskId second = compute(f, 1, 35, AFTER({.task = forward}));

    compute(f, 0, 20, AFTER({.task = first}, {.task = second}));
    simulate(f);
    const RpPlanBound bound = rp_plan_bound(f->plan, NULL, NULL);
    g_autofree char *name = rp_plan_bound_describe(&bound);

    assert_int_equal(bound.busy_ns, 60);
    assert_int_equal(bound.path_ns, 10 + 35 + 20);
    assert_int_equal(bound.time_ns, 10 + 60 + 20);
    assert_string_equal(name, "gpu 1");
    assert_int_equal(rp_trace_end_ns(f->trace), 90);
}

/* Two GPUs copy 300 bytes each at 2 bytes/ns, host memory has 3: 200 ns for 600. */
RP_TEST_OF(host_memory_bounds_what_links_would_not, Fixture *f)
{
    begin_full(f, 2);
    f->machine.links.h2d_bytes_per_s = 2 * BYTE_PER_NS;
    f->machine.links.host_bytes_per_s = 3 * BYTE_PER_NS;
    copy(f, 0, RP_LANE_PARAMETER_UP, 300, AT_ONCE);
    copy(f, 1, RP_LANE_PARAMETER_UP, 300, AT_ONCE);
    simulate(f);
    const RpPlanBound bound = rp_plan_bound(f->plan, &f->machine, NULL);

    assert_int_equal(rp_trace_end_ns(f->trace), 200);
    assert_int_equal(bound.limit, RP_LIMIT_HOST);
    assert_in_range(bound.time_ns, 198, 200);
}

/* Two steps of 40 bytes wait for a norm, which waits for two actions of 30 ns: 60 + 5 + 80. */
RP_TEST_OF(what_a_norm_parts_is_added, Fixture *f)
{
    begin_full(f, 1);
    f->machine.optimizer_bytes_per_s = BYTE_PER_NS;
    const RpTaskId first = compute(f, 0, 30, AT_ONCE), second = compute(f, 0, 30, AT_ONCE);
    const RpTaskId norm = host(f, RP_TASK_NORM, 5, AFTER({.task = first}, {.task = second}));

    host(f, RP_TASK_OPTIMIZER_STEP, 40, AFTER({.task = norm}));
    host(f, RP_TASK_OPTIMIZER_STEP, 40, AFTER({.task = norm}));
    simulate(f);
    assert_int_equal(rp_trace_end_ns(f->trace), 145);
    assert_int_equal(rp_plan_bound(f->plan, &f->machine, NULL).time_ns, 145);
}

/* Every schedule on random layers, in both fidelities; in steady state by the period. GPipe with
 * stages of equal time reaches it: (M + S - 1)(F + B). */
RP_TEST(no_schedule_is_below_its_bound)
{
    GRand *rand = g_rand_new_with_seed(11);

    for (guint c = 0; c < 12; c++) {
        g_autoptr(RpProfile) profile = rp_test_random_times(rand, 9);

        for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++) {
            const RpPlanOptions options = {
                .schedule = *s,
                .gpus = 2,
                .micro_batches = 8,
                .round = (*s)->dispatched ? 2 + 2 * (c % 2) : 0,
            };
            g_autoptr(RpPartition) partition =
                (*s)->dispatched
                    ? rp_partition_paper(profile, 2, options.round, 0, NULL)
                    : rp_partition_min_max(profile, (*s)->stages_per_gpu == 1 ? 2 : 4, NULL);
            g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 1, NULL);

            assert_non_null(plan);
            g_autoptr(RpTrace) trace = rp_simulate(plan, NULL, NULL);
            const RpPlanBound bound = rp_plan_bound(plan, NULL, NULL);

            assert_non_null(trace);
            assert_true(bound.time_ns > 0 && bound.time_ns <= rp_trace_end_ns(trace));
        }
    }
    g_rand_free(rand);
}

RP_TEST_OF(gpipe_with_equal_stages_reaches_it, Fixture *f)
{
    RpTaskId forward[2][3];

    begin(f, 2, RP_FIDELITY_COMPUTE);
    for (guint m = 0; m < 3; m++) {
        forward[0][m] = compute(f, 0, 10, AT_ONCE);
        forward[1][m] = compute(f, 1, 10, AFTER({.task = forward[0][m]}));
    }
    for (guint m = 0; m < 3; m++) {
        const RpTaskId backward = compute(f, 1, 20, AFTER({.task = forward[1][m]}));

        compute(f, 0, 20, AFTER({.task = backward}));
    }
    simulate(f);
    assert_int_equal(rp_trace_end_ns(f->trace), (3 + 2 - 1) * 30);
    assert_int_equal(rp_plan_bound(f->plan, NULL, NULL).time_ns, (3 + 2 - 1) * 30);
}

RP_TEST_FIXTURE(set_up, tear_down)
