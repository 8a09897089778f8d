/* Values lie sorted, with the task that makes each. */
#include "core/trace/needs.h"

#include <stdlib.h>

struct _RpTraceNeeds {
    const RpTrace *trace;
    const RpTraceRecord *const *records;
    GArray *values; /* RpTaskValue, sorted */
};

static void
make(RpTraceNeeds *needs, RpValueKind kind, guint maker, guint32 number, guint32 place)
{
    RpTaskValue value = {kind, needs->records[maker]->iteration, number, place, maker};

    g_array_append_val(needs->values, value);
}

static void
add_values(RpTraceNeeds *needs, guint i)
{
    const RpTraceRecord *task = needs->records[i];

    switch ((RpTaskKind)task->kind) {
    case RP_TASK_FORWARD:
        make(needs, RP_VALUE_FORWARD, i, task->micro_batch, task->stage);
        break;
    case RP_TASK_BACKWARD:
    case RP_TASK_FUSED:
    case RP_TASK_INPUT_GRADIENT:
        make(needs, RP_VALUE_BACKWARD, i, task->micro_batch, task->stage);
        break;
    case RP_TASK_OVERLAP: /* layer and chunk are the backward part's stage and micro-batch */
        make(needs, RP_VALUE_FORWARD, i, task->micro_batch, task->stage);
        make(needs, RP_VALUE_BACKWARD, i, task->chunk, task->layer);
        break;
    case RP_TASK_ACTIVATION_DOWNLOAD:
        make(needs, RP_VALUE_ACTIVATION, i, task->micro_batch, task->layer);
        break;
    case RP_TASK_ACTGRAD_DOWNLOAD:
        make(needs, RP_VALUE_GRADIENT, i, task->micro_batch, task->layer);
        break;
    case RP_TASK_SAVED_DOWNLOAD:
        make(needs, RP_VALUE_SAVED, i, task->micro_batch, task->layer);
        break;
    case RP_TASK_ACTIVATION_UPLOAD:
        make(needs, RP_VALUE_FORWARD_INPUT, i, task->micro_batch, task->stage);
        break;
    case RP_TASK_STASH_UPLOAD:
    case RP_TASK_ACTGRAD_UPLOAD:
    case RP_TASK_SAVED_UPLOAD:
        make(needs, RP_VALUE_BACKWARD_INPUT, i, task->micro_batch, task->stage);
        break;
    case RP_TASK_PARAMETER_UPLOAD:
        make(needs, RP_VALUE_PARAMETERS, i, task->round, task->stage);
        break;
    case RP_TASK_GRADIENT_DOWNLOAD:
        make(needs, RP_VALUE_STAGE_GRADIENTS, i, task->round, task->stage);
        break;
    default:
        break;
    }
}

