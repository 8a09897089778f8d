#include "core/catalogue/cost/cost-model.h"

#include <math.h>
#include <string.h>

#include "core/base/fp8.h"
#include "core/base/quote.h"
#include "core/catalogue/cost/cost-parts.h"
#include "core/profile/cards.h"

G_DEFINE_QUARK(rp_cost_model_error, rp_cost_model_error)

/* Bytes that element-wise kernels read and write of one element of each kind, in one pass. */
typedef struct {
    double hidden; /* h: norms, residuals, sums of input gradients */
    double heads;  /* q and k: rope */
    double normed; /* the same where they are normed */
    double mlp;    /* m: SwiGLU */
    double norm;   /* h: the head's norm */
    double logits; /* V: the loss */
} Traffic;

/*
 * Counted over the kernels, in 16-bit reads and writes of 2 bytes.
 *
 * This project's (exec/network/block.c, exec/cuda). Forward: h: norms 8, residuals, which matmuls add, 4.
 * Heads: norm and rope in one pass, 4. m: SwiGLU 6. Backward: h: norms made anew 8, their backwards with
 * the residual's gradient 16, two sums of input gradients 4. Heads: made anew 4, backward in one pass 6,
 * or 4 where rope alone rotates in place. m: 12, with the product made anew. Logits: read, written
 * over.
 *
 * The published implementation's: PyTorch, one kernel an operation, fp32 inside norms. Forward: h:
 * two norms of 36, two residuals of 6. Heads: rope 18, norms 36. m: 10. Logits 4. Backward: twice.
 */
static const struct {
    Traffic forward, backward;
} kernels[] = {
    [RP_COST_KERNELS_OWN] = {{12, 4, 4, 6, 4, 2}, {28, 8, 10, 12, 12, 2}},
    [RP_COST_KERNELS_PYTORCH] = {{84, 18, 54, 10, 36, 4}, {168, 36, 108, 20, 72, 4}},
};

/* PyTorch's kernels run where this project has none; their backward moves twice as much. */
#define CLAMPED_SWIGLU_BYTES 32 /* two clamps, sigmoid, two additions, three products */
#define BIAS_BYTES 4            /* in place; attention's are part of the matmul */
#define ROUTE_BYTES 14          /* gather, weigh, scatter-add; per element and active expert */
#define BACKWARD_TRAFFIC 2.0
/* Traffic over SwiGLU's where rows of its product are gated: read and written once more, and so is its gradient. */
#define GATED_SWIGLU (5.0 / 3)
#define APART_BYTES 2 /* gate and up are two matmuls, their input's gradient is a third sum */
/* FLOP of attention's backward over its forward: five matmuls against two. */
#define BACKWARD_ATTENTION 2.5
/* Weight gradient: written, then read, added to the accumulator, written: 16 bits each. */
#define GRADIENT_BYTES 8
#define BYTES_16BIT 2
#define RULE_BYTES ((guint64)2 << 30) /* of the delta rule's workspace (exec/cuda/delta/delta.cu) */
#define BYTES_FP32 4

/* The parts of one layer's times. */
typedef struct {
    double rate;              /* FLOP/s of matmuls */
    double weights_rate;      /* the same of weights' gradients */
    double matmul_flops;      /* one pass */
    double matmul_bytes;      /* weights and activations that one pass touches */
    double grouped_s;         /* one pass of the matmuls of all experts, in one launch each */
    double grouped_weights_s; /* the same of their weights' gradients */
    double adapter_flops;     /* LoRA's own matmuls, one pass */
    double adapter_bytes;     /* traffic of those, forward: inputs read, outputs read and written */
    double adapter_backward_bytes; /* for input gradients, and as much for their own */
    double attention_flops;        /* forward */
    double rule_s;                 /* the delta rule's forward */
    double traffic_bytes;          /* element-wise, forward */
    double backward_bytes;         /* element-wise, backward */
    double output_flops;           /* part of one pass that only the output needs */
    double output_bytes;
    double gradient_bytes; /* weight gradients, 16 bits */
    guint experts;         /* dispatched one by one; 0 in dense layers */
    gboolean frozen;       /* the base weights have no gradient */
} Work;

/* One prediction in progress. */
typedef struct {
    const RpModel *model;
    const RpGpu *gpu;
    const RpWorkload *workload;
    RpCostRates rates;
    double b;
    double s;
    double attended; /* tokens of a sample: s, or less if packed */
    guint64 tokens;
} Context;

