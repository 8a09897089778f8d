/**
 * Tasks in which several servers exchange gradients (to their owners), sums of squares and new
 * weights. All of them stand in one lane, in the same order on all servers, so that no two servers
 * wait for each other. With one server none of these does anything.
 */
#pragma once

#include "core/plan/job/job.h"

/**
 * rp_exchange_shared_gradients:
 *
 * Several servers step of the sums of their shares, so that a layer's 16-bit gradients are done with once they
 * are reduced. Synchronous and in one round, layers so far apart that one's are reduced before the other's
 * leave a device stand in the same buffer:
 *
 *   layers, on 2 devices   7 6 | 5 4 | 3 2 | 1 0      stages of two
 *   buffers                0 1   2 3   4 5   0 1      one stage leaves each device, and one is reduced
 *
 * Returns: a layer below @layer whose buffer is that of @layer, too; RP_NONE
 */
guint rp_exchange_shared_gradients(const RpPlanJob *job, guint layer);

/* RpPlanLayer.reduced; RP_NONE. */
guint32 rp_exchange_lay_out_layer(const RpPlanJob *job, guint layer);
/* RpPlanExchange */
void rp_exchange_lay_out(const RpPlanJob *job);

/* Gradients of @layer, summed over rounds, to their owners. */
void rp_exchange_append_reduce(const RpPlanJob *job, guint layer, guint32 iteration);
/* Behind the norm. */
void rp_exchange_append_agree(const RpPlanJob *job, guint32 iteration);
/* Appended behind the writer of this server's share: 16-bit weights of @layer, in buffer
 * @weights. */
void rp_exchange_append_gather(const RpPlanJob *job, guint layer, guint32 weights,
                               guint32 iteration);
