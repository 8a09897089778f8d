/* roundpipe train: the plan, and what it is expected to take. */
#include "cli/train/setup.h"

#include <string.h>

#include "cli/reports/result.h"
#include "core/trace/report.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

static RpScheduleArgs
schedule_args(const RpTrainJob *job, gint64 round)
{
    const RpRunFile *run = job->run;

    return (RpScheduleArgs){
        .schedule = g_strdup(run->schedule),
        .gpus = (int)run->n_devices,
        .micro_batches = (int)run->micro_batches,
        .round = (int)round,
        .stages = g_strdup(run->stages),
        .forward_stages = g_strdup(run->forward_stages),
        .backward_stages = g_strdup(run->backward_stages),
        .partition = run->given_stages            ? NULL
                     : run->partition_choice == 1 ? g_strdup("paper")
                                                  : g_strdup("simulated"),
        .fidelity = g_strdup("full"),
        .recompute = run->recompute_choice == RP_RECOMPUTE_EARLY   ? g_strdup("early")
                     : run->recompute_choice == RP_RECOMPUTE_GATED ? g_strdup("gated")
                                                                   : NULL,
        .transfers = g_strdup(run->transfers == RP_TRANSFERS_NAIVE ? "naive" : "windows"),
        .consistency =
            g_strdup(run->consistency == RP_CONSISTENCY_BLOCKING ? "blocking" : "events"),
        .optimizer = g_strdup(run->optimizer.mode == RP_OPTIMIZER_LEAN ? "lean" : "fused"),
        .async = run->async,
        .no_clip = run->optimizer.max_grad_norm <= 0 && job->network.dtype != RP_DTYPE_FP16 &&
                   run->consistency != RP_CONSISTENCY_BLOCKING,
    };
}

/* A prediction that would not fit in memory is refused before anything long is done.
 * @stages: of all passes; no partition has fewer
 *
 * actions = stages x micro-batches x calls x iterations, times two if stages go forward and
 * backward. Iterations are fewer where they are longer: with the fewest stages, in the most rounds,
 * there are the fewest actions.
 */
static gboolean
check_size(const RpTrainJob *job, gboolean dispatched, guint stages, guint rounds, GError **error)
{
    const RpRunFile *run = job->run;
    guint64 slots = (guint64)stages * rounds * (guint64)run->gradient_accumulation_steps;
    RpSteadyWindow window =
        rp_steady_window(run->n_devices, (guint)MIN(slots, (guint64)G_MAXUINT32));
    double actions = (double)stages * (double)run->micro_batches *
                     (double)run->gradient_accumulation_steps * window.iterations *
                     (dispatched ? 1 : 2);

    if (actions <= RP_CLI_MAX_FULL_ACTIONS)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "micro_batches, gradient_accumulation_steps: expected at most %d compute actions "
                "in a prediction, found %.0f or more (%u stages x %" G_GINT64_FORMAT
                " micro-batches x %" G_GINT64_FORMAT " calls x %u iterations%s)",
                RP_CLI_MAX_FULL_ACTIONS, actions, stages, run->micro_batches,
                run->gradient_accumulation_steps, window.iterations,
                dispatched ? "" : ", forward and backward");
    return FALSE;
}

/* Before there is a partition: RoundPipe may come down to its fused stage. */
gboolean
rp_train_check_least_size(const RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;
    const RpScheduleOps *schedule = rp_schedule_find(run->schedule, error);
    gint64 rounds = run->round > 0 ? MAX(1, run->micro_batches / run->round) : run->micro_batches;

    if (schedule == NULL)
        return FALSE;
    return schedule->dispatched ? check_size(job, TRUE, 1, (guint)rounds, error)
                                : check_size(job, FALSE, run->n_devices, 1, error);
}

/* Messages of schedules and partitions speak of options; a run file has keys. */
static void
name_keys(GError *error)
{
    static const char *const names[][2] = {
        {"--micro-batches, --iterations", "micro_batches"},
        {"--forward-stages", "forward_stages"},
        {"--backward-stages", "backward_stages"},
        {"--micro-batches", "micro_batches"},
        {"--partition", "partition"},
        {"--schedule", "schedule"},
        {"--stages", "stages"},
        {"--round", "round"},
        {"--gpus", "devices"},
    };
    g_autoptr(GString) message = g_string_new(error->message);

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        g_string_replace(message, names[i][0], names[i][1], 0);
    g_free(error->message);
    error->message = g_string_free(g_steal_pointer(&message), FALSE);
}

static gboolean
resolve(const RpTrainJob *job, const RpNetwork *network, gint64 round, RpRequest *request,
        GError **error)
{
    RpScheduleArgs args = schedule_args(job, round);
    GError *problem = NULL;

    args.constant_bytes = rp_network_constant_bytes(network);
    gboolean resolved = rp_request_resolve(&args, job->profile, request, &problem);

    rp_schedule_args_clear(&args);
    if (resolved)
        return TRUE;
    name_keys(problem);
    g_propagate_error(error, problem);
    return FALSE;
}

