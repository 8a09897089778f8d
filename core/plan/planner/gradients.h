/**
 * Downloads of gradients, and sums of rounds on the host.
 */
#pragma once

#include "core/plan/planner/placement.h"
#include "core/plan/planner/protocol.h"

typedef struct _RpGradients RpGradients;

/* @protocol is called for gradients that have reached the host. */
RpGradients *rp_gradients_new(const RpPlanJob *job, const RpPlacement *placement,
                              RpProtocol *protocol);

/* The gradients of @stage are summed on @device and may leave. */
void rp_gradients_leave(RpGradients *gradients, guint device, guint32 stage, guint32 round);
/* One more chunk of those that leave @device, or all that are left. */
void rp_gradients_send(RpGradients *gradients, guint device, gboolean all);
/* All that are left on any device. @older: than those of the iteration */
void rp_gradients_send_all(RpGradients *gradients, gboolean older);
