#include "tests/exec-servers/exchanges.h"

#include <string.h>

/* Byte @i of block @k from server @from to server @to. */
static guint8
byte_of(guint from, guint to, guint k, gsize i)
{
    return (guint8)(from * 31 + to * 17 + k * 7 + i % 251);
}

static gsize
bytes_of(guint from, guint to, guint k, gsize most)
{
    return k == 1 ? 0 : k == 2 ? 1 + from + 3 * to : most - from * 5 - to * 3;
}

#define BLOCKS 3

/* Blocks of all sizes, also none, between each two. */
static char *
exchange(RpServers *servers, gsize most)
{
    const guint n = rp_servers_count(servers), rank = rp_servers_rank(servers);
    g_autofree RpServersBlock *sends = g_new0(RpServersBlock, (gsize)BLOCKS * n),
                              *receives = g_new0(RpServersBlock, (gsize)BLOCKS * n);
    g_autoptr(GPtrArray) memory = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    guint count = 0;

    for (guint peer = 0; peer < n; peer++)
        for (guint k = 0; k < BLOCKS && peer != rank; k++, count++) {
            const gsize out = bytes_of(rank, peer, k, most), in = bytes_of(peer, rank, k, most);

            sends[count] = (RpServersBlock){peer, g_malloc0(out + 1), out};
            receives[count] = (RpServersBlock){peer, g_malloc0(in + 1), in};
            g_ptr_array_add(memory, sends[count].data);
            g_ptr_array_add(memory, receives[count].data);
            for (gsize i = 0; i < out; i++)
                ((guint8 *)sends[count].data)[i] = byte_of(rank, peer, k, i);
        }
    if (!rp_servers_exchange(servers, RP_SERVERS_NETWORK, sends, count, receives, count, &error))
        return g_strdup(error->message);
    for (guint b = 0; b < count; b++)
        for (gsize i = 0; i < receives[b].bytes; i++)
            if (((guint8 *)receives[b].data)[i] != byte_of(receives[b].server, rank, b % BLOCKS, i))
                return g_strdup_printf("block %u from server %u: byte %" G_GSIZE_FORMAT " is wrong",
                                       b % BLOCKS, receives[b].server, i);
    return NULL;
}

/* Sums of all ranks' numbers, in order. */
static char *
gather(RpServers *servers, RpServersChannel channel)
{
    const guint n = rp_servers_count(servers), rank = rp_servers_rank(servers);
    g_autofree gsize *offsets = g_new0(gsize, (gsize)n + 1);
    g_autofree double *all = NULL;
    g_autoptr(GError) error = NULL;

    for (guint r = 0; r < n; r++)
        offsets[r + 1] = offsets[r] + r * sizeof *all; /* server 0 has none */
    all = g_malloc0(offsets[n] + 1);
    for (guint i = 0; i < rank; i++)
        all[offsets[rank] / sizeof *all + i] = 100 * rank + i;
    if (!rp_servers_gather(servers, channel, all, offsets, &error))
        return g_strdup(error->message);
    for (guint r = 0; r < n; r++)
        for (guint i = 0; i < r; i++)
            if (all[offsets[r] / sizeof *all + i] != 100 * r + i)
                return g_strdup_printf("number %u of server %u is wrong", i, r);
    return NULL;
}

/* Three bytes of each, in order of ranks. */
static char *
gather_each(RpServers *servers, RpServersChannel channel)
{
    const guint n = rp_servers_count(servers), rank = rp_servers_rank(servers);
    g_autofree guint8 *all = g_malloc0((gsize)3 * n);
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < 3; i++)
        all[3 * rank + i] = (guint8)(10 * rank + i + 1);
    if (!rp_servers_gather_each(servers, channel, all, 3, &error))
        return g_strdup(error->message);
    for (guint i = 0; i < 3 * n; i++)
        if (all[i] != 10 * (i / 3) + i % 3 + 1)
            return g_strdup_printf("byte %u of %u equal parts is wrong", i, n);
    return NULL;
}

static char *
compare(RpServers *servers)
{
    g_autofree char *own = g_strdup_printf("%u", rp_servers_rank(servers) / 2);
    g_autoptr(GError) error = NULL;
    g_autofree char *named = NULL;

    if (!rp_servers_check_same(servers, "the model", "abc", &error))
        return g_strdup(error->message);
    if (rp_servers_count(servers) < 3)
        return NULL;
    if (rp_servers_check_same(servers, "the model", own, &error))
        return g_strdup("a difference was not seen");
    named = g_strdup_printf("%s: expected the model \"0\" as on %s, found \"1\"",
                            rp_servers_name(servers, 2), rp_servers_name(servers, 0));
    return strcmp(error->message, named) == 0 ? NULL : g_strdup(error->message);
}

/* The last server has a problem: the others get it with its name, and all continue. */
static char *
tell(RpServers *servers)
{
    const guint last = rp_servers_count(servers) - 1;
    const gboolean own = rp_servers_rank(servers) == last;
    g_autofree char *named = g_strdup_printf("%s: no luck", rp_servers_name(servers, last));
    GError *problem = own ? g_error_new_literal(G_FILE_ERROR, G_FILE_ERROR_IO, "no luck") : NULL;
    g_autoptr(GError) error = NULL;

    if (rp_servers_tell_problem(servers, RP_SERVERS_CONTROL, problem, RP_SERVERS_ERROR, 77, &error))
        return g_strdup("a problem was not seen");
    return g_error_matches(error, own ? G_FILE_ERROR : RP_SERVERS_ERROR,
                           own ? G_FILE_ERROR_IO : 77) &&
                   strcmp(error->message, own ? "no luck" : named) == 0
               ? NULL
               : g_strdup(error->message);
}

char *
exchanges_find_wrong(RpServers *servers, gsize bytes)
{
    char *wrong = exchange(servers, bytes);

    for (guint i = 0; wrong == NULL && i < RP_SERVERS_CHANNELS; i++) {
        wrong = gather(servers, (RpServersChannel)i);
        if (wrong == NULL)
            wrong = gather_each(servers, (RpServersChannel)i);
    }
    if (wrong == NULL)
        wrong = compare(servers);
    if (wrong == NULL)
        wrong = tell(servers);
    return wrong != NULL ? wrong : exchange(servers, 1000);
}
