/**
 * Measurements on real devices beside the predictions for the same runs: throughput against the
 * number of GPUs (Figure 13) and the sequence length (Figure 14), blocking copies against the
 * event-based protocol (Figure 16).
 */
#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "paper-figs/paper.h"
#include "plots/table.h"

#define MEASURED_CAPTION                                                                           \
    "Dots: measured with roundpipe train, steps after the second. Crosses: predicted for the "     \
    "same run before it began. "

/* The quantity that varies along a line; the other is the same on all of it. */
typedef enum { ALONG_GPUS, ALONG_SEQUENCE } Axis;

static guint
along(const RpMeasured *row, Axis axis)
{
    return axis == ALONG_GPUS ? row->gpus : row->sequence;
}

static guint
across(const RpMeasured *row, Axis axis)
{
    return along(row, axis == ALONG_GPUS ? ALONG_SEQUENCE : ALONG_GPUS);
}

/* The value that all rows share, or 0. */
static guint
shared_across(const GPtrArray *rows, Axis axis)
{
    guint value = across(g_ptr_array_index(rows, 0), axis);

    for (guint i = 1; i < rows->len; i++)
        if (across(g_ptr_array_index(rows, i), axis) != value)
            return 0;
    return value;
}

static char *
across_text(guint value, Axis axis)
{
    if (axis == ALONG_GPUS)
        return g_strdup_printf("sequences of %u", value);
    return g_strdup_printf("%u GPU%s", value, value == 1 ? "" : "s");
}

/* In order; the fastest of several rows at one place. */
static void
add_point(GPtrArray *line, RpMeasured *row, Axis axis)
{
    guint i = 0;

    while (i < line->len && along(g_ptr_array_index(line, i), axis) < along(row, axis))
        i++;
    if (i == line->len || along(g_ptr_array_index(line, i), axis) > along(row, axis))
        g_ptr_array_insert(line, (gint)i, row);
    else if (((const RpMeasured *)g_ptr_array_index(line, i))->tokens_per_s < row->tokens_per_s)
        g_ptr_array_index(line, i) = row;
}

/* (element-type GPtrArray of borrowed RpMeasured): none is empty */
static GPtrArray *
lines_of(const GPtrArray *rows, Axis axis)
{
    GPtrArray *lines = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);

    for (guint i = 0; i < rows->len; i++) {
        RpMeasured *row = g_ptr_array_index(rows, i);
        GPtrArray *line = NULL;

        for (guint j = 0; j < lines->len && line == NULL; j++) {
            GPtrArray *candidate = g_ptr_array_index(lines, j);
            const RpMeasured *first = g_ptr_array_index(candidate, 0);

            if (rp_measured_alike(first, row) && across(first, axis) == across(row, axis) &&
                strcmp(first->consistency, row->consistency) == 0)
                line = candidate;
        }
        if (line == NULL) {
            line = g_ptr_array_new();
            g_ptr_array_add(lines, line);
        }
        add_point(line, row, axis);
    }
    return lines;
}

/* A line's share of ideal scaling at its @i-th point, from its first. */
static double
efficiency(const GPtrArray *line, guint i)
{
    const RpMeasured *first = g_ptr_array_index(line, 0);
    const RpMeasured *row = g_ptr_array_index(line, i);

    return row->tokens_per_s / first->tokens_per_s * first->gpus / row->gpus;
}

static char *
line_title(const GPtrArray *line, const GPtrArray *rows, Axis axis)
{
    const RpMeasured *first = g_ptr_array_index(line, 0);
    const RpMeasured *last = g_ptr_array_index(line, line->len - 1);
    g_autofree char *name = rp_measured_title(first, rp_measured_one_device(rows) == NULL);
    GString *title = g_string_new(name);

    if (strcmp(first->consistency, "events") != 0)
        g_string_append_printf(title, ", %s", first->consistency);
    if (shared_across(rows, axis) == 0) {
        g_autofree char *text = across_text(across(first, axis), axis);

        g_string_append_printf(title, ", %s", text);
    }
    if (axis == ALONG_GPUS && line->len > 1)
        rp_text_append(title, ": %.0f %% on %u", 100 * efficiency(line, line->len - 1), last->gpus);
    return g_string_free(title, FALSE);
}

