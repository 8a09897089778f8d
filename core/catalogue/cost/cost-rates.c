#include "core/catalogue/cost/cost-rates.h"

#include <math.h>

#include "core/catalogue/cost/cost-model.h"

/* Measured on one H200, in FLOP/s (docs/kernels.md, docs/lab/gpus.md): the instructions that every card
 * has, mma.sync, alone from registers; and this project's kernels that are made of them. Attention of
 * 2,048 tokens; its backward computes seven products, of which five are counted. Matmuls of experts:
 * the mean of forward and input gradient of three models. */
#define H200_PROCESSORS (132 * 1.98e9)
#define H200_INSTRUCTIONS 636e12
#define H200_ATTENTION 286e12
#define H200_ATTENTION_BACKWARD 221e12
#define H200_GROUPED 384e12
#define BACKWARD_PRODUCTS (7.0 / 5)

/* Share of the link's speed that a hop reaches; see rp_cost_model_hop_ns() */
#define HOP_EFFICIENCY 0.84

/* Published for an RTX 4090 (docs/cost-model.md): cuBLAS at 0.86 of 330 TFLOP/s. */
#define RTX4090_PROCESSORS (128 * 2.52e9)
#define RTX4090_INSTRUCTIONS 330e12
#define RTX4090_MATMUL (0.86 * RTX4090_INSTRUCTIONS)

/* Shares of the data sheet's memory rate: PyTorch's kernels on an RTX 4090, and copies at best. The latter
 * is replaced where a card's copies have been published, and the former with it. */
#define SLOW_MEMORY 0.85
#define FAST_MEMORY 0.93

/* Share of fp8's peak, measured on an H200 at warm clocks: 1,188 to 1,233 of 1,979 TFLOP/s. */
#define FP8_EFFICIENCY 0.61
/* Fast accumulation there is 1.037 to 1.111 times as fast, in the mean of four shapes (docs/fp8.md). */
#define FAST_FP8 1.078

/* FLOP/s of a kernel that reaches @measured where instructions alone reach @limit, on a card on which
 * they reach @instructions; @rest: how much longer everything else takes there. */
static double
scale(double measured, double limit, double instructions, double rest, RpCostEstimate estimate)
{
    const double bound_s = 1 / instructions;
    const double rest_s = (1 / measured - 1 / limit) * rest;

    return 1 / (estimate == RP_COST_SLOW ? bound_s + rest_s : fmax(bound_s, rest_s));
}

/* Bytes/s of device memory. */
static double
memory_rate(const RpGpu *gpu, RpCostEstimate estimate)
{
    const double fast =
        gpu->copy_gb_per_s > 0 ? gpu->copy_gb_per_s : FAST_MEMORY * gpu->memory_gb_per_s;

    return 1e9 * fast * (estimate == RP_COST_SLOW ? SLOW_MEMORY / FAST_MEMORY : 1);
}

static RpCostRates
scaled_rates(const RpGpu *gpu, double instructions, RpCostEstimate estimate)
{
    const double processors = gpu->processors * gpu->clock_ghz * 1e9;
    const double of_h200 = H200_PROCESSORS / processors;
    const double of_rtx4090 = RTX4090_PROCESSORS / processors;
    const double wide = gpu->fp32_accumulate_tflops * 1e12, fp8 = gpu->fp8_tflops * 1e12;
    const gboolean slow = estimate == RP_COST_SLOW;
    const double matmul =
        scale(RTX4090_MATMUL, RTX4090_INSTRUCTIONS, instructions, of_rtx4090, estimate);
    const double weights = scale(RTX4090_MATMUL, RTX4090_INSTRUCTIONS, wide, of_rtx4090, estimate);

    return (RpCostRates){
        .matmul = matmul,
        .weights = weights,
        .fp8 = fp8 > 0 ? scale(RTX4090_MATMUL, RTX4090_INSTRUCTIONS, fp8, of_rtx4090, estimate) : 0,
        .grouped =
            fmin(matmul, scale(H200_GROUPED, H200_INSTRUCTIONS, instructions, of_h200, estimate)),
        .grouped_weights =
            fmin(weights, scale(H200_GROUPED, H200_INSTRUCTIONS, wide, of_h200, estimate)),
        .attention = scale(H200_ATTENTION, H200_INSTRUCTIONS, wide, of_h200, estimate),
        .attention_backward = scale(H200_ATTENTION_BACKWARD, H200_INSTRUCTIONS / BACKWARD_PRODUCTS,
                                    wide / BACKWARD_PRODUCTS, of_h200, estimate),
        .bandwidth = memory_rate(gpu, estimate),
        .cached_bytes = slow ? 0 : gpu->l2_mib * 1048576 / 2,
    };
}

/* Shares of peaks that were measured or fitted. */
static RpCostRates
fitted_rates(const RpGpu *gpu, double instructions, gboolean wide_weights, gboolean fast_fp8)
{
    const double matmul = instructions * gpu->matmul_efficiency;
    const double wide = gpu->fp32_accumulate_tflops * 1e12;
    const double weights = wide_weights ? wide * gpu->matmul_efficiency : matmul;

    return (RpCostRates){
        .matmul = matmul,
        .weights = weights,
        .fp8 = gpu->fp8_tflops * 1e12 * FP8_EFFICIENCY * (fast_fp8 ? FAST_FP8 : 1),
        .grouped = matmul * gpu->grouped_efficiency,
        .grouped_weights = weights * gpu->grouped_efficiency,
        .attention = wide * gpu->attention_efficiency,
        .attention_backward = wide * gpu->attention_backward_efficiency,
        .bandwidth = gpu->memory_gb_per_s * 1e9 * gpu->memory_efficiency,
    };
}

RpCostRates
rp_cost_rates(const RpGpu *gpu, RpCostKernels kernels, gboolean half_sums, gboolean fast_fp8,
              RpCostEstimate estimate)
{
    const gboolean own = kernels == RP_COST_KERNELS_OWN;
    const double instructions =
        1e12 * (half_sums ? gpu->fp16_accumulate_tflops : gpu->fp32_accumulate_tflops);

    if (own && gpu->scaled)
        return scaled_rates(gpu, instructions, estimate);
    return fitted_rates(gpu, instructions, own, fast_fp8 && !gpu->foreign);
}

gint64
rp_cost_model_hop_ns(const RpGpu *gpu, guint64 bytes)
{
    double gb_per_s = HOP_EFFICIENCY * MIN(gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);

    return llround((double)bytes / gb_per_s); /* bytes over GB/s is ns */
}
