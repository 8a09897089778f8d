/**
 * Shared by the files of exec/network/, and private to them.
 *
 *   network.c         sizes, constants, profile
 *   stage.c           layers after one another: where inputs, outputs and gradients stand
 *   block.c           one transformer block, and the MLP of a dense one
 *   attention.c       its attention, and attention to keys and values of calls before
 *   delta.c           gated DeltaNet instead of attention
 *   cache.c           the cache of generating
 *   experts.c         its mixture of experts
 *   shared-expert.c   the expert of a mixture that every token has
 *   head.c            final norm, LM head, loss
 *   custom.c          layers and losses of the caller's program
 *   linear.c          linear layers and their adapters
 *   operand.c         their inputs, in fp8
 *   expand.c          packed weights
 *   balance.c         the routers' auxiliary loss
 *   embedding.c       the embedding; kernels over rows of hidden states and of logits
 *   pass.c            other kernels with their operands filled in; shapes and variants of matmuls
 *
 * Sizes are measured, not computed beside the arithmetic: a layer's code runs once with a pass that
 * only counts (RpPass.measuring). It then takes the same memory as when it runs.
 */
#pragma once

#include "exec/network/network.h"

#define RP_NETWORK_ALIGNMENT 256 /* bytes, for everything within a workspace */

/* Memory that is handed out front to back. Addresses are integers: when measuring, from 0 up. */
typedef struct {
    guintptr base;
    gsize used;
    gsize peak;
} RpSpace;

/* Scratch of a layer in one direction: |workspace of a kernel|what the layer takes|. Bytes. */
typedef struct {
    gsize kernel;
    gsize total;
} RpScratch;

/* Bytes of one layer, all multiples of RP_NETWORK_ALIGNMENT. */
typedef struct {
    gsize kept;                     /* its input, and values kept for the backward */
    gsize saved[RP_N_SAVED_GROUPS]; /* parts of that */
    RpScratch forward;
    RpScratch backward;
} RpLayerSizes;

typedef struct _RpPass RpPass;

/* A kind of layer. Hidden states are [T,C]. */
typedef struct {
    gboolean keeps_input; /* it stands where the layer keeps things */
    /* (nullable): in a layout with fp8 values: fuses matrices that are read as one */
    void (*join_fp8)(const RpPass *pass, RpLayerLayout *layout);
    /**
     * forward:
     * @x: the input
     * @kept: (nullable): space after the input's, in which values for the backward are kept
     * @y: (nullable): the output, if it is wanted
     */
    void (*forward)(RpPass *pass, const void *x, RpSpace *kept, void *y);
    /* @kept: as the forward left it; is overwritten. @dy: the output's gradient; of the head none.
     * @dx: may be @dy; of the embedding none; anything if the layer is the lowest */
    void (*backward)(RpPass *pass, const void *x, RpSpace *kept, const void *dy, void *dx);
} RpLayerOps;

typedef struct {
    const RpLayerOps *ops;
    guint class; /* the first layer of it */
    RpLayerLayout layout;
    RpLayerSizes sizes;
} RpNetworkLayer;

/* Offsets within the constants, bytes. */
typedef struct {
    gsize cosines, sines; /* float [S,D/2] */
    gsize table_bytes;    /* from a table of both to the next: rp_model_rope_table() */
    gsize lengths;        /* with an auxiliary loss: int32 [B]: tokens before the padding */
    gsize positions;      /* int32 [T] */
    gsize starts;         /* int32 [B+1], packed [T+1] */
    gsize bytes;
} RpConstants;

struct _RpNetwork {
    const RpModel *model; /* model of @weights */
    const RpWeights *weights;
    const RpKernels *kernels;
    RpNetworkOptions options;
    guint n_layers;
    RpNetworkLayer *layers;
    guint lowest;  /* layer that trains something: nothing below it has a gradient */
    size_t tokens; /* T */
    gsize hidden_bytes;
    gsize hidden_space; /* the same, up to the next multiple of RP_NETWORK_ALIGNMENT */
    double dropout;     /* dropout of adapters' input */
    RpConstants constants;
    guint typical_samples; /* samples of a call that does not say; not packed: B */
    GArray *matmuls;       /* (element-type RpMatmulVariant): shapes of calls, each once */
};

