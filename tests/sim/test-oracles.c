/* Closed forms of docs/schedules.md, over grids of N, M and v, through planner and simulator; and
 * the proof of every plan of the grid by the verifier, in both fidelities. */
#include "tests/rp-test.h"

#include "core/base/units.h"
#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/schedules/schedule.h"
#include "core/trace/report.h"
#include "core/verify/verify.h"
#include "sim/simulate.h"

/* Costs of one block; ns are arbitrary units here. */
typedef struct {
    gint64 forward, backward, weight, recompute;
} Cost;

static const Cost costs[] = {
    {1, 2, 1, 0}, {3, 6, 3, 0}, {5, 11, 4, 0}, {2, 3, 1, 0}, {7, 13, 6, 0},
};

static RpProfile *
new_blocks(guint n, const Cost *cost)
{
    RpProfile *profile = rp_profile_new(n);

    for (guint l = 0; l < n; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->forward_ns = cost->forward;
        layer->backward_ns = cost->backward;
        layer->weight_gradient_ns = cost->weight;
        layer->recompute_ns = cost->recompute;
    }
    return profile;
}

/* Sizes and links of a machine so fast that transfers and optimizer take next to no time. */
static void
add_fast_machine(RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->parameter_bytes = 4096 + 512 * (l % 3);
        layer->gradient_bytes = layer->parameter_bytes;
        layer->input_bytes = 1024;
        layer->output_bytes = 1024;
        layer->forward_workspace_bytes = 512;
        layer->backward_workspace_bytes = 1024;
        layer->activation_bytes = 4096;
    }
    profile->has_sizes = TRUE;
    profile->links.h2d_bytes_per_s = 1e15;
    profile->links.d2h_bytes_per_s = 1e15;
    profile->optimizer_parameters_per_s = 1e15;
}

static RpPartition *
one_block_a_stage(const RpProfile *profile)
{
    g_autofree RpInterval *stages = g_new(RpInterval, profile->n_layers);

    for (guint s = 0; s < profile->n_layers; s++)
        stages[s] = (RpInterval){.first = s, .count = 1};
    return rp_partition_new_bound(stages, profile->n_layers);
}

static RpTrace *
simulate(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
         guint iterations, const char *what)
{
    GError *error = NULL;
    RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, options, iterations, &error);
    RpTrace *trace;

    if (plan == NULL)
        fail_msg("%s, N=%u, M=%u: %s", what, options->gpus, options->micro_batches, error->message);
    trace = rp_simulate(plan, &machine, &error);
    if (trace == NULL)
        fail_msg("%s, N=%u, M=%u: %s", what, options->gpus, options->micro_batches, error->message);
    return trace;
}

static RpPlanOptions
options_of(const char *schedule, guint gpus, guint micro_batches)
{
    GError *error = NULL;
    RpPlanOptions options = {.schedule = rp_schedule_find(schedule, &error),
                             .gpus = gpus,
                             .micro_batches = micro_batches,
                             .recompute = RP_RECOMPUTE_GATED};

    rp_assert_no_error(error);
    return options;
}

static gint64
uniform_makespan(const char *schedule, guint gpus, guint per_gpu, guint micro_batches,
                 const Cost *cost, gboolean reverse)
{
    g_autoptr(RpProfile) profile = new_blocks(gpus * per_gpu, cost);
    g_autoptr(RpPartition) partition = one_block_a_stage(profile);
    RpPlanOptions options = options_of(schedule, gpus, micro_batches);

    options.reverse_backward = reverse;
    g_autoptr(RpTrace) trace = simulate(profile, partition, &options, 1, schedule);

    return rp_trace_makespan_ns(trace);
}

static void
check(const char *schedule, guint n, guint v, guint m, const Cost *cost, gint64 expected)
{
    gint64 found = uniform_makespan(schedule, n, v, m, cost, FALSE);
    gint64 reversed = uniform_makespan(schedule, n, v, m, cost, TRUE);

    assert_int_equal(reversed, found);
    if (found != expected)
        fail_msg("%s, N=%u, v=%u, M=%u, F=%d, B=%d, W=%d: makespan %" G_GINT64_FORMAT
                 ", closed form %" G_GINT64_FORMAT,
                 schedule, n, v, m, (int)cost->forward, (int)cost->backward, (int)cost->weight,
                 found, expected);
}

