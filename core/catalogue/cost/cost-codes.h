/**
 * What linear layers of 8-bit codes (`matmul: fp8`) move beside their matmuls: each tensor that they read
 * is looked at for its largest magnitude, then read and written as codes, and for weight gradients
 * once more the other way round.
 */
#pragma once

#include "core/catalogue/model.h"

/* Bytes a token of a block. */
double rp_cost_codes_forward_bytes(const RpModel *model);
/* @trained: weights have gradients; else they are frozen. */
double rp_cost_codes_backward_bytes(const RpModel *model, gboolean trained);
