/*
 * Mixtures of experts in config.json: transformers 4 and 5 spell the number of experts differently,
 * GPT-OSS's file has both spellings of the active ones.
 */
#include "exec/model/config/hf-config-private.h"

#define GPT_OSS_ALPHA 1.702
#define GPT_OSS_LIMIT 7.0
#define GPT_OSS_AUX_LOSS 0.9
#define QWEN3_MOE_AUX_LOSS 0.001
/* Limit over all blocks together: each expert has three tensors at most. */
#define MOST_EXPERTS_OF_MODEL 65536

/* ---- quantization_config ---- */

static gboolean
read_method(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"mxfp4", "bitsandbytes", "fp8", NULL};
    RpConfigRaw *raw = value;
    int choice;

    if (!rp_config_read_choice(pull, names, &choice))
        return FALSE;
    raw->quantized = TRUE;
    raw->config.mxfp4 = choice == 0;
    return TRUE;
}

gboolean
rp_config_read_quantization(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        RP_CONFIG_OTHER("quant_method", read_method, FALSE),
        {NULL, rp_json_read_ignored}, /* the tensors show which weights are packed, and how */
    };
    RpConfigRaw *raw = value;
    const char *start = pull->at;

    if (!rp_json_read_record(pull, rows, G_N_ELEMENTS(rows), raw, NULL))
        return FALSE;
    pull->value = start;
    return raw->quantized || rp_config_fail_unsupported(pull, "an object with a quant_method");
}

/* ---- sizes ---- */

/* One of two spellings; both only if they agree. 0: neither stands there. */
static gboolean
one_of(const RpConfigReader *reader, const char *key, guint value, const char *other_key,
       guint other, guint *taken)
{
    if (value > 0 && other > 0 && value != other)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, other_key,
                              "expected %u, that of %s, found %u", value, key, other);
    *taken = value > 0 ? value : other;
    return *taken > 0 || rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, key,
                                        "expected a whole number from 1 up, found nothing");
}

static gboolean
settle_numbers(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;

    if (!one_of(reader, "num_experts", raw->experts, "num_local_experts", raw->local_experts,
                &c->experts) ||
        !one_of(reader, "num_experts_per_tok", raw->experts_per_tok, "experts_per_token",
                raw->experts_per_token, &c->active_experts))
        return FALSE;
    if (c->experts < 2)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "num_experts",
                              "expected 2 or more, found %u", c->experts);
    if ((guint64)c->blocks * c->experts > MOST_EXPERTS_OF_MODEL)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "num_experts",
                              "expected at most %u in all blocks, found %" G_GUINT64_FORMAT,
                              MOST_EXPERTS_OF_MODEL, (guint64)c->blocks * c->experts);
    return c->active_experts <= c->experts ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "num_experts_per_tok",
                          "expected at most num_experts, %u, found %u", c->experts,
                          c->active_experts);
}

static gboolean
check_stack(RpConfigReader *reader)
{
    const RpModel *c = &reader->raw.config;
    const guint64 rows = (guint64)c->experts * c->intermediate;

    return rows <= RP_CONFIG_MAX_SIZE ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "num_experts",
                          "expected at most %u for num_experts x the size of one, found "
                          "%" G_GUINT64_FORMAT,
                          RP_CONFIG_MAX_SIZE, rows);
}

static gboolean
settle_qwen3_moe(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;

    if (raw->moe_intermediate == 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "moe_intermediate_size",
                              "expected a whole number from 1 up, found nothing");
    c->dense_intermediate = c->intermediate;
    c->intermediate = raw->moe_intermediate;
    return TRUE;
}

/* The loss that transformers adds where the config says so, with its default coefficients. */
static gboolean
settle_aux_loss(RpConfigReader *reader, gboolean routed, double otherwise)
{
    RpConfigRaw *raw = &reader->raw;

    if (raw->router_logits && !routed)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "output_router_logits",
                              "expected false (%s has no routers), found true",
                              rp_architectures[raw->config.architecture].hf_name);
    if (raw->router_logits)
        raw->config.router_aux_loss = raw->router_aux_loss < 0 ? otherwise : raw->router_aux_loss;
    return TRUE;
}

gboolean
rp_config_settle_experts(RpConfigReader *reader)
{
    RpModel *c = &reader->raw.config;
    const RpArchitectureRow *row = &rp_architectures[c->architecture];
    const gboolean gpt_oss = c->architecture == RP_ARCHITECTURE_GPT_OSS;
    const gboolean qwen3_moe = c->architecture == RP_ARCHITECTURE_QWEN3_MOE;

    if (c->mxfp4 && !gpt_oss)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "quantization_config",
                              "expected null (the weights of %s must not be quantized), found "
                              "mxfp4",
                              row->hf_name);
    if (gpt_oss) {
        c->swiglu_alpha = c->swiglu_alpha > 0 ? c->swiglu_alpha : GPT_OSS_ALPHA;
        c->swiglu_limit = c->swiglu_limit > 0 ? c->swiglu_limit : GPT_OSS_LIMIT;
    } else {
        c->swiglu_alpha = c->swiglu_limit = 0;
    }
    c->norm_topk = c->norm_topk && qwen3_moe;
    if (!settle_aux_loss(reader, gpt_oss || qwen3_moe,
                         gpt_oss ? GPT_OSS_AUX_LOSS : QWEN3_MOE_AUX_LOSS))
        return FALSE;
    if (!gpt_oss && !qwen3_moe)
        return TRUE;
    return settle_numbers(reader) && (gpt_oss || settle_qwen3_moe(reader)) && check_stack(reader);
}
