/**
 * Reading a recording of torch.profiler neither crashes nor leaks, whatever the bytes; a refusal is one line; figures of
 * a recording are of each moment once.
 */
#include "fuzz/recordings.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)rp_kineto_is((const char *)data, size);
    check_recordings(rp_kineto_parse, (const char *)data, size);
    return 0;
}
