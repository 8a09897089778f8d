/* Two traces beside each other: the part that is compared, matching, and whether they belong
 * together. */
#include "core/trace/diff-private.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/quote.h"
#include "core/trace/report.h"

/* Results of a comparison of two traces: rankings, sums by kind and stage, names of tasks. */

const RpTrace *
rp_trace_diff_trace(const RpTraceDiff *diff, RpTraceSide side)
{
    return diff->traces[side];
}

guint32
rp_trace_diff_first_iteration(const RpTraceDiff *diff)
{
    return diff->first_iteration;
}

guint32
rp_trace_diff_end_iteration(const RpTraceDiff *diff)
{
    return diff->end_iteration;
}

double
rp_trace_diff_scale(const RpTraceDiff *diff)
{
    return diff->scale;
}

guint64
rp_trace_diff_only(const RpTraceDiff *diff, RpTraceSide side, RpTaskKind kind)
{
    return diff->only[side][kind];
}

const RpTaskPair *
rp_trace_diff_reordered(const RpTraceDiff *diff)
{
    return diff->reordered == G_MAXSIZE ? NULL
                                        : &g_array_index(diff->pairs, RpTaskPair, diff->reordered);
}

const RpTaskPair *
rp_trace_diff_pairs(const RpTraceDiff *diff, gsize *n)
{
    *n = diff->pairs->len;
    return (const RpTaskPair *)(const void *)diff->pairs->data;
}

static gint64
duration_ns(const RpTraceRecord *record)
{
    return record->end_ns - record->start_ns;
}

gint64
rp_task_pair_longer_ns(const RpTaskPair *pair)
{
    return duration_ns(pair->record[1]) - duration_ns(pair->record[0]);
}

static gint64
magnitude(const RpTaskPair *pair, RpTaskRank rank)
{
    return rank == RP_RANK_SLIP ? MAX(0, pair->slip_ns) : ABS(rp_task_pair_longer_ns(pair));
}

/* Keeps the best few sorted: @top is small, a trace may be long. Ties stay in task order. */
GArray *
rp_trace_diff_rank(const RpTraceDiff *diff, RpTaskRank rank, guint top)
{
    GArray *best = g_array_new(FALSE, FALSE, sizeof(RpTaskPair));

    for (guint i = 0; i < diff->pairs->len && top > 0; i++) {
        const RpTaskPair *pair = &g_array_index(diff->pairs, RpTaskPair, i);
        gint64 size = magnitude(pair, rank);
        guint at = best->len;

        if (size == 0 ||
            (at == top && size <= magnitude(&g_array_index(best, RpTaskPair, at - 1), rank)))
            continue;
        while (at > 0 && size > magnitude(&g_array_index(best, RpTaskPair, at - 1), rank))
            at--;
        g_array_insert_vals(best, at, pair, 1);
        if (best->len > top)
            g_array_set_size(best, top);
    }
    return best;
}

static gint
compare_groups(gconstpointer a, gconstpointer b)
{
    const RpTaskGroup *left = a, *right = b;
    gint64 l = ABS(left->total_ns[1] - left->total_ns[0]);
    gint64 r = ABS(right->total_ns[1] - right->total_ns[0]);

    if (l != r)
        return l > r ? -1 : 1;
    if (left->kind != right->kind)
        return left->kind < right->kind ? -1 : 1;
    return (left->stage > right->stage) - (left->stage < right->stage);
}

