/*
 * config.json's rope: rope_scaling beside rope_theta, or transformers 5's rope_parameters.
 *
 * Source: transformers modeling_rope_utils.py, standardize_rope_params() and the functions of
 *   ROPE_INIT_FUNCTIONS
 */
#include "exec/model/hf-config-private.h"

#include <math.h>
#include <string.h>

#define DEFAULT_THETA 10000.0
#define DEFAULT_BETA_FAST 32.0
#define DEFAULT_BETA_SLOW 1.0

/* ---- readers: RpJsonRead ---- */

static gboolean
read_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const char *names[RP_N_ROPE_TYPES + 1] = {NULL};
    RpConfigRaw *raw = value;
    gboolean old = strcmp(field->key, "type") == 0;
    int *own = old ? &raw->old_rope_type : &raw->rope_type;
    int other = old ? raw->rope_type : raw->old_rope_type;

    for (guint i = 0; i < RP_N_ROPE_TYPES; i++)
        names[i] = rp_rope_type_name((RpRopeType)i);
    if (!rp_config_read_choice(pull, names, own))
        return FALSE;
    if (other >= 0 && other != *own)
        return rp_json_pull_fail_value(pull, "the same for rope_type and type");
    raw->config.rope.type = (RpRopeType)*own;
    return TRUE;
}

static gboolean
read_factors(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;
    const gboolean is_long = strcmp(field->key, "long_factor") == 0;
    float *factors = is_long ? raw->config.rope.long_factor : raw->config.rope.short_factor;
    guint *n = is_long ? &raw->n_long : &raw->n_short;
    double factor;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (*n == RP_ROPE_MAX_PAIRS)
            return rp_json_pull_fail(pull, "at most " G_STRINGIFY(RP_ROPE_MAX_PAIRS) " numbers");
        if (!rp_json_pull_number(pull, &factor))
            return FALSE;
        if (!((float)factor >= 1e-6f && (float)factor <= 1e6f))
            return rp_json_pull_fail_value(pull, "a number from 1e-6 to 1e6");
        factors[(*n)++] = (float)factor;
    }
    return !pull->failed;
}

/* It may be a layer type with a rope of its own. */
static gboolean
read_unknown(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return rp_config_fail_unsupported(pull, "a key of one rope for all layers");
}

static const RpJsonField fields[] = {
    RP_CONFIG_OTHER("rope_type", read_type, FALSE),
    RP_CONFIG_OTHER("type", read_type, FALSE), /* the spelling of before 2024 */
    RP_CONFIG_NUMBER("rope_theta", nested_theta, FALSE),
    RP_CONFIG_NUMBER("factor", config.rope.factor, FALSE),
    RP_CONFIG_NUMBER("low_freq_factor", config.rope.low_freq_factor, FALSE),
    RP_CONFIG_NUMBER("high_freq_factor", config.rope.high_freq_factor, FALSE),
    RP_CONFIG_COUNT("original_max_position_embeddings", config.rope.original_max_positions,
                    RP_CONFIG_MAX_POSITIONS),
    RP_CONFIG_NUMBER("beta_fast", config.rope.beta_fast, TRUE),
    RP_CONFIG_NUMBER("beta_slow", config.rope.beta_slow, TRUE),
    RP_CONFIG_NUMBER("attention_factor", config.rope.attention_factor, TRUE),
    RP_CONFIG_NUMBER("mscale", mscale, TRUE),
    RP_CONFIG_NUMBER("mscale_all_dim", mscale_all_dim, TRUE),
    RP_CONFIG_BOOLEAN("truncate", config.rope.truncate),
    RP_CONFIG_OTHER("short_factor", read_factors, FALSE),
    RP_CONFIG_OTHER("long_factor", read_factors, FALSE),

    {"partial_rotary_factor", rp_config_read_exactly, .expected = "1",
     .note = "transformers turns a part of each head"},

    RP_CONFIG_IGNORED("mrope_section", "of models that see"),
    RP_CONFIG_IGNORED("mrope_interleaved", "of models that see"),

    {NULL, read_unknown},
};

const RpJsonField *
rp_config_rope_fields(guint *n_fields)
{
    *n_fields = G_N_ELEMENTS(fields) - 1;
    return fields;
}

gboolean
rp_config_read_rope(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;

    if (raw->rope_key != NULL)
        return rp_json_pull_fail(pull, "either rope_scaling or rope_parameters");
    raw->rope_key = field->key;
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), raw, NULL);
}

/* ---- their meaning together ---- */

static gboolean
settle_theta(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    const double absent = rp_architectures[raw->config.architecture].theta;

    if (raw->rope_theta > 0 && raw->nested_theta > 0 && raw->rope_theta != raw->nested_theta)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "rope_theta",
                              "expected %g, that of %s, found %g", raw->nested_theta, raw->rope_key,
                              raw->rope_theta);
    raw->config.rope.theta = raw->nested_theta > 0 ? raw->nested_theta
                             : raw->rope_theta > 0 ? raw->rope_theta
                             : absent > 0          ? absent
                                                   : DEFAULT_THETA;
    return TRUE;
}

/* One that stands beside the rope's object is the same. */
static gboolean
check_outer(const RpConfigReader *reader)
{
    const RpConfigRaw *raw = &reader->raw;
    const guint inner = raw->config.rope.original_max_positions;

    return raw->outer_original_max_positions == 0 || raw->outer_original_max_positions == inner ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "original_max_position_embeddings",
                          "expected %u, that of %s (transformers 5 takes this one instead), "
                          "found %u",
                          inner, raw->rope_key, raw->outer_original_max_positions);
}

