/* The report of `roundpipe diff`, for people and for machines. */
#include "cli/reports/diff.h"

#include <stdio.h>

#include "cli/reports/result.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/trace/report.h"
#include "plots/figure.h"

#define MOST_GROUPS 15
#define N_LANE_KINDS (RP_LANES_PER_DEVICE + RP_HOST_LANES)

/* Of single tasks, where a microsecond tells something. */
static const RpTimeUnit milliseconds = {"ms", 1};

/* What is known of one side as a whole. */
typedef struct {
    RpBubble bubble;
    gint64 busy_ns[N_LANE_KINDS]; /* all lanes of a kind */
} Side;

static void
measure(const RpTrace *trace, Side *side)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);

    *side = (Side){.bubble = rp_report_bubble(trace)};
    for (gsize i = 0; i < n; i++)
        side->busy_ns[rp_trace_lane_kind(trace, records[i].lane)] +=
            records[i].end_ns - records[i].start_ns;
}

static void
measure_both(const RpTraceDiff *diff, Side sides[RP_N_TRACE_SIDES])
{
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++)
        measure(rp_trace_diff_trace(diff, (RpTraceSide)i), &sides[i]);
}

static const char *
origin_name(const RpTraceDiff *diff, RpTraceSide side)
{
    return rp_trace_origin(rp_trace_diff_trace(diff, side)) == RP_TRACE_MEASURED ? "measured"
                                                                                 : "predicted";
}

/* ---- for people ---- */

static void
print_head(const RpDiffReport *report)
{
    const RpTraceDiff *diff = report->diff;
    guint first = rp_trace_diff_first_iteration(diff), end = rp_trace_diff_end_iteration(diff);
    gsize n;

    (void)rp_trace_diff_pairs(diff, &n);
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++) {
        g_autofree char *file = rp_display_name(report->files[i]);

        printf("%-9s  %s (%s)\n", rp_diff_label(diff, (RpTraceSide)i), file,
               origin_name(diff, (RpTraceSide)i));
    }
    printf("iteration%s %u", end - first == 1 ? "" : "s", first);
    if (end - first > 1)
        printf(" to %u", end - 1);
    printf(", %" G_GSIZE_FORMAT " tasks in both, times from the first action", n);
    if (report->scaled)
        printf(", those of %s divided by %.9g", rp_diff_label(diff, RP_TRACE_SECOND),
               rp_trace_diff_scale(diff));
    puts("\n");
}

static RpCliTable *
new_table(const RpTraceDiff *diff, const char *const *before, const char *const *after)
{
    g_autoptr(GPtrArray) columns = g_ptr_array_new_with_free_func(g_free);

    for (; *before != NULL; before++)
        g_ptr_array_add(columns, g_strdup(*before));
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++)
        g_ptr_array_add(columns, g_strdup(rp_diff_label(diff, (RpTraceSide)i)));
    for (; *after != NULL; after++)
        g_ptr_array_add(columns, g_strdup(*after));
    g_ptr_array_add(columns, NULL);
    return rp_cli_table_new((const char *const *)columns->pdata);
}

static void
add_times(RpCliTable *table, const RpTimeUnit *unit, gint64 first_ns, gint64 second_ns)
{
    rp_cli_table_add(table, "%.3f", rp_ms_from_ns(first_ns) * unit->per_ms);
    rp_cli_table_add(table, "%.3f", rp_ms_from_ns(second_ns) * unit->per_ms);
    rp_cli_table_add(table, "%+.3f", rp_ms_from_ns(second_ns - first_ns) * unit->per_ms);
}

/* Of the first, in percent. */
static void
add_relative(RpCliTable *table, gint64 first_ns, gint64 second_ns)
{
    if (first_ns > 0)
        rp_cli_table_add(table, "%+.2f %%", 100 * ((double)second_ns / (double)first_ns - 1));
    else
        rp_cli_table_add(table, "-");
}

static void
add_share(RpCliTable *table, const char *label, double first, double second)
{
    rp_cli_table_add(table, "%s", label);
    rp_cli_table_add(table, "%.3f", 100 * first);
    rp_cli_table_add(table, "%.3f", 100 * second);
    rp_cli_table_add(table, "%+.3f", 100 * (second - first));
    rp_cli_table_add(table, "%s", "");
}

