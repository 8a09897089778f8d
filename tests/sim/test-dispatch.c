/*
 * Slots that go to the GPU that is free first: closed forms of rounds of one slot, plans of GPUs that are
 * alike, plans at random against taking turns, and a real model.
 */
#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "core/profile/cards.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"
#include "sim/draws.h"
#include "sim/simulate.h"
#include "tests/sim/random-cut.h"

#define LAYER_NS 1000
#define CASES 60
#define FULL_CASES 24
#define MOST_GPUS 6
/* iterations: the rhythm of free dispatch is long */
#define WINDOW_FIRST 16
#define WINDOW_END 48

static RpPlan *
make_plan(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
          guint iterations)
{
    return rp_must(rp_plan_make, profile, partition, options, iterations);
}

/* Layer times of devices that are this many times slower than @profile. */
static RpProfile *
slowed(const RpProfile *profile, const double *factors, guint gpus)
{
    g_autofree RpSlow *slow = g_new(RpSlow, gpus);

    for (guint g = 0; g < gpus; g++)
        slow[g] = (RpSlow){.actions = factors[g], .link = 1};
    return rp_profile_slowed(profile, slow, gpus);
}

static RpTrace *
run(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
    guint iterations)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPlan) plan = make_plan(profile, partition, options, iterations);
    RpViolation violation;

    assert_true(rp_verify_plan(plan, &violation));
    RpTrace *trace = rp_must(rp_simulate, plan, &machine);

    assert_true(rp_verify_trace(plan, trace, &violation));
    return trace;
}

static gint64
makespan_ns(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options)
{
    g_autoptr(RpTrace) trace = run(profile, partition, options, 1);

    return rp_trace_makespan_ns(trace);
}

/* Rounds of one slot wait for nothing: R rounds of M_R micro-batches of time t take R M_R t over the sum of
 * speeds where that deals out whole slots. */
RP_TEST(rounds_of_one_slot_take_the_time_of_all_speeds_together)
{
    const struct {
        guint gpus, rounds, turns, ideal; /* of slots of a GPU that is not slow */
        double slow[4];
    } cases
        [] =
            {
                {2, 12, 12, 8, {1, 2}},
                {2, 10, 8, 6, {1, 1.5}}, /* 5 slots each take 5 x 1.5: 8 rounded up */
                {4, 12, 6, 4, {1, 1, 2, 2}},
                {4, 12, 6, 4, {2, 1, 2, 1}},
                {3, 30, 20, 12, {1, 2, 1}},
            };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        const guint round = cases[i].gpus;
        g_autoptr(RpProfile) profile = rp_profile_new(2);
        g_autoptr(GError) error = NULL;
        RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL),
            .gpus = cases[i].gpus,
            .micro_batches = cases[i].rounds * round,
            .round = round,
        };

        for (guint l = 0; l < 2; l++)
            profile->layers[l] = (RpLayer){.kind = RP_LAYER_BLOCK,
                                           .forward_ns = LAYER_NS,
                                           .recompute_ns = LAYER_NS,
                                           .backward_ns = LAYER_NS};
        g_autoptr(RpProfile) box = slowed(profile, cases[i].slow, cases[i].gpus);
        g_autoptr(RpPartition) partition =
            rp_partition_from_dispatched_blocks(profile, NULL, 0, (const guint[]){2}, 1, &error);
        const gint64 slot_ns = (gint64)round * 2 * 2 * LAYER_NS;

        rp_assert_no_error(error);
        assert_in_range(makespan_ns(box, partition, &options), (cases[i].turns - 1) * slot_ns + 1,
                        cases[i].turns * slot_ns);
        options.dispatch = RP_DISPATCH_FREE;
        assert_int_equal(makespan_ns(box, partition, &options), cases[i].ideal * slot_ns);
    }
}

/* Something at random that is dispatched. */
typedef struct {
    RpProfile *profile;
    RpPartition *partition;
    RpPlanOptions options;
} Case;

