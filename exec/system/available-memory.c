#include "exec/system/available-memory.h"

#include "exec/system/memory-limit.h"

guint64
rp_available_memory(void)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    return limit.bytes == G_MAXUINT64 ? 0 : MAX(1, limit.bytes);
}
