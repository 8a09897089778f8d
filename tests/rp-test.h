/**
 * Included first by every test: CMocka with the headers it needs before it, GLib and helpers.
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
 * RP_TEST_SMALL is 1 (tests/meson.build), every kind of case instead of every combination. */
#ifndef RP_TEST_SMALL
#define RP_TEST_SMALL 0
#endif
#define RP_TEST_ALL (g_getenv("ROUNDPIPE_TEST_ALL") != NULL)
#define RP_TEST_FEW (RP_TEST_SMALL && !RP_TEST_ALL)
/* One case of how many: all, @usual, or @few where RP_TEST_SMALL is 1. */
#define RP_TEST_EVERY(usual, few) (RP_TEST_ALL ? 1u : RP_TEST_SMALL ? (few) : (usual))

/* Fails the test unless @error is set and its message contains @part. */
#define rp_assert_error_message_contains(error, part)                                              \
    rp_test_error_contains((error), (part), __FILE__, __LINE__)

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
