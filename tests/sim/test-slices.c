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
    return rp_must(rp_plan_make, profile, partition, options, 1);
}

/* Random stages, given by their boundaries. */
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

static void
set_attention(RpProfile *profile, GRand *rand)
{
    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].saved[RP_SAVED_ATTENTION].recompute_ns =
            g_rand_int_range(rand, 0, (gint)profile->layers[l].forward_ns + 1);
}

/* Any share of attention, early and gated recompute; all actions together take the micro-batches' time. */
RP_TEST(take_what_the_search_takes_them_for)
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

        set_attention(profile, rand);
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
        g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);

        g_autoptr(RpBoundRecurrence) recurrence =
            rp_must(rp_bound_recurrence_new, profile, &options, n_stages);

        assert_int_equal(rp_bound_recurrence_time_ns(recurrence, ends, G_MAXINT64),
                         rp_trace_makespan_ns(trace));
    }
}

/* A partition at random of a model of blocks alone: of @n_forward forward and @n_backward backward stages. */
static RpPartition *
random_dispatched(GRand *rand, guint n_layers, guint *n_forward, guint *n_backward)
{
    const guint fused = (guint)g_rand_int_range(rand, 1, (gint)n_layers), rest = n_layers - fused;
    g_autofree RpInterval *forward = g_new(RpInterval, n_layers);
    g_autofree RpInterval *backward = g_new(RpInterval, n_layers);
    guint end = rest;

    *n_forward = 0;
    *n_backward = 1;
    for (guint first = 0, count; first < rest; first += count) {
        count = (guint)g_rand_int_range(rand, 1, (gint)(rest - first) + 1);
        forward[(*n_forward)++] = (RpInterval){first, count};
    }
    backward[0] = (RpInterval){rest, fused};
    while (end > 0) {
        const guint count = (guint)g_rand_int_range(rand, 1, (gint)end + 1);

        end -= count;
        backward[(*n_backward)++] = (RpInterval){end, count};
    }
    return rp_partition_new_dispatched(forward, *n_forward, backward, *n_backward);
}

/* RoundPipe: any partition, in one or several rounds, with and without a flush. */
RP_TEST(dispatched_slices_are_proved_and_take_the_time_of_all)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(4);

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(RpProfile) profile =
            rp_test_random_times(rand, (guint)g_rand_int_range(rand, 4, 12));
        const guint slices = (guint)g_rand_int_range(rand, 2, 6);
        const guint gpus = (guint)g_rand_int_range(rand, 1, 5), rounds = 1 + i % 3;
        guint n_forward, n_backward;
        g_autoptr(RpPartition) partition =
            random_dispatched(rand, profile->n_layers, &n_forward, &n_backward);
        const RpMachine machine = rp_machine_from_profile(profile);
        const guint round = (gpus + slices - 1) / slices + i % 2;
        const RpPlanOptions options = {
            .schedule = rp_schedule_find(i % 4 == 0 ? "roundpipe-split" : "roundpipe", NULL),
            .gpus = gpus,
            .micro_batches = round * rounds,
            .round = round,
            .slices = slices,
            .even_slices = g_rand_boolean(rand),
            .async = g_rand_boolean(rand),
            .recompute = g_rand_boolean(rand) ? RP_RECOMPUTE_GATED : RP_RECOMPUTE_EARLY,
            .fused_forward = g_rand_boolean(rand) ? RP_FUSED_PUBLISHED : RP_FUSED_PHYSICAL,
        };
        gint64 work_ns = 0, busy_ns = 0;
        RpViolation violation = {0};

        set_attention(profile, rand);
        for (guint s = 0; s < n_forward; s++)
            work_ns += rp_stage_time_ns(profile, partition->forward[s], RP_PHASE_FORWARD, NULL);
        for (guint s = 0; s < n_backward; s++)
            work_ns += rp_stage_time_ns(profile, partition->backward[s],
                                        s == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD, NULL);
        g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, partition, &options, 3);

        if (!rp_verify_plan(plan, &violation))
            fail_msg("%u slices on %u GPUs: %s", slices, gpus, violation.message);
        for (RpTaskId id = rp_plan_first_id(plan); id < rp_plan_end_id(plan); id++)
            busy_ns += rp_plan_task(plan, id)->duration_ns;
        assert_int_equal(busy_ns, 3 * work_ns * options.micro_batches);
        g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);

        if (!rp_verify_trace(plan, trace, &violation))
            fail_msg("%u slices on %u GPUs, trace: %s", slices, gpus, violation.message);
    }
}

