#include "core/catalogue/cost/cost-parts.h"

#include <math.h>

#include "core/catalogue/cost/cost-model.h"
#include "core/catalogue/lora.h"

/* Measured on one H200, in FLOP/s (docs/lab/kernels.md): the instructions that every card
 * has, mma.sync, alone from registers; and this project's kernels that are made of them. Attention of
 * 2,048 tokens; its backward computes seven products, of which five are counted. Matmuls of experts:
 * the mean of forward and input gradient of three models. */
#define H200_PROCESSORS (132 * 1.98e9)
#define H200_PEAK 989.5e12
#define H200_INSTRUCTIONS 636e12
#define H200_ATTENTION 286e12
#define H200_ATTENTION_BACKWARD 221e12
#define H200_GROUPED 384e12
#define BACKWARD_PRODUCTS (7.0 / 5)
/* Matmuls of few rows reach this with 256 answers at once. */
#define H200_FEW_ROWS 195e12

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

/* Fp32 FLOP of a processor in a clock, and the shares that these reach on an H200: the delta rule's kernels, on tensor
 * cores, which wait more than they compute (0.78 for one sequence of 4,096 tokens, 1.46 for 8 of 2,048), and, without
 * tensor cores, attention's of other heads than of 64, 128 and 256 (docs/lab/kernels.md). */
#define VECTOR_FLOPS 256.0
#define RULE_EFFICIENCY 1.05
#define PLAIN_ATTENTION_EFFICIENCY 0.0137
#define PLAIN_BACKWARD_EFFICIENCY 0.0086

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

/* FLOP/s of fp32 multiply-adds. */
static double
vector_rate(const RpGpu *gpu)
{
    return gpu->processors * gpu->clock_ghz * 1e9 * VECTOR_FLOPS;
}

static void
set_plain_rates(const RpGpu *gpu, RpCostRates *rates)
{
    rates->rule = vector_rate(gpu) * RULE_EFFICIENCY;
    rates->plain_attention = vector_rate(gpu) * PLAIN_ATTENTION_EFFICIENCY;
    rates->plain_attention_backward = vector_rate(gpu) * PLAIN_BACKWARD_EFFICIENCY;
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
        .few_rows =
            fmin(matmul, scale(H200_FEW_ROWS, H200_INSTRUCTIONS, instructions, of_h200, estimate)),
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
        .few_rows = fmin(matmul, wide * H200_FEW_ROWS / H200_PEAK),
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

    RpCostRates rates = own && gpu->scaled
                            ? scaled_rates(gpu, instructions, estimate)
                            : fitted_rates(gpu, instructions, own, fast_fp8 && !gpu->foreign);

    set_plain_rates(gpu, &rates);
    return rates;
}

gint64
rp_cost_model_hop_ns(const RpGpu *gpu, guint64 bytes)
{
    double gb_per_s = HOP_EFFICIENCY * MIN(gpu->h2d_gb_per_s, gpu->d2h_gb_per_s);

    return llround((double)bytes / gb_per_s); /* bytes over GB/s is ns */
}

#define BYTES 2               /* an element's */
#define RP_COST_RULE_CHUNK 64 /* tokens that see each other at once */

RpCostExperts
rp_cost_experts(const RpModel *model, double tokens)
{
    const double rows = tokens * model->active_experts;
    const double h = model->hidden, m = model->intermediate;

    return (RpCostExperts){
        .rows = rows,
        .flops = 6 * rows * h * m,
        .down_flops = 2 * rows * h * m,
        .weight_bytes = BYTES * 3 * h * m * model->experts,
        .row_bytes = BYTES * rows * (2 * h + 3 * m),
    };
}

double
rp_cost_experts_share(const RpModel *model, double rows)
{
    return rows / (rows + model->experts * RP_COST_TILE_ROWS / 2.0);
}

/*
 * Forward. Router: its logits written and read, choices and weights written; sorting reads and
 * writes a few numbers of each row. Gathering reads and writes a row. Combining reads k rows where a
 * dense block's residual reads one.
 */
double
rp_cost_experts_forward_bytes(const RpModel *model)
{
    const double h = model->hidden, k = model->active_experts;
    const double router = BYTES * 2.0 * model->experts + 24 * k;

    return router + BYTES * 2 * h * k + BYTES * h * (k - 1);
}

/*
 * Backward. The gradient of the output is gathered for each row, and the input again for weight
 * gradients; rows' input gradients are added up
 * for each token; the router's logits get gradients. Gradients of biases read the rows once more.
 */
double
rp_cost_experts_backward_bytes(const RpModel *model, gboolean trained)
{
    const double h = model->hidden, m = model->intermediate, k = model->active_experts;
    const double router = BYTES * 2.0 * model->experts + 24 * k;
    const double biases = model->mlp_bias && trained ? BYTES * k * (2 * m + h) : 0;
    const double gathered = BYTES * 2 * h * k * (trained ? 2 : 1);

    return router + gathered + BYTES * h * (k + 1) + biases;
}

