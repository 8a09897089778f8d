/**
 * A backend for tests: time passes only when the test lets it. Its clock counts what happens,
 * MANUAL_TICK_NS each, so that the order of everything can be read from a trace.
 *
 * A task that may run is started, and ends on request: by manual_end(), or in random order
 * by a thread of the backend's (manual_set_automatic()).
 */
#pragma once

#include "exec/engine/backend.h"

/* More than the verifier forgives in a measured trace. */
#define MANUAL_TICK_NS 10000

typedef struct _ManualBackend ManualBackend;

typedef enum {
    MANUAL_FAULT_NONE,
    MANUAL_FAULT_ISSUE, /* launch, copy or run_host fails at once */
    MANUAL_FAULT_RUN    /* the task fails when it ends */
} ManualFault;

/* A part of a task that began or ended, in the order in which it happened. */
typedef struct {
    RpTaskId task;
    RpTaskPart part;
    gboolean end;
} ManualEntry;

ManualBackend *manual_new(void);
void manual_free(ManualBackend *manual);
RpBackend *manual_backend(ManualBackend *manual);

/* Ends started tasks in the random order of @seed, from now on. */
void manual_set_automatic(ManualBackend *manual, guint32 seed);
void manual_set_fault(ManualBackend *manual, RpTaskId task, ManualFault fault);

/* From now on who issues @task is held, as by a full queue, until this is called with another;
 * cancelling does not help. */
void manual_hold(ManualBackend *manual, RpTaskId task);
/* Blocks until somebody is held. */
void manual_wait_held(ManualBackend *manual);

/* Blocks until the part has started. */
void manual_wait_started(ManualBackend *manual, RpTaskId task, RpTaskPart part);
/* Blocks until the part has started and its lane has a wait after it. */
void manual_wait_followed(ManualBackend *manual, RpTaskId task, RpTaskPart part);
/* Waits until it has started, and ends it. */
void manual_end(ManualBackend *manual, RpTaskId task, RpTaskPart part);
/* Time that nothing fills. */
void manual_pass(ManualBackend *manual, gint64 ns);
gboolean manual_is_started(ManualBackend *manual, RpTaskId task, RpTaskPart part);

/* Position in the log; -1 = did not happen. */
int manual_find(ManualBackend *manual, RpTaskId task, RpTaskPart part, gboolean end);
guint manual_n_entries(ManualBackend *manual);
gint64 manual_delay_ns(ManualBackend *manual); /* sum of all delays given to lanes */
