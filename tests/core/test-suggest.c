#include "tests/rp-test.h"

#include "core/base/quote.h"

static const char *const keys[] = {"forward_ms", "backward_ms", "recompute_ms", "kind", NULL};

RP_TEST(finds_a_name_with_a_typo)
{
    assert_string_equal(rp_nearest_name("forwrd_ms", keys), "forward_ms");
    assert_string_equal(rp_nearest_name("forward_msec", keys), "forward_ms");
    assert_string_equal(rp_nearest_name("bakcward_ms", keys), "backward_ms");
    assert_string_equal(rp_nearest_name("kidn", keys), "kind");
}

RP_TEST(ignores_letter_case)
{
    assert_string_equal(rp_nearest_name("Forward_MS", keys), "forward_ms");
}

RP_TEST(suggests_nothing_when_nothing_is_close)
{
    assert_null(rp_nearest_name("optimizer", keys));
    assert_null(rp_nearest_name("x", keys));
    assert_null(rp_nearest_name("", keys));
    assert_null(rp_nearest_name("t4", (const char *const[]){"l4", NULL}));
    assert_string_equal(rp_nearest_name("L4", (const char *const[]){"l4", NULL}), "l4");
}

RP_TEST(compares_nothing_longer_than_a_name)
{
    char word[1001];

    memset(word, 'a', sizeof word - 1);
    word[1000] = '\0';
    assert_null(rp_nearest_name(word, keys));
}

RP_TEST(prefers_the_earlier_of_equally_near_names)
{
    const char *const names[] = {"gate", "date", NULL};

    assert_string_equal(rp_nearest_name("rate", names), "gate");
}

RP_TEST(has_no_suggestion_from_an_empty_list)
{
    const char *const none[] = {NULL};

    assert_null(rp_nearest_name("kind", none));
}
