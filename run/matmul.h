/**
 * The operands of matmuls, as settings or options request them, and whether model and devices can.
 */
#pragma once

#include "exec/network/network.h"
#include "run/spec.h"

#define RP_RUN_MATMUL_FP8 (RP_DTYPE_E4M3 + 1)
#define RP_RUN_MATMUL_FP8_HEAD (RP_DTYPE_E5M2 + 1)

/**
 * rp_run_take_matmul:
 * @run: of which matmul_choice, half_sums and fp8 are read
 * @prefix: before names of settings in messages: "", or "--" of options
 * @weights: of the model; unbound ones will do
 * @kernels: (nullable): of devices that are not known yet
 * @devices: how many of theirs
 * @options: (inout): dtype, sequences and tokens are known; codes and half_sums are set
 *
 * Errors: RP_RUN_ERROR_VALUE
 */
gboolean rp_run_take_matmul(const RpRunSpec *run, const char *prefix, const RpWeights *weights,
                            const RpKernels *kernels, guint devices, RpNetworkOptions *options,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
