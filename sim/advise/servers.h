/**
 * Several servers: replicas of one server's plan, each of which steps a share of every layer. Plan, memory
 * and time are those of one server with RpPlanOptions.servers, all of them as fast as each other.
 */
#pragma once

#include "sim/advise/advise.h"

/* How @run goes on so many servers. */
typedef struct {
    guint servers;
    gint64 step_ns;       /* with the network, simulated */
    gint64 alone_ns;      /* of the plan that is best if that takes no time */
    double tokens_per_s;  /* of all servers; 0 if the profile gives no tokens */
    gint64 exchange_ns;   /* that the network is busy in a step */
    guint64 sent_bytes;   /* by each server in a step; as many arrive */
    double bytes_per_s;   /* that the network, or host memory, allows each way */
    gboolean host_limits; /* host memory is the slower of the two */
    gboolean network;     /* the network binds: steps are more than 3 % longer */
    guint hiding_batch;   /* sequences of all servers with which it does not; 0: it does not, or
                             none that is tried is large enough */
} RpAdviseServed;

/**
 * rp_advise_serve:
 * @query: as resolved, with servers and their network
 * @run: recommended for it, simulated
 * @alone: the same if the network takes no time, of the same batch
 *
 * Errors: those of planning and simulating
 */
gboolean rp_advise_serve(const RpAdviseQuery *query, const RpAdviseRun *run,
                         const RpAdviseRun *alone, RpAdviseServed *served,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
