/* Data files and scripts of charts; none of this needs gnuplot. */
#include "tests/rp-test.h"

#include <locale.h>
#include <math.h>

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "plots/charts/charts.h"
#include "plots/table.h"
#include "sim/simulate.h"

/* @n blocks of forward 1 ms, recompute 1 ms, backward 2 ms, with sizes. */
static RpProfile *
profile_of_blocks(guint n)
{
    RpProfile *profile = rp_profile_new(n);

    for (guint i = 0; i < n; i++) {
        RpLayer *layer = &profile->layers[i];

        layer->forward_ns = layer->recompute_ns = RP_NS_PER_MS;
        layer->backward_ns = 2 * RP_NS_PER_MS;
        layer->weight_gradient_ns = RP_NS_PER_MS;
        layer->parameter_bytes = layer->gradient_bytes = RP_MIB;
        layer->input_bytes = layer->output_bytes = RP_MIB;
    }
    profile->has_sizes = TRUE;
    profile->links.h2d_bytes_per_s = profile->links.d2h_bytes_per_s = 25e9;
    profile->optimizer_parameters_per_s = 1e9;
    return profile;
}

typedef struct {
    RpProfile *profile;
    RpPartition *partition;
    RpPlan *plan;
    RpTrace *trace;
} Run;

static Run
run(const char *schedule, guint gpus, guint micro_batches, RpFidelity fidelity)
{
    GError *error = NULL;
    RpPlanOptions options = {.schedule = rp_schedule_find(schedule, &error),
                             .gpus = gpus,
                             .micro_batches = micro_batches,
                             .fidelity = fidelity,
                             .recompute = RP_RECOMPUTE_GATED};
    rp_assert_no_error(error);
    guint stages = options.schedule->stages_per_gpu == 2 ? 2 * gpus : gpus;
    Run made = {.profile = profile_of_blocks(stages)};

    if (options.schedule->dispatched) {
        guint forward[] = {stages - 1};
        g_autofree guint *backward = g_new(guint, stages);

        for (guint i = 0; i < stages; i++)
            backward[i] = 1;
        made.partition =
            rp_partition_from_dispatched_blocks(made.profile, forward, 1, backward, stages, &error);
    } else {
        made.partition = rp_partition_min_max(made.profile, stages, &error);
    }
    rp_assert_no_error(error);
    made.plan = rp_must(rp_plan_make, made.profile, made.partition, &options, 1);
    RpMachine machine = rp_machine_from_profile(made.profile);
    made.trace = rp_must(rp_simulate, made.plan, &machine);
    return made;
}

static void
run_clear(Run *made)
{
    rp_trace_free(made->trace);
    rp_plan_free(made->plan);
    rp_partition_free(made->partition);
    rp_profile_free(made->profile);
}

/* Lines of a figure's data that are neither comments nor empty, from its @index-th block on. */
static GPtrArray *
data_lines(RpFigure *figure, guint index)
{
    g_auto(GStrv) blocks = g_strsplit(rp_figure_data(figure)->str, "\n\n\n", -1);
    GPtrArray *lines = g_ptr_array_new_with_free_func(g_free);

    assert_true(index < g_strv_length(blocks));
    g_auto(GStrv) all = g_strsplit(blocks[index], "\n", -1);
    for (guint i = 0; all[i] != NULL; i++)
        if (*all[i] != '\0' && *all[i] != '#')
            g_ptr_array_add(lines, g_strdup(all[i]));
    return lines;
}

static double
column(const char *line, guint n)
{
    g_auto(GStrv) fields = g_strsplit(line, " ", -1);

    assert_true(n < g_strv_length(fields));
    return g_ascii_strtod(fields[n], NULL);
}

