/* Pictures as gnuplot draws them, and the figures of the paper. Skipped without gnuplot. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>

#include "paper-figs/figures.h"
#include "plots/charts/charts.h"

#define EXIT_SKIP 77

static void
remove_directory(const char *path)
{
    g_autoptr(GDir) directory = g_dir_open(path, 0, NULL);
    const char *name;

    while (directory != NULL && (name = g_dir_read_name(directory)) != NULL) {
        g_autofree char *file = g_build_filename(path, name, NULL);

        g_unlink(file);
    }
    g_rmdir(path);
}

/* Two directories to draw into. */
typedef struct {
    char *first;
    char *second;
} Fixture;

static void
set_up(Fixture *fixture)
{
    fixture->first = g_dir_make_tmp("rp-figures-XXXXXX", NULL);
    fixture->second = g_dir_make_tmp("rp-figures-XXXXXX", NULL);
    assert_true(fixture->first != NULL && fixture->second != NULL);
}

static void
tear_down(Fixture *fixture)
{
    remove_directory(fixture->first);
    remove_directory(fixture->second);
    g_free(fixture->first);
    g_free(fixture->second);
}

static char *
contents(const char *directory, const char *file, gsize *length)
{
    g_autofree char *path = g_build_filename(directory, file, NULL);
    g_autoptr(GError) error = NULL;
    char *text = NULL;

    if (!g_file_get_contents(path, &text, length, &error))
        print_error("%s\n", error->message);
    assert_non_null(text);
    return text;
}

static guint32
big_endian(const char *bytes)
{
    const guchar *b = (const guchar *)bytes;

    return (guint32)b[0] << 24 | (guint32)b[1] << 16 | (guint32)b[2] << 8 | b[3];
}

static RpFigure *
some_figure(void)
{
    static const RpBarPart part = {"part of a \"bar\"", RP_COLOUR_BLUE};
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new("bars", "it's `a` title, M_R = 8", "value, ms", 1, &part, 1);
    RpBarRow row = {.group = "group's", .label = "a_{b} \"c\"", .values = {3}, .marker = NAN};

    rp_bar_chart_add(chart, &row);
    RpFigure *figure = rp_bar_chart_figure(chart);
    rp_figure_set_caption(figure, "Predicted.");
    rp_figure_add_command(figure, "roundpipe simulate X");
    return figure;
}

RP_TEST_OF(a_picture_is_a_png_of_the_size_asked_for, Fixture *fixture)
{
    g_autoptr(RpFigure) figure = some_figure();
    g_autoptr(GError) error = NULL;
    gsize length = 0;

    if (!rp_figure_write(figure, fixture->first, RP_PICTURE_PNG, &error))
        fail_msg("%s", error->message);
    g_autofree char *png = contents(fixture->first, "bars.png", &length);
    assert_true(length > 1000);
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    assert_memory_equal(png + 12, "IHDR", 4);
    /* twice the pixels */
    assert_int_equal(big_endian(png + 16), 2 * rp_figure_width(figure));
    assert_int_equal(big_endian(png + 20), 2 * rp_figure_height(figure));
    assert_memory_equal(png + length - 8, "IEND", 4);
}

RP_TEST_OF(a_figure_leaves_every_format_with_data_script_and_caption, Fixture *fixture)
{
    static const struct {
        const char *file;
        const char *part;
    } files[] = {
        {"bars.svg", "<svg"},         {"bars.pdf", "%PDF-"},
        {"bars.dat", "a_{b} 'c'"},    {"bars.gp", "load 'style.gp'"},
        {"bars.txt", "Predicted."},   {"bars.txt", "roundpipe simulate X"},
        {"style.gp", "set terminal"}, {"bars.svg", "it's `a` title, M_R = 8"},
        {"bars.svg", "a_{b} 'c'"},
    };
    g_autoptr(RpFigure) figure = some_figure();
    g_autoptr(GError) error = NULL;

    if (!rp_figure_write(figure, fixture->first, RP_PICTURE_ALL, &error))
        fail_msg("%s", error->message);
    for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
        gsize length = 0;
        g_autofree char *text = contents(fixture->first, files[i].file, &length);

        if (g_strstr_len(text, (gssize)length, files[i].part) == NULL)
            fail_msg("%s lacks %s", files[i].file, files[i].part);
    }
}

RP_TEST_OF(a_figure_drawn_again_replaces_all_of_its_files, Fixture *fixture)
{
    const double x[] = {1, 2, 3};
    g_autoptr(GError) error = NULL;

    for (guint n = 3; n >= 2; n--) {
        g_autoptr(RpLineChart) chart = rp_line_chart_new("lines", "lines", "x", "y");
        rp_line_chart_add(chart, "series", RP_COLOUR_BLUE, RP_LINE_SOLID, x, x, n);
        g_autoptr(RpFigure) figure = rp_line_chart_figure(chart);
        if (!rp_figure_write(figure, fixture->first, RP_PICTURE_PNG, &error))
            fail_msg("%s", error->message);
    }
    g_autofree char *data = contents(fixture->first, "lines.dat", NULL);
    assert_null(strstr(data, "3 3"));
}

