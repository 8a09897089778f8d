#include "tests/rp-test.h"

static struct CMUnitTest tests[200];
static gsize n_tests;
static CMFixtureFunction each_setup, each_teardown, group_setup, group_teardown;
static gboolean (*can_run)(void);

void
rp_test_add(const char *name, CMUnitTestFunction function, CMFixtureFunction setup,
            CMFixtureFunction teardown, void *row)
{
    g_assert(n_tests < G_N_ELEMENTS(tests));
    tests[n_tests++] = (struct CMUnitTest){name, function, setup, teardown, row};
}

void
rp_test_set_fixture(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    each_setup = setup;
    each_teardown = teardown;
}

void
rp_test_set_group(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    group_setup = setup;
    group_teardown = teardown;
}

void
rp_test_set_needs(gboolean (*function)(void))
{
    can_run = function;
}

gboolean
rp_test_writes(void)
{
    return g_getenv("RP_TEST_WRITE") != NULL;
}

void
rp_test_golden(const char *name, const char *section,
               void (*check)(const char *words, char **expected, gpointer data), gpointer data)
{
    g_autofree char *path = rp_test_source_path(name);
    g_autofree char *heading = g_strconcat("## ", section, NULL);
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        fail_msg("cannot read %s", path);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    char **line = lines;
    const char *frame = "@@";

    while (*line != NULL && strcmp(*line, heading) != 0)
        line++;
    if (*line == NULL)
        fail_msg("no section \"%s\" in %s", section, path);
    for (line++; *line != NULL && !g_str_has_prefix(*line, "## "); line++) {
        g_auto(GStrv) parts = NULL;

        if (g_str_has_prefix(*line, "% "))
            frame = *line + 2;
        if (!g_str_has_prefix(*line, "$"))
            continue;
        parts = g_strsplit(frame, "@@", 2);
        g_autofree char *words =
            g_strconcat(parts[0], line[0] + ((*line)[1] == ' ' ? 2 : 1), parts[1], NULL);
        check(words, &line[1], data);
    }
    g_autofree char *written = g_strjoinv("\n", lines);
    if (rp_test_writes() && !g_file_set_contents(path, written, -1, NULL))
        fail_msg("cannot write %s", path);
}

typedef struct {
    char *(*make)(const char *words, gpointer data);
    gpointer data;
} Lines;

static void
compare_line(const char *words, char **expected, gpointer lines)
{
    const Lines *of = lines;
    g_autofree char *text = g_strcompress(words);
    g_autofree char *found = of->make(text, of->data);

    if (found != NULL && g_pattern_match_simple(*expected, found))
        return;
    if (found == NULL || strchr(found, '\n') != NULL || !rp_test_writes())
        fail_msg("%s\n  expected: %s\n  found:    %s", words, *expected,
                 found != NULL ? found : "nothing to refuse");
    g_free(*expected);
    *expected = g_steal_pointer(&found);
}

void
rp_test_lines(const char *name, const char *section,
              char *(*make)(const char *words, gpointer data), gpointer data)
{
    Lines lines = {make, data};

    rp_test_golden(name, section, compare_line, &lines);
}

char *
rp_test_refusal(GError **error)
{
    if (*error == NULL)
        return NULL;
    char *line = g_strdup_printf("%s %d %s", g_quark_to_string((*error)->domain), (*error)->code,
                                 (*error)->message);

    g_clear_error(error);
    return line;
}

void
rp_test_no_state(void *state)
{
    (void)state;
}

int
rp_test_run(const char *program)
{
    g_autofree char *name = g_path_get_basename(program);
    const char *filter = g_getenv("RP_TEST_FILTER");

    if (can_run != NULL && !can_run())
        return 77; /* Meson: skipped */
    if (filter != NULL)
        cmocka_set_test_filter(filter);
    for (gsize i = 0; i < n_tests; i++) {
        if (tests[i].setup_func != NULL)
            continue;
        tests[i].setup_func = each_setup;
        tests[i].teardown_func = each_teardown;
    }
    return _cmocka_run_group_tests(name, tests, n_tests, group_setup, group_teardown);
}
