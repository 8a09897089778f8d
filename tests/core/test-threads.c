/* Tests work in pieces. */
#include "tests/rp-test.h"

#include <gio/gio.h>

#include "core/base/threads.h"

#define PIECES 1000

typedef struct {
    guint done[PIECES];
    guint fails_from, fails_every; /* 0: never */
} Work;

static gboolean
count(guint i, gpointer data, GError **error)
{
    Work *work = data;

    work->done[i]++;
    if (work->fails_every == 0 || i < work->fails_from || i % work->fails_every != 0)
        return TRUE;
    g_set_error(error, G_IO_ERROR, G_IO_ERROR_FAILED, "piece %u", i);
    return FALSE;
}

RP_TEST(does_every_piece_once)
{
    for (guint n = 0; n <= PIECES; n = 3 * n + 1) {
        Work work = {0};
        GError *error = NULL;

        assert_true(rp_run_pieces(n, count, &work, &error));
        rp_assert_no_error(error);
        for (guint i = 0; i < PIECES; i++)
            assert_int_equal(work.done[i], i < n);
    }
}

/* Whichever thread is first: the error does not depend on the number of processors. */
RP_TEST(tells_the_first_piece_that_fails)
{
    Work work = {.fails_from = 17, .fails_every = 5};
    GError *error = NULL;

    assert_false(rp_run_pieces(PIECES, count, &work, &error));
    for (guint i = 0; i <= 20; i++)
        assert_int_equal(work.done[i], 1);
    assert_int_equal(work.done[PIECES - 1], 0);
    assert_string_equal(error->message, "piece 20");
    g_clear_error(&error);
}