RP_TEST(unlooped_and_looped_schedules_match_their_closed_forms)
{
    for (gsize c = 0; c < G_N_ELEMENTS(costs); c++) {
        gint64 pair = costs[c].forward + costs[c].backward;

        for (guint n = 1; n <= 8; n++) {
            for (guint m = 1; m <= 20; m++) {
                check("gpipe", n, 1, m, &costs[c], (m + n - 1) * pair);
                check("1f1b", n, 1, m, &costs[c], (m + n - 1) * pair);
                if (n % 2 == 0 && m % n == 0)
                    check("chimera", n, 1, m, &costs[c],
                          m * pair +
                              (n - 2) * (MAX(costs[c].forward, costs[c].backward) +
                                         (m / n - 1) * ABS(costs[c].backward - costs[c].forward)));
                for (guint v = 1; v <= 3; v++) {
                    if (m % n == 0 && v > 1)
                        check("hanayo", n, v, m, &costs[c],
                              v * m * pair +
                                  2 * (n - 1) *
                                      (MAX(costs[c].forward, costs[c].backward) +
                                       (m / n - 1) * ABS(costs[c].backward - costs[c].forward)));
                    if (m % n == 0)
                        check("interleaved-1f1b", n, v, m, &costs[c], (v * m + n - 1) * pair);
                    if (m >= n)
                        check("looped-bfs", n, v, m, &costs[c], (v * m + n - 1) * pair);
                }
            }
        }
    }
}

/* K iterations without a flush are one of K M micro-batches, and steady from the first on. */
RP_TEST(pipedream_2bw_never_drains)
{
    for (gsize c = 0; c < G_N_ELEMENTS(costs); c++) {
        const gint64 pair = costs[c].forward + costs[c].backward;

        for (guint n = 1; n <= 8; n++) {
            g_autoptr(RpProfile) profile = new_blocks(n, &costs[c]);
            g_autoptr(RpPartition) partition = one_block_a_stage(profile);

            for (guint m = n; m <= 2 * n; m++) {
                RpPlanOptions options = options_of("pipedream-2bw", n, m);

                options.async = TRUE;
                for (guint k = 1; k <= 5; k++) {
                    g_autoptr(RpTrace) trace =
                        simulate(profile, partition, &options, k, "pipedream-2bw");

                    assert_int_equal(rp_trace_makespan_ns(trace), (k * m + n - 1) * pair);
                    if (k == 5)
                        assert_int_equal(rp_report_steady(trace, 2, 4).iteration_ns, m * pair);
                }
            }
        }
    }
}

RP_TEST(zero_bubble_schedules_match_their_closed_forms)
{
    for (gsize c = 0; c < G_N_ELEMENTS(costs); c++) {
        gint64 f = costs[c].forward, w = costs[c].weight, i = costs[c].backward - w;
        gint64 tail = MAX(f, w) + i - w;

        for (guint n = 1; n <= 8; n++) {
            for (guint m = n; m <= 24; m++) {
                if (i >= w && m % n == 0) {
                    check("zb-h1", n, 1, m, &costs[c], m * (f + i + w) + (n - 1) * tail);
                    for (guint v = 1; v <= 3; v++)
                        check("interleaved-zb", n, v, m, &costs[c],
                              v * m * (f + i + w) + (n - 1) * tail);
                }
                if (m >= 2 * n - 1)
                    check("zb-2p", n, 1, m, &costs[c],
                          m * (f + i + w) + (n - 1) * MAX(MAX(f, i - f), f + i - 2 * w));
                if (f == i && i == w && m > n && n > 1) {
                    check("v-half", n, 2, m, &costs[c],
                          2 * m * (f + i + w) + (7 * (gint64)n - 8) / 2 * f);
                    check("v-min", n, 2, m, &costs[c],
                          2 * m * (f + i + w) + (4 * (gint64)n - (n % 3 == 0 ? 3 : 5)) * f);
                }
                if (f == i && i == w && m >= 2 * n - 1)
                    check("zb-v", n, 2, m, &costs[c], 2 * m * (f + i + w) + (n - 1) * f);
                if (f == i && i == w && m >= 2 * n && m % 2 == 0 && n % 2 == 0)
                    check("dualpipe", n, 1, m, &costs[c],
                          m * (f + i + w) + ((gint64)n / 2 - 1) * (f + 2 * (i + w) - 3 * w));
                if (f == i && i == w && m >= 2 * n) /* F&B = F + B */
                    check("dualpipe-v", n, 2, m, &costs[c],
                          2 * m * (f + i + w) + (n - 1) * (f + 2 * (i + w) - 3 * w));
            }
        }
    }
}

