/*
 * C[m,n] = A B, or += A B, or residual + A B; and + bias; by cuBLASLt.
 *
 *   A, B: both bf16, both fp16 or both fp32;  C: the same, or fp32.  fp32 sums (no TF32)    = or +=
 *   A, B: fp8, not both e5m2;  C: bf16, fp16 or fp32
 *   half_sums: A, B and C all fp16: fp16 sums, if cuBLASLt has an algorithm for them; else ignored.
 *   So gradients of weights, which are added to fp32, always have fp32 sums.
 *   residual: cuBLASLt's C, whose D is our C: beta is 1.
 *   bias: stored as C is. cuBLASLt's epilogue, which adds it to sums before they are rounded; where
 *   there is no algorithm with one (or k is 0), a pass of its own behind the matmul (elements.cu).
 *
 * cuBLASLt takes matrices in columns: C[m,n] in rows is C^T, [n,m], in columns. So its first
 * operand is our B, its second our A, and
 *
 *   NT   C^T = (B as it lies)^T  (A as it lies)       B: k x n, A: k x m
 *   NN   C^T =  B as it lies     (A as it lies)       B: n x k, A: k x m
 *   TN   C^T =  B as it lies     (A as it lies)^T     B: n x k, A: m x k
 *
 * and a bias, one value a column of C, is one a row of C^T, as the epilogue wants it.
 *
 * Fp8 values (core/base/fp8.h) come as NT alone, which cuBLASLt multiplies on every GPU that has
 * fp8. Scales are read by the kernel. half_sums: sums may be those that tensor cores keep by
 * themselves, with fewer bits than fp32 ("fast accumulation"), else they are promoted to fp32.
 *
 * Operands of 2^31 elements and more come in parts (kernels.c).
 *
 * A plan is made once a shape and way: the first algorithm of the heuristic, or the one that the way
 * says, of those whose sums have an order of their own. Arrays at multiples of 16 bytes have the same
 * bits wherever they are; others may be multiplied by another algorithm. Oracle: exec/host/matmul.c
 */
#include "exec/cuda/base/launch.h"
#include "exec/cuda/kernels/kernels-private.h"
#include "exec/cuda/runtime/split.h"

#include <string.h>

#define WORKSPACE_BYTES ((size_t)32 << 20) /* cuBLAS asks for this much on sm_90 */
#define WORKSPACE_ALIGNMENT 256            /* a workspace is at 64: the rest is cut off */

/* All fields that a matmul's plan depends on. Keys are compared as bytes, so they are made of zeros
 * first. */
typedef struct {
    size_t m, n, k, a_stride, b_stride, c_stride;
    guint16 form, variant;
    guint32 a_dtype, b_dtype, c_dtype;
    guint32 a_alignment, b_alignment; /* bytes: 16, or of an element */
    /* two as wide as one of the others: no gap */
    guint16 accumulate, half_sums;
    guint16 c_alignment, bias_alignment; /* 0: no bias */
} Key;

G_STATIC_ASSERT(sizeof(Key) == 6 * sizeof(size_t) + 8 * sizeof(guint32));

typedef struct {
    Key key;
    gboolean half_sums; /* the key's, if there is such an algorithm */
    gboolean adds_bias; /* the same; else a pass does */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

/* FNV-1a */
static guint
key_hash(gconstpointer key)
{
    const guint8 *bytes = key;
    guint32 hash = 2166136261u;

    for (size_t i = 0; i < sizeof(Key); i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static gboolean
key_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(Key)) == 0;
}

static void
plan_free(gpointer data)
{
    Plan *plan = data;

    if (plan->a != NULL)
        cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b != NULL)
        cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c != NULL)
        cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->operation != NULL)
        cublasLtMatmulDescDestroy(plan->operation);
    g_free(plan);
}

size_t
rp_cuda_matmul_workspace(const RpMatmulArgs *args)
{
    return WORKSPACE_BYTES;
}

char *
rp_cuda_matmul_library(void)
{
    char name[256];

    if (rp_cuda_name(0, name, sizeof name) != cudaSuccess)
        return NULL;
    return g_strdup_printf("cuBLASLt %zu, %s", cublasLtGetVersion(), name);
}