/* Fp8 values of a linear layer's input, kept from the forward for sums of its weights' gradient. */
typedef struct {
    gboolean used;
    guint8 *transposed; /* [in,rows] */
    float *scale;
} RpSavedFp8;

/* Values kept by a block that trains matrices in fp8 and has no adapters: its backward then neither norms nor quantizes
 * them again. An input is not used where the forward has saved the layer's output, so that it is not computed again. */
typedef struct {
    RpSavedFp8 normed, out, post, product; /* inputs of q, k, v; of o; of gate and up; of down */
    float *rstd, *post_rstd;               /* [T]: of the norms before the first and the last */
} RpBlockKept;

/* One layer being run (or measured): its weights, its scratch, and the call it belongs to. */
struct _RpPass {
    const RpNetwork *network;
    const RpStageCall *call; /* NULL when measuring */
    guint layer;
    const RpLayerLayout *layout;
    guintptr parameters; /* parameters of the layer */
    guintptr frozen; /* the same, or where frozen ones would begin if trained ones stood there */
    guintptr sums;
    const void *input; /* forward: of the layer; and its output, or NULL if it is not wanted */
    void *output;
    gboolean lowest;    /* no layer before it trains anything: dx is not wanted */
    gboolean measuring; /* no kernel runs; sizes only */
    gsize kernel_bytes; /* measuring: the largest workspace of a kernel */
    void *kernel_workspace;
    RpSpace scratch;
    float *scale_slots;  /* fp8: scale slots of the layer: amax, and scale */
    guint n_scale_slots; /* slots that have been taken */
    float *amax; /* forward: of the MLP's input, backward: of the attention's gradient; or NULL */
    guint saved; /* groups that stand in saved_space */
    gboolean saved_before; /* the forward has left them there */
    RpSpace saved_space;
    RpBlockKept kept;
    size_t first_row;    /* first row of the micro-batch, where a part of the rows runs */
    gboolean sums_begun; /* matrices have sums: a chunk or tile of rows before has written them */
};

/* First byte of a layer in the upload of all, where actions read the upload: @first_byte of its
 * layout unless some layers are resident. */
static inline guint64
rp_residents_first(const RpResidents *residents, guint layer, guint64 first_byte)
{
    return residents->first != NULL ? residents->first[layer] : first_byte;
}

/* First byte that the layer would have with its resident frozen weights: its trained ones come
 * first. @uploaded: its first byte, if they go up with it */
static inline guintptr
rp_residents_frozen(const RpResidents *residents, guint layer, const RpLayerLayout *layout,
                    guintptr uploaded)
{
    const gboolean stays = residents->place != NULL && residents->place[layer] != RP_LAYOUT_NONE;

    return stays ? (guintptr)residents->memory + residents->place[layer] -
                       (layout->upload_bytes - layout->frozen_bytes - layout->tied_bytes)
                 : uploaded;
}

/* ---- pass.c: shapes and variants ---- */

/* Copies the options' kernel variants. */
void rp_matmuls_open(RpNetwork *network);
void rp_matmuls_close(RpNetwork *network);
/* For a pass that measures: records that the shape is one of the network's. */
void rp_matmuls_note(const RpNetwork *network, const RpMatmulArgs *args);
guint8 rp_matmuls_variant(const RpNetwork *network, const RpMatmulArgs *args);

/* ---- pass.c ---- */

/* @n elements of the network's dtype. */
void *rp_pass_take(const RpPass *pass, RpSpace *space, size_t n);
float *rp_pass_take_floats(RpSpace *space, size_t n);
int32_t *rp_pass_take_ints(RpSpace *space, size_t n);
guint8 *rp_pass_take_bytes(RpSpace *space, size_t n);
/* Row @first of a hidden state; when measuring, of one that stands anywhere. */
void *rp_pass_row(const RpPass *pass, const void *hidden, size_t first);

/* The same for a tensor of @group: in @space unless it is saved. */
static inline RpSpace *
rp_pass_saved_space(RpPass *pass, RpSpace *space, RpSavedGroup group)
{
    return (pass->saved >> group & 1) != 0 ? &pass->saved_space : space;
}
/* Whether it is to be made: the forward has not saved it. */
static inline gboolean
rp_pass_makes(const RpPass *pass, RpSavedGroup group)
{
    return !pass->saved_before || (pass->saved >> group & 1) == 0;
}

