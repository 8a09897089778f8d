/* Each task begins when its lane is free and its dependencies have ended: whole nanoseconds, so that a
 * plan is the same on every machine. */
#include "core/plan/planner/pace.h"

#include "core/base/units.h"
#include "core/plan/planner/protocol.h"
#include "core/profile/cards.h"

#define RULES_OF_COST (RP_DISPATCH_RULES - 2) /* the last of them takes off all of the work */

typedef struct {
    gint64 ns;
    guint32 iteration;
} End;

struct _RpPace {
    const RpPlanJob *job;
    gint64 *free_ns; /* [lane] */
    GArray *ends;    /* End, of tasks from `first` on */
    RpTaskId first;
    guint32 iteration; /* the last slot's */
    gint64 *last_ns;   /* [m of the round] end of the last action */
    gint64 barrier_ns; /* end of the last barrier */
    guint *candidates; /* [card] the device that is free first */
    guint turn;        /* device behind the last slot's */
};

RpPace *
rp_pace_new(const RpPlanJob *job)
{
    RpPace *pace = RP_JOB_NEW(job, RpPace, 1);

    pace->job = job;
    pace->free_ns = RP_JOB_NEW(job, gint64, rp_plan_n_lanes(job->plan));
    pace->ends = rp_job_array(job, sizeof(End));
    pace->last_ns = RP_JOB_NEW(job, gint64, job->shape.round);
    pace->candidates = RP_JOB_NEW(job, guint, MAX(1, job->profile->n_cards));
    return pace;
}

static gint64
moving_ns(guint64 bytes, double bytes_per_s)
{
    return bytes_per_s > 0 ? (gint64)((double)bytes / bytes_per_s * (double)RP_NS_PER_S) : 0;
}

/* `full`: with the link, or the host's memory, to itself. */
static gint64
copy_ns(const RpPace *pace, guint device, guint64 bytes, gboolean up)
{
    const RpLinks *links = &rp_profile_of(pace->job->profile, device)->links;

    return links->copy_latency_ns +
           moving_ns(bytes, up ? links->h2d_bytes_per_s : links->d2h_bytes_per_s);
}

static gint64
duration_of(const RpPace *pace, const RpTask *task)
{
    const RpPlan *plan = pace->job->plan;
    const guint kind = rp_plan_lane_kind(plan, task->lane);
    const guint32 device = rp_plan_lane_device(plan, task->lane);

    if (kind == RP_LANE_COMPUTE || pace->job->options.fidelity == RP_FIDELITY_COMPUTE)
        return task->duration_ns;
    if (device == RP_NONE)
        return moving_ns(task->bytes, rp_traffic_rate(pace->job));
    return copy_ns(pace, device, task->bytes,
                   kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP);
}

/* Runs a task behind all that are before it. Returns: its end */
static gint64
run(RpPace *pace, const RpTask *task)
{
    const RpPlan *plan = pace->job->plan;
    const RpDependency *needs = rp_plan_dependencies(plan, task);
    gint64 start_ns = pace->free_ns[task->lane];

    for (guint i = 0; i < task->dependency_count; i++)
        if (needs[i].task >= pace->first) /* else it has long ended */
            start_ns =
                MAX(start_ns, g_array_index(pace->ends, End, needs[i].task - pace->first).ns +
                                  needs[i].hop_ns - (needs[i].phase == 1 ? task->lead_ns : 0));
    return start_ns + duration_of(pace, task);
}

void
rp_pace_catch_up(RpPace *pace)
{
    const RpPlan *plan = pace->job->plan;

    for (RpTaskId id = pace->first + pace->ends->len; id < rp_plan_end_id(plan); id++) {
        const RpTask *task = rp_plan_task(plan, id);
        const End end = {run(pace, task), task->iteration};

        pace->free_ns[task->lane] = end.ns;
        g_array_append_val(pace->ends, end);
        if (rp_task_is_compute(task) && task->kind != RP_TASK_WEIGHT_GRADIENT)
            pace->last_ns[task->micro_batch % pace->job->shape.round] = end.ns;
        if (task->kind == RP_TASK_BARRIER)
            pace->barrier_ns = end.ns;
    }
}

/* Nothing waits for tasks older than the iteration before the last. */
static void
forget(RpPace *pace)
{
    guint n = 0;

    if (pace->iteration == pace->job->iteration)
        return;
    pace->iteration = pace->job->iteration;
    while (n < pace->ends->len &&
           g_array_index(pace->ends, End, n).iteration + 3 < pace->job->iteration)
        n++;
    g_array_remove_range(pace->ends, 0, n);
    pace->first += n;
}

static gint64
free_at(const RpPace *pace, guint g)
{
    return MAX(pace->free_ns[rp_plan_lane(pace->job->plan, g, RP_LANE_COMPUTE)], pace->barrier_ns);
}

/* When a slot of such actions would end on @g, less the share of its own work that the rule
 * says. */
static gint64
slot_cost(const RpPace *pace, guint g, const RpAction *action)
{
    const RpPlanJob *job = pace->job;
    gint64 duration_ns, lead_ns, end_ns = free_at(pace, g), hop_ns = 0;
    RpAction whole = *action;

    if (action->kind == RP_ACTION_INPUT_GRADIENT)
        whole.kind = RP_ACTION_BACKWARD; /* its W follows */
    rp_job_action_times(job, g, &whole, &duration_ns, &lead_ns);
    if (job->options.fidelity == RP_FIDELITY_FULL) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, action->stage);
        const guint32 up = rp_plan_lane(job->plan, g, RP_LANE_PARAMETER_UP);

        end_ns = MAX(end_ns, pace->free_ns[up] + copy_ns(pace, g, stage->upload_bytes, TRUE));
        hop_ns = 2 * copy_ns(pace, g, job->profile->layers[stage->layers.first].input_bytes, TRUE);
    } else {
        hop_ns = rp_profile_of(job->profile, g)->links.hop_ns;
    }
    for (guint m = 0; m < job->shape.round; m++) {
        const gint64 input_ns = action->stage > 0 ? pace->last_ns[m] + hop_ns : 0;

        end_ns = MAX(end_ns, input_ns - lead_ns) + duration_ns;
    }
    return end_ns -
           duration_ns * job->shape.round / RULES_OF_COST * (job->options.dispatch_rule - 1);
}

/* Takes from each kind of card the device that is free first, and of these the one of least
 * cost. */
static guint
find_device(RpPace *pace, const RpAction *action)
{
    const guint gpus = pace->job->shape.gpus;
    gint64 best_ns = G_MAXINT64;
    guint best = RP_NONE;

    for (guint c = 0; c < MAX(1, pace->job->profile->n_cards); c++)
        pace->candidates[c] = RP_NONE;
    for (guint i = 0; i < gpus; i++) {
        const guint g = (pace->turn + i) % gpus;
        guint *candidate = &pace->candidates[rp_profile_card(pace->job->profile, g)];

        if (*candidate == RP_NONE || free_at(pace, g) < free_at(pace, *candidate))
            *candidate = g;
    }
    for (guint i = 0; i < gpus; i++) {
        const guint g = (pace->turn + i) % gpus;

        if (pace->candidates[rp_profile_card(pace->job->profile, g)] != g)
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

    rp_pace_catch_up(pace);
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

    rp_pace_catch_up(pace);
    for (guint g = 0; g < pace->job->shape.gpus; g++) {
        all_ns += (double)free_at(pace, g);
        last_ns = MAX(last_ns, (double)free_at(pace, g));
    }
    return pace->job->modes->staleness > 0 ? all_ns / pace->job->shape.gpus : last_ns;
}
