/**
 * Shared by the files of exec/shares/.
 *
 *   shares.c    places, sums, squares, weights
 *   state.c     the optimizer's state, cut into shares
 */
#pragma once

#include "exec/shares/shares.h"

struct _RpShares {
    RpSharesOptions options;
    guint rank, count;
    RpShareLayer *layers;
    /* of several servers */
    float **sums;    /* [n_layers]: of the own share, and behind rp_shard_most() of the tied one */
    double *squares; /* of all blocks */
    gsize *first_square;   /* [n_layers + 1] */
    guint8 *received;      /* of a part of a layer: from each server each round */
    guint8 *narrow;        /* of what is sent, where gradients are wider */
    gsize room_bytes;      /* of each of the two */
    const void **added;    /* [count * n_rounds] */
    RpServersBlock *sends; /* [count * n_rounds] */
    RpServersBlock *receives;
    double *told;   /* of all servers: numbers, then squares of their shares */
    gsize *offsets; /* [count + 1] bytes */
};
