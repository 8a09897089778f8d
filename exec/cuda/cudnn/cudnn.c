/*
 * Attention by cuDNN 9: which shapes, plans (one a shape, in the stream's table), and runs. Forward is one run.
 * Backward is one for each part (parts.h), one after another in one workspace, so that a part's dS is at
 * most DS_MOST; beyond that it is the built-in one.
 * cuDNN reads and writes lse as [batch,heads,S]; here it is [heads,tokens]. For heads of an only
 * sequence that is the same; else a run copies its part's to or from the workspace.
 *
 *   forward   | lse [batch,heads,S] | cuDNN's own |
 *   backward  | lse [batch,heads,S] | delta [batch,heads,S] | dk, dv [slices,S,D] each | cuDNN's |
 *
 * Sizes are those of a part. Slices are those of a group that is cut; after the last one they are
 * added up. cuDNN's own part of backward, for R = batch x S to 128 x heads rows, holds dK and dV of
 * each query head (2 x 2 D R bytes) and dS whole (2 R x S to 128), which is how it makes its sums
 * in one order.
 */
#include "exec/cuda/cudnn/cudnn.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "exec/cuda/base/shape-hash.h"
#include "exec/cuda/cudnn/cudnn-graph.h"
#include "exec/cuda/cudnn/parts.h"
#include "exec/cuda/cudnn/slices.h"

#define LEAST_LENGTH 64
#define DS_MOST ((size_t)2 << 30)   /* bytes */
#define OWN_LEAST ((size_t)1 << 20) /* bytes that any plan may use */
#define PIECE_ALIGNMENT 256         /* bytes, in the workspace */
#define ELEMENT 2                   /* bytes, of either storage */

/* A pass over @args: its parts, and the bytes of the workspace's pieces. */
typedef struct {
    const RpAttentionArgs *args;
    gboolean backward;
    RpAttentionParts parts;
    size_t stats; /* 0: cuDNN has lse itself */
    size_t delta;
    size_t slices; /* twice: dk's, dv's */
    size_t own;
} Pass;

typedef struct {
    RpCudnnShape shape; /* the key */
    RpCudnnGraph *graph;
    /* plan of graph; NULL: there is none, and graph->failure says why */
    cudnnBackendDescriptor_t plan;
} Plan;

G_STATIC_ASSERT(sizeof(RpCudnnShape) == 11 * sizeof(gint64) + 2 * sizeof(gint32));

struct _RpCudnn {
    cudaStream_t stream;
    cudnnHandle_t handle; /* NULL: not tried, or broken */
    GHashTable *plans;    /* shape of a Plan -> Plan */
    gboolean broken;
    guint64 runs;
    char *reason;
};

static guint
key_hash(gconstpointer key)
{
    return rp_shape_hash(key, sizeof(RpCudnnShape));
}

static gboolean
key_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(RpCudnnShape)) == 0;
}

static void
plan_free(gpointer data)
{
    Plan *plan = data;

    rp_cudnn_graph_free(plan->graph);
    g_free(plan);
}

RpCudnn *
rp_cudnn_new(RpRuntimeStream *stream)
{
    RpCudnn *cudnn = g_new0(RpCudnn, 1);

    cudnn->stream = stream;
    cudnn->plans = g_hash_table_new_full(key_hash, key_equal, NULL, plan_free);
    return cudnn;
}

