/**
 * The inside of the CUDA backend.
 *
 *   backend.c     the tables, life, arenas
 *   lane.c        streams, events, waiting, times
 *   copy.c        transfers; pinned copies of the caller's data (token ids, targets)
 *   compute.c     actions, their losses, and which layer broke
 *   host-arena.c  host memory, pinned
 *   clock.c       times of a device on the host's clock
 *   watch.c       whether a run goes on; sees that a device has failed, if nobody else does
 *   runtime.c     CUDA's runtime, which none of the others calls
 *
 * A device has three workers: one issues actions and activations, one uploads of parameters, one
 * downloads of gradients; other threads only look at events. Fields marked as the worker's belong
 * to the first one. The loss of a micro-batch has a stream of its own, so that nobody waits for it:
 *
 *   compute      |----head----|e|------------ next action ...
 *   auxiliary                  e|copy|to the feed|
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "exec/cuda/backend.h"
#include "exec/cuda/clock.h"
#include "exec/cuda/host-arena.h"
#include "exec/cuda/kernels/kernels.h"
#include "exec/cuda/runtime/runtime.h"
#include "exec/device/action.h"
#include "exec/device/error.h"

/* Ids and targets of at most this many micro-batches may be uploading to a device; beyond that its
 * worker waits, as it does while a stream's queue is full. */
#define RP_CUDA_SLOTS 32

typedef struct _RpCuda RpCuda;

/* Pinned memory for 2 T int32, used in turn. */
typedef struct {
    gint32 *memory;
    RpRuntimeEvent *read; /* the device has read it */
    gboolean used;
} RpCudaSlot;

/* One of a plan's devices. */
typedef struct {
    RpCuda *cuda;
    RpRuntimeGpu gpu;
    guint8 *memory;
    guint64 bytes;              /* size of the arena */
    RpRuntimeStream *compute;   /* the compute lane's */
    RpRuntimeStream *auxiliary; /* losses */
    RpRuntimeEvent *head_done;
    void *side; /* device memory beside the arena: its losses, and */
    /* [head_numbers] of the head that runs: targets, their rows if packed, and documents of a preference */
    gint32 *targets;
    guint8 *pinned; /* memory of all slots */
    RpCudaSlot slots[RP_CUDA_SLOTS];
    guint64 n_slots_taken;         /* worker's */
    guint64 n_losses;              /* worker's: heads that were launched */
    _Atomic guint64 n_losses_back; /* losses that the host has, among these */

    RpRuntimeStream *clock_stream; /* anchors alone */
    RpRuntimeEvent *anchors[RP_CUDA_CLOCK_RING];
    pthread_mutex_t clock_lock;
    RpCudaClock clock;
    pthread_mutex_t anchor_lock; /* who makes an anchor; the device's workers take turns */
    _Atomic gint64 next_anchor_ns;
    _Atomic guint64 n_anchors;

    pthread_t watcher;
    gboolean watched;
    GError *unrehearsed; /* why it could not */
} RpCudaDevice;

/* A loss being copied to the host: lives as long as its place in the ring is not used again. */
typedef struct {
    RpCuda *cuda;
    RpCudaDevice *device;
    RpTaskId task;
    guint64 iteration;
    guint32 micro_batch;
    _Atomic gboolean back;
} RpCudaLoss;

struct _RpCuda {
    RpBackend base;
    RpTaskMap map;
    RpDeviceOptions options;
    gsize slot_bytes;
    GArray *unpinned; /* RpCudaSpan of the host arena: optimizer state */
    RpCudaDevice *devices;
    RpCudaHostArena *host;
    RpCudaLoss *calls; /* [RP_BATCH_FEED_RING x M]; map.losses and map.broken are pinned */
    gboolean opened;
    guint n_compute;     /* lanes */
    double load_seconds; /* 0: not yet */
    gboolean stuck;      /* a stream never ends: its data are kept, as it may still use them */
    _Atomic gboolean cancelled;
    pthread_mutex_t watch_lock;
    pthread_cond_t watch_cond; /* waits on the monotonic clock */
    gboolean watch_ends;
};

struct _RpBackendLane {
    RpCuda *cuda;
    RpCudaDevice *device;
    RpLaneKind kind;
    RpRuntimeStream *stream;
};

struct _RpBackendEvent {
    RpCudaDevice *device;
    RpRuntimeEvent *event;
    guint64 anchor;   /* written when it is recorded: the device's last one */
    guint64 n_losses; /* and how many losses it stands for */
};

/* lane.c */
RpBackendLane *rp_cuda_lane_new(RpBackend *backend, guint device, RpLaneKind kind, GError **error);
void rp_cuda_lane_free(RpBackend *backend, RpBackendLane *lane);
RpBackendEvent *rp_cuda_event_new(RpBackend *backend, guint device, GError **error);
void rp_cuda_event_free(RpBackend *backend, RpBackendEvent *event);
gboolean rp_cuda_record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                        GError **error);
gboolean rp_cuda_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                      gint64 delay_ns, GError **error);
gboolean rp_cuda_wait_host(RpBackend *backend, RpBackendEvent *event, GError **error);
gint64 rp_cuda_event_ns(RpBackend *backend, const RpBackendEvent *event);
gint64 rp_cuda_clock_ns(RpBackend *backend);
/* Makes the device's first anchor and its data. */
gboolean rp_cuda_clock_open(RpCuda *cuda, RpCudaDevice *device, GError **error);
void rp_cuda_clock_close(RpCudaDevice *device);

/* watch.c; FALSE with @error once the run was cancelled */
gboolean rp_cuda_go_on(RpCuda *cuda, GError **error);
/* open: with the device's compute lane, close: before any lane is freed, all of them */
gboolean rp_cuda_watch_open(RpCuda *cuda, RpCudaDevice *device, GError **error);
void rp_cuda_watch_close(RpCuda *cuda);

/* copy.c */
gboolean rp_cuda_copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                      GError **error);
gboolean rp_cuda_slots_open(RpCuda *cuda, RpCudaDevice *device, GError **error);
void rp_cuda_slots_close(RpCudaDevice *device);
/* Returns a slot that holds @bytes of @source; waits until one is free. After issuing the reader,
 * record slot->read on its stream. */
RpCudaSlot *rp_cuda_slot_fill(RpCuda *cuda, RpCudaDevice *device, const void *source, gsize bytes,
                              GError **error);

/* compute.c; rehearse: all devices, with their compute lanes, before anything else, once */
gboolean rp_cuda_rehearse(RpCuda *cuda, GError **error);
/* Until the host has all losses of @iteration, whose heads were launched; or the run was cancelled. */
void rp_cuda_await_losses(RpCuda *cuda, guint64 iteration);
gboolean rp_cuda_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                        RpTaskPart part, GError **error);
