#include "sim/flows/bandwidth.h"

#include <math.h>

/* Links that would be full within this of one another are full at once, so that rounding cannot
 * split flows that are equal. */
#define SAME_LEVEL (1.0 + 1e-12)

typedef struct {
    double capacity;
    double spent;   /* by flows that have their rate */
    guint n_rising; /* flows that still rise */
    double weight;  /* of them */
    double share;   /* what one of weight 1 can get from this link */
} Link;

struct _RpBandwidth {
    guint n_links;
    Link *links;
    GArray *rising; /* guint32, indices of flows that still rise */
};

RpBandwidth *
rp_bandwidth_new(const double *link_bytes_per_s, guint n_links)
{
    RpBandwidth *bandwidth = g_new0(RpBandwidth, 1);

    bandwidth->n_links = n_links;
    bandwidth->links = g_new0(Link, n_links);
    bandwidth->rising = g_array_new(FALSE, FALSE, sizeof(guint32));
    for (guint l = 0; l < n_links; l++)
        bandwidth->links[l].capacity = link_bytes_per_s[l];
    return bandwidth;
}

void
rp_bandwidth_free(RpBandwidth *bandwidth)
{
    if (bandwidth == NULL)
        return;
    g_array_unref(bandwidth->rising);
    g_free(bandwidth->links);
    g_free(bandwidth);
}

/* Gives every flow what it could have alone. Returns: whether all of them can have it at once. */
static gboolean
share_unhindered(RpBandwidth *bandwidth, const RpFlow *flows, guint n_flows, double *rates)
{
    Link *links = bandwidth->links;

    for (guint l = 0; l < bandwidth->n_links; l++)
        links[l].spent = 0;
    for (guint f = 0; f < n_flows; f++) {
        const RpFlow *flow = &flows[f];

        rates[f] = 0;
        if (flow->count == 0)
            continue;
        rates[f] = flow->cap_bytes_per_s;
        for (guint i = 0; i < flow->n_links; i++)
            rates[f] = MIN(rates[f], links[flow->links[i]].capacity);
        for (guint i = 0; i < flow->n_links; i++)
            links[flow->links[i]].spent += flow->count * rates[f];
    }
    for (guint l = 0; l < bandwidth->n_links; l++)
        if (links[l].spent > links[l].capacity)
            return FALSE;
    return TRUE;
}

/* Where the first of the rising flows stops; every link's share is brought up to date. */
static double
next_level(RpBandwidth *bandwidth, const RpFlow *flows, const double *bounds, double last_level)
{
    double level = INFINITY;

    for (guint l = 0; l < bandwidth->n_links; l++) {
        Link *link = &bandwidth->links[l];

        if (link->n_rising == 0)
            continue;
        /* levels only rise; rounding must not take the last flow's rate away */
        link->share = MAX((link->capacity - link->spent) / link->weight, last_level);
        level = MIN(level, link->share);
    }
    for (guint i = 0; i < bandwidth->rising->len; i++) {
        const guint32 f = g_array_index(bandwidth->rising, guint32, i);

        level = MIN(level, bounds[f] / flows[f].weight);
    }
    return level;
}

static gboolean
stops_at(const Link *links, const RpFlow *flow, double level)
{
    for (guint i = 0; i < flow->n_links; i++)
        if (links[flow->links[i]].share <= level * SAME_LEVEL)
            return TRUE;
    return FALSE;
}

/* @rates: on entry what each flow could have alone, on return its share */
static void
fill(RpBandwidth *bandwidth, const RpFlow *flows, double *rates)
{
    Link *links = bandwidth->links;
    GArray *rising = bandwidth->rising;
    double level = 0;

    while (rising->len > 0) {
        guint n_rising = 0;

        level = next_level(bandwidth, flows, rates, level);
        for (guint i = 0; i < rising->len; i++) {
            const guint32 f = g_array_index(rising, guint32, i);
            const RpFlow *flow = &flows[f];

            if (rates[f] / flow->weight > level && !stops_at(links, flow, level)) {
                g_array_index(rising, guint32, n_rising++) = f;
                continue;
            }
            rates[f] = MIN(rates[f], level * flow->weight);
            for (guint k = 0; k < flow->n_links; k++) {
                links[flow->links[k]].spent += flow->count * rates[f];
                links[flow->links[k]].weight -= flow->count * flow->weight;
                links[flow->links[k]].n_rising--;
            }
        }
        g_array_set_size(rising, n_rising);
    }
}

void
rp_bandwidth_share(RpBandwidth *bandwidth, const RpFlow *flows, guint n_flows,
                   double *rates_bytes_per_s)
{
    if (share_unhindered(bandwidth, flows, n_flows, rates_bytes_per_s))
        return;

    g_array_set_size(bandwidth->rising, 0);
    for (guint l = 0; l < bandwidth->n_links; l++) {
        bandwidth->links[l].spent = 0;
        bandwidth->links[l].weight = 0;
        bandwidth->links[l].n_rising = 0;
    }
    for (guint32 f = 0; f < n_flows; f++) {
        if (flows[f].count == 0 || isinf(rates_bytes_per_s[f]))
            continue;
        for (guint i = 0; i < flows[f].n_links; i++) {
            Link *link = &bandwidth->links[flows[f].links[i]];

            link->weight += flows[f].count * flows[f].weight;
            link->n_rising++;
        }
        g_array_append_val(bandwidth->rising, f);
    }
    fill(bandwidth, flows, rates_bytes_per_s);
}
