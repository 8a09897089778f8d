/**
 * The operands of matmuls, as settings or options request them, and whether model and devices can.
 */
#pragma once

#include "exec/network/network.h"

#define RP_RUN_MATMUL_FP8 (RP_DTYPE_E4M3 + 1)
#define RP_RUN_MATMUL_FP8_HEAD (RP_DTYPE_E5M2 + 1)

/**
 * RpRunMatmul:
 * @choice: RpDtype + 1, or RP_RUN_MATMUL_FP8: of blocks, RP_RUN_MATMUL_FP8_HEAD: of the head, too; 0: as
 *   the dtype
 * @gradients: RP_DTYPE_E5M2, also if 0, or RP_DTYPE_E4M3
 * @half_sums: fewer bits than fp32's in sums
 */
typedef struct {
    int choice;
    int gradients;
    guint plain_first, plain_last;
    gboolean half_sums;
} RpRunMatmul;

/**
 * rp_run_take_matmul:
 * @prefix: before names of settings in messages: "", or "--" of options
 * @weights: of the model; unbound ones will do
 * @kernels: (nullable): of devices that are not known yet
 * @devices: how many of theirs
 * @options: (inout): dtype, sequences and tokens are known; codes and half_sums are set
 *
 * Errors: RP_RUN_ERROR_VALUE
 */
gboolean rp_run_take_matmul(const RpRunMatmul *matmul, const char *prefix, const RpWeights *weights,
                            const RpKernels *kernels, guint devices, RpNetworkOptions *options,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
