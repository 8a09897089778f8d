#include <stdlib.h>
#include <string.h>

#include "core/base/quote.h"

#include "core/base/units.h"
#include "exec/servers/private.h"

#define SILENCE_NS (20 * RP_NS_PER_S)
#define PATIENCE_NS (30 * RP_NS_PER_S)
#define PIECE_BYTES ((guint64)4 << 20)

/* ---- life ---- */

static gboolean
name_servers(RpServers *servers, GError **error)
{
    g_auto(GStrv) hosts =
        rp_servers_gather_texts(servers, RP_SERVERS_CONTROL, g_get_host_name(), error);

    if (hosts == NULL)
        return FALSE;
    pthread_mutex_lock(&servers->lock);
    for (guint r = 0; r < servers->count; r++) {
        g_free(servers->peers[r].name);
        servers->peers[r].name = g_strdup_printf("server %u (%s)", r, hosts[r]);
    }
    pthread_mutex_unlock(&servers->lock);
    return rp_servers_barrier(servers, RP_SERVERS_CONTROL, error); /* all know all names */
}

static gboolean
start(RpServers *servers, GError **error)
{
    gboolean opened;

    if (pthread_create(&servers->thread, NULL, rp_servers_run, servers) != 0)
        return rp_fail(error, RP_TRANSPORT_ERROR, RP_TRANSPORT_ERROR_FAILED,
                       "no thread could be started for what servers send each other");
    servers->started = TRUE;
    pthread_mutex_lock(&servers->lock);
    while (!servers->opened && !servers->stopped)
        pthread_cond_wait(&servers->changed, &servers->lock);
    opened = servers->opened;
    if (!opened)
        g_propagate_error(error, g_error_copy(servers->failure));
    pthread_mutex_unlock(&servers->lock);
    return opened;
}

RpServers *
rp_servers_new(const RpTransportOps *ops, gpointer place, const RpServersOptions *options,
               GError **error)
{
    g_autoptr(RpServers) servers = g_new0(RpServers, 1);

    servers->ops = ops;
    servers->place = place;
    servers->options = *options;
    servers->bytes_per_s = options->bytes_per_s;
    if (servers->options.silence_ns == 0)
        servers->options.silence_ns = SILENCE_NS;
    if (servers->options.patience_ns == 0)
        servers->options.patience_ns = PATIENCE_NS;
    if (servers->options.piece_bytes == 0)
        servers->options.piece_bytes = PIECE_BYTES;
    pthread_mutex_init(&servers->lock, NULL);
    rp_clock_init_cond(&servers->changed);
    if (!start(servers, error) || !name_servers(servers, error))
        return NULL;
    return g_steal_pointer(&servers);
}

void
rp_servers_free(RpServers *servers)
{
    if (servers == NULL)
        return;
    if (servers->opened && !rp_servers_barrier(servers, RP_SERVERS_CONTROL, NULL))
        g_debug("not all servers came to the end");
    pthread_mutex_lock(&servers->lock);
    servers->leaving = TRUE;
    pthread_cond_broadcast(&servers->changed);
    pthread_mutex_unlock(&servers->lock);
    if (servers->started)
        pthread_join(servers->thread, NULL);
    for (guint r = 0; servers->peers != NULL && r < servers->count; r++)
        g_free(servers->peers[r].name);
    g_free(servers->peers);
    g_clear_error(&servers->failure);
    g_free(servers->why);
    pthread_cond_destroy(&servers->changed);
    pthread_mutex_destroy(&servers->lock);
    g_free(servers);
}

guint
rp_servers_rank(const RpServers *servers)
{
    return servers->rank;
}

guint
rp_servers_count(const RpServers *servers)
{
    return servers->count;
}

const char *
rp_servers_name(const RpServers *servers, guint rank)
{
    return servers->peers[rank].name;
}

/* ---- exchanges ---- */

