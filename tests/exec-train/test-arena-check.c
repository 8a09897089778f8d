#include "exec/device/error.h"
#include "exec/device/task-map.h"
#include "tests/rp-test.h"

static const guint64 bytes[] = {100, 200, 300};

static void
assert_message(GError *error, const char *message)
{
    assert_non_null(error);
    assert_true(g_error_matches(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY));
    assert_string_equal(error->message, message);
    g_error_free(error);
}

RP_TEST(accepts_arenas_up_to_the_limit)
{
    GError *error = NULL;

    assert_true(rp_arena_check_limits(bytes, 3, 300, &error));
    assert_null(error);
}

RP_TEST(takes_a_limit_of_zero_for_none)
{
    GError *error = NULL;

    assert_true(rp_arena_check_limits(bytes, 3, 0, &error));
    assert_null(error);
}

RP_TEST(names_the_first_device_beyond_the_limit)
{
    GError *error = NULL;

    assert_false(rp_arena_check_limits(bytes, 3, 150, &error));
    assert_message(error, "device 1: the plan needs 200 bytes, 50 more than the limit of 150: use "
                          "more stages or smaller micro-batches, or raise the limit");
}

RP_TEST(accepts_arenas_that_are_large_enough)
{
    static const guint64 open[] = {100, 1000, 300};
    GError *error = NULL;

    assert_true(rp_arena_check_open(bytes, open, 3, &error));
    assert_null(error);
}

RP_TEST(names_the_first_arena_that_has_grown)
{
    static const guint64 open[] = {100, 199, 0};
    GError *error = NULL;

    assert_false(rp_arena_check_open(bytes, open, 3, &error));
    assert_message(error, "arena 1 has grown to 200 bytes since it was opened with 199");
}