RP_TEST(a_timeline_has_a_box_for_every_action)
{
    Run made = run("1f1b", 2, 4, RP_FIDELITY_COMPUTE);
    RpTimelinePanel panel = {.trace = made.trace, .title = "1F1B"};
    RpFigure *figure = rp_timeline_figure("t", "t", &panel, 1);
    GPtrArray *boxes = data_lines(figure, 0);
    double busy_ms = 0;

    assert_int_equal(boxes->len, 16);
    for (guint i = 0; i < boxes->len; i++)
        busy_ms += column(boxes->pdata[i], 1) - column(boxes->pdata[i], 0);
    assert_true(fabs(busy_ms - 32) < 1e-9);
    /* device 0 starts at once, its first action is a forward of micro-batch 0 */
    assert_non_null(strstr(boxes->pdata[0], "0.000000 1.000000 "));
    assert_non_null(strstr(boxes->pdata[0], " forward 0 0 0"));
    GPtrArray *labels = data_lines(figure, 1);
    assert_int_equal(labels->len, 16);
    g_ptr_array_unref(labels);
    g_ptr_array_unref(boxes);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(boxes_too_narrow_to_be_seen_are_joined_within_their_slot)
{
    Run made = run("gpipe", 2, 2000, RP_FIDELITY_COMPUTE);
    RpTimelinePanel panel = {.trace = made.trace};
    RpFigure *figure = rp_timeline_figure("t", "t", &panel, 1);
    GPtrArray *boxes = data_lines(figure, 0);

    assert_int_equal(rp_trace_n_records(made.trace), 8000);
    assert_int_equal(boxes->len, 4);
    assert_true(fabs(column(boxes->pdata[0], 1) - 2000) < 1e-9);
    g_ptr_array_unref(boxes);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(boxes_too_narrow_for_a_border_are_drawn_apart)
{
    /* transfers of a few microseconds beside actions of milliseconds */
    Run made = run("1f1b", 2, 4, RP_FIDELITY_FULL);
    RpTimelinePanel panels[] = {{.trace = made.trace},
                                {.trace = made.trace, .lanes = RP_TIMELINE_ALL}};
    g_autoptr(RpFigure) compute = rp_timeline_figure("t", "t", &panels[0], 1);
    g_autoptr(RpFigure) all = rp_timeline_figure("t", "t", &panels[1], 1);

    assert_null(strstr(rp_figure_script(compute)->str, "narrow"));
    assert_non_null(strstr(rp_figure_script(all)->str, "narrow"));
    run_clear(&made);
}

/* gnuplot 5.4 crashes on a block of labels whose places are not numbers. */
RP_TEST(a_timeline_without_room_for_a_label_has_an_empty_one)
{
    Run made = run("1f1b", 2, 2000, RP_FIDELITY_COMPUTE);
    RpTimelinePanel panel = {.trace = made.trace};
    RpFigure *figure = rp_timeline_figure("t", "t", &panel, 1);
    GPtrArray *labels = data_lines(figure, 1);

    assert_int_equal(labels->len, 1);
    assert_string_equal(labels->pdata[0], "0 0 \"\" 0");
    g_ptr_array_unref(labels);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(an_overlapped_action_is_drawn_as_two_halves)
{
    Run made = run("dualpipe-v", 2, 4, RP_FIDELITY_COMPUTE);
    RpTimelinePanel panel = {.trace = made.trace};
    RpFigure *figure = rp_timeline_figure("t", "t", &panel, 1);
    GPtrArray *boxes = data_lines(figure, 0);
    const RpTraceRecord *records = rp_trace_records(made.trace);
    guint overlaps = 0;

    for (gsize i = 0; i < rp_trace_n_records(made.trace); i++)
        overlaps += records[i].kind == RP_TASK_OVERLAP ? 1 : 0;
    assert_true(overlaps > 0);
    assert_int_equal(boxes->len, rp_trace_n_records(made.trace) + overlaps);
    g_ptr_array_unref(boxes);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(a_window_of_a_timeline_is_clipped_and_counted_from_its_start)
{
    Run made = run("gpipe", 2, 4, RP_FIDELITY_COMPUTE);
    RpTimelinePanel panel = {
        .trace = made.trace, .from_ns = RP_NS_PER_MS / 2, .end_ns = 2 * RP_NS_PER_MS, .gpus = 1};
    RpFigure *figure = rp_timeline_figure("t", "t", &panel, 1);
    GPtrArray *boxes = data_lines(figure, 0);

    assert_int_equal(boxes->len, 2);
    assert_true(fabs(column(boxes->pdata[0], 0)) < 1e-9);
    assert_true(fabs(column(boxes->pdata[0], 1) - 0.5) < 1e-9);
    assert_true(fabs(column(boxes->pdata[1], 1) - 1.5) < 1e-9);
    g_ptr_array_unref(boxes);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(a_bubble_bar_is_stacked_from_its_parts_in_percent)
{
    Run made = run("1f1b", 4, 8, RP_FIDELITY_COMPUTE);
    RpBubble bubble = rp_report_bubble(made.trace);
    g_autoptr(RpBarChart) chart = rp_bubble_chart_new("b", "b");

    rp_bubble_chart_add(chart, "group", "1F1B", &bubble, 27.5);
    RpFigure *figure = rp_bar_chart_figure(chart);
    GPtrArray *rows = data_lines(figure, 0);

    assert_int_equal(rows->len, 1);
    assert_true(fabs(column(rows->pdata[0], 3) - 100 * bubble.fill) < 1e-4);
    assert_true(fabs(column(rows->pdata[0], 4) - 100 * bubble.switch_) < 1e-4);
    assert_true(fabs(column(rows->pdata[0], 5) - 100 * bubble.drain) < 1e-4);
    assert_true(fabs(column(rows->pdata[0], 6) - 100 * bubble.intra) < 1e-4);
    assert_true(fabs(column(rows->pdata[0], 8) - 100.0 * 9 / 33) < 1e-4);
    assert_true(fabs(column(rows->pdata[0], 10) - 27.5) < 1e-9);
    assert_non_null(strstr(rows->pdata[0], "27.3 %"));
    g_ptr_array_unref(rows);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(the_height_of_a_bar_chart_follows_from_its_rows)
{
    RpBarPart part = {NULL, RP_COLOUR_BLUE};
    g_autoptr(RpBarChart) chart = rp_bar_chart_new("b", "b", "x", 1, &part, 1);
    RpBarRow row = {.group = "a", .label = "one", .values = {1}, .marker = NAN};

    rp_bar_chart_add(chart, &row);
    g_autoptr(RpFigure) small = rp_bar_chart_figure(chart);
    for (guint i = 0; i < 10; i++)
        rp_bar_chart_add(chart, &row);
    g_autoptr(RpFigure) large = rp_bar_chart_figure(chart);
    assert_true(rp_figure_height(large) > rp_figure_height(small) + 100);
    assert_int_equal(rp_figure_width(large), rp_figure_width(small));
}

RP_TEST(a_line_chart_keeps_gaps_and_numbers)
{
    const double x[] = {1, 2, 4};
    const double y[] = {0.125, NAN, 1e9};
    g_autoptr(RpLineChart) chart = rp_line_chart_new("l", "l", "x", "y");

    rp_line_chart_add(chart, "series", RP_COLOUR_BLUE, RP_LINE_SOLID, x, y, G_N_ELEMENTS(x));
    g_autoptr(RpFigure) figure = rp_line_chart_figure(chart);
    assert_non_null(strstr(rp_figure_data(figure)->str, "1 0.125\n2 NaN\n4 1e+09\n"));
}

RP_TEST(names_of_levels_and_the_legend_stand_apart)
{
    const double x[] = {1, 2};
    g_autoptr(RpLineChart) chart = rp_line_chart_new("l", "l", "x", "y");

    rp_line_chart_add(chart, "series", RP_COLOUR_BLUE, RP_LINE_SOLID, x, x, G_N_ELEMENTS(x));
    g_autoptr(RpFigure) beside = rp_line_chart_figure(chart);
    rp_line_chart_add_level(chart, "planned", 2);
    g_autoptr(RpFigure) below = rp_line_chart_figure(chart);
    assert_non_null(strstr(rp_figure_script(beside)->str, "set key at screen 1 - px("));
    assert_null(strstr(rp_figure_script(below)->str, "set key at screen 1 - px("));
    assert_true(rp_figure_height(below) > rp_figure_height(beside));
}

RP_TEST(narrow_lines_have_fewer_labels_and_letters_for_levels)
{
    const double x[] = {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
    const RpFigureStyle narrow = {.width_mm = 84};
    g_autoptr(RpLineChart) chart = rp_line_chart_new("l", "l", "x", "y");

    rp_line_chart_add(chart, "series", RP_COLOUR_BLUE, RP_LINE_SOLID, x, x, G_N_ELEMENTS(x));
    rp_line_chart_add_level(chart, "planned", 2048);
    rp_line_chart_set_log(chart, 2, 0);
    rp_line_chart_set_tics_at_points(chart);
    g_autoptr(RpFigure) wide = rp_line_chart_figure(chart);
    rp_line_chart_set_style(chart, &narrow);
    g_autoptr(RpFigure) small = rp_line_chart_figure(chart);

    assert_non_null(strstr(rp_figure_script(wide)->str, "set xtics (512, 1024, 2048, 4096, 8192,"));
    assert_non_null(strstr(rp_figure_script(wide)->str, "set label 'planned'"));
    assert_non_null(strstr(rp_figure_script(small)->str,
                           "set xtics (512, '' 1024, 2048, '' 4096, 8192, '' 16384, 32768, ''"));
    assert_non_null(strstr(rp_figure_script(small)->str, "set label 'a'"));
    assert_non_null(strstr(rp_figure_script(small)->str, "title 'a: planned'"));
    /* the plot keeps the space that the name would take */
    assert_non_null(strstr(rp_figure_script(small)->str, "set rmargin at screen 1 - px(20)"));
}

RP_TEST(balance_shows_the_time_of_each_slot)
{
    g_autoptr(RpProfile) profile = profile_of_blocks(4);
    const guint forward[] = {3};
    const guint backward[] = {1, 2, 1};
    RpPartition *partition =
        rp_must(rp_partition_from_dispatched_blocks, profile, forward, 1, backward, 3);
    RpBalancePanel panel = {partition, "by hand"};
    RpFigure *figure = rp_balance_figure("b", "b", profile, &panel, 1, NULL);
    GPtrArray *rows = data_lines(figure, 0);

    assert_int_equal(rows->len, 4);
    const double expected_ms[] = {3, 3, 6, 3};
    for (guint i = 0; i < 4; i++)
        assert_true(fabs(column(rows->pdata[i], 1) - expected_ms[i]) < 1e-9);
    assert_non_null(strstr(rp_figure_script(figure)->str, "4 slots, t_max 6.0 ms"));
    g_ptr_array_unref(rows);
    rp_figure_free(figure);
    rp_partition_free(partition);
}

RP_TEST(a_memory_curve_never_rises_above_its_arena)
{
    Run made = run("roundpipe", 2, 2, RP_FIDELITY_FULL);
    RpFigure *figure = rp_memory_figure("m", "m", made.plan, made.trace, 0, 0, 0, NULL);

    for (guint arena = 0; arena <= 2; arena++) {
        GPtrArray *steps = data_lines(figure, arena);
        double size = (double)rp_plan_arena_bytes(made.plan, arena) / (double)RP_GIB;
        double peak = 0;

        for (guint i = 0; i < steps->len; i++)
            peak = fmax(peak, column(steps->pdata[i], 1));
        assert_true(peak > 0);
        assert_true(peak <= size + 1e-6);
        g_ptr_array_unref(steps);
    }
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(categories_sum_to_the_arena)
{
    Run made = run("roundpipe", 2, 2, RP_FIDELITY_FULL);
    RpFigure *figure = rp_memory_categories_figure("m", "m", made.plan, NULL);
    GPtrArray *rows = data_lines(figure, 0);

    assert_int_equal(rows->len, 3);
    for (guint arena = 0; arena <= 2; arena++) {
        g_auto(GStrv) fields = g_strsplit(
            strrchr(rows->pdata[arena], '"') != NULL ? rows->pdata[arena] : "", "\"", -1);
        /* y "label" colour parts... total hatched marker text_at "text" */
        g_auto(GStrv) numbers = g_strsplit(g_strstrip(fields[2]), " ", -1);
        double total = g_ascii_strtod(numbers[1 + RP_N_BUFFER_CATEGORIES], NULL);
        double size = (double)rp_plan_arena_bytes(made.plan, arena) / (double)RP_GIB;

        assert_true(fabs(total - size) <= 1e-5 * size);
    }
    g_ptr_array_unref(rows);
    rp_figure_free(figure);
    run_clear(&made);
}

RP_TEST(published_tables_are_complete)
{
    static const struct {
        const char *file;
        guint rows;
    } files[] = {
        {"published-schedules.csv", 15},
        {"published-throughput.csv", 22},
        {"published-sequence-sensitivity.csv", 8},
        {"published-h200.csv", 6},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autoptr(RpTable) table = rp_table_published(files[i].file);

        assert_int_equal(rp_table_n_rows(table), files[i].rows);
    }
    g_autoptr(RpTable) schedules = rp_table_published("published-schedules.csv");
    guint row = rp_table_find(schedules, "schedule", "roundpipe", "model", "qwen3-32b");
    assert_true(row != RP_TABLE_NONE);
    assert_string_equal(rp_table_text(schedules, row, "partition"), "2*2,3*20|0,1*64");
    assert_true(fabs(rp_table_number(schedules, row, "bubble_pct") - 6.6661) < 1e-9);
    g_autoptr(RpTable) throughput = rp_table_published("published-throughput.csv");
    assert_true(isnan(rp_table_number(throughput, 0, "qwen3-32b"))); /* OOM */
    assert_true(isnan(rp_table_number(throughput, 0, "no such column")));
    assert_int_equal(rp_table_find(throughput, "system", "x", "server", "y"), RP_TABLE_NONE);
}

RP_TEST(a_table_with_an_open_quote_or_a_missing_field_is_refused)
{
    static const char *const texts[] = {"a,b\n1,\"2\n", "a,b\n1\n", "a,b\n# fine\n1,2,3\n"};

    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++)
        rp_refuses(i == 2 ? "line 3" : "line 2", rp_table_parse, texts[i]);
}

RP_TEST(numbers_have_points_in_every_locale)
{
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    g_autoptr(GString) text = g_string_new(NULL);
    const char *found = NULL;

    for (gsize i = 0; i < G_N_ELEMENTS(locales) && found == NULL; i++)
        found = setlocale(LC_NUMERIC, locales[i]);
    rp_text_append(text, "%.2f %u", 1.5, 7);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(text->str, "1.50 7");
    if (found == NULL) {
        g_string_free(g_steal_pointer(&text), TRUE); /* skip() jumps */
        skip();
    }
}

/* The figure of one run, of which @panel has a block of data: step, value and mean. */
static GPtrArray *
panel_of(RpRunPoint *points, guint n, guint panel)
{
    const RpRunCurve curve = {"one", points, n};
    RpFigure *figure = rp_must(rp_runs_figure, "runs", "it's", &curve, 1, FALSE, NULL);

    GPtrArray *lines = data_lines(figure, panel);

    rp_figure_free(figure);
    return lines;
}

RP_TEST(the_curve_of_a_run_has_every_step_and_its_mean)
{
    RpRunPoint points[102];

    for (guint i = 0; i < G_N_ELEMENTS(points); i++)
        points[i] = (RpRunPoint){i + 1, i % 2 == 0 ? 2 : 4, 1e-3, NAN, NAN, NAN, NAN};
    points[50].loss = NAN;
    points[101] = (RpRunPoint){101, NAN, NAN, NAN, NAN, NAN, 3.25};
    GPtrArray *losses = panel_of(points, G_N_ELEMENTS(points), 0);
    GPtrArray *evaluated = panel_of(points, G_N_ELEMENTS(points), 1);
    GPtrArray *rates = panel_of(points, G_N_ELEMENTS(points), 2);
    assert_int_equal(losses->len, 100);
    assert_string_equal(losses->pdata[1], "2 4 2.66666667");
    assert_string_equal(losses->pdata[0], "1 2 2");
    assert_int_equal(evaluated->len, 1);
    assert_string_equal(evaluated->pdata[0], "101 3.25 3.25");
    assert_string_equal(rates->pdata[100], "101 0.001 0.001");
    g_ptr_array_unref(evaluated);
    g_ptr_array_unref(losses);
    g_ptr_array_unref(rates);
}

RP_TEST(a_long_curve_keeps_its_extremes_in_few_points)
{
    const guint n = 100001;
    g_autofree RpRunPoint *points = g_new0(RpRunPoint, n);
    gboolean least = FALSE, greatest = FALSE;

    for (guint i = 0; i < n; i++)
        points[i] = (RpRunPoint){.step = i + 1, .loss = 5};
    points[77777].loss = 9;
    points[77779].loss = 1;
    GPtrArray *losses = panel_of(points, n, 0);
    assert_in_range(losses->len, 100, 1000);
    for (guint i = 0; i < losses->len; i++) {
        least |= g_str_has_prefix(losses->pdata[i], "77780 1 ");
        greatest |= g_str_has_prefix(losses->pdata[i], "77778 9 ");
    }
    assert_true(least && greatest);
    assert_string_equal(losses->pdata[losses->len - 1], "100001 5 5");
    g_ptr_array_unref(losses);
}

RP_TEST(no_number_makes_no_curve)
{
    RpRunPoint gap = {1, NAN, NAN, NAN, NAN, NAN, NAN};
    const RpRunCurve none = {"none", NULL, 0}, gaps = {"gaps", &gap, 1};
    GError *error = NULL;

    assert_null(rp_runs_figure("runs", "none", &none, 1, FALSE, NULL, &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA));
    g_clear_error(&error);
    assert_null(rp_runs_figure("runs", "gap", &gaps, 1, FALSE, NULL, &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA));
    g_clear_error(&error);
    gap.loss = 3;
    RpFigure *figure = rp_must(rp_runs_figure, "runs", "one", &gaps, 1, FALSE, NULL);
    rp_figure_free(figure);
}
