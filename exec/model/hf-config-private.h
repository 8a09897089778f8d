/**
 * What hf-config*.c share: the values as they stand in the file, and the table of keys.
 *
 *   hf-config-keys.c   the table: a row for each key, with its fate, and the rows' readers
 *   hf-config.c        what the values mean together
 */
#pragma once

#include "core/json/json-record.h"
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
    RpConfigRaw raw;
} RpConfigReader;

/* A name of each architecture that runs, which stands at @member of its row. (transfer container) */
const char **rp_config_architecture_names(gsize member);

/* The object of the file that stands next, into @reader's raw values. */
gboolean rp_config_read(RpConfigReader *reader);
