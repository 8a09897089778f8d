/* Several servers: what the network between them takes of a step, and the batch that would hide it. */
#include "sim/advise/servers.h"

#include <math.h>

#include "sim/advise/private.h"
#include "sim/flows/flow-set.h"

/* Batches up to so many times as large are tried. */
#define MOST_TIMES 4096
#define HIDDEN 1.03

/* How many times the batch hides the network behind the computing of @alone: cards then compute longer, the
 * optimizer and the network do not. What a synchronous step waits for them comes on top of the computing. */
static double
hiding_times(const RpAdviseServed *served, const RpAdviseRun *alone)
{
    const double busy_ns = (double)alone->step_ns * (1 - alone->bubble_ratio);
    const double step_ns = (double)served->step_ns, alone_ns = (double)alone->step_ns;

    return alone->options.async ? step_ns / HIDDEN / busy_ns
                                : 1 + (step_ns - HIDDEN * alone_ns) / (HIDDEN - 1) / busy_ns;
}

/* In whole micro-batches a card; 0: more than are tried. */
static guint
find_hiding_batch(const RpAdviseServed *served, const RpAdviseRun *alone)
{
    const double units = MAX(1, alone->options.micro_batches / alone->options.gpus);
    const double times = hiding_times(served, alone);
    const double batch = ceil(units * times) * alone->options.gpus * alone->sequences;

    return times <= MOST_TIMES && batch * served->servers <= G_MAXINT
               ? (guint)batch * served->servers
               : 0;
}

/* How fast the network is to gradients, whose exchange touches host memory most. */
static void
find_rate(const RpProfile *profile, RpAdviseServed *served)
{
    served->bytes_per_s = rp_network_bytes_per_s(&profile->links, RP_REDUCE_TOUCHES);
    served->host_limits = served->bytes_per_s < profile->links.network_bytes_per_s;
}

gboolean
rp_advise_serve(const RpAdviseQuery *query, const RpAdviseRun *run, const RpAdviseRun *alone,
                RpAdviseServed *served, GError **error)
{
    const guint servers = run->options.servers;
    g_return_val_if_fail(run->simulated && servers > 1 && query->network != NULL, FALSE);
    g_autoptr(RpProfile) profile = rp_advise_profile(query, run->sequences, error);

    if (profile == NULL)
        return FALSE;
    *served = (RpAdviseServed){.servers = servers,
                               .step_ns = run->step_ns,
                               .alone_ns = alone->step_ns,
                               .exchange_ns = run->network_ns,
                               .sent_bytes = run->network_bytes,
                               .tokens_per_s = run->tokens_per_s * servers};
    find_rate(profile, served);
    served->network = (double)served->step_ns > HIDDEN * (double)alone->step_ns;
    if (served->network)
        served->hiding_batch = find_hiding_batch(served, alone);
    return TRUE;
}
