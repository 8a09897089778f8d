/**
 * Gradients on their way from devices to the host, and rounds that are added up there.
 */
#pragma once

#include "core/plan/planner/placement.h"
#include "core/plan/planner/protocol.h"

typedef struct _RpGradients RpGradients;

/* @protocol is told what is home. */
RpGradients *rp_gradients_new(const RpPlanJob *job, const RpPlacement *placement,
                              RpProtocol *protocol);

/* Those of @stage are summed on @device and may leave. */
void rp_gradients_leave(RpGradients *gradients, guint device, guint32 stage, guint32 round);
/* One more chunk of those that leave @device, or all that are left. */
void rp_gradients_send(RpGradients *gradients, guint device, gboolean all);
/* All that are left on any device. @older: than those of the iteration */
void rp_gradients_send_all(RpGradients *gradients, gboolean older);
