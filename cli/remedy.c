/* Remedies of errors, in words of a command's options or of a run file. */
#include "cli/cli.h"
#include "run/settings.h"

/* "--optimizer lean", or "optimizer.mode: lean". */
static char *
setting(const char *key, const char *value, gboolean as_keys)
{
    return as_keys ? g_strdup_printf("%s: %s", key, value)
                   : g_strdup_printf("%s %s", rp_setting_option(rp_setting_find(key)), value);
}

char *
rp_cli_remedy(RpRemedy remedy, gboolean as_keys)
{
    static const struct {
        const char *begin;
        const char *key; /* of a setting, named behind it */
        const char *value;
        const char *end;
    } texts[] = {
        [RP_REMEDY_NONE] = {"a smaller micro-batch"},
        [RP_REMEDY_LEAN_OPTIMIZER] = {"", "optimizer.mode", "lean",
                                      ", a smaller model or more host memory"},
        [RP_REMEDY_MORE_STAGES] = {"more, smaller stages"},
        [RP_REMEDY_SMALLER_BACKWARD_STAGES] = {"smaller backward stages"},
        [RP_REMEDY_SMALLER_MICRO_BATCH] = {"a smaller micro-batch or a shorter sequence"},
        [RP_REMEDY_SMALLER_WORKSPACE] = {"smaller backward stages, a smaller head_chunk, a smaller "
                                         "micro-batch or a shorter sequence"},
        [RP_REMEDY_SMALLER_ROUND] = {"fewer micro-batches per round (", "round", "M",
                                     ") or a "
                                     "smaller micro-batch"},
        [RP_REMEDY_ONE_ROUND] = {"one round of all micro-batches (", "round", "M", ")"},
        [RP_REMEDY_STASH_ON_HOST] = {"roundpipe, which keeps stage inputs in host memory, or fewer "
                                     "micro-batches"},
        [RP_REMEDY_FEWER_DEVICES] = {"fewer devices, a smaller micro-batch or a shorter sequence"},
    };
    const char *key = texts[remedy].key;
    g_autofree char *named =
        key != NULL ? setting(key, texts[remedy].value, as_keys) : g_strdup("");

    return g_strconcat("use ", texts[remedy].begin, named, texts[remedy].end, NULL);
}

void
rp_cli_add_remedy(GError *error, RpRemedy remedy)
{
    g_autofree char *problem = NULL, *words = NULL;

    if (remedy == RP_REMEDY_NONE)
        return;
    problem = error->message;
    words = rp_cli_remedy(remedy, TRUE);
    error->message = g_strdup_printf("%s: %s", problem, words);
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
                 [RP_SHAPE_GROUP] = {NULL, "--group"},
                 [RP_SHAPE_LIVE] = {NULL, "--live"},
                 [RP_SHAPE_SLICES] = {NULL, "--slices"}};
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

/* NULL: nothing is known to help. */
static const char *
run_remedy(RpRunError code)
{
    switch (code) {
    case RP_RUN_ERROR_BUSY:
        return "wait for its end, or choose another with --set output=DIRECTORY";
    case RP_RUN_ERROR_CHECKPOINT:
        return "go on from the last with --resume, or choose another with --set output=DIRECTORY";
    case RP_RUN_ERROR_OVERWRITTEN:
        return "choose another with --set output=DIRECTORY, or move it away";
    case RP_RUN_ERROR_NO_CHECKPOINT:
        return "begin without --resume";
    case RP_RUN_ERROR_NO_MODEL:
        return "name the model with --model; of a run as a directory with tokenizer.json, or "
               "random:DIR of one";
    default:
        return NULL;
    }
}

char *
rp_cli_message(GError *error, gboolean as_keys)
{
    const RpScheduleErrorPrivate *remedies = rp_schedule_error_remedies(error);
    g_autoptr(GString) text = g_string_new(NULL);
    const char *remedy = error->domain == RP_RUN_ERROR ? run_remedy((RpRunError)error->code) : NULL;

    if (g_error_matches(error, RP_RUN_ERROR, RP_RUN_ERROR_NO_CHECKPOINT))
        g_string_append(text, "--resume: ");
    if (remedy != NULL)
        return g_strconcat(text->str, error->message, "; ", remedy, NULL);
    if (g_error_matches(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY)) {
        g_autofree char *smaller = rp_cli_remedy(RP_REMEDY_SMALLER_MICRO_BATCH, as_keys);

        return g_strconcat(error->message, ": ", smaller, NULL);
    }

    if (remedies != NULL)
        append(text, remedies->one, as_keys);
    if (remedies != NULL && remedies->other.part != RP_SHAPE_NOTHING)
        append(text, remedies->other, as_keys);
    return g_strconcat(error->message, text->str, NULL);
}
