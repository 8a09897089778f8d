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
 * Runs a layer of each class forwards and backwards, if there is space for it. All weights and
 * tokens are 0, and the results are not used. The stream records kernels that fail.
 */
void rp_rehearse(const RpNetwork *network, RpKernelStream *stream, const void *constants,
                 void *memory, guint64 bytes);
