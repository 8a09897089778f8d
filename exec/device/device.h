/**
 * A trainer's devices: threads of the host, or GPUs. A backend's operations for training, beside
 * the engine's; one table a backend.
 */
#pragma once

#include "core/profile/cards.h"
#include "exec/device/batch-feed.h"
#include "exec/device/host-state.h"
#include "exec/engine/backend.h"
#include "exec/measure/probe.h"

typedef struct {
    guint64 memory_bytes; /* limit of a device's arena; 0 = its memory */
    /* (nullable) (array): factors of devices on threads: after an action each rests until it has
     * taken its factor times as long; borrowed */
    const RpSlow *slow;
} RpDeviceOptions;

/* Times of preparing host memory for copies of devices, and devices for the first step; all zero:
 * they were not prepared, or not yet. */
typedef struct {
    guint64 arena_bytes;
    guint64 pinned_bytes;
    guint threads;
    double seconds;       /* from the start until all was pinned; other work runs meanwhile */
    double touch_seconds; /* sum over threads */
    double pin_seconds;   /* sum over threads */
    /* time after that: each class of layers ran once, so that its kernels are loaded */
    double load_seconds;
} RpPinnedMemory;

/* Time of compute actions, all devices', so far. On threads of a machine that others use too, the
 * first is more than the second: for the rest they waited for a processor. */
typedef struct {
    gint64 elapsed_ns;
    gint64 processor_ns;
} RpActionTime;

/**
 * RpDeviceOps:
 * @host_memory: devices live in host memory: their arenas count there
 * @backend_new: all but @options borrowed. Stages and fixed buffers of @plan are read now.
 *   Its open_arenas() also attaches the host's state: once, before the engine is made
 * @pinned: (nullable): of the host's arena; known once the engine has been made. NULL where nothing
 *   is pinned
 * @action_time: (nullable): while nothing runs. NULL where actions are not on processors
 * @probe_new: to measure a profile with (rp_measure_profile()), on @device; rp_probe_free()
 *
 * Errors: the backend's own
 */
typedef struct {
    const char *name; /* "host" */
    gboolean host_memory;
    const RpKernels *(*kernels)(void);
    RpBackend *(*backend_new)(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state,
                              RpBatchFeed *feed, const RpDeviceOptions *options, GError **error);
    void (*backend_free)(RpBackend *backend);
    RpPinnedMemory (*pinned)(const RpBackend *backend);
    RpActionTime (*action_time)(const RpBackend *backend);
    RpProbe *(*probe_new)(guint device, GError **error);
} RpDeviceOps;

/* Virtual devices on CPU threads (exec/host). */
const RpDeviceOps *rp_host_devices(void);
