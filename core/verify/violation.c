/*
 * Shared by all steps: names of values, reporting a violation, and the parts of an action.
 */
#include "core/verify/private.h"

#include "core/schedules/schedule.h"

/* RP_VALUE_..., RP_OF_..., RP_BY_... or RP_ONLY, RP_RULE_... */
#define VALUE(kind, of, by, rule, name, race)                                                      \
    [RP_VALUE_##kind] = {RP_OF_##of, RP_##by, RP_RULE_##rule, name, race}
const RpValueInfo rp_values[RP_N_VALUES] = {
    VALUE(NONE, LAYER, ONLY, BUFFERS, "scratch", NULL),
    VALUE(UNKNOWN, LAYER, ONLY, BUFFERS, "something", NULL),
    VALUE(INITIAL, LAYER, ONLY, BUFFERS, "nothing", NULL),
    VALUE(OUTPUT, STAGE, BY_MICRO_BATCH, ACTIONS, "the forward's output", NULL),
    VALUE(OUTPUT_GRADIENT, LAYER, BY_MICRO_BATCH, ACTIONS, "the backward's output", NULL),
    VALUE(INPUT, LAYER, BY_MICRO_BATCH, ACTIONS, "the action's input", NULL),
    VALUE(INPUT_GRADIENT, END, BY_MICRO_BATCH, ACTIONS, "the backward's gradient", NULL),
    VALUE(SAVED, LAYER, BY_MICRO_BATCH, ACTIONS, "what the layer saves", NULL),
    VALUE(KEPT_FORWARD, STAGE, BY_MICRO_BATCH, ACTIONS, "what the forward keeps", NULL),
    VALUE(KEPT_BACKWARD, STAGE, BY_MICRO_BATCH, ACTIONS, "what W needs of its I", NULL),
    VALUE(WORKSPACE, STAGE, BY_MICRO_BATCH, ACTIONS, "what the action's piece before has left",
          NULL),
    VALUE(PACKED, STAGE, BY_ROUND, TRANSFERS, "a chunk of the packed parameters", NULL),
    VALUE(PARAMETERS, STAGE, BY_ROUND, TRANSFERS, "a chunk of the parameters", NULL),
    VALUE(LAYER, LAYER, BY_ROUND, TRANSFERS, "the layer's chunk of the parameters", NULL),
    VALUE(RESIDENT, LAYER, ONLY, TRANSFERS, "what stays of the layer", NULL),
    VALUE(SUM, STAGE, BY_ROUND, TRANSFERS, "the sum of the gradients so far", NULL),
    VALUE(LEAVING, STAGE, BY_ROUND, TRANSFERS, "the slot's gradient", NULL),
    VALUE(LAYER_LEAVING, LAYER, BY_ROUND, TRANSFERS, "the layer's gradient", NULL),
    VALUE(STAGED, STAGE, BY_ROUND, TRANSFERS, "the gradient of a round", NULL),
    VALUE(GRADIENTS, LAYER, BY_ITEM, INCOMPLETE_GRADIENTS, "the layer's gradient",
          "the gradients may be read before they have arrived"),
    VALUE(COPIED, LAYER, ONLY, OPTIMIZER_ORDER, "the copied gradient",
          "the step may start before its gradients have been copied"),
    VALUE(REDUCED, LAYER, ONLY, INCOMPLETE_GRADIENTS, "the sum of all servers' gradients",
          "the gradients may be read before they have been reduced"),
    VALUE(SQUARES, ITERATION, ONLY, DECISION, "what servers agree on", NULL),
    VALUE(DECISION_PART, ITERATION, ONLY, DECISION, "every layer's part of the decision", NULL),
    VALUE(OWN_DECISION, ITERATION, ONLY, DECISION, "this server's decision", NULL),
    VALUE(DECISION, ITERATION, ONLY, DECISION, "the decision that is for it", NULL),
    VALUE(EARLY_WEIGHTS, LAYER, ONLY, OPTIMIZER_ORDER, "the early step's weights", NULL),
    VALUE(WEIGHT_SHARE, LAYER, ONLY, TORN_WEIGHTS, "this server's share of the new weights",
          "the weights may be gathered before they are written"),
    VALUE(WEIGHTS, LAYER, ONLY, TORN_WEIGHTS, "the version of the weights",
          "the weights may be uploaded before they are written"),
    VALUE(HALF_STATE, LAYER, ONLY, OPTIMIZER_ORDER, "the optimizer's state", NULL),
    VALUE(STATE, LAYER, ONLY, OPTIMIZER_ORDER, "the optimizer's state", NULL),
};

static const struct {
    const char *name;
    guint number;
    guint rank;
} rules[RP_N_RULES] = {
    [RP_RULE_NONE] = {"none", 0, 0},
    [RP_RULE_ACTIONS] = {"actions", 1, 1},
    [RP_RULE_BUFFERS] = {"buffers", 2, 7},
    [RP_RULE_ARENA] = {"arena", 2, 0},
    [RP_RULE_TABLES] = {"tables", 2, 5},
    [RP_RULE_OPERANDS] = {"operands", 2, 6},
    [RP_RULE_DEADLOCK] = {"deadlock", 3, 0},
    [RP_RULE_TRANSFERS] = {"transfers", 4, 2},
    [RP_RULE_WEIGHT_INTEGRITY] = {"weight integrity", 5, 3},
    [RP_RULE_TORN_WEIGHTS] = {"torn weights", 5, 3},
    [RP_RULE_INCOMPLETE_GRADIENTS] = {"incomplete gradients", 5, 3},
    [RP_RULE_GRADIENT_INTEGRITY] = {"gradient integrity", 5, 3},
    [RP_RULE_OPTIMIZER_ORDER] = {"optimizer order", 5, 3},
    [RP_RULE_DECISION] = {"decision", 5, 4},
    [RP_RULE_STALENESS] = {"staleness", 5, 3},
    [RP_RULE_TRACE] = {"trace", 0, 0},
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

guint
rp_rule_rank(RpRule rule)
{
    return rules[rule].rank;
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
    if (verifier->places != NULL && verifier->places[task].position > 0)
        g_string_append_printf(text, ", place %u of the %s lane", verifier->places[task].position,
                               rp_lane_name(rp_plan_lane_kind(verifier->plan, lane)));
}

gboolean
rp_verifier_fail_at(RpVerifier *verifier, guint rank, RpRule rule, guint32 first, guint32 second,
                    const char *format, ...)
{
    RpViolation *violation = verifier->violation;
    g_autoptr(GString) text = g_string_new(NULL);
    va_list arguments;

    if (rank >= verifier->rank)
        return FALSE;
    verifier->rank = rank;
    if (violation == NULL)
        return FALSE;
    rp_violation_clear(violation);
    if (first == RP_OLD_TASK)
        first = RP_NO_TASK;
    if (second == RP_OLD_TASK)
        second = RP_NO_TASK;
    if (rp_rule_number(rule) > 0)
        g_string_append_printf(text, "rule %u (%s): ", rp_rule_number(rule), rp_rule_name(rule));
    else if (rule != RP_RULE_NONE)
        g_string_append_printf(text, "%s: ", rp_rule_name(rule));
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

/* Kinds of actions are the first kinds of tasks. */
guint
rp_action_parts(const RpVerifier *verifier, const RpTask *task, RpActionPart parts[2])
{
    const gboolean two = task->kind == RP_TASK_OVERLAP;

    if (!rp_task_is_compute(task))
        return 0;
    const RpActionProducts makes = *rp_action_products((RpActionKind)task->kind);

    parts[0] =
        (RpActionPart){task->stage,
                       task->micro_batch,
                       {makes.output, makes.input_gradient && !two, makes.weight_gradient && !two},
                       TRUE,
                       TRUE};
    parts[1] = (RpActionPart){
        task->backward_stage, task->backward_micro_batch, {FALSE, TRUE, TRUE}, TRUE, TRUE};
    if (rp_task_is_piece(task) && task->stage < verifier->n_stages) {
        const guint n = rp_plan_stage(verifier->plan, task->stage)->layers.count;

        parts[0].runs[RP_PART_FORWARD] = task->first_step < n;
        parts[0].runs[RP_PART_BACKWARD] = parts[0].runs[RP_PART_WEIGHTS] = task->end_step > n;
        parts[0].begins = task->first_step == 0;
        parts[0].ends = task->end_step == 2 * n;
    }
    return two ? 2 : 1;
}
