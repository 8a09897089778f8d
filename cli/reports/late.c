#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/formats/export.h"

#define MOST_TOP 100000
#define MOST_GROUPS 15
#define N_LANE_KINDS (RP_LANES_PER_DEVICE + RP_HOST_LANES)

static gboolean
parse_iterations(const char *text, RpTraceDiffOptions *options, GError **error)
{
    guint64 first, end;

    if (!rp_cli_parse_range("iterations", text, &first, &end, error))
        return FALSE;
    options->first_iteration = (guint32)first;
    options->end_iteration = (guint32)end;
    return TRUE;
}

static gboolean
parse_scale(const char *text, double *scale, GError **error)
{
    char *end;

    if (strcmp(text, "auto") == 0) {
        *scale = 0;
        return TRUE;
    }
    *scale = g_ascii_strtod(text, &end);
    if (end != text && *end == '\0' && *scale >= 1e-9 && *scale <= 1e9)
        return TRUE;
    g_autofree char *found = rp_quote(text);
    return rp_cli_refuse(error, "--scale: expected a number above 0 or auto, found %s", found);
}

static gboolean
read_options(const RpArgs *args, RpTraceDiffOptions *options, GError **error)
{
    if (args->top > MOST_TOP)
        return rp_cli_refuse(error, "--top: expected at most %d, found %d", MOST_TOP, args->top);
    return (args->range == NULL || parse_iterations(args->range, options, error)) &&
           (args->scale_word == NULL || parse_scale(args->scale_word, &options->scale, error));
}

static RpTraceDiff *
compare(const RpArgs *args, char *const *paths, const RpTraceDiffOptions *options, GError **error)
{
    g_autoptr(RpTrace) first = rp_trace_load_chrome(paths[0], error);
    g_autoptr(RpTrace) second = first == NULL ? NULL
                                : rp_cli_are_compared(paths)
                                    ? rp_cli_recordings_trace(args, &paths[1], error)
                                    : rp_trace_load_chrome(paths[1], error);
    GError *local = NULL;

    if (second == NULL)
        return NULL;
    g_autofree char *first_name = rp_display_name(paths[0]);
    g_autofree char *second_name = rp_cli_recordings_name(&paths[1]);
    const RpTrace *const traces[] = {first, second};
    const char *const names[] = {first_name, second_name};
    RpTraceDiff *diff = rp_trace_diff_new(traces, names, options, &local);

    if (diff != NULL)
        return diff;
    if (args->range != NULL &&
        g_error_matches(local, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ITERATIONS)) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--iterations: %s", local->message);
        g_error_free(local);
    } else {
        g_propagate_error(error, local);
    }
    return NULL;
}

/* ---- the report ---- */

/* The figures of one side as a whole. */
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

static const char *
origin_name(const RpTraceDiff *diff, RpTraceSide side)
{
    return rp_trace_origin(rp_trace_diff_trace(diff, side)) == RP_TRACE_MEASURED ? "measured"
                                                                                 : "predicted";
}

static void
report_head(RpReport *report, const RpArgs *args, const RpTraceDiff *diff, char *const *paths)
{
    guint first = rp_trace_diff_first_iteration(diff), end = rp_trace_diff_end_iteration(diff);
    g_autofree char *last = end - first > 1 ? g_strdup_printf("s %u to %u", first, end - 1)
                                            : g_strdup_printf(" %u", first);
    g_autofree char *scale =
        args->scale_word == NULL
            ? g_strdup("")
            : g_strdup_printf(", those of %s divided by %.9g", rp_diff_label(diff, RP_TRACE_SECOND),
                              rp_trace_diff_scale(diff));
    gsize n;

    (void)rp_trace_diff_pairs(diff, &n);
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++) {
        g_autofree char *file =
            i > 0 ? rp_cli_recordings_name(&paths[i]) : rp_display_name(paths[i]);

        rp_report_say(report, "%-9s  %s (%s)", rp_diff_label(diff, (RpTraceSide)i), file,
                      origin_name(diff, (RpTraceSide)i));
    }
    rp_report_say(report,
                  "iteration%s, %" G_GSIZE_FORMAT " tasks in both, times from the first action%s\n",
                  last, n, scale);
    rp_report_count(report, "first_iteration", first, NULL);
    rp_report_count(report, "end_iteration", end, NULL);
    rp_report_real(report, "scale", rp_trace_diff_scale(diff), 12, NULL);
    rp_report_count(report, "tasks", (gint64)n, NULL);
    rp_report_bool(report, "same_order", rp_trace_diff_reordered(diff) == NULL, NULL);
}