GArray *
rp_trace_diff_groups(const RpTraceDiff *diff)
{
    GArray *groups = g_array_new(FALSE, FALSE, sizeof(RpTaskGroup));
    g_autoptr(GHashTable) found = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);

    for (guint i = 0; i < diff->pairs->len; i++) {
        const RpTaskPair *pair = &g_array_index(diff->pairs, RpTaskPair, i);
        const RpTraceRecord *task = pair->record[0];
        gint64 key = (gint64)task->kind << 32 | task->stage;
        gpointer place;

        if (!g_hash_table_lookup_extended(found, &key, NULL, &place)) {
            RpTaskGroup group = {.kind = (RpTaskKind)task->kind, .stage = task->stage};

            place = GUINT_TO_POINTER(groups->len);
            g_hash_table_insert(found, g_memdup2(&key, sizeof key), place);
            g_array_append_val(groups, group);
        }
        RpTaskGroup *group = &g_array_index(groups, RpTaskGroup, GPOINTER_TO_UINT(place));
        group->count++;
        for (guint side = 0; side < RP_N_TRACE_SIDES; side++)
            group->total_ns[side] += duration_ns(pair->record[side]);
    }
    g_array_sort(groups, compare_groups);
    return groups;
}

static void
append_number(GString *text, const char *what, guint32 number)
{
    if (number != RP_NONE)
        g_string_append_printf(text, ", %s %u", what, number);
}

char *
rp_trace_describe(const RpTrace *trace, const RpTraceRecord *record)
{
    GString *text = g_string_new(rp_task_kind_name((RpTaskKind)record->kind));
    gboolean overlap = record->kind == RP_TASK_OVERLAP;
    guint32 device = rp_trace_lane_device(trace, record->lane);

    if (record->stage != RP_NONE)
        g_string_append_printf(text, " of stage %u", record->stage);
    append_number(text, "micro-batch", record->micro_batch);
    append_number(text, overlap ? "backward of stage" : "layer", record->layer);
    append_number(text, overlap ? "backward micro-batch" : "chunk", record->chunk);
    if (record->micro_batch == RP_NONE && record->stage != RP_NONE)
        g_string_append_printf(text, ", round %u", record->round);
    g_string_append_printf(text, ", iteration %u on ", record->iteration);
    if (device == RP_NONE)
        g_string_append(text, "the host");
    else
        g_string_append_printf(text, "gpu %u", device);
    return g_string_free(text, FALSE);
}

G_DEFINE_QUARK(rp_trace_diff_error, rp_trace_diff_error)

#define FIELDS 7

typedef struct {
    const char *const *names;
    GError **error;
} Complaint;

static gboolean mismatch(const Complaint *complaint, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
mismatch(const Complaint *complaint, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(complaint->error, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_MISMATCH,
                   "the traces do not belong together: %s", text);
}

static gboolean
is_action(const RpTraceRecord *record)
{
    return record->kind <= RP_TASK_OVERLAP;
}

/* ---- the compared part ---- */

/* Iterations [first, end) of the actions. */
static void
iterations_of(const RpTrace *trace, guint32 *first, guint32 *end)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);

    *first = G_MAXUINT32;
    *end = 0;
    for (gsize i = 0; i < n; i++) {
        if (!is_action(&records[i]))
            continue;
        *first = MIN(*first, records[i].iteration);
        *end = MAX(*end, records[i].iteration + 1);
    }
}

static gboolean
choose_iterations(RpTraceDiff *diff, const RpTrace *const *traces, const char *const *names,
                  const RpTraceDiffOptions *options, GError **error)
{
    guint32 first[RP_N_TRACE_SIDES], end[RP_N_TRACE_SIDES];

    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        iterations_of(traces[side], &first[side], &end[side]);
        if (end[side] == 0)
            return rp_fail(error, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ITERATIONS,
                           "%s: expected compute actions, found none", names[side]);
        if (options->end_iteration > 0 &&
            (options->first_iteration < first[side] || options->end_iteration > end[side] ||
             options->first_iteration >= options->end_iteration))
            return rp_fail(error, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ITERATIONS,
                           "expected iterations of %s, which has %u:%u, found %u:%u", names[side],
                           first[side], end[side], options->first_iteration,
                           options->end_iteration);
    }
    diff->first_iteration = MAX(first[0], first[1]);
    diff->end_iteration = MIN(end[0], end[1]);
    if (diff->first_iteration >= diff->end_iteration)
        return rp_fail(error, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ITERATIONS,
                       "no iteration in common: %s has %u to %u, %s has %u to %u", names[0],
                       first[0], end[0] - 1, names[1], first[1], end[1] - 1);
    if (options->end_iteration > 0) {
        diff->first_iteration = options->first_iteration;
        diff->end_iteration = options->end_iteration;
    }
    return TRUE;
}