/*
 * DeltaNet. Forward: the convolution 4 bytes for each of its columns, the gated norm 6 for each of its values. Backward:
 * both anew, and 6 and 10 for their gradients. Gated attention: q is copied and its output gated, 10; backward both
 * anew, and 14 for their gradients. Plain attention's norm and rope of heads are counted elsewhere.
 */
RpCostMixer
rp_cost_mixer(const RpModel *model, guint block)
{
    const double ad = (double)model->heads * model->head_dim;
    const double kd = (double)model->kv_heads * model->head_dim;
    const double columns = (double)rp_model_delta_columns(model);
    const double values = (double)model->delta_value_heads * model->delta_value_dim;
    const double key = model->delta_key_dim, value = model->delta_value_dim;

    if (!rp_model_block_is_delta(model, block)) {
        const RpArchitectureRow *row = &rp_architectures[model->architecture];
        const double gates = row->gated_attention ? ad : 0;

        return (RpCostMixer){.qkv = ad + 2 * kd + gates,
                             .out = ad,
                             .fp8 = ad + 2 * kd + gates,
                             .looked = kd + (row->qk_norm ? 2 * gates : ad + kd),
                             .forward_bytes = 10 * gates,
                             .backward_bytes = 24 * gates};
    }
    return (RpCostMixer){
        .qkv = columns + values + 2.0 * model->delta_value_heads,
        .out = values,
        .fp8 = columns + values,
        .looked = columns + values,
        .forward_bytes = 4 * columns + 6 * values,
        .backward_bytes = 10 * columns + 16 * values,
        .rule_flops =
            2.0 * model->delta_value_heads * (3 * key * value + RP_COST_RULE_CHUNK * (key + value)),
    };
}

#define LOOK_BYTES 2  /* at an element of 16 bits */
#define WRITE_BYTES 3 /* read, and an fp8 value written */
#define TURN_BYTES 1  /* another one */

/* Elements of a token that linear layers read: norms' outputs, attention's or DeltaNet's, the product of the MLP.
 * Experts multiply 16-bit numbers. */
static double
inputs(const RpModel *model, const RpCostMixer *mixer)
{
    const double h = model->hidden;

    return h + mixer->out + (model->experts > 1 ? 0 : h + model->intermediate);
}

/* Elements whose gradients they read: q, k, v, the residual of each half, gate and up. */
static double
outputs(const RpModel *model, const RpCostMixer *mixer)
{
    const double h = model->hidden;

    return h + mixer->fp8 + (model->experts > 1 ? 0 : h + 2.0 * model->intermediate);
}

double
rp_cost_fp8_element_bytes(gboolean transposed)
{
    return WRITE_BYTES + (transposed ? TURN_BYTES : 0);
}

double
rp_cost_fp8_forward_bytes(const RpModel *model, const RpCostMixer *mixer)
{
    return WRITE_BYTES * inputs(model, mixer) + LOOK_BYTES * mixer->out;
}

double
rp_cost_fp8_backward_bytes(const RpModel *model, const RpCostMixer *mixer, gboolean trained)
{
    const double residual = model->experts > 1 ? 0 : model->hidden;
    const double gradients = rp_cost_fp8_element_bytes(trained) * outputs(model, mixer) +
                             LOOK_BYTES * (residual + mixer->looked);

    return gradients + (trained ? WRITE_BYTES * inputs(model, mixer) + LOOK_BYTES * mixer->out : 0);
}

#define BYTES_16BIT 2
#define BYTES_FP32 4

void
rp_cost_saved(const RpModel *model, const RpCostSaved *cost, RpLayer *layer)
{
    const double h = model->hidden;
    const RpCostMixer *mixer = &cost->mixer;
    const gboolean attends = mixer->rule_flops == 0;
    const double heads = attends ? (double)model->heads : 0;
    const double rotated =
        attends ? (heads + (double)model->kv_heads) * (double)model->head_dim : 0;
    const double m = model->experts > 1 ? 0 : model->intermediate;
    /* each for one token */
    const struct {
        double bytes;
        double weights; /* elements in the matmuls that make them */
        double traffic; /* element-wise bytes before these */
    } groups[RP_N_SAVED_GROUPS] = {
        [RP_SAVED_ATTENTION] = {BYTES_16BIT * mixer->out + BYTES_FP32 * heads, 0,
                                cost->heads_bytes * rotated},
        [RP_SAVED_QKV] = {BYTES_16BIT * mixer->qkv, h * mixer->qkv, cost->norm_bytes * h},
        [RP_SAVED_RESIDUAL] = {BYTES_16BIT * h, h * mixer->out, RP_COST_RESIDUAL_BYTES * h},
        [RP_SAVED_MLP] = {BYTES_16BIT * 2 * m, 2 * h * m, m > 0 ? cost->norm_bytes * h : 0},
    };

    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const double made_ns =
            2 * groups[g].weights * cost->flop_ns + groups[g].traffic * cost->byte_ns;

        layer->saved[g].bytes = (guint64)(groups[g].bytes * cost->tokens);
        layer->saved[g].recompute_ns =
            llround(cost->tokens * made_ns + (g == RP_SAVED_ATTENTION ? cost->attention_ns : 0));
    }
    if (cost->tiles && m > 0 && cost->tokens > RP_MLP_MOST_ROWS) {
        RpSavedTensors *mlp = &layer->saved[RP_SAVED_MLP];

        layer->backward_ns += mlp->recompute_ns;
        layer->recompute_last_ns = MAX(1, layer->recompute_last_ns - mlp->recompute_ns);
        *mlp = (RpSavedTensors){0};
    }
}