/* Blocks with forward 1, recompute 1, backward 2 and a head of 1 + 2: every slot takes 3. */
static RpProfile *
new_uniform_dispatched(guint blocks)
{
    static const Cost block = {1, 2, 1, 1};
    RpProfile *profile = new_blocks(blocks + 1, &block);
    RpLayer *head = &profile->layers[blocks];

    head->kind = RP_LAYER_HEAD;
    return profile;
}

static RpPartition *
three_blocks_forward_one_backward(const RpProfile *profile, guint blocks)
{
    guint n_forward = blocks / 3;
    g_autofree guint *forward = g_new(guint, n_forward);
    g_autofree guint *backward = g_new(guint, blocks + 1);
    RpPartition *partition;

    for (guint s = 0; s < n_forward; s++)
        forward[s] = 3;
    backward[0] = 0;
    for (guint s = 1; s <= blocks; s++)
        backward[s] = 1;
    partition = rp_must(rp_partition_from_dispatched_blocks, profile, forward, n_forward, backward,
                        blocks + 1);
    return partition;
}

RP_TEST(roundpipe_matches_its_closed_form)
{
    const gint64 t = 3;

    for (guint blocks = 3; blocks <= 24; blocks += 3) {
        g_autoptr(RpProfile) profile = new_uniform_dispatched(blocks);
        g_autoptr(RpPartition) partition = three_blocks_forward_one_backward(profile, blocks);
        guint slots = partition->n_forward + partition->n_backward;

        for (guint n = 1; n <= MIN(8, slots); n++) {
            for (guint round = n; round <= 16; round++) {
                for (guint rounds = 1; rounds <= 3; rounds++) {
                    RpPlanOptions options = options_of("roundpipe", n, round * rounds);
                    guint rest = rounds * slots % n;
                    guint64 work = (guint64)round * rounds * slots + n * (n - 1);

                    options.round = round;
                    if (rest != 0)
                        work += (guint64)(n - rest) * (round - n);
                    g_autoptr(RpTrace) trace =
                        simulate(profile, partition, &options, 1, "roundpipe");
                    /* the work of N devices, of which the last may be idle for a part */
                    assert_int_equal(rp_trace_makespan_ns(trace) * n, work * t);
                }
            }
        }
    }
}

RP_TEST(full_fidelity_on_an_infinitely_fast_machine_is_compute_fidelity)
{
    static const Cost milliseconds = {1000000, 2000000, 1000000, 1000000};
    static const char *const bound[] = {"gpipe",      "1f1b",       "interleaved-1f1b",
                                        "looped-bfs", "zb-h1",      "interleaved-zb",
                                        "zb-v",       "dualpipe-v", "mobius"};

    for (gsize i = 0; i < G_N_ELEMENTS(bound); i++) {
        for (guint n = 1; n <= 4; n++) {
            RpPlanOptions options = options_of(bound[i], n, 2 * n * 2);
            guint v = options.schedule->stages_per_gpu != 0 ? options.schedule->stages_per_gpu : 2;
            g_autoptr(RpProfile) profile = new_blocks(n * v, &milliseconds);
            add_fast_machine(profile);
            g_autoptr(RpPartition) partition = one_block_a_stage(profile);
            g_autoptr(RpTrace) compute = simulate(profile, partition, &options, 1, bound[i]);

            options.fidelity = RP_FIDELITY_FULL;
            g_autoptr(RpTrace) full = simulate(profile, partition, &options, 1, bound[i]);
            double ratio =
                (double)rp_trace_makespan_ns(full) / (double)rp_trace_makespan_ns(compute);
            if (ratio < 1.0 || ratio > 1.0001)
                fail_msg("%s, N=%u: full takes %.6f times as long as compute", bound[i], n, ratio);
        }
    }
}

