/* How much of an iteration is simulated, and its figures in full fidelity. */
#include "sim/advise/private.h"

#include "core/base/units.h"
#include "core/profile/cards.h"
#include "core/trace/report.h"
#include "sim/plan-bound.h"
#include "sim/scored.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

/* Actions of an iteration, and of all iterations, that are simulated at once; what is longer is cut
 * to whole rounds and scaled. */
#define ITERATION_ACTIONS 12000
#define WINDOW_ACTIONS 60000
#define WINDOW_ACTIONS_COMPUTE 400000
/* Warm-up of a short simulation, iterations. */
#define SHORT_WARM_UP 1
/* Slots of a device in an iteration behind which pipelines are full. */
#define DEEP 16
/* By how much iterations differ that are no longer changing. */
#define STEADY 1e-4
/* Idle time that needs no cause, and the share of an iteration that a lane is busy to be one: an
 * update waits for the last gradient, and the iteration after the next for the update. */
#define LITTLE_BUBBLE 0.03
#define ALL_THE_TIME 0.7

guint
rp_advise_count_stages(const RpPartition *partition)
{
    return partition->n_forward + partition->n_backward;
}

guint
rp_advise_unit(const RpPlanOptions *options)
{
    return options->schedule->dispatched ? options->round * MAX(1, options->replicas)
                                         : options->gpus;
}

guint
rp_advise_cut(const RpPartition *partition, const RpPlanOptions *options)
{
    guint unit = rp_advise_unit(options);
    guint units = ITERATION_ACTIONS / rp_advise_count_stages(partition) / unit;

    return options->micro_batches / unit <= MAX(2, units) ? options->micro_batches
                                                          : MAX(2, units) * unit;
}

RpSteadyWindow
rp_advise_window(const RpPartition *partition, const RpPlanOptions *options, guint warm_up)
{
    guint rounds = rp_plan_whole_round(options) / options->round;
    guint slots = rp_advise_count_stages(partition) * rounds;
    gboolean free_dispatch = options->dispatch == RP_DISPATCH_FREE;
    RpSteadyWindow window = free_dispatch ? rp_steady_window_free(options->gpus, slots)
                                          : rp_steady_window(rp_plan_group_gpus(options), slots);
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

/* Busy time of lanes, of an iteration in the window. */
typedef struct {
    gint64 optimizer_ns;
    gint64 sums_ns;
    gint64 upload_ns; /* of the busiest device */
    gint64 download_ns;
    gint64 network_ns;
    guint64 network_bytes;
} Busy;

static gint64
busiest(const gint64 *ns, guint n)
{
    gint64 most = 0;

    for (guint i = 0; i < n; i++)
        most = MAX(most, ns[i]);
    return most;
}

static Busy
find_busy(const RpPlan *plan, const RpTrace *trace, const RpSteadyWindow *window)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    guint gpus = rp_plan_gpus(plan);
    guint iterations = window->end - window->first;
    g_autofree gint64 *up = g_new0(gint64, gpus);
    g_autofree gint64 *down = g_new0(gint64, gpus);
    gint64 host[RP_HOST_LANES] = {0};
    guint64 network_bytes = 0;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        const RpTraceRecord *record = &records[i];
        guint kind = rp_plan_lane_kind(plan, record->lane);
        gint64 ns = record->end_ns - record->start_ns;

        if (record->iteration < window->first || record->iteration >= window->end)
            continue;
        if (kind == RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK)
            network_bytes += record->bytes;
        if (kind >= RP_LANES_PER_DEVICE)
            host[kind - RP_LANES_PER_DEVICE] += ns;
        else if (kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP)
            up[rp_plan_lane_device(plan, record->lane)] += ns;
        else if (kind != RP_LANE_COMPUTE)
            down[rp_plan_lane_device(plan, record->lane)] += ns;
    }
    return (Busy){host[RP_HOST_LANE_OPTIMIZER] / iterations,
                  host[RP_HOST_LANE_ACCUMULATE] / iterations,
                  busiest(up, gpus) / iterations,
                  busiest(down, gpus) / iterations,
                  host[RP_HOST_LANE_NETWORK] / iterations,
                  network_bytes / iterations};
}

/* Devices wait for whatever is busy all the time. A synchronous step ends with the optimizer, which
 * is the cause if it takes half of what is idle. */
