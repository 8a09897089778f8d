/**
 * The fastest of the algorithms that a library proposes for a matmul, for each shape that a model
 * has, as they were timed. A shape that is not listed uses the library's first proposal.
 */
#pragma once

#include <glib.h>

#define RP_MATMUL_MOST_WAYS 8 /* for a shape, the first included */

/* Names of RpMatmulForm (exec/kernels/args.h), in its order; the last is NULL. */
extern const char *const rp_matmul_forms[];

/* The shape, and the algorithm. Forms and storages are those of exec/kernels/args.h. */
typedef struct {
    guint form;    /* NT, NN, TN */
    guint a, b, c; /* RpDtype */
    guint64 m, n, k;
    guint64 a_stride; /* from a row of A to the next; 0: no gaps */
    gboolean bias;    /* one is added */
    guint way;        /* 0: the library's first proposal; less than RP_MATMUL_MOST_WAYS */
} RpMatmulWay;

/* Whether it is the same shape, whatever the algorithm. */
gboolean rp_matmul_way_is_of(const RpMatmulWay *a, const RpMatmulWay *b);
