/* The recurrence against plans that are made and simulated. */
#include "tests/rp-test.h"

#include "core/schedules/schedule.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"
#include "sim/recurrence/recurrence.h"
#include "sim/search/partition-cost.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"
#include "tests/sim/random-cut.h"

#define CASES 3000
#define PROVED 4 /* every so many of them is proved, too */

static gint64
simulated_ns(const RpProfile *profile, const RpCut *cut, const RpPlanOptions *options,
             const RpSpan *span, guint iterations, gboolean prove)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPartition) partition = rp_cut_partition(cut);
    g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, partition, options, iterations);

    RpViolation violation = {0};

    if (prove && !rp_verify_plan(plan, &violation))
        fail_msg("%s: %s", options->schedule->name, violation.message);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);

    return options->async ? rp_report_steady(trace, span->first, span->end).iteration_ns
                          : rp_trace_makespan_ns(trace);
}

static RpPlanOptions
random_options(GRand *rand)
{
    const guint gpus = (guint)g_rand_int_range(rand, 1, 7);
    const guint round = gpus + (guint)g_rand_int_range(rand, 0, 7);

    return (RpPlanOptions){
        .schedule = rp_schedule_find(g_rand_boolean(rand) ? "roundpipe" : "roundpipe-split", NULL),
        .gpus = gpus,
        .micro_batches = round * (guint)g_rand_int_range(rand, 1, 30),
        .round = round,
        .async = g_rand_boolean(rand),
        .recompute = g_rand_boolean(rand) ? RP_RECOMPUTE_GATED : RP_RECOMPUTE_EARLY,
        .fused_forward = g_rand_boolean(rand) ? RP_FUSED_PUBLISHED : RP_FUSED_PHYSICAL,
    };
}

/* To the nanosecond: any partition, fewer slots than devices as well, any number of rounds. */
RP_TEST(takes_what_the_simulator_takes)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);

    for (guint i = 0; i < CASES; i++) {
        const guint n_blocks = (guint)g_rand_int_range(rand, 1, 12);
        g_autoptr(RpProfile) profile = rp_test_random_times(rand, n_blocks);
        g_autoptr(RpCut) cut = rp_cut_new(profile->n_layers);
        const RpPlanOptions options = random_options(rand);
        guint iterations = 1;
        RpSpan span = {.micro_batches = options.micro_batches, .round = options.round};

        rp_test_random_cut(rand, profile, cut);
        if (options.async) {
            const RpSteadyWindow window = rp_steady_window(
                options.gpus, rp_cut_slots(cut) * (options.micro_batches / options.round));

            iterations = window.iterations;
            span.first = window.first;
            span.end = window.end;
        }
        g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(profile, &options);
        const gint64 expected =
            simulated_ns(profile, cut, &options, &span, iterations, i % PROVED == 0);

        assert_int_equal(rp_recurrence_time_ns(recurrence, cut, &span, G_MAXINT64), expected);
        if (options.async)
            continue;
        /* given up only above the limit */
        assert_int_equal(rp_recurrence_time_ns(recurrence, cut, &span, expected), expected);
    }
}
