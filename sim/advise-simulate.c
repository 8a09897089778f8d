/* How much of an iteration is simulated, and its figures in full fidelity. */
#include "sim/advise-private.h"

#include "core/report.h"
#include "core/units.h"
#include "sim/simulate.h"

/* Actions of an iteration, and of all iterations, that are simulated at once; what is longer is cut
 * to whole rounds and scaled. */
#define ITERATION_ACTIONS 12000
#define WINDOW_ACTIONS 60000
#define WINDOW_ACTIONS_COMPUTE 400000
/* Warm-up of a quick simulation, iterations. */
#define QUICK_WARM_UP 2

guint
rp_advise_count_stages(const RpPartition *partition)
{
    return partition->n_forward + partition->n_backward;
}

/* Micro-batches in whole rounds, or of a bound schedule in groups of N; at least two of them. */
guint
rp_advise_cut(const RpPartition *partition, const RpPlanOptions *options)
{
    guint unit = options->schedule->dispatched ? options->round : options->gpus;
    guint units = ITERATION_ACTIONS / rp_advise_count_stages(partition) / unit;

    return options->micro_batches / unit <= MAX(2, units) ? options->micro_batches
                                                          : MAX(2, units) * unit;
}

RpSteadyWindow
rp_advise_window(const RpPartition *partition, const RpPlanOptions *options, guint warm_up)
{
    guint rounds = options->micro_batches / options->round;
    RpSteadyWindow window =
        rp_steady_window(options->gpus, rp_advise_count_stages(partition) * rounds);
    guint64 actions = (guint64)options->micro_batches * rp_advise_count_stages(partition);
    guint64 most = options->fidelity == RP_FIDELITY_FULL ? WINDOW_ACTIONS : WINDOW_ACTIONS_COMPUTE;
    guint period = window.end - window.first;

    /* synchronous: every iteration is like the second */
    if (!options->async)
        return (RpSteadyWindow){.iterations = 3, .first = 1, .end = 2};
    window.first = MIN(window.first, warm_up);
    window.end = window.first + (guint)CLAMP(most / actions, 2, period) / 2 * 2;
    window.iterations = window.end + 1;
    return window;
}

static gboolean
simulate(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *given,
         guint micro_batches, guint warm_up, RpSteady *steady, GError **error)
{
    RpPlanOptions options = *given;
    RpMachine machine = rp_machine_from_profile(profile);

    options.micro_batches = micro_batches;
    if (!options.schedule->dispatched)
        options.round = micro_batches;
    RpSteadyWindow window = rp_advise_window(partition, &options, warm_up);
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, window.iterations, error);

    if (plan == NULL)
        return FALSE;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, error);

    if (trace == NULL)
        return FALSE;
    *steady = rp_report_steady(trace, window.first, window.end);
    return TRUE;
}

/* A synchronous iteration is so long and so much more for each micro-batch, an asynchronous one
 * only the latter: @half has @micro_batches / 2 of @run's. */
static void
set_figures(const RpProfile *profile, RpAdviseRun *run, guint micro_batches, const RpSteady *steady,
            guint half_micro_batches, const RpSteady *half)
{
    double times = (double)run->options.micro_batches / micro_batches;
    double step_ns = times * (double)steady->iteration_ns;
    double busy = times * (1 - steady->ratio) * (double)steady->iteration_ns;

    if (half_micro_batches > 0)
        step_ns =
            (double)steady->iteration_ns + (double)(run->options.micro_batches - micro_batches) *
                                               (double)(steady->iteration_ns - half->iteration_ns) /
                                               (double)(micro_batches - half_micro_batches);
    run->simulated_micro_batches = micro_batches;
    run->step_ns = (gint64)step_ns;
    run->bubble_ratio = step_ns > 0 ? 1 - busy / step_ns : 0;
    run->tokens_per_s = rp_advise_tokens_per_s(profile, run, run->step_ns);
    run->simulated = TRUE;
}

gboolean
rp_advise_simulate(const RpProfile *profile, RpAdviseRun *run, gboolean quick, GError **error)
{
    const RpPlanOptions *options = &run->options;
    guint unit = options->schedule->dispatched ? options->round : options->gpus;
    guint micro_batches = rp_advise_cut(run->partition, options);
    guint half_micro_batches = micro_batches / unit / 2 * unit;
    guint warm_up = quick ? QUICK_WARM_UP : RP_ADVISE_WARM_UP;
    RpSteady steady, half = {0};

    if (micro_batches == options->micro_batches || options->async)
        half_micro_batches = 0;
    if (!simulate(profile, run->partition, options, micro_batches, warm_up, &steady, error) ||
        (half_micro_batches > 0 &&
         !simulate(profile, run->partition, options, half_micro_batches, warm_up, &half, error)))
        return FALSE;
    set_figures(profile, run, micro_batches, &steady, half_micro_batches, &half);
    return TRUE;
}
