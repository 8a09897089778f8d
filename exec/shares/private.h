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
    /* with several servers */
    float **sums;    /* [n_layers]: of the own share, and behind rp_shard_most() of the tied one */
    double *squares; /* squares of all blocks */
    gsize *first_square;   /* [n_layers + 1] */
    guint8 *received;      /* part of a layer: from each server each round */
    guint8 *narrow;        /* the part to send, where gradients are wider */
    gsize space_bytes;     /* size of each of the two */
    const void **added;    /* [count * n_rounds] */
    RpServersBlock *sends; /* [count * n_rounds] */
    RpServersBlock *receives;
    double *told;   /* numbers of all servers, then squares of their shares */
    gsize *offsets; /* [count + 1] bytes */
};
