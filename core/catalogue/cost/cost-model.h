/**
 * The analytic cost model: a model, a GPU and a workload become a profile with predicted times and
 * exact sizes. docs/cost-model.md derives it and compares it with published layer times.
 *
 * Rates are those of core/catalogue/cost/cost-parts.h:
 *
 *   time = max(matmul FLOP / rate, matmul bytes / bandwidth)   per group of matmuls
 *        + attention FLOP / rate
 *        + element-wise bytes / bandwidth
 *        + experts x dispatch (of PyTorch's kernels; this project's have none: cost-parts.h)
 *
 * The paper's equations as printed are in core/catalogue/cost/cost-model.h. Corrected here: query width is
 * heads x head_size, not hidden; attention is causal, so half of it is computed; sliding-window
 * blocks attend to less.
 */
#pragma once

#include "core/catalogue/catalogue.h"

typedef enum {
    RP_COST_MODEL_ERROR_WORKLOAD /* a workload that cannot be run */
} RpCostModelError;

#define RP_COST_MODEL_ERROR (rp_cost_model_error_quark())
GQuark rp_cost_model_error_quark(void);

/* Tokens whose logits the head holds at once. */
#define RP_COST_MODEL_HEAD_CHUNK 1024

/* The owner of the kernels: it decides the bytes that element-wise kernels move, and whether a
 * recompute leaves out the part that only the block's output needs. */
typedef enum {
    RP_COST_KERNELS_OWN,    /* exec/cuda */
    RP_COST_KERNELS_PYTORCH /* the published implementation's */
} RpCostKernels;

/* The model's times; and their ends, as far from them as the model was from measured layers of a kind. Rates of a card
 * that nobody has measured have a worst and a best, too, whose mean is expected. */
typedef enum { RP_COST_EXPECTED, RP_COST_SLOW, RP_COST_FAST } RpCostEstimate;

/* The work whose times are predicted. */
typedef struct {
    guint sequences;           /* per micro-batch; >= 1 */
    guint tokens_per_sequence; /* >= 1 */
    guint sample_tokens;       /* packed: tokens of a typical sample, across which no attention is
                               computed; 0 = a sequence's */
    const char *dtype;         /* "fp16" or "bf16"; NULL = "bf16" */
    const char *accumulate;    /* "fp32", or "fp16" with dtype fp16 or @fp8; NULL = "fp32" */
    gboolean fp8;              /* linear layers of blocks multiply fp8 values: `matmul: fp8` */
    gboolean fp8_head;         /* with them the head: `matmul: fp8-head` */
    guint lora_rank;           /* 0 = full-parameter */
    char **lora_targets;       /* modules; NULL = all linear ones */
    const char *base;          /* LoRA: "nf4", "mxfp4", "fp8"; NULL or "bf16" = 16 bits */
    guint gpus;                /* in the machine; 0 = unknown */
    RpCostKernels kernels;
    RpCostEstimate estimate;
} RpWorkload;

/**
 * rp_cost_model_profile:
 *
 * Every layer gets times, all sizes and its tensors; the profile gets the GPU's links, memory and
 * an optimizer rate, so that it passes rp_profile_check_full(). `source` is "predicted".
 *
 * Sizes, for T tokens a micro-batch:
 * - embedding: input 4T (token numbers), output 2hT
 * - block: input and output 2hT; activation_bytes = rp_cost_model_activation_bytes() x T
 * - head: input 2hT, output 0 (a loss is two numbers); it works in chunks of
 *   RP_COST_MODEL_HEAD_CHUNK tokens and never holds all logits: chunk x V x (2 + 4) bytes of
 * scratch
 * - tied models: embedding and head both have the whole matrix as parameters and as gradient; the
 *   head's tied_bytes say that it is kept and updated once
 * - LoRA: parameters include the adapters; only adapters have gradients
 * - a packed base: upload_bytes are those of core/lowbit, and expand_ns is the time of reading them
 *   and writing 16-bit weights
 *
 * Returns: (transfer full): the profile
 * Errors: RP_COST_MODEL_ERROR_WORKLOAD
 */
RpProfile *rp_cost_model_profile(const RpModel *model, const RpGpu *gpu, const RpWorkload *workload,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_cost_model_activation_bytes:
 *
 * Bytes that one block keeps per token from its forward to its backward:
 * 2 (4h + 2ad + 2kd + 3m E_act): inputs of both norms, of the projections and of the MLP; q,
 * attention output, k, v; gate, up and their product.
 *
 * Source: paper eq. 1, corrected for heads x head_size != hidden (equal to it otherwise)
 */
guint64 rp_cost_model_activation_bytes(const RpModel *model);

/* Multiply-adds count as two. One micro-batch of b sequences of s tokens. */

/* Matmuls of block @block: 4sbh ad + 4sbh kd + 6sbhm E_act + 2sbhE (router of a MoE model).
 * Source: paper eq. 2 without its attention term, corrected; router added */
double rp_cost_model_matmul_flops(const RpModel *model, double b, double s);

/* Attention of block @block: 4 b ad x (attended pairs of tokens): s(s+1)/2 causal pairs, fewer if
 * the block slides. Source: third term of paper eq. 2, corrected */
double rp_cost_model_attention_flops(const RpModel *model, guint block, double b, double s);

/**
 * rp_cost_model_hop_ns:
 * @bytes: boundary activation of one micro-batch
 *
 * Fixed time from one device to the next, through host memory: @bytes at 0.84 of the slower of the
 * two directions.
 *
 * Source: the published hops, 1.6 ms for 33.6 MB, 2.25 for 47.2, 3.2 for 67.1, 4 for 83.9, all of
 * them 21 GB/s on a 25 GB/s link
 */
gint64 rp_cost_model_hop_ns(const RpGpu *gpu, guint64 bytes);

/*
 * Equations 1 to 5 of the paper's appendices, exactly as printed, for its figures.
 *
 * s sequence length, b sequences of a micro-batch, h hidden, m intermediate, a heads, k key-value
 * heads, E and E_act experts. They assume heads x head_size = hidden, full (not causal) attention
 * and 16-bit elements; core/catalogue/cost/cost-model.h has the corrected forms that our predictions use.
 */

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
