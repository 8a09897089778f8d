/**
 * The two engines behind rp_simulate(). They agree to the nanosecond on `compute` plans, unless
 * processors are shared, which only the event loop knows of.
 */
#pragma once

#include "sim/simulate.h"

/**
 * rp_simulate_compute_pass:
 *
 * Runs a `compute` plan in one pass over its tasks in id order. That is enough because nothing is
 * shared but lanes: an end is final once every smaller id has one.
 *
 * Returns: (transfer full): the trace, or %NULL
 * Errors: RP_SIMULATE_ERROR_DEADLOCK if a dependency is not on a smaller id
 */
RpTrace *rp_simulate_compute_pass(const RpPlan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_simulate_event_loop:
 * @machine: (nullable): %NULL = no limits
 *
 * Runs any plan event by event. Dependencies may be on any id as long as the lanes' order allows.
 *
 * Returns: (transfer full): the trace, or %NULL
 * Errors: RP_SIMULATE_ERROR_DEADLOCK
 */
RpTrace *rp_simulate_event_loop(const RpPlan *plan, const RpMachine *machine,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Sets the error of a task that waits for another one for ever; @why completes "..., which". */
void rp_simulate_set_deadlock(GError **error, const RpPlan *plan, RpTaskId waiting,
                              RpTaskId awaited, const char *why);