static gint64
scaled(gint64 ns, double scale)
{
    return scale == 1 ? ns : (gint64)llround((double)ns / scale);
}

/* Copies the iterations, from the start of their first action on. */
static RpTrace *
part_of(const RpTraceDiff *diff, const RpTrace *trace, double scale)
{
    RpTrace *part = rp_trace_new_empty(rp_trace_gpus(trace), rp_trace_origin(trace));
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    gint64 origin_ns = G_MAXINT64;

    rp_trace_set_dispatched(part, rp_trace_dispatched(trace));
    for (gsize i = 0; i < n; i++)
        if (is_action(&records[i]) && records[i].iteration >= diff->first_iteration &&
            records[i].iteration < diff->end_iteration)
            origin_ns = MIN(origin_ns, records[i].start_ns);
    for (gsize i = 0; i < n; i++) {
        RpTraceRecord record = records[i];

        if (record.iteration < diff->first_iteration || record.iteration >= diff->end_iteration)
            continue;
        record.start_ns = scaled(record.start_ns - origin_ns, scale);
        record.end_ns = scaled(record.end_ns - origin_ns, scale);
        record.transfer_ns = scaled(record.transfer_ns, scale);
        rp_trace_append(part, &record);
    }
    return part;
}

/* Both have actions in the iterations, but @traces may lack some in between. */
static void
take_parts(RpTraceDiff *diff, const RpTrace *const *traces, double scale)
{
    diff->scale = scale > 0 ? scale : 1;
    diff->traces[0] = part_of(diff, traces[0], 1);
    diff->traces[1] = part_of(diff, traces[1], diff->scale);
    if (scale > 0)
        return;
    gint64 first_ns = rp_report_bubble(diff->traces[0]).busy_ns;
    gint64 second_ns = rp_report_bubble(diff->traces[1]).busy_ns;
    if (first_ns <= 0 || second_ns <= 0)
        return;
    diff->scale = (double)second_ns / (double)first_ns;
    rp_trace_free(diff->traces[1]);
    diff->traces[1] = part_of(diff, traces[1], diff->scale);
}

/* ---- matching ---- */