static gboolean
is_code(guint32 dtype)
{
    return dtype >= RP_N_DTYPES;
}

static guint16
alignment_of(const void *array, RpDtype dtype)
{
    return (guintptr)array % 16 == 0 ? 16 : (guint16)rp_dtype_size(dtype);
}

static gboolean
may_sum_in_half(const RpMatmulArgs *args)
{
    return args->half_sums && args->scale == 0 &&
           (is_code(args->a_dtype) ||
            (args->a_dtype == RP_DTYPE_FP16 && args->b_dtype == RP_DTYPE_FP16 &&
             args->c_dtype == RP_DTYPE_FP16));
}

/* Whether the product is added to the values in memory. */
static gboolean
reads_c(const RpMatmulArgs *args)
{
    return args->accumulate || args->residual != NULL;
}

static Key
key_of(const RpMatmulArgs *args)
{
    Key key;

    memset(&key, 0, sizeof key);
    key.m = args->m;
    key.n = args->n;
    key.k = args->k;
    key.a_stride = rp_matmul_a_stride(args);
    key.b_stride = rp_matmul_b_stride(args);
    key.c_stride = rp_matmul_c_stride(args);
    key.form = (guint16)args->form;
    key.variant = args->variant;
    key.a_dtype = args->a_dtype;
    key.b_dtype = args->b_dtype;
    key.c_dtype = args->c_dtype;
    key.accumulate = reads_c(args);
    key.half_sums = may_sum_in_half(args);
    key.a_alignment = alignment_of(args->a, args->a_dtype);
    key.b_alignment = alignment_of(args->b, args->b_dtype);
    key.c_alignment = alignment_of(args->c, args->c_dtype);
    if (args->residual != NULL)
        key.c_alignment = MIN(key.c_alignment, alignment_of(args->residual, args->c_dtype));
    key.bias_alignment = args->bias != NULL ? alignment_of(args->bias, args->c_dtype) : 0;
    return key;
}

static cudaDataType_t
data_type(guint32 dtype)
{
    static const cudaDataType_t types[RP_N_DTYPES_AND_FP8] = {[RP_DTYPE_FP32] = CUDA_R_32F,
                                                              [RP_DTYPE_BF16] = CUDA_R_16BF,
                                                              [RP_DTYPE_FP16] = CUDA_R_16F,
                                                              [RP_DTYPE_E4M3] = CUDA_R_8F_E4M3,
                                                              [RP_DTYPE_E5M2] = CUDA_R_8F_E5M2};

    return types[dtype];
}

/* The layout of a matrix of @rows x @columns in rows. @stride: from one to the next */
static cublasStatus_t
new_layout(cublasLtMatrixLayout_t *layout, guint32 dtype, size_t rows, size_t columns,
           size_t stride)
{
    return cublasLtMatrixLayoutCreate(layout, data_type(dtype), columns, rows, (int64_t)stride);
}

static cublasStatus_t
set_bias(cublasLtMatmulDesc_t operation, const void *bias)
{
    return cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias);
}

static cublasStatus_t
set_scales(cublasLtMatmulDesc_t operation, const float *a_scale, const float *b_scale)
{
    const cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_scale, sizeof b_scale);

    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                &a_scale, sizeof a_scale);
}

/* Scales that nobody follows: that there are some is part of the plan. */
static cublasStatus_t
describe_codes(const Plan *plan)
{
    const int8_t fast = plan->half_sums;
    const float *scale = (const float *)16;
    const cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        plan->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);

    return status != CUBLAS_STATUS_SUCCESS ? status : set_scales(plan->operation, scale, scale);
}

/* The heuristic reads the alignment off the pointer and nothing else: it gets the key's. */
static cublasStatus_t
describe_bias(const Plan *plan)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = data_type(plan->key.c_dtype);
    cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(
            plan->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_bias(plan->operation, (const void *)(guintptr)plan->key.bias_alignment);
    return status;
}

