/**
 * A GPU's probe: events around the issued work, pinned memory for its links.
 */
#pragma once

#include "exec/measure/measure.h"

/* @device: as CUDA numbers them. Free with rp_probe_free(). Errors: RP_DEVICE_ERROR_* */
RpProbe *rp_cuda_probe_new(guint device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
