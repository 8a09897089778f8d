/**
 * What the files of shares share.
 *
 *   shares.c    places, sums, squares, weights
 *   state.c     the optimizer's state of whole layers
 */
#pragma once

#include "exec/shares/shares.h"

struct _RpShares {
    RpSharesOptions options;
    guint rank, count;
    RpShareLayer *layers;
    float **sums;       /* [n_layers]: of the own share, and behind them of the tied matrix */
    guint8 *received;   /* of a layer: from each server each round, the own share, and the tied */
    guint8 *narrow;     /* of a layer: in the dtype that is sent; %NULL: gradients have that */
    const void **added; /* [count * n_rounds] */
    RpServersBlock *sends; /* [2 * count * n_rounds] */
    RpServersBlock *receives;
    double *blocks; /* of all servers: numbers, then sums of squares of their shares' blocks */
    gsize *offsets; /* [count + 1] bytes */
};
