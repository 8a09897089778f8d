/* How a bound is called. */
#include "sim/plan-bound.h"

char *
rp_plan_bound_describe(const RpPlanBound *bound)
{
    static const struct {
        const char *words;
        gboolean numbered;
    } names[] = {
        [RP_LIMIT_PATH] = {"longest chain of tasks", FALSE},
        [RP_LIMIT_COMPUTE] = {"gpu", TRUE},
        [RP_LIMIT_UP] = {"copies to gpu", TRUE},
        [RP_LIMIT_DOWN] = {"copies from gpu", TRUE},
        [RP_LIMIT_ROOT_UP] = {"copies up through root complex", TRUE},
        [RP_LIMIT_ROOT_DOWN] = {"copies down through root complex", TRUE},
        [RP_LIMIT_HOST] = {"host memory", FALSE},
        [RP_LIMIT_HOST_LANE] = {"host lane", TRUE},
        [RP_LIMIT_OPTIMIZER] = {"optimizer", FALSE},
        [RP_LIMIT_PROCESSORS] = {"processors", FALSE},
    };

    if (names[bound->limit].numbered && bound->index == RP_NONE)
        return g_strdup_printf("%s (each in turn)", names[bound->limit].words);
    return names[bound->limit].numbered
               ? g_strdup_printf("%s %u", names[bound->limit].words, bound->index)
               : g_strdup(names[bound->limit].words);
}
