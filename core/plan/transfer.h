/**
 * Transfers: how a stage's parameters (or gradients) are divided into the chunks that travel in the
 * idle windows between activation transfers (§4.2.2).
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "core/profile/profile.h"

/* Bytes that chunks carry: rp_layer_upload_bytes(), gradient_bytes, or gradients in fp32. */
typedef enum { RP_CHUNKS_PARAMETERS, RP_CHUNKS_GRADIENTS, RP_CHUNKS_SUMS } RpChunksOf;

/**
 * rp_chunks_pack:
 * @layers: the stage
 * @of: the bytes to pack
 * @n_windows: M_R, the number of chunks; >= 1. One: the simple overlap of Figure 6
 * @alignment: layers are cut at multiples of it, bytes; 0 = 256
 *
 * The stage's bytes in order of its layers, cut into @n_windows chunks of the same size: chunk 0
 * has the first layers. No chunk exceeds an even share (total / n_windows) by more than alignment.
 * Every byte is in exactly one segment, and a chunk has one segment for each layer that it is part
 * of: a chunk can travel as soon as its own layers are updated, in few copies. Windows left without
 * bytes are dropped.
 *
 *   layers    | 0     | 1 | 2 | 3 | 4         |
 *   chunks    |  0       |  1       |  2      |
 *
 * The paper packs tensors longest-first (§4.2.2): as even, but with parts of all layers in every
 * chunk, so that the first chunk waits for the last layer's update.
 */
RpChunks rp_chunks_pack(const RpProfile *profile, RpInterval layers, RpChunksOf of, guint n_windows,
                        guint64 alignment);

/* A chunk for each layer that has any bytes, the last layer first if @downward. */
RpChunks rp_chunks_by_layer(const RpProfile *profile, RpInterval layers, RpChunksOf of,
                            gboolean downward);
