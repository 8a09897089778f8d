/**
 * Finds how much memory a process can still have, and the limit that keeps it from more: the
 * machine, the cgroups it is in (containers, batch systems, services), its own resource limits.
 *
 *   /proc/meminfo                               MemAvailable
 *   /sys/fs/cgroup/a/b/memory.max               cgroup v2: of a/b and each above it
 *   /sys/fs/cgroup/memory/a/b/memory.limit_in_bytes     cgroup v1: the same
 *   /proc/self/limits                           RLIMIT_AS, RLIMIT_DATA
 *
 * Caches of files that the system would drop count as free, within a cgroup as well.
 */
#pragma once

#include <glib.h>

typedef struct {
    guint64 bytes;    /* still to be had; G_MAXUINT64: nothing says */
    const char *name; /* file of the lowest limit: "memory.max"; %NULL with G_MAXUINT64 */
    char *file;       /* where it stands, as the process sees it */
} RpMemoryLimit;

void rp_memory_limit_clear(RpMemoryLimit *limit);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpMemoryLimit, rp_memory_limit_clear)

/**
 * rp_memory_limit:
 * @root: prefix of /proc and /sys: "" but for tests
 * @hard: without the machine's own free memory: limits that no option of a user can exceed
 */
RpMemoryLimit rp_memory_limit(const char *root, gboolean hard);

/* "memory.max (/sys/fs/cgroup/a/memory.max)", or "available memory (/proc/meminfo)".
 * (transfer full) */
char *rp_memory_limit_describe(const RpMemoryLimit *limit);

/* Memory that the system can give without swapping, caches of files that it would drop included,
 * and within the limits of cgroups and of the process (memory-limit.h), bytes; 0: nothing says. */
guint64 rp_available_memory(void);
