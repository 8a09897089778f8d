/**
 * What linear layers of 8-bit codes (`matmul: fp8`, exec/network/operand.c) move beside their matmuls:
 * each tensor that they read is read and written as codes, and for weight gradients once more the
 * other way round. Kernels that make it note its largest magnitude, but for attention and gradients
 * that arrive: these are looked at first.
 */
#pragma once

#include "core/catalogue/model.h"

/* Bytes of an element of 16 bits whose magnitude is known. @turned: both ways round */
double rp_cost_codes_element_bytes(gboolean turned);
/* Bytes a token of a block. */
double rp_cost_codes_forward_bytes(const RpModel *model);
/* @trained: weights have gradients; else they are frozen. */
double rp_cost_codes_backward_bytes(const RpModel *model, gboolean trained);