/* Runs a kernel, unless the pass measures; then it asks for the size of a kernel's workspace, if it
 * has one. */
#define RUN(pass, kernel, args)                                                                    \
    do {                                                                                           \
        if (!(pass)->measuring)                                                                    \
            (pass)->network->kernels->kernel((pass)->call->stream, args);                          \
    } while (0)
#define RUN_IN_WORKSPACE(pass, kernel, args)                                                       \
    do {                                                                                           \
        if ((pass)->measuring)                                                                     \
            (pass)->kernel_bytes =                                                                 \
                MAX((pass)->kernel_bytes, (pass)->network->kernels->kernel##_workspace(args));     \
        RUN(pass, kernel, args);                                                                   \
    } while (0)

static inline gboolean
rp_pass_has(const RpPass *pass, RpWeightKind kind)
{
    return pass->layout->place[kind].byte != RP_LAYOUT_NONE;
}

static inline gboolean
rp_pass_trains(const RpPass *pass, RpWeightKind kind)
{
    return pass->layout->place[kind].element != RP_LAYOUT_NONE;
}

static inline const void *
rp_pass_weight(const RpPass *pass, RpWeightKind kind)
{
    return (const void *)((rp_pass_trains(pass, kind) ? pass->parameters : pass->frozen) +
                          pass->layout->place[kind].byte);
}

/* Adapters of a matrix [out,in]: A [r,in]; or of a stack [E,out,in]: A [E,r,in]. */
typedef struct {
    RpWeightKind a, b;
    size_t rank; /* 0: none */
} RpPassAdapters;

/* @r: which dimension of A that is */
static inline RpPassAdapters
rp_pass_adapters(const RpPass *pass, RpWeightKind kind, guint r)
{
    const RpWeightKind a = rp_weight_adapter(kind, RP_ADAPTER_A);

    return (RpPassAdapters){a, rp_weight_adapter(kind, RP_ADAPTER_B),
                            rp_pass_has(pass, a) ? pass->layout->place[a].shape[r] : 0};
}

/* Whether the forward has its adapters: they are part of sizes in any case. */
static inline gboolean
rp_pass_adapts(const RpPass *pass)
{
    return pass->measuring || !pass->call->adapters_off;
}

/* Whether adapters do not see all of their input. */
static inline gboolean
rp_pass_drops(const RpPass *pass)
{
    return pass->network->dropout > 0 && (pass->measuring || pass->call->drops);
}

/* Whether sums that begin by being written hold something to add to. */
static inline gboolean
rp_pass_adds(const RpPass *pass)
{
    return pass->measuring || !pass->call->begins_sums;
}

/* Address of the sum of its gradient. */
static inline float *
rp_pass_sum(const RpPass *pass, RpWeightKind kind)
{
    return (float *)(pass->sums + pass->layout->place[kind].element * sizeof(float));
}

/* C of @args' dtypes; workspace and the choice of sums are filled in. */
void rp_pass_matmul(RpPass *pass, RpMatmulArgs args);
/* Sums += gradient of the bias, whose matrix has as many rows. */
void rp_pass_bias_sums(RpPass *pass, RpWeightKind bias, size_t rows, const void *dy);

/* ---- operand.c ---- */

/* A scale slot of a quantized tensor: its amax, and its scale at a multiple of 16 bytes. */
#define RP_SCALE_SLOT_FLOATS 8
#define RP_SCALE_SLOT_SCALE 4

/* Input of linear layers, [rows,n] of the network's dtype; and its fp8 values where layers read
 * these. */
typedef struct {
    const void *x;
    size_t rows;
    size_t stride; /* from a row to the next, without fp8; 0: n */
    RpDtype code;
    const guint8 *quantized;  /* [rows,n] */
    const guint8 *transposed; /* [n,rows] */
    const float *scale;
} RpMatmulOperand;

typedef enum {
    RP_OPERAND_INPUT,   /* x of y = x W^T: fp8 values */
    RP_OPERAND_SUMS,    /* x of dW = dy^T x: transposed, if something is trained */
    RP_OPERAND_BOTH,    /* x of both */
    RP_OPERAND_GRADIENT /* dy: fp8 values, and transposed as well if something is trained */
} RpOperandUse;

/* Takes and clears scale slots, in a layer with fp8, before anything that is freed before the layer ends. */
void rp_pass_begin_fp8(RpPass *pass);
/* A scale slot for a tensor whose amax is recorded by the kernel that makes it; %NULL without fp8. */
float *rp_pass_scale_slot(RpPass *pass);
/* The norm before a block's first layers, or before its MLP: y of @rows tokens. Returns: its scale slot */
float *rp_pass_block_norm(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, void *y,
                          float *rstd);
/* @d: of y, becomes that of x, with @d_residual. @amax: (nullable): its scale slot */
void rp_pass_block_norm_backward(RpPass *pass, RpWeightKind kind, size_t rows, const void *x,
                                 float *rstd, const void *d_residual, void *d, float *amax);
/* An operand of linear layer @kind, and of others that read the same; it is quantized in the scratch buffer. @amax:
 * its scale slot, with its amax; %NULL: the amax is looked for */
RpMatmulOperand rp_pass_operand(RpPass *pass, RpWeightKind kind, size_t rows, const void *x,
                                RpOperandUse use, float *amax);
/* The same for an input that is kept, if the block keeps fp8 values: @keep is one of pass->kept. */
RpMatmulOperand rp_pass_kept_input(RpPass *pass, RpWeightKind kind, size_t rows, const void *x,
                                   float *amax, const RpSavedFp8 *keep);
/* Like RP_OPERAND_SUMS, of kept fp8 values. */
RpMatmulOperand rp_pass_kept_sums(size_t rows, const RpSavedFp8 *kept);
/* Takes the values that the block keeps, in the order of forward and backward. @space: (nullable): it keeps nothing */
void rp_pass_take_kept(RpPass *pass, RpSpace *space, size_t rows);
/* Operand of layers that read no fp8 values. */
RpMatmulOperand rp_pass_plain(size_t rows, const void *x);
/* Whether options let the layer read fp8 values, if its matrices can. */
gboolean rp_fp8_is_wanted(const RpNetwork *network, guint layer);
/* Bytes of the fp8 values of a matrix, the transposed ones behind them, then amax and scale. */
gsize rp_fp8_transposed_byte(const RpWeightPlace *place);
gsize rp_fp8_scales_byte(const RpWeightPlace *place);

/* ---- linear.c ---- */

/* A linear layer y = x W^T + bias, W [out,in] of @kind; the model may have no bias. x: [rows,in],
 * y: [rows,out]. Adapters of W (core/catalogue/lora.h) are part of it, s their scale:
 *
 *   h = x' A^T [rows,r]    y += s h B^T       g = s dy B [rows,r]
 *   dB += s dy^T h         dA += g^T x'       dx += (g A)'
 *
 * ' drops elements of a row, the same ones each time: those of the matrix, the token and the step.
 */
void rp_pass_linear(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x, void *y);
/* @residual: (nullable): [rows,out], which y is added to before it is rounded */
void rp_pass_linear_onto(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                         const void *residual, void *y);
/* Whether a matmul makes a micro-batch's gradient of the matrix, and begins a sum by writing it: of all that
 * linear layers have. Adapters are as their matrix. The head's first chunk does, if there is one. */
gboolean rp_linear_writes_sums(RpWeightKind kind);
/* Layers of the same input, in the order of their matrices. */
typedef struct {
    const RpWeightKind *kinds;
    guint n;
} RpJoint;
/* Whether they can be one, [out of all,in]: their matrices stand one behind the other, and so do A of
 * their adapters, if they have some; none has a bias; */
gboolean rp_pass_may_join(const RpPass *pass, RpJoint joint);
/* and whether they are fused: in fp8 where the layout says so. */
gboolean rp_pass_joins(const RpPass *pass, RpJoint joint);
/* Output of fused layers. y: [rows,out of all] */
void rp_pass_fused(RpPass *pass, RpJoint joint, const RpMatmulOperand *x, void *y);
/* Sums += gradients of all matrices; and, if it is @wanted, dx = dy W of all behind them, or +=. */
void rp_pass_fused_backward(RpPass *pass, RpJoint joint, const RpMatmulOperand *x,
                            const RpMatmulOperand *dy, gboolean wanted, void *dx,
                            gboolean accumulate);
#define RP_JOINT_MOST 3
/* Layers of the same input, RP_JOINT_MOST at most, with an output each: adapters that stand one behind the other read
 * the input once, and so does the gradient of theirs. */
void rp_pass_beside(RpPass *pass, RpJoint joint, const RpMatmulOperand *x, void *const *y);
/* @dy: in 16 bits or fp32, each; @amax: (nullable): as of rp_pass_operand(), each */
void rp_pass_beside_backward(RpPass *pass, RpJoint joint, const RpMatmulOperand *x,
                             const void *const *dy, float *const *amax, gboolean wanted, void *dx,
                             gboolean accumulate);
/* Sums += gradients of weight and bias. */
void rp_pass_linear_sums(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                         const RpMatmulOperand *dy);
/* dx = dy W, or += if @accumulate. */
void rp_pass_linear_input(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *dy, void *dx,
                          gboolean accumulate);
/* Both, sums first: @dx may be @x. */
void rp_pass_linear_backward(RpPass *pass, RpWeightKind kind, const RpMatmulOperand *x,
                             const RpMatmulOperand *dy, void *dx, gboolean accumulate);

/* ---- pass.c ---- */

/* RMSNorm, its dtype and epsilon filled in. */
void rp_pass_norm(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args);
void rp_pass_norm_backward(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args);
/* q/k norm and rope; tables, dtype and epsilon are filled in. */
void rp_pass_norm_rope(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args);
void rp_pass_norm_rope_backward(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args);
/* heads, row_heads, x and y are given. @kind: of the norm that q or k has not */
void rp_pass_rope(RpPass *pass, RpWeightKind kind, RpRopeArgs args);
void rp_pass_rope_backward(RpPass *pass, RpWeightKind kind, RpRopeArgs args);
/* q, k, v, out, lse, their gradients and the window are given, the rest is filled in. */
void rp_pass_attention(RpPass *pass, RpAttentionArgs args);
void rp_pass_attention_backward(RpPass *pass, RpAttentionArgs args);
void rp_pass_conv(RpPass *pass, const void *x, void *y);
void rp_pass_conv_backward(RpPass *pass, const void *x, const void *dy, void *dx);
/* Arrays of tokens are given, the rest is filled in. */
void rp_pass_delta(RpPass *pass, RpDeltaArgs args);
void rp_pass_delta_backward(RpPass *pass, RpDeltaArgs args);
void rp_pass_gated_norm(RpPass *pass, RpGatedNormArgs args);
void rp_pass_gated_norm_backward(RpPass *pass, RpGatedNormArgs args);
void rp_pass_head_gate(RpPass *pass, RpHeadGateArgs args);
void rp_pass_head_gate_backward(RpPass *pass, RpHeadGateArgs args);
void rp_pass_row_gate(RpPass *pass, RpRowGateArgs args);
void rp_pass_row_gate_backward(RpPass *pass, RpRowGateArgs args);
void rp_pass_columns(RpPass *pass, RpColumnsArgs args);
/* Applies the sinks to attention's output; before its backward, += their gradient, if they are
 * trained. */
void rp_pass_sink(RpPass *pass, size_t tokens, void *out, float *lse);
void rp_pass_sink_backward(RpPass *pass, void *out, float *lse, const void *d_out);
/* @row: 0, or of gate and up as columns of one matrix; then @y may be @gate and stand as that does */
void rp_pass_swiglu(RpPass *pass, size_t n, size_t row, const void *gate, const void *up, void *y,
                    float *amax);
/* In place: @gate and @up become their gradients, @d, the product's gradient, the product, unless its fp8 values are
 * kept. @amax: scale slots of the three */
void rp_pass_swiglu_backward(RpPass *pass, size_t n, size_t row, void *gate, void *up, void *d,
                             float *const amax[3]);
/* x, y, sizes, and whether it adds up are given. @adapter: of A */
void rp_pass_dropout(RpPass *pass, RpWeightKind adapter, RpDropoutArgs args);
/* y = x, elements of the network's dtype. */
void rp_pass_copy(RpPass *pass, size_t n, const void *x, void *y);

/* ---- embedding.c ---- */

void rp_pass_cross_entropy(RpPass *pass, RpCrossEntropyArgs args);
/* Losses of the call's documents; these, the objective, the scale and the outputs are filled in. */
void rp_pass_preference(RpPass *pass, RpPreferenceArgs args);
/* Rows of a hidden state: @packed[i] = @hidden[rows[i]], and back. */
void rp_pass_gather(RpPass *pass, size_t n, const int32_t *rows, const void *hidden, void *packed);
void rp_pass_scatter(RpPass *pass, size_t n, const int32_t *rows, const void *packed, void *hidden);
/* A hidden state of zeros. */
void rp_pass_clear_hidden(RpPass *pass, void *hidden);

/* ---- cache.c ---- */

/* A part of the block's cache, @part 0 or 1: keys, values; or of DeltaNet states of the convolution, and of the rule. */
void *rp_block_cache(const RpPass *pass, guint part);
/* Whether the network has a cache. */
static inline gboolean
rp_pass_has_cache(const RpPass *pass)
{
    return pass->network->options.cache_tokens > 0;
}

/* One query of each sequence, to keys of the cache. q, keys, values, out, lse and the window are given, the rest is filled
 * in. */
void rp_pass_attention_cached(RpPass *pass, RpCachedAttentionArgs args);
/* k, v, their strides, width and places in the cache are given. */
void rp_pass_cache_rows(RpPass *pass, RpCacheRowsArgs args);
/* The convolution and the delta rule from states of the cache, and to these. @states: of the convolution */
void rp_pass_conv_step(RpPass *pass, const void *x, void *y, void *states);
void rp_pass_delta_step(RpPass *pass, RpDeltaStepArgs args);

/* ---- balance.c: nothing happens without options.aux_loss ---- */

/* Byte within a hidden state at which the values for the auxiliary loss begin, and their end. */
gsize rp_balance_first_byte(const RpNetwork *network);
gsize rp_balance_end_byte(const RpNetwork *network);
/* Begins the values for the auxiliary loss, behind the embedding's output. */
void rp_balance_begin(RpPass *pass, void *y);
/* Adds a block's choices to those behind pass->output. */
void rp_balance_add(RpPass *pass, const void *logits, const int32_t *chosen);
/* In the head: the auxiliary loss of the values behind @x, and its gradient behind @dx; or NULL. */
void rp_balance_loss(RpPass *pass, const void *x, void *dx);
/* Adds the auxiliary loss's part to the arguments of @route. */
void rp_balance_backward(const RpPass *pass, const void *dy, RpRouteArgs *route);
void rp_balance_pass_on(RpPass *pass, const void *dy, void *dx);

/* ---- kinds of layers: embedding.c, block.c, head.c ---- */

extern const RpLayerOps rp_embedding_ops;
extern const RpLayerOps rp_block_ops;
extern const RpLayerOps rp_head_ops;

/* ---- custom.c: layers of the caller's program ---- */

extern const RpLayerOps rp_custom_ops;        /* the first and blocks */
extern const RpLayerOps rp_custom_output_ops; /* the last, with the loss */
/* The loss of the caller's program; scale and loss are those of the call. */
void rp_pass_custom_loss(RpPass *pass, RpLossCall loss);

/* Logits of the call's rows of @x, a chunk at most; in the scratch that a forward takes. */
const void *rp_head_logits(RpPass *pass, const void *x);

/*
 * The parts of a transformer block:
 *
 *   attention.c   s = x + attention(norm(x)) Wo
 *   delta.c       s = x + DeltaNet(norm(x)) Wo
 *   block.c       y = s + MLP(norm(s)) of a dense model
 *   experts.c     the same of a mixture of experts
 *
 * T tokens, C hidden size, H heads, K kv heads, D head size, m intermediate size.
 */

typedef struct {
    size_t T, C, H, K, m;
    size_t queries, keys; /* H D, K D */
    size_t window;        /* keys that a query sees; 0 = all */
    gboolean rope;
    gboolean gated;       /* each head of q has a gate of its output behind it */
    gboolean delta;       /* DeltaNet instead of attention: */
    size_t columns;       /* of its q, k and v together */
    size_t values, gates; /* Hv Dv, Hv */
} RpBlockShape;

/* ---- delta.c ---- */

/* Values that DeltaNet keeps: of its linear layers, and of the delta rule. */
typedef struct {
    void *qkv, *z, *b, *a, *out;
    size_t
        gate_row; /* elements from a token of b and of a to the next: Hv; 2 Hv, where they are one matrix */
} RpBlockDelta;

RpBlockDelta rp_block_delta_take(RpPass *pass, RpSpace *space, const RpBlockShape *z);
/* As rp_block_attention_forward() and rp_block_attention_backward(); @normed: [T,max(C, Hv Dv)] */
void rp_block_delta_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpSpace *keep,
                            void *s, void *normed, float *rstd);