/* Limits that the run file sets; what the machine has is the trainer's to check. Arenas of devices
 * that are threads come out of host memory. */
static gboolean
check_memory(const RpTrainJob *job, GError **error)
{
    const RpRunFile *run = job->run;
    guint64 devices = 0;

    for (guint g = 0; run->device_ops->host_memory && g < run->n_devices; g++)
        devices += rp_plan_arena_bytes(job->plan, g);
    if (run->host_memory_bytes > 0 && run->host_memory_bytes <= devices) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_MEMORY,
                    "host memory: the arenas of %u devices alone need %" G_GUINT64_FORMAT
                    " bytes, host_memory is %" G_GUINT64_FORMAT
                    ": use fewer devices, a smaller micro-batch or a shorter sequence",
                    run->n_devices, devices, run->host_memory_bytes);
        return FALSE;
    }
    return rp_plan_check_memory(job->plan, job->device_memory_bytes,
                                run->host_memory_bytes > 0 ? run->host_memory_bytes - devices : 0,
                                error);
}

/*
 * In bound schedules the head does not run when its stage goes forward: the loss and its gradient
 * are computed at once, at the beginning of the backward action.
 *
 *   planned   [ F: blocks, head ]  ...  [ B: recompute, head, blocks ]
 *   run       [ F: blocks ]        ...  [ B: recompute, head forward and back, blocks ]
 *
 * So all of the head's time is planned there. RoundPipe runs it in the fused stage, where both
 * stand together anyway.
 */
static gboolean
place_head(RpTrainJob *job, GError **error)
{
    const RpScheduleOps *schedule = rp_schedule_find(job->run->schedule, error);
    RpLayer *head = &job->profile->layers[job->profile->n_layers - 1];

    if (schedule == NULL)
        return FALSE;
    if (!schedule->dispatched && head->kind == RP_LAYER_HEAD) {
        head->backward_ns += head->forward_ns;
        head->backward_spread_ns += head->forward_spread_ns;
        head->forward_ns = 0;
        head->forward_spread_ns = 0;
    }
    return TRUE;
}

/* A few iterations of a request. */
static RpTrace *
simulate(const RpTrainJob *job, const RpNetwork *network, RpRequest *request, RpPlan **plan,
         GError **error)
{
    const RpPartition *partition = request->partition;
    const guint rounds = request->options.micro_batches / request->options.round;
    const guint calls = (guint)job->run->gradient_accumulation_steps;

    request->options.calls = calls;
    request->window = rp_steady_window(
        job->run->n_devices, (partition->n_forward + partition->n_backward) * rounds * calls);
    request->iterations = request->window.iterations;
    return rp_request_simulate(request, job->profile, plan, error);
}

/* All micro-batches in one round is the default, because its bits do not depend on devices or on
 * what was measured; where other rounds are faster, say so. */
static void
consider_rounds(RpTrainJob *job, const RpNetwork *network)
{
    g_auto(RpRequest) other = {0};
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = NULL;

    if (job->run->round_choice != RP_RUN_ROUND_ALL || job->run->n_devices == 1 ||
        !job->request.options.schedule->dispatched || !resolve(job, network, 0, &other, NULL) ||
        other.options.round == job->request.options.round)
        return;
    trace = simulate(job, network, &other, &plan, NULL);
    if (trace == NULL || !rp_plan_check_memory(plan, job->device_memory_bytes, 0, NULL))
        return;
    const RpSteady steady = rp_report_steady(trace, other.window.first, other.window.end);

    job->other_round = other.options.round;
    job->other_gain = (double)job->steady.iteration_ns / (double)steady.iteration_ns - 1;
}

/* Of the step time, as far as the layers' measurements go. Synchronous steps count from steady
 * ones, too. */
static gboolean
predict_range(RpTrainJob *job, GError **error)
{
    RpRequest steady = job->request; /* borrowed */
    g_auto(RpResult) result = {0};

    steady.steady = TRUE;
    if (!rp_result_spread(&steady, job->profile, &result, error))
        return FALSE;
    job->least_ns = result.least_ns;
    job->most_ns = result.most_ns;
    return TRUE;
}

gboolean
rp_train_predict(RpTrainJob *job, const RpNetwork *network, GError **error)
{
    const RpRunFile *run = job->run;

    if (!place_head(job, error) || !resolve(job, network, run->round, &job->request, error))
        return FALSE;
    if (!check_size(job, job->request.options.schedule->dispatched,
                    job->request.partition->n_forward + job->request.partition->n_backward,
                    job->request.options.micro_batches / job->request.options.round, error))
        return FALSE;
    job->trace = simulate(job, network, &job->request, &job->plan, error);
    if (job->trace == NULL)
        return FALSE;
    job->steady = rp_report_steady(job->trace, job->request.window.first, job->request.window.end);
    if (!check_memory(job, error))
        return FALSE;
    consider_rounds(job, network);
    return predict_range(job, error);
}
