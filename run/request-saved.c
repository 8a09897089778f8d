/*
 * Saved tensors (core/profile/profile.h), and whether saving them is faster: they go to
 * host memory and back beside compute, and the recompute is shorter by it.
 *
 * Groups of a class of layers stand in a row by the time that a byte of them saves; of this row the
 * first n are saved, for the n that is simulated to be fastest within the memory that there is. A longer
 * row must gain what predictions can tell apart: where its copies fill a link, they are slower in a run than
 * alone, and compute waits for them.
 */
#include "run/devices.h"
#include "run/request.h"

/* Smaller differences are below the error of predictions. */
#define LEAST_GAIN 1.01
/* Lengths of the row that are simulated. */
#define MOST_TRIED 6
/* Share of the host's memory, if its limit is known; else of the memory that is taken without saving. */
#define SHARE_OF_HOST 0.9
#define MORE_HOST 1.25

/* @profile with what forwards save as @run has it. %NULL: nothing */
static gboolean
save_as_asked(const RpRunSpec *run, const RpProfile *profile, RpPlanOptions *options,
              RpProfile **saving, GError **error)
{
    const guint groups = rp_save_groups(rp_run_spec_save(run));

    *saving = NULL;
    if (groups == 0)
        return TRUE;
    options->saved.groups = groups;
    /* a device whose stages are its own keeps all on it, or nothing; training makes all of it again */
    if (!options->schedule->dispatched && (rp_run_spec_save(run) != RP_SAVE_ALL || run->trains))
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       run->trains ? "training with schedule %s recomputes everything: expected "
                                     "recompute auto or full, found %s"
                                   : "schedule %s keeps everything on its GPU or recomputes it: "
                                     "expected --recompute auto, full or none, found %s",
                       options->schedule->name,
                       rp_run_spec_save(run) == RP_SAVE_ALL         ? "none"
                       : rp_run_spec_save(run) == RP_SAVE_ATTENTION ? "selective"
                                                                    : "a list of groups");
    *saving = rp_plan_saving_profile(profile, options);
    if (options->schedule->dispatched && !rp_profile_saves(*saving)) {
        g_clear_pointer(saving, rp_profile_free);
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "%s: the timing file does not say what its layers' forwards could save "
                       "(saved_attention_bytes): expected one that was measured since, or full",
                       run->trains ? "recompute" : "--recompute");
    }
    return TRUE;
}

/* The time of an iteration of @request; 0: it does not fit. @host_bytes: of the host's arena, 0 = no
 * limit. */
static gboolean
simulate(const RpProfile *profile, const RpRequest *request, guint64 host_bytes, gint64 *time_ns,
         GError **error)
{
    g_autoptr(RpPlan) plan = NULL;
    g_autoptr(RpTrace) trace = rp_request_simulate(request, profile, &plan, error);
    RpShortage shortage;

    if (trace == NULL)
        return FALSE;
    *time_ns =
        rp_plan_find_shortage(plan, rp_profile_plan_bytes(profile), host_bytes, FALSE, &shortage)
            ? 0
            : rp_request_iteration_ns(request, trace);
    return TRUE;
}

/* Limit of the host's arena if something is saved; @request: without. 0: on an error */
static guint64
host_limit(const RpRunSpec *run, const RpProfile *profile, const RpRequest *request, GError **error)
{
    if (run->host_bytes > 0)
        return (guint64)(SHARE_OF_HOST * (double)run->host_bytes);
    g_autoptr(RpPlanner) planner =
        rp_planner_new(profile, request->partition, &request->options, error);

    return planner == NULL
               ? 0
               : (guint64)(MORE_HOST * (double)rp_plan_arena_bytes(rp_planner_plan(planner),
                                                                   request->options.gpus));
}

/* Stages that suit what is saved by the threshold of @request, if there are any and they are faster still. */
static gboolean
divide_anew(const RpRunSpec *run, const RpProfile *profile, guint64 host_bytes, RpRequest *request,
            gint64 *best_ns, GError **error)
{
    g_autoptr(RpProfile) saving = rp_profile_copy(profile);
    g_auto(RpRequest) other = {.options = run->plan};
    GError *problem = NULL;
    gint64 time_ns;

    rp_profile_choose_saved(saving, &request->options.saved);
    other.options.saved = request->options.saved;
    if (!rp_request_resolve_plain(run, saving, &other, &problem)) {
        if (g_error_matches(problem, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY)) {
            g_error_free(problem); /* without, they have fitted */
            return TRUE;
        }
        return rp_propagate_error(error, problem);
    }
    if (!simulate(profile, &other, host_bytes, &time_ns, error))
        return FALSE;
    if (time_ns == 0 || (*best_ns != 0 && time_ns >= *best_ns))
        return TRUE;
    rp_request_clear(request);
    *request = other;
    other = (RpRequest){0};
    *best_ns = time_ns;
    return TRUE;
}

/* Finds the fastest choice with @request's stages: a length of the row, in all layers or in later ones alone, whose
 * values wait least; @best_ns 0: nothing fits. */
