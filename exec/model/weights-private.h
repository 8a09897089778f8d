/**
 * What weights.c, weights-bind.c and weights-read.c share. Private to them.
 */
#pragma once

#include "exec/model/weights.h"

struct _RpWeights {
    RpModel model;
    GStringChunk *names;
    GArray *list;                /* (element-type RpWeight) */
    GArray *firsts;              /* (element-type guint): first weight of each layer, and the end */
    const RpSafetensor **source; /* as long as @list; NULL before binding */
    RpLowbitSource **packed;     /* the same: of those that are packed */
    RpAdapterMap **map;          /* the same: of adapters of experts */
    GPtrArray *own; /* (element-type void): parts of tensors, packed sources, and maps */
    RpDtype dtype;
    RpLora lora;               /* rank 0: no adapters */
    const RpSafetensor **base; /* sources of the base, as bound; NULL before */
    GMutex base_lock;          /* of the next two */
    char *base_hash;           /* or NULL */
    char *base_layers;
    gboolean keeps_hash;
    const char *base_format; /* rp_weights_base_format() */
};