guint64
rp_cost_model_activation_bytes(const RpModel *model)
{
    guint64 h = model->hidden;
    guint64 ad = (guint64)model->heads * model->head_dim;
    guint64 kd = (guint64)model->kv_heads * model->head_dim;
    guint64 m = (guint64)model->intermediate * model->active_experts + model->shared_intermediate;

    return BYTES_16BIT * (4 * h + 2 * ad + 2 * kd + 3 * m);
}

double
rp_cost_model_matmul_flops(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double d = model->head_dim;
    double router = model->experts > 1 ? 2.0 * model->experts : 0;

    return s * b * h *
           (4 * model->heads * d + 4 * model->kv_heads * d +
            6.0 * model->intermediate * model->active_experts + 6.0 * model->shared_intermediate +
            (model->shared_intermediate > 0 ? 2 : 0) + router);
}

double
rp_cost_model_attention_flops(const RpModel *model, guint block, double b, double s)
{
    double pairs = s * (s + 1) / 2;
    double window = model->sliding_window;

    if (rp_model_block_slides(model, block) && s > window)
        pairs -= (s - window) * (s - window + 1) / 2;
    return 4 * b * model->heads * model->head_dim * pairs;
}

/* Bytes a token of a dense MLP, or in PyTorch's kernels of one expert. @times: how often PyTorch's
 * extra kernels run */
static double
mlp_traffic(const RpModel *model, const Traffic *traffic, double times)
{
    const RpArchitectureRow *row = &rp_architectures[model->architecture];
    double h = model->hidden, m = model->intermediate;
    double mlp = (row->clamped_swiglu ? times * CLAMPED_SWIGLU_BYTES : traffic->mlp) * m;

    if (model->mlp_bias)
        mlp += times * BIAS_BYTES * (2 * m + h);
    if (model->experts > 1)
        mlp += times * ROUTE_BYTES * h;
    return mlp;
}

/* Bytes that a block's element-wise kernels move per token. @missed: share of hidden states that is
 * not in the cache; @mlp: bytes of one expert */
static double
block_traffic(const RpModel *model, const Traffic *traffic, double missed, double mlp,
              gboolean delta)
{
    double h = model->hidden;
    double qk = delta ? 0 : (double)(model->heads + model->kv_heads) * model->head_dim;
    gboolean normed = rp_architectures[model->architecture].qk_norm;

    return missed * traffic->hidden * h + (normed ? traffic->normed : traffic->heads) * qk +
           model->active_experts * mlp + GATED_SWIGLU * traffic->mlp * model->shared_intermediate;
}

/* Replaces the cost of PyTorch's expert kernels by that of this project's. */
static void
set_experts(const Context *context, Work *work)
{
    const RpModel *model = context->model;
    const double tokens = (double)context->tokens;
    const RpCostExperts experts = rp_cost_experts(model, tokens);
    const double share = rp_cost_experts_share(model, experts.rows);
    const double rate = context->rates.grouped * share;
    const double bytes_s = (experts.weight_bytes + experts.row_bytes) / context->rates.bandwidth;
    /* the shared expert multiplies in 16 bits */
    const double shared = 2.0 * tokens * (double)model->hidden * model->shared_intermediate;
    const double slower = work->rate / context->rates.matmul;

    work->experts = 0;
    work->matmul_flops += 3 * shared * (slower - 1) - experts.flops;
    work->matmul_bytes -=
        experts.weight_bytes + BYTES_16BIT * 3 * experts.rows * (double)model->intermediate;
    work->grouped_s = fmax(experts.flops / rate, bytes_s);
    work->grouped_weights_s =
        fmax(experts.flops / (context->rates.grouped_weights * share), bytes_s);
    work->output_flops = experts.down_flops * work->rate / rate + shared * slower;
    work->output_bytes += tokens * (double)model->hidden * BYTES_16BIT *
                          (model->active_experts - 1.0); /* rows that are combined */
    work->traffic_bytes += tokens * rp_cost_experts_forward_bytes(model);
    work->backward_bytes += tokens * rp_cost_experts_backward_bytes(model, !work->frozen);
}

