/**
 * RpKernels: the operations that the layers are written over, once (design.md §6, §8). exec/host
 * has the oracle: plain C, fp32 arithmetic, OpenBLAS for matmul. docs/kernels.md says how exact
 * they are.
 *
 * Nothing allocates or waits. An operation that fails leaves the failure in its stream, where
 * `check` finds it.
 */
#pragma once

#include <glib.h>

#include "exec/kernels/args.h"

/* The stream in which operations are issued, in order. Each backend has its own; NULL for the host,
 * which runs them at once on the calling thread. */
typedef struct _RpKernelStream RpKernelStream;

#define RP_KERNELS_ERROR (rp_kernels_error_quark())
GQuark rp_kernels_error_quark(void);
typedef enum { RP_KERNELS_ERROR_FP8 } RpKernelsError;

/* "builtin", "cudnn". */
const char *rp_attention_name(RpAttentionChoice choice);
/* @choice: (out): set on success only. Returns: whether @name is one */
gboolean rp_attention_from_name(const char *name, RpAttentionChoice *choice);

/* Fields of a row. */
#define RP_KERNEL_FIELD(name, Args, words) void (*name)(RpKernelStream * stream, const Args *args);
#define RP_KERNEL_FIELDS(name, Args, words)                                                        \
    size_t (*name##_workspace)(const Args *args);                                                  \
    RP_KERNEL_FIELD(name, Args, words)

/**
 * RpKernels:
 * @has_attention: built in, and its library is there
 * @check_fp8: whether fp8 matmuls run on the first @devices. Errors: RP_KERNELS_ERROR_FP8,
 *   naming the device
 * @matmul_library: (nullable): which library proposes RpMatmulArgs.way, its version, and for which device.
 *   (transfer full). NULL where there is only one variant
 * @check: Returns: whether all work so far could be issued to @stream; reports a failure once. Does
 *   not wait. Errors: the backend's, naming the operation
 *
 * One backend's operations. Constant, and usable from several threads, a stream each.
 */
typedef struct {
    const char *name;
    gboolean (*has_attention)(RpAttentionChoice choice);
    gboolean (*check_fp8)(guint devices, GError **error);
    char *(*matmul_library)(void);
    gboolean (*check)(RpKernelStream *stream, GError **error);
    RP_KERNELS(RP_KERNEL_FIELD, RP_KERNEL_FIELDS)
} RpKernels;
