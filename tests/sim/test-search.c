/* The searches for partitions: against brute force, against what better partitions are known. */
#include "tests/rp-test.h"

#include "core/schedules/schedule.h"
#include "core/trace/trace.h"
#include "sim/search/partition-bound.h"
#include "sim/search/partition-cost.h"
#include "sim/simulate.h"
#include "tests/sim/brute-force.h"
#include "tests/sim/random-cut.h"

#define CASES 24

static RpProfile *
load(const char *name)
{
    g_autofree char *path = rp_test_source_path(name);
    return rp_must(rp_profile_load, path);
}

static gint64
simulated_ns(const RpProfile *profile, const RpPlanOptions *options, const RpPartition *partition,
             guint round)
{
    RpPlanOptions all = *options;
    const RpMachine machine = rp_machine_from_profile(profile);

    all.round = round;
    g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, partition, &all, 1);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);
    return rp_trace_makespan_ns(trace);
}

static gint64
chosen_ns(const RpProfile *profile, const RpPlanOptions *options, guint n_stages)
{
    guint round = 0;
    g_autoptr(RpPartition) partition =
        rp_must(rp_partition_choose, profile, options, RP_PARTITION_SIMULATED, n_stages,
                profile->gpu_memory_bytes, &round);

    return simulated_ns(profile, options, partition, round);
}

/* Most are optimal and none is more than 1 % off, without trying all. */
static void
small_cases_are_as_good_as_brute_force(void **state)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(21);
    guint optimal = 0;

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile = NULL;
        RpDispatchedSearch search = rp_test_random_case(rand, 6, &profile);

        search.exhaustive = 1;
        search.actions = 40000000;
        g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);
        const gint64 least_ns = rp_test_least_ns(&search);

        assert_true(found->len == 1);
        const RpFinding *best = g_ptr_array_index(found, 0);
        const gint64 best_ns = rp_test_time_ns(&search, best->cut, best->round);

        assert_int_equal(best->cost_ns, best_ns);
        assert_true(best_ns >= least_ns);
        if ((double)best_ns > 1.01 * (double)least_ns)
            fail_msg("case %u: %" G_GINT64_FORMAT " ns found, %" G_GINT64_FORMAT " is possible", i,
                     best_ns, least_ns);
        optimal += best_ns == least_ns;
    }
    assert_true(optimal * 100 >= CASES * 95);
}

static void
few_partitions_are_all_tried(void **state)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(22);

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile = NULL;
        const RpDispatchedSearch search = rp_test_random_case(rand, 5, &profile);
        g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);

        assert_true(found->len == 1);
        assert_int_equal(((RpFinding *)g_ptr_array_index(found, 0))->cost_ns,
                         rp_test_least_ns(&search));
    }
}

static void
no_partition_is_below_the_bound(void **state)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(23);
    double gap = 0;

    for (guint i = 0; i < 4 * CASES; i++) {
        g_autoptr(RpProfile) profile = NULL;
        const RpDispatchedSearch search = rp_test_random_case(rand, 5, &profile);
        const gint64 bound_ns = rp_dispatched_bound_ns(&search);
        const gint64 least_ns = rp_test_least_ns(&search);

        if (bound_ns > least_ns)
            fail_msg("case %u: bound %" G_GINT64_FORMAT " ns, %" G_GINT64_FORMAT " is possible", i,
                     bound_ns, least_ns);
        gap += (double)(least_ns - bound_ns) / (double)least_ns;
    }
    assert_true(gap / (4 * CASES) < 0.25); /* it says something, too */
}

/* Small first forward and last backward stages, N = 8, M = 16: what was found by hand at first. */
static void
tapered_partitions_are_found(void **state)
{
    static const struct {
        const char *profile;
        double published_ms, physical_ms;
    } rows[] = {
        {"profiles/rtx4090/qwen3-1.7b.json", 2100.0, 2122.1},
        {"profiles/rtx4090/llama-3.1-8b.json", 5650.7, 5650.7},
        {"profiles/rtx4090/qwen3-32b.json", 23340.7, 23340.7},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(RpProfile) profile = load(rows[i].profile);
        RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL), .gpus = 8, .micro_batches = 16};

        assert_true((double)chosen_ns(profile, &options, 0) <= 1e6 * rows[i].physical_ms);
        rp_plan_follow_paper(&options);
        assert_true((double)chosen_ns(profile, &options, 0) <= 1e6 * rows[i].published_ms);
    }
}

