/**
 * The kernel table of CUDA: cuBLASLt for matmul, cuDNN for attention on request, hand-written
 * kernels for the rest. Same formulas, shapes and sums as exec/kernels/kernels.h says; held to
 * exec/host by tests.
 */
#pragma once

#include "core/profile/profile.h"
#include "exec/cuda/runtime/runtime.h"
#include "exec/kernels/kernels.h"

/**
 * rp_cuda_kernels:
 *
 * Streams are those of rp_cuda_stream_new(). A launch that fails is left in its stream, where
 * `check` finds it, with the operation's name and CUDA's text.
 */
const RpKernels *rp_cuda_kernels(void);

/* @stream: borrowed; of @device, which must be current in the calling thread whenever the result is
 * used. Holds the matmul plans (cached by shape). One thread at a time.
 * Errors: RP_DEVICE_ERROR_LAUNCH */
RpKernelStream *rp_cuda_stream_new(int device, RpRuntimeStream *stream,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_cuda_stream_free(RpKernelStream *stream);

/* Makes @stream's matmuls take proposal @rank of cuBLASLt's heuristic, best first, @rank below RP_MATMUL_MAX_VARIANTS; a
 * matmul with fewer proposals fails. The rank is 0 unless this is called before the first matmul. */
void rp_cuda_stream_take_rank(RpKernelStream *stream, guint rank);

/* Operations that @part issues to @stream, recorded instead of run, which are then issued all at once: many small ones
 * take less time so. All have run before. Errors: RP_DEVICE_ERROR_LAUNCH, as CUDA words it */
typedef struct _RpCudaRecording RpCudaRecording;
RpCudaRecording *rp_cuda_stream_record(RpKernelStream *stream, void (*part)(gpointer data),
                                       gpointer data, GError **error);
gboolean rp_cuda_stream_replay(RpKernelStream *stream, RpCudaRecording *recording, GError **error);
void rp_cuda_stream_forget(RpCudaRecording *recording);

/* Number of times that cuDNN did attention in @stream, and the reason for which it last left that
 * to the built-in kernels, which is no failure; NULL: it never did. */
guint64 rp_cuda_stream_cudnn_runs(const RpKernelStream *stream);
const char *rp_cuda_stream_cudnn_reason(const RpKernelStream *stream);
