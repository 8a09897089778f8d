/**
 * Shared by weights*.c, and private to them.
 */
#pragma once

#include "exec/model/weights.h"

struct _RpWeights {
    RpModel model;
    GStringChunk *names;
    GArray *list;            /* (element-type RpWeight) */
    GArray *firsts;          /* (element-type guint): first weight of each layer, and the end */
    RpWeightOrigin *origins; /* as long as @list; NULL before binding */
    GPtrArray *own;          /* (element-type void): parts of tensors, packed sources, and maps */
    RpDtype dtype;
    guint64 seed;     /* seed of weights that are made */
    RpLora lora;      /* rank 0: no adapters */
    GMutex base_lock; /* guards the next two */
    char *base_hash;  /* or NULL */
    char *base_values;
    gboolean keeps_hash;
    const char *base_format; /* rp_weights_base_format() */
};

/* Replaces the tensors bound before by those that were found. All are transferred. */
void rp_weights_take(RpWeights *weights, RpWeightOrigin *origins, GPtrArray *own, RpDtype dtype);
