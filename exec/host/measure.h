/**
 * Measures a network's layers on the host backend, in one call: rp_measure_profile() with the
 * host's probe.
 */
#pragma once

#include "exec/measure/profile.h"

typedef RpMeasureOptions RpHostProfileOptions;

/* @network: over the host's kernels; the rest and errors as rp_measure_profile() */
RpProfile *rp_host_profile(const RpNetwork *network, const RpWeights *weights,
                           const RpHostProfileOptions *options,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
