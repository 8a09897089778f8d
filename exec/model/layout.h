/**
 * Where each weight of a layer stands, in elements from the layer's first. The same numbers hold
 * for weights, gradients, their fp32 sums and the optimizer's state; only the size of an element
 * differs.
 *
 *   block   |input_norm|..|q_proj        |k_proj|v_proj| ... |down_proj    |
 *           0             multiples of RP_LAYOUT_ALIGNMENT; gaps are zeros and stay so
 *
 * A stage's layers stand one after the other without further gaps.
 */
#pragma once

#include "exec/model/weights.h"

#define RP_LAYOUT_ALIGNMENT 64 /* elements: 128 bytes of 16-bit weights */
#define RP_LAYOUT_NONE G_MAXUINT64

typedef struct {
    guint64 elements;                  /* of the layer, gaps included */
    guint64 tied_elements;             /* the last so many are the embedding's (tied head), or 0 */
    guint64 offset[RP_N_WEIGHT_KINDS]; /* RP_LAYOUT_NONE: the layer has no such weight */
} RpLayerLayout;

RpLayerLayout rp_layer_layout(const RpWeights *weights, guint layer);
