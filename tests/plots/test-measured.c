/* Tables that paper-figs/measure wrote: values read from them, and refusals. */
#include "tests/rp-test.h"

#include <math.h>
#include <stdio.h>

#include "paper-figs/paper.h"
#include "plots/table.h"

#define HEADER                                                                                     \
    "# a comment\nmodel,gpus,schedule,mode,consistency,sequence,micro_batch,micro_batches,"        \
    "device_memory,tokens_per_step,predicted_ms,measured_ms,predicted_tokens_per_s,"               \
    "tokens_per_s,predicted_bubble,measured_bubble,device,date\n"
#define ROW(model, gpus, mode, batches, memory, tokens_per_s, device)                              \
    model "," gpus ",roundpipe," mode ",events,64,2," batches "," memory ",512,,,," tokens_per_s   \
          ",0,0," device ",2026-01-01\n"

static const RpMeasured *
nth(const GPtrArray *rows, guint i)
{
    return g_ptr_array_index(rows, i);
}

RP_TEST(the_last_row_of_a_configuration_counts)
{
    GPtrArray *rows = rp_must(rp_measured_parse,
                              HEADER ROW("qwen3-8b", "1", "async", "4", "", "100", "A")
                                  ROW("qwen3-8b", "1", "async", "8", "", "300", "A")
                                      ROW("qwen3-8b", "1", "async", "4", "", "200", "A")
                                          ROW("qwen3-8b", "1", "async", "4", "24GiB", "50", "A")
                                              ROW("qwen3-8b", "1", "async", "4", "", "70", "B"),
                              "t.csv");

    assert_int_equal(rows->len, 4);
    assert_true(nth(rows, 0)->tokens_per_s == 200);
    assert_true(nth(rows, 1)->tokens_per_s == 300);
    assert_string_equal(nth(rows, 2)->device_memory, "24GiB");
    assert_true(fabs(rp_measured_seconds(nth(rows, 0)) - 2.56) < 1e-9);
    assert_true(isnan(rp_measured_predicted_seconds(nth(rows, 0))));
    assert_null(rp_measured_one_device(rows));
    g_ptr_array_unref(rows);
}

RP_TEST(titles_name_what_differs_from_the_usual)
{
    GPtrArray *rows = rp_must(rp_measured_parse,
                              HEADER ROW("qwen3-8b", "1", "async", "4", "24GiB", "100", "A")
                                  ROW("mine", "1", "sync", "4", "", "100", "A"),
                              "t.csv");

    g_autofree char *first = rp_measured_title(nth(rows, 0), FALSE);
    g_autofree char *second = rp_measured_title(nth(rows, 1), TRUE);
    assert_string_equal(first, "Qwen3-8B, async, 24GiB");
    assert_string_equal(second, "mine, sync, A");
    assert_string_equal(rp_measured_one_device(rows), "A");
    g_ptr_array_unref(rows);
}

RP_TEST(a_bad_row_is_named_with_its_column)
{
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {HEADER ROW("m", "1", "async", "4", "", "1", "A") ROW("m", "0", "async", "4", "", "1", "A"),
         "t.csv: row 2, column gpus: expected a whole number from 1, found \"0\""},
        {HEADER ROW("m", "1.5", "async", "4", "", "1", "A"), "column gpus"},
        {HEADER ROW("m", "1", "async", "4", "", "OOM", "A"), "column tokens_per_s"},
        {HEADER ROW("m", "1", "async", "4", "", "-1", "A"), "column tokens_per_s"},
        {HEADER ROW("m", "1", "", "4", "", "1", "A"), "column mode"},
        {"model,gpus\nm,1\n", "column schedule: expected a text, found \"no such column\""},
        {"model,gpus\nm\n", "t.csv: line 2"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;

        assert_null(rp_measured_parse(cases[i].text, "t.csv", &error));
        assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA));
        rp_assert_error_message_contains(error, cases[i].part);
    }
}

RP_TEST(a_table_without_rows_says_who_adds_them)
{
    g_autoptr(GError) error = NULL;

    assert_null(rp_measured_parse(HEADER, "t.csv", &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY));
    rp_assert_error_message_contains(error, "t.csv has no measured rows yet: paper-figs/measure");
}

