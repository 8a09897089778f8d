/*
 * Attention by cuDNN 9: which shapes, plans (one a shape, in the stream's table), and runs.
 *
 * cuDNN reads and writes lse as [batch,heads,S]; here it is [heads,tokens]. For one sequence that
 * is the same; for more a run copies it to or from the workspace.
 *
 *   forward   | lse [batch,heads,S] | cuDNN's own |
 *   backward  | lse [batch,heads,S] | delta [batch,heads,S] | cuDNN's own |
 *
 * cuDNN's own part of backward, for R = batch x S to 128 x heads rows, holds dK and dV of each
 * query head (2 x 2 D R bytes) and dS whole (2 R x S to 128), which is how it makes its sums in one
 * order. Where dS is beyond DS_MOST, backward is the built-in one.
 */
#include "exec/cuda/attention-cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "exec/cuda/attention-cudnn-graph.h"
#include "exec/cuda/shape-hash.h"

#define LEAST_LENGTH 64
#define LEAST_VERSION 90600
#define DS_MOST ((size_t)2 << 30)   /* bytes */
#define OWN_LEAST ((size_t)1 << 20) /* bytes that any plan may use */
#define PART_ALIGNMENT 256

/* What decides about a plan; compared as bytes, so made of zeros first. */
typedef struct {
    size_t batch, heads, kv_heads, length, head_size, window;
    guint32 dtype, backward;
} Key;

typedef struct {
    Key key;
    RpCudnnGraph *graph;
    cudnnBackendDescriptor_t plan; /* of graph; NULL: there is none, and graph->failure says why */
} Plan;

struct _RpCudnn {
    cudaStream_t stream;
    cudnnHandle_t handle; /* NULL: not tried, or broken */
    GHashTable *plans;    /* Key of a Plan -> Plan */
    gboolean broken;
    guint64 runs;
    char *reason;
};

static guint
key_hash(gconstpointer key)
{
    return rp_shape_hash(key, sizeof(Key));
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

    rp_cudnn_graph_free(plan->graph);
    g_free(plan);
}

RpCudnn *
rp_cudnn_new(cudaStream_t stream)
{
    RpCudnn *cudnn = g_new0(RpCudnn, 1);

    cudnn->stream = stream;
    cudnn->plans = g_hash_table_new_full(key_hash, key_equal, NULL, plan_free);
    return cudnn;
}

void
rp_cudnn_free(RpCudnn *cudnn)
{
    if (!cudnn)
        return;
    g_hash_table_unref(cudnn->plans);
    if (cudnn->handle)
        cudnnDestroy(cudnn->handle);
    g_free(cudnn->reason);
    g_free(cudnn);
}

guint64
rp_cudnn_runs(const RpCudnn *cudnn)
{
    return cudnn->runs;
}

const char *
rp_cudnn_reason(const RpCudnn *cudnn)
{
    return cudnn->reason;
}

/* Returns: FALSE */
static gboolean
refuse(RpCudnn *cudnn, const char *reason)
{
    if (g_strcmp0(cudnn->reason, reason) != 0) {
        g_free(cudnn->reason);
        cudnn->reason = g_strdup(reason);
    }
    return FALSE;
}

/* Whether @name can be loaded, from @folder or where the loader looks. */
static gboolean
can_load(const char *folder, const char *name)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);
    const int flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE; /* cuDNN keeps them as well */
    void *library = dlopen(path, flags);

    if (!library)
        library = dlopen(name, flags);
    if (!library)
        return FALSE;
    dlclose(library);
    return TRUE;
}

/* The folder of the cuDNN that this process has loaded. */
static char *
find_folder(void)
{
    static const char first[] = "cudnnGetVersion";
    Dl_info info = {.dli_fname = NULL};
    void *symbol = dlsym(RTLD_DEFAULT, first);

    if (symbol && dladdr(symbol, &info) != 0 && info.dli_fname)
        return g_path_get_dirname(info.dli_fname);
    return g_strdup(".");
}

