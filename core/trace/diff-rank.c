/* Results of a comparison of two traces: rankings, sums by kind and stage, names of tasks. */
#include "core/trace/diff-private.h"

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
