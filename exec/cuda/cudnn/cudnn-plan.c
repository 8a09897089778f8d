/*
 * The plan of a graph: cuDNN proposes engine configurations, best first; the first is taken whose
 * sums have one order and whose workspace is not too large.
 */
#include "exec/cuda/cudnn/cudnn-graph.h"

static void
get(RpCudnnGraph *graph, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, gint64 most, gint64 *count, void *values, const char *step)
{
    if (graph->failure == NULL)
        rp_cudnn_graph_note(
            graph, cudnnBackendGetAttribute(descriptor, name, type, most, count, values), step);
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

    get(graph, configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
        &engine, step);
    get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
        G_N_ELEMENTS(notes), &count, notes, step);
    if (graph->failure != NULL)
        return TRUE;
    for (gint64 i = 0; i < MIN(count, (gint64)G_N_ELEMENTS(notes)); i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return TRUE;
    return FALSE;
}

/* The plan of one engine configuration. Returns: NULL with the graph's failure set */
static cudnnBackendDescriptor_t
try_configuration(RpCudnnGraph *graph, cudnnHandle_t handle, cudnnBackendDescriptor_t configuration,
                  size_t most_bytes)
{
    cudnnBackendDescriptor_t plan;
    gint64 count = 0, bytes = 0;

    if (is_nondeterministic(graph, configuration)) {
        if (graph->failure == NULL)
            graph->failure = g_strdup("engine: its sums have no order of their own");
        return NULL;
    }
    plan = RP_CUDNN_MAKE(
        graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan",
        RP_CUDNN_ONE_OF(EXECUTION_PLAN_HANDLE, HANDLE, &handle),
        RP_CUDNN_ONE_OF(EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, &configuration));
    get(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes,
        "plan's workspace");
    if (graph->failure == NULL && bytes > 0 && (size_t)bytes > most_bytes)
        graph->failure = g_strdup_printf(
            "plan: needs %" G_GINT64_FORMAT " bytes of workspace, has %zu", bytes, most_bytes);
    return graph->failure != NULL ? NULL : plan;
}

/* The engine configurations that cuDNN proposes, best first. */
static GPtrArray *
propose(RpCudnnGraph *graph, cudnnHandle_t handle)
{
    static const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    const cudnnBackendDescriptor_t operations =
        RP_CUDNN_MAKE(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph",
                      RP_CUDNN_ONE_OF(OPERATIONGRAPH_HANDLE, HANDLE, &handle),
                      {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       graph->operations->len, graph->operations->data});
    const cudnnBackendDescriptor_t heuristic =
        RP_CUDNN_MAKE(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristic",
                      RP_CUDNN_ONE_OF(ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, &operations),
                      RP_CUDNN_ONE_OF(ENGINEHEUR_MODE, HEUR_MODE, &mode));
    GPtrArray *configurations = g_ptr_array_new();
    gint64 count = 0;

    get(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
        NULL, "heuristic's results");
    for (gint64 i = 0; i < count; i++) {
        const cudnnBackendDescriptor_t configuration =
            rp_cudnn_graph_create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "configuration");

        if (configuration != NULL)
            g_ptr_array_add(configurations, configuration);
    }
    if (count > 0)
        get(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
            &count, configurations->pdata, "heuristic's results");
    if (graph->failure == NULL && count == 0)
        rp_cudnn_graph_note(graph, CUDNN_STATUS_NOT_SUPPORTED, "heuristic: no engine does it");
    if (graph->failure == NULL)
        g_ptr_array_set_size(configurations, (gint)count); /* fewer may have been given */
    return configurations;
}

cudnnBackendDescriptor_t
rp_cudnn_graph_plan(RpCudnnGraph *graph, cudnnHandle_t handle, size_t most_bytes)
{
    g_autoptr(GPtrArray) configurations = propose(graph, handle);
    g_autoptr(GString) failures = g_string_new(NULL);
    cudnnBackendDescriptor_t plan = NULL;

    if (graph->failure != NULL)
        return NULL;
    for (guint i = 0; i < configurations->len && plan == NULL; i++) {
        plan = try_configuration(graph, handle, configurations->pdata[i], most_bytes);
        if (graph->failure != NULL)
            g_string_append_printf(failures, "%s%u of %u: %s", i > 0 ? "; " : "", i + 1,
                                   configurations->len, graph->failure);
        g_clear_pointer(&graph->failure, g_free);
    }
    if (plan == NULL)
        graph->failure = g_strdup(failures->str);
    return plan;
}