gboolean
rp_cudnn_available(void)
{
    /* asked of them before they are there, libcudnn ends the process */
    static const char *const parts[] = {
        "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_heuristic.so.9",
        "libcudnn_engines_precompiled.so.9", "libcudnn_engines_runtime_compiled.so.9"};
    g_autofree char *folder = find_folder();

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (!can_load(folder, parts[i]))
            return FALSE;
    return cudnnGetVersion() >= LEAST_VERSION && cudnnGetVersion() < 100000;
}

/* Whether sizes alone allow it. */
static gboolean
suits(const RpCudaAttention *args)
{
    return (args->dtype == 1 || args->dtype == 2) &&
           (args->head_size == 64 || args->head_size == 128) && args->kv_heads > 0 &&
           args->heads > 0 && args->heads % args->kv_heads == 0 &&
           args->max_length >= LEAST_LENGTH && args->max_length <= G_MAXINT32 &&
           args->sequences > 0 && args->sequences <= G_MAXINT32 / args->max_length &&
           args->sequences * args->max_length == args->tokens && args->heads <= G_MAXUINT16;
}

static gboolean
is_aligned(const void *array)
{
    return (guintptr)array % 16 == 0;
}

static size_t
round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t
rows_bytes(const RpCudaAttention *args)
{
    return round_up(args->tokens * args->heads * sizeof(float), PART_ALIGNMENT);
}

/* Bytes of lse as cuDNN has it, in the workspace. */
static size_t
stats_bytes(const RpCudaAttention *args)
{
    return args->sequences > 1 ? rows_bytes(args) : 0;
}

/* The most that a plan may take for itself; 0: it shall not be tried. */
static size_t
own_bytes(const RpCudaAttention *args, gboolean backward)
{
    const size_t length = round_up(args->max_length, 128);
    const size_t rows = args->sequences * length * args->heads;
    const size_t ds = rows * 2 * length;

    if (!backward)
        return OWN_LEAST + rows * sizeof(float);
    return ds > DS_MOST ? 0 : OWN_LEAST + rows * 2 * 2 * args->head_size + ds;
}

size_t
rp_cudnn_forward_workspace(const RpCudaAttention *args)
{
    if (!suits(args))
        return 0;
    return PART_ALIGNMENT + stats_bytes(args) + own_bytes(args, FALSE);
}

size_t
rp_cudnn_backward_workspace(const RpCudaAttention *args)
{
    if (!suits(args) || own_bytes(args, TRUE) == 0)
        return 0;
    return PART_ALIGNMENT + stats_bytes(args) + rows_bytes(args) + own_bytes(args, TRUE);
}

static gboolean
open_library(RpCudnn *cudnn)
{
    cudnnStatus_t status;
    const char *what = "cudnnCreate";

    if (cudnn->handle)
        return TRUE;
    if (cudnn->broken)
        return FALSE;
    cudnn->broken = TRUE;
    if (!rp_cudnn_available())
        return refuse(cudnn, "cuDNN: its libraries are not all there, or are not 9.6 or later");
    status = cudnnCreate(&cudnn->handle);
    if (status == CUDNN_STATUS_SUCCESS) {
        what = "cudnnSetStream";
        status = cudnnSetStream(cudnn->handle, cudnn->stream);
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        g_autofree char *text = g_strdup_printf("%s: %s", what, cudnnGetErrorString(status));

        g_clear_pointer(&cudnn->handle, cudnnDestroy);
        return refuse(cudnn, text);
    }
    cudnn->broken = FALSE;
    return TRUE;
}

/* Whether cuDNN says so of itself. 9.19 does not where sums are atomic: the graph sees to the
 * order. */
static gboolean
is_nondeterministic(RpCudnnGraph *graph, cudnnBackendDescriptor_t configuration)
{
    static const char step[] = "engine";
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
    cudnnBackendDescriptor_t engine =
        rp_cudnn_graph_create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, step);
    gint64 count = 0;

    if (graph->failure)
        return TRUE;
    rp_cudnn_graph_note(graph,
                        cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine),
                        step);
    if (!graph->failure)
        rp_cudnn_graph_note(graph,
                            cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                     CUDNN_TYPE_NUMERICAL_NOTE, G_N_ELEMENTS(notes),
                                                     &count, notes),
                            step);
    if (graph->failure)
        return TRUE;
    for (gint64 i = 0; i < MIN(count, (gint64)G_N_ELEMENTS(notes)); i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return TRUE;
    return FALSE;
}

