/**
 * Included first by every test: CMocka with the headers it needs before it, GLib and helpers.
 *
 *     RP_TEST(refuses_a_profile_without_layers)
 *     {
 *         ...
 *     }
 *
 * defines a test and adds it to those of the program, which run in the order of the file. No list of
 * them and no main() are written. In the environment RP_TEST_FILTER='refuses_*' runs some alone.
 *
 * CMocka's asserts leave a test by longjmp, past any g_autoptr: memory that must not leak goes into
 * a fixture.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glib.h>
#include <string.h>

#ifndef RP_SOURCE_ROOT
#error "tests are built with -DRP_SOURCE_ROOT=\"<root of the sources>\""
#endif

/* How much a test tries. All with ROUNDPIPE_TEST_ALL in the environment (scripts/check-long sizes); else, where
 * RP_TEST_SMALL is 1 (tests/meson.build) or with ROUNDPIPE_TEST_FEW (./check --full), every kind of case instead of every
 * combination. */
#ifndef RP_TEST_SMALL
#define RP_TEST_SMALL 0
#endif
#define RP_TEST_ALL (g_getenv("ROUNDPIPE_TEST_ALL") != NULL)
#define RP_TEST_FEW ((RP_TEST_SMALL || g_getenv("ROUNDPIPE_TEST_FEW") != NULL) && !RP_TEST_ALL)
/* One case of how many: all, @usual, or @few where RP_TEST_FEW is true. */
#define RP_TEST_EVERY(usual, few) (RP_TEST_ALL ? 1u : RP_TEST_FEW ? (few) : (usual))

