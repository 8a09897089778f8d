#include "exec/cuda/kernels/kernels-private.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/split.h"

RpKernelStream *
rp_cuda_stream_new(int device, RpRuntimeStream *stream, GError **error)
{
    RpKernelStream *result;
    cublasLtHandle_t blas;
    cublasStatus_t status;
    int current;

    if (!rp_cuda_ok(rp_cuda_current(&current), "cudaGetDevice", error))
        return NULL;
    g_return_val_if_fail(current == device, NULL);
    status = cublasLtCreate(&blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_LAUNCH, "cublasLtCreate: %s",
                    cublasLtGetStatusString(status));
        return NULL;
    }
    result = g_new0(RpKernelStream, 1);
    result->device = device;
    result->stream = stream;
    result->blas = blas;
    result->cudnn = rp_cudnn_new(stream);
    return result;
}

void
rp_cuda_stream_pace(RpKernelStream *stream)
{
    const guint64 n = stream->n_operations++ / RP_CUDA_PACE_OPERATIONS;
    cudaEvent_t *mark = &stream->marks[n % RP_CUDA_PACE_MARKS];

    if (stream->records || stream->n_operations % RP_CUDA_PACE_OPERATIONS != 1)
        return;
    /* A failure shows when the operations are checked. The oldest mark is waited for, and set anew. */
    if (*mark != NULL)
        (void)cudaEventSynchronize(*mark);
    else if (cudaEventCreateWithFlags(mark, cudaEventDisableTiming | cudaEventBlockingSync) !=
             cudaSuccess)
        *mark = NULL;
    if (*mark != NULL)
        (void)cudaEventRecord(*mark, stream->stream);
}

RpCudaRecording *
rp_cuda_stream_record(RpKernelStream *stream, void (*part)(gpointer data), gpointer data,
                      GError **error)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t recording = NULL;
    gboolean good;

    if (!rp_cuda_ok(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture", error))
        return NULL;
    stream->records = TRUE;
    part(data);
    stream->records = FALSE;
    good =
        rp_cuda_ok(cudaStreamEndCapture(stream->stream, &graph), "cudaStreamEndCapture", error) &&
        rp_cuda_ok(cudaGraphInstantiateWithFlags(&recording, graph, 0), "cudaGraphInstantiate",
                   error);
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    return good ? (RpCudaRecording *)recording : NULL;
}

gboolean
rp_cuda_stream_replay(RpKernelStream *stream, RpCudaRecording *recording, GError **error)
{
    return rp_cuda_ok(cudaGraphLaunch((cudaGraphExec_t)recording, stream->stream),
                      "cudaGraphLaunch", error);
}

void
rp_cuda_stream_forget(RpCudaRecording *recording)
{
    (void)cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

void
rp_cuda_stream_take_rank(RpKernelStream *stream, guint rank)
{
    g_return_if_fail(stream->plans == NULL && rank < RP_MATMUL_MAX_VARIANTS);
    stream->rank = rank;
}

void
rp_cuda_stream_fail(RpKernelStream *stream, const char *operation, const char *reason)
{
    if (stream->failure == NULL)
        stream->failure = g_strdup_printf("%s: %s", operation, reason);
}

void
rp_cuda_stream_free(RpKernelStream *stream)
{
    if (stream == NULL)
        return;
    g_clear_pointer(&stream->plans, g_hash_table_unref);
    for (guint i = 0; i < RP_CUDA_PACE_MARKS; i++)
        if (stream->marks[i] != NULL)
            (void)cudaEventDestroy(stream->marks[i]);
    rp_cudnn_free(stream->cudnn);
    cublasLtDestroy(stream->blas);
    g_free(stream->failure);
    g_free(stream);
}

guint64
rp_cuda_stream_cudnn_runs(const RpKernelStream *stream)
{
    return rp_cudnn_runs(stream->cudnn);
}

const char *
rp_cuda_stream_cudnn_reason(const RpKernelStream *stream)
{
    return rp_cudnn_reason(stream->cudnn);
}