static void
add_line(RpLineChart *chart, const GPtrArray *line, const char *title, RpColour colour, Axis axis)
{
    guint n = 0;
    g_autofree double *x = g_new(double, line->len);
    g_autofree double *y = g_new(double, line->len);

    for (guint i = 0; i < line->len; i++) {
        const RpMeasured *row = g_ptr_array_index(line, i);

        x[i] = along(row, axis);
        y[i] = row->tokens_per_s;
    }
    rp_line_chart_add(chart, title, colour, RP_LINE_WITH_POINTS, x, y, line->len);
    for (guint i = 0; i < line->len; i++) {
        const RpMeasured *row = g_ptr_array_index(line, i);

        if (!isfinite(row->predicted_tokens_per_s))
            continue;
        x[n] = along(row, axis);
        y[n++] = row->predicted_tokens_per_s;
    }
    if (n > 0)
        rp_line_chart_add(chart, NULL, colour, RP_LINE_CROSSES, x, y, n);
}

/* From its first point, as if GPUs added up. */
static void
add_ideal(RpLineChart *chart, const GPtrArray *line, RpColour colour)
{
    const RpMeasured *first = g_ptr_array_index(line, 0);
    const RpMeasured *last = g_ptr_array_index(line, line->len - 1);
    const double x[] = {first->gpus, last->gpus};
    const double y[] = {first->tokens_per_s, first->tokens_per_s * last->gpus / first->gpus};

    if (line->len > 1)
        rp_line_chart_add(chart, NULL, colour, RP_LINE_DOTTED, x, y, G_N_ELEMENTS(x));
}

/* Published for the same model, mode, limit, length and device. */
static gboolean
add_published(RpLineChart *chart, const RpTable *table, const RpMeasured *like, RpColour colour)
{
    guint n_rows = rp_table_n_rows(table), n = 0;
    g_autofree double *x = g_new(double, n_rows);
    g_autofree double *y = g_new(double, n_rows);

    if (strcmp(like->schedule, "roundpipe") != 0)
        return FALSE;
    for (guint i = 0; i < n_rows; i++) {
        if (g_strcmp0(rp_table_text(table, i, "model"), like->model) != 0 ||
            g_strcmp0(rp_table_text(table, i, "mode"), like->mode) != 0 ||
            g_strcmp0(rp_table_text(table, i, "device_memory"), like->device_memory) != 0 ||
            g_strcmp0(rp_table_text(table, i, "device"), like->device) != 0 ||
            rp_table_number(table, i, "sequence") != like->sequence)
            continue;
        x[n] = rp_table_number(table, i, "gpus");
        y[n++] = rp_table_number(table, i, "tokens_per_s");
    }
    if (n > 0)
        rp_line_chart_add(chart, NULL, colour, RP_LINE_POINTS, x, y, n);
    return n > 0;
}

/* Tics where there are points. Returns: (element-type double): where that is, in order */
static GArray *
set_tics(RpLineChart *chart, const GPtrArray *rows, Axis axis)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint i = 0; i < rows->len; i++) {
        double x = along(g_ptr_array_index(rows, i), axis);

        g_array_append_val(all, x);
    }
    g_array_sort(all, rp_compare_doubles);
    for (guint i = all->len - 1; i > 0; i--)
        if (g_array_index(all, double, i) == g_array_index(all, double, i - 1))
            g_array_remove_index(all, i);
    rp_line_chart_set_tics(chart, (const double *)(gpointer)all->data, all->len);
    return all;
}

static void
set_subtitle(RpLineChart *chart, const GPtrArray *rows, Axis axis, const char *rest)
{
    const char *device = rp_measured_one_device(rows);
    guint shared = shared_across(rows, axis);
    g_autoptr(GString) text = g_string_new(device != NULL ? device : "several kinds of devices");

    if (shared > 0) {
        g_autofree char *what = across_text(shared, axis);

        g_string_append_printf(text, "; %s", what);
    }
    g_string_append(text, rest);
    rp_line_chart_set_subtitle(chart, text->str);
}

/* Commands of a figure that is called @name: "figure-13-measured". */
static GPtrArray *
commands_of(const char *name)
{
    GPtrArray *commands = rp_paper_commands();

    g_ptr_array_add(commands, g_strdup_printf("paper-figs/measure %.2s", name + strlen("figure-")));
    g_ptr_array_add(commands, g_strdup_printf("roundpipe figures -o DIR %s", name));
    return commands;
}

