/* The options that name a schedule and a partition, and what they resolve to. */
#include "cli/cli.h"

#include <string.h>

#include "core/formats/schedule-file.h"
#include "run/settings.h"

static const char *const fidelity_names[] = {"compute", "full", NULL};

const GOptionEntry rp_schedule_options[] = {
    {"schedule", 's', RP_WORD(RpScheduleArgs, schedule), NULL, "NAME"},
    {"schedule-file", 0, RP_FILE(RpScheduleArgs, schedule_file),
     "the schedule of a file: a line a GPU, as `F0.0 B0.0`, or a PyTorch pipeline CSV", "FILE"},
    {"gpus", 'n', RP_COUNT(RpScheduleArgs, ask.options.gpus), "number of GPUs", "N"},
    RP_BOX_GPU(RpScheduleArgs, box),
    RP_BOX_WORK(RpScheduleArgs, box),
    {"micro-batches", 'm', RP_COUNT(RpScheduleArgs, ask.options.micro_batches),
     "micro-batches of an iteration", "M"},
    {"round", 0, RP_COUNT(RpScheduleArgs, ask.options.round),
     "roundpipe: micro-batches of a round (default: with the partition)", "M_R"},
    {"slices", 0, RP_COUNT(RpScheduleArgs, ask.options.slices),
     "slices of a sequence (default: roundpipe 1, seq-1f1b 4, slimpipe N)", "K"},
    {"even-slices", 0, RP_FLAG(RpScheduleArgs, ask.options.even_slices),
     "slices of equal time, as if attention were shared out without cost", NULL},
    {"replicas", 0, RP_COUNT(RpScheduleArgs, ask.options.replicas), NULL, "K"},
    {"stages", 0, RP_WORD(RpScheduleArgs, ask.stages), NULL, "LIST"},
    {"forward-stages", 0, RP_WORD(RpScheduleArgs, ask.forward_stages), NULL, "LIST"},
    {"backward-stages", 0, RP_WORD(RpScheduleArgs, ask.backward_stages), NULL, "LIST"},
    {"partition", 0, RP_WORD(RpScheduleArgs, partition), NULL, "NAME"},
    {"fidelity", 0, RP_WORD(RpScheduleArgs, fidelity),
     "compute (default) or full: with every transfer and the optimizer", "NAME"},
    {"async", 0, RP_FLAG(RpScheduleArgs, ask.options.async),
     "asynchronous optimizer (staleness 1): iterations without a flush", NULL},
    {"iterations", 0, RP_COUNT(RpScheduleArgs, ask.iterations),
     "iterations to simulate (default: until steady; synchronous without transfers: 1)", "K"},
    RP_FOR_EXPERTS,
    {"stage-count", 0, RP_COUNT(RpScheduleArgs, ask.n_stages),
     "bound schedules: number of stages (default: as many as fit)", "S"},
    {"recompute", 0, RP_WORD(RpScheduleArgs, recompute), NULL, "NAME"},
    {"published", 0, RP_FLAG(RpScheduleArgs, published),
     "the paper's rule: only roundpipe recomputes early, and in compute fidelity its fused stage's "
     "forward does not wait for its input",
     NULL},
    {"dispatch", 0, RP_WORD(RpScheduleArgs, dispatch), NULL, "NAME"},
    {"transfers", 0, RP_WORD(RpScheduleArgs, transfers), "full fidelity: ", "NAME"},
    {"consistency", 0, RP_WORD(RpScheduleArgs, consistency), "full fidelity: ", "NAME"},
    {"optimizer", 0, RP_WORD(RpScheduleArgs, optimizer), "full fidelity: ", "NAME"},
    {"early-steps", 0, RP_WORD(RpScheduleArgs, early_steps), "full fidelity: ", "NAME"},
    {"optimizer-name", 0, RP_WORD(RpScheduleArgs, form.rule), "full fidelity: ", "NAME"},
    {"optimizer-state", 0, RP_WORD(RpScheduleArgs, form.moments), "full fidelity: ", "NAME"},
    {"optimizer-master", 0, RP_WORD(RpScheduleArgs, form.master), "full fidelity: ", "NAME"},
    {"resident", 0, RP_WORD(RpScheduleArgs, resident), "full fidelity: ", "NAME"},
    {"no-clip", 0, RP_FLAG(RpScheduleArgs, ask.options.step_at_once),
     "full fidelity: a layer steps as soon as its gradient is home, without a global norm", NULL},
    {"group", 0, RP_COUNT(RpScheduleArgs, ask.options.group),
     "interleaved schedules: micro-batches of a group (default: N)", "G"},
    {"live", 0, RP_COUNT(RpScheduleArgs, ask.options.live),
     "zb-2p: activations of a stage that a GPU may hold (default: 2N-1)", "L"},
    RP_BOX_LINKS(RpScheduleArgs, box),
    {"servers", 0, RP_COUNT(RpScheduleArgs, ask.options.servers),
     "full fidelity: one of so many, which have a share of each layer's optimizer (default: 1)",
     "R"},
    {"network", 0, RP_WORD(RpScheduleArgs, box.network),
     "between servers: 10GbE, 25GbE, 100GbE, IB400 or a network's FILE.json (default: as the "
     "profile "
     "says; else it takes no time)",
     "NETWORK"},
    {"reverse-backward", 0, RP_FLAG(RpScheduleArgs, ask.options.reverse_backward), NULL, NULL},
    {0},
};

