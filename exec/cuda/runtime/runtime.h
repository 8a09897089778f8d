/**
 * The GPU runtime, as far as the backend needs it: devices, memory, streams, events and copies.
 * Except for kernels, CUDA is called in runtime.c and nowhere else, so that another vendor's GPUs
 * need only another implementation of this header, and kernels.
 *
 * Functions that return gboolean set @error, RP_DEVICE_ERROR_*, with the device, the call and the
 * runtime's text: "device 1: cudaMalloc: out of memory (cudaErrorMemoryAllocation)". Streams,
 * events and memory are of the device that is the calling thread's: rp_runtime_use().
 */
#pragma once

#include "exec/cuda/runtime/device.h"

/* The runtime's own. */
typedef struct CUstream_st RpRuntimeStream;
typedef struct CUevent_st RpRuntimeEvent;

typedef struct {
    guint index;  /* the plan's: of messages */
    int physical; /* the runtime's */
} RpRuntimeGpu;

/* State of the work issued to a stream, or before an event. */
typedef enum { RP_RUNTIME_DONE, RP_RUNTIME_BUSY, RP_RUNTIME_FAILED } RpRuntimeState;

/* Makes @gpu the calling thread's. */
gboolean rp_runtime_use(const RpRuntimeGpu *gpu, GError **error);

/* ---- memory ---- */

gboolean rp_runtime_take(const RpRuntimeGpu *gpu, guint64 bytes, void **memory, GError **error);
void rp_runtime_give(void *memory);
/* All bytes are there on return: streams do not wait for copies that are not their own. */
gboolean rp_runtime_clear(const RpRuntimeGpu *gpu, void *memory, guint64 bytes, GError **error);
gboolean rp_runtime_upload(const RpRuntimeGpu *gpu, void *to, const void *from, guint64 bytes,
                           GError **error);
gboolean rp_runtime_memory(const RpRuntimeGpu *gpu, gsize *free_bytes, gsize *total_bytes,
                           GError **error);

/* Pinned memory of the host, which every device reaches by the same address. */
gboolean rp_runtime_take_pinned(const RpRuntimeGpu *gpu, guint64 bytes, void **memory,
                                GError **error);
void rp_runtime_give_pinned(void *memory);
/* Pins memory that was touched. Returns: (nullable): why it could not, in the runtime's words */
const char *rp_runtime_pin(void *memory, guint64 bytes);
const char *rp_runtime_unpin(void *memory);

/* ---- streams ---- */

/* @urgent: goes first where streams share the device. */
gboolean rp_runtime_stream_new(const RpRuntimeGpu *gpu, gboolean urgent, RpRuntimeStream **stream,
                               GError **error);
/* NULL: nothing happens */
void rp_runtime_stream_free(RpRuntimeStream *stream);
/* @what: the failed work, for the message. @error: (nullable) */
RpRuntimeState rp_runtime_stream_state(const RpRuntimeGpu *gpu, RpRuntimeStream *stream,
                                       const char *what, GError **error);
gboolean rp_runtime_stream_finish(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, GError **error);
/* @up: from pinned memory to the device; else back. Within one piece of either. */
gboolean rp_runtime_copy(const RpRuntimeGpu *gpu, void *to, const void *from, guint64 bytes,
                         gboolean up, RpRuntimeStream *stream, GError **error);
/* Lets copies of the card's other parts go before the next one in @stream; nothing if the device is a whole card. A
 * stream that is always ready keeps a copy engine to itself: parts waited for 450 ms while one saved tensors. Cards
 * behind one root share its link fairly. */
gboolean rp_runtime_pass_turn(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, GError **error);
/* Calls @function on a thread of the runtime's, where the runtime may not be called. */
gboolean rp_runtime_call(const RpRuntimeGpu *gpu, RpRuntimeStream *stream,
                         void (*function)(void *data), void *data, GError **error);

/* ---- events ---- */

gboolean rp_runtime_event_new(const RpRuntimeGpu *gpu, gboolean timed, RpRuntimeEvent **event,
                              GError **error);
void rp_runtime_event_free(RpRuntimeEvent *event);
gboolean rp_runtime_record(const RpRuntimeGpu *gpu, RpRuntimeEvent *event, RpRuntimeStream *stream,
                           GError **error);
/* @stream: of @gpu; @event: of it or of another device, @foreign, for the message */
gboolean rp_runtime_wait(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, RpRuntimeEvent *event,
                         gboolean foreign, GError **error);
RpRuntimeState rp_runtime_event_state(const RpRuntimeGpu *gpu, RpRuntimeEvent *event,
                                      const char *what, GError **error);
/* Time between two timed events, both of which have happened. */
gboolean rp_runtime_elapsed_ns(const RpRuntimeGpu *gpu, RpRuntimeEvent *from, RpRuntimeEvent *to,
                               double *ns, GError **error);
