/**
 * A network: a model's layers as they are computed for micro-batches of one shape, written once
 * over the kernel table, and the needs of stages, which run some of them.
 *
 * B sequences, S tokens each, T = B S, C hidden size. A hidden state is [T,C] of `dtype`; the
 * input of layer 0 is int32 token ids [T].
 *
 *   forward     x0 -> layer -> x1 -> layer -> x2       keeps nothing but the requested boundaries
 *   recompute   the same, keeping what backward needs in the workspace; what the forward saved is not
 *               made again (core/profile/profile.h)
 *   backward    dx0 <- layer <- dx1 <- layer <- dx2    sums += weight gradients
 *   fused       forward with the head, keeping; then backward at once (paper §3.2)
 *
 * All of them give the same bits for the same layers, however they are cut into stages.
 *
 * Workspace of a stage (core/plan/device-layout.h computes the same from the profile):
 *   forward     max over layers of forward_workspace_bytes, + 2 hidden states if it has > 1 layer
 *   backward    max over layers of both workspaces, + the sum of activation_bytes, without what the
 *               forward has saved
 */
#pragma once

#include "core/catalogue/custom.h"
#include "core/catalogue/preference.h"
#include "core/partition/partition.h"
#include "core/profile/profile.h"
#include "exec/kernels/kernels.h"
#include "exec/model/layout.h"

/* Runs matmuls of blocks' linear layers, and of the head's on request, in fp8 (core/base/fp8.h): weights, which are
 * quantized once a slot, and activations are e4m3. Experts' matrices and the router stay in `dtype`, and so does a
 * layer whose matrices have rows or columns that are no multiples of 16. */
typedef struct {
    gboolean used;     /* micro-batches have a multiple of 16 tokens */
    RpDtype gradients; /* fp8 format of activations' gradients: RP_DTYPE_E5M2 or RP_DTYPE_E4M3 */
    guint plain_first, plain_last; /* blocks at either end that stay in `dtype` */
    gboolean head; /* the head uses fp8, too: head_chunk and rows of calls are multiples of 16 */
} RpNetworkFp8;

typedef struct {
    RpDtype dtype;    /* storage of weights, activations, their gradients, and leaving gradients */
    guint sequences;  /* B of a micro-batch */
    guint tokens;     /* S of a sequence */
    guint head_chunk; /* tokens whose logits exist at once; 0 = chosen, from 1024 on */
    /* limit of a chosen chunk's workspace, up to 16384 tokens; 0: a block's */
    guint64 head_memory;
    /* tokens of which a dense MLP has gate and up at once; 0 = all up to 65536, 16384 of more. It
     * has all where layers read fp8 values */
    guint mlp_tile;
    RpAttentionChoice attention;
    gboolean half_sums; /* fp16: matmuls of activations may add up in fp16; fp8: in fewer bits */
    RpNetworkFp8 fp8;
    guint packed_tokens; /* samples share a sequence, and calls say where they begin; of a typical
                            one, as measured where a call does not. 0: a sample has a sequence */
    /* tokens of the longest sequence in a cache (RpCacheCall), for forwards alone: one token of each of B sequences that
     * are there (tokens 1), or sequences that begin (packed_tokens > 0). Each row is then the same whatever other rows a
     * call has. 0: no cache */
    guint cache_tokens;
    /* length of a sequence for ropes that depend on it; 0: the longest possible */
    guint rope_tokens;
    double label_smoothing; /* smoothing of the loss while training; 0 = none */
    const RpLoss *loss;     /* (nullable): of the caller's program; borrowed */
    RpPreference
        preference; /* objective; with one but sft, loss is NULL and label_smoothing not read */
    double noise;   /* NEFTune: alpha of the noise added to embeddings while training; 0 = none */
    guint64 noise_seed;
    double aux_loss;            /* experts: coefficient of the routers' auxiliary loss; 0 = none */
    const char *matmul_library; /* (nullable): their library; both are copied */
    const RpMatmulVariant
        *matmul_variants; /* in which matmuls are multiplied; others in the first one */
    guint n_matmul_variants;
} RpNetworkOptions;