static gboolean
check_scale(const RpConfigReader *reader)
{
    const double factor = reader->raw.config.rope.attention_factor;

    return factor <= RP_CONFIG_MAX_NUMBER ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, reader->raw.rope_key,
                          "expected numbers that make an attention_factor of at most 1e15, found "
                          "%g",
                          factor);
}

static gboolean
settle_llama3(RpConfigReader *reader)
{
    const RpConfigRaw *raw = &reader->raw;
    const RpRope *rope = &raw->config.rope;

    if (rope->low_freq_factor <= 0 || rope->high_freq_factor <= rope->low_freq_factor)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                              "expected 0 < low_freq_factor < high_freq_factor for llama3, found "
                              "%g and %g",
                              rope->low_freq_factor, rope->high_freq_factor);
    if (rope->original_max_positions == 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                              "expected original_max_position_embeddings for llama3, found "
                              "nothing");
    return check_outer(reader);
}

static void
take_original(RpConfigRaw *raw)
{
    if (raw->config.rope.original_max_positions == 0)
        raw->config.rope.original_max_positions = raw->outer_original_max_positions > 0
                                                      ? raw->outer_original_max_positions
                                                      : raw->config.max_positions;
}

static double
yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static gboolean
settle_yarn(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpRope *rope = &raw->config.rope;

    if (rope->theta <= 1)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "rope_theta",
                              "expected more than 1 for yarn, found %g", rope->theta);
    take_original(raw);
    if (rope->beta_fast <= 0)
        rope->beta_fast = DEFAULT_BETA_FAST;
    if (rope->beta_slow <= 0)
        rope->beta_slow = DEFAULT_BETA_SLOW;
    if (rope->attention_factor <= 0)
        rope->attention_factor = raw->mscale > 0 && raw->mscale_all_dim > 0
                                     ? yarn_scale(rope->factor, raw->mscale) /
                                           yarn_scale(rope->factor, raw->mscale_all_dim)
                                     : yarn_scale(rope->factor, 1);
    return check_scale(reader) && check_outer(reader);
}

static gboolean
settle_longrope(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpRope *rope = &raw->config.rope;
    const guint pairs = raw->config.head_dim / 2;

    if (raw->n_short != pairs || raw->n_long != pairs)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                              "expected %u numbers in short_factor and long_factor, one for each "
                              "pair of a head, found %u and %u",
                              pairs, raw->n_short, raw->n_long);
    take_original(raw);
    if (rope->factor <= 0)
        rope->factor = (double)raw->config.max_positions / rope->original_max_positions;
    if (rope->attention_factor <= 0)
        rope->attention_factor =
            rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(rope->original_max_positions));
    return check_scale(reader) && check_outer(reader);
}

/* Numbers of other types are not kept. */
static RpRope
of_its_type(const RpRope *rope)
{
    RpRope kept = {.type = rope->type, .theta = rope->theta};

    if (rope->type == RP_ROPE_YARN) {
        kept.beta_fast = rope->beta_fast;
        kept.beta_slow = rope->beta_slow;
        kept.attention_factor = rope->attention_factor;
        kept.truncate = rope->truncate;
    } else if (rope->type == RP_ROPE_LLAMA3) {
        kept.low_freq_factor = rope->low_freq_factor;
        kept.high_freq_factor = rope->high_freq_factor;
    }
    if (rope->type == RP_ROPE_LONGROPE) {
        kept.attention_factor = rope->attention_factor;
        memcpy(kept.short_factor, rope->short_factor, sizeof kept.short_factor);
        memcpy(kept.long_factor, rope->long_factor, sizeof kept.long_factor);
    } else if (rope->type != RP_ROPE_DEFAULT) {
        kept.factor = rope->factor;
    }
    if (rope->type != RP_ROPE_DEFAULT && rope->type != RP_ROPE_LINEAR)
        kept.original_max_positions = rope->original_max_positions;
    return kept;
}

gboolean
rp_config_settle_rope(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    gboolean good = settle_theta(reader);

    if (good && raw->rope_key == NULL && c->architecture == RP_ARCHITECTURE_GPT_OSS)
        good = rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "rope_parameters",
                              "expected those of GPT-OSS, found nothing");
    if (good && c->rope.type != RP_ROPE_DEFAULT && c->rope.type != RP_ROPE_LONGROPE &&
        c->rope.factor < 1)
        good = rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                              "expected a factor of 1 or more for %s, found %g",
                              rp_rope_type_name(c->rope.type), c->rope.factor);
    if (good && c->rope.type == RP_ROPE_LLAMA3)
        good = settle_llama3(reader);
    if (good && c->rope.type == RP_ROPE_YARN)
        good = settle_yarn(reader);
    if (good && c->rope.type == RP_ROPE_LONGROPE)
        good = settle_longrope(reader);
    if (good && c->rope.type == RP_ROPE_DYNAMIC && c->head_dim == 2)
        good = rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "head_dim",
                              "expected 4 or more for a dynamic rope, found 2");
    if (c->rope.type == RP_ROPE_DYNAMIC)
        c->rope.original_max_positions = c->max_positions;
    c->rope = of_its_type(&c->rope);
    return good;
}
