/* The options that name a schedule and a partition, and what they resolve to. */
#include "cli/cli.h"

#include <string.h>

#include "core/base/units.h"
#include "core/schedules/schedule.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

#define SECONDS_PER_YEAR (365.25 * 86400)
#define MOST_SECONDS (50 * SECONDS_PER_YEAR)

static const char *const partition_names[] = {"simulated", "paper", NULL};
static const char *const fidelity_names[] = {"compute", "full", NULL};
static const char *const recompute_names[] = {"gated", "early", NULL};
static const char *const fused_names[] = {"published", "physical", NULL};
static const char *const transfer_names[] = {"windows", "naive", NULL};
static const char *const consistency_names[] = {"events", "blocking", NULL};
static const char *const optimizer_names[] = {"fused", "lean", NULL};

GOptionEntry *
rp_schedule_args_entries(RpScheduleArgs *args, gboolean with_schedule)
{
    g_autofree char *all_names = rp_schedule_names(NULL);
    g_autofree char *reversible_names = rp_schedule_names(rp_schedule_is_reversible);
    g_autofree char *reversible_text =
        g_strconcat(reversible_names, ": backward from the last micro-batch on, as PyTorch", NULL);
    /* as long as the entries, which are kept */
    const char *names = g_intern_string(all_names);
    const char *reversible = g_intern_string(reversible_text);
    const GOptionEntry entries[] = {
        {"gpus", 'n', 0, G_OPTION_ARG_INT, &args->gpus, "number of GPUs", "N"},
        {"micro-batches", 'm', 0, G_OPTION_ARG_INT, &args->micro_batches,
         "micro-batches of an iteration", "M"},
        {"round", 0, 0, G_OPTION_ARG_INT, &args->round,
         "roundpipe: micro-batches of a round (default: with the partition)", "M_R"},
        {"stages", 0, 0, G_OPTION_ARG_STRING, &args->stages, "blocks of each stage, e.g. 3,3,4*5,2",
         "LIST"},
        {"forward-stages", 0, 0, G_OPTION_ARG_STRING, &args->forward_stages,
         "roundpipe: blocks of each forward stage, without the fused one", "LIST"},
        {"backward-stages", 0, 0, G_OPTION_ARG_STRING, &args->backward_stages,
         "roundpipe: blocks of each backward stage, the fused one first", "LIST"},
        {"stage-count", 0, 0, G_OPTION_ARG_INT, &args->n_stages,
         "bound schedules: number of stages (default: as many as fit)", "S"},
        {"partition", 0, 0, G_OPTION_ARG_STRING, &args->partition,
         "how to divide the model: simulated (default) or paper", "NAME"},
        {"fidelity", 0, 0, G_OPTION_ARG_STRING, &args->fidelity,
         "compute (default) or full: with every transfer and the optimizer", "NAME"},
        {"recompute", 0, 0, G_OPTION_ARG_STRING, &args->recompute,
         "gated on the gradient, or early (default: roundpipe early, others gated)", "NAME"},
        {"fused-forward", 0, 0, G_OPTION_ARG_STRING, &args->fused_forward,
         "roundpipe: published (default in compute fidelity) or physical", "NAME"},
        {"transfers", 0, 0, G_OPTION_ARG_STRING, &args->transfers,
         "full fidelity: windows (default) or naive", "NAME"},
        {"consistency", 0, 0, G_OPTION_ARG_STRING, &args->consistency,
         "full fidelity: events (default) or blocking", "NAME"},
        {"optimizer", 0, 0, G_OPTION_ARG_STRING, &args->optimizer,
         "full fidelity: fused (default) or lean", "NAME"},
        {"async", 0, 0, G_OPTION_ARG_NONE, &args->async,
         "asynchronous optimizer (staleness 1): iterations without a flush", NULL},
        {"no-clip", 0, 0, G_OPTION_ARG_NONE, &args->no_clip,
         "full fidelity: a layer steps as soon as its gradient is home, without a global norm",
         NULL},
        {"iterations", 0, 0, G_OPTION_ARG_INT, &args->iterations,
         "iterations to simulate (default: 1; --async: until steady)", "K"},
        {"group", 0, 0, G_OPTION_ARG_INT, &args->group,
         "interleaved schedules: micro-batches of a group (default: N)", "G"},
        {"reverse-backward", 0, 0, G_OPTION_ARG_NONE, &args->reverse_backward, reversible, NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args->json, "print JSON", NULL},
    };
    GOptionEntry schedule = {"schedule",      's',   0,     G_OPTION_ARG_STRING,
                             &args->schedule, names, "NAME"};
    gsize n = G_N_ELEMENTS(entries);
    GOptionEntry *all = g_new0(GOptionEntry, n + 2);

    memcpy(all, entries, sizeof entries);
    if (with_schedule)
        all[n] = schedule;
    return all;
}

