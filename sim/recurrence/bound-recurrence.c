#include "sim/recurrence/bound-recurrence.h"

#include <string.h>

#include "core/profile/cards.h"
#include "core/schedules/schedule.h"
#include "sim/steady-window.h"

/* A task of the plan without its times. */
typedef struct {
    guint32 lane;
    guint32 stage;          /* RP_NONE: a barrier */
    guint32 backward_stage; /* of the backward part of an overlapped action, else the same */
    guint32 iteration;
    guint16 n_dependencies;
    guint16 slice;
    guint8 kind;
} Step;

typedef struct {
    guint32 step;
    guint32 phase;
    gint64 hop_ns;
} Wait;

struct _RpBoundRecurrence {
    const RpProfile *profile;
    guint n_stages, n_lanes, micro_batches, slices;
    gboolean early;
    gboolean even;         /* slices take equal times */
    gboolean mirrored;     /* second copies are timed as the first ones */
    RpSteadyWindow window; /* .iterations = 0: synchronous */
    gsize n_steps;
    Step *steps;
    Wait *waits;
    gint64 *ends;  /* by step */
    gint64 *lanes; /* by lane: end of its last task */
    guint *gpu_of_stage;
    guint gpus;
    gint64 *work; /* by gpu */
    gint64 least_ns;
    RpStageTimes *times;
    RpInterval *layers; /* of which times are */
};

/* Some partition of so many stages: its plan has the tasks of all. */
static RpPartition *
any_partition(const RpProfile *profile, guint n_stages)
{
    g_autofree RpInterval *stages = g_new(RpInterval, n_stages);
    const guint first = profile->n_layers - (n_stages - 1);

    stages[0] = (RpInterval){0, first};
    for (guint s = 1; s < n_stages; s++)
        stages[s] = (RpInterval){first + s - 1, 1};
    return rp_partition_new_bound(stages, n_stages);
}

static void
read_plan(RpBoundRecurrence *recurrence, const RpPlan *plan)
{
    const RpTaskId first = rp_plan_first_id(plan);
    gsize n_waits = 0;

    recurrence->n_steps = rp_plan_end_id(plan) - first;
    recurrence->n_lanes = rp_plan_n_lanes(plan);
    recurrence->steps = g_new(Step, recurrence->n_steps);
    recurrence->ends = g_new(gint64, recurrence->n_steps);
    recurrence->lanes = g_new(gint64, recurrence->n_lanes);
    for (gsize i = 0; i < recurrence->n_steps; i++)
        n_waits += rp_plan_task(plan, first + i)->dependency_count;
    recurrence->waits = g_new(Wait, n_waits);
    n_waits = 0;
    for (gsize i = 0; i < recurrence->n_steps; i++) {
        const RpTask *task = rp_plan_task(plan, first + i);
        const RpDependency *dependencies = rp_plan_dependencies(plan, task);

        recurrence->steps[i] = (Step){
            .lane = task->lane,
            .stage = task->stage,
            .backward_stage = task->kind == RP_TASK_OVERLAP ? task->backward_stage : task->stage,
            .iteration = task->iteration,
            .n_dependencies = task->dependency_count,
            .slice = (guint16)(task->micro_batch % recurrence->slices),
            .kind = task->kind,
        };
        for (guint d = 0; d < task->dependency_count; d++)
            recurrence->waits[n_waits++] = (Wait){(guint32)(dependencies[d].task - first),
                                                  dependencies[d].phase, dependencies[d].hop_ns};
    }
}

RpBoundRecurrence *
rp_bound_recurrence_new(const RpProfile *profile, const RpPlanOptions *given, guint n_stages,
                        GError **error)
{
    g_return_val_if_fail(n_stages > 0 && n_stages <= profile->n_layers, NULL);

    RpPlanOptions options = *given;
    RpSteadyWindow window = {0};

    options.fidelity = RP_FIDELITY_COMPUTE;
    options.round = options.micro_batches;
    if (options.async)
        window = rp_steady_window(options.gpus, n_stages);
    g_autoptr(RpPartition) partition = any_partition(profile, n_stages);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, partition, &options, MAX(1, window.iterations), error);

    if (plan == NULL)
        return NULL;
    RpBoundRecurrence *recurrence = g_new0(RpBoundRecurrence, 1);

    recurrence->profile = profile;
    recurrence->n_stages = n_stages;
    recurrence->micro_batches = options.micro_batches;
    recurrence->slices = rp_plan_slices(&options);
    recurrence->gpus = options.gpus;
    recurrence->mirrored = options.schedule->mirrored;
    recurrence->even = options.even_slices;
    recurrence->early = options.recompute == RP_RECOMPUTE_EARLY;
    recurrence->window = window;
    recurrence->times = g_new0(RpStageTimes, n_stages);
    recurrence->layers = g_new0(RpInterval, n_stages);
    recurrence->work = g_new(gint64, options.gpus);
    recurrence->gpu_of_stage = g_new(guint, n_stages);
    for (guint s = 0; s < n_stages; s++)
        recurrence->gpu_of_stage[s] = rp_plan_stage(plan, s)->device;
    read_plan(recurrence, plan);
    return recurrence;
}

