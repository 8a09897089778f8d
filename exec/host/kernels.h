/**
 * The kernel table of the host: fp32 arithmetic in plain C, OpenBLAS for matmul; storage fp32, bf16
 * or fp16. The oracle of every other table. Each call runs on the calling thread alone, so that
 * its bits depend on nothing but its arguments; virtual devices are as many threads that call.
 */
#pragma once

#include "exec/model/kernels.h"

/**
 * rp_host_kernels:
 *
 * The first call sets OpenBLAS to one thread, for the whole process: its own threads would compete
 * with the devices', and divide sums by their number. Nobody else in the process may change that.
 *
 * Streams are NULL. Nothing fails: `check` is always %TRUE.
 */
const RpKernels *rp_host_kernels(void);

/* Address space of a thread that multiplies: OpenBLAS's buffer, of which it touches what it needs.
 */
#define RP_HOST_MATMUL_BUFFER_BYTES ((gsize)129 << 20)

/**
 * rp_host_reserve_matmul:
 * @threads: that will multiply at one time
 *
 * Takes what their matmuls map. Without it they wait for ever where it cannot be had.
 *
 * Returns: for how many it was there; less than @threads: no more may multiply at one time
 */
guint rp_host_reserve_matmul(guint threads);
