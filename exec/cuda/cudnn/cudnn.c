/*
 * Forward of attention by cuDNN 9: the graph of operations that its fused engines recognise, the plan of each shape
 * (one, in the stream's table), and runs. Tensors have four dimensions, [batch,heads,S,D], as they lie in
 * [batch,S,heads,D].
 *
 *   s = scale q k^T where row >= column, and with a window where column + window > row; else -infinity
 *   m = row max of s;  e = exp(s - m);  z = row sum of e;  l = m + log z;  o = (e / z) v
 *
 * cuDNN writes l, which is lse, as [batch,heads,S]; lse is [heads,tokens]. For one sequence that is the same; else it
 * goes to the workspace first:  | l [batch,heads,S] | cuDNN's own |
 */
#include "exec/cuda/cudnn/cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/base/units.h"

#define LEAST_VERSION 90600
#define LEAST_LENGTH 64
#define OWN_LEAST ((size_t)1 << 20) /* bytes that any plan may use */
#define PIECE_ALIGNMENT 256         /* bytes, in the workspace */
#define MOST_PROPOSALS 16           /* engine configurations that are tried */

typedef cudnnBackendDescriptor_t Descriptor;

struct _RpCudnn {
    cudaStream_t stream;
    cudnnHandle_t handle;
    gboolean opened;
    GHashTable *plans;      /* bytes of a shape -> Descriptor, NULL: there is none */
    GPtrArray *descriptors; /* all; each was made after those that it uses */
    guint64 runs;
    gboolean failed; /* this run; nothing is done after it */
    char reason[1024];
};

/* Tensors by letters, which are their unique ids: arrays q, k, v, o and l; values f (the scale), n and N (of scores
 * that are not seen) and w (the window); the rest are virtual. */
#define ARRAYS "qkvo"
#define VALUES "fnNw"
#define ROWS "lmzg" /* a value a row of scores */
#define INDICES "ijIJ"
#define CONDITIONS "cC"
#define SCORES "saSKWdep"
#define OF_WINDOW "NwIJKCW"

typedef struct {
    enum { MATMUL, POINTWISE, REDUCTION } kind;
    int mode;        /* cudnnPointwiseMode_t or cudnnReduceTensorOp_t */
    char y, x, b, t; /* y = x, x b, x @mode b, or t ? x : b */
    gint64 axis;     /* axis of an index */
} Operation;

static const Operation operations[] = {
    {MATMUL, 0, 's', 'q', 'k', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, 'a', 's', 'f', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_GEN_INDEX, 'i', 'a', 0, 0, 2},
    {POINTWISE, CUDNN_POINTWISE_GEN_INDEX, 'j', 'a', 0, 0, 3},
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, 'c', 'i', 'j', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, 'S', 'a', 'n', 'c', 0},
    {POINTWISE, CUDNN_POINTWISE_GEN_INDEX, 'I', 'S', 0, 0, 2},
    {POINTWISE, CUDNN_POINTWISE_GEN_INDEX, 'J', 'S', 0, 0, 3},
    {POINTWISE, CUDNN_POINTWISE_ADD, 'K', 'J', 'w', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_CMP_GT, 'C', 'K', 'I', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, 'W', 'S', 'N', 'C', 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_MAX, 'm', 'W', 0, 0, 0},
    {POINTWISE, CUDNN_POINTWISE_SUB, 'd', 'W', 'm', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_EXP, 'e', 'd', 0, 0, 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, 'z', 'e', 0, 0, 0},
    {POINTWISE, CUDNN_POINTWISE_LOG, 'g', 'z', 0, 0, 0},
    {POINTWISE, CUDNN_POINTWISE_ADD, 'l', 'm', 'g', 0, 0},
    {POINTWISE, CUDNN_POINTWISE_DIV, 'p', 'e', 'z', 0, 0},
    {MATMUL, 0, 'o', 'p', 'v', 0, 0},
};

gboolean
rp_cudnn_available(void)
{
    /* libcudnn ends the process if one of these is missing; it keeps them as well */
    static const char *const parts[] = {
        "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_heuristic.so.9",
        "libcudnn_engines_precompiled.so.9", "libcudnn_engines_runtime_compiled.so.9"};
    const size_t version = cudnnGetVersion();
    Dl_info info = {.dli_fname = NULL};
    void *symbol = dlsym(RTLD_DEFAULT, "cudnnGetVersion");
    g_autofree char *folder = symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL
                                  ? g_path_get_dirname(info.dli_fname)
                                  : g_strdup(".");

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autofree char *path = g_build_filename(folder, parts[i], NULL);
        const int flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE;
        void *library = dlopen(path, flags);

        if (library == NULL)
            library = dlopen(parts[i], flags);
        if (library == NULL)
            return FALSE;
        dlclose(library);
    }
    /* attention of 9.10.0 and 9.10.1 is wrong */
    return version >= LEAST_VERSION && version < 100000 && version != 91000 && version != 91001;
}