/* A test, in whose body @state is that of its fixture. */
#define RP_TEST(name) RP_TEST_WITH(name, NULL, NULL)
/* The same with a fixture of its own. */
#define RP_TEST_WITH(name, setup, teardown)                                                        \
    static void name(void **state);                                                                \
    RP_TEST_AT_START(rp_add_##name)                                                                \
    {                                                                                              \
        rp_test_add(#name, name, setup, teardown, NULL);                                           \
    }                                                                                              \
    static void name(G_GNUC_UNUSED void **state)
/* A test whose fixture is its parameter, `Fixture *f`. */
#define RP_TEST_OF(name, parameter)                                                                \
    static void name##_of(parameter);                                                              \
    RP_TEST(name)                                                                                  \
    {                                                                                              \
        name##_of(*state);                                                                         \
    }                                                                                              \
    static void name##_of(parameter)
/* The fixture of each test that has none of its own. */
#define RP_TEST_FIXTURE(setup, teardown)                                                           \
    RP_TEST_AT_START(rp_set_fixture)                                                               \
    {                                                                                              \
        rp_test_set_fixture(setup, teardown);                                                      \
    }
/* The same of a zeroed @type that `fill(f)` fills and `clear(f)` clears: `Fixture *f` of RP_TEST_OF(). */
#define RP_TEST_STATE(type, fill, clear)                                                           \
    static int rp_set_up(void **state)                                                             \
    {                                                                                              \
        *state = g_new0(type, 1);                                                                  \
        fill(*state);                                                                              \
        return 0;                                                                                  \
    }                                                                                              \
    static int rp_tear_down(void **state)                                                          \
    {                                                                                              \
        clear(*state);                                                                             \
        g_free(*state);                                                                            \
        return 0;                                                                                  \
    }                                                                                              \
    RP_TEST_FIXTURE(rp_set_up, rp_tear_down)
/* A fixture around all tests of the program. */
#define RP_TEST_GROUP(setup, teardown)                                                             \
    RP_TEST_AT_START(rp_set_group)                                                                 \
    {                                                                                              \
        rp_test_set_group(setup, teardown);                                                        \
    }
/* Tests are skipped unless @condition holds. */
#define RP_TEST_NEEDS(condition)                                                                   \
    static gboolean rp_can_run(void)                                                               \
    {                                                                                              \
        return condition;                                                                          \
    }                                                                                              \
    RP_TEST_AT_START(rp_set_needs)                                                                 \
    {                                                                                              \
        rp_test_set_needs(rp_can_run);                                                             \
    }
/* Begins the definition of a function that runs before main(), in the order of the file. */
#define RP_TEST_AT_START(name) __attribute__((constructor)) static void name(void)

/* Adds a test whose state is at first @row; @name lives as long as the program. */
void rp_test_add(const char *name, CMUnitTestFunction function, CMFixtureFunction setup,
                 CMFixtureFunction teardown, void *row);
void rp_test_set_fixture(CMFixtureFunction setup, CMFixtureFunction teardown);
void rp_test_set_group(CMFixtureFunction setup, CMFixtureFunction teardown);
void rp_test_set_needs(gboolean (*function)(void));
/* Fills or clears nothing. */
void rp_test_no_state(void *state);
/* Runs what was added. Returns: the program's exit code */
int rp_test_run(const char *program);

/**
 * rp_test_golden:
 * @name: a file of the sources, which has sections "## SECTION" of two lines each: `$ words`, and what is expected
 * @check: fails unless @words give *@expected; may replace it if rp_test_writes()
 *
 * Checks every pair of @section. Behind a line `% before@@after` words stand between these. With RP_TEST_WRITE in the
 * environment, @name is written with what was replaced.
 */
void rp_test_golden(const char *name, const char *section,
                    void (*check)(const char *words, char **expected, gpointer data),
                    gpointer data);
gboolean rp_test_writes(void);

/**
 * rp_test_lines:
 * @make: (transfer full): the line of the words, in which escapes as of C have been replaced; NULL fails the test
 *
 * Checks every pair of @section: the expected line is what @make gives, or a pattern of it, in which `*` stands for any text.
 */
void rp_test_lines(const char *name, const char *section,
                   char *(*make)(const char *words, gpointer data), gpointer data);
/* "DOMAIN CODE MESSAGE" of *@error, which it clears; NULL if there is none. (transfer full) */
char *rp_test_refusal(GError **error);

/* Fails the test unless @error is set and its message contains @part. */
#define rp_assert_error_message_contains(error, part)                                              \
    rp_test_error_contains((error), (part), __FILE__, __LINE__)

/* The value of @function, whose arguments follow, with an error behind them that must not be set. */
#define rp_must(function, ...)                                                                     \
    __extension__({                                                                                \
        GError *rp_error = NULL;                                                                   \
        __typeof__(function(__VA_ARGS__, &rp_error)) rp_value = function(__VA_ARGS__, &rp_error);  \
                                                                                                   \
        rp_assert_no_error(rp_error);                                                              \
        rp_value;                                                                                  \
    })

/* The same of the GError *@error, which it frees. */
#define rp_assert_error(error, part)                                                               \
    do {                                                                                           \
        rp_assert_error_message_contains(*(error), (part));                                        \
        g_clear_error(error);                                                                      \
    } while (0)

/* Fails the test unless @function of the arguments that follow gives nothing and sets an error whose message has
 * @part. */
#define rp_refuses(part, function, ...)                                                            \
    do {                                                                                           \
        GError *rp_error = NULL;                                                                   \
                                                                                                   \
        assert_false(function(__VA_ARGS__, &rp_error));                                            \
        rp_assert_error(&rp_error, part);                                                          \
    } while (0)

/* Fails the test, printing the message, if @error is set. */
#define rp_assert_no_error(error) rp_test_no_error((error), __FILE__, __LINE__)

static inline void
rp_test_error_contains(const GError *error, const char *part, const char *file, int line)
{
    if (error != NULL && strstr(error->message, part) != NULL)
        return;
    print_error("expected an error that contains `%s`, found: %s\n", part,
                error != NULL ? error->message : "no error");
    _fail(file, line);
}

static inline void
rp_test_no_error(const GError *error, const char *file, int line)
{
    if (error == NULL)
        return;
    print_error("unexpected error: %s\n", error->message);
    _fail(file, line);
}

/* The path of a file of the sources, e.g. "profiles/rtx4090/qwen3-1.7b.json". (transfer full) */
static inline char *
rp_test_source_path(const char *relative)
{
    return g_build_filename(RP_SOURCE_ROOT, relative, NULL);
}
