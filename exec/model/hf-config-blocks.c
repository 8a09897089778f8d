/*
 * Reads which blocks attend to a sliding window, and which apply rope to queries and keys.
 *
 * transformers takes any list of either kind; a model here has a rule: from block F on, the last of
 * each P is full (or without rope). Lists that no rule makes are refused by their key.
 */
#include "exec/model/hf-config-private.h"

#include <string.h>

#include "core/base/quote.h"

/* Refusals, and the readers of values of which few are taken. */

G_DEFINE_QUARK(rp_hf_config_error, rp_hf_config_error)

gboolean
rp_config_fail(const RpConfigReader *reader, RpHfConfigError code, const char *key,
               const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(reader->pull.error, RP_HF_CONFIG_ERROR, code, "%s: %s: %s", reader->pull.file,
                   key, text);
}

gboolean
rp_config_fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* No "did you mean": another name computes something else. */
gboolean
rp_config_read_choice(RpJsonPull *pull, const char *const *names, int *choice)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (*choice = 0; names[*choice] != NULL; (*choice)++)
        if (strcmp(names[*choice], text->str) == 0)
            return TRUE;
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected =
        g_strdup_printf("%s\"%s\"", names[1] != NULL ? "one of " : "", joined);
    return rp_config_fail_unsupported(pull, expected);
}

/* Refuses the value at @start. */
static gboolean
fail_refused(RpJsonPull *pull, const RpJsonField *field, const char *start)
{
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->expected, field->note);

    pull->value = start;
    return rp_config_fail_unsupported(pull, expected);
}

gboolean
rp_config_read_fixed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_auto(GStrv) taken = g_strsplit(field->expected, " or ", -1);
    const char *start = pull->at;

    if (!rp_json_pull_skip(pull))
        return FALSE;
    g_autofree char *found = g_strndup(start, (gsize)(pull->at - start));
    return g_strv_contains((const char *const *)taken, found) || fail_refused(pull, field, start);
}

gboolean
rp_config_read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    return rp_json_pull_number(pull, &number) && (number == g_ascii_strtod(field->expected, NULL) ||
                                                  fail_refused(pull, field, pull->value));
}

#define DEFAULT_NO_ROPE_INTERVAL 4

static gboolean
get(const RpConfigBlocks *blocks, guint i)
{
    return (blocks->bits[i / 8] >> (i % 8)) & 1;
}

static void
set(RpConfigBlocks *blocks, guint i, gboolean value)
{
    if (value)
        blocks->bits[i / 8] |= (guint8)(1u << (i % 8));
}

static gboolean
append(RpJsonPull *pull, RpConfigBlocks *blocks, gboolean value)
{
    if (blocks->n == RP_CONFIG_MAX_BLOCKS)
        return rp_json_pull_fail(pull, "at most " G_STRINGIFY(RP_CONFIG_MAX_BLOCKS) " blocks");
    set(blocks, blocks->n++, value);
    return TRUE;
}

gboolean
rp_config_read_layer_types(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"full_attention", "sliding_attention", "linear_attention",
                                        NULL};
    RpConfigRaw *raw = value;
    int choice;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);)
        if (!rp_config_read_choice(pull, names, &choice) ||
            !append(pull, &raw->slides, choice == 1) || !append(pull, &raw->deltas, choice == 2))
            return FALSE;
    return !pull->failed;
}

gboolean
rp_config_read_no_rope_layers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigBlocks *ropes = &((RpConfigRaw *)value)->ropes;
    double number;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (!rp_json_pull_number(pull, &number))
            return FALSE;
        if (number != 0 && number != 1)
            return rp_json_pull_fail_value(pull, "1 for a block with rope, 0 for one without");
        if (!append(pull, ropes, number != 0))
            return FALSE;
    }
    return !pull->failed;
}

/* Blocks of experts alone. */
gboolean
rp_config_read_mlp_types(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"sparse", NULL};
    int choice;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);)
        if (!rp_config_read_choice(pull, names, &choice))
            return FALSE;
    return !pull->failed;
}

/* The rule, if there is one: blocks from *@from on are set, but for the last of each *@period. */
static gboolean
find_rule(const RpConfigBlocks *blocks, guint *from, guint *period)
{
    guint first = 0, hole;

    while (first < blocks->n && !get(blocks, first))
        first++;
    for (hole = first; hole < blocks->n && get(blocks, hole); hole++)
        ;
    *from = first;
    *period = 0;
    if (hole == blocks->n)
        return TRUE;
    /* holes are a period apart; where there is one alone, it ends the first */
    for (*period = 1; hole + *period < blocks->n && get(blocks, hole + *period);)
        ++*period;
    if (hole + *period == blocks->n)
        *period = hole - first + 1;
    for (guint i = first; i < blocks->n; i++)
        if (get(blocks, i) != ((i - first + 1) % *period != 0))
            return FALSE;
    return TRUE;
}