/* Bytes of a weight that becomes fp8 values, as it is and transposed: read for its amax, read
 * again, written twice. */
#define FP8_BYTES (2 * BYTES_16BIT + 2)

gboolean
rp_cost_base_is_packed(const char *base, RpLowbit *format)
{
    return base != NULL && rp_lowbit_from_name(base, format);
}

static gboolean
is_of_experts(const RpModel *model, RpWeightKind base)
{
    return model->experts > 1 && base >= RP_WEIGHT_GATE && base <= RP_WEIGHT_DOWN_BIAS;
}

/* A [..., r, in], B [..., out, r]; a token has rows of its experts' adapters alone. */
static void
add_adapter(const RpModel *model, const RpWeight *weight, RpCostWeights *costs)
{
    const RpWeightKind base = (RpWeightKind)((guint)weight->kind % RP_N_BASE_KINDS);
    const gboolean is_a = weight->kind == rp_weight_adapter(base, RP_ADAPTER_A);
    const double rank = (double)weight->shape[weight->rank - (is_a ? 2 : 1)];
    const double elements =
        (double)weight->elements *
        (is_of_experts(model, base) ? (double)model->active_experts / model->experts : 1);

    costs->mlp_apart = costs->mlp_apart || (base >= RP_WEIGHT_GATE && base <= RP_WEIGHT_DOWN);
    costs->adapter_elements += elements;
    if (is_a)
        costs->adapter_in += elements / rank;
    else
        costs->adapter_out += elements / rank;
}

/* Bytes of a weight that is packed; the first of a stack's pieces counts for all. */
static guint64
packed_bytes(const RpWeight *weight, RpLowbit format)
{
    RpWeight packed = *weight;

    rp_weight_pack(&packed, format);
    return weight->offset > 0 ? 0 : rp_lowbit_layout(format, rp_weight_lowbit_shape(&packed)).total;
}

RpCostWeights
rp_cost_weights(const RpModel *model, const RpWorkload *workload, RpProfile *profile, guint index)
{
    const RpLora lora = {
        .rank = workload->lora_rank, .alpha = RP_LORA_ALPHA, .targets = workload->lora_targets};
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    RpLayer *layer = &profile->layers[index];
    RpCostWeights costs = {.mlp_apart = model->experts > 1 || model->mlp_bias};
    RpLowbit format;
    const gboolean coded = (workload->fp8 && layer->kind == RP_LAYER_BLOCK) ||
                           (workload->fp8_head && layer->kind == RP_LAYER_HEAD);
    const gboolean packs = rp_cost_base_is_packed(workload->base, &format);
    guint64 trained = 0, uploaded = 0;
    gboolean any = FALSE;

    rp_model_add_weights(model, index, &lora, NULL, weights);
    g_autofree guint64 *bytes = g_new(guint64, weights->len);
    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);
        const gboolean packed = packs && !weight->trained && rp_weight_packs(model, weight, format);
        const guint64 up = packed ? packed_bytes(weight, format) : BYTES_16BIT * weight->elements;

        bytes[i] = BYTES_16BIT * weight->elements;
        trained += weight->trained ? weight->elements : 0;
        uploaded += up;
        any = any || packed || coded;
        if (packed)
            costs.expand_bytes += (double)(up + bytes[i]);
        if (coded)
            costs.expand_bytes += rp_weight_multiplies_fp8(weight)
                                      ? FP8_BYTES * (double)weight->elements
                                      : (double)(up + bytes[i]);
        if (rp_weight_is_adapter(weight->kind))
            add_adapter(model, weight, &costs);
    }
    rp_profile_set_tensors(profile, index, bytes, weights->len);
    layer->gradient_bytes = BYTES_16BIT * trained;
    layer->upload_bytes = any ? uploaded : 0;
    return costs;
}
