/* Measures the rate and latency between servers. A task of the network sends to all others at once, and so do these:
 *
 *   barrier        |latency|latency|                   a byte to each other server
 *   blocks         |latency|latency|bytes / rate|      of as many bytes as take a while
 */
#include <stdlib.h>

#include "exec/servers/private.h"

#define BARRIERS 25
#define BLOCKS 5
#define FIRST_BYTES ((gsize)1 << 20)
#define BLOCKS_NS (RP_NS_PER_S / 10) /* time that one of them should take */

static int
compare(const void *a, const void *b)
{
    const gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;

    return (x > y) - (x < y);
}

/* The median time of @n gathers of @each bytes of every server; all begin together. -1: an error */
static gint64
time_gathers(RpServers *servers, guint8 *all, gsize each, guint n, GError **error)
{
    gint64 times_ns[MAX(BARRIERS, BLOCKS)];

    for (guint i = 0; i < n; i++) {
        if (!rp_servers_barrier(servers, RP_SERVERS_CONTROL, error))
            return -1;
        const gint64 start_ns = rp_clock_ns();

        if (!rp_servers_gather_each(servers, RP_SERVERS_CONTROL, all, each, error))
            return -1;
        times_ns[i] = rp_clock_ns() - start_ns;
    }
    qsort(times_ns, n, sizeof *times_ns, compare);
    return times_ns[n / 2];
}

/* Bytes that each server has a part of: as many as take a while, the same on all. 0: an error */
static gsize
choose_bytes(RpServers *servers, guint8 *all, gsize most, GError **error)
{
    const guint n = servers->count;
    const gsize first = MIN(FIRST_BYTES, most);
    g_autofree gint64 *times_ns = g_new0(gint64, n);
    gint64 longest_ns = 1;

    /* the first makes connections, and touches memory */
    if (time_gathers(servers, all, first / n, 1, error) < 0)
        return 0;
    times_ns[servers->rank] = time_gathers(servers, all, first / n, 1, error);
    if (times_ns[servers->rank] < 0 ||
        !rp_servers_gather_each(servers, RP_SERVERS_CONTROL, times_ns, sizeof *times_ns, error))
        return 0;
    for (guint r = 0; r < n; r++)
        longest_ns = MAX(longest_ns, times_ns[r]);
    return (gsize)CLAMP((double)first * BLOCKS_NS / (double)longest_ns, (double)first,
                        (double)most);
}

gboolean
rp_servers_measure(RpServers *servers, gsize most_bytes, RpServersSpeed *all, GError **error)
{
    const guint n = servers->count;
    const gsize most = MAX(most_bytes, n);
    g_autofree guint8 *bytes = g_malloc0(most);
    RpServersSpeed *own = &all[servers->rank];
    const gsize each = choose_bytes(servers, bytes, most, error) / n;
    const gint64 barrier_ns = each > 0 ? time_gathers(servers, bytes, 1, BARRIERS, error) : -1;
    const gint64 block_ns =
        barrier_ns >= 0 ? time_gathers(servers, bytes, each, BLOCKS, error) : -1;

    if (block_ns < 0)
        return FALSE;
    own->latency_ns = n > 1 ? barrier_ns / (n - 1) : 0;
    own->bytes_per_s = (double)each * (n - 1) * RP_NS_PER_S /
                       (double)MAX(1, block_ns - MIN(barrier_ns, block_ns / 2));
    return rp_servers_gather_each(servers, RP_SERVERS_CONTROL, all, sizeof *all, error);
}

RpServersSpeed
rp_servers_slowest(const RpServersSpeed *all, guint n)
{
    RpServersSpeed slowest = all[0];

    for (guint r = 1; r < n; r++) {
        slowest.bytes_per_s = MIN(slowest.bytes_per_s, all[r].bytes_per_s);
        slowest.latency_ns = MAX(slowest.latency_ns, all[r].latency_ns);
    }
    return slowest;
}
