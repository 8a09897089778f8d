/**
 * The host backend: N virtual devices on CPU threads, each with an arena of its own; copies are
 * copies. The default where there is no GPU, and the oracle of the CUDA backend.
 *
 *   host arena      weights, gradients, optimizer state, stashed activations
 *   device arenas   what the plan places there; a device's tasks touch nothing else
 */
#pragma once

#include "exec/device/device.h"
#include "exec/engine/backend.h"

/* All borrowed: outlive the backend. Of @plan, stages and fixed buffers are read now. */
RpBackend *rp_host_backend_new(const RpPlan *plan, const RpNetwork *network, RpHome *home,
                               RpFeed *feed, const RpDeviceOptions *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_host_backend_free(RpBackend *backend);

/**
 * rp_host_backend_open:
 * @bytes: (array length=n): of every arena, the host's last
 *
 * Allocates the arenas, fills the constants of the devices and attaches the home. For callers that
 * need the home before the engine's first batch; the engine's own call then finds them open, and is
 * content if they are large enough.
 *
 * Errors: RP_DEVICE_ERROR_MEMORY, RP_HOME_ERROR_MEMORY
 */
gboolean rp_host_backend_open(RpBackend *backend, const guint64 *bytes, guint n,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
