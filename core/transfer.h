/**
 * Transfers: how a stage's parameters (or gradients) are divided into the chunks that travel in the
 * idle windows between activation transfers (§4.2.2).
 */
#pragma once

#include <glib.h>

#include "core/plan.h"
#include "core/profile.h"

/**
 * rp_chunks_pack:
 * @layers: the stage
 * @gradients: pack gradient_bytes instead of parameter_bytes
 * @n_windows: M_R, the number of chunks; >= 1
 * @alignment: tensors are split at multiples of so many bytes; 0 = 256
 *
 * Longest-processing-time-first: pieces by falling size, each to the window with the least so far.
 * A tensor larger than an even share (total / n_windows) is split into pieces of at most that
 * first; neighbouring tensors that are small beside the share (the experts of a mixture) travel as
 * one piece, so that a chunk is a few copies and not hundreds. The largest chunk then exceeds the
 * even share by less than one piece plus alignment. Every byte is in exactly one segment; segments
 * of a chunk are sorted by layer and offset, neighbours merged; windows left without bytes are
 * dropped.
 *
 * Gradients of a layer have the layout of its parameters when gradient_bytes = parameter_bytes,
 * else they count as one tensor.
 */
RpChunks rp_chunks_pack(const RpProfile *profile, RpInterval layers, gboolean gradients,
                        guint n_windows, guint64 alignment);

/* The whole stage as one chunk: the simple overlap of Figure 6. */
RpChunks rp_chunks_whole(const RpProfile *profile, RpInterval layers, gboolean gradients);
