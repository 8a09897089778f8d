/* The host's kernels behind streams of soft-cuda.c. */
#include "tests/exec-cuda/soft-cuda-private.h"

#include <math.h>
#include <string.h>

#include "exec/cuda/kernels/finite.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/probe.h"
#include "exec/host/kernels.h"

struct _RpKernelStream {
    cudaStream_t stream;
};

#define DEFER(name, Args)                                                                          \
    static void run_##name(void *payload)                                                          \
    {                                                                                              \
        rp_host_kernels()->name(NULL, payload);                                                    \
    }                                                                                              \
    static void issue_##name(RpKernelStream *stream, const Args *args)                             \
    {                                                                                              \
        soft_cuda_issue(stream->stream, run_##name, args, sizeof *args);                           \
    }

DEFER(matmul, RpMatmulArgs)
DEFER(bias_forward, RpBiasArgs)
DEFER(bias_backward, RpBiasArgs)
DEFER(rmsnorm_forward, RpRmsnormArgs)
DEFER(rmsnorm_backward, RpRmsnormArgs)
DEFER(rope_forward, RpRopeArgs)
DEFER(rope_backward, RpRopeArgs)
DEFER(norm_rope_forward, RpNormRopeArgs)
DEFER(norm_rope_backward, RpNormRopeArgs)
DEFER(attention_forward, RpAttentionArgs)
DEFER(attention_backward, RpAttentionArgs)
DEFER(swiglu_forward, RpSwigluArgs)
DEFER(swiglu_backward, RpSwigluArgs)
DEFER(embedding_forward, RpEmbeddingArgs)
DEFER(embedding_backward, RpEmbeddingArgs)
DEFER(cross_entropy, RpCrossEntropyArgs)
DEFER(sum_squares, RpSumSquaresArgs)
DEFER(convert, RpElementsArgs)
DEFER(add, RpElementsArgs)
DEFER(gather, RpGatherArgs)
DEFER(scatter, RpScatterArgs)

typedef struct {
    void *x;
    RpDtype dtype;
    size_t n;
    float value;
} Fill;

static void
run_fill(void *payload)
{
    const Fill *fill = payload;

    rp_host_kernels()->fill(NULL, fill->x, fill->dtype, fill->n, fill->value);
}

static void
issue_fill(RpKernelStream *stream, void *x, RpDtype dtype, size_t n, float value)
{
    const Fill fill = {x, dtype, n, value};

    soft_cuda_issue(stream->stream, run_fill, &fill, sizeof fill);
}

/* Only launches can fail here. */
static gboolean
check(RpKernelStream *stream, GError **error)
{
    return TRUE;
}

const RpKernels *
rp_cuda_kernels(void)
{
    static RpKernels table;
    static gsize ready;

    if (g_once_init_enter(&ready)) {
        table = *rp_host_kernels();
        table.name = "soft-cuda";
        table.matmul = issue_matmul;
        table.bias_forward = issue_bias_forward;
        table.bias_backward = issue_bias_backward;
        table.rmsnorm_forward = issue_rmsnorm_forward;
        table.rmsnorm_backward = issue_rmsnorm_backward;
        table.rope_forward = issue_rope_forward;
        table.rope_backward = issue_rope_backward;
        table.norm_rope_forward = issue_norm_rope_forward;
        table.norm_rope_backward = issue_norm_rope_backward;
        table.attention_forward = issue_attention_forward;
        table.attention_backward = issue_attention_backward;
        table.swiglu_forward = issue_swiglu_forward;
        table.swiglu_backward = issue_swiglu_backward;
        table.embedding_forward = issue_embedding_forward;
        table.embedding_backward = issue_embedding_backward;
        table.cross_entropy = issue_cross_entropy;
        table.sum_squares = issue_sum_squares;
        table.convert = issue_convert;
        table.add = issue_add;
        table.gather = issue_gather;
        table.scatter = issue_scatter;
        table.fill = issue_fill;
        table.check = check;
        g_once_init_leave(&ready, 1);
    }
    return &table;
}

RpKernelStream *
rp_cuda_stream_new(int device, cudaStream_t stream, GError **error)
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

/* ---- exec/cuda/kernels/finite.h ---- */

typedef struct {
    int dtype;
    const void *x;
    size_t n;
    unsigned char *flag;
} Find;

static void
run_find(void *payload)
{
    const Find *find = payload;
    static const guint32 infinity[] = {0x7f800000, 0x7f80, 0x7c00};
    gboolean found = FALSE;

    for (size_t i = 0; i < find->n; i++) {
        const guint32 bits =
            find->dtype == 0 ? ((const guint32 *)find->x)[i] : ((const guint16 *)find->x)[i];

        found |= (bits & infinity[find->dtype]) == infinity[find->dtype];
    }
    if (found)
        *find->flag = 1;
}

cudaError_t
rp_cuda_find_broken(int dtype, const void *x, size_t n, unsigned char *flag, cudaStream_t stream)
{
    const Find find = {dtype, x, n, flag};

    return soft_cuda_issue(stream, run_find, &find, sizeof find);
}

typedef struct {
    const double *loss;
    float *sum;
} BreakSum;

static void
run_break_sum(void *payload)
{
    const BreakSum *call = payload;

    if (!isfinite(*call->loss))
        *call->sum = NAN;
}

cudaError_t
rp_cuda_break_sum(const double *loss, float *sum, cudaStream_t stream)
{
    const BreakSum call = {loss, sum};

    return soft_cuda_issue(stream, run_break_sum, &call, sizeof call);
}

typedef struct {
    const int32_t *from;
    int32_t *to;
    size_t n;
} Fetch;

static void
run_fetch(void *payload)
{
    const Fetch *call = payload;

    memcpy(call->to, call->from, call->n * sizeof *call->to);
}

cudaError_t
rp_cuda_fetch(const int32_t *from, int32_t *to, size_t n, cudaStream_t stream)
{
    const Fetch call = {from, to, n};

    return soft_cuda_issue(stream, run_fetch, &call, sizeof call);
}

/* Threads are not measured as GPUs are. */
RpProbe *
rp_cuda_probe_new(guint device, GError **error)
{
    g_set_error_literal(error, RP_CUDA_ERROR, RP_CUDA_ERROR_DEVICE, "there is no GPU");
    return NULL;
}