static void
print_totals(const RpTraceDiff *diff)
{
    static const char *const before[] = {"<", NULL}, *const after[] = {"difference", "", NULL};
    g_autoptr(RpCliTable) table = new_table(diff, before, after);
    Side sides[RP_N_TRACE_SIDES];
    const RpBubble *first = &sides[0].bubble, *second = &sides[1].bubble;

    measure_both(diff, sides);
    const RpTimeUnit unit = rp_time_unit(MAX(first->makespan_ns, second->makespan_ns));

    rp_cli_table_add(table, "makespan, %s", unit.name);
    add_times(table, &unit, first->makespan_ns, second->makespan_ns);
    add_relative(table, first->makespan_ns, second->makespan_ns);
    add_share(table, "bubble ratio, %", first->ratio, second->ratio);
    add_share(table, "  fill", first->fill, second->fill);
    add_share(table, "  switch", first->switch_, second->switch_);
    add_share(table, "  drain", first->drain, second->drain);
    add_share(table, "  intra", first->intra, second->intra);
    for (guint kind = 0; kind < N_LANE_KINDS; kind++) {
        gint64 first_ns = sides[0].busy_ns[kind], second_ns = sides[1].busy_ns[kind];

        if (first_ns == 0 && second_ns == 0)
            continue;
        rp_cli_table_add(table, "busy %s, %s", rp_lane_name(kind), unit.name);
        add_times(table, &unit, first_ns, second_ns);
        add_relative(table, first_ns, second_ns);
    }
    rp_cli_table_print(table);
}

static void
print_groups(const RpTraceDiff *diff)
{
    static const char *const before[] = {"<kind", "stage", "tasks", NULL};
    static const char *const after[] = {"ratio", "difference in all", NULL};
    g_autoptr(GArray) groups = rp_trace_diff_groups(diff);
    g_autoptr(RpCliTable) table = new_table(diff, before, after);
    guint n = MIN(groups->len, MOST_GROUPS);

    for (guint i = 0; i < n; i++) {
        const RpTaskGroup *group = &g_array_index(groups, RpTaskGroup, i);
        double count = (double)group->count;

        rp_cli_table_add(table, "%s", rp_task_kind_name(group->kind));
        if (group->stage == RP_NONE)
            rp_cli_table_add(table, "-");
        else
            rp_cli_table_add(table, "%u", group->stage);
        rp_cli_table_add(table, "%" G_GUINT64_FORMAT, group->count);
        for (guint side = 0; side < RP_N_TRACE_SIDES; side++)
            rp_cli_table_add(table, "%.3f", rp_ms_from_ns(group->total_ns[side]) / count);
        if (group->total_ns[0] > 0)
            rp_cli_table_add(table, "%.4f",
                             (double)group->total_ns[1] / (double)group->total_ns[0]);
        else
            rp_cli_table_add(table, "-");
        rp_cli_table_add(table, "%+.3f", rp_ms_from_ns(group->total_ns[1] - group->total_ns[0]));
    }
    printf("\nMean durations by kind and stage, ms: the largest differences in all, %u of %u\n", n,
           groups->len);
    rp_cli_table_print(table);
}

static void
print_ranking(const RpDiffReport *report, RpTaskRank rank)
{
    static const char *const before[] = {"<task", NULL};
    static const char *const longer[] = {"difference", NULL};
    static const char *const later[] = {"difference", "slip", NULL};
    const RpTraceDiff *diff = report->diff;
    g_autoptr(GArray) pairs = rp_trace_diff_rank(diff, rank, report->top);
    gboolean slips = rank == RP_RANK_SLIP;
    g_autoptr(RpCliTable) table = new_table(diff, before, slips ? later : longer);

    for (guint i = 0; i < pairs->len; i++) {
        const RpTaskPair *pair = &g_array_index(pairs, RpTaskPair, i);
        const RpTraceRecord *first = pair->record[0], *second = pair->record[1];
        g_autofree char *name = rp_trace_describe(rp_trace_diff_trace(diff, RP_TRACE_FIRST), first);

        rp_cli_table_add(table, "%s", name);
        if (slips)
            add_times(table, &milliseconds, first->start_ns, second->start_ns);
        else
            add_times(table, &milliseconds, first->end_ns - first->start_ns,
                      second->end_ns - second->start_ns);
        if (slips)
            rp_cli_table_add(table, "%+.3f", rp_ms_from_ns(pair->slip_ns));
    }
    printf("\n%s\n", slips ? "Latest starts beyond what their own predecessors explain (slip), ms"
                           : "Largest differences of duration, ms");
    if (pairs->len > 0)
        rp_cli_table_print(table);
    else
        puts("none");
}

