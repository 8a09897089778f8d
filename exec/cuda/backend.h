/**
 * The CUDA backend: GPUs driven by streams and events. Without CUDA (exec/cuda/module/none.c) there
 * is none, and callers need no #ifdef.
 *
 *   host arena      one mapping; its copied parts (weights, gradients, activations, staging) are
 *                   pinned, optimizer state is not
 *   device arena    one allocation of exactly the plan's bytes
 *   beside it       8 T bytes: targets and their rows (T tokens of a micro-batch), of a preference
 *                   20 T, with its documents; 8 bytes, or 112, for each loss that can be under way
 *                   (16 iterations of M micro-batches); pinned memory for token ids and targets
 *                   that go up
 *
 * Errors are RP_DEVICE_ERROR_* (exec/device/error.h), with the device and CUDA's text.
 */
#pragma once

#include "exec/device/device.h"

/* %NULL without CUDA, or where it cannot be loaded (exec/cuda/module/load.c). */
const RpDeviceOps *rp_cuda_devices(void);

/* The reason for which rp_cuda_devices() is %NULL, and its remedy. %NULL: it is not */
const char *rp_cuda_missing_text(void);

/* ---- of the backend itself: not where it is a module ---- */

/* For tests on few GPUs: device g of a plan is GPU g modulo the number of GPUs. */
const RpDeviceOps *rp_cuda_shared_devices(void);

/* By how much times of events may be off, beside the half microsecond that CUDA resolves and 2^-24
 * of the time that an event was under way (exec/cuda/clock.h). */
gint64 rp_cuda_backend_clock_error_ns(const RpBackend *backend);
