/*
 * Systems whose step is a plan in virtual time: Mobius, RoundPipe, and what Megatron's pipeline shares
 * with them.
 */
#include "sim/systems/pipeline.h"

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "sim/search/partition-cost.h"
#include "sim/simulate.h"

static double
seconds(gint64 ns)
{
    return (double)ns / (double)RP_NS_PER_S;
}

/* @period_ns: of an iteration, of which @busy_ns of all devices */
static void
set_time(gint64 period_ns, double busy_ns, guint gpus, RpSystemTime *time)
{
    time->compute = busy_ns / gpus / (double)RP_NS_PER_S;
    time->wait = MAX(0, seconds(period_ns) - time->compute);
}

static gboolean
check_actions(guint64 actions, GError **error)
{
    if (actions <= RP_SYSTEM_MOST_ACTIONS)
        return TRUE;
    return rp_fail(error, RP_SYSTEM_ERROR, RP_SYSTEM_ERROR_BATCH,
                   "its plan would have %" G_GUINT64_FORMAT
                   " actions, and at most %d are simulated: use fewer micro-batches",
                   actions, RP_SYSTEM_MOST_ACTIONS);
}

gboolean
rp_system_pipeline(const RpProfile *profile, const char *schedule, const RpPartition *partition,
                   guint gpus, guint micro_batches, RpSystemTime *time, GError **error)
{
    const RpPlanOptions options = {
        .schedule = rp_schedule_find(schedule, error),
        .gpus = gpus,
        .micro_batches = micro_batches,
        .fidelity = RP_FIDELITY_COMPUTE,
        .recompute =
            RP_RECOMPUTE_GATED, /* autograd makes activations again when it comes to them */
    };

    if (options.schedule == NULL ||
        !check_actions((guint64)2 * partition->n_forward * micro_batches, error))
        return FALSE;
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, 1, error);
    g_autoptr(RpTrace) trace = plan != NULL ? rp_simulate(plan, NULL, error) : NULL;

    if (trace == NULL)
        return FALSE;
    const RpBubble bubble = rp_report_bubble(trace);

    set_time(bubble.makespan_ns, (double)bubble.busy_ns, gpus, time);
    return TRUE;
}

/* ---- Mobius ---- */

/* Micro-batches of a pass, for each GPU; a step has as many passes as it takes. */
#define MOBIUS_PASS 2
/* Bytes of a parameter in host memory, and stages on a GPU: one computes, the next arrives. */
#define MOBIUS_HOST_BYTES 16
#define MOBIUS_STAGES 2

/* Stages of one block, the largest of them with the head. */
static RpSystemMemory
mobius_memory(const RpSystemJob *job, double logit_bytes)
{
    const RpSystemModel *model = job->model;

    return (RpSystemMemory){
        .state = 2 * MOBIUS_STAGES * MAX(model->block, MAX(model->embedding, model->head)),
        .activations = rp_system_activations(job, logit_bytes),
        .host = 2 * (model->parameters - model->trained) + MOBIUS_HOST_BYTES * model->trained,
    };
}

/* Looped BFS over stages in host memory, then the processors step. */
static gboolean
mobius_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    const guint gpus = job->server->gpus;
    const guint turns = rp_system_turns(&rp_system_mobius, job);
    const guint pass = MIN(turns, MOBIUS_PASS * gpus);
    const RpPlanOptions options = {
        .schedule = rp_schedule_find("mobius", error),
        .gpus = gpus,
        .micro_batches = pass,
        .fidelity = RP_FIDELITY_COMPUTE,
        .recompute = RP_RECOMPUTE_GATED,
    };

    (void)memory;
    if (options.schedule == NULL)
        return FALSE;
    g_autoptr(RpProfile) profile = rp_system_scaled(job);
    g_autoptr(RpPartition) partition =
        rp_partition_choose(profile, &options, RP_PARTITION_PAPER, 0, 0, NULL, error);

    if (partition == NULL ||
        !rp_system_pipeline(profile, "mobius", partition, gpus, pass, time, error))
        return FALSE;
    time->compute *= (double)turns / pass;
    time->wait *= (double)turns / pass;
    time->optimizer = job->model->trained / RP_SYSTEM_OPTIMIZER_PER_S;
    return TRUE;
}

const RpSystem rp_system_mobius = {
    .name = "mobius",
    .title = "Mobius",
    .summary = "stages in host memory, each bound to a GPU, looped BFS",
    .synchronous = TRUE,
    .logit_bytes = RP_SYSTEM_LOGIT_BYTES,
    .takes = rp_system_takes_stages,
    .memory = mobius_memory,
    .time = mobius_time,
};

/* ---- RoundPipe ---- */

static void
read_steady(const RpTrace *trace, const RpSteadyWindow *window, guint gpus, RpSystemTime *time)
{
    const RpSteady steady = rp_report_steady(trace, window->first, window->end);

    set_time(steady.iteration_ns, (1 - steady.ratio) * (double)steady.iteration_ns * gpus, gpus,
             time);
}

/* `full` fidelity: every copy and the optimizer, which the step's end waits for. */
static gboolean
run(const RpSystemJob *job, gboolean async, RpSystemTime *time, RpSystemMemory *memory,
    GError **error)
{
    const RpProfile *profile = job->model->profile;
    const guint gpus = job->server->gpus;
    RpPlanOptions options = {
        .schedule = rp_schedule_find("roundpipe", error),
        .gpus = gpus,
        .micro_batches = (guint)job->batch / job->sequences,
        .async = async,
        .fidelity = RP_FIDELITY_FULL,
        .early_steps = RP_EARLY_AUTO,
    };

    if (options.schedule == NULL)
        return FALSE;
    g_autoptr(RpPartition) partition =
        rp_partition_choose(profile, &options, RP_PARTITION_SIMULATED, 0, job->server->gpu_bytes,
                            &options.round, error);
    if (partition == NULL)
        return FALSE;
    const RpSteadyWindow window =
        async ? rp_steady_window(gpus, (partition->n_forward + partition->n_backward) *
                                           (options.micro_batches / options.round))
              : rp_steady_window_synchronous();
    const RpMachine machine = rp_machine_from_profile(profile);
    const guint64 actions = (guint64)(partition->n_forward + partition->n_backward) *
                            options.micro_batches * window.iterations;

    if (!check_actions(actions, error))
        return FALSE;
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, window.iterations, error);
    g_autoptr(RpTrace) trace = plan != NULL ? rp_simulate(plan, &machine, error) : NULL;

    if (trace == NULL)
        return FALSE;
    memory->gpu = (double)rp_plan_arena_bytes(plan, rp_plan_fullest_gpu(plan));
    memory->host = (double)rp_plan_arena_bytes(plan, gpus);
    read_steady(trace, &window, gpus, time);
    return TRUE;
}

static gboolean
roundpipe_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory, GError **error)
{
    return run(job, TRUE, time, memory, error);
}

static gboolean
roundpipe_sync_time(const RpSystemJob *job, RpSystemTime *time, RpSystemMemory *memory,
                    GError **error)
{
    return run(job, FALSE, time, memory, error);
}

const RpSystem rp_system_roundpipe_sync = {
    .name = "roundpipe-sync",
    .title = "RoundPipe sync",
    .summary = "stages in host memory, dispatched in turn; the optimizer ends a step",
    .synchronous = TRUE,
    .time = roundpipe_sync_time,
};

const RpSystem rp_system_roundpipe = {
    .name = "roundpipe",
    .title = "RoundPipe",
    .summary = "the same, the optimizer beside the next step",
    .time = roundpipe_time,
};
