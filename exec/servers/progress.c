/* The thread that owns the transport. */
#include <string.h>

#include "exec/servers/private.h"

#define BEAT_NS RP_NS_PER_S
/* Pieces under way between two servers, each way. */
#define WINDOW 4
/* Between looks: while something is under way, and while nothing is. */
#define BUSY_US 20
#define IDLE_NS (20 * G_GINT64_CONSTANT(1000000))
/* At the end the others are waited for this long, as the first server to exit may end them. */
#define TELL_NS (25 * RP_NS_PER_S)
/* A failure may be reported here for this long before the others hear that it is known. */
#define PRINT_NS (20 * RP_NS_PER_S)
/* After a failure, pieces that have begun to arrive or to leave may take this long to end. */
#define CANCEL_NS RP_NS_PER_S
/* At the end a server that was not heard of is listened to for this long all the same. */
#define LISTEN_NS (2 * RP_NS_PER_S)

/* The first failure is kept. (transfer full): @error */
static void
fail(RpServers *servers, GError *error)
{
    pthread_mutex_lock(&servers->lock);
    if (servers->failure == NULL)
        servers->failure = error;
    else
        g_error_free(error);
    pthread_cond_broadcast(&servers->changed);
    pthread_mutex_unlock(&servers->lock);
}

static void
lose(RpServers *servers, guint server, const char *why)
{
    fail(servers, g_error_new(RP_SERVERS_ERROR, RP_SERVERS_ERROR_LOST, "%s %s",
                              servers->peers[server].name, why));
}

/* ---- beats ---- */

/* Returns: whether it is over, or was never begun */
static gboolean
is_over(RpServers *servers, guint server, RpTransportMessage **message)
{
    g_autoptr(GError) error = NULL;
    gboolean over = TRUE;

    if (*message == NULL)
        return TRUE;
    if (!servers->ops->test(servers->transport, *message, &over, &error)) {
        *message = NULL;
        servers->peers[server].left = TRUE;
        lose(servers, server, error->message);
        return FALSE;
    }
    if (over)
        *message = NULL;
    return over;
}

static void
hear(RpServers *servers, guint server)
{
    RpServersPeer *peer = &servers->peers[server];

    peer->heard_ns = rp_clock_ns();
    peer->in.text[RP_SERVERS_TEXT - 1] = '\0';
    peer->left = peer->in.kind != RP_SERVERS_BEAT_ALIVE;
    if (peer->in.kind == RP_SERVERS_BEAT_FAILED)
        fail(servers, g_error_new(RP_SERVERS_ERROR, RP_SERVERS_ERROR_FAILED, "%s failed: %s",
                                  peer->name, peer->in.text));
    if (peer->in.kind == RP_SERVERS_BEAT_PASSES_ON)
        fail(servers, g_error_new_literal(RP_SERVERS_ERROR, peer->in.code, peer->in.text));
}

static void
listen_to(RpServers *servers, guint server)
{
    RpServersPeer *peer = &servers->peers[server];
    g_autoptr(GError) error = NULL;

    if (peer->left)
        return;
    if (peer->receiving != NULL) {
        if (!is_over(servers, server, &peer->receiving))
            return;
        hear(servers, server);
    }
    if (peer->left)
        return;
    peer->receiving = servers->ops->receive(servers->transport, server, RP_SERVERS_BEATS, &peer->in,
                                            sizeof peer->in, &error);
    if (peer->receiving == NULL)
        lose(servers, server, error->message);
}

/* Does nothing while the one before is in flight. */
static gboolean
beat(RpServers *servers, guint server, RpServersBeatKind kind, int code, const char *text)
{
    RpServersPeer *peer = &servers->peers[server];
    g_autoptr(GError) error = NULL;

    if (!is_over(servers, server, &peer->sending))
        return FALSE;
    memset(&peer->out, 0, sizeof peer->out);
    peer->out.kind = kind;
    peer->out.code = code;
    g_strlcpy(peer->out.text, text, sizeof peer->out.text);
    peer->sending = servers->ops->send(servers->transport, server, RP_SERVERS_BEATS, &peer->out,
                                       sizeof peer->out, &error);
    if (peer->sending == NULL)
        lose(servers, server, error->message);
    return peer->sending != NULL;
}

