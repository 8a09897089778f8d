/**
 * Shared by event-loop.c and event-loop-init.c: lanes, copy engines and the events to come.
 */
#pragma once

#include "sim/flows/event-heap.h"
#include "sim/flows/flow-set.h"
#include "sim/gating.h"

/* The resource that a lane's tasks occupy. */
typedef enum {
    RP_RESOURCE_TIME,
    RP_RESOURCE_PROCESSOR,
    RP_RESOURCE_ENGINE,
    RP_RESOURCE_HOST,
    RP_RESOURCE_NETWORK
} RpResource;

typedef enum {
    RP_LANE_STATE_SLEEPS,  /* on a dependency, or for ever */
    RP_LANE_STATE_HELD,    /* dependencies over, a hop is not: event when it is */
    RP_LANE_STATE_READY,   /* for its engine to be free */
    RP_LANE_STATE_LATENCY, /* event when the first byte moves */
    RP_LANE_STATE_FLOWS,   /* in its class of flows */
    RP_LANE_STATE_RUNS,    /* event when the task ends */
    RP_LANE_STATE_DONE     /* no tasks left */
} RpLaneState;

typedef struct {
    gint64 end_ns;       /* of the last task that ended */
    gint64 ready_ns;     /* when the dependencies looked at allow the head to start */
    gint64 start_ns;     /* of the head, once it has started */
    gint64 lead_end_ns;  /* shared processors: when the head's lead is over, as recorded */
    guint32 next;        /* the head: index into RpEventLoop.order */
    guint32 last;        /* end of the lane's tasks there */
    guint32 cursor;      /* of the head's dependencies: the next to look at, or slept on */
    guint32 next_waiter; /* 1 + lane that sleeps on the same task */
    guint32 engine;
    guint32 class_id; /* of its flows */
    guint8 resource;  /* RpResource */
    guint8 state;     /* RpLaneState */
    guint8 part;      /* RpHeadPart; shared processors */
} RpEventLane;

/*
 * On shared processors an action's end is not known when it starts, and neither is its lead's: they
 * run one after the other, and what the rest waits for is looked at when the lead is over. The
 * record counts from so much later as the rest had to wait, as if the processors were not shared:
 *
 *   runs       |--lead--|.......|----rest----|
 *   recorded           |--------|----rest----|
 */
typedef enum {
    RP_HEAD_LEAD, /* waits for dependencies of phase 0 */
    RP_HEAD_REST  /* waits for all */
} RpHeadPart;

/* A copy engine: its two lanes, activations first. */
typedef struct {
    guint32 lanes[2];
    guint32 holder;  /* 1 + lane whose copy is in flight; 0 = free */
    gboolean listed; /* in RpEventLoop.free_engines */
    gint64 latency_ns;
} RpCopyEngine;

typedef struct {
    const RpPlan *plan;
    RpGating gating; /* the plan's arrays */
    gsize n_tasks;
    RpTraceRecord *records;
    gint64
        *ends_ns;   /* per task: when it ended; before that -1 - (1 + first lane that sleeps on it),
                        -1 = none: one look tells both */
    guint32 *order; /* tasks by lane, ids ascending */
    RpEventLane *lanes;
    guint n_lanes;
    RpCopyEngine *engines; /* 2 device + direction */
    guint32 *free_engines; /* free ones with a lane that has become ready */
    guint n_free_engines;
    gint64 network_latency_ns; /* of all messages of a task */
    RpFlowSet *flows;
    RpEventHeap events; /* slots: lanes, then groups of flows */
} RpEventLoop;

/* @machine: (nullable): %NULL = no limits; @records: of all tasks, to be filled in */
void rp_event_loop_init(RpEventLoop *loop, const RpPlan *plan, const RpMachine *machine,
                        RpTraceRecord *records);
void rp_event_loop_clear(RpEventLoop *loop);