/* Every slot takes @t of a micro-batch; the fused one, @F of it forward. (transfer full) */
static RpProfile *
equal_slots(guint n_forward, guint n_backward, gint64 F, gint64 t, RpPartition **partition)
{
    const guint first = n_forward * n_backward; /* of the fused stage */
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    RpProfile *profile = rp_test_random_times(rand, first + 1);
    g_autofree RpInterval *up = g_new(RpInterval, n_forward);
    g_autofree RpInterval *down = g_new(RpInterval, n_backward + 1);

    profile->links.hop_ns = 0;
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->kind = RP_LAYER_BLOCK;
        layer->recompute_ns = layer->recompute_last_ns = layer->weight_gradient_ns = 0;
        layer->forward_ns = l < first ? t / n_backward : l == first ? F : 0;
        layer->backward_ns = l < first ? t / n_forward : l == first ? t - F : 0;
    }
    for (guint s = 0; s < n_forward; s++)
        up[s] = (RpInterval){s * n_backward, n_backward};
    down[0] = (RpInterval){first, profile->n_layers - first};
    for (guint s = 1; s <= n_backward; s++)
        down[s] = (RpInterval){(n_backward - s) * n_forward, n_forward};
    *partition = rp_partition_new_dispatched(up, n_forward, down, n_backward + 1);
    return profile;
}

/* Slices of t/K, no hops: the fused slot, on device f, must have all of a micro-batch before it goes
 * back, so that devices behind it begin t - t/K later. */
static void
assert_equal_slots(guint N, guint M, guint K, guint n_forward, guint n_backward)
{
    const gint64 F = 60 * 60, t = 3 * F; /* which K divides */
    const guint S = n_forward + n_backward + 1, d = (S - 1) % N, f = n_forward % N;
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", NULL),
        .gpus = N,
        .micro_batches = M,
        .slices = K,
        .recompute = RP_RECOMPUTE_GATED,
        .fused_forward = RP_FUSED_PHYSICAL,
    };
    g_autoptr(RpPartition) partition = NULL;
    g_autoptr(RpProfile) profile = equal_slots(n_forward, n_backward, F, t, &partition);
    const RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPlan) plan = make_plan(profile, partition, &options);
    GError *error = NULL;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, &error);
    /* the first of a turn has all slices when it begins: it only has its forward to do before */
    const gint64 waited = f == 0 ? (d > 0 ? F : 0) : d > f ? t : d == f ? t - F : 0;
    const gint64 expected = (S + N - 1) / N * M * t + d * t / K + waited - waited / K;

    rp_assert_no_error(error);
    if (rp_trace_makespan_ns(trace) != expected)
        fail_msg("N = %u, M = %u, K = %u, S = %u, S_f = %u: %" G_GINT64_FORMAT
                 " in place of %" G_GINT64_FORMAT,
                 N, M, K, S, n_forward, rp_trace_makespan_ns(trace), expected);
}

RP_TEST(roundpipe_takes_the_time_of_its_closed_form)
{
    guint n = 0;

    for (guint N = 1; N <= 6; N++)
        for (guint K = 1; K <= 6; K++)
            for (guint M = (N + 2 * K - 2) / K; M <= 9; M += 2)
                for (guint forward = 1; forward <= 5; forward++)
                    for (guint backward = 1; backward <= 6; backward++)
                        if (forward + backward + 1 >= N && 60 % backward == 0) {
                            assert_equal_slots(N, M, K, forward, backward);
                            n++;
                        }
    assert_true(n > 500);
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

RP_TEST(backwards_from_the_first_slice_on_are_refused)
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

/* As of whole sequences: the first slice goes back before the last has run forward. */
static void
order_at_once(const RpShape *shape, guint gpu, GArray *order)
{
    for (guint m = 0; gpu == 0 && m < shape->micro_batches; m++) {
        const RpAction action = {.micro_batch = m,
                                 .backward_stage = G_MAXUINT32,
                                 .backward_micro_batch = G_MAXUINT32,
                                 .kind = RP_ACTION_FUSED};

        g_array_append_val(order, action);
    }
}

RP_TEST(fused_actions_of_slices_are_refused)
{
    static const RpScheduleOps at_once = {
        .name = "at-once", .dispatched = TRUE, .sliced = TRUE, .order = order_at_once};
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    g_autoptr(RpProfile) profile = rp_test_random_times(rand, 4);
    const RpInterval all = {0, profile->n_layers};
    g_autoptr(RpPartition) partition = rp_partition_new_dispatched(NULL, 0, &all, 1);
    RpPlanOptions options = {.schedule = &at_once, .gpus = 1, .micro_batches = 2, .slices = 3};
    g_autoptr(RpPlan) wrong = make_plan(profile, partition, &options);
    RpViolation violation = {0};

    assert_false(rp_verify_plan(wrong, &violation));
    assert_non_null(strstr(violation.message, "gradients of keys and values"));
    rp_violation_clear(&violation);
    options.slices = 1;
    g_autoptr(RpPlan) whole = make_plan(profile, partition, &options);

    assert_true(rp_verify_plan(whole, &violation));
}

RP_TEST(full_plans_of_slices_are_refused)
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

    rp_refuses("expected compute fidelity", rp_plan_make, profile, partition, &options, 1);
    assert_false(rp_schedule_is_trained(options.schedule));
    assert_true(rp_schedule_is_trained(rp_schedule_find("roundpipe", NULL))); /* of whole ones */
}
