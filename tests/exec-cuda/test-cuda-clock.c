#include "tests/rp-test.h"

#include "exec/cuda/clock.h"
#include "exec/cuda/host-arena.h"

/* A device whose clock is off by @rate; its host times are measured with an error of @noise_ns to
 * either side in turn. */
static void
run_clock(RpCudaClock *clock, guint seconds, double rate, gint64 noise_ns)
{
    for (guint i = 0; i <= seconds; i++)
        rp_cuda_clock_add(
            clock, 1e9, 5000000000 + (gint64)(i * 1e9 * rate) + (i % 2 == 0 ? noise_ns : -noise_ns),
            noise_ns);
}

RP_TEST_OF(tells_measured_times_of_a_perfect_clock, RpCudaClock *clock)
{
    run_clock(clock, 3, 1, 0);
    assert_int_equal(rp_cuda_clock_host_ns(clock, 0, 250e6), 5250000000);
    assert_int_equal(rp_cuda_clock_host_ns(clock, 0, 2500e6), 7500000000);
    assert_int_equal(rp_cuda_clock_host_ns(clock, 2, 500e6), 7500000000);
    assert_int_equal(rp_cuda_clock_host_ns(clock, 3, 1e9), 9000000000);
}

RP_TEST_OF(follows_a_clock_that_drifts, RpCudaClock *clock)
{
    const double rate = 1 + 5e-5;

    run_clock(clock, 200, rate, 0);
    for (guint s = 10; s < 200; s++) {
        const gint64 expected = 5000000000 + (gint64)((s + 0.5) * 1e9 * rate);
        const gint64 error = rp_cuda_clock_host_ns(clock, s, 0.5e9) - expected;

        assert_true(ABS(error) < 1000);
    }
}

/* Each measurement is off by 8 µs; neighbouring events never are. */
RP_TEST_OF(never_jumps, RpCudaClock *clock)
{
    gint64 last;

    run_clock(clock, 60, 1 - 2e-5, 8000);
    last = rp_cuda_clock_host_ns(clock, 0, 0);
    for (guint i = 1; i < 60000; i++) { /* one a millisecond */
        const gint64 now = rp_cuda_clock_host_ns(clock, 0, i * 1e6);

        assert_true(ABS(now - last - 1000000) < 100);
        last = now;
    }
    assert_int_equal(clock->worst_error_ns, 8000);
}

RP_TEST_OF(jumps_after_the_machine_has_slept, RpCudaClock *clock)
{
    gint64 found;

    run_clock(clock, 5, 1, 0);
    /* the device says one second, the host two */
    rp_cuda_clock_add(clock, 1e9, 12000000000, 100);
    found = rp_cuda_clock_host_ns(clock, 6, 1000);
    assert_true(ABS(found - 12000001000) < 10);
}

RP_TEST_OF(trusts_the_host_over_long_pauses, RpCudaClock *clock)
{
    gint64 found;

    run_clock(clock, 5, 1, 0);
    rp_cuda_clock_add(clock, 12345, 1005000000000, 100);
    found = rp_cuda_clock_host_ns(clock, 6, 1000);
    assert_true(ABS(found - 1005000001000) < 10);
}

RP_TEST_OF(keeps_a_ring_of_anchors, RpCudaClock *clock)
{
    guint64 oldest;

    run_clock(clock, 1000, 1, 0);
    oldest = rp_cuda_clock_oldest(clock);
    assert_int_equal(oldest, 1001 - (RP_CUDA_CLOCK_RING - 1));
    /* an event from before: a negative time after it */
    assert_int_equal(rp_cuda_clock_host_ns(clock, oldest, -3e9),
                     5000000000 + (gint64)(oldest - 3) * 1000000000);
}

/* ---- pieces ---- */

static void
assert_pieces(guint64 bytes, const RpCudaSpan *unpinned, guint n_unpinned,
              const RpCudaSpan *expected, guint n_expected)
{
    g_autoptr(GArray) found = rp_cuda_pin_pieces(bytes, unpinned, n_unpinned, 4096, 16384);

    assert_int_equal(found->len, n_expected);
    for (guint i = 0; i < n_expected; i++) {
        assert_int_equal(g_array_index(found, RpCudaSpan, i).offset, expected[i].offset);
        assert_int_equal(g_array_index(found, RpCudaSpan, i).bytes, expected[i].bytes);
    }
}

RP_TEST(pins_everything_if_nothing_is_loose)
{
    const RpCudaSpan expected[] = {{0, 16384}, {16384, 16384}, {32768, 8192}};

    assert_pieces(40000, NULL, 0, expected, G_N_ELEMENTS(expected));
    assert_pieces(0, NULL, 0, NULL, 0);
}

RP_TEST(leaves_out_whole_loose_pages_only)
{
    /* pages 2 and 3 are unpinned, 4 is partly so, 5 belongs to two runs */
    const RpCudaSpan unpinned[] = {{6000, 5000}, {11000, 6384}, {20992, 512}};
    const RpCudaSpan expected[] = {{0, 8192}, {16384, 8192}};

    assert_pieces(24000, unpinned, G_N_ELEMENTS(unpinned), expected, G_N_ELEMENTS(expected));
}

RP_TEST(pins_nothing_of_a_loose_end)
{
    const RpCudaSpan unpinned[] = {{0, 8192}, {12288, 100000}};
    const RpCudaSpan expected[] = {{8192, 4096}};

    assert_pieces(112288, unpinned, G_N_ELEMENTS(unpinned), expected, G_N_ELEMENTS(expected));
}

RP_TEST_STATE(RpCudaClock, rp_test_no_state, rp_test_no_state)