static void
print_notes(const RpTraceDiff *diff)
{
    const RpTaskPair *reordered = rp_trace_diff_reordered(diff);

    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        g_autoptr(GString) text = g_string_new(NULL);

        for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
            guint64 n = rp_trace_diff_only(diff, (RpTraceSide)side, (RpTaskKind)kind);

            if (n > 0)
                g_string_append_printf(text, "%s%" G_GUINT64_FORMAT " %s",
                                       text->len > 0 ? ", " : "", n,
                                       rp_task_kind_name((RpTaskKind)kind));
        }
        if (text->len > 0)
            printf("\nnote: tasks that only %s has: %s\n", rp_diff_label(diff, (RpTraceSide)side),
                   text->str);
    }
    if (reordered != NULL) {
        g_autofree char *name =
            rp_trace_describe(rp_trace_diff_trace(diff, RP_TRACE_FIRST), reordered->record[0]);

        printf("\nnote: %s runs actions in another order, the first of them the %s\n",
               rp_diff_label(diff, RP_TRACE_SECOND), name);
    }
}

void
rp_diff_print(const RpDiffReport *report)
{
    print_head(report);
    print_totals(report->diff);
    print_groups(report->diff);
    print_ranking(report, RP_RANK_DURATION);
    print_ranking(report, RP_RANK_SLIP);
    print_notes(report->diff);
}

/* ---- for machines ---- */

static const char *const keys[RP_N_TRACE_SIDES] = {"first", "second"};

static void
json_side(RpJsonWriter *json, const RpDiffReport *report, RpTraceSide i, const Side *side)
{
    g_autofree char *file = g_utf8_make_valid(report->files[i], -1);

    rp_json_object(json, keys[i]);
    rp_json_string(json, "file", file);
    rp_json_string(json, "origin", origin_name(report->diff, i));
    rp_json_double(json, "makespan_ms", rp_ms_from_ns(side->bubble.makespan_ns), 6);
    rp_json_bubble(json, &side->bubble);
    rp_json_object(json, "busy_ms");
    for (guint kind = 0; kind < N_LANE_KINDS; kind++)
        rp_json_double(json, rp_lane_name(kind), rp_ms_from_ns(side->busy_ns[kind]), 6);
    rp_json_end(json);
    rp_json_object(json, "only");
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        guint64 n = rp_trace_diff_only(report->diff, i, (RpTaskKind)kind);

        if (n > 0)
            rp_json_int(json, rp_task_kind_name((RpTaskKind)kind), (gint64)n);
    }
    rp_json_end(json);
    rp_json_end(json);
}

static void
json_difference(RpJsonWriter *json, const Side sides[RP_N_TRACE_SIDES])
{
    const RpBubble *first = &sides[0].bubble, *second = &sides[1].bubble;
    const RpBubble difference = {
        .ratio = second->ratio - first->ratio,
        .fill = second->fill - first->fill,
        .switch_ = second->switch_ - first->switch_,
        .drain = second->drain - first->drain,
        .intra = second->intra - first->intra,
        .comm_exposed = second->comm_exposed - first->comm_exposed,
    };

    rp_json_object(json, "difference");
    rp_json_double(json, "makespan_ms", rp_ms_from_ns(second->makespan_ns - first->makespan_ns), 6);
    rp_json_bubble(json, &difference);
    rp_json_object(json, "busy_ms");
    for (guint kind = 0; kind < N_LANE_KINDS; kind++)
        rp_json_double(json, rp_lane_name(kind),
                       rp_ms_from_ns(sides[1].busy_ns[kind] - sides[0].busy_ns[kind]), 6);
    rp_json_end(json);
    rp_json_end(json);
}

static void
json_index(RpJsonWriter *json, const char *key, guint32 value)
{
    if (value != RP_NONE)
        rp_json_int(json, key, value);
}

