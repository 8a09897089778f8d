/* Early steps: which layers' weights are written before the norm is known.
 *
 *   compute        |-- backward of 5 --|- of 4 -|- of 3 -|- of 2 -|- of 1 -|- of 0 -|
 *   gradient-down                      |5|      |4|      |3|      |2|      |1|      |0|
 *   optimizer                            |early 5   |early 4   |sq 3|sq 2| |sq 1|     |sq 0|norm|step 0| ...
 *
 * A layer's are if that is predicted not to make the norm later. The rest is stepped after the
 * norm, first layer first, while the next iteration begins. Where nothing is clipped, whole steps
 * are early by the same rule.
 */
#include "core/plan/planner/protocol.h"

RpStateFormat
rp_planner_form(const RpProfile *profile, const RpPlanOptions *options)
{
    RpStateFormat form = options->form;

    form.shared = form.master == RP_MOMENTS_BF16 && g_strcmp0(profile->dtype, "bf16") == 0 &&
                  rp_plan_copies(options) == RP_COPIES_FUSED && options->early_steps != RP_EARLY_ON;
    return form;
}

/* Compute that is left in an iteration when the gradient of @layer is on the host, ns. */
static double
left_ns(const RpPlanJob *job, guint layer)
{
    double left = 0;
    guint stage = 0;

    if (job->modes->weights == RP_WEIGHTS_PER_LAYER) {
        for (guint l = 0; l < layer; l++)
            left += (double)job->profile->layers[l].backward_ns;
        return left;
    }
    while (stage < job->n_stages && (!rp_plan_stage(job->plan, stage)->runs_backward ||
                                     rp_plan_stage(job->plan, stage)->layers.first > layer))
        stage++;
    /* it leaves in the windows of the stage behind */
    for (guint s = stage + 2; job->partition->dispatched && s < job->n_stages; s++)
        left += (double)job->times[s].backward_ns * job->shape.round / job->options.gpus;
    return left;
}

static double
host_ns(const RpPlanJob *job, guint64 bytes)
{
    return (double)bytes / rp_traffic_rate(job) * 1e9;
}

/* Gradients reach the host over the same memory. */
static double
copy_ns(const RpPlanJob *job, guint layer)
{
    const double rate = job->profile->links.host_bytes_per_s;
    const double bytes = (double)job->profile->layers[layer].gradient_bytes;

    return rate > 0 ? bytes * rp_modes_departures(job->modes) / rate * 1e9 : 0;
}

/* The host's lane, which is free at @free_ns, has done its @must of the layers below @layer, as
 * their gradients arrive. */
static double
done_ns(const double *lefts_ns, guint layer, double free_ns, const double *must_ns)
{
    for (guint l = layer; l-- > 0;)
        free_ns = MAX(free_ns, -lefts_ns[l]) + must_ns[l];
    return free_ns;
}

void
rp_early_choose(const RpPlanJob *job, RpEarlyTime must, RpEarlyTime may, gboolean *early)
{
    const guint n = job->profile->n_layers;
    const gboolean known = job->profile->optimizer_parameters_per_s > 0;
    g_autofree double *must_ns = g_new0(double, n), *lefts_ns = g_new(double, n);
    double free_ns = -G_MAXDOUBLE, end_ns; /* from the end of the iteration's compute on */

    for (guint l = 0; l < n; l++)
        lefts_ns[l] = left_ns(job, l);
    for (guint l = 0; l < n && known; l++)
        must_ns[l] = host_ns(job, must(job, l)) + copy_ns(job, l);
    end_ns = done_ns(lefts_ns, n, free_ns, must_ns);
    for (guint l = n; l-- > 0;) {
        const double start_ns = MAX(free_ns, -lefts_ns[l]) + must_ns[l];
        const double all_ns = start_ns + (known ? host_ns(job, may(job, l)) : 0);

        early[l] = l > 0 && (!known || done_ns(lefts_ns, l, all_ns, must_ns) <= end_ns);
        free_ns = early[l] ? all_ns : start_ns;
    }
}