static cublasStatus_t
describe(Plan *plan)
{
    const Key *key = &plan->key;
    const gboolean a_transposed = key->form == RP_MATMUL_TN;
    const gboolean b_transposed = key->form == RP_MATMUL_NT;
    const cublasOperation_t first = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const gboolean quantized = is_code(key->a_dtype);
    const gboolean half = plan->half_sums && !quantized;
    cublasStatus_t status =
        cublasLtMatmulDescCreate(&plan->operation, half ? CUBLAS_COMPUTE_16F : CUBLAS_COMPUTE_32F,
                                 half ? CUDA_R_16F : CUDA_R_32F);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                                &second, sizeof second);
    if (status == CUBLAS_STATUS_SUCCESS && quantized)
        status = describe_codes(plan);
    if (status == CUBLAS_STATUS_SUCCESS && plan->adds_bias)
        status = describe_bias(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = new_layout(&plan->a, key->a_dtype, a_transposed ? key->k : key->m,
                            a_transposed ? key->m : key->k, key->a_stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = new_layout(&plan->b, key->b_dtype, b_transposed ? key->n : key->k,
                            b_transposed ? key->k : key->n, key->b_stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = new_layout(&plan->c, key->c_dtype, key->m, key->n, key->c_stride);
    return status;
}

static cublasStatus_t
prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
       guint32 value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

static cublasStatus_t
set_preferences(cublasLtMatmulPreference_t preference, const Key *key)
{
    const size_t workspace = WORKSPACE_BYTES - WORKSPACE_ALIGNMENT;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        guint32 value;
    } wanted[] = {
        /* parts of k, if any, kept as the sums are and added up in order */
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->c_alignment},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);

    for (size_t i = 0; i < G_N_ELEMENTS(wanted) && status == CUBLAS_STATUS_SUCCESS; i++)
        status = prefer(preference, wanted[i].attribute, wanted[i].value);
    return status;
}

static cublasStatus_t
choose_algorithm(RpKernelStream *stream, Plan *plan)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[RP_MATMUL_MAX_VARIANTS];
    const int variant = MIN(plan->key.variant, RP_MATMUL_MAX_VARIANTS - 1);
    int rank = variant > 0 ? variant : (int)stream->rank, found = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_preferences(preference, &plan->key);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmulAlgoGetHeuristic(stream->blas, plan->operation, plan->b, plan->a, plan->c,
                                           plan->c, preference, rank + 1, results, &found);
    if (variant > 0 && found <= rank)
        rank = 0;
    if (status == CUBLAS_STATUS_SUCCESS && found <= rank)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        plan->algorithm = results[rank].algo;
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void
fail(RpKernelStream *stream, const RpMatmulArgs *args, cublasStatus_t status)
{
    g_autofree char *operation = g_strdup_printf(
        "matmul %s m=%zu n=%zu k=%zu, %s x %s -> %s%s", rp_matmul_layouts[args->form], args->m,
        args->n, args->k, rp_dtype_name(args->a_dtype), rp_dtype_name(args->b_dtype),
        rp_dtype_name(args->c_dtype), args->bias != NULL ? " + bias" : "");

    rp_cuda_stream_fail(stream, operation, cublasLtGetStatusString(status));
}

/* Returns: NULL if cuBLASLt cannot, or not so; @status: (out): why */
static Plan *
new_plan(RpKernelStream *stream, const Key *key, gboolean half_sums, gboolean adds_bias,
         cublasStatus_t *status)
{
    Plan *plan = g_new0(Plan, 1);

    plan->key = *key;
    plan->half_sums = half_sums;
    plan->adds_bias = adds_bias;
    *status = describe(plan);
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = choose_algorithm(stream, plan);
    if (*status == CUBLAS_STATUS_SUCCESS)
        return plan;
    plan_free(plan);
    return NULL;
}

/* The plan of @args, made if there is none yet. Returns: NULL after a failure, which is recorded */
static const Plan *
find_plan(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const Key key = key_of(args);
    const gboolean has_bias = key.bias_alignment > 0;
    cublasStatus_t status;
    Plan *plan;

    if (stream->plans == NULL)
        stream->plans = g_hash_table_new_full(key_hash, key_equal, NULL, plan_free);
    plan = g_hash_table_lookup(stream->plans, &key);
    if (plan != NULL)
        return plan;
    /* first its whole request, then less: fast sums are worth more than a pass. Depends on the key
     * alone */
    plan = new_plan(stream, &key, key.half_sums, has_bias, &status);
    if (plan == NULL && key.half_sums && has_bias)
        plan = new_plan(stream, &key, TRUE, FALSE, &status);
    if (plan == NULL && key.half_sums)
        plan = new_plan(stream, &key, FALSE, has_bias, &status);
    if (plan == NULL && has_bias)
        plan = new_plan(stream, &key, FALSE, FALSE, &status);
    if (plan == NULL) {
        fail(stream, args, status);
        return NULL;
    }
    g_hash_table_insert(stream->plans, &plan->key, plan);
    return plan;
}