typedef struct _RpNetwork RpNetwork;

/* @kernels, @weights: borrowed. @weights may be unbound: names, shapes and trained weights are read. A
 * head_chunk of 0 becomes the largest power of two from 1024 to 4096 (with head_memory 16384) whose
 * workspace is not beyond that of a block's backward, or not beyond head_memory; or the least. */
RpNetwork *rp_network_new(const RpWeights *weights, const RpKernels *kernels,
                          const RpNetworkOptions *options);
void rp_network_free(RpNetwork *network);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpNetwork, rp_network_free)

guint rp_network_n_layers(const RpNetwork *network);
const RpNetworkOptions *rp_network_options(const RpNetwork *network); /* head_chunk resolved */
const RpModel *rp_network_model(const RpNetwork *network);
const RpWeights *rp_network_weights(const RpNetwork *network);
const RpKernels *rp_network_kernels(const RpNetwork *network);
/* The first layer of its class: of layers with the same sizes and times. */
guint rp_network_layer_class(const RpNetwork *network, guint layer);
const RpLayerLayout *rp_network_layout(const RpNetwork *network, guint layer);
/* Shapes of the matmuls of full calls, each once, without a kernel variant. @n: (out) */
const RpMatmulVariant *rp_network_matmuls(const RpNetwork *network, guint *n);
/* Whether layers read other values than those that go up: some weights are packed, or layers read
 * fp8 values. */
gboolean rp_network_is_packed(const RpNetwork *network);
/* Bytes of the weights of some layers (> 0), and how many of their elements are trained; gaps
 * included. */
guint64 rp_network_weight_bytes(const RpNetwork *network, RpInterval layers);
guint64 rp_network_elements(const RpNetwork *network, RpInterval layers);
/* Bytes of a hidden state [T,C], with the values for the auxiliary loss behind it, if there is one; and its T C
 * elements alone. Layers of the caller's program (core/catalogue/custom.h) have a row a sample: [B,C]. */
guint64 rp_network_hidden_bytes(const RpNetwork *network);
guint64 rp_network_hidden_elements(const RpNetwork *network);

/**
 * rp_network_profile:
 *
 * A profile with every size of the network and no times: parameters, and gradients of trained ones
 * in `dtype`, with the gaps of the layout (tensor by tensor), tied_bytes, inputs (layer 0: 4 T), outputs (head: 0),
 * activations, workspaces (multiples of 256; backward ones hold a hidden gradient as well).
 * Strings: `model` "hidden x blocks", `dtype`; `source` "measured".
 */
RpProfile *rp_network_profile(const RpNetwork *network);

/* RpNetworkOptions.rope_tokens, for constants that are filled from now on. */
void rp_network_set_rope_tokens(RpNetwork *network, guint tokens);

/* Constants that every device needs once, beside the plan's buffers that come and go: rope tables,
 * positions [T], sequence starts [B+1], packed: starts of samples [T+1], of preferences gaps [T][2], with an auxiliary
 * loss: lengths of sequences [B]. Multiple of 256. */
guint64 rp_network_constant_bytes(const RpNetwork *network);
/* Fills them into host memory at @constants (64-byte aligned); packed: with typical samples, and
 * sequences without padding. */
void rp_network_fill_constants(const RpNetwork *network, void *constants);

/**
 * rp_network_places:
 * @lengths: [B]: tokens of sequences before their padding; read with an auxiliary loss
 * @starts: packed: [n + 1]: first tokens of a micro-batch's samples, and T
 * @shared: (nullable): [n]: tokens of the sample before that each begins with, and stands without
 * @places: (out): space for rp_network_most_places()
 *
 * Computes the numbers that a micro-batch puts into the constants, from rp_network_places_byte()
 * on, before its calls: with an auxiliary loss @lengths; packed: positions, which begin at 0 with
 * each sample, and @starts. A sample of shared tokens is a branch of the one before: its positions begin behind these,
 * and both have one start; gaps of all (RpAttentionArgs) stand behind the starts then.
 *
 * Returns: number of them
 */