static void
json_groups(RpJsonWriter *json, const RpTraceDiff *diff)
{
    g_autoptr(GArray) groups = rp_trace_diff_groups(diff);

    rp_json_array(json, "groups");
    for (guint i = 0; i < groups->len; i++) {
        const RpTaskGroup *group = &g_array_index(groups, RpTaskGroup, i);
        double count = (double)group->count;

        rp_json_object(json, NULL);
        rp_json_string(json, "kind", rp_task_kind_name(group->kind));
        json_index(json, "stage", group->stage);
        rp_json_int(json, "tasks", (gint64)group->count);
        rp_json_double(json, "first_mean_ms", rp_ms_from_ns(group->total_ns[0]) / count, 6);
        rp_json_double(json, "second_mean_ms", rp_ms_from_ns(group->total_ns[1]) / count, 6);
        if (group->total_ns[0] > 0)
            rp_json_double(json, "ratio", (double)group->total_ns[1] / (double)group->total_ns[0],
                           9);
        rp_json_double(json, "difference_ms",
                       rp_ms_from_ns(group->total_ns[1] - group->total_ns[0]), 6);
        rp_json_end(json);
    }
    rp_json_end(json);
}

static void
json_task(RpJsonWriter *json, const RpTraceDiff *diff, const RpTaskPair *pair)
{
    const RpTraceRecord *task = pair->record[0];
    const RpTrace *trace = rp_trace_diff_trace(diff, RP_TRACE_FIRST);
    gboolean overlap = task->kind == RP_TASK_OVERLAP;

    rp_json_object(json, NULL);
    rp_json_string(json, "kind", rp_task_kind_name((RpTaskKind)task->kind));
    json_index(json, "gpu", rp_trace_lane_device(trace, task->lane));
    rp_json_string(json, "lane", rp_lane_name(rp_trace_lane_kind(trace, task->lane)));
    rp_json_int(json, "iteration", task->iteration);
    rp_json_int(json, "round", task->round);
    json_index(json, "stage", task->stage);
    json_index(json, "micro_batch", task->micro_batch);
    json_index(json, overlap ? "backward_stage" : "layer", task->layer);
    json_index(json, overlap ? "backward_micro_batch" : "chunk", task->chunk);
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        const RpTraceRecord *record = pair->record[side];

        rp_json_object(json, keys[side]);
        rp_json_int(json, "task", (gint64)record->task);
        rp_json_double(json, "start_ms", rp_ms_from_ns(record->start_ns), 6);
        rp_json_double(json, "duration_ms", rp_ms_from_ns(record->end_ns - record->start_ns), 6);
        rp_json_end(json);
    }
    rp_json_double(json, "longer_ms", rp_ms_from_ns(rp_task_pair_longer_ns(pair)), 6);
    rp_json_double(json, "slip_ms", rp_ms_from_ns(pair->slip_ns), 6);
    rp_json_end(json);
}

static void
json_ranking(RpJsonWriter *json, const char *key, const RpDiffReport *report, RpTaskRank rank)
{
    g_autoptr(GArray) pairs = rp_trace_diff_rank(report->diff, rank, report->top);

    rp_json_array(json, key);
    for (guint i = 0; i < pairs->len; i++)
        json_task(json, report->diff, &g_array_index(pairs, RpTaskPair, i));
    rp_json_end(json);
}

void
rp_diff_print_json(const RpDiffReport *report)
{
    const RpTraceDiff *diff = report->diff;
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);
    Side sides[RP_N_TRACE_SIDES];
    gsize n;

    measure_both(diff, sides);
    (void)rp_trace_diff_pairs(diff, &n);
    rp_json_object(json, NULL);
    rp_json_int(json, "first_iteration", rp_trace_diff_first_iteration(diff));
    rp_json_int(json, "end_iteration", rp_trace_diff_end_iteration(diff));
    rp_json_double(json, "scale", rp_trace_diff_scale(diff), 12);
    rp_json_int(json, "tasks", (gint64)n);
    rp_json_bool(json, "same_order", rp_trace_diff_reordered(diff) == NULL);
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++)
        json_side(json, report, (RpTraceSide)i, &sides[i]);
    json_difference(json, sides);
    json_groups(json, diff);
    json_ranking(json, "durations", report, RP_RANK_DURATION);
    json_ranking(json, "slips", report, RP_RANK_SLIP);
    rp_json_end(json);
    rp_cli_print_json(json);
}