/* "busy compute, ms"; %NULL where no lane of the kind did anything. */
static char *
busy_label(const Side *sides, guint kind, const RpTimeUnit *unit)
{
    return sides[0].busy_ns[kind] == 0 && sides[1].busy_ns[kind] == 0
               ? NULL
               : g_strdup_printf("busy %s, %s", rp_lane_name(kind), unit->name);
}

static void
report_time(RpReport *report, const char *key, gint64 ns, const RpTimeUnit *unit, const char *label)
{
    rp_report_ms(report, key, ns, label);
    rp_report_show(report, report->sign ? "%+.3f" : "%.3f", rp_ms_from_ns(ns) * unit->per_ms);
}

/* Makespan, bubbles and lanes of @side, a column. */
static void
report_totals(RpReport *report, const Side *side, const Side *sides, const RpTimeUnit *unit)
{
    static const char *const labels[] = {"bubble ratio, %", "  fill",  "  switch",
                                         "  drain",         "  intra", NULL};
    g_autofree char *makespan = g_strdup_printf("makespan, %s", unit->name);

    report_time(report, "makespan_ms", side->bubble.makespan_ns, unit, makespan);
    rp_report_add_bubble(report, &side->bubble, labels);
    rp_report_object(report, "busy_ms", NULL);
    for (guint kind = 0; kind < N_LANE_KINDS; kind++) {
        g_autofree char *label = busy_label(sides, kind, unit);

        report_time(report, rp_lane_name(kind), side->busy_ns[kind], unit, label);
    }
    rp_report_end(report);
}

/* The second relative to the first, in percent. */
static void
report_relative(RpReport *report, gint64 first_ns, gint64 second_ns, const char *label)
{
    if (first_ns > 0)
        rp_report_line(report, label, "%+.2f %%", 100 * ((double)second_ns / (double)first_ns - 1));
    else
        rp_report_line(report, label, "-");
}

static Side
subtract(const Side *first, const Side *second)
{
    const RpBubble *a = &first->bubble, *b = &second->bubble;
    Side difference = {.bubble = {
                           .makespan_ns = b->makespan_ns - a->makespan_ns,
                           .ratio = b->ratio - a->ratio,
                           .fill = b->fill - a->fill,
                           .switch_ = b->switch_ - a->switch_,
                           .drain = b->drain - a->drain,
                           .intra = b->intra - a->intra,
                           .comm_exposed = b->comm_exposed - a->comm_exposed,
                           .expand = b->expand - a->expand,
                       }};

    for (guint kind = 0; kind < N_LANE_KINDS; kind++)
        difference.busy_ns[kind] = second->busy_ns[kind] - first->busy_ns[kind];
    return difference;
}

static const char *const keys[RP_N_TRACE_SIDES] = {"first", "second"};