/* The first iteration waits for no optimizer: partitions that are best there take 26,383 ms. */
static void
full_partitions_are_compared_by_the_iteration_that_is_reported(void **state)
{
    g_autoptr(RpProfile) profile = load("profiles/rtx4090/qwen3-32b.json");
    const RpMachine machine = rp_machine_from_profile(profile);
    RpPlanOptions options = {.schedule = rp_schedule_find("roundpipe", NULL),
                             .gpus = 8,
                             .micro_batches = 16,
                             .fidelity = RP_FIDELITY_FULL,
                             .early_steps = RP_EARLY_AUTO};
    g_autoptr(RpPartition) partition =
        rp_must(rp_partition_choose, profile, &options, RP_PARTITION_SIMULATED, 0,
                profile->gpu_memory_bytes, &options.round);

    g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, partition, &options, 3);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);
    const gint64 second_ns = rp_report_steady(trace, 1, 2).iteration_ns;

    if (second_ns > 25500000000)
        fail_msg("the second iteration takes %" G_GINT64_FORMAT " ns", second_ns);
}

/* GPT-OSS-20B of which the times are known alone. */
static const char layer_times[] =
    "{\"format\": \"roundpipe-profile/1\", \"model\": \"gpt-oss-20b\", \"device\": \"RTX 4090\", "
    "\"source\": \"published\", \"origin\": \"profiles/rtx4090/layer-times.csv\", "
    "\"links\": {\"hop_ms\": 2.25}, \"layers\": ["
    "{\"kind\": \"block\", \"name\": \"block\", \"count\": 24, \"forward_ms\": 21.6445625, "
    "\"backward_ms\": 81.780875}, "
    "{\"kind\": \"head\", \"name\": \"head\", \"forward_ms\": 44.2925, \"backward_ms\": 86.264}]}";

/* Under the published rule a fused forward does not wait: no partition is slower for it, so none that is
 * found may be. Nor is any worse than the paper's own stages in the paper's rounds of 8. */
static void
the_published_rule_finds_nothing_worse(void **state)
{
    static const struct {
        const char *profile, *forward, *backward;
    } rows[] = {
        {"profiles/rtx4090/qwen3-1.7b.json", "7*4", "0,3*8,2*2"},
        {"profiles/rtx4090/llama-3.1-8b.json", "5*4,6*2", "0,2*16"},
        {NULL, "5*4,4", "0,1*24"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        GError *error = NULL;
        g_autoptr(RpProfile) profile =
            rows[i].profile != NULL
                ? load(rows[i].profile)
                : rp_profile_parse("x.json", layer_times, strlen(layer_times), &error);
        RpPlanOptions options = {
            .schedule = rp_schedule_find("roundpipe", NULL), .gpus = 8, .micro_batches = 16};
        g_autoptr(GArray) forward = rp_partition_parse_list(rows[i].forward, NULL);
        g_autoptr(GArray) backward = rp_partition_parse_list(rows[i].backward, NULL);

        rp_assert_no_error(error);
        g_autoptr(RpPartition) paper = rp_must(
            rp_partition_from_dispatched_blocks, profile, (const guint *)(void *)forward->data,
            forward->len, (const guint *)(void *)backward->data, backward->len);
        const gint64 physical_ns = chosen_ns(profile, &options, 0);

        rp_plan_follow_paper(&options);
        const gint64 published_ns = chosen_ns(profile, &options, 0);

        assert_true(published_ns <= physical_ns);
        assert_true(published_ns <= simulated_ns(profile, &options, paper, 8));
    }
}

/* A micro-batch takes no longer in a long run than in a short one: a long run can repeat it. */
static void
longer_runs_have_no_worse_partitions(void **state)
{
    static const char *const names[] = {"profiles/rtx4090/llama-3.1-8b.json",
                                        "profiles/rtx4090/qwen3-32b.json"};

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(RpProfile) profile = load(names[i]);
        double shortest = 0;

        for (guint m = 16; m <= 1024; m *= 8) {
            const RpDispatchedSearch search = {
                .profile = profile,
                .options = {.schedule = rp_schedule_find("roundpipe", NULL),
                            .gpus = 8,
                            .micro_batches = m,
                            .async = TRUE},
                .memory_bytes = profile->gpu_memory_bytes,
                .least_slots = 1,
            };
            g_autoptr(GPtrArray) found = rp_search_dispatched(&search, 1);
            const double each = (double)((RpFinding *)g_ptr_array_index(found, 0))->cost_ns / m;

            if (m == 16)
                shortest = each;
            assert_true(each <= 1.002 * shortest);
        }
    }
}

