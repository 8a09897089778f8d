/* The options that name a schedule and a partition, and what they resolve to. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/shard.h"
#include "core/formats/schedule-file.h"
#include "core/schedules/schedule.h"
#include "run/settings.h"

/* Options that only some schedules, or only one fidelity, know: refused elsewhere, not ignored. */

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

static const char *const fidelity_names[] = {"compute", "full", NULL};

static gboolean
check_given(const char *option, guint value, GError **error)
{
    if (value > 0)
        return TRUE;
    return rp_cli_refuse(error, "--%s: expected a number of 1 or more, found nothing", option);
}

const char *
rp_cli_form_name(const RpStateFormat *form, guint index, const char **setting)
{
    const struct {
        const char *setting;
        guint value;
    } parts[RP_CLI_FORM_PARTS] = {{"optimizer.name", form->rule},
                                  {"optimizer.state", form->moments},
                                  {"optimizer.master", form->master}};

    *setting = parts[index].setting;
    return parts[index].value > 0
               ? rp_setting_value_name(parts[index].setting, (int)parts[index].value)
               : NULL;
}

gboolean
rp_schedule_args_read(const RpArgs *args, RpRunSpec *run, GError **error)
{
    int fidelity = 0;

    if (!check_given("gpus", args->run.plan.gpus, error) ||
        !check_given("micro-batches", args->run.plan.micro_batches, error))
        return FALSE;
    if (args->fidelity != NULL)
        fidelity = rp_cli_choice("fidelity", args->fidelity, fidelity_names, error);
    if (fidelity < 0)
        return FALSE;
    *run = args->run;
    rp_run_spec_plan(run);
    run->plan.fidelity = (RpFidelity)fidelity;
    return TRUE;
}

/* Options that exclude each other, or do not suit the schedule. */
static gboolean
check_together(const RpArgs *args, const RpScheduleOps *schedule, GError **error)
{
    const char *problem = NULL;

    if (rp_args_has(args, "partition") &&
        (args->run.stages != NULL || args->run.forward_stages != NULL))
        problem = "a stage list and --partition exclude each other";
    else if (schedule->dispatched && args->run.n_stages > 0)
        problem = "--stage-count is for bound schedules; this one finds its own, or takes "
                  "--forward-stages and --backward-stages";
    if (problem == NULL)
        return TRUE;
    return rp_cli_refuse(error, "schedule %s: %s", schedule->name, problem);
}

gboolean
rp_schedule_args_open(RpArgs *args, RpScheduleOps **given, GError **error)
{
    RpPlanOptions *options = &args->run.plan;

    *given = NULL;
    if (args->run.schedule_file == NULL)
        return TRUE;
    if (args->schedule != NULL)
        return rp_cli_refuse(error, "--schedule-file: expected no --schedule beside it");
    *given = rp_schedule_file_load(args->run.schedule_file, error);
    if (*given == NULL)
        return FALSE;
    if (options->gpus == 0)
        options->gpus = (*given)->given->gpus;
    if (options->micro_batches == 0)
        options->micro_batches = (*given)->given->micro_batches;
    if (rp_schedule_args_check(args, *given, error))
        return TRUE;
    g_clear_pointer(given, rp_schedule_free_given);
    return FALSE;
}

static gboolean
resolve(const RpArgs *args, const RpScheduleOps *given, const RpProfile *profile,
        RpRequest *request, GError **error)
{
    RpRunSpec run;

    if (!rp_schedule_args_read(args, &run, error))
        return FALSE;
    if (args->schedule == NULL && given == NULL)
        return rp_cli_refuse(error, "--schedule: expected the name of a schedule, found nothing");
    run.plan.schedule = given != NULL ? given : rp_schedule_find(args->schedule, error);
    if (run.plan.schedule == NULL)
        return rp_prefix_error(error, "--schedule: ");
    if (args->published)
        rp_plan_follow_paper(&run.plan);
    return check_together(args, run.plan.schedule, error) &&
           rp_request_resolve(&run, profile, request, error);
}

gboolean
rp_schedule_args_resolve(const RpArgs *args, const RpProfile *profile, RpRequest *request,
                         GError **error)
{
    RpArgs own = *args; /* its texts are borrowed */
    RpScheduleOps *given;

    if (!rp_schedule_args_open(&own, &given, error))
        return FALSE;
    const gboolean resolved = resolve(&own, given, profile, request, error);

    if (resolved)
        request->given = given;
    else
        rp_schedule_free_given(given);
    return resolved;
}

gboolean
rp_request_load(const RpArgs *args, const char *path, RpProfile **profile, RpRequest *request,
                GError **error)
{
    RpArgs own = *args; /* its texts are borrowed */

    if (!rp_box_count(&args->box, &own.run.plan.gpus, error))
        return FALSE;
    g_autoptr(RpProfile) loaded = rp_cli_load_profile(path, &own.box, own.run.plan.gpus, error);
    const RpScheduleOps *schedule =
        args->schedule != NULL ? rp_schedule_find(args->schedule, NULL) : NULL;

    if (loaded == NULL || (schedule != NULL && !rp_schedule_args_check(args, schedule, error)))
        return FALSE;
    if (!rp_schedule_args_resolve(&own, loaded, request, error)) {
        if (error != NULL && (*error)->domain == RP_PROFILE_ERROR)
            g_prefix_error(error, "%s: ", path);
        return FALSE;
    }
    *profile = g_steal_pointer(&loaded);
    return TRUE;
}
