/**
 * Measures the rates at which GPUs copy: alone, together, and beside the optimizer.
 */
#pragma once

#include "exec/cuda/runtime/runtime.h"
#include "exec/measure/measure.h"

#define RP_CUDA_LINK_MEASURES 20

/* RpProbeOps.measure_links, of the GPUs 0 to profile->gpus - 1. @stream: the probe's; small copies
 * are issued to it. Errors: RP_DEVICE_ERROR_*, G_IO_ERROR_CANCELLED, G_IO_ERROR_NO_SPACE */
gboolean rp_cuda_measure_links(RpProbe *probe, RpRuntimeStream *stream, RpMeasurer *measurer,
                               RpProfile *profile, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* RpProbeOps.begin_copies: up, of the GPUs 0 to @devices - 1. Errors: RP_DEVICE_ERROR_* */
gpointer rp_cuda_begin_copies(RpProbe *probe, guint devices,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_cuda_end_copies(RpProbe *probe, gpointer copies, double *bytes_per_s, GError **error);
