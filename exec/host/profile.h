/**
 * Measures a network's layers on the host backend: the timing file that simulate and plan read.
 */
#pragma once

#include "core/profile.h"
#include "exec/model/network.h"

/* @done of @total measurements. Returns: whether to go on */
typedef gboolean (*RpHostProfileProgress)(guint done, guint total, gpointer user_data);

typedef struct {
    guint devices;  /* host:N that the file is for; RpProfile.gpus */
    double seconds; /* spent on each kind of layer and direction; 0 = 0.5 */
    guint max_runs; /* of each; 0 = 100 */
    guint optimizer_threads;
    RpHostProfileProgress progress; /* may be NULL */
    gpointer user_data;
} RpHostProfileOptions;

/**
 * rp_host_profile:
 * @network: over the host's kernels; equal layers are measured once
 * @weights: bound, or %NULL: random ones (the times do not depend on them)
 *
 * Forward, recompute and backward of each kind of layer on one thread, alone: medians after
 * warm-up, spreads, outliers dropped; memory copies both ways and together; the optimizer's rate;
 * processors that the process may use. All sizes as rp_network_profile(). `source` is "measured".
 *
 * Errors: G_IO_ERROR_CANCELLED
 */
RpProfile *rp_host_profile(const RpNetwork *network, const RpWeights *weights,
                           const RpHostProfileOptions *options,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
