/* What kinds of tasks, lanes, buffers and roles are called, and a task in one line: messages. */
#include "core/plan/plan.h"

const char *
rp_task_kind_name(RpTaskKind kind)
{
    static const char *const names[RP_N_TASK_KINDS] = {
        [RP_TASK_FORWARD] = "forward",
        [RP_TASK_BACKWARD] = "backward",
        [RP_TASK_FUSED] = "fused",
        [RP_TASK_INPUT_GRADIENT] = "input-gradient",
        [RP_TASK_WEIGHT_GRADIENT] = "weight-gradient",
        [RP_TASK_OVERLAP] = "overlap",
        [RP_TASK_ACTIVATION_DOWNLOAD] = "activation-download",
        [RP_TASK_ACTIVATION_UPLOAD] = "activation-upload",
        [RP_TASK_STASH_UPLOAD] = "stash-upload",
        [RP_TASK_ACTGRAD_DOWNLOAD] = "activation-gradient-download",
        [RP_TASK_ACTGRAD_UPLOAD] = "activation-gradient-upload",
        [RP_TASK_PARAMETER_UPLOAD] = "parameter-upload",
        [RP_TASK_GRADIENT_DOWNLOAD] = "gradient-download",
        [RP_TASK_GRADIENT_ACCUMULATE] = "gradient-accumulate",
        [RP_TASK_NORM] = "norm",
        [RP_TASK_GRADIENT_COPY] = "gradient-copy",
        [RP_TASK_OPTIMIZER_STEP] = "optimizer-step",
        [RP_TASK_PARAMETER_COPY] = "parameter-copy",
        [RP_TASK_BARRIER] = "barrier",
    };

    return (guint)kind < RP_N_TASK_KINDS ? names[kind] : "unknown";
}

const char *
rp_buffer_category_name(RpBufferCategory category)
{
    static const char *const names[RP_N_BUFFER_CATEGORIES] = {
        [RP_BUFFER_PARAMETERS] = "parameters",
        [RP_BUFFER_GRADIENTS] = "gradients",
        [RP_BUFFER_ACCUMULATORS] = "gradient accumulators",
        [RP_BUFFER_ACTIVATIONS] = "activations",
        [RP_BUFFER_STASH] = "stash",
        [RP_BUFFER_WORKSPACE] = "workspace",
        [RP_BUFFER_STAGING] = "staging",
        [RP_BUFFER_OPTIMIZER] = "optimizer state",
    };

    return (guint)category < RP_N_BUFFER_CATEGORIES ? names[category] : "unknown";
}

const char *
rp_access_role_name(RpAccessRole role)
{
    static const char *const names[RP_N_ACCESS_ROLES] = {
        [RP_ROLE_NONE] = "no operand",     [RP_ROLE_PARAMETERS] = "parameters",
        [RP_ROLE_WORKSPACE] = "workspace", [RP_ROLE_INPUT] = "input",
        [RP_ROLE_OUTPUT] = "output",       [RP_ROLE_GRADIENT] = "gradient",
        [RP_ROLE_SUM] = "gradient sum",    [RP_ROLE_LEAVING] = "leaving gradients",
        [RP_ROLE_KEPT] = "kept values",    [RP_ROLE_STAGING] = "staging",
        [RP_ROLE_DECISION] = "decision",   [RP_ROLE_HOST] = "host buffer",
    };

    return (guint)role < RP_N_ACCESS_ROLES ? names[role] : "unknown";
}

const char *
rp_lane_name(guint lane_kind)
{
    static const char *const names[RP_LANES_PER_DEVICE + RP_HOST_LANES] = {
        [RP_LANE_COMPUTE] = "compute",
        [RP_LANE_ACTIVATION_UP] = "activation-up",
        [RP_LANE_ACTIVATION_DOWN] = "activation-down",
        [RP_LANE_PARAMETER_UP] = "parameter-up",
        [RP_LANE_GRADIENT_DOWN] = "gradient-down",
        [RP_LANES_PER_DEVICE + RP_HOST_LANE_OPTIMIZER] = "optimizer",
        [RP_LANES_PER_DEVICE + RP_HOST_LANE_ACCUMULATE] = "accumulate",
    };

    return lane_kind < G_N_ELEMENTS(names) ? names[lane_kind] : "unknown";
}

static void
describe_place(GString *text, const RpPlan *plan, const RpTask *task)
{
    guint32 device = rp_plan_lane_device(plan, task->lane);

    if (task->lane >= rp_plan_n_lanes(plan))
        g_string_append_printf(text, " on lane %u, which does not exist", task->lane);
    else if (device == RP_NONE)
        g_string_append(text, " on the host");
    else
        g_string_append_printf(text, " on gpu %u", device);
}

char *
rp_task_describe(const RpPlan *plan, RpTaskId id)
{
    GString *text = g_string_new(NULL);

    if (id < rp_plan_first_id(plan) || id >= rp_plan_end_id(plan)) {
        g_string_printf(text, "task %" G_GUINT64_FORMAT " (not in the plan)", id);
        return g_string_free(text, FALSE);
    }
    const RpTask *task = rp_plan_task(plan, id);

    g_string_printf(text, "task %" G_GUINT64_FORMAT " (%s", id,
                    rp_task_kind_name((RpTaskKind)task->kind));
    if (task->stage != RP_NONE)
        g_string_append_printf(text, " of stage %u", task->stage);
    if (task->kind == RP_TASK_OVERLAP)
        g_string_append_printf(text, " with backward of stage %u, micro-batch %u",
                               task->backward_stage, task->backward_micro_batch);
    else if (task->layer != RP_NONE)
        g_string_append_printf(text, " of layer %u", task->layer);
    if (task->kind != RP_TASK_OVERLAP && task->chunk != RP_NONE)
        g_string_append_printf(text, ", chunk %u", task->chunk);
    if (task->micro_batch != RP_NONE)
        g_string_append_printf(text, ", micro-batch %u", task->micro_batch);
    g_string_append_printf(text, ", iteration %u", task->iteration);
    describe_place(text, plan, task);
    g_string_append_c(text, ')');
    return g_string_free(text, FALSE);
}
