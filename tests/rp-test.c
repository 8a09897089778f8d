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
