/**
 * Memory nodes (NUMA) of the machine: their processors, and memory that is to lie on a node. The kernel's files and one
 * system call do all of it; no library is needed.
 *
 * Where the kernel reports no nodes there is one, with all processors.
 */
#pragma once

#include <glib.h>
#include <sched.h>

#define RP_NODES_DIRECTORY "/sys/devices/system/node"

/* Granule at which the memory of one node may end and that of another begin: whole huge pages. */
#define RP_NODES_GRANULE ((guint64)2 << 20)

typedef struct _RpNodes RpNodes;

/* @directory: RP_NODES_DIRECTORY. (transfer full) */
RpNodes *rp_nodes_read(const char *directory);
void rp_nodes_free(RpNodes *nodes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpNodes, rp_nodes_free)

/* Nodes that have processors; at least one. */
guint rp_nodes_count(const RpNodes *nodes);

/* The node of processor @cpu, as the kernel numbers it; 0 where it does not say. */
guint rp_nodes_of_cpu(const RpNodes *nodes, guint cpu);

/**
 * rp_nodes_choose:
 * @nodes: (nullable): %NULL: one node
 * @cpus: (array length=n_cpus): ascending
 * @chosen: (out) (array length=n): processors for @n threads
 *
 * On one node, chooses the first @n, in rotation if there are not as many. On several nodes, each
 * node gets threads in proportion to its processors, on its first ones, one node after the other:
 * threads that follow each other share a node.
 */
void rp_nodes_choose(const RpNodes *nodes, const guint *cpus, guint n_cpus, guint *chosen, guint n);

/**
 * rp_nodes_prefer:
 * @begin: of memory of this process that nobody has touched; the nearest granule counts, here and at @end
 *
 * Takes memory from @node as long as that has any.
 *
 * Returns: bytes that follow it; 0 with @problem (transfer full) set: the system refuses; 0 without: less
 * than a granule
 */
guint64 rp_nodes_prefer(const void *begin, const void *end, guint node, char **problem);

/* Sets the numbers of @list; those of CPU_SETSIZE and above are no numbers. FALSE: it is no list. */
gboolean rp_cpu_list_parse(const char *list, cpu_set_t *set);
