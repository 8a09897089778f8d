/*
 * Packed weights to a storage that layers read: y = value(code) scale, rounded                    =
 * Formats: core/lowbit/lowbit.h, which does it.
 */
#include "exec/host/host-private.h"

void
rp_host_expand(RpKernelStream *stream, const RpExpandArgs *args)
{
    rp_lowbit_expand(args->format, args->shape, args->packed, args->dtype, 0,
                     rp_lowbit_elements(args->shape), args->y);
}
