/**
 * Rates of a card with each owner's kernels: the cost model divides work by them.
 *
 * Cards on which this project was measured have shares of their peaks. For the others its measured
 * kernels are scaled: a kernel's time on the card where it was measured is that of its bound there,
 * tensor cores or memory, and a rest.
 *
 *   measured   |tensor cores at their rate|the rest: softmax, addresses, waits|
 *   scaled     |by the card's tensor rate |by its processors x clock          |
 *
 *   slow  one after the other             fast  beside each other: the longer of both
 *
 * docs/cost-model.md has the measured rates and where they come from.
 */
#pragma once

#include "core/catalogue/catalogue.h"
#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/model.h"
#include "core/lowbit/lowbit.h"

typedef struct {
    double matmul;             /* FLOP/s of 16-bit matmuls */
    double weights;            /* the same of weights' gradients: their sums are fp32 always */
    double fp8;                /* the same of fp8 matmuls; 0: the card has none */
    double grouped;            /* FLOP/s of matmuls of all experts in one, in whole tiles */
    double grouped_weights;    /* the same of their weights' gradients */
    double few_rows;           /* FLOP/s of matmuls whose rows do not depend on each other */
    double attention;          /* FLOP/s, forward */
    double attention_backward; /* FLOP/s, five products counted */
    double rule;               /* FLOP/s of the delta rule */
    double plain_attention;    /* attention of other heads than of 64, 128 and 256 */
    double plain_attention_backward; /* the same, five products counted */
    double bandwidth;                /* bytes/s of device memory */
    double
        cached_bytes; /* bytes that one kernel writes and the next reads from the cache; 0: none */
} RpCostRates;

/* Decoding on an H200 (docs/cost-model.md): a kernel in a recorded call takes so long beside its bytes and FLOP, with one
 * row and with more; sampling so long for each word of the vocabulary, from one sampled answer. */
#define RP_COST_ROW_KERNEL_NS 2270.0
#define RP_COST_ROWS_KERNEL_NS 3800.0
#define RP_COST_SAMPLED_NS 9.9

/**
 * rp_cost_rates:
 * @kernels: PyTorch's are not scaled, and weights' gradients have fp16 sums, too
 * @half_sums: fp16 accumulation of 16-bit matmuls of activations
 * @fast_fp8: fp8 sums as tensor cores keep them, cuBLASLt's fast accumulation. cuBLASLt has no
 *   fp16 sums of fp8 values, so the card's rate with those (fp8_fp16_accumulate_tflops) is not
 *   counted.
 */
RpCostRates rp_cost_rates(const RpGpu *gpu, RpCostKernels kernels, gboolean half_sums,
                          gboolean fast_fp8, RpCostEstimate estimate);

/*
 * A mixture of experts as this project's kernels compute it: rows sorted by expert, one launch for
 * all experts, group sizes read on the device. No expert is dispatched by itself, so that a layer's
 * time depends on how many rows there are, and hardly on how they are spread.
 *
 *   T tokens -> router -> R = T k rows, sorted -> gate and up -> SwiGLU -> down -> combined
 *
 * Letters: h hidden, m intermediate of one expert, E experts, k active ones.
 */

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

/*
 * What a block has before its MLP: attention, perhaps with gates, or gated DeltaNet. Elements are of a token.
 *
 *   attention   qkv: q, gates, k, v            out: its output
 *   DeltaNet    qkv: q, k, v, z, b, a          out: the delta rule's
 */
typedef struct {
    double qkv,
        out;    /* outputs of the first linear layers; the input of the last is as large as out */
    double fp8; /* outputs of the first ones that fp8 matmuls make: all but b and a */
    double looked; /* elements of their gradients whose amax no kernel records */
    double forward_bytes,
        backward_bytes; /* that element-wise kernels move beyond those of plain attention */
    double rule_flops;  /* the delta rule's, forward; 0 of attention */
} RpCostMixer;

RpCostMixer rp_cost_mixer(const RpModel *model, guint block);

/*
 * Memory traffic that linear layers in fp8 (`matmul: fp8`, exec/network/operand.c) add to their
 * matmuls: each tensor that they read is read and written as fp8 values, and once more transposed
 * for weight gradients. Most kernels record the amax of the tensor that they make; attention's
 * output and arriving gradients are read once more to find it.
 */

/* Bytes of a 16-bit element whose amax is known. @transposed: the transposed copy is written, too */
double rp_cost_fp8_element_bytes(gboolean transposed);
/* Bytes a token of a block. */
double rp_cost_fp8_forward_bytes(const RpModel *model, const RpCostMixer *mixer);
/* @trained: weights have gradients; else they are frozen. */
double rp_cost_fp8_backward_bytes(const RpModel *model, const RpCostMixer *mixer, gboolean trained);

/* The delta rule's backward makes its states anew, goes through them in reverse, and makes the gradients: 3.4 times the
 * forward for one sequence of 4,096 tokens, 5.1 for 8 of 2,048. */
#define RP_COST_RULE_BACKWARD 4.2

/*
 * Recompute time that a block spends on each group of tensors that its forward may save
 * (core/profile/profile.h).
 *
 *   attention   its FLOP, and the norms and rope of heads
 *   qkv, mlp    the FLOP of the projections, and the norm before them; experts save no gate and up
 *   residual    the FLOP of the output projection, and the residual that it adds
 *
 * An MLP that runs in tiles (RP_MLP_MOST_ROWS) saves neither gate nor up: its backward makes them
 * again.
 */

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
    RpCostMixer mixer;
} RpCostSaved;

/* Sets @layer's saved tensors: bytes without gaps between them, and times; @layer has its other times. */
void rp_cost_saved(const RpModel *model, const RpCostSaved *cost, RpLayer *layer);

/*
 * Sums over a layer's weights for the cost model: tensors, trained parameters, packed uploads, and
 * the work of adapters.
 */

typedef struct {
    double adapter_elements; /* that a token passes */
    double adapter_in;       /* elements of their inputs, and of their outputs, for a token */
    double adapter_out;
    double expand_bytes; /* packed ones read, 16-bit ones written */
    gboolean mlp_apart;  /* gate and up are not one matmul: biases, adapters, experts */
} RpCostWeights;

/* Sets tensors, parameter, gradient and upload bytes of layer @index. @workload: checked */
RpCostWeights rp_cost_weights(const RpModel *model, const RpWorkload *workload, RpProfile *profile,
                              guint index);

/* Whether LoRA's base is packed; @format: (out): how. @base: as RpWorkload's */
gboolean rp_cost_base_is_packed(const char *base, RpLowbit *format);
