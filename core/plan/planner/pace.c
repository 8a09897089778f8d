/* Each task begins when its lane is free and its dependencies have ended: whole nanoseconds, so that a
 * plan is the same on every machine. */
#include "core/plan/planner/pace.h"

#include <math.h>

#define RULES_OF_COST (RP_DISPATCH_RULES - 2) /* the last of them takes off all of the work */

struct _RpPace {
    const RpPlanJob *job;
    gint64 *free_ns; /* [lane] */
    GArray *ends_ns; /* of tasks from `first` on */
    RpTaskId first;
    guint32 iteration; /* of the last slot */
    gint64 *last_ns;   /* [m of the round] end of the last action */
    gint64 barrier_ns; /* end of the last barrier */
    guint *like;       /* [device] the first of the same speed */
    guint *candidates; /* [device] of the speed of `like`: free first */
    guint turn;        /* device behind the last slot's */
};

static double
slowness(const RpPace *pace, guint32 device)
{
    const double *slow = pace->job->options.slow;

    return slow != NULL && device != RP_NONE ? slow[device] : 1;
}

RpPace *
rp_pace_new(const RpPlanJob *job)
{
    RpPace *pace = RP_JOB_NEW(job, RpPace, 1);

    pace->job = job;
    pace->free_ns = RP_JOB_NEW(job, gint64, rp_plan_n_lanes(job->plan));
    pace->ends_ns = rp_job_array(job, sizeof(gint64));
    pace->last_ns = RP_JOB_NEW(job, gint64, job->shape.round);
    pace->like = RP_JOB_NEW(job, guint, job->shape.gpus);
    pace->candidates = RP_JOB_NEW(job, guint, job->shape.gpus);
    for (guint g = 0; g < job->shape.gpus; g++)
        while (slowness(pace, pace->like[g]) != slowness(pace, g))
            pace->like[g]++;
    return pace;
}

/* A time of the profile on @device. */
static gint64
on_device(const RpPace *pace, guint32 device, gint64 time_ns)
{
    return llround((double)time_ns * slowness(pace, device));
}

/* Runs a task behind all that are before it. Returns: its end */
static gint64
run(RpPace *pace, const RpTask *task)
{
    const RpPlan *plan = pace->job->plan;
    const RpDependency *needs = rp_plan_dependencies(plan, task);
    const guint32 device = rp_plan_lane_device(plan, task->lane);
    const gint64 lead_ns = on_device(pace, device, task->lead_ns);
    gint64 start_ns = pace->free_ns[task->lane];

    for (guint i = 0; i < task->dependency_count; i++)
        if (needs[i].task >= pace->first) /* else it has long ended */
            start_ns =
                MAX(start_ns, g_array_index(pace->ends_ns, gint64, needs[i].task - pace->first) +
                                  needs[i].hop_ns - (needs[i].phase == 1 ? lead_ns : 0));
    return start_ns + lead_ns + on_device(pace, device, task->duration_ns - task->lead_ns);
}

static void
catch_up(RpPace *pace)
{
    const RpPlan *plan = pace->job->plan;

    for (RpTaskId id = pace->first + pace->ends_ns->len; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const gint64 end_ns = run(pace, task);

        pace->free_ns[task->lane] = end_ns;
        g_array_append_val(pace->ends_ns, end_ns);
        if (rp_task_is_compute(task))
            pace->last_ns[task->micro_batch % pace->job->shape.round] = end_ns;
        if (task->kind == RP_TASK_BARRIER)
            pace->barrier_ns = end_ns;
    }
}

/* Nothing waits for what is older than the iteration before the last. */
static void
forget(RpPace *pace)
{
    const RpPlan *plan = pace->job->plan;
    const RpTaskId end = pace->first + pace->ends_ns->len;
    RpTaskId first = MAX(pace->first, rp_plan_first_id(plan));

    if (pace->iteration == pace->job->iteration)
        return;
    pace->iteration = pace->job->iteration;
    while (first < end && rp_plan_task(plan, first)->iteration + 3 < pace->job->iteration)
        first++;
    g_array_remove_range(pace->ends_ns, 0, (guint)(MIN(first, end) - pace->first));
    pace->first = first;
}

static gint64
free_at(const RpPace *pace, guint g)
{
    return MAX(pace->free_ns[rp_plan_lane(pace->job->plan, g, RP_LANE_COMPUTE)], pace->barrier_ns);
}

/* Of a slot of such actions on @g, less as much of its work as the rule says. */
static gint64
slot_cost(const RpPace *pace, guint g, const RpAction *action)
{
    const RpPlanJob *job = pace->job;
    gint64 duration_ns, lead_ns, end_ns = free_at(pace, g);

    rp_job_action_times(job, action, &duration_ns, &lead_ns);
    duration_ns = on_device(pace, g, duration_ns - lead_ns);
    lead_ns = on_device(pace, g, lead_ns);
    duration_ns += lead_ns;
    for (guint m = 0; m < job->shape.round; m++) {
        const gint64 input_ns =
            action->stage > 0 ? pace->last_ns[m] + job->profile->links.hop_ns : 0;

        end_ns = MAX(end_ns, input_ns - lead_ns) + duration_ns;
    }
    return end_ns -
           duration_ns * job->shape.round / RULES_OF_COST * (job->options.dispatch_rule - 1);
}

/* Of each speed the device that is free first; of these the one of least cost. */
static guint
find_device(RpPace *pace, const RpAction *action)
{
    const guint gpus = pace->job->shape.gpus;
    gint64 best_ns = G_MAXINT64;
    guint best = RP_NONE;

    for (guint g = 0; g < gpus; g++)
        pace->candidates[g] = RP_NONE;
    for (guint i = 0; i < gpus; i++) {
        const guint g = (pace->turn + i) % gpus;
        guint *candidate = &pace->candidates[pace->like[g]];

        if (*candidate == RP_NONE || free_at(pace, g) < free_at(pace, *candidate))
            *candidate = g;
    }
    for (guint i = 0; i < gpus; i++) {
        const guint g = (pace->turn + i) % gpus;

        if (pace->candidates[pace->like[g]] != g)
            continue;
        const gint64 cost_ns = slot_cost(pace, g, action);

        if (cost_ns < best_ns) {
            best_ns = cost_ns;
            best = g;
        }
    }
    return best;
}

guint
rp_pace_dispatch(RpPace *pace, const RpAction *action)
{
    const guint gpus = pace->job->shape.gpus;
    guint device = pace->turn;

    catch_up(pace);
    forget(pace);
    if (pace->job->options.dispatch_rule != RP_DISPATCH_RULES)
        device = find_device(pace, action);
    pace->turn = (device + 1) % gpus;
    return device;
}

double
rp_pace_time_ns(RpPace *pace)
{
    double all_ns = 0, last_ns = 0;

    catch_up(pace);
    for (guint g = 0; g < pace->job->shape.gpus; g++) {
        all_ns += (double)free_at(pace, g);
        last_ns = MAX(last_ns, (double)free_at(pace, g));
    }
    return pace->job->options.async ? all_ns / pace->job->shape.gpus : last_ns;
}
