/**
 * Checks that arenas are as a plan needs them.
 */
#pragma once

#include <glib.h>

/**
 * rp_arena_check_limits:
 * @bytes: (array length=gpus): that the plan needs of each device
 * @limit: bytes of a device; 0 = none
 *
 * Errors: RP_DEVICE_ERROR_MEMORY, with the first device that is too small and by how much
 */
gboolean rp_arena_check_limits(const guint64 *bytes, guint gpus, guint64 limit,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_arena_check_open:
 * @bytes: (array length=n): that the plan needs of each arena now
 * @open: (array length=n): that each was opened with
 *
 * Errors: RP_DEVICE_ERROR_MEMORY, with the first arena that is too small
 */
gboolean rp_arena_check_open(const guint64 *bytes, const guint64 *open, guint n,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