char *
rp_cli_option_help(const GOptionEntry *option)
{
    const gboolean reversible = strcmp(option->long_name, "reverse-backward") == 0;
    const gboolean lists = reversible || strcmp(option->long_name, "schedule") == 0;
    g_autofree char *key = g_strdelimit(g_strdup(option->long_name), "-", '_');
    const RpSetting *own = rp_setting_of_option(option->long_name);
    const RpSetting *setting = own != NULL || lists ? own : rp_setting_find(key);
    const char *begin = option->description != NULL ? option->description : "";

    if (setting != NULL) {
        const char *initial = rp_setting_default(setting);
        g_autofree char *meaning = rp_setting_meaning(setting);

        return g_strconcat(begin, meaning, *initial == '-' ? NULL : "; default: ", initial, NULL);
    }
    g_assert(lists); /* any other option has a description or a setting */
    g_autofree char *names = rp_schedule_names(reversible ? rp_schedule_is_reversible : NULL);

    return g_strconcat(
        names, reversible ? ": backward from the last micro-batch on, as PyTorch" : NULL, NULL);
}

static gboolean
check_given(const char *option, guint value, GError **error)
{
    if (value > 0)
        return TRUE;
    return rp_cli_refuse(error, "--%s: expected a number of 1 or more, found nothing", option);
}

/* One of @names, if it was given; *@chosen stays as it is if it was not. */
static gboolean
choose(const char *option, const char *text, const char *const *names, int *chosen, GError **error)
{
    if (text != NULL)
        *chosen = rp_cli_choice(option, text, names, error);
    return text == NULL || *chosen >= 0;
}