/* Whether kernels of attention use tensor cores: PyTorch's do for every head. */
static gboolean
has_fast_attention(const Context *context)
{
    const guint head = context->model->head_dim;

    return head == 64 || head == 128 || head == 256 ||
           context->workload->kernels != RP_COST_KERNELS_OWN;
}

/* Share of the rate of heads of 128, measured on an H200 with 2,048 tokens (docs/lab/kernels.md). */
static double
attention_share(const Context *context, double of_256)
{
    return context->model->head_dim == 256 && context->workload->kernels == RP_COST_KERNELS_OWN
               ? of_256
               : 1;
}

static double
attention_rate(const Context *context)
{
    return has_fast_attention(context) ? attention_share(context, 0.91) * context->rates.attention
                                       : context->rates.plain_attention;
}

static double
attention_backward_rate(const Context *context)
{
    return has_fast_attention(context)
               ? attention_share(context, 0.79) * context->rates.attention_backward
               : context->rates.plain_attention_backward;
}

/* Times of @layer from its @work. */
static void
set_times(const Context *context, const Work *work, RpLayer *layer)
{
    double ns = 1e9;
    double bytes_s = work->matmul_bytes / context->rates.bandwidth;
    double dispatch = (double)work->experts * (double)context->gpu->expert_ns / ns;
    double pass = fmax(work->matmul_flops / work->rate, bytes_s) + work->grouped_s + dispatch;
    double weights_pass =
        fmax(work->matmul_flops / work->weights_rate, bytes_s) + work->grouped_weights_s + dispatch;
    double thin = work->adapter_flops / context->rates.matmul;
    double adapters = thin + work->adapter_bytes / context->rates.bandwidth;
    double adapters_backward = thin + work->adapter_backward_bytes / context->rates.bandwidth;
    double attention = work->attention_flops / attention_rate(context) + work->rule_s;
    double attention_backward =
        BACKWARD_ATTENTION * work->attention_flops / attention_backward_rate(context) +
        RP_COST_RULE_BACKWARD * work->rule_s;
    double traffic = work->traffic_bytes / context->rates.bandwidth;
    double weights =
        (work->frozen ? 0 : weights_pass) + adapters_backward +
        GRADIENT_BYTES / (double)BYTES_16BIT * work->gradient_bytes / context->rates.bandwidth;

    layer->forward_ns = llround(ns * (pass + adapters + attention + traffic));
    layer->recompute_ns = layer->forward_ns;
    if (work->output_flops > 0)
        layer->recompute_last_ns = MAX(
            1, layer->recompute_ns - llround(ns * (work->output_flops / work->rate +
                                                   work->output_bytes / context->rates.bandwidth)));
    layer->weight_gradient_ns = llround(ns * weights);
    layer->backward_ns =
        layer->weight_gradient_ns + llround(ns * (pass + adapters_backward + attention_backward +
                                                  work->backward_bytes / context->rates.bandwidth));
}

/* Tensors, their bytes, and the time of expanding those that are packed. */
static RpCostWeights
set_weights(const Context *context, RpProfile *profile, guint index)
{
    const RpCostWeights weights =
        rp_cost_weights(context->model, context->workload, profile, index);

    profile->layers[index].expand_ns =
        llround(1e9 * weights.expand_bytes / context->rates.bandwidth);
    return weights;
}

/* A lookup forward; a scatter-add of fp32 sums backward. */
static void
fill_embedding(const Context *context, RpProfile *profile, guint index)
{
    RpLayer *layer = &profile->layers[index];
    double elements = (double)context->tokens * context->model->hidden;

    set_weights(context, profile, index);
    layer->forward_ns = llround(2 * BYTES_16BIT * elements / context->rates.bandwidth * 1e9);
    layer->recompute_ns = layer->forward_ns;
    if (layer->gradient_bytes > 0)
        layer->backward_ns =
            llround((BYTES_16BIT + 2 * BYTES_FP32) * elements / context->rates.bandwidth * 1e9);
    layer->weight_gradient_ns = layer->backward_ns;
}

