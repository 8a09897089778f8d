/* The operations of attention as cuDNN's graph API takes them, and the plan that runs them: for
 * cudnn*.c only. */
#pragma once

#include <cudnn.h>
#include <glib.h>

/* One attention of a batch of sequences of one length, in arrays that may have more heads. No gaps:
 * compared as bytes. */
typedef struct {
    gint64 batch, heads, kv_heads, length, head_size;
    gint64 row_heads; /* from a token to the next: of q, out and d_out */
    gint64 k_row_heads, v_row_heads;
    gint64 dq_row_heads;
    gint64 d_row_heads; /* the same for dk and dv */
    gint64 window;      /* keys that a query sees; 0: all before */
    cudnnDataType_t type;
    gboolean backward;
} RpCudnnShape;

/* The tensors that a run has pointers for; their unique ids. Values are passed by pointers to the
 * host.
 */
typedef enum {
    RP_CUDNN_Q = 1,
    RP_CUDNN_K,
    RP_CUDNN_V,
    RP_CUDNN_OUT,
    RP_CUDNN_STATS, /* lse, [batch,heads,length] */
    RP_CUDNN_D_OUT,
    RP_CUDNN_DQ,
    RP_CUDNN_DK,
    RP_CUDNN_DV,
    RP_CUDNN_DELTA,        /* d_out . out, [batch,heads,length], of the workspace */
    RP_CUDNN_SCALE,        /* value, float */
    RP_CUDNN_MINUS,        /* value, float: of scores that are not seen */
    RP_CUDNN_WINDOW_MINUS, /* the same, of those before the window */
    RP_CUDNN_WINDOW,       /* value, float */
    RP_CUDNN_ONE,          /* value, float: 1 */
    RP_CUDNN_N_TENSORS     /* virtual ones count on from here */
} RpCudnnTensor;

typedef struct {
    GPtrArray *descriptors;           /* all that were made, destroyed with it */
    GArray *operations;               /* (element-type cudnnBackendDescriptor_t), borrowed */
    gboolean has[RP_CUDNN_N_TENSORS]; /* tensors that a run must give */
    gint64 next_virtual;
    char *failure; /* the first: step and cuDNN's text; nothing is done after it */
} RpCudnnGraph;

/* A descriptor's; left out if @count is 0. */
typedef struct {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    gint64 count;
    const void *values;
} RpCudnnAttribute;

RpCudnnGraph *rp_cudnn_graph_new(void);
void rp_cudnn_graph_free(RpCudnnGraph *graph);

/* Says that @step failed with @status, unless something already did. */
void rp_cudnn_graph_note(RpCudnnGraph *graph, cudnnStatus_t status, const char *step);

/* Descriptors that live as long as @graph, or NULL after a failure: empty, or with @attributes. */
cudnnBackendDescriptor_t rp_cudnn_graph_create(RpCudnnGraph *graph,
                                               cudnnBackendDescriptorType_t type, const char *step);
cudnnBackendDescriptor_t rp_cudnn_graph_make(RpCudnnGraph *graph, cudnnBackendDescriptorType_t type,
                                             const char *step, const RpCudnnAttribute *attributes,
                                             guint n);
#define RP_CUDNN_MAKE(graph, type, step, ...)                                                      \
    rp_cudnn_graph_make(graph, type, step, (const RpCudnnAttribute[]){__VA_ARGS__},                \
                        G_N_ELEMENTS(((const RpCudnnAttribute[]){__VA_ARGS__})))
/* An attribute that is one value at @place. */
#define RP_CUDNN_ONE_OF(name, type, place)                                                         \
    {                                                                                              \
        CUDNN_ATTR_##name, CUDNN_TYPE_##type, 1, place                                             \
    }

/* Adds the operations of the pass. */
void rp_cudnn_graph_add_attention(RpCudnnGraph *graph, const RpCudnnShape *shape);

/**
 * rp_cudnn_graph_plan:
 * @most_bytes: of workspace
 *
 * Returns: (transfer none): the first configuration that cuDNN proposes and that works, or NULL
 *   with the failure set to every one's
 */
cudnnBackendDescriptor_t rp_cudnn_graph_plan(RpCudnnGraph *graph, cudnnHandle_t handle,
                                             size_t most_bytes);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCudnnGraph, rp_cudnn_graph_free)
