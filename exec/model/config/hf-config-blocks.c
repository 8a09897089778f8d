/*
 * Reads which blocks attend to a sliding window, and which apply rope to queries and keys.
 *
 * transformers takes any list of either kind; a model here has a rule: from block F on, the last of
 * each P is full (or without rope). Lists that no rule makes are refused by their key.
 */
#include "exec/model/config/hf-config-private.h"

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
    static const char *const names[] = {"full_attention", "sliding_attention", NULL};
    RpConfigBlocks *slides = &((RpConfigRaw *)value)->slides;
    int choice;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull))
        if (!rp_config_read_choice(pull, names, &choice) || !append(pull, slides, choice))
            return FALSE;
    return !pull->failed;
}

gboolean
rp_config_read_no_rope_layers(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigBlocks *ropes = &((RpConfigRaw *)value)->ropes;
    double number;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (!rp_json_pull_number(pull, &number))
            return FALSE;
        if (number != 0 && number != 1)
            return rp_json_pull_fail_value(pull, "1 for a block with rope, 0 for one without");
        if (!append(pull, ropes, number != 0))
            return FALSE;
    }
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

gboolean
rp_config_settle_blocks(RpConfigReader *reader)
{
    const RpArchitectureRow *row = &rp_architectures[reader->raw.config.architecture];

    return (!row->has_no_rope || settle_ropes(reader)) && settle_slides(reader, row);
}
