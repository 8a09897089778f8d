/**
 * The best dispatched partition by trying all, judged by the recurrence, which test-recurrence.c
 * holds against the simulator. Shared by the test of the search and the benchmark of 150 cases.
 */
#pragma once

#include "sim/search/dispatched.h"

/* A small random case: 2 to 4 devices, 5 to @most_blocks blocks. @profile: (transfer full) */
RpDispatchedSearch rp_test_random_case(GRand *rand, guint most_blocks, RpProfile **profile);

/* Least time of an iteration over all partitions and sizes of rounds, ns. */
gint64 rp_test_least_ns(const RpDispatchedSearch *search);

/* The same figure for one partition. */
gint64 rp_test_time_ns(const RpDispatchedSearch *search, const RpCut *cut, guint round);
