#include "exec/system/nodes.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

gboolean
rp_cpu_list_parse(const char *list, cpu_set_t *set)
{
    g_auto(GStrv) parts = g_strsplit(list, ",", -1);

    CPU_ZERO(set);
    for (char **part = parts; *part != NULL; part++) {
        g_auto(GStrv) ends = g_strsplit(g_strstrip(*part), "-", 2);
        guint64 from = 0, to = 0;

        if (ends[0] == NULL ||
            !g_ascii_string_to_unsigned(ends[0], 10, 0, CPU_SETSIZE - 1, &from, NULL) ||
            !g_ascii_string_to_unsigned(ends[1] != NULL ? ends[1] : ends[0], 10, from,
                                        CPU_SETSIZE - 1, &to, NULL))
            return FALSE;
        for (guint64 cpu = from; cpu <= to; cpu++)
            CPU_SET((int)cpu, set);
    }
    return TRUE;
}

#define MOST CPU_SETSIZE /* processors, and nodes */
#define WORD_BITS (8 * sizeof(unsigned long))

struct _RpNodes {
    guint n;
    guint of_cpu[MOST];
};

/* Sets the numbers that @file of @directory lists; none, if it is not there or no list. */
static void
read_list(const char *directory, const char *file, cpu_set_t *set)
{
    g_autofree char *path = g_build_filename(directory, file, NULL);
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL) || !rp_cpu_list_parse(text, set))
        CPU_ZERO(set);
}

RpNodes *
rp_nodes_read(const char *directory)
{
    RpNodes *nodes = g_new0(RpNodes, 1);
    cpu_set_t online, cpus;

    read_list(directory, "online", &online);
    for (guint node = 0; node < MOST; node++) {
        g_autofree char *file = g_strdup_printf("node%u/cpulist", node);

        if (!CPU_ISSET(node, &online))
            continue;
        read_list(directory, file, &cpus);
        for (guint cpu = 0; cpu < MOST; cpu++)
            if (CPU_ISSET(cpu, &cpus))
                nodes->of_cpu[cpu] = node;
        nodes->n += CPU_COUNT(&cpus) > 0; /* others have memory alone */
    }
    nodes->n = MAX(1, nodes->n);
    return nodes;
}

void
rp_nodes_free(RpNodes *nodes)
{
    g_free(nodes);
}

guint
rp_nodes_count(const RpNodes *nodes)
{
    return nodes->n;
}

guint
rp_nodes_of_cpu(const RpNodes *nodes, guint cpu)
{
    return cpu < MOST ? nodes->of_cpu[cpu] : 0;
}

void
rp_nodes_choose(const RpNodes *nodes, const guint *cpus, guint n_cpus, guint *chosen, guint n)
{
    guint n_before = 0, n_chosen = 0; /* counts over nodes up to the one looked at */

    g_return_if_fail(n_cpus > 0);

    for (guint node = 0; node < MOST && n_chosen < n; node++) {
        guint here[MOST], n_here = 0;

        for (guint i = 0; i < n_cpus; i++)
            if ((nodes != NULL && nodes->n > 1 ? rp_nodes_of_cpu(nodes, cpus[i]) : 0) == node)
                here[n_here++] = cpus[i];
        n_before += n_here;
        /* rounded as sums are, so that all nodes together have all */
        for (guint until = (guint)((guint64)n * n_before / n_cpus), k = 0; n_chosen < until; k++)
            chosen[n_chosen++] = here[k % n_here];
    }
}

/* The nearest border of granules. */
static guintptr
border(const void *address)
{
    return ((guintptr)address + RP_NODES_GRANULE / 2) / RP_NODES_GRANULE * RP_NODES_GRANULE;
}

guint64
rp_nodes_prefer(const void *begin, const void *end, guint node, char **problem)
{
    const guintptr first = border(begin), last = border(end);
    unsigned long mask[MOST / WORD_BITS] = {0};

    if (last <= first || node >= MOST)
        return 0;
    mask[node / WORD_BITS] = 1ul << node % WORD_BITS;
    if (syscall(SYS_mbind, first, last - first, MPOL_PREFERRED, mask, MOST + 1ul, 0ul) == 0)
        return last - first;
    *problem = g_strdup(g_strerror(errno));
    return 0;
}