/* Rounds of one stage run beside each other: in both fidelities, where memory has room. */
static void
compute_finds_rounds_of_fewer_slots_than_devices(void **state)
{
    g_autoptr(RpProfile) profile = load("profiles/h200/qwen3-1.7b-8x2048.json");
    RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", NULL), .gpus = 4, .micro_batches = 16};
    guint round = 0;
    const gint64 compute_ns = chosen_ns(profile, &options, 0);

    options.fidelity = RP_FIDELITY_FULL;
    const gint64 full_ns = chosen_ns(profile, &options, 0);

    assert_true(compute_ns <= full_ns);
    assert_true(compute_ns < 1306 * (gint64)1000000);
    /* a model of which it is not known what fits is divided */
    options.fidelity = RP_FIDELITY_COMPUTE;
    g_autoptr(RpPartition) divided =
        rp_partition_choose(profile, &options, RP_PARTITION_SIMULATED, 0, 0, &round, NULL);

    assert_true(divided->n_forward + divided->n_backward >= 4);
}

/* 32 stages with the head alone beat 24 stages, whose largest is smaller. */
static void
bound_schedules_try_every_stage_count(void **state)
{
    g_autoptr(RpProfile) profile = load("profiles/rtx4090/llama-3.1-8b.json");
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("interleaved-1f1b", NULL), .gpus = 8, .micro_batches = 16};
    const gint64 chosen = chosen_ns(profile, &options, 0);

    for (guint n_stages = 8; n_stages <= 32; n_stages += 8)
        assert_true(chosen <= chosen_ns(profile, &options, n_stages));
    assert_true(chosen < 6686 * (gint64)1000000);
}

static void
finds_the_same_twice(void **state)
{
    g_autoptr(RpProfile) profile = load("profiles/rtx4090/llama-3.1-8b.json");
    const char *const schedules[] = {"roundpipe", "interleaved-1f1b"};

    for (gsize i = 0; i < G_N_ELEMENTS(schedules); i++) {
        const RpPlanOptions options = {
            .schedule = rp_schedule_find(schedules[i], NULL), .gpus = 4, .micro_batches = 8};
        guint round[2] = {0};
        g_autoptr(RpPartition) first =
            rp_partition_choose(profile, &options, RP_PARTITION_SIMULATED, 0,
                                profile->gpu_memory_bytes, &round[0], NULL);
        g_autoptr(RpPartition) second =
            rp_partition_choose(profile, &options, RP_PARTITION_SIMULATED, 0,
                                profile->gpu_memory_bytes, &round[1], NULL);

        assert_int_equal(round[0], round[1]);
        assert_true(rp_partition_equal(first, second));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases_are_as_good_as_brute_force),
        cmocka_unit_test(few_partitions_are_all_tried),
        cmocka_unit_test(no_partition_is_below_the_bound),
        cmocka_unit_test(tapered_partitions_are_found),
        cmocka_unit_test(full_partitions_are_compared_by_the_iteration_that_is_reported),
        cmocka_unit_test(the_published_rule_finds_nothing_worse),
        cmocka_unit_test(longer_runs_have_no_worse_partitions),
        cmocka_unit_test(compute_finds_rounds_of_fewer_slots_than_devices),
        cmocka_unit_test(bound_schedules_try_every_stage_count),
        cmocka_unit_test(finds_the_same_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