static void
report_sides(RpReport *report, const RpTraceDiff *diff, char *const *paths)
{
    Side sides[RP_N_TRACE_SIDES];

    for (guint i = 0; i < RP_N_TRACE_SIDES; i++)
        measure(rp_trace_diff_trace(diff, (RpTraceSide)i), &sides[i]);
    const Side difference = subtract(&sides[0], &sides[1]);
    const gint64 spans[] = {sides[0].bubble.makespan_ns, sides[1].bubble.makespan_ns};
    const RpTimeUnit unit = rp_time_unit(MAX(spans[0], spans[1]));
    g_autofree char *makespan = g_strdup_printf("makespan, %s", unit.name);

    rp_report_columns(report, NULL, "");
    for (guint i = 0; i < RP_N_TRACE_SIDES; i++) {
        g_autofree char *file = g_utf8_make_valid(paths[i], -1);

        rp_report_object(report, keys[i], rp_diff_label(diff, (RpTraceSide)i));
        rp_report_text(report, "file", file, NULL);
        rp_report_text(report, "origin", origin_name(diff, (RpTraceSide)i), NULL);
        report_totals(report, &sides[i], sides, &unit);
        rp_report_object(report, "only", NULL);
        for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
            guint64 n = rp_trace_diff_only(diff, (RpTraceSide)i, (RpTaskKind)kind);

            if (n > 0)
                rp_report_count(report, rp_task_kind_name((RpTaskKind)kind), (gint64)n, NULL);
        }
        rp_report_end(report);
        rp_report_end(report);
    }
    rp_report_object(report, "difference", "difference");
    report->sign = TRUE;
    report_totals(report, &difference, sides, &unit);
    report->sign = FALSE;
    rp_report_end(report);
    rp_report_object(report, NULL, " ");
    report_relative(report, spans[0], spans[1], makespan);
    for (guint kind = 0; kind < N_LANE_KINDS; kind++) {
        g_autofree char *label = busy_label(sides, kind, &unit);

        report_relative(report, sides[0].busy_ns[kind], sides[1].busy_ns[kind], label);
    }
    rp_report_end(report);
    rp_report_end(report);
}

/* @label: for people, "-" where there is none */
static void
report_index(RpReport *report, const char *key, guint32 value, const char *label)
{
    if (value != RP_NONE)
        rp_report_count(report, key, value, label);
    else
        rp_report_line(report, label, "-");
}

static void
report_groups(RpReport *report, const RpTraceDiff *diff)
{
    static const char *const means[] = {"first_mean_ms", "second_mean_ms"};
    g_autoptr(GArray) groups = rp_trace_diff_groups(diff);

    rp_report_head(report,
                   "Mean durations by kind and stage, ms: the largest differences in all, %u of "
                   "%u",
                   MIN(groups->len, MOST_GROUPS), groups->len);
    rp_report_table(report, "groups", "ratio,tasks", MOST_GROUPS);
    for (guint i = 0; i < groups->len; i++) {
        const RpTaskGroup *group = &g_array_index(groups, RpTaskGroup, i);
        const double ratio = (double)group->total_ns[1] / (double)group->total_ns[0];

        rp_report_object(report, NULL, NULL);
        rp_report_text(report, "kind", rp_task_kind_name(group->kind), "<kind");
        report_index(report, "stage", group->stage, "stage");
        rp_report_count(report, "tasks", (gint64)group->count, "tasks");
        for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
            const double mean_ms = rp_ms_from_ns(group->total_ns[side]) / (double)group->count;

            rp_report_real(report, means[side], mean_ms, 6, rp_diff_label(diff, (RpTraceSide)side));
            rp_report_show(report, "%.3f", mean_ms);
        }
        if (group->total_ns[0] > 0) {
            rp_report_real(report, "ratio", ratio, 9, "ratio");
            rp_report_show(report, "%.4f", ratio);
        } else {
            rp_report_line(report, "ratio", "-");
        }
        report->sign = TRUE;
        rp_report_ms(report, "difference_ms", group->total_ns[1] - group->total_ns[0],
                     "difference in all");
        report->sign = FALSE;
        rp_report_end(report);
    }
    rp_report_end(report);
}

