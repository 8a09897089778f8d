/* What helps against an error, in words of a command's options or of a run file. */
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

static void
append(GString *text, RpShapeRemedy remedy, gboolean as_keys)
{
    static const struct {
        const char *key;  /* of a run file */
        const char *flag; /* where there is no such key */
    } parts[] = {[RP_SHAPE_GPUS] = {"devices"},
                 [RP_SHAPE_MICRO_BATCHES] = {"micro_batches"},
                 [RP_SHAPE_STAGES] = {NULL, "--stage-count"},
                 [RP_SHAPE_ROUND] = {"round"},
                 [RP_SHAPE_GROUP] = {NULL, "--group"}};
    static const char *const bounds[] = {"", " or more", " or fewer"};
    const char *key = parts[remedy.part].key;
    g_autofree char *number = g_strdup_printf("%u%s", remedy.number, bounds[remedy.bound]);
    g_autofree char *named = key != NULL ? setting(key, number, as_keys) : NULL;

    g_string_append(text, text->len > 0 ? ", or " : "; use ");
    if (named != NULL)
        g_string_append(text, named);
    else
        g_string_append_printf(text, "%s %s", as_keys ? "stages:" : parts[remedy.part].flag,
                               number);
}

char *
rp_cli_message(GError *error, gboolean as_keys)
{
    const RpScheduleErrorPrivate *remedies = rp_schedule_error_remedies(error);
    g_autoptr(GString) text = g_string_new(NULL);

    if (remedies != NULL)
        append(text, remedies->one, as_keys);
    if (remedies != NULL && remedies->other.part != RP_SHAPE_NOTHING)
        append(text, remedies->other, as_keys);
    return g_strconcat(error->message, text->str, NULL);
}