gboolean
rp_cli_choose_form(const RpFormArgs *args, RpStateFormat *form, GError **error)
{
    int rule = 0, moments = 0, master = 0;

    if (!rp_cli_choose("optimizer-name", "optimizer.name", args->rule, &rule, error) ||
        !rp_cli_choose("optimizer-state", "optimizer.state", args->moments, &moments, error) ||
        !rp_cli_choose("optimizer-master", "optimizer.master", args->master, &master, error))
        return FALSE;
    *form = (RpStateFormat){(RpUpdateRule)rule, (RpMoments)master, (RpMoments)moments};
    return TRUE;
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
rp_schedule_args_read(const RpScheduleArgs *args, RpAsk *ask, GError **error)
{
    int fidelity = 0, recompute = 0, transfers = 0, consistency = 0, optimizer = 0;
    int objective = 0, resident = RP_RESIDENT_AUTO, early = RP_EARLY_AUTO, dispatch = 0;
    RpStateFormat form;

    if (!check_given("gpus", args->ask.options.gpus, error) ||
        !check_given("micro-batches", args->ask.options.micro_batches, error) ||
        !rp_cli_choose("partition", "partition", args->partition, &objective, error) ||
        !choose("fidelity", args->fidelity, fidelity_names, &fidelity, error) ||
        !rp_cli_choose("recompute", "recompute", args->recompute, &recompute, error) ||
        !rp_cli_choose("dispatch", "dispatch", args->dispatch, &dispatch, error) ||
        !rp_cli_choose("transfers", "transfers", args->transfers, &transfers, error) ||
        !rp_cli_choose("consistency", "consistency", args->consistency, &consistency, error) ||
        !rp_cli_choose("resident", "resident", args->resident, &resident, error) ||
        !rp_cli_choose("early-steps", "optimizer.early_steps", args->early_steps, &early, error) ||
        !rp_cli_choose("optimizer", "optimizer.mode", args->optimizer, &optimizer, error) ||
        !rp_cli_choose_form(&args->form, &form, error))
        return FALSE;
    *ask = args->ask;
    ask->slow = args->slow;
    ask->objective = (RpObjective)objective;
    ask->resident = (RpResidentChoice)resident;
    ask->options.fidelity = (RpFidelity)fidelity;
    ask->options.recompute = RP_SETTING_RECOMPUTE_START(recompute);
    ask->save = RP_SETTING_RECOMPUTE_SAVE(recompute);
    ask->options.dispatch = (RpDispatch)dispatch;
    ask->options.transfers = (RpTransfers)transfers;
    ask->options.consistency = (RpConsistency)consistency;
    ask->options.optimizer = (RpOptimizerMode)optimizer;
    ask->options.early_steps = (RpEarlySteps)early;
    ask->options.form = form;
    return TRUE;
}

/* Options that exclude each other, or do not suit the schedule. */
static gboolean
check_together(const RpScheduleArgs *args, const RpScheduleOps *schedule, GError **error)
{
    const char *problem = NULL;

    if (args->partition != NULL && (args->ask.stages != NULL || args->ask.forward_stages != NULL))
        problem = "a stage list and --partition exclude each other";
    else if (schedule->dispatched && args->ask.n_stages > 0)
        problem = "--stage-count is for bound schedules; this one finds its own, or takes "
                  "--forward-stages and --backward-stages";
    if (problem == NULL)
        return TRUE;
    return rp_cli_refuse(error, "schedule %s: %s", schedule->name, problem);
}

gboolean
rp_schedule_args_open(RpScheduleArgs *args, RpScheduleOps **given, GError **error)
{
    RpPlanOptions *options = &args->ask.options;

    *given = NULL;
    if (args->schedule_file == NULL)
        return TRUE;
    if (args->schedule != NULL)
        return rp_cli_refuse(error, "--schedule-file: expected no --schedule beside it");
    *given = rp_schedule_file_load(args->schedule_file, error);
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
resolve(const RpScheduleArgs *args, const RpScheduleOps *given, const RpProfile *profile,
        RpRequest *request, GError **error)
{
    RpAsk ask;

    if (!rp_schedule_args_read(args, &ask, error))
        return FALSE;
    if (args->schedule == NULL && given == NULL)
        return rp_cli_refuse(error, "--schedule: expected the name of a schedule, found nothing");
    ask.options.schedule = given != NULL ? given : rp_schedule_find(args->schedule, error);
    if (ask.options.schedule == NULL) {
        g_prefix_error(error, "--schedule: ");
        return FALSE;
    }
    if (args->published)
        rp_plan_follow_paper(&ask.options);
    return check_together(args, ask.options.schedule, error) &&
           rp_request_resolve(&ask, profile, request, error);
}

gboolean
rp_schedule_args_resolve(const RpScheduleArgs *args, const RpProfile *profile, RpRequest *request,
                         GError **error)
{
    RpScheduleArgs own = *args; /* its texts are borrowed */
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
rp_request_load(const RpScheduleArgs *args, const char *path, RpProfile **profile,
                RpRequest *request, GError **error)
{
    RpScheduleArgs own = *args; /* its texts are borrowed */

    if (!rp_box_count(&args->box, &own.ask.options.gpus, error))
        return FALSE;
    g_autoptr(RpProfile) loaded = rp_cli_load_profile(path, &own.box, own.ask.options.gpus, error);
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