static gboolean
try_lengths(const RpProfile *profile, const GArray *row, guint64 host_bytes, RpRequest *request,
            gint64 *best_ns, GError **error)
{
    RpSavedChoice best = {rp_save_groups(RP_SAVE_ALL), 0, g_array_index(row, double, 0)};

    *best_ns = 0;
    for (guint i = 0; i < MIN(row->len, MOST_TRIED); i++)
        for (guint part = 0; part < RP_SAVED_PARTS; part++) {
            gint64 time_ns;

            request->options.saved =
                (RpSavedChoice){best.groups, part * profile->n_layers / RP_SAVED_PARTS,
                                g_array_index(row, double, i)};
            if (!simulate(profile, request, host_bytes, &time_ns, error))
                return FALSE;
            if (time_ns > 0 && (*best_ns == 0 || (double)time_ns * LEAST_GAIN < (double)*best_ns)) {
                *best_ns = time_ns;
                best = request->options.saved;
            }
            if (time_ns > 0)
                break; /* it fits */
        }
    request->options.saved = best;
    return TRUE;
}

static gboolean
choose(const RpRunSpec *run, const RpProfile *profile, const GArray *row, RpRequest *request,
       GError **error)
{
    RpRequest saving = *request;
    gint64 recomputed_ns, best_ns;

    const guint64 host_bytes = host_limit(run, profile, request, error);

    if (host_bytes == 0 || !simulate(profile, request, 0, &recomputed_ns, error))
        return FALSE;
    saving.partition = rp_partition_copy(request->partition);
    if (!try_lengths(profile, row, host_bytes, &saving, &best_ns, error) ||
        (run->stages == NULL && run->forward_stages == NULL &&
         !divide_anew(run, profile, host_bytes, &saving, &best_ns, error))) {
        rp_request_clear(&saving);
        return FALSE;
    }
    if (best_ns == 0 || (double)best_ns * LEAST_GAIN > (double)recomputed_ns) {
        rp_request_clear(&saving);
        return TRUE;
    }
    rp_request_clear(request);
    *request = saving;
    request->saved_ns = best_ns;
    request->recomputed_ns = recomputed_ns;
    return TRUE;
}

/* The same where it is to be chosen, of a request that is resolved without; notes what comes of it. */
static gboolean
choose_saved(const RpRunSpec *run, const RpProfile *profile, RpRequest *request, GError **error)
{
    const RpPlanOptions *options = &request->options;

    if (rp_run_spec_save(run) == RP_SAVE_AUTO && options->fidelity == RP_FIDELITY_FULL &&
        options->schedule->dispatched && !rp_run_spec_is_on_host(run)) {
        g_autoptr(GArray) row = rp_profile_savings(profile);

        if (row->len > 0 && !choose(run, profile, row, request, error))
            return FALSE;
    }
    if (options->saved.groups != 0 && options->schedule->dispatched) {
        g_autoptr(RpProfile) saving = rp_plan_saving_profile(profile, options);

        request->saved_bytes = rp_profile_keep_fused(saving, request->partition->backward[0].first);
        g_clear_pointer(&request->saved, g_free);
        /* other stages may be faster because the fused one has all layers that would be saved */
        if (request->saved_bytes == 0 && rp_run_spec_save(run) == RP_SAVE_AUTO)
            request->recomputed_ns = 0;
        else
            request->saved = rp_profile_describe_saved(saving);
    }
    return TRUE;
}

/* Saved tensors leave other space for weights. */
static gboolean
choose_again(const RpRunSpec *run, const RpProfile *profile, RpRequest *request, GError **error)
{
    if (request->recomputed_ns == 0 || request->options.resident_limit == 0)
        return TRUE;
    g_autoptr(RpProfile) saving = rp_profile_copy(profile);

    rp_profile_choose_saved(saving, &request->options.saved);
    return rp_request_choose_resident(run, saving, request, error);
}

static gboolean
resolve(const RpRunSpec *run, const RpProfile *profile, RpRequest *request, GError **error)
{
    g_autoptr(RpProfile) saving = NULL;

    *request = (RpRequest){.options = run->plan};
    if (!save_as_asked(run, profile, &request->options, &saving, error))
        return FALSE;
    if (saving != NULL)
        profile = saving;
    return rp_request_resolve_plain(run, profile, request, error) &&
           choose_saved(run, profile, request, error) && choose_again(run, profile, request, error);
}

gboolean
rp_request_resolve(const RpRunSpec *run, const RpProfile *profile, RpRequest *request,
                   GError **error)
{
    const RpPlanOptions *options = &run->plan;
    g_autofree RpSlow *slow = NULL;
    g_autoptr(RpProfile) slowed = NULL;

    if (!run->trains && run->host_slow != NULL &&
        (slow = rp_run_parse_slow(run->host_slow, options->gpus, error)) == NULL)
        return rp_prefix_error(error, "--slow: ");
    if (slow != NULL && options->dispatch == RP_DISPATCH_FREE &&
        rp_schedule_is_rotated(options->schedule))
        slowed = rp_profile_slowed(profile, slow, options->gpus);
    if (!resolve(run, slowed != NULL ? slowed : profile, request, error))
        return FALSE;
    request->slow = g_steal_pointer(&slow);
    request->slowed = g_steal_pointer(&slowed);
    return TRUE;
}
