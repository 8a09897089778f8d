/**
 * Lanes for backends whose devices are threads: a queue, a thread that works it off, and events.
 *
 *   worker       push wait, record, run, record ...     blocks while the queue is full
 *   lane         |wait|  |----run----|                  one thread a lane
 *
 * A lane keeps its device's time beside the real one: when its work is over as far as the device is
 * concerned. Backends that compute leave it to follow the real clock. Backends that only let time
 * pass set it (exec/replay), so that late wake-ups of threads do not add up:
 *
 *   device time   |--a--|--b--|--c--|
 *   thread         |--a---|-b---|--c-|       b began late, and is over on time all the same
 *
 * The time of an event is always a real clock read.
 */
#pragma once

#include "exec/engine/backend.h"

typedef struct _RpSoftBackend RpSoftBackend;

/**
 * RpSoftRun:
 * @part: which part of @task; transfers and host tasks: RP_PART_WHOLE
 *
 * Runs a task on the calling thread, a lane's own. Not called any more after it is cancelled.
 */
typedef gboolean (*RpSoftRun)(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                              RpTaskPart part, GError **error);

/* Every backend of soft lanes begins with these fields. */
struct _RpSoftBackend {
    RpBackend base;
    RpBackendOps ops; /* of the base */
    RpSoftRun run;
    struct _RpSoftShared *shared;
};

/* @own: its name, open_arenas and run_host, and a wait in place of rp_soft_wait(); all others are the lanes'. */
void rp_soft_backend_init(RpSoftBackend *backend, const RpBackendOps *own, RpSoftRun run);
void rp_soft_backend_clear(RpSoftBackend *backend);

gboolean rp_soft_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                      gint64 delay_ns, GError **error);
gint64 rp_soft_clock_ns(RpBackend *backend);

/* Functions for RpSoftRun. */
guint rp_soft_lane_device(const RpBackendLane *lane);
RpLaneKind rp_soft_lane_kind(const RpBackendLane *lane);
/* Time at which the running task could begin: the tasks before it were over, and it was issued. */
gint64 rp_soft_lane_time_ns(const RpBackendLane *lane);
void rp_soft_lane_set_time(RpBackendLane *lane, gint64 time_ns);
/* Sleeps until the real clock has come to @time_ns, or until cancelled. Any thread. */
void rp_soft_sleep_until(RpSoftBackend *backend, gint64 time_ns);
