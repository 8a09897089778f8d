/*
 * Times that are drawn: the distribution that a spread describes, closed forms of one stage, and a
 * pipeline of two devices worked out step by step.
 */
#include "tests/rp-test.h"

#include <math.h>

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "sim/draws.h"
#include "sim/simulate.h"

#define MICRO_BATCHES 4

typedef struct {
    RpProfile *profile;
    RpPartition *partition;
    RpPlan *plan;
    RpDraws *draws;
    GError *error;
} Fixture;

static int
set_up(void **state)
{
    *state = g_new0(Fixture, 1);
    return 0;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;

    rp_draws_free(f->draws);
    rp_plan_free(f->plan);
    rp_partition_free(f->partition);
    rp_profile_free(f->profile);
    g_clear_error(&f->error);
    g_free(f);
    return 0;
}

/* Blocks of 1 ms forward, 1.1 recompute, 2 backward, a little more for each. */
static void
make_profile(Fixture *f, guint n_layers)
{
    f->profile = rp_profile_new(n_layers);
    for (guint l = 0; l < n_layers; l++) {
        RpLayer *layer = &f->profile->layers[l];

        layer->forward_ns = 1000000 + l * 1000;
        layer->recompute_ns = 1100000 + l * 1000;
        layer->backward_ns = 2000000 + l * 1000;
        layer->weight_gradient_ns = layer->backward_ns / 4;
        layer->forward_spread_ns = 50000;
        layer->recompute_spread_ns = 60000;
        layer->backward_spread_ns = 100000 + l * 5000;
    }
}

static void
make_plan(Fixture *f, const char *schedule, const guint *blocks, guint gpus)
{
    const RpPlanOptions options = {
        .schedule = rp_schedule_find(schedule, &f->error),
        .gpus = gpus,
        .micro_batches = MICRO_BATCHES,
        .fidelity = RP_FIDELITY_COMPUTE,
        .recompute = RP_RECOMPUTE_GATED, /* as the formulas below */
    };

    rp_assert_no_error(f->error);
    f->partition = rp_must(rp_partition_from_blocks, f->profile, blocks, gpus);
    f->plan = rp_must(rp_plan_make, f->profile, f->partition, &options, 1);
    f->draws = rp_draws_new(f->plan, f->profile);
}

static gint64
makespan_ns(Fixture *f)
{
    RpTrace *trace = rp_must(rp_simulate, f->plan, NULL);
    const gint64 ns = rp_trace_makespan_ns(trace);

    rp_trace_free(trace);
    return ns;
}

RP_TEST(draws_have_the_percentiles_that_a_spread_says)
{
    enum { N = 200000 };
    g_autofree double *values = g_new(double, N);

    for (guint i = 0; i < N; i++)
        values[i] = rp_draws_normal(7, i, i % 5, i % 11, i % 3);
    const RpDrawn drawn = rp_drawn_of(values, N);

    assert_true(fabs(drawn.mean) < 0.01);
    assert_true(fabs(drawn.deviation - 1) < 0.01);
    assert_true(fabs(drawn.low + RP_DRAW_TENTH) < 0.015);
    assert_true(fabs(drawn.high - RP_DRAW_TENTH) < 0.015);
    assert_true(values[0] >= -6 && values[N - 1] <= 6);
}

RP_TEST(draws_differ_in_each_number_they_are_made_from)
{
    const double z = rp_draws_normal(1, 2, 3, 4, 5);

    assert_true(z == rp_draws_normal(1, 2, 3, 4, 5));
    assert_true(z != rp_draws_normal(2, 2, 3, 4, 5));
    assert_true(z != rp_draws_normal(1, 3, 3, 4, 5));
    assert_true(z != rp_draws_normal(1, 2, 4, 4, 5));
    assert_true(z != rp_draws_normal(1, 2, 3, 5, 5));
    assert_true(z != rp_draws_normal(1, 2, 3, 4, 6));
}

/* On one device every action follows the one before: means add up, and of a layer and a micro-batch
 * the deviations, since forward, recompute and backward have one draw; of others the variances. */
