/**
 * The host's probe: the calling thread, and the host's memory.
 */
#pragma once

#include "exec/profile/probe.h"

/* @device: any; they are all alike. Never fails. Free with rp_probe_free() */
RpProbe *rp_host_probe_new(guint device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