static gboolean
settle_ropes(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    guint from;

    if (raw->ropes.n == 0) {
        c->no_rope_period =
            raw->no_rope_interval > 0 ? raw->no_rope_interval : DEFAULT_NO_ROPE_INTERVAL;
        return TRUE;
    }
    if (raw->ropes.n < c->blocks)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "no_rope_layers",
                              "expected one for each of %u blocks, found %u", c->blocks,
                              raw->ropes.n);
    raw->ropes.n = c->blocks;
    if (!find_rule(&raw->ropes, &from, &c->no_rope_period) || (from > 0 && from < c->blocks))
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "no_rope_layers",
                              "expected the last of every so many blocks without rope, found "
                              "others");
    if (from == c->blocks)
        c->no_rope_period = 1;
    return TRUE;
}

/* Defaults where config.json does not say it block by block. */
static gboolean
slides_by_rule(const RpConfigRaw *raw, RpSlidingRule rule, guint block)
{
    switch (rule) {
    case RP_SLIDING_EVERY:
        return TRUE;
    case RP_SLIDING_LATER:
        return block >= raw->max_window_layers;
    case RP_SLIDING_ALTERNATE:
        return block % 2 == 0;
    case RP_SLIDING_NO_ROPE:
        return !rp_model_block_has_rope(&raw->config, block);
    case RP_SLIDING_LISTED:
    case RP_SLIDING_NONE:
        break;
    }
    return FALSE;
}

/* The window's size, if there may be one; 0 = none. */
static gboolean
find_window(RpConfigReader *reader, const RpArchitectureRow *row, guint *window)
{
    const RpConfigRaw *raw = &reader->raw;

    if (raw->use_sliding_window && !row->asks_for_window)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "use_sliding_window",
                              "expected false, since %s does not read it, found true",
                              row->hf_name);
    *window = raw->window > 0 ? raw->window : raw->null_window ? 0 : row->window;
    if (row->sliding == RP_SLIDING_NONE || (row->asks_for_window && !raw->use_sliding_window))
        *window = 0;
    return TRUE;
}

static gboolean
check_list(const RpConfigReader *reader, const RpArchitectureRow *row, guint window)
{
    const RpConfigRaw *raw = &reader->raw;
    const guint blocks = raw->config.blocks;

    if (raw->slides.n != blocks)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "layer_types",
                              "expected one for each of %u blocks, found %u", blocks,
                              raw->slides.n);
    for (guint i = 0; i < blocks; i++) {
        if (get(&raw->slides, i) && window == 0)
            return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "layer_types",
                                  "expected \"full_attention\" for every block, since there is no "
                                  "window, found \"sliding_attention\"");
        if (!get(&raw->slides, i) && window > 0 && row->sliding == RP_SLIDING_EVERY)
            return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "layer_types",
                                  "expected \"sliding_attention\" for every block of %s with a "
                                  "sliding_window, found \"full_attention\"",
                                  row->hf_name);
    }
    return TRUE;
}

static gboolean
settle_slides(RpConfigReader *reader, const RpArchitectureRow *row)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    guint window = 0;

    if (!find_window(reader, row, &window))
        return FALSE;
    if (raw->slides.n > 0) {
        if (!check_list(reader, row, window))
            return FALSE;
    } else if (window > 0) {
        raw->slides.n = c->blocks;
        for (guint i = 0; i < c->blocks; i++)
            set(&raw->slides, i, slides_by_rule(raw, row->sliding, i));
    } else if (row->sliding == RP_SLIDING_ALTERNATE) {
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "sliding_window",
                              "expected a number of tokens, found null");
    }
    if (!find_rule(&raw->slides, &c->sliding_from, &c->sliding_period))
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "layer_types",
                              "expected \"full_attention\" for the last of every so many blocks, "
                              "found others");
    if (c->sliding_from < raw->slides.n)
        c->sliding_window = window;
    else
        c->sliding_from = c->sliding_period = 0;
    return TRUE;
}

/* Values of transformers where keys of DeltaNet are absent. */
#define DEFAULT_FULL_INTERVAL 4
#define DEFAULT_DELTA_KERNEL 4
#define DEFAULT_DELTA_DIM 128
#define DEFAULT_DELTA_KEY_HEADS 16
#define DEFAULT_DELTA_VALUE_HEADS 32

static guint
given_or(guint given, guint otherwise)
{
    return given > 0 ? given : otherwise;
}

