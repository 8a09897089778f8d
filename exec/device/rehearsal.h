/**
 * Each class of layers once, before the first step: whatever runs first has its kernels loaded, and
 * libraries choose theirs. Else the first step would take longer than the others.
 */
#pragma once

#include "exec/network/network.h"

/**
 * rp_rehearse:
 * @stream: whose actions are to come
 * @constants: as the device has them
 * @memory: the device's, @bytes that nobody needs; is written to
 *
 * Runs a layer of each class forwards and backwards, if there is room for it. All weights are 0, all
 * tokens 0, and what comes of it is of no use. Kernels that fail are noted by the stream.
 */
void rp_rehearse(const RpNetwork *network, RpKernelStream *stream, const void *constants,
                 void *memory, guint64 bytes);
