/**
 * The discrete-event simulator: runs a plan in virtual time (design.md §4).
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "core/profile/profile.h"
#include "core/trace/trace.h"
#include "sim/flows/machine.h"

#define RP_SIMULATE_ERROR (rp_simulate_error_quark())
GQuark rp_simulate_error_quark(void);

typedef enum {
    RP_SIMULATE_ERROR_DEADLOCK /* a task waits for a later one: names both */
} RpSimulateError;

/* Links, host memory, network, optimizer and processors that the profile was measured with. */
RpMachine rp_machine_from_profile(const RpProfile *profile);

/**
 * rp_simulate:
 * @machine: (nullable): of it, `compute` plans only know `processors`
 *
 * Virtual time in whole nanoseconds; deterministic, byte for byte. A lane runs its tasks in order;
 * a task starts when its dependencies are done and its resources free:
 *
 *   compute     the device's compute lane
 *   copies      one copy engine per device and direction, shared by the activation and the
 *               parameter/gradient lane, activation first, a copy in flight is not pre-empted
 *   links       a copy's rate is its max-min fair share of the device link, its root complex (per
 *               direction) and host memory, which the optimizer's tasks use too
 *   network     one thing after the other: a message to each other server, then the task's bytes each way,
 *               which touch host memory several times (sim/flows/machine.h)
 *   processors  devices that are threads of the host: every running action, moving copy and host
 *               task takes one; k of them on C < k processors go on at C/k of their speed
 *
 * Returns: (transfer full): a predicted trace of every task, or %NULL
 */
RpTrace *rp_simulate(const RpPlan *plan, const RpMachine *machine,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
