/* Chooses attention's backward kernel on tensor cores, and how many kv heads it takes at a time. */
#include "exec/cuda/attention/variants.h"

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"

#define SWATH 16u /* units whose blocks run beside each other: few of each wait for their turn */
#define MOST_SUMS ((size_t)128 << 20) /* bytes of dq's sums at a time, if one kv head's are fewer */

size_t
attention_backward_kv_heads(const RpAttentionArgs *args)
{
    const size_t bytes =
        args->heads / args->kv_heads * args->tokens * args->head_size * sizeof(float);
    const size_t most = bytes < MOST_SUMS ? MOST_SUMS / bytes : 1;

    return ceil_divide(args->kv_heads, ceil_divide(args->kv_heads, most));
}

static bool
always(const RpAttentionArgs *args)
{
    return true;
}

typedef struct {
    const char *name;
    bool (*can)(const RpAttentionArgs *args); /* among the shapes of attention_is_fast() */
    cudaError_t (*run)(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardScratch *scratch, size_t first, unsigned *numbers,
                       cudaStream_t stream);
    size_t keys; /* keys of a block */
} Variant;

static const Variant variants[RP_N_BACKWARD_VARIANTS] = {
    /* RP_BACKWARD_WGMMA */ {"wgmma", attention_has_wgmma, attention_backward_wgmma, 128},
    /* RP_BACKWARD_WIDE */ {"wide", attention_has_wide, attention_backward_wide, 256},
    /* RP_BACKWARD_MMA */ {"mma", always, attention_backward_mma, 128}};

const char *
rp_cuda_backward_variant_name(RpBackwardVariant variant)
{
    return variants[variant].name;
}

bool
rp_cuda_backward_variant_can(RpBackwardVariant variant, const RpAttentionArgs *args)
{
    return attention_backward_is_fast(args) && variants[variant].can(args);
}

cudaError_t
attention_backward_by(RpBackwardVariant variant, const RpAttentionArgs *args, const BackwardScratch *scratch,
                      cudaStream_t stream)
{
    const size_t part = attention_backward_kv_heads(args);
    cudaError_t status = cudaSuccess;

    for (size_t first = 0; first < args->kv_heads && status == cudaSuccess; first += part) {
        RpAttentionArgs some = *args;
        AttentionGrid grid;

        some.kv_heads = min(part, args->kv_heads - first);
        if (!attention_grid(&some, some.kv_heads, variants[variant].keys, 0, &grid))
            return cudaErrorInvalidValue;
        grid.swath = min(grid.units, SWATH);
        status = variants[variant].run(args, &grid, scratch, first, scratch->numbers + first / part, stream);
    }
    return status;
}
