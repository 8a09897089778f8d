/**
 * Recompute time that a block spends on each group of tensors that its forward may save
 * (core/profile/saved.h).
 *
 *   attention   its FLOP, and the norms and rope of heads
 *   qkv, mlp    the FLOP of the projections, and the norm before them; experts save no gate and up
 *   residual    the FLOP of the output projection, and the residual that it adds
 *
 * An MLP that runs in tiles (RP_MLP_MOST_ROWS) saves neither gate nor up: its backward makes them
 * again.
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* Bytes for each token and element of h: the output projection's matmul reads the residual that it
 * adds. */
#define RP_COST_RESIDUAL_BYTES 2

typedef struct {
    double tokens;       /* in a micro-batch */
    double flop_ns;      /* time of a FLOP in the block's matmuls */
    double byte_ns;      /* time of a byte in element-wise kernels */
    double attention_ns; /* forward */
    double norm_bytes;   /* that a norm moves of h, a token */
    double heads_bytes;  /* the same of q's and k's norm and rope */
    gboolean tiles;      /* the MLP may go in tiles */
} RpCostSaved;

/* Sets @layer's saved tensors: bytes without gaps between them, and times; @layer has its other times. */
void rp_cost_saved(const RpModel *model, const RpCostSaved *cost, RpLayer *layer);
