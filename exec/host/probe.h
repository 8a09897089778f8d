/**
 * The host's probe: the calling thread, and the host's memory.
 */
#pragma once

#include "exec/measure/probe.h"

/* @device: any; they are all alike. Free with rp_probe_free(). Errors:
 * G_IO_ERROR_NO_SPACE: no memory for a matmul */
RpProbe *rp_host_probe_new(guint device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