/* The plan of one engine configuration. Returns: NULL with the graph's failure set */
static cudnnBackendDescriptor_t
try_configuration(RpCudnn *cudnn, RpCudnnGraph *graph, cudnnBackendDescriptor_t configuration,
                  size_t most_bytes)
{
    cudnnBackendDescriptor_t plan;
    gint64 count = 0, bytes = 0;

    if (is_nondeterministic(graph, configuration)) {
        if (!graph->failure)
            graph->failure = g_strdup("engine: its sums have no order of their own");
        return NULL;
    }
    plan = rp_cudnn_graph_create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan");
    rp_cudnn_graph_set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &cudnn->handle, "plan");
    rp_cudnn_graph_set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration, "plan");
    rp_cudnn_graph_finalize(graph, plan, "plan");
    if (!graph->failure)
        rp_cudnn_graph_note(graph,
                            cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                     CUDNN_TYPE_INT64, 1, &count, &bytes),
                            "plan's workspace");
    if (!graph->failure && bytes > 0 && (size_t)bytes > most_bytes)
        graph->failure = g_strdup_printf(
            "plan: needs %" G_GINT64_FORMAT " bytes of workspace, has %zu", bytes, most_bytes);
    return graph->failure ? NULL : plan;
}

/* The engine configurations that cuDNN proposes, best first. */
static GPtrArray *
propose(RpCudnn *cudnn, RpCudnnGraph *graph)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t operations, heuristic;
    GPtrArray *configurations = g_ptr_array_new();
    gint64 count = 0;

    operations = rp_cudnn_graph_create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph");
    rp_cudnn_graph_set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &cudnn->handle, "graph");
    rp_cudnn_graph_set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                       CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->operations->len,
                       graph->operations->data, "graph");
    rp_cudnn_graph_finalize(graph, operations, "graph");

    heuristic = rp_cudnn_graph_create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristic");
    rp_cudnn_graph_set(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations, "heuristic");
    rp_cudnn_graph_set(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode,
                       "heuristic");
    rp_cudnn_graph_finalize(graph, heuristic, "heuristic");
    if (!graph->failure)
        rp_cudnn_graph_note(graph,
                            cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                                                     NULL),
                            "heuristic's results");
    for (gint64 i = 0; i < count; i++) {
        const cudnnBackendDescriptor_t configuration =
            rp_cudnn_graph_create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "configuration");

        if (configuration)
            g_ptr_array_add(configurations, configuration);
    }
    if (!graph->failure && count > 0)
        rp_cudnn_graph_note(graph,
                            cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                                     configurations->pdata),
                            "heuristic's results");
    if (!graph->failure && count == 0)
        rp_cudnn_graph_note(graph, CUDNN_STATUS_NOT_SUPPORTED, "heuristic: no engine does it");
    if (!graph->failure)
        g_ptr_array_set_size(configurations, (gint)count); /* fewer may have been given */
    return configurations;
}

/* Gives @plan the first proposed configuration that works, or leaves every one's failure. */
static void
choose_plan(RpCudnn *cudnn, Plan *plan, size_t most_bytes)
{
    RpCudnnGraph *graph = plan->graph;
    g_autoptr(GPtrArray) configurations = propose(cudnn, graph);
    g_autoptr(GString) failures = g_string_new(NULL);

    if (graph->failure)
        return;
    for (guint i = 0; i < configurations->len && !plan->plan; i++) {
        plan->plan = try_configuration(cudnn, graph, configurations->pdata[i], most_bytes);
        if (graph->failure)
            g_string_append_printf(failures, "%s%u of %u: %s", i > 0 ? "; " : "", i + 1,
                                   configurations->len, graph->failure);
        g_clear_pointer(&graph->failure, g_free);
    }
    if (!plan->plan)
        graph->failure = g_strdup(failures->str);
}