static void
fill_block(const Context *context, RpProfile *profile, guint index)
{
    const RpModel *model = context->model;
    RpLayer *layer = &profile->layers[index];
    guint64 tokens = context->tokens;
    guint64 h = model->hidden;
    guint64 ad = (guint64)model->heads * model->head_dim;
    guint64 kd = (guint64)model->kv_heads * model->head_dim;
    guint64 m = (guint64)model->intermediate * model->active_experts + model->shared_intermediate;
    guint64 routed = model->experts > 1 ? 2 * h * model->active_experts : 0;
    const RpCostMixer mixer = rp_cost_mixer(model, index - 1);
    const gboolean delta = mixer.rule_flops > 0;
    /* beyond plain attention's */
    const gint64 more = (gint64)(mixer.qkv + mixer.out) - (gint64)(2 * ad + 2 * kd);
    const RpCostWeights weights = set_weights(context, profile, index);

    layer->activation_bytes =
        (guint64)((gint64)rp_cost_model_activation_bytes(model) + BYTES_16BIT * more) * tokens;
    /* the widest moment: input and residual, and either attention or MLP; backward the gradients of
     * those, and fp32 sums for q's gradient with two statistics a head */
    layer->forward_workspace_bytes =
        BYTES_16BIT * tokens *
        (2 * h + MAX((guint64)((gint64)(2 * ad + 2 * kd) + more), 3 * m + routed));
    layer->backward_workspace_bytes =
        tokens *
        (BYTES_16BIT * 2 * h + MAX(BYTES_16BIT * (guint64)((gint64)(2 * ad + 2 * kd) + more) +
                                       BYTES_FP32 * (ad + 2 * model->heads),
                                   BYTES_16BIT * (3 * m + routed)));
    if (delta) /* a pass's states, and gradients beside their values */
        layer->backward_workspace_bytes +=
            RULE_BYTES + (guint64)(BYTES_16BIT * (mixer.qkv + mixer.out)) * tokens;

    const RpCostKernels family = context->workload->kernels;
    const gboolean own = family == RP_COST_KERNELS_OWN;
    const Traffic *forward = &kernels[family].forward, *backward = &kernels[family].backward;
    const gboolean grouped = own && model->experts > 1;
    const double missed = (double)layer->input_bytes <= context->rates.cached_bytes ? 0.5 : 1;
    const double forward_mlp =
        grouped ? forward->mlp * model->intermediate : mlp_traffic(model, forward, 1);
    const double backward_mlp = grouped ? backward->mlp * model->intermediate
                                        : mlp_traffic(model, backward, BACKWARD_TRAFFIC);

    Work work = {
        .rate = context->workload->fp8 ? context->rates.fp8 : context->rates.matmul,
        .weights_rate = context->workload->fp8 ? context->rates.fp8 : context->rates.weights,
        .matmul_flops = rp_cost_model_matmul_flops(model, context->b, context->s) +
                        2.0 * (double)h * (double)more * (double)tokens,
        .matmul_bytes = (double)layer->parameter_bytes + (double)layer->activation_bytes,
        .adapter_flops = 2.0 * weights.adapter_elements * (double)tokens,
        .adapter_bytes =
            own ? BYTES_16BIT * tokens * (weights.adapter_in + 2 * weights.adapter_out) : 0,
        .adapter_backward_bytes =
            own ? BYTES_16BIT * tokens * (2 * weights.adapter_in + weights.adapter_out) : 0,
        .attention_flops =
            delta ? 0
                  : rp_cost_model_attention_flops(model, index - 1,
                                                  context->b * context->s / context->attended,
                                                  context->attended),
        .rule_s = mixer.rule_flops * (double)tokens / context->rates.rule,
        .traffic_bytes =
            (block_traffic(model, forward, missed, forward_mlp, delta) + mixer.forward_bytes) *
            (double)tokens,
        .backward_bytes =
            (block_traffic(model, backward, missed, backward_mlp, delta) + mixer.backward_bytes) *
            (double)tokens,
        .output_flops = own ? 2.0 * (double)(tokens * h * m) : 0,
        .output_bytes =
            own ? (RP_COST_RESIDUAL_BYTES * (double)h + forward->mlp * (double)m) * (double)tokens
                : 0,
        .gradient_bytes = (double)layer->gradient_bytes,
        .experts = model->experts > 1 ? model->experts : 0,
        .frozen = context->workload->lora_rank > 0,
    };
    if (own && (weights.mlp_apart || context->workload->fp8))
        work.backward_bytes += missed * APART_BYTES * (double)h * (double)tokens;
    if (grouped)
        set_experts(context, &work);
    if (context->workload->fp8) {
        work.traffic_bytes += (double)tokens * rp_cost_fp8_forward_bytes(model, &mixer);
        work.backward_bytes +=
            (double)tokens * rp_cost_fp8_backward_bytes(model, &mixer, !work.frozen);
    }
    set_times(context, &work, layer);
    if (own)
        rp_cost_saved(
            model,
            &(RpCostSaved){.tokens = (double)tokens,
                           .flop_ns = 1e9 / work.rate,
                           .byte_ns = 1e9 / context->rates.bandwidth,
                           .attention_ns =
                               1e9 * (work.attention_flops / attention_rate(context) + work.rule_s),
                           .mixer = mixer,
                           .norm_bytes = forward->norm,
                           .heads_bytes = rp_architectures[model->architecture].qk_norm
                                              ? forward->normed
                                              : forward->heads,
                           .tiles = !context->workload->fp8},
            layer);
}

