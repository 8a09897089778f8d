/*
 * A plan that cannot run.
 */
#include "sim/simulate-private.h"

G_DEFINE_QUARK(rp_simulate_error, rp_simulate_error)

void
rp_simulate_set_deadlock(GError **error, const RpPlan *plan, RpTaskId waiting, RpTaskId awaited,
                         const char *why)
{
    g_autofree char *task = rp_task_describe(plan, waiting);

    if (awaited == waiting) {
        g_set_error(error, RP_SIMULATE_ERROR, RP_SIMULATE_ERROR_DEADLOCK,
                    "deadlock: %s waits for itself", task);
        return;
    }
    g_autofree char *other = rp_task_describe(plan, awaited);
    if (awaited >= rp_plan_end_id(plan))
        why = "never comes";
    g_set_error(error, RP_SIMULATE_ERROR, RP_SIMULATE_ERROR_DEADLOCK,
                "deadlock: %s waits for %s, which %s", task, other, why);
}
