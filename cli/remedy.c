/* What helps against a plan that does not fit, in words of a command's options or a run file. */
#include "cli/cli.h"
#include "run/settings.h"

/* "--optimizer lean", or "optimizer.mode: lean". */
static char *
setting(const char *key, const char *value, gboolean as_keys)
{
    return as_keys ? g_strdup_printf("%s: %s", key, value)
                   : g_strdup_printf("%s %s", rp_setting_find(key)->flag, value);
}

char *
rp_cli_remedy(RpRemedy remedy, gboolean as_keys)
{
    g_autofree char *lean = setting("optimizer.mode", "lean", as_keys);

    switch (remedy) {
    case RP_REMEDY_LEAN_OPTIMIZER:
        return g_strdup_printf("use %s, a smaller model or more host memory", lean);
    case RP_REMEDY_MORE_STAGES:
        return g_strdup("use more, smaller stages");
    case RP_REMEDY_SMALLER_BACKWARD_STAGES:
        return g_strdup("use smaller backward stages");
    case RP_REMEDY_SMALLER_MICRO_BATCH:
        return g_strdup("use a smaller micro-batch or a shorter sequence");
    case RP_REMEDY_SMALLER_WORKSPACE:
        return g_strdup("use smaller backward stages, a smaller micro-batch or a shorter sequence");
    case RP_REMEDY_SMALLER_ROUND:
        return g_strdup_printf("use fewer micro-batches per round (%s) or a smaller micro-batch",
                               as_keys ? "round" : rp_setting_find("round")->flag);
    case RP_REMEDY_ONE_ROUND:
        return g_strdup_printf("use one round (%s)",
                               as_keys ? "round: all" : "--round as --micro-batches");
    case RP_REMEDY_STASH_ON_HOST:
        return g_strdup("use roundpipe, which keeps stage inputs in host memory, or fewer "
                        "micro-batches");
    case RP_REMEDY_FEWER_DEVICES:
        return g_strdup("use fewer devices, a smaller micro-batch or a shorter sequence");
    case RP_REMEDY_NONE:
        break;
    }
    return g_strdup("use a smaller micro-batch");
}
