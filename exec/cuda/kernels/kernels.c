/*
 * The table of kernels: each operation hands its arguments to its launcher, and records failures.
 *
 * No operand that cuBLASLt gets has 2^31 elements: not all of its kernels count further. Tokens go
 * in parts then: rows of A and C, or (TN) rows of A and B, whose sums are added to C one after
 * another.
 */
#include "exec/cuda/base/launch.h"
#include "exec/cuda/cudnn/cudnn.h"
#include "exec/cuda/kernels/kernels-private.h"
#include "exec/cuda/runtime/split.h"
#include "exec/device/error.h"

#define FP8_FROM 89 /* compute capability */
#define MOST_ELEMENTS (((size_t)1 << 31) - 1)
#define PART_ROWS 512 /* parts have a multiple of these, so that their alignment stays */

static void
note(RpKernelStream *stream, const char *operation, cudaError_t status)
{
    if (status != cudaSuccess)
        rp_cuda_stream_fail(stream, operation, cudaGetErrorString(status));
}

cudaError_t
rp_cuda_custom_layer(const RpCustomLayerArgs *args, cudaStream_t stream)
{
    return (cudaError_t)args->cuda(args->call, stream);
}

cudaError_t
rp_cuda_custom_loss(const RpCustomLossArgs *args, cudaStream_t stream)
{
    return (cudaError_t)args->cuda(args->call, stream);
}

#define ISSUE(operation, Args, words)                                                              \
    static void issue_##operation(RpKernelStream *stream, const Args *args)                        \
    {                                                                                              \
        rp_cuda_stream_pace(stream);                                                               \
        note(stream, words, rp_cuda_##operation(args, stream->stream));                            \
    }
RP_LAUNCHED_KERNELS(ISSUE, ISSUE)
ISSUE(attention_forward, RpAttentionArgs, "attention forward")
ISSUE(attention_backward, RpAttentionArgs, "attention backward")

static gboolean
has_attention(RpAttentionChoice choice)
{
    return choice == RP_ATTENTION_BUILTIN || rp_cudnn_available();
}

/* Rows of a part, 0: it cannot be divided, or need not be. */
static size_t
find_part(const RpMatmulArgs *args)
{
    const gboolean adds = args->form == RP_MATMUL_TN;
    const size_t rows = adds ? args->k : args->m;
    const size_t width =
        MAX(rp_matmul_a_stride(args), adds ? rp_matmul_b_stride(args) : rp_matmul_c_stride(args));

    if (width == 0 || rows <= MOST_ELEMENTS / width || (adds && args->c_dtype != RP_DTYPE_FP32))
        return 0;
    return MOST_ELEMENTS / width / PART_ROWS * PART_ROWS;
}

static const void *
at_element(const void *array, RpDtype dtype, size_t element)
{
    return (const guint8 *)array + element * rp_dtype_size(dtype);
}

static void
matmul(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const gboolean adds = args->form == RP_MATMUL_TN;
    const size_t step = adds && (args->bias || args->residual) ? 0 : find_part(args);
    const size_t rows = adds ? args->k : args->m;

    if (args->alone) {
        rp_cuda_stream_pace(stream);
        note(stream, "matmul of rows", rp_cuda_matmul_rows(args, stream->stream));
        return;
    }
    if (step == 0) {
        rp_cuda_multiply(stream, args);
        return;
    }
    for (size_t at = 0; at < rows; at += step) {
        RpMatmulArgs part = *args;

        part.a = at_element(args->a, args->a_dtype, at * rp_matmul_a_stride(args));
        if (adds) {
            part.k = MIN(step, rows - at);
            part.b = at_element(args->b, args->b_dtype, at * rp_matmul_b_stride(args));
            part.accumulate = args->accumulate || at > 0;
        } else {
            part.m = MIN(step, rows - at);
            part.c = (void *)at_element(args->c, args->c_dtype, at * rp_matmul_c_stride(args));
            if (args->residual != NULL)
                part.residual =
                    at_element(args->residual, args->c_dtype, at * rp_matmul_c_stride(args));
        }
        rp_cuda_multiply(stream, &part);
    }
}

static size_t
attention_forward_workspace(const RpAttentionArgs *args)
{
    return args->choice == RP_ATTENTION_CUDNN ? rp_cudnn_workspace(args) : 0;
}

static void
attention_forward(RpKernelStream *stream, const RpAttentionArgs *args)
{
    if (args->choice != RP_ATTENTION_CUDNN || !rp_cudnn_attend(stream->cudnn, args))
        issue_attention_forward(stream, args);
}

static gboolean
check_fp8(guint devices, GError **error)
{
    for (guint d = 0; d < devices; d++) {
        struct cudaDeviceProp device;
        const cudaError_t status = cudaGetDeviceProperties(&device, rp_cuda_card_of((int)d));

        if (status == cudaSuccess && device.major * 10 + device.minor >= FP8_FROM)
            continue;
        if (status != cudaSuccess)
            g_set_error(error, RP_KERNELS_ERROR, RP_KERNELS_ERROR_FP8,
                        "GPU %u does not tell its compute capability: %s", d,
                        cudaGetErrorString(status));
        else
            g_set_error(error, RP_KERNELS_ERROR, RP_KERNELS_ERROR_FP8,
                        "GPU %u, %s, has compute capability %d.%d; tensor cores for fp8 come with "
                        "8.9 (RTX 40, L4, H100 and later)",
                        d, device.name, device.major, device.minor);
        return FALSE;
    }
    return TRUE;
}

static gboolean
check(RpKernelStream *stream, GError **error)
{
    if (stream->failure == NULL)
        return TRUE;
    g_set_error_literal(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_LAUNCH, stream->failure);
    g_clear_pointer(&stream->failure, g_free);
    return FALSE;
}

#define ENTRY(operation, Args, words) .operation = issue_##operation,
#define ENTRIES(operation, Args, words)                                                            \
    .operation##_workspace = rp_cuda_##operation##_workspace, ENTRY(operation, Args, words)

const RpKernels *
rp_cuda_kernels(void)
{
    static const RpKernels kernels = {.name = "cuda",
                                      .has_attention = has_attention,
                                      .check_fp8 = check_fp8,
                                      .matmul_library = rp_cuda_matmul_library,
                                      .check = check,
                                      .matmul_workspace = rp_cuda_matmul_workspace,
                                      .matmul = matmul,
                                      .attention_forward_workspace = attention_forward_workspace,
                                      .attention_forward = attention_forward,
                                      ENTRIES(attention_backward, RpAttentionArgs, )
                                          RP_LAUNCHED_KERNELS(ENTRY, ENTRIES)};

    return &kernels;
}
