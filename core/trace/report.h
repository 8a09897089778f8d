/**
 * Reports read from a trace: bubble ratio and its parts, use per device, steady state, memory.
 */
#pragma once

#include <glib.h>

#include "core/trace/trace.h"

/**
 * Idle time by place, as a share of N x makespan (docs/metrics.md "Bubble ratio").
 * ratio = fill + switch + drain + intra. Expansions of packed weights (RP_TASK_EXPAND) are busy, too.
 */
typedef struct {
    gint64 makespan_ns;
    gint64 busy_ns; /* actions and expansions, all devices */
    double ratio;
    double fill;
    double switch_;
    double drain;
    double intra;
    double comm_exposed; /* a slice of the four */
    double expand;       /* expansions: busy, no part of the ratio */
} RpBubble;

/* The bubble of a whole trace (its compute actions), makespan = end of the last action. */
RpBubble rp_report_bubble(const RpTrace *trace);

/* The bubble of one iteration alone: makespan from its first action's start to its last action's
 * end. */
RpBubble rp_report_bubble_of_iteration(const RpTrace *trace, guint iteration);

/* Steady state: between the starts of iterations @first and @end (exclusive). */
typedef struct {
    guint first_iteration;
    guint end_iteration;
    gint64 iteration_ns; /* mean period */
    double ratio;        /* 1 - busy / (N x window), work clipped to the window */
} RpSteady;

/**
 * rp_report_steady:
 * @first: first iteration of the window; @end: first one after it; both must be in the trace
 *
 * The window runs from the start of @first's first action to the start of @end's.
 */
RpSteady rp_report_steady(const RpTrace *trace, guint first, guint end);

/**
 * rp_report_steady_bubble:
 * @steady: the same trace's
 * @flushed: iterations are synchronous
 *
 * The parts of the window's bubble. A device passes from one asynchronous iteration straight to the
 * next, so nothing is fill or drain; switch is that of the window's iterations, and intra is the
 * rest. Flushed iterations have all four, and the wait for the optimizer is drain. This is not part
 * of rp_report_steady() because searches, which need only the period, call that often.
 */
RpBubble rp_report_steady_bubble(const RpTrace *trace, const RpSteady *steady, gboolean flushed);

/* 1 - busy / (N x (to - from)), work clipped to the window; 0 of an empty one. */
double rp_report_ratio_between(const RpTrace *trace, gint64 from_ns, gint64 to_ns);

/* From the start of an iteration's first action to the end of its last. FALSE: it has none */
gboolean rp_report_iteration_span(const RpTrace *trace, guint iteration, gint64 *from_ns,
                                  gint64 *to_ns);

/* One device's use. */
typedef struct {
    gint64 busy_ns[RP_LANES_PER_DEVICE];
    gint64 first_start_ns; /* compute */
    gint64 last_end_ns;    /* compute */
    guint64 bytes_up;
    guint64 bytes_down;
    guint actions;
} RpDeviceUse;

/* Returns: (element-type RpDeviceUse) (transfer full): one per device */
GArray *rp_report_device_use(const RpTrace *trace);

/* A step of a memory curve: from @time_ns on, @bytes are in use. */
typedef struct {
    gint64 time_ns;
    guint64 bytes;
} RpMemoryStep;

/**
 * rp_report_memory_curve:
 * @arena: device index, or gpus for the host
 *
 * Bytes of buffers that hold something still to be read, over time. Its peak never exceeds the
 * arena. Returns: (element-type RpMemoryStep) (transfer full)
 */
GArray *rp_report_memory_curve(const RpPlan *plan, const RpTrace *trace, guint32 arena);
