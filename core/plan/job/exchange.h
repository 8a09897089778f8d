/**
 * What several servers send each other in an iteration: gradients to their owners, sums of squares, new
 * weights. All of it stands in one lane, in the same order on all servers, so that nobody waits for one
 * who waits for another. With one server none of these does anything.
 */
#pragma once

#include "core/plan/job/job.h"

/* RpPlanLayer.reduced; RP_NONE. */
guint32 rp_exchange_lay_out_layer(const RpPlanJob *job, guint layer);
/* RpPlanExchange */
void rp_exchange_lay_out(const RpPlanJob *job);

/* Gradients of @layer, summed over rounds, to their owners. */
void rp_exchange_append_reduce(const RpPlanJob *job, guint layer, guint32 iteration);
/* Behind the norm. */
void rp_exchange_append_agree(const RpPlanJob *job, guint32 iteration);
/* Behind what wrote this server's share of them: 16-bit weights of @layer, of buffer @weights. */
void rp_exchange_append_gather(const RpPlanJob *job, guint layer, guint32 weights,
                               guint32 iteration);