/* Windows are those of a server each, so all are served at once. */
static void
cut(const RpServers *servers, const RpServersBlock *blocks, guint n, gboolean sent, GArray *pieces)
{
    const guint64 most = servers->options.piece_bytes;

    for (guint i = 0; i < n; i++) {
        g_assert(blocks[i].server < servers->count && blocks[i].server != servers->rank);
        for (gsize at = 0; at < blocks[i].bytes; at += most) {
            const RpServersPiece piece = {.server = blocks[i].server,
                                          .sent = sent,
                                          .data = (guint8 *)blocks[i].data + at,
                                          .bytes = MIN(most, blocks[i].bytes - at)};

            g_array_append_val(pieces, piece);
        }
    }
}

gboolean
rp_servers_exchange(RpServers *servers, RpServersChannel channel, const RpServersBlock *sends,
                    guint n_sends, const RpServersBlock *receives, guint n_receives, GError **error)
{
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof(RpServersPiece));
    RpServersCall call = {.pieces = pieces, .start_ns = rp_clock_ns()};

    cut(servers, receives, n_receives, FALSE, pieces);
    cut(servers, sends, n_sends, TRUE, pieces);
    pthread_mutex_lock(&servers->lock);
    g_assert(servers->calls[channel] == NULL);
    if (!servers->stopped && servers->failure == NULL) {
        servers->calls[channel] = &call;
        pthread_cond_broadcast(&servers->changed);
    }
    while (servers->calls[channel] == &call && !servers->stopped)
        pthread_cond_wait(&servers->changed, &servers->lock);
    servers->calls[channel] = NULL;
    if (!call.over)
        g_propagate_error(error, servers->failure != NULL
                                     ? g_error_copy(servers->failure)
                                     : g_error_new_literal(RP_SERVERS_ERROR, RP_SERVERS_ERROR_LOST,
                                                           "the servers have parted"));
    pthread_mutex_unlock(&servers->lock);
    return call.over;
}

gboolean
rp_servers_gather(RpServers *servers, RpServersChannel channel, void *all, const gsize *offsets,
                  GError **error)
{
    const guint n = servers->count;
    g_autofree RpServersBlock *sends = g_new(RpServersBlock, n),
                              *receives = g_new(RpServersBlock, n);
    guint8 *bytes = all;

    for (guint i = 1; i < n; i++) {
        const guint to = (servers->rank + i) % n, from = (servers->rank + n - i) % n;

        sends[i - 1] = (RpServersBlock){to, bytes + offsets[servers->rank],
                                        offsets[servers->rank + 1] - offsets[servers->rank]};
        receives[i - 1] =
            (RpServersBlock){from, bytes + offsets[from], offsets[from + 1] - offsets[from]};
    }
    return rp_servers_exchange(servers, channel, sends, n - 1, receives, n - 1, error);
}

gboolean
rp_servers_gather_each(RpServers *servers, RpServersChannel channel, void *all, gsize bytes_each,
                       GError **error)
{
    g_autofree gsize *offsets = g_new(gsize, (gsize)servers->count + 1);

    for (guint r = 0; r <= servers->count; r++)
        offsets[r] = r * bytes_each;
    return rp_servers_gather(servers, channel, all, offsets, error);
}

GStrv
rp_servers_gather_texts(RpServers *servers, RpServersChannel channel, const char *text,
                        GError **error)
{
    const guint n = servers->count;
    g_autofree guint64 *lengths = g_new0(guint64, n);
    g_autofree gsize *offsets = g_new0(gsize, (gsize)n + 1);

    lengths[servers->rank] = strlen(text) + 1;
    if (!rp_servers_gather_each(servers, channel, lengths, sizeof *lengths, error))
        return NULL;
    for (guint r = 0; r < n; r++)
        offsets[r + 1] = offsets[r] + lengths[r];
    g_autofree char *all = g_malloc0(offsets[n]);

    memcpy(all + offsets[servers->rank], text, lengths[servers->rank]);
    if (!rp_servers_gather(servers, channel, all, offsets, error))
        return NULL;
    GStrv texts = g_new0(char *, (gsize)n + 1);
    for (guint r = 0; r < n; r++)
        texts[r] = g_strndup(all + offsets[r], lengths[r] - 1);
    return texts;
}

