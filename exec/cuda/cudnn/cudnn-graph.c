/*
 * The graphs of operations that cuDNN's fused attention engines recognise: which operations, in
 * which order, over which virtual tensors. B batch, H heads, K kv heads, S length, D head size; all
 * tensors have four dimensions, [B,heads,S,D] for arrays that lie as [B,S,heads,D], of whose heads
 * they may be some.
 *
 *   forward                               backward
 *     S   = mask(scale Q K^T)               delta = row sum of dO O                      (stored)
 *     m   = row max of S                    P     = exp(mask(scale Q K^T - stats))
 *     E   = exp(S - m)                      dV    = P^T dO            (then over the group's heads)
 *     sum = row sum of E                    dS    = scale (dO V^T - delta) P
 *     stats = m + log sum                   dK    = dS^T Q            (then over the group's heads)
 *     O   = (E / sum) V                     dQ    = dS K
 *
 *   mask: row >= column ? x : minus, and with a window: column + window > row ? x : minus
 *
 * dQ is the direct result of its matmul: cuDNN then stores dS and multiplies it in an order of its
 * own. With fp32 sums of dQ in a tensor between, engines of sm_90 would add to that atomically, in
 * an order that differs from run to run.
 */
#include "exec/cuda/cudnn/cudnn-graph.h"

#include <stdbool.h>

#define ALIGNMENT 16
#define OPERAND(name, place) RP_CUDNN_ONE_OF(OPERATION_##name, BACKEND_DESCRIPTOR, place)

typedef cudnnBackendDescriptor_t Descriptor;

typedef struct {
    gint64 dims[4], strides[4];
} Layout;

static void
descriptor_free(gpointer descriptor)
{
    cudnnBackendDestroyDescriptor(descriptor);
}

RpCudnnGraph *
rp_cudnn_graph_new(void)
{
    RpCudnnGraph *graph = g_new0(RpCudnnGraph, 1);

    graph->descriptors = g_ptr_array_new_with_free_func(descriptor_free);
    graph->operations = g_array_new(FALSE, FALSE, sizeof(Descriptor));
    graph->next_virtual = RP_CUDNN_N_TENSORS;
    return graph;
}

void
rp_cudnn_graph_free(RpCudnnGraph *graph)
{
    if (graph == NULL)
        return;
    /* a descriptor was made after those that it uses, so the last is freed first */
    while (graph->descriptors->len > 0)
        g_ptr_array_set_size(graph->descriptors, (gint)graph->descriptors->len - 1);
    g_ptr_array_unref(graph->descriptors);
    g_array_unref(graph->operations);
    g_free(graph->failure);
    g_free(graph);
}

void
rp_cudnn_graph_note(RpCudnnGraph *graph, cudnnStatus_t status, const char *step)
{
    char text[1024] = "";

    if (graph->failure != NULL || status == CUDNN_STATUS_SUCCESS)
        return;
    cudnnGetLastErrorString(text, sizeof text);
    g_strdelimit(text, "\n", ' ');
    graph->failure =
        g_strdup_printf("%s: %s%s%s", step, cudnnGetErrorString(status), *text ? ": " : "", text);
}

Descriptor
rp_cudnn_graph_create(RpCudnnGraph *graph, cudnnBackendDescriptorType_t type, const char *step)
{
    Descriptor descriptor = NULL;

    if (graph->failure != NULL)
        return NULL;
    rp_cudnn_graph_note(graph, cudnnBackendCreateDescriptor(type, &descriptor), step);
    if (graph->failure != NULL)
        return NULL;
    g_ptr_array_add(graph->descriptors, descriptor);
    return descriptor;
}

Descriptor
rp_cudnn_graph_make(RpCudnnGraph *graph, cudnnBackendDescriptorType_t type, const char *step,
                    const RpCudnnAttribute *attributes, guint n)
{
    const Descriptor descriptor = rp_cudnn_graph_create(graph, type, step);

    for (guint i = 0; i < n && graph->failure == NULL; i++)
        if (attributes[i].count > 0)
            rp_cudnn_graph_note(graph,
                                cudnnBackendSetAttribute(descriptor, attributes[i].name,
                                                         attributes[i].type, attributes[i].count,
                                                         attributes[i].values),
                                step);
    if (graph->failure == NULL)
        rp_cudnn_graph_note(graph, cudnnBackendFinalize(descriptor), step);
    return descriptor;
}

