/* Tests the limits of memory on machines that are made of files. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>

#include "exec/system/memory-limit.h"

#define MIB G_GUINT64_CONSTANT(1048576)

/* A file of the machine at @root. */
static void
put(const char *root, const char *path, const char *text)
{
    g_autofree char *whole = g_strconcat(root, path, NULL);
    g_autofree char *directory = g_path_get_dirname(whole);

    assert_int_equal(g_mkdir_with_parents(directory, 0777), 0);
    assert_true(g_file_set_contents(whole, text, -1, NULL));
}

/* 800 MiB free, nothing limited, in cgroup @group. */
static char *
machine(const char *group)
{
    char *root = g_dir_make_tmp("rp-memory-XXXXXX", NULL);

    put(root, "/proc/meminfo", "MemTotal: 2000000 kB\nMemAvailable:   819200 kB\n");
    put(root, "/proc/self/cgroup", group);
    put(root, "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max data size             unlimited            unlimited            bytes\n"
        "Max address space         unlimited            unlimited            bytes\n");
    put(root, "/proc/self/status", "Name:\tx\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n");
    return root;
}

static void
expect(const char *root, gboolean hard, guint64 bytes, const char *description)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit(root, hard);
    g_autofree char *text = rp_memory_limit_describe(&limit);

    assert_int_equal(limit.bytes, bytes);
    assert_string_equal(text, description);
}

static void
clean(char *root)
{
    g_autofree char *line = g_strdup_printf("rm -rf '%s'", root);

    assert_int_equal(system(line), 0);
    g_free(root);
}

RP_TEST(a_free_machine_has_what_it_says)
{
    char *root = machine("0::/\n");

    expect(root, FALSE, 800 * MIB, "available memory (/proc/meminfo)");
    expect(root, TRUE, G_MAXUINT64, "available memory");
    clean(root);
    root = g_strdup("/nowhere");
    expect(root, FALSE, G_MAXUINT64, "available memory");
    g_free(root);
}

RP_TEST(the_lowest_of_a_cgroup_and_those_above_it_counts)
{
    char *root = machine("0::/batch/job 7/task\n");

    put(root, "/sys/fs/cgroup/batch/job 7/task/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/batch/job 7/task/memory.current", "1000\n");
    put(root, "/sys/fs/cgroup/batch/job 7/memory.max", "419430400\n"); /* 400 MiB */
    put(root, "/sys/fs/cgroup/batch/job 7/memory.current", "314572800\n");
    put(root, "/sys/fs/cgroup/batch/job 7/memory.stat",
        "anon 5\nfile 200000000\nactive_file 104857600\ninactive_file 104857600\n");
    put(root, "/sys/fs/cgroup/batch/memory.max", "524288000\n");
    put(root, "/sys/fs/cgroup/batch/memory.current", "314572800\n");
    /* 400 - (300 - 200) MiB; above it 500 - 300, without a word about caches */
    expect(root, FALSE, 200 * MIB, "memory.max (/sys/fs/cgroup/batch/memory.max)");
    expect(root, TRUE, 200 * MIB, "memory.max (/sys/fs/cgroup/batch/memory.max)");
    put(root, "/sys/fs/cgroup/batch/memory.max", "max\n");
    expect(root, FALSE, 300 * MIB, "memory.max (/sys/fs/cgroup/batch/job 7/memory.max)");
    put(root, "/sys/fs/cgroup/batch/job 7/memory.max", "104857600\n");
    put(root, "/sys/fs/cgroup/batch/job 7/memory.stat", "anon 5\n");
    expect(root, FALSE, 0, "memory.max (/sys/fs/cgroup/batch/job 7/memory.max)");
    clean(root);
}

/* A container sees its own cgroup as the root of the mount. */
RP_TEST(a_container_has_its_limit_at_the_root)
{
    char *root = machine("0::/../../outside\n");

    put(root, "/sys/fs/cgroup/memory.max", "209715200\n");
    put(root, "/sys/fs/cgroup/memory.current", "104857600\n");
    expect(root, FALSE, 100 * MIB, "memory.max (/sys/fs/cgroup/memory.max)");
    clean(root);

    root = machine("12:cpu:/docker/ab\n9:hugetlb,memory:/docker/ab\n0::/docker/ab\n");
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
    put(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
    put(root, "/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 20971520\ntotal_active_file 0\n");
    expect(root, FALSE, 120 * MIB,
           "memory.limit_in_bytes (/sys/fs/cgroup/memory/memory.limit_in_bytes)");
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    expect(root, FALSE, 800 * MIB, "available memory (/proc/meminfo)");
    clean(root);
}

RP_TEST(limits_of_the_process_count)
{
    char *root = machine("0::/\n");

    put(root, "/proc/self/limits",
        "Max data size             524288000            unlimited            bytes\n"
        "Max address space         314572800            unlimited            bytes\n");
    expect(root, FALSE, 200 * MIB, "RLIMIT_AS (/proc/self/limits)");
    expect(root, TRUE, 200 * MIB, "RLIMIT_AS (/proc/self/limits)");
    put(root, "/proc/self/limits",
        "Max data size             104857600            unlimited            bytes\n"
        "Max address space         unlimited            unlimited            bytes\n");
    expect(root, FALSE, 50 * MIB, "RLIMIT_DATA (/proc/self/limits)");
    clean(root);
}
