#include "exec/device/arena-check.h"

#include "exec/device/error.h"

gboolean
rp_arena_check_limits(const guint64 *bytes, guint gpus, guint64 limit, GError **error)
{
    for (guint g = 0; limit > 0 && g < gpus; g++) {
        if (bytes[g] <= limit)
            continue;
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                    "device %u: the plan needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
                    " more than the limit of %" G_GUINT64_FORMAT
                    ": use more stages or smaller micro-batches, or raise the limit",
                    g, bytes[g], bytes[g] - limit, limit);
        return FALSE;
    }
    return TRUE;
}

gboolean
rp_arena_check_open(const guint64 *bytes, const guint64 *open, guint n, GError **error)
{
    for (guint i = 0; i < n; i++) {
        if (bytes[i] <= open[i])
            continue;
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                    "arena %u has grown to %" G_GUINT64_FORMAT
                    " bytes since it was opened with %" G_GUINT64_FORMAT,
                    i, bytes[i], open[i]);
        return FALSE;
    }
    return TRUE;
}