void
rp_schedule_args_clear(RpScheduleArgs *args)
{
    g_free(args->schedule);
    g_free(args->stages);
    g_free(args->forward_stages);
    g_free(args->backward_stages);
    g_free(args->partition);
    g_free(args->fidelity);
    g_free(args->recompute);
    g_free(args->fused_forward);
    g_free(args->transfers);
    g_free(args->consistency);
    g_free(args->optimizer);
    *args = (RpScheduleArgs){0};
}

void
rp_request_clear(RpRequest *request)
{
    g_clear_pointer(&request->partition, rp_partition_free);
}

static gboolean
check_given(const char *option, int value, GError **error)
{
    if (value > 0)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--%s: expected a number of 1 or more, found nothing", option);
    return FALSE;
}

/* An optional word; *@chosen stays as it is when it was not given. */
static gboolean
choose(const char *option, const char *text, const char *const *names, int *chosen, GError **error)
{
    int index;

    if (text == NULL)
        return TRUE;
    index = rp_cli_choice(option, text, names, error);
    if (index < 0)
        return FALSE;
    *chosen = index;
    return TRUE;
}

gboolean
rp_schedule_args_options(const RpScheduleArgs *args, RpPlanOptions *options, GError **error)
{
    int fidelity = 0, recompute = -1, fused = -1, transfers = 0, consistency = 0, optimizer = 0;
    int partition = 0;

    if (!check_given("gpus", args->gpus, error) ||
        !check_given("micro-batches", args->micro_batches, error) ||
        !choose("partition", args->partition, partition_names, &partition, error) ||
        !choose("fidelity", args->fidelity, fidelity_names, &fidelity, error) ||
        !choose("recompute", args->recompute, recompute_names, &recompute, error) ||
        !choose("fused-forward", args->fused_forward, fused_names, &fused, error) ||
        !choose("transfers", args->transfers, transfer_names, &transfers, error) ||
        !choose("consistency", args->consistency, consistency_names, &consistency, error) ||
        !choose("optimizer", args->optimizer, optimizer_names, &optimizer, error))
        return FALSE;
    *options = (RpPlanOptions){
        .gpus = (guint)args->gpus,
        .micro_batches = (guint)args->micro_batches,
        .round = (guint)args->round,
        .group = (guint)args->group,
        .reverse_backward = args->reverse_backward,
        .async = args->async,
        .fidelity = (RpFidelity)fidelity,
        .recompute = (RpRecompute)(recompute + 1), /* 0 = default */
        .fused_forward = (RpFusedForward)(fused + 1),
        .transfers = (RpTransfers)transfers,
        .consistency = (RpConsistency)consistency,
        .optimizer = (RpOptimizerMode)optimizer,
        .step_at_once = args->no_clip,
        .constant_bytes = args->constant_bytes,
    };
    return TRUE;
}

/* A stage list, with the option's name in front of what is wrong with it. "none" is what an empty
 * list is printed as: the fused stage holds every block. */
static GArray *
parse_stages(const char *option, const char *text, GError **error)
{
    if (strcmp(text, "none") == 0)
        return g_array_new(FALSE, FALSE, sizeof(guint));

    GArray *list = rp_partition_parse_list(text, error);

    if (list == NULL)
        g_prefix_error(error, "--%s: ", option);
    return list;
}

static RpPartition *
given_bound(const RpScheduleArgs *args, const RpProfile *profile, GError **error)
{
    g_autoptr(GArray) stages = parse_stages("stages", args->stages, error);
    RpPartition *partition;

    if (stages == NULL)
        return NULL;
    partition =
        rp_partition_from_blocks(profile, (const guint *)(void *)stages->data, stages->len, error);
    if (partition == NULL)
        g_prefix_error(error, "--stages: ");
    return partition;
}

static RpPartition *
given_dispatched(const RpScheduleArgs *args, const RpProfile *profile, GError **error)
{
    g_autoptr(GArray) forward = parse_stages("forward-stages", args->forward_stages, error);

    if (forward == NULL)
        return NULL;
    g_autoptr(GArray) backward = parse_stages("backward-stages", args->backward_stages, error);

    if (backward == NULL)
        return NULL;
    RpPartition *partition = rp_partition_from_dispatched_blocks(
        profile, (const guint *)(void *)forward->data, forward->len,
        (const guint *)(void *)backward->data, backward->len, error);

    if (partition == NULL)
        g_prefix_error(error, "--forward-stages, --backward-stages: ");
    return partition;
}

