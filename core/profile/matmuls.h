/**
 * The fastest of the algorithms that a library proposes for a matmul, for each shape that a model
 * has, as they were timed. A shape that is not listed uses the library's first proposal.
 */
#pragma once

#include <glib.h>

#define RP_MATMUL_MAX_VARIANTS 8 /* for a shape, the first included */

/* Names of RpMatmulLayout (exec/kernels/args.h), in its order; the last is NULL. */
extern const char *const rp_matmul_layouts[];

/* The shape, and the algorithm. Forms and storages are those of exec/kernels/args.h. */
typedef struct {
    guint form;    /* NT, NN, TN */
    guint a, b, c; /* RpDtype */
    guint64 m, n, k;
    guint64 a_stride; /* from a row of A to the next; 0: no gaps */
    gboolean bias;    /* one is added */
    guint variant;    /* 0: the library's first proposal; less than RP_MATMUL_MAX_VARIANTS */
} RpMatmulVariant;

/* Whether it is the same shape, whatever the algorithm. */
gboolean rp_matmul_variant_is_of(const RpMatmulVariant *a, const RpMatmulVariant *b);
