/**
 * A time that no order of a plan's tasks is below: how much a better order could gain.
 *
 * Tasks keep their devices, their times and what they wait for. The order of devices' lanes is left
 * free, but for the micro-batches of a stage, which stay in order, and so do the host's lanes. Three reasons why a run takes as long as it does:
 *
 *   busy     a resource has so much to do: a device's actions, the copies of an engine, the bytes
 *            over a root complex, host memory, the host's tasks, shared processors
 *   path     the longest chain of dependencies, each task alone on the machine
 *   fill     before a resource's first task and after its last, others must run:
 *   and drain
 *              gpu 0   |F0|F1|..........|B0|B1|
 *              gpu 1      |F0|B0|F1|B1|
 *                      fill            drain of gpu 1
 */
#pragma once

#include "sim/simulate.h"
#include "sim/steady-window.h"

typedef enum {
    RP_LIMIT_PATH,      /* the chain of dependencies */
    RP_LIMIT_COMPUTE,   /* a device's actions */
    RP_LIMIT_UP,        /* its copies up; */
    RP_LIMIT_DOWN,      /* down */
    RP_LIMIT_ROOT_UP,   /* a root complex; */
    RP_LIMIT_ROOT_DOWN, /* down */
    RP_LIMIT_HOST,      /* host memory */
    RP_LIMIT_HOST_LANE, /* tasks of a host lane */
    RP_LIMIT_OPTIMIZER, /* what all host lanes move together */
    RP_LIMIT_PROCESSORS,
    RP_N_LIMITS
} RpLimit;

typedef struct {
    gint64 time_ns; /* the bound: the largest of all */
    gint64 busy_ns; /* the most that a resource has to do */
    gint64 path_ns; /* the longest chain; steady state: 0 */
    RpLimit limit;  /* what time_ns is of, ... */
    guint
        index; /* ... and which: device, root complex, lane of the host, else 0; RP_NONE: all, which
                      take turns */
} RpPlanBound;

/**
 * rp_plan_bound:
 * @plan: whose tasks all are there
 * @machine: (nullable): as for rp_simulate()
 * @steady: (nullable): iterations of a steady state; %NULL = the whole run
 *
 * Tasks that part the run, as the norm of all gradients, part the bound: what runs before them and
 * what runs after them is added. For the whole run the bound of a resource is its preemptive schedule with heads and tails: the
 * largest, over all sets of its tasks, of the earliest start + the sum of times + the least that
 * follows. In steady state it is what the busiest resource has to do per iteration of the window.
 *
 * Returns: no run of the plan's tasks, in any order of its lanes, ends before time_ns (steady: has
 *   a shorter period)
 * Source: Carlier, The one-machine sequencing problem, 1982, §2 (heads, tails, preemption)
 */
RpPlanBound rp_plan_bound(const RpPlan *plan, const RpMachine *machine,
                          const RpSteadyWindow *steady);

/* "gpu 3", "host memory", ... (transfer full) */
char *rp_plan_bound_describe(const RpPlanBound *bound);