static gboolean
settle_delta_sizes(RpConfigReader *reader)
{
    RpModel *c = &reader->raw.config;

    c->delta_kernel = given_or(c->delta_kernel, DEFAULT_DELTA_KERNEL);
    c->delta_key_dim = given_or(c->delta_key_dim, DEFAULT_DELTA_DIM);
    c->delta_value_dim = given_or(c->delta_value_dim, DEFAULT_DELTA_DIM);
    c->delta_key_heads = given_or(c->delta_key_heads, DEFAULT_DELTA_KEY_HEADS);
    c->delta_value_heads = given_or(c->delta_value_heads, DEFAULT_DELTA_VALUE_HEADS);
    if (c->delta_value_heads % c->delta_key_heads != 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "linear_num_value_heads",
                              "expected a multiple of linear_num_key_heads, %u, found %u",
                              c->delta_key_heads, c->delta_value_heads);
    return rp_model_delta_columns(c) <= RP_CONFIG_MAX_SIZE ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "linear_num_value_heads",
                          "expected at most %u columns of q, k and v together, found "
                          "%" G_GUINT64_FORMAT,
                          RP_CONFIG_MAX_SIZE, rp_model_delta_columns(c));
}

/* Which blocks have DeltaNet, and its sizes. */
static gboolean
settle_deltas(RpConfigReader *reader, const RpArchitectureRow *row)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    guint from = raw->deltas.n;

    if (!row->has_delta) {
        c->delta_kernel = c->delta_key_dim = c->delta_value_dim = 0;
        c->delta_key_heads = c->delta_value_heads = 0;
        for (from = 0; from < raw->deltas.n; from++)
            if (get(&raw->deltas, from))
                return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "layer_types",
                                      "expected \"full_attention\" or \"sliding_attention\" of %s, "
                                      "found \"linear_attention\"",
                                      row->hf_name);
        return TRUE;
    }
    c->full_period = given_or(raw->full_interval, DEFAULT_FULL_INTERVAL);
    if (raw->deltas.n > 0) {
        if (!find_rule(&raw->deltas, &from, &c->full_period) || (from > 0 && from < raw->deltas.n))
            return rp_config_fail(
                reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "layer_types",
                "expected \"full_attention\" for the last of every so many blocks "
                "of \"linear_attention\", found others");
        if (from == raw->deltas.n)
            c->full_period = 1;
        else if (c->full_period == 0)
            c->full_period = c->blocks + 1;
    }
    return settle_delta_sizes(reader);
}

gboolean
rp_config_settle_blocks(RpConfigReader *reader)
{
    const RpArchitectureRow *row = &rp_architectures[reader->raw.config.architecture];

    return (!row->has_no_rope || settle_ropes(reader)) && settle_slides(reader, row) &&
           settle_deltas(reader, row);
}

/*
 * Mixtures of experts in config.json: transformers 4 and 5 spell the number of experts differently,
 * GPT-OSS's file has both spellings of the active ones.
 */

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

/* Blocks of fp8 that have a scale; null: one scale a tensor. */
static gboolean
read_block_size(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const char *start = pull->at;
    double number;
    guint n = 0;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (!rp_json_pull_number(pull, &number))
            return FALSE;
        n += number == RP_FP8_BLOCK ? 1 : 3;
    }
    if (pull->failed || n == 2)
        return !pull->failed;
    pull->value = start;
    return rp_config_fail_unsupported(pull, "[128, 128], or null for one scale a tensor");
}

gboolean
rp_config_read_quantization(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField rows[] = {
        RP_CONFIG_OTHER("quant_method", read_method, FALSE),
        RP_CONFIG_OTHER("weight_block_size", read_block_size, TRUE),
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

/* Sizes where "intermediate_size" is of no block. */
static gboolean
settle_apart(RpConfigReader *reader, const RpArchitectureRow *row)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;

    if (raw->moe_intermediate == 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "moe_intermediate_size",
                              "expected a whole number from 1 up, found nothing");
    if (row->shared_expert && c->shared_intermediate == 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_SYNTAX, "shared_expert_intermediate_size",
                              "expected a whole number from 1 up, found nothing");
    c->dense_intermediate = row->shared_expert ? 0 : c->intermediate;
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
    c->norm_topk = row->apart_experts &&
                   (reader->raw.norm_topk >= 0 && !row->shared_expert ? reader->raw.norm_topk > 0
                                                                      : row->norm_topk);
    if (!row->shared_expert)
        c->shared_intermediate = 0;
    if (!settle_aux_loss(reader, gpt_oss || row->apart_experts,
                         gpt_oss ? GPT_OSS_AUX_LOSS : QWEN3_MOE_AUX_LOSS))
        return FALSE;
    if (!gpt_oss && !row->apart_experts)
        return TRUE;
    return settle_numbers(reader) && (gpt_oss || settle_apart(reader, row)) && check_stack(reader);
}