RP_TEST(of_one_stage_means_and_variances_add_up)
{
    enum { N = 4000, LAYERS = 6 };
    Fixture *f = *state;
    const guint blocks[] = {LAYERS};
    g_autofree double *values = g_new(double, N);
    double mean = 0, variance = 0;

    make_profile(f, LAYERS);
    make_plan(f, "gpipe", blocks, 1);
    for (guint l = 0; l < LAYERS; l++) {
        const RpLayer *layer = &f->profile->layers[l];
        const double deviation = (double)(layer->forward_spread_ns + layer->recompute_spread_ns +
                                          layer->backward_spread_ns) /
                                 RP_DRAW_TENTH;

        mean += (double)(layer->forward_ns + layer->recompute_ns + layer->backward_ns);
        variance += deviation * deviation;
    }
    mean *= MICRO_BATCHES;
    variance *= MICRO_BATCHES;
    assert_int_equal(makespan_ns(f), (gint64)mean);
    for (guint i = 0; i < N; i++) {
        rp_draws_apply(f->draws, 3, i);
        values[i] = (double)makespan_ns(f);
    }
    const RpDrawn drawn = rp_drawn_of(values, N);

    /* five and six standard errors */
    assert_true(fabs(drawn.mean - mean) < 5 * sqrt(variance / N));
    assert_true(fabs(drawn.deviation * drawn.deviation / variance - 1) < 6 * sqrt(2.0 / N));
}

/* Time of a layer of the profile, of three parts, for a micro-batch of a draw. */
static double
drawn_ns(const Fixture *f, guint l, guint micro_batch, guint draw, double *recompute,
         double *backward)
{
    const RpLayer *layer = &f->profile->layers[l];
    const double z = rp_draws_normal(9, draw, 0, l, micro_batch) / RP_DRAW_TENTH;

    *recompute = (double)layer->recompute_ns + z * (double)layer->recompute_spread_ns;
    *backward = (double)layer->backward_ns + z * (double)layer->backward_spread_ns;
    return (double)layer->forward_ns + z * (double)layer->forward_spread_ns;
}

/*
 *   device 0   |F0|F1|F2|F3|                |  B0  |  B1  | ...
 *   device 1      |F0|F1|F2|F3|  B0  |  B1  | ...
 */
RP_TEST(on_two_devices_every_draw_is_what_its_steps_come_to)
{
    enum { N = 200 };
    static const guint blocks[] = {2, 1};
    Fixture *f = *state;
    gint64 first = 0;
    gboolean varies = FALSE;

    make_profile(f, 3);
    make_plan(f, "gpipe", blocks, 2);
    for (guint draw = 0; draw < N; draw++) {
        double forward[2][MICRO_BATCHES] = {{0}}, backward[2][MICRO_BATCHES] = {{0}};
        double ends[MICRO_BATCHES], lanes[2] = {0}, most = 0;

        for (guint m = 0; m < MICRO_BATCHES; m++)
            for (guint l = 0; l < 3; l++) {
                double recompute, rest;

                forward[l == 2][m] += drawn_ns(f, l, m, draw, &recompute, &rest);
                backward[l == 2][m] += recompute + rest;
            }
        for (guint m = 0; m < MICRO_BATCHES; m++) {
            lanes[0] += forward[0][m];
            lanes[1] = fmax(lanes[1], lanes[0]) + forward[1][m];
        }
        for (guint m = 0; m < MICRO_BATCHES; m++) {
            ends[m] = lanes[1] += backward[1][m];
            lanes[0] = fmax(lanes[0], ends[m]) + backward[0][m];
            most = fmax(most, fmax(lanes[0], lanes[1]));
        }
        rp_draws_apply(f->draws, 9, draw);
        const gint64 found = makespan_ns(f);

        if (fabs((double)found - most) > 2 * 4 * MICRO_BATCHES) /* roundings to a nanosecond */
            fail_msg("draw %u: expected %.0f ns, found %" G_GINT64_FORMAT, draw, most, found);
        first = draw == 0 ? found : first;
        varies = varies || found != first;
    }
    assert_true(varies);
}