static RpAdviseWaits
find_waits(const RpSteady *steady, const Busy *busy, gboolean async)
{
    const struct {
        RpAdviseWaits cause;
        gint64 ns;
    } lanes[] = {{RP_ADVISE_WAITS_OPTIMIZER, busy->optimizer_ns},
                 {RP_ADVISE_WAITS_SUMS, busy->sums_ns},
                 {RP_ADVISE_WAITS_UPLOADS, busy->upload_ns},
                 {RP_ADVISE_WAITS_DOWNLOADS, busy->download_ns},
                 {RP_ADVISE_WAITS_NETWORK, busy->network_ns}};
    double period = (double)steady->iteration_ns;
    guint most = 0;

    if (steady->ratio <= LITTLE_BUBBLE)
        return RP_ADVISE_WAITS_LITTLE;
    for (guint i = 1; i < G_N_ELEMENTS(lanes); i++)
        if (lanes[i].ns > lanes[most].ns)
            most = i;
    if ((double)lanes[most].ns >= ALL_THE_TIME * period)
        return lanes[most].cause;
    return !async && (double)busy->optimizer_ns >= steady->ratio * period / 2
               ? RP_ADVISE_WAITS_OPTIMIZER
               : RP_ADVISE_WAITS_STAGES;
}

/* Whether both halves of the window took as long. */
static gboolean
is_steady(const RpTrace *trace, const RpSteadyWindow *window)
{
    const guint middle = window->first + (window->end - window->first) / 2;
    const gint64 first_ns = rp_report_steady(trace, window->first, middle).iteration_ns;
    const gint64 last_ns = rp_report_steady(trace, middle, window->end).iteration_ns;

    return (double)ABS(last_ns - first_ns) <= STEADY * (double)first_ns;
}

/* Whether one iteration fills the pipeline. */
static gboolean
is_deep(const RpAdviseRun *run)
{
    const guint rounds = rp_plan_whole_round(&run->options) / run->options.round;

    return rp_advise_count_stages(run->partition) * rounds >=
           DEEP * rp_plan_group_gpus(&run->options);
}

/* Whether later iterations may wait longer: a lane is so busy that its backlog may grow, and those of the window differ. */
static gboolean
may_lag(const RpTrace *trace, const RpSteadyWindow *window, gint64 iteration_ns, const Busy *busy)
{
    const gint64 lanes[] = {busy->optimizer_ns, busy->sums_ns, busy->upload_ns, busy->download_ns,
                            busy->network_ns};

    return (double)busiest(lanes, G_N_ELEMENTS(lanes)) >= ALL_THE_TIME * (double)iteration_ns &&
           !is_steady(trace, window);
}

/* @lags: (out): later iterations may wait longer */
static gboolean
simulate(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *given,
         guint micro_batches, guint warm_up, RpSteady *steady, Busy *busy, gboolean *lags,
         GError **error)
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
    *busy = find_busy(plan, trace, &window);
    *lags = options.async && may_lag(trace, &window, steady->iteration_ns, busy);
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

/* Adds to @run's step, of which @micro_batches are simulated, the scoring by its reference. */
static gboolean
add_scoring(const RpProfile *profile, guint micro_batches, RpAdviseRun *run, GError **error)
{
    RpPlanOptions options = run->options;
    RpSteady scored;

    if (!run->scored)
        return TRUE;
    options.micro_batches = micro_batches;
    if (!options.schedule->dispatched)
        options.round = micro_batches;
    if (!rp_simulate_scored(profile, profile, run->partition, &options, NULL, &scored, error))
        return FALSE;
    run->step_ns =
        (gint64)((double)scored.iteration_ns * run->options.micro_batches / micro_batches);
    run->bubble_ratio = scored.ratio;
    run->tokens_per_s = rp_advise_tokens_per_s(profile, run, run->step_ns);
    return TRUE;
}

/* An iteration in the window of rp_advise_window() behind @warm_up others. */
static gboolean
simulate_after(const RpProfile *profile, guint warm_up, RpAdviseRun *run, gboolean *lags,
               GError **error)
{
    const RpPlanOptions *options = &run->options;
    guint unit = rp_advise_unit(options);
    guint micro_batches = rp_advise_cut(run->partition, options);
    guint half_micro_batches = micro_batches / unit / 2 * unit;
    RpSteady steady, half = {0};
    Busy busy, half_busy;
    gboolean half_lags;

    if (micro_batches == options->micro_batches || options->async)
        half_micro_batches = 0;
    if (!simulate(profile, run->partition, options, micro_batches, warm_up, &steady, &busy, lags,
                  error) ||
        (half_micro_batches > 0 && !simulate(profile, run->partition, options, half_micro_batches,
                                             warm_up, &half, &half_busy, &half_lags, error)))
        return FALSE;
    set_figures(profile, run, micro_batches, &steady, half_micro_batches, &half);
    if (!add_scoring(profile, micro_batches, run, error))
        return FALSE;
    run->waits = find_waits(&steady, &busy, options->async);
    run->optimizer_ns = busy.optimizer_ns;
    run->network_ns = busy.network_ns;
    run->network_bytes = busy.network_bytes;
    return TRUE;
}

