/* The host's kernels behind streams of soft-cuda.c. */
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/probe.h"
#include "exec/device/error.h"
#include "exec/host/host-private.h"
#include "tests/exec-cuda/soft-cuda-private.h"

struct _RpKernelStream {
    cudaStream_t stream;
};

#define DEFER(operation, Args, words)                                                              \
    static void run_##operation(void *payload)                                                     \
    {                                                                                              \
        rp_host_##operation(NULL, payload);                                                        \
    }                                                                                              \
    static void issue_##operation(RpKernelStream *stream, const Args *args)                        \
    {                                                                                              \
        soft_cuda_issue(stream->stream, run_##operation, args, sizeof *args);                      \
    }
RP_KERNELS(DEFER, DEFER)

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

/* Only launches can fail here. */
static gboolean
check(RpKernelStream *stream, GError **error)
{
    return TRUE;
}

#define ENTRY(operation, Args, words) .operation = issue_##operation,
#define ENTRIES(operation, Args, words)                                                            \
    .operation##_workspace = rp_host_##operation##_workspace, ENTRY(operation, Args, words)

const RpKernels *
rp_cuda_kernels(void)
{
    static const RpKernels kernels = {.name = "soft-cuda",
                                      .has_attention = has_attention,
                                      .check_fp8 = check_fp8,
                                      .check = check,
                                      RP_KERNELS(ENTRY, ENTRIES)};

    return &kernels;
}

RpKernelStream *
rp_cuda_stream_new(int device, RpRuntimeStream *stream, GError **error)
{
    RpKernelStream *result = g_new0(RpKernelStream, 1);

    result->stream = stream;
    return result;
}

void
rp_cuda_stream_free(RpKernelStream *stream)
{
    g_free(stream);
}

/* Threads have no graphs: tests take the operations away. */
RpCudaRecording *
rp_cuda_stream_record(RpKernelStream *stream, void (*part)(gpointer data), gpointer data,
                      GError **error)
{
    g_set_error_literal(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING, "there are no graphs");
    return NULL;
}

gboolean
rp_cuda_stream_replay(RpKernelStream *stream, RpCudaRecording *recording, GError **error)
{
    return FALSE;
}

void
rp_cuda_stream_forget(RpCudaRecording *recording)
{
}
