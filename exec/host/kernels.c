#include "exec/host/kernels.h"

#include "exec/host/host-private.h"

static gboolean
check(RpKernelStream *stream, GError **error)
{
    return TRUE;
}

static gboolean
has_attention(RpAttentionChoice choice)
{
    return choice == RP_ATTENTION_BUILTIN;
}

static gboolean
check_fp8(guint devices, GError **error)
{
    return TRUE;
}

/* Operations whose sums fit on the stack. */
#define NO_WORKSPACE(operation, Args)                                                              \
    size_t rp_host_##operation##_workspace(const Args *args)                                       \
    {                                                                                              \
        return 0;                                                                                  \
    }
NO_WORKSPACE(sum_squares, RpSumSquaresArgs)
NO_WORKSPACE(bias_backward, RpBiasArgs)
NO_WORKSPACE(sort_rows, RpSortRowsArgs)
NO_WORKSPACE(balance_forward, RpBalanceArgs)
NO_WORKSPACE(embedding_backward, RpEmbeddingArgs)
NO_WORKSPACE(cross_entropy, RpCrossEntropyArgs)

#define ENTRY(operation, Args, words) .operation = rp_host_##operation,
#define ENTRIES(operation, Args, words)                                                            \
    .operation##_workspace = rp_host_##operation##_workspace, ENTRY(operation, Args, words)

const RpKernels *
rp_host_kernels(void)
{
    static const RpKernels kernels = {.name = "host",
                                      .has_attention = has_attention,
                                      .check_fp8 = check_fp8,
                                      .check = check,
                                      RP_KERNELS(ENTRY, ENTRIES)};

    return &kernels;
}
