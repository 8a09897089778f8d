/**
 * Equations 1 to 5 of the paper's appendices, exactly as printed, for its figures.
 *
 * s sequence length, b sequences of a micro-batch, h hidden, m intermediate, a heads, k key-value
 * heads, E and E_act experts. They assume heads x head_size = hidden, full (not causal) attention
 * and 16-bit elements; core/catalogue/cost/cost-model.h has the corrected forms that our predictions use.
 */
#pragma once

#include "core/catalogue/catalogue.h"

/* (12 + 4k/a) sbh + 6 sbm E_act: bytes one block keeps for its backward. Source: eq. 1 */
double rp_paper_activation_bytes(const RpModel *model, double b, double s);

/* 4sbh² + 4sbh²k/a + 4s²bh + 6sbhm E_act: one block's forward. Source: eq. 2 */
double rp_paper_forward_flops(const RpModel *model, double b, double s);

/* 4h² + 4h²k/a + 6hmE + 2bsh: parameters and input activation of one block. Source: eq. 3, with
 * the experts of eq. 5 */
double rp_paper_forward_upload_bytes(const RpModel *model, double b, double s);

/* Operational intensity of a block's forward, FLOP per byte. Source: eq. 4 (dense), 5 (MoE) */
double rp_paper_forward_intensity(const RpModel *model, double b, double s);

/**
 * rp_paper_ridge_intensity:
 *
 * FLOP per byte at which @gpu computes as long as its interconnect transfers.
 * Source: paper Table 2 (FP16 TFLOPS over Speed), Figure 17
 */
double rp_paper_ridge_intensity(const RpGpu *gpu);

/* Seconds to recompute a block (eq. 2 at peak speed) and to reload its activations (eq. 1 at the
 * interconnect's speed). Source: §2.1, Figure 2 */
double rp_paper_recompute_s(const RpModel *model, const RpGpu *gpu, double b, double s);
double rp_paper_reload_s(const RpModel *model, const RpGpu *gpu, double b, double s);