static Descriptor
make_tensor(RpCudnnGraph *graph, gint64 id, cudnnDataType_t type, const Layout *layout,
            gboolean is_virtual, gboolean is_value)
{
    static const gint64 alignment = ALIGNMENT;
    static const bool yes = true;

    return RP_CUDNN_MAKE(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor",
                         RP_CUDNN_ONE_OF(TENSOR_DATA_TYPE, DATA_TYPE, &type),
                         {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout->dims},
                         {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout->strides},
                         RP_CUDNN_ONE_OF(TENSOR_UNIQUE_ID, INT64, &id),
                         RP_CUDNN_ONE_OF(TENSOR_BYTE_ALIGNMENT, INT64, &alignment),
                         {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual, &yes},
                         {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_value, &yes});
}

static Descriptor
array_tensor(RpCudnnGraph *graph, RpCudnnTensor id, cudnnDataType_t type, Layout layout)
{
    graph->has[id] = TRUE;
    return make_tensor(graph, id, type, &layout, FALSE, FALSE);
}

static Descriptor
value_tensor(RpCudnnGraph *graph, RpCudnnTensor id)
{
    static const Layout one = {{1, 1, 1, 1}, {1, 1, 1, 1}};

    graph->has[id] = TRUE;
    return make_tensor(graph, id, CUDNN_DATA_FLOAT, &one, FALSE, TRUE);
}

static Descriptor
virtual_tensor(RpCudnnGraph *graph, cudnnDataType_t type, Layout layout)
{
    return make_tensor(graph, graph->next_virtual++, type, &layout, TRUE, FALSE);
}

/* [B,heads,S,D] of an array [B,S,row_heads,D] */
static Layout
array_layout(const RpCudnnShape *shape, gint64 heads, gint64 row_heads)
{
    const gint64 S = shape->length, D = shape->head_size;

    return (Layout){{shape->batch, heads, S, D}, {S * row_heads * D, D, row_heads * D, 1}};
}

static Layout
queries_layout(const RpCudnnShape *shape)
{
    return array_layout(shape, shape->heads, shape->row_heads);
}

static Layout
keys_layout(const RpCudnnShape *shape)
{
    return array_layout(shape, shape->kv_heads, shape->k_row_heads);
}

static Layout
values_layout(const RpCudnnShape *shape)
{
    return array_layout(shape, shape->kv_heads, shape->v_row_heads);
}

/* [B,H,rows,columns] without gaps */
static Layout
packed_layout(const RpCudnnShape *shape, gint64 rows, gint64 columns)
{
    const gint64 H = shape->heads;

    return (Layout){{shape->batch, H, rows, columns},
                    {H * rows * columns, rows * columns, columns, 1}};
}

/* The last two dimensions changed over; the memory is the same. */
static Layout
transposed(Layout layout)
{
    return (Layout){{layout.dims[0], layout.dims[1], layout.dims[3], layout.dims[2]},
                    {layout.strides[0], layout.strides[1], layout.strides[3], layout.strides[2]}};
}

static Layout
scores_layout(const RpCudnnShape *shape)
{
    return packed_layout(shape, shape->length, shape->length);
}

/* [B,H,S,1]: a value a row of scores */
static Layout
rows_layout(const RpCudnnShape *shape)
{
    return packed_layout(shape, shape->length, 1);
}

static const cudnnDataType_t math = CUDNN_DATA_FLOAT;

static void
add_operation(RpCudnnGraph *graph, Descriptor operation)
{
    if (graph->failure == NULL)
        g_array_append_val(graph->operations, operation);
}