/* PNG only. @names, @measured_dir: (nullable) */
static void
make(const char *directory, const char *const *names, const char *measured_dir, GPtrArray *left_out)
{
    g_autofree char *profiles = rp_test_source_path("profiles");
    g_autoptr(GError) error = NULL;
    RpFiguresRequest request = {.output_dir = directory,
                                .profiles_dir = profiles,
                                .measured_dir = measured_dir,
                                .names = names,
                                .formats = RP_PICTURE_PNG};

    if (!rp_figures_make(&request, left_out, &error))
        fail_msg("%s", error->message);
}

/* `balance` searches as figures 15 and `fit` do, in a twentieth of the time; figures 10 and 12 are made as 9
 * and 11. */
static gboolean
is_made_once(const char *name)
{
    return RP_TEST_FEW || g_str_has_prefix(name, "figure-9") ||
           g_str_has_prefix(name, "figure-11") || strcmp(name, "fit") == 0 ||
           g_str_has_prefix(name, "fit.") ||
           (g_str_has_prefix(name, "figure-15") && strstr(name, "published") == NULL);
}

static void
make_again(const char *directory)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (const char *const *name = rp_figures_names(); *name != NULL; name++)
        if (!is_made_once(*name))
            g_ptr_array_add(names, (gpointer)*name);
    g_ptr_array_add(names, NULL);
    make(directory, (const char *const *)names->pdata, NULL, NULL);
}

/* Every figure, without measurements; but for two with searches of seconds like figure 15's, unless
 * all is tried: then `index.txt` lists the figures left out, as it does if no names are given.
 * Returns: number of figures made */
static guint
make_first(const char *directory)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    g_autoptr(GPtrArray) left_out = g_ptr_array_new_with_free_func(g_free);

    for (const char *const *name = rp_figures_names(); *name != NULL; name++)
        if (strcmp(*name, "figure-15-early") != 0 && strcmp(*name, "fit") != 0 &&
            !g_str_has_suffix(*name, "-measured"))
            g_ptr_array_add(names, (gpointer)*name);
    g_ptr_array_add(names, NULL);
    if (!RP_TEST_ALL) {
        make(directory, (const char *const *)names->pdata, "/no/such/tables", NULL);
        return names->len - 1;
    }
    make(directory, NULL, "/no/such/tables", left_out);
    g_autofree char *index = contents(directory, "index.txt", NULL);
    assert_int_equal(left_out->len, 3);
    assert_true(g_str_has_prefix(g_ptr_array_index(left_out, 0), "figure-13-measured: "));
    assert_non_null(strstr(index, "figure-14-measured: not drawn"));
    return g_strv_length((char **)rp_figures_names()) - left_out->len;
}

static void
check_published_bars(const char *directory)
{
    g_autofree char *data = contents(directory, "figure-15-published.dat", NULL);
    g_auto(GStrv) lines = g_strsplit(data, "\n", -1);
    guint checked = 0;

    for (guint i = 0; lines[i] != NULL; i++) {
        if (*lines[i] == '#' || *lines[i] == '\0' || strstr(lines[i], "async") != NULL)
            continue;
        const char *numbers = strchr(strchr(lines[i], '"') + 1, '"') + 2;
        g_auto(GStrv) fields = g_strsplit(numbers, " ", -1);
        /* colour, five parts, total, hatched, marker */
        double total = g_ascii_strtod(fields[6], NULL);
        double published = g_ascii_strtod(fields[8], NULL);

        if (fabs(total - published) > 0.001)
            fail_msg("%s: %g, published %g", lines[i], total, published);
        checked++;
    }
    assert_int_equal(checked, 15);
}

/* Tables of errors: a row for each system and model, errors that follow from the others, and out of memory
 * where it was published but for these. */