gsize rp_network_places(const RpNetwork *network, const guint32 *lengths, const gint32 *starts,
                        const guint32 *shared, guint n, gint32 *places);
gsize rp_network_places_byte(const RpNetwork *network);
/* 0: nothing of a micro-batch goes there. */
gsize rp_network_most_places(const RpNetwork *network);

/* A cache: keys and values of attention in blocks of RP_CACHE_BLOCK tokens, states of DeltaNet in slots; in zeroed memory.
 * Block 0 and slot 0 are for rows that pad a call. */
guint64 rp_network_cache_bytes(const RpNetwork *network, guint blocks, guint slots);

/* A call names its part of it. Arrays are of the backend's memory; positions and starts of the constants are not
 * read then. */
typedef struct {
    guint n_blocks, n_slots;
    void *memory;            /* rp_network_cache_bytes() */
    const gint32 *positions; /* [T] */
    const gint32 *starts;    /* sequences that begin: [call->n_samples + 1] */
    guint n_rows;            /* tokens whose keys are kept, and rows of the cache */
    const gint32 *tokens, *rows;
    guint n_ranges; /* tokens firsts[i] to ends[i] are of the state in slots[i] */
    const gint32 *firsts, *ends, *slots;
    guint most_blocks;    /* one token more: of a table */
    guint longest;        /* and no position is as large */
    const gint32 *tables; /* [B,most_blocks] */
} RpCacheCall;

/* Frozen weights that are resident on a device (core/plan/resident.h): the upload of a stage has
 * only those of its layers that are not resident. All zeros: none is. */
typedef struct {
    const guint64 *first; /* [n_layers] first byte of a layer in the upload of all */
    const guint64 *place; /* [n_layers] resident weights in @memory; or RP_LAYOUT_NONE */
    const guint8 *memory;
} RpResidents;

/* Makes the weights of some layers, as stages read them, from @upload and from resident weights:
 * expands packed ones, quantizes those in fp8, and copies the rest. All memory is the backend's,
 * 64-byte aligned; gaps are left alone. */
void rp_network_expand(const RpNetwork *network, RpKernelStream *stream, RpInterval layers,
                       const void *upload, RpResidents residents, void *parameters);

/* Values that a layer's forward saves for its backward: one group after the other, in the order of
 * their kinds. */
typedef struct {
    guint groups; /* bits of RpSavedGroup; 0: nothing */
    void *memory; /* rp_network_saved_bytes() */
} RpSavedPlace;
/* Multiple of 256; a group that the layer does not have takes none. */
guint64 rp_network_saved_bytes(const RpNetwork *network, guint layer, guint groups);

/* After the forward of each layer, with its output [T,C] (of the head: not called). */
typedef void (*RpNetworkObserver)(gpointer user_data, guint layer, const void *output);

/* Steps of a fused call in pieces: layers whose forward runs, and layers whose backward does. The
 * pieces before have left the values that these need in the workspace. */
typedef struct {
    RpInterval up;
    RpInterval down;
} RpStageSteps;

/* Documents of a preference's micro-batch; without them the loss is cross entropy of all targets. Their rows are those of RpStageCall.targets: a document has them from first[d]
 * to first[d + 1]. */
typedef struct {
    guint n;
    const gint32 *first;     /* [n+1] */
    const gint32 *answers;   /* [n]: RpAnswerKind */
    const float *references; /* [n]: log-probabilities by the reference; 0 where there is none */
    double nll_scale; /* factor of the NLL of chosen answers' targets, beside losses of pairs */
    float *logps; /* [n]: (out): log-probabilities, memory of the host that is pinned; or NULL */
} RpStageDocuments;

