#include "tests/rp-test.h"

#include "exec/data/dataset.h"
#include "exec/data/pack.h"

typedef struct {
    GError *error;
    char *text;
} Fixture;

static void
teardown(Fixture *f)
{
    g_clear_error(&f->error);
    g_free(f->text);
}

static const RpDataState some = {.n_samples = 100,
                                 .fingerprint = G_MAXUINT64,
                                 .seed = G_MAXUINT64 - 1,
                                 .shuffle = TRUE,
                                 .epoch = 3,
                                 .position = 100,
                                 .n_iterations = 9,
                                 .n_tokens = 1000,
                                 .n_targets = 900,
                                 .n_truncated = 8,
                                 .n_cut_tokens = 77,
                                 .n_dropped = 6};

static const char some_text[] =
    "{\"format\":\"roundpipe-data/2\",\"shuffle\":true,\"samples\":100,"
    "\"fingerprint\":18446744073709551615,\"seed\":18446744073709551614,\"epoch\":3,"
    "\"position\":100,\"iterations\":9,\"tokens\":1000,\"targets\":900,\"truncated\":8,"
    "\"cut_tokens\":77,\"dropped\":6}";

static gboolean
parses(Fixture *f, const char *text, RpDataState *state)
{
    g_clear_error(&f->error);
    gboolean good = rp_data_state_parse("FILE", text, strlen(text), state, &f->error);
    assert_true(good == (f->error == NULL));
    if (!good)
        assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE));
    return good;
}

RP_TEST_OF(reads_what_it_writes, Fixture *f)
{
    RpDataState again;

    f->text = rp_data_state_to_json(&some);
    assert_string_equal(f->text, some_text);
    assert_true(parses(f, f->text, &again));
    g_free(f->text);
    f->text = rp_data_state_to_json(&again);
    assert_string_equal(f->text, some_text);
    assert_true(again.fingerprint == some.fingerprint && again.seed == some.seed);
    assert_int_equal(again.n_dropped, 6);
}

RP_TEST(refuses_every_cut)
{
    for (gsize n = 0; n < sizeof some_text - 1; n++) {
        RpDataState untouched = some;
        g_autofree char *cut = g_strndup(some_text, n);
        if (parses(*state, cut, &untouched))
            fail_msg("took the first %zu bytes", n);
        assert_int_equal(untouched.n_iterations, 9);
    }
}

/* The text with @from, which is in it once, replaced by @to. (transfer full) */
static char *
replace(const char *from, const char *to)
{
    g_auto(GStrv) parts = g_strsplit(some_text, from, -1);

    assert_int_equal(g_strv_length(parts), 2);
    return g_strjoinv(to, parts);
}

/* The old format has a fingerprint of 256 places. */
RP_TEST_OF(reads_the_format_of_before, Fixture *f)
{
    RpDataState read;

    f->text = replace("roundpipe-data/2", "roundpipe-data/1");
    assert_true(parses(f, f->text, &read));
    assert_true(read.sampled && read.fingerprint == some.fingerprint);
    g_autofree char *again = rp_data_state_to_json(&read);
    assert_string_equal(again, f->text);
    assert_true(parses(f, some_text, &read));
    assert_false(read.sampled);
}

RP_TEST(refuses_what_is_no_state)
{
    static const struct {
        const char *from;
        const char *to;
        const char *message;
    } cases[] = {
        {"roundpipe-data/2", "roundpipe-data/3",
         "format: expected one of \"roundpipe-data/2\", \"roundpipe-data/1\", found"},
        {"\"format\":\"roundpipe-data/2\",", "", "format: expected one of \"roundpipe-data/2\""},
        {"\"shuffle\":true,", "", "shuffle: expected a value, found nothing"},
        {",\"dropped\":6", "", "dropped: expected a value, found nothing"},
        {"\"epoch\":3", "\"epok\":3", "expected a known key, found \"epok\""},
        {"\"epoch\":3", "\"epoch\":3,\"epoch\":3", "expected each key once, found \"epoch\""},
        {"\"epoch\":3", "\"epoch\":-3", "expected a whole number from 0 to 2^64 - 1, found -3"},
        {"\"epoch\":3", "\"epoch\":\"3\"", "expected a number, found \"3\""},
        {"true", "1", "expected true or false, found 1"},
        {"\"position\":100", "\"position\":101",
         "position: expected at most the number of samples, found 101"},
        {"\"samples\":100", "\"samples\":0", "samples: expected a number of samples, found 0"},
        {"6}", "6}x", "expected the end of the text, found x"},
        {"18446744073709551615", "18446744073709551616", "expected a whole number"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        Fixture *f = *state;
        RpDataState ignored;
        g_free(f->text);
        f->text = replace(cases[i].from, cases[i].to);
        assert_false(parses(f, f->text, &ignored));
        rp_assert_error_message_contains(f->error, cases[i].message);
        rp_assert_error_message_contains(f->error, "FILE: ");
    }
}

RP_TEST_STATE(Fixture, rp_test_no_state, teardown)