/* y = a b */
static void
add_matmul(RpCudnnGraph *graph, Descriptor a, Descriptor b, Descriptor y, const char *step)
{
    const Descriptor matmul = RP_CUDNN_MAKE(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR, step,
                                            RP_CUDNN_ONE_OF(MATMUL_COMP_TYPE, DATA_TYPE, &math));

    add_operation(graph, RP_CUDNN_MAKE(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, step,
                                       OPERAND(MATMUL_ADESC, &a), OPERAND(MATMUL_BDESC, &b),
                                       OPERAND(MATMUL_CDESC, &y), OPERAND(MATMUL_DESC, &matmul)));
}

typedef struct {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    gint64 axis;           /* axis of an index */
    Descriptor x, b, t, y; /* b, t: or NULL */
} Pointwise;

static void
add_pointwise(RpCudnnGraph *graph, const Pointwise *args, const char *step)
{
    static const float one = 1;
    const Descriptor pointwise =
        RP_CUDNN_MAKE(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, step,
                      RP_CUDNN_ONE_OF(POINTWISE_MODE, POINTWISE_MODE, &args->mode),
                      RP_CUDNN_ONE_OF(POINTWISE_MATH_PREC, DATA_TYPE, &args->math),
                      {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64,
                       args->mode == CUDNN_POINTWISE_GEN_INDEX, &args->axis});

    add_operation(graph, RP_CUDNN_MAKE(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, step,
                                       OPERAND(POINTWISE_PW_DESCRIPTOR, &pointwise),
                                       OPERAND(POINTWISE_XDESC, &args->x),
                                       OPERAND(POINTWISE_YDESC, &args->y),
                                       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, args->b != NULL, &args->b},
                                       {CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, args->t != NULL, &args->t},
                                       RP_CUDNN_ONE_OF(OPERATION_POINTWISE_ALPHA1, FLOAT, &one),
                                       RP_CUDNN_ONE_OF(OPERATION_POINTWISE_ALPHA2, FLOAT, &one)));
}

/* y = x, or x @mode b, in floats. @b: or NULL */
static void
apply_into(RpCudnnGraph *graph, cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y,
           const char *step)
{
    const Pointwise args = {.mode = mode, .math = CUDNN_DATA_FLOAT, .x = x, .b = b, .y = y};

    add_pointwise(graph, &args, step);
}

/* The same into a virtual tensor of floats. */
static Descriptor
apply(RpCudnnGraph *graph, cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Layout layout,
      const char *step)
{
    const Descriptor y = virtual_tensor(graph, CUDNN_DATA_FLOAT, layout);

    apply_into(graph, mode, x, b, y, step);
    return y;
}

static void
reduce_into(RpCudnnGraph *graph, cudnnReduceTensorOp_t operator, Descriptor x, Descriptor y,
            const char *step)
{
    const Descriptor reduction =
        RP_CUDNN_MAKE(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, step,
                      RP_CUDNN_ONE_OF(REDUCTION_COMP_TYPE, DATA_TYPE, &math),
                      RP_CUDNN_ONE_OF(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, &operator));

    add_operation(graph, RP_CUDNN_MAKE(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, step,
                                       OPERAND(REDUCTION_DESC, &reduction),
                                       OPERAND(REDUCTION_XDESC, &x), OPERAND(REDUCTION_YDESC, &y)));
}

static Descriptor
reduce(RpCudnnGraph *graph, cudnnReduceTensorOp_t operator, Descriptor x, Layout layout,
       const char *step)
{
    const Descriptor y = virtual_tensor(graph, CUDNN_DATA_FLOAT, layout);

    reduce_into(graph, operator, x, y, step);
    return y;
}

/* Another view of @x, as @type. */
static Descriptor
reshape(RpCudnnGraph *graph, Descriptor x, cudnnDataType_t type, Layout layout, const char *step)
{
    const Descriptor y = virtual_tensor(graph, type, layout);

    add_operation(graph, RP_CUDNN_MAKE(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, step,
                                       OPERAND(RESHAPE_XDESC, &x), OPERAND(RESHAPE_YDESC, &y)));
    return y;
}

/* Each element's place along @axis. */
static Descriptor
index_of(RpCudnnGraph *graph, Descriptor x, gint64 axis, Layout layout, const char *step)
{
    const Descriptor y = virtual_tensor(graph, CUDNN_DATA_INT32, layout);
    const Pointwise args = {
        .mode = CUDNN_POINTWISE_GEN_INDEX, .math = CUDNN_DATA_FLOAT, .axis = axis, .x = x, .y = y};

    add_pointwise(graph, &args, step);
    return y;
}

