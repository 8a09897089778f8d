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

/* The refusal of the text with "PART -> OTHER" replaced. (transfer full) */
static char *
refusal(const char *words, gpointer data)
{
    Fixture *f = data;
    RpDataState ignored;
    g_auto(GStrv) parts = g_strsplit(words, " -> ", 2);
    g_autofree char *text = replace(parts[0], parts[1]);

    (void)parses(f, text, &ignored);
    return rp_test_refusal(&f->error);
}

RP_TEST(refuses_what_is_no_state)
{
    rp_test_lines("tests/exec-data/messages.txt", "state: no state", refusal, *state);
}

RP_TEST_STATE(Fixture, rp_test_no_state, teardown)
