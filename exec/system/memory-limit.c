#include "exec/system/memory-limit.h"

#include <string.h>

#define MEM_AVAILABLE "available memory"

void
rp_memory_limit_clear(RpMemoryLimit *limit)
{
    g_clear_pointer(&limit->file, g_free);
}

/* (transfer full) (nullable) */
static char *
read_text(const char *root, const char *path)
{
    g_autofree char *whole = g_strconcat(root, path, NULL);
    char *text = NULL;

    (void)g_file_get_contents(whole, &text, NULL, NULL);
    return text;
}

/* The number behind @key at the beginning of a line. */
static gboolean
find_number(const char *text, const char *key, guint64 *number)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!g_str_has_prefix(line, key))
            continue;
        line += strlen(key);
        while (*line == ' ' || *line == '\t')
            line++;
        if (!g_ascii_isdigit(*line))
            return FALSE; /* "unlimited" */
        *number = g_ascii_strtoull(line, NULL, 10);
        return TRUE;
    }
    return FALSE;
}

/* @name: static. @file: (transfer full) */
static void
note(RpMemoryLimit *limit, guint64 bytes, const char *name, char *file)
{
    if (bytes >= limit->bytes) {
        g_free(file);
        return;
    }
    g_free(limit->file);
    *limit = (RpMemoryLimit){.bytes = bytes, .name = name, .file = file};
}

static void
look_at_machine(const char *root, RpMemoryLimit *limit)
{
    g_autofree char *text = read_text(root, "/proc/meminfo");
    guint64 kilobytes;

    if (text != NULL && find_number(text, "MemAvailable:", &kilobytes))
        note(limit, kilobytes * 1024, MEM_AVAILABLE, g_strdup("/proc/meminfo"));
}

/* ---- resource limits ---- */

static void
look_at_resource(const char *limits, const char *status, const char *line, const char *used_line,
                 const char *name, RpMemoryLimit *limit)
{
    guint64 most, used_kilobytes;

    if (find_number(limits, line, &most) && find_number(status, used_line, &used_kilobytes))
        note(limit, most - MIN(most, used_kilobytes * 1024), name, g_strdup("/proc/self/limits"));
}

static void
look_at_resources(const char *root, RpMemoryLimit *limit)
{
    g_autofree char *limits = read_text(root, "/proc/self/limits");
    g_autofree char *status = read_text(root, "/proc/self/status");

    if (limits == NULL || status == NULL)
        return;
    look_at_resource(limits, status, "Max address space", "VmSize:", "RLIMIT_AS", limit);
    look_at_resource(limits, status, "Max data size", "VmData:", "RLIMIT_DATA", limit);
}

/* ---- cgroups ---- */

typedef struct {
    const char *mount;
    const char *limit, *usage;
    const char *caches[2]; /* lines of memory.stat: file pages that the system would drop */
} Hierarchy;

static const Hierarchy unified = {
    .mount = "/sys/fs/cgroup",
    .limit = "memory.max",
    .usage = "memory.current",
    .caches = {"inactive_file ", "active_file "},
};
/* The cgroup v2 mount beside v1 controllers. */
static const Hierarchy hybrid = {
    .mount = "/sys/fs/cgroup/unified",
    .limit = "memory.max",
    .usage = "memory.current",
    .caches = {"inactive_file ", "active_file "},
};
static const Hierarchy version1 = {
    .mount = "/sys/fs/cgroup/memory",
    .limit = "memory.limit_in_bytes",
    .usage = "memory.usage_in_bytes",
    .caches = {"total_inactive_file ", "total_active_file "},
};

static char *
read_cgroup(const char *root, const Hierarchy *hierarchy, const char *group, const char *name)
{
    g_autofree char *path = g_build_filename(hierarchy->mount, group, name, NULL);

    return read_text(root, path);
}

static void
look_at_group(const char *root, const Hierarchy *hierarchy, const char *group, RpMemoryLimit *limit)
{
    g_autofree char *most = read_cgroup(root, hierarchy, group, hierarchy->limit);
    g_autofree char *usage = read_cgroup(root, hierarchy, group, hierarchy->usage);
    g_autofree char *stat = read_cgroup(root, hierarchy, group, "memory.stat");
    guint64 bytes, used = 0;

    if (most == NULL || !find_number(most, "", &bytes)) /* "max" */
        return;
    if (usage != NULL)
        (void)find_number(usage, "", &used);
    for (guint i = 0; stat != NULL && i < G_N_ELEMENTS(hierarchy->caches); i++) {
        guint64 cache = 0;

        if (find_number(stat, hierarchy->caches[i], &cache))
            used -= MIN(used, cache);
    }
    note(limit, bytes - MIN(bytes, used), hierarchy->limit,
         g_build_filename(hierarchy->mount, group, hierarchy->limit, NULL));
}

/* @group and all above it. One that is not there is not ours to see: a container has its own at the
 * root of the mount. */
static void
look_upwards(const char *root, const Hierarchy *hierarchy, const char *group, RpMemoryLimit *limit)
{
    g_autofree char *path = g_strdup(group);

    while (TRUE) {
        char *slash = strrchr(path, '/');

        look_at_group(root, hierarchy, path, limit);
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::/a/b" (v2), "9:cpu,memory:/a/b" (v1). */
static void
look_at_cgroups(const char *root, RpMemoryLimit *limit)
{
    g_autofree char *text = read_text(root, "/proc/self/cgroup");
    g_auto(GStrv) lines = text != NULL ? g_strsplit(text, "\n", -1) : NULL;

    for (guint i = 0; lines != NULL && lines[i] != NULL; i++) {
        g_auto(GStrv) parts = g_strsplit(lines[i], ":", 3);

        if (g_strv_length(parts) < 3)
            continue;
        if (strcmp(parts[0], "0") == 0 && *parts[1] == '\0') {
            look_upwards(root, &unified, parts[2], limit);
            look_upwards(root, &hybrid, parts[2], limit);
        } else {
            g_auto(GStrv) controllers = g_strsplit(parts[1], ",", -1);

            if (g_strv_contains((const char *const *)controllers, "memory"))
                look_upwards(root, &version1, parts[2], limit);
        }
    }
}

RpMemoryLimit
rp_memory_limit(const char *root, gboolean hard)
{
    RpMemoryLimit limit = {.bytes = G_MAXUINT64};

    if (!hard)
        look_at_machine(root, &limit);
    look_at_cgroups(root, &limit);
    look_at_resources(root, &limit);
    return limit;
}

char *
rp_memory_limit_describe(const RpMemoryLimit *limit)
{
    return limit->name == NULL ? g_strdup(MEM_AVAILABLE)
                               : g_strdup_printf("%s (%s)", limit->name, limit->file);
}

guint64
rp_available_memory(void)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    return limit.bytes == G_MAXUINT64 ? 0 : MAX(1, limit.bytes);
}