/* a @compare b ? x : minus */
static Descriptor
select_where(RpCudnnGraph *graph, cudnnPointwiseMode_t compare, Descriptor a, Descriptor b,
             Descriptor x, RpCudnnTensor minus, Layout layout, const char *step)
{
    const Descriptor seen = virtual_tensor(graph, CUDNN_DATA_BOOLEAN, layout);
    const Descriptor y = virtual_tensor(graph, CUDNN_DATA_FLOAT, layout);
    const Pointwise comparison = {
        .mode = compare, .math = CUDNN_DATA_BOOLEAN, .x = a, .b = b, .y = seen};
    const Pointwise selection = {.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                 .math = CUDNN_DATA_FLOAT,
                                 .x = x,
                                 .b = value_tensor(graph, minus),
                                 .t = seen,
                                 .y = y};

    add_pointwise(graph, &comparison, step);
    add_pointwise(graph, &selection, step);
    return y;
}

static Descriptor
mask(RpCudnnGraph *graph, const RpCudnnShape *shape, Descriptor x)
{
    const Layout scores = scores_layout(shape);
    Descriptor row = index_of(graph, x, 2, scores, "causal row");
    Descriptor column = index_of(graph, x, 3, scores, "causal column");
    Descriptor y = select_where(graph, CUDNN_POINTWISE_CMP_GE, row, column, x, RP_CUDNN_MINUS,
                                scores, "causal mask");

    if (shape->window == 0)
        return y;
    row = index_of(graph, y, 2, scores, "window row");
    column = index_of(graph, y, 3, scores, "window column");
    column = apply(graph, CUDNN_POINTWISE_ADD, column, value_tensor(graph, RP_CUDNN_WINDOW), scores,
                   "window column");
    return select_where(graph, CUDNN_POINTWISE_CMP_GT, column, row, y, RP_CUDNN_WINDOW_MINUS,
                        scores, "window mask");
}

static void
add_forward(RpCudnnGraph *graph, const RpCudnnShape *shape)
{
    const Layout queries = queries_layout(shape);
    const Layout keys = keys_layout(shape);
    const Layout scores = scores_layout(shape), rows = rows_layout(shape);
    const Descriptor q = array_tensor(graph, RP_CUDNN_Q, shape->type, queries);
    const Descriptor k_transposed = array_tensor(graph, RP_CUDNN_K, shape->type, transposed(keys));
    const Descriptor v = array_tensor(graph, RP_CUDNN_V, shape->type, values_layout(shape));
    const Descriptor out = array_tensor(graph, RP_CUDNN_OUT, shape->type, queries);
    const Descriptor stats = array_tensor(graph, RP_CUDNN_STATS, CUDNN_DATA_FLOAT, rows);
    const Descriptor p = virtual_tensor(graph, shape->type, scores);
    Descriptor s = virtual_tensor(graph, CUDNN_DATA_FLOAT, scores);
    Descriptor most, sum, log;

    add_matmul(graph, q, k_transposed, s, "q k^T");
    s = apply(graph, CUDNN_POINTWISE_MUL, s, value_tensor(graph, RP_CUDNN_SCALE), scores, "scale");
    s = mask(graph, shape, s);
    most = reduce(graph, CUDNN_REDUCE_TENSOR_MAX, s, rows, "row maximum");
    s = apply(graph, CUDNN_POINTWISE_SUB, s, most, scores, "s - maximum");
    s = apply(graph, CUDNN_POINTWISE_EXP, s, NULL, scores, "exp(s - maximum)");
    sum = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, s, rows, "row sum");
    log = apply(graph, CUDNN_POINTWISE_LOG, sum, NULL, rows, "log");
    apply_into(graph, CUDNN_POINTWISE_ADD, most, log, stats, "lse");
    apply_into(graph, CUDNN_POINTWISE_DIV, s, sum, p, "p");
    add_matmul(graph, p, v, out, "p v");
}

