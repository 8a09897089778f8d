/* Groups of GPUs that share out an iteration's rounds: each runs as if it were alone. */
#include "tests/rp-test.h"

#include "core/catalogue/cost/cost-model.h"
#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"
#include "sim/simulate.h"
#include "tests/sim/random-cut.h"

#define CASES (RP_TEST_FEW ? 60 : 400)
#define ASYNC_FIRST 12
#define ASYNC_END 24

static gint64
time_ns(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    RpViolation violation = {0};
    g_autoptr(RpPlan) plan =
        rp_must(rp_plan_make, profile, partition, options, options->async ? ASYNC_END + 1 : 2);

    if (!rp_verify_plan(plan, &violation))
        fail_msg("%u replicas: %s", options->replicas, violation.message);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);

    return options->async ? rp_report_steady(trace, ASYNC_FIRST, ASYNC_END).iteration_ns
                          : rp_trace_makespan_ns(trace);
}

/* Any partition, two schedules, rounds of any size; every plan is proved. */
RP_TEST(take_as_long_as_one_group_with_its_share)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(5);

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile =
            rp_test_random_times(rand, (guint)g_rand_int_range(rand, 1, 9));
        g_autoptr(RpCut) cut = rp_cut_new(profile->n_layers);
        const guint replicas = (guint)g_rand_int_range(rand, 2, 5);
        const guint gpus = (guint)g_rand_int_range(rand, 1, 5);
        const guint round = gpus + (guint)g_rand_int_range(rand, 0, 4);
        const RpPlanOptions one = {
            .schedule =
                rp_schedule_find(g_rand_boolean(rand) ? "roundpipe" : "roundpipe-split", NULL),
            .gpus = gpus,
            .micro_batches = round * (guint)g_rand_int_range(rand, 1, 4),
            .round = round,
            .async = g_rand_boolean(rand),
        };
        RpPlanOptions all = one;

        rp_test_random_cut(rand, profile, cut);
        g_autoptr(RpPartition) partition = rp_cut_partition(cut);

        all.replicas = replicas;
        all.gpus *= replicas;
        all.micro_batches *= replicas;
        assert_int_equal(time_ns(profile, partition, &all), time_ns(profile, partition, &one));
    }
}

/* With every transfer: host buffers of a group are no other's. What is saved comes and goes, too. */
RP_TEST(are_proved_with_every_transfer)
{
    static const guint shapes[][3] = {{2, 2, 2}, {4, 4, 4}, {4, 4, 2}, {6, 12, 3}, {4, 24, 2}};
    const RpWorkload workload = {.sequences = 1, .tokens_per_sequence = 256, .gpus = 8};
    g_autoptr(RpProfile) profile = rp_cost_model_profile(
        rp_model_find("qwen3-0.6b", NULL), rp_gpu_find("rtx4090", NULL), &workload, NULL);

    assert_non_null(profile);
    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++)
        for (guint how = 0; how < 8; how++) {
            const guint replicas = shapes[i][2];
            g_autoptr(RpPartition) partition = rp_partition_even(profile, 3 + 2 * i);
            const RpPlanOptions options = {
                .schedule = rp_schedule_find(how % 4 == 3 ? "roundpipe-split" : "roundpipe", NULL),
                .gpus = shapes[i][0],
                .micro_batches = shapes[i][1],
                .replicas = replicas,
                .round = i == 4 ? shapes[i][1] / replicas / 2 : 0,
                .async = how % 2 == 1,
                .fidelity = RP_FIDELITY_FULL,
                .saved.groups = how >= 4 ? rp_save_groups(RP_SAVE_ATTENTION) : 0,
            };

            assert_true(time_ns(profile, partition, &options) > 0);
        }
}
