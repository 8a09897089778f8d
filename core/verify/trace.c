#include "core/verify/private.h"

#define fail_ran(check, ...) fail_tasks(&(check)->verifier, RP_RULE_TRACE, __VA_ARGS__)

typedef struct {
    RpVerifier verifier; /* messages need the plan's */
    const RpTrace *trace;
    gint64 slack_ns;
    const RpTraceRecord **records; /* [task] */
} TraceCheck;

/* Each task of the plan once, as the plan has it. Tasks retired since are let pass. */
static gboolean
find_records(TraceCheck *check)
{
    const RpTraceRecord *records = rp_trace_records(check->trace);
    const RpVerifier *verifier = &check->verifier;

    for (gsize i = 0; i < rp_trace_n_records(check->trace); i++) {
        const RpTraceRecord *record = &records[i];
        const guint32 index = (guint32)(record->task - verifier->first_id);

        if (record->task < verifier->first_id)
            continue;
        if (record->task - verifier->first_id >= verifier->n_tasks)
            return fail_ran(check, RP_NO_TASK, RP_NO_TASK,
                            "task %" G_GUINT64_FORMAT " ran, which the plan does not have",
                            record->task);
        const RpTraceRecord **place = &check->records[index];
        const RpTask *task = rp_verifier_task(verifier, index);
        if (*place != NULL)
            return fail_ran(check, RP_NO_TASK, index, "the task ran twice");
        if (record->lane != task->lane || record->kind != task->kind ||
            record->iteration != task->iteration || record->micro_batch != task->micro_batch ||
            record->stage != task->stage || record->layer != task->layer ||
            record->chunk != task->chunk || record->round != task->round)
            return fail_ran(check, RP_NO_TASK, index,
                            "what ran (%s on lane %u) is not what the plan says",
                            rp_task_kind_name((RpTaskKind)record->kind), record->lane);
        if (record->bytes != task->bytes)
            return fail_ran(check, RP_NO_TASK, index,
                            "%" G_GUINT64_FORMAT
                            " bytes were moved, the plan says %" G_GUINT64_FORMAT,
                            record->bytes, task->bytes);
        *place = record;
    }
    for (guint32 i = 0; i < verifier->n_tasks; i++)
        if (check->records[i] == NULL)
            return fail_ran(check, i, RP_NO_TASK, "the task did not run");
    return TRUE;
}

static gboolean
check_times(TraceCheck *check, guint32 index)
{
    const RpTask *task = rp_verifier_task(&check->verifier, index);
    const RpTraceRecord *record = check->records[index];
    gint64 duration_ns = record->end_ns - record->start_ns;

    if (duration_ns < 0)
        return fail_ran(check, RP_NO_TASK, index,
                        "the task ended %" G_GINT64_FORMAT " ns before it started", -duration_ns);
    /* devices that share processors are slower than alone, but nothing is ever faster */
    if (rp_trace_origin(check->trace) == RP_TRACE_PREDICTED && rp_task_is_compute(task) &&
        duration_ns < task->duration_ns)
        return fail_ran(check, RP_NO_TASK, index,
                        "the action took %" G_GINT64_FORMAT " ns, the plan says %" G_GINT64_FORMAT,
                        duration_ns, task->duration_ns);
    return TRUE;
}

/* A measured recompute has no known length: its gradient must only be there before the end. A
 * predicted one may be slower than planned, and so may the rest of the action, which takes its
 * planned time at least. */
static gboolean
check_dependency(TraceCheck *check, guint32 index, const RpDependency *dependency)
{
    const RpVerifier *verifier = &check->verifier;
    const RpTask *task = rp_verifier_task(verifier, index);
    const RpTraceRecord *record = check->records[index];
    const guint32 before = (guint32)(dependency->task - verifier->first_id);
    gboolean measured = rp_trace_origin(check->trace) == RP_TRACE_MEASURED;
    gboolean late = dependency->phase > 0;
    gint64 ready_ns, passed_ns;

    if (dependency->task < verifier->first_id)
        return TRUE;
    if (dependency->task - verifier->first_id >= verifier->n_tasks)
        return fail_ran(check, RP_NO_TASK, index, "waits for a task that the plan does not have");
    ready_ns = check->records[before]->end_ns + (measured ? 0 : (gint64)dependency->hop_ns);
    if (measured)
        passed_ns = (late ? record->end_ns : record->start_ns) + check->slack_ns;
    else
        passed_ns = late ? record->end_ns - (task->duration_ns - task->lead_ns) : record->start_ns;
    if (passed_ns < ready_ns)
        return fail_ran(check, before, index,
                        "the second task ran %" G_GINT64_FORMAT
                        " ns before what it waits for was done",
                        ready_ns - passed_ns);
    return TRUE;
}

static gboolean
check_tasks(TraceCheck *check)
{
    const RpVerifier *verifier = &check->verifier;
    const guint n_lanes = rp_plan_n_lanes(verifier->plan);
    g_autofree guint32 *end = g_new0(guint32, (gsize)n_lanes + 1); /* behind a lane's last task */

    for (guint32 i = 0; i < verifier->n_tasks; i++) {
        const RpTask *task = rp_verifier_task(verifier, i);
        const RpDependency *dependencies = rp_plan_dependencies(verifier->plan, task);

        if (!check_times(check, i))
            return FALSE;
        if (task->lane >= n_lanes)
            return fail_ran(check, RP_NO_TASK, i, "the plan has no such lane");
        guint32 before = end[task->lane];
        end[task->lane] = i + 1;
        if (before > 0 &&
            check->records[i]->start_ns + check->slack_ns < check->records[before - 1]->end_ns)
            return fail_ran(check, before - 1, i,
                            "two tasks of one lane overlap or are out of order");
        for (guint k = 0; k < task->dependency_count; k++)
            if (!check_dependency(check, i, &dependencies[k]))
                return FALSE;
    }
    return TRUE;
}

gboolean
rp_verify_trace(const RpPlan *plan, const RpTrace *trace, RpViolation *violation)
{
    const RpTaskId first = rp_plan_first_id(plan);
    const gsize n = (gsize)(rp_plan_end_id(plan) - first);
    g_autofree const RpTraceRecord **records = g_new0(const RpTraceRecord *, n + 1);
    TraceCheck check = {
        .verifier = {.plan = plan,
                     .violation = violation,
                     .rank = RP_NO_RANK,
                     .first_id = first,
                     .n_tasks = (guint32)n,
                     .tasks = n > 0 ? rp_plan_task(plan, first) : NULL},
        .trace = trace,
        .slack_ns = rp_trace_origin(trace) == RP_TRACE_MEASURED ? RP_VERIFY_CLOCK_SLACK_NS : 0,
        .records = records,
    };

    if (violation != NULL)
        *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
    return find_records(&check) && check_tasks(&check);
}