/* gradient = a b, of each query head; then added up over those of a group. */
static void
add_key_gradient(RpCudnnGraph *graph, const RpCudnnShape *shape, Descriptor a, Descriptor b,
                 RpCudnnTensor gradient, const char *step)
{
    const Descriptor y = array_tensor(graph, gradient, shape->type,
                                      array_layout(shape, shape->kv_heads, shape->d_row_heads));
    Descriptor each;

    if (shape->heads == shape->kv_heads) {
        add_matmul(graph, a, b, y, step);
        return;
    }
    each =
        virtual_tensor(graph, shape->type, packed_layout(shape, shape->length, shape->head_size));
    add_matmul(graph, a, b, each, step);
    reduce_into(graph, CUDNN_REDUCE_TENSOR_ADD, each, y, step);
}

static void
add_backward(RpCudnnGraph *graph, const RpCudnnShape *shape)
{
    const Layout queries = queries_layout(shape);
    const Layout keys = keys_layout(shape);
    const Layout scores = scores_layout(shape), rows = rows_layout(shape);
    const Descriptor q = array_tensor(graph, RP_CUDNN_Q, shape->type, queries);
    const Descriptor k_transposed = array_tensor(graph, RP_CUDNN_K, shape->type, transposed(keys));
    const Descriptor v_transposed =
        array_tensor(graph, RP_CUDNN_V, shape->type, transposed(values_layout(shape)));
    const Descriptor out = array_tensor(graph, RP_CUDNN_OUT, shape->type, queries);
    const Descriptor stats = array_tensor(graph, RP_CUDNN_STATS, CUDNN_DATA_FLOAT, rows);
    const Descriptor d_out = array_tensor(graph, RP_CUDNN_D_OUT, shape->type, queries);
    const Descriptor dq = array_tensor(graph, RP_CUDNN_DQ, shape->type,
                                       array_layout(shape, shape->heads, shape->dq_row_heads));
    const Descriptor delta = array_tensor(graph, RP_CUDNN_DELTA, CUDNN_DATA_FLOAT, rows);
    const Descriptor scale = value_tensor(graph, RP_CUDNN_SCALE);
    Descriptor x, p, k;

    x = apply(graph, CUDNN_POINTWISE_MUL, d_out, out,
              packed_layout(shape, shape->length, shape->head_size), "d_out out");
    x = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, x, rows, "d_out . out");
    apply_into(graph, CUDNN_POINTWISE_MUL, x, value_tensor(graph, RP_CUDNN_ONE), delta, "delta");

    x = virtual_tensor(graph, CUDNN_DATA_FLOAT, scores);
    add_matmul(graph, q, k_transposed, x, "q k^T");
    x = apply(graph, CUDNN_POINTWISE_MUL, x, scale, scores, "scale");
    x = apply(graph, CUDNN_POINTWISE_SUB, x, stats, scores, "s - lse");
    x = mask(graph, shape, x);
    p = apply(graph, CUDNN_POINTWISE_EXP, x, NULL, scores, "p");
    x = reshape(graph, p, shape->type, transposed(scores), "p^T");
    add_key_gradient(graph, shape, x, d_out, RP_CUDNN_DV, "dv");

    x = virtual_tensor(graph, CUDNN_DATA_FLOAT, scores);
    add_matmul(graph, d_out, v_transposed, x, "d_out v^T");
    x = apply(graph, CUDNN_POINTWISE_SUB, x, delta, scores, "dp - delta");
    x = apply(graph, CUDNN_POINTWISE_MUL, x, p, scores, "(dp - delta) p");
    x = apply(graph, CUDNN_POINTWISE_MUL, x, scale, scores, "ds");
    k = reshape(graph, x, shape->type, transposed(scores), "ds^T");
    add_key_gradient(graph, shape, k, q, RP_CUDNN_DK, "dk");

    k = reshape(graph, k_transposed, shape->type, keys, "k");
    add_matmul(graph, x, k, dq, "dq");
}

void
rp_cudnn_graph_add_attention(RpCudnnGraph *graph, const RpCudnnShape *shape)
{
    (shape->backward ? add_backward : add_forward)(graph, shape);
}