static void
make_case(GRand *rand, Case *c)
{
    const guint gpus = (guint)g_rand_int_range(rand, 2, MOST_GPUS + 1);
    const guint round = gpus + (guint)g_rand_int_range(rand, 0, gpus + 1);

    g_autoptr(RpProfile) alike = rp_test_random_times(rand, (guint)g_rand_int_range(rand, 4, 14));
    g_autoptr(RpCut) cut = rp_cut_new(alike->n_layers);
    double slow[MOST_GPUS];

    rp_test_random_cut(rand, alike, cut);
    c->partition = rp_cut_partition(cut);
    c->options = (RpPlanOptions){
        .schedule = rp_schedule_find("roundpipe", NULL),
        .gpus = gpus,
        .round = round,
        .micro_batches = round * (guint)g_rand_int_range(rand, 1, 4),
        .async = g_rand_boolean(rand),
    };
    for (guint g = 0; g < gpus; g++)
        slow[g] = g_rand_boolean(rand) ? 1 : g_rand_double_range(rand, 1, 2);
    c->profile = slowed(alike, slow, gpus);
}

static void
clear_case(Case *c)
{
    rp_partition_free(c->partition);
    rp_profile_free(c->profile);
}

/* An iteration of the plan is what the planner has tried: it keeps the best, and turns are among it. */
RP_TEST(no_iteration_takes_longer_than_in_turns)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(16);
    guint shorter = 0;

    for (guint i = 0; i < CASES; i++) {
        Case c;

        make_case(rand, &c);
        c.options.async = FALSE;
        const gint64 turns_ns = makespan_ns(c.profile, c.partition, &c.options);

        c.options.dispatch = RP_DISPATCH_FREE;
        const gint64 free_ns = makespan_ns(c.profile, c.partition, &c.options);

        assert_true(free_ns <= turns_ns);
        shorter += free_ns < turns_ns;
        clear_case(&c);
    }
    assert_true(shorter >= CASES / 4);
}

RP_TEST(plans_without_a_flush_are_proved_and_made_again_alike)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(17);

    for (guint i = 0; i < CASES; i++) {
        Case c;

        make_case(rand, &c);
        c.options.async = TRUE;
        c.options.dispatch = RP_DISPATCH_FREE;
        g_autoptr(RpTrace) one = run(c.profile, c.partition, &c.options, 5);
        g_autoptr(RpTrace) other = run(c.profile, c.partition, &c.options, 5);

        assert_int_equal(rp_trace_n_records(one), rp_trace_n_records(other));
        assert_memory_equal(rp_trace_records(one), rp_trace_records(other),
                            rp_trace_n_records(one) * sizeof(RpTraceRecord));
        clear_case(&c);
    }
}

RP_TEST(gpus_that_are_alike_take_turns)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(18);

    for (guint i = 0; i < CASES; i++) {
        Case c;

        make_case(rand, &c);
        rp_profile_clear_cards(c.profile);
        g_autoptr(RpPlan) turns = make_plan(c.profile, c.partition, &c.options, 3);

        c.options.dispatch = RP_DISPATCH_FREE;
        g_autoptr(RpPlan) plan = make_plan(c.profile, c.partition, &c.options, 3);

        assert_int_equal(rp_plan_end_id(plan), rp_plan_end_id(turns));
        for (RpTaskId id = 0; id < rp_plan_end_id(plan); id++) {
            const RpTask *task = rp_plan_task(plan, id), *other = rp_plan_task(turns, id);

            assert_memory_equal(task, other, sizeof *task);
            assert_memory_equal(rp_plan_dependencies(plan, task),
                                rp_plan_dependencies(turns, other),
                                task->dependency_count * sizeof(RpDependency));
        }
        clear_case(&c);
    }
}

/* Mean time of a steady iteration on GPUs of which @slow are so many times slower. */
static double
steady_ms(const RpProfile *profile, const RpPartition *partition, double factor, guint n_slow,
          RpDispatch dispatch)
{
    double slow[8];
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", NULL),
        .gpus = 8,
        .micro_batches = 16,
        .async = TRUE,
        .dispatch = dispatch,
    };

    for (guint g = 0; g < 8; g++)
        slow[g] = g < n_slow ? factor : 1;
    g_autoptr(RpProfile) box = slowed(profile, slow, 8);
    g_autoptr(RpTrace) trace = run(box, partition, &options, WINDOW_END + 1);

    return (double)rp_report_steady(trace, WINDOW_FIRST, WINDOW_END).iteration_ns / 1e6;
}