/* Which lists were given, and whether they suit the schedule. */
static gboolean
check_lists(const RpScheduleArgs *args, const RpScheduleOps *schedule, GError **error)
{
    gboolean bound = args->stages != NULL;
    gboolean both = args->forward_stages != NULL && args->backward_stages != NULL;
    gboolean any = args->forward_stages != NULL || args->backward_stages != NULL;
    const char *problem = NULL;

    if (bound && any)
        problem = "--stages goes with neither --forward-stages nor --backward-stages";
    else if (any && !both)
        problem = "--forward-stages and --backward-stages go together; one is missing";
    else if (bound && schedule->dispatched)
        problem = "needs --forward-stages and --backward-stages instead of --stages";
    else if (any && !schedule->dispatched)
        problem = "needs --stages instead of --forward-stages and --backward-stages";
    else if ((bound || any) && args->partition != NULL)
        problem = "a stage list and --partition exclude each other";
    else
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "schedule %s: %s", schedule->name,
                problem);
    return FALSE;
}

static gboolean
resolve_partition(const RpScheduleArgs *args, const RpProfile *profile, RpRequest *request,
                  GError **error)
{
    RpPlanOptions *options = &request->options;
    gboolean paper = args->partition != NULL && strcmp(args->partition, "paper") == 0;
    guint64 memory_bytes = profile->has_sizes ? profile->gpu_memory_bytes : 0;

    if (args->stages != NULL || args->forward_stages != NULL) {
        request->partition_source = "given";
        request->partition = args->stages != NULL ? given_bound(args, profile, error)
                                                  : given_dispatched(args, profile, error);
        return request->partition != NULL;
    }
    request->partition_source = paper ? "paper" : "simulated";
    request->partition =
        rp_partition_choose(profile, options, paper ? RP_OBJECTIVE_PAPER : RP_OBJECTIVE_SIMULATED,
                            (guint)args->n_stages, memory_bytes, &options->round, error);
    return request->partition != NULL;
}

RpShape
rp_request_shape(const RpRequest *request)
{
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;

    return (RpShape){
        .gpus = options->gpus,
        .micro_batches = options->micro_batches,
        .stages = partition->n_forward + partition->n_backward,
        .round = options->round,
        .forward_slots = partition->dispatched ? partition->n_forward : 0,
        .group = options->group,
        .reverse_backward = options->reverse_backward,
    };
}

const char *
rp_request_recompute(const RpRequest *request)
{
    RpRecompute recompute = request->options.recompute;

    if (recompute == RP_RECOMPUTE_DEFAULT)
        recompute = request->options.schedule->dispatched ? RP_RECOMPUTE_EARLY : RP_RECOMPUTE_GATED;
    return recompute == RP_RECOMPUTE_EARLY ? "early" : "gated";
}

/* A run that would not fit in memory is refused before it begins. */
static gboolean
check_size(const RpPlanOptions *options, guint stages, guint iterations, GError **error)
{
    guint64 most =
        options->fidelity == RP_FIDELITY_FULL ? RP_CLI_MAX_FULL_ACTIONS : RP_CLI_MAX_ACTIONS;
    double actions = (double)stages * options->micro_batches * iterations *
                     (options->schedule->dispatched ? 1 : 2);

    if (actions <= (double)most)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--micro-batches, --iterations: expected at most %" G_GUINT64_FORMAT
                " compute actions in a run, found %.0f (%u stages x %u micro-batches x %u "
                "iterations)",
                most, actions, stages, options->micro_batches, iterations);
    return FALSE;
}

/* Time in 64 bits of nanoseconds ends after 292 years: a run whose actions and transfers, one after
 * the other, would come near it is refused. */
static gboolean
check_time(const RpPlanOptions *options, const RpProfile *profile, guint iterations, GError **error)
{
    const double slowest =
        MIN(profile->links.h2d_bytes_per_s > 0 ? profile->links.h2d_bytes_per_s : G_MAXDOUBLE,
            profile->links.d2h_bytes_per_s > 0 ? profile->links.d2h_bytes_per_s : G_MAXDOUBLE);
    double seconds = 0, bytes = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        seconds += ((double)layer->forward_ns + (double)layer->backward_ns +
                    (double)layer->recompute_ns + (double)profile->links.hop_ns) /
                   (double)RP_NS_PER_S;
        bytes += 2.0 * (double)layer->parameter_bytes + 2.0 * (double)layer->gradient_bytes +
                 2.0 * (double)layer->input_bytes + 2.0 * (double)layer->output_bytes;
    }
    if (options->fidelity == RP_FIDELITY_FULL)
        seconds += bytes / slowest;
    seconds *= (double)options->micro_batches * iterations;
    if (seconds <= MOST_SECONDS)
        return TRUE;
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--micro-batches, --iterations: expected a run of at most %.0f years, action after "
                "action, found %.0f",
                MOST_SECONDS / SECONDS_PER_YEAR, seconds / SECONDS_PER_YEAR);
    return FALSE;
}

