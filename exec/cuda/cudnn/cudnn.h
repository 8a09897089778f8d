/**
 * Forward of attention by cuDNN 9, in place of the built-in kernels where it can: all sequences of one length of 64 or
 * more, bf16 or fp16, D of 64 or 128, scale > 0, arrays at multiples of 16 bytes. Formulas, layouts and meaning are
 * those of RpAttentionArgs; lse is the same, so that the built-in backward reads it.
 *
 * Whether cuDNN runs depends on sizes, alignment, the library and the GPU, never on values. Two runs give the same
 * bits; a sequence alone and in a batch need not.
 *
 * cudnn.c, or cudnn-none.c where cuDNN was not found.
 */
#pragma once

#include <glib.h>

#include "exec/cuda/runtime/runtime.h"
#include "exec/kernels/args.h"

typedef struct _RpCudnn RpCudnn;

/* Whether the library and the parts that it loads are there. */
gboolean rp_cudnn_available(void);

/* Serves one stream of the current device; opens cuDNN on first use. */
RpCudnn *rp_cudnn_new(RpRuntimeStream *stream);
void rp_cudnn_free(RpCudnn *cudnn);

/* Bytes that cuDNN may use; reads sizes only. 0: it does not do this shape */
size_t rp_cudnn_workspace(const RpAttentionArgs *args);

/**
 * rp_cudnn_attend:
 * @args: its workspace is of rp_cudnn_workspace() bytes, at a multiple of 64
 *
 * Builds a plan the first time that a shape is seen, which may take a second; after that neither allocates on the GPU
 * nor waits.
 *
 * Returns: whether it did the work; if not, the built-in kernels have to
 */
gboolean rp_cudnn_attend(RpCudnn *cudnn, const RpAttentionArgs *args);

/* Number of times that it did the work. */
guint64 rp_cudnn_runs(const RpCudnn *cudnn);
/* Why it last did not, with the step and cuDNN's text; NULL if it always did. */
const char *rp_cudnn_reason(const RpCudnn *cudnn);