static Plan *
plan_new(RpCudnn *cudnn, const Key *key, size_t most_bytes)
{
    const RpCudnnShape shape = {.batch = (gint64)key->batch,
                                .heads = (gint64)key->heads,
                                .kv_heads = (gint64)key->kv_heads,
                                .length = (gint64)key->length,
                                .head_size = (gint64)key->head_size,
                                .window = (gint64)key->window,
                                .type = key->dtype == 1 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
    Plan *plan = g_new0(Plan, 1);

    plan->key = *key;
    plan->graph = rp_cudnn_graph_new();
    if (key->backward)
        rp_cudnn_graph_add_backward(plan->graph, &shape);
    else
        rp_cudnn_graph_add_forward(plan->graph, &shape);
    choose_plan(cudnn, plan, most_bytes);
    return plan;
}

/* What versions are known to do wrong. Returns: why, or NULL */
static const char *
known_to_fail(const Key *key)
{
    const size_t version = cudnnGetVersion();

    if (version == 91000 || version == 91001)
        return "cuDNN 9.10.0 and 9.10.1 have wrong attention kernels";
    if (key->backward && version <= 91500 && key->length % 128 != 0)
        return "cuDNN before 9.15.1: backward of a length that is no multiple of 128";
    return NULL;
}

/* The plan for @args. Returns: NULL if the built-in kernels have to do it */
static Plan *
find_plan(RpCudnn *cudnn, const RpCudaAttention *args, gboolean backward)
{
    const char *reason;
    Plan *plan;
    Key key;

    if (!suits(args) || !(args->scale > 0)) {
        refuse(cudnn, "cuDNN: not for such sizes");
        return NULL;
    }
    if (own_bytes(args, backward) == 0) {
        refuse(cudnn, "cuDNN: backward would need too large a workspace");
        return NULL;
    }
    if (!open_library(cudnn))
        return NULL;
    memset(&key, 0, sizeof key);
    key.batch = args->sequences;
    key.heads = args->heads;
    key.kv_heads = args->kv_heads;
    key.length = args->max_length;
    key.head_size = args->head_size;
    key.window = args->window < args->max_length ? args->window : 0;
    key.dtype = (guint32)args->dtype;
    key.backward = backward != FALSE;
    reason = known_to_fail(&key);
    if (reason) {
        refuse(cudnn, reason);
        return NULL;
    }
    plan = g_hash_table_lookup(cudnn->plans, &key);
    if (!plan) {
        plan = plan_new(cudnn, &key, own_bytes(args, backward));
        g_hash_table_insert(cudnn->plans, &plan->key, plan);
    }
    if (plan->plan)
        return plan;
    refuse(cudnn, plan->graph->failure);
    return NULL;
}

/* Copies lse between [heads,batch,S] and cuDNN's [batch,heads,S], as few pieces as may be. */
static gboolean
copy_stats(RpCudnn *cudnn, const RpCudaAttention *args, float *stats, gboolean to_stats)
{
    const size_t S = args->max_length, B = args->sequences, H = args->heads;
    const size_t row = S * sizeof(float);
    const gboolean by_head = H < B;
    cudaError_t status = cudaSuccess;

    for (size_t i = 0; i < (by_head ? H : B) && status == cudaSuccess; i++) {
        float *mine = args->lse + (by_head ? i * B * S : i * S);
        float *theirs = stats + (by_head ? i * S : i * H * S);
        const size_t my_pitch = by_head ? row : B * row, their_pitch = by_head ? H * row : row;
        const size_t rows = by_head ? B : H;

        if (to_stats)
            status = cudaMemcpy2DAsync(theirs, their_pitch, mine, my_pitch, row, rows,
                                       cudaMemcpyDeviceToDevice, cudnn->stream);
        else
            status = cudaMemcpy2DAsync(mine, my_pitch, theirs, their_pitch, row, rows,
                                       cudaMemcpyDeviceToDevice, cudnn->stream);
    }
    return status == cudaSuccess || refuse(cudnn, cudaGetErrorString(status));
}

/* @pointers: by RpCudnnTensor */
static gboolean
run_plan(RpCudnn *cudnn, Plan *plan, void *const *pointers, void *workspace)
{
    g_autoptr(RpCudnnGraph) run = rp_cudnn_graph_new();
    const cudnnBackendDescriptor_t pack =
        rp_cudnn_graph_create(run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "pointers");
    gint64 ids[RP_CUDNN_N_TENSORS], count = 0;
    void *given[RP_CUDNN_N_TENSORS];

    for (gint64 i = 0; i < RP_CUDNN_N_TENSORS; i++) {
        if (!plan->graph->has[i])
            continue;
        ids[count] = i;
        given[count++] = pointers[i];
    }
    rp_cudnn_graph_set(run, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids,
                       "pointers");
    rp_cudnn_graph_set(run, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                       given, "pointers");
    rp_cudnn_graph_set(run, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                       &workspace, "pointers");
    rp_cudnn_graph_finalize(run, pack, "pointers");
    if (!run->failure)
        rp_cudnn_graph_note(run, cudnnBackendExecute(cudnn->handle, plan->plan, pack), "run");
    return !run->failure || refuse(cudnn, run->failure);
}

static gboolean
attend(RpCudnn *cudnn, const RpCudaAttention *args, gboolean backward)
{
    float scale = args->scale, minus = -INFINITY, window = (float)args->window, one = 1;
    void *pointers[RP_CUDNN_N_TENSORS] = {
        [RP_CUDNN_Q] = (void *)args->q, [RP_CUDNN_K] = (void *)args->k,
        [RP_CUDNN_V] = (void *)args->v, [RP_CUDNN_OUT] = args->out,
        [RP_CUDNN_STATS] = args->lse,   [RP_CUDNN_D_OUT] = (void *)args->d_out,
        [RP_CUDNN_DQ] = args->dq,       [RP_CUDNN_DK] = args->dk,
        [RP_CUDNN_DV] = args->dv,       [RP_CUDNN_SCALE] = &scale,
        [RP_CUDNN_MINUS] = &minus,      [RP_CUDNN_WINDOW_MINUS] = &minus,
        [RP_CUDNN_WINDOW] = &window,    [RP_CUDNN_ONE] = &one};
    char *part = (char *)round_up((guintptr)args->workspace, PART_ALIGNMENT);
    Plan *plan = find_plan(cudnn, args, backward);

    if (!plan)
        return FALSE;
    if (stats_bytes(args) > 0) {
        pointers[RP_CUDNN_STATS] = part;
        part += rows_bytes(args);
    }
    if (backward) {
        pointers[RP_CUDNN_DELTA] = part;
        part += rows_bytes(args);
    }
    for (guint i = RP_CUDNN_Q; i <= RP_CUDNN_DELTA; i++)
        if (plan->graph->has[i] && !is_aligned(pointers[i]))
            return refuse(cudnn, "cuDNN: arrays must be at multiples of 16 bytes");
    if (cudnnGetVersion() < 91000)
        minus = -G_MAXFLOAT;
    if (backward && pointers[RP_CUDNN_STATS] != args->lse &&
        !copy_stats(cudnn, args, pointers[RP_CUDNN_STATS], TRUE))
        return FALSE;
    if (!run_plan(cudnn, plan, pointers, part))
        return FALSE;
    if (!backward && pointers[RP_CUDNN_STATS] != args->lse &&
        !copy_stats(cudnn, args, pointers[RP_CUDNN_STATS], FALSE))
        return FALSE;
    cudnn->runs++;
    return TRUE;
}

gboolean
rp_cudnn_forward(RpCudnn *cudnn, const RpCudaAttention *args)
{
    return attend(cudnn, args, FALSE);
}

gboolean
rp_cudnn_backward(RpCudnn *cudnn, const RpCudaAttention *args)
{
    return attend(cudnn, args, TRUE);
}