void
rp_bound_recurrence_free(RpBoundRecurrence *recurrence)
{
    if (recurrence == NULL)
        return;
    g_free(recurrence->steps);
    g_free(recurrence->waits);
    g_free(recurrence->ends);
    g_free(recurrence->lanes);
    g_free(recurrence->work);
    g_free(recurrence->gpu_of_stage);
    g_free(recurrence->times);
    g_free(recurrence->layers);
    g_free(recurrence);
}

gint64
rp_bound_recurrence_least_ns(const RpBoundRecurrence *recurrence)
{
    return recurrence->least_ns;
}

gsize
rp_bound_recurrence_tasks(const RpBoundRecurrence *recurrence)
{
    return recurrence->n_steps;
}

static void
set_stage(RpBoundRecurrence *recurrence, guint s, RpInterval layers)
{
    const RpProfile *profile = rp_profile_of(recurrence->profile, recurrence->gpu_of_stage[s]);
    RpStageTimes *times = &recurrence->times[s];

    recurrence->layers[s] = layers;
    times->forward_ns = rp_stage_time_ns(profile, layers, RP_PHASE_FORWARD, NULL);
    times->backward_ns = rp_stage_time_ns(profile, layers, RP_PHASE_BACKWARD, &times->lead_ns);
    times->attention =
        recurrence->slices > 1 && !recurrence->even ? rp_stage_attention(profile, layers) : 0;
    times->weight_ns = rp_stage_weight_gradient_ns(profile, layers);
}

/* A search changes two stages at a time. Returns: the work of the device that has most, of one
 * micro-batch. */
static gint64
set_times(RpBoundRecurrence *recurrence, const guint *ends)
{
    gint64 most = 0;

    memset(recurrence->work, 0, recurrence->gpus * sizeof *recurrence->work);
    for (guint s = 0, first = 0; s < recurrence->n_stages; first = ends[s], s++) {
        const RpInterval layers = {first, ends[s] - first};
        const RpInterval *before = &recurrence->layers[s];
        const RpStageTimes *times = &recurrence->times[s];
        const guint gpu = recurrence->gpu_of_stage[s];

        if (before->first != layers.first || before->count != layers.count)
            set_stage(recurrence, s, layers);
        const gint64 work_ns = times->forward_ns + times->backward_ns;

        /* half of the micro-batches each */
        recurrence->work[gpu] += recurrence->mirrored ? work_ns / 2 : work_ns;
        if (recurrence->mirrored)
            recurrence->work[recurrence->gpus - 1 - gpu] += work_ns / 2;
    }
    for (guint g = 0; g < recurrence->gpus; g++)
        most = MAX(most, recurrence->work[g]);
    return most;
}

static gint64
duration_of(const RpBoundRecurrence *recurrence, const Step *step, gint64 *lead_ns)
{
    const RpActionKind kind = (RpActionKind)step->kind;

    *lead_ns = 0;
    if (step->stage == RP_NONE)
        return 0;
    const RpStageTimes *times = &recurrence->times[step->stage];
    gint64 ns = rp_action_time_ns(kind, times, &recurrence->times[step->backward_stage]);

    if (recurrence->early && rp_action_leads(kind))
        *lead_ns = times->lead_ns;
    if (recurrence->slices > 1) {
        ns = rp_slice_time_ns(ns, times->attention, step->slice, recurrence->slices);
        *lead_ns =
            MIN(ns, rp_slice_time_ns(*lead_ns, times->attention, step->slice, recurrence->slices));
    }
    return ns;
}

gint64
rp_bound_recurrence_time_ns(RpBoundRecurrence *recurrence, const guint *ends, gint64 most_ns)
{
    const RpSteadyWindow *window = &recurrence->window;
    const Wait *wait = recurrence->waits;
    gint64 makespan_ns = 0, from_ns = G_MAXINT64, to_ns = G_MAXINT64;

    recurrence->least_ns = set_times(recurrence, ends) * recurrence->micro_batches;
    if (recurrence->least_ns > most_ns)
        return G_MAXINT64;
    memset(recurrence->lanes, 0, recurrence->n_lanes * sizeof *recurrence->lanes);
    for (gsize i = 0; i < recurrence->n_steps; i++) {
        const Step *step = &recurrence->steps[i];
        gint64 lead_ns, start_ns = recurrence->lanes[step->lane];
        const gint64 duration_ns = duration_of(recurrence, step, &lead_ns);

        for (guint d = 0; d < step->n_dependencies; d++, wait++) {
            const gint64 ready_ns =
                recurrence->ends[wait->step] + wait->hop_ns - (wait->phase != 0 ? lead_ns : 0);

            start_ns = MAX(start_ns, ready_ns);
        }
        recurrence->ends[i] = recurrence->lanes[step->lane] = start_ns + duration_ns;
        makespan_ns = MAX(makespan_ns, recurrence->ends[i]);
        if (window->iterations > 0 && step->iteration == window->first)
            from_ns = MIN(from_ns, start_ns);
        if (window->iterations > 0 && step->iteration == window->end)
            to_ns = MIN(to_ns, start_ns);
    }
    if (window->iterations == 0)
        return makespan_ns;
    const gint64 n = window->end - window->first;

    return (to_ns - from_ns + n / 2) / n;
}