static gboolean
is_silent(const RpServers *servers, const RpServersPeer *peer)
{
    return rp_clock_ns() - peer->heard_ns > servers->options.silence_ns;
}

static void
look_after_peers(RpServers *servers)
{
    const gint64 now_ns = rp_clock_ns();
    const gboolean due = now_ns >= servers->beat_ns;

    for (guint r = 0; r < servers->count; r++) {
        RpServersPeer *peer = &servers->peers[r];

        if (r == servers->rank)
            continue;
        listen_to(servers, r);
        if (due && !peer->left)
            (void)beat(servers, r, RP_SERVERS_BEAT_ALIVE, 0, "");
        if (!peer->left && is_silent(servers, peer)) {
            g_autofree char *why = g_strdup_printf(
                "has not been heard of for %.0f s: it died, was stopped, or cannot be reached",
                (double)servers->options.silence_ns / RP_NS_PER_S);

            peer->left = TRUE;
            lose(servers, r, why);
        }
    }
    if (due)
        servers->beat_ns = now_ns + BEAT_NS;
}

/* ---- pieces ---- */

/* Whether an emulated network has carried @piece away: it is sent then. */
static gboolean
may_leave(RpServers *servers, RpServersPiece *piece)
{
    const gint64 now_ns = rp_clock_ns();
    double bytes_per_s;

    pthread_mutex_lock(&servers->lock);
    bytes_per_s = servers->bytes_per_s;
    pthread_mutex_unlock(&servers->lock);
    if (bytes_per_s <= 0)
        return TRUE;
    if (piece->due_ns == 0)
        servers->free_ns = piece->due_ns =
            MAX(servers->free_ns, now_ns) +
            (gint64)((double)piece->bytes * RP_NS_PER_S / bytes_per_s);
    return now_ns >= piece->due_ns;
}

static gboolean
begin_piece(RpServers *servers, guint channel, RpServersPiece *piece, GError **error)
{
    piece->message = piece->sent ? servers->ops->send(servers->transport, piece->server, channel,
                                                      piece->data, piece->bytes, error)
                                 : servers->ops->receive(servers->transport, piece->server, channel,
                                                         piece->data, piece->bytes, error);
    return piece->message != NULL;
}

/* Begins pieces as far as windows are open, and ends those that are over. @moved: (out): whether any
 * did. */
static gboolean
move_call(RpServers *servers, guint channel, RpServersCall *call, gboolean *moved, GError **error)
{
    g_autofree guint *under_way = g_new0(guint, 2 * (gsize)servers->count);

    for (guint i = call->first; i < call->pieces->len; i++) {
        RpServersPiece *piece = &g_array_index(call->pieces, RpServersPiece, i);
        guint *before = &under_way[2 * piece->server + piece->sent];
        gboolean over = FALSE;

        if (piece->data == NULL)
            continue;
        if (piece->message == NULL && *before >= WINDOW)
            continue;
        if (piece->message == NULL) {
            if (piece->sent && !may_leave(servers, piece)) {
                *before = WINDOW;
                continue;
            }
            if (!begin_piece(servers, channel, piece, error))
                return FALSE;
            *moved = TRUE;
        }
        if (!servers->ops->test(servers->transport, piece->message, &over, error)) {
            lose(servers, piece->server, (*error)->message);
            g_clear_error(error);
            return TRUE;
        }
        if (over) {
            piece->message = NULL;
            piece->data = NULL;
            *moved = TRUE;
            if (!piece->sent)
                servers->peers[piece->server].heard_ns = rp_clock_ns();
        } else {
            (*before)++;
        }
    }
    while (call->first < call->pieces->len &&
           g_array_index(call->pieces, RpServersPiece, call->first).data == NULL)
        call->first++;
    return TRUE;
}