/* @slips: people see starts, else durations */
static void
report_task(RpReport *report, const RpTraceDiff *diff, const RpTaskPair *pair, gboolean slips)
{
    const RpTraceRecord *task = pair->record[0], *other = pair->record[1];
    const RpTrace *trace = rp_trace_diff_trace(diff, RP_TRACE_FIRST);
    const gboolean overlap = task->kind == RP_TASK_OVERLAP;
    g_autofree char *name = rp_trace_describe(trace, task);

    rp_report_object(report, NULL, NULL);
    rp_report_text(report, "kind", rp_task_kind_name((RpTaskKind)task->kind), NULL);
    report_index(report, "gpu", rp_trace_lane_device(trace, task->lane), NULL);
    rp_report_text(report, "lane", rp_lane_name(rp_trace_lane_kind(trace, task->lane)), NULL);
    rp_report_count(report, "iteration", task->iteration, NULL);
    rp_report_count(report, "round", task->round, NULL);
    report_index(report, "stage", task->stage, NULL);
    report_index(report, "micro_batch", task->micro_batch, NULL);
    report_index(report, overlap ? "backward_stage" : "layer", task->layer, NULL);
    report_index(report, overlap ? "backward_micro_batch" : "chunk", task->chunk, NULL);
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        const RpTraceRecord *record = pair->record[side];
        const char *label = rp_diff_label(diff, (RpTraceSide)side);

        rp_report_object(report, keys[side], NULL);
        rp_report_count(report, "task", (gint64)record->task, NULL);
        rp_report_ms(report, "start_ms", record->start_ns, slips ? label : NULL);
        rp_report_ms(report, "duration_ms", record->end_ns - record->start_ns,
                     slips ? NULL : label);
        rp_report_end(report);
    }
    report->sign = TRUE;
    if (slips)
        rp_report_ms(report, NULL, other->start_ns - task->start_ns, "difference");
    rp_report_ms(report, "longer_ms", rp_task_pair_longer_ns(pair), slips ? NULL : "difference");
    rp_report_ms(report, "slip_ms", pair->slip_ns, slips ? "slip" : NULL);
    report->sign = FALSE;
    rp_report_line(report, "<task", "%s", name);
    rp_report_end(report);
}

static void
report_ranking(RpReport *report, const RpArgs *args, const RpTraceDiff *diff, RpTaskRank rank)
{
    g_autoptr(GArray) pairs = rp_trace_diff_rank(diff, rank, (guint)args->top);
    const gboolean slips = rank == RP_RANK_SLIP;

    rp_report_head(report, "%s",
                   slips ? "Latest starts beyond what their own predecessors explain (slip), ms"
                         : "Largest differences of duration, ms");
    rp_report_table(report, slips ? "slips" : "durations", "predicted,first,measured,second", 0);
    for (guint i = 0; i < pairs->len; i++)
        report_task(report, diff, &g_array_index(pairs, RpTaskPair, i), slips);
    rp_report_end(report);
    if (pairs->len == 0)
        rp_report_say(report, "none");
}

static void
report_notes(RpReport *report, const RpTraceDiff *diff)
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
            rp_report_say(report, "\nnote: tasks that only %s has: %s",
                          rp_diff_label(diff, (RpTraceSide)side), text->str);
    }
    if (reordered == NULL)
        return;
    g_autofree char *name =
        rp_trace_describe(rp_trace_diff_trace(diff, RP_TRACE_FIRST), reordered->record[0]);

    rp_report_say(report, "\nnote: %s runs actions in another order, the first of them the %s",
                  rp_diff_label(diff, RP_TRACE_SECOND), name);
}

gboolean
rp_cli_late(const RpArgs *args, char *const *paths, RpReport *report, GError **error)
{
    const RpCliFile files[] = {
        {"PREDICTED", paths[0], RP_CLI_READ},
        {"MEASURED", paths[1], RP_CLI_READ},
        {"--picture", args->picture, RP_CLI_DRAWN},
    };
    RpTraceDiffOptions options = {.scale = 1};
    RpFigureStyle style;

    if (!read_options(args, &options, error) ||
        !rp_cli_picture_style(args, args->picture != NULL, &style, error) ||
        !rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    g_autoptr(RpTraceDiff) diff = compare(args, paths, &options, error);
    if (diff == NULL)
        return FALSE;
    if (args->picture != NULL) {
        g_autoptr(RpFigure) figure = rp_diff_figure(diff, &style);

        if (!rp_cli_picture_write(figure, args->picture, error))
            return FALSE;
    }
    report_head(report, args, diff, paths);
    report_sides(report, diff, paths);
    report_groups(report, diff);
    report_ranking(report, args, diff, RP_RANK_DURATION);
    report_ranking(report, args, diff, RP_RANK_SLIP);
    report_notes(report, diff);
    return TRUE;
}
