/**
 * A backend: the machine that the engine drives (design.md §4). A table of operations on lanes,
 * events and arenas; the engine knows nothing else of it.
 *
 *   worker of gpu 1          activation-up lane          compute lane
 *   copy, record e     ->    |----copy----|e
 *   wait e, launch     ->                     ......e |---action---|
 *
 * Operations on a lane only issue: the lane runs them first to last, by itself. They may block
 * while the lane's queue is full, on nothing else; for ever, once a device has failed. The engine
 * records an event before it lets a lane wait for it, and records it again only after every wait
 * for it is over.
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"

#define RP_BACKEND_ERROR (rp_backend_error_quark())
GQuark rp_backend_error_quark(void);

typedef enum {
    RP_BACKEND_ERROR_FAILED,   /* a task or the machine failed */
    RP_BACKEND_ERROR_CANCELLED /* something else has failed before */
} RpBackendError;

typedef struct _RpBackend RpBackend;
/* Each backend defines these two for itself. */
typedef struct _RpBackendLane RpBackendLane;
typedef struct _RpBackendEvent RpBackendEvent;

/* A buffer of a task, placed: bytes [offset, offset + bytes) of an arena. */
typedef struct {
    guint64 offset;
    guint64 bytes;
    guint32 arena; /* device index, or gpus for the host */
    guint16 mode;  /* RpAccessMode flags */
    guint16 role;  /* RpAccessRole */
    guint32 buffer;
} RpBackendAccess;

/* A task as a backend sees it. Lives until the task has run and its iteration is retired. */
typedef struct {
    RpTask task; /* a copy; first_* are of no use */
    RpTaskId id;
    const RpBackendAccess *accesses; /* task.access_count of them, as the planner ordered them */
} RpBackendTask;

/* Part of a task that is launched: the lead may run before phase-1 dependencies are over. */
typedef enum { RP_PART_WHOLE, RP_PART_LEAD, RP_PART_REST } RpTaskPart;

/* A task failed after it was issued. From any thread, not after the lanes were freed; @error is
 * taken over. */
typedef void (*RpBackendFailed)(gpointer user_data, RpTaskId task, GError *error);

/**
 * RpBackendOps:
 * @open_arenas: allocates every arena, once, before anything is issued; n = gpus + 1, host last
 * @lane_new: @kind as rp_plan_lane_kind(); called for every lane of every device
 * @lane_free: waits for issued work, then frees the lane; tasks are skipped after @cancel
 * @event_new: an event that lanes of @device record
 * @launch: a compute action (or a part of it)
 * @copy: a transfer; never in parts
 * @record: @event happens when all work issued to @lane before has ended
 * @wait: work issued to @lane from now on begins @delay_ns after @event or later. A delay stands
 *   for a hop of a `compute` plan; it is 0 in `full` plans
 * @wait_host: blocks the calling thread until @event has happened.
 *   Errors: RP_BACKEND_ERROR_CANCELLED, or why it never will
 * @event_ns: when @event happened, on the clock of @clock_ns; only after it has
 * @run_host: runs a host task on the calling thread; @kind: RpHostLaneKind
 * @clock_ns: the clock that all times are read from
 * @cancel: from any thread, also from within RpBackendFailed: tasks end as soon as they can, those
 *   not begun are skipped, events happen or their waits fail
 *
 * Functions that return %FALSE or %NULL set @error and stop the run.
 */
typedef struct {
    const char *name;
    gboolean (*open_arenas)(RpBackend *backend, const guint64 *bytes, guint n, GError **error);
    RpBackendLane *(*lane_new)(RpBackend *backend, guint device, RpLaneKind kind, GError **error);
    void (*lane_free)(RpBackend *backend, RpBackendLane *lane);
    RpBackendEvent *(*event_new)(RpBackend *backend, guint device, GError **error);
    void (*event_free)(RpBackend *backend, RpBackendEvent *event);
    gboolean (*launch)(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                       RpTaskPart part, GError **error);
    gboolean (*copy)(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task,
                     GError **error);
    gboolean (*record)(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                       GError **error);
    gboolean (*wait)(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event,
                     gint64 delay_ns, GError **error);
    gboolean (*wait_host)(RpBackend *backend, RpBackendEvent *event, GError **error);
    gint64 (*event_ns)(RpBackend *backend, const RpBackendEvent *event);
    gboolean (*run_host)(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task,
                         GError **error);
    gint64 (*clock_ns)(RpBackend *backend);
    void (*cancel)(RpBackend *backend);
} RpBackendOps;

/* Every backend begins with these fields. */
struct _RpBackend {
    const RpBackendOps *ops;
    RpBackendFailed failed; /* set by the engine, before lanes are made */
    gpointer failed_data;
};