static int
compare_keys(const RpTraceRecord *a, const RpTraceRecord *b)
{
    const guint32 left[FIELDS] = {a->kind,  a->iteration, a->stage, a->micro_batch,
                                  a->round, a->layer,     a->chunk};
    const guint32 right[FIELDS] = {b->kind,  b->iteration, b->stage, b->micro_batch,
                                   b->round, b->layer,     b->chunk};

    for (guint i = 0; i < FIELDS; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

/* Repeated ones in the order of their ids. */
static int
compare_records(const void *a, const void *b)
{
    const RpTraceRecord *left = *(const RpTraceRecord *const *)a;
    const RpTraceRecord *right = *(const RpTraceRecord *const *)b;
    int order = compare_keys(left, right);

    return order != 0 ? order : (left->task > right->task) - (left->task < right->task);
}

static int
compare_pairs(const void *a, const void *b)
{
    RpTaskId left = ((const RpTaskPair *)a)->record[0]->task;
    RpTaskId right = ((const RpTaskPair *)b)->record[0]->task;

    return (left > right) - (left < right);
}

static const RpTraceRecord **
by_key(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    const RpTraceRecord **sorted = g_new(const RpTraceRecord *, n + 1);

    for (gsize i = 0; i < n; i++)
        sorted[i] = &records[i];
    qsort(sorted, n, sizeof *sorted, compare_records);
    return sorted;
}

/* Counts a task that only one has; remembers the earliest action. */
static void
leave_alone(RpTraceDiff *diff, RpTraceSide side, const RpTraceRecord *record,
            const RpTraceRecord *lonely[RP_N_TRACE_SIDES])
{
    diff->only[side][record->kind]++;
    if (is_action(record) && (lonely[side] == NULL || record->task < lonely[side]->task))
        lonely[side] = record;
}

/* @lonely: (out): the first action of each side that the other lacks */
static void
match(RpTraceDiff *diff, const RpTraceRecord *lonely[RP_N_TRACE_SIDES])
{
    gsize n[RP_N_TRACE_SIDES] = {rp_trace_n_records(diff->traces[0]),
                                 rp_trace_n_records(diff->traces[1])};
    g_autofree const RpTraceRecord **first = by_key(diff->traces[0]);
    g_autofree const RpTraceRecord **second = by_key(diff->traces[1]);
    gsize i = 0, k = 0;

    diff->pairs = g_array_new(FALSE, TRUE, sizeof(RpTaskPair));
    while (i < n[0] || k < n[1]) {
        int order = i == n[0] ? 1 : k == n[1] ? -1 : compare_keys(first[i], second[k]);

        if (order < 0) {
            leave_alone(diff, RP_TRACE_FIRST, first[i++], lonely);
        } else if (order > 0) {
            leave_alone(diff, RP_TRACE_SECOND, second[k++], lonely);
        } else {
            RpTaskPair pair = {.record = {first[i++], second[k++]}};

            g_array_append_val(diff->pairs, pair);
        }
    }
    qsort(diff->pairs->data, diff->pairs->len, sizeof(RpTaskPair), compare_pairs);
}

/* ---- whether they belong together ---- */

static guint32
count_stages(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    guint32 stages = 0;

    for (gsize i = 0; i < n; i++)
        if (is_action(&records[i]) && records[i].stage != RP_NONE)
            stages = MAX(stages, records[i].stage + 1);
    return stages;
}

static gboolean
check_heads(const Complaint *complaint, const RpTrace *const *traces)
{
    const char *const *names = complaint->names;
    static const char *const ways[] = {"bound to devices", "dispatched"};

    if (rp_trace_gpus(traces[0]) != rp_trace_gpus(traces[1]))
        return mismatch(complaint, "%s has %u devices, %s has %u", names[0],
                        rp_trace_gpus(traces[0]), names[1], rp_trace_gpus(traces[1]));
    if (rp_trace_dispatched(traces[0]) != rp_trace_dispatched(traces[1]))
        return mismatch(complaint, "stages are %s in %s, %s in %s",
                        ways[rp_trace_dispatched(traces[0]) ? 1 : 0], names[0],
                        ways[rp_trace_dispatched(traces[1]) ? 1 : 0], names[1]);
    return TRUE;
}

static gboolean
check_actions(const RpTraceDiff *diff, const Complaint *complaint,
              const RpTraceRecord *const *lonely)
{
    const char *const *names = complaint->names;
    guint32 stages[RP_N_TRACE_SIDES] = {count_stages(diff->traces[0]),
                                        count_stages(diff->traces[1])};

    if (stages[0] != stages[1])
        return mismatch(complaint, "%s has %u stages, %s has %u", names[0], stages[0], names[1],
                        stages[1]);
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        if (lonely[side] == NULL)
            continue;
        g_autofree char *what = rp_trace_describe(diff->traces[side], lonely[side]);

        return mismatch(complaint, "%s has the %s, %s has not", names[side], what, names[1 - side]);
    }
    for (guint i = 0; i < diff->pairs->len; i++) {
        const RpTaskPair *pair = &g_array_index(diff->pairs, RpTaskPair, i);

        if (!is_action(pair->record[0]) || pair->record[0]->lane == pair->record[1]->lane)
            continue;
        g_autofree char *what = rp_trace_describe(diff->traces[0], pair->record[0]);
        return mismatch(complaint, "%s has the %s, %s has it on gpu %u", names[0], what, names[1],
                        rp_trace_lane_device(diff->traces[1], pair->record[1]->lane));
    }
    return TRUE;
}

/* Parameters that a stage moves: chunks may be cut otherwise, their sum is the stage's. */
static guint64 *
parameter_bytes(const RpTrace *trace, guint32 stages)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    guint64 *bytes = g_new0(guint64, (gsize)stages + 1);

    for (gsize i = 0; i < n; i++)
        if (records[i].kind == RP_TASK_PARAMETER_UPLOAD && records[i].stage < stages)
            bytes[records[i].stage] += records[i].bytes;
    return bytes;
}

