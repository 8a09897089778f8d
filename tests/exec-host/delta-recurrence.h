/**
 * The gated delta rule token by token, in double, with its gradients: the oracle of tests of its kernels, which compute
 * it in chunks.
 */
#pragma once

#include "tests/exec-host/host-fixture.h"

typedef struct {
    size_t key_heads, value_heads, key_dim, value_dim;
} DeltaSizes;

/* Inputs, outputs and gradients of one call. */
typedef struct {
    RpDeltaArgs args;
    Array qkv, b, a, log, bias, d_out, out, d_qkv, d_b, d_a, d_log, d_bias;
    double *want_out, *want_qkv, *want_b, *want_a, *want_log, *want_bias;
} DeltaCase;

/* Random inputs of sequences that begin at @starts; want_... are zeros, want_log and want_bias what their sums begin with. */
DeltaCase delta_case(RpDtype dtype, const DeltaSizes *z, const gint32 *starts, size_t sequences);
/* Computes want_... */
void delta_want(const DeltaCase *c);
double delta_dot(const double *x, const double *y, size_t n);
