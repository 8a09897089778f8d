/**
 * Max-min fair sharing of links: nobody can get more without taking from somebody who has less for
 * its weight.
 */
#pragma once

#include <glib.h>

#define RP_FLOW_MAX_LINKS 4

/* @count equal flows: each gets the same rate. */
typedef struct {
    double cap_bytes_per_s; /* own limit of each; INFINITY = none */
    double weight; /* of each: on a full link it gets so many times the rate of others; > 0 */
    guint32 count; /* 0 = none at the moment */
    guint32 n_links;
    guint32 links[RP_FLOW_MAX_LINKS]; /* one that is named k times gets k bytes for each */
} RpFlow;

typedef struct _RpBandwidth RpBandwidth;

/* @link_bytes_per_s: (array length=n_links): > 0; INFINITY = unlimited */
RpBandwidth *rp_bandwidth_new(const double *link_bytes_per_s, guint n_links);
void rp_bandwidth_free(RpBandwidth *bandwidth);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpBandwidth, rp_bandwidth_free)

/**
 * rp_bandwidth_share:
 * @rates_bytes_per_s: (out) (array length=n_flows): of each of the @count flows; INFINITY if
 * nothing limits it, 0 if @count is 0
 *
 * Progressive filling: all rates rise together, in proportion to their weights; a flow stops at its
 * own cap or when one of its links is full, and the others go on.
 *
 *   link of 10, caps 2, inf, inf:   2 -> its cap, then 4 and 4 fill the link
 *
 * Linear when no link is oversubscribed, otherwise a pass per distinct rate.
 *
 * Source: Bertsekas, Gallager, Data Networks, §6.5.2
 */
void rp_bandwidth_share(RpBandwidth *bandwidth, const RpFlow *flows, guint n_flows,
                        double *rates_bytes_per_s);