static gboolean
check_parameters(const RpTraceDiff *diff, const Complaint *complaint)
{
    guint32 stages = count_stages(diff->traces[0]);
    g_autofree guint64 *first = parameter_bytes(diff->traces[0], stages);
    g_autofree guint64 *second = parameter_bytes(diff->traces[1], stages);
    guint64 sums[RP_N_TRACE_SIDES] = {0};

    for (guint32 s = 0; s < stages; s++) {
        sums[0] += first[s];
        sums[1] += second[s];
    }
    if (sums[0] == 0 || sums[1] == 0)
        return TRUE; /* a trace without transfers says nothing of them */
    for (guint32 s = 0; s < stages; s++)
        if (first[s] != second[s])
            return mismatch(complaint,
                            "stage %u uploads %" G_GUINT64_FORMAT
                            " bytes of parameters in %s, %" G_GUINT64_FORMAT " in %s",
                            s, first[s], complaint->names[0], second[s], complaint->names[1]);
    return TRUE;
}

static void
find_reordered(RpTraceDiff *diff)
{
    guint gpus = rp_trace_gpus(diff->traces[0]);
    g_autofree const RpTraceRecord **last =
        g_new0(const RpTraceRecord *, (gsize)gpus *RP_LANES_PER_DEVICE + RP_HOST_LANES);

    diff->reordered = G_MAXSIZE;
    for (guint i = 0; i < diff->pairs->len && diff->reordered == G_MAXSIZE; i++) {
        const RpTraceRecord *second = g_array_index(diff->pairs, RpTaskPair, i).record[1];

        if (!is_action(second))
            continue;
        if (last[second->lane] != NULL && second->task < last[second->lane]->task)
            diff->reordered = i;
        last[second->lane] = second;
    }
}

RpTraceDiff *
rp_trace_diff_new(const RpTrace *const traces[RP_N_TRACE_SIDES],
                  const char *const names[RP_N_TRACE_SIDES], const RpTraceDiffOptions *options,
                  GError **error)
{
    g_autoptr(RpTraceDiff) diff = g_new0(RpTraceDiff, 1);
    const RpTraceRecord *lonely[RP_N_TRACE_SIDES] = {NULL, NULL};
    const Complaint complaint = {names, error};

    if (rp_trace_origin(traces[0]) == RP_TRACE_MEASURED &&
        rp_trace_origin(traces[1]) == RP_TRACE_PREDICTED)
        return rp_null(
            rp_fail(error, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ORIGIN,
                    "expected the predicted trace first, but %s is measured and %s predicted",
                    names[0], names[1]));
    if (!check_heads(&complaint, traces) || !choose_iterations(diff, traces, names, options, error))
        return NULL;
    take_parts(diff, traces, options->scale);
    match(diff, lonely);
    if (!check_actions(diff, &complaint, lonely) || !check_parameters(diff, &complaint))
        return NULL;
    find_reordered(diff);
    rp_trace_diff_find_slips(diff);
    return g_steal_pointer(&diff);
}

void
rp_trace_diff_free(RpTraceDiff *diff)
{
    if (diff == NULL)
        return;
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++)
        rp_trace_free(diff->traces[side]);
    if (diff->pairs != NULL)
        g_array_unref(diff->pairs);
    g_free(diff);
}
