/* Quotes names and values that others chose. */
#include "tests/rp-test.h"

#include "core/base/quote.h"
#include "core/base/units.h"

RP_TEST(marks_that_turn_or_hide_text_are_spelt_out)
{
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        {"plain", "\"plain\""},
        {"größe 東京 🙂", "\"größe 東京 🙂\""},
        {"a\nb\tc", "\"a\\u000ab\\u0009c\""},
        {"\xe2\x80\xaegnp.exe", "\"\\u202egnp.exe\""},        /* right-to-left override */
        {"\xe2\x81\xa6x\xe2\x81\xa9", "\"\\u2066x\\u2069\""}, /* isolates */
        {"a\xe2\x80\x8b\x62", "\"a\\u200bb\""},               /* zero-width space */
        {"\xef\xbb\xbfx", "\"\\ufeffx\""},                    /* byte-order mark */
        {"\xd8\x9cx", "\"\\u061cx\""},                        /* Arabic letter mark */
        {"\xf3\xa0\x81\x81", "\"\\ue0041\""},                 /* a tag */
        {"\xff", "\"\\xff\""},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *quoted = rp_quote(cases[i].text);

        assert_string_equal(quoted, cases[i].quoted);
    }
}

RP_TEST(a_name_with_such_marks_is_quoted)
{
    g_autofree char *plain = rp_display_name("größe.json");
    g_autofree char *turned = rp_display_name("a\xe2\x80\xaenosj.b");

    assert_string_equal(plain, "größe.json");
    assert_string_equal(turned, "\"a\\u202enosj.b\"");
}

RP_TEST(a_percentage_shows_its_first_digit)
{
    assert_int_equal(rp_percent_decimals(0, 1), 1);
    assert_int_equal(rp_percent_decimals(12.3, 1), 1);
    assert_int_equal(rp_percent_decimals(0.05, 1), 1);
    assert_int_equal(rp_percent_decimals(0.02, 1), 2);
    assert_int_equal(rp_percent_decimals(-0.004, 2), 3);
    assert_int_equal(rp_percent_decimals(0.3, 0), 1);
    assert_int_equal(rp_percent_decimals(1e-9, 1), 4);
}
