/**
 * When each device is free: the plan so far as a list schedule, for dispatch to the device that is free
 * first (RP_DISPATCH_FREE).
 *
 * Stages of a round wait for each other, so that the device that is free first is always the next in turn,
 * however slow; it holds up all others. The next slot goes to the device of the least
 *
 *   end of the slot there - w x the slot's work there        w = 0, 1/4, 1/2, 3/4 or 1
 *
 * w = 0: where it ends first: slow devices are passed over from time to time. w = 1: where it begins
 * first, but for waiting inside. Which w is best, or the rotation, differs from plan to plan: a
 * planner tries all over some iterations, and keeps the fastest.
 */
#pragma once

#include "core/plan/job/job.h"

typedef struct _RpPace RpPace;

/* Values of RpPlanOptions.dispatch_rule from 1 on: w in quarters, then the rotation. */
#define RP_DISPATCH_RULES 6

RpPace *rp_pace_new(const RpPlanJob *job);

/* Records all tasks that the plan has by now: before any of them retires. */
void rp_pace_catch_up(RpPace *pace);

/* The device of the next slot, of actions like @action. If several are as good it is the next in
 * the rotation behind the last slot's. */
guint rp_pace_dispatch(RpPace *pace, const RpAction *action);

/* When devices are free: the last; asynchronous: the mean. */
double rp_pace_time_ns(RpPace *pace);
