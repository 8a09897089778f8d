/* Slices of sequences: plans are proved, take what the search takes them for, and wrong orders are refused. */
#include "tests/rp-test.h"

#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"
#include "sim/recurrence/bound-recurrence.h"
#include "sim/simulate.h"
#include "tests/sim/random-cut.h"

#define CASES (RP_TEST_FEW ? 40 : 200)

static RpPlan *
make_plan(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options)
{
    GError *error = NULL;
    RpPlan *plan = rp_plan_make(profile, partition, options, 1, &error);

    rp_assert_no_error(error);
    return plan;
}

/* Of several stages at random; their ends. */
static RpPartition *
random_stages(GRand *rand, guint n_layers, guint n, guint *ends)
{
    g_autofree RpInterval *stages = g_new(RpInterval, n);

    for (guint s = 0, first = 0; s < n; first = ends[s++]) {
        const guint most = n_layers - (n - 1 - s);

        ends[s] = s + 1 < n ? (guint)g_rand_int_range(rand, (gint)first + 1, (gint)most + 1) : most;
        stages[s] = (RpInterval){first, ends[s] - first};
    }
    return rp_partition_new_bound(stages, n);
}

/* Any share of attention, early and gated recompute; all actions together take the micro-batches' time. */
static void
take_what_the_search_takes_them_for(void **state)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(3);

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile =
            rp_test_random_times(rand, (guint)g_rand_int_range(rand, 4, 12));
        const gboolean interleaved = g_rand_boolean(rand);
        const guint gpus = (guint)g_rand_int_range(rand, 1, 5);
        const guint most = interleaved ? MIN(3, profile->n_layers / gpus) : 1;
        const guint n_stages = gpus * (guint)g_rand_int_range(rand, 1, (gint)most + 1);
        g_autofree guint *ends = g_new(guint, n_stages);
        g_autoptr(RpPartition) partition = random_stages(rand, profile->n_layers, n_stages, ends);
        const RpMachine machine = rp_machine_from_profile(profile);
        const RpPlanOptions options = {
            .schedule = rp_schedule_find(interleaved ? "slimpipe" : "seq-1f1b", NULL),
            .gpus = gpus,
            .micro_batches = (guint)g_rand_int_range(rand, 1, 6),
            .slices = (guint)g_rand_int_range(rand, 1, 7) * (n_stages > gpus ? gpus : 1),
            .even_slices = g_rand_boolean(rand),
            .recompute = g_rand_boolean(rand) ? RP_RECOMPUTE_GATED : RP_RECOMPUTE_EARLY,
        };
        gint64 work_ns = 0, busy_ns = 0;
        RpViolation violation = {0};
        GError *error = NULL;

        for (guint l = 0; l < profile->n_layers; l++)
            profile->layers[l].saved[RP_SAVED_ATTENTION].recompute_ns =
                g_rand_int_range(rand, 0, (gint)profile->layers[l].forward_ns + 1);
        for (guint s = 0; s < n_stages; s++) {
            const RpInterval layers = partition->forward[s];

            work_ns += rp_stage_time_ns(profile, layers, RP_PHASE_FORWARD, NULL) +
                       rp_stage_time_ns(profile, layers, RP_PHASE_BACKWARD, NULL);
        }
        g_autoptr(RpPlan) plan = make_plan(profile, partition, &options);

        if (!rp_verify_plan(plan, &violation))
            fail_msg("%u slices: %s", options.slices, violation.message);
        for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++)
            busy_ns += rp_plan_task(plan, id)->duration_ns;
        assert_int_equal(busy_ns, work_ns * options.micro_batches);
        g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, &error);

        rp_assert_no_error(error);
        g_autoptr(RpBoundRecurrence) recurrence =
            rp_bound_recurrence_new(profile, &options, n_stages, &error);

        rp_assert_no_error(error);
        assert_int_equal(rp_bound_recurrence_time_ns(recurrence, ends, G_MAXINT64),
                         rp_trace_makespan_ns(trace));
    }
}

/* As 1F1B: the first slice goes back first, before those that add to its keys' gradients. */
static void
order_upwards(const RpShape *shape, guint gpu, GArray *order)
{
    for (guint backward = 0; backward < 2; backward++)
        for (guint m = 0; m < shape->micro_batches; m++) {
            const RpAction action = {
                .stage = gpu,
                .micro_batch = m,
                .backward_stage = G_MAXUINT32,
                .backward_micro_batch = G_MAXUINT32,
                .kind = backward ? RP_ACTION_BACKWARD : RP_ACTION_FORWARD,
            };

            g_array_append_val(order, action);
        }
}

static void
backwards_from_the_first_slice_on_are_refused(void **state)
{
    static const RpScheduleOps upwards = {
        .name = "upwards", .stages_per_gpu = 1, .sliced = TRUE, .order = order_upwards};
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    g_autoptr(RpProfile) profile = rp_test_random_times(rand, 4);
    guint ends[2];
    g_autoptr(RpPartition) partition = random_stages(rand, profile->n_layers, 2, ends);
    RpPlanOptions options = {.schedule = &upwards, .gpus = 2, .micro_batches = 2, .slices = 3};
    g_autoptr(RpPlan) wrong = make_plan(profile, partition, &options);
    RpViolation violation = {0};

    assert_false(rp_verify_plan(wrong, &violation));
    assert_non_null(strstr(violation.message, "gradients of keys and values"));
    rp_violation_clear(&violation);
    options.slices = 1;
    g_autoptr(RpPlan) whole = make_plan(profile, partition, &options);

    assert_true(rp_verify_plan(whole, &violation));
}

static void
full_plans_of_slices_are_refused(void **state)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    g_autoptr(RpProfile) profile = rp_test_random_times(rand, 4);
    guint ends[2];
    g_autoptr(RpPartition) partition = random_stages(rand, profile->n_layers, 2, ends);
    const RpPlanOptions options = {.schedule = rp_schedule_find("seq-1f1b", NULL),
                                   .gpus = 2,
                                   .micro_batches = 2,
                                   .slices = 2,
                                   .fidelity = RP_FIDELITY_FULL};
    g_autoptr(GError) error = NULL;

    assert_null(rp_plan_make(profile, partition, &options, 1, &error));
    rp_assert_error_message_contains(error, "expected compute fidelity");
    assert_false(rp_schedule_is_trained(options.schedule));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(take_what_the_search_takes_them_for),
        cmocka_unit_test(backwards_from_the_first_slice_on_are_refused),
        cmocka_unit_test(full_plans_of_slices_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
