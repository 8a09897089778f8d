/**
 * Draws the cost of the simulator against the size of the run, from `bench-simulate --csv`:
 *
 *   bench-simulate --csv --large >cost.csv && plot-cost cost.csv DIR
 *
 * leaves DIR/simulator-time.* and DIR/simulator-memory.*.
 */
#include <stdio.h>
#include <stdlib.h>

#include "plots/charts/charts.h"
#include "plots/figure.h"

#define MAX_SERIES 12

/* One measured case: schedule and fidelity name its series. */
typedef struct {
    char *series;
    gint64 tasks;
    double simulate_ms;
    double rss_mib;
} Case;

static void
clear_case(gpointer data)
{
    g_free(((Case *)data)->series);
}

static int
compare_tasks(gconstpointer a, gconstpointer b)
{
    const Case *x = a;
    const Case *y = b;

    return (x->tasks > y->tasks) - (x->tasks < y->tasks);
}

/* schedule,fidelity,gpus,micro_batches,tasks,plan_ms,simulate_ms,tasks_per_s,peak_rss_mib */
static GArray *
read_cases(const char *path, GError **error)
{
    GArray *cases = g_array_new(FALSE, FALSE, sizeof(Case));
    g_autofree char *text = NULL;

    g_array_set_clear_func(cases, clear_case);
    if (!g_file_get_contents(path, &text, NULL, error)) {
        g_array_unref(cases);
        return NULL;
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 1; lines[i] != NULL; i++) {
        g_auto(GStrv) cells = g_strsplit(lines[i], ",", -1);

        if (g_strv_length(cells) != 9)
            continue;
        Case one = {.series = g_strdup_printf("%s (%s)", cells[0], cells[1]),
                    .tasks = g_ascii_strtoll(cells[4], NULL, 10),
                    .simulate_ms = g_ascii_strtod(cells[6], NULL),
                    .rss_mib = g_ascii_strtod(cells[8], NULL)};
        g_array_append_val(cases, one);
    }
    g_array_sort(cases, compare_tasks);
    return cases;
}

static GPtrArray *
series_of(const GArray *cases)
{
    GPtrArray *names = g_ptr_array_new();

    for (guint i = 0; i < cases->len; i++) {
        char *name = g_array_index(cases, Case, i).series;

        if (!g_ptr_array_find_with_equal_func(names, name, g_str_equal, NULL) &&
            names->len < MAX_SERIES)
            g_ptr_array_add(names, name);
    }
    return names;
}

/* A table with a column a series, for rp_line_chart_from_csv(). */
static char *
table_of(const GArray *cases, const GPtrArray *names, gboolean memory)
{
    GString *table = g_string_new("tasks of the plan");

    for (guint s = 0; s < names->len; s++)
        g_string_append_printf(table, ",%s", (const char *)g_ptr_array_index(names, s));
    g_string_append_c(table, '\n');
    for (guint i = 0; i < cases->len; i++) {
        const Case *one = &g_array_index(cases, Case, i);

        g_string_append_printf(table, "%" G_GINT64_FORMAT, one->tasks);
        for (guint s = 0; s < names->len; s++) {
            gboolean own = g_str_equal(one->series, g_ptr_array_index(names, s));

            if (own)
                g_string_append_printf(table, ",%.6g", memory ? one->rss_mib : one->simulate_ms);
            else
                g_string_append_c(table, ',');
        }
        g_string_append_c(table, '\n');
    }
    return g_string_free(table, FALSE);
}

static gboolean
draw(const GArray *cases, const GPtrArray *names, gboolean memory, const char *directory,
     GError **error)
{
    g_autofree char *table = table_of(cases, names, memory);
    g_autoptr(RpFigure) figure = rp_line_chart_from_csv(
        memory ? "simulator-memory" : "simulator-time",
        memory ? "Memory of plan and trace against the size of the run (measured)"
               : "Time of the simulator against the size of the run (measured, one core)",
        memory ? "peak memory, MiB" : "time, ms", table, error);

    if (figure == NULL)
        return FALSE;
    rp_figure_set_caption(figure,
                          "Measured: bench-simulate, up to 1,000 devices and 10,000 micro-batches. "
                          "Each point is one run in a process of its own.");
    rp_figure_add_command(figure, "bench-simulate --csv --large >cost.csv && plot-cost cost.csv .");
    return rp_figure_write(figure, directory, RP_PICTURE_PNG | RP_PICTURE_SVG, error);
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) cases = NULL;

    if (argc != 3) {
        fprintf(stderr, "usage: %s COST.csv DIRECTORY\n", argv[0]);
        return 2;
    }
    if (!rp_gnuplot_check_formats(RP_PICTURE_PNG | RP_PICTURE_SVG, &error) ||
        !rp_output_directory_check(argv[2], &error) ||
        (cases = read_cases(argv[1], &error)) == NULL) {
        fprintf(stderr, "plot-cost: %s\n", error->message);
        return 1;
    }
    g_autoptr(GPtrArray) names = series_of(cases);

    if (draw(cases, names, FALSE, argv[2], &error) && draw(cases, names, TRUE, argv[2], &error))
        return 0;
    fprintf(stderr, "plot-cost: %s\n", error->message);
    return 1;
}