/* Every efficiency in words. */
static char *
caption_13(const GPtrArray *lines, const GPtrArray *rows)
{
    GString *caption = g_string_new(
        MEASURED_CAPTION "Dotted: ideal scaling from a line's first point. Circles: published, the "
                         "paper's own implementation on the same kind of machine. Where a number "
                         "of GPUs was measured in several shapes, the fastest is shown.");
    gboolean several_devices = rp_measured_one_device(rows) == NULL;

    for (guint i = 0; i < lines->len; i++) {
        const GPtrArray *line = g_ptr_array_index(lines, i);
        const RpMeasured *first = g_ptr_array_index(line, 0);
        g_autofree char *name = rp_measured_title(first, several_devices);

        for (guint j = 1; j < line->len; j++) {
            const RpMeasured *row = g_ptr_array_index(line, j);

            rp_text_append(caption, " %s, from %u to %u GPUs: %.1f %%.", name, first->gpus,
                           row->gpus, 100 * efficiency(line, j));
        }
    }
    return g_string_free(caption, FALSE);
}

gboolean
rp_paper_figure_13_measured(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    g_autoptr(GPtrArray) rows = rp_paper_measured(paper, "figure-13.csv", error);
    g_autoptr(GPtrArray) commands = commands_of(name);
    g_autoptr(RpTable) published = rp_table_published("published-h200.csv");
    g_autoptr(RpLineChart) chart = rp_line_chart_new(
        name, "Figure 13, measured: throughput against GPUs", "GPUs", "throughput, tokens/s");
    gboolean any_published = FALSE;

    if (rows == NULL)
        return FALSE;
    g_autoptr(GPtrArray) lines = lines_of(rows, ALONG_GPUS);
    for (guint i = 0; i < lines->len; i++) {
        const GPtrArray *line = g_ptr_array_index(lines, i);
        g_autofree char *title = line_title(line, rows, ALONG_GPUS);
        RpColour colour = rp_colour_of_series(i);

        add_line(chart, line, title, colour, ALONG_GPUS);
        add_ideal(chart, line, colour);
        any_published |= add_published(chart, published, g_ptr_array_index(line, 0), colour);
    }
    rp_line_chart_explain(chart, "measured", RP_LINE_WITH_POINTS);
    rp_line_chart_explain(chart, "predicted", RP_LINE_CROSSES);
    rp_line_chart_explain(chart, "ideal scaling", RP_LINE_DOTTED);
    if (any_published)
        rp_line_chart_explain(chart, "published, Python", RP_LINE_POINTS);
    g_autoptr(GArray) gpus = set_tics(chart, rows, ALONG_GPUS);
    double low = g_array_index(gpus, double, 0);
    double high = g_array_index(gpus, double, gpus->len - 1);
    double space = high > low ? 0.08 * (high - low) : 0.5;
    rp_line_chart_set_x_range(chart, low - space, high + space);
    set_subtitle(chart, rows, ALONG_GPUS,
                 "; percentages: of ideal scaling from the line's first point");
    g_autofree char *caption = caption_13(lines, rows);
    rp_paper_add_lines(paper, figures, chart, caption, commands);
    return TRUE;
}

gboolean
rp_paper_figure_14_measured(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    g_autoptr(GPtrArray) rows = rp_paper_measured(paper, "figure-14.csv", error);
    g_autoptr(GPtrArray) commands = commands_of(name);
    g_autoptr(RpLineChart) chart =
        rp_line_chart_new(name, "Figure 14, measured: throughput against sequence length",
                          "sequence length, tokens", "throughput, tokens/s");

    if (rows == NULL)
        return FALSE;
    g_autoptr(GPtrArray) lines = lines_of(rows, ALONG_SEQUENCE);
    for (guint i = 0; i < lines->len; i++) {
        const GPtrArray *line = g_ptr_array_index(lines, i);
        g_autofree char *title = line_title(line, rows, ALONG_SEQUENCE);

        add_line(chart, line, title, rp_colour_of_series(i), ALONG_SEQUENCE);
    }
    rp_line_chart_explain(chart, "measured", RP_LINE_WITH_POINTS);
    rp_line_chart_explain(chart, "predicted", RP_LINE_CROSSES);
    g_autoptr(GArray) lengths = set_tics(chart, rows, ALONG_SEQUENCE);
    rp_line_chart_set_log(chart, 2, 0);
    rp_line_chart_set_x_range(chart, g_array_index(lengths, double, 0) / 1.2,
                              g_array_index(lengths, double, lengths->len - 1) * 1.2);
    set_subtitle(chart, rows, ALONG_SEQUENCE, "; nearly the same tokens a step and GPU");
    rp_paper_add_lines(
        paper, figures, chart,
        MEASURED_CAPTION
        "Micro-batches of the same number of tokens, or of one sequence where it is longer. Where "
        "a length was measured in several shapes, the fastest is shown.",
        commands);
    return TRUE;
}