static void
fill_head(const Context *context, RpProfile *profile, guint index)
{
    const RpModel *model = context->model;
    RpLayer *layer = &profile->layers[index];
    guint64 tokens = context->tokens;
    guint64 chunk = MIN(tokens, RP_COST_MODEL_HEAD_CHUNK);

    set_weights(context, profile, index);
    if (model->tied)
        layer->tied_bytes = BYTES_16BIT * model->vocab * model->hidden;
    layer->tied_gradient_bytes = layer->gradient_bytes > 0 ? layer->tied_bytes : 0;
    layer->activation_bytes = 2 * layer->input_bytes; /* input of the norm, and its output */
    layer->forward_workspace_bytes = chunk * model->vocab * (BYTES_16BIT + BYTES_FP32);
    layer->backward_workspace_bytes =
        layer->forward_workspace_bytes + BYTES_16BIT * tokens * model->hidden;

    const RpCostKernels family = context->workload->kernels;
    double logits = (double)tokens * model->vocab;
    double hidden = (double)tokens * model->hidden;
    const gboolean fp8 = context->workload->fp8_head;
    Work work = {
        .rate = fp8 ? context->rates.fp8 : context->rates.matmul,
        .weights_rate = fp8 ? context->rates.fp8 : context->rates.weights,
        .matmul_flops = 2.0 * logits * model->hidden,
        .matmul_bytes =
            (double)layer->parameter_bytes + (double)layer->input_bytes + BYTES_16BIT * logits,
        .traffic_bytes = kernels[family].forward.norm * hidden,
        .backward_bytes = kernels[family].backward.norm * hidden,
        .gradient_bytes = (double)layer->gradient_bytes,
        .frozen = context->workload->lora_rank > 0,
    };
    if (fp8) {
        work.traffic_bytes += rp_cost_fp8_element_bytes(!work.frozen) * hidden;
        work.backward_bytes += rp_cost_fp8_element_bytes(!work.frozen) * logits;
    }
    set_times(context, &work, layer);

    /* the loss, forward and backward, moves each logit once more */
    gint64 loss_ns =
        llround(kernels[family].forward.logits * logits / context->rates.bandwidth * 1e9);
    layer->forward_ns += loss_ns;
    layer->recompute_ns += loss_ns;
    layer->backward_ns +=
        llround(kernels[family].backward.logits * logits / context->rates.bandwidth * 1e9);
}

static void (*const fills[])(const Context *context, RpProfile *profile, guint index) = {
    [RP_LAYER_EMBEDDING] = fill_embedding,
    [RP_LAYER_BLOCK] = fill_block,
    [RP_LAYER_HEAD] = fill_head,
};