/* A forward and the recompute of the same tokens are long together: with a gradient that waits the
 * same time is drawn for both. */
RP_TEST(a_seed_gives_the_same_times_again)
{
    static const guint blocks[] = {2, 2};
    Fixture *f = *state;

    make_profile(f, 4);
    make_plan(f, "1f1b", blocks, 2);
    const gint64 planned = makespan_ns(f);

    rp_draws_apply(f->draws, 5, 0);
    const gint64 once = makespan_ns(f);
    rp_draws_apply(f->draws, 6, 0);
    assert_true(makespan_ns(f) != once);
    rp_draws_apply(f->draws, 5, 0);
    assert_int_equal(makespan_ns(f), once);
    assert_true(once != planned);
}

RP_TEST(without_spreads_every_draw_is_the_plan)
{
    static const guint blocks[] = {2, 2};
    Fixture *f = *state;

    make_profile(f, 4);
    for (guint l = 0; l < 4; l++) {
        RpLayer *layer = &f->profile->layers[l];

        layer->forward_spread_ns = layer->recompute_spread_ns = layer->backward_spread_ns = 0;
    }
    assert_false(rp_draws_has_spreads(f->profile));
    make_plan(f, "zb-h1", blocks, 2);
    const gint64 planned = makespan_ns(f);

    rp_draws_apply(f->draws, 5, 3);
    assert_int_equal(makespan_ns(f), planned);
}

/* A split backward has the time of the whole one, and a stage that ends with a block whose output
 * nobody needs has the share of its recompute that it runs. */
RP_TEST(parts_of_a_backward_add_up_to_it)
{
    static const guint blocks[] = {2, 2};
    Fixture *f = *state;
    gint64 whole[2][MICRO_BATCHES] = {{0}}, parts[2][MICRO_BATCHES] = {{0}};

    make_profile(f, 4);
    for (guint l = 0; l < 4; l++)
        f->profile->layers[l].recompute_last_ns = 800000;
    for (guint split = 0; split < 2; split++) {
        rp_draws_free(f->draws);
        rp_plan_free(f->plan);
        rp_partition_free(f->partition);
        make_plan(f, split ? "zb-h1" : "1f1b", blocks, 2);
        rp_draws_apply(f->draws, 5, 1);
        for (RpTaskId id = 0; id < rp_plan_end_id(f->plan); id++) {
            const RpTask *task = rp_plan_task(f->plan, id);

            if (rp_task_is_compute(task) && task->kind != RP_TASK_FORWARD)
                (split ? parts : whole)[task->stage][task->micro_batch] += task->duration_ns;
        }
    }
    for (guint s = 0; s < 2; s++)
        for (guint m = 0; m < MICRO_BATCHES; m++) {
            assert_true(whole[s][m] > 0);
            assert_true(ABS(whole[s][m] - parts[s][m]) <= 2);
        }
}

/* ---- log-normal times, slow devices ---- */

/* One block on one GPU, and of its run the first task: mean t, median t exp(-s^2/2), percentiles t exp(+-1.6449 s - s^2/2). */
RP_TEST(a_task_with_noise_is_log_normal)
{
    enum { N = 20000 };
    Fixture *f = *state;
    const guint blocks[] = {1};
    const double sigma = 0.2, half = sigma * sigma / 2;
    g_autofree double *values = g_new(double, N);

    make_profile(f, 1);
    make_plan(f, "gpipe", blocks, 1);
    rp_draws_set_noise(f->draws, sigma);
    const double planned = (double)rp_plan_task(f->plan, rp_plan_first_id(f->plan))->duration_ns;

    for (guint i = 0; i < N; i++) {
        rp_draws_apply(f->draws, 3, i);
        values[i] = (double)rp_plan_task(f->plan, rp_plan_first_id(f->plan))->duration_ns;
    }
    const RpDrawn drawn = rp_drawn_of(values, N);

    assert_true(fabs(drawn.mean / planned - 1) < 0.006);
    assert_true(fabs(drawn.deviation / planned - sqrt(expm1(sigma * sigma))) < 0.006);
    assert_true(fabs(drawn.p50 / planned - exp(-half)) < 0.008);
    assert_true(fabs(drawn.p5 / planned - exp(-1.6449 * sigma - half)) < 0.012);
    assert_true(fabs(drawn.p95 / planned - exp(1.6449 * sigma - half)) < 0.012);
}