RP_TEST(committed_tables_can_be_read)
{
    static const char *const files[] = {"figure-13.csv", "figure-14.csv", "figure-16.csv"};

    for (gsize i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autofree char *text = rp_table_built_in(files[i]);
        g_autoptr(GError) error = NULL;
        GPtrArray *rows = rp_measured_parse(text, files[i], &error);

        if (rows != NULL)
            g_ptr_array_unref(rows);
        else if (!g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_EMPTY))
            fail_msg("%s", error->message);
    }
}

/* One recipe's figure from tables in a directory. (transfer full) */
static RpFigure *
figure_of(RpPaperRecipe *recipe, const char *name, const char *file, const char *text)
{
    g_autofree char *directory = g_dir_make_tmp("rp-measured-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(directory, file, NULL);
    g_autoptr(RpPaper) paper = rp_paper_new("/no/such/profiles", directory);
    g_autoptr(GPtrArray) figures = g_ptr_array_new();
    g_autoptr(GError) error = NULL;
    gboolean made =
        g_file_set_contents(path, text, -1, NULL) && recipe(paper, name, figures, &error);

    (void)remove(path);
    (void)remove(directory);
    rp_assert_no_error(error);
    assert_true(made);
    assert_int_equal(figures->len, 1);
    return g_ptr_array_index(figures, 0);
}

RP_TEST(figure_13_shows_the_fastest_shape_and_its_scaling)
{
    g_autoptr(RpFigure) figure =
        figure_of(rp_paper_figure_13_measured, "figure-13-measured", "figure-13.csv",
                  HEADER ROW("qwen3-1.7b", "4", "async", "8", "", "300", "A")
                      ROW("qwen3-1.7b", "1", "async", "4", "", "100", "A")
                          ROW("qwen3-1.7b", "1", "async", "8", "", "90", "A"));

    assert_non_null(strstr(rp_figure_data(figure)->str, "tokens/s\n1 100\n4 300\n"));
    assert_non_null(strstr(rp_figure_data(figure)->str, "tokens/s\n1 100\n4 400\n"));
    assert_non_null(strstr(rp_figure_script(figure)->str, "Qwen3-1.7B, async: 75 % on 4"));
    assert_non_null(strstr(rp_figure_script(figure)->str, "set xtics (1, 4)"));
    assert_non_null(strstr(rp_figure_caption(figure), "from 1 to 4 GPUs: 75.0 %."));
    /* nothing is published for such devices */
    assert_null(strstr(rp_figure_script(figure)->str, "'published, Python'"));
}

RP_TEST(figure_13_shows_what_is_published_for_the_same_devices)
{
    g_autofree char *text =
        g_strconcat(HEADER,
                    "qwen3-1.7b,4,roundpipe,async,events,2048,16,16,,524288,,,152758,149411,0,0,"
                    "NVIDIA H200,2026-11-20\n",
                    NULL);
    g_autoptr(RpFigure) figure =
        figure_of(rp_paper_figure_13_measured, "figure-13-measured", "figure-13.csv", text);

    assert_non_null(strstr(rp_figure_data(figure)->str, "\n4 149411\n"));
    assert_non_null(strstr(rp_figure_data(figure)->str, "\n4 152758\n"));
    assert_non_null(strstr(rp_figure_data(figure)->str, "\n1 26558\n4 87442\n"));
    assert_non_null(strstr(rp_figure_script(figure)->str, "'published, Python'"));
}

RP_TEST(figure_16_sets_blocking_beside_events)
{
    g_autoptr(RpFigure) figure =
        figure_of(rp_paper_figure_16_measured, "figure-16-measured", "figure-16.csv",
                  HEADER "m,2,roundpipe,async,blocking,64,2,4,,1000,,,800,500,0,0,A,2026-01-01\n"
                         "m,2,roundpipe,async,events,64,2,4,,1000,,,1000,800,0,0,A,2026-01-01\n");
    const char *events = strstr(rp_figure_data(figure)->str, "\"events\"");
    const char *blocking = strstr(rp_figure_data(figure)->str, "\"blocking\"");

    assert_non_null(events);
    assert_non_null(blocking);
    assert_true(events < blocking);
    assert_non_null(strstr(events, " 1.25 "));
    assert_non_null(strstr(blocking, "\"2.000  (+0.750 s, +60.0 %)\""));
}
