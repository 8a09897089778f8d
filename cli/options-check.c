/* Options that only some schedules, or only one fidelity, know: refused elsewhere, not ignored. */
#include "cli/cli.h"

#include <stddef.h>
#include <string.h>

#include "core/base/shard.h"
#include "core/schedules/schedule.h"

/* An option that some schedules do not have. */
typedef struct {
    const char *option;
    const char *lacks; /* "schedule 1f1b ..." */
    RpScheduleHas known;
    gsize offset; /* of its value in RpScheduleArgs: zero bytes if it is not given */
    gsize size;
} OwnOption;

#define VALUE(member) offsetof(RpScheduleArgs, member), sizeof(((RpScheduleArgs *)NULL)->member)

static const OwnOption own_options[] = {
    {"round", "runs all micro-batches as one round", rp_schedule_is_dispatched,
     VALUE(ask.options.round)},
    {"replicas", "has no rounds", rp_schedule_is_rotated, VALUE(ask.options.replicas)},
    {"slices", "runs whole sequences", rp_schedule_is_sliced, VALUE(ask.options.slices)},
    {"even-slices", "runs whole sequences", rp_schedule_is_sliced, VALUE(ask.options.even_slices)},
    {"dispatch", "says itself on which GPU a stage runs", rp_schedule_is_rotated, VALUE(dispatch)},
    {"group", "has no groups of micro-batches", rp_schedule_is_grouped, VALUE(ask.options.group)},
    {"live", "holds as many activations as its order needs", rp_schedule_is_limited,
     VALUE(ask.options.live)},
    {"reverse-backward", "has an order of its own for backward actions", rp_schedule_is_reversible,
     VALUE(ask.options.reverse_backward)},
};

static gboolean
is_given(const RpScheduleArgs *args, const OwnOption *option)
{
    static const RpScheduleArgs none = {0};

    return memcmp((const char *)args + option->offset, (const char *)&none + option->offset,
                  option->size) != 0;
}

static gboolean
fail_unknown(const RpScheduleOps *schedule, const OwnOption *option, GError **error)
{
    g_autofree char *names = rp_schedule_names(option->known);

    return rp_cli_refuse(error, "--%s: schedule %s %s; it is for %s", option->option,
                         schedule->name, option->lacks, names);
}

/* Refuses options that the others leave without effect. */
static const char *
find_idle(const RpScheduleArgs *args)
{
    gboolean full = g_strcmp0(args->fidelity, "full") == 0;

    if (!full && args->transfers != NULL)
        return "--transfers: compute fidelity has no transfers; expected --fidelity full beside it";
    if (!full && args->consistency != NULL)
        return "--consistency: compute fidelity copies no weights; expected --fidelity full "
               "beside it";
    if (g_strcmp0(args->dispatch, "free") == 0 && args->slow == NULL &&
        !rp_box_is_mixed(&args->box))
        return "--dispatch: expected --slow, or --gpu with several cards, beside free: GPUs that "
               "are "
               "alike take turns";
    if (!full && args->optimizer != NULL)
        return "--optimizer: compute fidelity has no optimizer; expected --fidelity full beside it";
    if (!full && args->early_steps != NULL)
        return "--early-steps: compute fidelity has no optimizer; expected --fidelity full beside "
               "it";
    if (!full && args->form.rule != NULL)
        return "--optimizer-name: compute fidelity has no optimizer; expected --fidelity full "
               "beside it";
    if (!full && args->form.moments != NULL)
        return "--optimizer-state: compute fidelity has no optimizer; expected --fidelity full "
               "beside it";
    if (!full && args->form.master != NULL)
        return "--optimizer-master: compute fidelity has no optimizer; expected --fidelity full "
               "beside it";
    if (!full && args->resident != NULL)
        return "--resident: compute fidelity uploads no weights; expected --fidelity full beside "
               "it";
    if (args->optimizer != NULL && g_strcmp0(args->consistency, "blocking") == 0)
        return "--optimizer: --consistency blocking has one optimizer only, which copies all "
               "weights; expected no --optimizer beside it";
    if (!full && args->ask.options.step_at_once)
        return "--no-clip: compute fidelity has no optimizer; expected --fidelity full beside it";
    if (args->ask.options.step_at_once && g_strcmp0(args->consistency, "blocking") == 0)
        return "--no-clip: with --consistency blocking every layer waits for all copies; expected "
               "no --no-clip beside it";
    if (!full && args->ask.options.servers > 1)
        return "--servers: compute fidelity has no exchange; expected --fidelity full beside it";
    if (args->ask.options.servers > RP_SHARD_MOST_SERVERS)
        return "--servers: expected at most 4096";
    if (args->box.network != NULL && args->ask.options.servers < 2)
        return "--network: one server needs none; expected --servers 2 or more beside it";
    if (args->published && args->recompute != NULL)
        return "--published: expected no --recompute beside it, which it chooses";
    return NULL;
}

void
rp_schedule_args_keep_known(RpScheduleArgs *args, const RpScheduleOps *schedule)
{
    for (gsize i = 0; i < G_N_ELEMENTS(own_options); i++)
        if (!own_options[i].known(schedule))
            memset((char *)args + own_options[i].offset, 0, own_options[i].size);
}

gboolean
rp_schedule_args_check_any(const RpScheduleArgs *args, const RpScheduleOps *const *schedules,
                           GError **error)
{
    for (gsize i = 0; i < G_N_ELEMENTS(own_options); i++) {
        gboolean any = !is_given(args, &own_options[i]);

        for (guint k = 0; schedules[k] != NULL; k++)
            any |= own_options[i].known(schedules[k]);
        if (!any)
            return fail_unknown(schedules[0], &own_options[i], error);
    }
    const char *problem = find_idle(args);

    return problem == NULL || rp_cli_refuse(error, "%s", problem);
}

gboolean
rp_schedule_args_check(const RpScheduleArgs *args, const RpScheduleOps *schedule, GError **error)
{
    return rp_schedule_args_check_any(args, (const RpScheduleOps *const[]){schedule, NULL}, error);
}
