/**
 * A model's weights in the memory of a device. Private to exec/generate.
 */
#pragma once

#include "exec/measure/probe.h"
#include "exec/network/network.h"

/* @weights: bound; those of @network are stored as it computes. Packed ones are expanded.
 * Returns: memory of @probe's device. Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own */
void *rp_load_weights(const RpNetwork *network, const RpWeights *weights, RpProbe *probe,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Checks that the host has @bytes free; a GPU's memory is checked by its runtime. */
gboolean rp_load_check_memory(const RpProbe *probe, guint64 bytes,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Workspace of a forward, as the planner counts it: two hidden states and the largest scratch
 * buffer of a layer. */
guint64 rp_load_workspace_bytes(const RpNetwork *network);