/* One stage x one micro-batch. All pointers are of the backend's memory, 64-byte aligned. */
typedef struct {
    RpKernelStream *stream;
    RpInterval layers;
    const RpStageSteps *steps; /* fused: their steps; NULL: all forward and backward */
    const void *constants;
    const void *parameters;   /* parameters of the stage, layer after layer (exec/model/layout.h) */
    RpResidents residents;    /* beside them */
    const void *input;        /* input of the first layer */
    const RpCacheCall *cache; /* where options have one; else not read */
    guint n_samples;          /* packed: starts in the constants; 0: the typical ones */
    guint longest;            /* the longest of these, tokens */
    gboolean has_gaps;        /* gaps stand behind the starts */

    /* forward: the input of layer boundaries[i] goes to @output + i hidden states. boundaries[0] is
     * the end of the stage, the others lie inside it. recompute: the same of the end. backward,
     * fused: gradient of @input, one hidden state; NULL if the first layer is 0 */
    const guint *boundaries;
    guint n_boundaries;
    void *output;

    /* forward: is filled. recompute: it makes the rest; backward: the same; its space in the
     * workspace is less by that. The backward overwrites it. fused: has none */
    const RpSavedPlace *saved; /* [layers.count], or %NULL: nothing is saved */

    const void *gradient; /* backward: of the output of the last layer */
    float *sums;          /* backward, fused: of trained weights, layer after layer; += */
    gboolean begins_sums; /* they hold nothing yet: = */
    void *workspace;      /* the same at recompute and backward */

    /* stages with the head. With @rows it computes @n_rows tokens alone, whose targets stand one
     * after the other; all others are masked, and those may be */
    const gint32 *targets; /* [T], shifted; RP_LABEL_MASKED; with @rows [n_rows] */
    const gint32 *rows;    /* [n_rows], none twice, or NULL: all tokens */
    guint n_rows;
    float scale;  /* factor of the loss's gradient */
    double *loss; /* [1], +=: sum over targets. NULL in a forward: leave the head out. With an
                     auxiliary loss [2], where a backward leaves that, =. With a preference
                     [RP_STAGE_LOSSES]: sum over its pairs, and the numbers behind it */
    RpStageDocuments documents; /* of a preference */
    float aux_scale; /* factor of the auxiliary loss's gradient, but for its coefficient */

    gboolean adapters_off; /* forward: as if the model had no adapters */

    /* training with RpLora.dropout or noise, the same in all kinds of calls: place of the micro-batch's tokens */
    gboolean drops;
    guint32 step, first_token;
    guint32 padded; /* noise: tokens of the longest of its sequences; 0: all of a sequence's */

    RpNetworkObserver observe; /* may be NULL */
    gpointer observe_data;
} RpStageCall;

/* Numbers of a head: loss, auxiliary loss, and sums of a preference. */
#define RP_STAGE_LOSSES (2 + RP_N_PREFERENCE_SUMS)

static inline RpPreferenceSums *
rp_stage_sums(const double *losses)
{
    return (RpPreferenceSums *)(gpointer)(losses + 2);
}

/* The head's forward is its loss alone; needs no scale. */
void rp_network_forward(const RpNetwork *network, const RpStageCall *call);
/**
 * rp_network_logits:
 * @call: layers up to the head, forwards; of the head it has @rows, @n_rows of them (a head_chunk at most).
 *   The workspace is a forward's
 *
 * Runs a forward up to the logits of some tokens, which predict the token after each. For
 * generating.
 *
 * Returns: [n_rows,vocabulary] of `dtype`, within the workspace
 */
const void *rp_network_logits(const RpNetwork *network, const RpStageCall *call);
/* Leaves the head out, whose forward belongs to its backward: with a head, fused is recompute
 * (observed), then backward. */
void rp_network_recompute(const RpNetwork *network, const RpStageCall *call);
void rp_network_backward(const RpNetwork *network, const RpStageCall *call);
void rp_network_fused(const RpNetwork *network, const RpStageCall *call);