static void
verify(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
       guint iterations)
{
    RpViolation violation = {0};
    RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPlan) plan = rp_must(rp_plan_make, profile, partition, options, iterations);

    if (!rp_verify_plan(plan, &violation))
        fail_msg("%s, N=%u, M=%u, %s, %s, %s, %s, %s: %s", options->schedule->name, options->gpus,
                 options->micro_batches, options->fidelity == RP_FIDELITY_FULL ? "full" : "compute",
                 options->async ? "async" : "sync",
                 options->consistency == RP_CONSISTENCY_BLOCKING ? "blocking" : "events",
                 options->optimizer == RP_OPTIMIZER_LEAN ? "lean" : "fused",
                 options->recompute == RP_RECOMPUTE_EARLY ? "early" : "gated", violation.message);
    g_autoptr(RpTrace) trace = rp_must(rp_simulate, plan, &machine);
    if (!rp_verify_trace(plan, trace, &violation))
        fail_msg("%s, N=%u, M=%u, trace: %s", options->schedule->name, options->gpus,
                 options->micro_batches, violation.message);
}

/* Every combination of the options that change a plan's shape. */
static void
verify_variants(const RpProfile *profile, const RpPartition *partition, RpPlanOptions options)
{
    for (guint variant = 0; variant < 32; variant++) {
        options.async = (variant & 1) != 0;
        options.recompute = (variant & 2) != 0 ? RP_RECOMPUTE_EARLY : RP_RECOMPUTE_GATED;
        options.consistency = (variant & 4) != 0 ? RP_CONSISTENCY_BLOCKING : RP_CONSISTENCY_EVENTS;
        options.optimizer = (variant & 8) != 0 ? RP_OPTIMIZER_LEAN : RP_OPTIMIZER_FUSED;
        options.transfers = (variant & 16) != 0 ? RP_TRANSFERS_NAIVE : RP_TRANSFERS_WINDOWS;
        options.fidelity = RP_FIDELITY_FULL;
        if (rp_planner_has_full(&options))
            verify(profile, partition, &options, 3);
        if (variant < 4) {
            options.fidelity = RP_FIDELITY_COMPUTE;
            verify(profile, partition, &options, 3);
        }
    }
}

RP_TEST(the_verifier_proves_every_bound_plan_of_the_grid)
{
    static const Cost cost = {1000, 2000, 1000, 1000};

    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++) {
        if ((*s)->dispatched)
            continue;
        for (guint n = 1; n <= 4; n++) {
            for (guint v = 1; v <= 3; v++) {
                if (((*s)->stages_per_gpu != 0 && v != (*s)->stages_per_gpu) ||
                    ((*s)->mirrored && n % 2 != 0))
                    continue;
                g_autoptr(RpProfile) profile = new_blocks(n * v, &cost);
                add_fast_machine(profile);
                g_autoptr(RpPartition) partition = one_block_a_stage(profile);
                verify_variants(profile, partition, options_of((*s)->name, n, 2 * n));
            }
        }
    }
}

RP_TEST(the_verifier_proves_every_dispatched_plan_of_the_grid)
{
    for (guint blocks = 3; blocks <= 6; blocks += 3) {
        g_autoptr(RpProfile) profile = new_uniform_dispatched(blocks);
        add_fast_machine(profile);
        g_autoptr(RpPartition) partition = three_blocks_forward_one_backward(profile, blocks);

        for (guint n = 1; n <= 5; n++) {
            for (guint rounds = 1; rounds <= 2; rounds++) {
                RpPlanOptions options = options_of("roundpipe", n, (n + 1) * rounds);

                options.round = n + 1;
                verify_variants(profile, partition, options);
            }
        }
    }
}
