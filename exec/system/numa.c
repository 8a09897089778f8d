#include "exec/system/numa.h"

static guint
node_of(const RpPool *pool, const RpNodes *nodes, guint thread)
{
    return rp_nodes_of_cpu(nodes, rp_pool_cpu(pool, thread));
}

/* The first thread from @thread on that is on another node. */
static guint
next_node(const RpPool *pool, const RpNodes *nodes, guint thread)
{
    const guint n = rp_pool_n_threads(pool), node = node_of(pool, nodes, thread);

    while (thread < n && node_of(pool, nodes, thread) == node)
        thread++;
    return thread;
}

guint
rp_numa_nodes(const RpPool *pool, const RpNodes *nodes)
{
    guint n = 0;

    /* threads of one node follow each other */
    for (guint i = 0; i < rp_pool_n_threads(pool); i = next_node(pool, nodes, i))
        n++;
    return n;
}

guint64
rp_numa_bind(const RpPool *pool, const RpNodes *nodes, const guint8 *array, gsize n, gsize each,
             gsize granule, char **problem)
{
    guint64 bytes = 0;

    for (guint i = 0, next; i < rp_pool_n_threads(pool) && n > 0 && *problem == NULL; i = next) {
        gsize begin, end, other;

        next = next_node(pool, nodes, i);
        rp_pool_share(pool, i, 0, n, granule, &begin, &other);
        rp_pool_share(pool, next - 1, 0, n, granule, &other, &end);
        bytes += rp_nodes_prefer(array + begin * each, array + end * each, node_of(pool, nodes, i),
                                 problem);
    }
    return bytes;
}
