/* Names of kinds of tasks, lanes, buffers and roles, and a task in one line, for messages. */
#include "core/plan/plan.h"

/* Lanes of the host, as rp_plan_lane_kind() has them. */
#define OPTIMIZER (RP_LANES_PER_DEVICE + RP_HOST_LANE_OPTIMIZER)
#define ACCUMULATE (RP_LANES_PER_DEVICE + RP_HOST_LANE_ACCUMULATE)
#define NETWORK (RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK)
#define LANE(kind) (1u << (kind))
/* Where tasks are placed, and where they may stand. */
#define ON_COMPUTE RP_LANE_COMPUTE, LANE(RP_LANE_COMPUTE)
#define UP(lane) RP_LANE_##lane##_UP, LANE(RP_LANE_ACTIVATION_UP) | LANE(RP_LANE_PARAMETER_UP)
#define DOWN(lane)                                                                                 \
    RP_LANE_##lane##_DOWN, LANE(RP_LANE_ACTIVATION_DOWN) | LANE(RP_LANE_GRADIENT_DOWN)
#define BY_OPTIMIZER OPTIMIZER, LANE(OPTIMIZER)
#define ON_HOST ACCUMULATE, LANE(OPTIMIZER) | LANE(ACCUMULATE)
#define BY_NETWORK NETWORK, LANE(NETWORK)
#define ANYWHERE OPTIMIZER, G_MAXUINT

/* A row a kind. Its accesses are a rule of the verifier (core/verify/rows.c). */
static const RpTaskKindInfo kinds[RP_N_TASK_KINDS] = {
    [RP_TASK_FORWARD] = {"forward", ON_COMPUTE, "forward", 0x0072b2},
    [RP_TASK_BACKWARD] = {"backward", ON_COMPUTE, "backward (with recompute)", 0xd55e00},
    [RP_TASK_FUSED] = {"fused", ON_COMPUTE, "fused forward + backward", 0xcc79a7},
    [RP_TASK_INPUT_GRADIENT] = {"input-gradient", ON_COMPUTE, "input gradient (I)", 0xf0e442},
    [RP_TASK_WEIGHT_GRADIENT] = {"weight-gradient", ON_COMPUTE, "weight gradient (W)", 0x009e73},
    [RP_TASK_OVERLAP] = {"overlap", ON_COMPUTE, "forward and backward overlapped", 0x8c8c8c},
    [RP_TASK_ACTIVATION_DOWNLOAD] = {"activation-download", DOWN(ACTIVATION), "activations",
                                     0x56b4e9},
    [RP_TASK_ACTIVATION_UPLOAD] = {"activation-upload", UP(ACTIVATION), "activations", 0x56b4e9},
    [RP_TASK_STASH_UPLOAD] = {"stash-upload", UP(ACTIVATION), "activations", 0x56b4e9},
    [RP_TASK_ACTGRAD_DOWNLOAD] = {"activation-gradient-download", DOWN(ACTIVATION),
                                  "gradients of activations", 0xe69f00},
    [RP_TASK_ACTGRAD_UPLOAD] = {"activation-gradient-upload", UP(ACTIVATION),
                                "gradients of activations", 0xe69f00},
    [RP_TASK_SAVED_DOWNLOAD] = {"saved-download", DOWN(ACTIVATION), "saved activations", 0x44aa99},
    [RP_TASK_SAVED_UPLOAD] = {"saved-upload", UP(ACTIVATION), "saved activations", 0x44aa99},
    [RP_TASK_PARAMETER_UPLOAD] = {"parameter-upload", UP(PARAMETER), "parameters", 0x5a5a5a},
    [RP_TASK_RESIDENT_UPLOAD] = {"resident-upload", UP(PARAMETER), "parameters that stay",
                                 0x332288},
    [RP_TASK_GRADIENT_DOWNLOAD] = {"gradient-download", DOWN(GRADIENT), "gradients of parameters",
                                   0xa6a6a6},
    [RP_TASK_EXPAND] = {"expand", ON_COMPUTE, "expansion of packed parameters", 0x882255},
    [RP_TASK_GRADIENT_ACCUMULATE] = {"gradient-accumulate", ON_HOST, "gradient sum of rounds",
                                     0x9a8a2f},
    [RP_TASK_NORM] = {"norm", BY_OPTIMIZER, "norm of all gradients", 0x7a3b69},
    [RP_TASK_EARLY_STEP] = {"early-step", BY_OPTIMIZER, "early step", 0x44bb99},
    [RP_TASK_GRADIENT_COPY] = {"gradient-copy", BY_OPTIMIZER, "gradient copy", 0x7fceb9},
    [RP_TASK_OPTIMIZER_STEP] = {"optimizer-step", BY_OPTIMIZER, "optimizer step", 0x009e73},
    [RP_TASK_PARAMETER_COPY] = {"parameter-copy", BY_OPTIMIZER, "parameter copy", 0x00563f},
    [RP_TASK_LATE_STEP] = {"late-step", BY_OPTIMIZER, "late step", 0x225555},
    [RP_TASK_BARRIER] = {"barrier", ANYWHERE, "barrier", 0x000000},
    [RP_TASK_REDUCE] = {"reduce", BY_NETWORK, "gradients to their owners", 0x999933},
    [RP_TASK_AGREE] = {"agree", BY_NETWORK, "agreement on the norm", 0x661100},
    [RP_TASK_GATHER] = {"gather", BY_NETWORK, "weights to all servers", 0x6699cc},
};

const RpTaskKindInfo *
rp_task_kind(RpTaskKind kind)
{
    static const RpTaskKindInfo unknown = {"unknown", 0, 0, "", 0};

    return (guint)kind < RP_N_TASK_KINDS ? &kinds[kind] : &unknown;
}

const char *
rp_task_kind_name(RpTaskKind kind)
{
    return rp_task_kind(kind)->name;
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
        [RP_ROLE_NONE] = "no operand",
        [RP_ROLE_PARAMETERS] = "parameters",
        [RP_ROLE_WORKSPACE] = "workspace",
        [RP_ROLE_INPUT] = "input",
        [RP_ROLE_OUTPUT] = "output",
        [RP_ROLE_GRADIENT] = "gradient",
        [RP_ROLE_SUM] = "gradient sum",
        [RP_ROLE_LEAVING] = "leaving gradients",
        [RP_ROLE_KEPT] = "kept values",
        [RP_ROLE_STAGING] = "staging",
        [RP_ROLE_DECISION] = "decision",
        [RP_ROLE_HOST] = "host buffer",
        [RP_ROLE_PACKED] = "packed parameters",
        [RP_ROLE_RESIDENT] = "parameters that stay",
        [RP_ROLE_SAVED] = "saved values",
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
        [OPTIMIZER] = "optimizer",
        [ACCUMULATE] = "accumulate",
        [NETWORK] = "network",
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