/* Forward, recompute and backward of a micro-batch are multiplied by the same number. */
RP_TEST_OF(noise_is_one_factor_for_all_passes_of_a_micro_batch, Fixture *f)
{
    const guint blocks[] = {2, 2};
    double factors[MICRO_BATCHES] = {0};

    make_profile(f, 4);
    for (guint l = 0; l < 4; l++) { /* one layer of a stage counts */
        f->profile->layers[l].forward_ns = l % 2 ? 0 : 1000000;
        f->profile->layers[l].recompute_ns = l % 2 ? 0 : 1000000;
        f->profile->layers[l].backward_ns = l % 2 ? 0 : 2000000;
        f->profile->layers[l].weight_gradient_ns = 0;
    }
    make_plan(f, "1f1b", blocks, 2);
    rp_draws_set_noise(f->draws, 0.3);
    rp_draws_apply(f->draws, 1, 0);
    for (RpTaskId id = rp_plan_first_id(f->plan); id < rp_plan_end_id(f->plan); id++) {
        const RpTask *task = rp_plan_task(f->plan, id);
        const double planned = task->kind == RP_TASK_FORWARD ? 1e6 : 3e6;
        const double factor = (double)task->duration_ns / planned;

        if (task->stage != 0)
            continue;
        if (factors[task->micro_batch] == 0)
            factors[task->micro_batch] = factor;
        assert_true(fabs(factors[task->micro_batch] / factor - 1) < 1e-5);
    }
    assert_true(factors[0] != factors[1]);
}

/* GPipe: fill, then the slower of two stages M times: sum of F + (M - 1) max F, B alike. */
RP_TEST_OF(a_chain_waits_for_its_slow_gpu, Fixture *f)
{
    const guint blocks[] = {1, 1};
    const RpSlow slow[] = {{1, 1}, {1.5, 1}};

    make_profile(f, 2);
    f->profile->layers[1] = f->profile->layers[0];
    make_plan(f, "gpipe", blocks, 2);
    gint64 forward_ns = 0, backward_ns[2] = {0};

    for (RpTaskId id = rp_plan_first_id(f->plan); id < rp_plan_end_id(f->plan); id++) {
        const RpTask *task = rp_plan_task(f->plan, id);

        if (task->kind == RP_TASK_FORWARD)
            forward_ns = task->duration_ns;
        else
            backward_ns[task->stage] = task->duration_ns;
    }
    const gint64 alike = makespan_ns(f);

    rp_plan_slow(f->plan, slow);
    const gint64 slow_forward = llround(1.5 * (double)forward_ns);
    const gint64 slow_backward = llround(1.5 * (double)backward_ns[1]);

    assert_true(makespan_ns(f) > alike);
    assert_int_equal(makespan_ns(f), forward_ns + slow_forward * MICRO_BATCHES +
                                         slow_backward * MICRO_BATCHES + backward_ns[0]);
    /* and draws start from the plan as it was, slow GPUs or not */
    rp_draws_set_slow(f->draws, slow);
    for (guint l = 0; l < 2; l++)
        f->profile->layers[l].forward_spread_ns = f->profile->layers[l].recompute_spread_ns =
            f->profile->layers[l].backward_spread_ns = 0;
    rp_draws_apply(f->draws, 1, 0);
    assert_int_equal(makespan_ns(f), forward_ns + slow_forward * MICRO_BATCHES +
                                         slow_backward * MICRO_BATCHES + backward_ns[0]);
}

RP_TEST_FIXTURE(set_up, tear_down)