gint64
rp_advise_floor_ns(const RpProfile *profile, const RpAdviseRun *run)
{
    RpPlanOptions options = run->options;
    const RpMachine machine = rp_machine_from_profile(profile);
    /* weights that stay go up in the first iteration */
    const guint first = options.resident_limit > 0 ? 1 : 0;
    const RpSteadyWindow window = {first + 1, first, first + 1};

    if (!options.async)
        return 0;
    options.micro_batches = rp_advise_cut(run->partition, &options);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, run->partition, &options, window.iterations, NULL);

    return plan == NULL ? 0
                        : (gint64)((double)rp_plan_bound(plan, &machine, &window).time_ns *
                                   run->options.micro_batches / options.micro_batches);
}

/* Seconds that @bytes take; 0: at no known speed. */
static double
seconds(double bytes, double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes / bytes_per_s : 0;
}

gint64
rp_advise_transfers_ns(const RpProfile *profile, const RpAdviseRun *run)
{
    const RpPlanOptions *options = &run->options;
    const RpPartition *partition = run->partition;
    const RpLinks *links = &profile->links;
    const double m = options->micro_batches, gpus = options->gpus;
    const guint fused = partition->backward[0].first, of_root = MAX(1, links->gpus_per_root);
    const double roots = (options->gpus + of_root - 1) / of_root;
    double weights = 0, once = 0, gradients = 0, saved = 0;

    if (rp_profile_is_mixed(profile) || options->servers > 1)
        return 0;
    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];
        const guint visits = l < fused ? 2 : 1;

        weights += visits * (double)rp_layer_upload_bytes(layer);
        once += (double)rp_layer_upload_bytes(layer);
        gradients += (double)layer->gradient_bytes;
        saved += l < fused ? (double)rp_layer_saved_bytes(layer) : 0;
    }
    /* at most so many of them stay on all devices together */
    if (options->resident_limit > 0)
        weights *= MAX(0, 1 - gpus * (double)options->resident_limit / once);
    const double up = m / options->round * weights + m * saved, down = gradients + m * saved;
    const double root_bytes_per_s = links->gpus_per_root > 0 ? links->root_bytes_per_s * roots : 0;
    double s = MAX(seconds(up, gpus * links->h2d_bytes_per_s),
                   seconds(down, gpus * links->d2h_bytes_per_s));

    s = MAX(s, seconds(MAX(up, down), root_bytes_per_s));
    return (gint64)(MAX(s, seconds(up + down, links->host_bytes_per_s)) * (double)RP_NS_PER_S);
}

gboolean
rp_advise_simulate(const RpProfile *profile, RpAdviseRun *run, GError **error)
{
    gboolean lags;

    return simulate_after(profile, RP_ADVISE_WARM_UP, run, &lags, error);
}

gboolean
rp_advise_simulate_shortly(const RpProfile *profile, RpAdviseRun *run, gint64 enough_ns,
                           GError **error)
{
    gboolean lags = TRUE;

    if (run->options.async && is_deep(run) &&
        !simulate_after(profile, SHORT_WARM_UP, run, &lags, error))
        return FALSE;
    return !lags || (run->simulated && enough_ns > 0 && run->step_ns > enough_ns) ||
           rp_advise_simulate(profile, run, error);
}

double
rp_advise_tokens_per_s(const RpProfile *profile, const RpAdviseRun *run, gint64 ns)
{
    double tokens =
        (double)rp_profile_micro_batch_tokens(profile) * (double)run->options.micro_batches;

    return ns > 0 && ns < G_MAXINT64 ? tokens / ((double)ns / (double)RP_NS_PER_S) : 0;
}

gboolean
rp_advise_draw(const RpProfile *profile, const RpAdviseRun *run, guint draws, guint64 seed,
               RpDrawn *step_ns, RpDrawn *bubble_ratio, GError **error)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    RpPlanOptions options = run->options;

    g_return_val_if_fail(run->simulated && draws > 0, FALSE);
    options.micro_batches = run->simulated_micro_batches;
    if (!options.schedule->dispatched)
        options.round = options.micro_batches;
    const RpSteadyWindow window = rp_advise_window(run->partition, &options, RP_ADVISE_WARM_UP);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, run->partition, &options, window.iterations, error);

    if (plan == NULL)
        return FALSE;
    g_autoptr(RpDraws) drawn = rp_draws_new(plan, profile);
    g_autofree double *steps = g_new(double, draws);
    g_autofree double *ratios = g_new(double, draws);
    double planned_ns = 0;

    /* the plan's own times first: what is simulated may be a part of the step */
    for (guint i = 0; i <= draws; i++) {
        if (i > 0)
            rp_draws_apply(drawn, seed, i - 1);
        g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, error);

        if (trace == NULL)
            return FALSE;
        const RpSteady steady = rp_report_steady(trace, window.first, window.end);

        if (i == 0) {
            planned_ns = (double)MAX(steady.iteration_ns, 1);
            continue;
        }
        steps[i - 1] = (double)steady.iteration_ns / planned_ns * (double)run->step_ns;
        ratios[i - 1] = steady.ratio;
    }
    *step_ns = rp_drawn_of(steps, draws);
    *bubble_ratio = rp_drawn_of(ratios, draws);
    return TRUE;
}