void
rp_cudnn_free(RpCudnn *cudnn)
{
    if (cudnn == NULL)
        return;
    g_hash_table_unref(cudnn->plans);
    if (cudnn->handle != NULL)
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

/* Whether sizes alone allow it. */
static gboolean
suits(const RpAttentionArgs *args)
{
    return args->dtype != RP_DTYPE_FP32 && (args->head_size == 64 || args->head_size == 128) &&
           args->kv_heads > 0 && args->heads > 0 && args->heads % args->kv_heads == 0 &&
           args->max_length >= LEAST_LENGTH && args->max_length <= G_MAXINT32 &&
           args->sequences > 0 && args->sequences <= G_MAXINT32 / args->max_length &&
           args->sequences * args->max_length == args->tokens && args->heads <= G_MAXUINT16;
}

/* From a token of v, dk and dv to the next, or of dq. @heads: where there are no gaps */
static size_t
row_heads(const RpAttentionArgs *args, size_t heads)
{
    return args->row_heads > 0 ? args->row_heads : heads;
}

/* Whether cuDNN can have lse as it is: rows of @parts in turn, at multiples of 16 bytes. */
static gboolean
has_stats(const RpAttentionArgs *args, const RpAttentionParts *parts)
{
    return args->sequences == 1 && (parts->count == 1 || args->max_length % 4 == 0);
}

/* The most that a plan may take for itself. */
static size_t
own_bytes(const RpAttentionArgs *args, const RpAttentionSize *part, gboolean backward)
{
    const size_t heads = part->sequences * part->heads;
    const size_t rows = heads * rp_align_up(args->max_length, 128);

    if (!backward)
        return OWN_LEAST + rows * sizeof(float);
    return OWN_LEAST + rows * 2 * ELEMENT * args->head_size +
           heads * rp_attention_head_ds(args->max_length);
}

/* Cuts the work. Returns: FALSE if a single head's dS is too large */
static gboolean
divide(const RpAttentionArgs *args, gboolean backward, Pass *pass)
{
    const RpAttentionSize whole = {args->sequences, args->heads, args->kv_heads};
    const size_t most_ds_bytes = args->most_ds_bytes > 0 ? args->most_ds_bytes : DS_MOST;
    const size_t S = args->max_length;
    RpAttentionParts parts;
    size_t rows, slices;

    if (!rp_attention_parts_choose(
            &whole, backward ? most_ds_bytes / rp_attention_head_ds(S) : G_MAXSIZE, &parts))
        return FALSE;
    rows = parts.part.sequences * parts.part.heads * S * sizeof(float);
    slices = parts.slices > 1 ? parts.slices * S * args->head_size * ELEMENT : 0;
    *pass = (Pass){.args = args,
                   .backward = backward,
                   .parts = parts,
                   .stats = has_stats(args, &parts) ? 0 : rp_align_up(rows, PIECE_ALIGNMENT),
                   .delta = backward ? rp_align_up(rows, PIECE_ALIGNMENT) : 0,
                   .slices = rp_align_up(slices, PIECE_ALIGNMENT),
                   .own = own_bytes(args, &parts.part, backward)};
    return TRUE;
}

size_t
rp_cudnn_workspace(const RpAttentionArgs *args, gboolean backward)
{
    Pass pass;

    if (!suits(args) || !divide(args, backward, &pass))
        return 0;
    return PIECE_ALIGNMENT + pass.stats + pass.delta + 2 * pass.slices + pass.own;
}

static gboolean
open_library(RpCudnn *cudnn)
{
    cudnnStatus_t status;
    const char *what = "cudnnCreate";

    if (cudnn->handle != NULL)
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

static Plan *
plan_new(RpCudnn *cudnn, const RpCudnnShape *shape, size_t most_bytes)
{
    Plan *plan = g_new0(Plan, 1);

    plan->shape = *shape;
    plan->graph = rp_cudnn_graph_new();
    rp_cudnn_graph_add_attention(plan->graph, shape);
    plan->plan = rp_cudnn_graph_plan(plan->graph, cudnn->handle, most_bytes);
    return plan;
}

static RpCudnnShape
shape_of(const Pass *pass)
{
    const RpAttentionArgs *args = pass->args;

    return (RpCudnnShape){
        .batch = (gint64)pass->parts.part.sequences,
        .heads = (gint64)pass->parts.part.heads,
        .kv_heads = (gint64)pass->parts.part.kv_heads,
        .length = (gint64)args->max_length,
        .head_size = (gint64)args->head_size,
        .row_heads = (gint64)args->heads,
        .k_row_heads = (gint64)args->kv_heads,
        .v_row_heads = (gint64)row_heads(args, args->kv_heads),
        .dq_row_heads = (gint64)row_heads(args, args->heads),
        .d_row_heads = pass->parts.slices > 1 ? 1 : (gint64)row_heads(args, args->kv_heads),
        .window = args->window < args->max_length ? (gint64)args->window : 0,
        .type = args->dtype == RP_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
        .backward = pass->backward != FALSE,
    };
}

/* Knows faults of released versions. Returns: the fault that this shape would meet, or NULL */
static const char *
known_to_fail(const RpCudnnShape *shape)
{
    const size_t version = cudnnGetVersion();

    if (version == 91000 || version == 91001)
        return "cuDNN 9.10.0 and 9.10.1 have wrong attention kernels";
    if (shape->backward && version <= 91500 && shape->length % 128 != 0)
        return "cuDNN before 9.15.1: backward of a length that is no multiple of 128";
    return NULL;
}

/* The plan of each part. Returns: NULL if the built-in kernels have to do it */
static Plan *
find_plan(RpCudnn *cudnn, const Pass *pass)
{
    const RpCudnnShape shape = shape_of(pass);
    const char *reason;
    Plan *plan;

    if (!open_library(cudnn))
        return NULL;
    reason = known_to_fail(&shape);
    if (reason != NULL) {
        refuse(cudnn, reason);
        return NULL;
    }
    plan = g_hash_table_lookup(cudnn->plans, &shape);
    if (plan == NULL) {
        plan = plan_new(cudnn, &shape, pass->own);
        g_hash_table_insert(cudnn->plans, &plan->shape, plan);
    }
    if (plan->plan != NULL)
        return plan;
    refuse(cudnn, plan->graph->failure);
    return NULL;
}

/* Whether all that cuDNN gets of @args is at multiples of 16 bytes. */
static gboolean
is_aligned(const Pass *pass)
{
    const RpAttentionArgs *args = pass->args;
    const void *const arrays[] = {
        args->q,     args->k,  args->v,  args->out, pass->stats > 0 ? NULL : args->lse,
        args->d_out, args->dq, args->dk, args->dv};

    for (guint i = 0; i < (pass->backward ? G_N_ELEMENTS(arrays) : 5); i++)
        if ((guintptr)arrays[i] % 16 != 0)
            return FALSE;
    return TRUE;
}

/* The first value of lse of the part at @place. */
static float *
part_lse(const Pass *pass, RpAttentionPlace place)
{
    const RpAttentionArgs *args = pass->args;

    return args->lse + place.head * args->tokens + place.sequence * args->max_length;
}

/* Copies a part's lse between [heads,tokens] and cuDNN's [batch,heads,S], in as few pieces as may
 * be. */
static gboolean
copy_stats(RpCudnn *cudnn, const Pass *pass, RpAttentionPlace place, float *stats)
{
    const size_t S = pass->args->max_length, tokens = pass->args->tokens;
    const size_t B = pass->parts.part.sequences, H = pass->parts.part.heads;
    const size_t row = S * sizeof(float);
    const gboolean by_head = H < B;
    const size_t my_pitch = by_head ? row : tokens * sizeof(float);
    const size_t their_pitch = by_head ? H * row : row;
    const size_t rows = by_head ? B : H;
    cudaError_t status = cudaSuccess;

    for (size_t i = 0; i < (by_head ? H : B) && status == cudaSuccess; i++) {
        float *mine = part_lse(pass, place) + i * (by_head ? tokens : S);
        float *theirs = stats + i * (by_head ? S : H * S);

        if (pass->backward)
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
run_plan(RpCudnn *cudnn, const Plan *plan, void *const *pointers, void *workspace)
{
    g_autoptr(RpCudnnGraph) run = rp_cudnn_graph_new();
    gint64 ids[RP_CUDNN_N_TENSORS], count = 0;
    void *given[RP_CUDNN_N_TENSORS];
    cudnnBackendDescriptor_t pack;

    for (gint64 i = 0; i < RP_CUDNN_N_TENSORS; i++) {
        if (!plan->graph->has[i])
            continue;
        ids[count] = i;
        given[count++] = pointers[i];
    }
    pack = RP_CUDNN_MAKE(run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "pointers",
                         {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids},
                         {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, given},
                         RP_CUDNN_ONE_OF(VARIANT_PACK_WORKSPACE, VOID_PTR, &workspace));
    if (run->failure == NULL)
        rp_cudnn_graph_note(run, cudnnBackendExecute(cudnn->handle, plan->plan, pack), "run");
    return run->failure == NULL || refuse(cudnn, run->failure);
}

/* Element @n of an array. */
static void *
at(const void *array, size_t n)
{
    return (char *)array + n * ELEMENT;
}

/* The slices of dk; those of dv follow. */
static char *
slices_of(const Pass *pass)
{
    return (char *)rp_align_up((guintptr)pass->args->workspace, PIECE_ALIGNMENT) + pass->stats +
           pass->delta;
}

/* The first element of the part at @place, of an array with @heads from a token to the next. */
static size_t
kv_offset(const Pass *pass, RpAttentionPlace place, size_t heads)
{
    const RpAttentionArgs *args = pass->args;

    return (place.sequence * args->max_length * heads + place.kv_head) * args->head_size;
}

/* Sets the arrays of the part at @place in @pointers. */
static void
point_at(const Pass *pass, RpAttentionPlace place, void **pointers)
{
    const RpAttentionArgs *args = pass->args;
    const size_t S = args->max_length, D = args->head_size;
    const size_t q = (place.sequence * S * args->heads + place.head) * D;
    const size_t dq = (place.sequence * S * row_heads(args, args->heads) + place.head) * D;
    const size_t k = kv_offset(pass, place, args->kv_heads);
    const size_t v = kv_offset(pass, place, row_heads(args, args->kv_heads));
    char *slices = slices_of(pass);

    pointers[RP_CUDNN_Q] = at(args->q, q);
    pointers[RP_CUDNN_K] = at(args->k, k);
    pointers[RP_CUDNN_V] = at(args->v, v);
    pointers[RP_CUDNN_OUT] = at(args->out, q);
    pointers[RP_CUDNN_STATS] =
        pass->stats > 0 ? slices - pass->delta - pass->stats : (char *)part_lse(pass, place);
    if (!pass->backward)
        return;
    pointers[RP_CUDNN_DELTA] = slices - pass->delta;
    pointers[RP_CUDNN_D_OUT] = at(args->d_out, q);
    pointers[RP_CUDNN_DQ] = at(args->dq, dq);
    pointers[RP_CUDNN_DK] = at(args->dk, v);
    pointers[RP_CUDNN_DV] = at(args->dv, v);
    if (pass->slices > 0) {
        pointers[RP_CUDNN_DK] = at(slices, place.slice * S * D);
        pointers[RP_CUDNN_DV] = at(slices + pass->slices, place.slice * S * D);
    }
}

/* dk and dv of the group at @place, whose slices are all there. */
static gboolean
add_slices(RpCudnn *cudnn, const Pass *pass, RpAttentionPlace place)
{
    const RpAttentionArgs *args = pass->args;
    const size_t row = row_heads(args, args->kv_heads), at_row = kv_offset(pass, place, row);
    RpCudaAttentionSlices sum = {.dtype = args->dtype,
                                 .slices = pass->parts.slices,
                                 .tokens = args->max_length,
                                 .n = args->head_size,
                                 .stride = row * args->head_size};
    cudaError_t status;

    sum.x = slices_of(pass);
    sum.y = at(args->dk, at_row);
    status = rp_cuda_attention_add_slices(&sum, cudnn->stream);
    sum.x = slices_of(pass) + pass->slices;
    sum.y = at(args->dv, at_row);
    if (status == cudaSuccess)
        status = rp_cuda_attention_add_slices(&sum, cudnn->stream);
    return status == cudaSuccess || refuse(cudnn, cudaGetErrorString(status));
}

static gboolean
attend_part(RpCudnn *cudnn, const Pass *pass, const Plan *plan, RpAttentionPlace place)
{
    float scale = pass->args->scale, window = (float)pass->args->window, one = 1;
    float minus = cudnnGetVersion() < 91000 ? -G_MAXFLOAT : -INFINITY;
    void *pointers[RP_CUDNN_N_TENSORS] = {[RP_CUDNN_SCALE] = &scale,
                                          [RP_CUDNN_MINUS] = &minus,
                                          [RP_CUDNN_WINDOW_MINUS] = &minus,
                                          [RP_CUDNN_WINDOW] = &window,
                                          [RP_CUDNN_ONE] = &one};
    char *own = slices_of(pass) + 2 * pass->slices;

    point_at(pass, place, pointers);
    if (pass->backward && pass->stats > 0 &&
        !copy_stats(cudnn, pass, place, pointers[RP_CUDNN_STATS]))
        return FALSE;
    if (!run_plan(cudnn, plan, pointers, own))
        return FALSE;
    if (!pass->backward && pass->stats > 0 &&
        !copy_stats(cudnn, pass, place, pointers[RP_CUDNN_STATS]))
        return FALSE;
    return pass->slices == 0 || place.slice + 1 < pass->parts.slices ||
           add_slices(cudnn, pass, place);
}

gboolean
rp_cudnn_attend(RpCudnn *cudnn, const RpAttentionArgs *args, gboolean backward)
{
    Pass pass;
    Plan *plan;

    if (!suits(args) || !(args->scale > 0))
        return refuse(cudnn, "cuDNN: not for such sizes");
    if (!divide(args, backward, &pass))
        return refuse(cudnn, "cuDNN: backward would need too large a workspace");
    plan = find_plan(cudnn, &pass);
    if (plan == NULL)
        return FALSE;
    if (!is_aligned(&pass))
        return refuse(cudnn, "cuDNN: arrays must be at multiples of 16 bytes");
    for (size_t i = 0; i < pass.parts.count; i++)
        if (!attend_part(cudnn, &pass, plan, rp_attention_parts_place(&pass.parts, i)))
            return FALSE;
    cudnn->runs++;
    return TRUE;
}
