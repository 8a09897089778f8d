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
 * Runs a task on the calling thread, a lane's own. Not called any more after rp_soft_cancel().
 */
typedef gboolean (*RpSoftRun)(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                              RpTaskPart part, GError **error);

/* Every backend of soft lanes begins with these fields. */
struct _RpSoftBackend {
    RpBackend base;
    RpSoftRun run;
    struct _RpSoftShared *shared;
};

void rp_soft_backend_init(RpSoftBackend *backend, const RpBackendOps *ops, RpSoftRun run);
void rp_soft_backend_clear(RpSoftBackend *backend);

/* Operations to put into RpBackendOps as they are. */
RpBackendLane *rp_soft_lane_new(RpBackend *backend, guint device, RpLaneKind kind, GError **error);
void rp_soft_lane_free(RpBackend *backend, RpBackendLane *lane);
RpBackendEvent *rp_soft_event_new(RpBackend *backend, guint device, GError **error);
void rp_soft_event_free(RpBackend *backend, RpBackendEvent *event);
gboolean rp_soft_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                        RpTaskPart part, GError **error);
gboolean rp_soft_copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                      GError **error);
gboolean rp_soft_record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                        GError **error);
gboolean rp_soft_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                      gint64 delay_ns, GError **error);
gboolean rp_soft_wait_host(RpBackend *backend, RpBackendEvent *event, GError **error);
gint64 rp_soft_event_ns(RpBackend *backend, const RpBackendEvent *event);
gint64 rp_soft_clock_ns(RpBackend *backend);
void rp_soft_cancel(RpBackend *backend);

/* Functions for RpSoftRun. */
guint rp_soft_lane_device(const RpBackendLane *lane);
RpLaneKind rp_soft_lane_kind(const RpBackendLane *lane);
/* Time at which the running task could begin: the tasks before it were over, and it was issued. */
gint64 rp_soft_lane_time_ns(const RpBackendLane *lane);
void rp_soft_lane_set_time(RpBackendLane *lane, gint64 time_ns);
/* Sleeps until the real clock has come to @time_ns, or until cancelled. Any thread. */
void rp_soft_sleep_until(RpSoftBackend *backend, gint64 time_ns);
