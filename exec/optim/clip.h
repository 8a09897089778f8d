/**
 * Clipping by the global norm of the gradients, from each layer's sum of squares.
 */
#pragma once

#include <glib.h>

typedef struct {
    double norm;        /* norm of all gradients, unscaled, before clipping */
    double coefficient; /* factor of gradients besides the unscaling; <= 1 */
    gboolean finite;    /* FALSE: a gradient is infinite or NaN; do not step */
} RpClip;

/**
 * rp_clip_by_norm:
 * @sum_squares: each layer's sum of squares of its gradients as stored; added in this order
 * @n_layers: number of sums
 * @unscale: factor from stored gradients to true ones: 1 / (loss scale * tokens)
 * @max_norm: the norm to clip to; 0: no clipping
 *
 * Returns: norm and coefficient
 * Source: torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6))
 */
RpClip rp_clip_by_norm(const double *sum_squares, gsize n_layers, double unscale, double max_norm);
