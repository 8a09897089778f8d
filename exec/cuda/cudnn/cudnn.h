/**
 * Attention by cuDNN 9, in place of the built-in kernels where it can: all sequences of one length
 * of 64 or more, bf16 or fp16, D of 64 or 128, scale > 0, arrays at multiples of 16 bytes.
 * Formulas, layouts and meaning are those of RpAttentionArgs; lse is the same, so that one may do
 * forward and the other backward.
 *
 * Whether cuDNN runs depends on sizes, alignment, the library and the GPU, never on values. Two
 * runs give the same bits; a sequence alone and in a batch need not.
 *
 * Backward keeps dS whole, so it runs in parts of at most `most_ds_bytes` of it, in the workspace
 * of one part.
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

/* Bytes that cuDNN may use; reads sizes only. 0: it does not do this shape, or needs none */
size_t rp_cudnn_workspace(const RpAttentionArgs *args, gboolean backward);

/**
 * rp_cudnn_attend:
 * @args: its workspace is of rp_cudnn_workspace() bytes, at a multiple of 64
 *
 * Builds a plan the first time that a shape is seen, which may take a second; after that neither
 * allocates on the GPU nor waits.
 *
 * Returns: whether it did the work; if not, the built-in kernels have to
 */
gboolean rp_cudnn_attend(RpCudnn *cudnn, const RpAttentionArgs *args, gboolean backward);

/* Number of times that it did the work, in any number of parts. */
guint64 rp_cudnn_runs(const RpCudnn *cudnn);
/* Why it last did not, with the step and cuDNN's text; NULL if it always did. */
const char *rp_cudnn_reason(const RpCudnn *cudnn);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCudnn, rp_cudnn_free)