/* Names who keeps @call waiting. */
static void
note_slow(RpServers *servers, RpServersCall *call)
{
    const gint64 waited_ns = rp_clock_ns() - call->start_ns;

    for (guint i = call->first; !call->told && i < call->pieces->len; i++) {
        const RpServersPiece *piece = &g_array_index(call->pieces, RpServersPiece, i);

        if (piece->data == NULL || piece->sent)
            continue;
        call->told = TRUE;
        if (servers->options.slow != NULL)
            servers->options.slow(servers->options.user_data, servers, piece->server, waited_ns);
    }
}

/* Returns: whether anything is under way. @moved: (out) */
static gboolean
move_calls(RpServers *servers, gboolean *moved)
{
    gboolean busy = FALSE;

    for (guint c = 0; c < RP_SERVERS_CHANNELS; c++) {
        GError *error = NULL;

        pthread_mutex_lock(&servers->lock);
        RpServersCall *call = servers->calls[c];
        pthread_mutex_unlock(&servers->lock);
        if (call == NULL)
            continue;
        busy = TRUE;
        if (!move_call(servers, c, call, moved, &error))
            fail(servers, error);
        if (c != RP_SERVERS_SAVING && rp_clock_ns() - call->start_ns > servers->options.patience_ns)
            note_slow(servers, call);
        if (call->first < call->pieces->len)
            continue;
        pthread_mutex_lock(&servers->lock);
        call->over = TRUE;
        servers->calls[c] = NULL; /* its caller may go, and take it along */
        pthread_cond_broadcast(&servers->changed);
        pthread_mutex_unlock(&servers->lock);
    }
    return busy;
}

static void
sleep_us(gint64 us)
{
    g_usleep((gulong)us);
}

/* Whether a piece is under way. @cancel: those that are received are called off first */
static gboolean
end_pieces(RpServers *servers, RpServersCall *call, gboolean cancel)
{
    gboolean busy = FALSE;

    for (guint i = call->first; i < call->pieces->len; i++) {
        RpServersPiece *piece = &g_array_index(call->pieces, RpServersPiece, i);
        gboolean over = FALSE;

        if (piece->message == NULL)
            continue;
        if (cancel && !piece->sent)
            servers->ops->cancel(servers->transport, piece->message);
        if (!servers->ops->test(servers->transport, piece->message, &over, NULL) || over)
            piece->message = NULL;
        busy = busy || piece->message != NULL;
    }
    return busy;
}

/* Callers may free their memory when they hear of a failure: nothing is written there then, not by
 * the beats of the end either, which move all pieces on. A piece that is still under way after
 * CANCEL_NS is left: its peer is gone. */
static void
end_calls(RpServers *servers)
{
    const gint64 start_ns = rp_clock_ns();
    gboolean busy = TRUE, first = TRUE;

    while (busy && rp_clock_ns() - start_ns < CANCEL_NS) {
        busy = FALSE;
        for (guint c = 0; c < RP_SERVERS_CHANNELS; c++) {
            pthread_mutex_lock(&servers->lock);
            RpServersCall *call = servers->calls[c];
            pthread_mutex_unlock(&servers->lock);
            busy = (call != NULL && end_pieces(servers, call, first)) || busy;
        }
        first = FALSE;
        if (busy)
            sleep_us(BUSY_US);
    }
}

/* ---- its life ---- */

/* Sends the last beat to all, and receives theirs: all earlier messages have arrived then. A server that is not heard
 * of is not waited for. */
static void
say_goodbye(RpServers *servers, RpServersBeatKind kind, int code, const char *text)
{
    const gint64 start_ns = rp_clock_ns(), until_ns = start_ns + TELL_NS;
    g_autofree gboolean *told = g_new0(gboolean, servers->count);
    gboolean waits = TRUE;

    while (waits && rp_clock_ns() < until_ns) {
        waits = FALSE;
        for (guint r = 0; r < servers->count; r++) {
            RpServersPeer *peer = &servers->peers[r];

            if (r == servers->rank)
                continue;
            if (!told[r])
                told[r] = beat(servers, r, kind, code, text);
            listen_to(servers, r);
            /* nobody has listened while a caller reported a failure: the others are heard first */
            if (!is_silent(servers, peer) || rp_clock_ns() - start_ns < LISTEN_NS)
                waits = waits || !peer->left || !told[r] || !is_over(servers, r, &peer->sending);
        }
        sleep_us(BUSY_US);
    }
}

