/**
 * The kernel table of the host: fp32 arithmetic in plain C, OpenBLAS for matmul; storage fp32, bf16
 * or fp16. The oracle of every other table. Each call runs on the calling thread alone, so that
 * its bits depend on nothing but its arguments; virtual devices are as many threads that call.
 */
#pragma once

#include "exec/kernels/kernels.h"
#include "exec/measure/probe.h"

/**
 * rp_host_kernels:
 *
 * The first matmul, or attention, loads OpenBLAS, unless rp_host_reserve_matmul() has, and aborts
 * where it cannot. OpenBLAS is set to one thread then, for the whole process: its own threads would
 * compete with the devices', and divide sums by their number. Nobody else in the process may change
 * that.
 *
 * Streams are NULL. Nothing fails: `check` is always %TRUE.
 */
const RpKernels *rp_host_kernels(void);

/* Address space of a thread that multiplies: OpenBLAS's buffer, of which only a part is touched.
 */
#define RP_HOST_MATMUL_BUFFER_BYTES ((gsize)129 << 20)

/**
 * rp_host_reserve_matmul:
 * @threads: number that will multiply at one time
 * @n: (out): number for which there was memory; if it is less than @threads, no more may multiply
 * at one time
 *
 * Loads OpenBLAS and takes the memory that matmuls map. Otherwise they would wait for ever where
 * there is none.
 *
 * Returns: whether OpenBLAS is loaded
 * Errors: %G_FILE_ERROR_NOENT if it cannot be: the reason, and the package to install
 */
gboolean rp_host_reserve_matmul(guint threads, guint *n, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @device: any; they are all alike. Free with rp_probe_free(). Errors:
 * G_IO_ERROR_NO_SPACE: no memory for a matmul */
RpProbe *rp_host_probe_new(guint device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