static gboolean
check_workload(const RpWorkload *workload, const RpGpu *gpu, GError **error)
{
    const char *dtype = workload->dtype != NULL ? workload->dtype : "bf16";
    const char *accumulate = workload->accumulate != NULL ? workload->accumulate : "fp32";
    const char *wrong = NULL;
    RpLowbit format;

    if (workload->sequences < 1 || workload->sequences > 1u << 20)
        wrong = "sequences of a micro-batch: expected 1 to 1048576";
    else if (workload->tokens_per_sequence < 1 || workload->tokens_per_sequence > 1u << 24)
        wrong = "tokens of a sequence: expected 1 to 16777216";
    else if ((guint64)workload->sequences * workload->tokens_per_sequence > 1u << 28)
        wrong = "tokens of a micro-batch: expected at most 268435456";
    else if (strcmp(dtype, "fp16") != 0 && strcmp(dtype, "bf16") != 0)
        wrong = "dtype: expected fp16 or bf16";
    else if (strcmp(accumulate, "fp32") != 0 && strcmp(accumulate, "fp16") != 0)
        wrong = "accumulate: expected fp32 or fp16";
    else if (strcmp(accumulate, "fp16") == 0 && strcmp(dtype, "fp16") != 0 && !workload->fp8)
        wrong = "accumulate: expected fp32 with dtype bf16, unless matmul is fp8";
    else if (workload->fp8 && gpu->fp8_tflops <= 0)
        wrong = "matmul: expected bf16 or fp16 on this GPU, which has no fp8";
    else if (workload->fp8 && workload->kernels != RP_COST_KERNELS_OWN)
        wrong = "matmul: fp8 is this project's alone";
    else if (workload->lora_rank > 65536)
        wrong = "LoRA rank: expected at most 65536";
    else if (rp_cost_base_is_packed(workload->base, &format) && workload->lora_rank == 0)
        wrong = "base: expected bf16 where all weights are trained: packed ones are frozen";
    else if (workload->base != NULL && !rp_cost_base_is_packed(workload->base, &format) &&
             strcmp(workload->base, "bf16") != 0)
        wrong = "base: expected bf16, fp8, nf4, nf4-single or mxfp4";
    if (wrong == NULL)
        return TRUE;
    return rp_fail(error, RP_COST_MODEL_ERROR, RP_COST_MODEL_ERROR_WORKLOAD, "%s", wrong);
}

static char *
origin_of(const RpWorkload *workload)
{
    g_autofree char *targets =
        workload->lora_targets != NULL ? g_strjoinv(", ", workload->lora_targets) : NULL;
    RpLowbit format;
    const gboolean packed = rp_cost_base_is_packed(workload->base, &format);

    if (workload->lora_rank == 0)
        return g_strdup("cost model, full-parameter");
    return g_strdup_printf("cost model, LoRA rank %u%s%s%s%s", workload->lora_rank,
                           targets != NULL ? " of " : "", targets != NULL ? targets : "",
                           packed ? ", base " : "", packed ? workload->base : "");
}

static void
describe(const Context *context, const char *dtype, const char *accumulate, RpProfile *profile)
{
    const RpGpu *gpu = context->gpu;
    const RpWorkload *workload = context->workload;

    rp_profile_take(&profile->model, g_strdup(context->model->name));
    rp_profile_take(&profile->device, g_strdup(gpu->title));
    rp_profile_take(&profile->dtype, g_strdup(dtype));
    rp_profile_take(&profile->accumulate, g_strdup(accumulate));
    rp_profile_take(&profile->matmul, g_strdup(rp_fp8_name(workload->fp8, workload->fp8_head)));
    rp_profile_take(&profile->source, g_strdup("predicted"));
    rp_profile_take(&profile->origin, origin_of(workload));
    profile->gpus = workload->gpus;
    profile->links = (RpLinks){
        .hop_ns = rp_cost_model_hop_ns(gpu, BYTES_16BIT * context->tokens * context->model->hidden),
        .h2d_bytes_per_s = gpu->h2d_gb_per_s * 1e9,
        .d2h_bytes_per_s = gpu->d2h_gb_per_s * 1e9,
        .host_bytes_per_s = gpu->host_gb_per_s * 1e9,
        .root_bytes_per_s = gpu->root_gb_per_s * 1e9,
        .gpus_per_root = gpu->gpus_per_root,
    };
    profile->gpu_memory_bytes = gpu->memory_bytes;
    profile->whole_card = TRUE;
    profile->optimizer_parameters_per_s = gpu->optimizer_parameters_per_s;
}

