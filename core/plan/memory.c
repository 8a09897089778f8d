/* Whether a plan's buffers fit, and if not, which is too large and how it can be made smaller. */
#include "core/plan/planner.h"
#include "core/profile/cards.h"

/* The remedy if a category is the largest of an arena that is too small. */
static RpRemedy
find_remedy(gboolean host, RpBufferCategory category)
{
    switch (category) {
    case RP_BUFFER_PARAMETERS:
        return host ? RP_REMEDY_LEAN_OPTIMIZER : RP_REMEDY_MORE_STAGES;
    case RP_BUFFER_GRADIENTS:
    case RP_BUFFER_ACCUMULATORS:
    case RP_BUFFER_OPTIMIZER:
        return host ? RP_REMEDY_LEAN_OPTIMIZER : RP_REMEDY_SMALLER_BACKWARD_STAGES;
    case RP_BUFFER_ACTIVATIONS:
        return RP_REMEDY_SMALLER_MICRO_BATCH;
    case RP_BUFFER_STASH:
        return host ? RP_REMEDY_SMALLER_ROUND : RP_REMEDY_STASH_ON_HOST;
    case RP_BUFFER_WORKSPACE:
        return RP_REMEDY_SMALLER_WORKSPACE;
    case RP_BUFFER_STAGING:
        return RP_REMEDY_ONE_ROUND;
    case RP_N_BUFFER_CATEGORIES:
        break;
    }
    return RP_REMEDY_NONE;
}

/* The copy of the weights that a reference has. */
static guint64
reference_bytes(const RpPlan *plan)
{
    guint64 bytes = 0;

    for (guint l = 0; l < rp_plan_n_layers(plan); l++) {
        const guint32 copy = rp_plan_layer(plan, l)->reference;

        bytes += copy != RP_NONE ? rp_plan_buffer(plan, copy)->bytes : 0;
    }
    return bytes;
}

static gboolean
check_arena(const RpPlan *plan, guint32 arena, guint64 limit, RpShortage *shortage)
{
    const gboolean host = arena == rp_plan_gpus(plan);
    RpBufferCategory largest = RP_BUFFER_PARAMETERS;

    if (limit == 0 || rp_plan_arena_bytes(plan, arena) <= limit)
        return TRUE;
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        if (rp_plan_category_bytes(plan, arena, (RpBufferCategory)c) >
            rp_plan_category_bytes(plan, arena, largest))
            largest = (RpBufferCategory)c;
    *shortage = (RpShortage){
        .arena = arena,
        .host = host,
        .need_bytes = rp_plan_arena_bytes(plan, arena),
        .limit_bytes = limit,
        .largest = largest,
        .largest_bytes = rp_plan_category_bytes(plan, arena, largest),
        .remedy = find_remedy(host, largest),
    };
    const guint64 copy = host ? reference_bytes(plan) : 0;

    if (copy > 0 && shortage->need_bytes - copy <= limit) { /* that is enough */
        shortage->largest_bytes = copy;
        shortage->largest = RP_BUFFER_PARAMETERS;
        shortage->remedy = RP_REMEDY_PRECOMPUTED;
    }
    return FALSE;
}

gboolean
rp_plan_find_card_shortage(const RpPlan *plan, const RpProfile *profile, RpShortage *shortage)
{
    for (guint g = 0; g < rp_plan_gpus(plan); g++)
        if (!check_arena(plan, g, rp_profile_plan_bytes(rp_profile_of(profile, g)), shortage))
            return TRUE;
    return FALSE;
}

gboolean
rp_plan_find_shortage(const RpPlan *plan, guint64 gpu_bytes, guint64 host_bytes, gboolean shared,
                      RpShortage *shortage)
{
    const guint gpus = rp_plan_gpus(plan);
    guint64 devices = 0;

    for (guint g = 0; g < gpus; g++)
        devices += shared ? rp_plan_arena_bytes(plan, g) : 0;
    if (host_bytes > 0 && devices >= host_bytes) {
        *shortage = (RpShortage){.arena = gpus,
                                 .host = TRUE,
                                 .need_bytes = devices,
                                 .limit_bytes = host_bytes,
                                 .remedy = RP_REMEDY_FEWER_DEVICES};
        return TRUE;
    }
    for (guint g = 0; g < gpus; g++)
        if (!check_arena(plan, g, gpu_bytes, shortage))
            return TRUE;
    return !check_arena(plan, gpus, host_bytes > 0 ? host_bytes - devices : 0, shortage);
}

char *
rp_shortage_describe(const RpShortage *shortage)
{
    g_autofree char *where =
        shortage->host ? g_strdup("host memory") : g_strdup_printf("gpu %u", shortage->arena);

    if (shortage->remedy == RP_REMEDY_FEWER_DEVICES)
        return g_strdup_printf("host memory: the arenas of %u devices need %" G_GUINT64_FORMAT
                               " bytes, there are %" G_GUINT64_FORMAT,
                               shortage->arena, shortage->need_bytes, shortage->limit_bytes);
    return g_strdup_printf("%s: the plan needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
                           " more than the %" G_GUINT64_FORMAT
                           " there are; %s %s with %" G_GUINT64_FORMAT " bytes",
                           where, shortage->need_bytes,
                           shortage->need_bytes - shortage->limit_bytes, shortage->limit_bytes,
                           shortage->remedy == RP_REMEDY_PRECOMPUTED ? "the reference has a copy of"
                                                                     : "the largest part is",
                           rp_buffer_category_name(shortage->largest), shortage->largest_bytes);
}
