/**
 * A mixture of experts as this project's kernels compute it: rows sorted by expert, one launch for
 * all experts, group sizes read on the device. No expert is dispatched by itself, so that a layer's
 * time depends on how many rows there are, and hardly on how they are spread.
 *
 *   T tokens -> router -> R = T k rows, sorted -> gate and up -> SwiGLU -> down -> combined
 *
 * Letters: h hidden, m intermediate of one expert, E experts, k active ones.
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* Rows of a grouped matmul's tile: the last tile of an expert is on average half empty. */
#define RP_COST_TILE_ROWS 128

/* The two matmuls of all experts. */
typedef struct {
    double rows;         /* R */
    double flops;        /* one pass: 6 R h m */
    double down_flops;   /* the down projection's part of them */
    double weight_bytes; /* 16-bit weights of all experts */
    double row_bytes;    /* activations that one pass reads and writes */
} RpCostExperts;

/* The cost of one block. @model: experts > 1 */
RpCostExperts rp_cost_experts(const RpModel *model, double tokens);

/**
 * rp_cost_experts_share:
 *
 * Returns: share of a dense matmul's rate that a grouped one reaches: its rows over those of its
 *   tiles, R / (R + E x half a tile)
 */
double rp_cost_experts_share(const RpModel *model, double rows);

/* Bytes a token that kernels of experts move beyond those of a dense block: the router, gathering
 * and combining. SwiGLU's are in both. */
double rp_cost_experts_forward_bytes(const RpModel *model);
/* @trained: weights and biases have gradients */
double rp_cost_experts_backward_bytes(const RpModel *model, gboolean trained);