/* Adds the bias to the stored product. */
static void
add_bias(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const RpBiasArgs bias = {
        .dtype = args->c_dtype, .tokens = args->m, .n = args->n, .bias = args->bias, .y = args->c};
    const cudaError_t added = rp_cuda_bias_forward(&bias, stream->stream);

    if (added != cudaSuccess)
        rp_cuda_stream_fail(stream, "bias of a matmul", cudaGetErrorString(added));
}

/* C of sums without a term */
static void
store_empty_sums(RpKernelStream *stream, const RpMatmulArgs *args)
{
    const size_t bytes = args->m * args->n * rp_dtype_size(args->c_dtype);
    const cudaError_t stored = args->accumulate ? cudaSuccess
                               : args->residual != NULL
                                   ? cudaMemcpyAsync(args->c, args->residual, bytes,
                                                     cudaMemcpyDeviceToDevice, stream->stream)
                                   : cudaMemsetAsync(args->c, 0, bytes, stream->stream);

    if (stored != cudaSuccess)
        rp_cuda_stream_fail(stream, "matmul", cudaGetErrorString(stored));
    else if (args->bias != NULL)
        add_bias(stream, args);
}

static gboolean
is_known(const RpMatmulArgs *args)
{
    if (is_code(args->a_dtype) || is_code(args->b_dtype))
        return is_code(args->a_dtype) && is_code(args->b_dtype) && args->form == RP_MATMUL_NT;
    return args->a_dtype == args->b_dtype &&
           (args->c_dtype == args->a_dtype || args->c_dtype == RP_DTYPE_FP32);
}

void
rp_cuda_multiply(RpKernelStream *stream, const RpMatmulArgs *args)
{
    /* 0 and 1, stored as sums are */
    static const float scales[] = {0.0f, 1.0f};
    static const guint16 half_scales[] = {0x0000, 0x3c00};
    const guintptr place = ((guintptr)args->workspace + WORKSPACE_ALIGNMENT - 1) /
                           WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    const void *alpha, *beta;
    const Plan *plan;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    gboolean half;

    g_return_if_fail(!(args->bias && args->scale != 0));
    rp_cuda_stream_pace(stream);
    g_return_if_fail(!(args->residual && args->accumulate));
    g_return_if_fail(args->c_stride == 0 || (args->bias == NULL && args->k > 0));
    if (!is_known(args)) {
        fail(stream, args, CUBLAS_STATUS_NOT_SUPPORTED);
        return;
    }
    if (args->m == 0 || args->n == 0)
        return;
    if (args->k == 0) {
        store_empty_sums(stream, args);
        return;
    }
    g_return_if_fail(args->workspace != NULL);
    plan = find_plan(stream, args);
    if (plan == NULL)
        return;
    half = plan->half_sums && !is_code(args->a_dtype);
    alpha = half               ? (const void *)&half_scales[1]
            : args->scale != 0 ? (const void *)&args->scale
                               : &scales[1];
    beta = half ? (const void *)&half_scales[reads_c(args)] : &scales[reads_c(args)];
    if (is_code(args->a_dtype))
        status = set_scales(plan->operation, args->a_scale, args->b_scale);
    if (status == CUBLAS_STATUS_SUCCESS && plan->adds_bias)
        status = set_bias(plan->operation, args->bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(stream->blas, plan->operation, alpha, args->b, plan->b, args->a,
                                plan->a, beta, args->residual != NULL ? args->residual : args->c,
                                plan->c, args->c, plan->c, &plan->algorithm, (void *)place,
                                WORKSPACE_BYTES - WORKSPACE_ALIGNMENT, stream->stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(stream, args, status);
    else if (args->bias != NULL && !plan->adds_bias)
        add_bias(stream, args);
}
