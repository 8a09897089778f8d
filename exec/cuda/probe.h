/**
 * A GPU's probe: events around the issued work, pinned memory for its links.
 */
#pragma once

#include "exec/cuda/runtime/runtime.h"
#include "exec/measure/measure.h"

/* @device: as CUDA numbers them. Free with rp_probe_free(). Errors: RP_DEVICE_ERROR_* */
RpProbe *rp_cuda_probe_new(guint device, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Measures the rates at which GPUs copy: alone, together, and beside the optimizer.
 */

#define RP_CUDA_LINK_MEASURES 20

/* RpProbeOps.measure_links, of the GPUs 0 to profile->gpus - 1. @stream: the probe's; small copies
 * are issued to it. Errors: RP_DEVICE_ERROR_*, G_IO_ERROR_CANCELLED, G_IO_ERROR_NO_SPACE */
gboolean rp_cuda_measure_links(RpProbe *probe, RpRuntimeStream *stream, RpMeasurer *measurer,
                               RpProfile *profile, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* RpProbeOps.begin_copies: up, of the GPUs 0 to @devices - 1. Errors: RP_DEVICE_ERROR_* */
gpointer rp_cuda_begin_copies(RpProbe *probe, guint devices,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_cuda_end_copies(RpProbe *probe, gpointer copies, double *bytes_per_s, GError **error);