gboolean
rp_servers_barrier(RpServers *servers, RpServersChannel channel, GError **error)
{
    g_autofree guint8 *all = g_new0(guint8, servers->count);

    return rp_servers_gather_each(servers, channel, all, 1, error);
}

/* The first line of @a that @b has not there. */
static void
find_difference(const char *a, const char *b, char **of_a, char **of_b)
{
    g_auto(GStrv) x = g_strsplit(a, "\n", -1), y = g_strsplit(b, "\n", -1);
    guint i = 0;

    while (x[i] != NULL && y[i] != NULL && strcmp(x[i], y[i]) == 0)
        i++;
    *of_a = g_strstrip(g_strdup(x[i] != NULL ? x[i] : "nothing more"));
    *of_b = g_strstrip(g_strdup(y[i] != NULL ? y[i] : "nothing more"));
}

gboolean
rp_servers_check_same(RpServers *servers, const char *what, const char *text, GError **error)
{
    g_autofree char *expected = NULL, *found = NULL;
    g_auto(GStrv) texts = rp_servers_gather_texts(servers, RP_SERVERS_CONTROL, text, error);
    guint r = 1;

    if (texts == NULL)
        return FALSE;
    while (r < servers->count && strcmp(texts[r], texts[0]) == 0)
        r++;
    if (r == servers->count)
        return TRUE;
    find_difference(texts[0], texts[r], &expected, &found);
    return rp_fail(error, RP_SERVERS_ERROR, RP_SERVERS_ERROR_DIFFERS,
                   "%s: expected %s \"%s\" as on %s, found \"%s\"", servers->peers[r].name, what,
                   expected, servers->peers[0].name, found);
}

gboolean
rp_servers_tell_problem(RpServers *servers, RpServersChannel channel, GError *problem,
                        GQuark domain, int code, GError **error)
{
    g_autoptr(GError) own = problem;
    g_auto(GStrv) texts =
        rp_servers_gather_texts(servers, channel, own != NULL ? own->message : "", error);
    guint r = 0;

    if (texts == NULL)
        return FALSE;
    if (own != NULL)
        return rp_propagate_error(error, g_steal_pointer(&own));
    while (r + 1 < servers->count && *texts[r] == '\0')
        r++;
    return rp_fail(error, domain, code, "%s: %s", servers->peers[r].name, texts[r]);
}

/* ---- failure ---- */

void
rp_servers_emulate(RpServers *servers, double bytes_per_s)
{
    pthread_mutex_lock(&servers->lock);
    servers->bytes_per_s = bytes_per_s;
    pthread_mutex_unlock(&servers->lock);
}

void
rp_servers_fail(RpServers *servers, const char *why)
{
    pthread_mutex_lock(&servers->lock);
    if (servers->why == NULL)
        servers->why = g_strdup(why);
    servers->leaving = TRUE;
    pthread_cond_broadcast(&servers->changed);
    pthread_mutex_unlock(&servers->lock);
    pthread_join(servers->thread, NULL);
    servers->started = FALSE;
}

const char *
rp_servers_said(const RpServers *servers, guint rank)
{
    const RpServersPeer *peer = &servers->peers[rank];

    g_assert(!servers->started);
    return peer->left && peer->in.kind != RP_SERVERS_BEAT_LEAVES &&
                   peer->in.kind != RP_SERVERS_BEAT_ALIVE
               ? peer->in.text
               : NULL;
}

/* Measures the rate and latency between servers. A task of the network sends to all others at once, and so do these:
 *
 *   barrier        |latency|latency|                   a byte to each other server
 *   blocks         |latency|latency|bytes / rate|      of as many bytes as take a while
 */

#define BARRIERS 25
#define BLOCKS 5
#define FIRST_BYTES ((gsize)1 << 20)
#define BLOCKS_NS (RP_NS_PER_S / 10) /* time that one of them should take */

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
    qsort(times_ns, n, sizeof *times_ns, rp_compare_int64);
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
