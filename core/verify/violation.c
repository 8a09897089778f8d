/*
 * What every rule uses: how a violation is told, and what an action is made of.
 */
#include "core/verify/private.h"

static const struct {
    const char *name;
    guint number;
} rules[RP_N_RULES] = {
    [RP_RULE_NONE] = {"none", 0},
    [RP_RULE_ACTIONS] = {"actions", 1},
    [RP_RULE_BUFFERS] = {"buffers", 2},
    [RP_RULE_ARENA] = {"arena", 2},
    [RP_RULE_TABLES] = {"tables", 2},
    [RP_RULE_OPERANDS] = {"operands", 2},
    [RP_RULE_DEADLOCK] = {"deadlock", 3},
    [RP_RULE_TRANSFERS] = {"transfers", 4},
    [RP_RULE_WEIGHT_INTEGRITY] = {"weight integrity", 5},
    [RP_RULE_TORN_WEIGHTS] = {"torn weights", 5},
    [RP_RULE_INCOMPLETE_GRADIENTS] = {"incomplete gradients", 5},
    [RP_RULE_GRADIENT_INTEGRITY] = {"gradient integrity", 5},
    [RP_RULE_OPTIMIZER_ORDER] = {"optimizer order", 5},
    [RP_RULE_DECISION] = {"decision", 5},
    [RP_RULE_STALENESS] = {"staleness", 5},
    [RP_RULE_TRACE] = {"trace", 0},
};

const char *
rp_rule_name(RpRule rule)
{
    return (guint)rule < RP_N_RULES ? rules[rule].name : "unknown";
}

guint
rp_rule_number(RpRule rule)
{
    return (guint)rule < RP_N_RULES ? rules[rule].number : 0;
}

void
rp_violation_clear(RpViolation *violation)
{
    g_free(violation->message);
    *violation = (RpViolation){.first = RP_TASK_NONE, .second = RP_TASK_NONE};
}

static void
append_task(const RpVerifier *verifier, GString *text, guint32 task)
{
    g_autofree char *description = rp_task_describe(verifier->plan, verifier->first_id + task);
    guint32 lane = rp_verifier_task(verifier, task)->lane;

    g_string_append(text, description);
    if (verifier->position != NULL && lane < rp_plan_n_lanes(verifier->plan))
        g_string_append_printf(text, ", place %u of the %s lane", verifier->position[task],
                               rp_lane_name(rp_plan_lane_kind(verifier->plan, lane)));
}

gboolean
rp_verifier_fail(RpVerifier *verifier, RpRule rule, guint32 first, guint32 second,
                 const char *format, ...)
{
    RpViolation *violation = verifier->violation;
    g_autoptr(GString) text = g_string_new(NULL);
    va_list arguments;

    if (violation == NULL)
        return FALSE;
    if (first == RP_OLD_TASK)
        first = RP_NO_TASK;
    if (rp_rule_number(rule) > 0)
        g_string_append_printf(text, "rule %u (%s): ", rp_rule_number(rule), rp_rule_name(rule));
    va_start(arguments, format);
    g_string_append_vprintf(text, format, arguments);
    va_end(arguments);
    if (first != RP_NO_TASK) {
        g_string_append(text, ": ");
        append_task(verifier, text, first);
    }
    if (second != RP_NO_TASK && second != first) {
        g_string_append(text, first != RP_NO_TASK ? "; " : ": ");
        append_task(verifier, text, second);
    }
    violation->rule = rule;
    violation->first = first == RP_NO_TASK ? RP_TASK_NONE : verifier->first_id + first;
    violation->second = second == RP_NO_TASK ? RP_TASK_NONE : verifier->first_id + second;
    violation->message = g_string_free(g_steal_pointer(&text), FALSE);
    return FALSE;
}

guint
rp_action_parts(const RpTask *task, RpActionPart parts[2])
{
    parts[0] = (RpActionPart){.stage = task->stage, .micro_batch = task->micro_batch};
    switch ((RpTaskKind)task->kind) {
    case RP_TASK_FORWARD:
        parts[0].forward = TRUE;
        return 1;
    case RP_TASK_BACKWARD:
        parts[0].backward = parts[0].weights = TRUE;
        return 1;
    case RP_TASK_FUSED:
        parts[0].forward = parts[0].backward = parts[0].weights = TRUE;
        return 1;
    case RP_TASK_INPUT_GRADIENT:
        parts[0].backward = TRUE;
        return 1;
    case RP_TASK_WEIGHT_GRADIENT:
        parts[0].weights = TRUE;
        return 1;
    case RP_TASK_OVERLAP:
        parts[0].forward = TRUE;
        parts[1] = (RpActionPart){.stage = task->backward_stage,
                                  .micro_batch = task->backward_micro_batch,
                                  .backward = TRUE,
                                  .weights = TRUE};
        return 2;
    default:
        return 0;
    }
}
