/**
 * Layout of each layer's weights. Weights are bytes, each in a storage of its own. Gradients,
 * their fp32 sums and the optimizer's state are elements of a second space that only trained weights
 * are in: a frozen one has none.
 *
 *   bytes      |input_norm|q_proj        |..|down_proj     |frozen ones ..|tied matrix, if any|
 *   elements   |input_norm|q_proj        |..|down_proj     |tied matrix, if it is trained     |
 *              0          multiples of RP_LAYOUT_ALIGNMENT elements; gaps are zeros and stay so
 *
 * Experts' matrices of a kind are a stack, one place without gaps inside:
 *
 *   GATE_UP [E,2m,C]   |gate of 0|up of 0|gate of 1|up of 1|..        DOWN [E,C,m]   |of 0|of 1|..
 *
 * Layers stand one after the other without further gaps, in both.
 *
 * Frozen weights may be packed. On the host and on their way up all of a layer stands in the same
 * order, but these in few bits; devices then make bytes of it (rp_network_expand()):
 *
 *   upload     |lora_A|..|input_norm|lora_B|..|q_proj |..|down_proj |k_norm ..|tied matrix, if any|
 *
 * So do they where matmuls read fp8 values (core/base/fp8.h): a matrix [out,in] of a linear layer is as large as in 16
 * bits, as it is stored in both orientations. Packed matrices are expanded in the scratch buffer of their layer, but for
 * those in fp8 with one scale, whose values are taken as they are:
 *
 *   bytes      ..|fp8 [out,in]|transposed [in,out]|amax, scale|..|scratch|tied matrix, if any|
 *
 * Matrices with the same input may be fused, and quantized with one scale, where all of them stand:
 *
 *   bytes      ..|fp8 of q, k and v [out,in]|transposed [in,out]|amax, scale|gap|..
 */
#pragma once

#include "exec/model/weights.h"

#define RP_LAYOUT_ALIGNMENT 64 /* elements: 128 bytes of 16-bit weights */
#define RP_LAYOUT_NONE G_MAXUINT64
#define RP_LAYOUT_SCALE_BYTES 128 /* after fp8 values: two floats, and a gap */

/* Place of one weight, counted from the layer's first. */
typedef struct {
    RpDtype storage;
    guint64 byte;                      /* RP_LAYOUT_NONE: the layer has no such weight */
    guint64 element;                   /* RP_LAYOUT_NONE: it has none, or a frozen one */
    guint64 shape[RP_WEIGHT_MAX_RANK]; /* [out,in] of a matrix, [E,out,in] of a stack */
    gboolean transposed;               /* a stack of [E,in,out] */
    float scale;                       /* an adapter's s */
    guint64 key;        /* an adapter's key: chooses the dropped elements of its input */
    guint64 upload;     /* byte of the upload */
    gboolean is_packed; /* there: in @format */
    RpLowbit format;
    RpLowbitShape packed_shape;
    gboolean has_fp8; /* devices read it as fp8 */
    gboolean as_is;   /* with the packed values and their one scale */
    /* rows of the quantized matrix: more than its own if the next ones are fused with it, 0 if it is
     * fused with one before (rp_layout_fuse_fp8()) */
    guint64 code_rows;
} RpWeightPlace;

typedef struct {
    guint64 first_byte;    /* first byte, counted over all layers */
    guint64 bytes;         /* gaps included */
    guint64 first_upload;  /* the same for the upload */
    guint64 upload_bytes;  /* the same as @bytes where nothing is packed */
    guint64 frozen_bytes;  /* bytes of frozen weights that are not tied, as they go up */
    guint64 tied_bytes;    /* at the end: the embedding's (tied head), or 0 */
    guint64 first_element; /* first element, counted over all layers */
    guint64 elements;      /* trained, gaps included */
    guint64 tied_elements; /* at the end: the embedding's, or 0 */
    gboolean has_fp8;      /* matrices of linear layers are read as fp8 */
    gboolean trains_fp8;   /* one of them is trained */
    guint64 scratch; /* where matrices are expanded before they are quantized; or RP_LAYOUT_NONE */
    guint64 scratch_bytes;
    RpWeightPlace place[RP_N_WEIGHT_KINDS];
} RpLayerLayout;

/**
 * rp_layer_layout:
 * @dtype: storage of trained weights
 * @before: layout of the layer before; of none for the first
 */
RpLayerLayout rp_layer_layout(const RpWeights *weights, guint layer, RpDtype dtype,
                              const RpLayerLayout *before);

/* The same, with the matrices of linear layers in fp8, if all of the layer's have multiples of 16 rows and columns. */
RpLayerLayout rp_layer_layout_of_fp8(const RpWeights *weights, guint layer, RpDtype dtype,
                                     const RpLayerLayout *before);

/* Fuses @kinds, which are in fp8 and stand one after the other, here and in the upload: they are quantized as one. */
void rp_layout_fuse_fp8(RpLayerLayout *layout, const RpWeightKind *kinds, guint n);

/* In which part of a layer's bytes @weight stands: A of adapters, others that are trained, frozen, tied. */
#define RP_LAYOUT_PARTS 4
guint rp_layout_part(const RpWeight *weight);
/* Bytes of the weight (of its stack) with the gap behind it: as it goes up, and as devices read it. */
guint64 rp_layout_upload_capacity(const RpWeightPlace *place);
guint64 rp_layout_byte_capacity(const RpWeightPlace *place);
/* Elements of @weight with the gap behind it; of a stack the last has it. */
guint64 rp_layout_bytes_left(const RpWeight *weight);
/* Place of @weight: that of its kind, or its part of the stack. */
RpWeightPlace rp_layout_place(const RpLayerLayout *layout, const RpWeight *weight);
