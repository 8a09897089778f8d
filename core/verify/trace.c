#include "core/verify/private.h"

typedef struct {
    const RpPlan *plan;
    const RpTrace *trace;
    RpViolation *violation;
    RpTaskId first_id;
    gsize n_tasks;
    gint64 slack_ns;
    const RpTraceRecord **records; /* [task - first_id] */
} TraceCheck;

static gboolean fail(const TraceCheck *check, RpTaskId first, RpTaskId second, const char *format,
                     ...) G_GNUC_PRINTF(4, 5);

static gboolean
fail(const TraceCheck *check, RpTaskId first, RpTaskId second, const char *format, ...)
{
    g_autoptr(GString) text = g_string_new("trace: ");
    va_list arguments;

    if (check->violation == NULL)
        return FALSE;
    va_start(arguments, format);
    g_string_append_vprintf(text, format, arguments);
    va_end(arguments);
    if (first != RP_TASK_NONE) {
        g_autofree char *description = rp_task_describe(check->plan, first);

        g_string_append_printf(text, ": %s", description);
    }
    if (second != RP_TASK_NONE && second != first) {
        g_autofree char *description = rp_task_describe(check->plan, second);

        g_string_append_printf(text, "%s%s", first != RP_TASK_NONE ? "; " : ": ", description);
    }
    check->violation->rule = RP_RULE_TRACE;
    check->violation->first = first;
    check->violation->second = second;
    check->violation->message = g_string_free(g_steal_pointer(&text), FALSE);
    return FALSE;
}

/* Each task of the plan once, as the plan has it. Tasks retired since are let pass. */
static gboolean
find_records(TraceCheck *check)
{
    const RpTraceRecord *records = rp_trace_records(check->trace);
    gsize n_records = rp_trace_n_records(check->trace);

    for (gsize i = 0; i < n_records; i++) {
        const RpTraceRecord *record = &records[i];

        if (record->task < check->first_id)
            continue;
        if (record->task - check->first_id >= check->n_tasks)
            return fail(check, RP_TASK_NONE, RP_TASK_NONE,
                        "task %" G_GUINT64_FORMAT " ran, which the plan does not have",
                        record->task);
        const RpTraceRecord **place = &check->records[record->task - check->first_id];
        const RpTask *task = rp_plan_task(check->plan, record->task);
        if (*place != NULL)
            return fail(check, RP_TASK_NONE, record->task, "the task ran twice");
        if (record->lane != task->lane || record->kind != task->kind ||
            record->iteration != task->iteration || record->micro_batch != task->micro_batch ||
            record->stage != task->stage || record->layer != task->layer ||
            record->chunk != task->chunk || record->round != task->round)
            return fail(check, RP_TASK_NONE, record->task,
                        "what ran (%s on lane %u) is not what the plan says",
                        rp_task_kind_name((RpTaskKind)record->kind), record->lane);
        if (record->bytes != task->bytes)
            return fail(check, RP_TASK_NONE, record->task,
                        "%" G_GUINT64_FORMAT " bytes were moved, the plan says %" G_GUINT64_FORMAT,
                        record->bytes, task->bytes);
        *place = record;
    }
    for (gsize i = 0; i < check->n_tasks; i++)
        if (check->records[i] == NULL)
            return fail(check, check->first_id + i, RP_TASK_NONE, "the task did not run");
    return TRUE;
}

static gboolean
check_times(const TraceCheck *check, RpTaskId id, const RpTask *task, const RpTraceRecord *record)
{
    gint64 duration_ns = record->end_ns - record->start_ns;

    if (duration_ns < 0)
        return fail(check, RP_TASK_NONE, id,
                    "the task ended %" G_GINT64_FORMAT " ns before it started", -duration_ns);
    /* devices that share processors are slower than alone, but nothing is ever faster */
    if (rp_trace_origin(check->trace) == RP_TRACE_PREDICTED && rp_task_is_compute(task) &&
        duration_ns < task->duration_ns)
        return fail(check, RP_TASK_NONE, id,
                    "the action took %" G_GINT64_FORMAT " ns, the plan says %" G_GINT64_FORMAT,
                    duration_ns, task->duration_ns);
    return TRUE;
}

/* A measured recompute has no known length: its gradient must only be there before the end. A
 * predicted one may be slower than planned, and so may what comes after it: that takes its planned
 * time at least. */
static gboolean
check_dependency(const TraceCheck *check, RpTaskId id, const RpTask *task,
                 const RpDependency *dependency)
{
    const RpTraceRecord *record = check->records[id - check->first_id];
    gboolean measured = rp_trace_origin(check->trace) == RP_TRACE_MEASURED;
    gboolean late = dependency->phase > 0;
    gint64 ready_ns, passed_ns;

    if (dependency->task < check->first_id)
        return TRUE;
    if (dependency->task - check->first_id >= check->n_tasks)
        return fail(check, RP_TASK_NONE, id, "waits for a task that the plan does not have");
    ready_ns = check->records[dependency->task - check->first_id]->end_ns +
               (measured ? 0 : (gint64)dependency->hop_ns);
    if (measured)
        passed_ns = (late ? record->end_ns : record->start_ns) + check->slack_ns;
    else
        passed_ns = late ? record->end_ns - (task->duration_ns - task->lead_ns) : record->start_ns;
    if (passed_ns < ready_ns)
        return fail(check, dependency->task, id,
                    "the second task ran %" G_GINT64_FORMAT " ns before what it waits for was done",
                    ready_ns - passed_ns);
    return TRUE;
}

static gboolean
check_tasks(const TraceCheck *check)
{
    g_autofree RpTaskId *last = g_new(RpTaskId, rp_plan_n_lanes(check->plan));

    for (guint i = 0; i < rp_plan_n_lanes(check->plan); i++)
        last[i] = RP_TASK_NONE;
    for (gsize i = 0; i < check->n_tasks; i++) {
        RpTaskId id = check->first_id + i;
        const RpTask *task = rp_plan_task(check->plan, id);
        const RpDependency *dependencies = rp_plan_dependencies(check->plan, task);
        const RpTraceRecord *record = check->records[i];
        RpTaskId before;

        if (!check_times(check, id, task, record))
            return FALSE;
        if (task->lane >= rp_plan_n_lanes(check->plan))
            return fail(check, RP_TASK_NONE, id, "the plan has no such lane");
        before = last[task->lane];
        last[task->lane] = id;
        if (before != RP_TASK_NONE &&
            record->start_ns + check->slack_ns < check->records[before - check->first_id]->end_ns)
            return fail(check, before, id, "two tasks of one lane overlap or are out of order");
        for (guint k = 0; k < task->dependency_count; k++)
            if (!check_dependency(check, id, task, &dependencies[k]))
                return FALSE;
    }
    return TRUE;
}

gboolean
rp_verify_trace(const RpPlan *plan, const RpTrace *trace, RpViolation *violation)
{
    TraceCheck check = {
        .plan = plan,
        .trace = trace,
        .violation = violation,
        .first_id = rp_plan_first_id(plan),
        .n_tasks = (gsize)(rp_plan_end_id(plan) - rp_plan_first_id(plan)),
        .slack_ns = rp_trace_origin(trace) == RP_TRACE_MEASURED ? RP_VERIFY_CLOCK_SLACK_NS : 0,
    };
    gboolean correct;

    if (violation != NULL)
        *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
    check.records = g_new0(const RpTraceRecord *, check.n_tasks + 1);
    correct = find_records(&check) && check_tasks(&check);
    g_free(check.records);
    return correct;
}
