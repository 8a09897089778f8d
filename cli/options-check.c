/* Options that only some schedules, or only one fidelity, know: refused elsewhere, not ignored. */
#include "cli/cli.h"

#include "core/base/shard.h"
#include "core/schedules/schedule.h"

/* An option that some schedules do not have. */
typedef struct {
    const char *option;
    const char *lacks; /* "schedule 1f1b ..." */
    RpScheduleHas known;
} OwnOption;

static const OwnOption own_options[] = {
    {"round", "runs all micro-batches as one round", rp_schedule_is_dispatched},
    {"replicas", "has no rounds", rp_schedule_is_rotated},
    {"slices", "runs whole sequences", rp_schedule_is_sliced},
    {"even-slices", "runs whole sequences", rp_schedule_is_sliced},
    {"dispatch", "says itself on which GPU a stage runs", rp_schedule_is_rotated},
    {"group", "has no groups of micro-batches", rp_schedule_is_grouped},
    {"live", "holds as many activations as its order needs", rp_schedule_is_limited},
    {"reverse-backward", "has an order of its own for backward actions", rp_schedule_is_reversible},
};

/* Options of full fidelity alone, and what compute fidelity lacks for them. */
static const struct {
    const char *option, *lacks;
} full_options[] = {
    {"transfers", "has no transfers"},        {"consistency", "copies no weights"},
    {"optimizer", "has no optimizer"},        {"early-steps", "has no optimizer"},
    {"optimizer-name", "has no optimizer"},   {"optimizer-state", "has no optimizer"},
    {"optimizer-master", "has no optimizer"}, {"resident", "uploads no weights"},
    {"no-clip", "has no optimizer"},
};

static gboolean
fail_unknown(const RpScheduleOps *schedule, const OwnOption *option, GError **error)
{
    g_autofree char *names = rp_schedule_names(option->known);

    return rp_cli_refuse(error, "--%s: schedule %s %s; it is for %s", option->option,
                         schedule->name, option->lacks, names);
}

/* Refuses options that the others leave without effect. */
static const char *
find_idle(const RpArgs *args)
{
    const gboolean full = g_strcmp0(args->fidelity, "full") == 0;
    const gboolean blocking = args->run.consistency == RP_CONSISTENCY_BLOCKING;

    if (args->run.dispatch == RP_DISPATCH_FREE && args->run.host_slow == NULL &&
        !rp_box_is_mixed(&args->box))
        return "--dispatch: expected --slow, or --gpu with several cards, beside free: GPUs that "
               "are alike take turns";
    if (blocking && rp_args_has(args, "optimizer"))
        return "--optimizer: --consistency blocking has one optimizer only, which copies all "
               "weights; expected no --optimizer beside it";
    if (blocking && args->run.plan.step_at_once)
        return "--no-clip: with --consistency blocking every layer waits for all copies; expected "
               "no --no-clip beside it";
    if (!full && args->run.plan.servers > 1)
        return "--servers: compute fidelity has no exchange; expected --fidelity full beside it";
    if (args->run.plan.servers > RP_SHARD_MOST_SERVERS)
        return "--servers: expected at most 4096";
    if (args->box.network != NULL && args->run.plan.servers < 2)
        return "--network: one server needs none; expected --servers 2 or more beside it";
    if (args->published && rp_args_has(args, "recompute"))
        return "--published: expected no --recompute beside it, which it chooses";
    return NULL;
}

static gboolean
check_idle(const RpArgs *args, GError **error)
{
    const char *problem = find_idle(args);

    for (gsize i = 0; i < G_N_ELEMENTS(full_options); i++)
        if (g_strcmp0(args->fidelity, "full") != 0 && rp_args_has(args, full_options[i].option))
            return rp_cli_refuse(error,
                                 "--%s: compute fidelity %s; expected --fidelity full beside it",
                                 full_options[i].option, full_options[i].lacks);
    return problem == NULL || rp_cli_refuse(error, "%s", problem);
}

void
rp_schedule_args_keep_known(RpArgs *args, const RpScheduleOps *schedule)
{
    for (gsize i = 0; i < G_N_ELEMENTS(own_options); i++)
        if (!own_options[i].known(schedule))
            rp_args_set(args, own_options[i].option, NULL);
}

gboolean
rp_schedule_args_check_any(const RpArgs *args, const RpScheduleOps *const *schedules,
                           GError **error)
{
    for (gsize i = 0; i < G_N_ELEMENTS(own_options); i++) {
        gboolean any = !rp_args_has(args, own_options[i].option);

        for (guint k = 0; schedules[k] != NULL; k++)
            any |= own_options[i].known(schedules[k]);
        if (!any)
            return fail_unknown(schedules[0], &own_options[i], error);
    }
    return check_idle(args, error);
}

gboolean
rp_schedule_args_check(const RpArgs *args, const RpScheduleOps *schedule, GError **error)
{
    return rp_schedule_args_check_any(args, (const RpScheduleOps *const[]){schedule, NULL}, error);
}