static gboolean
join(RpServers *servers)
{
    GError *error = NULL;

    servers->transport =
        servers->ops->open(servers->place, &servers->rank, &servers->count, &error);
    pthread_mutex_lock(&servers->lock);
    servers->opened = servers->transport != NULL;
    servers->stopped = !servers->opened;
    servers->failure = error;
    if (servers->opened) {
        servers->peers = g_new0(RpServersPeer, servers->count);
        for (guint r = 0; r < servers->count; r++) {
            servers->peers[r].name = g_strdup_printf("server %u", r);
            servers->peers[r].heard_ns = rp_clock_ns();
        }
    }
    pthread_cond_broadcast(&servers->changed);
    pthread_mutex_unlock(&servers->lock);
    return servers->opened;
}

/* Waits while there is nothing to do. Returns: whether to continue */
static gboolean
rest(RpServers *servers, gboolean busy, gboolean moved)
{
    if (busy && !moved)
        sleep_us(BUSY_US);
    pthread_mutex_lock(&servers->lock);
    gboolean goes_on = servers->failure == NULL && servers->why == NULL && !servers->leaving;
    if (goes_on && !busy)
        (void)rp_clock_wait(&servers->changed, &servers->lock, rp_clock_ns() + IDLE_NS);
    pthread_mutex_unlock(&servers->lock);
    return goes_on;
}

/* Waits until the caller has reported the failure, and comes to rp_servers_fail() or
 * rp_servers_free(). */
static void
wait_for_caller(RpServers *servers)
{
    const gint64 until_ns = rp_clock_ns() + PRINT_NS;

    pthread_mutex_lock(&servers->lock);
    while (!servers->leaving && rp_clock_wait(&servers->changed, &servers->lock, until_ns))
        ;
    pthread_mutex_unlock(&servers->lock);
}

/* From here on no caller waits, and no piece moves. Returns: how it ends. @text: (out) (transfer
 * full): its message */
static RpServersBeatKind
stop(RpServers *servers, int *code, char **text)
{
    RpServersBeatKind kind = RP_SERVERS_BEAT_LEAVES;

    pthread_mutex_lock(&servers->lock);
    if (servers->failure != NULL)
        kind = RP_SERVERS_BEAT_PASSES_ON;
    else if (servers->why != NULL)
        kind = RP_SERVERS_BEAT_FAILED;
    if (servers->failure == NULL && servers->why != NULL)
        servers->failure = g_error_new(RP_SERVERS_ERROR, RP_SERVERS_ERROR_FAILED,
                                       "this server failed: %s", servers->why);
    *text = g_strdup(kind == RP_SERVERS_BEAT_PASSES_ON ? servers->failure->message
                     : kind == RP_SERVERS_BEAT_FAILED  ? servers->why
                                                       : "");
    *code = servers->failure != NULL ? servers->failure->code : 0;
    servers->stopped = TRUE;
    pthread_cond_broadcast(&servers->changed);
    pthread_mutex_unlock(&servers->lock);
    return kind;
}

void *
rp_servers_run(void *data)
{
    RpServers *servers = data;
    g_autofree char *text = NULL;
    gboolean busy, moved;
    int code;

    if (!join(servers))
        return NULL;
    do {
        moved = FALSE;
        look_after_peers(servers);
        busy = move_calls(servers, &moved);
    } while (rest(servers, busy, moved));

    end_calls(servers);

    const RpServersBeatKind kind = stop(servers, &code, &text);

    wait_for_caller(servers);
    say_goodbye(servers, kind, code, text);
    servers->ops->close(servers->transport, kind != RP_SERVERS_BEAT_LEAVES);
    return NULL;
}