static void
check_systems(const char *directory)
{
    static const struct {
        const char *file;
        guint rows;
        const char *wrong;
    } tables[] = {
        {"figure-9.csv", 40,
         "fsdp llama-3.1-8b;zero-infinity qwen3-235b-lora;mobius qwen3-235b-lora;"},
        {"figure-10.csv", 35, "zero-infinity qwen3-235b-lora;mobius qwen3-235b-lora;"},
        {"figure-11.csv", 35, "megatron-pp qwen3-32b;"},
        {"figure-12.csv", 30, "zero-2 gpt-oss-20b;megatron-pp qwen3-32b;"},
    };

    for (guint t = 0; t < G_N_ELEMENTS(tables); t++) {
        g_autofree char *text = contents(directory, tables[t].file, NULL);
        g_auto(GStrv) lines = g_strsplit(g_strchomp(text), "\n", -1);
        g_autoptr(GString) wrong = g_string_new(NULL);

        assert_int_equal(g_strv_length(lines), 1 + tables[t].rows);
        for (guint i = 1; lines[i] != NULL; i++) {
            g_auto(GStrv) fields = g_strsplit(lines[i], ",", -1);
            const double predicted = g_ascii_strtod(fields[5], NULL);
            const double published = g_ascii_strtod(fields[6], NULL);

            assert_int_equal(g_strv_length(fields), 10);
            if (predicted > 0 && published > 0 &&
                fabs(g_ascii_strtod(fields[7], NULL) - 100 * (predicted / published - 1)) > 0.01)
                fail_msg("%s: %s", tables[t].file, lines[i]);
            if ((predicted > 0) != (published > 0))
                g_string_append_printf(wrong, "%s %s;", fields[0], fields[1]);
        }
        assert_string_equal(wrong->str, tables[t].wrong);
    }
}

RP_TEST_OF(every_figure_is_made_listed_and_the_same_again, Fixture *fixture)
{
    g_autoptr(GDir) directory = NULL;
    guint data_files = 0;
    const char *name;
    const guint n_made = make_first(fixture->first);

    if (!RP_TEST_FEW)
        make_again(fixture->second);
    check_published_bars(fixture->first);
    check_systems(fixture->first);
    g_autofree char *index = contents(fixture->first, "index.txt", NULL);
    directory = g_dir_open(fixture->first, 0, NULL);
    while ((name = g_dir_read_name(directory)) != NULL) {
        if (!g_str_has_suffix(name, ".dat") && !g_str_has_suffix(name, ".gp"))
            continue;
        if (!is_made_once(name)) {
            g_autofree char *first = contents(fixture->first, name, NULL);
            g_autofree char *second = contents(fixture->second, name, NULL);
            assert_string_equal(first, second);
        }
        if (!g_str_has_suffix(name, ".dat"))
            continue;
        g_autofree char *heading = g_strdup_printf("%.*s: ", (int)strlen(name) - 4, name);
        if (strstr(index, heading) == NULL)
            fail_msg("index.txt does not list %s", name);
        data_files++;
    }
    assert_true(data_files >= n_made);
    assert_non_null(strstr(index, "Predicted"));
    assert_non_null(strstr(index, "Diamonds: published"));
}

RP_TEST_OF(a_figure_that_nothing_was_measured_for_is_refused_by_name, Fixture *fixture)
{
    static const char *const names[] = {"figure-16-measured", NULL};
    g_autoptr(GError) error = NULL;
    RpFiguresRequest request = {.output_dir = fixture->first,
                                .profiles_dir = "/no/such/profiles",
                                .measured_dir = fixture->second,
                                .names = names,
                                .formats = RP_PICTURE_PNG};

    assert_false(rp_figures_make(&request, NULL, &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY));
    rp_assert_error_message_contains(error, "figure-16.csv");
}

/* Two GPUs, hundreds of iterations: no box is wide enough for a label. */
RP_TEST_OF(a_timeline_too_narrow_for_a_label_is_drawn_in_every_format, Fixture *fixture)
{
    static const char *const files[] = {"steps.png", "steps.svg", "steps.pdf"};
    g_autoptr(RpTrace) trace = rp_trace_new_empty(2, RP_TRACE_MEASURED);
    RpTimelinePanel panel = {.trace = trace, .mark_end = TRUE};
    g_autoptr(RpFigure) figure = NULL;
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < 2000; i++) {
        RpTraceRecord record = {.start_ns = 1000000 * (gint64)i,
                                .end_ns = 1000000 * (gint64)i + 600000,
                                .task = i,
                                .lane = i % 2 == 0 ? 0 : RP_LANES_PER_DEVICE,
                                .iteration = i / 4,
                                .micro_batch = i / 2 % 2,
                                .kind = i % 2 == 0 ? RP_TASK_FORWARD : RP_TASK_BACKWARD};

        rp_trace_append(trace, &record);
    }
    figure = rp_timeline_figure("steps", "steps", &panel, 1);
    assert_non_null(
        strstr(rp_figure_data(figure)->str, "# time_ms row label colour\n0 0 \"\" 0\n"));
    if (!rp_figure_write(figure, fixture->first, RP_PICTURE_ALL, &error))
        fail_msg("%s", error->message);
    for (guint i = 0; i < G_N_ELEMENTS(files); i++) {
        gsize length = 0;
        g_autofree char *picture = contents(fixture->first, files[i], &length);

        assert_true(length > 1000);
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
RP_TEST_NEEDS(rp_gnuplot_check_formats(RP_PICTURE_ALL, NULL))
