/**
 * Shared by hf-config*.c: the values as they stand in the file, and the table of keys.
 *
 *   hf-config-keys.c    the table: a row for each key, with its fate, and the rows' readers
 *   hf-config-rope.c    rope_scaling and rope_parameters
 *   hf-config-blocks.c  which blocks have a window, which have rope; sizes of mixtures of experts;
 *                       refusals, and readers of values of which few are taken
 *   hf-config.c         the meaning of the values together
 *   hf-config-write.c   back into a file
 */
#pragma once

#include "core/json/json-record.h"
#include "exec/model/hf-config.h"

#define RP_CONFIG_MAX_SIZE (1u << 24)      /* limit of any dimension, and of a token's number */
#define RP_CONFIG_MAX_POSITIONS (1u << 30) /* tokens */
#define RP_CONFIG_MAX_BLOCKS 65536
#define RP_CONFIG_MAX_NUMBER 1e15
#define RP_CONFIG_MAX_DELTA 4096 /* heads of DeltaNet, and their sizes */
#define RP_CONFIG_MAX_KERNEL 16

/* A list of blocks, a bit each. */
typedef struct {
    guint n; /* 0 = not given */
    guint8 bits[RP_CONFIG_MAX_BLOCKS / 8];
} RpConfigBlocks;

/* The rope of a kind of blocks, as a kind of layer_types names it. */
typedef struct {
    gboolean given;
    RpRope rope;
    double theta, mscale, mscale_all_dim; /* 0 = not given */
} RpConfigRope;
enum { RP_CONFIG_FULL, RP_CONFIG_SLIDING, RP_CONFIG_KINDS };

typedef struct {
    RpModel config;
    int architecture; /* -1 = not given */
    int model_type;   /* -1; so the next */
    int text_type;
    int rope_type;
    int old_rope_type;
    int tied;
    int attention_bias;
    gboolean null_head_dim;
    gboolean outer_class,
        outer_type; /* architecture, model_type: of the larger model, RpArchitectureRow.outer_name */
    gboolean has_text, in_text;         /* text_config was read; is being read */
    double rotary, nested_rotary;       /* partial_rotary_factor, of a rope; 0 = not given */
    guint full_interval;                /* full_attention_interval; likewise */
    guint outer_original_max_positions; /* beside the rope's object; 0 = not given */
    double rope_theta;                  /* 0 = not given; so the next four */
    double nested_theta;
    double mscale, mscale_all_dim;
    double rms_norm_eps;
    guint n_short, n_long; /* numbers of short_factor and long_factor */
    const char *rope_key;  /* "rope_scaling" or "rope_parameters", where one is not null */
    RpConfigRope kinds[RP_CONFIG_KINDS];
    gboolean in_kind; /* one of them is being read */

    gboolean use_sliding_window;
    gboolean null_window;
    guint window; /* 0 = not given */
    guint max_window_layers;
    RpConfigBlocks slides; /* layer_types */
    RpConfigBlocks deltas; /* the same: "linear_attention" */
    RpConfigBlocks ropes;  /* no_rope_layers: 1 is with rope */
    guint no_rope_interval;

    guint experts, local_experts; /* num_experts, num_local_experts; 0 = not given; so the next */
    guint experts_per_tok, experts_per_token;
    guint moe_intermediate;
    int norm_topk;          /* norm_topk_prob; -1 = not given */
    gboolean router_logits; /* output_router_logits */
    double router_aux_loss; /* router_aux_loss_coef; -1 = not given */
    gboolean quantized;     /* quantization_config has a quant_method */
} RpConfigRaw;

#define RP_CONFIG_PAD_ABSENT (-2) /* pad_id before it is read */

typedef struct {
    RpJsonPull pull;
    RpConfigRaw raw;
} RpConfigReader;

/* ---- hf-config-blocks.c: refusals ---- */

/* `FILE: KEY: …`. Returns: FALSE */
gboolean rp_config_fail(const RpConfigReader *reader, RpHfConfigError code, const char *key,
                        const char *format, ...) G_GNUC_PRINTF(4, 5);
/* Sets RP_HF_CONFIG_ERROR_UNSUPPORTED. Returns: FALSE */
gboolean rp_config_fail_unsupported(RpJsonPull *pull, const char *expected);
/* The index in @names, NULL behind the last, of the string that stands next. */
gboolean rp_config_read_choice(RpJsonPull *pull, const char *const *names, int *choice);
/* RpJsonRead: only the values, or the number, that the row expects. */
gboolean rp_config_read_fixed(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_config_read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value);

/* ---- hf-config-keys.c ---- */

/* A name of each architecture, which stands at @member of its row. (transfer container) */
const char **rp_config_architecture_names(gsize member);

/* The object of the file that stands next, into @reader's raw values. */
gboolean rp_config_read(RpConfigReader *reader);

/* ---- hf-config-rope.c ---- */

/* RpJsonRead: the rope's object. */
gboolean rp_config_read_rope(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_config_settle_rope(RpConfigReader *reader);
/* Its rows, and how many there are. */
const RpJsonField *rp_config_rope_fields(guint *n_fields);

/* ---- hf-config-blocks.c ---- */

/* RpJsonRead: layer_types and no_rope_layers. */
gboolean rp_config_read_layer_types(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_config_read_no_rope_layers(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_config_read_mlp_types(RpJsonPull *pull, const RpJsonField *field, gpointer value);
gboolean rp_config_settle_blocks(RpConfigReader *reader);

/* ---- hf-config-blocks.c: experts ---- */

/* RpJsonRead: quantization_config. */
gboolean rp_config_read_quantization(RpJsonPull *pull, const RpJsonField *field, gpointer value);
/* Before the sizes are checked: those of experts, which stand under other keys. */
gboolean rp_config_settle_experts(RpConfigReader *reader);

/* ---- rows ---- */

#define RP_CONFIG_AT(member) G_STRUCT_OFFSET(RpConfigRaw, member)
#define RP_CONFIG_COUNT(key, member, most)                                                         \
    {                                                                                              \
        key, rp_json_read_uint, RP_CONFIG_AT(member), .min = 1, .max = most                        \
    }
#define RP_CONFIG_NUMBER(key, member, null)                                                        \
    {                                                                                              \
        key, rp_json_read_number, RP_CONFIG_AT(member),                                            \
            .null_is_absent = null, .min = G_MINDOUBLE, .max = RP_CONFIG_MAX_NUMBER,               \
            .expected = "a positive number of at most 1e15"                                        \
    }
#define RP_CONFIG_BOOLEAN(key, member)                                                             \
    {                                                                                              \
        key, rp_json_read_boolean, RP_CONFIG_AT(member)                                            \
    }
#define RP_CONFIG_OTHER(key, read, null)                                                           \
    {                                                                                              \
        key, read, .null_is_absent = null                                                          \
    }
#define RP_CONFIG_ROTARY(member)                                                                   \
    {                                                                                              \
        "partial_rotary_factor", rp_json_read_number, RP_CONFIG_AT(member),                        \
            .min = G_MINDOUBLE, .max = 1, .expected = "a positive number of at most 1"             \
    }
#define RP_CONFIG_IGNORED(key, why)                                                                \
    {                                                                                              \
        key, rp_json_read_ignored, .note = why                                                     \
    }