static int
compare_places(const RpTaskValue *a, const RpTaskValue *b)
{
    const guint32 left[] = {a->kind, a->iteration, a->number, a->place};
    const guint32 right[] = {b->kind, b->iteration, b->number, b->place};

    for (guint i = 0; i < G_N_ELEMENTS(left); i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

static int
compare_values(const void *a, const void *b)
{
    const RpTaskValue *left = a, *right = b;
    int order = compare_places(left, right);

    return order != 0 ? order : (left->maker > right->maker) - (left->maker < right->maker);
}

RpTraceNeeds *
rp_trace_needs_new(const RpTrace *trace, const RpTraceRecord *const *records, guint n)
{
    RpTraceNeeds *needs = g_new(RpTraceNeeds, 1);

    *needs = (RpTraceNeeds){trace, records, g_array_new(FALSE, FALSE, sizeof(RpTaskValue))};
    for (guint i = 0; i < n; i++)
        add_values(needs, i);
    qsort(needs->values->data, needs->values->len, sizeof(RpTaskValue), compare_values);
    return needs;
}

void
rp_trace_needs_free(RpTraceNeeds *needs)
{
    g_array_unref(needs->values);
    g_free(needs);
}

const RpTaskValue *
rp_trace_needs_find(const RpTraceNeeds *needs, const RpTaskValue *wanted, guint *n)
{
    const RpTaskValue *values = (const RpTaskValue *)(const void *)needs->values->data;
    guint low = 0, high = needs->values->len;

    while (low < high) {
        guint middle = low + (high - low) / 2;

        if (compare_places(&values[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*n = 0; low + *n < needs->values->len; (*n)++)
        if (compare_places(&values[low + *n], wanted) != 0)
            break;
    return values + low;
}

/* ---- needs of a task ---- */

typedef struct {
    const RpTraceNeeds *needs;
    const RpTraceRecord *task;
    RpTraceNeed call;
    gpointer user_data;
} Visit;

static void
need(const Visit *visit, RpValueKind kind, guint32 number, guint32 place)
{
    const RpTaskValue wanted = {kind, visit->task->iteration, number, place, 0};
    guint n;
    const RpTaskValue *values = rp_trace_needs_find(visit->needs, &wanted, &n);

    for (guint i = 0; i < n; i++)
        /* a repeated upload may be for a later task */
        if (visit->needs->records[values[i].maker]->task < visit->task->task)
            visit->call(values[i].maker, visit->user_data);
}

static void
need_forward(const Visit *visit, guint32 stage, guint32 micro_batch)
{
    if (stage > 0)
        need(visit, RP_VALUE_FORWARD, micro_batch, stage - 1);
    need(visit, RP_VALUE_FORWARD_INPUT, micro_batch, stage);
    need(visit, RP_VALUE_PARAMETERS, visit->task->round, stage);
}

static void
need_backward(const Visit *visit, guint32 stage, guint32 micro_batch)
{
    if (!rp_trace_dispatched(visit->needs->trace)) {
        need(visit, RP_VALUE_BACKWARD, micro_batch, stage + 1);
        need(visit, RP_VALUE_FORWARD, micro_batch, stage);
    } else if (stage > 0) {
        need(visit, RP_VALUE_BACKWARD, micro_batch, stage - 1);
    }
    need(visit, RP_VALUE_BACKWARD_INPUT, micro_batch, stage);
    need(visit, RP_VALUE_PARAMETERS, visit->task->round, stage);
}

static void
add_needs(const Visit *visit)
{
    const RpTraceRecord *task = visit->task;

    switch ((RpTaskKind)task->kind) {
    case RP_TASK_FORWARD:
    case RP_TASK_FUSED:
        need_forward(visit, task->stage, task->micro_batch);
        break;
    case RP_TASK_BACKWARD:
    case RP_TASK_INPUT_GRADIENT:
        need_backward(visit, task->stage, task->micro_batch);
        break;
    case RP_TASK_OVERLAP:
        need_forward(visit, task->stage, task->micro_batch);
        need_backward(visit, task->layer, task->chunk);
        break;
    case RP_TASK_WEIGHT_GRADIENT:
    case RP_TASK_ACTGRAD_DOWNLOAD:
        need(visit, RP_VALUE_BACKWARD, task->micro_batch, task->stage);
        break;
    case RP_TASK_ACTIVATION_DOWNLOAD:
    case RP_TASK_SAVED_DOWNLOAD:
        need(visit, RP_VALUE_FORWARD, task->micro_batch, task->stage);
        break;
    case RP_TASK_ACTIVATION_UPLOAD:
    case RP_TASK_STASH_UPLOAD:
        need(visit, RP_VALUE_ACTIVATION, task->micro_batch, task->layer);
        break;
    case RP_TASK_ACTGRAD_UPLOAD:
        need(visit, RP_VALUE_GRADIENT, task->micro_batch, task->layer);
        break;
    case RP_TASK_SAVED_UPLOAD:
        need(visit, RP_VALUE_SAVED, task->micro_batch, task->layer);
        break;
    case RP_TASK_GRADIENT_ACCUMULATE:
        /* it adds at most one of each device's */
        for (guint32 n = 0; n < rp_trace_gpus(visit->needs->trace) && n < task->round; n++)
            need(visit, RP_VALUE_STAGE_GRADIENTS, task->round - n, task->stage);
        break;
    default:
        break;
    }
}

void
rp_trace_needs_visit(const RpTraceNeeds *needs, guint i, RpTraceNeed visit, gpointer user_data)
{
    const Visit asked = {needs, needs->records[i], visit, user_data};

    add_needs(&asked);
}

gint64
rp_trace_hop_ns(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    gint64 hop_ns = 0;

    for (gsize i = 0; i < n; i++) {
        if (records[i].kind >= RP_TASK_ACTIVATION_DOWNLOAD && records[i].kind < RP_TASK_BARRIER)
            return 0;
        hop_ns = MAX(hop_ns, records[i].transfer_ns);
    }
    return hop_ns;
}

gint64
rp_trace_lag_ns(gint64 hop_ns, const RpTraceRecord *before, const RpTraceRecord *task)
{
    const gboolean hops = before->lane != task->lane && task->kind <= RP_TASK_OVERLAP &&
                          before->kind <= RP_TASK_OVERLAP;

    return MIN(hops ? hop_ns : 0, task->start_ns - before->end_ns);
}

/* ---- ends ---- */

static gint
compare_ends(gconstpointer a, gconstpointer b)
{
    const RpTraceEnd *left = a, *right = b;

    if (left->end_ns != right->end_ns)
        return left->end_ns < right->end_ns ? -1 : 1;
    return (left->task > right->task) - (left->task < right->task);
}

GArray *
rp_trace_ends_new(const RpTraceRecord *const *records, guint n)
{
    GArray *ends = g_array_sized_new(FALSE, FALSE, sizeof(RpTraceEnd), n);

    for (guint i = 0; i < n; i++) {
        const RpTraceEnd end = {records[i]->end_ns, i};

        g_array_append_val(ends, end);
    }
    g_array_sort(ends, compare_ends);
    return ends;
}

guint
rp_trace_ends_from(const GArray *ends, gint64 time_ns)
{
    guint low = 0, high = ends->len;

    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (g_array_index(ends, RpTraceEnd, middle).end_ns < time_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