/* What can be said before a partition is searched for: the search takes long, a message does not.
 */
static gboolean
check_early(const RpScheduleArgs *args, const RpProfile *profile, RpRequest *request,
            GError **error)
{
    RpPlanOptions *options = &request->options;
    const RpScheduleOps *schedule = options->schedule;
    guint round = options->round;
    gboolean given = args->stages != NULL || args->forward_stages != NULL;

    if (!schedule->dispatched)
        options->round = options->micro_batches; /* a bound iteration is one round */
    if (schedule->dispatched && args->n_stages > 0) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--stage-count is for bound schedules; %s finds its own, or takes "
                    "--forward-stages and --backward-stages",
                    schedule->name);
        return FALSE;
    }
    if (options->fidelity == RP_FIDELITY_FULL && !rp_profile_check_full(profile, error))
        return FALSE;
    if (given)
        return TRUE;
    RpShape shape = {
        .gpus = options->gpus,
        .micro_batches = options->micro_batches,
        .stages = schedule->dispatched ? MAX(2, options->gpus)
                  : args->n_stages > 0
                      ? (guint)args->n_stages
                      : rp_partition_default_stages(profile, schedule, options->gpus),
        .round = schedule->dispatched && round == 0 ? options->micro_batches : options->round,
        .group = options->group,
        .reverse_backward = options->reverse_backward,
    };
    const guint iterations = args->iterations > 0 ? (guint)args->iterations
                             : args->async        ? RP_STEADY_LEAST
                                                  : 1;

    return rp_schedule_check(schedule, &shape, error) &&
           check_size(options, shape.stages, iterations, error) &&
           check_time(options, profile, iterations, error);
}

static gboolean
find_schedule(const RpScheduleArgs *args, RpRequest *request, GError **error)
{
    if (args->schedule == NULL) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--schedule: expected the name of a schedule, found nothing");
        return FALSE;
    }
    request->options.schedule = rp_schedule_find(args->schedule, error);
    if (request->options.schedule == NULL)
        g_prefix_error(error, "--schedule: ");
    return request->options.schedule != NULL;
}

gboolean
rp_request_resolve(const RpScheduleArgs *args, const RpProfile *profile, RpRequest *request,
                   GError **error)
{
    guint slots;

    *request = (RpRequest){0};
    if (!rp_schedule_args_options(args, &request->options, error) ||
        !find_schedule(args, request, error) ||
        !check_lists(args, request->options.schedule, error) ||
        !check_early(args, profile, request, error) ||
        !resolve_partition(args, profile, request, error))
        return FALSE;
    if (request->options.round == 0)
        request->options.round = request->options.micro_batches;
    slots = (request->partition->n_forward + request->partition->n_backward) *
            MAX(1, request->options.micro_batches / request->options.round);
    request->window = rp_steady_window(request->options.gpus, slots);
    request->iterations = args->iterations > 0 ? (guint)args->iterations
                          : args->async        ? request->window.iterations
                                               : 1;
    request->steady = args->async && request->iterations >= request->window.iterations;
    return check_size(&request->options,
                      request->partition->n_forward + request->partition->n_backward,
                      request->iterations, error) &&
           check_time(&request->options, profile, request->iterations, error);
}

gboolean
rp_request_load(const RpScheduleArgs *args, const char *path, RpProfile **profile,
                RpRequest *request, GError **error)
{
    g_autoptr(RpProfile) loaded = rp_cli_load_profile(path, (guint)MAX(0, args->gpus), error);
    const RpScheduleOps *schedule =
        args->schedule != NULL ? rp_schedule_find(args->schedule, NULL) : NULL;

    if (loaded == NULL || (schedule != NULL && !rp_schedule_args_check(args, schedule, error)))
        return FALSE;
    if (!rp_request_resolve(args, loaded, request, error)) {
        if (error != NULL && (*error)->domain == RP_PROFILE_ERROR)
            g_prefix_error(error, "%s: ", path);
        return FALSE;
    }
    *profile = g_steal_pointer(&loaded);
    return TRUE;
}

RpTrace *
rp_request_simulate(const RpRequest *request, const RpProfile *profile, RpPlan **plan_out,
                    GError **error)
{
    RpMachine machine = rp_machine_from_profile(profile);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, request->partition, &request->options, request->iterations, error);

    if (plan == NULL)
        return NULL;
    RpTrace *trace = rp_simulate(plan, &machine, error);

    if (trace != NULL && plan_out != NULL)
        *plan_out = g_steal_pointer(&plan);
    return trace;
}
