/**
 * Layers and losses of the caller's program. An architecture of its own stands in the same place as
 * those of the catalogue: a first layer, blocks, a last layer, and a loss.
 *
 *   words [B,S]  -> input -> [B,hidden] -> block -> .. -> block -> output -> [B,outputs] -> loss
 *
 * A sample is a record of S 32-bit words, whole numbers or floats: its inputs first, its labels at the end. The
 * hidden state of a sample has one size between all layers. A config.json names the architecture:
 *
 *   {"architectures": ["residual-mlp"], "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 2,
 *    "max_position_embeddings": 10}
 *
 * A model of language may have a loss of the caller's, too: key `loss` of a run.
 */
#pragma once

#include "core/catalogue/model.h"

/* Tensors of a layer at most. */
#define RP_CUSTOM_MOST_TENSORS RP_N_BASE_KINDS

/* Sizes that a layer is made for; dtype and samples are those of a run, and 0 where tensors are asked for. */
typedef struct {
    RpDtype dtype; /* storage of weights, hidden states and their gradients */
    guint samples; /* B of a micro-batch */
    guint words;   /* S of a record: max_position_embeddings, and sequence_length of the run */
    guint hidden;  /* elements of a sample's hidden state: hidden_size */
    guint inner;   /* intermediate_size, for the layers' own use; 0 = not given */
    guint outputs; /* elements of a sample's output: vocab_size */
    guint blocks;  /* num_hidden_layers */
    guint block;   /* blocks before this one */
} RpCustomShape;

/* A tensor of a layer. */
typedef struct {
    const char *name; /* "up.weight"; behind the layer's in files: "blocks.3.up.weight" */
    guint rank;       /* 1 to 3 */
    guint64 dims[RP_WEIGHT_MAX_RANK];
    double deviation; /* random weights begin as normal(0, deviation); 0: at @start */
    double start;     /* 0 or 1 */
} RpCustomTensor;

/**
 * RpCustomCall:
 * @weights: [tensors] of @shape.dtype, in the order of RpCustomLayer.tensors
 * @input: of the first layer int32 words [B,S], of others [B,hidden]
 * @output: forward: is written: [B,hidden], of the last layer [B,outputs]
 * @d_output, @d_input: backward: gradients; @d_input is written; %NULL: it is not wanted
 * @sums: [tensors]: backward: fp32 sums of the weights' gradients, +=; %NULL of a frozen one
 * @kept: what forward leaves for the backward of the same samples
 * @workspace: scratch
 *
 * One layer x one micro-batch. All is memory of the device, at multiples of 64 bytes; the sizes of @kept and
 * @workspace are the layer's own. The same call must give the same bits.
 */
typedef struct _RpCustomCall {
    RpCustomShape shape;
    const void *const *weights;
    const void *input;
    void *output;
    const void *d_output;
    void *d_input;
    float *const *sums;
    void *kept;
    void *workspace;
} RpCustomCall;

/* CUDA: launches into @stream, a cudaStream_t, waits for nothing, and takes no memory. Returns: 0, or a
 * cudaError_t. */
typedef int (*RpCustomLauncher)(const RpCustomCall *call, void *stream);

/**
 * RpCustomLayer:
 * @tensors: fills RP_CUSTOM_MOST_TENSORS places at most, depending on sizes alone. Returns: how many
 * @kept_bytes, @workspace_bytes: (nullable): 0
 * @forward, @backward: over arrays of the host
 * @forward_cuda, @backward_cuda: (nullable): the layer runs on the host alone
 */
typedef struct {
    guint (*tensors)(const RpCustomShape *shape, RpCustomTensor *tensors);
    gsize (*kept_bytes)(const RpCustomShape *shape);
    gsize (*workspace_bytes)(const RpCustomShape *shape);
    void (*forward)(const RpCustomCall *call);
    void (*backward)(const RpCustomCall *call);
    RpCustomLauncher forward_cuda, backward_cuda;
} RpCustomLayer;

/**
 * RpLossCall:
 * @values: [rows,width] of @dtype: logits of tokens, or outputs of samples. With @gradient they become
 *   @scale x the gradient of the loss by them
 * @labels: [rows]: the token after each; or behind each other @label_stride words a row, of which the
 *   record's labels are first. RP_LABEL_MASKED: there is none: no loss, a gradient of 0
 * @loss: [1], +=: the sum over labels, not times @scale
 *
 * A chunk of rows. All is memory of the device. The mean over all labels of a step is its loss.
 */
typedef struct _RpLossCall {
    RpDtype dtype;
    gsize rows, width;
    void *values;
    const gint32 *labels;
    gsize label_stride;
    float scale;
    gboolean gradient;
    double *loss;
} RpLossCall;

/* @cuda: (nullable): the loss runs on the host alone */
typedef struct {
    const char *name; /* small letters, digits and hyphens */
    void (*host)(const RpLossCall *call);
    int (*cuda)(const RpLossCall *call, void *stream); /* as RpCustomLauncher */
} RpLoss;

/* An architecture of the caller's program: RpCustomArchitecture. Layers are borrowed. */
struct _RpCustomArchitecture {
    const char *name; /* small letters, digits and hyphens */
    const RpCustomLayer *input, *block, *output;
    const RpLoss *loss; /* where a run has no key `loss` */
    guint labels;       /* words at the end of a record that are its labels; 1 or more */
    guint dtypes;       /* which dtypes its functions can: bits, as 1 << RP_DTYPE_FP32 */
};

/**
 * rp_architecture_add:
 * @architecture: borrowed: it must outlive all that uses it
 *
 * From now on config.json may name it. Before anything else runs, from one thread.
 *
 * Errors: RP_CATALOGUE_ERROR_MODEL: a name or a function is missing, or the name is taken
 */
gboolean rp_architecture_add(const RpCustomArchitecture *architecture,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same for a loss, which the key `loss` of a run may name. */
gboolean rp_loss_add(const RpLoss *loss, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The table of added ones holds them in their order. Returns: (nullable) */
const RpCustomArchitecture *rp_architecture_nth(guint index);
/* Errors: RP_CATALOGUE_ERROR_MODEL, listing those that there are */
const RpLoss *rp_loss_find(const char *name, GError **error);

/* Words at the end of a record that are labels; 0: of a model that has no such architecture. */
static inline guint
rp_model_labels(const RpModel *model)
{
    return model->custom != NULL ? model->custom->labels : 0;
}

/* The layer of a model with such an architecture. */
const RpCustomLayer *rp_custom_layer(const RpModel *model, guint layer);
/* Sizes of the layer, but for those of a run. */
RpCustomShape rp_custom_shape(const RpModel *model, guint layer);
/* As rp_model_layer_class(), of a block: blocks with the same tensors are of one class. */
guint rp_custom_class(const RpModel *model, guint layer);
/* As rp_model_add_weights(), without adapters. Tensor i of a layer has the kind i. */
void rp_custom_add_weights(const RpModel *model, guint layer, GStringChunk *names, GArray *weights);