/* Unless something already failed. */
static void
fail(RpCudnn *cudnn, const char *reason)
{
    if (!cudnn->failed)
        g_strlcpy(cudnn->reason, reason, sizeof cudnn->reason);
    cudnn->failed = TRUE;
}

static void
check(RpCudnn *cudnn, cudnnStatus_t status)
{
    char text[sizeof cudnn->reason] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return;
    cudnnGetLastErrorString(text, sizeof text);
    fail(cudnn, *text != '\0' ? text : cudnnGetErrorString(status));
}

/* Returns: (transfer none): an empty descriptor, or NULL after a failure */
static Descriptor
create(RpCudnn *cudnn, cudnnBackendDescriptorType_t type)
{
    Descriptor descriptor = NULL;

    if (!cudnn->failed)
        check(cudnn, cudnnBackendCreateDescriptor(type, &descriptor));
    if (descriptor != NULL)
        g_ptr_array_add(cudnn->descriptors, descriptor);
    return descriptor;
}

/* A descriptor's; left out if @count is 0. */
typedef struct {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    gint64 count;
    const void *values;
} Attribute;

/* Returns: (transfer none): a descriptor with @attributes, or NULL after a failure */
static Descriptor
make(RpCudnn *cudnn, cudnnBackendDescriptorType_t type, const Attribute *attributes, guint n)
{
    const Descriptor made = create(cudnn, type);

    for (const Attribute *a = attributes; a < attributes + n && !cudnn->failed; a++)
        if (a->count > 0)
            check(cudnn, cudnnBackendSetAttribute(made, a->name, a->type, a->count, a->values));
    if (!cudnn->failed)
        check(cudnn, cudnnBackendFinalize(made));
    return made;
}

#define MAKE(type, ...)                                                                            \
    make(cudnn, CUDNN_BACKEND_##type##_DESCRIPTOR, (const Attribute[]){__VA_ARGS__},               \
         G_N_ELEMENTS(((const Attribute[]){__VA_ARGS__})))
