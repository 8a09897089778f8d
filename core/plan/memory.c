/* Whether what a plan places fits, and if not, what is too large and what makes it smaller. */
#include "core/plan/planner.h"

/* What to change when a category is the largest of an arena that is too small. */
static const char *
remedy(gboolean host, RpBufferCategory category)
{
    switch (category) {
    case RP_BUFFER_PARAMETERS:
    case RP_BUFFER_GRADIENTS:
    case RP_BUFFER_ACCUMULATORS:
    case RP_BUFFER_OPTIMIZER:
        if (host)
            return "use --optimizer=lean (train: optimizer.mode: lean), a smaller model or more "
                   "host memory";
        return category == RP_BUFFER_PARAMETERS ? "use more, smaller stages"
                                                : "use smaller backward stages";
    case RP_BUFFER_ACTIVATIONS:
        return "use a smaller micro-batch or a shorter sequence";
    case RP_BUFFER_STASH:
        return host ? "use fewer micro-batches per round (--round; train: round) or a smaller "
                      "micro-batch"
                    : "use roundpipe, which keeps stage inputs in host memory, or fewer "
                      "micro-batches";
    case RP_BUFFER_WORKSPACE:
        return "use smaller backward stages, a smaller micro-batch or a shorter sequence";
    case RP_BUFFER_STAGING:
        return "use one round (--round = --micro-batches; train: round: all)";
    case RP_N_BUFFER_CATEGORIES:
        break;
    }
    return "use a smaller micro-batch";
}

static gboolean
check_arena(const RpPlan *plan, guint32 arena, guint64 limit, GError **error)
{
    guint64 need = rp_plan_arena_bytes(plan, arena);
    gboolean host = arena == rp_plan_gpus(plan);
    RpBufferCategory largest = RP_BUFFER_PARAMETERS;
    g_autofree char *where = host ? g_strdup("host memory") : g_strdup_printf("gpu %u", arena);

    if (limit == 0 || need <= limit)
        return TRUE;
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        if (rp_plan_category_bytes(plan, arena, (RpBufferCategory)c) >
            rp_plan_category_bytes(plan, arena, largest))
            largest = (RpBufferCategory)c;
    g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_MEMORY,
                "%s: the plan needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
                " more than the %" G_GUINT64_FORMAT
                " there are; the largest part is %s with %" G_GUINT64_FORMAT " bytes: %s",
                where, need, need - limit, limit, rp_buffer_category_name(largest),
                rp_plan_category_bytes(plan, arena, largest), remedy(host, largest));
    return FALSE;
}

gboolean
rp_plan_check_memory(const RpPlan *plan, guint64 gpu_bytes, guint64 host_bytes, GError **error)
{
    guint gpus = rp_plan_gpus(plan);

    for (guint g = 0; g < gpus; g++)
        if (!check_arena(plan, g, gpu_bytes, error))
            return FALSE;
    return check_arena(plan, gpus, host_bytes, error);
}