/* Qwen3-32B in the stages that the search finds; the figures of docs/schedules.md. */
RP_TEST(slow_cards_cost_a_large_model_less)
{
    const struct {
        guint n_slow;
        double factor, turns, free;
    } cases[] = {{1, 1.1, 1.100, 1.038}, {4, 1.5, 1.500, 1.224}};
    guint forward[21], backward[65];
    g_autofree char *path = rp_test_source_path("profiles/rtx4090/qwen3-32b.json");
    g_autoptr(RpProfile) profile = rp_must(rp_profile_load, path);

    for (guint i = 0; i < 21; i++)
        forward[i] = i < 20 ? 3 : 4;
    for (guint i = 0; i < 65; i++)
        backward[i] = i > 0 ? 1 : 0;
    g_autoptr(RpPartition) partition =
        rp_must(rp_partition_from_dispatched_blocks, profile, forward, 21, backward, 65);
    const double alike_ms = steady_ms(profile, partition, 1, 0, RP_DISPATCH_FREE);

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        const double turns_ms = steady_ms(profile, partition, cases[i].factor, cases[i].n_slow,
                                          RP_DISPATCH_ROTATION),
                     free_ms = steady_ms(profile, partition, cases[i].factor, cases[i].n_slow,
                                         RP_DISPATCH_FREE);

        assert_float_equal(turns_ms / alike_ms, cases[i].turns, 0.002);
        assert_float_equal(free_ms / alike_ms, cases[i].free, 0.002);
    }
}

RP_TEST(schedules_with_gpus_of_their_own_are_refused)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(19);
    g_autoptr(GError) bound = NULL;
    Case c;

    make_case(rand, &c);
    c.options.dispatch = RP_DISPATCH_FREE;
    c.options.schedule = rp_schedule_find("1f1b", NULL);
    c.options.round = 0;
    rp_refuses("schedule 1f1b says itself", rp_plan_make, c.profile, c.partition, &c.options, 1);
    clear_case(&c);
}

/* Whether a slot is on another device than the next in turn. */
static gboolean
is_out_of_turn(const RpPlan *plan)
{
    guint32 stage = RP_NONE, device = RP_NONE;

    for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const guint32 on = rp_plan_lane_device(plan, task->lane);

        if (!rp_task_is_compute(task) || (task->stage == stage && on == device))
            continue;
        if (device != RP_NONE && on != (device + 1) % rp_plan_gpus(plan))
            return TRUE;
        stage = task->stage;
        device = on;
    }
    return FALSE;
}

/* All transfers, buffers and steps, on whatever devices slots are; calls are summed, too. */
RP_TEST(plans_with_every_transfer_are_proved)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(20);
    g_autoptr(GError) error = NULL;
    g_autofree char *path = rp_test_source_path("profiles/rtx4090/qwen3-1.7b.json");
    g_autoptr(RpProfile) alike = rp_profile_load(path, &error);
    guint out_of_turn = 0;

    rp_assert_no_error(error);
    for (guint i = 0; i < FULL_CASES; i++) {
        const guint gpus = 2 + i % 3;
        const double slow[] = {1, 1.3 + 0.1 * (i % 4), 1, 2};
        g_autoptr(RpProfile) box = slowed(alike, slow, gpus);
        g_autoptr(RpCut) cut = rp_cut_new(alike->n_layers);
        const RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL),
            .fidelity = RP_FIDELITY_FULL,
            .gpus = gpus,
            .round = gpus,
            .micro_batches = (1 + i % 2) * gpus,
            .async = i % 3 > 0,
            .calls = 1 + i % 5 / 4,
            .dispatch = RP_DISPATCH_FREE,
        };

        rp_test_random_cut(rand, alike, cut);
        g_autoptr(RpPartition) partition = rp_cut_partition(cut);
        g_autoptr(RpTrace) trace = run(box, partition, &options, 4);
        g_autoptr(RpPlan) plan = make_plan(box, partition, &options, 4);

        for (guint g = 0; g < gpus; g++) /* any of them may get any stage */
            assert_int_equal(rp_plan_arena_bytes(plan, g), rp_plan_arena_bytes(plan, 0));
        out_of_turn += is_out_of_turn(plan);
    }
    assert_true(out_of_turn >= FULL_CASES / 4);
}
