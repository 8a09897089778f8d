#include "run/matmul.h"

#include "run/run-file.h"

/* Whether a block that is not to stay plain has codes. */
static gboolean
some_block_has_codes(const RpRunMatmul *matmul, const RpWeights *weights, RpDtype dtype)
{
    const guint blocks = rp_weights_model(weights)->blocks;

    for (guint b = matmul->plain_first; b + matmul->plain_last < blocks; b++)
        if (rp_layer_layout_of_codes(weights, b + 1, dtype, NULL).has_codes)
            return TRUE;
    return FALSE;
}

static gboolean
check_codes(const RpRunMatmul *matmul, const char *prefix, const RpWeights *weights,
            const RpKernels *kernels, guint devices, const RpNetworkOptions *options,
            GError **error)
{
    g_autoptr(GError) problem = NULL;

    if ((guint64)options->sequences * options->tokens % 16 != 0)
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%smatmul: fp8 takes micro-batches of a multiple of 16 tokens, found %u "
                    "sequences of %u: change the length of a sequence",
                    prefix, options->sequences, options->tokens);
    else if (!some_block_has_codes(matmul, weights, options->dtype))
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%smatmul: fp8 finds no block to multiply: all stay plain, or have matrices "
                    "whose rows or columns are no multiple of 16",
                    prefix);
    else if (kernels != NULL && !kernels->check_codes(devices, &problem))
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE, "%smatmul: fp8: %s: leave it out",
                    prefix, problem->message);
    else
        return TRUE;
    return FALSE;
}

gboolean
rp_run_take_matmul(const RpRunMatmul *matmul, const char *prefix, const RpWeights *weights,
                   const RpKernels *kernels, guint devices, RpNetworkOptions *options,
                   GError **error)
{
    const gboolean codes = matmul->choice == RP_DTYPE_E4M3 + 1;
    const char *dtype = rp_dtype_name(options->dtype);

    g_return_val_if_fail(weights && options && prefix, FALSE);
    if (!codes && matmul->choice != 0 && matmul->choice != (int)options->dtype + 1) {
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%smatmul: expected %s, as dtype, or fp8, found %s", prefix, dtype,
                    rp_dtype_name((RpDtype)(matmul->choice - 1)));
        return FALSE;
    }
    if (matmul->half_sums && options->dtype != RP_DTYPE_FP16 && !codes) {
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%saccumulate: expected fp32 with dtype %s, found fp16", prefix, dtype);
        return FALSE;
    }
    options->half_sums = matmul->half_sums;
    if (!codes)
        return TRUE;
    if (!check_codes(matmul, prefix, weights, kernels, devices, options, error))
        return FALSE;
    options->codes = (RpNetworkCodes){
        .used = TRUE,
        .gradients = matmul->gradients != 0 ? (RpDtype)matmul->gradients : RP_DTYPE_E5M2,
        .plain_first = matmul->plain_first,
        .plain_last = matmul->plain_last};
    return TRUE;
}
