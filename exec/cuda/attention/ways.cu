/* Chooses attention's backward kernel on tensor cores, and how many kv heads it takes at a time. */
#include "exec/cuda/attention/ways.h"

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
                       const BackwardRoom *room, size_t first, unsigned *numbers,
                       cudaStream_t stream);
    size_t keys; /* keys of a block */
} Way;

static const Way ways[RP_N_BACKWARD_WAYS] = {
    /* RP_BACKWARD_WGMMA */ {"wgmma", attention_has_wgmma, attention_backward_wgmma, 128},
    /* RP_BACKWARD_WIDE */ {"wide", attention_has_wide, attention_backward_wide, 256},
    /* RP_BACKWARD_MMA */ {"mma", always, attention_backward_mma, 128}};

const char *
rp_cuda_backward_way_name(RpBackwardWay way)
{
    return ways[way].name;
}

bool
rp_cuda_backward_way_can(RpBackwardWay way, const RpAttentionArgs *args)
{
    return attention_backward_is_fast(args) && ways[way].can(args);
}

cudaError_t
attention_backward_by(RpBackwardWay way, const RpAttentionArgs *args, const BackwardRoom *room,
                      cudaStream_t stream)
{
    const size_t part = attention_backward_kv_heads(args);
    cudaError_t status = cudaSuccess;

    for (size_t first = 0; first < args->kv_heads && status == cudaSuccess; first += part) {
        RpAttentionArgs some = *args;
        AttentionGrid grid;

        some.kv_heads = min(part, args->kv_heads - first);
        if (!attention_grid(&some, some.kv_heads, ways[way].keys, 0, &grid))
            return cudaErrorInvalidValue;
        grid.swath = min(grid.units, SWATH);
        status = ways[way].run(args, &grid, room, first, room->numbers + first / part, stream);
    }
    return status;
}
