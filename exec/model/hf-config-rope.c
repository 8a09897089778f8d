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

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
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

static gboolean read_kind(RpJsonPull *pull, const RpJsonField *field, gpointer value);

/* It may be another layer type with a rope of its own. */
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
    RP_CONFIG_NUMBER("llama_4_scaling_beta", config.rope.query_beta, TRUE),
    RP_CONFIG_OTHER("full_attention", read_kind, FALSE),
    RP_CONFIG_OTHER("sliding_attention", read_kind, FALSE),
    RP_CONFIG_OTHER("short_factor", read_factors, FALSE),
    RP_CONFIG_OTHER("long_factor", read_factors, FALSE),

    RP_CONFIG_ROTARY(nested_rotary),

    RP_CONFIG_IGNORED("max_position_embeddings", "that of the model counts"),
    RP_CONFIG_IGNORED("mrope_section", "of models that see"),
    RP_CONFIG_IGNORED("mrope_interleaved", "of models that see"),

    {NULL, read_unknown},
};

static const char *const kind_names[RP_CONFIG_KINDS] = {
    [RP_CONFIG_FULL] = "full_attention",
    [RP_CONFIG_SLIDING] = "sliding_attention",
};

/* A rope of one kind of blocks, by the same table. */
static gboolean
read_kind(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const guint kind =
        strcmp(field->key, kind_names[RP_CONFIG_FULL]) == 0 ? RP_CONFIG_FULL : RP_CONFIG_SLIDING;
    RpConfigRaw *raw = value;
    g_autofree RpConfigRaw *own = g_new0(RpConfigRaw, 1);

    if (raw->in_kind)
        return read_unknown(pull, field, value);
    own->rope_type = own->old_rope_type = -1;
    own->config.rope.truncate = TRUE;
    own->in_kind = TRUE;
    if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), own, NULL))
        return FALSE;
    raw->kinds[kind] = (RpConfigRope){.given = TRUE,
                                      .rope = own->config.rope,
                                      .theta = own->nested_theta,
                                      .mscale = own->mscale,
                                      .mscale_all_dim = own->mscale_all_dim};
    return TRUE;
}

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
    const guint pairs = rp_model_rotary_dim(&raw->config) / 2;

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
    RpRope kept = {.type = rope->type, .theta = rope->theta, .query_beta = rope->query_beta};

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

/* Which elements of a head are rotated. */
static gboolean
settle_rotary(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    const double share = rp_architectures[raw->config.architecture].rotary;
    const double given = raw->nested_rotary > 0 ? raw->nested_rotary
                         : raw->rotary > 0      ? raw->rotary
                         : share > 0            ? share
                                                : 1;

    if (share == 0 && given != 1)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "partial_rotary_factor",
                              "expected 1 (transformers turns a part of each head), found %g",
                              given);
    const guint rotated = (guint)(raw->config.head_dim * given);

    if (rotated < 2 || rotated % 2 != 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, "partial_rotary_factor",
                              "expected an even number of a head's %u elements, found %g of them",
                              raw->config.head_dim, given);
    raw->config.rotary_dim = rotated < raw->config.head_dim ? rotated : 0;
    return TRUE;
}

static gboolean
settle_one(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;
    gboolean good = settle_theta(reader) && settle_rotary(reader);

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

/* transformers' own where config.json has none. */
static const RpRope ministral3_rope = {
    .type = RP_ROPE_YARN,
    .theta = 1e6,
    .factor = 16,
    .original_max_positions = 16384,
    .beta_fast = 32,
    .beta_slow = 1,
    .attention_factor = 1,
    .truncate = TRUE,
    .query_beta = 0.1,
};
#define MELLUM_FULL_THETA 5e5
#define MELLUM_SLIDING_THETA 1e4

/* Queries that are scaled by their position. */
static gboolean
settle_query_beta(RpConfigReader *reader, const RpArchitectureRow *row)
{
    const RpRope *rope = &reader->raw.config.rope;

    if (!row->scales_queries && rope->query_beta > 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, "llama_4_scaling_beta",
                              "expected nothing, since %s does not read it, found %g", row->hf_name,
                              rope->query_beta);
    if (!row->scales_queries)
        return TRUE;
    if (rope->type != RP_ROPE_YARN)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, reader->raw.rope_key,
                              "expected yarn for %s, found %s", row->hf_name,
                              rp_rope_type_name(rope->type));
    return rope->query_beta > 0 ||
           rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, reader->raw.rope_key,
                          "expected llama_4_scaling_beta, found nothing");
}

/* The rope of blocks of @kind, as if it were that of all. */
static gboolean
settle_kind(RpConfigReader *reader, guint kind)
{
    RpConfigRaw *raw = &reader->raw;
    const RpConfigRope *of = &raw->kinds[kind];

    if (!of->given)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_VALUE, raw->rope_key,
                              "expected a rope for \"%s\", found nothing", kind_names[kind]);
    if (of->rope.type == RP_ROPE_DYNAMIC || of->rope.type == RP_ROPE_LONGROPE)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, raw->rope_key,
                              "expected default, linear, llama3 or yarn for \"%s\", found %s",
                              kind_names[kind], rp_rope_type_name(of->rope.type));
    raw->config.rope = of->rope;
    raw->nested_theta = of->theta;
    raw->mscale = of->mscale;
    raw->mscale_all_dim = of->mscale_all_dim;
    return settle_one(reader);
}

/* A rope for blocks with a window, another for those without. */
static gboolean
settle_kinds(RpConfigReader *reader, const RpArchitectureRow *row)
{
    RpConfigRaw *raw = &reader->raw;
    RpModel *c = &raw->config;

    c->has_sliding_rope = TRUE;
    if (raw->rope_key == NULL) {
        c->rope = (RpRope){.theta = MELLUM_FULL_THETA};
        c->sliding_rope = (RpRope){.theta = MELLUM_SLIDING_THETA};
        return TRUE;
    }
    if (raw->rope_type >= 0 || raw->nested_theta > 0 || raw->old_rope_type >= 0)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, raw->rope_key,
                              "expected ropes for \"full_attention\" and \"sliding_attention\" of "
                              "%s, found one for all layers",
                              row->hf_name);
    if (!settle_kind(reader, RP_CONFIG_SLIDING))
        return FALSE;
    c->sliding_rope = c->rope;
    return settle_kind(reader, RP_CONFIG_FULL) && settle_query_beta(reader, row);
}

gboolean
rp_config_settle_rope(RpConfigReader *reader)
{
    RpConfigRaw *raw = &reader->raw;
    const RpArchitectureRow *row = &rp_architectures[raw->config.architecture];

    if (row->ropes_by_kind)
        return settle_kinds(reader, row);
    if (raw->kinds[RP_CONFIG_FULL].given || raw->kinds[RP_CONFIG_SLIDING].given)
        return rp_config_fail(reader, RP_HF_CONFIG_ERROR_UNSUPPORTED, raw->rope_key,
                              "expected one rope for all layers of %s, found one for each kind",
                              row->hf_name);
    if (raw->rope_key == NULL && row->scales_queries && raw->rope_theta == 0)
        raw->config.rope = ministral3_rope;
    else if (!settle_one(reader))
        return FALSE;
    return settle_query_beta(reader, row);
}