#define SOME(name, type, count, values)                                                            \
    ((const Attribute){CUDNN_ATTR_##name, CUDNN_TYPE_##type, count, values})
#define ONE(name, type, place) SOME(name, type, 1, place)
#define PART(name, place) SOME(name, BACKEND_DESCRIPTOR, *(place) != NULL, place)

static gboolean
is_one_of(char tensor, const char *letters)
{
    return tensor != '\0' && strchr(letters, tensor) != NULL;
}

/* Whether some query does not see all before it. */
static gboolean
has_window(const RpAttentionArgs *args)
{
    return args->window > 0 && args->window < args->max_length;
}

static size_t
own_bytes(const RpAttentionArgs *args)
{
    return OWN_LEAST +
           args->sequences * args->heads * rp_align_up(args->max_length, 128) * sizeof(float);
}

static Descriptor
make_tensor(RpCudnn *cudnn, const RpAttentionArgs *args, char tensor)
{
    static const gint64 alignment = 16;
    static const bool yes = true;
    const gint64 id = tensor, S = (gint64)args->max_length, D = (gint64)args->head_size;
    const gint64 H = (gint64)args->heads, K = (gint64)args->kv_heads;
    const cudnnDataType_t storage =
        args->dtype == RP_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const cudnnDataType_t type = is_one_of(tensor, ARRAYS "p")   ? storage
                                 : is_one_of(tensor, CONDITIONS) ? CUDNN_DATA_BOOLEAN
                                 : is_one_of(tensor, INDICES)    ? CUDNN_DATA_INT32
                                                                 : CUDNN_DATA_FLOAT;
    const gboolean is_value = is_one_of(tensor, VALUES);
    const gint64 columns = is_one_of(tensor, ROWS) ? 1 : S;
    gint64 dims[4] = {(gint64)args->sequences, H, S, columns};
    gint64 strides[4] = {H * S * columns, S * columns, columns, 1};

    for (guint i = 0; i < 4 && is_value; i++)
        dims[i] = strides[i] = 1;
    if (is_one_of(tensor, ARRAYS)) {
        const gint64 heads = is_one_of(tensor, "kv") ? K : H;
        const gint64 row =
            (tensor == 'v' && args->row_heads > 0 ? (gint64)args->row_heads : heads) * D;
        const guint token = tensor == 'k' ? 3 : 2; /* k is transposed: the memory is the same */

        dims[1] = heads;
        dims[token] = S;
        dims[5 - token] = D;
        strides[0] = S * row;
        strides[1] = D;
        strides[token] = row;
        strides[5 - token] = 1;
    }
    return MAKE(TENSOR, ONE(TENSOR_DATA_TYPE, DATA_TYPE, &type),
                SOME(TENSOR_DIMENSIONS, INT64, 4, dims), SOME(TENSOR_STRIDES, INT64, 4, strides),
                ONE(TENSOR_UNIQUE_ID, INT64, &id), ONE(TENSOR_BYTE_ALIGNMENT, INT64, &alignment),
                SOME(TENSOR_IS_VIRTUAL, BOOLEAN, !is_one_of(tensor, ARRAYS VALUES "l"), &yes),
                SOME(TENSOR_IS_BY_VALUE, BOOLEAN, is_value, &yes));
}

/* @tensors: by letter */
static Descriptor
make_operation(RpCudnn *cudnn, const Operation *op, const Descriptor *tensors)
{
    static const float one = 1;
    static const cudnnDataType_t sums = CUDNN_DATA_FLOAT, bits = CUDNN_DATA_BOOLEAN;
    const cudnnPointwiseMode_t pointwise = (cudnnPointwiseMode_t)op->mode;
    const cudnnReduceTensorOp_t reduction = (cudnnReduceTensorOp_t)op->mode;
    const Descriptor *x = &tensors[(guint8)op->x], *y = &tensors[(guint8)op->y];
    const Descriptor *b = &tensors[(guint8)op->b], *t = &tensors[(guint8)op->t];
    Descriptor kind;

    if (op->kind == MATMUL) {
        kind = MAKE(MATMUL, ONE(MATMUL_COMP_TYPE, DATA_TYPE, &sums));
        return MAKE(OPERATION_MATMUL, PART(OPERATION_MATMUL_ADESC, x),
                    PART(OPERATION_MATMUL_BDESC, b), PART(OPERATION_MATMUL_CDESC, y),
                    PART(OPERATION_MATMUL_DESC, &kind));
    }
    if (op->kind == REDUCTION) {
        kind = MAKE(REDUCTION, ONE(REDUCTION_COMP_TYPE, DATA_TYPE, &sums),
                    ONE(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, &reduction));
        return MAKE(OPERATION_REDUCTION, PART(OPERATION_REDUCTION_DESC, &kind),
                    PART(OPERATION_REDUCTION_XDESC, x), PART(OPERATION_REDUCTION_YDESC, y));
    }
    kind = MAKE(POINTWISE, ONE(POINTWISE_MODE, POINTWISE_MODE, &pointwise),
                ONE(POINTWISE_MATH_PREC, DATA_TYPE, is_one_of(op->y, CONDITIONS) ? &bits : &sums),
                SOME(POINTWISE_AXIS, INT64, op->axis > 0, &op->axis));
    return MAKE(OPERATION_POINTWISE, PART(OPERATION_POINTWISE_PW_DESCRIPTOR, &kind),
                PART(OPERATION_POINTWISE_XDESC, x), PART(OPERATION_POINTWISE_YDESC, y),
                PART(OPERATION_POINTWISE_BDESC, b), PART(OPERATION_POINTWISE_TDESC, t),
                ONE(OPERATION_POINTWISE_ALPHA1, FLOAT, &one),
                ONE(OPERATION_POINTWISE_ALPHA2, FLOAT, &one));
}

static Descriptor
make_graph(RpCudnn *cudnn, const RpAttentionArgs *args)
{
    const char *left_out = has_window(args) ? "" : OF_WINDOW;
    Descriptor tensors[128] = {NULL}, made[G_N_ELEMENTS(operations)];
    gint64 n = 0;

    for (const char *tensor = ARRAYS VALUES ROWS INDICES CONDITIONS SCORES; *tensor != '\0';
         tensor++)
        if (!is_one_of(*tensor, left_out))
            tensors[(guint8)*tensor] = make_tensor(cudnn, args, *tensor);
    if (!has_window(args))
        tensors['W'] = tensors['S'];
    for (guint i = 0; i < G_N_ELEMENTS(operations); i++)
        if (!is_one_of(operations[i].y, left_out))
            made[n++] = make_operation(cudnn, &operations[i], tensors);
    return MAKE(OPERATIONGRAPH, ONE(OPERATIONGRAPH_HANDLE, HANDLE, &cudnn->handle),
                SOME(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, n, made));
}

/* Returns: number of values; 0 after a failure */
static gint64
get(RpCudnn *cudnn, Descriptor of, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, gint64 most, void *values)
{
    gint64 count = 0;

    if (!cudnn->failed)
        check(cudnn, cudnnBackendGetAttribute(of, name, type, most, &count, values));
    return cudnn->failed ? 0 : MIN(count, most);
}

/* Returns: the plan of a configuration, unless it needs more workspace or its sums have no order of their own */
static Descriptor
try_configuration(RpCudnn *cudnn, Descriptor configuration, size_t most_bytes)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
    Descriptor engine = create(cudnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR), plan;
    gint64 bytes = 0, n;

    get(cudnn, configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &engine);
    n = get(cudnn, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
            G_N_ELEMENTS(notes), notes);
    for (gint64 i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            fail(cudnn, "the engine's sums have no order of their own");
    plan = MAKE(EXECUTION_PLAN, ONE(EXECUTION_PLAN_HANDLE, HANDLE, &cudnn->handle),
                PART(EXECUTION_PLAN_ENGINE_CONFIG, &configuration));
    get(cudnn, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    if (bytes > 0 && (size_t)bytes > most_bytes)
        fail(cudnn, "the plan needs more workspace than it has");
    return cudnn->failed ? NULL : plan;
}

/* The first that works of the configurations that cuDNN proposes, best first. Returns: NULL after a failure */
static Descriptor
make_plan(RpCudnn *cudnn, const RpAttentionArgs *args)
{
    static const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    const Descriptor graph = make_graph(cudnn, args);
    const Descriptor heuristic = MAKE(ENGINEHEUR, PART(ENGINEHEUR_OPERATION_GRAPH, &graph),
                                      ONE(ENGINEHEUR_MODE, HEUR_MODE, &mode));
    Descriptor proposed[MOST_PROPOSALS], plan = NULL;
    gint64 n;

    for (guint i = 0; i < MOST_PROPOSALS; i++)
        proposed[i] = create(cudnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    n = get(cudnn, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            MOST_PROPOSALS, proposed);
    if (n == 0)
        fail(cudnn, "no engine does it");
    for (gint64 i = 0; i < n && plan == NULL; i++) {
        cudnn->failed = FALSE;
        plan = try_configuration(cudnn, proposed[i], own_bytes(args));
    }
    return plan;
}

/* Whether sizes alone, and no gaps, allow it. */
static gboolean
suits(const RpAttentionArgs *args)
{
    return args->dtype != RP_DTYPE_FP32 && args->gaps == NULL &&
           (args->head_size == 64 || args->head_size == 128 || args->head_size == 256) &&
           args->kv_heads > 0 && args->heads > 0 && args->heads % args->kv_heads == 0 &&
           args->max_length >= LEAST_LENGTH && args->max_length <= G_MAXINT32 &&
           args->sequences > 0 && args->sequences <= G_MAXINT32 / args->max_length &&
           args->sequences * args->max_length == args->tokens && args->heads <= G_MAXUINT16;
}

/* Bytes of lse as cuDNN writes it; 0: it is the caller's own. */
static size_t
stats_bytes(const RpAttentionArgs *args)
{
    return args->sequences == 1
               ? 0
               : rp_align_up(args->tokens * args->heads * sizeof(float), PIECE_ALIGNMENT);
}

size_t
rp_cudnn_workspace(const RpAttentionArgs *args)
{
    return suits(args) ? PIECE_ALIGNMENT + stats_bytes(args) + own_bytes(args) : 0;
}

static Descriptor
find_plan(RpCudnn *cudnn, const RpAttentionArgs *args)
{
    const size_t shape[] = {args->dtype,    args->sequences, args->max_length, args->heads,
                            args->kv_heads, args->head_size, args->row_heads,  has_window(args)};
    g_autoptr(GBytes) key = g_bytes_new(shape, sizeof shape);
    gpointer plan;

    if (!cudnn->opened && rp_cudnn_available()) {
        check(cudnn, cudnnCreate(&cudnn->handle));
        if (!cudnn->failed)
            check(cudnn, cudnnSetStream(cudnn->handle, cudnn->stream));
    }
    cudnn->opened = TRUE;
    if (cudnn->handle == NULL)
        fail(cudnn, "its libraries are not all there, or not 9.6 or later");
    if (cudnn->failed)
        return NULL;
    if (!g_hash_table_lookup_extended(cudnn->plans, key, NULL, &plan)) {
        plan = make_plan(cudnn, args);
        g_hash_table_insert(cudnn->plans, g_steal_pointer(&key), plan);
    }
    if (plan == NULL)
        fail(cudnn, "no engine does it");
    return plan;
}

gboolean
rp_cudnn_attend(RpCudnn *cudnn, const RpAttentionArgs *args)
{
    float scale = args->scale, window = (float)args->window;
    float minus = cudnnGetVersion() < 91000 ? -G_MAXFLOAT : -INFINITY;
    const size_t copied = stats_bytes(args), S = args->max_length, row = S * sizeof(float);
    char *stats = (char *)rp_align_up((guintptr)args->workspace, PIECE_ALIGNMENT);
    void *own = stats + copied, *lse = copied > 0 ? (void *)stats : args->lse;
    const void *const pointers[] = {args->q, args->k, args->v, args->out, lse,
                                    &scale,  &minus,  &minus,  &window};
    const gint64 ids[] = {'q', 'k', 'v', 'o', 'l', 'f', 'n', 'N', 'w'};
    const gint64 n = (gint64)G_N_ELEMENTS(ids) - (has_window(args) ? 0 : 2);
    Descriptor plan, pack;
    guint made;

    cudnn->failed = FALSE;
    if (!suits(args) || !(args->scale > 0))
        fail(cudnn, "not for such sizes");
    for (guint i = 0; i < 5; i++)
        if ((guintptr)pointers[i] % 16 != 0)
            fail(cudnn, "arrays must be at multiples of 16 bytes");
    plan = cudnn->failed ? NULL : find_plan(cudnn, args);
    made = cudnn->descriptors->len;
    pack = MAKE(VARIANT_PACK, SOME(VARIANT_PACK_UNIQUE_IDS, INT64, n, ids),
                SOME(VARIANT_PACK_DATA_POINTERS, VOID_PTR, n, pointers),
                ONE(VARIANT_PACK_WORKSPACE, VOID_PTR, &own));
    if (!cudnn->failed)
        check(cudnn, cudnnBackendExecute(cudnn->handle, plan, pack));
    g_ptr_array_set_size(cudnn->descriptors, (gint)made);
    for (size_t b = 0; b < args->sequences && copied > 0 && !cudnn->failed; b++) {
        const cudaError_t status = cudaMemcpy2DAsync(
            args->lse + b * S, args->tokens * sizeof(float), stats + b * args->heads * row, row,
            row, args->heads, cudaMemcpyDeviceToDevice, cudnn->stream);

        if (status != cudaSuccess)
            fail(cudnn, cudaGetErrorString(status));
    }
    cudnn->runs += !cudnn->failed;
    return !cudnn->failed;
}

guint64
rp_cudnn_runs(const RpCudnn *cudnn)
{
    return cudnn->runs;
}

const char *
rp_cudnn_reason(const RpCudnn *cudnn)
{
    return *cudnn->reason != '\0' ? cudnn->reason : NULL;
}

static void
descriptor_free(gpointer descriptor)
{
    cudnnBackendDestroyDescriptor(descriptor);
}

RpCudnn *
rp_cudnn_new(RpRuntimeStream *stream)
{
    RpCudnn *cudnn = g_new0(RpCudnn, 1);

    cudnn->stream = stream;
    cudnn->plans =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, NULL);
    cudnn->descriptors = g_ptr_array_new_with_free_func(descriptor_free);
    return cudnn;
}

void
rp_cudnn_free(RpCudnn *cudnn)
{
    if (cudnn == NULL)
        return;
    while (cudnn->descriptors->len > 0) /* the last first, as it may use others */
        g_ptr_array_set_size(cudnn->descriptors, (gint)cudnn->descriptors->len - 1);
    g_ptr_array_unref(cudnn->descriptors);
    g_hash_table_unref(cudnn->plans);
    if (cudnn->handle != NULL)
        cudnnDestroy(cudnn->handle);
    g_free(cudnn);
}
