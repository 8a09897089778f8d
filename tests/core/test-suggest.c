#include "tests/rp-test.h"

#include "core/base/quote.h"

static const char *const keys[] = {"forward_ms", "backward_ms", "recompute_ms", "kind", NULL};

static void
finds_a_name_with_a_typo(void **state)
{
    assert_string_equal(rp_nearest_name("forwrd_ms", keys), "forward_ms");
    assert_string_equal(rp_nearest_name("forward_msec", keys), "forward_ms");
    assert_string_equal(rp_nearest_name("bakcward_ms", keys), "backward_ms");
    assert_string_equal(rp_nearest_name("kidn", keys), "kind");
}

static void
ignores_letter_case(void **state)
{
    assert_string_equal(rp_nearest_name("Forward_MS", keys), "forward_ms");
}

static void
suggests_nothing_when_nothing_is_close(void **state)
{
    assert_null(rp_nearest_name("optimizer", keys));
    assert_null(rp_nearest_name("x", keys));
    assert_null(rp_nearest_name("", keys));
    assert_null(rp_nearest_name("t4", (const char *const[]){"l4", NULL}));
    assert_string_equal(rp_nearest_name("L4", (const char *const[]){"l4", NULL}), "l4");
}

static void
compares_nothing_longer_than_a_name(void **state)
{
    char word[1001];

    memset(word, 'a', sizeof word - 1);
    word[1000] = '\0';
    assert_null(rp_nearest_name(word, keys));
}

static void
prefers_the_earlier_of_equally_near_names(void **state)
{
    const char *const names[] = {"gate", "date", NULL};

    assert_string_equal(rp_nearest_name("rate", names), "gate");
}

static void
has_no_suggestion_from_an_empty_list(void **state)
{
    const char *const none[] = {NULL};

    assert_null(rp_nearest_name("kind", none));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_a_name_with_a_typo),
        cmocka_unit_test(ignores_letter_case),
        cmocka_unit_test(suggests_nothing_when_nothing_is_close),
        cmocka_unit_test(compares_nothing_longer_than_a_name),
        cmocka_unit_test(prefers_the_earlier_of_equally_near_names),
        cmocka_unit_test(has_no_suggestion_from_an_empty_list),
    };
    return cmocka_run_group_tests_name("suggest", tests, NULL, NULL);
}
