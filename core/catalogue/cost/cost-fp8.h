/**
 * Memory traffic that linear layers in fp8 (`matmul: fp8`, exec/network/operand.c) add to their
 * matmuls: each tensor that they read is read and written as fp8 values, and once more transposed
 * for weight gradients. Most kernels record the amax of the tensor that they make; attention's
 * output and arriving gradients are read once more to find it.
 */
#pragma once

#include "core/catalogue/model.h"

/* Bytes of a 16-bit element whose amax is known. @transposed: the transposed copy is written, too */
double rp_cost_fp8_element_bytes(gboolean transposed);
/* Bytes a token of a block. */
double rp_cost_fp8_forward_bytes(const RpModel *model);
/* @trained: weights have gradients; else they are frozen. */
double rp_cost_fp8_backward_bytes(const RpModel *model, gboolean trained);
