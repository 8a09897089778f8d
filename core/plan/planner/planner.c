#include "core/base/quote.h"
#include "core/plan/planner/interleave.h"
#include "core/plan/planner/pace.h"

#define TRIED_ITERATIONS 8 /* asynchronous, of a rule of dispatch */

struct _RpPlanner {
    RpPlanJob job;
    RpInterleave *interleave;
    const RpFidelityOps *fidelity;
    gpointer self; /* the fidelity's */
};

/* Time of iterations of which half are to settle, or of one. */
static double
time_of_rule(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options)
{
    const guint half = options->async ? TRIED_ITERATIONS / 2 : 0;
    const guint end = options->async ? TRIED_ITERATIONS : 1;
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, NULL);
    double from_ns = 0;

    for (guint i = 0; planner != NULL && i < end; i++) {
        if (!rp_planner_append_iteration(planner, NULL))
            return G_MAXDOUBLE;
        if (i + 1 == half)
            from_ns = rp_interleave_time_ns(planner->interleave);
    }
    return planner != NULL ? rp_interleave_time_ns(planner->interleave) - from_ns : G_MAXDOUBLE;
}

guint
rp_planner_choose_rule(const RpProfile *profile, const RpPartition *partition,
                       const RpPlanOptions *options)
{
    RpPlanOptions tried = *options;
    guint best = RP_DISPATCH_RULES;
    double best_ns = G_MAXDOUBLE;

    tried.fidelity = RP_FIDELITY_COMPUTE;
    tried.calls = 1;
    tried.first_iteration = 0;
    for (guint rule = RP_DISPATCH_RULES; rule > 0; rule--) {
        tried.dispatch_rule = rule;
        const double ns = time_of_rule(profile, partition, &tried);

        if (ns < best_ns) {
            best_ns = ns;
            best = rule;
        }
    }
    return best;
}

static gboolean
check_servers(const RpPlanOptions *options, GError **error)
{
    const char *what = rp_plan_copies(options) == RP_COPIES_BLOCKING ? "a blocking optimizer"
                       : options->early_steps == RP_EARLY_ON         ? "early steps"
                                                                     : NULL;

    if (options->servers <= 1 || options->fidelity != RP_FIDELITY_FULL || what == NULL)
        return TRUE;
    return rp_fail(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_SERVERS,
                   "%s: planned for one server alone, found %u", what, options->servers);
}

RpPlanner *
rp_planner_new(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
               GError **error)
{
    g_return_val_if_fail(options->schedule != NULL, NULL);

    g_autoptr(RpPlanner) planner = g_new0(RpPlanner, 1);

    if (!check_servers(options, error))
        return NULL;
    if (!rp_job_init(&planner->job, profile, partition, options, error))
        return NULL;
    if (planner->job.options.dispatch == RP_DISPATCH_FREE && !options->forward_only &&
        planner->job.options.dispatch_rule == 0)
        planner->job.options.dispatch_rule = rp_planner_choose_rule(profile, partition, options);
    planner->interleave = rp_interleave_new(&planner->job);
    planner->fidelity =
        options->fidelity == RP_FIDELITY_FULL ? &rp_fidelity_full : &rp_fidelity_compute;
    planner->self = planner->fidelity->create(&planner->job, planner->interleave);
    return g_steal_pointer(&planner);
}

void
rp_planner_free(RpPlanner *planner)
{
    if (planner == NULL)
        return;
    rp_job_clear(&planner->job);
    g_free(planner);
}

void
rp_planner_set_first_iteration(RpPlanner *planner, guint iteration)
{
    g_return_if_fail(rp_plan_end_id(planner->job.plan) == 0);
    rp_job_set_first_iteration(&planner->job, iteration);
}

gboolean
rp_planner_append_call(RpPlanner *planner, GError **error)
{
    RpPlanJob *job = &planner->job;

    g_return_val_if_fail(job->call < rp_job_calls(job), FALSE);
    if (job->options.schedule->unflushed && job->modes->staleness > 0)
        job->shape.flow = job->shape.flow == RP_FLOW_ALONE ? RP_FLOW_BEGIN : RP_FLOW_ON;
    planner->fidelity->begin_call(planner->self);
    if (!rp_interleave_append(planner->interleave, planner->fidelity, planner->self, error))
        return FALSE;
    job->shape.first_gpu = rp_schedule_next_first_gpu(job->options.schedule, &job->shape);
    job->rounds_before += job->rounds;
    job->call++;
    rp_interleave_catch_up(planner->interleave);
    return TRUE;
}

void
rp_planner_append_step(RpPlanner *planner)
{
    g_return_if_fail(planner->job.call == rp_job_calls(&planner->job));
    planner->fidelity->end_iteration(planner->self);
    rp_interleave_catch_up(planner->interleave);
    planner->job.iteration++;
    planner->job.call = 0;
}

gboolean
rp_planner_append_iteration(RpPlanner *planner, GError **error)
{
    for (guint c = 0; c < rp_job_calls(&planner->job); c++)
        if (!rp_planner_append_call(planner, error))
            return FALSE;
    rp_planner_append_step(planner);
    return TRUE;
}

void
rp_planner_flush(RpPlanner *planner)
{
    if (planner->fidelity->flush != NULL)
        planner->fidelity->flush(planner->self);
    rp_interleave_catch_up(planner->interleave);
}

/* Appends the end of the last iteration of an order without a flush. */
static void
append_rest(RpPlanner *planner)
{
    if (planner->job.shape.flow == RP_FLOW_ALONE)
        return;
    planner->job.shape.flow = RP_FLOW_REST;
    const gboolean runs =
        rp_interleave_append(planner->interleave, planner->fidelity, planner->self, NULL);

    g_assert(runs); /* backwards of which all forwards are there */
}

void
rp_planner_finish(RpPlanner *planner)
{
    append_rest(planner);
    if (planner->fidelity->finish != NULL)
        planner->fidelity->finish(planner->self);
}

RpPlan *
rp_planner_plan(RpPlanner *planner)
{
    return planner->job.plan;
}

RpPlan *
rp_planner_steal_plan(RpPlanner *planner)
{
    return g_steal_pointer(&planner->job.plan);
}

RpPlan *
rp_plan_make(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
             guint iterations, GError **error)
{
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, partition, options, error);

    if (planner == NULL)
        return NULL;
    for (guint i = 0; i < iterations; i++)
        if (!rp_planner_append_iteration(planner, error))
            return NULL;
    rp_planner_finish(planner);
    return rp_planner_steal_plan(planner);
}
