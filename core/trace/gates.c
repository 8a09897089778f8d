#include "core/trace/needs.h"

typedef struct {
    const RpTrace *trace;
    const RpTraceRecord **records;
    guint n;
    RpTraceNeeds *needs; /* or %NULL: the plan says it */
    gint64 hop_ns;
    GArray *ends; /* RpTraceEnd */
    /* the task that is looked at */
    guint task;
    guint32 gate; /* so far; RP_NONE */
    gint64 due_ns;
} Search;

static void
offer(Search *search, guint maker, gint64 due_ns)
{
    if (maker == search->task || (search->gate != RP_NONE && due_ns <= search->due_ns))
        return;
    search->gate = maker;
    search->due_ns = due_ns;
}

static void
offer_need(guint maker, gpointer user_data)
{
    Search *search = user_data;
    const RpTraceRecord *task = search->records[search->task], *before = search->records[maker];

    offer(search, maker, before->end_ns + rp_trace_lag_ns(search->hop_ns, before, task));
}

/* Index of the task @id; RP_NONE: it is not in the trace. */
static guint32
find_task(const Search *search, RpTaskId id)
{
    guint low = 0, high = search->n;

    while (low < high) {
        guint middle = low + (high - low) / 2;

        if (search->records[middle]->task < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < search->n && search->records[low]->task == id ? low : RP_NONE;
}

static void
offer_dependencies(Search *search, const RpPlan *plan)
{
    const RpTraceRecord *record = search->records[search->task];

    if (record->task < rp_plan_first_id(plan) || record->task >= rp_plan_end_id(plan))
        return;
    const RpTask *task = rp_plan_task(plan, record->task);
    const RpDependency *dependencies = rp_plan_dependencies(plan, task);

    for (guint k = 0; k < task->dependency_count; k++) {
        const guint32 maker = find_task(search, dependencies[k].task);

        if (maker != RP_NONE)
            offer(search, maker,
                  search->records[maker]->end_ns + dependencies[k].hop_ns -
                      (dependencies[k].phase == 1 ? task->lead_ns : 0));
    }
}

/* A task that ended when this one started: on its device or the host if there is one. */
static void
offer_coincidence(Search *search)
{
    const RpTraceRecord *task = search->records[search->task];
    const guint32 device = rp_trace_lane_device(search->trace, task->lane);
    const guint first = rp_trace_ends_from(search->ends, task->start_ns);
    guint32 far = RP_NONE;

    for (guint i = 0; i < RP_TRACE_MOST_AT_ONCE && first + i < search->ends->len; i++) {
        const RpTraceEnd *end = &g_array_index(search->ends, RpTraceEnd, first + i);
        const RpTraceRecord *other = search->records[end->task];
        const guint32 its = rp_trace_lane_device(search->trace, other->lane);

        if (end->end_ns != task->start_ns)
            break;
        /* a later task may have held the engine; one of no time only follows */
        if (end->task == search->task ||
            (other->task > task->task && other->start_ns == other->end_ns))
            continue;
        if (its == device || its == RP_NONE || device == RP_NONE) {
            offer(search, end->task, end->end_ns);
            return;
        }
        far = far == RP_NONE ? end->task : far;
    }
    if (far != RP_NONE)
        offer(search, far, task->start_ns);
}

static void
search_init(Search *search, const RpTrace *trace, const RpPlan *plan)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    const guint n = (guint)rp_trace_n_records(trace);

    *search = (Search){.trace = trace, .n = n, .hop_ns = rp_trace_hop_ns(trace)};
    search->records = g_new(const RpTraceRecord *, (gsize)n + 1);
    for (guint i = 0; i < n; i++)
        search->records[i] = &records[i];
    search->ends = rp_trace_ends_new(search->records, n);
    if (plan == NULL)
        search->needs = rp_trace_needs_new(trace, search->records, n);
}

guint32 *
rp_trace_gates(const RpTrace *trace, const RpPlan *plan)
{
    const gsize n_lanes = (gsize)rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANES;
    g_autofree guint32 *last = g_new(guint32, n_lanes); /* [lane] the last so far */
    g_autofree const RpTraceRecord **records = NULL;
    Search search;

    search_init(&search, trace, plan);
    records = search.records;
    guint32 *gates = g_new(guint32, (gsize)search.n + 1);

    for (gsize lane = 0; lane < n_lanes; lane++)
        last[lane] = RP_NONE;
    for (guint i = 0; i < search.n; i++) {
        const RpTraceRecord *task = records[i];

        search.task = i;
        search.gate = RP_NONE;
        if (last[task->lane] != RP_NONE)
            offer(&search, last[task->lane], records[last[task->lane]]->end_ns);
        last[task->lane] = i;
        if (plan != NULL)
            offer_dependencies(&search, plan);
        else
            rp_trace_needs_visit(search.needs, i, offer_need, &search);
        if (rp_trace_origin(trace) == RP_TRACE_PREDICTED && task->start_ns > 0 &&
            (search.gate == RP_NONE || search.due_ns < task->start_ns))
            offer_coincidence(&search);
        gates[i] = search.gate;
    }
    g_array_unref(search.ends);
    g_clear_pointer(&search.needs, rp_trace_needs_free);
    return gates;
}