/* The other row of a pair: all the same but consistency. */
static const RpMeasured *
partner(const GPtrArray *rows, const RpMeasured *row)
{
    for (guint i = 0; i < rows->len; i++) {
        const RpMeasured *other = g_ptr_array_index(rows, i);

        if (strcmp(other->consistency, row->consistency) != 0 && rp_measured_alike(other, row) &&
            other->gpus == row->gpus && other->sequence == row->sequence &&
            other->micro_batch == row->micro_batch && other->micro_batches == row->micro_batches)
            return other;
    }
    return NULL;
}

static void
add_bar(RpBarChart *chart, const char *group, const RpMeasured *row, const RpMeasured *events)
{
    double seconds = rp_measured_seconds(row);
    g_autoptr(GString) text = g_string_new(NULL);
    gboolean blocking = strcmp(row->consistency, "blocking") == 0;
    RpBarRow bar = {
        .group = group,
        .label = row->consistency,
        .values = {seconds},
        .marker = rp_measured_predicted_seconds(row),
        .colour = blocking ? RP_COLOUR_VERMILLION : RP_COLOUR_GREEN,
    };

    rp_text_append(text, "%.3f", seconds);
    if (events != NULL)
        rp_text_append(text, "  (%+.3f s, %+.1f %%)", seconds - rp_measured_seconds(events),
                       100 * (seconds / rp_measured_seconds(events) - 1));
    bar.text = text->str;
    rp_bar_chart_add(chart, &bar);
}

gboolean
rp_paper_figure_16_measured(RpPaper *paper, const char *name, GPtrArray *figures, GError **error)
{
    static const RpBarPart parts[] = {{NULL, RP_COLOUR_GREEN}};
    g_autoptr(GPtrArray) rows = rp_paper_measured(paper, "figure-16.csv", error);
    g_autoptr(GPtrArray) commands = commands_of(name);
    g_autoptr(RpBarChart) chart = rp_bar_chart_new(
        name, "Figure 16, measured: blocking copies against the event-based protocol",
        "time of an iteration, s", 3, parts, G_N_ELEMENTS(parts));

    if (rows == NULL)
        return FALSE;
    const char *device = rp_measured_one_device(rows);
    rp_bar_chart_set_marker_title(chart, "predicted");
    rp_bar_chart_set_subtitle(chart, device != NULL ? device : "several kinds of devices");
    for (guint i = 0; i < rows->len; i++) {
        const RpMeasured *row = g_ptr_array_index(rows, i);
        const RpMeasured *other = partner(rows, row);
        gboolean blocking = strcmp(row->consistency, "blocking") == 0;
        g_autofree char *title = rp_measured_title(row, device == NULL);
        g_autofree char *group = g_strdup_printf(
            "%s, %u GPU%s, %u x %u x %u tokens", title, row->gpus, row->gpus == 1 ? "" : "s",
            row->micro_batches, row->micro_batch, row->sequence);

        /* a pair is drawn where its events are */
        if (blocking && other != NULL)
            continue;
        add_bar(chart, group, row, NULL);
        if (other != NULL)
            add_bar(chart, group, other, row);
    }
    rp_paper_add_bars(
        paper, figures, chart,
        "Bars: measured with roundpipe train, steps after the second; "
        "diamonds: predicted for the same run before it began. Events: only the layers "
        "concerned wait for copies of gradients and parameters. Blocking: every device "
        "waits for all copies at the end of an iteration. Published, on 8 x RTX 4090 and "
        "with an implementation that copies on one Python thread: 2.6 to 14 s less per "
        "iteration with events.",
        commands);
    return TRUE;
}
