/* The time of an iteration as far as the measurements of layers go. */
#include "core/trace/report.h"
#include "run/request.h"

static gboolean
has_spreads(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        if (profile->layers[l].forward_spread_ns > 0 || profile->layers[l].backward_spread_ns > 0)
            return TRUE;
    return FALSE;
}

/* A part of @whole, whose time changes by @change. */
static gint64
scaled(gint64 part_ns, gint64 whole_ns, gint64 change_ns)
{
    return whole_ns > 0
               ? (gint64)((double)part_ns * (double)(whole_ns + change_ns) / (double)whole_ns)
               : part_ns;
}

/* Every time of @profile with its spread added or (@sign -1) taken off; never below 0. */
static RpProfile *
shift(const RpProfile *profile, gint sign)
{
    RpProfile *shifted = rp_profile_copy(profile);

    for (guint l = 0; l < shifted->n_layers; l++) {
        RpLayer *layer = &shifted->layers[l];
        gint64 forward = sign * MIN(layer->forward_spread_ns, layer->forward_ns);
        gint64 recompute = sign * MIN(layer->recompute_spread_ns, layer->recompute_ns);
        gint64 backward = sign * MIN(layer->backward_spread_ns, layer->backward_ns);

        layer->recompute_last_ns = scaled(layer->recompute_last_ns, layer->recompute_ns, recompute);
        layer->weight_gradient_ns = scaled(layer->weight_gradient_ns, layer->backward_ns, backward);
        layer->forward_ns += forward;
        layer->recompute_ns += recompute;
        layer->backward_ns += backward;
    }
    return shifted;
}

/* The mean period of steady iterations, or of all, with the last task. */
static gint64
iteration_ns(const RpRequest *request, const RpTrace *trace)
{
    return request->steady
               ? rp_report_steady(trace, request->window.first, request->window.end).iteration_ns
               : rp_trace_end_ns(trace) / (gint64)request->iterations;
}

gboolean
rp_request_spread(const RpRequest *request, const RpProfile *profile, gint64 *least_ns,
                  gint64 *most_ns, GError **error)
{
    gint64 *const times_ns[] = {least_ns, most_ns};

    *least_ns = *most_ns = 0;
    for (gint i = 0; has_spreads(profile) && i < 2; i++) {
        g_autoptr(RpProfile) shifted = shift(profile, i == 0 ? -1 : 1);
        g_autoptr(RpTrace) trace = rp_request_simulate(request, shifted, NULL, error);

        if (trace == NULL)
            return FALSE;
        *times_ns[i] = iteration_ns(request, trace);
    }
    return TRUE;
}
