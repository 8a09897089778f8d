/**
 * Profiles that the tests of partitions are made from.
 */
#pragma once

#include "core/profile/profile.h"

#define MS G_GINT64_CONSTANT(1000000)

/* [embedding] blocks [head] with given times; recompute = forward. (transfer full) */
RpProfile *rp_test_profile(guint n_blocks, gint64 forward_ns, gint64 backward_ns,
                           gint64 head_forward_ns, gint64 head_backward_ns);

/* Parameters, gradients, activations and workspace of less than 40 bytes each. */
void rp_test_set_random_sizes(GRand *rand, RpLayer *layer);

/* Blocks of random sizes, without times. (transfer full) */
RpProfile *rp_test_random_sizes(GRand *rand, guint n_layers);
