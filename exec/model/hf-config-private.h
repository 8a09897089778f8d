/**
 * What hf-config*.c share: the values as they stand in the file, and the table of keys.
 *
 *   hf-config-keys.c   the table: a row for each key, with its fate
 *   hf-config-read.c   one pass over the text by that table
 *   hf-config.c        what the values mean together
 */
#pragma once

#include "core/json/json-pull.h"
#include "exec/model/hf-config.h"

#define RP_CONFIG_MAX_SIZE (1u << 24)      /* of any dimension, and of a token's number */
#define RP_CONFIG_MAX_POSITIONS (1u << 30) /* tokens */
#define RP_CONFIG_MAX_BLOCKS 65536

typedef struct {
    RpModel config;
    int architecture; /* -1 = not given */
    int model_type;   /* -1 */
    int rope_type;    /* -1; so the next */
    int old_rope_type;
    gboolean null_head_dim;
    guint n_layer_types;
    guint outer_original_max_positions; /* beside the rope's object; 0 = not given */
    double rope_theta;                  /* 0 = not given; so the next */
    double nested_theta;
    const char *rope_key; /* "rope_scaling" or "rope_parameters", where one is not null */
} RpConfigRaw;

typedef struct {
    RpJsonPull pull;
    GString *text;
    RpConfigRaw raw;
} RpConfigReader;

typedef enum {
    RP_CONFIG_SKIP,     /* ignored: any value */
    RP_CONFIG_FIXED,    /* refused unless it is one of the values in the row */
    RP_CONFIG_EXACTLY,  /* refused unless it is the number in the row */
    RP_CONFIG_COUNT,    /* a whole number from 1 to the row's maximum */
    RP_CONFIG_POSITIVE, /* a number */
    RP_CONFIG_BOOLEAN,
    RP_CONFIG_OTHER /* by a function */
} RpConfigFieldType;

typedef struct _RpConfigField RpConfigField;
typedef gboolean (*RpConfigReadField)(RpConfigReader *reader, const RpConfigField *field);

struct _RpConfigField {
    RpConfigKey key;
    RpConfigFieldType type;
    gsize offset; /* in RpConfigRaw */
    guint max;    /* of a count */
    gboolean null_is_absent;
    RpConfigReadField read;
};

/* The row of @name, in the rope's object or outside; %NULL if the table has none. */
const RpConfigField *rp_config_field(const char *name, gboolean in_rope);

/* A name of each architecture that runs, which stands at @member of its row. (transfer container) */
const char **rp_config_architecture_names(gsize member);

/* ---- hf-config-read.c ---- */

/* The whole text, into @reader's raw values. */
gboolean rp_config_read(RpConfigReader *reader);

gboolean rp_config_read_architectures(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_model_type(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_activation(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_dtype(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_head_dim(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_bos(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_pad(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_eos(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_layer_types(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_rope(RpConfigReader *reader, const RpConfigField *field);
gboolean rp_config_read_rope_type(RpConfigReader *reader, const RpConfigField *field);
