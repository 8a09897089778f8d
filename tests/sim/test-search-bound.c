/* Bound schedules: the recurrence against the simulator, the search against all partitions. */
#include "tests/rp-test.h"

#include "core/schedules/schedule.h"
#include "core/trace/report.h"
#include "sim/recurrence/bound-recurrence.h"
#include "sim/search/bound.h"
#include "sim/search/partition-bound.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"
#include "tests/sim/random-cut.h"

#define CASES 400

static const RpScheduleOps *
random_bound(GRand *rand)
{
    const RpScheduleOps *const *all = rp_schedules();
    guint n = 0;

    while (all[n] != NULL)
        n++;
    for (;;) {
        const RpScheduleOps *schedule = all[g_rand_int_range(rand, 0, (gint)n)];

        if (!schedule->dispatched)
            return schedule;
    }
}

/* @n_stages sets in order, of which the first holds @least_first layers at least. */
static void
random_ends(GRand *rand, guint n_layers, guint least_first, guint n_stages, guint *ends)
{
    ends[n_stages - 1] = n_layers;
    for (guint left = n_stages - 1, end = n_layers; left > 0; left--) {
        end = (guint)g_rand_int_range(rand, (gint)(least_first + left - 1), (gint)end);
        ends[left - 1] = end;
    }
}

static gint64
simulated_ns(const RpProfile *profile, const RpPlanOptions *options, const guint *ends,
             guint n_stages)
{
    g_autofree RpInterval *stages = g_new(RpInterval, n_stages);
    const RpMachine machine = rp_machine_from_profile(profile);
    const RpSteadyWindow window = rp_steady_window(options->gpus, n_stages);

    for (guint s = 0, first = 0; s < n_stages; first = ends[s], s++)
        stages[s] = (RpInterval){first, ends[s] - first};
    g_autoptr(RpPartition) partition = rp_partition_new_bound(stages, n_stages);
    g_autoptr(RpPlan) plan =
        rp_must(rp_plan_make, profile, partition, options, options->async ? window.iterations : 1);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);
    return options->async ? rp_report_steady(trace, window.first, window.end).iteration_ns
                          : rp_trace_makespan_ns(trace);
}

static RpPlanOptions
random_options(GRand *rand, const RpScheduleOps *schedule)
{
    const guint gpus = schedule->mirrored ? 2 * (guint)g_rand_int_range(rand, 1, 3)
                                          : (guint)g_rand_int_range(rand, 1, 5);

    return (RpPlanOptions){
        .schedule = schedule,
        .gpus = gpus,
        .micro_batches = 2 * gpus * (guint)g_rand_int_range(rand, 1, 4),
        .async = g_rand_int_range(rand, 0, 3) == 0,
        .recompute = g_rand_boolean(rand) ? RP_RECOMPUTE_GATED : RP_RECOMPUTE_EARLY,
    };
}

RP_TEST(takes_what_the_simulator_takes)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(31);

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile = rp_test_random_times(rand, 16);
        const RpScheduleOps *schedule = random_bound(rand);
        const RpPlanOptions options = random_options(rand, schedule);
        const guint per_gpu = schedule->stages_per_gpu != 0
                                  ? schedule->stages_per_gpu
                                  : (guint)g_rand_int_range(rand, 1, (gint)(16 / options.gpus) + 1);
        const guint n_stages = per_gpu * options.gpus;
        const guint lead = profile->layers[0].kind == RP_LAYER_EMBEDDING;
        g_autofree guint *ends = g_new(guint, n_stages);
        g_autoptr(RpBoundRecurrence) recurrence =
            rp_must(rp_bound_recurrence_new, profile, &options, n_stages);

        for (guint k = 0; k < 3; k++) {
            random_ends(rand, profile->n_layers, 1 + lead, n_stages, ends);
            const gint64 expected = simulated_ns(profile, &options, ends, n_stages);

            assert_int_equal(rp_bound_recurrence_time_ns(recurrence, ends, G_MAXINT64), expected);
            assert_int_equal(rp_bound_recurrence_time_ns(recurrence, ends, expected), expected);
            assert_true(rp_bound_bound_ns(profile, &options, n_stages) <= expected);
        }
    }
}

static gint64
found_ns(const RpBoundSearch *search)
{
    g_autoptr(RpPartition) found = rp_must(rp_search_bound, search);

    g_autofree guint *ends = g_new(guint, found->n_forward);

    for (guint s = 0; s < found->n_forward; s++)
        ends[s] = found->forward[s].first + found->forward[s].count;
    return simulated_ns(search->profile, &search->options, ends, found->n_forward);
}

/* Annealing against trying all. */
RP_TEST(annealing_finds_what_trying_all_finds)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(32);
    const guint cases = 40;
    guint optimal = 0;

    for (guint i = 0; i < cases; i++) {
        g_autoptr(RpProfile) profile = rp_test_random_times(rand, 9);
        const RpScheduleOps *schedule = random_bound(rand);
        RpBoundSearch search = {.profile = profile, .options = random_options(rand, schedule)};
        const gint64 least_ns = found_ns(&search);

        search.exhaustive = 1;
        search.actions = 20000000;
        const gint64 annealed_ns = found_ns(&search);

        assert_true(annealed_ns >= least_ns);
        if ((double)annealed_ns > 1.01 * (double)least_ns)
            fail_msg("case %u, %s, %u GPUs, %u micro-batches: %" G_GINT64_FORMAT
                     " ns found, %" G_GINT64_FORMAT " is possible",
                     i, schedule->name, search.options.gpus, search.options.micro_batches,
                     annealed_ns, least_ns);
        optimal += annealed_ns == least_ns;
    }
    assert_true(optimal * 100 >= cases * 95);
}

static guint
longest_stage(const RpPartition *partition)
{
    guint layers = 0;

    for (guint s = 0; s < partition->n_forward; s++)
        layers = MAX(layers, partition->forward[s].count);
    return layers;
}

static gboolean
stages_are_short(const RpPartition *partition, gpointer most)
{
    return longest_stage(partition) <= *(const guint *)most;
}

RP_TEST(partitions_that_do_not_fit_are_not_found)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(33);
    guint others = 0;

    for (guint i = 0; i < 20; i++) {
        g_autoptr(RpProfile) profile = rp_test_random_times(rand, 12);
        guint most = 0;
        RpBoundSearch search = {
            .profile = profile,
            .options = {.schedule = rp_schedule_find("1f1b", NULL), .gpus = 4, .micro_batches = 8},
            .n_stages = 4,
            .exhaustive = i % 2,
            .user_data = &most};
        g_autoptr(RpPartition) even = rp_partition_min_max(profile, 4, NULL);
        const gint64 all_ns = found_ns(&search);

        most = longest_stage(even);
        search.fits = stages_are_short;
        g_autoptr(RpPartition) found = rp_search_bound(&search, NULL);

        assert_true(stages_are_short(found, &most));
        assert_true(found_ns(&search) >= all_ns);
        others += found_ns(&search) > all_ns;
    }
    assert_true(others > 0);
}
