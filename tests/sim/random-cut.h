/**
 * Profiles and partitions at random, for tests of searches and of what they judge by.
 */
#pragma once

#include "core/profile/profile.h"
#include "sim/recurrence/cut.h"

/* [embedding] blocks [head], no two alike; without sizes. (transfer full) */
RpProfile *rp_test_random_times(GRand *rand, guint n_blocks);

/* Borders at random; the embedding stands with a block. */
void rp_test_random_cut(GRand *rand, const RpProfile *profile, RpCut *cut);