static RpProfile *
make_profile(const RpModel *model, const RpGpu *gpu, const RpWorkload *workload,
             RpCostEstimate estimate)
{
    const char *dtype = workload->dtype != NULL ? workload->dtype : "bf16";
    const char *accumulate = workload->accumulate != NULL ? workload->accumulate : "fp32";
    const gboolean half_sums = strcmp(accumulate, "fp16") == 0;
    Context context = {
        .model = model,
        .gpu = gpu,
        .workload = workload,
        .rates = rp_cost_rates(gpu, workload->kernels, half_sums && strcmp(dtype, "fp16") == 0,
                               half_sums, estimate),
        .b = workload->sequences,
        .s = workload->tokens_per_sequence,
        .attended = workload->sample_tokens > 0
                        ? MIN(workload->sample_tokens, workload->tokens_per_sequence)
                        : workload->tokens_per_sequence,
        .tokens = (guint64)workload->sequences * workload->tokens_per_sequence,
    };
    RpProfile *profile =
        rp_model_profile(model, workload->sequences, workload->tokens_per_sequence, BYTES_16BIT);

    describe(&context, dtype, accumulate, profile);
    for (guint i = 0; i < profile->n_layers; i++) {
        const guint first = rp_model_layer_class(model, i);

        if (first < i)
            profile->layers[i] = profile->layers[first];
        else
            fills[profile->layers[i].kind](&context, profile, i);
    }
    return profile;
}

/* How far the model was from layers that were measured, on a whole H200 and on parts of it (docs/cost-model.md). */
static double
error_of(const RpModel *model, const RpWorkload *workload, RpLayerKind kind)
{
    if (kind != RP_LAYER_BLOCK)
        return kind == RP_LAYER_HEAD ? 0.09 : 0;
    return workload->fp8 ? 0.07 : workload->lora_rank > 0 && model->experts <= 1 ? 0.1 : 0.05;
}

/* @expected: of the same model, card and work */
static RpProfile *
end_of_times(const RpModel *model, const RpGpu *gpu, const RpWorkload *workload,
             const RpProfile *expected)
{
    const double sign = workload->estimate == RP_COST_SLOW ? 1 : -1;
    RpProfile *profile = make_profile(model, gpu, workload, workload->estimate);

    rp_profile_mix_times(
        profile, 1, expected,
        (const double[]){[RP_LAYER_EMBEDDING] = 0,
                         [RP_LAYER_BLOCK] = sign * error_of(model, workload, RP_LAYER_BLOCK),
                         [RP_LAYER_HEAD] = sign * error_of(model, workload, RP_LAYER_HEAD)});
    return profile;
}

RpProfile *
rp_cost_model_profile(const RpModel *model, const RpGpu *gpu, const RpWorkload *workload,
                      GError **error)
{
    g_return_val_if_fail(model && gpu && workload, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (!check_workload(workload, gpu, error))
        return NULL;
    const gboolean own = workload->kernels == RP_COST_KERNELS_OWN;
    g_autoptr(RpProfile) profile = make_profile(model, gpu, workload, RP_COST_SLOW);

    if (own && gpu->scaled) {
        g_autoptr(RpProfile) fast = make_profile(model, gpu, workload, RP_COST_FAST);

        rp_profile_mix_times(profile, 0.5, fast, (const double[]){0.5, 0.5, 0.5});
    }
    return own && workload->estimate != RP_COST_EXPECTED
               ? end_of_times(model, gpu, workload, profile)
               : g_steal_pointer(&profile);
}

double
rp_paper_activation_bytes(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return (12 + 4 * k_over_a) * s * b * h + 6 * s * b * m * model->active_experts;
}

double
rp_paper_forward_flops(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return 4 * s * b * h * h + 4 * s * b * h * h * k_over_a + 4 * s * s * b * h +
           6 * s * b * h * m * model->active_experts;
}

double
rp_paper_forward_upload_bytes(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return 4 * h * h + 4 * h * h * k_over_a + 6 * h * m * model->experts + 2 * b * s * h;
}

double
rp_paper_forward_intensity(const RpModel *model, double b, double s)
{
    return rp_paper_forward_flops(model, b, s) / rp_paper_forward_upload_bytes(model, b, s);
}

double
rp_paper_ridge_intensity(const RpGpu *gpu)
{
    return gpu->fp16_accumulate_tflops * 1e12 / (gpu->interconnect_gb_per_s * 1e9);
}

double
rp_paper_recompute_s(const RpModel *model, const RpGpu *gpu, double b, double s)
{
    return rp_paper_forward_flops(model, b, s) / (gpu->fp16_accumulate_tflops * 1e12);
}

double
rp_paper_reload_s(const RpModel *model, const RpGpu *gpu, double b, double s)
{
    return rp_paper_activation_bytes(model, b, s) / (gpu->interconnect_gb_per_s * 1e9);
}
