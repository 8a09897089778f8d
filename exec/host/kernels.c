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