void rp_block_delta_backward(RpPass *pass, const RpBlockShape *z, const void *x,
                             const RpBlockDelta *a, const void *ds, void *normed, float *rstd,
                             void *dx);

/* ---- attention.c ---- */

/* Values that attention keeps: q, k, v as its linear layers made them. */
typedef struct {
    void *q, *k, *v, *out;
    size_t row_heads; /* q, k and v are columns of one matrix: heads of a token in it; 0: apart */
    float *lse;
} RpBlockAttention;

/* Quantizes the matrices of q, k and v as one, where they are fused. */
void rp_block_attention_fuse_fp8(const RpPass *pass, const RpBlockShape *z, RpLayerLayout *layout);
RpBlockAttention rp_block_attention_take(RpPass *pass, RpSpace *space, const RpBlockShape *z);
/* @s = x + attention(norm(x)) Wo; @normed is scratch */
void rp_block_attention_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpSpace *keep,
                                void *s, void *normed, float *rstd);
/* dx = ds + (gradient that reaches x through attention); @normed is scratch, [T,max(C, H D)]. */
void rp_block_attention_backward(RpPass *pass, const RpBlockShape *z, const void *x,
                                 const RpBlockAttention *a, const void *ds, void *normed,
                                 float *rstd, void *dx);

/* out = attention(q, k, v), with sinks. Where there is a cache, k and v go into it. */
void rp_block_attend(RpPass *pass, const RpBlockShape *z, RpAttentionArgs args);

