/**
 * What a block's recompute spends on each group of tensors that its forward may save
 * (core/profile/saved.h).
 *
 *   attention   its FLOP, and the norms and rope of heads
 *   qkv, mlp    the FLOP of the projections, and the norm before them; experts save no gate and up
 *   residual    the FLOP of the output projection, and the residual that it adds
 *
 * Where an MLP goes in tiles (RP_MLP_MOST_ROWS), backwards make gate and up again, and nothing saves them.
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* Of h, a token: a residual, read by the matmul that adds it. */
#define RP_COST_RESIDUAL_BYTES 2

typedef struct {
    double tokens;       /* of a micro-batch */
    double flop_ns;      /* of the block's matmuls */
    double byte_ns;      /* of element-wise kernels */
    double attention_ns; /* forward */
    double norm_bytes;   /* that a norm moves of h, a token */
    double heads_bytes;  /* the same of q's and k's norm and rope */
    gboolean tiles;      /* the MLP may go in tiles */
} RpCostSaved;

/* Sets @layer's saved tensors: bytes without gaps between them, and times; @layer has its other times. */
void rp_cost_saved(const RpModel *model, const RpCostSaved *cost, RpLayer *layer);
