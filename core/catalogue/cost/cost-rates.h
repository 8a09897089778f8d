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

#include "core/catalogue/cost/cost-model.h"

typedef struct {
    double matmul;             /* FLOP/s of 16-bit matmuls */
    double weights;            /* the same of weights' gradients: their sums are fp32 always */
    double fp8;                /* the same of fp8 matmuls; 0: the card has none */
    double grouped;            /* FLOP/s of matmuls of all experts in one, in whole tiles */
    double grouped_weights;    /* the same of their weights' gradients */
    double attention;          /* FLOP/s, forward */
    double attention_backward; /* FLOP/s, five products counted */
    double bandwidth;          /* bytes/s of device memory */
    double
        cached_bytes; /* bytes that one kernel writes and the next reads from the cache; 0: none */
} RpCostRates;

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