/* ---- block.c ---- */

/* A kind of MLP. [T,C]: s, y, normed = norm(s), and their gradients. */
typedef struct {
    /**
     * forward:
     * @kept: (nullable): space in which values for the backward are kept
     * @y: (nullable): s + MLP(normed), if it is wanted
     */
    void (*forward)(RpPass *pass, const RpBlockShape *z, const void *s, const void *normed,
                    RpSpace *kept, void *y);
    /* ds = dy + (gradient that reaches s through the MLP). @kept: as the forward left it; is
     * overwritten. @normed is scratch */
    void (*backward)(RpPass *pass, const RpBlockShape *z, const void *s, RpSpace *kept,
                     const void *dy, void *normed, float *rstd, void *ds);
} RpMlpOps;

extern const RpMlpOps rp_dense_mlp_ops;

/* ---- experts.c ---- */

extern const RpMlpOps rp_experts_mlp_ops;

/* ---- shared-expert.c ---- */

/* Values that it keeps. %NULL: there is no such expert */
typedef struct {
    void *gate, *up; /* [T,m]; backward: their gradients */
    void *score;     /* [T] */
} RpSharedExpert;

gboolean rp_shared_expert_exists(const RpPass *pass);
RpSharedExpert rp_shared_expert_take(RpPass *pass, RpSpace *space, size_t T);
/* Makes the values. @y: (nullable): @s + the expert's output */
void rp_shared_expert_forward(RpPass *pass, size_t T, const RpSharedExpert *e, const void *s,
                              const void *normed, void *y);
/* @ds += the gradient of @normed. @normed: of the forward */
void rp_shared_expert_backward(RpPass *pass, size_t T, const RpSharedExpert *e, const void *dy,
                               const void *normed, void *ds);
